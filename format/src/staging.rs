//! The open tail of a tape: records on their way into a block, in memory that outlives the writer.
//!
//! The two halves are part of the file and mapped shared, so what is stored there is the kernel's to keep when the
//! writer is killed. A half is `{magic, sequence, committed}` and then records; a record counts once `committed`
//! has passed it. A half carries the sequence number of the block that its records will be sealed into, so a reader
//! knows by one comparison whether a half or its block has the rows. With two halves, one can be sealed while the
//! other fills.
//!
//! Power loss is another matter: pages may reach the disk in any order. See `FileHeader::boot_id`.

use std::sync::atomic::{AtomicU64, Ordering};

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

/// What a half holds that has not been sealed.
pub(crate) struct Half<'a> {
    pub(crate) offset: u64,
    pub(crate) sequence: u64,
    records: &'a [u8],
}

/// The halves of a tape that hold committed records, by sequence.
pub(crate) fn halves<'a>(tape: &'a [u8], header: &FileHeader) -> Vec<Half<'a>> {
    let half_bytes = header.staging_half_bytes;
    let mut halves = Vec::new();
    for index in 0..2 {
        let Some(offset) = half_bytes.checked_mul(index).map(|at| at + FileHeader::STAGING_OFFSET) else { continue };
        let half = usize::try_from(offset).ok().zip(usize::try_from(half_bytes).ok());
        let Some(half) = half.and_then(|(at, bytes)| tape.get(at..at.checked_add(bytes)?)) else { continue };
        let Some((head, records)) = half.split_at_checked(HALF_HEADER_BYTES) else { continue };
        let word = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("8 bytes"));
        let committed = usize::try_from(word(16)).ok().and_then(|committed| records.get(..committed));
        if let Some(records) = committed.filter(|records| head[..8] == MAGIC && !records.is_empty()) {
            halves.push(Half { offset, sequence: word(8), records });
        }
    }
    halves.sort_by_key(|half| half.sequence);
    halves
}

impl Half<'_> {
    /// How many bytes of records it holds.
    pub(crate) fn bytes(&self) -> u64 {
        self.records.len() as u64
    }

    /// Adds its records to `definitions` and `events`. Returns how many it added, and whether all could be read.
    pub(crate) fn replay(&self, definitions: &mut Definitions, events: &mut Events) -> (u64, bool) {
        let mut rest = self.records;
        let mut rows = 0;
        while let Some((head, tail)) = rest.split_at_checked(RECORD_HEADER_BYTES) {
            let bytes = u32::from_le_bytes(head[..4].try_into().expect("4 bytes")) as usize;
            let table = u16::from_le_bytes([head[4], head[5]]);
            let Some((record, tail)) = tail.split_at_checked(bytes) else { break };
            if !replay_record(table, record, definitions, events) {
                break;
            }
            rows += 1;
            rest = tail;
        }
        (rows, rest.is_empty())
    }
}

fn replay_record(table: u16, record: &[u8], definitions: &mut Definitions, events: &mut Events) -> bool {
    struct Replay<'a> {
        table: u16,
        record: &'a [u8],
        definitions: &'a mut Definitions,
        events: &'a mut Events,
        done: bool,
    }
    impl Replay<'_> {
        fn row<R: Row>(&self) -> Option<R> {
            (R::KIND == self.table && self.record.len() == R::STAGED_BYTES).then(|| R::unstage(self.record))
        }
    }
    impl DefinitionVisitor for Replay<'_> {
        type Error = std::convert::Infallible;
        fn visit<T: Definition>(&mut self) -> Result<(), Self::Error> {
            if let Some(row) = self.row::<T>() {
                T::table_mut(self.definitions).push(row);
                self.done = true;
            }
            Ok(())
        }
    }
    impl KindVisitor for Replay<'_> {
        type Error = std::convert::Infallible;
        fn visit<E: Event>(&mut self) -> Result<(), Self::Error> {
            if let Some(row) = self.row::<E>() {
                E::table_mut(self.events).push(row);
                self.done = true;
            }
            Ok(())
        }
    }
    if table == DefinitionKind::String as u16 {
        definitions.strings.push(String::from_utf8_lossy(record).into());
        return true;
    }
    let mut replay = Replay { table, record, definitions, events, done: false };
    let Ok(()) = visit_kinds(&mut replay);
    let Ok(()) = visit_definitions(&mut replay);
    replay.done
}
