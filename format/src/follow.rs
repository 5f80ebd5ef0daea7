//! Follows a tape while it is written: each look gives what came since the one before.
//!
//! What was given from a half comes again in its block, in the same order. So it is enough to remember how many rows of
//! each kind, beyond the blocks that were seen, have been given already.

use std::path::Path;

use crate::block::BlockKind;
use crate::definition::Definitions;
use crate::error::TapeError;
use crate::event::{Event, Events, KindVisitor, visit_kinds};
use crate::reader::{Contents, Tape};
use crate::table::Table;
use crate::wanted::Wanted;

/// A tape that is being followed.
pub struct Follower {
    tape: Tape,
    wanted: Wanted,
    /// How many blocks have been given.
    blocks: usize,
    /// What these blocks define.
    sealed: Definitions,
    /// Of each kind, how many rows behind these blocks have been given.
    given: Vec<usize>,
}

impl Follower {
    /// Opens the tape at `path`. Of `wanted` the kinds, times and processes count.
    pub fn open(path: &Path, wanted: Wanted) -> Result<Follower, TapeError> {
        let tape = Tape::open(path)?;
        Ok(Follower { tape, wanted, blocks: 0, sealed: Definitions::default(), given: Vec::new() })
    }

    /// The tape, as it was at the last look.
    pub fn tape(&self) -> &Tape {
        &self.tape
    }

    /// The events that came since the last look, with all definitions so far. What a writer lost and has not told of yet
    /// comes when it tells.
    pub fn look(&mut self) -> Result<Contents, TapeError> {
        let ends = self.tape.blocks().last().map_or(0, |block| block.offset + block.bytes);
        self.tape.refresh()?;
        if self.tape.file_bytes() < ends {
            return Err(std::io::Error::other("the tape was cut, or begun anew, while it was followed").into());
        }
        let blocks = self.tape.blocks();
        let mut blocks_left = blocks[self.blocks..].iter().filter(|block| block.kind == BlockKind::Data).count();
        let mut contents = Contents::default();
        let mut sealed_events = contents.events.counts();
        let mut sealed = if blocks_left == 0 { Some(self.sealed.clone()) } else { None };
        let before = std::mem::take(&mut self.sealed);
        let (definitions, damage) = self.tape.parts(self.blocks, before, &self.wanted, |definitions, mut part| {
            if part.is_untold {
                return Ok(());
            }
            contents.events.append(&mut part.events);
            contents.damage.append(&mut part.damage);
            if part.block.is_some() {
                blocks_left -= 1;
                sealed_events = contents.events.counts();
                if blocks_left == 0 {
                    sealed = Some(definitions.clone());
                }
            }
            Ok::<(), TapeError>(())
        })?;
        contents.damage.extend(damage);
        let all = contents.events.counts();
        let mut skip = Skip { events: &mut contents.events, rows: self.given.iter() };
        let Ok(()) = visit_kinds(&mut skip);
        self.given = all.iter().zip(&sealed_events).map(|(all, sealed)| all.1 - sealed.1).collect();
        self.blocks = blocks.len();
        self.sealed = sealed.unwrap_or_default();
        contents.staged_rows = self.given.iter().sum::<usize>() as u64;
        contents.definitions = definitions;
        Ok(contents)
    }
}

/// Drops the first rows of each kind.
struct Skip<'a> {
    events: &'a mut Events,
    rows: std::slice::Iter<'a, usize>,
}

impl KindVisitor for Skip<'_> {
    type Error = std::convert::Infallible;
    fn visit<E: Event>(&mut self) -> Result<(), Self::Error> {
        let table = E::table_mut(self.events);
        let skipped = self.rows.next().map_or(0, |&rows| rows.min(table.len()));
        if skipped > 0 {
            let rows: Vec<u32> = (skipped as u32..table.len() as u32).collect();
            table.gather(&rows);
        }
        Ok(())
    }
}
