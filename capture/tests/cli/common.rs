//! What tests from the user's side share: the binary, and the real libraries.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Runs `capture` with these arguments.
pub(crate) fn capture<I: IntoIterator<Item: AsRef<std::ffi::OsStr>>>(args: I) -> Output {
    Command::new(env!("CARGO_BIN_EXE_capture")).args(args).output().expect("capture runs")
}

/// What a run printed.
pub(crate) fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).expect("UTF-8")
}

/// What a run printed as JSON.
pub(crate) fn json(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// A file that `fixtures/libcuda/setup.sh` fetched; says so and is `None` where it is absent.
pub(crate) fn real(file: &str) -> Option<PathBuf> {
    fetched("libcuda", file)
}

/// A file that the setup script of a folder of `fixtures` fetched, likewise.
pub(crate) fn fetched(folder: &str, file: &str) -> Option<PathBuf> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("the target folder");
    let path = target.join(folder).join(file);
    let found = path.exists();
    if !found {
        skipped(&format!("no target/{folder}/{file}: run fixtures/{folder}/setup.sh"));
    }
    found.then_some(path)
}

/// Whether this process may place probes; says so where not.
pub(crate) fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        skipped("not root");
    }
    is_root
}

/// Says that a test was skipped; not through `eprintln!`, which the test harness keeps to itself.
pub(crate) fn skipped(why: &str) {
    writeln!(std::io::stderr(), "SKIPPED: {why}").expect("stderr is open");
}
