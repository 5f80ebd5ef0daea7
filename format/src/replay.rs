//! Staged records back into rows: what a reader does with what was not sealed. They are a stranger's, and may be of
//! another version; the sealer's own way is `transpose`.

use std::sync::LazyLock;

use crate::definition::{Definition, DefinitionVisitor, Definitions, visit_definitions};
use crate::event::{Event, Events, KindVisitor, visit_kinds};
use crate::table::{DefinitionKind, Row, Table};

/// Adds a record's row to its table; `false` if the record ends within a column.
type Add = fn(&[u8], &mut Definitions, &mut Events) -> bool;

/// By the table's number.
static ADD: LazyLock<Vec<Option<Add>>> = LazyLock::new(|| {
    struct Adds(Vec<Option<Add>>);
    impl Adds {
        fn set(&mut self, table: u16, add: Add) {
            let table = usize::from(table);
            self.0.resize(self.0.len().max(table + 1), None);
            self.0[table] = Some(add);
        }
    }
    impl DefinitionVisitor for Adds {
        type Error = std::convert::Infallible;
        fn visit<T: Definition>(&mut self) -> Result<(), Self::Error> {
            self.set(T::KIND, |record, definitions, _| {
                row(record).is_some_and(|row: T| {
                    T::table_mut(definitions).push(row);
                    true
                })
            });
            Ok(())
        }
    }
    impl KindVisitor for Adds {
        type Error = std::convert::Infallible;
        fn visit<E: Event>(&mut self) -> Result<(), Self::Error> {
            self.set(E::KIND, |record, _, events| {
                row(record).is_some_and(|row: E| {
                    E::table_mut(events).push(row);
                    true
                })
            });
            Ok(())
        }
    }
    let mut adds = Adds(Vec::new());
    let Ok(()) = visit_definitions(&mut adds);
    let Ok(()) = visit_kinds(&mut adds);
    adds.set(DefinitionKind::String as u16, |record, definitions, _| {
        definitions.strings.push(String::from_utf8_lossy(record).into());
        true
    });
    adds.0
});

/// Adds the rows of `records`, as table and contents, up to the first that cannot be read. Returns whether all could
/// be. One of a table that is newer than this version is left out.
pub(crate) fn replay<'a>(
    records: impl Iterator<Item = (u16, &'a [u8])>,
    definitions: &mut Definitions,
    events: &mut Events,
) -> bool {
    let adds = &*ADD;
    for (table, record) in records {
        let add = adds.get(usize::from(table)).copied().flatten();
        if add.is_some_and(|add| !add(record, definitions, events)) {
            return false;
        }
    }
    true
}

/// A record's row; `None` if it ends within a column.
fn row<R: Row>(record: &[u8]) -> Option<R> {
    if record.len() >= R::STAGED_BYTES {
        // Columns that are newer than this version are cut off.
        return Some(R::unstage(&record[..R::STAGED_BYTES]));
    }
    // Columns that are newer than the writer are 0.
    let mut ends = R::COLUMNS.iter().scan(0, |end, column| {
        *end += column.scalar.bytes();
        Some(*end)
    });
    ends.find(|&end| end == record.len())?;
    let mut whole = record.to_vec();
    whole.resize(R::STAGED_BYTES, 0);
    Some(R::unstage(&whole))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Launch;

    #[test]
    fn records_of_other_versions_are_read_as_far_as_they_are_known() {
        let mut words = [0; Launch::STAGED_BYTES.div_ceil(8)];
        Launch { start_ns: 5, args: 9, ..Launch::default() }.stage(&mut words);
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let launch = &bytes[..Launch::STAGED_BYTES];
        let newer = [launch, &[1; 8]].concat();
        let older = &launch[..launch.len() - 4];
        let (mut definitions, mut events) = (Definitions::default(), Events::default());
        let records = [(200, &[1; 3][..]), (1, &newer), (1, older), (1, launch)];
        assert!(replay(records.into_iter(), &mut definitions, &mut events));
        assert_eq!((events.launch.start_ns, events.launch.args), (vec![5; 3], vec![9, 0, 9]));
        let torn = replay([(1, &launch[..3])].into_iter(), &mut definitions, &mut Events::default());
        assert!(!torn, "a record ends within a column");
    }
}
