//! Reads a tape: its own bytes, a file's, or those of one that is still being written.
//!
//! [`Tape::open`] walks the block headers (77 for five million events) and so needs no index; nothing is decoded
//! before [`Tape::read`] or [`Tape::scan`], which decode block by block on all cores and skip blocks, sections and
//! columns that are not asked for. What cannot be read is [`Damage`], and said; the rest is given.

use std::borrow::Cow;
use std::fs::File;
use std::path::Path;

use rayon::prelude::*;

use crate::block::{BlockInfo, BlockKind, MAX_ROWS_PER_BYTE, SectionDecoder};
use crate::definition::{Definition, DefinitionVisitor, Definitions, visit_definitions};
use crate::error::{Damage, TapeError};
use crate::event::{ClockPair, Event, Events, KindVisitor, Loss, Tally, visit_kinds};
use crate::header::{self, FileHeader, HEADER_BYTES};
use crate::owners::Owners;
use crate::part::{Decoded, append_definitions, block_damage, decode};
use crate::source::Source;
use crate::table::{ColumnWriter, DefinitionKind, Row as _, Table, Value};
use crate::tail::{Half, half_numbers, halves};
use crate::walk::{Walk, next_sequence};
use crate::wanted::Wanted;

/// A tape, opened: its header, the places of its blocks, and what was staged and not sealed.
pub struct Tape {
    source: Source,
    header: FileHeader,
    walk: Walk,
    /// Only those that no block has the rows of.
    halves: Vec<Half>,
    /// Events that were lost and that no loss row tells of, as the writer was killed before it could.
    lost: Option<Loss>,
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

/// What one block or one staging half holds.
#[derive(Debug, Default)]
pub struct Part<'a> {
    /// The block; `None` for a half.
    pub block: Option<&'a BlockInfo>,
    /// Its definitions, which are the last ones of all so far.
    pub definitions: Definitions,
    /// Those of its events that are wanted.
    pub events: Events,
    /// What could not be read of it.
    pub damage: Vec<Damage>,
    /// Whether it is a loss that the writer has counted and not told of in a row yet.
    pub is_untold: bool,
}

impl Tape {
    /// Opens the tape at `path`. It may be growing: what was on it when this was called is seen.
    pub fn open(path: &Path) -> Result<Tape, TapeError> {
        Tape::of_file(File::open(path)?)
    }

    /// Opens a tape in an open file.
    pub fn of_file(file: File) -> Result<Tape, TapeError> {
        Tape::new(Source::file(file)?)
    }

    /// Opens a tape that is in memory.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Tape, TapeError> {
        Tape::new(Source::Bytes(bytes))
    }

    fn new(source: Source) -> Result<Tape, TapeError> {
        let header = FileHeader::read(&source.read(0, HEADER_BYTES as u64)?)?;
        let mut tape = Tape { source, header, walk: Walk::default(), halves: Vec::new(), lost: None };
        tape.walk_from(0)?;
        Ok(tape)
    }

    /// Takes in what a growing tape has got since it was opened or last refreshed.
    pub fn refresh(&mut self) -> Result<(), TapeError> {
        self.source.grow()?;
        self.walk_from(self.walk.blocks.len())
    }

    /// Finds the blocks that follow the first `known`, and the tail.
    fn walk_from(&mut self, known: usize) -> Result<(), TapeError> {
        /// Each try takes milliseconds, in which a writer would have to use a half again and be just writing a block.
        const TRIES: usize = 20;
        for _ in 1..TRIES {
            if self.walk_once(known)? {
                return Ok(());
            }
        }
        self.walk_once(known)?;
        Ok(())
    }

    /// Returns whether what was found belongs together: it does not if the tape ends in a block that is being written, of
    /// a half that was copied when it still was another block's.
    fn walk_once(&mut self, known: usize) -> Result<bool, TapeError> {
        // The halves are copied before the blocks are looked for. So a half that the writer seals in between is among
        // the blocks, and nothing that was on the tape when it was opened is missing.
        let numbers = half_numbers(&self.source, &self.header)?;
        let mut halves = halves(&self.source, &self.header)?;
        self.source.grow()?;
        let Walk { blocks, damage } = &mut self.walk;
        blocks.truncate(known);
        let from = blocks.last().map_or(self.header.blocks_offset(), |block| block.offset + block.bytes);
        damage.retain(|damage| damage.offset + damage.bytes <= from && damage.offset < from);
        self.walk.go_on(&self.source, from)?;
        let Walk { blocks, damage } = &mut self.walk;
        // The last block may not be whole yet, or for ever, while the half that it is written from still is.
        let source = &self.source;
        let mut ends_in_damage = damage.last().is_some_and(|damage| damage.offset + damage.bytes == source.length());
        if let Some(last) = blocks.last()
            && !numbers.is_empty()
            && last.check(&source.range(last.payload())?).is_err()
        {
            ends_in_damage = true;
            if halves.iter().any(|half| half.sequence == last.sequence) {
                damage.push(block_damage(last, "the last block is not whole"));
                blocks.pop();
            }
        }
        let closed = blocks.last().is_some_and(|block| block.kind == BlockKind::End);
        let next = next_sequence(blocks);
        // What the newest half says of losses counts, sealed or not, until a later one has taken it over.
        let newest = halves.iter().rfind(|half| half.sound);
        let newest = newest.filter(|half| half.lost > 0 && half.sequence.wrapping_add(1) >= next && !closed);
        let newest = newest.filter(|_| !self.header.is_suspect());
        self.lost = newest.map(|half| Loss { count: half.lost, ..Loss::default() });
        halves.retain(|half| !closed && half.sequence >= next);
        self.halves = halves;
        Ok(!ends_in_damage || half_numbers(&self.source, &self.header)? == numbers)
    }

    /// The header.
    pub fn header(&self) -> &FileHeader {
        &self.header
    }

    /// The readable blocks in file order, the end mark included.
    pub fn blocks(&self) -> &[BlockInfo] {
        &self.walk.blocks
    }

    /// The tape's length.
    pub fn file_bytes(&self) -> u64 {
        self.source.length()
    }

    /// A block's payload, if it matches its checksum.
    pub(crate) fn payload(&self, block: &BlockInfo) -> Result<Cow<'_, [u8]>, &'static str> {
        let payload = self.source.range(block.payload()).map_err(|_| "the file cannot be read here")?;
        block.check(&payload)?;
        Ok(payload)
    }

    /// When the first event began, losses, clock pairs and tallies aside; `None` if there is none. A tally counts from the
    /// beginning of its interval, seconds before anything was recorded.
    pub fn first_ns(&self) -> Option<i64> {
        const ASIDE: [u16; 3] = [Loss::KIND, ClockPair::KIND, Tally::KIND];
        let counts = |table: u16| table < DefinitionKind::String as u16 && !ASIDE.contains(&table);
        let sections = self.blocks().iter().flat_map(|block| &block.sections);
        let sealed = sections.filter(|section| counts(section.table)).map(|section| section.first_ns);
        sealed.chain(self.halves.iter().filter_map(|half| half.first_ns(counts))).min()
    }

    /// Whether the writer finished the tape. If not it is still being written, or its writer was killed.
    pub fn is_closed(&self) -> bool {
        self.blocks().last().is_some_and(|block| block.kind == BlockKind::End)
    }

    /// All definitions, and no events: for whoever must know an id before asking for more.
    pub fn definitions(&self) -> Result<Definitions, TapeError> {
        // No table has this number, so only losses come, which are few.
        let nothing = Wanted { kinds: vec![u16::MAX], ..Wanted::default() };
        Ok(self.read(&nothing)?.definitions)
    }

    /// Decodes what is wanted, on all cores. The result does not depend on their number.
    pub fn read(&self, wanted: &Wanted) -> Result<Contents, TapeError> {
        let mut contents = Contents::default();
        if !wanted.some_rows() {
            let Ok(()) = visit_kinds(&mut Reserve { blocks: self.blocks(), events: &mut contents.events });
        }
        let mut damage = Vec::new();
        let (definitions, lost) = self.parts(0, Definitions::default(), wanted, |_, mut part| {
            if part.block.is_none() {
                contents.staged_rows += (part.definitions.len() + part.events.len()) as u64;
            }
            damage.append(&mut part.damage);
            contents.events.append(&mut part.events);
            Ok::<(), TapeError>(())
        })?;
        damage.extend(lost);
        damage.sort_by_key(|damage| damage.offset);
        Ok(Contents { definitions, damage, ..contents })
    }

    /// Decodes what is wanted part by part, in order, some at a time on all cores; so what is in memory at once does not
    /// grow with the tape. `visit` gets all definitions so far too. Returns the damage that is no part's.
    pub fn scan<E: From<TapeError>>(
        &self,
        wanted: &Wanted,
        visit: impl FnMut(&Definitions, Part<'_>) -> Result<(), E>,
    ) -> Result<Vec<Damage>, E> {
        Ok(self.parts(0, Definitions::default(), wanted, visit)?.1)
    }

    /// Visits the blocks from number `from` on, before which `all` was defined, and the tail.
    pub(crate) fn parts<E: From<TapeError>>(
        &self,
        from: usize,
        mut all: Definitions,
        wanted: &Wanted,
        mut visit: impl FnMut(&Definitions, Part<'_>) -> Result<(), E>,
    ) -> Result<(Definitions, Vec<Damage>), E> {
        let owners = if wanted.processes.is_empty() { Owners::default() } else { Owners::of(&self.definitions()?) };
        let begins = self.blocks().get(from).map_or(u64::MAX, |block| block.offset);
        let begins = if from == 0 { 0 } else { begins };
        let mut damage = self.walk.damage.clone();
        damage.retain(|damage| damage.offset >= begins);
        // Ids are positions. Where a block is lost, at most as many definitions as its bytes can hold are missing, and
        // never so many that a stranger's tape could fill the memory with them.
        let lost_bytes = damage.iter().fold(0_u64, |sum, damage| sum.saturating_add(damage.bytes));
        let mut lost_rows = lost_bytes.saturating_mul(MAX_ROWS_PER_BYTE);
        let blocks = self.blocks().iter().skip(from);
        let blocks: Vec<&BlockInfo> = blocks.filter(|block| block.kind == BlockKind::Data).collect();
        let mut counted = Counted { next: next_sequence(&self.blocks()[..from]), tables: None };
        for blocks in at_once(&blocks) {
            let decoded: Vec<Decoded> = blocks
                .par_iter()
                .map_init(SectionDecoder::new, |decoder, block| match decoder {
                    Ok(decoder) => decode(decoder, block, &self.source, wanted, &owners),
                    Err(error) => Err(std::io::Error::new(error.kind(), error.to_string())),
                })
                .collect::<std::io::Result<_>>()
                .map_err(TapeError::from)?;
            for (block, Decoded { definitions, events, damage }) in blocks.iter().zip(decoded) {
                let mut part = Part { block: Some(block), definitions, events, damage, is_untold: false };
                let fits = append_definitions(block, &mut part.definitions.clone(), &mut all, &mut lost_rows);
                counted.block(block, fits);
                if !fits {
                    let reason = "a block's definitions do not follow those before";
                    part = Part { block: Some(block), damage: vec![block_damage(block, reason)], ..Part::default() };
                }
                visit(&all, part)?;
            }
        }
        self.tail(wanted, &owners, &counted, &mut all, &mut damage, &mut visit)?;
        Ok((all, damage))
    }

    /// Visits what was staged but not sealed.
    fn tail<E: From<TapeError>>(
        &self,
        wanted: &Wanted,
        owners: &Owners,
        counted: &Counted,
        all: &mut Definitions,
        damage: &mut Vec<Damage>,
        visit: &mut impl FnMut(&Definitions, Part<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut next = next_sequence(self.blocks());
        let mut whole = !self.halves.is_empty();
        for half in &self.halves {
            let mut part = Part::default();
            let mut lost = |reason| {
                whole = false;
                part.damage.push(Damage { offset: half.offset, bytes: half.bytes(), rows: None, reason });
            };
            let mut records = (Definitions::default(), Events::default());
            if !half.sound {
                lost("a staging half's head is damaged");
            } else if half.sequence != next && half.bytes() == 0 {
                // It only counts what was lost. The block before it is not there.
                whole = false;
            } else if half.sequence != next {
                lost(BEFORE_IS_LOST);
            } else if self.header.is_suspect() {
                next = next.wrapping_add(1);
                lost("the host restarted before this staged data was sealed");
            } else {
                let is_whole = half.replay(&mut records.0, &mut records.1);
                if !counted.has_all_of(&records.0) {
                    records = Default::default();
                    lost(BEFORE_IS_LOST);
                } else if is_whole {
                    next = next.wrapping_add(1);
                } else {
                    // How many definitions it had is not known, so the next half's ids are not either.
                    lost("staged data ends in a record that cannot be read");
                }
            }
            (part.definitions, part.events) = records;
            all.append(&mut part.definitions.clone());
            wanted.keep(owners, &mut part.events);
            visit(all, part)?;
        }
        if let Some(loss) = self.lost {
            let mut part = Part { is_untold: true, ..Part::default() };
            part.events.loss.push(loss);
            visit(all, part)?;
        }
        if whole {
            // A block that was being written has cost nothing.
            let end = self.blocks().last().map_or(self.header.blocks_offset(), |block| block.offset + block.bytes);
            damage.retain(|damage| damage.offset < end);
        }
        Ok(())
    }
}

const BEFORE_IS_LOST: &str = "what came before this staged data is lost, and with it what the data refers to";

/// The definition tables of which it is known how many rows the blocks so far have: a block whose header is lost may
/// have had some of any, until a later block with the table says where its ids begin.
struct Counted {
    /// The number of the next block, if none is missing.
    next: u64,
    /// `None` for all.
    tables: Option<Vec<u16>>,
}

impl Counted {
    fn block(&mut self, block: &BlockInfo, fits: bool) {
        if block.sequence != self.next || !fits {
            self.tables = Some(Vec::new());
        }
        self.next = block.sequence.wrapping_add(1);
        if let Some(tables) = self.tables.as_mut().filter(|_| fits) {
            tables.extend(block.sections.iter().filter(|section| section.rows > 0).map(|section| section.table));
        }
    }

    /// Whether the ids of further definitions are known.
    fn has_all_of(&self, further: &Definitions) -> bool {
        struct All<'a>(&'a [u16], &'a Definitions);
        impl DefinitionVisitor for All<'_> {
            type Error = ();
            fn visit<T: Definition>(&mut self) -> Result<(), ()> {
                (T::table(self.1).is_empty() || self.0.contains(&T::KIND)).then_some(()).ok_or(())
            }
        }
        self.tables.as_ref().is_none_or(|tables| {
            (further.strings.is_empty() || tables.contains(&(DefinitionKind::String as u16)))
                && visit_definitions(&mut All(tables, further)).is_ok()
        })
    }
}

/// Makes room for all rows of the blocks at once, as growing copies them again and again. What a tape only claims to
/// have takes no memory, as it is never touched; where there is not so much, the rows that come will say so.
struct Reserve<'a> {
    blocks: &'a [BlockInfo],
    events: &'a mut Events,
}

impl KindVisitor for Reserve<'_> {
    type Error = std::convert::Infallible;
    fn visit<E: Event>(&mut self) -> Result<(), Self::Error> {
        struct Room(usize);
        impl ColumnWriter for Room {
            type Out = ();
            fn write<T: Value>(self, values: &mut Vec<T>) {
                let _ = values.try_reserve_exact(self.0);
            }
        }
        let rows = self.blocks.iter().filter_map(|block| block.section(E::KIND)).map(|section| section.rows as usize);
        let rows = rows.fold(0, usize::saturating_add);
        let table = E::table_mut(self.events);
        (0..E::COLUMNS.len()).for_each(|column| {
            table.write_column(column, Room(rows));
        });
        Ok(())
    }
}

impl FileHeader {
    /// Whether the staging area may lack what never reached the disk: this host has restarted since.
    fn is_suspect(&self) -> bool {
        let boot = crate::writer::this_boot();
        let same_host = std::fs::read_to_string("/proc/sys/kernel/hostname")
            .is_ok_and(|name| header::cut(name.trim()) == self.host);
        same_host && self.boot_id != [0; 16] && boot != [0; 16] && boot != self.boot_id
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
