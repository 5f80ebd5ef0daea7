//! A tape that is read while it is written.

use std::sync::atomic::{AtomicU64, Ordering};

use ktape_format::definition::Frame;
use ktape_format::event::{Launch, Loss, Slice, Tally};
use ktape_format::{Follower, Sink, Table, Tape, TapeError, TapeWriter, Wanted};

use crate::staged;

#[test]
fn a_growing_tape_is_readable_at_every_event() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut writer = TapeWriter::create(file.path(), &staged(2048)).unwrap();
    for event in 0..300 {
        let name = writer.string(&format!("name {event}")).unwrap();
        let frame = writer.define(Frame { name, ..Frame::default() }).unwrap();
        writer.event(Slice { start_ns: event, frame, ..Slice::default() }).unwrap();
        let tape = Tape::open(file.path()).unwrap();
        let contents = tape.read(&Wanted::default()).unwrap();
        assert_eq!(contents.damage, []);
        assert_eq!(contents.events.slice.start_ns, (0..=event).collect::<Vec<i64>>());
        assert_eq!(contents.definitions.string(name), format!("name {event}"));
    }
}

/// The same with one opened tape that is refreshed.
#[test]
fn a_tape_can_be_followed() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut writer = TapeWriter::create(file.path(), &staged(2048)).unwrap();
    let mut tape = Tape::open(file.path()).unwrap();
    for event in 0..300 {
        let name = writer.string(&format!("name {event}")).unwrap();
        writer.event(Launch { start_ns: event, args: name, ..Launch::default() }).unwrap();
        tape.refresh().unwrap();
        let contents = tape.read(&Wanted::default()).unwrap();
        assert_eq!(contents.damage, []);
        assert_eq!(contents.events.launch.start_ns, (0..=event).collect::<Vec<i64>>());
    }
    assert!(tape.blocks().len() > 5 && !tape.is_closed());
    writer.finish().unwrap();
    tape.refresh().unwrap();
    assert!(tape.is_closed());
    assert_eq!(tape.read(&Wanted::default()).unwrap().events.launch.len(), 300);
}

/// A follower beside the writer gets each event once, in order, whether it saw it in a half or in a block.
#[test]
fn a_follower_gets_each_event_once() {
    const EVENTS: i64 = 6000;
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut writer = TapeWriter::create(file.path(), &staged(2048)).unwrap();
    let mut follower = Follower::open(file.path(), Wanted::default()).unwrap();
    let write = |writer: &mut TapeWriter, number: i64| {
        let args = writer.string(&format!("{}", number / 10)).unwrap();
        writer.event(Launch { start_ns: number, args, ..Launch::default() }).unwrap();
    };
    // Some of them surely from a half.
    (0..5).for_each(|number| write(&mut writer, number));
    let contents = follower.look().unwrap();
    assert_eq!((contents.events.launch.start_ns, contents.staged_rows), (vec![0, 1, 2, 3, 4], 5));
    let written = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 5..EVENTS {
                write(&mut writer, number);
                written.store(number as u64 + 1, Ordering::Release);
            }
            writer.finish().unwrap();
        });
        let mut next = 5;
        while !follower.tape().is_closed() {
            let before = written.load(Ordering::Acquire);
            let contents = follower.look().unwrap();
            assert_eq!(contents.damage, []);
            for row in contents.events.launch.rows() {
                assert_eq!(row.start_ns, next, "an event is missing or doubled");
                assert_eq!(contents.definitions.string(row.args), format!("{}", next / 10));
                next += 1;
            }
            assert!(next as u64 >= before, "{next} of {before} events");
        }
        assert_eq!(next, EVENTS);
        assert!(follower.look().unwrap().events.is_empty(), "nothing comes twice");
    });
}

#[test]
fn a_string_longer_than_a_half_goes_straight_into_a_block() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut writer = TapeWriter::create(file.path(), &staged(2048)).unwrap();
    let long = "x".repeat(100_000);
    writer.string("before").unwrap();
    let id = writer.string(&long).unwrap();
    let after = writer.string("after").unwrap();
    let contents = Tape::open(file.path()).unwrap().read(&Wanted::default()).unwrap();
    assert_eq!(contents.definitions.string(id), long);
    assert_eq!(contents.definitions.string(after), "after");
    let error = writer.string(&"x".repeat(17 << 20)).unwrap_err();
    assert!(matches!(error, TapeError::StringTooLong { .. }));
}

/// A reader that opens the tape again and again while it is written, with halves so small that they are used again
/// while they are read: it sees every event that was there when it opened the tape, in order, and no damage.
#[test]
fn a_reader_beside_the_writer_sees_all_that_was_there() {
    const EVENTS: u64 = 4000;
    for _ in 0..10 {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut writer = TapeWriter::create(file.path(), &staged(1024)).unwrap();
        let written = AtomicU64::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..EVENTS {
                    let args = writer.string(&format!("{}", number / 10)).unwrap();
                    writer.event(Launch { start_ns: number as i64, args, ..Launch::default() }).unwrap();
                    written.store(number + 1, Ordering::Release);
                }
            });
            while written.load(Ordering::Relaxed) < EVENTS {
                let before = written.load(Ordering::Acquire);
                let contents = Tape::open(file.path()).unwrap().read(&Wanted::default()).unwrap();
                assert_eq!(contents.damage, []);
                let starts = &contents.events.launch.start_ns;
                assert!(starts.len() as u64 >= before, "{} events of {before}", starts.len());
                assert!(starts.iter().copied().eq(0..starts.len() as i64), "events are missing or doubled");
                let named = |row: Launch| contents.definitions.string(row.args) == format!("{}", row.start_ns / 10);
                assert!(contents.events.launch.rows().all(named), "an event refers to another definition");
            }
        });
    }
}

#[test]
fn a_tape_that_has_only_a_tail_knows_when_it_began() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut writer = TapeWriter::create(file.path(), &staged(4096)).unwrap();
    writer.event(Loss { start_ns: 3, ..Loss::default() }).unwrap();
    writer.event(Tally { start_ns: 4, ..Tally::default() }).unwrap();
    writer.event(Launch { start_ns: 8, ..Launch::default() }).unwrap();
    writer.event(Launch { start_ns: 7, ..Launch::default() }).unwrap();
    assert_eq!(Tape::open(file.path()).unwrap().first_ns(), Some(7));
}
