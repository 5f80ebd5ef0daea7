//! Tapes that tell when threads did not run: what `info` adds up, and what `compare` then leaves out.

use std::path::PathBuf;

use ktape_format::definition::{Frame, Process, Stack, Thread, frame_kind};
use ktape_format::event::{CpuSample, Launch, OffCpu, off_cpu_reason};
use ktape_format::{Options, Sink, TapeWriter};
use serde_json::Value;

use crate::on_tape::{run, stdout};

const PERIOD_NS: i64 = 10_101_010;
const LAUNCHES: i64 = 2000;

/// A thread launches from two functions in turn, for 10 ms each, on a machine with too much to do: in every third call of `mlp` it is
/// preempted for 8 ms. Between calls it sleeps for 2 ms, and then waits for a processor for half a millisecond.
fn write<S: Sink>(sink: &mut S, tells_off_cpu: bool) -> Result<(), S::Error> {
    let process = sink.define(Process { pid: 7, ..Process::default() })?;
    let thread = sink.define(Thread { process, tid: 70 })?;
    let mut stack = |name: &str| {
        let (name, file) = (sink.string(name)?, sink.string("/srv/model.py")?);
        let frame = sink.define(Frame { kind: frame_kind::PYTHON, name, file, line: 1 })?;
        sink.define(Stack { parent: 0, frame, line: 2 })
    };
    let callers = [stack("attention")?, stack("mlp")?];
    let mut now_ns = 0;
    let mut at_ns = 3_333_333;
    for call in 0..LAUNCHES {
        let stack = callers[call as usize % 2];
        let mut busy = vec![(now_ns, now_ns + 10_000_000)];
        let launch = Launch { start_ns: now_ns, duration_ns: 10_000_000, thread, stack, ..Launch::default() };
        sink.event(Launch { correlation: call as u64 + 1, ..launch })?;
        let mut off = vec![(now_ns + 10_000_000, 2_500_000, 500_000, off_cpu_reason::SLEEP)];
        if call % 6 == 1 {
            off.insert(0, (now_ns + 1_000_000, 8_000_000, 8_000_000, off_cpu_reason::PREEMPTED));
            busy = vec![(now_ns, now_ns + 1_000_000), (now_ns + 9_000_000, now_ns + 10_000_000)];
        }
        for (start_ns, duration_ns, runnable_ns, reason) in off {
            if tells_off_cpu {
                sink.event(OffCpu { start_ns, duration_ns, runnable_ns, reason, thread, cpu: 1 })?;
            }
        }
        // What the sampler meets meanwhile.
        while at_ns < now_ns + 12_500_000 {
            if busy.iter().any(|&(from, to)| (from..to).contains(&at_ns)) {
                sink.event(CpuSample { start_ns: at_ns, weight_ns: PERIOD_NS as u64, thread, stack, cpu: 1 })?;
            }
            at_ns += PERIOD_NS;
        }
        now_ns += 12_500_000;
    }
    Ok(())
}

fn tape(tells_off_cpu: bool) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("loaded.ktape");
    let mut writer = TapeWriter::create(&path, &Options::batch("test")).unwrap();
    write(&mut writer, tells_off_cpu).unwrap();
    writer.finish().unwrap();
    (folder, path)
}

fn json(command: &str, tape: &std::path::Path, options: &[&str]) -> Value {
    serde_json::from_str(&stdout(&run(command, tape, &[options, &["--json"]].concat()))).unwrap()
}

/// Of 2000 calls each sixth from the second on.
const PREEMPTED: i64 = 334;

#[test]
fn info_says_what_a_thread_did_instead_of_running() {
    let (_folder, tape) = tape(true);
    let info = json("info", &tape, &[]);
    let off_cpu = &info["off_cpu"];
    assert_eq!(
        (off_cpu["stretches"].as_i64(), off_cpu["other_threads"].as_i64()),
        (Some(LAUNCHES + PREEMPTED), Some(0))
    );
    let thread = &off_cpu["threads"][0];
    let spent = |of: &str| {
        ["count", "duration_ns", "running_ns", "blocked_ns", "runnable_ns"].map(|key| thread[of][key].as_i64().unwrap())
    };
    let preempted_ns = PREEMPTED * 8_000_000;
    let in_calls_ns = LAUNCHES * 10_000_000;
    assert_eq!(spent("calls"), [LAUNCHES, in_calls_ns, in_calls_ns - preempted_ns, 0, preempted_ns]);
    let gaps = LAUNCHES - 1;
    assert_eq!(spent("gaps"), [gaps, gaps * 2_500_000, 0, gaps * 2_000_000, gaps * 500_000]);
    // From the first sleep on: the first call is not in it.
    let observed_ns = LAUNCHES * 12_500_000 - 10_000_000;
    let waited_ns = preempted_ns + LAUNCHES * 500_000;
    let slept_ns = LAUNCHES * 2_000_000;
    assert_eq!(spent("observed"), [1, observed_ns, observed_ns - waited_ns - slept_ns, slept_ns, waited_ns]);
    assert_eq!(thread["left"], serde_json::json!({ "preempted": PREEMPTED, "sleep": LAUNCHES }));
    assert_eq!(thread["blocked_ns"], serde_json::json!({ "sleep": slept_ns }));
    let text = stdout(&run("info", &tape, &[])).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("threads left their processor 2,334 times"), "{text}");
    assert!(text.contains("20 s 2,000 calls 87 % 0 % 13 % 70 of process 7"), "{text}");
    assert!(text.contains("gaps of 100 µs or more between launches 0 % 80 % 20 % 70 of process 7"), "{text}");
}

#[test]
fn a_tape_that_does_not_tell_has_no_such_figures() {
    let (_folder, tape) = tape(false);
    assert!(json("info", &tape, &[])["off_cpu"].is_null());
    assert!(!stdout(&run("info", &tape, &[])).contains("left their processor"));
}

#[test]
fn the_two_samplers_agree_on_a_loaded_machine_if_the_tape_tells_who_ran() {
    let compare = |tape: &std::path::Path| json("compare", tape, &["--sampler", "cpu"]);
    let agreeing = |compared: &Value| {
        compared["agreement"]["rows"].as_array().unwrap().iter().filter(|row| row["agrees"] == true).count()
    };
    let ran_ns = LAUNCHES * 10_000_000 - PREEMPTED * 8_000_000;
    let (_folder, blind) = tape(false);
    let compared = compare(&blind);
    assert_eq!(compared["exact_ns"].as_i64(), Some(LAUNCHES * 10_000_000));
    assert!(compared["calls_only"]["not_running_ns"].is_null());
    assert_eq!(agreeing(&compared), 0, "half and half by the clock, and not by what ran: {compared}");

    let (_folder, tape) = tape(true);
    let compared = compare(&tape);
    assert_eq!(compared["exact_ns"].as_i64(), Some(ran_ns));
    assert_eq!(compared["calls_only"]["not_running_ns"].as_i64(), Some(PREEMPTED * 8_000_000));
    let agreement = &compared["agreement"];
    assert_eq!(agreeing(&compared), 2, "{agreement}");
    assert_eq!(agreement["in_calls"], agreement["samples"], "no sample where the thread did not run");
    let text = stdout(&run("compare", &tape, &["--sampler", "cpu"])).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("so are 2.67 s of the other calls in which it was off its processor"), "{text}");
    assert!(!text.contains("wait for a processor"), "{text}");
}

#[test]
fn perfetto_has_a_track_with_the_wait_for_a_processor_in_it() {
    let (folder, tape) = tape(true);
    let trace = folder.path().join("loaded.pftrace");
    let written: Value =
        serde_json::from_str(&stdout(&run("perfetto", &tape, &["--json", "-o", trace.to_str().unwrap()]))).unwrap();
    assert_eq!(written["crossing_slices"], 0);
    let bytes = std::fs::read(trace).unwrap();
    for name in ["Off CPU", "off_cpu", "preempted", "sleep", "waiting for a processor", "runnable_ns"] {
        assert!(bytes.windows(name.len()).any(|window| window == name.as_bytes()), "{name}");
    }
}
