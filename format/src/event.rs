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

pub use crate::codes::{
    allocator, clock_kind, copy_kind, lifecycle_kind, memory_kind, off_cpu_reason, phase, sync_kind, timing,
};

const STREAM_END_KERNEL: P = P::StreamEnd { stream: 3, duration: 1 };

tables! {
    /// The host side of one kernel launch: the call that submitted it.
    Launch / LaunchTable, "launch" = 1; {
        /// When the call was entered.
        start_ns: i64 => P::Previous, R::Nothing;
        /// How long the call took.
        duration_ns: u64 => P::Key(5), R::Nothing;
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
        duration_ns: u64 => P::Key(5), R::Nothing;
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
        duration_ns: u64 => P::Key(5), R::Nothing;
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
        duration_ns: u64 => P::Key(4), R::Nothing;
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
        duration_ns: u64 => P::Key(4), R::Nothing;
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
        duration_ns: u64 => P::Key(4), R::Nothing;
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
        duration_ns: u64 => P::Key(9), R::Nothing;
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
        duration_ns: u64 => P::Key(7), R::Nothing;
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
        duration_ns: u64 => P::Key(8), R::Nothing;
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
        duration_ns: u64 => P::Key(10), R::Nothing;
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
        duration_ns: u64 => P::Key(10), R::Nothing;
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
        duration_ns: u64 => P::Key(3), R::Nothing;
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

    /// A thread was not on a processor.
    OffCpu / OffCpuTable, "off_cpu" = 20; {
        /// When it left the processor.
        start_ns: i64 => P::Previous, R::Nothing;
        /// How long until it ran again.
        duration_ns: u64 => P::Least, R::Nothing;
        /// The thread.
        thread: u32 => P::Least, R::To(D::Thread);
        /// How much of that, at its end, it could have run and waited for a processor; all of it for one that was preempted.
        runnable_ns: u64 => P::Least, R::Nothing;
        /// Why it left.
        reason: u8 => P::Least, R::Code(off_cpu_reason::NAMES);
        /// The processor that it left.
        cpu: u32 => P::Least, R::Nothing;
    }

    /// Exact totals of the calls of one kind in a segment that have the same stack, kernel, graph, function and process, and whose
    /// durations begin with the same binary digit: so the rows of one stack and kernel are a histogram. Of stretches off the
    /// processor, likewise by process.
    Rollup / RollupTable, "rollup" = 21; {
        /// When the segment began.
        start_ns: i64 => P::Previous, R::Nothing;
        /// How long it is.
        duration_ns: u64 => P::Least, R::Nothing;
        /// The process.
        process: u32 => P::Least, R::To(D::Process);
        /// The table that the calls are rows of.
        kind: u16 => P::Least, R::Nothing;
        /// The kernel; 0 where the calls have none.
        kernel: u32 => P::Least, R::To(D::Kernel);
        /// Who called.
        stack: u32 => P::Least, R::To(D::Stack);
        /// The API function.
        function: u32 => P::Least, R::To(D::Function);
        /// How many calls.
        count: u64 => P::Least, R::Nothing;
        /// Of these, how many did not succeed.
        failed: u64 => P::Least, R::Nothing;
        /// Their durations together.
        sum_ns: u64 => P::Least, R::Nothing;
        /// The shortest.
        min_ns: u64 => P::Least, R::Nothing;
        /// The longest.
        max_ns: u64 => P::Least, R::Nothing;
        /// What they copied, set or handed out, together.
        bytes: u64 => P::Least, R::Nothing;
        /// The graph that was launched; 0 for other calls. Its nodes say what each launch that did not fail ran.
        graph: u32 => P::Least, R::To(D::Graph);
    }

    /// What became of the calls (or samples) that one processor saw in one interval: the proof that nothing is missing. Several
    /// rows may speak of the same processor, kind and interval; their sums count. A row stands behind all that it counts. One
    /// of kind 0 counts nothing: it says that the account of its interval is closed, with all that was seen in it told.
    Tally / TallyTable, "tally" = 22; {
        /// When the interval began. Calls belong to the one that they were entered in; stretches off the processor, and what a device
        /// did, to the one that they ended in.
        start_ns: i64 => P::Previous, R::Nothing;
        /// How long it is.
        duration_ns: u64 => P::Least, R::Nothing;
        /// The processor; 65535 for what processes have counted themselves, wherever they ran.
        cpu: u32 => P::Least, R::Nothing;
        /// The table that the calls are rows of.
        kind: u16 => P::Least, R::Nothing;
        /// Calls that the probes saw, counted before anything else was done with them.
        seen: u64 => P::Least, R::Nothing;
        /// Calls that are on the tape. One with several rows (a copy has its call's and its own) counts once, in the table of
        /// the row that names its function.
        written: u64 => P::Least, R::Nothing;
        /// Calls that are not on the tape, but in its loss rows.
        lost: u64 => P::Least, R::Nothing;
        /// Calls that were not to be recorded: outside of what was asked for.
        left_out: u64 => P::Least, R::Nothing;
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
    off_cpu: OffCpu / OffCpuTable, |row| row.duration_ns;
    rollup: Rollup / RollupTable, |row| row.duration_ns;
    tally: Tally / TallyTable, |row| row.duration_ns;
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
