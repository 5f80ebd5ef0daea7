//! How a recording begins: its programs, its tape, and the first processes.
//!
//! Nothing is recorded before a process is named, one that runs or one that is spawned, or the node (`node.rs`).

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use ktape_ebpf::wire::Target;
use rustc_hash::{FxHashMap, FxHashSet};

use super::super::blind_spots::Noted;
use super::super::clocks::monotonic_ns;
use super::super::cost::Cost;
use super::super::files::Files;
use super::super::governor::Governor;
use super::super::inside;
use super::super::listed::Listed;
use super::super::losses::Losses;
use super::super::node::Node;
use super::super::output::Output;
use super::super::processes::Looks;
use super::super::tally::Tallies;
use super::super::troubles::Troubles;
use super::super::waiting::Waiting;
use super::{Options, RECORDS_A_ROUND, Session};
use crate::collect::events::Collector;
use crate::collect::nvml::GpuCounters;
use crate::kernel::programs::{Kernel, Purpose};
use crate::kernel::sampler;
use crate::kernel::traps::Traps;
use crate::probes;
use crate::probes::functions;
use crate::target;
use crate::target::libraries;
use crate::target::stubs::live;

impl Session {
    /// Loads the programs and begins the tape. Nothing is recorded yet.
    pub fn begin(options: Options) -> Result<Session> {
        target::process::is_in_first_namespace()?;
        let gpu_counters = options.gpu_hz.map(GpuCounters::begin).transpose();
        let gpu_counters = gpu_counters.context("the GPUs' counters can't be had: NVML")?;
        let functions = functions::all();
        let launches = match &options.node {
            Some(scope) => scope.of_launches()?,
            None => options.launches.clone(),
        };
        let library = options.inside.as_ref().map(|(inside, _)| inside);
        let purpose = Purpose {
            node: options.node.is_some(),
            by_stack: launches.is_by_stack(),
            announced: library.is_some_and(|inside| inside.announce),
            own_calls: library.is_some_and(|inside| inside.device_time == inside::DeviceTime::Events),
        };
        // The kernel is asked while it verifies the programs, and before their probes leave traces in this process that hide the answer.
        let (loaded, site_kernel) = thread::scope(|scope| {
            let asked = scope.spawn(|| probes::Kernel::ask().unwrap_or(probes::Kernel::OLD));
            (Kernel::load_for(&functions, options.buffer_bytes, purpose), asked.join())
        });
        let (mut kernel, ring) = loaded?;
        let site_kernel = site_kernel.unwrap_or(probes::Kernel::OLD);
        let traps = Traps::measure(&mut kernel);
        let tape = Output::begin(&options.output, options.segments.as_ref())?;
        let now = Instant::now();
        let hooked = vec![false; functions.len()];
        let mut session = Session {
            collector: Collector::new(functions.clone(), options.launch_durations),
            losses: Losses::new(functions.len(), monotonic_ns()),
            lost_of_graphs: [0; 2],
            cost: Cost::new(*traps.as_ref().unwrap_or(&Traps::UNKNOWN), functions.len()),
            gpu_counters,
            governor: options.max_overhead.map(|limit| Governor::new(limit, options.native, options.launch_durations)),
            tallies: Tallies::new(monotonic_ns()),
            inside: None,
            node: options.node.clone().map(Node::new).transpose()?,
            options,
            functions,
            kernel,
            site_kernel,
            waiting: Waiting::new(&ring).context("waiting for records")?,
            ring,
            tape,
            rotation: Arc::default(),
            processes: FxHashMap::default(),
            told: FxHashSet::default(),
            looks: Looks::default(),
            gone: Vec::new(),
            files: Files::default(),
            library_paths: Listed::default(),
            stubs: live::Known::default(),
            probes: 0,
            hooked,
            noted: Noted::default(),
            recorded: 0,
            is_ending: false,
            troubles: Troubles::default(),
            tell: None,
            fidelity_changes: Listed::default(),
            began: now,
            looked_again: now,
            told_losses: now,
            read_clocks: now,
        };
        session.begin_inside()?;
        session.collector.set_scope(launches);
        if let Err(error) = traps {
            session
                .trouble(format!("what a probe's trap costs can't be measured, and is not in the estimate: {error}"));
        }
        session.read_clocks()?;
        if let Some(hz) = session.options.cpu_hz {
            session.kernel.sample(hz)?;
            session.collector.set_sample_period(sampler::period_ns(hz));
        }
        if session.options.off_cpu {
            session.kernel.watch_off_cpu()?;
        }
        Ok(session)
    }

    /// Records a process that runs: its libraries get probes, its interpreter is looked at, and from then on its calls count.
    ///
    /// # Errors
    ///
    /// If there is no such process, or it may not be looked into.
    pub fn add_process(&mut self, pid: u32) -> Result<()> {
        libraries::mapped(pid)?;
        self.begin_process(pid)?;
        self.look_at(pid);
        Ok(())
    }

    /// Records what this process spawns, from its first instruction on, until [`Session::spawned`].
    pub fn before_spawn(&mut self) -> Result<()> {
        let pid = std::process::id();
        let target = self.new_target();
        self.kernel.set_target(pid, Target { follow: target.follow.saturating_add(1), ..target })?;
        Ok(())
    }

    /// The end of [`Session::before_spawn`].
    pub fn spawned(&mut self) {
        self.kernel.remove_target(std::process::id());
    }

    /// Waits for the word of a process that was spawned.
    pub fn expect(&mut self, pid: u32) -> Result<()> {
        let began = Instant::now();
        while !self.processes.contains_key(&pid) {
            anyhow::ensure!(began.elapsed() < Duration::from_secs(10), "the kernel does not tell of the process {pid}");
            self.drain(RECORDS_A_ROUND)?;
        }
        Ok(())
    }

    pub(in super::super) fn new_target(&self) -> Target {
        Target {
            generation: monotonic_ns() as u64,
            follow: if self.options.follow { u32::MAX } else { 0 },
            native: self.options.native.into(),
            ..Target::default()
        }
    }
}
