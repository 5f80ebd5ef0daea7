//! Recordings that have launches without kernels: every command says which of the two it speaks of.

use std::path::{Path, PathBuf};
use std::process::Output;

use ktape_fixtures::live::{
    GEMM, INPUT_BYTES, LAYERS, LEAK_EVERY, OUTPUT_BYTES, OUTPUT_NS, PID, SCRATCH_BYTES, UNKNOWN, WAIT_NS, live,
};
use ktape_format::event::Kernel;
use ktape_format::{Options, Sink as _, TapeWriter};
use serde_json::{Value, json};

use crate::on_tape::{run, stdout};

const REQUESTS: u32 = 10;
const LAUNCHES: u32 = REQUESTS * LAYERS * 2;

/// What every report says that could be taken for one of device times.
const SAID: &str = "launches without device times";

fn tape() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("live.ktape");
    let mut writer = TapeWriter::create(&path, &Options::batch("test")).unwrap();
    live(&mut writer, REQUESTS).unwrap();
    writer.finish().unwrap();
    (folder, path)
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn info(tape: &Path, options: &[&str]) -> Value {
    serde_json::from_str(&stdout(&run("info", tape, &[&["--json"], options].concat()))).unwrap()
}

#[test]
fn info_says_first_that_there_are_no_device_times() {
    let (_folder, tape) = tape();
    let text = stdout(&run("info", &tape, &[]));
    assert!(text.lines().next().unwrap().ends_with(&format!("{SAID}: when and how long the GPU worked is not on it")));
    assert_eq!(info(&tape, &[])["device_times"], false);
}

/// It said "busy 4.13 ms of 4.13 ms (100 %), 0 kernels", as the one copy that was waited for was all device time there was.
#[test]
fn the_bound_of_a_copy_is_not_a_busy_device() {
    let (_folder, tape) = tape();
    let text = stdout(&run("info", &tape, &[]));
    let device = text.lines().find(|line| line.starts_with("device 0")).unwrap();
    assert_eq!(device, "device 0: 30 copies and memsets");
    assert!(!text.contains("busy") && !text.contains("0 kernels"), "{text}");
    let json = info(&tape, &[]);
    assert_eq!((&json["devices"][0]["busy_ns"], &json["devices"][0]["span_ns"]), (&Value::Null, &Value::Null));
    assert!(json["streams"].as_array().unwrap().iter().all(|stream| stream["busy_ns"].is_null()), "{json}");
}

/// It said "of 2,000 launches have no device work: it was captured into a graph, …", and that bounds were taken for times.
#[test]
fn that_nothing_was_recorded_of_the_device_is_no_fault() {
    let (_folder, tape) = tape();
    let text = stdout(&run("info", &tape, &[]));
    assert!(!text.contains("to know before the figures") && !text.contains("captured"), "{text}");
    assert_eq!(info(&tape, &[])["audit"]["launches_without_work"], Value::Null);
}

#[test]
fn info_says_who_launched_waited_copied_and_did_not_free() {
    let (_folder, tape) = tape();
    let json = info(&tape, &[]);
    let host = &json["host"];
    let kernels = LAUNCHES / 2;
    let figures: Vec<_> = json["kernels"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| (row["name"].as_str().unwrap(), &row["launches"]))
        .collect();
    assert_eq!(figures, [(GEMM, &json!(kernels)), ("softmax(float*)", &json!(kernels))]);

    let stacks = |key: &str| host[key].as_array().unwrap().clone();
    let launched: u64 = stacks("launches").iter().map(|row| row["count"].as_u64().unwrap()).sum();
    assert_eq!(launched, u64::from(LAUNCHES + REQUESTS), "kernels and graphs");
    assert_eq!(
        stacks("launches")[0],
        json!({ "stack": ["<module> (/srv/serve.py:40)", "request (/srv/serve.py:20)", "layer (/srv/serve.py:11)"],
            "count": kernels })
    );
    let waited_ns = u64::from(REQUESTS) * WAIT_NS;
    assert_eq!(host["waited_ns"], waited_ns);
    assert_eq!(
        stacks("waits"),
        [json!({ "stack": ["<module> (/srv/serve.py:40)", "request (/srv/serve.py:22)"], "count": REQUESTS,
            "duration_ns": waited_ns })]
    );
    let copies =
        |direction: &str| stacks("copies").into_iter().find(|copies| copies["direction"] == direction).unwrap();
    assert_eq!(
        copies("HtoD"),
        json!({ "direction": "HtoD", "operations": REQUESTS, "bytes": u64::from(REQUESTS) * INPUT_BYTES,
            "waited_for": 0, "waited_ns": 0 })
    );
    assert_eq!(
        copies("DtoH"),
        json!({ "direction": "DtoH", "operations": REQUESTS, "bytes": u64::from(REQUESTS) * OUTPUT_BYTES,
            "waited_for": REQUESTS, "waited_ns": u64::from(REQUESTS) * OUTPUT_NS })
    );
    assert_eq!(copies("memset")["operations"], REQUESTS);
    let leaks = u64::from(REQUESTS.div_ceil(LEAK_EVERY));
    assert_eq!(
        stacks("unfreed"),
        [json!({ "stack": ["<module> (/srv/serve.py:40)", "request (/srv/serve.py:17)"], "count": leaks,
            "bytes": leaks * SCRATCH_BYTES })],
        "managed memory that `cuMemFree` gave back is not among it"
    );
    assert_eq!((&host["unfreed_bytes"], &host["frees_of_unknown"]), (&json!(leaks * SCRATCH_BYTES), &json!(1)));
    let threads = stacks("threads");
    assert_eq!(
        (&threads[0]["tid"], &threads[0]["launches"], &threads[0]["waits"]),
        (&json!(PID), &json!(LAUNCHES), &json!(REQUESTS))
    );
    assert_eq!((&threads[1]["name"], &threads[1]["launches"]), (&json!("decoder"), &json!(REQUESTS)));

    let text = stdout(&run("info", &tape, &[]));
    for line in [
        "       40   50 %  softmax(float*)",
        "<module>:40 > request:20 > layer (/srv/serve.py:11)",
        "    10  500 µs  <module>:40 > request (/srv/serve.py:22)",
        "    10  10.00 MiB  HtoD                0             -",
        "    10  40.00 KiB  DtoH               10        300 µs",
        "         3  6.00 MiB  <module>:40 > request (/srv/serve.py:17)",
        "1 free of memory that was allocated before the recording",
        "process 4711 python3, container 0123456789ab, 2 threads",
        "and 1 process that made no GPU calls",
    ] {
        assert!(text.contains(line), "no {line:?} in\n{text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 120), "{text}");
}

#[test]
fn a_part_of_it_is_no_more_than_that() {
    let (_folder, tape) = tape();
    for part in
        [&["--kind", "launch"][..], &["--kind", "memcpy"], &["--from", "2ms", "--to", "4ms"], &["--pid", "4711"]]
    {
        assert_eq!(info(&tape, part)["device_times"], false, "{part:?}");
    }
    // And the launches of a trace that has kernels are not all of it.
    let folder = tempfile::tempdir().unwrap();
    let timed = folder.path().join("timed.ktape");
    let mut writer = TapeWriter::create(&timed, &Options::batch("test")).unwrap();
    ktape_fixtures::service::service(&mut writer, 2, 1).unwrap();
    writer.finish().unwrap();
    for part in [&["--kind", "launch"][..], &["--kind", "launch,api"], &[]] {
        assert_eq!(info(&timed, part)["device_times"], true, "{part:?}");
    }
    let drawn = run("flamegraph", &timed, &["--folded", "--kind", "launch"]);
    assert_eq!(drawn.status.code(), Some(1), "no launches are drawn for the times that were left out");
}

#[test]
fn a_name_that_was_learned_late_is_that_of_all_launches() {
    let (folder, tape) = tape();
    let trace = folder.path().join("live.pftrace");
    stdout(&run("perfetto", &tape, &["-o", trace.to_str().unwrap()]));
    let dump = stdout(&run("dump", &tape, &["--kind", "launch"]));
    for (what, text) in [
        ("info", stdout(&run("info", &tape, &["--kernels"]))),
        ("dump", dump.clone()),
        ("flamegraph", stdout(&run("flamegraph", &tape, &["--folded"]))),
        ("perfetto", String::from_utf8_lossy(&std::fs::read(&trace).unwrap()).into_owned()),
    ] {
        assert!(text.contains("softmax"), "{what}");
        assert!(!text.contains("unknown kernel @"), "{what}: {UNKNOWN}");
    }
    let named = dump.lines().filter(|line| line.contains("\"name\":\"softmax(float*)\"")).count();
    assert_eq!(named, LAUNCHES as usize / 2);
}

#[test]
fn a_flamegraph_draws_launches_and_says_so() {
    let (folder, tape) = tape();
    let drawn = run("flamegraph", &tape, &["--folded"]);
    let said = stderr(&drawn);
    assert!(
        said.contains(&format!("{SAID}: widths are numbers of launches")) && said.contains("--value sync"),
        "{said}"
    );
    let frames = "<module> (/srv/serve.py:40);request (/srv/serve.py:20);layer (/srv/serve.py:11);gemm";
    let text = stdout(&drawn);
    assert!(text.contains(&format!("{frames} {}\n", LAUNCHES / 2)), "{text}");
    assert!(text.contains(&format!("decode (/srv/serve.py:31);cuGraphLaunch {REQUESTS}\n")), "{text}");

    let svg = folder.path().join("live.svg");
    stdout(&run("flamegraph", &tape, &["-o", svg.to_str().unwrap()]));
    let svg = std::fs::read_to_string(svg).unwrap();
    assert!(svg.contains("Launches: live.ktape (no device times were recorded)"), "{}", &svg[..4000]);
}

#[test]
fn a_flamegraph_of_waiting_is_that_of_synchronisations() {
    let (_folder, tape) = tape();
    let drawn = run("flamegraph", &tape, &["--folded", "--value", "sync"]);
    let frames = "<module> (/srv/serve.py:40);request (/srv/serve.py:22);cuStreamSynchronize";
    assert_eq!(stdout(&drawn), format!("{frames} {}\n", u64::from(REQUESTS) * WAIT_NS));
    assert!(!stderr(&drawn).contains("numbers of launches"), "it was asked for");
}

#[test]
fn the_bound_of_a_copy_is_not_drawn_as_gpu_time() {
    let (_folder, tape) = tape();
    let refused = run("flamegraph", &tape, &["--folded", "--value", "gpu"]);
    let said = stderr(&refused);
    assert_eq!((refused.status.code(), said.lines().count()), (Some(1), 1), "{said}");
    assert!(said.contains(SAID) && said.contains("`--value sync`"), "{said}");
    // Who asks for copies gets the bounds, and that they are: never "exact".
    let svg = tape.with_extension("svg");
    let copies = run("flamegraph", &tape, &["--value", "copies", "-o", svg.to_str().unwrap()]);
    let said = stderr(&copies);
    assert!(said.contains("10 of 30 are upper bounds") && !said.contains("exact"), "{said}");
}

#[test]
fn compare_refuses_in_one_line_that_says_what_there_is() {
    let (_folder, tape) = tape();
    for options in [&[][..], &["--sampler", "gpu"], &["--sampler", "cpu"], &["--json"]] {
        let refused = run("compare", &tape, options);
        let said = stderr(&refused);
        assert_eq!((refused.status.code(), said.lines().count()), (Some(1), 1), "{said}");
        assert!(said.contains(SAID) && said.contains("`analyze flamegraph`"), "{said}");
        assert!(refused.stdout.is_empty());
    }
}

#[test]
fn perfetto_says_that_launches_stand_for_kernels() {
    let (folder, tape) = tape();
    let trace = folder.path().join("live.pftrace");
    let path = trace.to_str().unwrap();
    assert!(stdout(&run("perfetto", &tape, &["-o", path])).contains(SAID));
    let json: Value =
        serde_json::from_str(&stdout(&run("perfetto", &tape, &["-o", path, "--force", "--json"]))).unwrap();
    assert_eq!(json["device_times"], false);
    let bytes = std::fs::read(&trace).unwrap();
    assert!(String::from_utf8_lossy(&bytes).contains(SAID), "the processes' label");
}

/// The same service with the device's word on one kernel, as `--device-time` has it.
fn tape_with_device_times() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("live.ktape");
    let mut writer = TapeWriter::create(&path, &Options::batch("test")).unwrap();
    live(&mut writer, REQUESTS).unwrap();
    writer.event(Kernel { start_ns: 1_000, duration_ns: 500, stream: 1, ..Kernel::default() }).unwrap();
    writer.finish().unwrap();
    (folder, path)
}

/// `info` listed the dozens of processes that a shell had started, each as one of the recording.
#[test]
fn with_device_times_too_processes_that_made_no_calls_are_only_counted() {
    let (_folder, tape) = tape_with_device_times();
    let text = stdout(&run("info", &tape, &[]));
    assert!(text.contains("process 4711 python3") && text.contains("1 kernel"), "{text}");
    assert!(text.contains("\nand 1 process that made no GPU calls\n"), "{text}");
    assert_eq!(text.lines().filter(|line| line.starts_with("process ")).count(), 1, "{text}");
}

/// It advised to record with PyTorch's stacks.
#[test]
fn with_device_times_the_cpu_sampler_says_what_to_record_instead() {
    let (_folder, tape) = tape_with_device_times();
    let refused = run("compare", &tape, &["--sampler", "cpu"]);
    assert_eq!(refused.status.code(), Some(1));
    let said = stderr(&refused);
    assert!(said.contains("without `--device-time`") && !said.contains("PyTorch"), "{said}");
}
