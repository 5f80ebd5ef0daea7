//! `analyze` over a directory of segments: what is left of each part, and totals that are those of all there ever was.

use std::path::Path;

use ktape_format::definition::{Frame, Function, KernelName, Process, Shape, Stack, Thread};
use ktape_format::event::{Launch, Sync};
use ktape_format::recording::Name;
use ktape_format::rollup::Digest;
use ktape_format::{Options, Sink as _, Tape, TapeWriter};
use serde_json::Value;

use crate::common::analyze;

/// Four segments of 100 launches and 10 waits each, by other stacks each time.
fn recording(directory: &Path) {
    for number in 1..=4_u64 {
        let name = name((number, number));
        let mut tape = TapeWriter::create(&directory.join(name.tape()), &Options::batch("test")).unwrap();
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
                tape.event(Launch { start_ns, thread, shape, stack, function, ..Launch::default() }).unwrap();
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
        for key in ["totals", "host", "kernels"] {
            assert_eq!(later[key], whole[key], "{key}");
        }
    }
    assert_eq!(whole["totals"][0]["count"], 400);
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

#[test]
fn a_part_of_a_recording_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    recording(folder.path());
    let directory = folder.path().to_str().unwrap();
    for arguments in [&["info", directory, "--from", "1s"][..], &["dump", directory]] {
        let output = analyze(arguments.iter());
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("is a recording"), "{output:?}");
    }
}
