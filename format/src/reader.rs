//! Reads a tape: its own bytes, a file's, or those of one that is still being written.
//!
//! [`Tape::open`] walks the block headers (77 for five million events) and so needs no index; nothing is decoded
//! before [`Tape::read`], which decodes block by block on all cores and skips blocks and sections that are not asked
//! for. What cannot be read is [`Damage`], and said; the rest is given.

use std::fs::File;
use std::io::{Cursor, Read};
use std::path::Path;

use memmap2::Mmap;
use rayon::prelude::*;

use crate::block::{BlockInfo, BlockKind, MAX_ROWS_PER_BYTE, Payload, SectionDecoder, SectionInfo};
use crate::definition::{Definition, DefinitionVisitor, Definitions, visit_definitions};
use crate::error::{Damage, TapeError};
use crate::event::{ClockPair, Event, Events, KindVisitor, Loss, visit_kinds};
use crate::header::{FileHeader, HEADER_BYTES};
use crate::staging::{Half, halves};
use crate::table::{DefinitionKind, Row as _, Table};
use crate::walk::{next_sequence, walk};

/// A tape, opened: its header, the places of its blocks, and what was staged and not sealed.
pub struct Tape {
    data: Data,
    header: FileHeader,
    blocks: Vec<BlockInfo>,
    damage: Vec<Damage>,
    /// Only those that no block has the rows of.
    halves: Vec<Half>,
}

enum Data {
    Mapped(Mmap),
    Owned(Vec<u8>),
}

/// What of a tape is wanted.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Leave out events that end at or before this time, instants before it.
    pub from_ns: Option<i64>,
    /// Leave out events that begin at or after this time.
    pub to_ns: Option<i64>,
    /// Only these tables ([`crate::Row::KIND`]); all if empty. Losses always come.
    pub kinds: Vec<u16>,
}

/// What was read.
#[derive(Debug, Default)]
pub struct Contents {
    /// All definitions, whatever was wanted.
    pub definitions: Definitions,
    /// The events wanted, in the order in which they were written.
    pub events: Events,
    /// What could not be read.
    pub damage: Vec<Damage>,
    /// How many rows came from the staging area: the tail that a writer had not sealed yet.
    pub staged_rows: u64,
}

impl Tape {
    /// Opens the tape at `path`, which is mapped, not read.
    pub fn open(path: &Path) -> Result<Tape, TapeError> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        if length == 0 {
            return Err(TapeError::NotATape("is empty"));
        }
        let mut front = Vec::new();
        (&file).take(HEADER_BYTES as u64).read_to_end(&mut front)?;
        let header = FileHeader::read(&front)?;
        // The halves are copied before the blocks are looked for. So a half that the writer seals in between is among
        // the blocks, and nothing that was on the tape when it was opened is missing.
        let halves = halves(&mut file, length, &header)?;
        // SAFETY: a tape is only ever appended to, except that its writer rewrites the staging area, which is not read
        // through this mapping, and a block that it failed to write, whose checksum tells. Cutting a tape short while
        // it is being read is the user's to avoid; the mapping would fault.
        let map = unsafe { Mmap::map(&file)? };
        Ok(Tape::new(Data::Mapped(map), header, halves))
    }

    /// Opens a tape that is in memory.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Tape, TapeError> {
        let header = FileHeader::read(&bytes)?;
        let halves = halves(&mut Cursor::new(&bytes), bytes.len() as u64, &header)?;
        Ok(Tape::new(Data::Owned(bytes), header, halves))
    }

    fn new(data: Data, header: FileHeader, mut halves: Vec<Half>) -> Tape {
        let (mut blocks, mut damage) = walk(data.bytes(), header.blocks_offset());
        // The last block may not be whole yet, or for ever, while the half that it is written from still is.
        if let Some(last) = blocks
            .pop_if(|last| halves.iter().any(|half| half.sequence == last.sequence) && data.payload(last).is_err())
        {
            damage.push(Damage { reason: "the last block is not whole", ..block_damage(&last) });
        }
        let closed = blocks.last().is_some_and(|block| block.kind == BlockKind::End);
        halves.retain(|half| !closed && half.sequence >= next_sequence(&blocks));
        Tape { data, header, blocks, damage, halves }
    }

    /// The header.
    pub fn header(&self) -> &FileHeader {
        &self.header
    }

    /// The readable blocks in file order, the end mark included.
    pub fn blocks(&self) -> &[BlockInfo] {
        &self.blocks
    }

    /// The tape's length.
    pub fn file_bytes(&self) -> u64 {
        self.data.bytes().len() as u64
    }

    /// When the first event began, losses and clock pairs aside; `None` if there is none.
    pub fn first_ns(&self) -> Option<i64> {
        let counts =
            |table: u16| table < DefinitionKind::String as u16 && ![Loss::KIND, ClockPair::KIND].contains(&table);
        let sections = self.blocks.iter().flat_map(|block| &block.sections);
        let sealed = sections.filter(|section| counts(section.table)).map(|section| section.first_ns);
        sealed.chain(self.halves.iter().filter_map(|half| half.first_ns(counts))).min()
    }

    /// Whether the writer finished the tape. If not it is still being written, or its writer was killed.
    pub fn is_closed(&self) -> bool {
        self.blocks.last().is_some_and(|block| block.kind == BlockKind::End)
    }

    /// Decodes what is wanted, on all cores. The result does not depend on their number.
    pub fn read(&self, wanted: &Wanted) -> Result<Contents, TapeError> {
        let mut contents = Contents { damage: self.damage.clone(), ..Contents::default() };
        // Ids are positions. Where a block is lost, at most as many definitions as its bytes can hold are missing, and
        // never so many that a stranger's tape could fill the memory with them.
        let lost_bytes = self.damage.iter().fold(0_u64, |sum, damage| sum.saturating_add(damage.bytes));
        let mut lost_rows = lost_bytes.saturating_mul(MAX_ROWS_PER_BYTE);
        let blocks: Vec<&BlockInfo> = self.blocks.iter().filter(|block| block.kind == BlockKind::Data).collect();
        // Some blocks at a time, so that no more than these are in memory twice.
        for blocks in at_once(&blocks) {
            let parts: Vec<DecodedBlock> = blocks
                .par_iter()
                .map_init(SectionDecoder::new, |decoder, block| match decoder {
                    Ok(decoder) => Ok(read_block(decoder, block, &self.data, wanted)),
                    Err(error) => Err(std::io::Error::new(error.kind(), error.to_string())),
                })
                .collect::<Result<_, _>>()?;
            for (block, mut part) in blocks.iter().zip(parts) {
                if append_definitions(block, &mut part.definitions, &mut contents.definitions, &mut lost_rows) {
                    contents.damage.append(&mut part.damage);
                    contents.events.append(&mut part.events);
                } else {
                    let reason = "a block's definitions do not follow those before";
                    contents.damage.push(Damage { reason, ..block_damage(block) });
                }
            }
        }
        self.read_tail(wanted, &mut contents);
        contents.damage.sort_by_key(|damage| damage.offset);
        Ok(contents)
    }

    /// Adds what was staged but not sealed.
    fn read_tail(&self, wanted: &Wanted, contents: &mut Contents) {
        let mut next = next_sequence(&self.blocks);
        let mut whole = !self.halves.is_empty();
        for half in &self.halves {
            let mut damage = |reason| {
                whole = false;
                contents.damage.push(Damage { offset: half.offset, bytes: half.bytes(), rows: None, reason });
            };
            if half.sequence != next {
                damage("the block before this staged data is lost, and with it what the data refers to");
                continue;
            }
            next = next.wrapping_add(1);
            if self.header.is_suspect() {
                damage("the host restarted before this staged data was sealed");
                continue;
            }
            let mut events = Events::default();
            let defined = contents.definitions.len();
            let complete = half.replay(&mut contents.definitions, &mut events);
            contents.staged_rows += (contents.definitions.len() - defined + events.len()) as u64;
            if !complete {
                damage("staged data ends in a record that cannot be read");
            }
            wanted.keep(&mut events);
            contents.events.append(&mut events);
        }
        if whole {
            // A block that was being written has cost nothing.
            let end = self.blocks.last().map_or(self.header.blocks_offset(), |block| block.offset + block.bytes);
            contents.damage.retain(|damage| damage.offset < end);
        }
    }
}

impl FileHeader {
    /// Whether the staging area may lack what never reached the disk: this host has restarted since.
    fn is_suspect(&self) -> bool {
        let boot = crate::writer::this_boot();
        let same_host = std::fs::read_to_string("/proc/sys/kernel/hostname").is_ok_and(|name| name.trim() == self.host);
        same_host && self.boot_id != [0; 16] && boot != [0; 16] && boot != self.boot_id
    }
}

impl Data {
    fn bytes(&self) -> &[u8] {
        match self {
            Data::Mapped(map) => map,
            Data::Owned(bytes) => bytes,
        }
    }

    fn payload(&self, block: &BlockInfo) -> Result<Payload<'_>, &'static str> {
        let range = block.payload();
        block.check(self.bytes().get(range.start as usize..range.end as usize).unwrap_or_default())
    }
}

/// Parts `blocks` into runs that are decoded together: enough to keep all cores busy, few enough to hold twice.
fn at_once<'a>(mut blocks: &'a [&'a BlockInfo]) -> impl Iterator<Item = &'a [&'a BlockInfo]> {
    const ROWS: u64 = 1 << 21;
    const BLOCKS: usize = 1 << 10;
    std::iter::from_fn(move || {
        let mut rows = 0_u64;
        let fits = |block: &&&BlockInfo| {
            let fits = rows < ROWS;
            rows += block.rows;
            fits
        };
        let (run, rest) = blocks.split_at(blocks.iter().take(BLOCKS).take_while(fits).count());
        blocks = rest;
        (!run.is_empty()).then_some(run)
    })
}

/// What one block holds.
#[derive(Default)]
struct DecodedBlock {
    definitions: Definitions,
    events: Events,
    damage: Vec<Damage>,
}

fn read_block(decoder: &mut SectionDecoder, block: &BlockInfo, data: &Data, wanted: &Wanted) -> DecodedBlock {
    let mut part = DecodedBlock::default();
    let payload = match data.payload(block) {
        Ok(payload) => payload,
        Err(reason) => {
            part.damage.push(Damage { reason, ..block_damage(block) });
            return part;
        }
    };
    for section in &block.sections {
        if section.table >= DefinitionKind::String as u16 {
            continue;
        }
        let mut read = ReadEvents { section, decoder, payload, wanted, events: &mut part.events, sound: true };
        let Ok(()) = visit_kinds(&mut read);
        if !read.sound {
            part.damage.push(section_damage(section));
        }
    }
    let mut definitions =
        ReadDefinitions { block, decoder, payload, new: &mut part.definitions, damage: &mut part.damage };
    definitions.strings();
    let Ok(()) = visit_definitions(&mut definitions);
    wanted.keep(&mut part.events);
    part
}

fn block_damage(block: &BlockInfo) -> Damage {
    Damage { offset: block.offset, bytes: block.bytes, rows: Some(block.rows), reason: "" }
}

fn section_damage(section: &SectionInfo) -> Damage {
    Damage {
        offset: section.range.start,
        bytes: section.range.end - section.range.start,
        rows: Some(section.rows),
        reason: "a table's columns contradict themselves",
    }
}

struct ReadEvents<'a> {
    section: &'a SectionInfo,
    decoder: &'a mut SectionDecoder,
    payload: Payload<'a>,
    wanted: &'a Wanted,
    events: &'a mut Events,
    sound: bool,
}

impl Wanted {
    /// Drops the rows that are not wanted.
    pub fn keep(&self, events: &mut Events) {
        struct Keep<'a>(&'a mut Events, &'a Wanted);
        impl KindVisitor for Keep<'_> {
            type Error = std::convert::Infallible;
            fn visit<E: Event>(&mut self) -> Result<(), Self::Error> {
                let table = E::table_mut(self.0);
                if !self.1.kind::<E>() {
                    *table = E::Table::default();
                }
                let kept = |row: &E| self.1.overlaps(row.start_ns(), row.end_ns());
                let rows: Vec<u32> = (0..table.len() as u32).filter(|&row| kept(&table.row(row as usize))).collect();
                if rows.len() < table.len() {
                    table.gather(&rows);
                }
                Ok(())
            }
        }
        if self.from_ns.is_some() || self.to_ns.is_some() || !self.kinds.is_empty() {
            let Ok(()) = visit_kinds(&mut Keep(events, self));
        }
    }

    fn kind<E: Event>(&self) -> bool {
        self.kinds.is_empty() || self.kinds.contains(&E::KIND) || E::KIND == Loss::KIND
    }

    fn overlaps(&self, start_ns: i64, end_ns: i64) -> bool {
        self.from_ns.is_none_or(|from| end_ns > from || start_ns >= from) && self.to_ns.is_none_or(|to| start_ns < to)
    }

    /// Whether a row of a section can be wanted. One that ends exactly at `from` may be an instant, which is.
    fn may_overlap(&self, section: &SectionInfo) -> bool {
        self.from_ns.is_none_or(|from| section.last_ns >= from) && self.to_ns.is_none_or(|to| section.first_ns < to)
    }
}

impl KindVisitor for ReadEvents<'_> {
    type Error = std::convert::Infallible;
    fn visit<E: Event>(&mut self) -> Result<(), Self::Error> {
        let section = self.section;
        if section.table != E::KIND || !self.wanted.kind::<E>() || !self.wanted.may_overlap(section) {
            return Ok(());
        }
        match self.decoder.table::<E::Table>(section, self.payload) {
            Some(mut table) => E::table_mut(self.events).append(&mut table),
            None => self.sound = false,
        }
        Ok(())
    }
}

struct ReadDefinitions<'a> {
    block: &'a BlockInfo,
    decoder: &'a mut SectionDecoder,
    payload: Payload<'a>,
    new: &'a mut Definitions,
    damage: &'a mut Vec<Damage>,
}

impl ReadDefinitions<'_> {
    fn strings(&mut self) {
        let Some(section) = self.block.section(DefinitionKind::String as u16) else { return };
        match self.decoder.strings(section, self.payload) {
            Some(strings) => self.new.strings = strings,
            None => self.damage.push(section_damage(section)),
        }
    }
}

impl DefinitionVisitor for ReadDefinitions<'_> {
    type Error = std::convert::Infallible;
    fn visit<T: Definition>(&mut self) -> Result<(), Self::Error> {
        let Some(section) = self.block.section(T::KIND) else { return Ok(()) };
        match self.decoder.table::<T::Table>(section, self.payload) {
            Some(table) => *T::table_mut(self.new) = table,
            None => self.damage.push(section_damage(section)),
        }
        Ok(())
    }
}

/// Moves `new`, the definitions of `block`, behind `all`, at the ids that its directory gives. Empty ones stand for
/// those that could not be read: of this block, as the directory says, and of lost ones before it, of which at most
/// `lost_rows` can be missing. Returns whether the ids fit.
fn append_definitions(block: &BlockInfo, new: &mut Definitions, all: &mut Definitions, lost_rows: &mut u64) -> bool {
    struct Append<'a> {
        block: &'a BlockInfo,
        new: &'a mut Definitions,
        all: &'a mut Definitions,
        lost_rows: u64,
        commit: bool,
    }
    impl Append<'_> {
        /// How many rows to fill in before those that were read; an error if the ids overlap or too many are missing.
        fn missing(&mut self, table: u16, present: usize, read: usize) -> Result<usize, ()> {
            let section = self.block.section(table).filter(|section| section.rows > 0);
            let Some(section) = section else { return Ok(0) };
            let gap = section.first_id.checked_sub(1 + present as u64).ok_or(())?;
            self.lost_rows = self.lost_rows.checked_sub(gap).ok_or(())?;
            Ok((gap + section.rows) as usize - read)
        }

        fn strings(&mut self) -> Result<(), ()> {
            let (present, read) = (self.all.strings.len(), self.new.strings.len());
            let missing = self.missing(DefinitionKind::String as u16, present, read)?;
            if self.commit {
                self.all.strings.extend(std::iter::repeat_n(Box::from(""), missing));
                self.all.strings.append(&mut self.new.strings);
            }
            Ok(())
        }
    }
    impl DefinitionVisitor for Append<'_> {
        type Error = ();
        fn visit<T: Definition>(&mut self) -> Result<(), ()> {
            let (present, read) = (T::table(self.all).len(), T::table(self.new).len());
            let missing = self.missing(T::KIND, present, read)?;
            if self.commit {
                let all = T::table_mut(self.all);
                (0..missing).for_each(|_| all.push(T::default()));
                all.append(T::table_mut(self.new));
            }
            Ok(())
        }
    }
    // Twice over: first to see whether all tables fit, then to move them. A block is taken whole or not at all.
    let before = *lost_rows;
    [false, true].into_iter().all(|commit| {
        let mut append = Append { block, new: &mut *new, all: &mut *all, lost_rows: before, commit };
        let fits = append.strings().and_then(|()| visit_definitions(&mut append)).is_ok();
        if commit {
            *lost_rows = append.lost_rows;
        }
        fits
    })
}

/// What one block or one staging half holds.
pub struct Part<'a> {
    /// The block; `None` for a staging half.
    pub block: Option<&'a BlockInfo>,
    /// What is new in this part: the last rows of all tables so far.
    pub definitions: Definitions,
    /// Its events.
    pub events: Events,
    /// What of it cannot be read.
    pub damage: Vec<Damage>,
}

impl Tape {
    /// Decodes part by part, in order. `visit` gets all definitions so far, this part's included. Returns what no part
    /// has: gaps and lost blocks.
    pub fn scan<E>(
        &self,
        wanted: &Wanted,
        mut visit: impl FnMut(&Definitions, Part<'_>) -> Result<(), E>,
    ) -> Result<Vec<Damage>, E>
    where
        E: From<TapeError>,
    {
        let mut all = Definitions::default();
        let lost_bytes = self.damage.iter().fold(0_u64, |sum, damage| sum.saturating_add(damage.bytes));
        let mut lost_rows = lost_bytes.saturating_mul(MAX_ROWS_PER_BYTE);
        let mut decoder = SectionDecoder::new().map_err(TapeError::from)?;
        for block in self.blocks.iter().filter(|block| block.kind == BlockKind::Data) {
            let DecodedBlock { mut definitions, mut events, mut damage } =
                read_block(&mut decoder, block, &self.data, wanted);
            let new = definitions.clone();
            let fits = append_definitions(block, &mut definitions, &mut all, &mut lost_rows);
            let mut definitions = new;
            if !fits {
                let reason = "a block's definitions do not follow those before";
                damage = vec![Damage { reason, ..block_damage(block) }];
                (definitions, events) = Default::default();
            }
            visit(&all, Part { block: Some(block), definitions, events, damage })?;
        }
        let mut next = next_sequence(&self.blocks);
        let mut whole = !self.halves.is_empty();
        for half in &self.halves {
            let mut part = Part {
                block: None,
                definitions: Definitions::default(),
                events: Events::default(),
                damage: Vec::new(),
            };
            let mut damage = |reason| {
                whole = false;
                part.damage.push(Damage { offset: half.offset, bytes: half.bytes(), rows: None, reason });
            };
            if half.sequence != next {
                damage("the block before this staged data is lost, and with it what the data refers to");
            } else if self.header.is_suspect() {
                damage("the host restarted before this staged data was sealed");
            } else {
                if !half.replay(&mut part.definitions, &mut part.events) {
                    damage("staged data ends in a record that cannot be read");
                }
                half.replay(&mut all, &mut Events::default());
                wanted.keep(&mut part.events);
            }
            next = if half.sequence == next { next.wrapping_add(1) } else { next };
            visit(&all, part)?;
        }
        let mut damage = self.damage.clone();
        if whole {
            let end = self.blocks.last().map_or(self.header.blocks_offset(), |block| block.offset + block.bytes);
            damage.retain(|damage| damage.offset < end);
        }
        Ok(damage)
    }

    /// The bytes of a block's payload, if they match their checksum.
    pub(crate) fn payload_bytes(&self, block: &BlockInfo) -> Result<&[u8], &'static str> {
        self.data.payload(block)?;
        let range = block.payload();
        Ok(&self.data.bytes()[range.start as usize..range.end as usize])
    }
}
