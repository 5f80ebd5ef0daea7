//! Whether a tape is sound: all checksums, all columns, all ids, all that is said twice. `docs/verify.md` has the list.
//!
//! One walk, part by part (a block, or a half of the staging area), so memory does not grow with the tape's length but
//! for its definitions. The same walk writes a repaired tape: the parts as they are, without what is not sound, and at
//! the end loss rows for all that was left out.

mod check;
pub mod completeness;
mod finding;
mod ids;
mod losses;

use std::collections::BTreeMap;

use ktape_format::header::{FileHeader, MAJOR, MINOR};
use ktape_format::{Options, Part, Tape, TapeError, TapeWriter, Wanted, Written};
use serde::Serialize;

pub use finding::{Finding, Kind, Place};
pub use losses::{LEFT_OUT, LeftOut};

use check::Check;
use completeness::Completeness;
use losses::loss_rows;

/// What is to be said of a tape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// All of it is as it was written, and nothing was lost before.
    Sound,
    /// All of it is as it was written; it says itself that events were lost.
    Losses,
    /// Some of it is not as it was written.
    Damaged,
}

/// What a check of a tape says.
#[derive(Debug, Serialize)]
pub struct Report {
    /// In one word.
    pub verdict: Verdict,
    /// The tape's length.
    pub file_bytes: u64,
    /// Whether its writer finished it. If not it is being written, or its writer was killed; it may still be sound.
    pub closed: bool,
    /// How many blocks can be found, the end mark included.
    pub blocks: u64,
    /// How many definitions can be read.
    pub definitions: u64,
    /// How many events can be read.
    pub events: u64,
    /// How many of both were staged and not in a block yet.
    pub staged_rows: u64,
    /// How many events the tape itself says were lost; 0 also where it does not say how many.
    pub lost: u64,
    /// The same by cause.
    pub losses: BTreeMap<String, u64>,
    /// Whether all that its recorder saw is on it; none for a tape without a recorder's account.
    pub completeness: Option<Completeness>,
    /// What was found, the worst first.
    pub findings: Vec<Finding>,
}

/// What a repair made.
#[derive(Debug)]
pub struct Repaired {
    /// The new tape.
    pub written: Written,
    /// What is not on it.
    pub left_out: Vec<LeftOut>,
}

/// Why a tape could not be checked or repaired.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The tape cannot be read at all.
    #[error(transparent)]
    Read(#[from] TapeError),
    /// The new tape cannot be written.
    #[error(transparent)]
    Write(TapeError),
    /// This version would leave out what it does not know.
    #[error(
        "a newer version of ktape wrote this tape (format {0}.{1}); repaired by this one it would lose what is new: update ktape"
    )]
    Newer(u16, u16),
}

/// Checks a tape. `progress` gets the number of bytes that are behind it.
pub fn verify(tape: &Tape, mut progress: impl FnMut(u64)) -> Result<Report, Error> {
    let mut check = Check::new(tape);
    let rest = tape.scan::<Error>(&Wanted::default(), |all, mut part| {
        check.part(all, &mut part);
        progress(end(tape, &part));
        Ok(())
    })?;
    check.rest(&rest);
    Ok(report(tape, check))
}

/// Checks a tape and writes all of it that is sound as another, which [`options`] are for.
pub fn repair(tape: &Tape, mut into: TapeWriter, mut progress: impl FnMut(u64)) -> Result<(Report, Repaired), Error> {
    if is_newer(tape.header()) {
        return Err(Error::Newer(tape.header().major, tape.header().minor));
    }
    let mut check = Check::new(tape);
    let rest = tape.scan::<Error>(&Wanted::default(), |all, mut part| {
        let definitions = check.part(all, &mut part);
        // A block stays a block.
        into.restore(&definitions, &part.events).and_then(|()| into.seal()).map_err(Error::Write)?;
        progress(end(tape, &part));
        Ok(())
    })?;
    check.rest(&rest);
    let left_out = check.left_out();
    let (definitions, events) = loss_rows(&left_out, &check.ids);
    into.restore(&definitions, &events).map_err(Error::Write)?;
    let written = into.finish().map_err(Error::Write)?;
    Ok((report(tape, check), Repaired { written, left_out }))
}

/// How a repaired tape is begun: as the tape itself was, but whole, and so without a place for an open tail.
pub fn options(header: &FileHeader) -> Options {
    Options {
        clock: header.clock,
        created_unix_ns: header.created_unix_ns,
        boot_id: header.boot_id,
        host: header.host.clone(),
        ..Options::batch(&header.writer)
    }
}

/// Whether a tape may have what this version does not know.
fn is_newer(header: &FileHeader) -> bool {
    (header.major, header.minor) > (MAJOR, MINOR)
}

fn end(tape: &Tape, part: &Part<'_>) -> u64 {
    part.block.map_or(tape.file_bytes(), |block| block.offset + block.bytes)
}

fn report(tape: &Tape, mut check: Check<'_>) -> Report {
    let completeness = check.completeness();
    let mut losses = BTreeMap::<String, u64>::new();
    for (cause, count) in check.losses.into_values() {
        let lost = losses.entry(cause).or_default();
        *lost = lost.saturating_add(count);
    }
    let verdict = if check.findings.iter().any(|finding| finding.kind.is_damage()) {
        Verdict::Damaged
    } else if losses.is_empty() {
        Verdict::Sound
    } else {
        Verdict::Losses
    };
    Report {
        verdict,
        file_bytes: tape.file_bytes(),
        closed: tape.is_closed(),
        blocks: tape.blocks().len() as u64,
        definitions: check.definitions,
        events: check.events,
        staged_rows: check.staged_rows,
        lost: losses.values().fold(0, |sum, count| sum.saturating_add(*count)),
        losses,
        completeness,
        findings: check.findings,
    }
}
