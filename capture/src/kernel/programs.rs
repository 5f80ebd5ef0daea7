//! The eBPF programs in the kernel, and the maps by which they are told what to do.

use std::mem::size_of;

use aya::maps::{Array, HashMap, MapData, PerCpuArray, RingBuf};
use aya::programs::RawTracePoint;
use aya::{Ebpf, EbpfLoader, Pod};
use ktape_ebpf::python::Interpreter;
use ktape_ebpf::scope::Scope;
use ktape_ebpf::wire::tally::{SLOTS, Slot};
#[cfg(doc)]
use ktape_ebpf::wire::unsaid;
use ktape_ebpf::wire::{
    Counters, Fidelity, LeftOut, Off, OffCounters, OutOfScope, Plan, Spent, Target, Walked, stack_use,
};

use super::btf::{Btf, BtfError};
use super::links::{Attached, Group, Link, Links, Named, Program, RECORDING, WITH_EMPTY, map_fd};
use super::node::Node;
use super::off_cpu::{Layout, OffCpuWatch};
use super::sampler::Sampler;
use crate::probes::functions::{Meaning, Probed};

/// The compiled programs.
pub(super) static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/ktape-ebpf-programs"));

/// Why recording can't begin.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// The kernel's structures are not known.
    #[error(transparent)]
    Btf(#[from] BtfError),
    /// The kernel refuses the programs or maps.
    #[error("the kernel does not take the eBPF programs: {}", chain(.0))]
    Load(#[from] aya::EbpfError),
    /// The kernel refuses a program.
    #[error("the kernel does not take an eBPF program: {}", chain(.0))]
    Program(#[from] aya::programs::ProgramError),
    /// A map can't be used.
    #[error("an eBPF map: {}", chain(.0))]
    Map(#[from] aya::maps::MapError),
    /// A function of our own, to try probes on, can't be made.
    #[error("a page of code to try probes on: {0}")]
    Trial(std::io::Error),
    /// Which processors there are can't be read.
    #[error("the processors that are online: {0}")]
    Processors(std::io::Error),
    /// The programs lack a part: they are of another version than this one.
    #[error("the eBPF programs have no `{0}`")]
    Missing(&'static str),
}

/// An error and its causes in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        // The verifier's log is a screen or more; its end says what it is about.
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        next = cause.source();
    }
    text
}

/// A wire type in a map. The types are of `ktape-ebpf`, which does not know `aya`.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(super) struct Wire<T>(pub(super) T);

// SAFETY: plain integers without padding; any bytes are values.
unsafe impl Pod for Wire<Plan> {}
// SAFETY: as above.
unsafe impl Pod for Wire<Counters> {}
// SAFETY: as above.
unsafe impl Pod for Wire<Spent> {}
// SAFETY: as above.
unsafe impl Pod for Wire<Fidelity> {}
// SAFETY: as above.
unsafe impl Pod for Wire<Target> {}
// SAFETY: as above.
unsafe impl Pod for Wire<Walked> {}
// SAFETY: likewise.
unsafe impl Pod for Wire<Interpreter> {}
// SAFETY: as above.
unsafe impl Pod for Wire<Slot> {}
// SAFETY: as above.
unsafe impl Pod for Wire<Scope> {}
// SAFETY: as above.
unsafe impl Pod for Wire<OutOfScope> {}
// SAFETY: as above.
unsafe impl Pod for Wire<LeftOut> {}

/// The loaded programs.
pub struct Kernel {
    ebpf: Ebpf,
    targets: HashMap<MapData, u32, Wire<Target>>,
    interpreters: HashMap<MapData, u32, Wire<Walked>>,
    pythons: HashMap<MapData, u64, Wire<Interpreter>>,
    /// The cookie that the last of them got.
    last_python: u16,
    counters: PerCpuArray<MapData, Wire<Counters>>,
    spent: PerCpuArray<MapData, Wire<Spent>>,
    fidelity: Array<MapData, Wire<Fidelity>>,
    tallies: PerCpuArray<MapData, Wire<Slot>>,
    unsaid: PerCpuArray<MapData, u64>,
    functions: usize,
    links: Links,
    sampler: Option<Sampler>,
    off_cpu: Option<OffCpuWatch>,
    node: Option<Node>,
}

/// What the programs are for, besides recording the processes that they are told.
#[derive(Clone, Copy, Debug, Default)]
pub struct Purpose {
    /// Every process is recorded from its first call on that the scope has: none, until it is set.
    pub node: bool,
    /// Launches are told apart by their stacks; of a node those are not sent that are [left out](Node::leave_out).
    pub by_stack: bool,
    /// Libraries inside of processes announce the numbers of calls.
    pub announced: bool,
    /// They make calls of the driver for themselves, which are not told.
    pub own_calls: bool,
}

impl Kernel {
    /// Loads the programs and gives them their plans; `ring_bytes` is the length of the ring buffer, a power of two.
    /// Nothing is probed, and no process recorded, yet.
    pub fn load(functions: &[Probed], ring_bytes: u32) -> Result<(Kernel, RingBuf<MapData>), KernelError> {
        Kernel::load_for(functions, ring_bytes, Purpose::default())
    }

    /// As [`Kernel::load`], for more than that.
    pub fn load_for(
        functions: &[Probed],
        ring_bytes: u32,
        purpose: Purpose,
    ) -> Result<(Kernel, RingBuf<MapData>), KernelError> {
        Kernel::load_programs(functions, ring_bytes, RECORDING, purpose)
    }

    /// Loads the empty program too, to which the cost of the others is compared.
    pub fn load_with_empty(functions: &[Probed], ring_bytes: u32) -> Result<(Kernel, RingBuf<MapData>), KernelError> {
        Kernel::load_programs(functions, ring_bytes, WITH_EMPTY, Purpose::default())
    }

    fn load_programs(
        functions: &[Probed],
        ring_bytes: u32,
        programs: &'static [Named],
        purpose: Purpose,
    ) -> Result<(Kernel, RingBuf<MapData>), KernelError> {
        let btf = Btf::of_this_kernel()?;
        let offset = |path| btf.offset("task_struct", path);
        let (tgid, pid, exit_code) = (offset("tgid")?, offset("pid")?, offset("exit_code")?);
        let thread_pointer = offset("thread.fsbase")?;
        // Without it only time off the processor can't be watched.
        let switches = Layout::of(&btf).unwrap_or_default();
        let (leader, comm) = (offset("group_leader")?, offset("comm")?);
        let wake_at_bytes = u64::from(ring_bytes / 4);
        let (recorder, is_for_node) = (u64::from(std::process::id()), u64::from(purpose.node));
        let stacks_scoped = u64::from(purpose.node && purpose.by_stack);
        let (announced, own_calls) = (u64::from(purpose.announced), u64::from(purpose.own_calls));
        let mut loader = EbpfLoader::new();
        loader
            .override_global("TASK_TGID", &tgid, true)
            .override_global("TASK_PID", &pid, true)
            .override_global("TASK_EXIT_CODE", &exit_code, true)
            .override_global("TASK_THREAD_POINTER", &thread_pointer, true)
            .override_global("TASK_FLAGS", &switches.flags, true)
            .override_global("TASK_STATE", &switches.state, true)
            .override_global("SWITCH_TELLS_STATE", &switches.switch_tells_state, true)
            .override_global("WAKE_AT_BYTES", &wake_at_bytes, true)
            .override_global("RECORDER", &recorder, true)
            .override_global("ANNOUNCED", &announced, true)
            .override_global("NODE", &is_for_node, true)
            .override_global("STACKS_SCOPED", &stacks_scoped, true)
            .override_global("OWN_CALLS", &own_calls, true)
            .override_global("TASK_GROUP_LEADER", &leader, true)
            .override_global("TASK_COMM", &comm, true)
            .map_max_entries("EVENTS", ring_bytes);
        let mut ebpf = loader.load(OBJECT)?;
        let maps = ebpf.maps().filter_map(|(name, map)| Some((name.to_owned(), map_fd(map)?))).collect();
        let mut plans: Array<_, Wire<Plan>> = Array::try_from(take(&mut ebpf, "PLANS")?)?;
        for (index, function) in functions.iter().enumerate() {
            let mut plan = function.meaning.plan();
            // Else what explains a launch that is left out would be taken to explain another.
            if purpose.by_stack && function.meaning == Meaning::RuntimeLaunch {
                plan.stack = stack_use::LAUNCH;
            }
            plans.set(index as u32, Wire(plan), 0)?;
        }
        let targets = HashMap::try_from(take(&mut ebpf, "TARGETS")?)?;
        let interpreters = HashMap::try_from(take(&mut ebpf, "INTERPRETERS")?)?;
        let pythons = HashMap::try_from(take(&mut ebpf, "PYTHONS")?)?;
        let counters = PerCpuArray::try_from(take(&mut ebpf, "COUNTERS")?)?;
        let spent = PerCpuArray::try_from(take(&mut ebpf, "SPENT")?)?;
        let fidelity = Array::try_from(take(&mut ebpf, "FIDELITY")?)?;
        let tallies = PerCpuArray::try_from(take(&mut ebpf, "TALLIES")?)?;
        let unsaid = PerCpuArray::try_from(take(&mut ebpf, "UNSAID")?)?;
        let ring = RingBuf::try_from(take(&mut ebpf, "EVENTS")?)?;
        for (name, tracepoint) in
            [("forked", "sched_process_fork"), ("executed", "sched_process_exec"), ("exited", "sched_process_exit")]
        {
            let program = ebpf.program_mut(name).ok_or(KernelError::Missing("tracepoint program"))?;
            let program: &mut RawTracePoint = program.try_into()?;
            program.load()?;
            program.attach(tracepoint)?;
        }
        let links = Links::load(&mut ebpf, &maps, programs)?;
        let node = if purpose.node { Some(Node::take(&mut ebpf)?) } else { None };
        let kernel = Kernel {
            ebpf,
            targets,
            interpreters,
            pythons,
            last_python: 0,
            counters,
            spent,
            fidelity,
            tallies,
            unsaid,
            functions: functions.len(),
            links,
            sampler: None,
            off_cpu: None,
            node,
        };
        Ok((kernel, ring))
    }

    /// Records a process from now on, or says more of one that is recorded.
    pub fn set_target(&mut self, pid: u32, target: Target) -> Result<(), KernelError> {
        Ok(self.targets.insert(pid, Wire(target), 0)?)
    }

    /// Has the stacks of a process walked, or no longer, as long as it runs the program of this generation.
    pub fn set_interpreter(
        &mut self,
        pid: u32,
        generation: u64,
        interpreter: Option<Interpreter>,
    ) -> Result<(), KernelError> {
        // Whoever hears late of a program must not undo what is known of the next one.
        if self.target(pid).is_some_and(|target| target.generation != generation) {
            return Ok(());
        }
        let walked = interpreter.map(|interpreter| Walked { generation, interpreter });
        Ok(self.interpreters.insert(pid, Wire(walked.unwrap_or_default()), 0)?)
    }

    /// Has processes walked that free code at a probe with the cookie that this returns. `runtime` is counted from that probe.
    pub fn add_python(&mut self, interpreter: Interpreter) -> Result<u16, KernelError> {
        // After 65,535 files the first is long forgotten. A probe without a cookie has 0.
        self.last_python = self.last_python.checked_add(1).unwrap_or(1);
        self.pythons.insert(u64::from(self.last_python), Wire(interpreter), 0)?;
        Ok(self.last_python)
    }

    /// What [`Kernel::add_python`] was told of this cookie.
    pub fn python(&self, cookie: u16) -> Option<Interpreter> {
        self.pythons.get(&cookie.into(), 0).ok().map(|Wire(interpreter)| interpreter)
    }

    /// The interpreter of a process that is walked, as long as it runs the program of this generation.
    pub fn interpreter(&self, pid: u32, generation: u64) -> Option<Interpreter> {
        let Wire(walked) = self.interpreters.get(&pid, 0).ok()?;
        (walked.generation == generation).then_some(walked.interpreter)
    }

    /// Forgets the interpreter of a process that runs the program of this generation no more.
    pub fn remove_interpreter(&mut self, pid: u32, generation: u64) {
        if self.interpreter(pid, generation).is_some() {
            // One that has gone meanwhile needs no removing.
            let _ = self.interpreters.remove(&pid);
        }
    }

    /// What the programs know of a process.
    pub fn target(&self, pid: u32) -> Option<Target> {
        self.targets.get(&pid, 0).ok().map(|Wire(target)| target)
    }

    /// Records a process no longer.
    pub fn remove_target(&mut self, pid: u32) {
        // One that is not there needs no removing.
        let _ = self.targets.remove(&pid);
        let _ = self.interpreters.remove(&pid);
    }

    /// What only a recording of the whole node has.
    pub fn node(&mut self) -> Option<&mut Node> {
        self.node.as_mut()
    }

    /// Sets probes in a library, except for those that the kernel refuses.
    pub fn attach(&mut self, links: &[Link<'_>], library: &std::path::Path) -> Result<Attached, KernelError> {
        self.links.attach(&mut self.ebpf, links, library)
    }

    /// Takes probes away that were set together.
    pub fn detach_group(&mut self, group: Group) -> Result<(), KernelError> {
        self.links.detach_group(group, &mut self.ebpf)
    }

    /// Does something while these probes are set, which the kernel must not refuse. They are taken away soon after, so that it must
    /// be code that nobody else calls.
    pub fn while_attached<T>(
        &mut self,
        links: &[Link<'_>],
        library: &std::path::Path,
        action: impl FnOnce() -> T,
    ) -> Result<T, KernelError> {
        let Attached { group, refused } = self.links.attach(&mut self.ebpf, links, library)?;
        let result = action();
        self.links.detach_group_soon(group, &mut self.ebpf)?;
        match refused.into_iter().next() {
            Some(refused) => Err(KernelError::Trial(std::io::Error::other(refused))),
            None => Ok(result),
        }
    }

    /// Takes the return probes of launches away.
    pub fn drop_launch_returns(&mut self) -> Result<(), KernelError> {
        self.links.detach_program(Program::LeaveLaunch, &mut self.ebpf)
    }

    /// Changes how much of each call is kept, from now on.
    pub fn set_fidelity(&mut self, fidelity: Fidelity) -> Result<(), KernelError> {
        Ok(self.fidelity.set(0, Wire(fidelity), 0)?)
    }

    /// What the programs took at each function, of all processors together.
    pub fn spent(&self) -> Result<Vec<Spent>, KernelError> {
        let mut all = vec![Spent::default(); self.functions];
        for (index, sum) in all.iter_mut().enumerate() {
            for Wire(spent) in self.spent.get(&(index as u32), 0)?.iter() {
                sum.add(spent);
            }
        }
        Ok(all)
    }

    /// Looks at running threads so many times a second from now on.
    pub fn sample(&mut self, hz: u32) -> Result<(), KernelError> {
        let counters = PerCpuArray::try_from(take(&mut self.ebpf, "SAMPLES")?)?;
        self.sampler = Some(Sampler::load(&mut self.ebpf, counters, hz)?);
        self.follow_processors()?;
        Ok(())
    }

    /// Has processors that came online sampled too. Returns those.
    pub fn follow_processors(&mut self) -> Result<Vec<u32>, KernelError> {
        let Some(sampler) = &mut self.sampler else { return Ok(Vec::new()) };
        let online = aya::util::online_cpus().map_err(|(_, error)| KernelError::Processors(error))?;
        sampler.follow(&mut self.ebpf, &online)
    }

    /// What was counted of samples: as of calls.
    pub fn sample_counters(&self) -> Result<Counters, KernelError> {
        self.sampler.as_ref().map_or(Ok(Counters::default()), Sampler::counters)
    }

    /// Watches when threads of recorded processes do not run, from now on.
    pub fn watch_off_cpu(&mut self) -> Result<(), KernelError> {
        self.off_cpu = Some(OffCpuWatch::begin(&mut self.ebpf)?);
        Ok(())
    }

    /// The recorded threads that are off their processors, by number.
    pub fn off_cpu(&self) -> Result<Vec<(u32, Off)>, KernelError> {
        self.off_cpu.as_ref().map_or(Ok(Vec::new()), OffCpuWatch::off)
    }

    /// Forgets threads off their processors, of processes that are recorded no longer.
    pub fn forget_off_cpu(&mut self, pids: &[u32]) -> Result<(), KernelError> {
        self.off_cpu.as_mut().map_or(Ok(()), |off_cpu| off_cpu.forget(pids))
    }

    /// What was counted of threads that were off their processors.
    pub fn off_cpu_counters(&self) -> Result<OffCounters, KernelError> {
        self.off_cpu.as_ref().map_or(Ok(OffCounters::default()), OffCpuWatch::counters)
    }

    /// Takes all probes away. What they have put into the ring buffer stays there.
    pub fn detach(&mut self) -> Result<(), KernelError> {
        if let Some(sampler) = &mut self.sampler {
            sampler.follow(&mut self.ebpf, &[])?;
        }
        if let Some(off_cpu) = &mut self.off_cpu {
            off_cpu.end(&mut self.ebpf)?;
        }
        self.links.detach(&mut self.ebpf)
    }

    /// The processes that the programs record, with the program of each.
    pub fn targets(&self) -> Result<Vec<(u32, Target)>, KernelError> {
        let targets = self.targets.iter().map(|target| target.map(|(pid, Wire(target))| (pid, target)));
        Ok(targets.collect::<Result<_, _>>()?)
    }

    /// How much of a kind ([`unsaid`]) the programs could not say.
    pub fn unsaid(&self, kind: u32) -> Result<u64, KernelError> {
        Ok(self.unsaid.get(&kind, 0)?.iter().sum())
    }

    /// What each processor has counted in the slot of an interval, which others have had before it.
    pub fn tallies(&self, interval: u64) -> Result<Vec<Slot>, KernelError> {
        let slots = self.tallies.get(&(interval as u32 % SLOTS), 0)?;
        Ok(slots.iter().map(|Wire(slot)| *slot).collect())
    }

    /// What was counted of each function, of all processors together.
    pub fn counters(&self) -> Result<Vec<Counters>, KernelError> {
        let mut all = vec![Counters::default(); self.functions];
        for (index, sum) in all.iter_mut().enumerate() {
            for Wire(counters) in self.counters.get(&(index as u32), 0)?.iter() {
                sum.add(counters);
            }
        }
        Ok(all)
    }
}

pub(super) fn take(ebpf: &mut Ebpf, name: &'static str) -> Result<aya::maps::Map, KernelError> {
    ebpf.take_map(name).ok_or(KernelError::Missing(name))
}

const _: () = assert!(size_of::<Plan>() == 36);
