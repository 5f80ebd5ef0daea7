//! The import of other tools' traces: real ones held against independent counts, made-up ones rule by rule, broken
//! ones, folders of ranks, and what is refused.

mod broken;
mod folder;
mod nsys;
mod others;
pub(crate) mod real;
mod refusals;
mod rules;

use std::path::{Path, PathBuf};

use ktape_analyze::import::{self, ImportError, Options, Summary};
use ktape_format::Memory;

fn import(path: &Path) -> Result<(Memory, Summary), ImportError> {
    let mut memory = Memory::default();
    let summary = import::import(path, &mut memory, Options::default(), |_| {})?;
    Ok((memory, summary))
}

/// A made-up trace of `fixtures/kineto`.
fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/kineto").join(name)
}
