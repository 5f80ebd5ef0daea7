//! The collector of calls: the records of the eBPF programs, and those of the library inside of a process, as events.
//!
//! [`Collector::take`] takes one record after the other. A call's record becomes an event (`calls.rs`), at once where its
//! return isn't wanted, else when that comes (`thread.rs` has what is under way; `copies.rs` what is more of copies). What an event refers to is kept by process:
//! stacks and code objects (`stacks.rs`; `native.rs` has the frames below Python), kernels by handle (`kernels.rs`), contexts
//! and streams (`objects.rs`), graphs (`graphs.rs`; `capturing.rs` has the streams that are captured). CPU samples become events in `samples.rs`, time
//! off the processor in `off_cpu.rs`, ranges that the program names in `named.rs`. `lifecycle.rs` has processes and threads that come and
//! go, `of_device.rs` what calls have the device do, `unknown.rs` what is told of nobody's.

pub(in super::super::collect) mod account;
mod arguments;
mod calls;
mod capturing;
mod collectives;
mod copies;
mod gaps;
pub(in super::super::collect) mod graphs;
mod kept;
pub(in super::super::collect) mod kernels;
mod lifecycle;
mod named;
mod native;
mod objects;
mod of_device;
mod off_cpu;
mod opaque;
mod samples;
mod scope;
mod stacks;
mod thread;
mod unknown;

use std::collections::BTreeMap;
use std::mem::offset_of;
use std::rc::Rc;

use ktape_ebpf::inside::{self, Clocks, Correlated, FunctionName, Missing, Ran, RangeTold, Text};
use ktape_ebpf::python::Interpreter;
use ktape_ebpf::wire::tally::NO_CPU;
use ktape_ebpf::wire::{
    Call, CodeRecord, Lifecycle, ListsCall, MemoryCall, NAME_BYTES, NativeBody, OffCpu, Plain as _, Return,
    STACK_LEFT_OUT, STACK_TOO_EARLY, STACK_UNREADABLE, Sample, StackBody, StackCall, TaskBody, TextPiece, kind,
};
use ktape_format::Sink;
use ktape_format::definition::{Function, api_domain, property};
use ktape_format::event;
use ktape_format::table::DefinitionKind;
use rustc_hash::FxHashMap;

use super::inside::device::{Called, DeviceCounts, What, Work, device};
use super::inside::ranges::{RangeCounts, Ranges};
use crate::probes::functions::Probed;
use crate::target::libraries::FileId;
use crate::target::stubs::live;
use account::Account;
pub use account::{Fate, Key, Settled};
use arguments::Arguments;
use calls::Open;
pub use gaps::Gaps;
use gaps::count_stackless;
pub use graphs::LostCalls;
use kernels::Kernels;
pub use kernels::Source;
use native::Builds;
use objects::Objects;
use of_device::{Teller, teller};
pub use samples::Samples;
pub use scope::LaunchScope;
use stacks::{Large as _, Stacks};
use thread::{Pending, Thread};
use unknown::Unknown;

/// Who a process is, for its definition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Its number.
    pub pid: u32,
    /// When it started, on `CLOCK_MONOTONIC`; 0 for not known.
    pub start_ns: i64,
    /// Its name, as `comm` has it.
    pub name: String,
    /// Its command line.
    pub command: String,
    /// The container that it is in, by its runtime's id; empty for none.
    pub container: String,
}

/// What the collector met that somebody has to look after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the variants say what their fields are")]
pub enum Notice {
    /// A process was forked: the child's number, and the generation of its program.
    Forked { child: u32, generation: u64 },
    /// A process of this number began another program, of this generation.
    Executed { pid: u32, generation: u64 },
    /// A process of this number called for the first time, and is recorded since, with the program of this generation.
    Admitted { pid: u32, generation: u64 },
    /// A process of this number runs the Python of a file that the programs know by this cookie, with `_PyRuntime` here.
    Python { pid: u32, file: u16, runtime: u64 },
    /// A process of this number mapped or unmapped a library.
    Libraries(u32),
    /// A process of this number has a record, and was not begun: the record was not taken.
    Unknown(u32),
    /// A thread ended: its process, when, and its wait status.
    ThreadEnded { pid: u32, time_ns: i64, status: i64 },
    /// A process runs asyncio: the code object whose frames run tasks, and `PyUnicode_Type`.
    TaskRunner { pid: u32, code: u64, string_type: u64 },
    /// A process of this number gives its tasks more names than are worth keeping.
    ManyTasks(u32),
}

/// What the device tells of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceTimes {
    /// Nothing.
    #[default]
    None,
    /// When kernels ran.
    OfKernels,
    /// When it did what: then each copy is told by the device, and not by its call.
    OfAll,
}

/// What was taken of one function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Calls.
    pub calls: u64,
    /// Returns.
    pub returns: u64,
}

/// The collector.
pub struct Collector {
    functions: Vec<Probed>,
    /// Ids of the functions' definitions; 0 for one that was not called yet.
    function_ids: Vec<u32>,
    launch_durations: bool,
    processes: FxHashMap<u32, Process>,
    /// The files of native frames.
    builds: Builds,
    taken: Vec<Taken>,
    account: Account,
    events: u64,
    gaps: Gaps,
    /// Launches of kernels without a name, of the processes that ended.
    unnamed_launches: u64,
    scope: Rc<LaunchScope>,
    /// Calls that are out of scope, of each function.
    out_of_scope: Vec<u64>,
    /// Stacks that were found to be, of which processes.
    left_out: Vec<(u32, u64)>,
    sample_period_ns: u64,
    samples: Samples,
    /// How many calls the busiest thread had that ended since this was asked last: see [`Collector::busiest_calls`].
    busiest_ended: u64,
    /// The stack of calls whose own was left out; 0 until there is one.
    stack_left_out: u32,
    /// Calls whose stack the process itself could not read.
    unreadable_stacks: u64,
    off_cpu_written: u64,
    /// What is known of the objects of each driver.
    drivers: FxHashMap<FileId, kernels::Objects>,
    /// Where the names of kernels are from, by the hash of the name, of the processes that ended.
    sources: FxHashMap<u64, Source>,
    /// The same of kernels that are not told apart any more: of each process that ended, as many as it had.
    further_sources: BTreeMap<Source, u64>,
    /// Whether the device's own times are asked for.
    device_times: DeviceTimes,
    device: DeviceCounts,
    ranges: RangeCounts,
    unknown: Unknown,
    /// Of the call that is being written.
    work: Vec<Work>,
}

/// So many of one sort are kept: objects of a process that it may make without end, kernels of a node. A process that does
/// work has thousands; one that comes to this gives no object back, or its calls were lost that do.
const MOST_KEPT: usize = 1 << 18;

/// What is known of one process.
struct Process {
    pid: u32,
    id: u32,
    threads: FxHashMap<u32, Thread>,
    stacks: Stacks,
    kernels: Kernels,
    objects: Objects,
    ranges: Ranges,
    /// The last correlation id.
    correlation: u64,
    /// Calls of which a record came, whatever they were.
    calls: u64,
    /// Calls without a stack before an interpreter was found.
    stackless: u64,
    /// Samples likewise.
    stackless_samples: u64,
}

/// Where ranges are accounted for. A macro, as a process may be borrowed meanwhile.
macro_rules! books {
    ($collector:ident) => {
        Books { account: &mut $collector.account, counts: &mut $collector.ranges }
    };
}
use books;

impl Collector {
    /// A collector for these functions, in the order of their plans.
    pub fn new(functions: Vec<Probed>, launch_durations: bool) -> Collector {
        let count = functions.len();
        Collector {
            functions,
            function_ids: vec![0; count],
            launch_durations,
            processes: FxHashMap::default(),
            builds: Builds::default(),
            taken: vec![Taken::default(); count],
            account: Account::default(),
            events: 0,
            gaps: Gaps::default(),
            unnamed_launches: 0,
            scope: Rc::default(),
            out_of_scope: vec![0; count],
            left_out: Vec::new(),
            sample_period_ns: 0,
            samples: Samples::default(),
            busiest_ended: 0,
            stack_left_out: 0,
            unreadable_stacks: 0,
            off_cpu_written: 0,
            drivers: FxHashMap::default(),
            sources: FxHashMap::default(),
            device_times: DeviceTimes::None,
            device: DeviceCounts::default(),
            ranges: RangeCounts::default(),
            unknown: Unknown::default(),
            work: Vec::new(),
            further_sources: BTreeMap::new(),
        }
    }

    /// From now on the device's own times are told.
    pub fn expect_device_times(&mut self, times: DeviceTimes) {
        self.device_times = times;
    }

    /// What became of what the device did.
    pub fn device(&self) -> DeviceCounts {
        self.device
    }

    /// Has only some launches recorded. Before any process begins.
    pub fn set_scope(&mut self, scope: LaunchScope) {
        self.scope = Rc::new(scope);
    }

    /// Stacks that were found to be out of scope since this was asked last: the process's number, the hash.
    pub fn take_left_out(&mut self) -> Vec<(u32, u64)> {
        std::mem::take(&mut self.left_out)
    }

    /// Kernels of processes, by handle, whose launches are out of scope, or are no longer, since this was asked last.
    pub fn take_scope_changes(&mut self) -> Vec<(u32, u64, bool)> {
        let of = |process: &mut Process| {
            let pid = process.pid;
            process
                .kernels
                .take_scope_changes()
                .map(move |(kernel, is_left_out)| (pid, kernel, is_left_out))
                .collect::<Vec<_>>()
        };
        self.processes.values_mut().flat_map(of).collect()
    }

    /// Calls that came and are out of scope, of each function.
    pub fn out_of_scope(&self) -> &[u64] {
        &self.out_of_scope
    }

    /// Says of a process which Python it runs, or why it has no Python stacks.
    pub fn say_python<S: Sink>(&mut self, pid: u32, what: &str, sink: &mut S) -> Result<(), S::Error> {
        match self.process_id(pid) {
            0 => Ok(()),
            id => sink.property(DefinitionKind::Process as u16, id, property::PYTHON, what),
        }
    }

    /// Learns which Python a process runs.
    pub fn set_interpreter(&mut self, pid: u32, interpreter: &Interpreter) {
        if let Some(process) = self.processes.get_mut(&pid) {
            process.stacks.set_interpreter(interpreter);
            self.gaps.before_interpreter += std::mem::take(&mut process.stackless);
            self.samples.before_interpreter += std::mem::take(&mut process.stackless_samples);
        }
    }

    /// Learns what the files of a process tell of its kernels' host stubs.
    pub fn learn_stubs(&mut self, pid: u32, found: live::Found) {
        if let Some(process) = self.processes.get_mut(&pid) {
            process.kernels.learn_stubs(found);
        }
    }

    /// Learns which copy of the driver a process runs.
    pub fn set_driver(&mut self, pid: u32, driver: FileId) {
        if let Some(process) = self.processes.get_mut(&pid) {
            process.kernels.set_objects(self.drivers.entry(driver).or_default());
        }
    }

    /// How many kernels have their names from where, of the processes that ended.
    pub fn kernels(&self) -> BTreeMap<Source, u64> {
        let mut kernels = self.further_sources.clone();
        self.sources.values().for_each(|&source| *kernels.entry(source).or_default() += 1);
        kernels
    }

    /// Forgets what no call can refer to any more. To be called every few seconds.
    pub fn sweep(&mut self) {
        self.processes.values_mut().for_each(|process| process.stacks.sweep());
    }

    /// Learns that what is written goes onto another tape from now on.
    pub fn begin_tape(&mut self) {
        self.processes.values_mut().for_each(|process| process.objects.graphs.begin_tape());
    }

    /// Learns whether calls were lost since the last time.
    pub fn looked_for_losses(&mut self, lost: LostCalls) {
        self.processes.values_mut().for_each(|process| process.objects.graphs.looked_for_losses(lost));
    }

    /// The id of a process's definition; 0 for one that is not known.
    pub fn process_id(&self, pid: u32) -> u32 {
        self.processes.get(&pid).map_or(0, |process| process.id)
    }

    /// What was taken of each function, in their order.
    pub fn taken(&self) -> &[Taken] {
        &self.taken
    }

    /// What became of calls and samples since this was asked last.
    pub fn settled(&mut self) -> impl Iterator<Item = (Key, Settled)> {
        self.account.take()
    }

    /// How many events were given to the sink.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// From now on launches are not seen to return.
    pub fn drop_launch_durations(&mut self) {
        self.launch_durations = false;
    }

    /// How many calls the thread had that called most often since this was asked last.
    pub fn busiest_calls(&mut self) -> u64 {
        let threads = self.processes.values_mut().flat_map(|process| process.threads.values_mut());
        let of_running = threads.map(|thread| std::mem::take(&mut thread.calls)).max().unwrap_or(0);
        of_running.max(std::mem::take(&mut self.busiest_ended))
    }

    /// How many calls of a process came, whatever they were.
    pub fn calls(&self, pid: u32) -> u64 {
        self.processes.get(&pid).map_or(0, |process| process.calls)
    }

    /// How many calls of a process came without a stack, as no interpreter of it is known.
    pub fn stackless_calls(&self, pid: u32) -> u64 {
        self.processes.get(&pid).map_or(0, |process| process.stackless)
    }

    /// How many launches are of kernels that have no name by now.
    pub fn unnamed_launches(&self) -> u64 {
        let running = self.processes.values().map(|process| process.kernels.unnamed_launches());
        self.unnamed_launches + running.sum::<u64>()
    }

    /// How many calls came whose Python stack the process itself could not read.
    pub fn unreadable_stacks(&self) -> u64 {
        self.unreadable_stacks
    }

    /// What could not be told in full.
    pub fn gaps(&self) -> Gaps {
        self.gaps
    }

    /// Takes one record of the ring buffer. One that is too short, or of an unknown kind, is of programs of another version,
    /// which the loader does not let happen; it is passed over.
    pub fn take<S: Sink>(&mut self, record: &[u8], sink: &mut S) -> Result<Option<Notice>, S::Error> {
        let Some(&kind) = record.first_chunk::<2>() else { return Ok(None) };
        let kind = u16::from_ne_bytes(kind).into();
        if kind != kind::LIFECYCLE
            && let Some(pid) = pid_of(kind, record)
            && !self.processes.contains_key(&pid)
        {
            return Ok(Some(Notice::Unknown(pid)));
        }
        match kind {
            kind::CALL => {
                if let Some(call) = Call::read(record) {
                    let arguments = Arguments::new(call, &[], &[]);
                    self.call(&arguments, sink)?;
                }
            }
            kind::STACK_CALL => {
                if let Some(StackCall { call, words }) = StackCall::read(record) {
                    self.call(&Arguments::new(call, &words, &[]), sink)?;
                }
            }
            kind::MEMORY_CALL => {
                if let Some(MemoryCall { call, bytes, memory }) = MemoryCall::read(record) {
                    let memory = memory.get(..bytes as usize).unwrap_or_default();
                    self.call(&Arguments::new(call, &[], memory), sink)?;
                }
            }
            kind::LISTS_CALL => {
                if let Some(ListsCall { call, words, bytes, memory }) = ListsCall::read(record) {
                    let memory = if bytes == 0 { &[][..] } else { &memory };
                    self.call(&Arguments::new(call, &words, memory), sink)?;
                }
            }
            kind::NAMED_CALL => {
                let length = record.get(size_of::<Call>()..).and_then(|rest| rest.first_chunk::<8>());
                if let (Some(call), Some(&length)) = (Call::read(record), length) {
                    let name = &record[size_of::<Call>() + 8..];
                    let length = (u64::from_ne_bytes(length) as usize).min(NAME_BYTES).min(name.len());
                    self.call(&Arguments::new(call, &[], &name[..length]), sink)?;
                }
            }
            kind::RETURN => {
                if let Some(returned) = Return::read(record) {
                    self.returned(&returned, sink)?;
                }
            }
            kind::STACK_BODY => {
                if let Some(body) = StackBody::read(record)
                    && let Some(process) = self.processes.get_mut(&upper(body.pid_tid))
                {
                    let frames = &record[size_of::<StackBody>()..];
                    let added = process.stacks.add(&body, frames, &mut self.builds, sink)?;
                    if added.is_left_out {
                        self.left_out.push((process.pid, body.stack));
                    }
                    self.gaps.unknown_frames += added.unknown_frames;
                    self.gaps.incomplete_stacks += u64::from(added.is_incomplete);
                }
            }
            kind::NATIVE_BODY => {
                if let Some(body) = NativeBody::read(record)
                    && let Some(process) = self.processes.get_mut(&upper(body.pid_tid))
                {
                    process.stacks.add_native(&body, &record[size_of::<NativeBody>()..]);
                }
            }
            kind::CODE => {
                if let Some(code) = CodeRecord::of(record)
                    && let Some(process) = self.processes.get_mut(&upper(code.pid_tid))
                {
                    let pid = process.pid;
                    let string_type = process.stacks.add_code(lower(code.pid_tid), code.rotation, &code.body);
                    return Ok(string_type.map(|string_type| Notice::TaskRunner {
                        pid,
                        code: code.body.code,
                        string_type,
                    }));
                }
            }
            kind::TEXT_PIECE => {
                if let Some(piece) = TextPiece::of(record)
                    && let Some(process) = self.processes.get_mut(&upper(piece.pid_tid))
                {
                    process.stacks.add_piece(piece);
                }
            }
            kind::TASK_BODY => {
                if let Some(body) = TaskBody::read(record)
                    && let Some(process) = self.processes.get_mut(&upper(body.pid_tid))
                {
                    let is_enough = process.stacks.add_task(&body);
                    return Ok(is_enough.then_some(Notice::ManyTasks(process.pid)));
                }
            }
            kind::SAMPLE => {
                if let Some(sample) = Sample::read(record) {
                    self.sample(&sample, sink)?;
                }
            }
            kind::OFF_CPU => {
                if let Some(off_cpu) = OffCpu::read(record) {
                    self.off_cpu(&off_cpu, sink)?;
                }
            }
            kind::LIFECYCLE => {
                if let Some(life) = Lifecycle::read(record) {
                    return self.lifecycle(&life, sink);
                }
            }
            inside::kind::CORRELATED => {
                if let Some(correlated) = Correlated::read(record) {
                    self.correlated(&correlated, sink)?;
                }
            }
            inside::kind::FUNCTION_NAME => {
                if let Some(name) = FunctionName::read(record)
                    && let Some(process) = self.processes.get_mut(&upper(name.pid_tid))
                {
                    let text = record.get(size_of::<FunctionName>()..).unwrap_or_default();
                    let text = text.get(..name.bytes as usize).unwrap_or(text);
                    process.kernels.told(name.handle, &String::from_utf8_lossy(text), sink)?;
                }
            }
            inside::kind::CLOCKS => {
                if let Some(clocks) = Clocks::read(record) {
                    let (clock, device) = match clocks.device.checked_sub(1) {
                        Some(index) => (event::clock_kind::DEVICE, sink.define(device(index))?),
                        None => (event::clock_kind::CUPTI, 0),
                    };
                    sink.event(event::ClockPair {
                        start_ns: clocks.monotonic_ns as i64,
                        clock,
                        value_ns: clocks.other_ns as i64,
                        uncertainty_ns: clocks.uncertainty_ns,
                        device,
                    })?;
                }
            }
            inside::kind::MISSING => {
                if let Some(missing) = Missing::read(record) {
                    self.missing(&missing, sink)?;
                }
            }
            _ => {}
        }
        Ok(None)
    }

    fn call<S: Sink>(&mut self, arguments: &Arguments<'_>, sink: &mut S) -> Result<(), S::Error> {
        let call = &arguments.call;
        let index = call.function as usize;
        let Some(function) = self.functions.get(index) else { return Ok(()) };
        self.taken[index].calls += 1;
        let Some(process) = self.processes.get_mut(&upper(call.pid_tid)) else { return Ok(()) };
        process.calls += 1;
        let key = Key::new(call.time_ns, call.cpu, function.meaning.table());
        // What is captured becomes part of a graph, whoever launches that.
        let may_be_captured = process.objects.graphs.captures.are_under_way();
        if self.scope.is_by_stack()
            && !may_be_captured
            && scope::is_of_launch(function.meaning)
            && (matches!(call.stack, 0 | STACK_TOO_EARLY) || process.stacks.is_left_out(call.stack))
        {
            self.out_of_scope[index] += 1;
            // It may have had a stack that would be in the scope.
            if matches!(call.stack, 0 | STACK_TOO_EARLY) {
                count_stackless(call.stack, &process.stacks, &mut process.stackless, &mut self.gaps);
            }
            if function.meaning.is_event() {
                self.account.settle(key, Fate::LeftOut);
                let has_return = function.meaning.wants_return(self.launch_durations);
                if has_return || self.device_times != DeviceTimes::None {
                    // What comes of it is left out too.
                    let process_id = (process.id, process.pid);
                    let thread = Thread::of(&mut process.threads, process_id, lower(call.pid_tid), sink)?;
                    thread.leave_out(call, key, has_return);
                }
            }
            return Ok(());
        }
        let thread = Thread::of(&mut process.threads, (process.id, process.pid), lower(call.pid_tid), sink)?;
        // What is not below a call on the stack is not within it: that one has ended without being seen to.
        thread.last = None;
        while let Some(abandoned) = thread.take_abandoned(call.stack_pointer) {
            self.gaps.calls_without_return += 1;
            let mut teller = teller!(self, process);
            self.events += teller.give_up(abandoned, sink)?;
        }
        if self.function_ids[index] == 0 {
            self.function_ids[index] = define_function(&function.symbol, sink)?;
        }
        let stack = match call.stack {
            0 | STACK_TOO_EARLY => {
                if function.meaning.is_event() {
                    count_stackless(call.stack, &process.stacks, &mut process.stackless, &mut self.gaps);
                }
                0
            }
            STACK_UNREADABLE => {
                // The programs count theirs themselves.
                self.unreadable_stacks += u64::from(call.cpu == NO_CPU);
                0
            }
            STACK_LEFT_OUT => {
                self.gaps.stacks_left_out += 1;
                stacks::left_out(&mut self.stack_left_out, sink)?
            }
            hash => process.stacks.id(hash).unwrap_or_else(|| {
                self.gaps.unknown_stacks += 1;
                0
            }),
        };
        thread.calls += 1;
        let mut within = calls::Within {
            function,
            function_id: self.function_ids[index],
            stack,
            thread,
            kernels: &mut process.kernels,
            objects: &mut process.objects,
            correlation: &mut process.correlation,
            gaps: &mut self.gaps,
            left_out: None,
        };
        let mut open = within.open(arguments, sink)?;
        let is_left_out = match &within.left_out {
            Some(shapes) if !may_be_captured => scope::keep_only(&mut open, |launch| !shapes.contains(&launch.shape)),
            _ => false,
        };
        if is_left_out {
            self.out_of_scope[index] += 1;
            self.account.settle(key, Fate::LeftOut);
            open = Open::Nothing;
        }
        if !is_left_out && matches!(open, Open::Nothing) {
            return Ok(());
        }
        let has_return = function.meaning.wants_return(self.launch_durations);
        let open = within.captured(arguments, open, has_return, sink)?;
        let is_told_of = |called: &Called| match self.device_times {
            DeviceTimes::None => false,
            DeviceTimes::OfKernels => matches!(called.what, What::Launch { .. }),
            DeviceTimes::OfAll => true,
        };
        thread.last = match is_left_out {
            true => Some(Called::left_out(call.time_ns)),
            false => open.called(process.kernels.last).filter(is_told_of),
        };
        if has_return {
            thread.push(Pending {
                function: call.function,
                stack_pointer: call.stack_pointer,
                start_ns: call.time_ns as i64,
                key,
                cupti: 0,
                open,
            });
        } else {
            let mut teller = teller!(self, process);
            self.events += teller.tell(key, 0, open, sink)?;
        }
        Ok(())
    }

    fn returned<S: Sink>(&mut self, returned: &Return, sink: &mut S) -> Result<(), S::Error> {
        let Some(taken) = self.taken.get_mut(returned.function as usize) else { return Ok(()) };
        taken.returns += 1;
        let Some(process) = self.processes.get_mut(&upper(returned.pid_tid)) else { return Ok(()) };
        let Some(thread) = process.threads.get_mut(&lower(returned.pid_tid)) else {
            self.gaps.returns_without_call += 1;
            return Ok(());
        };
        // A call above this one on the list lies within it, and has ended with it.
        while let Some(abandoned) = thread.take_abandoned(returned.stack_pointer.wrapping_sub(8 + 1)) {
            self.gaps.calls_without_return += 1;
            let mut teller = teller!(self, process);
            self.events += teller.give_up(abandoned, sink)?;
        }
        let Some(pending) = thread.take_returned(returned) else {
            self.gaps.returns_without_call += 1;
            return Ok(());
        };
        let end = calls::End {
            duration_ns: (returned.time_ns as i64).saturating_sub(pending.start_ns).max(0) as u64,
            result: returned.result as i32,
            outs: returned.outs,
        };
        let Pending { key, cupti, open, .. } = pending;
        let fate = open.finish(&end, thread, &mut process.kernels, &mut process.objects, &mut self.work, sink)?;
        let mut teller = teller!(self, process);
        self.events += teller.settle(key, fate, cupti, sink)?;
        if cupti != 0 && end.result != 0 {
            process.objects.device.refused(cupti, &mut self.device);
        }
        let untold = process.objects.graphs.take_untold();
        self.gaps.unknown_graph_changes += untold.changes;
        self.gaps.captures_without_begin += untold.captures;
        Ok(())
    }

    /// Writes a lifecycle event that was made elsewhere.
    pub fn lifecycle_event<S: Sink>(&mut self, row: event::Lifecycle, sink: &mut S) -> Result<(), S::Error> {
        sink.event(row)
    }
}

/// Whose a record is: where that stands depends on its kind.
pub(super) fn pid_of(kind: u32, record: &[u8]) -> Option<u32> {
    let offset = match kind {
        kind::STACK_BODY => offset_of!(StackBody, pid_tid),
        kind::NATIVE_BODY => offset_of!(NativeBody, pid_tid),
        kind::CODE => offset_of!(CodeRecord, pid_tid),
        kind::TASK_BODY => offset_of!(TaskBody, pid_tid),
        kind::TEXT_PIECE => offset_of!(TextPiece, pid_tid),
        kind::RETURN => offset_of!(Return, pid_tid),
        kind::SAMPLE => offset_of!(Sample, pid_tid),
        kind::OFF_CPU => offset_of!(OffCpu, pid_tid),
        inside::kind::CORRELATED => offset_of!(Correlated, pid_tid),
        inside::kind::TEXT => offset_of!(Text, pid_tid),
        inside::kind::KERNEL_RAN | inside::kind::COPY_RAN | inside::kind::SET_RAN | inside::kind::KERNEL_TIMED => {
            offset_of!(Ran, pid_tid)
        }
        inside::kind::FUNCTION_NAME => offset_of!(FunctionName, pid_tid),
        inside::kind::CLOCKS => offset_of!(Clocks, pid_tid),
        inside::kind::MISSING => offset_of!(Missing, pid_tid),
        inside::kind::RANGE => offset_of!(RangeTold, pid_tid),
        _ => offset_of!(Call, pid_tid),
    };
    let word = record.get(offset..)?.first_chunk::<8>()?;
    Some(upper(u64::from_ne_bytes(*word)))
}

fn process_id(processes: &FxHashMap<u32, Process>, pid: u32) -> u32 {
    processes.get(&pid).map_or(0, |process| process.id)
}

fn define_function<S: Sink>(symbol: &str, sink: &mut S) -> Result<u32, S::Error> {
    let name = sink.string(symbol)?;
    let domain = match symbol.trim_start_matches('_') {
        symbol if symbol.starts_with("cuda") => api_domain::RUNTIME,
        symbol if symbol.starts_with("nccl") => api_domain::NCCL,
        _ => api_domain::DRIVER,
    };
    sink.define(Function { name, domain, callback_id: 0 })
}

fn upper(pid_tid: u64) -> u32 {
    (pid_tid >> 32) as u32
}

fn lower(pid_tid: u64) -> u32 {
    pid_tid as u32
}
