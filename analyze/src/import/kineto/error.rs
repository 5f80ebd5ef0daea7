//! What goes wrong inside of the importer, which knows places in the text but not whose text it is.

use std::path::Path;

use crate::import::ImportError;

/// Why an import stops.
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
