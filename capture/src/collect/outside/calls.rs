//! One call, from the words of its record to events of the tape.
//!
//! [`Within::open`] reads what the call was asked, [`Open::finish`] adds what its return says. A copy is two events, as on any
//! tape: the call, and the copy itself with its bytes and direction. When the device did it is not seen from here: a copy that
//! the call waits for lies between its beginning and end (`timing::BOUNDED`), of any other only the call is known
//! (`timing::ABSENT`, and a duration of 0).

use ktape_ebpf::wire::{Call, STACK_WORDS};
use ktape_format::Sink;
use ktape_format::definition::Shape;
use ktape_format::event::{
    Alloc, Api, EventRecord, EventWait, Free, GraphLaunch, Launch, Memcpy, Memset, Sync, copy_kind, memory_kind,
    sync_kind, timing,
};

use super::Gaps;
use super::kernels::Kernels;
use super::objects::Objects;
use super::thread::Thread;
use crate::probes::functions::{Argument, CopyShape, LAUNCH_PARAMS_BYTES, Meaning, Probed};

/// A call's words.
pub(super) struct Arguments<'a> {
    pub(super) call: Call,
    words: &'a [u64],
    /// The structure or string that an argument points to; empty if it could not be read.
    memory: &'a [u8],
}

impl<'a> Arguments<'a> {
    pub(super) fn new(call: Call, words: &'a [u64], memory: &'a [u8]) -> Arguments<'a> {
        debug_assert!(words.len() <= STACK_WORDS);
        Arguments { call, words, memory }
    }

    fn word(&self, argument: Argument) -> u64 {
        let index = usize::from(argument);
        self.call.registers.get(index).or_else(|| self.words.get(index - 6)).copied().unwrap_or(0)
    }

    fn half(&self, argument: Argument) -> u32 {
        self.word(argument) as u32
    }

    /// A word of the structure.
    fn memory_word(&self, offset: usize) -> u64 {
        self.memory.get(offset..).and_then(|rest| rest.first_chunk()).map_or(0, |&bytes| u64::from_le_bytes(bytes))
    }

    fn memory_half(&self, offset: usize) -> u32 {
        self.memory_word(offset) as u32
    }

    /// The string, without its end.
    fn name(&self) -> &[u8] {
        self.memory.split(|&byte| byte == 0).next().unwrap_or_default()
    }
}

/// What a call's return says.
pub(super) struct End {
    pub(super) duration_ns: u64,
    pub(super) result: i32,
    pub(super) outs: [u64; 2],
}

/// A call that was read, before its return.
pub(super) enum Open {
    /// It is no event, and its return says nothing.
    Nothing,
    Launch(Launch),
    /// One call's launches on several devices.
    Launches(Vec<Launch>),
    GraphLaunch(GraphLaunch),
    Api(Api),
    /// A copy, and whether its call returns only when it is done.
    Copy(Api, Memcpy, bool),
    Set(Api, Memset),
    Sync(Sync),
    EventRecord(EventRecord),
    EventWait(EventWait),
    Alloc(Alloc),
    /// An allocation in so many rows, whose pitch the call says.
    AllocPitch(Alloc, u64),
    Free(Free),
    /// A kernel is asked for by this name.
    KernelByName(String),
    /// The function of this kernel is asked for.
    FunctionOfKernel(u64),
    /// The handle of this host stub is asked for.
    HandleOfStub(u64),
    ContextSet(u64),
    ContextPush(u64),
    ContextPop,
    ContextCreate(u32),
    ContextPrimary(u32),
    StreamCreate(u32, i32),
}

/// Everything that reading a call needs.
pub(super) struct Within<'a> {
    pub(super) function: &'a Probed,
    pub(super) function_id: u32,
    pub(super) stack: u32,
    pub(super) thread: &'a mut Thread,
    pub(super) kernels: &'a mut Kernels,
    pub(super) objects: &'a mut Objects,
    pub(super) correlation: &'a mut u64,
    pub(super) gaps: &'a mut Gaps,
}

/// Grid, block and shared memory of a launch.
#[derive(Default)]
struct Configuration {
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
}

impl Within<'_> {
    pub(super) fn open<S: Sink>(&mut self, arguments: &Arguments<'_>, sink: &mut S) -> Result<Open, S::Error> {
        let a = arguments;
        Ok(match self.function.meaning {
            Meaning::Launch => {
                let configuration = Configuration {
                    grid: [a.half(1), a.half(2), a.half(3)],
                    block: [a.half(4), a.half(5), a.half(6)],
                    shared_bytes: a.half(7),
                };
                self.note_unreadable(a.words.is_empty());
                Open::Launch(self.launch(a, a.word(0), &configuration, a.word(8), sink)?)
            }
            Meaning::LaunchConfig => {
                let configuration = Configuration {
                    grid: [0, 4, 8].map(|offset| a.memory_half(offset)),
                    block: [12, 16, 20].map(|offset| a.memory_half(offset)),
                    shared_bytes: a.memory_half(24),
                };
                self.note_unreadable(a.memory.is_empty());
                Open::Launch(self.launch(a, a.word(1), &configuration, a.memory_word(32), sink)?)
            }
            Meaning::LaunchMulti => self.launch_multi(a, sink)?,
            Meaning::GraphLaunch => {
                let (graph, stream) = (self.objects.graph(a.word(0), sink)?, self.stream(a.word(1), sink)?);
                Open::GraphLaunch(GraphLaunch {
                    start_ns: a.call.time_ns as i64,
                    correlation: self.next_correlation(),
                    thread: self.thread.id,
                    stream,
                    graph,
                    stack: self.stack,
                    function: self.function_id,
                    ..GraphLaunch::default()
                })
            }
            Meaning::HostFunction => Open::Api(self.api(a)),
            Meaning::Copy { kind, bytes, stream } => self.copy(a, kind, a.word(bytes), stream, sink)?,
            Meaning::CopyPeer { stream } => {
                let kind = self.objects.peer_copy_kind((a.word(3), a.word(1)), copy_kind::DTOD);
                self.copy(a, kind, a.word(4), stream, sink)?
            }
            Meaning::CopyShape { shape, stream } => {
                self.note_unreadable(a.memory.is_empty());
                let (kind, bytes) = copy_of_shape(shape, a);
                // Source and target context.
                let contexts = (a.memory_word(64), a.memory_word(152));
                let kind =
                    if shape == CopyShape::PeerVolume { self.objects.peer_copy_kind(contexts, kind) } else { kind };
                self.copy(a, kind, bytes, stream, sink)?
            }
            Meaning::Set { value, count, rows, element_bytes, stream } => {
                let stream = self.stream_argument(a, stream, sink)?;
                let rows = rows.map_or(1, |rows| a.word(rows));
                let bytes = a.word(count).saturating_mul(rows).saturating_mul(element_bytes.into());
                let api = self.api(a);
                let row = Memset {
                    start_ns: api.start_ns,
                    correlation: api.correlation,
                    stream,
                    bytes,
                    value: a.half(value) & (u32::MAX >> (32 - 8 * u32::from(element_bytes))),
                    target_memory: memory_kind::DEVICE,
                    timing: timing::ABSENT,
                    ..Memset::default()
                };
                Open::Set(api, row)
            }
            Meaning::Wait { kind, object } => {
                let object = object.map_or(0, |object| a.word(object));
                let is_stream = kind == sync_kind::STREAM;
                Open::Sync(Sync {
                    start_ns: a.call.time_ns as i64,
                    correlation: self.next_correlation(),
                    thread: self.thread.id,
                    kind,
                    stream: if is_stream { self.stream(object, sink)? } else { 0 },
                    event: if kind == sync_kind::EVENT { object } else { 0 },
                    recorded_by: if kind == sync_kind::EVENT { self.objects.recorded_by(object) } else { 0 },
                    stack: self.stack,
                    function: self.function_id,
                    ..Sync::default()
                })
            }
            Meaning::EventRecord => {
                let correlation = self.next_correlation();
                self.objects.recorded(a.word(0), correlation);
                Open::EventRecord(EventRecord {
                    start_ns: a.call.time_ns as i64,
                    correlation,
                    thread: self.thread.id,
                    stream: self.stream(a.word(1), sink)?,
                    event: a.word(0),
                    stack: self.stack,
                    function: self.function_id,
                    ..EventRecord::default()
                })
            }
            Meaning::EventWait => Open::EventWait(EventWait {
                start_ns: a.call.time_ns as i64,
                correlation: self.next_correlation(),
                thread: self.thread.id,
                stream: self.stream(a.word(0), sink)?,
                event: a.word(1),
                recorded_by: self.objects.recorded_by(a.word(1)),
                stack: self.stack,
                function: self.function_id,
                ..EventWait::default()
            }),
            Meaning::Alloc { allocator, bytes, stream } => {
                Open::Alloc(self.alloc(a, allocator, a.word(bytes), stream, sink)?)
            }
            Meaning::AllocPitch => {
                let rows = a.word(3);
                let allocator = ktape_format::event::allocator::DRIVER;
                Open::AllocPitch(self.alloc(a, allocator, a.word(2).saturating_mul(rows), None, sink)?, rows)
            }
            Meaning::Free { allocator, stream } => {
                let stream = match stream {
                    Some(stream) => self.stream(a.word(stream), sink)?,
                    None => 0,
                };
                let address = a.word(0);
                Open::Free(Free {
                    start_ns: a.call.time_ns as i64,
                    thread: self.thread.id,
                    device: self.objects.device(self.thread, sink)?,
                    stream,
                    address,
                    bytes: self.objects.freed(address),
                    allocator,
                    stack: self.stack,
                    function: self.function_id,
                    ..Free::default()
                })
            }
            Meaning::KernelByName => {
                self.note_unreadable(a.memory.is_empty());
                Open::KernelByName(String::from_utf8_lossy(a.name()).into_owned())
            }
            Meaning::FunctionOfKernel => Open::FunctionOfKernel(a.word(1)),
            Meaning::RegisterStub => {
                self.note_unreadable(a.memory.is_empty());
                self.kernels.stub(a.word(1), &String::from_utf8_lossy(a.name()));
                Open::Nothing
            }
            Meaning::RuntimeLaunch => {
                self.thread.runtime_launch = Some((a.word(0), a.call.stack_pointer));
                Open::Nothing
            }
            Meaning::HandleOfStub => Open::HandleOfStub(a.word(1)),
            Meaning::ContextSet => Open::ContextSet(a.word(0)),
            Meaning::ContextPush => Open::ContextPush(a.word(0)),
            Meaning::ContextPop => Open::ContextPop,
            Meaning::ContextCreate { device } => Open::ContextCreate(a.half(device)),
            Meaning::ContextPrimary => Open::ContextPrimary(a.half(1)),
            Meaning::StreamCreate { priority } => {
                Open::StreamCreate(a.half(1), priority.map_or(0, |priority| a.half(priority) as i32))
            }
        })
    }

    fn note_unreadable(&mut self, is_unreadable: bool) {
        self.gaps.unreadable_arguments += u64::from(is_unreadable);
    }

    fn next_correlation(&mut self) -> u64 {
        *self.correlation += 1;
        *self.correlation
    }

    fn stream<S: Sink>(&mut self, handle: u64, sink: &mut S) -> Result<u32, S::Error> {
        self.objects.stream(handle, self.function.per_thread_stream, self.thread, sink)
    }

    fn stream_argument<S: Sink>(
        &mut self,
        arguments: &Arguments<'_>,
        stream: Option<Argument>,
        sink: &mut S,
    ) -> Result<u32, S::Error> {
        self.stream(stream.map_or(0, |stream| arguments.word(stream)), sink)
    }

    fn launch<S: Sink>(
        &mut self,
        arguments: &Arguments<'_>,
        handle: u64,
        configuration: &Configuration,
        stream: u64,
        sink: &mut S,
    ) -> Result<Launch, S::Error> {
        let call = &arguments.call;
        // The runtime's launch that this one lies in, if it does; it is good for one.
        let stub =
            self.thread.runtime_launch.take().filter(|(_, outer)| call.stack_pointer < *outer).map(|(stub, _)| stub);
        let Configuration { grid, block, shared_bytes } = *configuration;
        let kernel = self.kernels.id(handle, stub, sink)?;
        let shape = sink.define(Shape {
            kernel,
            grid_x: grid[0],
            grid_y: grid[1],
            grid_z: grid[2],
            block_x: block[0],
            block_y: block[1],
            block_z: block[2],
            dynamic_shared_bytes: shared_bytes,
            ..Shape::default()
        })?;
        Ok(Launch {
            start_ns: call.time_ns as i64,
            correlation: self.next_correlation(),
            thread: self.thread.id,
            stream: self.stream(stream, sink)?,
            shape,
            stack: self.stack,
            function: self.function_id,
            ..Launch::default()
        })
    }

    /// A launch on several devices is as many launches; those that did not fit into the record are counted.
    fn launch_multi<S: Sink>(&mut self, a: &Arguments<'_>, sink: &mut S) -> Result<Open, S::Error> {
        let structures = a.memory.chunks_exact(LAUNCH_PARAMS_BYTES as usize);
        let count = a.half(1) as usize;
        self.note_unreadable(count > structures.len());
        let mut launches = Vec::new();
        for memory in structures.take(count) {
            let one = Arguments { call: a.call, words: &[], memory };
            let configuration = Configuration {
                grid: [8, 12, 16].map(|offset| one.memory_half(offset)),
                block: [20, 24, 28].map(|offset| one.memory_half(offset)),
                shared_bytes: one.memory_half(32),
            };
            launches.push(self.launch(&one, one.memory_word(0), &configuration, one.memory_word(40), sink)?);
        }
        // Whatever it launches, it was a call.
        Ok(if launches.is_empty() { Open::Api(self.api(a)) } else { Open::Launches(launches) })
    }

    fn api(&mut self, arguments: &Arguments<'_>) -> Api {
        Api {
            start_ns: arguments.call.time_ns as i64,
            correlation: self.next_correlation(),
            thread: self.thread.id,
            stack: self.stack,
            function: self.function_id,
            ..Api::default()
        }
    }

    fn copy<S: Sink>(
        &mut self,
        arguments: &Arguments<'_>,
        kind: u8,
        bytes: u64,
        stream: Option<Argument>,
        sink: &mut S,
    ) -> Result<Open, S::Error> {
        // Copies to the host are over when their call returns; of others it may be that only the host's part is.
        let is_waited_for = stream.is_none() && matches!(kind, copy_kind::DTOH | copy_kind::ATOH | copy_kind::HTOH);
        let stream = self.stream_argument(arguments, stream, sink)?;
        let api = self.api(arguments);
        let (source_memory, target_memory) = memories(kind);
        let row = Memcpy {
            start_ns: api.start_ns,
            correlation: api.correlation,
            stream,
            bytes,
            kind,
            source_memory,
            target_memory,
            timing: timing::ABSENT,
            ..Memcpy::default()
        };
        Ok(Open::Copy(api, row, is_waited_for))
    }

    fn alloc<S: Sink>(
        &mut self,
        arguments: &Arguments<'_>,
        allocator: u8,
        bytes: u64,
        stream: Option<Argument>,
        sink: &mut S,
    ) -> Result<Alloc, S::Error> {
        let is_host = allocator == ktape_format::event::allocator::PINNED;
        Ok(Alloc {
            start_ns: arguments.call.time_ns as i64,
            thread: self.thread.id,
            device: if is_host { 0 } else { self.objects.device(self.thread, sink)? },
            stream: match stream {
                Some(stream) => self.stream(arguments.word(stream), sink)?,
                None => 0,
            },
            bytes,
            allocator,
            stack: self.stack,
            function: self.function_id,
            ..Alloc::default()
        })
    }
}

/// Direction and bytes of what a structure describes: `CUDA_MEMCPY2D`, `CUDA_MEMCPY3D` or `CUDA_MEMCPY3D_PEER`.
fn copy_of_shape(shape: CopyShape, a: &Arguments<'_>) -> (u8, u64) {
    // `CUmemorytype`: 1 host, 2 device, 3 array, 4 unified.
    let (source, target, width) = match shape {
        CopyShape::Rows => (a.memory_half(16), a.memory_half(72), 112),
        CopyShape::Volume | CopyShape::PeerVolume => (a.memory_half(32), a.memory_half(120), 176),
    };
    // Of unified memory only the driver knows what it is.
    let kind = match (source, target) {
        (1, 1) => copy_kind::HTOH,
        (1, 2) => copy_kind::HTOD,
        (1, 3) => copy_kind::HTOA,
        (2, 1) => copy_kind::DTOH,
        (2, 2) => copy_kind::DTOD,
        (2, 3) => copy_kind::DTOA,
        (3, 1) => copy_kind::ATOH,
        (3, 2) => copy_kind::ATOD,
        (3, 3) => copy_kind::ATOA,
        _ => copy_kind::UNKNOWN,
    };
    let (width_bytes, height) = (a.memory_word(width), a.memory_word(width + 8));
    let depth = if shape == CopyShape::Rows { 1 } else { a.memory_word(width + 16) };
    (kind, width_bytes.saturating_mul(height).saturating_mul(depth))
}

/// What the two sides of a copy are, as far as its direction tells: whether host memory is pinned it does not.
fn memories(kind: u8) -> (u8, u8) {
    use memory_kind::{ARRAY, DEVICE, UNKNOWN};
    match kind {
        copy_kind::HTOD => (UNKNOWN, DEVICE),
        copy_kind::DTOH => (DEVICE, UNKNOWN),
        copy_kind::DTOD | copy_kind::PTOP => (DEVICE, DEVICE),
        copy_kind::HTOA => (UNKNOWN, ARRAY),
        copy_kind::ATOH => (ARRAY, UNKNOWN),
        copy_kind::ATOA => (ARRAY, ARRAY),
        copy_kind::ATOD => (ARRAY, DEVICE),
        copy_kind::DTOA => (DEVICE, ARRAY),
        _ => (UNKNOWN, UNKNOWN),
    }
}

impl Open {
    /// Gives the events to the sink as they are: without duration and result. Returns how many.
    pub(super) fn emit<S: Sink>(self, sink: &mut S) -> Result<u64, S::Error> {
        match self {
            Open::Launch(row) => sink.event(row)?,
            Open::Launches(rows) => rows.into_iter().try_for_each(|row| sink.event(row))?,
            Open::GraphLaunch(row) => sink.event(row)?,
            Open::Api(row) => sink.event(row)?,
            Open::Copy(api, row, _) => {
                sink.event(api)?;
                sink.event(row)?;
            }
            Open::Set(api, row) => {
                sink.event(api)?;
                sink.event(row)?;
            }
            Open::Sync(row) => sink.event(row)?,
            Open::EventRecord(row) => sink.event(row)?,
            Open::EventWait(row) => sink.event(row)?,
            Open::Alloc(row) | Open::AllocPitch(row, _) => sink.event(row)?,
            Open::Free(row) => sink.event(row)?,
            _ => return Ok(0),
        }
        Ok(1)
    }

    /// Adds what the return says, and gives the events to the sink. Returns how many calls became events.
    pub(super) fn finish<S: Sink>(
        mut self,
        end: &End,
        thread: &mut Thread,
        kernels: &mut Kernels,
        objects: &mut Objects,
        sink: &mut S,
    ) -> Result<u64, S::Error> {
        let &End { duration_ns, result, outs } = end;
        let succeeded = result == 0;
        match &mut self {
            Open::Nothing => {}
            Open::Launch(row) => (row.duration_ns, row.result) = (duration_ns, result),
            Open::Launches(rows) => {
                rows.iter_mut().for_each(|row| (row.duration_ns, row.result) = (duration_ns, result));
            }
            Open::GraphLaunch(row) => (row.duration_ns, row.result) = (duration_ns, result),
            Open::Api(row) => (row.duration_ns, row.result) = (duration_ns, result),
            Open::Copy(api, row, is_waited_for) => {
                (api.duration_ns, api.result) = (duration_ns, result);
                if succeeded && *is_waited_for {
                    (row.duration_ns, row.timing) = (duration_ns, timing::BOUNDED);
                }
            }
            Open::Set(api, _) => (api.duration_ns, api.result) = (duration_ns, result),
            Open::Sync(row) => (row.duration_ns, row.result) = (duration_ns, result),
            Open::EventRecord(row) => (row.duration_ns, row.result) = (duration_ns, result),
            Open::EventWait(row) => (row.duration_ns, row.result) = (duration_ns, result),
            Open::Free(row) => (row.duration_ns, row.result) = (duration_ns, result),
            Open::Alloc(row) | Open::AllocPitch(row, _) if !succeeded => {
                (row.duration_ns, row.result) = (duration_ns, result);
            }
            Open::Alloc(row) => {
                (row.duration_ns, row.address) = (duration_ns, outs[0]);
                objects.allocated(row.address, row.bytes);
            }
            Open::AllocPitch(row, rows) => {
                (row.duration_ns, row.address) = (duration_ns, outs[0]);
                row.bytes = outs[1].saturating_mul(*rows);
                objects.allocated(row.address, row.bytes);
            }
            _ if !succeeded => {}
            Open::KernelByName(name) => {
                kernels.name(outs[0], name, sink)?;
            }
            Open::FunctionOfKernel(kernel) => kernels.same(outs[0], *kernel, sink)?,
            Open::HandleOfStub(stub) => kernels.handle_of_stub(outs[0], *stub),
            Open::ContextSet(context) => {
                thread.contexts.pop();
                if *context != 0 {
                    thread.contexts.push(*context);
                }
            }
            Open::ContextPush(context) => thread.contexts.push(*context),
            Open::ContextPop => {
                thread.contexts.pop();
            }
            Open::ContextCreate(device) => {
                objects.context_on(outs[0], *device);
                thread.contexts.push(outs[0]);
            }
            Open::ContextPrimary(device) => objects.context_on(outs[0], *device),
            Open::StreamCreate(flags, priority) => objects.stream_made(outs[0], *flags, *priority),
        }
        self.emit(sink)
    }
}
