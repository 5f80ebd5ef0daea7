//! Tapes with a real profiler's samples: drawn, counted, and held against the simulated sampler.

use std::path::{Path, PathBuf};

use ktape_format::definition::{Frame, Process, Stack, Thread, frame_kind};
use ktape_format::event::{Api, CpuSample, Launch, Memcpy, Sync, timing};
use ktape_format::{Options, Sink, TapeWriter};
use serde_json::Value;

use crate::on_tape::{run, stdout};

/// 99 Hz.
const PERIOD_NS: i64 = 10_101_010;
const CALLS: i64 = 3000;

/// What the made-up profiler says of a thread in a call.
#[derive(Clone, Copy, PartialEq)]
enum Profiler {
    /// The truth.
    Honest,
    /// That it is in `mlp`, whatever it is in.
    Wrong,
    /// The truth, but not for how long it was there.
    Unweighted,
}

/// A thread that launches from three functions in turn, which takes 6, 3 and 1 ms, and is between calls for 1 to 5 ms. Then it
/// waits for two seconds, in a synchronisation and in a copy. A sample of each period finds it where it is, unless it waits.
fn write<S: Sink>(sink: &mut S, profiler: Profiler) -> Result<(), S::Error> {
    let process = sink.define(Process { pid: 7, ..Process::default() })?;
    let thread = sink.define(Thread { process, tid: 7 })?;
    let mut stack = |parent, name: &str, line| {
        let (name, file) = (sink.string(name)?, sink.string("/srv/model.py")?);
        let frame = sink.define(Frame { kind: frame_kind::PYTHON, name, file, line })?;
        sink.define(Stack { parent, frame, line: line + 1 })
    };
    let main = stack(0, "main", 1)?;
    let callers = [stack(main, "attention", 10)?, stack(main, "mlp", 20)?, stack(main, "norm", 30)?];
    let mut now_ns = 0;
    let mut random = 1_u64;
    let mut places = Vec::new();
    for call in 0..CALLS {
        let (caller, length_ns) = [(0, 6_000_000), (1, 3_000_000), (2, 1_000_000)][(call % 3) as usize];
        let launch = Launch {
            start_ns: now_ns,
            duration_ns: length_ns as u64,
            thread,
            stack: callers[caller],
            correlation: call as u64 + 1,
            ..Launch::default()
        };
        sink.event(launch)?;
        places.push((now_ns, now_ns + length_ns, callers[caller]));
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let gap_ns = 1_000_000 + (random >> 33) as i64 % 4_000_000;
        places.push((now_ns + length_ns, now_ns + length_ns + gap_ns, main));
        now_ns += length_ns + gap_ns;
    }
    let mut at_ns = 3_333_333;
    for &(start_ns, end_ns, stack) in &places {
        while at_ns < end_ns {
            assert!(at_ns >= start_ns, "places follow each other");
            let said = if profiler == Profiler::Wrong && stack != main { callers[1] } else { stack };
            // One stack in a hundred can't be read.
            let stack = if at_ns / PERIOD_NS % 100 == 0 { 0 } else { said };
            let weight_ns = if profiler == Profiler::Unweighted { 0 } else { PERIOD_NS as u64 };
            sink.event(CpuSample { start_ns: at_ns, weight_ns, thread, stack, cpu: 1 })?;
            at_ns += PERIOD_NS;
        }
    }
    let waits = Sync { start_ns: now_ns, duration_ns: 1_000_000_000, thread, stack: main, ..Sync::default() };
    sink.event(waits)?;
    now_ns += 1_000_000_000;
    let correlation = CALLS as u64 + 1;
    let copies =
        Api { start_ns: now_ns, duration_ns: 1_000_000_000, thread, stack: main, correlation, ..Api::default() };
    sink.event(copies)?;
    let context = sink.define(ktape_format::definition::Context { process, ..Default::default() })?;
    let stream = sink.define(ktape_format::definition::Stream { context, ..Default::default() })?;
    let timing = timing::BOUNDED;
    let copy =
        Memcpy { start_ns: now_ns, duration_ns: 1_000_000_000, stream, correlation, timing, ..Memcpy::default() };
    sink.event(copy)
}

fn tape(profiler: Profiler) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sampled.ktape");
    let mut writer = TapeWriter::create(&path, &Options::batch("test")).unwrap();
    write(&mut writer, profiler).unwrap();
    writer.finish().unwrap();
    (folder, path)
}

fn json(command: &str, tape: &Path, options: &[&str]) -> Value {
    serde_json::from_str(&stdout(&run(command, tape, &[options, &["--json"]].concat()))).unwrap()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn the_real_sampler_and_the_simulated_one_agree() {
    let (_folder, tape) = tape(Profiler::Honest);
    for by in ["function", "stack"] {
        let compared = json("compare", &tape, &["--sampler", "cpu", "--by", by]);
        assert_eq!(number(&compared["calls_only"]["calls"]), 2, "the synchronisation and the copy wait");
        assert_eq!(number(&compared["calls_only"]["waited_ns"]), 2_000_000_000);
        assert_eq!(number(&compared["exact_ns"]), 1000 * 10_000_000);
        let agreement = &compared["agreement"];
        let (in_calls, without) = (number(&agreement["in_calls"]), number(&agreement["without_stack"]));
        // 10 s at 99 Hz; the work is not in step with the sampler.
        assert!((930..1050).contains(&in_calls), "{agreement}");
        assert!(without > 0 && number(&agreement["same_row"]) == in_calls - without, "{agreement}");
        let rows = agreement["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 3);
        assert!(rows.iter().all(|row| row["agrees"] == true), "{agreement}");
        let samples: u64 = rows.iter().map(|row| number(&row["samples"])).sum();
        assert_eq!(samples, in_calls - without);
    }
    let text = stdout(&run("compare", &tape, &[])).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("The two samplers agree on 3 of 3 functions"), "{text}");
}

#[test]
fn a_real_sampler_that_is_wrong_does_not_agree() {
    let (_folder, tape) = tape(Profiler::Wrong);
    let agreement = &json("compare", &tape, &["--sampler", "cpu"])["agreement"];
    assert!(agreement["rows"].as_array().unwrap().iter().all(|row| row["agrees"] == false), "{agreement}");
    let (same, in_calls) = (number(&agreement["same_row"]), number(&agreement["in_calls"]));
    assert!(same * 2 < in_calls, "only in `mlp` it is right: {agreement}");
}

#[test]
fn only_the_whole_trace_is_held_against_the_real_sampler() {
    let (_folder, windows) = tape(Profiler::Honest);
    assert!(json("compare", &windows, &["--windows", "1s"])["agreement"].is_null());
    // Samples without a weight do not say how many a second there are.
    let (_folder, unweighted) = tape(Profiler::Unweighted);
    assert!(json("compare", &unweighted, &[])["agreement"].is_null());
}

#[test]
fn flamegraphs_are_of_cpu_time_or_of_samples() {
    let (_folder, tape) = tape(Profiler::Honest);
    let info = json("info", &tape, &[]);
    let samples = number(&info["cpu"]["samples"]);
    assert_eq!(samples, number(&info["events"]["cpu_sample"]));
    assert_eq!(number(&info["cpu"]["time_ns"]), samples * PERIOD_NS as u64);
    let sum = |value| -> u64 {
        let folded = stdout(&run("flamegraph", &tape, &["--folded", "--value", value]));
        assert!(folded.lines().any(|line| line.starts_with("[no Python stack] ")), "{folded}");
        assert!(folded.lines().any(|line| line.starts_with("main (") && line.contains("attention (")), "{folded}");
        folded.lines().map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum()
    };
    assert_eq!((sum("samples"), sum("cpu")), (samples, samples * PERIOD_NS as u64));
    let own: u64 = info["cpu"]["functions"].as_array().unwrap().iter().map(|row| number(&row["own"])).sum();
    assert_eq!(own + number(&info["cpu"]["without_stack"]), samples);
    assert!(stdout(&run("info", &tape, &[])).contains("CPU samples: about "));
}

#[test]
fn samples_of_unknown_weight_are_drawn_by_their_number() {
    let (_folder, tape) = tape(Profiler::Unweighted);
    let refused = run("flamegraph", &tape, &["--folded", "--value", "cpu"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1));
    assert!(said.contains("--value samples"), "{said}");
    assert!(!stdout(&run("flamegraph", &tape, &["--folded", "--value", "samples"])).is_empty());
    assert!(stdout(&run("info", &tape, &[])).contains("how much time each stands for is not known"));
}
