//! A call that was read, until it is on the tape.
//!
//! It has its rows as far as they are known when it begins. [`Open::finish`] adds what its return says, and has what is known of objects
//! follow where it succeeded; [`Open::emit`] writes it as it is, where no return is waited for or none came.

use ktape_format::event::{
    Alloc, Api, EventRecord, EventWait, Free, GraphLaunch, Launch, Memcpy, Memset, Sync, timing,
};
use ktape_format::{Row as _, Sink};

use super::super::inside::device::{Called, What, Work};
use super::account::{Fate, give};
use super::calls::range_arguments;
use super::capturing::Captured;
use super::copies::{refused_copies, refused_copy, refused_set};
use super::graphs::Change;
use super::kernels::Kernels;
use super::objects::Objects;
use super::thread::Thread;
use crate::probes::functions::ObjectKind as Kind;

/// What a call's return says.
pub(super) struct End {
    pub(super) duration_ns: u64,
    pub(super) result: i32,
    pub(super) outs: [u64; 2],
}

/// A call that was read, before its return.
#[derive(Clone)]
pub(super) enum Open {
    /// It is no event, and its return says nothing.
    Nothing,
    Launch(Launch),
    /// One call's launches on several devices.
    Launches(Vec<Launch>),
    /// One call's copies.
    Copies(Api, Vec<Memcpy>),
    /// A graph's launch, and whether all that it runs is known.
    GraphLaunch(GraphLaunch, bool),
    Api(Api),
    /// A copy, and whether its call returns only when it is done.
    Copy(Api, Memcpy, bool),
    Set(Api, Memset),
    Sync(Sync),
    EventRecord(EventRecord),
    EventWait(EventWait),
    Alloc(Alloc),
    /// Memory of the program's own was locked.
    Register(Alloc),
    /// Addresses were asked for: how many bytes.
    Reserve(Api, u64),
    /// Memory is put behind addresses: where, how many bytes.
    Map(Api, u64, u64),
    /// And taken from there.
    Unmap(Api, u64, u64),
    /// A communicator of so many ranks is asked for, of this rank.
    Communicator(Api, u32, u32),
    CommunicatorEnd(Api, u64),
    /// An allocation in so many rows, whose pitch the call says.
    AllocPitch(Alloc, u64),
    Free(Free),
    /// It does something to graphs.
    Graph(Api, Change),
    /// It is called of a stream that is captured.
    Captured(Api, Captured),
    /// An object of a kernel is asked for by this name.
    KernelByName(Kind, String),
    /// The function of this kernel is asked for.
    FunctionOfKernel(u64),
    /// The handle of this host stub is asked for.
    HandleOfStub(u64),
    ContextSet(u64),
    ContextPush(u64),
    ContextPop,
    ContextCreate(u32),
    ContextOn(u32),
    ContextOf(u64),
    ContextDestroy(u64),
    StreamCreate(u32, i32),
}

impl Open {
    /// Gives the events to the sink as they are: without duration and result. Returns what became of the row that names the
    /// function. What is of the device goes into `work`.
    pub(super) fn emit<S: Sink>(self, work: &mut Vec<Work>, sink: &mut S) -> Result<Fate, S::Error> {
        match self {
            Open::Launch(row) => give(row, sink),
            // Of one call: whichever is there tells of it.
            Open::Launches(rows) => {
                rows.into_iter().try_fold(Fate::Lost(Launch::KIND), |fate, row| Ok(give(row, sink)?.or(fate)))
            }
            Open::GraphLaunch(row, _) => give(row, sink),
            Open::Api(row)
            | Open::Graph(row, _)
            | Open::Captured(row, _)
            | Open::Reserve(row, _)
            | Open::Map(row, ..)
            | Open::Unmap(row, ..)
            | Open::Communicator(row, ..)
            | Open::CommunicatorEnd(row, _) => give(row, sink),
            Open::Copies(api, rows) => {
                work.extend(rows.into_iter().map(Work::Copy));
                give(api, sink)
            }
            Open::Copy(api, row, _) => {
                work.push(Work::Copy(row));
                give(api, sink)
            }
            Open::Set(api, row) => {
                work.push(Work::Set(row));
                give(api, sink)
            }
            Open::Sync(row) => give(row, sink),
            Open::EventRecord(row) => give(row, sink),
            Open::EventWait(row) => give(row, sink),
            Open::Alloc(row) | Open::AllocPitch(row, _) | Open::Register(row) => give(row, sink),
            Open::Free(row) => give(row, sink),
            _ => Ok(Fate::NoEvent),
        }
    }

    /// The call, if it may have the device do something; `kernel` is the definition of what was launched last.
    pub(super) fn called(&self, kernel: u32) -> Option<Called> {
        let called = |correlation, start_ns, stream, what| Called { correlation, start_ns, stream, what };
        Some(match self {
            Open::Launch(row) => {
                called(row.correlation, row.start_ns, row.stream, What::Launch { kernel, shape: row.shape })
            }
            // Of several devices, each with its stream.
            Open::Launches(rows) => called(rows.first()?.correlation, rows[0].start_ns, 0, What::Other),
            Open::GraphLaunch(row, _) => called(row.correlation, row.start_ns, row.stream, What::Graph(row.graph)),
            Open::Copy(api, row, _) => called(api.correlation, api.start_ns, row.stream, What::Copies),
            Open::Set(api, row) => called(api.correlation, api.start_ns, row.stream, What::Copies),
            Open::Copies(api, rows) => {
                let stream = rows.first().map_or(0, |row| row.stream);
                called(api.correlation, api.start_ns, stream, What::Copies)
            }
            _ => return None,
        })
    }

    /// The number of the call, where it has one.
    pub(super) fn correlation(&self) -> u64 {
        match self {
            Open::Launch(row) => row.correlation,
            Open::GraphLaunch(row, _) => row.correlation,
            Open::Api(row) | Open::Copy(row, ..) | Open::Set(row, _) | Open::Copies(row, _) => row.correlation,
            Open::EventRecord(row) => row.correlation,
            Open::EventWait(row) => row.correlation,
            _ => 0,
        }
    }

    /// As [`Open::finish`], of a call that concerns graphs.
    fn finish_of_graphs<S: Sink>(
        self,
        end: &End,
        objects: &mut Objects,
        work: &mut Vec<Work>,
        sink: &mut S,
    ) -> Result<Fate, S::Error> {
        let told = |row: Api| Api { duration_ns: end.duration_ns, result: end.result, ..row };
        let row = match self {
            Open::Graph(row, change) => {
                match end.result {
                    0 => objects.graphs.change(change, end.outs[0]),
                    result => objects.graphs.refused(&change, result),
                }
                told(row)
            }
            Open::Captured(row, captured) => {
                if end.result == 0 {
                    captured.add(end.outs[0], objects);
                }
                told(row)
            }
            other => return other.emit(work, sink),
        };
        Open::Api(row).emit(work, sink)
    }

    /// Adds what the return says, and gives the events to the sink. Returns what [`Open::emit`] does.
    pub(super) fn finish<S: Sink>(
        mut self,
        end: &End,
        thread: &mut Thread,
        kernels: &mut Kernels,
        objects: &mut Objects,
        work: &mut Vec<Work>,
        sink: &mut S,
    ) -> Result<Fate, S::Error> {
        let &End { duration_ns, result, outs } = end;
        let succeeded = result == 0;
        match &mut self {
            Open::Nothing => {}
            Open::Launch(row) => (row.duration_ns, row.result) = (duration_ns, result),
            Open::Launches(rows) => {
                rows.iter_mut().for_each(|row| (row.duration_ns, row.result) = (duration_ns, result));
            }
            Open::GraphLaunch(row, _) => (row.duration_ns, row.result) = (duration_ns, result),
            Open::Api(row) => (row.duration_ns, row.result) = (duration_ns, result),
            Open::Graph(..) | Open::Captured(..) => return self.finish_of_graphs(end, objects, work, sink),
            Open::Copies(api, rows) => {
                (api.duration_ns, api.result) = (duration_ns, result);
                if !succeeded {
                    self = Open::Api(refused_copies(*api, rows, sink)?);
                }
            }
            Open::Reserve(row, bytes) => {
                (row.duration_ns, row.result) = (duration_ns, result);
                row.args = range_arguments(outs[0], *bytes, sink)?;
            }
            Open::Map(row, address, bytes) => {
                (row.duration_ns, row.result) = (duration_ns, result);
                if succeeded {
                    objects.mapped(*address, *bytes);
                }
            }
            Open::Unmap(row, address, bytes) => {
                (row.duration_ns, row.result) = (duration_ns, result);
                if succeeded {
                    objects.unmapped(*address, *bytes);
                }
            }
            Open::Communicator(row, ranks, rank) => {
                (row.duration_ns, row.result) = (duration_ns, result);
                if succeeded {
                    objects.communicator_made(outs[0], *rank, *ranks);
                }
            }
            Open::CommunicatorEnd(row, communicator) => {
                (row.duration_ns, row.result) = (duration_ns, result);
                if succeeded {
                    objects.communicator_ended(*communicator);
                }
            }
            Open::Copy(api, row, _) if !succeeded => {
                let refused = Api { duration_ns, result, ..*api };
                self = Open::Api(refused_copy(refused, row, sink)?);
            }
            Open::Set(api, row) if !succeeded => {
                let refused = Api { duration_ns, result, ..*api };
                self = Open::Api(refused_set(refused, row, sink)?);
            }
            Open::Copy(api, row, is_waited_for) => {
                (api.duration_ns, api.result) = (duration_ns, result);
                if *is_waited_for {
                    (row.duration_ns, row.timing) = (duration_ns, timing::BOUNDED);
                }
            }
            Open::Set(api, _) => (api.duration_ns, api.result) = (duration_ns, result),
            Open::Sync(row) => (row.duration_ns, row.result) = (duration_ns, result),
            Open::EventRecord(row) => (row.duration_ns, row.result) = (duration_ns, result),
            Open::EventWait(row) => (row.duration_ns, row.result) = (duration_ns, result),
            Open::Free(row) => (row.duration_ns, row.result) = (duration_ns, result),
            Open::Alloc(row) | Open::AllocPitch(row, _) | Open::Register(row) if !succeeded => {
                (row.duration_ns, row.result) = (duration_ns, result);
            }
            Open::Alloc(row) => {
                (row.duration_ns, row.address) = (duration_ns, outs[0]);
                objects.allocated(row.address, row.bytes, row.allocator);
            }
            Open::Register(row) => {
                row.duration_ns = duration_ns;
                objects.allocated(row.address, row.bytes, row.allocator);
            }
            Open::AllocPitch(row, rows) => {
                (row.duration_ns, row.address) = (duration_ns, outs[0]);
                row.bytes = outs[1].saturating_mul(*rows);
                objects.allocated(row.address, row.bytes, row.allocator);
            }
            _ if !succeeded => {}
            Open::KernelByName(kind, name) => kernels.handed_out(*kind, outs[0], name, sink)?,
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
            Open::ContextOn(device) => objects.context_on(outs[0], *device),
            Open::ContextOf(other) => objects.context_beside(outs[0], *other),
            Open::ContextDestroy(context) => {
                if thread.contexts.last() == Some(context) {
                    thread.contexts.pop();
                }
            }
            Open::StreamCreate(flags, priority) => objects.stream_made(outs[0], *flags, *priority),
        }
        self.emit(work, sink)
    }
}
