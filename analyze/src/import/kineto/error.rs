//! What goes wrong inside of the importer, which knows places in a part of the text but not whose text it is.

use std::path::PathBuf;

use crate::import::ImportError;

/// Why an import stops.
#[derive(Debug)]
pub(super) enum Fault {
    /// At this byte of the text at hand.
    At {
        /// Where.
        offset: usize,
        /// What.
        problem: String,
    },
    /// The text as a whole is something else.
    NotATrace(String),
    /// It has times that the tape's clock cannot count.
    Times(String),
    /// No thread to read with can be started.
    Thread(std::io::Error),
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
    /// The error that the user sees of a fault that is at no place in the text, or whose place is not known any more.
    pub(super) fn in_file(self, path: PathBuf) -> ImportError {
        match self {
            Fault::At { problem: found, .. } | Fault::NotATrace(found) => ImportError::NotATrace { path, found },
            Fault::Times(problem) => ImportError::Times { path, problem },
            Fault::Thread(source) => ImportError::Thread { path, source },
            Fault::Sink(source) => ImportError::Sink { path, source },
        }
    }
}
