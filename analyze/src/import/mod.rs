//! What comes in. An importer produces the same events as a collector and writes them into any `ktape_format::Sink`.

mod error;
pub mod kineto;
mod summary;

use std::path::Path;

use ktape_format::Sink;

pub use error::ImportError;
pub use summary::{Reason, Summary};

/// How far an import is, in bytes of the unpacked file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes read.
    pub done_bytes: u64,
    /// Bytes there are.
    pub total_bytes: u64,
}

/// Imports another tool's trace into `sink`. What it is, its content decides, not its name.
pub fn import<S: Sink>(path: &Path, sink: &mut S, progress: impl FnMut(Progress)) -> Result<Summary, ImportError> {
    kineto::import(path, sink, progress)
}
