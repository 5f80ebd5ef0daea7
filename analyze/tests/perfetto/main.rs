//! That Perfetto sees in our traces what is on the tape, no more and no less: proved with the real thing.
//!
//! Each trace is held against its tape in four ways: upstream's trace_processor is asked in SQL for counts, sums,
//! arrows, nesting and its own complaints; upstream's schema of 2026 decodes every packet (`schema.py`); so does the
//! crate `perfetto_protos`; and the real UI opens it. What the tape says is added up here from its events, without
//! the exporter's help.

#[path = "../cli/common.rs"]
mod common;
mod facts;
mod made_up;
mod tools;

use std::path::{Path, PathBuf};

use ktape_fixtures::live;
use ktape_format::{Options, TapeWriter};
use protobuf::Message as _;
use serde_json::Value;

use facts::{Facts, Work};

/// Upstream's statistics that count no fault: how long things took, and that clocks were not converted.
const HARMLESS: &[&str] = &["guess_trace_type_duration_ns", "parse_trace_duration_ns", "clock_sync_cache_miss"];

/// A tape and the Perfetto trace that was made of it.
struct Exported {
    tape: PathBuf,
    trace: PathBuf,
    _dir: tempfile::TempDir,
}

/// Imports a PyTorch trace and exports it to Perfetto.
fn import(source: &Path) -> Exported {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let tape = dir.path().join("run.ktape");
    tools::analyze(&["import", text(source), "-o", text(&tape)]);
    export(dir, tape)
}

fn export(dir: tempfile::TempDir, tape: PathBuf) -> Exported {
    let trace = dir.path().join("run.pftrace");
    tools::analyze(&["perfetto", text(&tape), "-o", text(&trace)]);
    Exported { tape, trace, _dir: dir }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// Holds a trace against its tape in SQL and by schema.
fn prove(exported: &Exported) {
    let facts = Facts::of(&exported.tape);
    let summary = tools::schema(&exported.trace);
    let answers = tools::sql(
        &exported.trace,
        &[
            "select name, value from stats where value > 0",
            "select ifnull(s.render_stage_category, 0) = 2 as kernel, count(*) as events, sum(dur) as ns
             from gpu_slice s group by 1 order by 1 desc",
            "select extract_arg(arg_set_id, 'kernel_name') as name, count(*) as events, sum(dur) as ns
             from gpu_slice where render_stage_category = 2 group by 1",
            "select category, count(*) as events, sum(dur) as ns from slice
             where id not in (select id from gpu_slice) group by 1",
            "select count(*) as n from slice where dur < 0",
            "select count(*) as n from slice child join slice parent on child.parent_id = parent.id
             where child.ts < parent.ts or child.ts + child.dur > parent.ts + parent.dur",
            "select count(*) as n from flow",
            "select count(*) as n from flow f join slice host on host.id = f.slice_out join gpu_slice g on g.id = f.slice_in
             where host.id not in (select id from gpu_slice)",
            "select count(*) as n from __intrinsic_track_event_callstacks",
            "select count(*) as n from gpu_slice where upid is null or context_id is null
             or typeof(extract_arg(arg_set_id, 'device')) != 'integer'
             or typeof(extract_arg(arg_set_id, 'stream')) != 'integer'",
            "select min(ts) as first_ns, max(ts + dur) as last_ns from gpu_slice",
        ],
    );
    let [stats, stages, kernels, host, open, crossing, flows, arrows, callstacks, homeless, span] = &answers[..] else {
        panic!("an answer for each query: {answers:?}");
    };

    // Device work: kernels here, copies and memsets there, each kernel under its name.
    let work = |rows: &[Value], key: &str, is: &Value| {
        let row = rows.iter().find(|row| &row[key] == is);
        row.map_or((0, 0), work_of)
    };
    assert_eq!(work(stages, "kernel", &1.into()), facts.kernels, "kernels: count and sum");
    assert_eq!(work(stages, "kernel", &0.into()), facts.copies, "copies and memsets: count and sum");
    let device_ns: i64 = array(&summary["render_stages"]).iter().map(|stage| number(&stage["duration_ns"])).sum();
    assert_eq!(device_ns, facts.kernels.1 + facts.copies.1);
    let by_name = kernels.iter().map(|row| (row["name"].as_str().expect("a name").to_owned(), work_of(row))).collect();
    assert_eq!(facts.by_kernel, by_name, "calls and time of each kernel by its full name");
    assert_eq!((number(&span[0]["first_ns"]), number(&span[0]["last_ns"])), facts.device_span_ns);

    // Host tracks: every event of every kind is there once, and slices nest.
    for (category, expected) in &facts.host {
        assert_eq!(work(host, "category", &(*category).into()), *expected, "{category}: count and sum");
    }
    let shown: i64 = host.iter().map(|row| number(&row["events"])).sum();
    assert_eq!(shown, facts.host.values().map(|(events, _)| events).sum::<i64>(), "nothing else is on a host track");
    assert_eq!(number(&open[0]["n"]), 0, "every slice ends");
    assert_eq!(number(&crossing[0]["n"]), 0, "slices of one track nest");

    // Arrows: one from each operation's call, and those of the waits.
    assert_eq!(number(&arrows[0]["n"]), facts.submitted, "an arrow from each call to each operation that it submitted");
    assert_eq!(number(&summary["submissions"]), facts.submitted);
    let waits = number(&summary["host_waits"]) + number(&summary["device_waits"]);
    assert_eq!(number(&flows[0]["n"]), facts.submitted + waits, "and every other arrow is a wait");

    // Flamegraphs: exact device time under the stacks that submitted it.
    let stacks = &summary["callstacks"];
    assert_eq!(number(&stacks["weight"]), facts.stacked_ns, "the weights are the device time, to the nanosecond");
    assert_eq!(number(&callstacks[0]["n"]), number(&stacks["weighted"]) + number(&stacks["unweighted"]));

    // What the tree CUDA, device, context, stream is made of.
    assert_eq!(number(&homeless[0]["n"]), 0, "all device work has a process, a context, a device and a stream");

    // Upstream's own complaints. Weights are newer than v55 and are the only field that it does not know.
    for row in stats.iter().filter(|row| !HARMLESS.contains(&row["name"].as_str().expect("a name"))) {
        assert_eq!(row["name"], "unknown_extension_fields", "{row}");
        assert_eq!(row["value"], stacks["weighted"], "{row}");
    }
}

fn number(value: &Value) -> i64 {
    value.as_i64().unwrap_or_else(|| panic!("{value} is no integer"))
}

/// A row's count and sum.
fn work_of(row: &Value) -> Work {
    (number(&row["events"]), number(&row["ns"]))
}

fn array(value: &Value) -> &[Value] {
    value.as_array().expect("an array")
}

#[test]
fn the_checks_themselves_catch_what_is_wrong() {
    if tools::installed() {
        tools::test_schema();
    }
}

#[test]
fn a_made_up_trace_is_shown_as_it_was_made() {
    if !tools::installed() {
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary folder");
    let source = dir.path().join("trace.json");
    std::fs::write(&source, made_up::kineto()).expect("write");
    let exported = import(&source);
    prove(&exported);

    let facts = Facts::of(&exported.tape);
    assert_eq!((facts.kernels, facts.copies), (made_up::KERNELS, made_up::COPIES));
    assert_eq!((facts.submitted, facts.stacked_ns), (made_up::SUBMITTED, made_up::STACKED_NS));

    let answers = tools::sql(
        &exported.trace,
        &[
            "select count(*) as kernels, count(distinct track_id) as rows from gpu_slice
             where extract_arg(arg_set_id, 'stream') = 7",
            "select name, extract_arg(arg_set_id, 'kernel_demangled_name') as full,
             extract_arg(arg_set_id, 'launch.grid_size.x') as grid, extract_arg(arg_set_id, 'launch.workgroup_size.x') as block,
             extract_arg(arg_set_id, 'registers_per_thread') as registers from gpu_slice where ts = (select min(ts) from gpu_slice
             where name like '%gemm%')",
            "select count(*) as n from flow where slice_out = (select id from slice where name = 'cudaGraphLaunch')",
            "select g.name from flow f join gpu_slice g on g.id = f.slice_out join slice s on s.id = f.slice_in
             where s.name = 'cudaStreamSynchronize'",
            "include perfetto module std.gpu.context; select pid, api from gpu_context",
            "select cast(max(value) as int) as most from counter c join counter_track t on t.id = c.track_id
             where t.name like 'Allocated%'",
        ],
    );
    let [overlap, gemm, graph, waited, context, allocated] = &answers[..] else { panic!("{answers:?}") };
    assert_eq!(
        overlap[0],
        serde_json::json!({ "kernels": 7, "rows": 2 }),
        "overlapping work of one stream has two rows"
    );
    assert_eq!(gemm[0]["full"], made_up::GEMM);
    assert_eq!((&gemm[0]["grid"], &gemm[0]["block"]), (&132.into(), &256.into()));
    assert_eq!(gemm[0]["registers"], 96);
    assert_eq!(graph[0]["n"], 3, "one graph launch, three kernels");
    assert_eq!(waited.len(), 1, "the synchronisation names the last work of its stream");
    assert_eq!(allocated[0]["most"], 4096);
    assert_eq!(context[0], serde_json::json!({ "pid": 100, "api": "CUDA" }));
}

/// A recording of launches: what people look for on the GPU's tracks is on the threads', and nothing is made up.
#[test]
fn launches_without_device_times_stand_for_their_kernels() {
    const REQUESTS: u32 = 8;
    if !tools::installed() {
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary folder");
    let tape = dir.path().join("run.ktape");
    let mut writer = TapeWriter::create(&tape, &Options::batch("test")).expect("create");
    live::live(&mut writer, REQUESTS).expect("write");
    writer.finish().expect("finish");
    let exported = export(dir, tape);
    let answers = tools::sql(
        &exported.trace,
        &[
            "select name, count(*) as n, sum(dur) as ns, min(extract_arg(arg_set_id, 'debug.function')) as function,
             min(extract_arg(arg_set_id, 'debug.grid')) as grid, min(extract_arg(arg_set_id, 'debug.stream')) as stream
             from slice where extract_arg(arg_set_id, 'debug.kernel') is not null group by name order by name",
            "select name, count(*) as n, sum(dur) as ns from gpu_slice group by name",
            "select extract_arg(arg_set_id, 'debug.direction') as direction, extract_arg(arg_set_id, 'debug.timing') as timing,
             sum(extract_arg(arg_set_id, 'debug.bytes')) as bytes from slice where name like 'cuMem%Async%'
             group by 1 order by 1",
            "select count(*) as n, sum(dur) as ns from slice where name = 'cuStreamSynchronize'",
            "select distinct thread.tid from slice join thread_track t on t.id = slice.track_id join thread using (utid)
             where slice.name = 'cuGraphLaunch'",
            "select count(*) as n from __intrinsic_track_event_callstacks",
            "select name, value from stats where value > 0 and severity != 'info'",
            "select count(*) as n from counter_track where name like 'Copy bandwidth%' or name like 'Kernels queued%'",
            "select cast(value as int) as bytes from counter c join counter_track t on t.id = c.track_id
             where t.name = 'Allocated (managed), Device #0' order by ts desc limit 1",
        ],
    );
    let [launches, device, copies, waits, decoder, callstacks, complaints, curves, allocated] = &answers[..] else {
        panic!("{answers:?}")
    };
    let launches_of = |name: &str, grid: &str| {
        serde_json::json!({ "name": name, "n": REQUESTS * live::LAYERS, "ns": 0, "function": "cuLaunchKernel", "grid": grid,
            "stream": 7 })
    };
    assert_eq!(launches[..], [launches_of("gemm", "16 x 1 x 1"), launches_of("softmax", "8 x 1 x 1")]);
    let waited_for = serde_json::json!({ "name": "Memcpy DtoH (Device -> unknown) (at most)", "n": REQUESTS,
        "ns": u64::from(REQUESTS) * live::OUTPUT_NS });
    assert_eq!(device[..], [waited_for], "on a stream is only what has a bound, marked as such");
    let asked_for = |direction: Value, bytes: u64| serde_json::json!({ "direction": direction, "timing": "absent", "bytes": u64::from(REQUESTS) * bytes });
    assert_eq!(
        copies[..],
        [asked_for(Value::Null, live::CLEARED_BYTES), asked_for("HtoD".into(), live::INPUT_BYTES)],
        "copies and memsets without a time are arguments of their calls"
    );
    let waits_ns = u64::from(REQUESTS) * live::WAIT_NS;
    assert_eq!(waits[0], serde_json::json!({ "n": REQUESTS, "ns": waits_ns }));
    assert_eq!(decoder[..], [serde_json::json!({ "tid": live::PID + 1 })]);
    // All calls, allocations and frees have a stack, and no weight that is newer than the engine.
    let unfreed = REQUESTS.div_ceil(live::LEAK_EVERY);
    let calls = REQUESTS * (2 * live::LAYERS + 1 + 1 + 3) + REQUESTS + (REQUESTS - unfreed) + 1;
    assert_eq!(callstacks[0]["n"], calls);
    assert_eq!(complaints[..], [Value::Null; 0], "{complaints:?}");
    assert_eq!(allocated[0]["bytes"], u64::from(unfreed) * live::SCRATCH_BYTES, "`cuMemFree` takes managed memory too");
    assert_eq!(curves[0]["n"], 0, "no bandwidth of a bound, no queue of kernels");
    let summary = tools::schema(&exported.trace);
    assert_eq!(number(&summary["callstacks"]["weighted"]), 0, "{summary}");
}

#[test]
fn a_gzipped_trace_is_the_same_trace() {
    if !tools::installed() {
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary folder");
    let source = dir.path().join("trace.json");
    std::fs::write(&source, made_up::kineto()).expect("write");
    let exported = import(&source);
    let zipped = dir.path().join("run.pftrace.gz");
    tools::analyze(&["perfetto", text(&exported.tape), "--gz", "-o", text(&zipped)]);
    assert_eq!(std::fs::read(&zipped).expect("read")[..2], [0x1f, 0x8b]);
    let all = ["select id, ts, dur, name, category from slice order by id"];
    assert_eq!(tools::sql(&zipped, &all), tools::sql(&exported.trace, &all));
    assert_eq!(tools::schema(&zipped), tools::schema(&exported.trace));
}

#[test]
fn the_ui_opens_it() {
    if !tools::installed() {
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary folder");
    let source = dir.path().join("trace.json");
    std::fs::write(&source, made_up::kineto()).expect("write");
    let exported = import(&source);
    let loaded = tools::ui(&exported.trace);
    let weighted = &tools::schema(&exported.trace)["callstacks"]["weighted"];
    assert_eq!(&loaded["import_errors"], weighted, "only the weights are newer than this UI");
    let tracks: Vec<&str> = array(&loaded["tracks"]).iter().filter_map(Value::as_str).collect();
    for wanted in ["Stream #7", "Stream #20", "Python", "Operators", "API", "Ranges"] {
        assert!(tracks.iter().any(|track| track.contains(wanted)), "no track {wanted} among {tracks:?}");
    }
}

#[test]
fn the_crate_perfetto_protos_reads_it() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let source = dir.path().join("trace.json");
    std::fs::write(&source, made_up::kineto()).expect("write");
    let exported = import(&source);
    let bytes = std::fs::read(&exported.trace).expect("read");
    let trace = perfetto_protos::trace::Trace::parse_from_bytes(&bytes).expect("a trace");
    let stages = trace.packet.iter().filter(|packet| packet.has_gpu_render_stage_event()).count();
    let facts = Facts::of(&exported.tape);
    assert_eq!(stages as i64, facts.kernels.0 + facts.copies.0);
    let again = trace.write_to_bytes().expect("encode");
    assert_eq!(again.len(), bytes.len(), "it keeps every byte, those of fields newer than itself too");
}

/// A real trace: proved against its tape, and its tape's kernels against the figures that others counted in the source.
fn prove_real(path: &str, kernels: i64, copies: i64) {
    if !tools::installed() {
        return;
    }
    let Some(source) = tools::real(path) else { return };
    let exported = import(&source);
    let facts = Facts::of(&exported.tape);
    assert_eq!((facts.kernels.0, facts.copies.0), (kernels, copies));
    prove(&exported);
}

#[test]
fn owlv2_on_an_h100() {
    prove_real("AMD-AGI+TraceLens/tests/traces/h100/google_owlv2-large-patch14-ensemble__1016001.json.gz", 4330, 835);
}

#[test]
fn an_eager_vllm_step_on_a_b200_whose_kernels_overlap_on_one_stream() {
    prove_real("AMD-AGI+TraceLens/tests/traces/b200/eager_trace.json.gz", 768, 161);
}

#[test]
fn a_graph_of_hundreds_of_kernels_launched_by_one_call() {
    prove_real("AMD-AGI+TraceLens/tests/traces/inference/vllm_decode_full/graph_execution.json.gz", 425, 9);
}

#[test]
fn graphs_on_six_streams_and_work_launched_before_the_recording() {
    let path = "facebookresearch+HolisticTraceAnalysis/tests/data/negative_queue_length_values_check/rank0.json.gz";
    prove_real(path, 6080, 1667);
}
