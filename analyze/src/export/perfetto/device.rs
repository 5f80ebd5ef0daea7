//! What the devices did: Perfetto's native model of kernels, copies and memsets.
//!
//! A stream is a hardware queue, the operation's name a stage, so that versions of Perfetto from before its compute
//! model show the right names too. What all launches of one shape on one stream have in common (registers, shared
//! memory, occupancy, device, stream) is interned once with the kernel and costs an event nothing.

use ktape_format::Table as _;
use ktape_format::definition::{Context, Device, KernelName, Shape, Stream};
use ktape_format::event::timing;
use rustc_hash::FxHashMap;

use super::labels::Labels;
use super::links::{Links, event_id, is_kernel};
use super::proto::{
    CATEGORY_COMPUTE, ComputeKernel, ComputeKernelLaunch, Dim3, GpuRenderStageEvent, GpuSpecification, InternedData,
};
use super::text::{Arg, TextId, Texts, Value, list};
use super::tracks::Tracks;
use crate::timeline::names::demangled;
use crate::timeline::occupancy::Limits;
use crate::timeline::{DeviceOp, DeviceOpKind, OpClass, Timeline};

/// Makes packets of device operations.
pub(super) struct DeviceEvents<'a> {
    timeline: &'a Timeline,
    ops: &'a [DeviceOp],
    labels: &'a Labels<'a>,
    links: &'a Links,
    /// By stream; 0 is the unknown one.
    streams: Vec<StreamInfo>,
    stages: Vec<Stage>,
    /// By operation, into `stages`.
    stage_of: Vec<u32>,
    /// By operation: the interning id of its kernel, 0 for none.
    kernel_of: Vec<u32>,
    /// Shape and stream by interning id, from 1 on.
    kernels: Vec<(u32, u32)>,
    first_stage_iid: u64,
}

#[derive(Clone, Copy)]
struct StreamInfo {
    device: u32,
    gpu_id: i32,
    context: u32,
    /// The arguments `device`, `stream` and `context`.
    args: [Option<Arg>; 3],
    /// The arguments `process_name` and `process_id`.
    process: [Option<Arg>; 2],
}

/// A kind of work: its name, and what it is.
struct Stage {
    name: TextId,
    text: String,
    kind: DeviceOpKind,
}

impl<'a> DeviceEvents<'a> {
    pub(super) fn new(
        timeline: &'a Timeline,
        ops: &'a [DeviceOp],
        labels: &'a Labels<'a>,
        links: &'a Links,
        tracks: &Tracks<'_>,
        texts: &mut Texts<'_>,
    ) -> DeviceEvents<'a> {
        let streams = 0..=timeline.definitions.streams.len() as u32;
        let mut events = DeviceEvents {
            timeline,
            ops,
            labels,
            links,
            streams: streams.map(|stream| stream_info(stream, labels, tracks, texts)).collect(),
            stages: Vec::new(),
            stage_of: Vec::with_capacity(ops.len()),
            kernel_of: Vec::with_capacity(ops.len()),
            kernels: Vec::new(),
            first_stage_iid: tracks.queues().1,
        };
        events.name_ops(texts);
        events
    }

    /// Gives every operation its stage, and every kernel its interned kernel.
    fn name_ops(&mut self, texts: &mut Texts<'_>) {
        let mut stages: FxHashMap<(OpClass, bool), u32> = FxHashMap::default();
        let mut kernels: FxHashMap<(u32, u32), u32> = FxHashMap::default();
        for op in self.ops {
            self.kernel_of.push(if is_kernel(op) {
                let shape = self.timeline.events.kernel.shape[op.row as usize];
                let next = kernels.len() as u32 + 1;
                let iid = *kernels.entry((shape, op.stream)).or_insert(next);
                if iid == next {
                    self.kernels.push((shape, op.stream));
                }
                iid
            } else {
                0
            });
            let class = self.timeline.op_class(op);
            let is_bounded = op.timing == timing::BOUNDED;
            let stage = *stages.entry((class, is_bounded)).or_insert_with(|| {
                let (name, text) = if is_bounded {
                    // What lasted this long at most must not be added up with what was measured.
                    let text = match is_kernel(op) {
                        true => texts.get(self.labels.kernels.of(class.id)).to_owned(),
                        false => self.timeline.op_name(op),
                    };
                    let text = format!("{text} (at most)");
                    (texts.text(&text, list::EVENT_NAME), text)
                } else if is_kernel(op) {
                    let name = self.labels.kernels.of(class.id);
                    (name, texts.get(name).to_owned())
                } else {
                    let text = self.timeline.op_name(op);
                    (texts.text(&text, list::EVENT_NAME), text)
                };
                self.stages.push(Stage { name, text, kind: op.kind });
                self.stages.len() as u32 - 1
            });
            self.stage_of.push(stage);
        }
    }

    /// The stages and kernels that the packets refer to, in portions. Texts must be written before.
    pub(super) fn interned(&self, tracks: &Tracks<'_>) -> impl Iterator<Item = InternedData> + '_ {
        let specification = |(iid, stage): (u64, &Stage)| GpuSpecification {
            iid,
            name: stage.text.clone(),
            description: match stage.kind {
                DeviceOpKind::Kernel => "Kernel".to_owned(),
                DeviceOpKind::Memcpy => "Memcpy".to_owned(),
                DeviceOpKind::Memset => "Memset".to_owned(),
            },
            category: if stage.kind == DeviceOpKind::Kernel { CATEGORY_COMPUTE } else { 0 },
        };
        let stages = (self.first_stage_iid..).zip(&self.stages).map(specification).collect();
        let stages = InternedData { gpu_specifications: stages, ..InternedData::default() };
        let limits: FxHashMap<u32, Limits> = (1..=self.timeline.definitions.devices.len() as u32)
            .filter_map(|device| Some((device, Limits::of_device(&self.timeline.definitions, device)?)))
            .collect();
        let kernels: Vec<ComputeKernel> = (1..)
            .zip(&self.kernels)
            .map(|(iid, &(shape, stream))| self.kernel(iid, shape, stream, &limits, tracks))
            .collect();
        let kernels = kernels.chunks(500).map(|kernels| kernels.to_vec()).collect::<Vec<_>>();
        let kernels = kernels.into_iter();
        std::iter::once(stages)
            .chain(kernels.map(|compute_kernels| InternedData { compute_kernels, ..InternedData::default() }))
    }

    /// A kernel with all that its launches of this shape on this stream have in common.
    fn kernel(
        &self,
        iid: u64,
        shape: u32,
        stream: u32,
        limits: &FxHashMap<u32, Limits>,
        tracks: &Tracks<'_>,
    ) -> ComputeKernel {
        let definitions = &self.timeline.definitions;
        let keys = &self.labels.keys;
        let info = self.stream(stream);
        let shape_row = definitions.get::<Shape>(shape).unwrap_or_default();
        let blocks = volume(shape_row.grid_x, shape_row.grid_y, shape_row.grid_z);
        let threads = volume(shape_row.block_x, shape_row.block_y, shape_row.block_z);
        let known = |name, value: u64| (value != 0).then_some(Arg { name, value: Value::Uint(value) });
        let mut args: Vec<Arg> = info.args.into_iter().flatten().collect();
        args.extend(known(keys.grid_size, blocks));
        args.extend(known(keys.workgroup_size, threads));
        args.extend(known(keys.thread_count, blocks.saturating_mul(threads)));
        args.extend(known(keys.registers_per_thread, shape_row.registers.into()));
        args.extend(known(keys.shared_mem, shape_row.shared_bytes.into()));
        if threads != 0 && shape_row.shared_bytes == 0 {
            args.push(Arg { name: keys.shared_mem_static, value: Value::Uint(shape_row.static_shared_bytes.into()) });
            args.push(Arg { name: keys.shared_mem_dynamic, value: Value::Uint(shape_row.dynamic_shared_bytes.into()) });
        }
        args.extend(known(keys.local_bytes, shape_row.local_bytes.into()));
        if let Some(occupancy) = limits.get(&info.device).and_then(|limits| limits.occupancy(&shape_row)) {
            args.extend(known(keys.occupancy_limit_blocks, occupancy.limit_blocks.into()));
            args.extend(known(keys.occupancy_limit_registers, occupancy.limit_registers.into()));
            args.extend(known(keys.occupancy_limit_shared_mem, occupancy.limit_shared.into()));
            args.extend(known(keys.occupancy_limit_warps, occupancy.limit_warps.into()));
            args.extend(known(keys.theoretical_warps, occupancy.warps.into()));
            args.push(Arg { name: keys.theoretical_occupancy_pct, value: Value::Double(occupancy.percent()) });
            args.push(Arg { name: keys.waves_per_multiprocessor, value: Value::Double(occupancy.waves) });
        }
        if shape_row.cluster_x != 0 {
            args.extend(self.labels.clusters.arg(keys.cluster, shape));
        }
        let module = definitions.get::<KernelName>(shape_row.kernel).map_or(0, |kernel| kernel.module);
        args.extend((module != 0).then(|| Arg { name: keys.module, value: Value::Text(module.into()) }));
        args.extend(info.process.into_iter().flatten());
        let name = definitions.kernel_name(shape);
        ComputeKernel {
            iid,
            name: name.to_owned(),
            demangled_name: demangled(name).into_owned(),
            arch: tracks.architecture(info.device),
            args: args.into_iter().map(Into::into).collect(),
        }
    }

    fn stream(&self, stream: u32) -> &StreamInfo {
        self.streams.get(stream as usize).unwrap_or(&self.streams[0])
    }

    /// Fills the packet of an operation.
    pub(super) fn fill(&self, index: usize, event: &mut GpuRenderStageEvent) {
        let op = &self.ops[index];
        let stage = self.stage_of[index];
        let stream = self.stream(op.stream);
        event.event_id = event_id(index);
        event.duration = Some(op.duration_ns());
        event.context = (stream.context != 0).then_some(stream.context.into());
        event.gpu_id = Some(stream.gpu_id);
        event.hw_queue_iid = Tracks::queue_iid(if (op.stream as usize) < self.streams.len() { op.stream } else { 0 });
        event.stage_iid = self.first_stage_iid + u64::from(stage);
        event.name_iid = Some(self.stages[stage as usize].name);
        event.event_wait_ids.clear();
        if let Some(waited) = self.links.op_waits.get(&(index as u32)) {
            event.event_wait_ids.extend(waited.iter().map(|op| event_id(*op as usize)));
        }
        event.kernel_iid = is_kernel(op).then_some(self.kernel_of[index].into());
        let launch = event.launch.get_or_insert_default();
        launch.args.clear();
        (launch.grid_size, launch.workgroup_size) = (None, None);
        match op.kind {
            DeviceOpKind::Kernel => self.fill_kernel(op, launch),
            DeviceOpKind::Memcpy => self.fill_memcpy(op, stream, launch),
            DeviceOpKind::Memset => self.fill_memset(op, stream, launch),
        }
    }

    fn fill_kernel(&self, op: &DeviceOp, launch: &mut ComputeKernelLaunch) {
        let row = self.timeline.events.kernel.row(op.row as usize);
        if let Some(shape) = self.timeline.definitions.get::<Shape>(row.shape) {
            let dim = |x, y, z| (x != 0).then_some(Dim3 { x, y, z });
            launch.grid_size = dim(shape.grid_x, shape.grid_y, shape.grid_z);
            launch.workgroup_size = dim(shape.block_x, shape.block_y, shape.block_z);
        }
        self.common(op.correlation, row.graph, row.graph_node, row.timing, row.args, launch);
    }

    fn fill_memcpy(&self, op: &DeviceOp, stream: &StreamInfo, launch: &mut ComputeKernelLaunch) {
        let row = self.timeline.events.memcpy.row(op.row as usize);
        let keys = &self.labels.keys;
        launch.add(stream.args);
        launch.add([
            Some(Arg { name: keys.bytes, value: Value::Uint(row.bytes) }),
            gigabytes_per_second(row.bytes, row.duration_ns, row.timing)
                .map(|rate| Arg { name: keys.gigabytes_per_second, value: Value::Double(rate) }),
            Some(Arg { name: keys.direction, value: Value::Text(self.labels.copies.of(row.kind)) }),
            Some(Arg { name: keys.source_memory, value: Value::Text(self.labels.memories.of(row.source_memory)) }),
            Some(Arg { name: keys.target_memory, value: Value::Text(self.labels.memories.of(row.target_memory)) }),
            self.timeline
                .definitions
                .get::<Device>(row.peer_device)
                .map(|device| Arg { name: keys.peer_device, value: Value::Uint(device.index.into()) }),
        ]);
        self.common(op.correlation, row.graph, row.graph_node, row.timing, row.args, launch);
    }

    fn fill_memset(&self, op: &DeviceOp, stream: &StreamInfo, launch: &mut ComputeKernelLaunch) {
        let row = self.timeline.events.memset.row(op.row as usize);
        let keys = &self.labels.keys;
        launch.add(stream.args);
        launch.add([
            Some(Arg { name: keys.bytes, value: Value::Uint(row.bytes) }),
            Some(Arg { name: keys.value, value: Value::Uint(row.value.into()) }),
            gigabytes_per_second(row.bytes, row.duration_ns, row.timing)
                .map(|rate| Arg { name: keys.gigabytes_per_second, value: Value::Double(rate) }),
            Some(Arg { name: keys.target_memory, value: Value::Text(self.labels.memories.of(row.target_memory)) }),
        ]);
        self.common(op.correlation, row.graph, row.graph_node, row.timing, row.args, launch);
    }

    fn common(
        &self,
        correlation: u64,
        graph: u32,
        node: u64,
        quality: u8,
        args: u32,
        launch: &mut ComputeKernelLaunch,
    ) {
        let keys = &self.labels.keys;
        let known = |name, value: u64| (value != 0).then_some(Arg { name, value: Value::Uint(value) });
        launch.add([known(keys.correlation, correlation), self.labels.graph(graph), known(keys.graph_node, node)]);
        if quality != timing::MEASURED {
            launch.add([Some(Arg { name: keys.timing, value: Value::Text(self.labels.timings.of(quality)) })]);
        }
        launch.args.extend(self.labels.args.of(args).iter().map(|arg| super::proto::ExtraComputeArg::from(*arg)));
    }
}

impl ComputeKernelLaunch {
    fn add<const N: usize>(&mut self, args: [Option<Arg>; N]) {
        self.args.extend(args.into_iter().flatten().map(super::proto::ExtraComputeArg::from));
    }
}

fn stream_info(id: u32, labels: &Labels<'_>, tracks: &Tracks<'_>, texts: &mut Texts<'_>) -> StreamInfo {
    let definitions = labels.definitions;
    let context_id = definitions.get::<Stream>(id).map_or(0, |stream| stream.context);
    let context = definitions.get::<Context>(context_id);
    let device = context.map_or(0, |context| context.device);
    let keys = &labels.keys;
    let index = definitions.get::<Device>(device).map(|device| device.index);
    let process = Some(definitions.process_of_stream(id)).filter(|process| *process != 0);
    let process_name = process.map(|process| texts.text(&tracks.process_name(process), list::VALUE));
    StreamInfo {
        device,
        gpu_id: tracks.gpu_id(device),
        context: if context.is_some() { context_id } else { 0 },
        args: [
            index.map(|index| Arg { name: keys.device, value: Value::Uint(index.into()) }),
            labels.stream(id),
            context.map(|context| Arg { name: keys.context, value: Value::Uint(context.native) }),
        ],
        process: [
            process_name.map(|name| Arg { name: keys.process_name, value: Value::Text(name) }),
            process.map(|process| Arg { name: keys.process_id, value: Value::Int(tracks.pid(process).into()) }),
        ],
    }
}

fn volume(x: u32, y: u32, z: u32) -> u64 {
    u64::from(x).saturating_mul(y.into()).saturating_mul(z.into())
}

/// Bytes a nanosecond; `None` for work that took no time, or a time of which only a bound is known.
fn gigabytes_per_second(bytes: u64, duration_ns: u64, quality: u8) -> Option<f64> {
    (duration_ns > 0 && quality != timing::BOUNDED).then(|| bytes as f64 / duration_ns as f64)
}
