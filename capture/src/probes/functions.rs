//! The functions that get probes, and what their calls mean.
//!
//! One line a function: which of its arguments matter, by position from 0. Everything else follows from it: what the
//! eBPF program keeps of a call ([`Function::plan`]), whether its return is wanted, and how `collect` reads it. Argument
//! orders are those of `cuda.h`, sizes of structures too.
//!
//! Work enters at the driver: the runtime library resolves the driver's exported functions and calls them, so a launch
//! is seen once, here, whoever made it. The runtime's own launch is looked at only for the name of its kernel.

use ktape_ebpf::wire::{self, Plan};
use ktape_format::event::{allocator, copy_kind, sync_kind};

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
    /// Queues a host function into a stream.
    HostFunction,
    /// Copies bytes: the target comes first.
    Copy { kind: u8, from: Argument, bytes: Argument, stream: Option<Argument> },
    /// Copies bytes between devices: target, its context, source, its context, bytes.
    CopyPeer { stream: Option<Argument> },
    /// Copies what a structure in the first argument describes.
    CopyShape { shape: CopyShape, stream: Option<Argument> },
    /// Sets elements of some bytes to a value.
    Set { value: Argument, count: Argument, rows: Option<Argument>, element_bytes: u8, stream: Option<Argument> },
    /// Waits for device work.
    Wait { kind: u8, object: Option<Argument> },
    /// Records an event: event, stream.
    EventRecord,
    /// Makes a stream wait: stream, event.
    EventWait,
    /// Hands out memory through its first argument.
    Alloc { allocator: u8, bytes: Argument, stream: Option<Argument> },
    /// Hands out memory in rows: address, pitch, width, rows.
    AllocPitch,
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
    /// Hands out the primary context of a device.
    ContextPrimary,
    /// Makes a stream: handle, flags, priority.
    StreamCreate { priority: Option<Argument> },
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
}

impl CopyShape {
    /// The structure's size.
    pub const fn bytes(self) -> u32 {
        match self {
            CopyShape::Rows => 128,
            CopyShape::Volume | CopyShape::PeerVolume => 200,
        }
    }
}

/// The size of a `CUlaunchConfig`.
pub const LAUNCH_CONFIG_BYTES: u32 = 56;
/// The size of a `CUDA_LAUNCH_PARAMS`.
pub const LAUNCH_PARAMS_BYTES: u32 = 56;

/// The suffix of most variants for the per-thread default stream.
const PTSZ: &str = "_ptsz";
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

/// All functions.
pub const FUNCTIONS: &[Function] = &[
    f("cuLaunchKernel", PTSZ, Meaning::Launch),
    f("cuLaunchKernelEx", PTSZ, Meaning::LaunchConfig),
    f("cuLaunchCooperativeKernel", PTSZ, Meaning::Launch),
    f("cuLaunchCooperativeKernelMultiDevice", "", Meaning::LaunchMulti),
    f("cuLaunchHostFunc", PTSZ, Meaning::HostFunction),
    f("cuGraphInstantiate", "", Meaning::GraphInstantiate),
    f("cuGraphInstantiate_v2", "", Meaning::GraphInstantiate),
    f("cuGraphInstantiateWithFlags", "", Meaning::GraphInstantiate),
    f("cuGraphInstantiateWithParams", PTSZ, Meaning::GraphInstantiate),
    f("cuGraphLaunch", PTSZ, Meaning::GraphLaunch),
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
    f("cuEventRecord", PTSZ, Meaning::EventRecord),
    f("cuEventRecordWithFlags", PTSZ, Meaning::EventRecord),
    f("cuStreamWaitEvent", PTSZ, Meaning::EventWait),
    f("cuMemAlloc_v2", "", alloc(allocator::DRIVER, None)),
    f("cuMemAllocPitch_v2", "", Meaning::AllocPitch),
    f("cuMemAllocManaged", "", alloc(allocator::MANAGED, None)),
    f("cuMemAllocAsync", PTSZ, alloc(allocator::POOL, Some(2))),
    f("cuMemAllocFromPoolAsync", PTSZ, alloc(allocator::POOL, Some(3))),
    f("cuMemAllocHost_v2", "", alloc(allocator::PINNED, None)),
    f("cuMemHostAlloc", "", alloc(allocator::PINNED, None)),
    f("cuMemCreate", "", alloc(allocator::VIRTUAL, None)),
    f("cuMemFree_v2", "", Meaning::Free { allocator: allocator::DRIVER, stream: None }),
    f("cuMemFreeAsync", PTSZ, Meaning::Free { allocator: allocator::POOL, stream: Some(1) }),
    f("cuMemFreeHost", "", Meaning::Free { allocator: allocator::PINNED, stream: None }),
    f("cuMemRelease", "", Meaning::Free { allocator: allocator::VIRTUAL, stream: None }),
    f("cuModuleGetFunction", "", Meaning::KernelByName(ObjectKind::Function)),
    f("cuLibraryGetKernel", "", Meaning::KernelByName(ObjectKind::Kernel)),
    f("cuKernelGetFunction", "", Meaning::FunctionOfKernel),
    f("cuCtxSetCurrent", "", Meaning::ContextSet),
    f("cuCtxPushCurrent_v2", "", Meaning::ContextPush),
    f("cuCtxPopCurrent_v2", "", Meaning::ContextPop),
    f("cuCtxCreate_v2", "", Meaning::ContextCreate { device: 2 }),
    f("cuCtxCreate_v3", "", Meaning::ContextCreate { device: 4 }),
    f("cuCtxCreate_v4", "", Meaning::ContextCreate { device: 3 }),
    f("cuDevicePrimaryCtxRetain", "", Meaning::ContextPrimary),
    f("cuStreamCreate", "", Meaning::StreamCreate { priority: None }),
    f("cuStreamCreateWithPriority", "", Meaning::StreamCreate { priority: Some(2) }),
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
    for function in FUNCTIONS {
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
            | Meaning::EventRecord
            | Meaning::EventWait
            | Meaning::HostFunction => launch_durations,
            Meaning::RegisterStub | Meaning::RuntimeLaunch => false,
            _ => true,
        }
    }

    /// Whether a call becomes an event, so that its stack is wanted.
    pub fn is_event(self) -> bool {
        !matches!(
            self,
            Meaning::GraphInstantiate
                | Meaning::KernelByName(_)
                | Meaning::FunctionOfKernel
                | Meaning::RegisterStub
                | Meaning::RuntimeLaunch
                | Meaning::HandleOfStub
                | Meaning::ContextSet
                | Meaning::ContextPush
                | Meaning::ContextPop
                | Meaning::ContextCreate { .. }
                | Meaning::ContextPrimary
                | Meaning::StreamCreate { .. }
        )
    }

    /// What the eBPF program is to keep of a call.
    pub fn plan(self) -> Plan {
        let plan = Plan { record: wire::kind::CALL, stack: self.is_event().into(), ..Plan::default() };
        let memory = |bytes| Plan { record: wire::kind::MEMORY_CALL, pointer: 0, bytes, ..plan };
        match self {
            Meaning::Launch => Plan { record: wire::kind::STACK_CALL, ..plan },
            Meaning::LaunchConfig => memory(LAUNCH_CONFIG_BYTES),
            Meaning::LaunchMulti => memory(wire::MEMORY_BYTES as u32 / LAUNCH_PARAMS_BYTES * LAUNCH_PARAMS_BYTES),
            Meaning::CopyShape { shape, .. } => memory(shape.bytes()),
            Meaning::KernelByName(_) => Plan { record: wire::kind::NAMED_CALL, pointer: 2, outs: [1, 0], ..plan },
            Meaning::RegisterStub => Plan { record: wire::kind::NAMED_CALL, pointer: 2, ..plan },
            Meaning::GraphInstantiate
            | Meaning::Alloc { .. }
            | Meaning::FunctionOfKernel
            | Meaning::HandleOfStub
            | Meaning::ContextPop
            | Meaning::ContextCreate { .. }
            | Meaning::ContextPrimary
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
            assert!(plan.outs[0] == 0 || probed.meaning.wants_return(false), "{}", probed.symbol);
        }
    }
}
