//! What comes in. An importer produces the same events as a collector and writes them into any `ktape_format::Sink`.

mod broken;
mod error;
pub mod kineto;
mod mixup;
mod source;
mod summary;

use std::path::Path;

use ktape_format::Sink;

pub use broken::{Broken, BrokenParts};
pub use error::ImportError;
pub use summary::{Reason, Summary};

use source::Source;

/// How to import.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Keep what is sound of a broken file, instead of refusing all of it.
    pub lenient: bool,
}

/// How far an import is, in bytes of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes read.
    pub done_bytes: u64,
    /// Bytes there are; a pipe does not say.
    pub total_bytes: Option<u64>,
}

/// Imports another tool's trace into `sink`. What it is, its content decides, not its name.
pub fn import<S: Sink>(
    path: &Path,
    sink: &mut S,
    options: &Options,
    progress: impl FnMut(Progress),
) -> Result<Summary, ImportError> {
    let source = Source::open(path)?;
    kineto::import(source.into_text(), sink, options, progress)
}
