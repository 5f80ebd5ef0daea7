//! The enumerations of the tape: what the small numbers in some columns mean.
//!
//! A code is a number of one byte and not a Rust enumeration, so that a tape of a newer version, with a code that this
//! one does not know, can still be read, copied and counted. Numbers are never used again.

/// How good a device time is (`timing`). No number is presented as better than it is.
pub mod timing {
    /// No device time is known; `start_ns` is the host call's and `duration_ns` is 0.
    pub const ABSENT: u8 = 0;
    /// Measured on the device (CUPTI, an imported profiler's record).
    pub const MEASURED: u8 = 1;
    /// Lies in the interval, which is as wide as it can have been: between a launch and a synchronisation, or two CUDA events.
    pub const BOUNDED: u8 = 2;
    /// The names, by number.
    pub const NAMES: &[&str] = &["absent", "measured", "bounded"];
}

/// The direction of a copy (`kind` of a memcpy), numbered as `CUpti_ActivityMemcpyKind` where that has one.
pub mod copy_kind {
    /// Not known.
    pub const UNKNOWN: u8 = 0;
    /// Host to device.
    pub const HTOD: u8 = 1;
    /// Device to host.
    pub const DTOH: u8 = 2;
    /// Host to array.
    pub const HTOA: u8 = 3;
    /// Array to host.
    pub const ATOH: u8 = 4;
    /// Array to array.
    pub const ATOA: u8 = 5;
    /// Array to device.
    pub const ATOD: u8 = 6;
    /// Device to array.
    pub const DTOA: u8 = 7;
    /// Within one device.
    pub const DTOD: u8 = 8;
    /// Host to host.
    pub const HTOH: u8 = 9;
    /// Between two devices.
    pub const PTOP: u8 = 10;
    /// The names, by number.
    pub const NAMES: &[&str] =
        &["unknown", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP"];
}

/// What kind of memory one side of a copy, or an allocation, is (`CUpti_ActivityMemoryKind`).
pub mod memory_kind {
    /// Not known.
    pub const UNKNOWN: u8 = 0;
    /// Host memory that the driver must stage.
    pub const PAGEABLE: u8 = 1;
    /// Page-locked host memory.
    pub const PINNED: u8 = 2;
    /// Device memory.
    pub const DEVICE: u8 = 3;
    /// A CUDA array.
    pub const ARRAY: u8 = 4;
    /// Managed (unified) memory.
    pub const MANAGED: u8 = 5;
    /// A `__device__` variable.
    pub const DEVICE_STATIC: u8 = 6;
    /// A `__managed__` variable.
    pub const MANAGED_STATIC: u8 = 7;
    /// The names, by number.
    pub const NAMES: &[&str] =
        &["unknown", "Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static"];
}

/// What a synchronisation waited for.
pub mod sync_kind {
    /// Not known.
    pub const UNKNOWN: u8 = 0;
    /// One event.
    pub const EVENT: u8 = 1;
    /// One stream.
    pub const STREAM: u8 = 2;
    /// All of a context (or device).
    pub const CONTEXT: u8 = 3;
    /// The names, by number.
    pub const NAMES: &[&str] = &["unknown", "event", "stream", "context"];
}

/// Who handed out memory.
pub mod allocator {
    /// Not known.
    pub const UNKNOWN: u8 = 0;
    /// The driver itself (`cuMemAlloc`, `cudaMalloc`).
    pub const DRIVER: u8 = 1;
    /// A stream-ordered pool (`cuMemAllocAsync`).
    pub const POOL: u8 = 2;
    /// A framework's caching allocator on a device (PyTorch).
    pub const CACHING: u8 = 3;
    /// Page-locked host memory (`cuMemHostAlloc`).
    pub const PINNED: u8 = 4;
    /// Managed memory.
    pub const MANAGED: u8 = 5;
    /// A framework's allocator of ordinary host memory.
    pub const HOST: u8 = 6;
    /// Virtual memory management (`cuMemCreate`, `cuMemMap`).
    pub const VIRTUAL: u8 = 7;
    /// The program's own memory, page-locked (`cuMemHostRegister`).
    pub const REGISTERED: u8 = 8;
    /// The names, by number.
    pub const NAMES: &[&str] =
        &["unknown", "driver", "pool", "caching", "pinned", "managed", "host", "virtual", "registered"];
}

/// Whether a range's row is the whole of it.
pub mod phase {
    /// Start and duration are known.
    pub const COMPLETE: u8 = 0;
    /// It was opened; its end is not on the tape (yet).
    pub const PUSH: u8 = 1;
    /// The innermost open range of the thread was closed.
    pub const POP: u8 = 2;
    /// The names, by number.
    pub const NAMES: &[&str] = &["complete", "push", "pop"];
}

/// What happened to a process or thread.
pub mod lifecycle_kind {
    /// A process was seen for the first time, or started.
    pub const PROCESS_START: u8 = 0;
    /// A process forked; `code` is the child's pid.
    pub const PROCESS_FORK: u8 = 1;
    /// A process replaced its program.
    pub const PROCESS_EXEC: u8 = 2;
    /// A process ended; `code` is its wait status.
    pub const PROCESS_EXIT: u8 = 3;
    /// A thread was seen for the first time, or started.
    pub const THREAD_START: u8 = 4;
    /// A thread ended.
    pub const THREAD_EXIT: u8 = 5;
    /// A library or module was loaded; `detail` names it.
    pub const MODULE_LOAD: u8 = 6;
    /// The recording of a process began.
    pub const ATTACH: u8 = 7;
    /// The recording of a process ended.
    pub const DETACH: u8 = 8;
    /// From now on more or less is kept of each event; `detail` says what. Of all processes, unless one is named.
    pub const FIDELITY: u8 = 9;
    /// The names, by number.
    pub const NAMES: &[&str] = &[
        "process_start",
        "process_fork",
        "process_exec",
        "process_exit",
        "thread_start",
        "thread_exit",
        "module_load",
        "attach",
        "detach",
        "fidelity",
    ];
}

/// Why a thread left its processor.
pub mod off_cpu_reason {
    /// Not known.
    pub const UNKNOWN: u8 = 0;
    /// Another was to run, and this one could have gone on.
    pub const PREEMPTED: u8 = 1;
    /// It waited for something, and could be interrupted (a lock, a timer, a pipe).
    pub const SLEEP: u8 = 2;
    /// It waited for something, and could not be interrupted (a disk, memory, most drivers).
    pub const UNINTERRUPTIBLE: u8 = 3;
    /// It was stopped, traced or frozen.
    pub const STOPPED: u8 = 4;
    /// It is new, and has not run yet.
    pub const NEW: u8 = 5;
    /// The names, by number.
    pub const NAMES: &[&str] = &["unknown", "preempted", "sleep", "uninterruptible", "stopped", "new"];
}

/// What a node of a graph does, numbered as `CUgraphNodeType` and one more.
pub mod node_kind {
    /// Not known.
    pub const UNKNOWN: u8 = 0;
    /// It runs a kernel.
    pub const KERNEL: u8 = 1;
    /// It copies.
    pub const MEMCPY: u8 = 2;
    /// It sets memory.
    pub const MEMSET: u8 = 3;
    /// It calls a function of the host.
    pub const HOST: u8 = 4;
    /// It is a graph.
    pub const GRAPH: u8 = 5;
    /// It does nothing but order others.
    pub const EMPTY: u8 = 6;
    /// It waits for an event.
    pub const WAIT_EVENT: u8 = 7;
    /// It records an event.
    pub const EVENT_RECORD: u8 = 8;
    /// It signals an external semaphore.
    pub const SEMAPHORE_SIGNAL: u8 = 9;
    /// It waits for an external semaphore.
    pub const SEMAPHORE_WAIT: u8 = 10;
    /// It allocates memory.
    pub const ALLOC: u8 = 11;
    /// It frees memory.
    pub const FREE: u8 = 12;
    /// It reads, writes or waits for words of memory.
    pub const MEMORY_OPERATIONS: u8 = 13;
    /// It runs other nodes by a condition, which the host does not see.
    pub const CONDITIONAL: u8 = 14;
    /// The names, by number.
    pub const NAMES: &[&str] = &[
        "unknown",
        "kernel",
        "memcpy",
        "memset",
        "host",
        "graph",
        "empty",
        "wait_event",
        "event_record",
        "semaphore_signal",
        "semaphore_wait",
        "alloc",
        "free",
        "memory_operations",
        "conditional",
    ];
}

/// Clocks that a clock pair relates the tape's time to.
pub mod clock_kind {
    /// Nanoseconds since 1970-01-01 UTC (`CLOCK_REALTIME`).
    pub const UNIX: u8 = 0;
    /// `CLOCK_MONOTONIC` of the recording host.
    pub const MONOTONIC: u8 = 1;
    /// `CLOCK_BOOTTIME` of the recording host.
    pub const BOOT: u8 = 2;
    /// CUPTI's time stamps.
    pub const CUPTI: u8 = 3;
    /// A device's global timer.
    pub const DEVICE: u8 = 4;
    /// The names, by number.
    pub const NAMES: &[&str] = &["unix", "monotonic", "boot", "cupti", "device"];
}

/// Where a frame's name comes from (`kind` of a frame).
pub mod frame_kind {
    /// Not known.
    pub const UNKNOWN: u8 = 0;
    /// A Python function.
    pub const PYTHON: u8 = 1;
    /// A framework's operator (`aten::linear`).
    pub const OPERATOR: u8 = 2;
    /// A range that somebody named (`record_function`, NVTX).
    pub const RANGE: u8 = 3;
    /// A native function.
    pub const NATIVE: u8 = 4;
    /// A function of the kernel of the operating system.
    pub const SYSTEM: u8 = 5;
    /// A profiler's own work.
    pub const OVERHEAD: u8 = 6;
    /// The names, by number.
    pub const NAMES: &[&str] = &["unknown", "python", "operator", "range", "native", "system", "overhead"];
}

/// Who made a device (`vendor`).
pub mod vendor {
    /// Not known.
    pub const UNKNOWN: u8 = 0;
    /// NVIDIA.
    pub const NVIDIA: u8 = 1;
    /// AMD.
    pub const AMD: u8 = 2;
    /// Intel.
    pub const INTEL: u8 = 3;
    /// The names, by number.
    pub const NAMES: &[&str] = &["unknown", "NVIDIA", "AMD", "Intel"];
}

/// Which interface an API function belongs to (`domain`).
pub mod api_domain {
    /// Not known.
    pub const UNKNOWN: u8 = 0;
    /// The CUDA driver API (`cu…`).
    pub const DRIVER: u8 = 1;
    /// The CUDA runtime API (`cuda…`), or HIP's.
    pub const RUNTIME: u8 = 2;
    /// NCCL, which runs collectives (`nccl…`).
    pub const NCCL: u8 = 3;
    /// The names, by number.
    pub const NAMES: &[&str] = &["unknown", "driver", "runtime", "nccl"];
}
