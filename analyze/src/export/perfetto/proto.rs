//! The part of Perfetto's trace schema that is written, by hand: one page, each field with its number and meaning.
//!
//! The numbers are those of `perfetto_trace.proto` and of the GPU extensions to it (interned compute kernels from
//! 1000 on, GPU correlation from 3000 on). The schema is proto2: repeated numbers are not packed. What occurs once
//! an event is small and copied, what needs text refers to it by an interning id (`iid`); only interned data,
//! written once, owns strings. A packet is kept and refilled, so encoding an event allocates nothing.

/// `sequence_flags`: interning ids start anew with this packet.
pub(super) const INCREMENTAL_STATE_CLEARED: u32 = 1;
/// `sequence_flags`: the packet uses interning ids defined before.
pub(super) const NEEDS_INCREMENTAL_STATE: u32 = 2;
/// `primary_trace_clock` and `clock_id`: the clock that packets without a clock id are on.
pub(super) const BOOTTIME: u32 = 6;
/// `clock_id`: nanoseconds since 1970.
pub(super) const REALTIME: u32 = 1;
/// `clock_id`: the host's monotonic clock.
pub(super) const MONOTONIC: u32 = 3;
/// `child_ordering`: by `sibling_order_rank`.
pub(super) const ORDER_EXPLICIT: i32 = 3;
/// `category` of a render stage: a compute kernel.
pub(super) const CATEGORY_COMPUTE: i32 = 2;
/// `api` of a graphics context.
pub(super) const API_CUDA: i32 = 4;
/// `api` of a graphics context.
pub(super) const API_HIP: i32 = 5;

/// `type` of a track event.
pub(super) mod event_type {
    pub(in super::super) const SLICE_BEGIN: i32 = 1;
    pub(in super::super) const SLICE_END: i32 = 2;
    pub(in super::super) const INSTANT: i32 = 3;
    pub(in super::super) const COUNTER: i32 = 4;
}

/// One packet: a time, and one of the things below.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct TracePacket {
    #[prost(message, optional, tag = "6")]
    pub clock_snapshot: Option<ClockSnapshot>,
    #[prost(uint64, optional, tag = "8")]
    pub timestamp: Option<u64>,
    #[prost(uint32, tag = "10")]
    pub trusted_packet_sequence_id: u32,
    #[prost(message, optional, tag = "11")]
    pub track_event: Option<TrackEvent>,
    #[prost(message, optional, tag = "12")]
    pub interned_data: Option<InternedData>,
    #[prost(uint32, tag = "13")]
    pub sequence_flags: u32,
    #[prost(message, optional, tag = "53")]
    pub gpu_render_stage_event: Option<GpuRenderStageEvent>,
    #[prost(message, optional, tag = "60")]
    pub track_descriptor: Option<TrackDescriptor>,
    #[prost(message, optional, tag = "128")]
    pub gpu_info: Option<GpuInfo>,
}

/// One instant, read on several clocks.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ClockSnapshot {
    #[prost(message, repeated, tag = "1")]
    pub clocks: Vec<Clock>,
    #[prost(uint32, tag = "2")]
    pub primary_trace_clock: u32,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct Clock {
    #[prost(uint32, tag = "1")]
    pub clock_id: u32,
    #[prost(uint64, optional, tag = "2")]
    pub timestamp: Option<u64>,
}

/// A slice's begin or end, an instant, or a counter's value, on a track.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct TrackEvent {
    #[prost(uint64, repeated, packed = "false", tag = "3")]
    pub category_iids: Vec<u64>,
    #[prost(message, repeated, tag = "4")]
    pub debug_annotations: Vec<DebugAnnotation>,
    #[prost(int32, tag = "9")]
    pub r#type: i32,
    #[prost(uint64, optional, tag = "10")]
    pub name_iid: Option<u64>,
    #[prost(uint64, tag = "11")]
    pub track_uuid: u64,
    #[prost(int64, optional, tag = "30")]
    pub counter_value: Option<i64>,
    #[prost(double, optional, tag = "44")]
    pub double_counter_value: Option<f64>,
    #[prost(uint64, optional, tag = "56")]
    pub callstack_iid: Option<u64>,
    /// What the call stack counts for in a flamegraph.
    #[prost(double, optional, tag = "57")]
    pub callstack_weight: Option<f64>,
    /// Extension `GpuTrackEvent.gpu_correlation`.
    #[prost(message, optional, tag = "3000")]
    pub gpu_correlation: Option<GpuCorrelation>,
}

/// The device work of a host call: what it submitted, what it waited for.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct GpuCorrelation {
    #[prost(uint64, repeated, packed = "false", tag = "1")]
    pub submitted: Vec<u64>,
    #[prost(uint64, repeated, packed = "false", tag = "2")]
    pub waited_for: Vec<u64>,
}

/// An argument of a track event.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct DebugAnnotation {
    #[prost(uint64, tag = "1")]
    pub name_iid: u64,
    #[prost(oneof = "AnnotationValue", tags = "2, 3, 4, 5, 17")]
    pub value: Option<AnnotationValue>,
}

#[derive(Clone, Copy, PartialEq, prost::Oneof)]
pub(super) enum AnnotationValue {
    #[prost(bool, tag = "2")]
    Bool(bool),
    #[prost(uint64, tag = "3")]
    Uint(u64),
    #[prost(int64, tag = "4")]
    Int(i64),
    #[prost(double, tag = "5")]
    Double(f64),
    /// Into `debug_annotation_string_values`.
    #[prost(uint64, tag = "17")]
    Text(u64),
}

/// A kernel, copy or memset on its device.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct GpuRenderStageEvent {
    #[prost(uint64, tag = "1")]
    pub event_id: u64,
    #[prost(uint64, optional, tag = "2")]
    pub duration: Option<u64>,
    /// Into `graphics_contexts`.
    #[prost(uint64, optional, tag = "5")]
    pub context: Option<u64>,
    #[prost(int32, optional, tag = "11")]
    pub gpu_id: Option<i32>,
    /// Into `gpu_specifications`: the stream.
    #[prost(uint64, tag = "13")]
    pub hw_queue_iid: u64,
    /// Into `gpu_specifications`: the kind of work.
    #[prost(uint64, tag = "14")]
    pub stage_iid: u64,
    /// The work that this had to wait for: arrows.
    #[prost(uint64, repeated, packed = "false", tag = "18")]
    pub event_wait_ids: Vec<u64>,
    /// Into `compute_kernels`.
    #[prost(uint64, optional, tag = "19")]
    pub kernel_iid: Option<u64>,
    /// Into `event_names`.
    #[prost(uint64, optional, tag = "20")]
    pub name_iid: Option<u64>,
    #[prost(message, optional, tag = "21")]
    pub launch: Option<ComputeKernelLaunch>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ComputeKernelLaunch {
    #[prost(message, optional, tag = "1")]
    pub grid_size: Option<Dim3>,
    #[prost(message, optional, tag = "2")]
    pub workgroup_size: Option<Dim3>,
    #[prost(message, repeated, tag = "3")]
    pub args: Vec<ExtraComputeArg>,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct Dim3 {
    #[prost(uint32, tag = "1")]
    pub x: u32,
    #[prost(uint32, tag = "2")]
    pub y: u32,
    #[prost(uint32, tag = "3")]
    pub z: u32,
}

/// An argument of device work.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct ExtraComputeArg {
    /// Into `compute_arg_names`.
    #[prost(uint64, tag = "1")]
    pub name_iid: u64,
    #[prost(oneof = "ComputeArgValue", tags = "3, 4, 5, 7")]
    pub value: Option<ComputeArgValue>,
}

#[derive(Clone, Copy, PartialEq, prost::Oneof)]
pub(super) enum ComputeArgValue {
    #[prost(int64, tag = "3")]
    Int(i64),
    #[prost(uint64, tag = "4")]
    Uint(u64),
    #[prost(double, tag = "5")]
    Double(f64),
    /// Into `debug_annotation_string_values`.
    #[prost(uint64, tag = "7")]
    Text(u64),
}

/// A track: a process, a thread, a counter, or a named track below one of these.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct TrackDescriptor {
    #[prost(uint64, tag = "1")]
    pub uuid: u64,
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
    #[prost(message, optional, tag = "3")]
    pub process: Option<ProcessDescriptor>,
    #[prost(message, optional, tag = "4")]
    pub thread: Option<ThreadDescriptor>,
    #[prost(uint64, optional, tag = "5")]
    pub parent_uuid: Option<u64>,
    #[prost(message, optional, tag = "8")]
    pub counter: Option<CounterDescriptor>,
    #[prost(int32, optional, tag = "11")]
    pub child_ordering: Option<i32>,
    #[prost(int32, optional, tag = "12")]
    pub sibling_order_rank: Option<i32>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ProcessDescriptor {
    #[prost(int32, tag = "1")]
    pub pid: i32,
    #[prost(string, repeated, tag = "2")]
    pub cmdline: Vec<String>,
    #[prost(string, tag = "6")]
    pub process_name: String,
    #[prost(string, repeated, tag = "8")]
    pub process_labels: Vec<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ThreadDescriptor {
    #[prost(int32, tag = "1")]
    pub pid: i32,
    #[prost(int64, tag = "2")]
    pub tid: i64,
    #[prost(string, tag = "5")]
    pub thread_name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct CounterDescriptor {
    #[prost(string, tag = "6")]
    pub unit_name: String,
}

/// The devices; a device's place in the list is its `gpu_id`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct GpuInfo {
    #[prost(message, repeated, tag = "1")]
    pub gpus: Vec<Gpu>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Gpu {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub vendor: String,
    #[prost(string, tag = "3")]
    pub model: String,
    #[prost(string, tag = "4")]
    pub architecture: String,
    #[prost(bytes = "vec", tag = "5")]
    pub uuid: Vec<u8>,
    #[prost(message, repeated, tag = "6")]
    pub extra_info: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct KeyValue {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(string, tag = "2")]
    pub value: String,
}

/// What later packets refer to by `iid`. Each list has ids of its own.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct InternedData {
    #[prost(message, repeated, tag = "1")]
    pub event_categories: Vec<Named>,
    #[prost(message, repeated, tag = "2")]
    pub event_names: Vec<Named>,
    #[prost(message, repeated, tag = "3")]
    pub debug_annotation_names: Vec<Named>,
    #[prost(message, repeated, tag = "5")]
    pub function_names: Vec<InternedString>,
    #[prost(message, repeated, tag = "6")]
    pub frames: Vec<Frame>,
    #[prost(message, repeated, tag = "7")]
    pub callstacks: Vec<Callstack>,
    #[prost(message, repeated, tag = "17")]
    pub mapping_paths: Vec<InternedString>,
    #[prost(message, repeated, tag = "18")]
    pub source_paths: Vec<InternedString>,
    #[prost(message, repeated, tag = "19")]
    pub mappings: Vec<Mapping>,
    #[prost(message, repeated, tag = "23")]
    pub graphics_contexts: Vec<GraphicsContext>,
    #[prost(message, repeated, tag = "24")]
    pub gpu_specifications: Vec<GpuSpecification>,
    #[prost(message, repeated, tag = "29")]
    pub debug_annotation_string_values: Vec<InternedString>,
    /// Extension `GpuInternedData.compute_kernels`.
    #[prost(message, repeated, tag = "1000")]
    pub compute_kernels: Vec<ComputeKernel>,
    /// Extension `GpuInternedData.compute_arg_names`.
    #[prost(message, repeated, tag = "1001")]
    pub compute_arg_names: Vec<Named>,
}

/// `EventCategory`, `EventName`, `DebugAnnotationName` and `InternedComputeArgName` are alike.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Named {
    #[prost(uint64, tag = "1")]
    pub iid: u64,
    #[prost(string, tag = "2")]
    pub name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct InternedString {
    #[prost(uint64, tag = "1")]
    pub iid: u64,
    #[prost(bytes = "vec", tag = "2")]
    pub str: Vec<u8>,
}

/// A function at a line.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct Frame {
    #[prost(uint64, tag = "1")]
    pub iid: u64,
    #[prost(uint64, tag = "2")]
    pub function_name_id: u64,
    #[prost(uint64, tag = "3")]
    pub mapping_id: u64,
    #[prost(uint64, tag = "4")]
    pub rel_pc: u64,
    #[prost(uint64, optional, tag = "5")]
    pub source_path_iid: Option<u64>,
    #[prost(uint32, optional, tag = "6")]
    pub line_number: Option<u32>,
}

/// Frames, outermost first.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Callstack {
    #[prost(uint64, tag = "1")]
    pub iid: u64,
    #[prost(uint64, repeated, packed = "false", tag = "2")]
    pub frame_ids: Vec<u64>,
}

/// What frames are grouped by: Perfetto wants a mapped file, we say what kind of frame it is.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Mapping {
    #[prost(uint64, tag = "1")]
    pub iid: u64,
    #[prost(uint64, repeated, packed = "false", tag = "7")]
    pub path_string_ids: Vec<u64>,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct GraphicsContext {
    #[prost(uint64, tag = "1")]
    pub iid: u64,
    #[prost(int32, tag = "2")]
    pub pid: i32,
    #[prost(int32, tag = "3")]
    pub api: i32,
}

/// A stream (hardware queue) or a kind of work (stage).
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct GpuSpecification {
    #[prost(uint64, tag = "1")]
    pub iid: u64,
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(string, tag = "3")]
    pub description: String,
    #[prost(int32, tag = "4")]
    pub category: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ComputeKernel {
    #[prost(uint64, tag = "1")]
    pub iid: u64,
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(string, tag = "3")]
    pub demangled_name: String,
    #[prost(string, tag = "4")]
    pub arch: String,
    #[prost(message, repeated, tag = "5")]
    pub args: Vec<ExtraComputeArg>,
}
