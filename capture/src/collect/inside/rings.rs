//! The rings of a directory: found, read in the order of time, and taken away when all is read.
//!
//! Each thread has a ring of its own, and what one of them makes (a stream, a module, a stack that is told once) others use. So
//! records are taken in the order of their time, over all rings, up to the *horizon*: a time before the rings were looked into. Who
//! uses what another thread has made does so after that thread's record was put, so up to the horizon nothing comes before what it
//! refers to. A record without a time goes with the one before it; what the device did goes by when it was done.
//!
//! A ring is bytes from a stranger. One that says what cannot be is not read any further; one with records of another process, or of
//! no kind, has those counted.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs;
use std::io;
use std::mem::offset_of;
use std::os::unix::fs::DirEntryExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ktape_ebpf::inside::ring::{HEADER_BYTES, Reader, Unreadable};
use ktape_ebpf::inside::{Correlated, PROCESS_SUFFIX, RING_SUFFIX, Ran, RangeTold, Text, kind as inside};
use ktape_ebpf::wire::tally::{KINDS, SLOTS, Slot};
use ktape_ebpf::wire::{Call, Lifecycle, Plain as _, Return, Sample, kind};
use rustc_hash::{FxHashMap, FxHashSet};

use super::super::events::records::pid_of;
use super::mapping::Mapping;
use super::pages::{self, Page};

/// Files of a directory that are looked at, at most: threads of a process are rarely more than thousands.
const MOST_FILES: usize = 1 << 16;
/// Bytes of texts that are kept of a ring.
const MOST_TEXT_BYTES: usize = 64 << 20;
/// And after so many it has told all of them anew: `MOST` of the library's `names.rs`.
const MOST_TEXTS: u32 = 1 << 14;
/// A ring's file is no longer than this.
const MOST_BYTES: u64 = 1 << 30;

/// What was found that is new.
#[derive(Debug, Default)]
pub struct Found {
    /// Pages of processes.
    pub pages: Vec<Page>,
    /// What is wrong with files.
    pub troubles: Vec<String>,
}

/// A record, as it is handed out.
#[derive(Debug)]
pub struct Record<'a> {
    /// Its bytes.
    pub bytes: &'a [u8],
    /// What it tells of.
    pub of: Of,
    texts: &'a FxHashMap<u32, Arc<str>>,
}

impl Record<'_> {
    /// The text that the record refers to by this id.
    pub fn text(&self, id: u32) -> Option<Arc<str>> {
        self.texts.get(&id).cloned()
    }
}

/// What a record tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// What the device did.
    Device,
    /// A range that the program names.
    Range,
    /// Calls, and all else.
    Calls,
}

/// One thread's.
#[derive(Debug)]
struct Ring {
    inode: u64,
    path: PathBuf,
    pid: u32,
    reader: Reader,
    /// The record that comes next, if `has_front`.
    front: Vec<u8>,
    has_front: bool,
    /// When that happened.
    time_ns: u64,
    texts: FxHashMap<u32, Arc<str>>,
    text_bytes: usize,
    is_broken: bool,
    /// What the reader reads; unmapped after it.
    _mapping: Mapping,
}

/// The rings.
#[derive(Debug)]
pub struct Rings {
    folder: PathBuf,
    rings: Vec<Ring>,
    /// Files that were looked at. A process that begins another program has a page of the same name, but another file.
    known: FxHashSet<(u64, PathBuf)>,
    /// What the rings counted that are gone.
    gone: Vec<Slot>,
    /// Records that are not what they should be.
    strange: u64,
}

impl Rings {
    /// Those of a directory.
    pub fn new(folder: &Path) -> Rings {
        Rings {
            folder: folder.to_owned(),
            rings: Vec::new(),
            known: FxHashSet::default(),
            gone: vec![Slot::default(); SLOTS as usize],
            strange: 0,
        }
    }

    /// Looks for new files. One that is not begun yet is looked at again.
    ///
    /// # Errors
    ///
    /// If the directory cannot be read.
    pub fn look(&mut self) -> io::Result<Found> {
        let mut found = Found::default();
        for entry in fs::read_dir(&self.folder)?.take(2 * MOST_FILES) {
            let entry = entry?;
            let (inode, path) = (entry.ino(), entry.path());
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let (is_page, is_ring) = (name.ends_with(PROCESS_SUFFIX), name.ends_with(RING_SUFFIX));
            if !(is_page || is_ring) || self.known.contains(&(inode, path.clone())) {
                continue;
            }
            if self.known.len() >= MOST_FILES {
                found.troubles.push(format!("{}: too many files", self.folder.display()));
                break;
            }
            let what = match is_page {
                true => Page::open(&path).map(|page| page.map(|page| found.pages.push(page))),
                false => Ring::open(&path).map(|ring| ring.map(|ring| self.rings.push(Ring { inode, ..ring }))),
            };
            match what {
                Ok(None) => {}
                Ok(Some(())) => drop(self.known.insert((inode, path))),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    found.troubles.push(format!("{}: {error}", path.display()));
                    self.known.insert((inode, path));
                }
            }
        }
        Ok(found)
    }

    /// Hands out records in the order of their time, up to the horizon and at most so many. Returns how many.
    ///
    /// # Errors
    ///
    /// Those of `take`.
    pub fn read<E>(
        &mut self,
        horizon_ns: u64,
        most: usize,
        mut take: impl FnMut(Record<'_>) -> Result<(), E>,
    ) -> Result<usize, E> {
        let mut next = BinaryHeap::new();
        for (index, ring) in self.rings.iter_mut().enumerate() {
            if ring.advance(horizon_ns, &mut self.strange) {
                next.push(Reverse((ring.time_ns, index)));
            }
        }
        let mut taken = 0;
        while taken < most
            && let Some(Reverse((time_ns, index))) = next.pop()
        {
            if time_ns > horizon_ns {
                break;
            }
            let ring = &mut self.rings[index];
            taken += 1;
            ring.has_front = false;
            take(Record { bytes: &ring.front, of: ring.of(), texts: &ring.texts })?;
            if ring.advance(horizon_ns, &mut self.strange) {
                next.push(Reverse((ring.time_ns, index)));
            }
        }
        Ok(taken)
    }

    /// Takes the files away of threads that ended, and of this process, of which all is read. Returns whose these were: process and
    /// thread.
    pub fn remove_read(&mut self, ended: Option<u32>) -> Vec<(u32, u32)> {
        let mut removed = Vec::new();
        let gone = &mut self.gone;
        let known = &mut self.known;
        self.rings.retain_mut(|ring| {
            let has_ended = ring.reader.header().ended.load(Ordering::Acquire) != 0 || ended == Some(ring.pid);
            if !has_ended || (!ring.is_broken && (ring.has_front || !ring.reader.is_empty())) {
                return true;
            }
            for (interval, slot) in gone.iter_mut().enumerate() {
                add(slot, &ring.reader.slot(interval as u64));
            }
            // One that is gone already is what is wanted.
            let _ = fs::remove_file(&ring.path);
            known.remove(&(ring.inode, ring.path.clone()));
            removed.push((ring.pid, ring.reader.header().tid));
            false
        });
        removed
    }

    /// Forgets a process's page, whose file was taken away.
    pub fn forget_page(&mut self, pid: u32) {
        let path = self.folder.join(format!("{pid}{PROCESS_SUFFIX}"));
        self.known.retain(|(_, known)| *known != path);
    }

    /// What all rings have counted in the slot of an interval.
    pub fn slot(&self, interval: u64) -> Slot {
        let mut sum = self.gone[(interval % u64::from(SLOTS)) as usize];
        self.rings.iter().for_each(|ring| add(&mut sum, &ring.reader.slot(interval)));
        sum
    }

    /// What all rings have counted so far.
    pub fn counted(&self) -> Slot {
        let mut sum = Slot::default();
        (0..u64::from(SLOTS)).for_each(|interval| add(&mut sum, &self.slot(interval)));
        sum
    }

    /// Records that were not what they should be.
    pub fn strange(&self) -> u64 {
        self.strange
    }

    /// Whether there are any.
    pub fn is_empty(&self) -> bool {
        self.rings.is_empty()
    }
}

fn add(sum: &mut Slot, slot: &Slot) {
    for kind in 0..KINDS {
        sum.seen[kind] = sum.seen[kind].wrapping_add(slot.seen[kind]);
        sum.lost[kind] = sum.lost[kind].wrapping_add(slot.lost[kind]);
    }
}

impl Ring {
    fn open(path: &Path) -> io::Result<Option<Ring>> {
        let file = pages::open(path)?;
        let bytes = file.metadata()?.len();
        if bytes > MOST_BYTES {
            return Err(io::Error::other("too long for a ring"));
        }
        if bytes < HEADER_BYTES as u64 {
            return Ok(None);
        }
        let mapping = Mapping::of(&file, bytes as usize)?;
        // SAFETY: the mapping is as long as it says, and is kept with the reader.
        let reader = match unsafe { Reader::new(mapping.memory(), mapping.length()) } {
            Ok(reader) => reader,
            Err(Unreadable::NoRing) => return Ok(None),
            Err(error) => return Err(io::Error::other(format!("{error:?}"))),
        };
        Ok(Some(Ring {
            inode: 0,
            path: path.to_owned(),
            pid: reader.header().pid,
            reader,
            front: Vec::new(),
            has_front: false,
            time_ns: 0,
            texts: FxHashMap::default(),
            text_bytes: 0,
            is_broken: false,
            _mapping: mapping,
        }))
    }

    /// Sees to it that there is a next record, if there can be one.
    fn advance(&mut self, horizon_ns: u64, strange: &mut u64) -> bool {
        while !self.has_front && !self.is_broken {
            self.front.clear();
            match self.reader.next(&mut self.front) {
                Ok(false) => return false,
                Err(_) => {
                    *strange += 1;
                    self.is_broken = true;
                }
                Ok(true) => self.has_front = self.look_at_front(horizon_ns, strange),
            }
        }
        self.has_front
    }

    /// Whether the record at the front is one to hand out.
    fn look_at_front(&mut self, horizon_ns: u64, strange: &mut u64) -> bool {
        let Some(kind) = self.kind().filter(|kind| pid_of(*kind, &self.front) == Some(self.pid)) else {
            *strange += 1;
            return false;
        };
        if kind == inside::TEXT {
            self.take_text(strange);
            return false;
        }
        let at = match kind {
            kind::CALL | kind::STACK_CALL | kind::MEMORY_CALL | kind::NAMED_CALL | kind::LISTS_CALL => {
                offset_of!(Call, time_ns)
            }
            kind::RETURN => offset_of!(Return, time_ns),
            kind::LIFECYCLE => offset_of!(Lifecycle, time_ns),
            kind::SAMPLE => offset_of!(Sample, time_ns),
            inside::CORRELATED => offset_of!(Correlated, time_ns),
            inside::RANGE => offset_of!(RangeTold, time_ns),
            inside::KERNEL_RAN | inside::COPY_RAN | inside::SET_RAN | inside::KERNEL_TIMED => {
                offset_of!(Ran, end_ns)
            }
            _ => return true,
        };
        let Some(word) = self.front.get(at..).and_then(|rest| rest.first_chunk::<8>()) else {
            *strange += 1;
            return false;
        };
        let time_ns = u64::from_ne_bytes(*word);
        // What was done was done before it was told.
        self.time_ns = if self.of() == Of::Device { time_ns.min(horizon_ns) } else { time_ns };
        true
    }

    fn take_text(&mut self, strange: &mut u64) {
        let text = Text::read(&self.front);
        let bytes =
            text.and_then(|text| Some((text.id, self.front.get(size_of::<Text>()..)?.get(..text.bytes as usize)?)));
        match bytes.filter(|(_, bytes)| bytes.len() <= MOST_TEXT_BYTES) {
            Some((id, bytes)) => {
                if self.text_bytes + bytes.len() > MOST_TEXT_BYTES {
                    // The library tells all anew after so many, under new numbers.
                    self.texts.retain(|known, _| *known >= id.saturating_sub(MOST_TEXTS));
                    self.text_bytes = self.texts.values().map(|text| text.len()).sum();
                }
                self.text_bytes += bytes.len();
                self.texts.insert(id, String::from_utf8_lossy(bytes).into());
            }
            None => *strange += 1,
        }
    }

    /// A record's kind: two bytes, or four where the two behind are zeros.
    fn kind(&self) -> Option<u32> {
        self.front.first_chunk::<2>().map(|kind| u16::from_ne_bytes(*kind).into())
    }

    fn of(&self) -> Of {
        match self.kind() {
            Some(inside::KERNEL_RAN | inside::COPY_RAN | inside::SET_RAN | inside::KERNEL_TIMED) => Of::Device,
            Some(inside::RANGE) => Of::Range,
            _ => Of::Calls,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;

    use ktape_ebpf::inside::ring::Writer;
    use ktape_ebpf::inside::{KernelRan, MAGIC};
    use proptest::prelude::*;

    use super::*;

    const PID: u32 = 7;
    const DATA: usize = 4096;

    /// A folder with rings, of which the test has the writing side.
    struct Folder(tempfile::TempDir, Vec<Mapping>);

    impl Folder {
        fn new() -> Folder {
            Folder(tempfile::tempdir().unwrap(), Vec::new())
        }

        fn ring(&mut self, number: u32) -> Writer {
            let path = self.0.path().join(format!("{PID}.{number}{RING_SUFFIX}"));
            let file = OpenOptions::new().read(true).write(true).create_new(true).open(path).unwrap();
            file.set_len((HEADER_BYTES + DATA) as u64).unwrap();
            let mapping = Mapping::of(&file, HEADER_BYTES + DATA).unwrap();
            // SAFETY: zeros, as long as it says, and kept as long as the writer.
            let writer = unsafe { Writer::begin(mapping.memory(), DATA as u64, (PID, number), 1) };
            self.1.push(mapping);
            writer
        }
    }

    fn returned(tid: u32, time_ns: u64) -> Return {
        let pid_tid = u64::from(PID) << 32 | u64::from(tid);
        Return { kind: kind::RETURN, function: 1, time_ns, pid_tid, stack_pointer: 0, result: 0, outs: [0; 2] }
    }

    /// What is handed out: the thread and the time.
    fn read(rings: &mut Rings, horizon_ns: u64) -> Vec<(u32, u64)> {
        let mut taken = Vec::new();
        let take = |record: Record<'_>| {
            let returned = Return::read(record.bytes).expect("a return");
            taken.push((returned.pid_tid as u32, returned.time_ns));
            Ok::<(), ()>(())
        };
        rings.read(horizon_ns, usize::MAX, take).unwrap();
        taken
    }

    #[test]
    fn records_of_all_threads_come_in_the_order_of_time_up_to_the_horizon() {
        let mut folder = Folder::new();
        let (mut one, mut two) = (folder.ring(1), folder.ring(2));
        for (writer, tid, time_ns) in [(&mut one, 1, 10), (&mut two, 2, 5)] {
            writer.put(returned(tid, time_ns).as_bytes(), &[]);
            writer.put(returned(tid, time_ns + 10).as_bytes(), &[]);
        }
        let mut rings = Rings::new(folder.0.path());
        assert!(rings.look().unwrap().troubles.is_empty());
        assert_eq!(read(&mut rings, 17), [(2, 5), (1, 10), (2, 15)]);
        one.put(returned(1, 30).as_bytes(), &[]);
        assert_eq!(read(&mut rings, 100), [(1, 20), (1, 30)]);
        assert_eq!(read(&mut rings, 100), []);
        assert_eq!(rings.strange(), 0);
    }

    #[test]
    fn texts_are_of_their_ring_and_the_device_s_records_go_by_their_end() {
        let mut folder = Folder::new();
        let mut ring = folder.ring(1);
        let pid_tid = u64::from(PID) << 32 | 1;
        let text = Text { kind: inside::TEXT, id: 1, bytes: 4, pid_tid };
        ring.put(text.as_bytes(), b"gemm");
        let ran = Ran { kind: inside::KERNEL_RAN, pid_tid, start_ns: 5, end_ns: 50, ..Ran::default() };
        ring.put(KernelRan { ran, name: 1, ..KernelRan::default() }.as_bytes(), &[]);
        let mut rings = Rings::new(folder.0.path());
        rings.look().unwrap();
        let mut names = Vec::new();
        let taken = rings.read(20, usize::MAX, |record| {
            assert_eq!(record.of, Of::Device);
            names.push(record.text(1).as_deref().map(str::to_owned));
            assert_eq!(record.text(2), None);
            Ok::<(), ()>(())
        });
        // It has been done by the time that it is told, whatever the clocks say.
        assert_eq!((taken, names), (Ok(1), vec![Some("gemm".to_owned())]));
    }

    #[test]
    fn a_ring_goes_when_its_thread_has_ended_and_all_is_read_and_its_counts_stay() {
        let mut folder = Folder::new();
        let mut ring = folder.ring(1);
        ring.seen(4, 5);
        ring.put(returned(1, 10).as_bytes(), &[]);
        ring.end();
        let mut rings = Rings::new(folder.0.path());
        rings.look().unwrap();
        assert_eq!(rings.remove_read(None), []);
        assert!(!rings.is_empty(), "there is something to read");
        read(&mut rings, 100);
        assert_eq!(rings.remove_read(None), [(PID, 1)]);
        assert!(rings.is_empty());
        assert_eq!(std::fs::read_dir(folder.0.path()).unwrap().count(), 0);
        assert_eq!((rings.slot(0).seen[4], rings.counted().seen[4]), (1, 1));
    }

    #[test]
    fn records_of_another_process_are_counted_and_not_taken() {
        let mut folder = Folder::new();
        let mut ring = folder.ring(1);
        ring.put(Return { pid_tid: 8 << 32 | 1, ..returned(1, 5) }.as_bytes(), &[]);
        ring.put(&[1], &[]);
        ring.put(returned(1, 6).as_bytes(), &[]);
        let mut rings = Rings::new(folder.0.path());
        rings.look().unwrap();
        assert_eq!(read(&mut rings, 100), [(1, 6)]);
        assert_eq!(rings.strange(), 2);
    }

    #[test]
    fn what_is_no_file_or_no_ring_is_told_or_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("7.1.ring"), [0; 100]).unwrap();
        std::fs::create_dir(path("7.2.ring")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", path("7.3.ring")).unwrap();
        std::fs::write(path("7.process"), [0xff; 5000]).unwrap();
        std::fs::write(path("notes"), "").unwrap();
        let mut rings = Rings::new(folder.path());
        let found = rings.look().unwrap();
        assert_eq!((found.pages.len(), found.troubles.len()), (0, 2), "{:?}", found.troubles);
        assert!(rings.look().unwrap().troubles.is_empty(), "told once");
    }

    proptest! {
        /// Whatever a process writes over its ring: reading it comes to an end, and stays within it.
        #[test]
        fn hostile_rings_do_no_harm(
            header in proptest::collection::vec(any::<(u8, u64)>(), 0..8),
            data in proptest::collection::vec(any::<u8>(), 0..DATA),
            horizon_ns: u64,
        ) {
            let folder = tempfile::tempdir().unwrap();
            let mut bytes = vec![0_u8; HEADER_BYTES + DATA];
            bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
            bytes[8..12].copy_from_slice(&ktape_ebpf::inside::LAYOUT.to_le_bytes());
            bytes[12..16].copy_from_slice(&PID.to_le_bytes());
            bytes[24..32].copy_from_slice(&(DATA as u64).to_le_bytes());
            bytes[HEADER_BYTES..HEADER_BYTES + data.len()].copy_from_slice(&data);
            // `head` at a line of its own, and anything else in the first lines.
            bytes[64..72].copy_from_slice(&(data.len() as u64).to_le_bytes());
            for (at, word) in header {
                let at = usize::from(at) % 32 * 8;
                bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
            }
            std::fs::write(folder.path().join("7.1.ring"), &bytes).unwrap();
            let mut rings = Rings::new(folder.path());
            rings.look().unwrap();
            let taken = rings.read(horizon_ns, 1 << 20, |_| Ok::<(), ()>(())).unwrap();
            prop_assert!(taken <= DATA / 8);
            rings.remove_read(Some(PID));
        }
    }
}
