//! `capture doctor`.

use std::process::Command;

use super::common::{capture, is_root, json, skipped, stdout};

/// Where it says that recording works, it works: a probe could be placed.
#[test]
fn the_exit_code_is_the_answer() {
    let output = capture(["doctor", "--json"]);
    let answer = json(&output);
    let records = answer["records"].as_bool().expect("an answer");
    assert_eq!(output.status.code(), Some(i32::from(!records)), "{answer}");
    assert_eq!(records, answer["modes"][0]["works"].as_bool().expect("a mode"));
    assert!(!(records && answer["nops"].is_null()), "{answer}");
    let modes = answer["modes"].as_array().expect("modes");
    assert!(modes.iter().all(|mode| mode["works"] == true || mode["fix"].is_string()), "{answer}");
    let text = capture(["doctor"]);
    assert_eq!(text.status.code(), output.status.code());
    assert!(stdout(&text).lines().any(|line| line.contains("attach to anybody's")), "{text:?}");
}

/// Without privileges it says what to do, and nothing fails.
#[test]
fn as_nobody() {
    if !is_root() {
        return;
    }
    // Nobody cannot look into the folder that this was built in.
    let folder = tempfile::Builder::new().permissions(std::os::unix::fs::PermissionsExt::from_mode(0o755)).tempdir();
    let folder = folder.expect("a folder");
    let program = folder.path().join("capture");
    // By another process: a test that forks while this one has the copy open for writing keeps it from being executed.
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_capture")).arg(&program).status().expect("cp starts");
    assert!(copied.success(), "a copy");
    let mut nobody = Command::new("setpriv");
    nobody.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"]).arg(&program);
    let Ok(output) = nobody.args(["doctor", "--json"]).current_dir("/").output() else {
        return skipped("no setpriv");
    };
    let answer = json(&output);
    assert_eq!(output.status.code(), Some(1), "{answer}");
    assert_eq!(answer["records"], false);
    let privileges = &answer["checks"][1];
    assert_eq!((&privileges["what"], &privileges["works"]), (&"privileges".into(), &false.into()), "{answer}");
    for mode in answer["modes"].as_array().expect("modes") {
        assert!(mode["fix"].as_str().is_some_and(|fix| fix.starts_with("run as root")), "{answer}");
    }
    assert!(output.stderr.is_empty(), "{output:?}");
}
