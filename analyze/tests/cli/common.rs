//! What tests from the user's side share: the binary, and the real traces.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Runs `analyze` with these arguments.
pub(crate) fn analyze<I: IntoIterator<Item: AsRef<std::ffi::OsStr>>>(args: I) -> Output {
    Command::new(env!("CARGO_BIN_EXE_analyze")).args(args).output().expect("analyze runs")
}

/// The folder beside the workspace that holds traces of real GPUs; says so and is `None` where it is absent.
pub(crate) fn shared() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared");
    let found = folder.join("traces").is_dir();
    if !found {
        skipped("no ../shared/traces");
    }
    found.then_some(folder)
}

/// Says that a test was skipped; not through `eprintln!`, which the test harness keeps to itself.
pub(crate) fn skipped(why: &str) {
    writeln!(std::io::stderr(), "SKIPPED: {why}").expect("stderr is open");
}
