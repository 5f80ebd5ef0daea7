//! Chrome JSON of other tools than PyTorch's profiler. The files in `fixtures/kineto/others` are made up, in the shapes
//! that these tools write.

use ktape_analyze::import::{Summary, Tool};
use ktape_analyze::timeline::Timeline;
use ktape_format::Table as _;
use ktape_format::definition::{Context, Device, Frame, Process, Shape, Stream, Thread, frame_kind, property};
use ktape_format::event::copy_kind;
use ktape_format::table::DefinitionKind;

use super::rules::{made_up, stack};
use super::{fixture, import};
use crate::common::analyze;

fn of(name: &str) -> (Timeline, Summary) {
    made_up(&format!("others/{name}"))
}

/// The number of a stream's device, and of the stream.
fn place(timeline: &Timeline, stream: u32) -> (u32, u64) {
    let stream: Stream = timeline.definitions.get(stream).unwrap();
    let context: Context = timeline.definitions.get(stream.context).unwrap();
    (timeline.definitions.get::<Device>(context.device).unwrap().index, stream.native)
}

/// Name, kind, start and duration of each slice.
fn slices(timeline: &Timeline) -> Vec<(&str, u8, i64, u64)> {
    let definitions = &timeline.definitions;
    let rows = timeline.events.slice.rows();
    rows.map(|row| {
        let frame: Frame = definitions.get(row.frame).unwrap();
        (definitions.string(frame.name), frame.kind, row.start_ns, row.duration_ns)
    })
    .collect()
}

/// The line that tells whose trace it is and what it lacks.
fn line(name: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let (trace, tape) = (fixture("others").join(name), folder.path().join("x.ktape"));
    let output = analyze(["import", trace.to_str().unwrap(), "-o", tape.to_str().unwrap()]);
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().find(|line| line.contains(" trace: ")).unwrap_or_else(|| panic!("{text}")).trim().to_owned()
}

#[test]
fn jax() {
    let (timeline, summary) = of("jax.json");
    let (events, definitions) = (&timeline.events, &timeline.definitions);
    let kernel = events.kernel.row(0);
    assert_eq!((kernel.start_ns, kernel.duration_ns, kernel.correlation), (100_001, 40_500, 77));
    // By the names of its rows, not by their numbers.
    assert_eq!(place(&timeline, kernel.stream), (1, 13));
    let shape: Shape = definitions.get(kernel.shape).unwrap();
    assert_eq!((shape.registers, shape.shared_bytes, shape.grid_y, shape.block_x), (32, 1040, 2, 128));
    assert_eq!(definitions.string(kernel.args), r#"{"hlo_module":"jit_step","hlo_op":"fusion.1"}"#);
    let copy = events.memcpy.row(0);
    assert_eq!((copy.kind, copy.bytes, place(&timeline, copy.stream)), (copy_kind::HTOD, 4096, (1, 13)));
    let name = definitions.property(DefinitionKind::Stream as u16, kernel.stream, property::NAME);
    assert_eq!(name, Some("Stream #13(Compute)"));
    let owner: Process = definitions.get(definitions.process_of_stream(kernel.stream)).unwrap();
    assert_eq!(owner.pid, 701, "the host's process submitted it");
    assert_eq!(
        slices(&timeline),
        [
            ("step", frame_kind::PYTHON, 10_000, 80_000),
            ("PjitFunction(step)", frame_kind::OPERATOR, 20_000, 60_000),
            ("fusion.1", frame_kind::OPERATOR, 100_000, 50_000),
        ]
    );
    assert_eq!(summary.tool, Some(Tool::Xla));
    assert_eq!(line("jax.json"), "JAX/XLA trace: no launches");
}

#[test]
fn tensorflow() {
    let (timeline, summary) = of("tensorflow.json");
    assert_eq!(place(&timeline, timeline.events.kernel.stream[0]), (0, 7));
    assert_eq!((summary.matched, timeline.events.launch.len()), (1, 1));
    assert_eq!(stack(&timeline, timeline.events.launch.stack[0]), ["ExecutorState::Process"]);
    assert_eq!(line("tensorflow.json"), "TensorFlow trace: no Python frames");
}

#[test]
fn viztracer() {
    let (timeline, summary) = of("viztracer.json");
    let (events, definitions) = (&timeline.events, &timeline.definitions);
    const BASE_NS: i64 = 1_767_189_312_000_000_000;
    assert_eq!(
        slices(&timeline),
        [
            ("work", frame_kind::PYTHON, BASE_NS + 10_100, 20_000),
            ("time.sleep", frame_kind::PYTHON, BASE_NS + 12_500, 2_250)
        ]
    );
    let frame: Frame = definitions.get(events.slice.frame[0]).unwrap();
    assert_eq!((definitions.string(frame.file), frame.line), ("/srv/train.py", 3));
    assert_eq!(definitions.string(events.slice.args[0]), r#"{"return_value":"7"}"#);
    assert_eq!(stack(&timeline, events.mark.stack[0]), ["work"]);
    assert_eq!(events.counter.value, [4.0]);
    for phase in ["N", "b", "e"] {
        assert_eq!(summary.not_kept[&format!("event of phase {phase}")], 1);
    }
    assert_eq!(line("viztracer.json"), "VizTracer trace: no device work");
}

#[test]
fn rocprof() {
    let (timeline, summary) = of("rocprof.json");
    let (events, definitions) = (&timeline.events, &timeline.definitions);
    // `ts` and `dur` are rounded; the arguments have the nanoseconds.
    let kernel = events.kernel.row(0);
    assert_eq!((kernel.start_ns, kernel.duration_ns, place(&timeline, kernel.stream)), (1_010_123, 5_333, (1, 1)));
    assert_eq!(definitions.string(kernel.args), r#"{"queue-id":"3"}"#);
    let copy = events.memcpy.row(0);
    assert_eq!((definitions.string(copy.name), copy.duration_ns), ("CopyHostToDevice", 999));
    let launch = events.launch.row(0);
    assert_eq!((launch.start_ns, launch.duration_ns), (1_000_789, 2_212));
    let thread: Thread = definitions.get(launch.thread).unwrap();
    let process: Process = definitions.get(thread.process).unwrap();
    assert_eq!((process.pid, thread.tid), (400, 500), "the row's pid is no process");
    assert_eq!(definitions.string(launch.args), r#"{"args":"( kernel(add) stream(1))"}"#);
    assert_eq!(stack(&timeline, launch.stack), ["step 1"]);
    assert_eq!(summary.not_kept["flow DataFlow"], 2);
    assert_eq!(
        line("rocprof.json"),
        "rocprof trace: no link from device work to its launch, no shapes of kernels, no Python frames"
    );
}

#[test]
fn rocprofv3_is_refused_by_name() {
    let error = import(&fixture("others/rocprofv3.json")).unwrap_err().to_string();
    assert!(error.contains("rocprofv3's own JSON") && error.contains("results.json"), "{error}");
}

#[test]
fn nsys2json() {
    let (timeline, _) = of("nsys2json.json");
    let (events, definitions) = (&timeline.events, &timeline.definitions);
    let kernel = events.kernel.row(0);
    assert_eq!((definitions.kernel_name(kernel.shape), kernel.start_ns, kernel.duration_ns), ("gemm", 4_001, 3_250));
    assert_eq!(place(&timeline, kernel.stream), (1, 7));
    let launch = events.launch.row(0);
    assert_eq!((launch.correlation, definitions.get::<Thread>(launch.thread).unwrap().tid), (5, 12));
    assert_eq!(stack(&timeline, launch.stack), ["step"]);
    assert_eq!(
        line("nsys2json.json"),
        "nsys2json trace: no link from device work to its launch, no shapes of kernels, no Python frames"
    );
}

#[test]
fn beginnings_and_ends_become_slices() {
    let (timeline, summary) = of("begin_end.json");
    let operator = frame_kind::OPERATOR;
    assert_eq!(
        slices(&timeline),
        [
            ("outer", operator, 10_000, 30_000),
            ("inner", operator, 20_000, 10_500),
            ("elsewhere", operator, 21_000, 1_000),
            ("caller", operator, 50_000, 10_000),
            ("never ended", operator, 51_000, 9_000),
            ("cut off", operator, 70_000, 0),
        ]
    );
    assert_eq!(stack(&timeline, timeline.events.mark.stack[0]), ["outer", "inner"]);
    assert_eq!(timeline.definitions.string(timeline.events.slice.args[0]), r#"{"depth":0}"#);
    assert_eq!(summary.kept["end of a slice"], 4);
    assert_eq!(summary.repaired["slice without an end, taken to last as long as what it is in"], 2);
    assert_eq!(summary.not_kept["end of a slice without its beginning"], 1);
    assert_eq!(summary.not_kept["beginning or end on a row that is no thread"], 1);
    assert_eq!(summary.not_kept_parts["arguments of an end"], 1);
    for phase in ["b", "n", "e"] {
        assert_eq!(summary.not_kept[&format!("event of phase {phase}")], 1);
    }
    assert_eq!((summary.tool, summary.lacks.len()), (None, 0));
}
