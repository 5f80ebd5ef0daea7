//! Tapes of every released version are read for ever: `fixtures/tapes/` has one of each, and what must come out of it.

use std::path::Path;

use ktape_format::definition::{DefinitionVisitor, visit_definitions};
use ktape_format::event::{Event, KindVisitor, visit_kinds};
use ktape_format::{Definition, Memory, Options, Row, Sink, Tape, TapeWriter, Wanted};

/// Three rows of every kind, each column of each row another number. A column that a later version adds is not on the
/// tape of an earlier one: its test must leave it 0.
fn one_of_everything<S: Sink>(sink: &mut S) -> Result<(), S::Error> {
    struct Fill<'a, S>(&'a mut S);
    fn row<R: Row>(number: u64) -> R {
        let mut row = R::default();
        for column in 0..R::COLUMNS.len() {
            row.set(column, (u64::from(R::KIND) * 31 + column as u64 * 7 + number) % 200);
        }
        row
    }
    impl<S: Sink> DefinitionVisitor for Fill<'_, S> {
        type Error = S::Error;
        fn visit<T: Definition>(&mut self) -> Result<(), S::Error> {
            (0..3).try_for_each(|number| self.0.define(row::<T>(number)).map(drop))
        }
    }
    impl<S: Sink> KindVisitor for Fill<'_, S> {
        type Error = S::Error;
        fn visit<E: Event>(&mut self) -> Result<(), S::Error> {
            (0..3).try_for_each(|number| self.0.event(row::<E>(number)))
        }
    }
    for string in ["kernel", "größer", "a longer name that comes twice, a longer name that comes twice"] {
        sink.string(string)?;
    }
    let mut fill = Fill(sink);
    visit_definitions(&mut fill)?;
    visit_kinds(&mut fill)
}

#[test]
fn the_tape_of_version_1_0_reads_as_it_was_written() {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/tapes/v1.0.ktape"));
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        let mut writer = TapeWriter::create(path, &Options::batch("ktape 0.1.0")).unwrap();
        one_of_everything(&mut writer).unwrap();
        writer.finish().unwrap();
    }
    let contents = Tape::open(path).unwrap().read(&Wanted::default()).unwrap();
    let mut expected = Memory::default();
    let Ok(()) = one_of_everything(&mut expected);
    assert_eq!(contents.damage, []);
    assert_eq!(contents.definitions, expected.definitions);
    assert_eq!(contents.events, expected.events);
}
