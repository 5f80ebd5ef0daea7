//! What tests from the user's side share: the binary, and the real traces.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Runs `analyze` with these arguments.
pub fn analyze<I: IntoIterator<Item: AsRef<std::ffi::OsStr>>>(args: I) -> Output {
    Command::new(env!("CARGO_BIN_EXE_analyze")).args(args).output().expect("analyze runs")
}

/// The folder beside the workspace that holds traces of real GPUs; says so and is `None` where it is absent.
pub fn shared() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared");
    let found = folder.join("traces").is_dir();
    if !found {
        eprintln!("SKIPPED: no ../shared/traces");
    }
    found.then_some(folder)
}
