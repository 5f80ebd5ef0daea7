//! `analyze flamegraph` from its user's side: every nanosecond of the trace is in the picture, under the stack that
//! caused it, whatever the names are.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use clap::ValueEnum as _;
use ktape_analyze::export::flamegraph::svg::{self, Caption};
use ktape_analyze::export::flamegraph::{By, Shape, Tree, folded};
use ktape_analyze::import;
use ktape_analyze::tables::KnownTables;
use ktape_analyze::timeline::Timeline;
use ktape_analyze::timeline::weights::{GraphStacks, Value, weigh};
use ktape_format::definition::{
    self, Context, Device, Frame, Function, Graph, GraphNode, KernelName, Process, Stack, Stream, Thread, frame_kind,
    node_kind, property,
};
use ktape_format::event::{
    Api, Event, GraphLaunch, Kernel, Launch, Loss, Memcpy, Memset, Rollup, Sync, copy_kind, timing,
};
use ktape_format::table::DefinitionKind;
use ktape_format::{Options, Sink, Table, TapeWriter};
use proptest::prelude::{Just, any, prop, prop_assert, prop_assert_eq, prop_oneof, proptest};
use quick_xml::events::Event as Xml;
use serde_json::Value as Json;

use crate::common;
use crate::everything;

/// Names that break what does not expect them: separators, a weight, a comment, markup, nothing.
const ODD_NAMES: [&str; 8] = ["a;b", "step 12", "# no comment", "", "two\nlines", "<a & \"b\">", "same", "x_[k]"];

/// A tape under construction, with the ids that every event needs.
struct Trace {
    tape: TapeWriter,
    stream: u32,
    thread: u32,
    now_ns: i64,
    correlation: u64,
}

impl Trace {
    /// Goes on as another process.
    fn process(&mut self, pid: i64, rank: &str) {
        let process = self.tape.define(Process { pid, ..Process::default() }).unwrap();
        self.tape.property(DefinitionKind::Process as u16, process, property::RANK, rank).unwrap();
        let device = self.tape.define(Device { process, index: 0, vendor: 1, uuid: 0 }).unwrap();
        let context = self.tape.define(Context { process, device, native: 1 }).unwrap();
        self.stream = self.tape.define(Stream { context, native: 7, ..Stream::default() }).unwrap();
        self.thread = self.tape.define(Thread { process, tid: pid + 1 }).unwrap();
    }

    fn stack(&mut self, frames: &[(u8, &str, &str, u32)]) -> u32 {
        frames.iter().fold(0, |parent, &(kind, name, file, line)| {
            let (name, file) = (self.tape.string(name).unwrap(), self.tape.string(file).unwrap());
            let frame = self.tape.define(Frame { kind, name, file, line }).unwrap();
            self.tape.define(Stack { parent, frame, line: 0 }).unwrap()
        })
    }

    fn shape(&mut self, kernel: &str) -> u32 {
        let name = self.tape.string(kernel).unwrap();
        let kernel = self.tape.define(KernelName { name, module: 0 }).unwrap();
        self.tape.define(definition::Shape { kernel, grid_x: 1, ..definition::Shape::default() }).unwrap()
    }

    fn function(&mut self, name: &str) -> u32 {
        let name = self.tape.string(name).unwrap();
        self.tape.define(Function { name, domain: 2, callback_id: 0 }).unwrap()
    }

    fn event<E: Event>(&mut self, row: E) {
        self.tape.event(row).unwrap();
    }

    fn next(&mut self) -> (i64, u64) {
        self.now_ns += 1_000;
        self.correlation += 1;
        (self.now_ns, self.correlation)
    }

    /// A launch of 100 ns and its kernel, which begins 500 ns after the launch.
    fn kernel(&mut self, stack: u32, kernel: &str, duration_ns: u64) {
        let (start_ns, correlation) = self.next();
        let (shape, function) = (self.shape(kernel), self.function("cudaLaunchKernel"));
        let (thread, stream, duration) = (self.thread, self.stream, 100);
        let launch = Launch {
            start_ns,
            duration_ns: duration,
            correlation,
            thread,
            stream,
            shape,
            stack,
            function,
            ..Launch::default()
        };
        self.event(launch);
        self.launched_kernel(correlation, kernel, duration_ns);
    }

    fn launched_kernel(&mut self, correlation: u64, kernel: &str, duration_ns: u64) {
        let (shape, stream, start_ns) = (self.shape(kernel), self.stream, self.now_ns + 500);
        let timing = timing::MEASURED;
        self.event(Kernel { start_ns, duration_ns, correlation, stream, shape, timing, ..Kernel::default() });
    }

    /// A call of the API; returns its correlation id.
    fn api(&mut self, stack: u32, function: &str, duration_ns: u64) -> u64 {
        let (start_ns, correlation) = self.next();
        let (function, thread) = (self.function(function), self.thread);
        self.event(Api { start_ns, duration_ns, correlation, thread, stack, function, ..Api::default() });
        correlation
    }
}

const MAIN: (u8, &str, &str, u32) = (frame_kind::PYTHON, "main", "serve.py", 42);
const FORWARD: (u8, &str, &str, u32) =
    (frame_kind::PYTHON, "forward", "/venv/lib/python3.12/site-packages/llm/model.py", 7);
const LINEAR: (u8, &str, &str, u32) = (frame_kind::OPERATOR, "aten::linear", "", 0);

/// A small service: 1,000 ns of kernels by their stacks, 300 ns by a graph, 60 ns of copies and memsets, 40 ns of
/// work that nobody is known to have launched. 1,400 ns in all.
fn service(trace: &mut Trace) {
    let linear = trace.stack(&[MAIN, FORWARD, LINEAR]);
    let main = trace.stack(&[MAIN]);
    trace.kernel(linear, "void gemm<at::half>(int)", 600);
    trace.kernel(linear, "void gemm<at::half>(int)", 200);
    trace.kernel(linear, "void gemm<float>(int)", 100);
    trace.kernel(main, "softmax", 100);

    let (start_ns, correlation) = trace.next();
    let function = trace.function("cudaGraphLaunch");
    let (thread, stream, stack) = (trace.thread, trace.stream, main);
    let graph = trace.tape.define(Graph { process: 1, native: 5, earlier: 0 }).unwrap();
    let launch = GraphLaunch {
        start_ns,
        duration_ns: 50,
        correlation,
        thread,
        stream,
        graph,
        stack,
        function,
        ..GraphLaunch::default()
    };
    trace.event(launch);
    for _ in 0..3 {
        trace.launched_kernel(correlation, "softmax", 100);
    }

    let correlation = trace.api(linear, "cudaMemcpyAsync", 30);
    let (start_ns, timing) = (trace.now_ns, timing::MEASURED);
    let copy = Memcpy { start_ns, duration_ns: 45, correlation, stream, bytes: 4096, timing, ..Memcpy::default() };
    trace.event(Memcpy { kind: copy_kind::HTOD, source_memory: 1, target_memory: 3, ..copy });
    let correlation = trace.api(0, "cudaMemsetAsync", 20);
    let start_ns = trace.now_ns;
    let memset = Memset { start_ns, duration_ns: 15, correlation, stream, bytes: 64, timing, ..Memset::default() };
    trace.event(Memset { target_memory: 3, ..memset });

    trace.launched_kernel(0, "softmax", 30);
    trace.launched_kernel(999, "early", 10);
    let function = trace.function("cudaStreamSynchronize");
    let start_ns = trace.next().0;
    trace.event(Sync { start_ns, duration_ns: 5_000, thread, kind: 2, stream, stack, function, ..Sync::default() });
}

fn tape(folder: &Path, fill: impl FnOnce(&mut Trace)) -> PathBuf {
    let path = folder.join("run.ktape");
    let tape = TapeWriter::create(&path, &Options::batch("test")).unwrap();
    let mut trace = Trace { tape, stream: 0, thread: 0, now_ns: 1_000, correlation: 0 };
    trace.process(100, "3");
    fill(&mut trace);
    trace.tape.finish().unwrap();
    path
}

fn analyze(args: &[&str]) -> Output {
    common::analyze([&["flamegraph"], args].concat())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Runs `analyze flamegraph --folded` and returns its lines as stacks and weights.
fn folded(tape: &Path, args: &[&str]) -> Vec<(String, u64)> {
    let output = analyze(&[&["--folded", tape.to_str().unwrap()], args].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let parse = |line: &str| line.rsplit_once(' ').map(|(stack, weight)| (stack.to_owned(), weight.parse().unwrap()));
    text(&output.stdout).lines().map(|line| parse(line).unwrap()).collect()
}

fn total(stacks: &[(String, u64)]) -> u64 {
    stacks.iter().map(|(_, weight)| weight).sum()
}

fn weight_of(stacks: &[(String, u64)], stack: &str) -> u64 {
    stacks.iter().find(|(text, _)| text == stack).unwrap_or_else(|| panic!("no {stack} in {stacks:#?}")).1
}

/// A frame as an SVG has it: what it says and how wide it is, in units of weight.
type SvgFrame = (String, u64);

/// The total that an SVG states, and its frames. Fails on what is not well-formed.
fn svg_frames(svg: &str) -> (u64, Vec<SvgFrame>) {
    let mut reader = quick_xml::Reader::from_str(svg);
    let (mut total, mut frames, mut title, mut in_title) = (0, Vec::new(), String::new(), false);
    let number = |tag: &quick_xml::events::BytesStart<'_>, name: &str| -> Option<u64> {
        let value = tag.try_get_attribute(name).unwrap()?;
        Some(std::str::from_utf8(&value.value).unwrap().parse().unwrap())
    };
    loop {
        match reader.read_event().expect("well-formed XML") {
            Xml::Start(tag) if tag.name().as_ref() == b"svg" => total = number(&tag, "total_samples").unwrap_or(total),
            Xml::Start(tag) if tag.name().as_ref() == b"title" => (title, in_title) = (String::new(), true),
            Xml::End(tag) if tag.name().as_ref() == b"title" => in_title = false,
            Xml::Text(part) if in_title => title += &part.decode().unwrap(),
            Xml::GeneralRef(part) if in_title => title += &format!("&{};", part.decode().unwrap()),
            Xml::Empty(tag) if tag.name().as_ref() == b"rect" => {
                frames.extend(number(&tag, "fg:w").map(|width| (title.clone(), width)));
            }
            Xml::Eof => return (total, frames),
            _ => {}
        }
    }
}

#[test]
fn every_nanosecond_stands_under_its_stack() {
    let folder = tempfile::tempdir().unwrap();
    let stacks = folded(&tape(folder.path(), service), &[]);
    let expected = [
        ("main (serve.py:42);forward (llm/model.py:7);aten::linear;gemm<half>", 800),
        ("main (serve.py:42);forward (llm/model.py:7);aten::linear;gemm<float>", 100),
        ("main (serve.py:42);forward (llm/model.py:7);aten::linear;Memcpy HtoD (Pageable -> Device)", 45),
        ("main (serve.py:42);softmax", 400),
        ("[launch not recorded];softmax", 30),
        ("[launch not recorded];early", 10),
        ("[launched without a recorded stack];Memset (Device)", 15),
    ];
    assert_eq!(stacks, expected.map(|(stack, weight)| (stack.to_owned(), weight)), "the widest first");
    assert_eq!(total(&stacks), 1_400);
}

#[test]
fn each_value_has_its_own_sum() {
    let folder = tempfile::tempdir().unwrap();
    let tape = tape(folder.path(), service);
    let launches = folded(&tape, &["--value", "launches"]);
    assert_eq!(total(&launches), 5);
    assert_eq!(weight_of(&launches, "main (serve.py:42);cudaGraphLaunch"), 1);
    let api = folded(&tape, &["--value", "api"]);
    assert_eq!(total(&api), 4 * 100 + 50 + 30 + 20 + 5_000);
    assert_eq!(weight_of(&api, "main (serve.py:42);cudaStreamSynchronize"), 5_000);
    assert_eq!(total(&folded(&tape, &["--value", "copies"])), 60);
    assert_eq!(total(&folded(&tape, &["--value", "bytes"])), 4_096);
}

#[test]
fn the_root_can_be_a_kernel_a_stream_or_a_rank() {
    let folder = tempfile::tempdir().unwrap();
    let tape = tape(folder.path(), |trace| {
        service(trace);
        trace.process(200, "4");
        let stack = trace.stack(&[MAIN]);
        trace.kernel(stack, "softmax", 7);
    });
    let kernels = folded(&tape, &["--by", "kernel"]);
    assert_eq!(weight_of(&kernels, "gemm<half>;main (serve.py:42);forward (llm/model.py:7);aten::linear"), 800);
    let streams = folded(&tape, &["--by", "stream"]);
    assert_eq!(weight_of(&streams, "stream 7 (device 0, pid 200);main (serve.py:42);softmax"), 7);
    let ranks = folded(&tape, &["--by", "rank"]);
    assert_eq!(weight_of(&ranks, "rank 4 (pid 200);main (serve.py:42);softmax"), 7);
    assert_eq!(weight_of(&ranks, "rank 3 (pid 100);main (serve.py:42);softmax"), 400);
    assert_eq!([kernels, streams, ranks].map(|stacks| total(&stacks)), [1_407; 3]);
}

#[test]
fn a_filter_keeps_whole_stacks() {
    let folder = tempfile::tempdir().unwrap();
    let tape = tape(folder.path(), service);
    assert_eq!(total(&folded(&tape, &["--filter", "aten::.*"])), 945);
    assert_eq!(total(&folded(&tape, &["--filter", "^softmax$"])), 430);
    assert_eq!(total(&folded(&tape, &["--filter", "."])), 1_400);
    let nothing = analyze(&["--folded", tape.to_str().unwrap(), "--filter", "no such frame"]);
    assert_eq!(nothing.status.code(), Some(1));
    assert!(text(&nothing.stderr).contains("no frame matches `no such frame`"), "{}", text(&nothing.stderr));
}

#[test]
fn reversed_stacks_begin_with_the_kernel() {
    let folder = tempfile::tempdir().unwrap();
    let tape = tape(folder.path(), service);
    let reversed = folded(&tape, &["--reverse"]);
    assert_eq!(total(&reversed), 1_400);
    assert_eq!(reversed[0].0, "gemm<half>;aten::linear;forward (llm/model.py:7);main (serve.py:42)");
    let softmax = reversed.iter().filter(|(stack, _)| stack.starts_with("softmax;"));
    assert_eq!(softmax.map(|(_, weight)| weight).sum::<u64>(), 430);
}

#[test]
fn a_selection_of_time_or_kind_keeps_the_stacks() {
    let folder = tempfile::tempdir().unwrap();
    let tape = tape(folder.path(), service);
    let kernels = folded(&tape, &["--kind", "kernel"]);
    assert_eq!(total(&kernels), 1_340);
    assert_eq!(weight_of(&kernels, "main (serve.py:42);softmax"), 400);
    // The first launch is the first event and takes 100 ns; its kernel begins 500 ns after it.
    let first = folded(&tape, &["--from", "450ns", "--to", "600ns"]);
    assert_eq!(first, [("main (serve.py:42);forward (llm/model.py:7);aten::linear;gemm<half>".to_owned(), 600)]);
    assert_eq!(total(&folded(&tape, &["--value", "launches", "--from", "500ns", "--to", "1500ns"])), 1);
}

#[test]
fn odd_names_lose_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let tape = tape(folder.path(), |trace| {
        for (index, name) in ODD_NAMES.iter().enumerate() {
            let stack = trace.stack(&[(frame_kind::RANGE, name, "", 0), (frame_kind::OPERATOR, name, "", 0)]);
            trace.kernel(stack, name, 1_000 + index as u64);
            trace.kernel(0, name, 10_000);
            let root = trace.stack(&[(frame_kind::RANGE, name, "", 0)]);
            trace.kernel(root, "same", 1);
        }
    });
    let sum = (0..8).map(|index| 1_000 + index).sum::<u64>() + 8 * 10_000 + 8;
    let stacks = folded(&tape, &[]);
    assert_eq!(total(&stacks), sum);
    assert!(stacks.iter().all(|(stack, _)| (2..=3).contains(&stack.split(';').count())), "{stacks:#?}");
    assert_eq!(weight_of(&stacks, "step\u{a0}12;step\u{a0}12;step\u{a0}12"), 1_001);
    assert_eq!(weight_of(&stacks, "[no name];[no name];[unnamed kernel]"), 1_003);
    let svg = folder.path().join("out.svg");
    for more in [&[][..], &["--reverse"], &["--by", "kernel"], &["--by", "rank", "--reverse"]] {
        let args = [&[tape.to_str().unwrap(), "--force", "-o", svg.to_str().unwrap()], more].concat();
        assert_eq!(analyze(&args).status.code(), Some(0));
        let (total, frames) = svg_frames(&fs::read_to_string(&svg).unwrap());
        assert_eq!(total, sum, "{more:?}");
        let of_kernel: u64 =
            frames.iter().filter(|frame| frame.0.starts_with("same (")).map(|frame| frame.1).max().unwrap();
        assert!(of_kernel >= 1_006, "{more:?}: {frames:?}");
        assert!(frames.iter().all(|(title, _)| !title.is_empty()));
    }
}

#[test]
fn the_svg_draws_the_stacks_and_says_the_total() {
    let folder = tempfile::tempdir().unwrap();
    let tape = tape(folder.path(), service);
    let path = folder.path().join("out.svg");
    let output = analyze(&[tape.to_str().unwrap(), "-o", path.to_str().unwrap(), "--title", "A <b> & \"c\""]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let svg = fs::read_to_string(&path).unwrap();
    assert!(svg.contains("A &lt;b&gt; &amp; "), "the title is escaped");
    assert!(svg.contains("1.4 µs (1,400 ns) of kernels, copies and memsets, exact"));
    assert!(text(&output.stderr).contains("1.4 µs (1,400 ns) of kernels"));
    assert!(svg.contains("color-scheme: only light"), "a browser that darkens pages must leave the text readable");
    let (total, frames) = svg_frames(&svg);
    assert_eq!(total, 1_400);
    let mut sums: HashMap<&str, u64> = HashMap::new();
    for (title, width) in &frames {
        *sums.entry(title.split(" (").next().unwrap()).or_default() += width;
    }
    for (frame, weight) in [("all", 1_400), ("main", 1_345), ("forward", 945), ("softmax", 430), ("early", 10)] {
        assert_eq!(sums[frame], weight, "{frame}");
    }
    for title in ["all (1,400 ns, 100%)", "gemm&lt;half&gt; (800 ns, 57.14%)"] {
        assert!(frames.iter().any(|frame| frame.0 == title), "no {title} in {frames:#?}");
    }
}

#[test]
fn thin_frames_are_counted_where_they_are_not_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let tape = tape(folder.path(), |trace| {
        let stack = trace.stack(&[MAIN]);
        trace.kernel(stack, "wide", 1_000_000_000_001);
        for thin in 0..5 {
            trace.kernel(stack, &format!("thin_{thin}"), 3);
        }
        trace.kernel(0, "thin at the root", 7);
    });
    let path = folder.path().join("out.svg");
    let output = analyze(&[tape.to_str().unwrap(), "-o", path.to_str().unwrap()]);
    assert!(text(&output.stderr).contains("9 frames, 7 of them too thin"), "{}", text(&output.stderr));
    let svg = fs::read_to_string(&path).unwrap();
    assert!(svg.contains("7 frames are too thin to be drawn"));
    let (total, frames) = svg_frames(&svg);
    assert_eq!(total, 1_000_000_000_023);
    assert!(frames.iter().any(|frame| frame.0.starts_with("main (serve.py:42) (1,000,000,000,016 ns")), "{frames:?}");
}

#[test]
fn speedscope_follows_its_schema() {
    let folder = tempfile::tempdir().unwrap();
    let tape = tape(folder.path(), service);
    let path = folder.path().join("out.json");
    let profile = |args: &[&str]| -> Json {
        let file = [tape.to_str().unwrap(), "--force", "--speedscope", path.to_str().unwrap()];
        let output = analyze(&[&file, args].concat());
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap()
    };
    for (value, unit, sum) in [("gpu", "nanoseconds", 1_400), ("bytes", "bytes", 4_096), ("launches", "none", 5)] {
        for by in ["stack", "kernel", "stream", "rank"] {
            let file = profile(&["--value", value, "--by", by]);
            assert_eq!(check_speedscope(&file, unit), sum, "{value} by {by}");
        }
    }
    let file = profile(&[]);
    let frames = file["shared"]["frames"].as_array().unwrap();
    let forward = frames.iter().find(|frame| frame["name"] == "forward").unwrap();
    assert_eq!((&forward["file"], &forward["line"]), (&Json::from(FORWARD.2), &Json::from(7)));
}

/// Checks what the schema of speedscope's file format asks for; returns the sum of all weights.
fn check_speedscope(file: &Json, unit: &str) -> u64 {
    let only = |object: &Json, keys: &[&str]| {
        assert!(object.as_object().unwrap().keys().all(|key| keys.contains(&key.as_str())), "{object}");
    };
    only(file, &["$schema", "exporter", "name", "shared", "profiles", "activeProfileIndex"]);
    assert_eq!(file["$schema"], "https://www.speedscope.app/file-format-schema.json");
    let frames = file["shared"]["frames"].as_array().unwrap();
    for frame in frames {
        only(frame, &["name", "file", "line", "col"]);
        assert!(frame["name"].is_string());
        assert!(frame.get("file").is_none_or(Json::is_string) && frame.get("line").is_none_or(Json::is_u64));
    }
    let profiles = file["profiles"].as_array().unwrap();
    assert!((file["activeProfileIndex"].as_u64().unwrap() as usize) < profiles.len());
    let mut sum = 0;
    for profile in profiles {
        only(profile, &["type", "name", "unit", "startValue", "endValue", "samples", "weights"]);
        assert_eq!((&profile["type"], &profile["unit"]), (&Json::from("sampled"), &Json::from(unit)));
        assert!(profile["name"].is_string());
        let (samples, weights) = (profile["samples"].as_array().unwrap(), profile["weights"].as_array().unwrap());
        assert_eq!(samples.len(), weights.len());
        let in_range = |frame: &Json| (frame.as_u64().unwrap() as usize) < frames.len();
        assert!(samples.iter().all(|sample| sample.as_array().unwrap().iter().all(in_range)));
        let weight: u64 = weights.iter().map(|weight| weight.as_u64().unwrap()).sum();
        assert_eq!(weight, profile["endValue"].as_u64().unwrap() - profile["startValue"].as_u64().unwrap());
        sum += weight;
    }
    sum
}

#[test]
fn the_same_tape_gives_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let tape = tape(folder.path(), |trace| {
        for index in 0..200 {
            let name = format!("operator_{}", index % 17);
            let stack = trace.stack(&[MAIN, (frame_kind::OPERATOR, &name, "", 0)]);
            trace.kernel(stack, &format!("kernel_{}", index % 23), 10);
        }
    });
    let draw = |threads: &str| {
        let path = folder.path().join("out.svg");
        let output = Command::new(env!("CARGO_BIN_EXE_analyze"))
            .args(["flamegraph", "--force", tape.to_str().unwrap(), "-o", path.to_str().unwrap()])
            .env("RAYON_NUM_THREADS", threads)
            .output();
        assert!(output.unwrap().status.success());
        fs::read(path).unwrap()
    };
    assert!(draw("1") == draw("4"));
}

#[test]
fn a_tape_without_device_times_says_what_can_be_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let tape = tape(folder.path(), |trace| {
        let stack = trace.stack(&[MAIN]);
        let (shape, thread, stream) = (trace.shape("gemm"), trace.thread, trace.stream);
        for correlation in 1..=3 {
            let start_ns = trace.next().0;
            trace.event(Launch { start_ns, correlation, thread, stream, shape, stack, ..Launch::default() });
            trace.event(Kernel { start_ns, correlation, stream, shape, timing: timing::ABSENT, ..Kernel::default() });
        }
    });
    let output = analyze(&["--folded", tape.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(
        said.contains("no device times (3 device operations, 3 host calls)") && said.contains("--value api"),
        "{said}"
    );
    assert_eq!(folded(&tape, &["--value", "launches"]), [("main (serve.py:42);gemm".to_owned(), 3)]);
}

#[test]
fn bounded_times_are_called_bounds_and_losses_come_first() {
    let folder = tempfile::tempdir().unwrap();
    let tape = tape(folder.path(), |trace| {
        service(trace);
        let (shape, stream, timing) = (trace.shape("bounded"), trace.stream, timing::BOUNDED);
        trace.event(Kernel { start_ns: 1, duration_ns: 5, stream, shape, timing, ..Kernel::default() });
        trace.event(Loss { start_ns: 1, count: 1_234, ..Loss::default() });
    });
    let path = folder.path().join("out.svg");
    let output = analyze(&[tape.to_str().unwrap(), "-o", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(3), "done, but events were lost");
    let said = text(&output.stderr);
    assert!(said.lines().next().unwrap().ends_with("1,234 events were lost"), "{said}");
    assert!(said.contains("1 of 12 are upper bounds"), "{said}");
    let svg = fs::read_to_string(&path).unwrap();
    assert!(svg.contains("1,234 events were lost") && svg.contains("1 of 12 are upper bounds"));
}

#[test]
fn a_sum_that_cannot_be_true_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let tape = tape(folder.path(), |trace| (0..3).for_each(|_| trace.kernel(0, "damaged", u64::MAX)));
    let output = analyze(&["--folded", tape.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("exceeds 64 bits"), "{}", text(&output.stderr));
}

#[test]
fn an_endless_stack_is_cut_and_said() {
    let folder = tempfile::tempdir().unwrap();
    let tape = tape(folder.path(), |trace| {
        let frames: Vec<_> = (0..5_000).map(|line| (frame_kind::PYTHON, "f", "f.py", line)).collect();
        let stack = trace.stack(&frames);
        trace.kernel(stack, "gemm", 11);
    });
    let stacks = folded(&tape, &[]);
    assert_eq!(total(&stacks), 11);
    assert!(stacks[0].0.starts_with("[callers beyond 2048 frames];f (f.py:"));
}

#[test]
fn files_are_replaced_only_by_force() {
    let folder = tempfile::tempdir().unwrap();
    let tape = tape(folder.path(), service);
    let path = folder.path().join("kept.svg");
    fs::write(&path, "kept").unwrap();
    let args = [tape.to_str().unwrap(), "-o", path.to_str().unwrap()];
    let output = analyze(&args);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("--force"));
    assert_eq!(fs::read_to_string(&path).unwrap(), "kept");
    assert_eq!(analyze(&[&args[..], &["--force"]].concat()).status.code(), Some(0));
    assert!(fs::read_to_string(&path).unwrap().starts_with("<?xml"));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing is left beside it");
}

/// Every trace for which there is an independent count in integer nanoseconds.
#[test]
fn real_traces_sum_to_an_independent_count() {
    let Some(shared) = common::shared() else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut traces = 0;
    for entry in fs::read_dir(shared.join("reference")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if !name.starts_with("exact-") || name.starts_with("exact-nsys") {
            continue;
        }
        let count: Json = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        let trace = shared.join("traces").join(count["trace"].as_str().unwrap());
        let tape = folder.path().join(format!("{name}.ktape"));
        let mut writer = TapeWriter::create(&tape, &Options::batch("test")).unwrap();
        import::import(&trace, &mut writer, import::Options::default(), |_| {}).unwrap();
        writer.finish().unwrap();
        let devices = count["devices"].as_object().unwrap().values();
        let exact: u64 = devices.map(|device| device["sum_dur_ns"].as_u64().unwrap()).sum();
        for args in [&[][..], &["--reverse"], &["--by", "kernel"], &["--by", "stream"]] {
            assert_eq!(total(&folded(&tape, args)), exact, "{name} {args:?}");
        }
        traces += 1;
    }
    assert!(traces >= 9, "{traces} traces");
}

/// What rollups have of a value, by the tables that their rows speak of.
fn rolled_up(timeline: &Timeline, value: Value) -> u128 {
    const CALLS: [&str; 6] = ["launch", "graph_launch", "api", "sync", "event_record", "event_wait"];
    let (kinds, column): (&[&str], fn(&Rollup) -> u64) = match value {
        Value::Gpu => (&["kernel", "memcpy", "memset"], |row| row.sum_ns),
        Value::Copies => (&["memcpy", "memset"], |row| row.sum_ns),
        Value::Bytes => (&["memcpy"], |row| row.bytes),
        Value::Cpu => (&["cpu_sample"], |row| row.sum_ns),
        Value::Samples => (&["cpu_sample"], |row| row.count),
        Value::Sync => (&["sync"], |row| row.sum_ns),
        Value::Launches => (&CALLS[..1], |row| row.count),
        Value::Api => (&CALLS, |row| row.sum_ns),
    };
    let known = KnownTables::new();
    let rows = timeline.events.rollup.rows().filter(|row| kinds.contains(&known.name(row.kind).as_str()));
    let graphs = timeline.events.rollup.rows().filter(|row| known.name(row.kind) == CALLS[1]).map(|row| {
        let ran = if timeline.host_only { row.count.saturating_sub(row.failed) } else { 0 };
        u128::from(ran) * weight_of_launch(expanded(timeline, row.graph)) + u128::from(row.count - ran)
    });
    let graphs = if value == Value::Launches { graphs.sum() } else { 0 };
    graphs + rows.map(|row| u128::from(column(&row))).sum::<u128>()
}

/// What a launch of a graph with so many kernels weighs: it stands for itself where not all is known, or none runs.
fn weight_of_launch((kernels, is_whole): (u128, bool)) -> u128 {
    kernels + u128::from(kernels == 0 || !is_whole)
}

/// What a value adds up, counted without stacks.
fn sum_of(timeline: &Timeline, value: Value) -> u128 {
    rolled_up(timeline, value) + sum_of_events(timeline, value)
}

fn sum_of_events(timeline: &Timeline, value: Value) -> u128 {
    let events = &timeline.events;
    let sum = |values: &[u64]| values.iter().map(|&value| u128::from(value)).sum::<u128>();
    // An operation cannot end after the end of time, whatever its row says.
    let device = |starts: &[i64], durations: &[u64]| {
        let row =
            |(&start, &duration): (&i64, &u64)| u128::from(start.saturating_add_unsigned(duration).abs_diff(start));
        starts.iter().zip(durations).map(row).sum::<u128>()
    };
    let copies = device(&events.memcpy.start_ns, &events.memcpy.duration_ns)
        + device(&events.memset.start_ns, &events.memset.duration_ns);
    match value {
        Value::Gpu => copies + device(&events.kernel.start_ns, &events.kernel.duration_ns),
        Value::Copies => copies,
        Value::Bytes => sum(&events.memcpy.bytes),
        Value::Cpu => sum(&events.cpu_sample.weight_ns),
        Value::Samples => events.cpu_sample.len() as u128,
        Value::Sync => sum(&events.sync.duration_ns),
        Value::Launches => {
            let graphs = events.graph_launch.rows().map(|row| {
                weight_of_launch(match row.result {
                    0 if timeline.host_only => expanded(timeline, row.graph),
                    _ => (0, false),
                })
            });
            events.launch.len() as u128 + graphs.sum::<u128>()
        }
        Value::Api => [
            &events.launch.duration_ns,
            &events.graph_launch.duration_ns,
            &events.api.duration_ns,
            &events.sync.duration_ns,
            &events.event_record.duration_ns,
            &events.event_wait.duration_ns,
        ]
        .map(|durations| sum(durations))
        .iter()
        .sum(),
    }
}

/// How many kernels a graph runs, and whether all of it is known.
fn expanded(timeline: &Timeline, graph: u32) -> (u128, bool) {
    // Of one that is told of twice the last counts.
    let nodes = timeline.definitions.graph_nodes.rows().filter(|node| node.graph == graph);
    let nodes: BTreeMap<u32, GraphNode> = nodes.map(|node| (node.index, node)).collect();
    let is_told = graph != 0 && !nodes.is_empty();
    nodes.into_values().filter(|_| is_told).fold((0, is_told), |(kernels, is_whole), node| match node.kind {
        node_kind::KERNEL => (kernels + 1, is_whole),
        node_kind::UNKNOWN | node_kind::CONDITIONAL => (kernels, false),
        node_kind::GRAPH if node.child >= graph => (kernels, false),
        node_kind::GRAPH => {
            let (inner, is_inner_whole) = expanded(timeline, node.child);
            (kernels + inner, is_whole && is_inner_whole)
        }
        _ => (kernels, is_whole),
    })
}

proptest! {
    #[test]
    fn any_tape_sums_exactly_or_says_that_it_cannot(
        numbers in everything::numbers(),
        strings in prop::collection::vec(any::<String>(), 0..6),
        reverse in any::<bool>(),
        by in prop_oneof![Just(By::Stack), Just(By::Kernel), Just(By::Stream), Just(By::Rank)],
    ) {
        let timeline = everything::timeline(&numbers, &strings);
        for &value in Value::value_variants() {
            let exact = sum_of(&timeline, value);
            let Ok(weights) = weigh(&timeline, value, GraphStacks::default()) else {
                prop_assert!(exact > u128::from(u64::MAX));
                continue;
            };
            prop_assert_eq!(u128::from(weights.total), exact);
            let tree = Tree::new(&timeline, &weights, &Shape { by, filter: None, reverse });
            prop_assert_eq!(u128::from(tree.total()), exact);
            let mut text = Vec::new();
            folded::write(&tree, &mut text).unwrap();
            let text = String::from_utf8(text).unwrap();
            let weight = |line: &str| line.rsplit_once(' ').unwrap().1.parse::<u128>().unwrap();
            prop_assert_eq!(text.lines().map(weight).sum::<u128>(), exact);
            if exact > 0 {
                let caption = Caption { title: String::new(), subtitle: String::new(), unit: "ns".to_owned(), hanging: reverse };
                let mut svg = Vec::new();
                svg::write(&tree, &caption, &mut svg).unwrap();
                prop_assert_eq!(u128::from(svg_frames(&String::from_utf8(svg).unwrap()).0), exact);
            }
        }
    }
}
