//! `analyze dump` from its user's side: each event is one line that says all of it.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use ktape_analyze::export::json_lines;
use ktape_analyze::timeline::Timeline;
use ktape_format::definition::{
    Context, Device, Frame, KernelName, Process, Shape, Stack, Stream, Thread, frame_kind, property,
};
use ktape_format::event::{Counter, Event, KindVisitor, Launch, Loss, Memcpy, visit_kinds};
use ktape_format::table::{DefinitionKind, Refers, Scalar};
use ktape_format::{Memory, Options, Sink, Table, TapeWriter};
use proptest::prelude::*;
use serde_json::value::RawValue;
use serde_json::{Value as Json, json};

use crate::everything;

fn dumped(timeline: &Timeline) -> Vec<String> {
    let mut out = Vec::new();
    json_lines::write(timeline, &mut out).unwrap();
    let out = String::from_utf8(out).unwrap();
    assert!(out.is_empty() || out.ends_with('\n'));
    out.lines().map(str::to_owned).collect()
}

/// A line's fields as they are written, no number read as a float.
type Fields = HashMap<String, Box<RawValue>>;

/// Holds the lines of each kind against its table: same rows, same order, every column, to the last bit.
struct Compare<'a> {
    timeline: &'a Timeline,
    lines: HashMap<String, Vec<Fields>>,
}

impl KindVisitor for Compare<'_> {
    type Error = String;
    fn visit<E: Event>(&mut self) -> Result<(), String> {
        let lines = self.lines.remove(E::NAME).unwrap_or_default();
        let table = E::table(&self.timeline.events);
        if lines.len() != table.len() {
            return Err(format!("{}: {} lines, {} rows", E::NAME, lines.len(), table.len()));
        }
        lines.iter().zip(table.rows()).try_for_each(|(line, row)| self.compare_row(line, &row))
    }
}

impl Compare<'_> {
    fn compare_row<E: Event>(&self, line: &Fields, row: &E) -> Result<(), String> {
        if line.len() != E::COLUMNS.len() + 1 {
            return Err(format!("{}: {line:?} has another number of fields", E::NAME));
        }
        for (column, spec) in E::COLUMNS.iter().enumerate() {
            let name = if spec.name == "kind" { format!("{}_kind", E::NAME) } else { spec.name.to_owned() };
            let text = line.get(&name).ok_or_else(|| format!("{} has no {name}", E::NAME))?.get();
            let bits = row.get(column);
            let same = match spec.refers {
                Refers::Nothing => number(spec.scalar, text) == canonical(spec.scalar, bits),
                Refers::Code(codes) => match codes.get(bits as usize) {
                    Some(code) => text == format!("\"{code}\""),
                    None => text == bits.to_string(),
                },
                Refers::To(kind) => self.stands_for(kind, bits as u32, text),
            };
            if !same {
                return Err(format!("{}.{name}: {text} is not {bits} ({spec:?})", E::NAME));
            }
        }
        Ok(())
    }

    fn stands_for(&self, kind: DefinitionKind, id: u32, text: &str) -> bool {
        let definitions = &self.timeline.definitions;
        let json: Json = serde_json::from_str(text).unwrap();
        let lost = json == json!({ "undefined": id });
        match kind {
            _ if id == 0 => json.is_null(),
            DefinitionKind::String => match definitions.strings.get(id as usize - 1) {
                Some(string) => json == **string || serde_json::from_str(string).is_ok_and(|args: Json| args == json),
                None => lost,
            },
            DefinitionKind::Thread => match definitions.get::<Thread>(id) {
                Some(thread) => json["tid"] == json!(thread.tid) && json.get("pid").is_some(),
                None => lost,
            },
            DefinitionKind::Stack => match definitions.get::<Stack>(id) {
                Some(_) => json.as_array().is_some_and(|frames| frames.len() == definitions.stack_nodes(id).count()),
                None => lost,
            },
            DefinitionKind::Shape => match definitions.get::<Shape>(id) {
                Some(shape) => json["grid"] == json!([shape.grid_x, shape.grid_y, shape.grid_z]),
                None => lost,
            },
            DefinitionKind::Stream => match definitions.get::<Stream>(id) {
                Some(stream) => json["stream"] == json!(stream.native),
                None => lost,
            },
            _ => !json.is_null(),
        }
    }
}

/// A column's bits as they are compared: all NaNs are one.
fn canonical(scalar: Scalar, bits: u64) -> u64 {
    let is_nan = scalar == Scalar::F64 && f64::from_bits(bits).is_nan();
    if is_nan { f64::NAN.to_bits() } else { bits }
}

fn number(scalar: Scalar, text: &str) -> u64 {
    match scalar {
        Scalar::F64 => match text {
            "\"NaN\"" => f64::NAN.to_bits(),
            "\"Infinity\"" => f64::INFINITY.to_bits(),
            "\"-Infinity\"" => f64::NEG_INFINITY.to_bits(),
            number => number.parse::<f64>().unwrap().to_bits(),
        },
        Scalar::I32 => u64::from(text.parse::<i32>().unwrap() as u32),
        Scalar::I64 => text.parse::<i64>().unwrap() as u64,
        _ => text.parse().unwrap(),
    }
}

proptest! {
    #[test]
    fn every_event_comes_back(
        numbers in everything::numbers(),
        strings in prop::collection::vec(prop_oneof![any::<String>(), Just(r#"{"a": 1}"#.to_owned())], 0..6),
    ) {
        let timeline = everything::timeline(&numbers, &strings);
        let mut lines: HashMap<String, Vec<Fields>> = HashMap::new();
        let mut starts = Vec::new();
        for line in dumped(&timeline) {
            let fields: Fields = serde_json::from_str(&line).unwrap();
            starts.push(fields["start_ns"].get().parse::<i64>().unwrap());
            let kind = serde_json::from_str(fields["kind"].get()).unwrap();
            lines.entry(kind).or_default().push(fields);
        }
        prop_assert!(starts.is_sorted());
        let mut compare = Compare { timeline: &timeline, lines };
        prop_assert_eq!(visit_kinds(&mut compare), Ok(()));
        prop_assert!(compare.lines.is_empty());
    }
}

/// A process with one launch, one copy and one counter.
fn fill<S: Sink>(sink: &mut S) {
    let mut string = |text: &str| sink.string(text).unwrap();
    let (main, file, linear) = (string("main"), string("/srv/serve.py"), string("aten::linear"));
    let (symbol, object, no_object) = (string("_Z4gemmPfi"), string(r#"{"sizes": [1, 2]}"#), string("not an object"));
    let process = sink.define(Process { pid: 100, ..Process::default() }).unwrap();
    let thread = sink.define(Thread { process, tid: 101 }).unwrap();
    sink.property(DefinitionKind::Thread as u16, thread, property::NAME, "old name").unwrap();
    sink.property(DefinitionKind::Thread as u16, thread, property::NAME, "worker \"1\"").unwrap();
    let device = sink.define(Device { process, index: 3, vendor: 1, uuid: 0 }).unwrap();
    let context = sink.define(Context { process, device, native: 1 }).unwrap();
    let stream = sink.define(Stream { context, native: 7, ..Stream::default() }).unwrap();
    let frame = sink.define(Frame { kind: frame_kind::PYTHON, name: main, file, line: 9 }).unwrap();
    let parent = sink.define(Stack { parent: 0, frame, line: 42 }).unwrap();
    let frame = sink.define(Frame { kind: frame_kind::OPERATOR, name: linear, file: 0, line: 0 }).unwrap();
    let stack = sink.define(Stack { parent, frame, line: 0 }).unwrap();
    let kernel = sink.define(KernelName { name: symbol, module: 0 }).unwrap();
    let grid = Shape { kernel, grid_x: 4, grid_y: 2, grid_z: 1, ..Shape::default() };
    let shape = sink.define(Shape { block_x: 128, block_y: 1, block_z: 1, registers: 32, ..grid }).unwrap();
    let copy = Memcpy { start_ns: 70, duration_ns: 5, stream, bytes: u64::MAX, kind: 1, ..Memcpy::default() };
    sink.event(Memcpy { args: no_object, ..copy }).unwrap();
    let launch = Launch { start_ns: 50, duration_ns: 9, correlation: 4, thread, stream, shape, ..Launch::default() };
    sink.event(Launch { stack, result: -1, args: object, ..launch }).unwrap();
    sink.event(Counter { start_ns: 60, counter: 9, value: 0.1 }).unwrap();
}

#[test]
fn a_line_names_what_its_event_refers_to() {
    let mut memory = Memory::default();
    fill(&mut memory);
    let lines = dumped(&Timeline::new(memory.definitions, memory.events));
    let parsed: Vec<Json> = lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let kinds: Vec<_> = parsed.iter().map(|line| line["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["launch", "counter", "memcpy"], "in time order across kinds");
    assert!(lines[0].starts_with(r#"{"kind":"launch","start_ns":50,"duration_ns":9,"correlation":4,"thread":{"#));
    let [launch, counter, copy] = &parsed[..] else { unreachable!() };
    assert_eq!(launch["thread"], json!({ "pid": 100, "tid": 101, "name": "worker \"1\"" }));
    assert_eq!(launch["stack"], json!(["main (/srv/serve.py:42)", "aten::linear"]));
    let kernel = json!({ "name": "gemm(float*, int)", "symbol": "_Z4gemmPfi", "module": null });
    assert_eq!(launch["shape"]["kernel"], kernel);
    assert_eq!((&launch["shape"]["grid"], &launch["shape"]["registers"]), (&json!([4, 2, 1]), &json!(32)));
    assert_eq!((&launch["result"], &launch["function"]), (&json!(-1), &json!(null)));
    assert_eq!(launch["args"], json!({ "sizes": [1, 2] }));
    let stream = json!({ "pid": 100, "device": 3, "context": 1, "stream": 7, "name": null, "priority": 0, "flags": 0 });
    assert_eq!(launch["stream"], stream);
    assert_eq!((&counter["counter"], &counter["value"]), (&json!({ "undefined": 9 }), &json!(0.1)));
    assert_eq!((&copy["memcpy_kind"], &copy["bytes"]), (&json!("HtoD"), &json!(u64::MAX)));
    assert_eq!(copy["args"], json!("not an object"));
}

fn tape(path: &Path, fill: impl FnOnce(&mut TapeWriter)) {
    let mut writer = TapeWriter::create(path, &Options::batch("test")).unwrap();
    fill(&mut writer);
    writer.finish().unwrap();
}

fn dump(path: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_analyze")).arg("dump").arg(path).args(args).output().unwrap()
}

#[test]
fn the_binary_dumps_the_selection_and_says_losses() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.ktape");
    tape(&path, fill);
    let lines = |args: &[&str]| String::from_utf8(dump(&path, args).stdout).unwrap().lines().count();
    assert_eq!(lines(&[]), 3);
    assert_eq!(lines(&["--kind", "launch,memcpy"]), 2);
    assert_eq!(lines(&["--from", "15ns"]), 1);
    assert_eq!(lines(&["--pid", "100"]), 2, "the counter is nobody's");
    assert_eq!(dump(&path, &[]).status.code(), Some(0));

    let lossy = folder.path().join("lossy.ktape");
    tape(&lossy, |writer| writer.event(Loss { start_ns: 1, count: 5, ..Loss::default() }).unwrap());
    let output = dump(&lossy, &[]);
    assert_eq!(output.status.code(), Some(3));
    assert!(String::from_utf8(output.stderr).unwrap().contains("5 events were lost"));
    assert_eq!(String::from_utf8(output.stdout).unwrap().lines().count(), 1, "only events on standard output");
}

#[test]
fn a_reader_that_goes_away_is_no_fault() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.ktape");
    tape(&path, |writer| {
        for start_ns in 0..20_000 {
            writer.event(Counter { start_ns, counter: 0, value: 1.5 }).unwrap();
        }
    });
    let mut child = Command::new(env!("CARGO_BIN_EXE_analyze"))
        .arg("dump")
        .arg(&path)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Beside a writer at work: every event once, as soon as it is recorded, and an end when the tape is closed.
#[test]
fn a_growing_tape_is_followed_until_it_is_closed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("live.ktape");
    let options = Options { staged: true, half_bytes: 4096, ..Options::batch("test") };
    let mut writer = TapeWriter::create(&path, &options).unwrap();
    let record = |writer: &mut TapeWriter, range: std::ops::Range<i64>| {
        range.for_each(|start_ns| writer.event(Launch { start_ns, ..Launch::default() }).unwrap());
    };
    record(&mut writer, 0..100);
    let mut follower = Command::new(env!("CARGO_BIN_EXE_analyze"))
        .args(["dump", "--follow", path.to_str().unwrap()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(follower.stdout.take().unwrap()).lines();
    let mut expect = |range: std::ops::Range<i64>| {
        for start_ns in range {
            let line: Json = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
            assert_eq!(line["start_ns"], start_ns);
        }
    };
    // Before the tape is closed, from blocks and from a half.
    expect(0..100);
    record(&mut writer, 100..101);
    expect(100..101);
    record(&mut writer, 101..1000);
    writer.finish().unwrap();
    expect(101..1000);
    assert!(lines.next().is_none());
    assert!(follower.wait().unwrap().success());
}

/// They were taken, and no frame was named by them.
#[test]
fn symbols_that_following_would_not_use_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("live.ktape");
    tape(&path, |writer| writer.event(Launch::default()).unwrap());
    assert_eq!(dump(&path, &["--symbols", "/usr/lib"]).status.code(), Some(0));
    assert_eq!(dump(&path, &["--follow", "--symbols", "/usr/lib"]).status.code(), Some(2));
}
