//! How a test asks `analyze` about a tape that it wrote itself. Not in [`crate::common`], which `tests/perfetto` shares.

use std::path::Path;
use std::process::Output;

use crate::common::analyze;

/// Runs a command of `analyze` on a tape.
pub(crate) fn run(command: &str, tape: &Path, options: &[&str]) -> Output {
    analyze([&[command, tape.to_str().expect("a path in UTF-8")], options].concat())
}

/// What a run that went well has written.
pub(crate) fn stdout(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).expect("text")
}
