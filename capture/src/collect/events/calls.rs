//! What a call was asked, from the words of its record.
//!
//! [`Within::open`] reads it by what its function means; what comes of it, once it has returned, is in `open.rs`.

use ktape_format::Sink;
use ktape_format::definition::Shape;
use ktape_format::event::{
    Alloc, Api, EventRecord, EventWait, Free, GraphLaunch, Launch, Sync, allocator, copy_kind, sync_kind,
};

use super::Gaps;
use super::arguments::Arguments;
use super::capturing::stream_argument;
use super::copies::Asked;
use super::graphs::Change;
use super::kernels::Kernels;
use super::objects::Objects;
use super::open::Open;
use super::thread::Thread;
use crate::probes::functions::{Argument, LAUNCH_PARAMS_BYTES, Meaning, Probed};

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
    /// Shapes of launches of kernels that are out of scope, if there are any.
    pub(super) left_out: Option<Vec<u32>>,
}

/// Grid, block and shared memory of a launch.
#[derive(Default)]
pub(super) struct Configuration {
    pub(super) grid: [u32; 3],
    pub(super) block: [u32; 3],
    pub(super) shared_bytes: u32,
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
            Meaning::GraphInstantiate => Open::Graph(self.api(a), Change::Instantiate(a.word(1))),
            Meaning::Graph(call) => self.graph_call(a, call, sink)?,
            Meaning::GraphLaunch => {
                let (graph, is_whole) = self.objects.graphs.launched(a.word(0), sink)?;
                self.gaps.launches_of_older_graphs += u64::from(is_whole.is_none());
                self.gaps.launches_of_partly_known_graphs += u64::from(is_whole == Some(false));
                let row = GraphLaunch {
                    start_ns: a.call.time_ns as i64,
                    correlation: self.next_correlation(),
                    thread: self.thread.id,
                    stream: self.stream(a.word(1), sink)?,
                    graph,
                    stack: self.stack,
                    function: self.function_id,
                    ..GraphLaunch::default()
                };
                Open::GraphLaunch(row, is_whole == Some(true))
            }
            Meaning::LaunchGrid { has_grid, stream } => {
                let (block, shared_bytes) = self.objects.launch_shape(a.word(0));
                let grid = if has_grid { [a.half(1), a.half(2), 1] } else { [1; 3] };
                let stream = stream.map_or(0, |stream| a.word(stream));
                let configuration = Configuration { grid, block, shared_bytes };
                Open::Launch(self.launch(a, a.word(0), &configuration, stream, sink)?)
            }
            Meaning::BlockShape => {
                self.objects.set_block(a.word(0), [a.half(1), a.half(2), a.half(3)]);
                Open::Nothing
            }
            Meaning::SharedSize => {
                self.objects.set_shared_bytes(a.word(0), a.half(1));
                Open::Nothing
            }
            Meaning::Queued { stream, .. } | Meaning::Other { stream: Some(stream) } => {
                self.note_unreadable(usize::from(stream) >= a.call.registers.len() && a.words.is_empty());
                Open::Api(Api { args: stream_argument(a.word(stream), sink)?, ..self.api(a) })
            }
            Meaning::Other { stream: None } => Open::Api(self.api(a)),
            Meaning::CopyBatch { stream } => self.copy_batch(a, stream, sink)?,
            Meaning::CopyShapes { stream } => self.copy_shapes(a, stream, sink)?,
            Meaning::Register => {
                let row = self.alloc(a, allocator::REGISTERED, a.word(1), None, sink)?;
                Open::Register(Alloc { address: a.word(0), ..row })
            }
            Meaning::Reserve => Open::Reserve(self.api(a), a.word(1)),
            Meaning::Map => Open::Map(self.range(a, sink)?, a.word(0), a.word(1)),
            Meaning::Unmap => Open::Unmap(self.range(a, sink)?, a.word(0), a.word(1)),
            Meaning::Range => Open::Api(self.range(a, sink)?),
            Meaning::Collective(collective) => Open::Api(self.collective(a, collective, sink)?),
            Meaning::Communicator { ranks, rank } => {
                let (ranks, rank) = (a.half(ranks), rank.map_or(0, |rank| a.half(rank)));
                let args = sink.string(&serde_json::json!({ "rank": rank, "ranks": ranks }).to_string())?;
                Open::Communicator(Api { args, ..self.api(a) }, ranks, rank)
            }
            Meaning::CommunicatorEnd => {
                let args = self.communicator(a.word(0), sink)?;
                Open::CommunicatorEnd(Api { args, ..self.api(a) }, a.word(0))
            }
            Meaning::Copy { kind, from, bytes, stream } => {
                let asked = Asked { kind, source: a.word(from), target: a.word(0), bytes: a.word(bytes) };
                self.copy(a, asked, stream, sink)?
            }
            Meaning::CopyPeer { stream } => {
                // Source and target context.
                let kind = self.objects.peer_copy_kind((a.word(3), a.word(1)), copy_kind::DTOD);
                self.copy(a, Asked { kind, source: a.word(2), target: a.word(0), bytes: a.word(4) }, stream, sink)?
            }
            Meaning::CopyShape { shape, stream } => {
                self.note_unreadable(a.memory.is_empty());
                let asked = Asked::by_shape(shape, a, self.objects);
                self.copy(a, asked, stream, sink)?
            }
            Meaning::Set { value, count, rows, element_bytes, stream } => {
                let rows = rows.map_or(1, |rows| a.word(rows));
                let bytes = a.word(count).saturating_mul(rows).saturating_mul(element_bytes.into());
                self.set(a, a.half(value), bytes, element_bytes, stream, sink)?
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
            Meaning::EventRecord { event, stream } => {
                let correlation = self.next_correlation();
                let event = a.word(event);
                let stream = self.stream_or_none(a, stream, sink)?;
                if !self.is_captured(stream) {
                    self.objects.recorded(event, correlation);
                }
                Open::EventRecord(EventRecord {
                    start_ns: a.call.time_ns as i64,
                    correlation,
                    thread: self.thread.id,
                    stream,
                    event,
                    stack: self.stack,
                    function: self.function_id,
                    ..EventRecord::default()
                })
            }
            Meaning::EventWait { stream } => Open::EventWait(EventWait {
                start_ns: a.call.time_ns as i64,
                correlation: self.next_correlation(),
                thread: self.thread.id,
                stream: self.stream_or_none(a, stream, sink)?,
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
                Open::AllocPitch(self.alloc(a, allocator::DRIVER, a.word(2).saturating_mul(rows), None, sink)?, rows)
            }
            Meaning::Free { allocator, stream } => {
                let stream = self.stream_or_none(a, stream, sink)?;
                let address = a.word(0);
                Open::Free(Free {
                    start_ns: a.call.time_ns as i64,
                    thread: self.thread.id,
                    device: self.memory_device(allocator, sink)?,
                    stream,
                    address,
                    bytes: self.objects.freed(address),
                    allocator,
                    stack: self.stack,
                    function: self.function_id,
                    ..Free::default()
                })
            }
            Meaning::KernelByName(kind) => match self.kernels.whole_name(a.name(), a.word(2)) {
                Some(name) => Open::KernelByName(kind, name),
                None => {
                    self.note_unreadable(true);
                    Open::Nothing
                }
            },
            Meaning::FunctionOfKernel => Open::FunctionOfKernel(a.word(1)),
            Meaning::RegisterStub => {
                match self.kernels.whole_name(a.name(), a.word(2)) {
                    Some(name) => self.kernels.stub(a.word(1), &name),
                    None => self.note_unreadable(true),
                }
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
            Meaning::ContextOn { device } => Open::ContextOn(a.half(device)),
            Meaning::ContextOf => Open::ContextOf(a.word(1)),
            Meaning::ContextDestroy => Open::ContextDestroy(a.word(0)),
            Meaning::StreamCreate { flags, priority } => {
                Open::StreamCreate(a.half(flags), priority.map_or(0, |priority| a.half(priority) as i32))
            }
        })
    }

    pub(super) fn note_unreadable(&mut self, is_unreadable: bool) {
        self.gaps.unreadable_arguments += u64::from(is_unreadable);
    }

    fn next_correlation(&mut self) -> u64 {
        *self.correlation += 1;
        *self.correlation
    }

    pub(super) fn stream<S: Sink>(&mut self, handle: u64, sink: &mut S) -> Result<u32, S::Error> {
        self.objects.stream(handle, self.function.per_thread_stream, self.thread, sink)
    }

    pub(super) fn stream_argument<S: Sink>(
        &mut self,
        arguments: &Arguments<'_>,
        stream: Option<Argument>,
        sink: &mut S,
    ) -> Result<u32, S::Error> {
        self.stream(stream.map_or(0, |stream| arguments.word(stream)), sink)
    }

    /// The stream in an argument; 0 for a call that names none.
    fn stream_or_none<S: Sink>(
        &mut self,
        arguments: &Arguments<'_>,
        stream: Option<Argument>,
        sink: &mut S,
    ) -> Result<u32, S::Error> {
        stream.map_or(Ok(0), |stream| self.stream(arguments.word(stream), sink))
    }

    /// A call about addresses.
    fn range<S: Sink>(&mut self, a: &Arguments<'_>, sink: &mut S) -> Result<Api, S::Error> {
        Ok(Api { args: range_arguments(a.word(0), a.word(1), sink)?, ..self.api(a) })
    }

    /// The device whose memory an allocator of the driver hands out; 0 for the host.
    fn memory_device<S: Sink>(&mut self, by: u8, sink: &mut S) -> Result<u32, S::Error> {
        match by {
            allocator::PINNED | allocator::REGISTERED => Ok(0),
            _ => self.objects.device(self.thread, sink),
        }
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
        let shape = self.shape(handle, stub, configuration, sink)?;
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

    /// The definition of a kernel and how it is launched; `stub` is the host stub of a runtime launch around this one.
    pub(super) fn shape<S: Sink>(
        &mut self,
        handle: u64,
        stub: Option<u64>,
        configuration: &Configuration,
        sink: &mut S,
    ) -> Result<u32, S::Error> {
        let Configuration { grid, block, shared_bytes } = *configuration;
        let kernel = self.kernels.id(handle, stub, sink)?;
        self.kernels.launched(kernel);
        self.kernels.note_scope(handle, kernel);
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
        if self.kernels.is_left_out(kernel) {
            self.left_out.get_or_insert_default().push(shape);
        }
        Ok(shape)
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
        if launches.is_empty() {
            // Whatever it launches, it was a call.
            launches.push(Launch {
                start_ns: a.call.time_ns as i64,
                correlation: self.next_correlation(),
                thread: self.thread.id,
                stack: self.stack,
                function: self.function_id,
                ..Launch::default()
            });
        }
        Ok(Open::Launches(launches))
    }

    pub(super) fn api(&mut self, arguments: &Arguments<'_>) -> Api {
        let correlation = self.next_correlation();
        self.api_of(arguments, correlation)
    }

    /// The row of a call that has its number already.
    pub(super) fn api_of(&self, arguments: &Arguments<'_>, correlation: u64) -> Api {
        Api {
            start_ns: arguments.call.time_ns as i64,
            correlation,
            thread: self.thread.id,
            stack: self.stack,
            function: self.function_id,
            ..Api::default()
        }
    }

    fn alloc<S: Sink>(
        &mut self,
        arguments: &Arguments<'_>,
        allocator: u8,
        bytes: u64,
        stream: Option<Argument>,
        sink: &mut S,
    ) -> Result<Alloc, S::Error> {
        Ok(Alloc {
            start_ns: arguments.call.time_ns as i64,
            thread: self.thread.id,
            device: self.memory_device(allocator, sink)?,
            stream: self.stream_or_none(arguments, stream, sink)?,
            bytes,
            allocator,
            stack: self.stack,
            function: self.function_id,
            ..Alloc::default()
        })
    }
}

/// The arguments of a call about addresses.
pub(super) fn range_arguments<S: Sink>(address: u64, bytes: u64, sink: &mut S) -> Result<u32, S::Error> {
    sink.string(&serde_json::json!({ "address": address, "bytes": bytes }).to_string())
}
