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
    let modes = answer["modes"].as_array().expect("modes");
    assert_eq!(records, modes.iter().any(|mode| mode["works"] == true), "{answer}");
    assert!(!(modes[0]["works"] == true && answer["nops"].is_null()), "{answer}");
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
    let privileges = &answer["checks"][1];
    assert_eq!((&privileges["what"], &privileges["works"]), (&"privileges".into(), &false.into()), "{answer}");
    let modes = answer["modes"].as_array().expect("modes");
    let (by_probes, inside) = modes.split_at(modes.len() - 1);
    for mode in by_probes {
        assert!(mode["fix"].as_str().is_some_and(|fix| fix.starts_with("run as root")), "{answer}");
    }
    // It takes no privileges, but a library that is not beside this copy of the program.
    assert_eq!(
        (&inside[0]["mode"], &inside[0]["works"]),
        (&"run --collector inside".into(), &false.into()),
        "{answer}"
    );
    assert_eq!((output.status.code(), &answer["records"]), (Some(1), &false.into()), "{answer}");
    assert!(output.stderr.is_empty(), "{output:?}");
}

/// It said that nothing is recorded, and what root could do about it, to those who need no root.
#[test]
fn as_nobody_with_the_library_inside_recording_works() {
    if !is_root() {
        return;
    }
    let folder = tempfile::Builder::new().permissions(std::os::unix::fs::PermissionsExt::from_mode(0o755)).tempdir();
    let folder = folder.expect("a folder");
    let built = std::path::Path::new(env!("CARGO_BIN_EXE_capture"));
    let library = built.with_file_name("libktape_inside.so");
    if !library.exists() {
        return skipped("no libktape_inside.so: cargo build -p ktape-inside");
    }
    let copied = Command::new("cp").args([built, &library]).arg(folder.path()).status().expect("cp starts");
    assert!(copied.success(), "a copy");
    // What it is called decides.
    std::fs::write(folder.path().join("libcupti.so.12"), "").expect("a file");
    let mut nobody = Command::new("setpriv");
    nobody
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"])
        .arg(folder.path().join("capture"));
    nobody.env("LD_LIBRARY_PATH", folder.path());
    let Ok(output) = nobody.args(["doctor", "--json"]).current_dir("/").output() else {
        return skipped("no setpriv");
    };
    let answer = json(&output);
    let modes = answer["modes"].as_array().expect("modes");
    assert_eq!((&modes[0]["works"], &modes[3]["works"]), (&false.into(), &true.into()), "{answer}");
    assert_eq!((output.status.code(), &answer["records"]), (Some(0), &true.into()), "{answer}");
}
