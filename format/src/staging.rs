//! The open tail of a tape: records on their way into a block, in memory that outlives the writer.
//!
//! Two halves are part of the file and mapped shared, so what is stored there is the kernel's to keep when the writer
//! is killed. The writer fills one half with records while its sealer (`sealer.rs`) turns the other into a block; a
//! half carries the sequence number of that block, so a reader knows by one comparison which of the two has the rows.
//! Where a file cannot be mapped, or need not (an importer starts again), the halves are ordinary memory.
//!
//! ```text
//! half     magic | sequence | committed | lost | records …
//! record   length u32, table u16, check u16 | the row's fields, or a string's bytes | zeros up to a multiple of 8
//! ```
//!
//! A record counts once `committed` has passed it. All is made of 8-byte words, stored whole: staging a launch is
//! eight stores. A checksum of the usual kind would cost more than the rest, so a record has a fold of its words, and
//! the numbers of a half's head stand beside their complement: any single flipped bit is noticed.
//!
//! A reader of a growing tape copies a half, and takes the copy only if the half has the same number after it as
//! before: the writer renames a half before it stores the next block's records over the last one's.
//!
//! Power loss is another matter: pages may reach the disk in any order. See `FileHeader::boot_id`.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use memmap2::MmapMut;

use crate::event::Event;
use crate::table::Row;

/// The first bytes of a half.
pub(crate) const MAGIC: [u8; 8] = *b"KTAPHALF";
/// The length of a half's head: magic, sequence, committed, lost.
pub(crate) const HALF_HEADER_BYTES: usize = 32;
/// The length of a record's head.
pub(crate) const RECORD_HEADER_BYTES: usize = 8;
/// Where in a half's head its numbers are.
pub(crate) const SEQUENCE_AT: usize = 8;
pub(crate) const COMMITTED_AT: usize = 16;
pub(crate) const LOST_AT: usize = 24;

/// The memory of the two halves, shared by the writer, who stores into one, and the sealer, who reads the other.
pub(crate) struct Halves {
    /// Keeps the memory; all access goes through `base`.
    _map: MmapMut,
    base: *mut u8,
    half_bytes: usize,
}

// SAFETY: `base` points into a mapping that lives as long as this struct. A half's records are stored only through
// `OpenHalf`, of which the writer has at most one, and read only by the sealer between the message that gives it that
// half and the one that gives it back; the heads are atomic.
unsafe impl Send for Halves {}
// SAFETY: as above.
unsafe impl Sync for Halves {}

impl Halves {
    /// Two halves of `half_bytes`, a multiple of 64, which begin `from` bytes behind the start of the mapping.
    pub(crate) fn new(mut map: MmapMut, from: usize, half_bytes: usize) -> Halves {
        assert!(map.len() >= from + 2 * half_bytes && half_bytes > HALF_HEADER_BYTES && half_bytes.is_multiple_of(64));
        // SAFETY: within the mapping, by the line above.
        let base = unsafe { map.as_mut_ptr().add(from) };
        Halves { _map: map, base, half_bytes }
    }

    /// How many bytes of records a half holds.
    pub(crate) fn capacity(&self) -> usize {
        self.half_bytes - HALF_HEADER_BYTES
    }

    /// Opens a half for the records of block `sequence`, before which `lost` events were lost that no row tells of yet.
    /// What it held must have been sealed.
    pub(crate) fn open(&self, half: usize, sequence: u64, lost: u64) -> OpenHalf {
        // Emptied before it is renamed: killed in between, the half is the old block's and empty.
        self.store(half, COMMITTED_AT, 0);
        self.set_lost(half, lost);
        self.store(half, SEQUENCE_AT, sequence as u32);
        // And renamed before it is written over: a reader that copied any of that sees the new number behind it.
        fence(Ordering::Release);
        // The first time, this says that the numbers are there.
        // SAFETY: the first 8 bytes of the half, which are aligned and nobody's but the writer's.
        unsafe { self.half(half).cast::<[u8; 8]>().write(MAGIC) };
        // SAFETY: records begin behind the head and end with the half; committed is a word of the head.
        let (records, committed) =
            unsafe { (self.half(half).add(HALF_HEADER_BYTES), self.half(half).add(COMMITTED_AT).cast::<AtomicU64>()) };
        OpenHalf { half, records, committed, used: 0, capacity: self.capacity() }
    }

    /// Says in the head of a half how many events were lost that no row tells of yet.
    pub(crate) fn set_lost(&self, half: usize, lost: u64) {
        self.store(half, LOST_AT, u32::try_from(lost).unwrap_or(u32::MAX));
    }

    /// The first `bytes` bytes of a half's records.
    ///
    /// # Safety
    /// Nobody may store records into the half while the result lives.
    pub(crate) unsafe fn records(&self, half: usize, bytes: usize) -> &[u8] {
        assert!(bytes <= self.capacity());
        // SAFETY: within the half, and by the caller's word not written to.
        unsafe { std::slice::from_raw_parts(self.half(half).add(HALF_HEADER_BYTES), bytes) }
    }

    fn half(&self, half: usize) -> *mut u8 {
        assert!(half < 2);
        // SAFETY: both halves lie within the mapping.
        unsafe { self.base.add(half * self.half_bytes) }
    }

    fn store(&self, half: usize, at: usize, value: u32) {
        // SAFETY: a word of a half's head, aligned as the halves are, and accessed by no other kind of store.
        let word = unsafe { AtomicU64::from_ptr(self.half(half).add(at).cast()) };
        word.store(checked_word(value).to_le(), Ordering::Release);
    }
}

/// The half that takes records. Points into [`Halves`], which outlive it in the writer.
pub(crate) struct OpenHalf {
    half: usize,
    records: *mut u8,
    committed: *const AtomicU64,
    used: usize,
    capacity: usize,
}

// SAFETY: it is the only one that stores records into its half; see `Halves`.
unsafe impl Send for OpenHalf {}

impl OpenHalf {
    /// Which of the two.
    pub(crate) fn half(&self) -> usize {
        self.half
    }

    /// How many bytes its records take.
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    /// Whether a record of this many bytes, head and padding included, fits.
    #[inline]
    pub(crate) fn fits(&self, record_bytes: usize) -> bool {
        self.used + record_bytes <= self.capacity
    }

    /// Stores a row's record and commits it, if it fits; returns whether it did.
    #[inline]
    pub(crate) fn row<R: Row>(&mut self, row: &R) -> bool {
        let bytes = const { record_bytes(R::STAGED_BYTES) };
        if !self.fits(bytes) {
            return false;
        }
        // SAFETY: within the half, by the lines above; every record is a multiple of 8 bytes, so it is aligned.
        let words = unsafe {
            let record = self.records.add(self.used).cast::<u64>();
            std::slice::from_raw_parts_mut(record, bytes / 8)
        };
        let fold = row.stage(&mut words[1..]);
        words[0] = record_head(R::STAGED_BYTES, R::KIND, fold).to_le();
        self.commit(bytes);
        true
    }

    /// Stores a record that has its head already and commits it. It must fit.
    pub(crate) fn record(&mut self, record: &[u8]) {
        assert!(self.fits(record.len()) && record.len().is_multiple_of(8));
        // SAFETY: within the half, by the line above.
        let to = unsafe { std::slice::from_raw_parts_mut(self.records.add(self.used), record.len()) };
        to.copy_from_slice(record);
        self.commit(record.len());
    }

    #[inline]
    fn commit(&mut self, bytes: usize) {
        self.used += bytes;
        // SAFETY: a word of the half's head, as in `Halves::store`.
        let committed = unsafe { &*self.committed };
        committed.store(checked_word(self.used as u32).to_le(), Ordering::Release);
    }
}

/// The length of a record with `bytes` bytes of contents.
pub(crate) const fn record_bytes(bytes: usize) -> usize {
    RECORD_HEADER_BYTES + bytes.next_multiple_of(8)
}

/// A number of a half's head: in the low half the value, in the high one its complement.
#[inline]
pub(crate) fn checked_word(value: u32) -> u64 {
    u64::from(value) | u64::from(!value) << 32
}

/// The value of a word of a half's head, if it is one.
pub(crate) fn checked_value(word: u64) -> Option<u32> {
    (checked_word(word as u32) == word).then_some(word as u32)
}

/// A record's first word. `fold` is that of the words behind it.
#[inline]
fn record_head(bytes: usize, table: u16, fold: u64) -> u64 {
    let head = bytes as u64 | u64::from(table) << 32;
    head | u64::from(check_of(head, fold)) << 48
}

/// A record's check: the words of its contents, word *i* rotated left by 5 *i* bits, XORed with each other and with its
/// head, then the four quarters of that; and a constant, so that zeros are no record.
#[inline]
fn check_of(head: u64, fold: u64) -> u16 {
    let all = head ^ fold;
    let half = all ^ all >> 32;
    (half ^ half >> 16) as u16 ^ 0x6b74
}

/// Adds word `index` of a record's contents to its fold.
#[inline]
pub(crate) fn fold_in(fold: u64, index: usize, word: u64) -> u64 {
    fold ^ word.rotate_left(5 * index as u32 % 64)
}

/// Appends the record of a string or any other contents to `out`.
pub(crate) fn frame(table: u16, contents: &[u8], out: &mut Vec<u8>) {
    let from = out.len();
    out.extend_from_slice(&[0; RECORD_HEADER_BYTES]);
    out.extend_from_slice(contents);
    out.resize(from + record_bytes(contents.len()), 0);
    let fold = fold_of(&out[from + RECORD_HEADER_BYTES..]);
    out[from..from + RECORD_HEADER_BYTES].copy_from_slice(&record_head(contents.len(), table, fold).to_le_bytes());
}

/// Appends the record of a row to `out`.
pub(crate) fn frame_row<R: Row>(row: &R, out: &mut Vec<u8>) {
    let mut words = vec![0; R::STAGED_BYTES.div_ceil(8)];
    row.stage(&mut words);
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    frame(R::KIND, &bytes[..R::STAGED_BYTES], out);
}

fn fold_of(words: &[u8]) -> u64 {
    let words = words.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes")));
    words.enumerate().fold(0, |fold, (index, word)| fold_in(fold, index, word))
}

/// Takes the first record off `records`, as table and contents; `None` if it is cut off. Its check is not looked at: for
/// who has stored the records itself.
pub(crate) fn take_own_record<'a>(records: &mut &'a [u8]) -> Option<(u16, &'a [u8])> {
    let (head, rest) = records.split_first_chunk::<RECORD_HEADER_BYTES>()?;
    let head = u64::from_le_bytes(*head);
    let bytes = head as u32 as usize;
    let (padded, rest) = rest.split_at_checked(bytes.checked_next_multiple_of(8)?)?;
    *records = rest;
    Some(((head >> 32) as u16, &padded[..bytes]))
}

/// The same of a stranger's records; `None` also if the record does not match its check.
pub(crate) fn take_record<'a>(records: &mut &'a [u8]) -> Option<(u16, &'a [u8])> {
    let mut rest = *records;
    let (table, contents) = take_own_record(&mut rest)?;
    let record = &records[..record_bytes(contents.len())];
    let (head, padded) = record.split_first_chunk::<RECORD_HEADER_BYTES>()?;
    let is_intact = record_head(contents.len(), table, fold_of(padded)).to_le_bytes() == *head;
    if !is_intact || padded[contents.len()..].iter().any(|&byte| byte != 0) {
        return None;
    }
    *records = rest;
    Some((table, contents))
}

/// What came while no half was free: told as one loss row as soon as one is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lost {
    pub(crate) events: u64,
    /// The table that all of them would have been rows of; 0 for several.
    pub(crate) kind: u16,
    pub(crate) first_ns: i64,
    pub(crate) last_ns: i64,
}

impl Lost {
    /// Counts one event.
    pub(crate) fn count<E: Event>(&mut self, row: &E) {
        let (start_ns, end_ns) = (row.start_ns(), row.end_ns());
        *self = match self.events {
            0 => Lost { events: 1, kind: E::KIND, first_ns: start_ns, last_ns: end_ns },
            events => Lost {
                events: events + 1,
                kind: if self.kind == E::KIND { E::KIND } else { 0 },
                first_ns: self.first_ns.min(start_ns),
                last_ns: self.last_ns.max(end_ns),
            },
        };
    }
}
