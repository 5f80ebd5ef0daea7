//! NCCL's calls on the tape, against the record of the stand-in for NCCL.

use std::collections::BTreeMap;
use std::path::Path;

use ktape_capture::probes::collectives::{COLLECTIVES, REDUCTIONS, TYPES};
use ktape_format::definition::{Frame, Function, Thread, api_domain};
use ktape_format::{Table as _, Tape, Wanted};
use serde_json::{Value, json};

use crate::processes::{Scene, pythons, skip};

/// A call: function, result, arguments as the tape says them.
#[derive(Debug, PartialEq)]
struct Call {
    function: String,
    result: i64,
    arguments: Value,
    start_ns: i64,
    end_ns: i64,
}

type Threads = BTreeMap<i64, Vec<Call>>;

/// What the stand-in wrote.
fn truth(path: &Path) -> Threads {
    let text = std::fs::read_to_string(path).expect("the stand-in's record");
    let mut communicators = BTreeMap::new();
    let mut threads = Threads::new();
    let mut lines: Vec<(i64, &str)> = text
        .lines()
        .map(|line| (line.split(' ').nth(3).and_then(|start| start.parse().ok()).expect("a time"), line))
        .collect();
    lines.sort_unstable();
    for (start_ns, line) in lines {
        let mut fields = line.split(' ');
        let mut next = || fields.next().expect("a field");
        let (thread, function, result) = (next(), next(), next());
        let end_ns = { (next(), next()).1.parse().expect("a time") };
        let given: BTreeMap<&str, i64> = fields
            .filter_map(|field| field.split_once('='))
            .map(|(key, value)| (key, value.parse().expect("a number")))
            .collect();
        if !COLLECTIVES.iter().any(|known| known.name == function) {
            continue;
        }
        let mut arguments = json!({});
        if let Some(&count) = given.get("count") {
            arguments["count"] = count.into();
            match TYPES.get(given["type"] as usize) {
                Some((name, bytes)) => {
                    arguments["type"] = (*name).into();
                    arguments["bytes"] = (count as u64 * bytes).into();
                }
                None => arguments["type"] = given["type"].into(),
            }
            if given["op"] >= 0 {
                arguments["reduction"] = REDUCTIONS.get(given["op"] as usize).copied().unwrap_or("custom").into();
            }
            if given["with_rank"] >= 0 {
                arguments["with_rank"] = given["with_rank"].into();
            }
        }
        if let Some(&stream) = given.get("stream") {
            arguments["stream"] = stream.into();
        }
        for key in ["rank", "ranks"] {
            if let Some(&value) = given.get(key) {
                arguments[key] = value.into();
            }
        }
        if let Some(communicator) = given.get("comm") {
            arguments["communicator"] = (*communicator).into();
            if let Some((rank, ranks)) = communicators.get(communicator) {
                (arguments["rank"], arguments["ranks"]) = (json!(rank), json!(ranks));
            }
        }
        // The program's own handles: the stand-in says them where it made one.
        if let (Some(made), "0") = (given.get("made"), result) {
            communicators.insert(*made, (given["rank"], given["ranks"]));
        }
        if let ("ncclCommDestroy" | "ncclCommAbort", Some(gone)) = (function, given.get("comm")) {
            communicators.remove(gone);
        }
        threads.entry(thread.parse().expect("a thread")).or_default().push(Call {
            function: function.to_owned(),
            result: result.parse().expect("a result"),
            arguments,
            start_ns,
            end_ns,
        });
    }
    threads
}

/// NCCL's calls on the tape; all have the stack of Python's function that called.
fn recorded(path: &Path) -> Threads {
    let tape = Tape::open(path).expect("the tape opens");
    let contents = tape.read(&Wanted::default()).expect("the tape is read");
    let definitions = &contents.definitions;
    let mut threads = Threads::new();
    for row in contents.events.api.rows() {
        let function: Function = definitions.get(row.function).expect("a function");
        let name = definitions.string(function.name);
        if !name.starts_with("nccl") {
            continue;
        }
        assert_eq!(function.domain, api_domain::NCCL);
        let (_, innermost) = definitions.stack_nodes(row.stack).next().expect("a stack");
        let frame: Frame = definitions.get(innermost.frame).expect("a frame");
        assert!(["call", "communicator", "main"].contains(&definitions.string(frame.name)), "{name}");
        let thread: Thread = definitions.get(row.thread).expect("a thread");
        threads.entry(thread.tid).or_default().push(Call {
            function: name.to_owned(),
            result: row.result.into(),
            arguments: serde_json::from_str(definitions.string(row.args)).unwrap_or(json!({})),
            start_ns: row.start_ns,
            end_ns: row.start_ns + row.duration_ns as i64,
        });
    }
    threads.values_mut().for_each(|calls| calls.sort_by_key(|call| call.start_ns));
    threads
}

#[test]
fn every_collective_is_recorded_with_its_bytes_and_communicator() {
    for python in pythons() {
        let Some(scene) = Scene::new("collectives") else { return };
        if !scene.has_library("libnccl.so.2") {
            skip("collectives: no stand-in for NCCL: it takes a C compiler");
            return;
        }
        let (tape, told) = (scene.path("run.ktape"), scene.path("told"));
        let mut run = scene.capture(&["run", "-o", &tape, "--", &python, &scene.fixture("workloads/collectives.py")]);
        let output = run.env("SIMNCCL_TRUTH", &told).output().expect("capture starts");
        assert!(output.status.success(), "{python}: {}", String::from_utf8_lossy(&output.stderr));
        let (expected, found) = (truth(Path::new(&told)), recorded(Path::new(&tape)));
        assert_eq!(expected.keys().collect::<Vec<_>>(), found.keys().collect::<Vec<_>>());
        let mut functions = std::collections::BTreeSet::new();
        for (thread, expected) in &expected {
            let found = &found[thread];
            assert_eq!(expected.len(), found.len(), "thread {thread}");
            for (index, (expected, found)) in expected.iter().zip(found).enumerate() {
                let told = |call: &Call| (call.function.clone(), call.result, call.arguments.clone());
                assert_eq!(told(expected), told(found), "{python}: call {index} of thread {thread}");
                assert!(found.start_ns <= expected.start_ns && expected.end_ns <= found.end_ns, "call {index}");
                functions.insert(expected.function.clone());
            }
        }
        let never: Vec<_> = COLLECTIVES.iter().filter(|known| !functions.contains(known.name)).collect();
        assert!(never.is_empty(), "not called: {never:?}");
    }
}
