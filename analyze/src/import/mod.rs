//! What comes in. An importer produces the same events as a collector and writes them into any `ktape_format::Sink`.

mod error;
pub mod kineto;
pub mod nsys;
mod stacks;
mod summary;

use std::io::{self, Read as _};
use std::path::Path;

use ktape_format::Sink;

pub use error::ImportError;
pub use summary::{Reason, Summary};

use kineto::CallName;

/// How far an import is, in bytes of the unpacked file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes read.
    pub done_bytes: u64,
    /// Bytes there are.
    pub total_bytes: u64,
}

/// How an import treats what is wrong in a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Leaves out what cannot be right, and counts it, instead of stopping there.
    pub lenient: bool,
}

/// Imports another tool's trace into `sink`. What it is, its content decides, not its name.
pub fn import<S: Sink>(
    path: &Path,
    sink: &mut S,
    options: Options,
    progress: impl FnMut(Progress),
) -> Result<Summary, ImportError> {
    // What cannot be opened, Kineto's importer says why.
    if nsys::is_ours(path, &first_bytes(path).unwrap_or_default()) {
        return nsys::import(path, sink, options, progress);
    }
    kineto::import(path, sink, progress)
}

/// The first bytes of a file. None of a pipe: who reads them has taken them out.
fn first_bytes(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if std::fs::metadata(path)?.is_file() {
        std::fs::File::open(path)?.take(nsys::MAGIC_BYTES as u64).read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}
