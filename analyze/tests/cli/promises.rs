//! What every command that opens a trace promises: the same options, exit codes, losses in JSON, a closed pipe.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ktape_fixtures::decode_loop::{DecodeLoop, decode_loop};
use ktape_format::event::{Launch, Loss, Slice};
use ktape_format::header::ClockKind;
use ktape_format::{Options, Sink, TapeWriter};
use serde_json::Value;

use crate::common::analyze;

fn tape(path: &Path, more: impl FnOnce(&mut TapeWriter)) {
    let mut writer = TapeWriter::create(path, &Options::batch("test")).unwrap();
    decode_loop(&mut writer, &DecodeLoop { steps: 4, context: 64, seed: 3 }).unwrap();
    more(&mut writer);
    writer.finish().unwrap();
}

/// Every command with what it needs, over one trace.
fn commands(trace: &Path, folder: &Path) -> Vec<Vec<String>> {
    let file = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let (trace, trace_out, svg) = (trace.to_str().unwrap(), file("x.pftrace"), file("x.svg"));
    [
        vec!["info", trace, "--json"],
        vec!["info", trace, "--kernels"],
        vec!["dump", trace],
        vec!["compare", trace],
        vec!["compare", trace, "--json", "--hz", "49,100"],
        vec!["perfetto", trace, "-o", "-"],
        vec!["perfetto", trace, "-o", &trace_out, "--force", "--json"],
        vec!["flamegraph", trace, "--folded"],
        vec!["flamegraph", trace, "-o", &svg, "--force"],
    ]
    .map(|command| command.into_iter().map(str::to_owned).collect())
    .to_vec()
}

#[test]
fn a_reader_that_went_away_is_no_fault() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("loop.ktape");
    tape(&trace, |_| {});
    for command in commands(&trace, folder.path()) {
        let mut child = Command::new(env!("CARGO_BIN_EXE_analyze"))
            .args(&command)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let mut error = String::new();
        child.stderr.take().unwrap().read_to_string(&mut error).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0), "{command:?}: {error}");
        assert!(!error.contains("error:"), "{command:?}: {error}");
    }
}

#[test]
fn losses_are_in_every_json_and_decide_the_exit_code() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("loop.ktape");
    tape(&trace, |writer| {
        writer.event(Loss { start_ns: 1_001_000_000, count: 42, ..Loss::default() }).unwrap();
    });
    for selection in [&[][..], &["--from", "1ms", "--to", "3ms"], &["--kind", "kernel,launch"], &["--pid", "4711"]] {
        for mut command in commands(&trace, folder.path()) {
            command.extend(selection.iter().copied().map(str::to_owned));
            let output = analyze(&command);
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(3), "{command:?}: {error}");
            if command.contains(&"--json".to_owned()) {
                let json: Value = serde_json::from_slice(&output.stdout).unwrap();
                let first = if json.is_array() { &json[0] } else { &json };
                assert_eq!((&first["lost"], &first["damage"]), (&42.into(), &Value::Array(vec![])), "{command:?}");
            } else {
                // Counted from the trace's first event, not from the selection's.
                let text = String::from_utf8_lossy(&output.stdout).into_owned() + &error;
                assert!(text.contains("42 events were lost\n  42 at 0.001000 s"), "{command:?}: {text}");
            }
        }
    }
}

#[test]
fn times_count_from_the_first_event_even_if_no_block_is_sealed() {
    let folder = tempfile::tempdir().unwrap();
    let path: PathBuf = folder.path().join("staged.ktape");
    let mut writer = TapeWriter::create(&path, &Options::live("test", ClockKind::Monotonic, "")).unwrap();
    for start_ns in [7_000_000_000, 7_000_000_500, 7_000_001_000] {
        writer.event(Launch { start_ns, duration_ns: 10, correlation: 1, ..Launch::default() }).unwrap();
    }
    // As after a crash: never finished.
    let copy = folder.path().join("copy.ktape");
    std::fs::copy(&path, &copy).unwrap();
    let launches = |selection: &[&str]| {
        let output = analyze([&["info", copy.to_str().unwrap(), "--json"], selection].concat());
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        json["events"]["launch"].as_u64().unwrap()
    };
    assert_eq!([launches(&[]), launches(&["--to", "800ns"]), launches(&["--from", "400ns"])], [3, 2, 2]);
}

#[test]
fn several_windows_give_an_array_even_if_one_of_them_fits() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("loop.ktape");
    tape(&trace, |_| {});
    let output = analyze(["compare", trace.to_str().unwrap(), "--json", "--windows", "5ms,1m"]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json.as_array().map(Vec::len), Some(1));
}

#[test]
fn what_would_be_ignored_or_overwritten_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("loop.ktape");
    tape(&trace, |writer| writer.event(Slice::default()).unwrap());
    let trace = trace.to_str().unwrap();
    for (command, expected) in [
        (&["open", "run.pftrace", "--from", "1s", "--no-browser"][..], "name the tape"),
        (&["perfetto", trace, "-o", "/dev/null", "--force"], "is not a regular file"),
        (&["import", trace], "a tape already"),
        (&["dump", trace, "--from=--5"], "expected a number"),
    ] {
        let output = analyze(command);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && error.contains(expected), "{command:?}: {error}");
    }
}
