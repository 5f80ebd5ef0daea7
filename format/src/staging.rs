//! The open tail of a tape: records on their way into a block, in memory that outlives the writer.
//!
//! The two halves are part of the file and mapped shared, so what is stored there is the kernel's to keep when the
//! writer is killed. A half is `{magic, sequence, committed}` and then records; a record counts once `committed`
//! has passed it. A half carries the sequence number of the block that its records will be sealed into, so a reader
//! knows by one comparison whether a half or its block has the rows. With two halves, one can be sealed while the
//! other fills.
//!
//! A reader of a growing tape copies a half, and takes the copy only if the half has the same number after it as
//! before: the writer renames a half before it stores the next block's records over the last one's.
//!
//! Power loss is another matter: pages may reach the disk in any order. See `FileHeader::boot_id`.

use std::io::{self, Read, Seek, SeekFrom};
use std::sync::atomic::{AtomicU64, Ordering, fence};

use memmap2::MmapMut;

use crate::definition::{Definition, DefinitionVisitor, Definitions, visit_definitions};
use crate::event::{Event, Events, KindVisitor, visit_kinds};
use crate::header::FileHeader;
use crate::table::{DefinitionKind, Row, Table};

/// The first bytes of a half.
const MAGIC: [u8; 8] = *b"KTAPHALF";
/// The length of a half's head: magic, sequence, committed, reserved.
pub(crate) const HALF_HEADER_BYTES: usize = 32;
/// The length of a record's head: length of what follows, table.
const RECORD_HEADER_BYTES: usize = 6;

/// The two mapped halves of a tape being written.
pub(crate) struct Staging {
    map: MmapMut,
    half_bytes: usize,
    active: usize,
    used: usize,
}

impl Staging {
    /// Takes the mapping of a file's first bytes, up to its first block.
    pub(crate) fn new(map: MmapMut, half_bytes: usize) -> Staging {
        Staging { map, half_bytes, active: 0, used: 0 }
    }

    /// Whether the open half has no record yet.
    pub(crate) fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Whether a record of this many bytes fits into the open half.
    pub(crate) fn fits(&self, bytes: usize) -> bool {
        self.used + RECORD_HEADER_BYTES + bytes <= self.half_bytes - HALF_HEADER_BYTES
    }

    /// Opens the other half for the records of block `sequence`. What it held must have been sealed.
    pub(crate) fn open_half(&mut self, sequence: u64) {
        self.active ^= 1;
        self.used = 0;
        // Emptied before it is renamed: killed in between, the half is the old block's and empty.
        self.committed().store(0, Ordering::Release);
        let at = self.half_offset();
        self.map[at..at + 8].copy_from_slice(&MAGIC);
        self.sequence().store(sequence, Ordering::Release);
        // And renamed before it is written over: a reader that copied any of that sees the new number behind it.
        fence(Ordering::Release);
    }

    /// Stores one record and commits it. It must fit.
    pub(crate) fn push(&mut self, table: u16, bytes: usize, fill: impl FnOnce(&mut [u8])) {
        let from = self.half_offset() + HALF_HEADER_BYTES + self.used;
        let record = &mut self.map[from..from + RECORD_HEADER_BYTES + bytes];
        record[..4].copy_from_slice(&(bytes as u32).to_le_bytes());
        record[4..RECORD_HEADER_BYTES].copy_from_slice(&table.to_le_bytes());
        fill(&mut record[RECORD_HEADER_BYTES..]);
        self.used += RECORD_HEADER_BYTES + bytes;
        self.committed().store(self.used as u64, Ordering::Release);
    }

    fn half_offset(&self) -> usize {
        FileHeader::STAGING_OFFSET as usize + self.active * self.half_bytes
    }

    fn sequence(&self) -> &AtomicU64 {
        self.word(8)
    }

    fn committed(&self) -> &AtomicU64 {
        self.word(16)
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        let offset = self.half_offset() + at;
        debug_assert!(offset.is_multiple_of(8) && offset + 8 <= self.map.len());
        // SAFETY: the 8 bytes lie within the mapping, which this struct owns and never moves or shrinks; they are
        // aligned, as mapping, header, half and field all are; readers in other processes only read them.
        unsafe { AtomicU64::from_ptr(self.map.as_ptr().add(offset) as *mut u64) }
    }
}

/// What a half held when it was copied.
pub(crate) struct Half {
    pub(crate) offset: u64,
    pub(crate) sequence: u64,
    /// Whether its head was as a writer leaves it. It has no records otherwise.
    pub(crate) sound: bool,
    records: Vec<u8>,
}

/// Copies the halves of a tape of `length` bytes that hold committed records, by sequence. Its writer may be at work.
pub(crate) fn halves(tape: &mut (impl Read + Seek), length: u64, header: &FileHeader) -> io::Result<Vec<Half>> {
    let mut halves = Vec::new();
    let room = header.staging_half_bytes.checked_sub(HALF_HEADER_BYTES as u64);
    for index in 0..2 {
        let offset =
            header.staging_half_bytes.checked_mul(index).and_then(|at| at.checked_add(FileHeader::STAGING_OFFSET));
        let end = offset.and_then(|offset| offset.checked_add(header.staging_half_bytes));
        let (Some(offset), Some(room), true) = (offset, room, end.is_some_and(|end| end <= length)) else { continue };
        let magic = word(tape, offset)?;
        let sequence = word(tape, offset + 8)?;
        let committed = word(tape, offset + 16)?;
        let sound = magic == u64::from_le_bytes(MAGIC) && committed <= room;
        let records = copy(tape, offset + HALF_HEADER_BYTES as u64, if sound { committed } else { 0 })?;
        let used_again = word(tape, offset + 8)? != sequence;
        if magic == 0 || used_again || sound && records.is_empty() {
            continue;
        }
        halves.push(Half { offset, sequence, sound, records });
    }
    halves.sort_by_key(|half| half.sequence);
    Ok(halves)
}

fn word(tape: &mut (impl Read + Seek), offset: u64) -> io::Result<u64> {
    let mut bytes = [0; 8];
    tape.seek(SeekFrom::Start(offset))?;
    tape.read_exact(&mut bytes)?;
    // What is read from here on is read after the word.
    fence(Ordering::Acquire);
    Ok(u64::from_le_bytes(bytes))
}

fn copy(tape: &mut (impl Read + Seek), offset: u64, bytes: u64) -> io::Result<Vec<u8>> {
    let mut copy = Vec::new();
    tape.seek(SeekFrom::Start(offset))?;
    tape.take(bytes).read_to_end(&mut copy)?;
    fence(Ordering::Acquire);
    Ok(copy)
}

impl Half {
    /// How many bytes of records it holds.
    pub(crate) fn bytes(&self) -> u64 {
        self.records.len() as u64
    }

    /// Its records, as table and bytes, up to the first that is cut off.
    pub(crate) fn records(&self) -> impl Iterator<Item = (u16, &[u8])> {
        let mut rest = &self.records[..];
        std::iter::from_fn(move || {
            let (head, tail) = rest.split_at_checked(RECORD_HEADER_BYTES)?;
            let bytes = u32::from_le_bytes(head[..4].try_into().expect("4 bytes")) as usize;
            let (record, tail) = tail.split_at_checked(bytes)?;
            rest = tail;
            Some((u16::from_le_bytes([head[4], head[5]]), record))
        })
    }

    /// When its first event began, of the tables that `counts` takes.
    pub(crate) fn first_ns(&self, counts: impl Fn(u16) -> bool) -> Option<i64> {
        // Column 0 of every event.
        let start_ns = |record: &[u8]| record.first_chunk().map(|&bytes| i64::from_le_bytes(bytes));
        self.records().filter(|&(table, _)| counts(table)).filter_map(|(_, record)| start_ns(record)).min()
    }

    /// Adds its records to `definitions` and `events`. Returns whether all could be read.
    pub(crate) fn replay(&self, definitions: &mut Definitions, events: &mut Events) -> bool {
        let mut bytes = 0;
        for (table, record) in self.records() {
            if !replay_record(table, record, definitions, events) {
                break;
            }
            bytes += RECORD_HEADER_BYTES + record.len();
        }
        self.sound && bytes == self.records.len()
    }
}

/// Adds one record; returns whether it could be read. One of a table that is newer than this version is left out.
fn replay_record(table: u16, record: &[u8], definitions: &mut Definitions, events: &mut Events) -> bool {
    struct Replay<'a> {
        table: u16,
        record: &'a [u8],
        definitions: &'a mut Definitions,
        events: &'a mut Events,
    }
    impl Replay<'_> {
        /// The record as a row, if it is of this table; an error if it ends within a column.
        fn row<R: Row>(&self) -> Result<Option<R>, ()> {
            if R::KIND != self.table {
                return Ok(None);
            }
            if self.record.len() >= R::STAGED_BYTES {
                // Columns that are newer than this version are cut off.
                return Ok(Some(R::unstage(&self.record[..R::STAGED_BYTES])));
            }
            // Columns that are newer than the writer are 0.
            let mut ends = R::COLUMNS.iter().scan(0, |end, column| {
                *end += column.scalar.bytes();
                Some(*end)
            });
            ends.find(|&end| end == self.record.len()).ok_or(())?;
            let mut whole = self.record.to_vec();
            whole.resize(R::STAGED_BYTES, 0);
            Ok(Some(R::unstage(&whole)))
        }
    }
    impl DefinitionVisitor for Replay<'_> {
        type Error = ();
        fn visit<T: Definition>(&mut self) -> Result<(), ()> {
            if let Some(row) = self.row::<T>()? {
                T::table_mut(self.definitions).push(row);
            }
            Ok(())
        }
    }
    impl KindVisitor for Replay<'_> {
        type Error = ();
        fn visit<E: Event>(&mut self) -> Result<(), ()> {
            if let Some(row) = self.row::<E>()? {
                E::table_mut(self.events).push(row);
            }
            Ok(())
        }
    }
    if table == DefinitionKind::String as u16 {
        definitions.strings.push(String::from_utf8_lossy(record).into());
        return true;
    }
    let mut replay = Replay { table, record, definitions, events };
    visit_kinds(&mut replay).and_then(|()| visit_definitions(&mut replay)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Launch;

    fn record(table: u16, bytes: &[u8]) -> Vec<u8> {
        [&(bytes.len() as u32).to_le_bytes()[..], &table.to_le_bytes(), bytes].concat()
    }

    #[test]
    fn records_of_other_versions_are_read_as_far_as_they_are_known() {
        let mut launch = vec![0; Launch::STAGED_BYTES];
        Launch { start_ns: 5, args: 9, ..Launch::default() }.stage(&mut launch);
        let newer = [&launch[..], &[1; 8]].concat();
        let older = &launch[..launch.len() - 4];
        let records = [record(200, &[1; 3]), record(1, &newer), record(1, older), record(1, &launch)].concat();
        let half = Half { offset: 0, sequence: 0, sound: true, records };
        let (mut definitions, mut events) = (Definitions::default(), Events::default());
        assert!(half.replay(&mut definitions, &mut events));
        assert_eq!((events.launch.start_ns, events.launch.args), (vec![5; 3], vec![9, 0, 9]));
        let torn = Half { records: record(1, &launch[..3]), ..half };
        assert!(!torn.replay(&mut definitions, &mut Events::default()), "a record ends within a column");
    }
}
