//! CUPTI's activity records, as far as they are read: the beginnings of its structures.
//!
//! CUPTI only ever adds fields at the end, or in what was padding, and calls the longer structure by a new name: from CUDA 11.8
//! (`CUpti_ActivityKernel8`, `Memcpy5`, `MemcpyPtoP4`, `Memset4`) to 13.5 (`Kernel13`, `Memcpy7`, `MemcpyPtoP4`, `Memset5`) these beginnings are
//! the same, which `tests/headers.rs` compares with the headers of each. How long a record is, CUPTI alone knows: it says where
//! the next one is.

use std::ffi::c_char;

/// A kernel: `CUpti_ActivityKernel8` to `13`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    /// The kind of record.
    pub kind: u32,
    cache_config: u8,
    shared_memory_config: u8,
    /// Registers of a thread.
    pub registers: u16,
    global_caches: [u32; 2],
    /// When it began.
    pub start: u64,
    /// When it ended.
    pub end: u64,
    completed: u64,
    /// The device.
    pub device: u32,
    /// The context.
    pub context: u32,
    /// The stream.
    pub stream: u32,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Shared memory of a block that the kernel declares.
    pub static_shared: u32,
    /// Shared memory of a block that the launch adds.
    pub dynamic_shared: u32,
    /// Local memory of a thread.
    pub local_per_thread: u32,
    local_total: u32,
    /// The id of the call that launched it.
    pub correlation: u32,
    grid_id: i64,
    /// Its mangled name: CUPTI's, and only to be read now.
    pub name: *const c_char,
    reserved: *const u8,
    queued_and_submitted: [u64; 2],
    launch: [u8; 4],
    shared_memory_executed: u32,
    /// The node of a graph; 0 for none.
    pub graph_node: u64,
    shared_memory_limit: u32,
    /// The executable graph; 0 for none.
    pub graph: u32,
}

/// A copy: `CUpti_ActivityMemcpy5` to `7`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Copy {
    /// The kind of record.
    pub kind: u32,
    /// `CUpti_ActivityMemcpyKind`.
    pub copy: u8,
    /// `CUpti_ActivityMemoryKind` of the source.
    pub source: u8,
    /// And of the target.
    pub target: u8,
    flags: u8,
    /// How much.
    pub bytes: u64,
    /// When it began.
    pub start: u64,
    /// When it ended.
    pub end: u64,
    /// The device.
    pub device: u32,
    /// The context.
    pub context: u32,
    /// The stream.
    pub stream: u32,
    /// The id of the call that caused it.
    pub correlation: u32,
    runtime_correlation: u32,
    padding: u32,
    reserved: *const u8,
    /// The node of a graph; 0 for none.
    pub graph_node: u64,
    /// The executable graph; 0 for none.
    pub graph: u32,
}

/// A copy between devices: `CUpti_ActivityMemcpyPtoP4`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PeerCopy {
    /// The kind of record.
    pub kind: u32,
    /// `CUpti_ActivityMemcpyKind`.
    pub copy: u8,
    /// `CUpti_ActivityMemoryKind` of the source.
    pub source: u8,
    /// And of the target.
    pub target: u8,
    flags: u8,
    /// How much.
    pub bytes: u64,
    /// When it began.
    pub start: u64,
    /// When it ended.
    pub end: u64,
    /// The device that copied.
    pub device: u32,
    /// The context.
    pub context: u32,
    /// The stream.
    pub stream: u32,
    /// The device from which.
    pub source_device: u32,
    source_context: u32,
    /// The device to which.
    pub target_device: u32,
    target_context: u32,
    /// The id of the call that caused it.
    pub correlation: u32,
    reserved: *const u8,
    /// The node of a graph; 0 for none.
    pub graph_node: u64,
    /// The executable graph; 0 for none.
    pub graph: u32,
}

/// Memory was set: `CUpti_ActivityMemset4` and `5`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Set {
    /// The kind of record.
    pub kind: u32,
    /// To what.
    pub value: u32,
    /// How much.
    pub bytes: u64,
    /// When it began.
    pub start: u64,
    /// When it ended.
    pub end: u64,
    /// The device.
    pub device: u32,
    /// The context.
    pub context: u32,
    /// The stream.
    pub stream: u32,
    /// The id of the call that caused it.
    pub correlation: u32,
    flags: u16,
    /// `CUpti_ActivityMemoryKind`.
    pub memory: u16,
    padding: u32,
    reserved: *const u8,
    /// The node of a graph; 0 for none.
    pub graph_node: u64,
    /// The executable graph; 0 for none.
    pub graph: u32,
}

/// CUPTI, or the driver, took time for something: `CUpti_ActivityOverhead` to `3`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Overhead {
    /// The kind of record.
    pub kind: u32,
    /// `CUpti_ActivityOverheadKind`.
    pub overhead: u32,
    object: [u32; 4],
    /// When it began.
    pub start: u64,
    /// When it ended.
    pub end: u64,
}
