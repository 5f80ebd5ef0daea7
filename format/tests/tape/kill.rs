//! A writer that is killed: nothing that it committed is lost.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use ktape_format::event::Launch;
use ktape_format::{Sink, Table, Tape, TapeWriter, Wanted};

use crate::{say, staged};

/// The writer that is killed: counts up in launches, and tells how far it is in a file beside the tape.
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
    let committed = unsafe { AtomicU64::from_ptr(count.as_ptr() as *mut u64) };
    for number in 0.. {
        let name = writer.string(&format!("{}", number / 100)).unwrap();
        writer.event(Launch { start_ns: number, args: name, ..Launch::default() }).unwrap();
        committed.store(number as u64 + 1, Ordering::Release);
    }
}

/// A process that writes events until it is killed.
pub(crate) struct Writer<'a> {
    child: Child,
    path: &'a Path,
}

impl Writer<'_> {
    pub(crate) fn spawn(path: &Path, half_bytes: u64) -> Writer<'_> {
        std::fs::write(path.with_extension("count"), [0; 8]).unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "kill::child_that_writes_until_killed", "--nocapture"])
            .env("KTAPE_TEST_KILLED_WRITER", path)
            .env("KTAPE_TEST_HALF_BYTES", half_bytes.to_string())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Writer { child, path }
    }

    fn committed(&self) -> u64 {
        u64::from_le_bytes(std::fs::read(self.path.with_extension("count")).unwrap().try_into().unwrap())
    }

    pub(crate) fn wait_for(&mut self, events: u64) {
        while self.committed() < events {
            assert!(self.child.try_wait().unwrap().is_none(), "the writer stopped by itself");
            std::thread::yield_now();
        }
    }

    /// Kills it; gives how many events it had committed.
    pub(crate) fn kill(mut self) -> u64 {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.committed()
    }
}

#[test]
fn killing_the_writer_loses_no_committed_event() {
    let kills = 500_u64;
    let (mut all_committed, mut all_read, mut all_staged, mut with_blocks) = (0, 0, 0, 0);
    for round in 0..kills {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("killed.ktape");
        let mut writer = Writer::spawn(&path, [2048, 65_536, 1 << 20][round as usize % 3]);
        writer.wait_for(50 + round * 997 % 20_000);
        let committed = writer.kill();
        let tape = Tape::open(&path).unwrap();
        let contents = tape.read(&Wanted::default()).unwrap();
        assert_eq!(contents.damage, []);
        let launches = &contents.events.launch;
        let read = launches.len() as u64;
        assert!(read >= committed, "{read} of {committed} events are readable");
        assert!(launches.start_ns.iter().copied().eq(0..read as i64), "events are missing, doubled or out of order");
        let is_named = |row: Launch| contents.definitions.string(row.args) == format!("{}", row.start_ns / 100);
        assert!(launches.rows().all(is_named), "an event refers to a definition that was lost");
        all_committed += committed;
        all_read += read;
        all_staged += contents.staged_rows;
        with_blocks += u64::from(!tape.blocks().is_empty());
    }
    say(&format!(
        "{kills} writers killed, {with_blocks} with sealed blocks: {all_committed} events committed, {all_read} read, \
         {all_staged} rows from staging"
    ));
    assert!((1..kills).contains(&with_blocks), "with and without a sealed block: {with_blocks} of {kills} had one");
}
