//! A recording: from the first probe to the closed tape.
//!
//! [`Session::run`] goes round: take what the ring buffer has, write it, look after processes that came, changed or went, wait
//! for more. It waits at most [`TICK`], as the programs wake it only for what is urgent. `processes.rs` has what is done for
//! processes, `libraries.rs` for libraries.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use aya::maps::{MapData, RingBuf};
use ktape_ebpf::wire::{Counters, Target, unsaid};
use ktape_format::event::{self, ClockPair, clock_kind, lifecycle_kind};
use ktape_format::header::ClockKind;
use ktape_format::{Options as TapeOptions, Sink as _};
use rustc_hash::{FxHashMap, FxHashSet};
use rustix::event::Timespec;
use rustix::time::{ClockId, clock_gettime};

use super::blind_spots::Noted;
use super::cost::Cost;
use super::files::Files;
use super::governor::Governor;
use super::inside::{self, Inside};
use super::listed::Listed;
use super::losses::Losses;
use super::node::Node;
use super::output::Output;
use super::processes::{Looks, Recorded};
use super::scope::Scope;
use super::segments;
use super::summary::{CpuSamples, GpuValues, OffCpu, Summary};
use super::tally::{Counting, Tallies};
use super::waiting::Waiting;
use crate::collect::events::{Collector, LaunchScope, LostCalls, Notice};
use crate::collect::nvml::GpuCounters;
use crate::kernel::programs::{Kernel, Purpose};
use crate::kernel::sampler;
use crate::kernel::traps::Traps;
use crate::probes;
use crate::probes::functions::{self, Meaning, Probed};
use crate::target;
use crate::target::libraries;
use crate::target::stubs::live;

/// How long a record may lie before it is looked for.
pub(super) const TICK: Duration = Duration::from_millis(20);
/// How often processes are looked at again: for libraries and interpreters that came without a word.
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// How often losses are told.
pub(super) const TELL_LOSSES: Duration = Duration::from_secs(1);
/// How often the clocks are read together.
pub(super) const CLOCKS: Duration = Duration::from_secs(10);
/// So many troubles are told apart: over weeks there may be any number.
const MOST_TROUBLES: usize = 1000;
/// After so many records the other duties have their turn.
pub(super) const RECORDS_A_ROUND: usize = 65_536;

/// What to record, and where to.
#[derive(Clone, Debug)]
pub struct Options {
    /// The tape.
    pub output: PathBuf,
    /// Whether it is a directory instead, of which segments.
    pub segments: Option<segments::Options>,
    /// Whether children of recorded processes are recorded too.
    pub follow: bool,
    /// Whether launches get a duration and a result.
    pub launch_durations: bool,
    /// Whether every stack gets the native frames below its Python frames.
    pub native: bool,
    /// How much may wait between the programs and the recorder: a power of two.
    pub buffer_bytes: u32,
    /// How often a second running threads are looked at; `None` for never.
    pub cpu_hz: Option<u32>,
    /// The share of its time, as parts of 1, that the thread which calls most often may spend in probes; `None` for any.
    pub max_overhead: Option<f64>,
    /// Whether it is recorded when threads do not run.
    pub off_cpu: bool,
    /// How often a second the machine's GPUs are asked for their counters; `None` for never.
    pub gpu_hz: Option<u32>,
    /// The whole node is recorded, as far as this has it; `None` for named processes.
    pub node: Option<Scope>,
    /// Which launches of named processes are recorded.
    pub launches: LaunchScope,
    /// What a library inside of the processes is asked for, and its file; `None` for none.
    pub inside: Option<(inside::Options, PathBuf)>,
}

/// Told of each trouble when it comes first.
type Tell = Box<dyn FnMut(&str)>;

/// A recording that goes on.
pub struct Session {
    pub(super) options: Options,
    pub(super) functions: Vec<Probed>,
    pub(super) kernel: Kernel,
    /// How this kernel executes what lies under a probe.
    pub(super) site_kernel: probes::Kernel,
    pub(super) ring: RingBuf<MapData>,
    pub(super) collector: Collector,
    pub(super) tape: Output,
    /// Set by whoever wants the segment to end.
    pub(super) rotation: Arc<AtomicBool>,
    pub(super) losses: Losses,
    /// Calls that change graphs, and their returns, that were lost so far: those that change no executable graph, and the others.
    lost_of_graphs: [u64; 2],
    pub(super) cost: Cost,
    gpu_counters: Option<GpuCounters>,
    governor: Option<Governor>,
    pub(super) tallies: Tallies,
    /// What the libraries inside of processes tell.
    pub(super) inside: Option<Inside>,
    /// What there is more where the whole node is recorded.
    pub(super) node: Option<Node>,
    pub(super) processes: FxHashMap<u32, Recorded>,
    /// Those that said that they mapped something.
    pub(super) told: FxHashSet<u32>,
    pub(super) looks: Looks,
    pub(super) waiting: Waiting,
    /// Processes that seem to have ended.
    pub(super) gone: Vec<u32>,
    pub(super) files: Files,
    pub(super) library_paths: Listed<PathBuf>,
    /// What files tell of host stubs.
    pub(super) stubs: live::Known,
    pub(super) probes: usize,
    /// Which functions have a probe.
    pub(super) hooked: Vec<bool>,
    pub(super) noted: Noted,
    pub(super) recorded: u64,
    /// Whether the probes have been taken away: no new ones then.
    pub(super) is_ending: bool,
    pub(super) troubles: BTreeMap<String, u64>,
    /// Who is told of each when it comes.
    tell: Option<Tell>,
    /// What was kept less of, and of what more again.
    fidelity_changes: Listed<String>,
    pub(super) began: Instant,
    pub(super) looked_again: Instant,
    pub(super) told_losses: Instant,
    pub(super) read_clocks: Instant,
}

/// How a recording stands, for a line on a terminal.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Since it began.
    pub elapsed: Duration,
    /// Events so far.
    pub events: u64,
    /// Calls lost so far.
    pub lost: u64,
    /// Processes that are being recorded.
    pub processes: usize,
}

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
        let tape = begin_tape(&options)?;
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
            troubles: BTreeMap::new(),
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

    /// Records until `stop` says so, or no recorded process is left; of the whole node there always may come one. `progress` is called every so often.
    pub fn run(&mut self, stop: &AtomicBool, mut progress: impl FnMut(Progress)) -> Result<()> {
        while !stop.load(Ordering::Relaxed) && (self.node.is_some() || !self.processes.is_empty()) {
            let taken = self.drain(RECORDS_A_ROUND)?;
            self.drain_inside()?;
            self.look_after_node()?;
            self.duties()?;
            progress(self.progress());
            self.wait(if taken < RECORDS_A_ROUND { TICK } else { Duration::ZERO })?;
            self.forget_the_gone()?;
        }
        Ok(())
    }

    /// Takes the probes away, writes what is still on its way, and closes the tape.
    pub fn end(mut self) -> Result<Summary> {
        self.await_device()?;
        let duration_ns = self.began.elapsed().as_nanos() as u64;
        let now_ns = monotonic_ns();
        let pids: Vec<u32> = self.processes.keys().copied().collect();
        self.kernel.detach()?;
        for &pid in &pids {
            self.kernel.remove_target(pid);
        }
        self.is_ending = true;
        let gpu_counters = end_gpu_counters(self.gpu_counters.take(), &mut self.tape)?;
        while self.drain(usize::MAX)? > 0 {}
        self.drain_inside()?;
        let off_at_end = self.end_off_cpu(now_ns)?;
        for pid in pids {
            self.lifecycle(pid, lifecycle_kind::DETACH, now_ns, 0)?;
            if let Some(inside) = &self.inside {
                inside.tell_device_time(pid, &self.collector, &mut self.tape)?;
            }
            self.note_blind_spots_of(pid);
        }
        if let Some(inside) = &self.inside {
            inside.tell_all_cost(&self.collector, &mut self.tape)?;
        }
        self.collector.finish(&mut self.tape)?;
        let counters = self.kernel.counters()?;
        let sampled = self.kernel.sample_counters()?;
        self.look_at_cost(&counters, self.told_losses.elapsed())?;
        let off_cpu = self.kernel.off_cpu_counters()?;
        self.tallies.look_at_all(
            Counting::of(&self.kernel, self.inside.as_ref()),
            self.collector.settled(),
            monotonic_ns(),
        )?;
        self.read_clocks()?;
        let is_event = |(function, _): &(&Probed, _)| function.meaning.is_event();
        let (out_of_scope, left_out) = self.out_of_scope()?;
        let seen: u64 = self.functions.iter().zip(&counters).filter(is_event).map(|(_, c)| c.calls).sum();
        let seen = seen - left_out;
        let sum = |of: fn(&Counters) -> u64| counters.iter().map(of).sum();
        let unsaid = [unsaid::LIFECYCLES, unsaid::CHILDREN, unsaid::CALLS_NOT_ADMITTED]
            .map(|kind| self.kernel.unsaid(kind).unwrap_or(0));
        for (count, what) in unsaid.into_iter().zip([
            "words of processes and threads that came or went found the ring buffer full",
            "children were not recorded: there were 4096 processes",
            "calls were not recorded: of processes that came when there were 4096",
        ]) {
            if count > 0 {
                self.troubles.insert(format!("{count} {what}"), 1);
            }
        }
        let blind_spots = self.tell_blind_spots(true)?;
        // What was open has to be a block before there is room for sure; on a full disk there is none.
        let sealed = self.tape.seal();
        let written = self.collector.events();
        let samples = self.collector.samples();
        let off_written = self.collector.off_cpu_written() - off_at_end;
        if let Some(inside) = &self.inside {
            self.losses.of_rings(&inside.counted().lost);
        }
        let told = self.losses.tell(&self.functions, &counters, &sampled, &off_cpu, now_ns, &mut self.tape);
        let told = told.and_then(|()| {
            let calls = u64::saturating_sub(seen, written + self.losses.lost);
            let rest = sampled.calls.saturating_sub(samples.written + self.losses.samples_lost);
            let off = off_cpu.seen.saturating_sub(off_written + self.losses.off_cpu_lost);
            self.losses.tell_rest(calls, rest, off, now_ns, &mut self.tape)?;
            self.tallies.finish(&mut self.tape)
        });
        let inside = self.inside.as_mut().map(|inside| inside.summary(&self.collector));
        let tape_lost_events = self.tape.lost_events();
        let untold = sealed.and(told).err().map(|error| format!("{}: {error}", self.options.output.display()));
        let finished = self.tape.finish();
        for trouble in finished.troubles {
            *self.troubles.entry(trouble).or_default() += 1;
        }
        Ok(Summary {
            failure: untold.or(finished.failure),
            tape: self.options.output,
            tape_bytes: finished.bytes,
            tape_lost_events,
            returns_lost: sum(|counters| counters.returns_lost),
            duration_ns,
            processes: self.recorded,
            libraries: self.library_paths.shown,
            further_libraries: self.library_paths.further,
            probes: self.probes,
            seen,
            written,
            lost: self.losses.lost,
            without_stack: sum(|counters| counters.without_stack),
            kernels: self.collector.kernels(),
            spending: self.cost.spending(),
            fidelity_changes: self.fidelity_changes.shown,
            further_fidelity_changes: self.fidelity_changes.further,
            gaps: self.collector.gaps(),
            out_of_scope,
            cpu_samples: self.options.cpu_hz.map(|hz| CpuSamples {
                hz,
                period_ns: sampler::period_ns(hz),
                seen: sampled.calls,
                lost: self.losses.samples_lost,
                without_stack: sampled.without_stack,
                taken: samples,
            }),
            gpu_counters,
            inside,
            off_cpu: self.options.off_cpu.then_some(OffCpu {
                seen: off_cpu.seen,
                written: off_written,
                lost: self.losses.off_cpu_lost,
                unbegun: off_cpu.unbegun,
                off_at_end,
            }),
            blind_spots,
            troubles: self.troubles.into_iter().map(|(what, count)| many(what, count)).collect(),
        })
    }

    /// Writes losses, what is settled of the account, and blind spots: for a tape that ends before the recording does. The next
    /// one goes on with what is not settled yet.
    pub fn settle_account(&mut self) -> Result<()> {
        self.tell_account(self.told_losses.elapsed())?;
        self.told_losses = Instant::now();
        self.tallies.tell_settled(&mut self.tape)?;
        self.tell_blind_spots(true)?;
        Ok(())
    }

    /// Writes what was lost, and the accounts of intervals that are over.
    fn tell_account(&mut self, elapsed: Duration) -> Result<()> {
        let counters = self.kernel.counters()?;
        let sampled = self.kernel.sample_counters()?;
        let off_cpu = self.kernel.off_cpu_counters()?;
        let lost = self.losses.lost;
        if let Some(inside) = &self.inside {
            self.losses.of_rings(&inside.counted().lost);
        }
        self.losses.tell(&self.functions, &counters, &sampled, &off_cpu, monotonic_ns(), &mut self.tape)?;
        let mut lost_of_graphs = [0; 2];
        for (function, counters) in self.functions.iter().zip(&counters) {
            let of_executable = match function.meaning {
                Meaning::Graph(call) => call.is_of_executable(),
                Meaning::GraphInstantiate => true,
                _ => continue,
            };
            lost_of_graphs[usize::from(of_executable)] += counters.calls_lost + counters.returns_lost;
        }
        let before = std::mem::replace(&mut self.lost_of_graphs, lost_of_graphs);
        self.collector.looked_for_losses(match self.losses.lost > lost {
            _ if lost_of_graphs[1] != before[1] => LostCalls::OfGraphs,
            _ if lost_of_graphs[0] != before[0] => LostCalls::OfTemplates,
            true => LostCalls::Some,
            false => LostCalls::None,
        });
        self.tallies.look(
            Counting::of(&self.kernel, self.inside.as_ref()),
            self.collector.settled(),
            monotonic_ns(),
        )?;
        self.tallies.tell(&mut self.tape)?;
        self.look_at_cost(&counters, elapsed)
    }

    fn progress(&self) -> Progress {
        Progress {
            elapsed: self.began.elapsed(),
            events: self.collector.events(),
            lost: self.losses.lost,
            processes: self.processes.len(),
        }
    }

    pub(super) fn new_target(&self) -> Target {
        Target {
            generation: monotonic_ns() as u64,
            follow: if self.options.follow { u32::MAX } else { 0 },
            native: self.options.native.into(),
            ..Target::default()
        }
    }

    /// Takes what the ring buffer has, up to `most` records.
    pub(super) fn drain(&mut self, most: usize) -> Result<usize> {
        let mut taken = 0;
        while taken < most {
            let Some(record) = self.ring.next() else { break };
            taken += 1;
            let notice = self.collector.take(&record, &mut self.tape)?;
            // The word of a process's beginning was lost, or it is that of the recorder itself, about to spawn one.
            let unknown = match notice {
                Some(Notice::Unknown(pid)) => Some((pid, aligned_copy(&record))),
                _ => None,
            };
            drop(record);
            let notice = match unknown {
                None => notice,
                Some((pid, record)) => {
                    self.begin_known(pid, None, false)?;
                    self.look_at(pid);
                    self.collector.take(bytes_of(&record), &mut self.tape)?
                }
            };
            if let Some(notice) = notice {
                self.notice(notice)?;
            }
        }
        self.look_at_those_that_told();
        Ok(taken)
    }

    pub(super) fn trouble(&mut self, what: String) {
        if let Some(what) = note_trouble(&mut self.troubles, what) {
            self.tell.iter_mut().for_each(|tell| tell(&what));
        }
    }

    /// Has troubles told when they come, each once; they are in the summary too.
    pub fn tell_troubles(&mut self, tell: impl FnMut(&str) + 'static) {
        self.tell = Some(Box::new(tell));
        for what in self.troubles.keys() {
            self.tell.iter_mut().for_each(|tell| tell(what));
        }
    }

    fn duties(&mut self) -> Result<()> {
        let tended = self.tape.tend();
        for trouble in self.tape.take_troubles() {
            self.trouble(trouble);
        }
        tended?;
        self.rotate_if_due()?;
        if let Some(counters) = &mut self.gpu_counters {
            counters.write(&mut self.tape)?;
        }
        if self.looked_again.elapsed() >= LOOK_AGAIN {
            self.looked_again = Instant::now();
            self.look_again()?;
            self.let_go_of_unused();
            self.follow_processors();
        }
        if self.told_losses.elapsed() >= TELL_LOSSES {
            let elapsed = std::mem::replace(&mut self.told_losses, Instant::now()).elapsed();
            self.tell_account(elapsed)?;
            self.sweep_device()?;
        }
        if self.read_clocks.elapsed() >= CLOCKS {
            self.collector.sweep();
            self.tell_blind_spots(false)?;
            self.read_clocks()?;
        }
        Ok(())
    }

    /// Tells what recording costs, and keeps less or more of each event where there is a limit.
    fn look_at_cost(&mut self, counters: &[Counters], elapsed: Duration) -> Result<()> {
        let look = self.cost.look(counters, &self.kernel.spent()?, self.collector.busiest_calls(), elapsed);
        let now_ns = monotonic_ns();
        self.cost.tell(&look, now_ns, &mut self.tape)?;
        let governor = self.governor.as_mut().filter(|_| !self.is_ending);
        let Some(change) = governor.and_then(|governor| governor.look(&look)) else { return Ok(()) };
        self.kernel.set_fidelity(change.fidelity)?;
        if change.drops_durations {
            self.kernel.drop_launch_returns()?;
            self.options.launch_durations = false;
            self.collector.drop_launch_durations();
        }
        let detail = self.tape.string(&change.says)?;
        self.tape.event(event::Lifecycle {
            start_ns: now_ns,
            kind: lifecycle_kind::FIDELITY,
            detail,
            ..event::Lifecycle::default()
        })?;
        self.fidelity_changes.push(change.says);
        Ok(())
    }

    /// Has processors sampled that came online. One that went again just now is no reason to end the recording.
    fn follow_processors(&mut self) {
        match self.kernel.follow_processors() {
            Ok(came) => came.into_iter().for_each(|cpu| {
                self.trouble(format!("processor {cpu} came online: what runs there is sampled only since"));
            }),
            Err(error) => self.trouble(format!("CPU samples: {error}")),
        }
    }

    /// Ends the segment that is written and begins the next; of one tape nothing.
    pub fn rotate(&mut self) -> Result<()> {
        if matches!(self.tape, Output::Segments(_)) {
            // What is known by now is told where its rows are.
            self.settle_account()?;
            if let Some(inside) = &self.inside {
                inside.tell_all_cost(&self.collector, &mut self.tape)?;
            }
        }
        let Output::Segments(segments) = &mut self.tape else { return Ok(()) };
        let collector = &self.collector;
        if segments.rotate(|kept| collector.kept(kept))? {
            self.collector.begin_tape();
            self.noted.begin_tape();
            self.read_clocks()?;
        }
        Ok(())
    }

    /// Has other limits count for the segments from now on.
    pub fn change_segments(&mut self, options: segments::Options) {
        if let Output::Segments(segments) = &mut self.tape {
            segments.change(options);
        }
    }

    /// A flag whose setter, a signal's handler, has the segment end.
    pub fn rotation(&self) -> Arc<AtomicBool> {
        self.rotation.clone()
    }

    fn rotate_if_due(&mut self) -> Result<()> {
        let is_asked = self.rotation.swap(false, Ordering::Relaxed);
        match &self.tape {
            Output::Segments(segments) if is_asked || segments.is_due() => self.rotate(),
            _ => Ok(()),
        }
    }

    fn read_clocks(&mut self) -> Result<()> {
        self.read_clocks = Instant::now();
        write_clocks(&mut self.tape)
    }

    /// Writes what is known of threads that are off their processors still; returns how many.
    fn end_off_cpu(&mut self, now_ns: i64) -> Result<u64> {
        let mut written = 0;
        for (tid, off) in self.kernel.off_cpu()? {
            written += u64::from(self.collector.still_off(tid, &off, now_ns as u64, &mut self.tape)?);
        }
        Ok(written)
    }

    pub(super) fn lifecycle(&mut self, pid: u32, kind: u8, start_ns: i64, code: i64) -> Result<()> {
        let process = self.collector.process_id(pid);
        self.tape.event(event::Lifecycle { start_ns, kind, process, code, ..event::Lifecycle::default() })?;
        Ok(())
    }

    /// Waits for records, or for the end of a process, at most so long.
    fn wait(&mut self, most: Duration) -> Result<()> {
        let timeout = Timespec { tv_sec: most.as_secs() as i64, tv_nsec: most.subsec_nanos().into() };
        let gone = self.waiting.wait(&timeout).context("waiting for records")?;
        self.gone.extend(gone);
        Ok(())
    }
}

/// Begins what a recording writes onto.
pub(super) fn begin_tape(options: &Options) -> Result<Output> {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let writer = concat!("capture ", env!("CARGO_PKG_VERSION"));
    let tape_options = TapeOptions::live(writer, ClockKind::Monotonic, &host);
    match &options.segments {
        Some(segments) => Output::segments(segments.clone(), tape_options),
        None => Output::tape(&options.output, &tape_options)
            .with_context(|| format!("cannot begin {}", options.output.display())),
    }
}

/// Reads the clocks together, and writes what they said.
pub(super) fn write_clocks(tape: &mut Output) -> Result<()> {
    for (clock, id) in [(clock_kind::UNIX, ClockId::Realtime), (clock_kind::BOOT, ClockId::Boottime)] {
        let before = monotonic_ns();
        let value_ns = clock_ns(id);
        let after = monotonic_ns();
        tape.event(ClockPair {
            start_ns: before + (after - before) / 2,
            clock,
            value_ns,
            uncertainty_ns: (after - before) as u64,
            device: 0,
        })?;
    }
    Ok(())
}

/// Writes the last values of the GPUs' counters.
pub(super) fn end_gpu_counters(counters: Option<GpuCounters>, tape: &mut Output) -> Result<Option<GpuValues>> {
    let Some(mut counters) = counters else { return Ok(None) };
    counters.write(tape)?;
    let (written, lost) = counters.counts();
    Ok(Some(GpuValues { gpus: counters.gpus(), written, lost }))
}

/// Counts something that went wrong.
pub(super) fn note_trouble(troubles: &mut BTreeMap<String, u64>, what: String) -> Option<String> {
    let is_known = troubles.len() < MOST_TROUBLES || troubles.contains_key(&what);
    let what = if is_known { what } else { "further troubles".to_owned() };
    let times = troubles.entry(what.clone()).or_default();
    *times += 1;
    (*times == 1).then_some(what)
}

/// A record's bytes, at an address that suits it.
fn aligned_copy(record: &[u8]) -> Vec<u64> {
    let words = record.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_ne_bytes(word)
    });
    words.collect()
}

fn bytes_of(words: &[u64]) -> &[u8] {
    // SAFETY: any words are bytes.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), 8 * words.len()) }
}

pub(super) fn many(what: String, count: u64) -> String {
    if count == 1 { what } else { format!("{what} ({count} times)") }
}

/// Now, on the tape's clock, which is that of the eBPF programs.
pub(super) fn monotonic_ns() -> i64 {
    clock_ns(ClockId::Monotonic)
}

fn clock_ns(id: ClockId) -> i64 {
    let time = clock_gettime(id);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}
