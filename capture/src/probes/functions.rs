//! The functions that get probes, and what their calls mean.
//!
//! One line a function: which of its arguments matter, by position from 0. Everything else follows from it: what the
//! eBPF program keeps of a call ([`Function::plan`]), whether its return is wanted, and how `collect` reads it. Argument
//! orders are those of `cuda.h`, sizes of structures too.
//!
//! Work enters at the driver: the runtime library resolves the driver's exported functions and calls them, so a launch
//! is seen once, here, whoever made it. The runtime's own launch is looked at only for the name of its kernel. NCCL's
//! functions (`collectives.rs`) say what some of those launches are for, those of graphs (`graphs.rs`) what a graph's launch
//! runs. What is not here is left out on purpose, and `tests/cli/left_out.txt` says why.

use ktape_ebpf::wire::{self, Plan};
use ktape_format::definition::node_kind;
use ktape_format::event::{self, allocator, copy_kind, sync_kind};
use ktape_format::table::Row as _;

use super::collectives::COLLECTIVES;
use super::graphs::{GRAPHS, GraphCall};

/// Position of an argument, from 0. Six and more are on the stack.
pub type Argument = u8;

/// A function, and what its calls mean.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Function {
    /// The exported symbol, without the suffix of the per-thread default stream.
    pub name: &'static str,
    /// The suffix of its variant for which stream 0 is the calling thread's own; empty where there is none.
    pub per_thread: &'static str,
    /// What a call does.
    pub meaning: Meaning,
}

/// What a call does, and in which arguments it says so.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(
    missing_docs,
    reason = "the variants say what their fields are: positions of arguments, codes of the tape's columns"
)]
pub enum Meaning {
    /// Launches a kernel: function, grid, block, shared memory, stream.
    Launch,
    /// Launches a kernel: a `CUlaunchConfig`, function.
    LaunchConfig,
    /// Launches a kernel on several devices: `CUDA_LAUNCH_PARAMS`, how many.
    LaunchMulti,
    /// Makes an executable graph: handle, graph.
    GraphInstantiate,
    /// Launches a graph: executable graph, stream.
    GraphLaunch,
    /// Launches a kernel as before CUDA 4: function; grid, if it is said; stream.
    LaunchGrid { has_grid: bool, stream: Option<Argument> },
    /// Says the block of such launches: function, block.
    BlockShape,
    /// Says the shared memory of such launches: function, bytes.
    SharedSize,
    /// Captures streams; builds, changes and ends graphs.
    Graph(GraphCall),
    /// Queues what is neither kernel, copy nor memset into a stream, and returns at once: a host function, a wait for a value.
    /// In a stream that is captured it is a node of this kind.
    Queued { stream: Argument, node: u8 },
    /// Any other call whose time counts, on the tape as that.
    Other { stream: Option<Argument> },
    /// Copies bytes: the target comes first.
    Copy { kind: u8, from: Argument, bytes: Argument, stream: Option<Argument> },
    /// Copies bytes between devices: target, its context, source, its context, bytes.
    CopyPeer { stream: Option<Argument> },
    /// Copies what a structure in the first argument describes.
    CopyShape { shape: CopyShape, stream: Option<Argument> },
    /// Copies many things: lists of targets, sources and bytes, and how many.
    CopyBatch { stream: Argument },
    /// Copies many things: how many, and a list of `CUDA_MEMCPY3D_BATCH_OP`.
    CopyShapes { stream: Argument },
    /// Sets elements of some bytes to a value.
    Set { value: Argument, count: Argument, rows: Option<Argument>, element_bytes: u8, stream: Option<Argument> },
    /// Waits for device work.
    Wait { kind: u8, object: Option<Argument> },
    /// Records an event into a stream, or all of a context.
    EventRecord { event: Argument, stream: Option<Argument> },
    /// Makes a stream wait, or all of a context, for the event in the second argument.
    EventWait { stream: Option<Argument> },
    /// Hands out memory through its first argument.
    Alloc { allocator: u8, bytes: Argument, stream: Option<Argument> },
    /// Hands out memory in rows: address, pitch, width, rows.
    AllocPitch,
    /// Locks memory of the program's own: address, bytes.
    Register,
    /// Hands out addresses without memory through its first argument: bytes.
    Reserve,
    /// Puts memory behind addresses: address, bytes.
    Map,
    /// Takes it from there: address, bytes.
    Unmap,
    /// Does something else to addresses: address, bytes.
    Range,
    /// Takes memory back.
    Free { allocator: u8, stream: Option<Argument> },
    /// Hands out a kernel of a module or library by name: handle, module, name.
    KernelByName(ObjectKind),
    /// Hands out the function of a kernel: function, kernel.
    FunctionOfKernel,
    /// The runtime's registration of a kernel: module, host stub, device's name.
    RegisterStub,
    /// The runtime's launch: host stub, or handle.
    RuntimeLaunch,
    /// The runtime's handle of a kernel: handle, host stub.
    HandleOfStub,
    /// Makes a context the thread's.
    ContextSet,
    /// Makes a context the thread's, and remembers the one before.
    ContextPush,
    /// Goes back to the one before, and hands out the other.
    ContextPop,
    /// Makes a context on a device, and the thread's.
    ContextCreate { device: Argument },
    /// Hands out a context of a device, and makes it nobody's.
    ContextOn { device: Argument },
    /// Hands out the context of another handle: context, handle.
    ContextOf,
    /// Ends a context.
    ContextDestroy,
    /// Makes a stream.
    StreamCreate { flags: Argument, priority: Option<Argument> },
    /// A collective, or one side of a transfer between ranks.
    Collective(Collective),
    /// Makes a communicator through its first argument.
    Communicator { ranks: Argument, rank: Option<Argument> },
    /// Ends the communicator in the first argument.
    CommunicatorEnd,
}

/// Where a collective says what it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Collective {
    /// How many elements.
    pub count: Argument,
    /// The reduction, where there is one. What the elements are stands before it, and always behind their number.
    pub reduction: Option<Argument>,
    /// The other rank: a root, or the peer.
    pub rank: Option<Argument>,
    /// The communicator; the stream is behind it.
    pub communicator: Argument,
}

/// Which of the driver's objects a kernel's handle stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectKind {
    /// A `CUfunction`: a kernel in a context.
    Function,
    /// A `CUkernel`: one in a library, whatever the context.
    Kernel,
}

/// The structures that describe copies of more than one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyShape {
    /// `CUDA_MEMCPY2D`
    Rows,
    /// `CUDA_MEMCPY3D`
    Volume,
    /// `CUDA_MEMCPY3D_PEER`
    PeerVolume,
    /// `CUDA_MEMCPY3D_BATCH_OP`
    Operands,
}

impl CopyShape {
    /// The structure's size.
    pub const fn bytes(self) -> u32 {
        match self {
            CopyShape::Rows => 128,
            CopyShape::Volume | CopyShape::PeerVolume => 200,
            CopyShape::Operands => 112,
        }
    }
}

/// The size of a `CUlaunchConfig`.
pub const LAUNCH_CONFIG_BYTES: u32 = 56;
/// The size of a `CUDA_LAUNCH_PARAMS`.
pub const LAUNCH_PARAMS_BYTES: u32 = 56;

/// The suffix of most variants for the per-thread default stream.
pub(super) const PTSZ: &str = "_ptsz";
/// The suffix of those that take no stream.
const PTDS: &str = "_ptds";

const fn f(name: &'static str, per_thread: &'static str, meaning: Meaning) -> Function {
    Function { name, per_thread, meaning }
}

const fn copy(kind: u8, stream: Option<Argument>) -> Meaning {
    Meaning::Copy { kind, from: 1, bytes: 2, stream }
}

const fn set(element_bytes: u8, stream: Option<Argument>) -> Meaning {
    Meaning::Set { value: 1, count: 2, rows: None, element_bytes, stream }
}

const fn set_rows(element_bytes: u8, stream: Option<Argument>) -> Meaning {
    Meaning::Set { value: 2, count: 3, rows: Some(4), element_bytes, stream }
}

const fn alloc(allocator: u8, stream: Option<Argument>) -> Meaning {
    Meaning::Alloc { allocator, bytes: 1, stream }
}

/// Any other call, with a stream or without.
const OTHER: Meaning = Meaning::Other { stream: None };

const fn other(stream: Argument) -> Meaning {
    Meaning::Other { stream: Some(stream) }
}

const fn queued(stream: Argument, node: u8) -> Meaning {
    Meaning::Queued { stream, node }
}

const fn free(allocator: u8) -> Meaning {
    Meaning::Free { allocator, stream: None }
}

/// The functions of the driver but for those of graphs, and what of the runtime says names.
pub const FUNCTIONS: &[Function] = &[
    f("cuLaunchKernel", PTSZ, Meaning::Launch),
    f("cuLaunchKernelEx", PTSZ, Meaning::LaunchConfig),
    f("cuLaunchCooperativeKernel", PTSZ, Meaning::Launch),
    f("cuLaunchCooperativeKernelMultiDevice", "", Meaning::LaunchMulti),
    f("cuLaunch", "", Meaning::LaunchGrid { has_grid: false, stream: None }),
    f("cuLaunchGrid", "", Meaning::LaunchGrid { has_grid: true, stream: None }),
    f("cuLaunchGridAsync", "", Meaning::LaunchGrid { has_grid: true, stream: Some(3) }),
    f("cuFuncSetBlockShape", "", Meaning::BlockShape),
    f("cuFuncSetSharedSize", "", Meaning::SharedSize),
    f("cuLaunchHostFunc", PTSZ, queued(0, node_kind::HOST)),
    f("cuLaunchHostFunc_v2", PTSZ, queued(0, node_kind::HOST)),
    f("cuStreamAddCallback", PTSZ, queued(0, node_kind::HOST)),
    f("cuStreamWaitValue32", PTSZ, queued(0, node_kind::MEMORY_OPERATIONS)),
    f("cuStreamWaitValue32_v2", PTSZ, queued(0, node_kind::MEMORY_OPERATIONS)),
    f("cuStreamWaitValue64", PTSZ, queued(0, node_kind::MEMORY_OPERATIONS)),
    f("cuStreamWaitValue64_v2", PTSZ, queued(0, node_kind::MEMORY_OPERATIONS)),
    f("cuStreamWriteValue32", PTSZ, queued(0, node_kind::MEMORY_OPERATIONS)),
    f("cuStreamWriteValue32_v2", PTSZ, queued(0, node_kind::MEMORY_OPERATIONS)),
    f("cuStreamWriteValue64", PTSZ, queued(0, node_kind::MEMORY_OPERATIONS)),
    f("cuStreamWriteValue64_v2", PTSZ, queued(0, node_kind::MEMORY_OPERATIONS)),
    f("cuStreamBatchMemOp", PTSZ, queued(0, node_kind::MEMORY_OPERATIONS)),
    f("cuStreamBatchMemOp_v2", PTSZ, queued(0, node_kind::MEMORY_OPERATIONS)),
    f("cuSignalExternalSemaphoresAsync", PTSZ, queued(3, node_kind::SEMAPHORE_SIGNAL)),
    f("cuWaitExternalSemaphoresAsync", PTSZ, queued(3, node_kind::SEMAPHORE_WAIT)),
    f("cuMemcpy", PTDS, copy(copy_kind::UNKNOWN, None)),
    f("cuMemcpyAsync", PTSZ, copy(copy_kind::UNKNOWN, Some(3))),
    f("cuMemcpyHtoD_v2", PTDS, copy(copy_kind::HTOD, None)),
    f("cuMemcpyHtoDAsync_v2", PTSZ, copy(copy_kind::HTOD, Some(3))),
    f("cuMemcpyDtoH_v2", PTDS, copy(copy_kind::DTOH, None)),
    f("cuMemcpyDtoHAsync_v2", PTSZ, copy(copy_kind::DTOH, Some(3))),
    f("cuMemcpyDtoD_v2", PTDS, copy(copy_kind::DTOD, None)),
    f("cuMemcpyDtoDAsync_v2", PTSZ, copy(copy_kind::DTOD, Some(3))),
    f("cuMemcpyPeer", PTDS, Meaning::CopyPeer { stream: None }),
    f("cuMemcpyPeerAsync", PTSZ, Meaning::CopyPeer { stream: Some(5) }),
    f("cuMemcpyHtoA_v2", PTDS, Meaning::Copy { kind: copy_kind::HTOA, from: 2, bytes: 3, stream: None }),
    f("cuMemcpyHtoAAsync_v2", PTSZ, Meaning::Copy { kind: copy_kind::HTOA, from: 2, bytes: 3, stream: Some(4) }),
    f("cuMemcpyAtoH_v2", PTDS, Meaning::Copy { kind: copy_kind::ATOH, from: 1, bytes: 3, stream: None }),
    f("cuMemcpyAtoHAsync_v2", PTSZ, Meaning::Copy { kind: copy_kind::ATOH, from: 1, bytes: 3, stream: Some(4) }),
    f("cuMemcpyDtoA_v2", PTDS, Meaning::Copy { kind: copy_kind::DTOA, from: 2, bytes: 3, stream: None }),
    f("cuMemcpyAtoD_v2", PTDS, Meaning::Copy { kind: copy_kind::ATOD, from: 1, bytes: 3, stream: None }),
    f("cuMemcpyAtoA_v2", PTDS, Meaning::Copy { kind: copy_kind::ATOA, from: 2, bytes: 4, stream: None }),
    f("cuMemcpy2D_v2", PTDS, Meaning::CopyShape { shape: CopyShape::Rows, stream: None }),
    f("cuMemcpy2DUnaligned_v2", PTDS, Meaning::CopyShape { shape: CopyShape::Rows, stream: None }),
    f("cuMemcpy2DAsync_v2", PTSZ, Meaning::CopyShape { shape: CopyShape::Rows, stream: Some(1) }),
    f("cuMemcpy3D_v2", PTDS, Meaning::CopyShape { shape: CopyShape::Volume, stream: None }),
    f("cuMemcpy3DAsync_v2", PTSZ, Meaning::CopyShape { shape: CopyShape::Volume, stream: Some(1) }),
    f("cuMemcpy3DPeer", PTDS, Meaning::CopyShape { shape: CopyShape::PeerVolume, stream: None }),
    f("cuMemcpy3DPeerAsync", PTSZ, Meaning::CopyShape { shape: CopyShape::PeerVolume, stream: Some(1) }),
    f("cuMemcpyWithAttributesAsync", PTSZ, copy(copy_kind::UNKNOWN, Some(4))),
    f("cuMemcpy3DWithAttributesAsync", PTSZ, Meaning::CopyShape { shape: CopyShape::Operands, stream: Some(2) }),
    f("cuMemcpyBatchAsync", PTSZ, Meaning::CopyBatch { stream: 8 }),
    f("cuMemcpyBatchAsync_v2", PTSZ, Meaning::CopyBatch { stream: 7 }),
    f("cuMemcpy3DBatchAsync", PTSZ, Meaning::CopyShapes { stream: 4 }),
    f("cuMemcpy3DBatchAsync_v2", PTSZ, Meaning::CopyShapes { stream: 3 }),
    f("cuFabricCpyBatchAsync", PTSZ, other(3)),
    f("cuMemPrefetchAsync", PTSZ, other(3)),
    f("cuMemPrefetchAsync_v2", PTSZ, other(4)),
    f("cuMemPrefetchBatchAsync", PTSZ, other(7)),
    f("cuMemDiscardBatchAsync", PTSZ, other(4)),
    f("cuMemDiscardAndPrefetchBatchAsync", PTSZ, other(7)),
    f("cuMemBatchDecompressAsync", PTSZ, other(4)),
    f("cuMemMapArrayAsync", PTSZ, other(2)),
    f("cuStreamAttachMemAsync", PTSZ, other(0)),
    f("cuMemsetD8_v2", PTDS, set(1, None)),
    f("cuMemsetD16_v2", PTDS, set(2, None)),
    f("cuMemsetD32_v2", PTDS, set(4, None)),
    f("cuMemsetD8Async", PTSZ, set(1, Some(3))),
    f("cuMemsetD16Async", PTSZ, set(2, Some(3))),
    f("cuMemsetD32Async", PTSZ, set(4, Some(3))),
    f("cuMemsetD2D8_v2", PTDS, set_rows(1, None)),
    f("cuMemsetD2D16_v2", PTDS, set_rows(2, None)),
    f("cuMemsetD2D32_v2", PTDS, set_rows(4, None)),
    f("cuMemsetD2D8Async", PTSZ, set_rows(1, Some(5))),
    f("cuMemsetD2D16Async", PTSZ, set_rows(2, Some(5))),
    f("cuMemsetD2D32Async", PTSZ, set_rows(4, Some(5))),
    f("cuStreamSynchronize", PTSZ, Meaning::Wait { kind: sync_kind::STREAM, object: Some(0) }),
    f("cuEventSynchronize", "", Meaning::Wait { kind: sync_kind::EVENT, object: Some(0) }),
    f("cuCtxSynchronize", "", Meaning::Wait { kind: sync_kind::CONTEXT, object: None }),
    f("cuCtxSynchronize_v2", "", Meaning::Wait { kind: sync_kind::CONTEXT, object: None }),
    f("cuFlushGPUDirectRDMAWrites", "", OTHER),
    f("cuEventRecord", PTSZ, Meaning::EventRecord { event: 0, stream: Some(1) }),
    f("cuEventRecordWithFlags", PTSZ, Meaning::EventRecord { event: 0, stream: Some(1) }),
    f("cuCtxRecordEvent", "", Meaning::EventRecord { event: 1, stream: None }),
    f("cuGreenCtxRecordEvent", "", Meaning::EventRecord { event: 1, stream: None }),
    f("cuStreamWaitEvent", PTSZ, Meaning::EventWait { stream: Some(0) }),
    f("cuCtxWaitEvent", "", Meaning::EventWait { stream: None }),
    f("cuGreenCtxWaitEvent", "", Meaning::EventWait { stream: None }),
    f("cuMemAlloc_v2", "", alloc(allocator::DRIVER, None)),
    f("cuMemAllocPitch_v2", "", Meaning::AllocPitch),
    f("cuMemAllocManaged", "", alloc(allocator::MANAGED, None)),
    f("cuMemAllocAsync", PTSZ, alloc(allocator::POOL, Some(2))),
    f("cuMemAllocFromPoolAsync", PTSZ, alloc(allocator::POOL, Some(3))),
    f("cuMemAllocHost_v2", "", alloc(allocator::PINNED, None)),
    f("cuMemHostAlloc", "", alloc(allocator::PINNED, None)),
    f("cuMemCreate", "", alloc(allocator::VIRTUAL, None)),
    f("cuMemHostRegister", "", Meaning::Register),
    f("cuMemHostRegister_v2", "", Meaning::Register),
    f("cuMemFree_v2", "", free(allocator::DRIVER)),
    f("cuMemFreeAsync", PTSZ, Meaning::Free { allocator: allocator::POOL, stream: Some(1) }),
    f("cuMemFreeHost", "", free(allocator::PINNED)),
    f("cuMemHostUnregister", "", free(allocator::REGISTERED)),
    f("cuMemRelease", "", free(allocator::VIRTUAL)),
    f("cuMemAddressReserve", "", Meaning::Reserve),
    f("cuMemAddressFree", "", Meaning::Range),
    f("cuMemMap", "", Meaning::Map),
    f("cuMemUnmap", "", Meaning::Unmap),
    f("cuMemSetAccess", "", Meaning::Range),
    f("cuMemImportFromShareableHandle", "", OTHER),
    f("cuMemRetainAllocationHandle", "", OTHER),
    f("cuMemPoolTrimTo", "", OTHER),
    f("cuMemPoolImportPointer", "", OTHER),
    f("cuDeviceGraphMemTrim", "", OTHER),
    f("cuIpcOpenMemHandle", "", OTHER),
    f("cuIpcOpenMemHandle_v2", "", OTHER),
    f("cuIpcCloseMemHandle", "", OTHER),
    f("cuMulticastCreate", "", OTHER),
    f("cuMulticastAddDevice", "", OTHER),
    f("cuMulticastBindMem", "", OTHER),
    f("cuMulticastBindMem_v2", "", OTHER),
    f("cuMulticastBindAddr", "", OTHER),
    f("cuMulticastBindAddr_v2", "", OTHER),
    f("cuMulticastUnbind", "", OTHER),
    f("cuArrayCreate", "", OTHER),
    f("cuArrayCreate_v2", "", OTHER),
    f("cuArray3DCreate", "", OTHER),
    f("cuArray3DCreate_v2", "", OTHER),
    f("cuArrayDestroy", "", OTHER),
    f("cuMipmappedArrayCreate", "", OTHER),
    f("cuMipmappedArrayDestroy", "", OTHER),
    // The first forms of what changed with 64-bit addresses in CUDA 3.2: their structures and addresses are others.
    f("cuMemAlloc", "", OTHER),
    f("cuMemAllocPitch", "", OTHER),
    f("cuMemAllocHost", "", OTHER),
    f("cuMemFree", "", OTHER),
    f("cuMemcpyHtoD", "", OTHER),
    f("cuMemcpyHtoDAsync", "", OTHER),
    f("cuMemcpyDtoH", "", OTHER),
    f("cuMemcpyDtoHAsync", "", OTHER),
    f("cuMemcpyDtoD", "", OTHER),
    f("cuMemcpyDtoDAsync", "", OTHER),
    f("cuMemcpyHtoA", "", OTHER),
    f("cuMemcpyHtoAAsync", "", OTHER),
    f("cuMemcpyAtoH", "", OTHER),
    f("cuMemcpyAtoHAsync", "", OTHER),
    f("cuMemcpyDtoA", "", OTHER),
    f("cuMemcpyAtoD", "", OTHER),
    f("cuMemcpyAtoA", "", OTHER),
    f("cuMemcpy2D", "", OTHER),
    f("cuMemcpy2DUnaligned", "", OTHER),
    f("cuMemcpy2DAsync", "", OTHER),
    f("cuMemcpy3D", "", OTHER),
    f("cuMemcpy3DAsync", "", OTHER),
    f("cuMemsetD8", "", OTHER),
    f("cuMemsetD16", "", OTHER),
    f("cuMemsetD32", "", OTHER),
    f("cuMemsetD2D8", "", OTHER),
    f("cuMemsetD2D16", "", OTHER),
    f("cuMemsetD2D32", "", OTHER),
    f("cuInit", "", OTHER),
    f("cuDevicePrimaryCtxRelease", "", OTHER),
    f("cuDevicePrimaryCtxRelease_v2", "", OTHER),
    f("cuDevicePrimaryCtxReset", "", OTHER),
    f("cuDevicePrimaryCtxReset_v2", "", OTHER),
    f("cuCtxEnablePeerAccess", "", OTHER),
    f("cuCtxDisablePeerAccess", "", OTHER),
    f("cuCheckpointProcessLock", "", OTHER),
    f("cuCheckpointProcessCheckpoint", "", OTHER),
    f("cuCheckpointProcessRestore", "", OTHER),
    f("cuCheckpointProcessUnlock", "", OTHER),
    f("cuProfilerStart", "", OTHER),
    f("cuProfilerStop", "", OTHER),
    f("cuModuleLoad", "", OTHER),
    f("cuModuleLoadData", "", OTHER),
    f("cuModuleLoadDataEx", "", OTHER),
    f("cuModuleLoadFatBinary", "", OTHER),
    f("cuModuleUnload", "", OTHER),
    f("cuLibraryLoadData", "", OTHER),
    f("cuLibraryLoadFromFile", "", OTHER),
    f("cuLibraryUnload", "", OTHER),
    f("cuFuncLoad", "", OTHER),
    f("cuLinkAddData", "", OTHER),
    f("cuLinkAddData_v2", "", OTHER),
    f("cuLinkAddFile", "", OTHER),
    f("cuLinkAddFile_v2", "", OTHER),
    f("cuLinkComplete", "", OTHER),
    f("cuModuleGetFunction", "", Meaning::KernelByName(ObjectKind::Function)),
    f("cuLibraryGetKernel", "", Meaning::KernelByName(ObjectKind::Kernel)),
    f("cuKernelGetFunction", "", Meaning::FunctionOfKernel),
    f("cuCtxSetCurrent", "", Meaning::ContextSet),
    f("cuCtxPushCurrent", "", Meaning::ContextPush),
    f("cuCtxPushCurrent_v2", "", Meaning::ContextPush),
    f("cuCtxPopCurrent", "", Meaning::ContextPop),
    f("cuCtxPopCurrent_v2", "", Meaning::ContextPop),
    f("cuCtxDestroy", "", Meaning::ContextDestroy),
    f("cuCtxDestroy_v2", "", Meaning::ContextDestroy),
    f("cuCtxCreate", "", Meaning::ContextCreate { device: 2 }),
    f("cuCtxCreate_v2", "", Meaning::ContextCreate { device: 2 }),
    f("cuCtxCreate_v3", "", Meaning::ContextCreate { device: 4 }),
    f("cuCtxCreate_v4", "", Meaning::ContextCreate { device: 3 }),
    f("cuDevicePrimaryCtxRetain", "", Meaning::ContextOn { device: 1 }),
    f("cuGreenCtxCreate", "", Meaning::ContextOn { device: 2 }),
    f("cuCtxFromGreenCtx", "", Meaning::ContextOf),
    f("cuStreamCreate", "", Meaning::StreamCreate { flags: 1, priority: None }),
    f("cuStreamCreateWithPriority", "", Meaning::StreamCreate { flags: 1, priority: Some(2) }),
    f("cuGreenCtxStreamCreate", "", Meaning::StreamCreate { flags: 2, priority: Some(3) }),
    f("cudaLaunchKernel", PTSZ, Meaning::RuntimeLaunch),
    f("__cudaRegisterFunction", "", Meaning::RegisterStub),
    f("__cudaGetKernel", "", Meaning::HandleOfStub),
];

/// A symbol to probe.
#[derive(Clone, Debug, PartialEq)]
pub struct Probed {
    /// The exported symbol.
    pub symbol: String,
    /// Whether stream 0 is the calling thread's own.
    pub per_thread_stream: bool,
    /// What its calls mean.
    pub meaning: Meaning,
}

/// All symbols, with their variants. Their order is that of the plans and counters, and the probes' cookies are their
/// indices.
pub fn all() -> Vec<Probed> {
    let mut all = Vec::new();
    for function in FUNCTIONS.iter().chain(GRAPHS).chain(COLLECTIVES) {
        let mut push = |suffix: &str| {
            all.push(Probed {
                symbol: format!("{}{suffix}", function.name),
                per_thread_stream: !suffix.is_empty(),
                meaning: function.meaning,
            });
        };
        push("");
        if !function.per_thread.is_empty() {
            push(function.per_thread);
        }
    }
    debug_assert!(all.len() <= wire::MOST_FUNCTIONS as usize);
    all
}

impl Meaning {
    /// Whether the call's end is wanted: its duration, its result or what it hands out. Launches and what is as short are
    /// asked only on request, as a return probe costs as much as the probe itself.
    pub fn wants_return(self, launch_durations: bool) -> bool {
        match self {
            Meaning::Launch
            | Meaning::LaunchConfig
            | Meaning::LaunchMulti
            | Meaning::LaunchGrid { .. }
            | Meaning::EventRecord { .. }
            | Meaning::EventWait { .. }
            | Meaning::Queued { .. } => launch_durations,
            Meaning::RegisterStub | Meaning::RuntimeLaunch | Meaning::BlockShape | Meaning::SharedSize => false,
            _ => true,
        }
    }

    /// Whether a call launches a kernel or a graph.
    pub fn is_launch(self) -> bool {
        matches!(
            self,
            Meaning::Launch
                | Meaning::LaunchConfig
                | Meaning::LaunchMulti
                | Meaning::LaunchGrid { .. }
                | Meaning::GraphLaunch
        )
    }

    /// Whether a call becomes an event, so that its stack is wanted.
    pub fn is_event(self) -> bool {
        !matches!(
            self,
            Meaning::KernelByName(_)
                | Meaning::FunctionOfKernel
                | Meaning::RegisterStub
                | Meaning::RuntimeLaunch
                | Meaning::HandleOfStub
                | Meaning::ContextSet
                | Meaning::ContextPush
                | Meaning::ContextPop
                | Meaning::ContextCreate { .. }
                | Meaning::ContextOn { .. }
                | Meaning::ContextOf
                | Meaning::ContextDestroy
                | Meaning::StreamCreate { .. }
                | Meaning::BlockShape
                | Meaning::SharedSize
        )
    }

    /// The table that the row of a call goes into that names its function; 0 for a call that is no event.
    pub fn table(self) -> u16 {
        match self {
            _ if !self.is_event() => 0,
            Meaning::Launch | Meaning::LaunchConfig | Meaning::LaunchMulti | Meaning::LaunchGrid { .. } => {
                event::Launch::KIND
            }
            Meaning::GraphLaunch => event::GraphLaunch::KIND,
            Meaning::Wait { .. } => event::Sync::KIND,
            Meaning::EventRecord { .. } => event::EventRecord::KIND,
            Meaning::EventWait { .. } => event::EventWait::KIND,
            Meaning::Alloc { .. } | Meaning::AllocPitch | Meaning::Register => event::Alloc::KIND,
            Meaning::Free { .. } => event::Free::KIND,
            _ => event::Api::KIND,
        }
    }

    /// What the eBPF program is to keep of a call.
    pub fn plan(self) -> Plan {
        let stack = match (self.is_launch(), self.is_event()) {
            (true, _) => wire::stack_use::EVENT | wire::stack_use::LAUNCH,
            (false, is_event) => is_event.into(),
        };
        let plan = Plan { record: wire::kind::CALL, stack, tally: self.table().into(), ..Plan::default() };
        let memory = |bytes| Plan { record: wire::kind::MEMORY_CALL, pointer: 0, bytes, ..plan };
        match self {
            Meaning::Launch => Plan { record: wire::kind::STACK_CALL, ..plan },
            Meaning::LaunchConfig => memory(LAUNCH_CONFIG_BYTES),
            Meaning::LaunchMulti => memory(wire::MEMORY_BYTES as u32 / LAUNCH_PARAMS_BYTES * LAUNCH_PARAMS_BYTES),
            Meaning::CopyShape { shape, .. } => memory(shape.bytes()),
            Meaning::CopyBatch { .. } => Plan { record: wire::kind::LISTS_CALL, lists: 3, count: 3, bytes: 8, ..plan },
            Meaning::CopyShapes { .. } => {
                let bytes = CopyShape::Operands.bytes();
                Plan { record: wire::kind::LISTS_CALL, pointer: 1, lists: 1, count: 0, bytes, ..plan }
            }
            // What is behind the sixth argument is on the stack.
            Meaning::Other { stream: Some(6..) } | Meaning::Collective(Collective { communicator: 5.., .. }) => {
                Plan { record: wire::kind::STACK_CALL, ..plan }
            }
            Meaning::Graph(call) => call.plan(plan),
            Meaning::KernelByName(_) => Plan { record: wire::kind::NAMED_CALL, pointer: 2, outs: [1, 0], ..plan },
            Meaning::RegisterStub => Plan { record: wire::kind::NAMED_CALL, pointer: 2, ..plan },
            Meaning::GraphInstantiate
            | Meaning::Alloc { .. }
            | Meaning::Reserve
            | Meaning::Communicator { .. }
            | Meaning::ContextOf
            | Meaning::FunctionOfKernel
            | Meaning::HandleOfStub
            | Meaning::ContextPop
            | Meaning::ContextCreate { .. }
            | Meaning::ContextOn { .. }
            | Meaning::StreamCreate { .. } => Plan { outs: [1, 0], ..plan },
            // The pitch times the rows is what it takes.
            Meaning::AllocPitch => Plan { outs: [1, 2], ..plan },
            _ => plan,
        }
    }
}

#[cfg(test)]
mod tests {
    use rustc_hash::FxHashSet;

    use super::*;

    #[test]
    fn no_symbol_stands_twice_and_all_have_a_plan() {
        let all = all();
        let symbols: FxHashSet<&str> = all.iter().map(|probed| probed.symbol.as_str()).collect();
        assert_eq!(symbols.len(), all.len());
        assert!(all.len() <= wire::MOST_FUNCTIONS as usize);
        for probed in all {
            let plan = probed.meaning.plan();
            assert!(plan.bytes as usize <= wire::MEMORY_BYTES, "{}", probed.symbol);
            assert!((plan.lists > 0) == (plan.record == wire::kind::LISTS_CALL), "{}", probed.symbol);
            assert!(plan.outs[0] == 0 || probed.meaning.wants_return(false), "{}", probed.symbol);
        }
    }
}
