use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use ktape_format::definition::{Frame, Function, KernelName, Process, Shape, Stack, Thread};
use ktape_format::event::{Launch, Rollup};
use ktape_format::{Memory, Row as _, Sink as _, Table as _, Wanted};

use super::*;

fn options(directory: &Path) -> Options {
    Options {
        directory: directory.to_owned(),
        size_bytes: 1 << 20,
        time: Duration::from_secs(600),
        keep_bytes: None,
        keep_age: None,
    }
}

/// Without its thread, and what it tells.
fn worker(directory: &Path) -> (Worker, Receiver<String>) {
    let (troubles, told) = channel();
    let worker = Worker {
        options: options(directory),
        folder: Folder::open(directory).unwrap(),
        ended: u64::MAX,
        failure: None,
        troubles,
        waiting: Arc::default(),
        is_room_asked: Arc::default(),
    };
    (worker, told)
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
    let (mut worker, told) = worker(folder.path());
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
    assert_eq!(told.try_iter().collect::<Vec<_>>(), Vec::<String>::new());
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
    let (mut worker, told) = worker(folder.path());
    (worker.options.keep_bytes, worker.options.keep_age) = (Some(1 << 40), Some(Duration::from_secs(1 << 20)));
    let name = |number| Name { recording: "node".to_owned(), begin_s: begin_s(number), segments: (number, number) };
    for number in [1, 3] {
        let file = worker.folder.create(&name(number).tape()).unwrap();
        let mut tape = TapeWriter::new(file, &TapeOptions::batch("test")).unwrap();
        tape.event(Launch { start_ns: 5, ..Launch::default() }).unwrap();
        tape.finish().unwrap();
    }
    // As a power loss may leave it.
    std::fs::write(folder.path().join(name(2).tape()), "no tape").unwrap();
    worker.tidy();
    let segments = worker.folder.list().unwrap().segments;
    let left: Vec<_> = segments
        .iter()
        .map(|segment| (segment.name.segments.0, segment.tape.is_some(), segment.rollup.is_some()))
        .collect();
    assert_eq!(left, [(1, true, true), (2, true, false), (3, true, true)]);
    let trouble = told.try_iter().collect::<String>();
    assert!(trouble.contains(&name(2).tape()) && trouble.contains("no rollup"), "{trouble}");
}

fn ended_segment(folder: &Folder, number: u64) -> Ended {
    let name = Name { recording: "node".to_owned(), begin_s: begin_s(number), segments: (number, number) };
    let file = folder.create(&name.tape()).unwrap();
    let mut tape = TapeWriter::new(file, &TapeOptions::batch("test")).unwrap();
    tape.event(Launch { start_ns: 5, ..Launch::default() }).unwrap();
    Ended { tape, name }
}

/// Waits until it is so, for as long as a test may.
fn wait_until(is_so: impl Fn() -> bool) {
    let began = std::time::Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(20), "it does not become so");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_segment_becomes_too_old_while_no_other_ends() {
    let directory = tempfile::tempdir().unwrap();
    let folder = Folder::open(directory.path()).unwrap();
    let options = Options { keep_age: Some(Duration::from_secs(1)), ..options(directory.path()) };
    let keeper = Keeper::begin(&options, folder.try_clone().unwrap(), folder.list().unwrap()).unwrap();
    keeper.take(ended_segment(&folder, 1)).unwrap();
    let segment = || folder.list().unwrap().segments.into_iter().next().expect("it stays, as a rollup at least");
    wait_until(|| segment().rollup.is_some());
    wait_until(|| segment().tape.is_none());
    let kept = keeper.finish();
    assert_eq!((kept.failure, kept.troubles), (None, vec![]));
}

#[test]
fn troubles_are_told_when_they_come() {
    let directory = tempfile::tempdir().unwrap();
    let folder = Folder::open(directory.path()).unwrap();
    let keeper =
        Keeper::begin(&options(directory.path()), folder.try_clone().unwrap(), folder.list().unwrap()).unwrap();
    let ended = ended_segment(&folder, 1);
    // What is written into its place is no tape.
    folder.remove(&ended.name.tape()).unwrap();
    std::fs::write(directory.path().join(ended.name.tape()), "no tape").unwrap();
    keeper.take(ended).unwrap();
    let mut told = Vec::new();
    let began = std::time::Instant::now();
    while told.is_empty() && began.elapsed() < Duration::from_secs(20) {
        told.extend(keeper.troubles());
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(told.concat().contains("no rollup"), "{told:?}");
    assert!(!keeper.has_ended());
}

#[test]
fn a_thread_that_has_failed_is_noticed_and_segments_are_closed_without_it() {
    let directory = tempfile::tempdir().unwrap();
    let folder = Folder::open(directory.path()).unwrap();
    let keeper =
        Keeper::begin(&options(directory.path()), folder.try_clone().unwrap(), folder.list().unwrap()).unwrap();
    keeper.jobs.send(Job::Fail).unwrap();
    wait_until(|| keeper.has_ended());
    keeper.take(ended_segment(&folder, 1)).unwrap();
    let segment = folder.list().unwrap().segments.remove(0);
    let tape = Tape::open(&segment.tape.unwrap()).unwrap().read(&Wanted::default()).unwrap();
    assert_eq!(tape.events.launch.start_ns.len(), 1);
    let failure = keeper.finish().failure.expect("it failed");
    assert!(failure.starts_with(ENDED) && failure.ends_with("as a test asked for"), "{failure}");
}

#[test]
fn a_segment_that_a_power_loss_left_void_is_deleted_and_others_are_not() {
    let directory = tempfile::tempdir().unwrap();
    let (mut worker, told) = worker(directory.path());
    let ended = [1, 2, 3].map(|number| ended_segment(&worker.folder, number));
    let path = |ended: &Ended| directory.path().join(ended.name.tape());
    std::fs::write(path(&ended[0]), "").unwrap();
    std::fs::write(path(&ended[1]), [0; 3 * HEADER_BYTES]).unwrap();
    worker.clear();
    assert_eq!(ended.each_ref().map(|ended| path(ended).exists()), [false, false, true]);
    assert_eq!(told.try_iter().filter(|told| told.contains("power loss")).count(), 2);
}
