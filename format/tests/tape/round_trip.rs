//! What goes in comes out.

use std::convert::Infallible;

use ktape_format::event::{Event, Kernel, KindVisitor, Launch, Loss, Mark, visit_kinds};
use ktape_format::header::ClockKind;
use ktape_format::{Definitions, Memory, Options, Owners, Row, Sink, Table, Tape, TapeWriter, Wanted};
use proptest::prelude::*;

use crate::{same_events, small_tape, staged, tape_of, write_everything};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn every_kind_comes_back_with_any_values(
        numbers in prop::collection::vec(prop_oneof![Just(0), Just(u64::MAX), Just(i64::MIN as u64), any::<u64>(), 0..99_u64], 1..400),
        strings in prop::collection::vec(".{0,40}", 0..20),
        rows in 0..40_usize,
        half_bytes in prop_oneof![Just(0_u32), Just(64), Just(2048), Just(1 << 20)],
    ) {
        let mut memory = Memory::default();
        let Ok(()) = write_everything(&mut memory, &numbers, &strings, rows);
        let bytes = tape_of(&staged(half_bytes), |writer| write_everything(writer, &numbers, &strings, rows));
        let tape = Tape::from_bytes(bytes).unwrap();
        let contents = tape.read(&Wanted::default()).unwrap();
        prop_assert_eq!(&contents.damage, &[]);
        prop_assert!(tape.is_closed());
        prop_assert_eq!(&contents.definitions, &memory.definitions);
        prop_assert!(same_events(&contents.events, &memory.events));
    }
}

#[test]
fn only_what_is_wanted_is_read() {
    let tape = Tape::from_bytes(small_tape(&staged(0))).unwrap();
    let second = Wanted { from_ns: Some(1_000_000), to_ns: Some(1_010_000), ..Wanted::default() };
    let contents = tape.read(&second).unwrap();
    assert_eq!(contents.events.launch.len(), 10);
    assert_eq!(contents.definitions.threads.len(), 3, "definitions always come");
    let kernels = Wanted { kinds: vec![Kernel::KIND], ..Wanted::default() };
    assert!(tape.read(&kernels).unwrap().events.is_empty());
    assert_eq!(tape.first_ns(), Some(0));
}

/// A section that ends exactly where the wanted time begins may end with an instant, which is wanted.
#[test]
fn an_instant_at_the_first_wanted_nanosecond_is_read() {
    let bytes = tape_of(&staged(0), |writer| {
        [0, 50, 100].into_iter().try_for_each(|start_ns| writer.event(Mark { start_ns, ..Mark::default() }))
    });
    let tape = Tape::from_bytes(bytes).unwrap();
    let mut all = tape.read(&Wanted::default()).unwrap().events;
    for from_ns in [50, 100, 101] {
        let wanted = Wanted { from_ns: Some(from_ns), ..Wanted::default() };
        wanted.keep(&Owners::default(), &mut all);
        assert_eq!(tape.read(&wanted).unwrap().events, all, "from {from_ns}");
    }
}

#[test]
fn losses_come_whatever_kinds_are_wanted() {
    let bytes = tape_of(&staged(0), |writer| writer.event(Loss { count: 5, ..Loss::default() }));
    let wanted = Wanted { kinds: vec![Launch::KIND], ..Wanted::default() };
    assert_eq!(Tape::from_bytes(bytes).unwrap().read(&wanted).unwrap().events.loss.count, [5]);
}

#[test]
fn the_clock_and_host_come_back() {
    let file = tempfile::NamedTempFile::new().unwrap();
    TapeWriter::create(file.path(), &Options::live("test", ClockKind::Boot, "node-7")).unwrap().finish().unwrap();
    let tape = Tape::open(file.path()).unwrap();
    assert_eq!(tape.header().clock, ClockKind::Boot);
    assert_eq!(tape.header().host, "node-7");
    assert!(tape.header().created_unix_ns > 1_700_000_000_000_000_000);
}

/// The definitions of what refers to them: an empty table has none.
#[test]
fn an_empty_tape_is_a_tape() {
    let tape = Tape::from_bytes(tape_of(&staged(0), |_| Ok(()))).unwrap();
    let contents = tape.read(&Wanted::default()).unwrap();
    assert_eq!(contents.definitions, Definitions::default());
    assert!(contents.events.is_empty() && tape.is_closed() && tape.first_ns().is_none());
    let Ok(()) = visit_kinds(&mut Nothing);
    struct Nothing;
    impl KindVisitor for Nothing {
        type Error = Infallible;
        fn visit<E: Event>(&mut self) -> Result<(), Infallible> {
            assert!(E::KIND < 0x100, "{} must be below the definitions", E::NAME);
            Ok(())
        }
    }
}

#[test]
fn the_last_value_of_a_property_is_the_last_that_was_said() {
    let say = |sink: &mut TapeWriter| {
        ["worker", "idle", "worker", "worker"].iter().try_for_each(|name| sink.property(7, 1, "name", name))
    };
    let contents = Tape::from_bytes(tape_of(&staged(2048), say)).unwrap().read(&Wanted::default()).unwrap();
    assert_eq!(contents.definitions.property(7, 1, "name"), Some("worker"));
    assert_eq!(contents.definitions.properties.len(), 3, "said again at once, it is not written again");
}
