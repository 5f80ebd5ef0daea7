//! `analyze` over a directory of segments: what is left of each part, and totals that are those of all there ever was.

use std::path::Path;

use ktape_format::definition::{Frame, Function, KernelName, Process, Shape, Stack, Thread, property, subject};
use ktape_format::event::{ClockPair, Launch, Sync, clock_kind};
use ktape_format::recording::Name;
use ktape_format::rollup::Digest;
use ktape_format::table::DefinitionKind;
use ktape_format::{Options, Sink as _, Tape, TapeWriter};
use serde_json::Value;

use crate::common::analyze;

/// Four segments of 100 launches and 10 waits each, by other stacks each time, and of one to four blind spots.
fn recording(directory: &Path) {
    for number in 1..=4_u64 {
        let name = name((number, number));
        let mut tape = TapeWriter::create(&directory.join(name.tape()), &Options::batch("test")).unwrap();
        let spots = format!(r#"[{{"kind":"unknown_stacks","count":{number},"what":"calls"}}]"#);
        tape.property(subject::TAPE, 0, property::BLIND_SPOTS, &spots).unwrap();
        let process = tape.define(Process { pid: 7, ..Process::default() }).unwrap();
        let thread = tape.define(Thread { process, tid: 7 }).unwrap();
        for index in 0..110_u64 {
            let start_ns = (number * 1_000_000 + index * 1000) as i64;
            let text = tape.string(&format!("function {}", (index + number) % 5)).unwrap();
            let frame = tape.define(Frame { name: text, ..Frame::default() }).unwrap();
            let stack = tape.define(Stack { parent: 0, frame, line: 0 }).unwrap();
            let text = tape.string(if index < 100 { "cuLaunchKernel" } else { "cuStreamSynchronize" }).unwrap();
            let function = tape.define(Function { name: text, ..Function::default() }).unwrap();
            if index < 100 {
                let text = tape.string(&format!("kernel {}", index % 2)).unwrap();
                let kernel = tape.define(KernelName { name: text, module: 0 }).unwrap();
                let shape = tape.define(Shape { kernel, ..Shape::default() }).unwrap();
                let launch = Launch { start_ns, duration_ns: 7, thread, shape, stack, function, ..Launch::default() };
                tape.event(launch).unwrap();
            } else {
                let duration_ns = 500 * number;
                tape.event(Sync { start_ns, duration_ns, thread, stack, function, ..Sync::default() }).unwrap();
            }
        }
        tape.finish().unwrap();
        roll_up(directory, &[name.tape()], &name);
    }
}

fn name(segments: (u64, u64)) -> Name {
    Name { recording: "node".to_owned(), begin_s: 1_796_033_700, segments }
}

fn roll_up(directory: &Path, of: &[String], name: &Name) {
    let mut digest = Digest::default();
    for file in of {
        digest.add_tape(&Tape::open(&directory.join(file)).unwrap()).unwrap();
    }
    let mut tape = TapeWriter::create(&directory.join(name.rollup()), &Options::batch("test")).unwrap();
    digest.write(&mut tape).unwrap();
    tape.finish().unwrap();
}

fn info(directory: &Path) -> Value {
    let output = analyze(["info", "--json", directory.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn totals_are_the_same_whatever_is_left_of_the_events() {
    let folder = tempfile::tempdir().unwrap();
    recording(folder.path());
    let whole = info(folder.path());
    let remove = |name: String| std::fs::remove_file(folder.path().join(name)).unwrap();
    // Retention deletes two segments, and their rollups become one.
    remove(name((1, 1)).tape());
    remove(name((2, 2)).tape());
    let without_events = info(folder.path());
    roll_up(folder.path(), &[name((1, 1)).rollup(), name((2, 2)).rollup()], &name((1, 2)));
    // A recorder that is killed here leaves all three.
    let between = info(folder.path());
    remove(name((1, 1)).rollup());
    remove(name((2, 2)).rollup());
    let merged = info(folder.path());
    for later in [&without_events, &between, &merged] {
        for key in ["totals", "host", "kernels", "blind_spots"] {
            assert_eq!(later[key], whole[key], "{key}");
        }
    }
    assert_eq!(whole["totals"][0]["count"], 400);
    assert_eq!(whole["blind_spots"], serde_json::json!([{"kind": "unknown_stacks", "count": 10, "what": "calls"}]));
    // A part of the time is read of the segments that have events, and is of these.
    let output = analyze(["info", "--json", "--from", "1us", folder.path().to_str().unwrap()]);
    let part: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(part["blind_spots"][0]["count"], 3 + 4, "{part}");
    assert_eq!(whole["totals"][1]["sum_ns"], 10 * 500 * (1 + 2 + 3 + 4));
    let has_events: Vec<_> = merged["parts"].as_array().unwrap().iter().map(|part| &part["has_events"]).collect();
    assert_eq!(has_events, [false, true]);
    assert_eq!(whole["parts"].as_array().unwrap().len(), 1);
}

#[test]
fn a_flamegraph_of_a_recording_has_every_launch() {
    let folder = tempfile::tempdir().unwrap();
    recording(folder.path());
    let folded = |value: &str| {
        let output = analyze(["flamegraph", "--folded", "--value", value, folder.path().to_str().unwrap()]);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let whole = folded("launches");
    let sum =
        |text: &str| text.lines().map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum::<u64>();
    assert_eq!((sum(&whole), sum(&folded("sync"))), (400, 50_000));
    for number in 1..=3 {
        std::fs::remove_file(folder.path().join(name((number, number)).tape())).unwrap();
    }
    assert_eq!(folded("launches"), whole);
}

#[test]
fn verify_holds_every_rollup_against_its_segment() {
    let folder = tempfile::tempdir().unwrap();
    recording(folder.path());
    let directory = folder.path().to_str().unwrap();
    let sound = analyze(["verify", directory]);
    assert!(sound.status.success(), "{sound:?}");
    assert!(String::from_utf8_lossy(&sound.stdout).contains("8 files, 4 rollups compared with the segment"));
    // The rollup of another segment, whole in itself.
    std::fs::copy(folder.path().join(name((1, 1)).rollup()), folder.path().join(name((2, 2)).rollup())).unwrap();
    let wrong = analyze(["verify", directory]);
    assert_eq!(wrong.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&wrong.stdout).contains("is not the rollup of its segment"));
}

fn lines(output: &std::process::Output) -> Vec<&str> {
    std::str::from_utf8(&output.stdout).unwrap().lines().collect()
}

fn kernel_names(directory: &Path) -> Vec<(String, u64)> {
    let kernels = info(directory)["kernels"].as_array().unwrap().clone();
    kernels.iter().map(|row| (row["name"].as_str().unwrap().to_owned(), row["launches"].as_u64().unwrap())).collect()
}

#[test]
fn all_segments_are_one_trace_in_the_order_of_time() {
    let folder = tempfile::tempdir().unwrap();
    recording(folder.path());
    let directory = folder.path().to_str().unwrap();
    let dumped = analyze(["dump", directory]);
    assert!(dumped.status.success(), "{dumped:?}");
    let mut each = Vec::new();
    for number in 1..=4 {
        let segment = folder.path().join(name((number, number)).tape());
        each.extend_from_slice(&analyze(["dump", segment.to_str().unwrap()]).stdout);
    }
    assert!(dumped.stdout == each, "line for line what its segments have");
    // From the first event on, over the end of a segment: 10 of the second, 20 of the third.
    let part = ["--from", "1100us", "--to", "2020us"];
    let dumped = analyze(["dump", directory].iter().chain(&part));
    assert_eq!(lines(&dumped).len(), 30);
    assert_eq!(lines(&analyze(["dump", directory, "--kind", "sync"])).len(), 40);
    assert_eq!(lines(&analyze(["dump", directory, "--pid", "7"])).len(), 440);
    assert_eq!(analyze(["dump", directory, "--pid", "8"]).status.code(), Some(1));
    let output = analyze(["info", "--json", directory].iter().chain(&part));
    let part: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&part["events"]["launch"], &part["events"]["sync"]), (&20.into(), &10.into()), "{part}");
    assert_eq!(part["device_times"], false);
    for command in
        [&["compare", directory, "--sampler", "cpu"][..], &["flamegraph", directory, "--folded", "--pid", "7"]]
    {
        assert!(analyze(command).status.success(), "{command:?}");
    }
    let trace = folder.path().join("trace");
    let output = analyze(["perfetto", "--json", directory, "-o", trace.to_str().unwrap()]);
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(output.status.success() && summary["events"].as_u64().unwrap() >= 440, "{summary}");
}

#[test]
fn what_is_left_only_as_totals_is_said_where_events_are_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    recording(folder.path());
    let directory = folder.path().to_str().unwrap();
    for number in 1..=2 {
        std::fs::remove_file(folder.path().join(name((number, number)).tape())).unwrap();
    }
    let dumped = analyze(["dump", directory]);
    assert_eq!((dumped.status.code(), lines(&dumped).len()), (Some(0), 220));
    let said = String::from_utf8_lossy(&dumped.stderr);
    assert!(said.contains("only totals are left of segments 1 to 2: their events are not in this"), "{said}");
    for number in 3..=4 {
        std::fs::remove_file(folder.path().join(name((number, number)).tape())).unwrap();
    }
    let dumped = analyze(["dump", directory]);
    assert_eq!(dumped.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&dumped.stderr).contains("only totals are left, all events were deleted"));
}

#[test]
fn a_damaged_segment_is_named_and_the_others_are_read() {
    let folder = tempfile::tempdir().unwrap();
    recording(folder.path());
    let directory = folder.path().to_str().unwrap();
    let whole = kernel_names(folder.path());
    let segment = folder.path().join(name((2, 2)).tape());
    let mut bytes = std::fs::read(&segment).unwrap();
    bytes[20] ^= 1;
    std::fs::write(&segment, &bytes).unwrap();
    for command in ["info", "verify", "dump", "flamegraph"] {
        let options: &[&str] = if command == "flamegraph" { &["--folded"] } else { &[] };
        let output = analyze([command, directory].iter().chain(options));
        assert_eq!(output.status.code(), Some(1), "{command}: {output:?}");
        let said = [&output.stdout[..], &output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        let named: Vec<&str> = said.lines().filter(|line| line.contains(segment.to_str().unwrap())).collect();
        assert_eq!(named.len(), 1, "{command}: {said}");
        assert!(output.stdout.len() > 100, "{command} says what the others have");
    }
    // Its rollup has what it had.
    let totals: Value = serde_json::from_slice(&analyze(["info", "--json", directory]).stdout).unwrap();
    assert_eq!(totals["totals"][0]["count"], 400);
    assert_eq!(totals["damage"].as_array().unwrap().len(), 1);
    assert_eq!(lines(&analyze(["dump", directory])).len(), 330);
    let verified: Value = serde_json::from_slice(&analyze(["verify", "--json", directory]).stdout).unwrap();
    let unreadable = verified["files"].as_array().unwrap().iter().filter(|file| file["unreadable"].is_string());
    assert_eq!((unreadable.count(), verified["files"].as_array().unwrap().len()), (1, 8));
    std::fs::remove_file(&segment).unwrap();
    assert_eq!(kernel_names(folder.path()), whole);
}

/// Two segments: launches of a kernel by its handle, and then its name, learned where it is launched no more.
fn named_late(directory: &Path) {
    for number in 1..=2_u64 {
        let name = name((number, number));
        let mut tape = TapeWriter::create(&directory.join(name.tape()), &Options::batch("test")).unwrap();
        let process = tape.define(Process { pid: 7, ..Process::default() }).unwrap();
        let thread = tape.define(Thread { process, tid: 7 }).unwrap();
        // Ids differ from segment to segment.
        for filler in 1..number {
            let text = tape.string(&format!("other {filler}")).unwrap();
            tape.define(KernelName { name: text, module: 0 }).unwrap();
        }
        let text = tape.string("unknown kernel @0x5620 of process 7").unwrap();
        let kernel = tape.define(KernelName { name: text, module: 0 }).unwrap();
        let mut shape = tape.define(Shape { kernel, ..Shape::default() }).unwrap();
        if number == 2 {
            tape.property(DefinitionKind::Kernel as u16, kernel, property::NAME, "gemm").unwrap();
            let text = tape.string("softmax").unwrap();
            let kernel = tape.define(KernelName { name: text, module: 0 }).unwrap();
            shape = tape.define(Shape { kernel, ..Shape::default() }).unwrap();
        }
        for index in 0..3 {
            let start_ns = (number * 1000 + index) as i64;
            tape.event(Launch { start_ns, thread, shape, ..Launch::default() }).unwrap();
        }
        tape.finish().unwrap();
        roll_up(directory, &[name.tape()], &name);
    }
}

#[test]
fn a_kernel_has_the_name_that_was_learned_last_in_all_segments() {
    let folder = tempfile::tempdir().unwrap();
    named_late(folder.path());
    let directory = folder.path().to_str().unwrap();
    let names = [("gemm".to_owned(), 3), ("softmax".to_owned(), 3)];
    let dumped = String::from_utf8(analyze(["dump", directory]).stdout).unwrap();
    assert_eq!(dumped.matches("gemm").count(), 3, "{dumped}");
    let trace = folder.path().join("trace");
    assert!(analyze(["perfetto", directory, "-o", trace.to_str().unwrap()]).status.success());
    let trace = std::fs::read(&trace).unwrap();
    let trace = String::from_utf8_lossy(&trace);
    assert!(trace.contains("gemm"), "{trace}");
    assert!(!trace.contains("unknown kernel @"), "{trace}");
    // Whatever is left of them.
    for number in 1..=2 {
        assert_eq!(kernel_names(folder.path()), names);
        let folded = analyze(["flamegraph", directory, "--folded"]);
        assert!(String::from_utf8_lossy(&folded.stdout).contains("gemm 3"), "{folded:?}");
        std::fs::remove_file(folder.path().join(name((number, number)).tape())).unwrap();
    }
    assert_eq!(kernel_names(folder.path()), names);
    roll_up(folder.path(), &[name((1, 1)).rollup(), name((2, 2)).rollup()], &name((1, 2)));
    assert_eq!(kernel_names(folder.path()), names);
}

#[test]
fn segments_of_another_boot_are_put_where_the_wall_clock_has_them() {
    let folder = tempfile::tempdir().unwrap();
    let segment = |number: u64, boot: u8, wall_ns: Option<i64>, start_ns: i64| {
        let options = Options { boot_id: [boot; 16], ..Options::batch("test") };
        let path = folder.path().join(name((number, number)).tape());
        let mut tape = TapeWriter::create(&path, &options).unwrap();
        if let Some(wall_ns) = wall_ns {
            let pair =
                ClockPair { start_ns, clock: clock_kind::UNIX, value_ns: start_ns + wall_ns, ..Default::default() };
            tape.event(pair).unwrap();
        }
        tape.event(Launch { start_ns, ..Launch::default() }).unwrap();
        tape.finish().unwrap();
    };
    segment(1, 1, Some(1_000_000), 5_000);
    segment(2, 2, Some(1_009_000), 100);
    let directory = folder.path().to_str().unwrap();
    let starts = || {
        let output = analyze(["dump", directory, "--kind", "launch"]);
        let starts: Vec<i64> = lines(&output)
            .iter()
            .map(|line| serde_json::from_str::<Value>(line).unwrap()["start_ns"].as_i64().unwrap())
            .collect();
        (starts, output.status.code())
    };
    assert_eq!(starts(), (vec![5_000, 9_100], Some(0)));
    segment(3, 3, None, 100);
    assert_eq!(starts(), (vec![5_000, 9_100], Some(1)));
}

/// Times counted from 0 of the clock, hours before: a node's recorder begins before anybody calls.
#[test]
fn times_count_from_the_first_event_where_the_first_segment_has_none() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path();
    let mut quiet = TapeWriter::create(&directory.join(name((1, 1)).tape()), &Options::batch("test")).unwrap();
    quiet.event(ClockPair { start_ns: 4_000_000_000, ..ClockPair::default() }).unwrap();
    quiet.finish().unwrap();
    let mut busy = TapeWriter::create(&directory.join(name((2, 2)).tape()), &Options::batch("test")).unwrap();
    for start_ns in [5_000_000_000, 5_002_000_000] {
        busy.event(Launch { start_ns, ..Launch::default() }).unwrap();
    }
    busy.finish().unwrap();
    let output = analyze(["info", directory.to_str().unwrap(), "--from", "1ms", "--to", "3ms", "--json"]);
    let info: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(info["events"]["launch"], 1, "{info}");
}
