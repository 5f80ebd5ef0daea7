//! A recorder never waits: what it cannot keep is counted, and the count survives it.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use ktape_format::event::{Kernel, Launch};
use ktape_format::header::{ClockKind, TailKind};
use ktape_format::{Contents, Options, Row, Sink, Table, Tape, TapeWriter, Wanted, WhenFull};

use crate::staged;

fn losing(half_bytes: u32) -> Options {
    Options { when_full: WhenFull::Lose, ..staged(half_bytes) }
}

fn lost(contents: &Contents) -> u64 {
    contents.events.loss.count.iter().sum()
}

/// A recorder whose disk is full for a while: its file may not grow beyond a limit.
#[test]
fn child_whose_disk_is_full_for_a_while() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Some(path) = std::env::var_os("KTAPE_TEST_LOSING") else { return };
    let path = Path::new(&path);
    let maximum = getrlimit(Resource::Fsize).maximum;
    let limit = |current| setrlimit(Resource::Fsize, Rlimit { current, maximum }).unwrap();
    let read = |path: &Path| {
        let contents = Tape::open(path).unwrap().read(&Wanted::default()).unwrap();
        assert_eq!(contents.damage, []);
        contents
    };
    // Every event that was recorded is one that can be read, or one that is counted: at every moment.
    let all_told = |path: &Path, recorded: u64| {
        let contents = read(path);
        let told = contents.events.launch.len() as u64 + lost(&contents);
        assert_eq!(told, recorded, "{} readable, {} counted as lost", contents.events.launch.len(), lost(&contents));
        contents
    };
    let mut writer = TapeWriter::create(path, &losing(16_384)).unwrap();
    limit(Some(std::fs::metadata(path).unwrap().len() + 1));
    let mut recorded = 0_u64;
    let mut record = |writer: &mut TapeWriter, events: u64| {
        for _ in 0..events {
            let args = writer.string(&format!("{}", recorded / 7)).unwrap();
            writer.event(Launch { start_ns: recorded as i64, args, ..Launch::default() }).unwrap();
            recorded += 1;
        }
        recorded
    };
    for _ in 0..5 {
        let recorded = record(&mut writer, 300);
        all_told(path, recorded);
    }
    // On a busy machine the thread that writes may not have tried until now; this waits for it.
    assert!(writer.seal().is_err(), "the file may not grow");
    let while_full = all_told(path, 1500);
    assert!(lost(&while_full) > 1000, "two halves of 16 KiB are full");
    // With room again it goes on, and tells when what was lost, and why.
    limit(maximum);
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut recorded = record(&mut writer, 1);
    while read(path).events.loss.cause.first().is_none_or(|&cause| cause == 0) {
        assert!(Instant::now() < deadline, "the tape was not written again");
        std::thread::sleep(Duration::from_millis(10));
        recorded = record(&mut writer, 1);
    }
    all_told(path, recorded);
    recorded = record(&mut writer, 10);
    writer.finish().unwrap();
    let contents = all_told(path, recorded);
    let loss = contents.events.loss.row(0);
    let kept = &contents.events.launch.start_ns;
    let gap = (0..recorded as i64).find(|start| !kept.contains(start)).unwrap();
    assert_eq!((loss.start_ns, loss.kind), (gap, Launch::KIND));
    assert_eq!(loss.start_ns + loss.duration_ns as i64, gap + loss.count as i64 - 1);
    let cause = contents.definitions.string(loss.cause);
    assert!(cause.starts_with("the tape could not be written: "), "{cause}");
    // No definition was lost, so every event still has its own.
    assert!(
        contents
            .events
            .launch
            .rows()
            .all(|row| { contents.definitions.string(row.args) == format!("{}", row.start_ns / 7) })
    );
}

#[test]
fn what_a_recorder_cannot_keep_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    let ran = Command::new("sh")
        .args(["-c", "trap '' XFSZ; exec \"$0\" --exact losing::child_whose_disk_is_full_for_a_while --nocapture"])
        .arg(std::env::current_exe().unwrap())
        .env("KTAPE_TEST_LOSING", dir.path().join("losing.ktape"))
        .output()
        .unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
}

/// As fast as it goes, with halves so small that the sealer cannot keep up: nothing is lost in silence.
#[test]
fn a_recorder_that_is_too_fast_for_its_tape_says_how_much_it_lost() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut writer = TapeWriter::create(file.path(), &losing(1024)).unwrap();
    let recorded = 50_000;
    for number in 0..recorded {
        // Two kinds in one gap: the loss row then names none.
        match number % 2 {
            0 => writer.event(Launch { start_ns: number, ..Launch::default() }).unwrap(),
            _ => writer.event(Kernel { start_ns: number, duration_ns: 5, ..Kernel::default() }).unwrap(),
        }
    }
    writer.finish().unwrap();
    let contents = Tape::open(file.path()).unwrap().read(&Wanted::default()).unwrap();
    let kept = contents.events.launch.len() + contents.events.kernel.len();
    assert_eq!(kept as u64 + lost(&contents), recorded as u64);
    for loss in contents.events.loss.rows() {
        assert_eq!(contents.definitions.string(loss.cause), "the tape was not written fast enough");
        assert!(loss.count == 1 || loss.kind == 0);
    }
}

/// A definition that makes a block of its own: what comes while that is written may be lost, but no id moves.
#[test]
fn a_definition_too_long_for_a_half_moves_no_id() {
    for events_before in [0, 3, 40] {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut writer = TapeWriter::create(file.path(), &losing(1024)).unwrap();
        let mut recorded = 0;
        let mut record = |writer: &mut TapeWriter, events: i64, args: u32| {
            for _ in 0..events {
                writer.event(Launch { start_ns: recorded, args, ..Launch::default() }).unwrap();
                recorded += 1;
            }
            recorded
        };
        record(&mut writer, events_before, 0);
        let long = writer.string(&"long ".repeat(20_000)).unwrap();
        record(&mut writer, 5, long);
        let after = writer.string("after").unwrap();
        let recorded = record(&mut writer, 300, after);
        // As if it were killed now; then whole.
        let told = |contents: &Contents| contents.events.launch.len() as u64 + lost(contents);
        let contents = Tape::open(file.path()).unwrap().read(&Wanted::default()).unwrap();
        assert_eq!((contents.damage.len(), told(&contents)), (0, recorded as u64));
        writer.finish().unwrap();
        let contents = Tape::open(file.path()).unwrap().read(&Wanted::default()).unwrap();
        assert_eq!((contents.damage.len(), told(&contents)), (0, recorded as u64));
        assert_eq!(contents.definitions.string(long).len(), 100_000);
        assert_eq!(contents.definitions.string(after), "after");
        assert_eq!((long, after), (1, 2));
    }
}

/// The count of what is lost while such a definition is written must outlast that definition's block, which has no half.
#[test]
fn what_is_lost_behind_a_long_definition_is_counted_when_its_block_is_there() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut writer = TapeWriter::create(file.path(), &losing(4 << 20)).unwrap();
    let read = || Tape::open(file.path()).unwrap().read(&Wanted::default()).unwrap();
    let letter = |at: u64| char::from(b'a' + (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60) as u8);
    let [slow, next, long] = [7 << 19, 1 << 20, 5 << 20].map(|bytes| (0..bytes).map(letter).collect::<String>());
    // While the first half is being sealed the second is handed over, as what comes then is longer than a half.
    writer.string(&slow).unwrap();
    writer.string(&next).unwrap();
    writer.event(Launch::default()).unwrap();
    let long = writer.string(&long).unwrap();
    (1..8).for_each(|start_ns| writer.event(Launch { start_ns, ..Launch::default() }).unwrap());
    let told = |contents: &Contents| contents.events.launch.len() as u64 + lost(contents);
    let wait_until = |is_there: &dyn Fn() -> bool| {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !is_there() {
            assert!(Instant::now() < deadline, "never written");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    // The writer does nothing more; the thread behind it does all that it was asked for.
    wait_until(&|| Tape::open(file.path()).unwrap().blocks().len() >= 2);
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(told(&read()), 8);
    // The next event finds a half for the number behind the long definition's block, and is lost while that is written.
    writer.event(Launch { start_ns: 8, ..Launch::default() }).unwrap();
    wait_until(&|| !read().definitions.string(long).is_empty());
    let contents = read();
    assert_eq!((contents.damage.len(), told(&contents)), (0, 9));
    assert_eq!(contents.events.launch.len(), 1, "the others came before the definition was written");
    writer.finish().unwrap();
    assert_eq!(told(&read()), 9);
}

#[test]
fn a_file_that_cannot_be_mapped_is_written_all_the_same_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("unmapped.ktape");
    // A mapping that others see needs a file that may be read.
    let file = std::fs::OpenOptions::new().write(true).create(true).truncate(false).open(&path).unwrap();
    let mut writer = TapeWriter::new(file, &Options::live("test", ClockKind::Boot, "node-7")).unwrap();
    writer.event(Launch::default()).unwrap();
    let tape = Tape::open(&path).unwrap();
    assert_eq!(tape.header().tail, TailKind::Memory);
    assert_eq!(tape.read(&Wanted::default()).unwrap().events.len(), 0, "what is open is in memory only");
    writer.seal().unwrap();
    assert_eq!(Tape::open(&path).unwrap().read(&Wanted::default()).unwrap().events.len(), 1);
}

/// A recorder for which little happens: what it has reaches a block, and so the disk, a second later.
#[test]
fn what_is_open_for_a_second_is_sealed() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let options = Options { sync_every: Some(Duration::ZERO), ..losing(4096) };
    let mut writer = TapeWriter::create(file.path(), &options).unwrap();
    writer.event(Launch::default()).unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while Tape::open(file.path()).unwrap().blocks().is_empty() {
        assert!(Instant::now() < deadline, "never sealed");
        std::thread::sleep(Duration::from_millis(50));
        writer.seal_if_due();
    }
    writer.event(Launch { start_ns: 1, ..Launch::default() }).unwrap();
    let contents = Tape::open(file.path()).unwrap().read(&Wanted::default()).unwrap();
    assert_eq!(contents.events.launch.start_ns, [0, 1]);
}
