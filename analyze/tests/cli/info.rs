//! `analyze info`, and how every command that opens a trace answers to what is none.

use std::path::Path;

use crate::common::analyze;
use crate::on_tape::{run, stdout};
use ktape_fixtures::decode_loop::{DecodeLoop, KERNELS_OUTSIDE, KERNELS_PER_LAYER, LAYERS, decode_loop};
use ktape_format::event::{Launch, Lifecycle, Loss, Tally, lifecycle_kind};
use ktape_format::{Options, Row as _, Sink, TapeWriter};
use serde_json::Value;

const STEPS: usize = 3;

fn tape(path: &Path, more: impl FnOnce(&mut TapeWriter)) {
    let mut writer = TapeWriter::create(path, &Options::batch("test")).unwrap();
    decode_loop(&mut writer, &DecodeLoop { steps: STEPS, context: 64, seed: 3 }).unwrap();
    more(&mut writer);
    writer.finish().unwrap();
}

fn info(path: &Path, options: &[&str]) -> (Value, Option<i32>) {
    let output = analyze([&["info", path.to_str().unwrap(), "--json"], options].concat());
    let json = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("no JSON, but {}", String::from_utf8_lossy(&output.stderr)));
    (json, output.status.code())
}

/// A recorder on a filesystem without shared mappings: whoever looks at what it left must know what may be missing.
#[test]
fn a_tail_that_is_only_in_memory_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("unmapped.ktape");
    let file = std::fs::OpenOptions::new().write(true).create(true).truncate(false).open(&path).unwrap();
    let mut writer = TapeWriter::new(file, &Options { staged: true, ..Options::batch("test") }).unwrap();
    writer.event(Launch::default()).unwrap();
    writer.seal().unwrap();
    let said = analyze(["info", path.to_str().unwrap()]);
    assert!(String::from_utf8_lossy(&said.stdout).contains("no shared mappings"), "{said:?}");
    let (info, _) = info(&path, &[]);
    assert_eq!((&info["closed"], &info["tail_in_memory"]), (&false.into(), &true.into()));
}

#[test]
fn figures_of_a_trace() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("loop.ktape");
    tape(&path, |_| {});
    let (json, code) = info(&path, &["--kernels"]);
    let kernels = STEPS * (LAYERS * KERNELS_PER_LAYER + KERNELS_OUTSIDE);
    assert_eq!(code, Some(0));
    assert_eq!(json["events"]["kernel"], kernels);
    assert_eq!(json["events"]["launch"], kernels);
    assert_eq!(json["events"]["graph_launch"], 0, "kinds without events are there, as 0");
    assert_eq!(json["lost"], 0);
    assert_eq!(json["file_bytes"], std::fs::metadata(&path).unwrap().len());
    assert_eq!(json["processes"][0]["pid"], 4711);
    let device = &json["devices"][0];
    assert_eq!((&device["name"], &device["kernels"]), (&"Made-up H100".into(), &kernels.into()));
    // One stream in order: nothing overlaps, so the union is the sum.
    let total_ns: u64 = json["kernels"].as_array().unwrap().iter().map(|row| row["total_ns"].as_u64().unwrap()).sum();
    let copies_ns = device["busy_ns"].as_u64().unwrap() - total_ns;
    assert!((1..10_000).contains(&copies_ns), "three copies of 1.3 µs: {copies_ns} ns");
    let calls: u64 = json["kernels"].as_array().unwrap().iter().map(|row| row["calls"].as_u64().unwrap()).sum();
    assert_eq!(calls, kernels as u64);
}

/// All numbers of `keys` in a JSON value, added up.
fn sum(value: &Value, key: &str) -> u64 {
    value.as_array().unwrap().iter().map(|row| row[key].as_u64().unwrap()).sum()
}

fn layout_bytes(layout: &Value) -> u64 {
    let fixed: u64 = layout["fixed"].as_object().unwrap().values().map(|bytes| bytes.as_u64().unwrap()).sum();
    for tables in ["events", "definitions"] {
        for table in layout[tables].as_array().unwrap() {
            let columns = sum(&table["columns"], "bytes") + table["rest_bytes"].as_u64().unwrap();
            assert_eq!(table["bytes"], columns, "columns add up to their table: {table}");
        }
    }
    fixed + sum(&layout["events"], "bytes") + sum(&layout["definitions"], "bytes")
}

#[test]
fn all_bytes_of_the_layout_add_up_to_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("loop.ktape");
    tape(&path, |writer| writer.seal().unwrap());
    let whole = std::fs::read(&path).unwrap();
    let live = dir.path().join("live.ktape");
    let options = Options { staged: true, half_bytes: 1 << 20, ..Options::batch("test") };
    let mut writer = TapeWriter::create(&live, &options).unwrap();
    decode_loop(&mut writer, &DecodeLoop { steps: STEPS, context: 64, seed: 3 }).unwrap();
    let live = std::fs::read(&live).unwrap();
    let golden = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/tapes/v1.0.ktape")).unwrap();
    let mut damaged = whole.clone();
    damaged[600] ^= 1;
    let mut torn = whole.clone();
    torn.truncate(whole.len() - 150);
    let unpadded = whole[..whole.len() - 65].to_vec();
    for (what, bytes) in [
        ("whole", whole),
        ("live", live),
        ("golden", golden),
        ("damaged", damaged),
        ("torn", torn),
        ("no padding", unpadded),
    ] {
        std::fs::write(&path, &bytes).unwrap();
        let (json, _) = info(&path, &["--layout"]);
        assert_eq!(layout_bytes(&json["layout"]), bytes.len() as u64, "{what}: {}", json["layout"]);
    }
}

#[test]
fn the_layout_says_what_each_table_and_column_takes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("loop.ktape");
    tape(&path, |_| {});
    let (json, code) = info(&path, &["--layout"]);
    assert_eq!(code, Some(0));
    let layout = &json["layout"];
    let kernel = layout["events"].as_array().unwrap().iter().find(|table| table["table"] == "kernel").unwrap();
    assert_eq!(kernel["rows"], json["events"]["kernel"]);
    let columns = kernel["columns"].as_array().unwrap();
    let start = columns.iter().find(|column| column["column"] == "start_ns").unwrap();
    assert_eq!(start["rows"], kernel["rows"]);
    assert!(columns.is_sorted_by_key(|column| std::cmp::Reverse(column["bytes"].as_u64())));
    let strings = &layout["strings"];
    assert!(strings["text_bytes"].as_u64() > strings["bytes"].as_u64(), "{strings}");
    assert_eq!(layout["fixed"]["file_header_bytes"], 512);
    let text = analyze(["info", path.to_str().unwrap(), "--layout"]);
    let text = String::from_utf8(text.stdout).unwrap();
    for expected in ["kernel.start_ns", "file header", "string.text", "text, zstd"] {
        assert!(text.contains(expected), "{expected}:\n{text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 120), "{text}");
    let foreign = analyze(["info", concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/kineto/modern.json"), "--layout"]);
    let error = String::from_utf8(foreign.stderr).unwrap();
    assert!(foreign.status.code() == Some(1) && error.contains("is not a tape"), "{error}");
}

#[test]
fn a_part_of_a_trace() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("loop.ktape");
    tape(&path, |_| {});
    let (all, _) = info(&path, &[]);
    let (kernels, _) = info(&path, &["--kind", "kernel"]);
    assert_eq!(kernels["events"]["kernel"], all["events"]["kernel"]);
    assert_eq!(kernels["events"]["launch"], 0);
    let (first, _) = info(&path, &["--to", "2ms"]);
    let (rest, _) = info(&path, &["--from", "2ms"]);
    let kernels = |json: &Value| json["events"]["kernel"].as_u64().unwrap();
    assert!(kernels(&first) > 0 && kernels(&rest) > 0);
    let both = kernels(&first) + kernels(&rest);
    assert!((kernels(&all)..=kernels(&all) + 1).contains(&both), "one kernel may lie across the cut");
    let output = analyze(["info", path.to_str().unwrap(), "--kind", "kernels"]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains("no event kind `kernels`") && error.contains("launch, graph_launch"), "{error}");
    let output = analyze(["info", path.to_str().unwrap(), "--pid", "1"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("the trace has 4711"));
}

/// Of every live recording `--from` and the times of losses counted from up to 8.6 s before it began, where the tally's interval does.
#[test]
fn times_count_from_the_first_event_and_not_from_the_interval_that_it_is_tallied_in() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("live.ktape");
    let mut writer = TapeWriter::create(&path, &Options::batch("test")).unwrap();
    let (began_ns, duration_ns) = (5_000_000_000, 8_589_934_592);
    for start_ns in [began_ns, began_ns + 2_000_000] {
        writer.event(Launch { start_ns, ..Launch::default() }).unwrap();
    }
    writer.event(Loss { start_ns: began_ns + 1_000_000, count: 1, ..Loss::default() }).unwrap();
    writer.event(Tally { duration_ns, kind: Launch::KIND, seen: 3, written: 2, lost: 1, ..Tally::default() }).unwrap();
    writer.finish().unwrap();
    let launches = |options: &[&str]| info(&path, options).0["events"]["launch"].as_u64();
    assert_eq!((launches(&["--to", "1ms"]), launches(&["--from", "1ms", "--to", "3ms"])), (Some(1), Some(1)));
    let text = analyze(["info", path.to_str().unwrap()]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.contains("1 at 0.001000 s"), "{text}");
}

#[test]
fn losses_come_first_and_decide_the_exit_code() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("loop.ktape");
    tape(&path, |writer| {
        let cause = writer.string("the ring buffer was full").unwrap();
        writer.event(Loss { start_ns: 1_001_000_000, count: 42, cause, ..Loss::default() }).unwrap();
    });
    let (json, code) = info(&path, &[]);
    assert_eq!((&json["lost"], code), (&42.into(), Some(3)));
    let text = analyze(["info", path.to_str().unwrap()]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    let mut lines = text.lines();
    assert!(lines.next().unwrap().contains("42 events were lost"), "{text}");
    assert!(lines.next().unwrap().contains("42 at 0.001000 s: the ring buffer was full"), "{text}");
}

#[test]
fn many_losses_do_not_fill_the_screen() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("loop.ktape");
    tape(&path, |writer| (0..500).for_each(|_| writer.event(Loss { count: 2, ..Loss::default() }).unwrap()));
    let text = analyze(["info", path.to_str().unwrap()]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.starts_with(&format!("{}: 1,000 events were lost\n", path.display())), "{text}");
    assert!(text.contains("and 490 more losses") && text.lines().count() < 40, "{text}");
}

#[test]
fn damage_is_a_loss() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("loop.ktape");
    tape(&path, |_| {});
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let (json, code) = info(&path, &[]);
    assert_eq!(code, Some(3));
    assert!(json["lost"].as_u64().unwrap() > 0);
    assert!(json["damage"][0].as_str().unwrap().contains("checksum"), "{}", json["damage"]);
}

#[test]
fn what_is_no_trace_is_refused_in_one_line_that_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let mut newer = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/tapes/v1.0.ktape")).unwrap();
    newer[8] = 7;
    let cases = [
        (dir.path().join("absent.ktape").to_str().unwrap().to_owned(), "No such file"),
        (dir.path().to_str().unwrap().to_owned(), "a folder without a trace in it"),
        (file("empty.ktape", b""), "empty"),
        (file("picture.png", b"\x89PNG\r\n\x1a\n............"), "picture.png"),
        (file("cut.ktape", b"\x89KTAP\r\n\x1a12345"), "ends within its header"),
        (file("newer.ktape", &newer), "update ktape"),
    ];
    for (path, expected) in &cases {
        for command in ["info", "dump", "compare"] {
            let output = analyze([command, path]);
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(1), "{command} {path}: {error}");
            assert_eq!(error.lines().count(), 1, "{command} {path}: {error}");
            assert!(error.contains(path) && error.contains(expected), "{command} {path}: {error}");
        }
    }
    assert_eq!(analyze(["info"]).status.code(), Some(2));
}

#[test]
fn what_the_recorder_kept_less_of_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("limited.ktape");
    let mut tape = TapeWriter::create(&path, &Options::batch("test")).unwrap();
    for (start_ns, says) in [(1, "from now on stacks are cut to 32 frames: \u{1b}[2J"), (9, "no longer so")] {
        let detail = tape.string(says).unwrap();
        tape.event(Lifecycle { start_ns, kind: lifecycle_kind::FIDELITY, detail, ..Lifecycle::default() }).unwrap();
    }
    tape.finish().unwrap();
    let said = stdout(&run("info", &path, &[]));
    let list = said.split_once("under its limit:\n").expect("it is said").1;
    assert!(
        list.starts_with("  from now on stacks are cut to 32 frames: ") && list.contains("\n  no longer so\n"),
        "{said}"
    );
    assert!(!said.contains('\u{1b}'), "what a tape says cannot write on the terminal");
    let json: Value = serde_json::from_str(&stdout(&run("info", &path, &["--json"]))).unwrap();
    assert_eq!(json["fidelity"][1], "no longer so");
}
