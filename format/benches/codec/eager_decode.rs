//! Five million events of an eager decode loop whose noise is that of real H100 traces: what a recorder sees most.
//!
//! 32 layers of 14 kernels and 5 at the end of a step, a copy each way, a stream synchronisation, and some caching
//! allocations. Intervals between launches are log-normal (median 6 µs, σ 0.16) with a heavy tail of 0.25 %, calls
//! σ 0.10, device durations σ 1.8 % on the device's tick of 32 ns, which the conversion to the host's clock blurs by
//! ±1 ns. A kernel starts behind its stream (a gap of 30 ticks) or, when the device is idle, after its launch.

use ktape_format::Sink;
use ktape_format::definition::{
    Context, Device, Frame, Function, KernelName, Process, Shape, Stack, Stream, Thread, api_domain, frame_kind, vendor,
};
use ktape_format::event::{Alloc, Api, Free, Kernel, Launch, Memcpy, Sync, allocator, copy_kind, sync_kind, timing};

const LAYERS: usize = 32;
/// Grid, and duration in ns, of a layer's kernels; the sixth is attention.
const LAYER: [(u32, f64); 14] = [
    (1, 2400.0),
    (96, 9300.0),
    (32, 1900.0),
    (1, 1700.0),
    (8, 1500.0),
    (128, 5600.0),
    (64, 7900.0),
    (4, 1500.0),
    (1, 2400.0),
    (172, 15_900.0),
    (172, 15_800.0),
    (1, 2000.0),
    (128, 13_500.0),
    (4, 1500.0),
];
const TAIL: [(u32, f64); 5] = [(1, 2400.0), (1002, 90_500.0), (1, 11_800.0), (8, 2100.0), (1, 9400.0)];
/// Events of a step: its launches with their kernels, two copies, a synchronisation, and allocations with their frees.
const STEP_EVENTS: usize = LAYERS * LAYER.len() + TAIL.len() + 3 + 2 * ALLOCATIONS;
const ALLOCATIONS: usize = 6;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Above 0, at most 1.
    fn uniform(&mut self) -> f64 {
        ((self.bits() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    /// Box and Muller.
    fn normal(&mut self) -> f64 {
        (-2.0 * self.uniform().ln()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos()
    }

    fn log_normal(&mut self, median: f64, sigma: f64) -> i64 {
        (median * (sigma * self.normal()).exp()) as i64
    }
}

/// The device's tick in nanoseconds.
const TICK_NS: i64 = 32;

/// Writes at least `events` of them, of so many processes side by side, each with a device of its own.
pub(crate) fn eager_decode<S: Sink>(sink: &mut S, events: usize, processes: u32) -> Result<(), S::Error> {
    let mut runs = (0..processes).map(|process| Run::new(sink, process)).collect::<Result<Vec<_>, _>>()?;
    for step in 0..events.div_ceil(STEP_EVENTS * runs.len()) {
        runs.iter_mut().try_for_each(|run| run.step(sink, step))?;
    }
    Ok(())
}

struct Run {
    random: Random,
    host_ns: i64,
    /// The device's clock in ticks: when the last kernel ended.
    device_ticks: i64,
    correlation: u64,
    thread: u32,
    stream: u32,
    device: u32,
    functions: [u32; 3],
    root: u32,
    allocated_bytes: u64,
}

impl Run {
    fn new<S: Sink>(sink: &mut S, index: u32) -> Result<Self, S::Error> {
        let pid = 4711 + i64::from(index);
        let process = sink.define(Process { pid, ..Process::default() })?;
        let thread = sink.define(Thread { process, tid: pid })?;
        let device = sink.define(Device { process, index, vendor: vendor::NVIDIA, uuid: 0 })?;
        let context = sink.define(Context { process, device, native: 1 })?;
        let stream = sink.define(Stream { context, native: 7, ..Stream::default() })?;
        let mut functions = [0; 3];
        for (id, name) in functions.iter_mut().zip(["cudaLaunchKernel", "cudaMemcpyAsync", "cudaStreamSynchronize"]) {
            let name = sink.string(name)?;
            *id = sink.define(Function { name, domain: api_domain::RUNTIME, callback_id: 0 })?;
        }
        let mut run = Run {
            random: Random(1 + u64::from(index)),
            host_ns: 1_770_000_000_000_000_000,
            device_ticks: 0,
            correlation: 1000,
            thread,
            stream,
            device,
            functions,
            root: 0,
            allocated_bytes: 14 << 30,
        };
        run.root = run.stack(sink, 0, "Model.forward")?;
        Ok(run)
    }

    fn stack<S: Sink>(&mut self, sink: &mut S, parent: u32, name: &str) -> Result<u32, S::Error> {
        let name = sink.string(name)?;
        let frame = sink.define(Frame { kind: frame_kind::PYTHON, name, file: 0, line: 0 })?;
        sink.define(Stack { parent, frame, line: 0 })
    }

    fn step<S: Sink>(&mut self, sink: &mut S, step: usize) -> Result<(), S::Error> {
        self.copy(sink, copy_kind::HTOD, 64)?;
        for layer in 0..LAYERS {
            for (index, (grid, ns)) in LAYER.into_iter().enumerate() {
                // Attention reads the cache, in parts of 64 tokens.
                let (grid, ns) =
                    if index == 5 { (grid + (step / 64) as u32, ns + (step % 4096) as f64 / 4.0) } else { (grid, ns) };
                self.kernel(sink, &format!("layer kernel {index}"), grid, ns)?;
            }
            if layer % 5 == 0 && layer / 5 < ALLOCATIONS - 1 {
                self.allocation(sink, 1 << (14 + layer / 5))?;
            }
        }
        for (index, (grid, ns)) in TAIL.into_iter().enumerate() {
            self.kernel(sink, &format!("last kernel {index}"), grid, ns)?;
        }
        self.allocation(sink, 512)?;
        self.copy(sink, copy_kind::DTOH, 8)?;
        self.synchronize(sink)
    }

    fn pass(&mut self) {
        let heavy = if self.random.uniform() < 0.0025 { 40_000.0 / self.random.uniform().max(0.02) } else { 0.0 };
        self.host_ns += self.random.log_normal(6000.0, 0.16) + heavy as i64;
    }

    fn kernel<S: Sink>(&mut self, sink: &mut S, name: &str, grid: u32, ns: f64) -> Result<(), S::Error> {
        self.pass();
        let string = sink.string(name)?;
        let kernel = sink.define(KernelName { name: string, module: 0 })?;
        let block = Shape { block_x: 128, block_y: 1, block_z: 1, grid_y: 1, grid_z: 1, ..Shape::default() };
        let shape = sink.define(Shape { kernel, grid_x: grid, registers: 64, ..block })?;
        let stack = self.stack(sink, self.root, name)?;
        self.correlation += 1;
        let (start_ns, duration_ns) = (self.host_ns, self.random.log_normal(3700.0, 0.10) as u64);
        let (correlation, thread, stream, function) = (self.correlation, self.thread, self.stream, self.functions[0]);
        let launch =
            Launch { start_ns, duration_ns, correlation, thread, stream, shape, stack, function, ..Launch::default() };
        sink.event(launch)?;
        let (start_ns, duration_ns) = self.on_device(start_ns, ns);
        let timing = timing::MEASURED;
        sink.event(Kernel { start_ns, duration_ns, correlation, stream, shape, timing, ..Kernel::default() })
    }

    /// When the device runs what was launched at `launch_ns`.
    fn on_device(&mut self, launch_ns: i64, ns: f64) -> (i64, u64) {
        let ready = (launch_ns + self.random.log_normal(4600.0, 0.04)) / TICK_NS;
        let start = ready.max(self.device_ticks + 30 + (self.random.normal() * 1.2).round() as i64);
        let ticks = ((ns * (1.0 + 0.018 * self.random.normal())) as i64 / TICK_NS).max(1);
        self.device_ticks = start + ticks;
        let blur = |random: &mut Random| (random.bits() % 3) as i64 - 1;
        let start_ns = start * TICK_NS + blur(&mut self.random);
        (start_ns, (ticks * TICK_NS + blur(&mut self.random)) as u64)
    }

    fn copy<S: Sink>(&mut self, sink: &mut S, kind: u8, bytes: u64) -> Result<(), S::Error> {
        self.pass();
        self.correlation += 1;
        let (start_ns, duration_ns) = (self.host_ns, self.random.log_normal(4200.0, 0.10) as u64);
        let (correlation, thread, function, stack) = (self.correlation, self.thread, self.functions[1], self.root);
        sink.event(Api { start_ns, duration_ns, correlation, thread, stack, function, ..Api::default() })?;
        let (start_ns, duration_ns) = self.on_device(start_ns, 1400.0);
        let (stream, timing) = (self.stream, timing::MEASURED);
        sink.event(Memcpy { start_ns, duration_ns, correlation, stream, bytes, kind, timing, ..Memcpy::default() })
    }

    fn synchronize<S: Sink>(&mut self, sink: &mut S) -> Result<(), S::Error> {
        self.pass();
        self.correlation += 1;
        let end_ns = self.host_ns.max(self.device_ticks * TICK_NS) + self.random.log_normal(2000.0, 0.2);
        let (start_ns, duration_ns) = (self.host_ns, (end_ns - self.host_ns) as u64);
        let (correlation, thread, stream) = (self.correlation, self.thread, self.stream);
        let (function, stack, kind) = (self.functions[2], self.root, sync_kind::STREAM);
        self.host_ns = end_ns;
        let call =
            Sync { start_ns, duration_ns, correlation, thread, stream, function, stack, kind, ..Sync::default() };
        sink.event(call)
    }

    fn allocation<S: Sink>(&mut self, sink: &mut S, bytes: u64) -> Result<(), S::Error> {
        let (thread, device, stream, stack) = (self.thread, self.device, self.stream, self.root);
        let (address, reserved_bytes) = (0x7f00_0000_0000 + (self.random.bits() % 64) * 2_097_152, 16 << 30);
        self.allocated_bytes += bytes;
        let (start_ns, allocated_bytes) = (self.host_ns + 300, self.allocated_bytes);
        let (allocator, none) = (allocator::CACHING, Alloc::default());
        let alloc = Alloc { start_ns, thread, device, stream, address, bytes, allocator, stack, ..none };
        sink.event(Alloc { allocated_bytes, reserved_bytes, ..alloc })?;
        self.pass();
        self.allocated_bytes -= bytes;
        let (start_ns, allocated_bytes, none) = (self.host_ns, self.allocated_bytes, Free::default());
        let free = Free { start_ns, thread, device, stream, address, bytes, allocator, stack, ..none };
        sink.event(Free { allocated_bytes, reserved_bytes, ..free })
    }
}
