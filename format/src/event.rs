//! The events: what happened, when, where, caused by what.
//!
//! Times are nanoseconds on the tape's clock ([`crate::header::ClockKind`]); durations and sizes say their unit in
//! their name. A column that ends in the name of a definition (`thread`, `stream`, `stack`, …) holds its id, 0 for
//! none. A launch (host) and its kernel (device) are two rows with one correlation id, unique within a process;
//! one graph launch has many kernels. Every host call has the stack that made it.
//!
//! Numbers of tables and order of columns are the format: add at the end, never reorder, never reuse.

use std::convert::Infallible;

use crate::table::{DefinitionKind as D, Predictor as P, Refers as R, Table, tables};

/// How good a device time is (`timing`). No number is presented as better than it is.
pub mod timing {
    /// No device time is known; `start_ns` is the host call's and `duration_ns` is 0.
    pub const ABSENT: u8 = 0;
    /// Measured on the device (CUPTI, CUDA events, an imported profiler's record).
    pub const MEASURED: u8 = 1;
    /// Lies between a launch and a synchronisation; the interval is the widest possible.
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
    /// The names, by number.
    pub const NAMES: &[&str] = &["unknown", "driver", "pool", "caching", "pinned", "managed", "host", "virtual"];
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

const STREAM_END_KERNEL: P = P::StreamEnd { stream: 3, duration: 1 };

tables! {
    /// The host side of one kernel launch: the call that submitted it.
    Launch / LaunchTable, "launch" = 1; {
        /// When the call was entered.
        start_ns: i64 => P::Previous, R::Nothing;
        /// How long the call took.
        duration_ns: u64 => P::Least, R::Nothing;
        /// Joins the call with its device work within a process.
        correlation: u64 => P::Previous, R::Nothing;
        /// The calling thread.
        thread: u32 => P::Least, R::To(D::Thread);
        /// The stream it was submitted to.
        stream: u32 => P::Least, R::To(D::Stream);
        /// Kernel, grid, block and memory.
        shape: u32 => P::Least, R::To(D::Shape);
        /// Who called.
        stack: u32 => P::Least, R::To(D::Stack);
        /// The API function.
        function: u32 => P::Least, R::To(D::Function);
        /// The call's `CUresult` or `cudaError_t`, 0 for success or not known.
        result: i32 => P::Least, R::Nothing;
        /// Further arguments as a JSON object.
        args: u32 => P::Least, R::To(D::String);
    }

    /// The host side of one graph launch; its kernels and copies carry the same correlation id.
    GraphLaunch / GraphLaunchTable, "graph_launch" = 2; {
        /// When the call was entered.
        start_ns: i64 => P::Previous, R::Nothing;
        /// How long the call took.
        duration_ns: u64 => P::Least, R::Nothing;
        /// Joins the call with its device work within a process.
        correlation: u64 => P::Previous, R::Nothing;
        /// The calling thread.
        thread: u32 => P::Least, R::To(D::Thread);
        /// The stream it was submitted to.
        stream: u32 => P::Least, R::To(D::Stream);
        /// The executable graph.
        graph: u32 => P::Least, R::To(D::Graph);
        /// Who called.
        stack: u32 => P::Least, R::To(D::Stack);
        /// The API function.
        function: u32 => P::Least, R::To(D::Function);
        /// The call's result code.
        result: i32 => P::Least, R::Nothing;
        /// Further arguments as a JSON object.
        args: u32 => P::Least, R::To(D::String);
    }

    /// Any other call of the driver or runtime API, among them the host side of copies and memsets.
    Api / ApiTable, "api" = 3; {
        /// When the call was entered.
        start_ns: i64 => P::Previous, R::Nothing;
        /// How long the call took.
        duration_ns: u64 => P::Least, R::Nothing;
        /// Joins the call with its device work within a process.
        correlation: u64 => P::Previous, R::Nothing;
        /// The calling thread.
        thread: u32 => P::Least, R::To(D::Thread);
        /// Who called.
        stack: u32 => P::Least, R::To(D::Stack);
        /// The API function.
        function: u32 => P::Least, R::To(D::Function);
        /// The call's result code.
        result: i32 => P::Least, R::Nothing;
        /// Further arguments as a JSON object.
        args: u32 => P::Least, R::To(D::String);
    }

    /// One kernel as the device ran it.
    Kernel / KernelTable, "kernel" = 4; {
        /// When it began on the device (see `timing`).
        start_ns: i64 => STREAM_END_KERNEL, R::Nothing;
        /// How long it ran.
        duration_ns: u64 => P::Least, R::Nothing;
        /// The launch, or graph launch, that submitted it.
        correlation: u64 => P::Previous, R::Nothing;
        /// The stream it ran on.
        stream: u32 => P::Least, R::To(D::Stream);
        /// Kernel, grid, block and memory.
        shape: u32 => P::Least, R::To(D::Shape);
        /// The graph that it belongs to.
        graph: u32 => P::Least, R::To(D::Graph);
        /// Its node in that graph.
        graph_node: u64 => P::Least, R::Nothing;
        /// How good the times are.
        timing: u8 => P::Least, R::Code(timing::NAMES);
        /// Further arguments (a collective's name and sizes) as a JSON object.
        args: u32 => P::Least, R::To(D::String);
    }

    /// One copy as the device ran it.
    Memcpy / MemcpyTable, "memcpy" = 5; {
        /// When it began on the device (see `timing`).
        start_ns: i64 => STREAM_END_KERNEL, R::Nothing;
        /// How long it ran.
        duration_ns: u64 => P::Least, R::Nothing;
        /// The call that submitted it.
        correlation: u64 => P::Previous, R::Nothing;
        /// The stream it ran on.
        stream: u32 => P::Least, R::To(D::Stream);
        /// How much was copied.
        bytes: u64 => P::Least, R::Nothing;
        /// From where to where.
        kind: u8 => P::Least, R::Code(copy_kind::NAMES);
        /// The memory copied from.
        source_memory: u8 => P::Least, R::Code(memory_kind::NAMES);
        /// The memory copied to.
        target_memory: u8 => P::Least, R::Code(memory_kind::NAMES);
        /// The other device of a copy between two; 0 for none.
        peer_device: u32 => P::Least, R::To(D::Device);
        /// The graph that it belongs to.
        graph: u32 => P::Least, R::To(D::Graph);
        /// Its node in that graph.
        graph_node: u64 => P::Least, R::Nothing;
        /// How good the times are.
        timing: u8 => P::Least, R::Code(timing::NAMES);
        /// The record's own name, where a source has one.
        name: u32 => P::Least, R::To(D::String);
        /// Further arguments as a JSON object.
        args: u32 => P::Least, R::To(D::String);
    }

    /// One memset as the device ran it.
    Memset / MemsetTable, "memset" = 6; {
        /// When it began on the device (see `timing`).
        start_ns: i64 => STREAM_END_KERNEL, R::Nothing;
        /// How long it ran.
        duration_ns: u64 => P::Least, R::Nothing;
        /// The call that submitted it.
        correlation: u64 => P::Previous, R::Nothing;
        /// The stream it ran on.
        stream: u32 => P::Least, R::To(D::Stream);
        /// How much was set.
        bytes: u64 => P::Least, R::Nothing;
        /// What it was set to.
        value: u32 => P::Least, R::Nothing;
        /// The memory that was set.
        target_memory: u8 => P::Least, R::Code(memory_kind::NAMES);
        /// The graph that it belongs to.
        graph: u32 => P::Least, R::To(D::Graph);
        /// Its node in that graph.
        graph_node: u64 => P::Least, R::Nothing;
        /// How good the times are.
        timing: u8 => P::Least, R::Code(timing::NAMES);
        /// The record's own name, where a source has one.
        name: u32 => P::Least, R::To(D::String);
        /// Further arguments as a JSON object.
        args: u32 => P::Least, R::To(D::String);
    }

    /// A call that waits for device work.
    Sync / SyncTable, "sync" = 7; {
        /// When the call was entered.
        start_ns: i64 => P::Previous, R::Nothing;
        /// How long it waited.
        duration_ns: u64 => P::Least, R::Nothing;
        /// The call's id within its process.
        correlation: u64 => P::Previous, R::Nothing;
        /// The waiting thread.
        thread: u32 => P::Least, R::To(D::Thread);
        /// What kind of thing it waited for.
        kind: u8 => P::Least, R::Code(sync_kind::NAMES);
        /// The stream it waited for, if one.
        stream: u32 => P::Least, R::To(D::Stream);
        /// The event it waited for, if one: the driver's handle or id.
        event: u64 => P::Least, R::Nothing;
        /// The correlation id of the record call of that event; 0 for not known.
        recorded_by: u64 => P::Previous, R::Nothing;
        /// Who called.
        stack: u32 => P::Least, R::To(D::Stack);
        /// The API function.
        function: u32 => P::Least, R::To(D::Function);
        /// The call's result code.
        result: i32 => P::Least, R::Nothing;
        /// Further arguments as a JSON object.
        args: u32 => P::Least, R::To(D::String);
    }

    /// A call that records an event into a stream.
    EventRecord / EventRecordTable, "event_record" = 8; {
        /// When the call was entered.
        start_ns: i64 => P::Previous, R::Nothing;
        /// How long it took.
        duration_ns: u64 => P::Least, R::Nothing;
        /// The call's id within its process.
        correlation: u64 => P::Previous, R::Nothing;
        /// The calling thread.
        thread: u32 => P::Least, R::To(D::Thread);
        /// The stream recorded into.
        stream: u32 => P::Least, R::To(D::Stream);
        /// The event.
        event: u64 => P::Least, R::Nothing;
        /// Who called.
        stack: u32 => P::Least, R::To(D::Stack);
        /// The API function.
        function: u32 => P::Least, R::To(D::Function);
        /// The call's result code.
        result: i32 => P::Least, R::Nothing;
        /// Further arguments as a JSON object.
        args: u32 => P::Least, R::To(D::String);
    }

    /// A call that makes a stream wait for an event.
    EventWait / EventWaitTable, "event_wait" = 9; {
        /// When the call was entered.
        start_ns: i64 => P::Previous, R::Nothing;
        /// How long it took.
        duration_ns: u64 => P::Least, R::Nothing;
        /// The call's id within its process.
        correlation: u64 => P::Previous, R::Nothing;
        /// The calling thread.
        thread: u32 => P::Least, R::To(D::Thread);
        /// The stream that has to wait.
        stream: u32 => P::Least, R::To(D::Stream);
        /// The event.
        event: u64 => P::Least, R::Nothing;
        /// The correlation id of the record call of that event; 0 for not known.
        recorded_by: u64 => P::Previous, R::Nothing;
        /// Who called.
        stack: u32 => P::Least, R::To(D::Stack);
        /// The API function.
        function: u32 => P::Least, R::To(D::Function);
        /// The call's result code.
        result: i32 => P::Least, R::Nothing;
        /// Further arguments as a JSON object.
        args: u32 => P::Least, R::To(D::String);
    }

    /// Memory was handed out.
    Alloc / AllocTable, "alloc" = 10; {
        /// When.
        start_ns: i64 => P::Previous, R::Nothing;
        /// How long the call took; 0 where a source records an instant.
        duration_ns: u64 => P::Least, R::Nothing;
        /// The asking thread.
        thread: u32 => P::Least, R::To(D::Thread);
        /// Where the memory is; 0 for host memory.
        device: u32 => P::Least, R::To(D::Device);
        /// The stream whose order it follows, if any.
        stream: u32 => P::Least, R::To(D::Stream);
        /// Its address.
        address: u64 => P::Previous, R::Nothing;
        /// Its size.
        bytes: u64 => P::Least, R::Nothing;
        /// Who handed it out.
        allocator: u8 => P::Least, R::Code(allocator::NAMES);
        /// What that allocator had handed out on that device after this, 0 for not known.
        allocated_bytes: u64 => P::Previous, R::Nothing;
        /// What that allocator had taken from the driver on that device after this, 0 for not known.
        reserved_bytes: u64 => P::Previous, R::Nothing;
        /// Who called.
        stack: u32 => P::Least, R::To(D::Stack);
        /// The API function.
        function: u32 => P::Least, R::To(D::Function);
        /// The call's result code.
        result: i32 => P::Least, R::Nothing;
    }

    /// Memory was given back. The columns are those of an allocation; a size that is not known is 0.
    Free / FreeTable, "free" = 11; {
        /// When.
        start_ns: i64 => P::Previous, R::Nothing;
        /// How long the call took; 0 where a source records an instant.
        duration_ns: u64 => P::Least, R::Nothing;
        /// The calling thread.
        thread: u32 => P::Least, R::To(D::Thread);
        /// Where the memory was; 0 for host memory.
        device: u32 => P::Least, R::To(D::Device);
        /// The stream whose order it follows, if any.
        stream: u32 => P::Least, R::To(D::Stream);
        /// Its address.
        address: u64 => P::Previous, R::Nothing;
        /// Its size.
        bytes: u64 => P::Least, R::Nothing;
        /// Who had handed it out.
        allocator: u8 => P::Least, R::Code(allocator::NAMES);
        /// What that allocator had handed out on that device after this, 0 for not known.
        allocated_bytes: u64 => P::Previous, R::Nothing;
        /// What that allocator had taken from the driver on that device after this, 0 for not known.
        reserved_bytes: u64 => P::Previous, R::Nothing;
        /// Who called.
        stack: u32 => P::Least, R::To(D::Stack);
        /// The API function.
        function: u32 => P::Least, R::To(D::Function);
        /// The call's result code.
        result: i32 => P::Least, R::Nothing;
    }

    /// Something a thread was in: an operator, a Python function, a profiler's own overhead. The frame says which.
    Slice / SliceTable, "slice" = 12; {
        /// When it began.
        start_ns: i64 => P::Previous, R::Nothing;
        /// How long it lasted.
        duration_ns: u64 => P::Least, R::Nothing;
        /// The thread.
        thread: u32 => P::Least, R::To(D::Thread);
        /// Name, file and kind.
        frame: u32 => P::Least, R::To(D::Frame);
        /// PyTorch's sequence number, which joins an operator with its backward; -1 where there is none.
        sequence: i64 => P::Previous, R::Nothing;
        /// Further arguments (input shapes and types) as a JSON object.
        args: u32 => P::Least, R::To(D::String);
    }

    /// A range that somebody named: NVTX, `record_function`, a step.
    Range / RangeTable, "range" = 13; {
        /// When it began.
        start_ns: i64 => P::Previous, R::Nothing;
        /// How long it lasted; 0 unless `phase` is complete.
        duration_ns: u64 => P::Least, R::Nothing;
        /// The thread; 0 for a range on a stream.
        thread: u32 => P::Least, R::To(D::Thread);
        /// The stream, for a range that a profiler projected onto the device or recorded there.
        stream: u32 => P::Least, R::To(D::Stream);
        /// What it is called.
        name: u32 => P::Least, R::To(D::String);
        /// Its domain or category.
        category: u32 => P::Least, R::To(D::String);
        /// Whether the row is the whole range.
        phase: u8 => P::Least, R::Code(phase::NAMES);
        /// Who opened it.
        stack: u32 => P::Least, R::To(D::Stack);
        /// Further arguments as a JSON object.
        args: u32 => P::Least, R::To(D::String);
    }

    /// An instant that somebody named.
    Mark / MarkTable, "mark" = 14; {
        /// When.
        start_ns: i64 => P::Previous, R::Nothing;
        /// The thread, if any.
        thread: u32 => P::Least, R::To(D::Thread);
        /// What it is called.
        name: u32 => P::Least, R::To(D::String);
        /// Its domain or category.
        category: u32 => P::Least, R::To(D::String);
        /// Who set it.
        stack: u32 => P::Least, R::To(D::Stack);
        /// Further arguments as a JSON object.
        args: u32 => P::Least, R::To(D::String);
    }

    /// A sampling profiler saw a thread.
    CpuSample / CpuSampleTable, "cpu_sample" = 15; {
        /// When.
        start_ns: i64 => P::Previous, R::Nothing;
        /// The time it stands for: the sampler's period.
        weight_ns: u64 => P::Least, R::Nothing;
        /// The thread.
        thread: u32 => P::Least, R::To(D::Thread);
        /// Where the thread was.
        stack: u32 => P::Least, R::To(D::Stack);
        /// The processor it was on.
        cpu: u32 => P::Least, R::Nothing;
    }

    /// One value of a counter.
    Counter / CounterTable, "counter" = 16; {
        /// When.
        start_ns: i64 => P::Previous, R::Nothing;
        /// Which counter.
        counter: u32 => P::Least, R::To(D::Counter);
        /// Its value, in the counter's unit.
        value: f64 => P::Least, R::Nothing;
    }

    /// A process or thread came, went or changed.
    Lifecycle / LifecycleTable, "lifecycle" = 17; {
        /// When.
        start_ns: i64 => P::Previous, R::Nothing;
        /// What happened.
        kind: u8 => P::Least, R::Code(lifecycle_kind::NAMES);
        /// To which process.
        process: u32 => P::Least, R::To(D::Process);
        /// To which thread, if to one.
        thread: u32 => P::Least, R::To(D::Thread);
        /// Exit status, child's pid: see the kinds.
        code: i64 => P::Least, R::Nothing;
        /// A name: see the kinds.
        detail: u32 => P::Least, R::To(D::String);
    }

    /// Events that happened but are not on the tape. Every report begins with these.
    Loss / LossTable, "loss" = 18; {
        /// When the first of them was lost.
        start_ns: i64 => P::Previous, R::Nothing;
        /// The time up to the last of them.
        duration_ns: u64 => P::Least, R::Nothing;
        /// The process whose they were, if known.
        process: u32 => P::Least, R::To(D::Process);
        /// How many.
        count: u64 => P::Least, R::Nothing;
        /// The table that they would have been rows of; 0 for several or not known.
        kind: u16 => P::Least, R::Nothing;
        /// Why.
        cause: u32 => P::Least, R::To(D::String);
    }

    /// One instant read on two clocks.
    ClockPair / ClockPairTable, "clock" = 19; {
        /// On the tape's clock.
        start_ns: i64 => P::Previous, R::Nothing;
        /// Which other clock.
        clock: u8 => P::Least, R::Code(clock_kind::NAMES);
        /// The other clock's time.
        value_ns: i64 => P::Previous, R::Nothing;
        /// How far the two readings may lie apart.
        uncertainty_ns: u64 => P::Least, R::Nothing;
        /// The device, for a device's clock.
        device: u32 => P::Least, R::To(D::Device);
    }
}

/// A row of an event table.
pub trait Event: crate::table::Row {
    /// When it began, on the tape's clock.
    fn start_ns(&self) -> i64;
    /// How long it lasted; 0 for an instant.
    fn duration_ns(&self) -> u64;
    /// When it ended. Saturates, as a damaged tape may claim any duration.
    fn end_ns(&self) -> i64 {
        self.start_ns().saturating_add_unsigned(self.duration_ns())
    }
    /// This kind's table among all of them.
    fn table(events: &Events) -> &Self::Table;
    /// This kind's table among all of them, to be written.
    fn table_mut(events: &mut Events) -> &mut Self::Table;
}

/// Code that runs once for each event kind; a kind added later is thereby never forgotten.
pub trait KindVisitor {
    /// Why a visit failed.
    type Error;
    /// Called by [`visit_kinds`] with each event kind, in the order of their numbers.
    fn visit<E: Event>(&mut self) -> Result<(), Self::Error>;
}

macro_rules! events {
    ($($field:ident: $row:ident / $table:ident, $duration:expr;)*) => {
        /// The tables of all event kinds.
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct Events { $( #[doc = concat!("All [`", stringify!($row), "`] rows.")] pub $field: $table, )* }

        $(impl Event for $row {
            #[inline]
            fn start_ns(&self) -> i64 { self.start_ns }
            #[inline]
            fn duration_ns(&self) -> u64 { let duration: fn(&$row) -> u64 = $duration; duration(self) }
            fn table(events: &Events) -> &$table { &events.$field }
            fn table_mut(events: &mut Events) -> &mut $table { &mut events.$field }
        })*

        /// Runs `visitor` over all event kinds; stops at its first error.
        pub fn visit_kinds<V: KindVisitor>(visitor: &mut V) -> Result<(), V::Error> {
            $( visitor.visit::<$row>()?; )*
            Ok(())
        }
    };
}

events! {
    launch: Launch / LaunchTable, |row| row.duration_ns;
    graph_launch: GraphLaunch / GraphLaunchTable, |row| row.duration_ns;
    api: Api / ApiTable, |row| row.duration_ns;
    kernel: Kernel / KernelTable, |row| row.duration_ns;
    memcpy: Memcpy / MemcpyTable, |row| row.duration_ns;
    memset: Memset / MemsetTable, |row| row.duration_ns;
    sync: Sync / SyncTable, |row| row.duration_ns;
    event_record: EventRecord / EventRecordTable, |row| row.duration_ns;
    event_wait: EventWait / EventWaitTable, |row| row.duration_ns;
    alloc: Alloc / AllocTable, |row| row.duration_ns;
    free: Free / FreeTable, |row| row.duration_ns;
    slice: Slice / SliceTable, |row| row.duration_ns;
    range: Range / RangeTable, |row| row.duration_ns;
    mark: Mark / MarkTable, |_| 0;
    cpu_sample: CpuSample / CpuSampleTable, |_| 0;
    counter: Counter / CounterTable, |_| 0;
    lifecycle: Lifecycle / LifecycleTable, |_| 0;
    loss: Loss / LossTable, |row| row.duration_ns;
    clock: ClockPair / ClockPairTable, |_| 0;
}

impl Events {
    /// How many rows all tables have together.
    pub fn len(&self) -> usize {
        self.counts().iter().map(|(_, rows)| rows).sum()
    }

    /// Whether no table has a row.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The name and number of rows of each kind, in the order of their numbers, empty ones included.
    pub fn counts(&self) -> Vec<(&'static str, usize)> {
        struct Count<'a>(&'a Events, Vec<(&'static str, usize)>);
        impl KindVisitor for Count<'_> {
            type Error = Infallible;
            fn visit<E: Event>(&mut self) -> Result<(), Infallible> {
                self.1.push((E::NAME, E::table(self.0).len()));
                Ok(())
            }
        }
        let mut count = Count(self, Vec::new());
        let Ok(()) = visit_kinds(&mut count);
        count.1
    }

    /// Moves all rows of `other` behind these, table by table.
    pub fn append(&mut self, other: &mut Events) {
        struct Append<'a>(&'a mut Events, &'a mut Events);
        impl KindVisitor for Append<'_> {
            type Error = Infallible;
            fn visit<E: Event>(&mut self) -> Result<(), Infallible> {
                E::table_mut(self.0).append(E::table_mut(self.1));
                Ok(())
            }
        }
        let Ok(()) = visit_kinds(&mut Append(self, other));
    }

    /// Removes all rows and keeps the memory for the next ones.
    pub fn clear(&mut self) {
        struct Clear<'a>(&'a mut Events);
        impl KindVisitor for Clear<'_> {
            type Error = Infallible;
            fn visit<E: Event>(&mut self) -> Result<(), Infallible> {
                E::table_mut(self.0).clear();
                Ok(())
            }
        }
        let Ok(()) = visit_kinds(&mut Clear(self));
    }

    /// Sorts every table by start; rows that start together keep their order.
    pub fn sort_by_start(&mut self) {
        struct Sort<'a>(&'a mut Events);
        impl KindVisitor for Sort<'_> {
            type Error = Infallible;
            fn visit<E: Event>(&mut self) -> Result<(), Infallible> {
                let table = E::table_mut(self.0);
                let mut starts = Vec::new();
                table.column_bits(0, 0..table.len(), &mut starts);
                let start = |row: u32| starts[row as usize] as i64;
                let mut order: Vec<u32> = (0..table.len() as u32).collect();
                if !order.is_sorted_by_key(|&row| start(row)) {
                    order.sort_by_key(|&row| start(row));
                    table.gather(&order);
                }
                Ok(())
            }
        }
        let Ok(()) = visit_kinds(&mut Sort(self));
    }
}
