//! What comes in. An importer produces the same events as a collector and writes them into any `ktape_format::Sink`.

mod broken;
mod calls;
mod error;
mod folder;
pub mod kineto;
mod mixup;
pub mod nsys;
mod source;
mod stacks;
mod summary;
mod tool;

use std::path::Path;

use ktape_format::Sink;
use ktape_format::definition::{property, subject};

pub use broken::{Broken, BrokenParts};
pub use error::ImportError;
pub use folder::FileSummary;
pub use summary::{Reason, StreamDisorder, Summary};
pub use tool::Tool;

use source::Source;

/// How to import.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Keep what is sound of a broken file, and count the rest, instead of refusing all of it.
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

/// Imports another tool's trace into `sink`, or a folder of them. What a file is, its content decides, not its name.
pub fn import<S: Sink>(
    path: &Path,
    sink: &mut S,
    options: Options,
    mut progress: impl FnMut(Progress),
) -> Result<Summary, ImportError> {
    let summary = match path.is_dir() {
        true => folder::import(path, sink, options, &mut progress)?,
        false => import_file(path, false, sink, options, &mut progress)?,
    };
    let not_kept = serde_json::json!(summary.all_not_kept()).to_string();
    sink.property(subject::TAPE, 0, property::NOT_KEPT, &not_kept)
        .map_err(|error| ImportError::Sink { path: path.to_owned(), source: Box::new(error) })?;
    Ok(summary)
}

/// What a file is called. Names that are no UTF-8 stay different from each other, so that their processes do too.
fn name_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str());
    name.to_str().map_or_else(|| name.as_encoded_bytes().escape_ascii().to_string(), str::to_owned)
}

/// Imports one file, of several on the tape or the only one.
fn import_file<S: Sink>(
    path: &Path,
    of_many: bool,
    sink: &mut S,
    options: Options,
    progress: &mut impl FnMut(Progress),
) -> Result<Summary, ImportError> {
    let source = Source::open(path)?;
    match source.is_file() && nsys::is_ours(path, source.head()) {
        true => nsys::import(path, source.head(), of_many, sink, options, progress),
        false => kineto::import(source.into_text(), of_many, sink, options, progress),
    }
}
