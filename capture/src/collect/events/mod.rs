//! The collector of calls: the records of the eBPF programs, and those of the library inside of a process, as events.
//!
//! [`Collector::take`] (`records.rs`) takes one record after the other. A call's record (`call_and_return.rs`) is read (`calls.rs`) and
//! becomes an event (`open.rs`), at once where its return isn't wanted, else when that comes (`thread.rs` has what is under way; `copies.rs`
//! what is more of copies). Here is what the collector has, what is asked of it, and what it is told between records.
//!
//! What an event refers to is kept by process: stacks and code objects (`stacks.rs`; `native.rs` has the frames below Python), kernels
//! by handle (`kernels.rs`), contexts and streams (`objects.rs`), graphs (`graphs.rs`; `capturing.rs` has the streams that are captured).
//! CPU samples become events in `samples.rs`, time off the processor in `off_cpu.rs`, ranges that the program names in `named.rs`.
//! `lifecycle.rs` has processes and threads that come and go, `of_device.rs` what calls have the device do, `unknown.rs` what is told of
//! nobody's.

pub(in super::super::collect) mod account;
mod arguments;
mod call_and_return;
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
mod open;
pub(in super::super::collect) mod records;
mod samples;
mod scope;
mod stacks;
mod thread;
mod unknown;

use std::collections::BTreeMap;
use std::rc::Rc;

use ktape_ebpf::python::Interpreter;
use ktape_format::Sink;
use ktape_format::definition::property;
use ktape_format::table::DefinitionKind;
use rustc_hash::FxHashMap;

use super::inside::device::{DeviceCounts, Work};
use super::inside::ranges::{RangeCounts, Ranges};
use crate::probes::functions::Probed;
use crate::target::libraries::FileId;
use crate::target::stubs::live;
use account::Account;
pub use account::{Fate, Key, Settled};
pub use gaps::Gaps;
pub use graphs::LostCalls;
use kernels::Kernels;
pub use kernels::Source;
use native::Builds;
use objects::Objects;
pub use samples::Samples;
pub use scope::LaunchScope;
use stacks::Stacks;
use thread::Thread;
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
    /// A process was forked: both numbers, and the generation of the child's program.
    Forked { parent: u32, child: u32, generation: u64 },
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
    /// Whether the stacks of ranges and marks come from elsewhere than their words.
    range_stacks: bool,
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
            range_stacks: false,
            unknown: Unknown::default(),
            work: Vec::new(),
            further_sources: BTreeMap::new(),
        }
    }

    /// From now on the device's own times are told.
    pub fn expect_device_times(&mut self, times: DeviceTimes) {
        self.device_times = times;
    }

    /// From now on the stacks of ranges and marks are told by programs, and their words wait for them.
    pub fn expect_range_stacks(&mut self) {
        self.range_stacks = true;
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

    /// Learns that a process runs the Python of the one that it was forked from, as far as that was known then.
    pub fn inherit_interpreter(&mut self, parent: u32, child: u32) {
        let inherited = self.processes.get(&parent).and_then(|parent| parent.stacks.interpreter());
        if let (Some(inherited), Some(child)) = (inherited, self.processes.get_mut(&child)) {
            child.stacks.inherit_interpreter(inherited);
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
}

fn upper(pid_tid: u64) -> u32 {
    (pid_tid >> 32) as u32
}

fn lower(pid_tid: u64) -> u32 {
    pid_tid as u32
}
