//! The tape from its user's side: what goes in comes out, whole or as far as the file goes.

use std::collections::HashMap;
use std::convert::Infallible;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use ktape_format::definition::{DefinitionVisitor, Frame, Process, Stack, Thread, visit_definitions};
use ktape_format::event::{Event, Events, Kernel, KindVisitor, Launch, Loss, Mark, Slice, visit_kinds};
use ktape_format::header::ClockKind;
use ktape_format::{
    Definition, Definitions, Memory, Options, Owners, Row, Sink, Table, Tape, TapeError, TapeWriter, Wanted,
};
use proptest::prelude::*;

/// A row of any kind from a stream of numbers; every bit pattern of every column can come.
fn row<R: Row>(numbers: &mut impl Iterator<Item = u64>) -> R {
    let mut row = R::default();
    for column in 0..R::COLUMNS.len() {
        row.set(column, numbers.next().unwrap_or(0));
    }
    row
}

/// Writes `rows` rows of every kind of definition and event into a sink, from a stream of numbers.
struct Everything<'a, S: Sink, I> {
    sink: &'a mut S,
    numbers: I,
    rows: usize,
}

impl<S: Sink, I: Iterator<Item = u64>> KindVisitor for Everything<'_, S, I> {
    type Error = S::Error;
    fn visit<E: Event>(&mut self) -> Result<(), S::Error> {
        for _ in 0..self.rows {
            let row = row::<E>(&mut self.numbers);
            self.sink.event(row)?;
        }
        Ok(())
    }
}

impl<S: Sink, I: Iterator<Item = u64>> DefinitionVisitor for Everything<'_, S, I> {
    type Error = S::Error;
    fn visit<T: Definition>(&mut self) -> Result<(), S::Error> {
        for _ in 0..self.rows {
            let row = row::<T>(&mut self.numbers);
            self.sink.define(row)?;
        }
        Ok(())
    }
}

fn write_everything<S: Sink>(sink: &mut S, numbers: &[u64], strings: &[String], rows: usize) -> Result<(), S::Error> {
    for string in strings {
        sink.string(string)?;
    }
    let mut everything = Everything { sink, numbers: numbers.iter().copied().cycle(), rows };
    visit_definitions(&mut everything)?;
    visit_kinds(&mut everything)
}

/// NaNs do not equal themselves, so rows are compared by their bits.
fn same_events(a: &Events, b: &Events) -> bool {
    struct Same<'a>(&'a Events, &'a Events);
    impl KindVisitor for Same<'_> {
        type Error = ();
        fn visit<E: Event>(&mut self) -> Result<(), ()> {
            let (a, b) = (E::table(self.0), E::table(self.1));
            let bits = |row: E| (0..E::COLUMNS.len()).map(move |column| row.get(column));
            let same = a.len() == b.len() && a.rows().zip(b.rows()).all(|(a, b)| bits(a).eq(bits(b)));
            same.then_some(()).ok_or(())
        }
    }
    visit_kinds(&mut Same(a, b)).is_ok()
}

fn tape_of(options: &Options, fill: impl FnOnce(&mut TapeWriter) -> Result<(), TapeError>) -> Vec<u8> {
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut writer = TapeWriter::create(file.path(), options).unwrap();
    fill(&mut writer).unwrap();
    writer.finish().unwrap();
    std::fs::read(file.path()).unwrap()
}

fn staged(half_bytes: u32) -> Options {
    match half_bytes {
        0 => Options::batch("test"),
        _ => Options { staged: true, half_bytes, ..Options::batch("test") },
    }
}

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

    #[test]
    fn any_bytes_at_all_are_read_or_refused(mut bytes in prop::collection::vec(any::<u8>(), 0..2000), flips in prop::collection::vec((0..6000_usize, any::<u8>()), 1..8)) {
        let _ = Tape::from_bytes(bytes.clone()).map(|tape| tape.read(&Wanted::default()));
        // The same for a real tape with some bytes changed.
        bytes = small_tape(&staged(0));
        for (at, byte) in flips {
            let length = bytes.len();
            bytes[at % length] = byte;
        }
        if let Ok(tape) = Tape::from_bytes(bytes) {
            let _ = tape.read(&Wanted::default());
        }
    }
}

/// Three blocks, each with definitions of its own and events that use them.
fn small_tape(options: &Options) -> Vec<u8> {
    tape_of(options, |writer| {
        for block in 0..3_i64 {
            let process = writer.define(Process { pid: 100 + block, ..Process::default() })?;
            let thread = writer.define(Thread { process, tid: block })?;
            let name = writer.string(&format!("function {block}"))?;
            let frame = writer.define(Frame { name, ..Frame::default() })?;
            let stack = writer.define(Stack { parent: 0, frame, line: 7 })?;
            for event in 0..20 {
                let start_ns = block * 1_000_000 + event * 1000;
                writer.event(Launch { start_ns, duration_ns: 500, thread, stack, ..Launch::default() })?;
            }
            writer.seal()?;
        }
        Ok(())
    })
}

#[test]
fn a_tape_cut_at_any_byte_opens_up_to_its_last_whole_block() {
    for options in [staged(0), staged(4096)] {
        let whole = small_tape(&options);
        let ends: Vec<u64> = {
            let tape = Tape::from_bytes(whole.clone()).unwrap();
            // A block is whole without its padding.
            tape.blocks()
                .iter()
                .map(|block| block.sections.last().map_or(block.offset + block.bytes, |s| s.range.end))
                .collect()
        };
        for length in 0..whole.len() {
            let opened = Tape::from_bytes(whole[..length].to_vec());
            if length < ktape_format::header::HEADER_BYTES {
                assert!(opened.is_err(), "{length} bytes");
                continue;
            }
            let tape = opened.unwrap();
            let contents = tape.read(&Wanted::default()).unwrap();
            let blocks = ends[..3].iter().filter(|&&end| end <= length as u64).count();
            // The half that the last block was sealed from still has that block's rows.
            let staged = options.staged && blocks == 2;
            let blocks = if staged { 3 } else { blocks };
            assert_eq!(contents.events.launch.len(), 20 * blocks, "{length} of {} bytes", whole.len());
            assert_eq!(contents.definitions.threads.len(), blocks);
            assert!(!tape.is_closed());
        }
    }
}

#[test]
fn a_damaged_block_costs_its_own_rows_and_no_others() {
    let whole = small_tape(&staged(0));
    let tape = Tape::from_bytes(whole.clone()).unwrap();
    let second = &tape.blocks()[1];
    let inside = second.sections.last().unwrap().range.start as usize;
    for at in [second.offset as usize, second.offset as usize + 70, inside] {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x40;
        let contents = Tape::from_bytes(damaged).unwrap().read(&Wanted::default()).unwrap();
        assert_eq!(contents.damage.len(), 1, "byte {at}: {:?}", contents.damage);
        assert_eq!(contents.damage[0].offset, second.offset);
        let launches = &contents.events.launch;
        assert_eq!(launches.len(), 40);
        // The third block's ids still mean what they meant.
        let last = launches.row(39);
        assert_eq!(contents.definitions.get::<Thread>(last.thread).unwrap().tid, 2);
        let stack = contents.definitions.get::<Stack>(last.stack).unwrap();
        let frame = contents.definitions.get::<Frame>(stack.frame).unwrap();
        assert_eq!(contents.definitions.string(frame.name), "function 2");
        // The second's are gone, and say so.
        assert_eq!(contents.definitions.string(2), "");
    }
}

#[test]
fn damage_in_a_payload_says_how_many_rows_it_cost() {
    let mut bytes = small_tape(&staged(0));
    let at = Tape::from_bytes(bytes.clone()).unwrap().blocks()[2].sections[0].range.start as usize;
    bytes[at] ^= 1;
    let contents = Tape::from_bytes(bytes).unwrap().read(&Wanted::default()).unwrap();
    assert_eq!(contents.damage[0].rows, Some(25), "20 launches and 5 definitions");
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
fn one_writer_at_a_time() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let writer = TapeWriter::create(file.path(), &staged(4096)).unwrap();
    assert!(matches!(TapeWriter::create(file.path(), &staged(4096)), Err(TapeError::Locked)));
    writer.finish().unwrap();
    assert!(TapeWriter::create(file.path(), &staged(4096)).is_ok());
}

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

/// Two sealed blocks and a staged tail, each with definitions of its own, by a writer that was killed.
fn killed_tape() -> Vec<u8> {
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut writer = TapeWriter::create(file.path(), &staged(4096)).unwrap();
    for number in 0..3 {
        let args = writer.string(&format!("name {number}")).unwrap();
        writer.event(Launch { start_ns: 1000 + number, args, ..Launch::default() }).unwrap();
        if number < 2 {
            writer.seal().unwrap();
        }
    }
    std::fs::read(file.path()).unwrap()
}

#[test]
fn the_tail_keeps_its_ids_where_the_block_before_it_is_damaged() {
    let whole = killed_tape();
    let (first, last) = {
        let tape = Tape::from_bytes(whole.clone()).unwrap();
        (tape.blocks()[0].sections[0].range.start as usize, tape.blocks()[1].sections[0].range.start as usize)
    };
    let names = |damaged: usize| {
        let mut bytes = whole.clone();
        bytes[damaged] ^= 1;
        let contents = Tape::from_bytes(bytes).unwrap().read(&Wanted::default()).unwrap();
        let name = |row: Launch| contents.definitions.string(row.args).to_owned();
        (contents.events.launch.rows().map(name).collect::<Vec<_>>(), contents.damage.len())
    };
    assert_eq!(names(first), (vec!["name 1".to_owned(), "name 2".to_owned()], 1));
    // The half that the last block was sealed from still has its rows, so nothing is lost.
    assert_eq!(names(last), (vec!["name 0".to_owned(), "name 1".to_owned(), "name 2".to_owned()], 0));
}

#[test]
fn a_tail_whose_block_before_is_lost_is_said_and_left_out() {
    let mut bytes = killed_tape();
    let tape = Tape::from_bytes(bytes.clone()).unwrap();
    // Neither the second block nor the half that it was sealed from.
    let (half, second) = (512 + 4096, tape.blocks()[1].offset as usize);
    assert_eq!(bytes[half + 8], 1, "the half of block 1");
    bytes[half + 16..half + 24].copy_from_slice(&0xffff_ffff_0000_0000_u64.to_le_bytes());
    bytes[second] = 0;
    let contents = Tape::from_bytes(bytes).unwrap().read(&Wanted::default()).unwrap();
    assert_eq!(contents.events.launch.start_ns, [1000]);
    let offsets: Vec<u64> = contents.damage.iter().map(|damage| damage.offset).collect();
    assert_eq!(offsets, [512, second as u64], "{:?}", contents.damage);
}

#[test]
fn a_tape_that_has_only_a_tail_knows_when_it_began() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut writer = TapeWriter::create(file.path(), &staged(4096)).unwrap();
    writer.event(Loss { start_ns: 3, ..Loss::default() }).unwrap();
    writer.event(Launch { start_ns: 8, ..Launch::default() }).unwrap();
    writer.event(Launch { start_ns: 7, ..Launch::default() }).unwrap();
    assert_eq!(Tape::open(file.path()).unwrap().first_ns(), Some(7));
}

#[cfg(target_os = "linux")]
#[test]
fn what_was_staged_before_this_host_restarted_is_not_trusted() {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim().to_owned();
    for (host, trusted) in [(host, false), ("elsewhere".to_owned(), true)] {
        let file = tempfile::NamedTempFile::new().unwrap();
        let options = Options { host, boot_id: [7; 16], ..staged(4096) };
        let mut writer = TapeWriter::create(file.path(), &options).unwrap();
        writer.event(Launch::default()).unwrap();
        let contents = Tape::open(file.path()).unwrap().read(&Wanted::default()).unwrap();
        assert_eq!((contents.events.len(), contents.damage.len()), if trusted { (1, 0) } else { (0, 1) });
    }
}

/// The writer whose disk is full: its file may not grow beyond a limit. Signal `XFSZ` is ignored by the shell below.
#[cfg(target_os = "linux")]
#[test]
fn child_whose_disk_is_full() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Some(path) = std::env::var_os("KTAPE_TEST_FULL_DISK") else { return };
    let path = Path::new(&path);
    let maximum = getrlimit(Resource::Fsize).maximum;
    let limit = |current| setrlimit(Resource::Fsize, Rlimit { current, maximum }).unwrap();
    let read = || Tape::open(path).unwrap().read(&Wanted::default()).unwrap();

    limit(Some(1000));
    assert!(TapeWriter::create(path, &staged(65_536)).is_err(), "no room for the front");
    limit(Some(200_000));
    let mut writer = TapeWriter::create(path, &staged(65_536)).unwrap();
    let event = |writer: &mut TapeWriter, number: i64| {
        // Numbers without a pattern, so that blocks are large.
        let correlation = (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        writer.event(Launch { start_ns: number, correlation, ..Launch::default() })
    };
    let mut numbers = 0_i64..;
    let first_refused = numbers.find(|&number| event(&mut writer, number).is_err()).unwrap();
    assert_eq!(std::fs::metadata(path).unwrap().len(), 200_000, "a block was cut off within");
    // Every event that was taken can be read, again and again; and none is taken that would be lost.
    for _ in 0..3 {
        assert!(event(&mut writer, first_refused).is_err());
        let contents = read();
        assert_eq!(contents.damage, []);
        assert_eq!(contents.events.launch.start_ns, (0..first_refused).collect::<Vec<_>>());
    }
    // With room again the writer goes on where it was.
    limit(maximum);
    (first_refused..5000 + first_refused).for_each(|number| event(&mut writer, number).unwrap());
    writer.seal().unwrap();
    // A row that is too long to be staged, and now cannot be sealed either, must not shift the ids behind it.
    limit(Some(std::fs::metadata(path).unwrap().len()));
    assert!(writer.string(&random_text(100_000)).is_err());
    assert!(writer.string("after").is_err());
    limit(maximum);
    let args = writer.string("after").unwrap();
    writer.event(Launch { start_ns: 5000 + first_refused, args, ..Launch::default() }).unwrap();
    let contents = read();
    assert_eq!(contents.damage, []);
    assert_eq!(contents.definitions.string(args), "after");
    // A tape that cannot be finished says so, and is one that was cut off.
    limit(Some(std::fs::metadata(path).unwrap().len()));
    assert!(writer.finish().is_err());
    let contents = read();
    assert_eq!(contents.damage, []);
    assert_eq!(contents.events.launch.start_ns, (0..=5000 + first_refused).collect::<Vec<_>>());
}

/// Text that does not compress to nothing.
#[cfg(target_os = "linux")]
fn random_text(bytes: u64) -> String {
    let letter = |at: u64| char::from(b'a' + (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60) as u8);
    (0..bytes).map(letter).collect()
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error_and_costs_no_event() {
    let dir = tempfile::tempdir().unwrap();
    let ran = std::process::Command::new("sh")
        .args(["-c", "trap '' XFSZ; exec \"$0\" --exact child_whose_disk_is_full --nocapture"])
        .arg(std::env::current_exe().unwrap())
        .env("KTAPE_TEST_FULL_DISK", dir.path().join("full.ktape"))
        .output()
        .unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
}

/// The writer that is killed: counts up in launches, and tells how far it is on its standard output.
#[test]
fn child_that_writes_until_killed() {
    let Some(path) = std::env::var_os("KTAPE_TEST_KILLED_WRITER") else { return };
    let half: u32 = std::env::var("KTAPE_TEST_HALF_BYTES").unwrap().parse().unwrap();
    let mut writer = TapeWriter::create(Path::new(&path), &staged(half)).unwrap();
    let counter =
        std::fs::OpenOptions::new().read(true).write(true).open(Path::new(&path).with_extension("count")).unwrap();
    // SAFETY: the file is this test's own, 8 bytes long, and is not cut while mapped.
    let count = unsafe { memmap2::MmapMut::map_mut(&counter).unwrap() };
    // SAFETY: 8 aligned bytes within the mapping.
    let committed = unsafe { std::sync::atomic::AtomicU64::from_ptr(count.as_ptr() as *mut u64) };
    for number in 0.. {
        let name = writer.string(&format!("{}", number / 100)).unwrap();
        writer.event(Launch { start_ns: number, args: name, ..Launch::default() }).unwrap();
        committed.store(number as u64 + 1, std::sync::atomic::Ordering::Release);
    }
}

#[cfg(unix)]
#[test]
fn killing_the_writer_loses_no_committed_event() {
    let mut sealed = HashMap::new();
    for round in 0..40_u64 {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("killed.ktape");
        std::fs::write(path.with_extension("count"), [0; 8]).unwrap();
        let half_bytes = [2048_u64, 65_536, 1 << 20][round as usize % 3];
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_that_writes_until_killed", "--nocapture"])
            .env("KTAPE_TEST_KILLED_WRITER", &path)
            .env("KTAPE_TEST_HALF_BYTES", half_bytes.to_string())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let committed = || u64::from_le_bytes(std::fs::read(path.with_extension("count")).unwrap().try_into().unwrap());
        while committed() < 50 + round * 997 % 20_000 {
            assert!(child.try_wait().unwrap().is_none(), "the writer stopped by itself");
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let committed = committed();
        let tape = Tape::open(&path).unwrap();
        let contents = tape.read(&Wanted::default()).unwrap();
        let starts = &contents.events.launch.start_ns;
        assert!(starts.len() as u64 >= committed, "{} of {committed} events are readable", starts.len());
        assert!(starts.iter().copied().eq(0..starts.len() as i64), "events are missing, doubled or out of order");
        let names = contents
            .events
            .launch
            .rows()
            .all(|row| contents.definitions.string(row.args) == format!("{}", row.start_ns / 100));
        assert!(names, "an event refers to a definition that was lost");
        *sealed.entry(tape.blocks().len().min(1)).or_insert(0) += 1;
    }
    assert!(
        sealed.len() == 2,
        "both a tape without a sealed block and one with some should have been killed: {sealed:?}"
    );
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

#[test]
fn decoding_gives_the_same_on_one_thread_and_many() {
    let bytes = small_tape(&staged(0));
    let read = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| Tape::from_bytes(bytes.clone()).unwrap().read(&Wanted::default()).unwrap())
    };
    let (one, four) = (read(1), read(4));
    assert_eq!(one.definitions, four.definitions);
    assert!(same_events(&one.events, &four.events));
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
