use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use ktape_format::definition::{Frame, Function, KernelName, Process, Shape, Stack, Thread};
use ktape_format::event::{Launch, Rollup};
use ktape_format::{Memory, Row as _, Sink as _, Table as _, Wanted};

use super::*;

fn worker(directory: &Path) -> Worker {
    let options = Options {
        directory: directory.to_owned(),
        size_bytes: 1 << 20,
        time: Duration::from_secs(600),
        keep_bytes: None,
        keep_age: None,
    };
    Worker {
        options,
        folder: Folder::open(directory).unwrap(),
        ended: u64::MAX,
        kept: Kept::default(),
        waiting: Arc::default(),
        is_room_asked: Arc::default(),
    }
}

/// Ten minutes of a service with 400 places in its code that launch, of which each segment sees most, at about the same times.
fn segment(number: u64) -> Memory {
    let mut memory = Memory::default();
    let Ok(process) = memory.define(Process { pid: 7, start_ns: 5, ..Process::default() });
    let Ok(thread) = memory.define(Thread { process, tid: 7 });
    let Ok(name) = memory.string("cuLaunchKernel");
    let Ok(function) = memory.define(Function { name, ..Function::default() });
    for place in (0..400).filter(|place| !(place + number).is_multiple_of(7)) {
        let mut parent = 0;
        for depth in 0..12 {
            let branch = if depth < 6 { 0 } else { place >> (11 - depth) };
            let Ok(name) = memory.string(&format!("model.layers.{depth}.{branch}.forward"));
            let Ok(file) = memory.string(&format!("/opt/serve/model_{depth}.py"));
            let Ok(frame) = memory.define(Frame { name, file, ..Frame::default() });
            let Ok(id) = memory.define(Stack { parent, frame, line: 10 + place as u32 });
            parent = id;
        }
        let Ok(name) = memory.string(&format!("_ZN7cutlass6KernelI{place}EEvNT_6ParamsE"));
        let Ok(kernel) = memory.define(KernelName { name, module: 0 });
        let Ok(shape) = memory.define(Shape { kernel, grid_x: 64, ..Shape::default() });
        for call in 0..3_u64 {
            let duration_ns = 3000 + place * 17 + ((number + call) * 1_103_515_245 % 4096);
            let start_ns = (number * 600_000_000_000 + place * 1_000_000 + call) as i64;
            let Ok(()) = memory.event(Launch {
                start_ns,
                duration_ns,
                thread,
                shape,
                stack: parent,
                function,
                ..Launch::default()
            });
        }
    }
    memory
}

fn begin_s(number: u64) -> i64 {
    // 2026-11-01T00:00:00Z, and a segment every ten minutes.
    1_793_491_200 + 600 * (number as i64 - 1)
}

#[test]
fn a_month_of_rollups_is_a_few_megabytes_and_exact() {
    const DAYS: u64 = 30;
    let folder = tempfile::tempdir().unwrap();
    let mut worker = worker(folder.path());
    let mut expected: BTreeMap<String, (u64, u64, u64, u64)> = BTreeMap::new();
    for number in 1..=144 * DAYS {
        let memory = segment(number);
        let definitions = &memory.definitions;
        for row in memory.events.launch.rows() {
            let sums = expected.entry(definitions.kernel_name(row.shape).to_owned()).or_insert((0, 0, u64::MAX, 0));
            let duration_ns = row.duration_ns;
            *sums = (sums.0 + 1, sums.1 + duration_ns, sums.2.min(duration_ns), sums.3.max(duration_ns));
        }
        let mut digest = Digest::default();
        digest.add_events(definitions, &memory.events);
        let name = Name { recording: "node".to_owned(), begin_s: begin_s(number), segments: (number, number) };
        let file = worker.folder.create(&name.rollup()).unwrap();
        let mut tape = TapeWriter::new(file, &TapeOptions::batch("test")).unwrap();
        digest.write(&mut tape).unwrap();
        tape.finish().unwrap();
        if number % 36 == 0 {
            worker.merge().unwrap();
        }
    }
    assert_eq!(worker.kept.troubles, Vec::<String>::new());
    let recording = worker.folder.list().unwrap();
    assert!(recording.segments.len() < 31 + MOST_ROLLUPS, "{}", recording.segments.len());
    assert_eq!(recording.last(), 144 * DAYS);
    let bytes: u64 =
        recording.segments.iter().map(|s| std::fs::metadata(s.rollup.as_ref().unwrap()).unwrap().len()).sum();
    println!("{} rollups of {DAYS} days: {bytes} bytes", recording.segments.len());
    assert!(bytes < 5_000_000, "{bytes}");
    let mut found: BTreeMap<String, (u64, u64, u64, u64)> = BTreeMap::new();
    for segment in &recording.segments {
        let contents = Tape::open(segment.rollup.as_ref().unwrap()).unwrap().read(&Wanted::default()).unwrap();
        for row in contents.events.rollup.rows() {
            assert_eq!(row.kind, Launch::KIND);
            let kernel: KernelName = contents.definitions.get(row.kernel).unwrap();
            let name = contents.definitions.string(kernel.name).to_owned();
            let Rollup { count, sum_ns, min_ns, max_ns, .. } = row;
            let sums = found.entry(name).or_insert((0, 0, u64::MAX, 0));
            *sums = (sums.0 + count, sums.1 + sum_ns, sums.2.min(min_ns), sums.3.max(max_ns));
        }
    }
    assert_eq!(found, expected);
    // The month is over: one file.
    let next = Name {
        recording: "node".to_owned(),
        begin_s: begin_s(144 * DAYS + 1),
        segments: (144 * DAYS + 1, 144 * DAYS + 1),
    };
    std::fs::write(folder.path().join(next.tape()), "").unwrap();
    worker.merge().unwrap();
    let recording = worker.folder.list().unwrap();
    let ranges: Vec<(u64, u64)> = recording.segments.iter().map(|segment| segment.name.segments).collect();
    assert_eq!(ranges, [(1, 144 * DAYS), (144 * DAYS + 1, 144 * DAYS + 1)]);
    println!("one rollup: {} bytes", std::fs::metadata(recording.segments[0].rollup.as_ref().unwrap()).unwrap().len());
}

#[test]
fn a_segment_that_cannot_be_read_costs_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let mut worker = worker(folder.path());
    (worker.options.keep_bytes, worker.options.keep_age) = (Some(1 << 40), Some(Duration::from_secs(1 << 20)));
    let name = |number| Name { recording: "node".to_owned(), begin_s: begin_s(number), segments: (number, number) };
    for number in [1, 3] {
        let file = worker.folder.create(&name(number).tape()).unwrap();
        let mut tape = TapeWriter::new(file, &TapeOptions::batch("test")).unwrap();
        tape.event(Launch { start_ns: 5, ..Launch::default() }).unwrap();
        tape.finish().unwrap();
    }
    // As a power loss may leave it.
    std::fs::write(folder.path().join(name(2).tape()), "").unwrap();
    worker.tidy();
    let segments = worker.folder.list().unwrap().segments;
    let left: Vec<_> = segments
        .iter()
        .map(|segment| (segment.name.segments.0, segment.tape.is_some(), segment.rollup.is_some()))
        .collect();
    assert_eq!(left, [(1, true, true), (2, true, false), (3, true, true)]);
    let [trouble] = &worker.kept.troubles[..] else { panic!("{:?}", worker.kept.troubles) };
    assert!(trouble.contains(&name(2).tape()) && trouble.contains("no rollup"), "{trouble}");
    worker.tidy();
    assert_eq!(worker.kept.troubles.len(), 1, "it is told once");
}
