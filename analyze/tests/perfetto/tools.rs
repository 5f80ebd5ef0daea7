//! The real Perfetto, as `fixtures/perfetto/setup.sh` installs it: SQL, the schema, the UI. And our own command.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use crate::common;

/// Whether the real Perfetto is installed. A plain `cargo test` skips visibly without it; `make test` installs it and
/// sets `KTAPE_REQUIRE_PERFETTO=1`, so that a missing piece is a failure there.
pub(crate) fn installed() -> bool {
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("perfetto");
    let missing = ["engine", "ui", "python", "node_modules"].iter().find(|part| !home.join(part).exists());
    let Some(part) = missing else { return true };
    let say = format!("no {}: run fixtures/perfetto/setup.sh", home.join(part).display());
    assert!(std::env::var("KTAPE_REQUIRE_PERFETTO").as_deref() != Ok("1"), "{say}");
    common::skipped(&say);
    false
}

/// A real trace below `../shared/traces`, where the folder is there.
pub(crate) fn real(path: &str) -> Option<PathBuf> {
    let found = common::shared()?.join("traces").join(path);
    assert!(found.exists(), "{} is gone", found.display());
    Some(found)
}

/// Runs `analyze`; gives its stdout.
pub(crate) fn analyze(args: &[&str]) -> String {
    expect_success("analyze", common::analyze(args))
}

/// The rows of each query, asked of upstream's trace_processor.
pub(crate) fn sql(trace: &Path, queries: &[&str]) -> Vec<Vec<Value>> {
    let answer = stdout(Command::new("node").arg(script("sql.mjs")).arg(trace).args(queries));
    answer.lines().map(|line| serde_json::from_str(line).expect("rows")).collect()
}

/// What `schema.py` says of a trace that it finds right.
pub(crate) fn schema(trace: &Path) -> Value {
    parse(&stdout(Command::new("python3").arg(script("schema.py")).arg(trace)))
}

/// Runs the tests of `schema.py`: that it refuses what is wrong.
pub(crate) fn test_schema() {
    stdout(Command::new("python3").arg(script("schema_test.py")));
}

/// How a trace loaded in the real UI.
pub(crate) fn ui(trace: &Path) -> Value {
    parse(&stdout(Command::new("node").arg(script("screenshot.mjs")).arg(trace)))
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/perfetto").join(name)
}

fn parse(json: &str) -> Value {
    serde_json::from_str(json).expect("JSON")
}

fn stdout(command: &mut Command) -> String {
    // The scripts look for what setup.sh installed where cargo builds.
    command.env("CARGO_TARGET_DIR", Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("target"));
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    expect_success(&format!("{command:?}"), output)
}

fn expect_success(command: &str, Output { status, stdout, stderr }: Output) -> String {
    assert!(status.success(), "{command}: {status}\n{}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).expect("UTF-8")
}
