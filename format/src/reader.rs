//! Reads a tape: its own bytes, a file's, or those of one that is still being written.
//!
//! [`Tape::open`] walks the block headers (77 for five million events) and so needs no index; nothing is decoded
//! before [`Tape::read`], which decodes block by block on all cores and skips blocks and sections that are not asked
//! for. What cannot be read is [`Damage`], and said; the rest is given.

use std::fs::File;
use std::path::Path;

use memmap2::Mmap;
use rayon::prelude::*;

use crate::block::{ALIGNMENT, BlockInfo, BlockKind, MAGIC, SectionDecoder, SectionInfo};
use crate::definition::{Definition, DefinitionVisitor, Definitions, visit_definitions};
use crate::error::{Damage, TapeError};
use crate::event::{ClockPair, Event, Events, KindVisitor, Loss, visit_kinds};
use crate::header::FileHeader;
use crate::staging::halves;
use crate::table::{DefinitionKind, Row as _, Table};

/// A tape, opened: its header and the places of its blocks.
pub struct Tape {
    data: Data,
    header: FileHeader,
    blocks: Vec<BlockInfo>,
    damage: Vec<Damage>,
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
        let file = File::open(path)?;
        if file.metadata()?.len() == 0 {
            return Err(TapeError::NotATape("is empty"));
        }
        // SAFETY: a tape is only ever appended to, except that its writer rewrites the staging area, whose words are
        // validated like any other bytes. Cutting a tape short while it is being read is the user's to avoid; the
        // mapping would fault.
        let map = unsafe { Mmap::map(&file)? };
        Tape::new(Data::Mapped(map))
    }

    /// Opens a tape that is in memory.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Tape, TapeError> {
        Tape::new(Data::Owned(bytes))
    }

    fn new(data: Data) -> Result<Tape, TapeError> {
        let header = FileHeader::read(data.bytes())?;
        let (blocks, damage) = walk(data.bytes(), header.blocks_offset());
        Ok(Tape { data, header, blocks, damage })
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

    /// When the first sealed event began, losses and clock pairs aside; `None` if there is none.
    pub fn first_ns(&self) -> Option<i64> {
        let is_event = |section: &&SectionInfo| {
            section.table < DefinitionKind::String as u16 && ![Loss::KIND, ClockPair::KIND].contains(&section.table)
        };
        self.blocks.iter().flat_map(|block| &block.sections).filter(is_event).map(|section| section.first_ns).min()
    }

    /// Whether the writer finished the tape. If not it is still being written, or its writer was killed.
    pub fn is_closed(&self) -> bool {
        self.blocks.last().is_some_and(|block| block.kind == BlockKind::End)
    }

    /// Decodes what is wanted, on all cores. The result does not depend on their number.
    pub fn read(&self, wanted: &Wanted) -> Result<Contents, TapeError> {
        let tape = self.data.bytes();
        let parts: Vec<Part> = self
            .blocks
            .par_iter()
            .filter(|block| block.kind == BlockKind::Data)
            .map_init(SectionDecoder::new, |decoder, block| match decoder {
                Ok(decoder) => Ok(read_block(decoder, block, tape, wanted)),
                Err(error) => Err(std::io::Error::new(error.kind(), error.to_string())),
            })
            .collect::<Result<_, _>>()?;
        let mut contents = Contents { damage: self.damage.clone(), ..Contents::default() };
        // Ids are positions. Where a block is lost, at most as many definitions as its bytes have bits are missing,
        // and never so many that a stranger's tape could fill the memory with them.
        let most_lost = |damage: &[Damage]| {
            damage.iter().fold(0_u64, |sum, part| sum.saturating_add(part.bytes.saturating_mul(8))).min(1 << 24)
        };
        for mut part in parts {
            contents.damage.append(&mut part.damage);
            if !part.definitions.append_to(&mut contents.definitions, most_lost(&contents.damage)) {
                contents.damage.push(Damage { reason: "a block's definitions do not follow those before", ..part.all });
                continue;
            }
            contents.events.append(&mut part.events);
        }
        self.read_tail(wanted, &mut contents);
        contents.damage.sort_by_key(|damage| damage.offset);
        Ok(contents)
    }

    /// Adds what was staged but not sealed.
    fn read_tail(&self, wanted: &Wanted, contents: &mut Contents) {
        if self.is_closed() {
            return;
        }
        let mut next = self.blocks.last().map_or(0, |block| block.sequence + 1);
        for half in halves(self.data.bytes(), &self.header) {
            if half.sequence != next {
                continue;
            }
            next += 1;
            let damage = |rows, reason| Damage { offset: half.offset, bytes: half.bytes(), rows, reason };
            if self.header.is_suspect() {
                contents.damage.push(damage(None, "the host restarted before this staged data was sealed"));
                continue;
            }
            let mut events = Events::default();
            let (rows, complete) = half.replay(&mut contents.definitions, &mut events);
            contents.staged_rows += rows;
            if !complete {
                contents.damage.push(damage(None, "staged data ends in a record that cannot be read"));
            }
            wanted.keep(&mut events);
            contents.events.append(&mut events);
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
}

/// Finds the blocks from `from` on. Behind a damaged one it looks for the next place where a block begins.
fn walk(tape: &[u8], from: u64) -> (Vec<BlockInfo>, Vec<Damage>) {
    let (mut blocks, mut damage) = (Vec::<BlockInfo>::new(), Vec::new());
    let length = tape.len() as u64;
    let mut at = from;
    if from > length {
        damage.push(Damage { offset: length, bytes: 0, rows: None, reason: "the file ends within its staging area" });
    }
    while at < length {
        let read = BlockInfo::read(tape, at).and_then(|block| {
            let torn = at.checked_add(block.bytes).is_none_or(|end| end > length);
            if torn && block.payload(tape).is_err() { Err("the file ends within a block") } else { Ok(block) }
        });
        match read {
            Ok(block) => {
                if blocks.last().is_some_and(|before| before.sequence + 1 != block.sequence) && damage.is_empty() {
                    damage.push(Damage { offset: at, bytes: 0, rows: None, reason: "blocks are missing here" });
                }
                at += block.bytes;
                blocks.push(block);
            }
            Err(reason) => {
                let next = next_block(tape, at + ALIGNMENT);
                let bytes = next.unwrap_or(length) - at;
                damage.push(Damage { offset: at, bytes, rows: None, reason });
                at = next.unwrap_or(length);
            }
        }
    }
    (blocks, damage)
}

fn next_block(tape: &[u8], from: u64) -> Option<u64> {
    let from = usize::try_from(from).ok()?;
    let places = tape.get(from..)?.chunks(ALIGNMENT as usize);
    places.enumerate().find(|(_, place)| place.starts_with(&MAGIC)).map(|(n, _)| (from as u64) + n as u64 * ALIGNMENT)
}

/// What one block holds.
struct Part {
    all: Damage,
    definitions: NewDefinitions,
    events: Events,
    damage: Vec<Damage>,
}

/// The definitions of one block, and the id of each table's first.
#[derive(Default)]
struct NewDefinitions {
    definitions: Definitions,
    first_ids: Vec<u64>,
}

fn read_block(decoder: &mut SectionDecoder, block: &BlockInfo, tape: &[u8], wanted: &Wanted) -> Part {
    let all = Damage { offset: block.offset, bytes: block.bytes, rows: Some(block.rows), reason: "" };
    let mut part = Part {
        all: all.clone(),
        definitions: NewDefinitions::default(),
        events: Events::default(),
        damage: Vec::new(),
    };
    if let Err(reason) = block.payload(tape) {
        part.damage.push(Damage { reason, ..all });
        return part;
    }
    for section in &block.sections {
        if section.table >= DefinitionKind::String as u16 {
            continue;
        }
        let mut read = ReadEvents { section, decoder, tape, wanted, events: &mut part.events, sound: true };
        let Ok(()) = visit_kinds(&mut read);
        if !read.sound {
            part.damage.push(section_damage(section));
        }
    }
    let mut definitions =
        ReadDefinitions { block, decoder, tape, new: &mut part.definitions, damage: &mut part.damage };
    definitions.strings();
    let Ok(()) = visit_definitions(&mut definitions);
    wanted.keep(&mut part.events);
    part
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
    tape: &'a [u8],
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

    fn overlaps(&self, first_ns: i64, last_ns: i64) -> bool {
        self.from_ns.is_none_or(|from| last_ns > from || first_ns >= from) && self.to_ns.is_none_or(|to| first_ns < to)
    }
}

impl KindVisitor for ReadEvents<'_> {
    type Error = std::convert::Infallible;
    fn visit<E: Event>(&mut self) -> Result<(), Self::Error> {
        let section = self.section;
        if section.table != E::KIND || !self.wanted.kind::<E>() {
            return Ok(());
        }
        if !self.wanted.overlaps(section.first_ns, section.last_ns) {
            return Ok(());
        }
        match self.decoder.table::<E::Table>(section, self.tape) {
            Some(mut table) => E::table_mut(self.events).append(&mut table),
            None => self.sound = false,
        }
        Ok(())
    }
}

struct ReadDefinitions<'a> {
    block: &'a BlockInfo,
    decoder: &'a mut SectionDecoder,
    tape: &'a [u8],
    new: &'a mut NewDefinitions,
    damage: &'a mut Vec<Damage>,
}

impl ReadDefinitions<'_> {
    fn section(&mut self, table: u16) -> Option<SectionInfo> {
        let section = self.block.sections.iter().find(|section| section.table == table).cloned();
        self.new.first_ids.push(section.as_ref().map_or(0, |section| section.first_id));
        section
    }

    fn strings(&mut self) {
        let Some(section) = self.section(DefinitionKind::String as u16) else { return };
        match self.decoder.strings(&section, self.tape) {
            Some(strings) => self.new.definitions.strings = strings,
            None => self.damage.push(section_damage(&section)),
        }
    }
}

impl DefinitionVisitor for ReadDefinitions<'_> {
    type Error = std::convert::Infallible;
    fn visit<T: Definition>(&mut self) -> Result<(), Self::Error> {
        let Some(section) = self.section(T::KIND) else { return Ok(()) };
        match self.decoder.table::<T::Table>(&section, self.tape) {
            Some(table) => *T::table_mut(&mut self.new.definitions) = table,
            None => self.damage.push(section_damage(&section)),
        }
        Ok(())
    }
}

impl NewDefinitions {
    /// Moves these behind `all`, at the ids they were given. Ids in between, whose definitions were lost with a
    /// damaged block, stand for empty ones; at most `most_lost` can be missing. Returns whether the ids fit.
    fn append_to(&mut self, all: &mut Definitions, most_lost: u64) -> bool {
        /// How many rows to fill in before the first new one; `None` if they overlap or too many are missing.
        fn gap(first_id: u64, present: usize, new: usize, most_lost: u64) -> Option<usize> {
            match new {
                0 => Some(0),
                _ => first_id.checked_sub(1 + present as u64).filter(|&gap| gap <= most_lost).map(|gap| gap as usize),
            }
        }
        struct Append<'a> {
            new: &'a mut Definitions,
            all: &'a mut Definitions,
            first_ids: std::slice::Iter<'a, u64>,
            most_lost: u64,
            commit: bool,
        }
        impl DefinitionVisitor for Append<'_> {
            type Error = ();
            fn visit<T: Definition>(&mut self) -> Result<(), ()> {
                let first_id = self.first_ids.next().copied().unwrap_or(0);
                let (new, all) = (T::table_mut(self.new), T::table_mut(self.all));
                let gap = gap(first_id, all.len(), new.len(), self.most_lost).ok_or(())?;
                if self.commit {
                    (0..gap).for_each(|_| all.push(T::default()));
                    all.append(new);
                }
                Ok(())
            }
        }
        let Some((&first_string, first_ids)) = self.first_ids.split_first() else { return true };
        let Some(strings) = gap(first_string, all.strings.len(), self.definitions.strings.len(), most_lost) else {
            return false;
        };
        // Twice over: first to see whether all tables fit, then to move them. A block is taken whole or not at all.
        for commit in [false, true] {
            let first_ids = first_ids.iter();
            let mut append = Append { new: &mut self.definitions, all, first_ids, most_lost, commit };
            if visit_definitions(&mut append).is_err() {
                return false;
            }
        }
        all.strings.extend(std::iter::repeat_n(Box::from(""), strings));
        all.strings.append(&mut self.definitions.strings);
        true
    }
}
