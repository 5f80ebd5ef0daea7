//! `export::perfetto` over a made-up trace that has everything that is awkward: crossing, empty and identical slices,
//! ranges that never close, overlapping kernels, graphs, waits, two processes with one pid, losses.
//!
//! The bytes are taken apart here by a reader of protobuf's wire format that knows nothing of the writer. The trace
//! is left in `target/tmp/perfetto_writer.pftrace` to be looked at.

use std::collections::BTreeMap;
use std::io::Read as _;

use ktape_analyze::export::perfetto;
use ktape_analyze::timeline::Timeline;
use ktape_format::definition::*;
use ktape_format::event::*;
use ktape_format::table::DefinitionKind as D;
use ktape_format::{Memory, Sink as _, Table as _};

/// A field of a message: its number, its value if it is one, its bytes if it has some.
struct Field<'a> {
    number: u64,
    value: u64,
    bytes: &'a [u8],
}

fn fields(mut message: &[u8]) -> Vec<Field<'_>> {
    fn varint(message: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = message[0];
            *message = &message[1..];
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                break;
            }
        }
        value
    }
    let mut fields = Vec::new();
    while !message.is_empty() {
        let key = varint(&mut message);
        let (mut value, mut bytes): (u64, &[u8]) = (0, &[]);
        match key & 7 {
            0 => value = varint(&mut message),
            1 => {
                value = u64::from_le_bytes(message[..8].try_into().unwrap());
                message = &message[8..];
            }
            2 => {
                let length = varint(&mut message) as usize;
                (bytes, message) = message.split_at(length);
            }
            wire => panic!("wire type {wire}"),
        }
        fields.push(Field { number: key >> 3, value, bytes });
    }
    fields
}

fn value(message: &[u8], number: u64) -> Option<u64> {
    fields(message).iter().find(|field| field.number == number).map(|field| field.value)
}

fn values(message: &[u8], number: u64) -> Vec<u64> {
    fields(message).iter().filter(|field| field.number == number).map(|field| field.value).collect()
}

fn messages(message: &[u8], number: u64) -> Vec<&[u8]> {
    fields(message).into_iter().filter(|field| field.number == number).map(|field| field.bytes).collect()
}

fn message(message: &[u8], number: u64) -> Option<&[u8]> {
    messages(message, number).first().copied()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// What the made-up trace holds, as the checks need it.
struct Made {
    timeline: Timeline,
    slices: usize,
    instants: usize,
}

const PROCESSES: u32 = 2;

#[expect(clippy::too_many_lines, reason = "a trace is a list")]
fn made_up() -> Made {
    let mut memory = Memory::default();
    let m = &mut memory;
    let (mut slices, mut instants) = (0, 0);
    for rank in 0..PROCESSES {
        let base = 1_000_000 + 10 * i64::from(rank);
        let Ok(source) = m.string(&format!("rank{rank}.json"));
        let Ok(process) = m.define(Process { pid: 17, source, ..Process::default() });
        let Ok(()) = m.property(D::Process as u16, process, property::NAME, "python");
        let Ok(()) = m.property(D::Process as u16, process, property::RANK, &rank.to_string());
        let Ok(()) = m.property(D::Process as u16, process, property::WORLD_SIZE, "2");
        let Ok(thread) = m.define(Thread { process, tid: 17 });
        let Ok(()) = m.property(D::Thread as u16, thread, property::NAME, "main");
        let Ok(device) = m.define(Device { process, index: rank, vendor: vendor::NVIDIA, uuid: 0 });
        for (key, value) in [
            (property::NAME, "NVIDIA H100 80GB HBM3"),
            (property::COMPUTE_CAPABILITY, "9.0"),
            (property::MULTIPROCESSORS, "132"),
            (property::THREADS_PER_MULTIPROCESSOR, "2048"),
            (property::REGISTERS_PER_MULTIPROCESSOR, "65536"),
            (property::SHARED_BYTES_PER_MULTIPROCESSOR, "233472"),
        ] {
            let Ok(()) = m.property(D::Device as u16, device, key, value);
        }
        let Ok(context) = m.define(Context { process, device, native: 1 });
        let stream = |m: &mut Memory, native| m.define(Stream { context, native, ..Stream::default() }).unwrap();
        let (main, side) = (stream(m, 7), stream(m, 20));
        let function = |m: &mut Memory, name: &str| {
            let name = m.string(name).unwrap();
            m.define(Function { name, domain: api_domain::RUNTIME, callback_id: 0 }).unwrap()
        };
        let (launch_call, graph_call) = (function(m, "cudaLaunchKernel"), function(m, "cudaGraphLaunch"));
        let (copy_call, wait_call) = (function(m, "cudaMemcpyAsync"), function(m, "cudaStreamSynchronize"));
        let (record_call, stream_wait) = (function(m, "cudaEventRecord"), function(m, "cudaStreamWaitEvent"));
        let (device_sync, event_sync) = (function(m, "cudaDeviceSynchronize"), function(m, "cudaEventSynchronize"));
        let kernel = |m: &mut Memory, name: &str, registers| {
            let name = m.string(name).unwrap();
            let kernel = m.define(KernelName { name, module: 0 }).unwrap();
            m.define(Shape {
                kernel,
                grid_x: 264,
                grid_y: 1,
                grid_z: 1,
                block_x: 256,
                block_y: 1,
                block_z: 1,
                registers,
                static_shared_bytes: 1024,
                ..Shape::default()
            })
            .unwrap()
        };
        let gemm = kernel(m, "void cutlass::gemm<128, float>(int*)", 168);
        let relu = kernel(m, "_Z4reluPfi", 32);
        let frame = |m: &mut Memory, kind, name: &str, file: &str, line| {
            let (name, file) = (m.string(name).unwrap(), m.string(file).unwrap());
            m.define(Frame { kind, name, file, line }).unwrap()
        };
        let forward = frame(m, frame_kind::PYTHON, "forward", "model.py", 42);
        let step = frame(m, frame_kind::PYTHON, "step", "train.py", 7);
        let linear = frame(m, frame_kind::OPERATOR, "aten::linear", "", 0);
        let Ok(root) = m.define(Stack { parent: 0, frame: step, line: 9 });
        let Ok(stack) = m.define(Stack { parent: root, frame: forward, line: 44 });
        let Ok(leaf) = m.define(Stack { parent: stack, frame: linear, line: 0 });
        let Ok(args) = m.string(r#"{"Input Dims": [[8, 16]], "External id": 5, "dtype": "fp16"}"#);

        // Launch 1 and 2: their kernels overlap on one stream. Launch 3: on the other stream, after a wait for 2.
        for (correlation, start, stream, shape) in [(1, 100, main, gemm), (2, 160, main, relu), (3, 400, side, relu)] {
            let (start_ns, thread, function) = (base + start, thread, launch_call);
            let Ok(()) = m.event(Launch {
                start_ns,
                duration_ns: 40,
                correlation,
                thread,
                stream,
                shape,
                stack: leaf,
                function,
                ..Launch::default()
            });
        }
        for (correlation, start, duration_ns, stream, shape) in
            [(1, 500, 300, main, gemm), (2, 750, 150, main, relu), (3, 900, 50, side, relu)]
        {
            let Ok(()) = m.event(Kernel {
                start_ns: base + start,
                duration_ns,
                correlation,
                stream,
                shape,
                timing: timing::MEASURED,
                args: if correlation == 1 { args } else { 0 },
                ..Kernel::default()
            });
        }
        // A graph with three nodes, one copy, one memset; a kernel of no duration, and one without a launch.
        let Ok(graph) = m.define(Graph { process, native: 0xabc, earlier: 0 });
        let Ok(()) = m.event(GraphLaunch {
            start_ns: base + 450,
            duration_ns: 30,
            correlation: 4,
            thread,
            stream: main,
            graph,
            stack,
            function: graph_call,
            ..GraphLaunch::default()
        });
        for node in 1..=3 {
            let Ok(()) = m.event(Kernel {
                start_ns: base + 1000 + 100 * node,
                duration_ns: 90,
                correlation: 4,
                stream: main,
                shape: relu,
                graph,
                graph_node: node as u64,
                timing: timing::MEASURED,
                ..Kernel::default()
            });
        }
        let Ok(()) = m.event(Api {
            start_ns: base + 1200,
            duration_ns: 20,
            correlation: 5,
            thread,
            stack,
            function: copy_call,
            ..Api::default()
        });
        let Ok(()) = m.event(Memcpy {
            start_ns: base + 1500,
            duration_ns: 100,
            correlation: 5,
            stream: main,
            bytes: 2_500,
            kind: copy_kind::HTOD,
            source_memory: memory_kind::PAGEABLE,
            target_memory: memory_kind::DEVICE,
            timing: timing::MEASURED,
            ..Memcpy::default()
        });
        let Ok(()) = m.event(Memset {
            start_ns: base + 1600,
            duration_ns: 10,
            correlation: 6,
            stream: main,
            bytes: 64,
            target_memory: memory_kind::DEVICE,
            timing: timing::MEASURED,
            ..Memset::default()
        });
        let Ok(()) = m.event(Kernel {
            start_ns: base + 1610,
            duration_ns: 0,
            correlation: 0,
            stream: main,
            shape: relu,
            timing: timing::ABSENT,
            ..Kernel::default()
        });
        // Event recorded after launch 2; the side stream waits for it before launch 3; the host waits three ways.
        let Ok(()) = m.event(EventRecord {
            start_ns: base + 210,
            duration_ns: 5,
            correlation: 10,
            thread,
            stream: main,
            event: 0xe,
            stack,
            function: record_call,
            ..EventRecord::default()
        });
        let Ok(()) = m.event(EventWait {
            start_ns: base + 220,
            duration_ns: 5,
            correlation: 11,
            thread,
            stream: side,
            event: 0xe,
            recorded_by: 10,
            stack,
            function: stream_wait,
            ..EventWait::default()
        });
        let Ok(()) = m.event(Sync {
            start_ns: base + 600,
            duration_ns: 301,
            correlation: 12,
            thread,
            kind: sync_kind::EVENT,
            event: 0xe,
            recorded_by: 10,
            stack,
            function: event_sync,
            ..Sync::default()
        });
        let Ok(()) = m.event(Sync {
            start_ns: base + 1300,
            duration_ns: 310,
            correlation: 13,
            thread,
            kind: sync_kind::STREAM,
            stream: main,
            stack,
            function: wait_call,
            ..Sync::default()
        });
        let Ok(()) = m.event(Sync {
            start_ns: base + 1700,
            duration_ns: 10,
            correlation: 14,
            thread,
            kind: sync_kind::CONTEXT,
            stack,
            function: device_sync,
            ..Sync::default()
        });
        slices += 3 + 1 + 1 + 2 + 3;

        // Python frames: one in the other, one beside it, an identical one, empty ones at the seam, one that crosses.
        for (start, end, frame) in [
            (0, 2000, step),
            (50, 700, forward),
            (700, 1000, forward),
            (700, 1000, forward),
            (1000, 1000, forward),
            (1000, 1500, forward),
            (1400, 2500, step),
        ] {
            let Ok(()) = m.event(Slice {
                start_ns: base + start,
                duration_ns: (end - start) as u64,
                thread,
                frame,
                sequence: -1,
                args: 0,
            });
        }
        let Ok(()) = m.event(Slice { start_ns: base + 90, duration_ns: 400, thread, frame: linear, sequence: 3, args });
        slices += 8;
        // Ranges: whole, pushed and popped, never popped, never pushed, on a stream.
        let Ok(name) = m.string("ProfilerStep#1");
        let Ok(inner) = m.string("attention");
        let Ok(open) = m.string("never closed");
        let Ok(()) = m.event(Range { start_ns: base + 10, duration_ns: 1000, thread, name, ..Range::default() });
        let Ok(()) =
            m.event(Range { start_ns: base + 20, thread, name: inner, phase: phase::PUSH, ..Range::default() });
        let Ok(()) = m.event(Range { start_ns: base + 40, thread, phase: phase::POP, ..Range::default() });
        let Ok(()) = m.event(Range { start_ns: base + 45, thread, phase: phase::POP, ..Range::default() });
        let Ok(()) =
            m.event(Range { start_ns: base + 1100, thread, name: open, phase: phase::PUSH, ..Range::default() });
        let Ok(()) =
            m.event(Range { start_ns: base + 499, duration_ns: 403, stream: main, name: inner, ..Range::default() });
        slices += 5;
        let Ok(()) = m.event(Mark { start_ns: base + 30, thread, name: inner, ..Mark::default() });
        let Ok(()) = m.event(CpuSample { start_ns: base + 33, weight_ns: 10, thread, stack: leaf, cpu: 3 });
        let Ok(()) =
            m.event(Lifecycle { start_ns: base, process, kind: lifecycle_kind::ATTACH, ..Lifecycle::default() });
        instants += 3;
        let Ok(()) = m.event(Alloc {
            start_ns: base + 15,
            thread,
            device,
            address: 0x1000,
            bytes: 4096,
            allocator: allocator::CACHING,
            allocated_bytes: 4096,
            reserved_bytes: 1 << 21,
            ..Alloc::default()
        });
        let Ok(()) = m.event(Free {
            start_ns: base + 1800,
            thread,
            device,
            address: 0x1000,
            bytes: 4096,
            allocator: allocator::CACHING,
            allocated_bytes: 0,
            reserved_bytes: 1 << 21,
            ..Free::default()
        });
        let Ok(cause) = m.string("ring buffer full");
        let Ok(()) = m.event(Loss { start_ns: base + 1900, duration_ns: 50, process, count: 12, kind: 4, cause });
        slices += 3;
        let (Ok(name), Ok(unit)) = (m.string("SM clock"), m.string("MHz"));
        let Ok(counter) = m.define(CounterName { name, unit, process: 0, device });
        for (start, value) in [(0, 1980.0), (1000, 1755.5)] {
            let Ok(()) = m.event(Counter { start_ns: base + start, counter, value });
        }
        let Ok(()) = m.event(ClockPair {
            start_ns: base,
            clock: clock_kind::UNIX,
            value_ns: 1_790_000_000_000_000_000 + base,
            ..ClockPair::default()
        });
    }
    Made { timeline: Timeline::new(memory.definitions, memory.events), slices, instants }
}

fn written(timeline: &Timeline, gzip: bool) -> (perfetto::Summary, Vec<u8>) {
    let mut bytes = Vec::new();
    let summary = perfetto::write(timeline, &mut bytes, gzip).unwrap();
    assert_eq!(summary.bytes, bytes.len() as u64);
    (summary, bytes)
}

#[test]
fn slices_nest_on_every_track_and_none_is_lost() {
    let made = made_up();
    let (summary, trace) = written(&made.timeline, false);
    std::fs::write(concat!(env!("CARGO_TARGET_TMPDIR"), "/perfetto_writer.pftrace"), &trace).unwrap();

    let packets = messages(&trace, 1);
    assert_eq!(packets.len() as u64, summary.packets);
    let mut open: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    let mut now: BTreeMap<u64, u64> = BTreeMap::new();
    let (mut begins, mut instants) = (0, 0);
    for packet in &packets {
        let Some(event) = message(packet, 11) else { continue };
        let (time, track) = (value(packet, 8).unwrap(), value(event, 11).unwrap());
        let before = now.insert(track, time).unwrap_or(0);
        assert!(before <= time, "track {track} goes back in time");
        match value(event, 9).unwrap() {
            1 => {
                begins += 1;
                open.entry(track).or_default().push(time);
            }
            2 => assert!(open.get_mut(&track).and_then(Vec::pop).is_some(), "an end without a begin"),
            3 => instants += 1,
            4 => {}
            kind => panic!("event type {kind}"),
        }
    }
    assert!(open.values().all(Vec::is_empty), "a begin without an end");
    assert_eq!((begins, instants), (made.slices, made.instants));
    // In each process one Python frame crosses another, and the range that was only closed crosses the step.
    assert_eq!(summary.crossing_slices, 2 * u64::from(PROCESSES));
    assert_eq!(summary.open_ranges, 2 * u64::from(PROCESSES));
}

#[test]
fn device_work_is_whole_and_joined_with_its_calls() {
    let made = made_up();
    let (_, trace) = written(&made.timeline, false);
    let packets = messages(&trace, 1);
    let stages: Vec<&[u8]> = packets.iter().filter_map(|packet| message(packet, 53)).collect();
    let events = &made.timeline.events;
    assert_eq!(stages.len(), events.kernel.len() + events.memcpy.len() + events.memset.len());
    let device_ns: u64 = stages.iter().map(|stage| value(stage, 2).unwrap()).sum();
    assert_eq!(device_ns, u64::from(PROCESSES) * (300 + 150 + 50 + 3 * 90 + 100 + 10));
    let ids: Vec<u64> = stages.iter().map(|stage| value(stage, 1).unwrap()).collect();
    assert!(ids.windows(2).all(|pair| pair[0] < pair[1]), "ids are distinct");
    // The side stream's kernel waits for the second of the main stream's.
    assert_eq!(stages.iter().filter(|stage| values(stage, 18).len() == 1).count(), PROCESSES as usize);

    let correlations: Vec<&[u8]> =
        packets.iter().filter_map(|packet| message(packet, 11)).filter_map(|event| message(event, 3000)).collect();
    let submitted: usize = correlations.iter().map(|correlation| values(correlation, 1).len()).sum();
    // All but the memset and the kernel without a launch: their calls are not on the tape.
    assert_eq!(submitted, stages.len() - 2 * PROCESSES as usize);
    let waited: usize = correlations.iter().map(|correlation| values(correlation, 2).len()).sum();
    // The event's kernel, the last work of the stream, and both streams for the device.
    assert_eq!(waited, PROCESSES as usize * (1 + 1 + 2));

    // The weights of the calls' stacks are exactly the device time of what they submitted.
    let weights = packets.iter().filter_map(|packet| message(packet, 11)).filter(|event| value(event, 9) == Some(1));
    let weights: f64 = weights.filter_map(|event| value(event, 57)).map(f64::from_bits).sum();
    assert_eq!(weights, f64::from(PROCESSES) * f64::from(300 + 150 + 50 + 3 * 90 + 100));
}

#[test]
fn every_interned_id_is_defined_before_it_is_used() {
    let (_, trace) = written(&made_up().timeline, false);
    let mut defined: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    let known = |defined: &BTreeMap<u64, Vec<u64>>, list: u64, id: u64| {
        assert!(defined.get(&list).is_some_and(|ids| ids.contains(&id)), "list {list} has no {id}");
    };
    for packet in messages(&trace, 1) {
        for list in fields(message(packet, 12).unwrap_or_default()) {
            let ids = defined.entry(list.number).or_default();
            let id = value(list.bytes, 1).unwrap();
            assert!(!ids.contains(&id), "list {} has {id} twice", list.number);
            ids.push(id);
        }
        if let Some(event) = message(packet, 11) {
            values(event, 10).into_iter().for_each(|id| known(&defined, 2, id));
            values(event, 3).into_iter().for_each(|id| known(&defined, 1, id));
            values(event, 56).into_iter().for_each(|id| known(&defined, 7, id));
            for annotation in messages(event, 4) {
                known(&defined, 3, value(annotation, 1).unwrap());
                values(annotation, 17).into_iter().for_each(|id| known(&defined, 29, id));
            }
        }
        if let Some(stage) = message(packet, 53) {
            known(&defined, 23, value(stage, 5).unwrap());
            known(&defined, 24, value(stage, 13).unwrap());
            known(&defined, 24, value(stage, 14).unwrap());
            known(&defined, 2, value(stage, 20).unwrap());
            values(stage, 19).into_iter().for_each(|id| known(&defined, 1000, id));
            for arg in messages(message(stage, 21).unwrap(), 3) {
                known(&defined, 1001, value(arg, 1).unwrap());
                values(arg, 7).into_iter().for_each(|id| known(&defined, 29, id));
            }
        }
    }
    assert!(defined[&6].len() >= 3, "frames");
}

#[test]
fn processes_with_one_pid_stay_apart() {
    let (_, trace) = written(&made_up().timeline, false);
    let tracks: Vec<&[u8]> = messages(&trace, 1).into_iter().filter_map(|packet| message(packet, 60)).collect();
    let processes: Vec<&[u8]> = tracks.iter().filter_map(|track| message(track, 3)).collect();
    let names: Vec<String> = processes.iter().map(|process| text(message(process, 6).unwrap())).collect();
    assert_eq!(names, ["python rank 0", "python rank 1 (pid 17)"]);
    assert_ne!(value(processes[0], 1), value(processes[1], 1));
    let labels: Vec<String> = messages(processes[0], 8).into_iter().map(text).collect();
    assert_eq!(labels, ["rank 0 of 2", "12 events lost", "from rank0.json"]);
}

/// A long trace: the writer encodes some thousands of events at a time.
fn enough_for_several_portions() -> Timeline {
    let mut memory = Memory::default();
    let Ok(process) = memory.define(Process { pid: 1, ..Process::default() });
    let threads: Vec<u32> = (1..9).map(|tid| memory.define(Thread { process, tid }).unwrap()).collect();
    for step in 0..100_000 {
        let (start_ns, thread) = (step / 3, threads[step as usize % 8]);
        let Ok(()) = memory.event(Slice { start_ns, duration_ns: step as u64 % 17, thread, ..Slice::default() });
        let Ok(()) = memory.event(Kernel { start_ns, duration_ns: 5, correlation: step as u64, ..Kernel::default() });
    }
    Timeline::new(memory.definitions, memory.events)
}

#[test]
fn the_same_bytes_whatever_the_number_of_threads_and_gzip_holds_them() {
    let timeline = enough_for_several_portions();
    let with_threads = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| written(&timeline, false).1)
    };
    let bytes = with_threads(1);
    assert_eq!(bytes, with_threads(4));
    let mut unpacked = Vec::new();
    flate2::read::MultiGzDecoder::new(&*written(&timeline, true).1).read_to_end(&mut unpacked).unwrap();
    assert_eq!(bytes, unpacked);
}

#[test]
fn an_empty_timeline_is_an_empty_trace() {
    let (summary, trace) = written(&Timeline::default(), false);
    assert_eq!(summary.events, 0);
    assert!(messages(&trace, 1).into_iter().all(|packet| message(packet, 11).is_none()));
}
