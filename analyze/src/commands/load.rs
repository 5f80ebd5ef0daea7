//! Opening what the user named: a tape, or a trace that an importer can read.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use ktape_format::{Damage, Tape, TapeError, header};

use super::Outcome;
use crate::timeline::{Selection, Timeline};

/// An opened trace.
#[derive(Debug)]
pub struct Loaded {
    /// Where it came from.
    pub path: PathBuf,
    /// How long the file is.
    pub file_bytes: u64,
    /// What is in it, cut to the selection.
    pub timeline: Timeline,
    /// How many events were lost: before they reached the file, or in damaged parts of it. Every report says so first.
    pub lost: u64,
    /// What of the file cannot be read.
    pub damage: Vec<Damage>,
    /// How many rows came from the tail that the writer had not sealed; 0 for a tape that was closed.
    pub staged_rows: u64,
    /// Whether the writer finished the file.
    pub closed: bool,
}

impl Loaded {
    /// How a command over this trace ends well.
    pub fn outcome(&self) -> Outcome {
        if self.lost > 0 || !self.damage.is_empty() { Outcome::Losses } else { Outcome::Done }
    }
}

/// Opens `path` and keeps what `selection` asks for.
pub fn load(path: &Path, selection: &Selection) -> Result<Loaded> {
    let name = || path.display().to_string();
    let mut magic = [0; header::MAGIC.len()];
    let read = File::open(path).and_then(|mut file| file.read(&mut magic)).with_context(name)?;
    if magic[..read] == header::MAGIC {
        load_tape(path, selection).with_context(name)
    } else {
        Err(TapeError::NotATape("does not begin as one")).with_context(name)
    }
}

fn load_tape(path: &Path, selection: &Selection) -> Result<Loaded> {
    let tape = Tape::open(path)?;
    let wanted = selection.wanted(tape.first_ns().unwrap_or(0))?;
    let mut contents = tape.read(&wanted)?;
    selection.keep_processes(&contents.definitions, &mut contents.events)?;
    let lost = contents.events.loss.count.iter().fold(0_u64, |sum, count| sum.saturating_add(*count));
    let damaged = contents.damage.iter().filter_map(|damage| damage.rows).fold(0_u64, u64::saturating_add);
    Ok(Loaded {
        path: path.to_owned(),
        file_bytes: tape.file_bytes(),
        timeline: Timeline::new(contents.definitions, contents.events),
        lost: lost.saturating_add(damaged),
        damage: contents.damage,
        staged_rows: contents.staged_rows,
        closed: tape.is_closed(),
    })
}
