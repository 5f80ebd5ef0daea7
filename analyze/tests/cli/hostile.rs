//! What a careless or hostile user can do to every command: odd outputs, odd inputs, odd names, no room. Each gets one
//! clear line and the right exit code, and nothing half-written stays.

use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use ktape_fixtures::decode_loop::{DecodeLoop, decode_loop};
use ktape_format::event::Kernel;
use ktape_format::{Options, Sink, TapeWriter, definition};

use crate::common::{analyze, shared, skipped};

fn tape(folder: &Path) -> String {
    let path = folder.join("run.ktape");
    let mut writer = TapeWriter::create(&path, &Options::batch("test")).unwrap();
    decode_loop(&mut writer, &DecodeLoop { steps: 2, context: 64, seed: 3 }).unwrap();
    writer.finish().unwrap();
    path.to_str().unwrap().to_owned()
}

fn trace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/kineto/modern.json")
}

/// Every command that writes a file, up to the name of that file.
fn writers(tape: &str) -> Vec<Vec<String>> {
    let trace = trace().to_str().unwrap().to_owned();
    [
        vec!["import", &trace, "-o"],
        vec!["perfetto", tape, "-o"],
        vec!["flamegraph", tape, "-o"],
        vec!["flamegraph", tape, "--folded", "-o"],
        vec!["flamegraph", tape, "--speedscope"],
        vec!["compare", tape, "--svg"],
        vec!["verify", tape, "--repair", "-o"],
    ]
    .map(|command| command.into_iter().map(str::to_owned).collect())
    .to_vec()
}

/// The one line that a failed command says.
fn refusal(output: &Output, code: i32) -> String {
    let error = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(code), "{error}");
    assert_eq!(error.lines().filter(|line| line.starts_with("error: ")).count(), 1, "{error}");
    error
}

fn names_in(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn an_output_that_cannot_be_is_refused_before_the_work() {
    let folder = tempfile::tempdir().unwrap();
    let tape = tape(folder.path());
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    fs::write(at("there"), "mine").unwrap();
    for command in writers(&tape) {
        for (target, expected) in [
            (at("there"), "exists; give another name, or --force"),
            (at("absent/out"), "there is no folder"),
            (folder.path().to_str().unwrap().to_owned(), "is a directory"),
            ("/dev/full".to_owned(), "not a regular file"),
        ] {
            let output = analyze(command.iter().chain([&target]));
            let error = refusal(&output, 2);
            assert!(error.contains(&target) && error.contains(expected), "{command:?}: {error}");
            assert!(!error.contains(".part"), "the temporary file is nothing to the user: {error}");
        }
    }
    assert_eq!(names_in(folder.path()), ["run.ktape", "there"]);
    assert_eq!(fs::read_to_string(at("there")).unwrap(), "mine");
}

/// `--force` replaces files, not devices, and not the file that is being read.
#[test]
fn force_does_not_replace_the_input_or_a_device() {
    let folder = tempfile::tempdir().unwrap();
    let tape = tape(folder.path());
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&tape, &link).unwrap();
    let before = fs::read(&tape).unwrap();
    for command in writers(&tape).iter().filter(|command| command[0] != "import") {
        for (target, expected) in [(tape.as_str(), "is the input"), (link.to_str().unwrap(), "is the input")] {
            let arguments = command.iter().map(String::as_str).chain([target, "--force"]);
            assert!(refusal(&analyze(arguments), 2).contains(expected), "{command:?} {target}");
        }
        let arguments = command.iter().map(String::as_str).chain(["/dev/null", "--force"]);
        assert!(refusal(&analyze(arguments), 2).contains("not a regular file"), "{command:?}");
    }
    assert!(!fs::metadata("/dev/null").unwrap().is_file());
    assert_eq!(fs::read(&tape).unwrap(), before);
    let both = ["flamegraph", &tape, "-o", "same", "--speedscope", "same"];
    assert!(refusal(&analyze(both), 2).contains("name the same file"));
}

#[test]
fn standard_output_is_an_output_where_one_thing_goes_there() {
    let folder = tempfile::tempdir().unwrap();
    let tape = tape(folder.path());
    let svg = analyze(["flamegraph", &tape, "-o", "-"]);
    assert!(svg.status.success() && svg.stdout.starts_with(b"<?xml"));
    let folded = analyze(["flamegraph", &tape, "--folded", "-o", "-"]);
    assert_eq!(folded.stdout, analyze(["flamegraph", &tape, "--folded"]).stdout);
    assert!(analyze(["perfetto", &tape, "-o", "-"]).status.success());
    let trace = trace();
    for command in [["import", trace.to_str().unwrap(), "-o", "-"], ["compare", &tape, "--svg", "-"]] {
        assert!(refusal(&analyze(command), 2).contains("name a file"), "{command:?}");
    }
}

/// No room, by the limit on a file's size, as a test cannot fill a disk.
#[test]
fn without_room_the_output_is_named_and_nothing_stays() {
    let folder = tempfile::tempdir().unwrap();
    let tape = tape(folder.path());
    let out = folder.path().join("out").to_str().unwrap().to_owned();
    let limited = |blocks: u32, command: &[String]| {
        let script = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$@\"");
        let arguments = ["-c", &script, "sh", env!("CARGO_BIN_EXE_analyze")];
        let output = Command::new("sh").args(arguments).args(command.iter().chain([&out])).output().unwrap();
        let error = refusal(&output, 1);
        assert!(error.contains(&format!("cannot write {out}: File too large")), "{command:?}: {error}");
        assert_eq!(names_in(folder.path()), ["run.ktape"], "{command:?}");
    };
    writers(&tape).iter().for_each(|command| limited(0, command));
    // Half-way.
    let Some(shared) = shared() else { return };
    let large =
        shared.join("traces/AMD-AGI+TraceLens/tests/traces/h100/google_owlv2-large-patch14-ensemble__1016001.json.gz");
    limited(100, &["import", large.to_str().unwrap(), "-o"].map(str::to_owned));
}

#[test]
fn a_full_standard_output_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let tape = tape(folder.path());
    for command in [
        vec!["info", &tape],
        vec!["dump", &tape],
        vec!["compare", &tape],
        vec!["flamegraph", &tape, "--folded"],
        vec!["perfetto", &tape, "-o", "-"],
    ] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_analyze"))
            .args(&command)
            .stdout(full)
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        assert!(refusal(&output, 1).contains("standard output: No space left"), "{command:?}");
    }
}

/// A trace is read more than once: a pipe would be empty the second time.
#[test]
fn a_pipe_is_refused_where_it_would_be_misread_and_imported_where_not() {
    let folder = tempfile::tempdir().unwrap();
    let piped = |arguments: &[&str]| {
        let mut cat = Command::new("cat").arg(trace()).stdout(Stdio::piped()).spawn().unwrap();
        let pipe = cat.stdout.take().unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_analyze")).args(arguments).stdin(pipe).output().unwrap();
        cat.wait().unwrap();
        output
    };
    assert!(refusal(&piped(&["info", "/dev/stdin"]), 1).contains("is a pipe or device; write it to a file"));
    let tape = folder.path().join("piped.ktape");
    let output = piped(&["import", "/dev/stdin", "-o", tape.to_str().unwrap()]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && !said.contains("of source"), "a pipe has no length: {said}");
}

#[test]
fn a_selection_that_makes_no_sense_is_a_wrong_command_line() {
    let folder = tempfile::tempdir().unwrap();
    let tape = tape(folder.path());
    for (arguments, expected) in [
        (&["--from", "2s", "--to", "1s"][..], "not after --from"),
        (&["--from", "1ms", "--to", "1ms"], "not after --from"),
        (&["--kind", "kernels"], "no event kind `kernels`"),
        (&["--from", "99999999999999s"], "too long"),
        (&["--from", "soon"], "unknown unit"),
    ] {
        for command in ["info", "dump", "compare"] {
            let error = refusal(&analyze([&[command, &tape], arguments].concat()), 2);
            assert!(error.contains(expected), "{command} {arguments:?}: {error}");
        }
    }
    refusal(&analyze(["compare", &tape, "--sampler", "cpu", "--by", "kernel"]), 2);
}

/// That nothing is left is said as such, not as a lack of Python stacks.
#[test]
fn an_empty_selection_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let tape = tape(folder.path());
    let svg = folder.path().join("x.svg");
    let late = ["--from", "1m"];
    assert!(refusal(&analyze([&["compare", &tape], &late[..]].concat()), 1).contains("the selection has no events"));
    let flamegraph = [&["flamegraph", &tape, "-o", svg.to_str().unwrap()], &late[..]].concat();
    assert!(refusal(&analyze(flamegraph), 1).contains("nothing to draw in the selection"));
    let info = analyze([&["info", &tape], &late[..]].concat());
    assert!(info.status.success() && String::from_utf8_lossy(&info.stdout).contains("no events"));
}

#[test]
fn names_of_files_may_be_anything() {
    let folder = tempfile::tempdir().unwrap();
    for name in [&b"with space"[..], b"new\nline", b"quo\"te's", b"\x1b[31mred", b"no\xffutf8"] {
        let name = std::ffi::OsStr::from_bytes(name);
        let source = folder.path().join(name).with_added_extension("json");
        fs::copy(trace(), &source).unwrap();
        let imported = analyze(["import".as_ref(), source.as_os_str()]);
        assert!(imported.status.success(), "{name:?}: {}", String::from_utf8_lossy(&imported.stderr));
        // Beside its source, under the very same name.
        let tape = source.with_extension("ktape");
        let svg = source.with_extension("svg");
        let drawn = analyze(["flamegraph".as_ref(), tape.as_os_str(), "-o".as_ref(), svg.as_os_str()]);
        assert!(drawn.status.success(), "{name:?}: {}", String::from_utf8_lossy(&drawn.stderr));
        let text = fs::read_to_string(&svg).unwrap();
        let forbidden = |c: char| c.is_control() && !c.is_whitespace();
        assert!(!text.contains(forbidden), "{name:?}: XML has no control characters");
        let absent = source.with_extension("absent");
        let error = refusal(&analyze(["info".as_ref(), absent.as_os_str()]), 1);
        assert_eq!(error.lines().count(), 1, "{error}");
        assert!(!error.trim_end().contains(char::is_control), "{error:?}");
    }
}

#[test]
fn colours_are_for_terminals_that_want_them() {
    let folder = tempfile::tempdir().unwrap();
    let tape = tape(folder.path());
    let run = format!("{} compare {tape}", env!("CARGO_BIN_EXE_analyze"));
    let colours = |no_color: &str| {
        let script = Command::new("script").args(["-qec", &run, "/dev/null"]).env("NO_COLOR", no_color).output();
        script.ok().filter(|output| output.status.success()).map(|output| output.stdout.contains(&0x1b))
    };
    let Some(with) = colours("") else { return skipped("no `script` to make a terminal") };
    assert!(with, "the trace has blind spots, which are red");
    assert_eq!(colours("1"), Some(false));
    assert!(!analyze(["compare", &tape]).stdout.contains(&0x1b));
}

/// A kernel's name from a stranger's trace does not command the terminal.
#[test]
fn control_characters_of_a_trace_stay_off_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.ktape");
    let mut writer = TapeWriter::create(&path, &Options::batch("test")).unwrap();
    let name = writer.string("\u{1b}]0;owned\u{7}\nkernel").unwrap();
    let kernel = writer.define(definition::KernelName { name, module: 0 }).unwrap();
    let shape = writer.define(definition::Shape { kernel, ..definition::Shape::default() }).unwrap();
    writer.event(Kernel { duration_ns: 1_000_000, shape, timing: 1, ..Kernel::default() }).unwrap();
    writer.finish().unwrap();
    let path = path.to_str().unwrap();
    for command in [&["info", path, "--kernels"][..], &["compare", path], &["flamegraph", path, "--folded"]] {
        let output = analyze(command);
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(said.contains("owned"), "{command:?}: {said}");
        assert!(!said.contains(|c: char| c.is_control() && c != '\n'), "{command:?}: {said:?}");
    }
}
