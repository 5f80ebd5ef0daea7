//! A ring of records in a mapped file: one thread writes, the recorder reads.
//!
//! A header page, then the data. `head` and `tail` count bytes since the ring began and never go back, so the ring is empty
//! where they are equal and full where they are its size apart. A record has a head of 8 bytes ([`RecordHead`]) and is
//! padded to 8; it never goes round the end: where it would not fit there, a record of kind 0 fills the rest. The writer stores
//! `head` after the record's bytes (release), the reader `tail` after it is done with them.
//!
//! The writer never waits. What has no room is counted: seen before room is asked for, lost where there was none, both by the
//! tape's table that the record would have become a row of and by the interval of the event's own time (the end of what the device
//! did), as the eBPF programs do it ([`tally`]), so that nothing is missing without a number. A process that is killed between two stores leaves a ring that ends at
//! its last whole record.
//!
//! The reader does not trust the writer: whatever the header and the lengths say, it stays within the mapping.

use core::mem::size_of;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::{LAYOUT, MAGIC};
use crate::wire::tally::{self, KINDS, SLOTS};

/// The data begins behind this.
pub const HEADER_BYTES: usize = 4096 + SLOTS as usize * size_of::<Slot>();

/// What was counted in one interval, and in those so many [`SLOTS`] before: as [`tally::Slot`].
#[repr(C)]
pub struct Slot {
    /// Of those seen, how many found no room.
    pub lost: [AtomicU64; KINDS],
    /// Events that were to be told.
    pub seen: [AtomicU64; KINDS],
}

/// The first pages of a ring.
#[repr(C, align(64))]
pub struct Header {
    /// [`MAGIC`], stored last.
    pub magic: AtomicU64,
    /// [`LAYOUT`].
    pub layout: u32,
    /// The process, as it sees itself.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// Set when the thread has ended: once all is read, the file can go.
    pub ended: AtomicU32,
    /// How many bytes of data there are: a power of two.
    pub bytes: u64,
    /// As in the process's page.
    pub generation: u64,
    padding: [u64; 3],
    /// Up to where there are records. On a line of its own, as the other side writes `tail`.
    pub head: AtomicU64,
    padding_of_head: [u64; 7],
    /// Up to where they have been read.
    pub tail: AtomicU64,
    padding_of_tail: [u64; 7],
    /// By the interval's number, modulo their count.
    pub slots: [Slot; SLOTS as usize],
}

const _: () = assert!(size_of::<Header>() <= HEADER_BYTES);

/// Before every record.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHead {
    /// How many bytes the record has, without this head and the padding behind it.
    pub bytes: u32,
    /// Not 0 for what only fills the end of the data.
    pub is_filler: u32,
}

/// The side that writes.
#[derive(Debug)]
pub struct Writer {
    header: *const Header,
    data: *mut u8,
    mask: u64,
    /// What `head` is: nobody else changes it.
    head: u64,
    /// What `tail` was when it was read last.
    tail: u64,
    pid_tid: u64,
}

impl Writer {
    /// Begins a ring.
    ///
    /// # Safety
    ///
    /// `memory` is zeros, mapped for as long as the writer lives, aligned to a page, of [`HEADER_BYTES`] and `bytes`, a power of two.
    pub unsafe fn begin(memory: *mut u8, bytes: u64, (pid, tid): (u32, u32), generation: u64) -> Writer {
        let header = memory.cast::<Header>();
        // SAFETY: see above; nobody reads before the magic is there.
        unsafe {
            (&raw mut (*header).layout).write(LAYOUT);
            (&raw mut (*header).pid).write(pid);
            (&raw mut (*header).tid).write(tid);
            (&raw mut (*header).bytes).write(bytes);
            (&raw mut (*header).generation).write(generation);
            (*header).magic.store(MAGIC, Ordering::Release);
        }
        // SAFETY: as above.
        let data = unsafe { memory.add(HEADER_BYTES) };
        Writer { header, data, mask: bytes - 1, head: 0, tail: 0, pid_tid: u64::from(pid) << 32 | u64::from(tid) }
    }

    /// The process in the upper half, the thread in the lower: as records have it.
    #[inline(always)]
    pub fn pid_tid(&self) -> u64 {
        self.pid_tid
    }

    fn header(&self) -> &Header {
        // SAFETY: mapped as long as the writer lives; what changes in it is atomic.
        unsafe { &*self.header }
    }

    /// Counts an event of this table as seen, under its own time, which its record has too. Before its record is put.
    #[inline(always)]
    pub fn seen(&self, table: u32, time_ns: u64) {
        raise(&self.slot(time_ns).seen, table, 1);
    }

    /// Counts an event of this table as lost.
    #[cold]
    pub fn lost(&self, table: u32, time_ns: u64) {
        raise(&self.slot(time_ns).lost, table, 1);
    }

    /// Counts so many events of a table and an interval as seen and lost: those that another thread could not count itself.
    pub fn lost_elsewhere(&self, table: u32, interval: u64, count: u64) {
        let slot = self.slot(interval << tally::INTERVAL_SHIFT);
        raise(&slot.seen, table, count);
        raise(&slot.lost, table, count);
    }

    #[inline(always)]
    fn slot(&self, time_ns: u64) -> &Slot {
        &self.header().slots[(tally::interval(time_ns) % u64::from(SLOTS)) as usize]
    }

    /// Puts a record of two parts. False if there is no room for it: then nothing is put.
    #[inline(always)]
    pub fn put(&mut self, record: &[u8], rest: &[u8]) -> bool {
        let Some(at) = self.room(record.len() + rest.len()) else { return false };
        // SAFETY: `room` has found so many bytes there.
        unsafe {
            core::ptr::copy_nonoverlapping(record.as_ptr(), at, record.len());
            core::ptr::copy_nonoverlapping(rest.as_ptr(), at.add(record.len()), rest.len());
        }
        self.show(record.len() + rest.len());
        true
    }

    /// Where so many bytes can be written that nobody sees before [`Writer::show`].
    #[inline(always)]
    pub fn room(&mut self, bytes: usize) -> Option<*mut u8> {
        let wanted = whole(bytes);
        let size = self.mask + 1;
        let at_end = size - (self.head & self.mask);
        let filler = if wanted <= at_end { 0 } else { at_end };
        if self.head + filler + wanted - self.tail > size {
            self.tail = self.header().tail.load(Ordering::Acquire);
            // A `tail` that makes no sense leaves no room.
            if self.tail > self.head || self.head + filler + wanted - self.tail > size {
                return None;
            }
        }
        if filler != 0 {
            let head = RecordHead { bytes: (filler - size_of::<RecordHead>() as u64) as u32, is_filler: 1 };
            // SAFETY: up to the end of the data there is at least a head's room, as all is in steps of 8.
            unsafe { self.at_head().cast::<RecordHead>().write(head) };
            self.head += filler;
        }
        // SAFETY: within the data.
        Some(unsafe { self.at_head().add(size_of::<RecordHead>()) })
    }

    /// Shows what was written where [`Writer::room`] said.
    #[inline(always)]
    pub fn show(&mut self, bytes: usize) {
        let head = RecordHead { bytes: bytes as u32, is_filler: 0 };
        // SAFETY: `room` has left room for it.
        unsafe { self.at_head().cast::<RecordHead>().write(head) };
        self.head += whole(bytes);
        self.header().head.store(self.head, Ordering::Release);
    }

    /// Says that no more will come.
    pub fn end(&self) {
        self.header().ended.store(1, Ordering::Release);
    }

    fn at_head(&self) -> *mut u8 {
        // SAFETY: within the data.
        unsafe { self.data.add((self.head & self.mask) as usize) }
    }
}

/// What a record takes, with its head and padding.
const fn whole(bytes: usize) -> u64 {
    ((size_of::<RecordHead>() + bytes) as u64).next_multiple_of(8)
}

/// One thread counts, others only look: no need for an atomic addition.
#[inline(always)]
fn raise(counters: &[AtomicU64; KINDS], table: u32, by: u64) {
    let counter = &counters[table as usize % KINDS];
    // What the other side may have written there is no reason to panic.
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
}

/// The side that reads.
#[derive(Debug)]
pub struct Reader {
    header: *const Header,
    data: *const u8,
    size: u64,
    tail: u64,
}

// SAFETY: it only holds pointers into a mapping, which any thread can read.
unsafe impl Send for Reader {}

/// Why a ring is not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// It was not begun yet, or is something else.
    NoRing,
    /// Of another version of the library.
    OtherLayout(u32),
    /// Its header or a record's head says what cannot be: the process has written over it.
    Broken,
}

impl Reader {
    /// Reads a ring from where it was read up to.
    ///
    /// # Safety
    ///
    /// `memory` is mapped for as long as the reader lives, aligned to a page, and `length` bytes long. The file may not be cut short.
    pub unsafe fn new(memory: *const u8, length: usize) -> Result<Reader, Unreadable> {
        if length < HEADER_BYTES {
            return Err(Unreadable::NoRing);
        }
        let header = memory.cast::<Header>();
        // SAFETY: see above.
        let (magic, layout, size, tail) = unsafe {
            let magic = (*header).magic.load(Ordering::Acquire);
            let layout = (&raw const (*header).layout).read_volatile();
            let size = (&raw const (*header).bytes).read_volatile();
            (magic, layout, size, (*header).tail.load(Ordering::Acquire))
        };
        match (magic, layout) {
            (MAGIC, LAYOUT) => {}
            (MAGIC, other) => return Err(Unreadable::OtherLayout(other)),
            _ => return Err(Unreadable::NoRing),
        }
        if !size.is_power_of_two() || size > (length - HEADER_BYTES) as u64 || !tail.is_multiple_of(8) {
            return Err(Unreadable::Broken);
        }
        // SAFETY: within the mapping.
        Ok(Reader { header, data: unsafe { memory.add(HEADER_BYTES) }, size, tail })
    }

    /// The header.
    pub fn header(&self) -> &Header {
        // SAFETY: mapped as long as the reader lives; what changes in it is atomic.
        unsafe { &*self.header }
    }

    /// Whether all was read.
    pub fn is_empty(&self) -> bool {
        self.header().head.load(Ordering::Acquire) == self.tail
    }

    /// What was counted in the slot of an interval. What was lost is read first, so that no more is lost than seen.
    pub fn slot(&self, interval: u64) -> tally::Slot {
        let slot = &self.header().slots[(interval % u64::from(SLOTS)) as usize];
        let read = |counters: &[AtomicU64; KINDS]| core::array::from_fn(|kind| counters[kind].load(Ordering::Acquire));
        let lost = read(&slot.lost);
        tally::Slot { lost, seen: read(&slot.seen) }
    }

    /// Copies the next record into `into`, whose former contents go. False where there is none yet.
    ///
    /// A copy, as the process could change what lies in the ring while it is looked at.
    ///
    /// # Errors
    ///
    /// [`Unreadable::Broken`]. From then on nothing can be read.
    pub fn next(&mut self, into: &mut impl Extend<u8>) -> Result<bool, Unreadable> {
        loop {
            let head = self.header().head.load(Ordering::Acquire);
            if head == self.tail {
                return Ok(false);
            }
            let at = (self.tail % self.size) as usize;
            let available = head.wrapping_sub(self.tail).min(self.size - at as u64);
            if head < self.tail || head - self.tail > self.size || available < size_of::<RecordHead>() as u64 {
                return Err(Unreadable::Broken);
            }
            // SAFETY: within the data, and aligned, as all is in steps of 8.
            let record = unsafe { self.data.add(at).cast::<RecordHead>().read_volatile() };
            let bytes = whole(record.bytes as usize);
            if bytes > available {
                return Err(Unreadable::Broken);
            }
            if record.is_filler == 0 {
                // SAFETY: within the data; the bytes may change, but any are bytes.
                let body = unsafe {
                    core::slice::from_raw_parts(self.data.add(at + size_of::<RecordHead>()), record.bytes as usize)
                };
                into.extend(body.iter().copied());
            }
            self.tail += bytes;
            self.header().tail.store(self.tail, Ordering::Release);
            if record.is_filler == 0 {
                return Ok(true);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::alloc::{Layout, alloc_zeroed};
    use std::vec::Vec;

    use super::*;

    const DATA: u64 = 256;

    fn memory() -> *mut u8 {
        // SAFETY: the size is not 0. Never freed.
        unsafe { alloc_zeroed(Layout::from_size_align(HEADER_BYTES + DATA as usize, 4096).unwrap()) }
    }

    fn both(memory: *mut u8) -> (Writer, Reader) {
        // SAFETY: zeros, never freed, large enough.
        unsafe {
            let writer = Writer::begin(memory, DATA, (1, 2), 3);
            (writer, Reader::new(memory, HEADER_BYTES + DATA as usize).unwrap())
        }
    }

    fn next(reader: &mut Reader) -> Option<Vec<u8>> {
        let mut record = Vec::new();
        reader.next(&mut record).unwrap().then_some(record)
    }

    #[test]
    fn records_of_all_lengths_come_out_as_they_went_in() {
        let (mut writer, mut reader) = both(memory());
        for round in 0..if cfg!(miri) { 200 } else { 10_000usize } {
            let record: Vec<u8> = (0..round % 97).map(|byte| (byte + round) as u8).collect();
            let (first, rest) = record.split_at(record.len() / 3);
            assert!(writer.put(first, rest));
            assert_eq!(next(&mut reader), Some(record));
            assert_eq!(next(&mut reader), None);
        }
    }

    #[test]
    fn a_full_ring_takes_nothing_and_goes_on_when_there_is_room() {
        let (mut writer, mut reader) = both(memory());
        let mut put = 0;
        while writer.put(&[put; 40], &[]) {
            put += 1;
        }
        assert_eq!(put as u64, DATA / 48);
        assert_eq!(next(&mut reader), Some([0; 40].to_vec()));
        // 16 bytes are left at the end: too few, and one record's room at the beginning only, with the filler.
        assert!(writer.put(&[9; 32], &[]));
        assert!(!writer.put(&[9; 32], &[]));
        for record in 1..put {
            assert_eq!(next(&mut reader), Some([record; 40].to_vec()));
        }
        assert_eq!(next(&mut reader), Some([9; 32].to_vec()));
        assert_eq!(next(&mut reader), None);
    }

    /// For Miri and the thread sanitizer above all: the two sides at the same time, in a ring that is full most of the time.
    #[test]
    fn what_one_thread_writes_another_reads_whole_and_in_order() {
        struct Sent(Writer);
        // SAFETY: the memory is never freed, and nobody else writes.
        unsafe impl Send for Sent {}
        let count = if cfg!(miri) { 300 } else { 200_000 };
        let (writer, mut reader) = both(memory());
        let mut sent = Sent(writer);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let sent = &mut sent;
                for number in 0..count {
                    let length = number as usize % 5 * 8;
                    while !sent.0.put(&u64::to_le_bytes(number), &[number as u8; 40][..length]) {
                        std::thread::yield_now();
                    }
                }
            });
            for number in 0..count {
                let record = loop {
                    match next(&mut reader) {
                        Some(record) => break record,
                        None => std::thread::yield_now(),
                    }
                };
                let (begin, rest) = record.split_at(8);
                assert_eq!((begin, rest.len()), (u64::to_le_bytes(number).as_slice(), number as usize % 5 * 8));
                assert!(rest.iter().all(|&byte| byte == number as u8));
            }
        });
        assert_eq!(next(&mut reader), None);
    }

    #[test]
    fn what_is_counted_stands_under_its_own_time() {
        let (writer, reader) = both(memory());
        let at = |interval: u64| interval << tally::INTERVAL_SHIFT | 5;
        for (interval, table) in [(3, 1), (3, 1), (4, 4), (3 + u64::from(SLOTS), 1)] {
            writer.seen(table, at(interval));
        }
        writer.lost(1, at(3));
        let slot = reader.slot(3);
        assert_eq!((slot.seen[1], slot.lost[1], reader.slot(4).seen[4]), (3, 1, 1));
        assert_eq!(reader.slot(5).seen, [0; KINDS]);
    }

    #[test]
    fn a_record_larger_than_the_ring_has_no_room() {
        let (mut writer, mut reader) = both(memory());
        assert!(!writer.put(&[1; 300], &[]));
        assert!(writer.put(&[2; 8], &[]));
        assert_eq!(next(&mut reader), Some([2; 8].to_vec()));
    }

    #[test]
    fn what_the_process_writes_over_is_broken_and_never_read_beyond() {
        for (head, length) in [(u64::MAX, 8), (DATA + 8, 8), (4, 8), (64, u32::MAX), (64, 4000), (8, 8)] {
            let memory = memory();
            let (mut writer, mut reader) = both(memory);
            writer.put(&[1; 8], &[]);
            writer.header().head.store(head, Ordering::Relaxed);
            // SAFETY: the record's head.
            unsafe { memory.add(HEADER_BYTES).cast::<u32>().write(length) };
            assert_eq!(reader.next(&mut Vec::new()), Err(Unreadable::Broken), "{head} {length}");
        }
    }

    #[test]
    fn what_is_no_ring_is_refused() {
        let memory = memory();
        // SAFETY: as in `both`.
        unsafe {
            assert_eq!(Reader::new(memory, 100).unwrap_err(), Unreadable::NoRing);
            assert_eq!(Reader::new(memory, HEADER_BYTES + 8).unwrap_err(), Unreadable::NoRing);
            Writer::begin(memory, DATA, (1, 2), 3);
            assert_eq!(Reader::new(memory, HEADER_BYTES + 100).unwrap_err(), Unreadable::Broken);
            memory.add(8).cast::<u32>().write(99);
            assert_eq!(Reader::new(memory, HEADER_BYTES + DATA as usize).unwrap_err(), Unreadable::OtherLayout(99));
        }
    }
}
