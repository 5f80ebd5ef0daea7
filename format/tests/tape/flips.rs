//! Every single bit of a tape, flipped: what is read was written, in order, at its own ids; and what is missing is said.

use std::ops::Range;

use ktape_format::definition::{DefinitionVisitor, visit_definitions};
use ktape_format::event::{Event, KindVisitor, visit_kinds};
use ktape_format::header::HEADER_BYTES;
use ktape_format::{Contents, Definition, Row, Table, Tape, Wanted};

use crate::{killed_tape, read, small_tape, staged};

/// What of a true tape is in another: how many rows are missing; an error where one is not true.
struct Missing<'a> {
    truth: &'a Contents,
    contents: &'a Contents,
    rows: usize,
}

impl KindVisitor for Missing<'_> {
    type Error = &'static str;
    fn visit<E: Event>(&mut self) -> Result<(), Self::Error> {
        let (truth, rows) = (E::table(&self.truth.events), E::table(&self.contents.events));
        let mut true_rows = truth.rows();
        let in_order = rows.rows().all(|row| true_rows.any(|true_row| same(&true_row, &row)));
        self.rows += truth.len().saturating_sub(rows.len());
        in_order.then_some(()).ok_or(E::NAME)
    }
}

impl DefinitionVisitor for Missing<'_> {
    type Error = &'static str;
    fn visit<T: Definition>(&mut self) -> Result<(), Self::Error> {
        let (truth, rows) = (T::table(&self.truth.definitions), T::table(&self.contents.definitions));
        self.rows += truth.len().saturating_sub(rows.len());
        for (id, row) in rows.rows().enumerate() {
            let is_lost = same(&row, &T::default());
            self.rows += usize::from(is_lost);
            if id >= truth.len() || !is_lost && !same(&row, &truth.row(id)) {
                return Err(T::NAME);
            }
        }
        Ok(())
    }
}

fn same<R: Row>(a: &R, b: &R) -> bool {
    (0..R::COLUMNS.len()).all(|column| a.get(column) == b.get(column))
}

impl Missing<'_> {
    fn count(&mut self) -> Result<usize, &'static str> {
        let (truth, strings) = (&self.truth.definitions.strings, &self.contents.definitions.strings);
        let lost = strings.iter().filter(|string| string.is_empty()).count();
        self.rows += lost + truth.len().saturating_sub(strings.len());
        let mut pairs = strings.iter().enumerate();
        if !pairs.all(|(id, string)| string.is_empty() || truth.get(id) == Some(string)) {
            return Err("string");
        }
        visit_definitions(self)?;
        visit_kinds(self)?;
        Ok(self.rows)
    }
}

/// Flips each bit of these bytes in turn; gives those bytes of which a flip gave a wrong row, or cost one in silence.
fn wrong_after_a_flip(tape: &[u8], bytes: Range<usize>) -> Vec<(usize, String)> {
    let truth = read(tape.to_vec());
    assert_eq!(truth.damage, []);
    let mut wrong = Vec::new();
    let mut flipped = tape.to_vec();
    for bit in 8 * bytes.start..8 * bytes.end {
        flipped[bit / 8] ^= 1 << (bit % 8);
        let outcome = match Tape::from_bytes(flipped.clone()) {
            Err(_) if bit / 8 < HEADER_BYTES => Ok(()),
            Err(error) => Err(format!("refused: {error}")),
            Ok(tape) => {
                let contents = tape.read(&Wanted::default()).unwrap();
                match (Missing { truth: &truth, contents: &contents, rows: 0 }).count() {
                    Err(table) => Err(format!("a wrong {table}")),
                    Ok(missing) if missing > 0 && contents.damage.is_empty() => {
                        Err(format!("{missing} rows gone in silence"))
                    }
                    Ok(_) => Ok(()),
                }
            }
        };
        if let Err(outcome) = outcome {
            wrong.push((bit / 8, outcome));
        }
        flipped[bit / 8] ^= 1 << (bit % 8);
    }
    wrong
}

#[test]
fn every_flipped_bit_of_a_closed_tape_is_noticed_or_harmless() {
    let tape = small_tape(&staged(0));
    assert_eq!(wrong_after_a_flip(&tape, 0..tape.len()), []);
}

#[test]
fn every_flipped_bit_of_a_killed_writers_tape_is_noticed_or_harmless() {
    let tape = killed_tape();
    assert_eq!(wrong_after_a_flip(&tape, 0..tape.len()), []);
}
