//! The functions that capture streams, and that build, change, run and end graphs.
//!
//! A graph's nodes are known from the calls that made them: what is called while a stream is captured, and the calls that add
//! nodes, with the parameters they point to. Orders of arguments and layouts are those of `cuda.h`, up to CUDA 13.5. What asks
//! after graphs, and what orders nodes without changing them, gets no probe.

use ktape_ebpf::wire::{self, Plan};
use ktape_format::definition::node_kind;

use super::functions::{Argument, CopyShape, Function, Meaning, PTSZ};

/// What a call does to graphs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the variants say what their fields are: positions of arguments")]
pub enum GraphCall {
    /// Begins to capture the stream in the first argument, into a graph of its own or into one that there is.
    BeginCapture { graph: Option<Argument>, replaces: bool },
    /// Ends that: stream, and, if it hands it out, graph.
    EndCapture { hands_out: bool },
    /// Makes a graph without nodes.
    Create,
    /// Ends a graph.
    Destroy,
    /// Makes a copy of a graph: copy, graph.
    Clone,
    /// Hands out the copy of a node: copy, node, copied graph.
    FindInClone,
    /// Adds a node: node, graph, and what the node does, in this argument.
    Add { params: Params, at: Argument },
    /// Ends a node.
    DestroyNode,
    /// Changes what a node does: node, parameters.
    Set { params: Params },
    /// The same in an executable graph: executable graph, node, parameters.
    SetInExec { params: Params },
    /// Switches a node of an executable graph on or off: executable graph, node, whether it is on.
    SetEnabled,
    /// Gives all nodes of an executable graph the parameters of those of a graph: executable graph, graph.
    Update,
    /// Ends an executable graph.
    ExecDestroy,
}

/// How the parameters of a node are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Params {
    /// `CUDA_KERNEL_NODE_PARAMS`; what later versions have behind it is the kernel.
    Kernel {
        /// The structure's size.
        bytes: u32,
    },
    /// `CUDA_MEMCPY3D`
    Copy,
    /// `CUDA_MEMSET_NODE_PARAMS`
    Set,
    /// `CUDA_MEM_ALLOC_NODE_PARAMS`
    Alloc,
    /// A graph, which is copied into the node.
    Child,
    /// `CUgraphNodeParams`: a type, and one of the others.
    Any,
    /// They are not read: the node is of this kind.
    Unread(u8),
}

impl Params {
    /// How many bytes of the structure are read; 0 for none.
    const fn bytes(self) -> u32 {
        match self {
            Params::Kernel { bytes } => bytes,
            Params::Copy => CopyShape::Volume.bytes(),
            Params::Set => 40,
            Params::Alloc => 112,
            // Up to the end of the copy, which is the longest.
            Params::Any => 232,
            Params::Child | Params::Unread(_) => 0,
        }
    }
}

impl GraphCall {
    /// Whether it may change an executable graph that there is already, or end it so that its handle may be another's.
    pub fn is_of_executable(self) -> bool {
        matches!(self, GraphCall::SetInExec { .. } | GraphCall::SetEnabled | GraphCall::Update | GraphCall::ExecDestroy)
    }

    /// What the eBPF program is to keep of a call, besides what it keeps of any.
    pub(super) fn plan(self, plan: Plan) -> Plan {
        let reads = |params: Params, at: Argument, plan: Plan| match params.bytes() {
            0 => plan,
            bytes => Plan { record: wire::kind::MEMORY_CALL, pointer: at.into(), bytes, ..plan },
        };
        let hands_out = Plan { outs: [1, 0], ..plan };
        match self {
            GraphCall::Create | GraphCall::Clone | GraphCall::FindInClone => hands_out,
            GraphCall::EndCapture { hands_out: true } => Plan { outs: [2, 0], ..plan },
            GraphCall::Add { params, at } => reads(params, at, hands_out),
            GraphCall::Set { params } => reads(params, 1, plan),
            GraphCall::SetInExec { params } => reads(params, 2, plan),
            _ => plan,
        }
    }
}

const fn f(name: &'static str, meaning: Meaning) -> Function {
    Function { name, per_thread: "", meaning }
}

const fn g(name: &'static str, call: GraphCall) -> Function {
    f(name, Meaning::Graph(call))
}

/// A function with a variant for the per-thread default stream.
const fn s(name: &'static str, meaning: Meaning) -> Function {
    Function { name, per_thread: PTSZ, meaning }
}

const fn add(params: Params) -> GraphCall {
    GraphCall::Add { params, at: 4 }
}

const fn begin(graph: Option<Argument>, replaces: bool) -> Meaning {
    Meaning::Graph(GraphCall::BeginCapture { graph, replaces })
}

const KERNEL: Params = Params::Kernel { bytes: 56 };
const KERNEL_V2: Params = Params::Kernel { bytes: 72 };

/// All of them.
pub const GRAPHS: &[Function] = &[
    s("cuStreamBeginCapture", begin(None, false)),
    s("cuStreamBeginCapture_v2", begin(None, false)),
    s("cuStreamBeginCaptureToGraph", begin(Some(1), false)),
    s("cuStreamBeginCaptureToCig", begin(None, false)),
    s("cuStreamBeginRecaptureToGraph", begin(Some(2), true)),
    s("cuStreamEndCapture", Meaning::Graph(GraphCall::EndCapture { hands_out: true })),
    s("cuStreamEndCaptureToCig", Meaning::Graph(GraphCall::EndCapture { hands_out: false })),
    g("cuGraphCreate", GraphCall::Create),
    g("cuGraphDestroy", GraphCall::Destroy),
    g("cuGraphClone", GraphCall::Clone),
    g("cuGraphNodeFindInClone", GraphCall::FindInClone),
    g("cuGraphAddKernelNode", add(KERNEL)),
    g("cuGraphAddKernelNode_v2", add(KERNEL_V2)),
    g("cuGraphAddMemcpyNode", add(Params::Copy)),
    g("cuGraphAddMemsetNode", add(Params::Set)),
    g("cuGraphAddHostNode", add(Params::Unread(node_kind::HOST))),
    g("cuGraphAddChildGraphNode", add(Params::Child)),
    g("cuGraphAddEmptyNode", add(Params::Unread(node_kind::EMPTY))),
    g("cuGraphAddEventWaitNode", add(Params::Unread(node_kind::WAIT_EVENT))),
    g("cuGraphAddEventRecordNode", add(Params::Unread(node_kind::EVENT_RECORD))),
    g("cuGraphAddExternalSemaphoresSignalNode", add(Params::Unread(node_kind::SEMAPHORE_SIGNAL))),
    g("cuGraphAddExternalSemaphoresWaitNode", add(Params::Unread(node_kind::SEMAPHORE_WAIT))),
    g("cuGraphAddMemAllocNode", add(Params::Alloc)),
    g("cuGraphAddMemFreeNode", add(Params::Unread(node_kind::FREE))),
    g("cuGraphAddBatchMemOpNode", add(Params::Unread(node_kind::MEMORY_OPERATIONS))),
    g("cuGraphAddNode", add(Params::Any)),
    g("cuGraphAddNode_v2", GraphCall::Add { params: Params::Any, at: 5 }),
    g("cuGraphAddNode_v3", GraphCall::Add { params: Params::Any, at: 5 }),
    g("cuGraphDestroyNode", GraphCall::DestroyNode),
    g("cuGraphKernelNodeSetParams", GraphCall::Set { params: KERNEL }),
    g("cuGraphKernelNodeSetParams_v2", GraphCall::Set { params: KERNEL_V2 }),
    g("cuGraphMemcpyNodeSetParams", GraphCall::Set { params: Params::Copy }),
    g("cuGraphMemsetNodeSetParams", GraphCall::Set { params: Params::Set }),
    g("cuGraphNodeSetParams", GraphCall::Set { params: Params::Any }),
    g("cuGraphNodeSetParams_v2", GraphCall::Set { params: Params::Any }),
    g("cuGraphExecKernelNodeSetParams", GraphCall::SetInExec { params: KERNEL }),
    g("cuGraphExecKernelNodeSetParams_v2", GraphCall::SetInExec { params: KERNEL_V2 }),
    g("cuGraphExecMemcpyNodeSetParams", GraphCall::SetInExec { params: Params::Copy }),
    g("cuGraphExecMemsetNodeSetParams", GraphCall::SetInExec { params: Params::Set }),
    g("cuGraphExecChildGraphNodeSetParams", GraphCall::SetInExec { params: Params::Child }),
    g("cuGraphExecNodeSetParams", GraphCall::SetInExec { params: Params::Any }),
    g("cuGraphNodeSetEnabled", GraphCall::SetEnabled),
    f("cuGraphInstantiate", Meaning::GraphInstantiate),
    f("cuGraphInstantiate_v2", Meaning::GraphInstantiate),
    f("cuGraphInstantiateWithFlags", Meaning::GraphInstantiate),
    s("cuGraphInstantiateWithParams", Meaning::GraphInstantiate),
    g("cuGraphExecUpdate", GraphCall::Update),
    g("cuGraphExecUpdate_v2", GraphCall::Update),
    g("cuGraphExecDestroy", GraphCall::ExecDestroy),
    s("cuGraphUpload", Meaning::Other { stream: Some(1) }),
    s("cuGraphLaunch", Meaning::GraphLaunch),
];
