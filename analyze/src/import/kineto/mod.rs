//! PyTorch profiler traces: the Chrome JSON that Kineto writes, in the shapes it had from 2021 to 2026.
//!
//! `docs/import.md` says what becomes of each thing in the file. The way through this module is: `source` (the text),
//! `json` (a walk over it, event by event), `collect` (each event becomes one of the `records`), `stacks` (what each
//! thread was in), `write` (launch and kernel joined, everything in order of time into the sink).

mod arguments;
mod category;
mod collect;
mod devices;
mod error;
mod json;
mod names;
mod records;
mod source;
mod time;
mod write;

use std::path::Path;

use ktape_format::Sink;

use collect::Collector;
use error::Fault;
use source::Source;
use write::Writer;

pub(in crate::import) use arguments::{DERIVED, IDS};
pub(in crate::import) use category::CallName;

use crate::import::{ImportError, Progress, Summary};

/// Imports a trace, gzipped or not, into `sink`.
pub fn import<S: Sink>(path: &Path, sink: &mut S, progress: impl FnMut(Progress)) -> Result<Summary, ImportError> {
    let source = Source::open(path)?;
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    import_text(source.text(), &name, sink, progress)
        .map_err(|fault| fault.in_file(path, source.text(), source.is_unpacked()))
}

/// Imports the JSON text of a trace into `sink`. `name` is what the file is called, in the tape and in errors.
pub fn import_bytes<S: Sink>(
    text: &[u8],
    name: &str,
    sink: &mut S,
    progress: impl FnMut(Progress),
) -> Result<Summary, ImportError> {
    import_text(text, name, sink, progress).map_err(|fault| fault.in_file(Path::new(name), text, false))
}

fn import_text<S: Sink>(
    text: &[u8],
    name: &str,
    sink: &mut S,
    mut progress: impl FnMut(Progress),
) -> Result<Summary, Fault> {
    let total_bytes = text.len() as u64;
    let mut collector = Collector::new(text, sink, |done_bytes| progress(Progress { done_bytes, total_bytes }));
    json::walk(text, &mut collector)?;
    let (records, summary) = collector.finish();
    Writer::write(sink, name, records, summary)
}
