//! Recordings without device times whose tapes say what graphs run: each launch of one counts as the kernels that it runs.

use std::path::{Path, PathBuf};

use ktape_format::definition::{
    Context, Device, Frame, Function, Graph, GraphNode, KernelName, Process, Shape, Stack, Stream, Thread, frame_kind,
    node_kind,
};
use ktape_format::event::{GraphLaunch, Kernel, Launch};
use ktape_format::recording::Name;
use ktape_format::rollup::Digest;
use ktape_format::{Options, Sink as _, Tape, TapeWriter};
use serde_json::{Value, json};

use crate::on_tape::{run, stdout};

/// A kernel and a graph are launched: of a gemm twice, a graph of a softmax, and a copy. The graph is launched three times, and
/// a graph of which something is not known once. With `is_timed` the device's own record of a kernel is there.
fn tape(is_timed: bool) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("graphs.ktape");
    let mut tape = TapeWriter::create(&path, &Options::batch("test")).expect("a tape");
    fill(&mut tape, is_timed).expect("rows");
    tape.finish().expect("a tape");
    (folder, path)
}

fn fill(tape: &mut TapeWriter, is_timed: bool) -> Result<(), ktape_format::TapeError> {
    let process = tape.define(Process { pid: 7, ..Process::default() })?;
    let thread = tape.define(Thread { process, tid: 7 })?;
    let device = tape.define(Device::default())?;
    let context = tape.define(Context { process, device, native: 1 })?;
    let stream = tape.define(Stream { context, native: 9, ..Stream::default() })?;
    let mut stack = |name: &str, line| {
        let (name, file) = (tape.string(name)?, tape.string("/srv/model.py")?);
        let frame = tape.define(Frame { name, file, line: 0, kind: frame_kind::PYTHON })?;
        tape.define(Stack { parent: 0, frame, line })
    };
    let (captured, inner, launched) = (stack("capture", 10)?, stack("attention", 20)?, stack("replay", 30)?);
    let mut shape = |name: &str| {
        let name = tape.string(name)?;
        let kernel = tape.define(KernelName { name, module: 0 })?;
        tape.define(Shape { kernel, grid_x: 2, ..Shape::default() })
    };
    let (gemm, softmax) = (shape("gemm")?, shape("softmax")?);
    let mut function = |name: &str| {
        let name = tape.string(name)?;
        tape.define(Function { name, ..Function::default() })
    };
    let (launch, graph_launch) = (function("cuLaunchKernel")?, function("cuGraphLaunch")?);
    let child = tape.define(Graph { process, native: 0x10, earlier: 0 })?;
    let graph = tape.define(Graph { process, native: 0x20, earlier: 0 })?;
    let unknown = tape.define(Graph { process, native: 0x20, earlier: 1 })?;
    let kernel =
        |shape, stack| GraphNode { kind: node_kind::KERNEL, shape, stack, function: launch, ..GraphNode::default() };
    for (graph, index, node) in [
        (child, 0, kernel(softmax, inner)),
        (graph, 0, kernel(gemm, captured)),
        (graph, 1, kernel(gemm, captured)),
        (graph, 2, GraphNode { kind: node_kind::GRAPH, child, ..GraphNode::default() }),
        (graph, 3, GraphNode { kind: node_kind::MEMCPY, bytes: 64, ..GraphNode::default() }),
        (unknown, 0, kernel(gemm, captured)),
        (unknown, 1, GraphNode::default()),
    ] {
        tape.define(GraphNode { graph, index, ..node })?;
    }
    let row = GraphLaunch { thread, stream, stack: launched, function: graph_launch, ..GraphLaunch::default() };
    for (start_ns, graph) in [(10, graph), (20, graph), (30, graph), (40, unknown)] {
        tape.event(GraphLaunch { start_ns, duration_ns: 5, graph, ..row })?;
    }
    // It was refused: it ran nothing.
    tape.event(GraphLaunch { start_ns: 50, duration_ns: 5, graph, result: 700, ..row })?;
    tape.event(Launch {
        start_ns: 60,
        thread,
        stream,
        shape: gemm,
        stack: captured,
        function: launch,
        ..Launch::default()
    })?;
    if is_timed {
        tape.event(Kernel { start_ns: 70, duration_ns: 8, stream, shape: softmax, graph, ..Kernel::default() })?;
    }
    Ok(())
}

fn info(tape: &Path) -> Value {
    serde_json::from_str(&stdout(&run("info", tape, &["--json", "--kernels"]))).expect("JSON")
}

fn folded(tape: &Path, options: &[&str]) -> Vec<String> {
    let text = stdout(&run("flamegraph", tape, &[&["--folded", "--value", "launches"], options].concat()));
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

#[test]
fn a_graphs_launch_counts_as_the_kernels_that_it_runs() {
    let (_folder, tape) = tape(false);
    let json = info(&tape);
    let figures = |row: &Value| (row["name"].clone(), row["launches"].clone(), row["graph_launches"].clone());
    let kernels: Vec<_> = json["kernels"].as_array().expect("kernels").iter().map(figures).collect();
    assert_eq!(kernels, [(json!("gemm"), json!(1), json!(7)), (json!("softmax"), json!(0), json!(3))]);
    assert_eq!(json["host"]["graphs"], json!({ "launches": 5, "kernels": 10, "not_whole": 1 }));
    let text = stdout(&run("info", &tape, &[]));
    assert!(text.contains("5 of these launched graphs, and those 10 kernels"), "{text}");
    assert!(text.contains("1 of these graphs' launches ran what is not known, or not all"), "{text}");
    let gemm = text.lines().find(|line| line.ends_with("gemm")).expect("a row");
    assert_eq!(gemm.split_whitespace().take(4).collect::<Vec<_>>(), ["8", "7", "73", "%"]);
}

#[test]
fn a_flamegraph_has_a_graphs_kernels_where_it_was_launched_or_where_they_were_captured() {
    let (_folder, tape) = tape(false);
    let launched = [
        "capture (/srv/model.py:10);gemm 1",
        "replay (/srv/model.py:30);cuGraphLaunch 2",
        "replay (/srv/model.py:30);gemm 7",
        "replay (/srv/model.py:30);softmax 3",
    ];
    assert_eq!(folded(&tape, &[]), launched);
    assert_eq!(folded(&tape, &["--graph-stacks", "launched"]), launched);
    let captured = [
        "attention (/srv/model.py:20);softmax 3",
        "capture (/srv/model.py:10);gemm 8",
        "replay (/srv/model.py:30);cuGraphLaunch 2",
    ];
    assert_eq!(folded(&tape, &["--graph-stacks", "captured"]), captured);
    let refused = run("flamegraph", &tape, &["--folded", "--value", "sync", "--graph-stacks", "captured"]);
    assert_eq!(refused.status.code(), Some(2), "the command line is wrong, not the tape");
}

#[test]
fn where_the_device_tells_of_its_kernels_no_graph_is_expanded() {
    let (_folder, tape) = tape(true);
    let json = info(&tape);
    assert!(json["kernels"].as_array().expect("kernels").iter().all(|row| row["graph_launches"] == 0), "{json}");
    assert_eq!(folded(&tape, &[]), ["capture (/srv/model.py:10);gemm 1", "replay (/srv/model.py:30);cuGraphLaunch 5"]);
}

#[test]
fn rollups_have_the_kernels_of_graphs_that_the_deleted_launches_had() {
    for is_timed in [false, true] {
        let (folder, tape) = tape(is_timed);
        let directory = folder.path().join("recording");
        std::fs::create_dir(&directory).expect("a folder");
        // Two segments of the same, of which only a rollup of both is left.
        let mut digest = Digest::default();
        for _ in 0..2 {
            digest.add_tape(&Tape::open(&tape).expect("a tape")).expect("it can be read");
        }
        let name = Name { recording: "r".to_owned(), begin_s: 0, segments: (1, 2) };
        let mut rollup = TapeWriter::create(&directory.join(name.rollup()), &Options::batch("test")).expect("a tape");
        digest.write(&mut rollup).expect("rows");
        rollup.finish().expect("a tape");
        let (detail, rolled_up) = (info(&tape), info(&directory));
        let kernels = |json: &Value, times: u64| {
            let rows = json["kernels"].as_array().expect("kernels").iter();
            let figures = |row: &Value, key| times * row[key].as_u64().expect("a number");
            let keys = ["calls", "launches", "graph_launches", "total_ns"];
            rows.map(|row| (row["name"].clone(), keys.map(|key| figures(row, key)))).collect::<Vec<_>>()
        };
        assert_eq!(kernels(&rolled_up, 1), kernels(&detail, 2));
        for key in ["launches", "kernels", "not_whole"] {
            let of = |json: &Value| json["host"]["graphs"][key].as_u64();
            assert_eq!(of(&rolled_up), of(&detail).map(|count| 2 * count), "{key}");
        }
        for stacks in ["launched", "captured"] {
            let doubled = folded(&tape, &["--graph-stacks", stacks]).into_iter().map(|line| {
                let (stack, count) = line.rsplit_once(' ').expect("a count");
                format!("{stack} {}", 2 * count.parse::<u64>().expect("a number"))
            });
            assert_eq!(folded(&directory, &["--graph-stacks", stacks]), doubled.collect::<Vec<_>>());
        }
    }
}

#[test]
fn perfetto_says_in_few_words_what_a_graphs_launch_runs() {
    let (folder, tape) = tape(false);
    let trace = folder.path().join("trace");
    stdout(&run("perfetto", &tape, &["-o", trace.to_str().expect("a path")]));
    let text = String::from_utf8_lossy(&std::fs::read(&trace).expect("a trace")).into_owned();
    for part in ["first_kernels", "gemm, gemm, …", "all_nodes_known"] {
        assert!(text.contains(part), "{part}");
    }
}
