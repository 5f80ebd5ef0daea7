//! A full disk: an error, never a fault, and every event that was taken can be read.

use std::path::Path;
use std::process::Command;

use ktape_format::event::{Launch, Memcpy};
use ktape_format::header::ClockKind;
use ktape_format::{Options, Sink, Tape, TapeError, TapeWriter, Wanted};

use crate::{say, staged};

/// The writer whose disk is full: its file may not grow beyond a limit. Signal `XFSZ` is ignored by the shell below.
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
    assert_eq!(std::fs::metadata(path).unwrap().len(), 0, "what is no tape takes no room");
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

#[test]
fn a_closed_tape_takes_no_room_for_its_staging_area() {
    use std::os::unix::fs::MetadataExt as _;

    let file = tempfile::NamedTempFile::new().unwrap();
    let on_disk = || file.as_file().metadata().unwrap().blocks() * 512;
    let mut writer = TapeWriter::create(file.path(), &Options::live("test", ClockKind::Monotonic, "host")).unwrap();
    (0..100).for_each(|start_ns| writer.event(Launch { start_ns, ..Launch::default() }).unwrap());
    let while_open = on_disk();
    let before = Tape::open(file.path()).unwrap().read(&Wanted::default()).unwrap().events;
    let written = writer.finish().unwrap();
    let probe = tempfile::NamedTempFile::new().unwrap();
    let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    if rustix::fs::fallocate(probe.as_file(), flags, 0, 4096).is_err() {
        return say("SKIPPED: this filesystem makes no holes");
    }
    assert!(while_open > 8_000_000 && on_disk() < 32_000, "{while_open} bytes while open, {} closed", on_disk());
    assert_eq!(file.as_file().metadata().unwrap().len(), written.file_bytes);
    let tape = Tape::open(file.path()).unwrap();
    let contents = tape.read(&Wanted::default()).unwrap();
    assert!(tape.is_closed() && contents.damage.is_empty() && contents.events.launch == before.launch);
}

/// Text that does not compress to nothing.
fn random_text(bytes: u64) -> String {
    let letter = |at: u64| char::from(b'a' + (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60) as u8);
    (0..bytes).map(letter).collect()
}

#[test]
fn a_full_disk_is_an_error_and_costs_no_event() {
    let dir = tempfile::tempdir().unwrap();
    let ran = Command::new("sh")
        .args(["-c", "trap '' XFSZ; exec \"$0\" --exact disk::child_whose_disk_is_full --nocapture"])
        .arg(std::env::current_exe().unwrap())
        .env("KTAPE_TEST_FULL_DISK", dir.path().join("full.ktape"))
        .output()
        .unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
}

/// Writes to a real filesystem of 16 MiB until it is full: nothing but the filesystem itself says no, and a page of
/// the mapped halves that had no room would be a SIGBUS.
#[test]
fn child_in_a_small_filesystem() {
    let Some(folder) = std::env::var_os("KTAPE_TEST_SMALL_FILESYSTEM") else { return };
    let folder = Path::new(&folder);
    for half_bytes in [0, 65_536, 4 << 20] {
        let path = folder.join("full.ktape");
        let (taken, error) = match TapeWriter::create(&path, &staged(half_bytes)) {
            Ok(writer) => fill_up(writer),
            Err(error) => (0, error),
        };
        let TapeError::Io(error) = error else { panic!("{error}") };
        assert_eq!(error.kind(), std::io::ErrorKind::StorageFull, "halves of {half_bytes} bytes");
        let contents = Tape::open(&path).unwrap().read(&Wanted::default()).unwrap();
        let starts = &contents.events.memcpy.start_ns;
        let read = starts.len() as i64;
        assert!(starts.iter().copied().eq(0..read), "events are missing, doubled or out of order");
        assert!(read > 100_000, "{read} events on 16 MiB");
        if half_bytes > 0 {
            assert_eq!((read, contents.damage), (taken, vec![]), "every event that was taken is on the tape");
        } else {
            // Without halves only blocks count. The last may have been cut off.
            assert!(read <= taken && contents.damage.len() <= 1, "{:?}", contents.damage);
        }
        std::fs::remove_file(path).unwrap();
    }
}

/// Writes until an error; gives how many events were taken before.
fn fill_up(mut writer: TapeWriter) -> (i64, TapeError) {
    let random = |number: i64| (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for number in 0.. {
        let (correlation, bytes, graph_node) = (random(number), random(!number), random(number << 20));
        let row = Memcpy { start_ns: number, correlation, bytes, graph_node, ..Memcpy::default() };
        if let Err(error) = writer.event(row) {
            return (number, error);
        }
    }
    unreachable!("16 MiB are full before the numbers end")
}

#[test]
fn a_full_filesystem_is_an_error_and_no_fault() {
    let dir = tempfile::tempdir().unwrap();
    // Whoever may not mount may do so in namespaces of their own, where the machine lets them.
    let in_filesystem = |command: &str, arguments: &[&std::ffi::OsStr]| {
        let mount = format!("mount -t tmpfs -o size=16m tmpfs \"$KTAPE_TEST_SMALL_FILESYSTEM\" && {command}");
        let ran = Command::new("unshare")
            .args(["--map-root-user", "--mount", "sh", "-c", &mount])
            .args(arguments)
            .env("KTAPE_TEST_SMALL_FILESYSTEM", dir.path())
            .output();
        match ran {
            Ok(output) if output.status.success() => Ok(()),
            Ok(output) => Err(format!("{}\n{}", output.status, String::from_utf8_lossy(&output.stderr))),
            Err(error) => Err(error.to_string()),
        }
    };
    if let Err(why) = in_filesystem("true", &[]) {
        return say(&format!("SKIPPED: no filesystem can be mounted here: {why}"));
    }
    let test = std::env::current_exe().unwrap();
    let ran = in_filesystem("exec \"$0\" --exact disk::child_in_a_small_filesystem --nocapture", &[test.as_os_str()]);
    assert_eq!(ran, Ok(()));
}
