//! A half's records as columns: the first thing that the sealer does to them.
//!
//! Row by row every field would ask its vector for room. So the places of the records are noted by table first, and
//! then each column is filled for as many records at a time as stay in the nearest cache.

use std::convert::Infallible;

use crate::definition::{Definition, DefinitionVisitor, Definitions, visit_definitions};
use crate::event::{Event, Events, KindVisitor, visit_kinds};
use crate::staging::{RECORD_HEADER_BYTES, take_own_record};
use crate::table::{ColumnWriter, DefinitionKind, Row, Table, Value};

/// So many records of 64 bytes take half of a first-level cache.
const AT_ONCE: usize = 256;

/// Sorts records by table. Keeps its memory from half to half.
#[derive(Default)]
pub(crate) struct Transpose {
    /// Where the contents of a table's records begin, by the table's number.
    places: Vec<Vec<u32>>,
}

impl Transpose {
    /// Adds the rows of `records`, which are the writer's own, to these tables.
    pub(crate) fn records(&mut self, records: &[u8], definitions: &mut Definitions, events: &mut Events) {
        self.places.iter_mut().for_each(Vec::clear);
        let mut rest = records;
        loop {
            let place = records.len() - rest.len() + RECORD_HEADER_BYTES;
            let Some((table, contents)) = take_own_record(&mut rest) else { break };
            if table == DefinitionKind::String as u16 {
                definitions.strings.push(String::from_utf8_lossy(contents).into());
                continue;
            }
            let table = usize::from(table);
            if self.places.len() <= table {
                self.places.resize_with(table + 1, Vec::new);
            }
            self.places[table].push(place as u32);
        }
        let mut fill = Fill { records, places: &self.places, definitions, events };
        let Ok(()) = visit_definitions(&mut fill);
        let Ok(()) = visit_kinds(&mut fill);
    }
}

struct Fill<'a> {
    records: &'a [u8],
    places: &'a [Vec<u32>],
    definitions: &'a mut Definitions,
    events: &'a mut Events,
}

impl Fill<'_> {
    fn table<T: Table>(records: &[u8], places: &[Vec<u32>], table: &mut T) {
        let places = places.get(usize::from(T::Row::KIND)).map_or(&[][..], Vec::as_slice);
        for places in places.chunks(AT_ONCE) {
            let mut at = 0;
            for (column, spec) in T::Row::COLUMNS.iter().enumerate() {
                table.write_column(column, Extend { records, places, at });
                at += spec.scalar.bytes();
            }
        }
    }
}

impl DefinitionVisitor for Fill<'_> {
    type Error = Infallible;
    fn visit<T: Definition>(&mut self) -> Result<(), Infallible> {
        Self::table(self.records, self.places, T::table_mut(self.definitions));
        Ok(())
    }
}

impl KindVisitor for Fill<'_> {
    type Error = Infallible;
    fn visit<E: Event>(&mut self) -> Result<(), Infallible> {
        Self::table(self.records, self.places, E::table_mut(self.events));
        Ok(())
    }
}

/// Adds a field of some records to its column.
struct Extend<'a> {
    records: &'a [u8],
    places: &'a [u32],
    /// Where the field is in a record's contents.
    at: usize,
}

impl ColumnWriter for Extend<'_> {
    type Out = ();
    fn write<T: Value>(self, values: &mut Vec<T>) {
        let width = const { T::SCALAR.bytes() };
        values.extend(self.places.iter().map(|&place| {
            let from = place as usize + self.at;
            let mut bits = [0; 8];
            bits[..width].copy_from_slice(&self.records[from..from + width]);
            T::from_bits(u64::from_le_bytes(bits))
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Launch, Mark, Memcpy};
    use crate::staging::{frame, frame_row};

    #[test]
    fn rows_of_all_widths_come_back_in_order() {
        let mut records = Vec::new();
        let number = |row: usize, column: usize| ((row * 31 + column) as u64).wrapping_mul(0x0101_0101_0101_0101);
        fn row<R: Row>(number: impl Fn(usize) -> u64) -> R {
            let mut row = R::default();
            (0..R::COLUMNS.len()).for_each(|column| row.set(column, number(column)));
            row
        }
        for index in 0..3 * AT_ONCE {
            frame_row(&row::<Launch>(|column| number(index, column)), &mut records);
            frame_row(&row::<Memcpy>(|column| number(index + 1, column)), &mut records);
            frame(DefinitionKind::String as u16, format!("{index}").as_bytes(), &mut records);
        }
        let (mut definitions, mut events) = <(Definitions, Events)>::default();
        let mut transpose = Transpose::default();
        transpose.records(&records, &mut definitions, &mut events);
        assert_eq!((events.launch.len(), events.memcpy.len()), (3 * AT_ONCE, 3 * AT_ONCE));
        for index in 0..3 * AT_ONCE {
            assert_eq!(events.launch.row(index), row::<Launch>(|column| number(index, column)));
            assert_eq!(events.memcpy.row(index), row::<Memcpy>(|column| number(index + 1, column)));
            assert_eq!(*definitions.strings[index], *format!("{index}"));
        }
        // Nothing of one half is left in the next.
        let mut records = Vec::new();
        frame_row(&Mark::default(), &mut records);
        events.clear();
        transpose.records(&records, &mut definitions, &mut events);
        assert_eq!((events.len(), events.mark.len()), (1, 1));
    }
}
