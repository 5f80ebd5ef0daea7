//! What a session writes onto: one tape, or the segments of a recording.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use ktape_format::definition::Definition;
use ktape_format::event::Event;
use ktape_format::header::ClockKind;
use ktape_format::{Options as TapeOptions, Sink, TapeError, TapeWriter};

use super::segments::{Options, Segments};

/// Takes what is recorded.
#[expect(clippy::large_enum_variant, reason = "there is one of it, and it is not moved")]
pub enum Output {
    /// One tape, and where it is.
    Tape(TapeWriter, PathBuf),
    /// Segments.
    Segments(Box<Segments>),
}

/// What was written in the end.
#[derive(Debug, Default)]
pub struct Finished {
    /// How many bytes it takes.
    pub bytes: u64,
    /// Why it could not be closed, if so.
    pub failure: Option<String>,
    /// What went wrong on the way.
    pub troubles: Vec<String>,
}

impl Output {
    /// Begins what a recording of this machine writes onto.
    pub fn begin(path: &Path, segments: Option<&Options>) -> anyhow::Result<Output> {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let writer = concat!("capture ", env!("CARGO_PKG_VERSION"));
        let options = TapeOptions::live(writer, ClockKind::Monotonic, &host);
        Ok(match segments {
            Some(segments) => Output::Segments(Box::new(Segments::begin(segments.clone(), options)?)),
            None => Output::tape(path, &options).with_context(|| format!("cannot begin {}", path.display()))?,
        })
    }
    /// Begins a tape.
    pub fn tape(path: &Path, options: &TapeOptions) -> Result<Output, TapeError> {
        Ok(Output::Tape(TapeWriter::create(path, options)?, path.to_owned()))
    }

    /// See [`TapeWriter::offer`].
    pub fn offer<E: Event>(&mut self, row: E) -> Result<bool, TapeError> {
        match self {
            Output::Tape(tape, _) => tape.offer(row),
            Output::Segments(segments) => segments.offer(row),
        }
    }

    /// See [`TapeWriter::seal`].
    pub fn seal(&mut self) -> Result<(), TapeError> {
        match self {
            Output::Tape(tape, _) => tape.seal(),
            Output::Segments(segments) => segments.seal(),
        }
    }

    /// What is to be done every so often when there is nothing else: see [`TapeWriter::seal_if_due`] and [`Segments::tend`].
    pub fn tend(&mut self) -> anyhow::Result<()> {
        match self {
            Output::Tape(tape, _) => {
                tape.seal_if_due();
                Ok(())
            }
            Output::Segments(segments) => segments.tend(),
        }
    }

    /// What went wrong since this was asked last, and is known already.
    pub fn take_troubles(&mut self) -> Vec<String> {
        match self {
            Output::Tape(..) => Vec::new(),
            Output::Segments(segments) => segments.take_troubles(),
        }
    }

    /// Ends it. What had been written is readable, whatever goes wrong here.
    pub fn finish(self) -> Finished {
        match self {
            Output::Tape(tape, path) => {
                let (closed, data) = (tape.finish(), std::fs::metadata(&path));
                let bytes = data.as_ref().map_or(0, |data| data.len());
                // One that was deleted meanwhile is a failure too.
                let failure = closed.err().or(data.err().map(TapeError::from));
                let failure = failure.map(|error| format!("{}: {error}", path.display()));
                Finished { bytes, failure, troubles: Vec::new() }
            }
            Output::Segments(segments) => segments.finish(),
        }
    }
}

impl Sink for Output {
    type Error = TapeError;

    fn string(&mut self, string: &str) -> Result<u32, TapeError> {
        match self {
            Output::Tape(tape, _) => tape.string(string),
            Output::Segments(segments) => segments.string(string),
        }
    }

    fn define<T: Definition>(&mut self, row: T) -> Result<u32, TapeError> {
        match self {
            Output::Tape(tape, _) => tape.define(row),
            Output::Segments(segments) => segments.define(row),
        }
    }

    #[inline]
    fn event<E: Event>(&mut self, row: E) -> Result<(), TapeError> {
        match self {
            Output::Tape(tape, _) => tape.event(row),
            Output::Segments(segments) => segments.event(row),
        }
    }

    fn lost_events(&self) -> u64 {
        match self {
            Output::Tape(tape, _) => tape.lost_events(),
            Output::Segments(segments) => segments.lost_events(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It ended with 0, and a summary of what had been written.
    #[test]
    fn a_tape_that_was_deleted_while_it_was_written_is_a_failure() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("run.ktape");
        let tape = Output::tape(&path, &TapeOptions::batch("test")).expect("there is room");
        std::fs::remove_file(&path).expect("it is there");
        let finished = tape.finish();
        assert!(finished.failure.is_some_and(|why| why.contains("run.ktape: ")));
        let tape = Output::tape(&path, &TapeOptions::batch("test")).expect("there is room");
        assert_eq!(tape.finish().failure, None);
    }
}
