//! What a reader takes of the staging area: the rows that no block has yet.

use std::io;
use std::sync::atomic::{Ordering, fence};

use crate::definition::Definitions;
use crate::event::Events;
use crate::header::FileHeader;
use crate::replay::replay;
use crate::source::Source;
use crate::staging::{COMMITTED_AT, HALF_HEADER_BYTES, LOST_AT, MAGIC, SEQUENCE_AT, checked_value, take_record};

/// What a half held when it was copied.
#[derive(Clone, Debug)]
pub(crate) struct Half {
    pub(crate) offset: u64,
    pub(crate) sequence: u64,
    /// Whether its head was as a writer leaves it. It has no records otherwise.
    pub(crate) sound: bool,
    /// How many events came after its last record and were lost.
    pub(crate) lost: u64,
    layout: Layout,
    records: Vec<u8>,
}

/// How heads and records look, by the tape's major version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    /// No checks: numbers of 8 bytes, records of any length behind a head of 6.
    V1,
    V2,
}

/// Copies the halves of a tape that have something to tell, by sequence. Its writer may be at work.
pub(crate) fn halves(tape: &Source, header: &FileHeader) -> io::Result<Vec<Half>> {
    /// Tries until both halves are as they were at one moment. A half is used again after thousands of events, so the
    /// second try does.
    const TRIES: usize = 1000;
    let offsets = offsets(tape, header);
    for _ in 0..TRIES {
        let words =
            |of: usize| offsets.iter().map(move |&at| word(tape, at + of as u64)).collect::<io::Result<Vec<_>>>();
        let (sequences, lost) = (words(SEQUENCE_AT)?, words(LOST_AT)?);
        let copied = offsets.iter().map(|&offset| half(tape, header, offset)).collect::<io::Result<Vec<_>>>()?;
        // What was lost grows, until a row tells of it: that may have been copied beside the number.
        let is_told = |(before, now): (&u64, &u64)| (*now as u32) < *before as u32;
        if words(SEQUENCE_AT)? == sequences && !lost.iter().zip(&words(LOST_AT)?).any(is_told) {
            let mut halves: Vec<Half> = copied.into_iter().flatten().collect();
            halves.sort_by_key(|half| half.sequence);
            return Ok(halves);
        }
    }
    Err(io::Error::new(io::ErrorKind::TimedOut, "the tape's open tail changes too fast to be read"))
}

/// The numbers of the halves as they are now, whatever they say.
pub(crate) fn half_numbers(tape: &Source, header: &FileHeader) -> io::Result<Vec<u64>> {
    offsets(tape, header).into_iter().map(|at| word(tape, at + SEQUENCE_AT as u64)).collect()
}

/// Where the halves are that are all there.
fn offsets(tape: &Source, header: &FileHeader) -> Vec<u64> {
    let bytes = header.staging_half_bytes;
    let offset = |index| bytes.checked_mul(index).and_then(|at| at.checked_add(FileHeader::STAGING_OFFSET));
    let is_there = |&offset: &u64| {
        bytes >= HALF_HEADER_BYTES as u64 && offset.checked_add(bytes).is_some_and(|end| end <= tape.length())
    };
    (0..2).filter_map(offset).filter(is_there).collect()
}

/// A word of a half's head. What is read after it is as it was then, or newer.
fn word(tape: &Source, offset: u64) -> io::Result<u64> {
    let word = tape.read(offset, 8)?;
    fence(Ordering::Acquire);
    Ok(u64::from_le_bytes(word[..].try_into().map_err(|_| io::ErrorKind::UnexpectedEof)?))
}

/// Copies one half, if it has something to tell. The caller sees to it that it was not used again meanwhile.
fn half(tape: &Source, header: &FileHeader, offset: u64) -> io::Result<Option<Half>> {
    let layout = if header.major == 1 { Layout::V1 } else { Layout::V2 };
    let room = header.staging_half_bytes - HALF_HEADER_BYTES as u64;
    let word = |at: usize| word(tape, offset + at as u64);
    let value = |word: u64| match layout {
        Layout::V1 => Some(word),
        Layout::V2 => checked_value(word).map(u64::from),
    };
    let magic = word(0)?;
    let (sequence, lost) = (value(word(SEQUENCE_AT)?), value(word(LOST_AT)?));
    let committed = value(word(COMMITTED_AT)?).filter(|&committed| committed <= room);
    let sound = magic == u64::from_le_bytes(MAGIC) && sequence.and(lost).and(committed).is_some();
    let committed = if sound { committed.unwrap_or(0) } else { 0 };
    let records = tape.read(offset + HALF_HEADER_BYTES as u64, committed)?.into_owned();
    fence(Ordering::Acquire);
    let lost = lost.unwrap_or(0);
    // One that was never opened, or that nothing was put into yet.
    let has_nothing = magic == 0 || sound && records.is_empty() && lost == 0;
    let half = Half { offset, sequence: sequence.unwrap_or(u64::MAX), sound, lost, layout, records };
    Ok((!has_nothing).then_some(half))
}

impl Half {
    /// How many bytes of records it holds.
    pub(crate) fn bytes(&self) -> u64 {
        self.records.len() as u64
    }

    fn records(&self) -> Records<'_> {
        Records { rest: &self.records, layout: self.layout }
    }

    /// When its first event began, of the tables that `counts` takes.
    pub(crate) fn first_ns(&self, counts: impl Fn(u16) -> bool) -> Option<i64> {
        // Column 0 of every event.
        let start_ns = |record: &[u8]| record.first_chunk().map(|&bytes| i64::from_le_bytes(bytes));
        let records = self.records().filter(|&(table, _)| counts(table));
        records.filter_map(|(_, record)| start_ns(record)).min()
    }

    /// Adds its records to `definitions` and `events`. Returns whether all could be read.
    pub(crate) fn replay(&self, definitions: &mut Definitions, events: &mut Events) -> bool {
        let mut records = self.records();
        replay(&mut records, definitions, events) && records.rest.is_empty() && self.sound
    }
}

/// A half's records, as table and contents, up to the first that is cut off or damaged.
struct Records<'a> {
    rest: &'a [u8],
    layout: Layout,
}

impl<'a> Iterator for Records<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        match self.layout {
            Layout::V2 => take_record(&mut self.rest),
            Layout::V1 => {
                let (head, rest) = self.rest.split_at_checked(6)?;
                let bytes = u32::from_le_bytes(head[..4].try_into().expect("4 bytes")) as usize;
                let (record, rest) = rest.split_at_checked(bytes)?;
                self.rest = rest;
                Some((u16::from_le_bytes([head[4], head[5]]), record))
            }
        }
    }
}
