//! NVTX: what a program names is on the tape as it named it. With the real NVTX, as PyPI's `nvtx` has it compiled in.

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;

use ktape_format::definition::{Frame, Thread};
use ktape_format::event::{Mark, Range, phase};
use ktape_format::{Contents, Row as _, Table as _};
use serde::Deserialize;

use super::scene::{Outcome, PYTHON, Scene, skip};

const PROGRAM: &str = include_str!("named.py");

/// What the program says of a range or mark, with its clock before and after its words.
#[derive(Debug, Deserialize)]
struct Said {
    kind: String,
    name: String,
    domain: String,
    thread: i64,
    began: (i64, i64),
    ended: Option<(i64, i64)>,
    stack: Option<Vec<String>>,
    payload: Option<serde_json::Value>,
}

/// What stands on the tape.
#[derive(Debug)]
struct Row {
    start_ns: i64,
    end_ns: Option<i64>,
    stack: Vec<String>,
    args: String,
}

/// Who records.
#[derive(Clone, Copy, PartialEq, Eq)]
enum User {
    Root,
    Nobody,
}

type Key = (String, String, String, i64);

/// A scene, and where `nvtx` is; `None`, and said, where something is not here.
fn scene(test: &str) -> Option<(Scene, String)> {
    let scene = Scene::new(test)?;
    let ask = "import sys; print('%d.%d' % sys.version_info[:2])";
    let version = std::process::Command::new(PYTHON).args(["-c", ask]).output().expect("Python runs").stdout;
    let version = String::from_utf8_lossy(&version).trim().to_owned();
    let folder = format!("../target/simcuda/clients{}/lib/python{version}/site-packages", version.replace('.', ""));
    let site = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(folder);
    if !site.join("nvtx").exists() {
        skip(&format!("{test}: no nvtx for Python {version}: run fixtures/simcuda/setup.sh"));
        return None;
    }
    Some((scene, site.canonicalize().expect("it exists").display().to_string()))
}

fn rows(tape: &Contents) -> BTreeMap<Key, Vec<Row>> {
    let definitions = &tape.definitions;
    let text = |id: u32| definitions.string(id).to_owned();
    let stack = |id: u32| -> Vec<String> {
        let frames = definitions.stack_nodes(id).filter_map(|(_, node)| definitions.get::<Frame>(node.frame));
        // What is between the program and NVTX is not the program's.
        let own = frames.filter(|frame| !definitions.string(frame.file).ends_with("/nvtx/nvtx.py"));
        own.map(|frame| text(frame.name)).collect()
    };
    let tid = |id: u32| definitions.get::<Thread>(id).map_or(0, |thread| thread.tid);
    let mut rows = BTreeMap::<Key, Vec<Row>>::new();
    for row in tape.events.range.rows() {
        let Range { start_ns, duration_ns, thread, name, category, args, .. } = row;
        let end_ns = (row.phase == phase::COMPLETE).then_some(start_ns + duration_ns as i64);
        let key = ("range".to_owned(), text(name), text(category), tid(thread));
        rows.entry(key).or_default().push(Row { start_ns, end_ns, stack: stack(row.stack), args: text(args) });
    }
    for Mark { start_ns, thread, name, category, stack: calls, args } in tape.events.mark.rows() {
        let key = ("mark".to_owned(), text(name), text(category), tid(thread));
        rows.entry(key).or_default().push(Row { start_ns, end_ns: None, stack: stack(calls), args: text(args) });
    }
    rows.values_mut().for_each(|rows| rows.sort_by_key(|row| row.start_ns));
    rows
}

/// Records the program, as this user or as one without privileges, and holds the tape against what it says.
fn compare(test: &str, user: User, options: &[&str], arguments: &[&str]) {
    let Some((scene, site)) = scene(test) else { return };
    let file = scene.path("said");
    let arguments = [&[&*site, file.to_str().expect("a plain name")], arguments].concat();
    let mut command = scene.command(options, PROGRAM, &arguments);
    if user == User::Root {
        command.uid(0).gid(0);
    }
    let output = command.output().expect("capture starts");
    assert!(output.status.success(), "{output:?}");
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a summary");
    let tape = scene.tape();
    let mut rows = rows(&tape);
    let text = std::fs::read_to_string(file).expect("what the program says");
    let mut said: Vec<Said> = text.lines().map(|line| serde_json::from_str(line).expect("a row")).collect();
    said.sort_by_key(|said| said.began);
    assert_eq!(said.len(), 4 * 100 * 8 + 2);
    for said in &said {
        let key = (said.kind.clone(), said.name.clone(), said.domain.clone(), said.thread);
        let of_key = rows.get_mut(&key).unwrap_or_else(|| panic!("no {key:?}: {summary}"));
        let row = of_key.remove(0);
        let is_within = |(before, after): (i64, i64), time_ns: i64| before <= time_ns && time_ns <= after;
        assert!(is_within(said.began, row.start_ns), "{said:?} {row:?}");
        assert_eq!(said.ended.is_some(), row.end_ns.is_some(), "{said:?} {row:?}");
        if let (Some(ended), Some(end_ns)) = (said.ended, row.end_ns) {
            assert!(is_within(ended, end_ns), "{said:?} {row:?}");
        }
        if let Some(stack) = &said.stack {
            assert_eq!(&row.stack, stack, "{said:?}: {}", summary["gaps"]);
        }
        if let Some(payload) = &said.payload {
            assert_eq!(row.args, format!("{{\"payload\":{payload}}}"));
        }
    }
    // The mark before the first, and the range that the program forgets to close.
    let left: Vec<(&str, Option<i64>)> =
        rows.iter().flat_map(|(key, rows)| rows.iter().map(|row| (&*key.1, row.end_ns))).collect();
    assert_eq!(left, [("ready", None), ("left open", None)]);
    let named = &summary["inside"]["named"];
    let expected =
        [("ranges", 4 * 100 * 7 + 2), ("marks", 401), ("left_open", 1), ("given_up", 0), ("closes_nothing", 0)];
    for (what, count) in expected {
        assert_eq!(named[what], count, "{what}: {summary}");
    }
    assert_eq!((&summary["lost"], &summary["inside"]["lost"]), (&0.into(), &0.into()), "{summary}");
    assert_eq!(summary["seen"], summary["written"], "{summary}");
    for (kind, count) in [(Range::KIND, 4 * 100 * 7 + 3), (Mark::KIND, 401)] {
        let told = tape.events.tally.rows().filter(|row| row.kind == kind).map(|row| (row.seen, row.written, row.lost));
        let sums = told.fold((0, 0, 0), |sums, row| (sums.0 + row.0, sums.1 + row.1, sums.2 + row.2));
        assert_eq!(sums, (count, count, 0), "table {kind}");
    }
}

#[test]
fn ranges_are_on_the_tape_as_the_program_named_them_although_no_driver_comes() {
    compare("NVTX", User::Nobody, &["--collector", "inside", "--nvtx"], &[]);
}

#[test]
fn ranges_are_told_before_and_after_the_driver_comes() {
    compare("NVTX and CUDA", User::Nobody, &["--device-time", "cupti", "--nvtx"], &["cuda"]);
}

#[test]
fn beside_probes_ranges_have_their_stacks_from_these() {
    if !rustix::process::geteuid().is_root() {
        skip("NVTX beside probes: recording needs root");
        return;
    }
    for options in [&["--collector", "outside", "--nvtx"][..], &["--device-time", "cupti", "--nvtx"]] {
        compare("NVTX beside probes", User::Root, options, &["cuda"]);
    }
}

#[test]
fn another_tool_of_nvtx_is_not_pushed_aside() {
    let Some(scene) = Scene::new("another tool") else { return };
    let mut command = scene.command(&["--collector", "inside", "--nvtx"], "", &[]);
    let output = command.env("NVTX_INJECTION64_PATH", "/a/tool.so").output().expect("capture starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("NVTX_INJECTION64_PATH is set already (/a/tool.so)") && said.contains("--nvtx"), "{said}");
}

#[test]
fn a_forked_child_adds_nothing_to_its_parent_s_ranges_and_says_that_it_is_not_recorded() {
    let Some((scene, site)) = scene("NVTX and fork") else { return };
    let program = r#"
import ctypes, os, sys
sys.path.insert(0, sys.argv[1])
import nvtx
nvtx.push_range("parent")
child = os.fork()
if child == 0:
    nvtx.mark("child")
    code = ctypes.CDLL("libcuda.so.1").cuInit(0)
    os._exit(code)
assert os.waitpid(child, 0)[1] == 0
nvtx.pop_range()
"#;
    let Outcome { summary, said } = scene.run(&["--collector", "inside", "--nvtx"], program, &[&site]);
    assert!(said.contains("not recorded from inside: it was forked"), "{said}");
    let rows = rows(&scene.tape());
    let whole: Vec<(&str, bool)> =
        rows.iter().flat_map(|(key, rows)| rows.iter().map(|row| (&*key.1, row.end_ns.is_some()))).collect();
    assert_eq!(whole, [("parent", true)], "{summary}");
}
