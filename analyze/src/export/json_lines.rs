//! Events as JSON lines: one object an event, in time order across all kinds, with names in place of ids.
//!
//! Written over the tables' own description ([`ktape_format::Row::COLUMNS`]), so that a new kind or column appears by itself:
//! - `kind` is the event's kind. A column of that name is written with its table's before it (`memcpy_kind`).
//! - Quantities are integers, never rounded. A counter's value is the shortest decimal that reads back as the same
//!   double, or one of the strings "NaN", "Infinity" and "-Infinity", for which JSON has no number.
//! - Codes are their names, or their number where this version has no name for it.
//! - Ids become what they stand for (see `json_names`); 0 becomes `null`, an id whose definition is lost
//!   `{"undefined":7}`.
//! - `args`, which sources record as a JSON object, stands as that object; as a string where it is none.

use std::convert::Infallible;
use std::io::{self, Write};

use ktape_format::Table;
use ktape_format::event::{Event, Events, KindVisitor, visit_kinds};
use ktape_format::table::{DefinitionKind, Refers, Scalar, Value};
use serde_json::value::RawValue;

use super::json_names::Names;
use crate::timeline::Timeline;

/// Writes all events of a timeline. Those that begin together are in the order of their kinds' numbers, then rows.
pub fn write(timeline: &Timeline, out: &mut impl Write) -> io::Result<()> {
    let mut open = Open { events: &timeline.events, kinds: Vec::new() };
    let Ok(()) = visit_kinds(&mut open);
    let mut kinds = open.kinds;
    let mut names = Names::new(&timeline.definitions);
    let mut line = Vec::new();
    // A kind that has come to its end has no next start, which is the least of all.
    while let Some(next) = (0..kinds.len()).min_by_key(|&kind| kinds[kind].next_start_ns()) {
        if kinds[next].next_start_ns().is_none() {
            kinds.remove(next);
            continue;
        }
        line.clear();
        kinds[next].write_next(&mut names, &mut line)?;
        out.write_all(&line)?;
    }
    Ok(())
}

/// The rows of one kind, whichever it is.
trait Rows {
    fn next_start_ns(&self) -> Option<i64>;
    fn write_next(&mut self, names: &mut Names<'_>, line: &mut Vec<u8>) -> io::Result<()>;
}

struct Open<'a> {
    events: &'a Events,
    kinds: Vec<Box<dyn Rows + 'a>>,
}

impl KindVisitor for Open<'_> {
    type Error = Infallible;
    fn visit<E: Event>(&mut self) -> Result<(), Infallible> {
        let key = |name| if name == "kind" { format!(",\"{}_kind\":", E::NAME) } else { format!(",\"{name}\":") };
        let keys = E::COLUMNS.iter().map(|spec| key(spec.name)).collect();
        let table = E::table(self.events);
        let next = (!table.is_empty()).then(|| table.row(0));
        self.kinds.push(Box::new(RowsOf::<E> { table, at: 0, next, keys }));
        Ok(())
    }
}

struct RowsOf<'a, E: Event> {
    table: &'a E::Table,
    at: usize,
    next: Option<E>,
    /// What stands before each column's value.
    keys: Vec<String>,
}

impl<E: Event> Rows for RowsOf<'_, E> {
    fn next_start_ns(&self) -> Option<i64> {
        self.next.as_ref().map(E::start_ns)
    }

    fn write_next(&mut self, names: &mut Names<'_>, line: &mut Vec<u8>) -> io::Result<()> {
        let Some(row) = self.next else { return Ok(()) };
        write!(line, "{{\"kind\":\"{}\"", E::NAME)?;
        for (column, (spec, key)) in E::COLUMNS.iter().zip(&self.keys).enumerate() {
            line.extend_from_slice(key.as_bytes());
            let bits = row.get(column);
            match spec.refers {
                Refers::Nothing => write_number(spec.scalar, bits, line)?,
                Refers::Code(codes) => match codes.get(bits as usize) {
                    Some(name) => serde_json::to_writer(&mut *line, name)?,
                    None => write!(line, "{bits}")?,
                },
                Refers::To(DefinitionKind::String) if spec.name == "args" => {
                    match object(names.definitions().string(bits as u32)) {
                        Some(args) => line.extend_from_slice(args.as_bytes()),
                        None => names.write(DefinitionKind::String, bits as u32, line)?,
                    }
                }
                Refers::To(kind) => names.write(kind, bits as u32, line)?,
            }
        }
        line.extend_from_slice(b"}\n");
        self.at += 1;
        self.next = (self.at < self.table.len()).then(|| self.table.row(self.at));
        Ok(())
    }
}

fn write_number(scalar: Scalar, bits: u64, line: &mut Vec<u8>) -> io::Result<()> {
    match scalar {
        Scalar::U8 | Scalar::U16 | Scalar::U32 | Scalar::U64 => write!(line, "{bits}"),
        Scalar::I32 => write!(line, "{}", i32::from_bits(bits)),
        Scalar::I64 => write!(line, "{}", i64::from_bits(bits)),
        Scalar::F64 => match f64::from_bits(bits) {
            value if value.is_nan() => write!(line, "\"NaN\""),
            value if value.is_infinite() => write!(line, "\"{}Infinity\"", if value < 0.0 { "-" } else { "" }),
            value => Ok(serde_json::to_writer(line, &value)?),
        },
    }
}

/// The text if it is a JSON object that fits on a line.
fn object(text: &str) -> Option<&str> {
    let fits = text.starts_with('{') && !text.contains(['\n', '\r']);
    (fits && serde_json::from_str::<&RawValue>(text).is_ok()).then_some(text)
}
