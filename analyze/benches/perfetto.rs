//! How fast Perfetto traces are written: events a second, plain and compressed, into nothing.
//!
//! Run with `cargo bench -p ktape-analyze --bench perfetto`. The trace is a loop of a Python frame, an
//! operator in it, a launch in that, and its kernel.

use divan::Bencher;
use divan::counter::ItemsCount;
use ktape_analyze::export::perfetto;
use ktape_analyze::timeline::Timeline;
use ktape_format::definition::{
    Context, Device, Frame, Function, KernelName, Process, Shape, Stack, Stream, Thread, api_domain, frame_kind, vendor,
};
use ktape_format::event::{Kernel, Launch, Slice, timing};
use ktape_format::{Memory, Sink as _};

const EVENTS: i64 = 1 << 20;

fn main() {
    divan::main();
}

#[divan::bench(args = [false, true], sample_count = 10)]
fn write(bencher: Bencher<'_, '_>, gzip: bool) {
    let timeline = decode_loop();
    bencher
        .counter(ItemsCount::new(timeline.events.len()))
        .bench_local(|| perfetto::write(&timeline, std::io::sink(), gzip).expect("a sink takes all"));
}

fn decode_loop() -> Timeline {
    let mut memory = Memory::default();
    let m = &mut memory;
    let Ok(process) = m.define(Process { pid: 100, ..Process::default() });
    let Ok(thread) = m.define(Thread { process, tid: 100 });
    let Ok(device) = m.define(Device { process: 0, index: 0, vendor: vendor::NVIDIA, uuid: 0 });
    let Ok(context) = m.define(Context { process, device, native: 1 });
    let Ok(stream) = m.define(Stream { context, native: 7, ..Stream::default() });
    let Ok(name) = m.string("cudaLaunchKernel");
    let Ok(function) = m.define(Function { name, domain: api_domain::RUNTIME, callback_id: 211 });
    let Ok(args) = m.string(r#"{"Input Dims": [[1, 4096], [4096, 4096]], "Ev Idx": 1}"#);
    let mut frame = |kind, name: String| {
        let (Ok(name), Ok(file)) = (m.string(&name), m.string("model.py"));
        let Ok(frame) = m.define(Frame { kind, name, file, line: 10 });
        frame
    };
    let python: Vec<u32> = (0..64).map(|n| frame(frame_kind::PYTHON, format!("forward_{n}"))).collect();
    let operators: Vec<u32> = (0..64).map(|n| frame(frame_kind::OPERATOR, format!("aten::op_{n}"))).collect();
    let shapes: Vec<u32> = (0..64)
        .map(|n| {
            let Ok(name) = m.string(&format!("void kernel_{n}<float, 4>(float*)"));
            let Ok(kernel) = m.define(KernelName { name, module: 0 });
            let Ok(shape) = m.define(Shape {
                kernel,
                grid_x: 264,
                grid_y: 1,
                grid_z: 1,
                block_x: 128,
                block_y: 1,
                block_z: 1,
                registers: 64,
                ..Shape::default()
            });
            shape
        })
        .collect();
    for step in 0..EVENTS / 4 {
        let (start_ns, which) = (step * 10_000, step as usize % 64);
        let Ok(root) = m.define(Stack { parent: 0, frame: python[which], line: 12 });
        let Ok(stack) = m.define(Stack { parent: root, frame: operators[which], line: 0 });
        let slice =
            |start_ns, duration_ns, frame, args| Slice { start_ns, duration_ns, thread, frame, sequence: -1, args };
        let Ok(()) = m.event(slice(start_ns, 9_000, python[which], 0));
        let Ok(()) = m.event(slice(start_ns + 1000, 7_000, operators[which], args));
        let correlation = step as u64 + 1;
        let Ok(()) = m.event(Launch {
            start_ns: start_ns + 2000,
            duration_ns: 5_000,
            correlation,
            thread,
            stream,
            shape: shapes[which],
            stack,
            function,
            ..Launch::default()
        });
        let Ok(()) = m.event(Kernel {
            start_ns: start_ns + 20_000,
            duration_ns: 9_000,
            correlation,
            stream,
            shape: shapes[which],
            timing: timing::MEASURED,
            ..Kernel::default()
        });
    }
    Timeline::new(memory.definitions, memory.events)
}
