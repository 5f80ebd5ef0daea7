//! Why a trace cannot be imported: which file, where in it, what was expected, and what to do.

use std::io;
use std::path::{Path, PathBuf};

/// Why a trace cannot be imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The file cannot be read.
    #[error("{}: cannot read it", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The compressed stream is damaged or ends early.
    #[error("{}: gzip is damaged or cut off after {unpacked_bytes} unpacked bytes; fetch or record the trace again", path.display())]
    Gzip {
        /// The file.
        path: PathBuf,
        /// How much could be unpacked.
        unpacked_bytes: u64,
        /// Why no more.
        #[source]
        source: io::Error,
    },
    /// The file is something else than a Kineto trace.
    #[error("{}: {found}", path.display())]
    NotATrace {
        /// The file.
        path: PathBuf,
        /// What it is instead, and what to do.
        found: String,
    },
    /// The JSON is broken, or a value in it is not what Kineto writes there.
    #[error("{}: byte {offset} (line {line}, column {column}){}: {problem}", path.display(), if *unpacked { " of the unpacked file" } else { "" })]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Where, counted from 0 in the unpacked file.
        offset: usize,
        /// The line, counted from 1.
        line: usize,
        /// The byte in that line, counted from 1.
        column: usize,
        /// Whether the file was compressed, so that the offset is not one in the file as it lies on the disk.
        unpacked: bool,
        /// What is wrong and what was expected.
        problem: String,
    },
    /// The events cannot be written.
    #[error("cannot write the events of {}", path.display())]
    Sink {
        /// The file they come from.
        path: PathBuf,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// An error inside of the importer, which knows places in the text but not whose text it is.
#[derive(Debug)]
pub(super) enum Fault {
    /// At this byte of the text.
    At {
        /// Where.
        offset: usize,
        /// What.
        problem: String,
    },
    /// The text as a whole is something else.
    NotATrace(String),
    /// From the sink.
    Sink(Box<dyn std::error::Error + Send + Sync>),
}

// As `Fault` is no `std::error::Error`, `?` turns the sink's errors, and only those, into it.
impl<E: std::error::Error + Send + Sync + 'static> From<E> for Fault {
    fn from(error: E) -> Fault {
        Fault::Sink(Box::new(error))
    }
}

impl Fault {
    /// The error that the user sees. `text` is what offsets count in.
    pub(super) fn in_file(self, path: &Path, text: &[u8], unpacked: bool) -> ImportError {
        let path = path.to_owned();
        match self {
            Fault::NotATrace(found) => ImportError::NotATrace { path, found },
            Fault::Sink(source) => ImportError::Sink { path, source },
            Fault::At { offset, problem } => {
                let before = &text[..offset.min(text.len())];
                let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
                let column = before.iter().rev().take_while(|byte| **byte != b'\n').count() + 1;
                ImportError::Malformed { path, offset, line, column, unpacked, problem }
            }
        }
    }
}
