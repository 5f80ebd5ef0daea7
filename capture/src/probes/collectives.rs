//! NCCL's functions: collectives, transfers between ranks, and the communicators that they run in.
//!
//! A collective is a call beside its kernels, which the driver's functions tell: between `ncclGroupStart` and `ncclGroupEnd`
//! it only queues, and the launch comes with the end of the group. Orders of arguments are those of `nccl.h`, up to NCCL 2.31;
//! the id of `ncclCommInitRank` is passed in memory, so it takes no register.

use super::functions::{Argument, Collective, Function, Meaning};

const fn f(name: &'static str, meaning: Meaning) -> Function {
    Function { name, per_thread: "", meaning }
}

const fn collective(
    count: Argument,
    reduction: Option<Argument>,
    rank: Option<Argument>,
    communicator: Argument,
) -> Meaning {
    Meaning::Collective(Collective { count, reduction, rank, communicator })
}

const fn communicator(ranks: Argument, rank: Option<Argument>) -> Meaning {
    Meaning::Communicator { ranks, rank }
}

const OTHER: Meaning = Meaning::Other { stream: None };

/// All of NCCL's functions that get probes.
pub const COLLECTIVES: &[Function] = &[
    f("ncclAllReduce", collective(2, Some(4), None, 5)),
    f("ncclAllReduceConfig", collective(2, Some(4), None, 5)),
    f("ncclReduceScatter", collective(2, Some(4), None, 5)),
    f("ncclReduceScatterConfig", collective(2, Some(4), None, 5)),
    f("ncclReduce", collective(2, Some(4), Some(5), 6)),
    f("ncclReduceConfig", collective(2, Some(4), Some(5), 6)),
    f("ncclBroadcast", collective(2, None, Some(4), 5)),
    f("ncclBroadcastConfig", collective(2, None, Some(4), 5)),
    f("ncclAllGather", collective(2, None, None, 4)),
    f("ncclAllGatherConfig", collective(2, None, None, 4)),
    f("ncclAlltoAll", collective(2, None, None, 4)),
    f("ncclAlltoAllConfig", collective(2, None, None, 4)),
    f("ncclGather", collective(2, None, Some(4), 5)),
    f("ncclGatherConfig", collective(2, None, Some(4), 5)),
    f("ncclScatter", collective(2, None, Some(4), 5)),
    f("ncclScatterConfig", collective(2, None, Some(4), 5)),
    // `ncclBcast` calls `ncclBroadcast`.
    f("ncclSend", collective(1, None, Some(3), 4)),
    f("ncclRecv", collective(1, None, Some(3), 4)),
    f("ncclPutSignal", collective(1, None, Some(3), 9)),
    f("ncclSignal", Meaning::Other { stream: Some(5) }),
    f("ncclWaitSignal", Meaning::Other { stream: Some(3) }),
    f("ncclGroupStart", OTHER),
    f("ncclGroupEnd", OTHER),
    f("ncclCommInitRank", communicator(1, Some(2))),
    f("ncclCommInitRankConfig", communicator(1, Some(2))),
    f("ncclCommInitRankScalable", communicator(1, Some(2))),
    // Makes several: of the first, which has rank 0, the handle is seen.
    f("ncclCommInitAll", communicator(1, None)),
    f("ncclCommSplit", OTHER),
    f("ncclCommShrink", OTHER),
    f("ncclCommGrow", OTHER),
    f("ncclCommRevoke", OTHER),
    f("ncclCommSuspend", OTHER),
    f("ncclCommResume", OTHER),
    f("ncclCommFinalize", OTHER),
    f("ncclCommDestroy", Meaning::CommunicatorEnd),
    f("ncclCommAbort", Meaning::CommunicatorEnd),
    f("ncclCommRegister", OTHER),
    f("ncclCommDeregister", OTHER),
    f("ncclCommWindowRegister", OTHER),
    f("ncclCommWindowDeregister", OTHER),
    f("ncclMemAlloc", OTHER),
    f("ncclMemFree", OTHER),
];

/// What NCCL calls a type of elements, and how many bytes one has: `ncclDataType_t`, by number.
pub const TYPES: &[(&str, u64)] = &[
    ("int8", 1),
    ("uint8", 1),
    ("int32", 4),
    ("uint32", 4),
    ("int64", 8),
    ("uint64", 8),
    ("float16", 2),
    ("float32", 4),
    ("float64", 8),
    ("bfloat16", 2),
    ("float8e4m3", 1),
    ("float8e5m2", 1),
];

/// What NCCL calls a reduction: `ncclRedOp_t`, by number. Higher ones are made by the program.
pub const REDUCTIONS: &[&str] = &["sum", "prod", "max", "min", "avg"];
