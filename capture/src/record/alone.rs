//! A recording without eBPF, and so without any privilege: all that is known, libraries inside of the processes tell.
//!
//! [`Alone::run`] goes round as [`Session`](super::session::Session) does: take what the rings have, write it, look after processes.
//! A command's own process may be looked into by whoever started it, so its Python is found from here as there, and told to the
//! library, which walks its stacks. What needs the kernel's eyes is not there: CPU samples, time off the processor, native frames.

use std::hash::BuildHasher as _;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use ktape_ebpf::python::Interpreter;
use ktape_ebpf::wire::tally::Slot;
use ktape_ebpf::wire::{Counters, OutOfScope, Spent};
use ktape_format::event::{self, lifecycle_kind};
use ktape_format::table::DefinitionKind;
use ktape_format::{Sink as _, definition::property};
use rustc_hash::{FxBuildHasher, FxHashMap};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::blind_spots::{BlindSpot, Kind, Mapped, Noted};
use super::clocks::{monotonic_ns, write_clocks};
use super::cost::Cost;
use super::inside::beside::LAST_WORDS;
use super::inside::{self, Inside, NO_CALLS};
use super::losses::Losses;
use super::output::Output;
use super::processes::{has_ended, identity_of, pidfd_of};
use super::python::PROVEN_WITHIN;
use super::scope::out_of_scope;
use super::session::end::end_gpu_counters;
use super::session::{CLOCKS, LOOK_AGAIN, Options, Progress, RECORDS_A_ROUND, TELL_LOSSES};
use super::summary::Summary;
use super::tally::{Counting, Tallies};
use super::troubles::Troubles;
use crate::collect::events::{Collector, LostCalls, Notice};
use crate::collect::nvml::GpuCounters;
use crate::kernel::traps::Traps;
use crate::probes::functions::{self, Probed};
use crate::python::find::{self, Refusal};
use crate::target::libraries::{self, kind_of};
use crate::target::maps;

/// How long to wait where there was nothing to take. Nothing wakes the recorder, so that no launch makes a system call.
const PAUSE: Duration = Duration::from_millis(5);

/// A process that has loaded the library.
struct Member {
    pidfd: Option<OwnedFd>,
    python: Python,
}

/// What is known of a process's Python.
enum Python {
    /// None was found in what was mapped, by a hash of it; 0 before it was looked for.
    Unknown(u64),
    /// It is walked, and since when its layout is to be proven.
    Unproven(Box<Interpreter>, Instant),
    /// It is walked, or never will be, which then was told.
    Settled,
}

/// A recording that goes on.
pub struct Alone {
    options: Options,
    functions: Vec<Probed>,
    inside: Inside,
    collector: Collector,
    tape: Output,
    rotation: Arc<AtomicBool>,
    losses: Losses,
    tallies: Tallies,
    cost: Cost,
    gpu_counters: Option<GpuCounters>,
    members: FxHashMap<u32, Member>,
    /// The driver in the command's own process.
    driver: Option<Mapped>,
    noted: Noted,
    recorded: u64,
    troubles: Troubles,
    began: Instant,
    looked_again: Instant,
    told_losses: Instant,
    read_clocks: Instant,
    /// Up to when rings are read: a time before it was last looked for new ones, so that nothing is missing up to then.
    horizon_ns: u64,
}

impl Alone {
    /// Begins the tape, and makes what the library inside of processes is told.
    pub fn begin(options: Options, inside: &inside::Options, library: &Path) -> Result<Alone> {
        let gpu_counters = options.gpu_hz.map(GpuCounters::begin).transpose();
        let gpu_counters = gpu_counters.context("the GPUs' counters can't be had: NVML")?;
        let functions = functions::all();
        let inside_options = inside;
        let inside = Inside::begin(inside_options, library, &functions)?;
        let mut tape = Output::begin(&options.output, options.segments.as_ref())?;
        write_clocks(&mut tape)?;
        let mut collector = Collector::new(functions.clone(), true);
        collector.expect_device_times(inside_options.device_time.told());
        collector.set_scope(options.launches.clone());
        let now = Instant::now();
        Ok(Alone {
            collector,
            inside,
            tape,
            rotation: Arc::default(),
            losses: Losses::new(functions.len(), monotonic_ns()),
            tallies: Tallies::new(monotonic_ns()),
            cost: Cost::new(Traps::UNKNOWN, functions.len()),
            gpu_counters,
            members: FxHashMap::default(),
            driver: None,
            noted: Noted::default(),
            recorded: 0,
            troubles: Troubles::default(),
            began: now,
            looked_again: now,
            told_losses: now,
            read_clocks: now,
            horizon_ns: 0,
            options,
            functions,
        })
    }

    /// Has a command load the library, and its processes know their interpreters if these are in one of these files.
    pub fn prepare(&mut self, command: &mut Command, pythons: &[PathBuf]) {
        command.envs(self.inside.variables());
        if let Err(error) = self.inside.add_pythons(pythons) {
            self.trouble(format!("interpreters are not known in advance, and first calls may have no stack: {error}"));
        }
    }

    /// A flag whose setter, a signal's handler, has the segment end.
    pub fn rotation(&self) -> Arc<AtomicBool> {
        self.rotation.clone()
    }

    /// Records until `stop` says so, or the command and all that it has started and that is recorded have ended.
    pub fn run(&mut self, child: &mut Child, stop: &AtomicBool, mut progress: impl FnMut(Progress)) -> Result<()> {
        let command = pidfd_of(child.id());
        // Found early: before its first call.
        let mut early = Python::Unknown(0);
        let mut looked_for_driver = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            let is_over = has_ended(child.id(), command.as_ref());
            for pid in self.look()? {
                if self.members.contains_key(&pid) {
                    // It runs another program now; what is there is of the one before.
                    while self.drain()? > 0 {}
                }
                let python =
                    if pid == child.id() { std::mem::replace(&mut early, Python::Settled) } else { Python::Unknown(0) };
                self.begin_process(pid, python)?;
            }
            let taken = self.drain()?;
            self.duties()?;
            if !is_over && !self.members.contains_key(&child.id()) {
                self.locate(child.id(), &mut early, false)?;
                if self.driver.is_none() && looked_for_driver.elapsed() >= LOOK_AGAIN {
                    looked_for_driver = Instant::now();
                    self.driver = Mapped::look(None, child.id()).filter(|_| has_driver(child.id()));
                }
                self.driver = self.driver.map(|known| Mapped::look(Some(known), child.id()).unwrap_or(known));
            }
            progress(self.progress());
            self.forget_the_gone(child)?;
            if is_over && self.members.is_empty() {
                break;
            }
            if taken == 0 {
                self.wait(command.as_ref())?;
            }
        }
        Ok(())
    }

    /// Takes what is on its way still, and closes the tape. The command goes on, if it has not ended.
    pub fn end(mut self, child: &Child) -> Result<Summary> {
        let asked = Instant::now();
        self.inside.ask_to_end();
        while !self.members.is_empty() && !self.inside.are_quiet() && asked.elapsed() < LAST_WORDS {
            self.look()?;
            self.drain()?;
            std::thread::sleep(PAUSE);
        }
        self.look()?;
        while self.drain()? > 0 {}
        let duration_ns = self.began.elapsed().as_nanos() as u64;
        let now_ns = monotonic_ns();
        for pid in self.members.keys().copied().collect::<Vec<_>>() {
            self.lifecycle(pid, lifecycle_kind::DETACH, now_ns, 0)?;
            self.inside.tell_device_time(pid, &self.collector, &mut self.tape)?;
        }
        self.inside.tell_all_cost(&self.collector, &mut self.tape)?;
        self.note_blind_spots(child);
        self.collector.finish(&mut self.tape)?;
        let gpu_counters = end_gpu_counters(self.gpu_counters.take(), &mut self.tape)?;
        self.tallies.look_at_all(Counting::of(None, Some(&self.inside)), self.collector.settled(), monotonic_ns())?;
        write_clocks(&mut self.tape)?;
        let blind_spots = self.tell_blind_spots()?;
        let counted = self.inside.counted();
        let nothing = |_| Ok(OutOfScope::default());
        let (out_of_scope, left_out) = out_of_scope(&self.functions, &self.collector, nothing)?;
        let seen = sum_of_calls(&counted, |slot| &slot.seen) - left_out;
        self.losses.of_rings(&counted.lost);
        let sealed = self.tape.seal();
        let written = self.collector.events();
        let told = self.losses.tell_untold(now_ns, &mut self.tape).and_then(|()| {
            let rest = seen.saturating_sub(written + self.losses.lost);
            self.losses.tell_rest(rest, 0, 0, now_ns, &mut self.tape)?;
            self.tallies.finish(&mut self.tape)
        });
        let elapsed = self.told_losses.elapsed();
        self.look_at_cost(elapsed);
        let inside = self.inside.summary(&self.collector);
        let tape_lost_events = self.tape.lost_events();
        let untold = sealed.and(told).err().map(|error| format!("{}: {error}", self.options.output.display()));
        let finished = self.tape.finish();
        for trouble in finished.troubles {
            self.troubles.add(trouble);
        }
        Ok(Summary {
            failure: untold.or(finished.failure),
            tape: self.options.output,
            tape_bytes: finished.bytes,
            tape_lost_events,
            returns_lost: 0,
            duration_ns,
            processes: self.recorded,
            libraries: vec![self.inside.library().to_owned()],
            further_libraries: 0,
            probes: 0,
            seen,
            written,
            lost: self.losses.lost,
            without_stack: self.collector.unreadable_stacks(),
            kernels: self.collector.kernels(),
            spending: self.cost.spending(),
            fidelity_changes: Vec::new(),
            further_fidelity_changes: 0,
            gaps: self.collector.gaps(),
            out_of_scope,
            cpu_samples: None,
            gpu_counters,
            inside: Some(inside),
            off_cpu: None,
            blind_spots,
            troubles: self.troubles.into_lines(),
        })
    }

    /// Processes that have loaded the library since the last time.
    fn look(&mut self) -> Result<Vec<u32>> {
        self.horizon_ns = monotonic_ns() as u64;
        let mut troubles = Vec::new();
        let pids = self.inside.look(&mut troubles);
        troubles.into_iter().for_each(|trouble| self.trouble(trouble));
        Ok(pids)
    }

    /// Begins a process, or another program in one.
    fn begin_process(&mut self, pid: u32, python: Python) -> Result<()> {
        self.collector.begin_process(&identity_of(pid), true, &mut self.tape)?;
        if self.members.insert(pid, Member { pidfd: pidfd_of(pid), python: Python::Unknown(0) }).is_none() {
            self.recorded += 1;
        }
        self.lifecycle(pid, lifecycle_kind::ATTACH, monotonic_ns(), 0)?;
        if let Python::Unproven(interpreter, _) = &python {
            self.tell_interpreter(pid, interpreter);
        } else if let Some(interpreter) = self.inside.interpreter(pid) {
            self.collector.set_interpreter(pid, &interpreter);
        }
        if let Some(member) = self.members.get_mut(&pid) {
            // What was refused before is looked at again, to be told.
            member.python = if matches!(python, Python::Unproven(..)) { python } else { Python::Unknown(0) };
        }
        self.look_for_python(pid)
    }

    /// Takes what the rings have.
    fn drain(&mut self) -> Result<usize> {
        let members = &self.members;
        let mut unknown = 0;
        let (mut tasks, mut many_tasks) = (Vec::new(), Vec::new());
        let hear = |notice: Notice, _: &mut Collector, _: &mut Output| {
            match notice {
                // A ring of a process whose page is not there: it is told as strange by what is not settled.
                Notice::Unknown(pid) => unknown += u64::from(!members.contains_key(&pid)),
                Notice::TaskRunner { pid, code, string_type } => tasks.push((pid, code, string_type)),
                Notice::ManyTasks(pid) => many_tasks.push(pid),
                _ => {}
            }
            Ok(())
        };
        let horizon_ns = self.horizon_ns;
        let taken = self.inside.take(horizon_ns, RECORDS_A_ROUND, &mut self.collector, &mut self.tape, hear)?;
        for pid in many_tasks {
            tasks.push((pid, 0, 0));
            self.trouble(format!("process {pid}: after so many names of asyncio tasks no more are recorded"));
        }
        for (pid, task_runner, string_type) in tasks {
            if let Some(interpreter) = self.inside.interpreter(pid) {
                self.inside.set_interpreter(pid, &Interpreter { task_runner, string_type, ..interpreter });
            }
        }
        if unknown > 0 {
            self.trouble("records of processes that have no page".to_owned());
        }
        self.inside.end_threads(&mut self.collector, &mut self.tape)?;
        self.inside.tell_scope(&mut self.collector);
        for said in self.inside.words() {
            let process = self.collector.process_id(said.pid);
            if process != 0 {
                self.tape.property(DefinitionKind::Process as u16, process, property::DEVICE_TIME, &said.what)?;
            }
            if let Some(kind) = said.trouble {
                let what = format!("process {}: {}", said.pid, said.what);
                self.noted.add(kind, what.clone(), 1);
                self.trouble(what);
            }
        }
        Ok(taken)
    }

    fn duties(&mut self) -> Result<()> {
        let tended = self.tape.tend();
        for trouble in self.tape.take_troubles() {
            self.trouble(trouble);
        }
        tended?;
        let is_asked = self.rotation.swap(false, Ordering::Relaxed);
        if matches!(&self.tape, Output::Segments(segments) if is_asked || segments.is_due()) {
            self.rotate()?;
        }
        if let Some(counters) = &mut self.gpu_counters {
            counters.write(&mut self.tape)?;
        }
        if self.looked_again.elapsed() >= LOOK_AGAIN {
            self.looked_again = Instant::now();
            self.members
                .keys()
                .copied()
                .collect::<Vec<_>>()
                .into_iter()
                .try_for_each(|pid| self.look_for_python(pid))?;
        }
        if self.told_losses.elapsed() >= TELL_LOSSES {
            let elapsed = std::mem::replace(&mut self.told_losses, Instant::now()).elapsed();
            self.tell_account()?;
            self.look_at_cost(elapsed);
            self.collector.sweep_device(monotonic_ns() as u64, &mut self.tape)?;
        }
        if self.read_clocks.elapsed() >= CLOCKS {
            self.read_clocks = Instant::now();
            self.collector.sweep();
            write_clocks(&mut self.tape)?;
        }
        Ok(())
    }

    fn rotate(&mut self) -> Result<()> {
        self.tell_account()?;
        self.tallies.tell_settled(&mut self.tape)?;
        self.inside.tell_all_cost(&self.collector, &mut self.tape)?;
        self.tell_blind_spots()?;
        let Output::Segments(segments) = &mut self.tape else { return Ok(()) };
        let collector = &self.collector;
        if segments.rotate(|kept| collector.kept(kept))? {
            self.collector.begin_tape();
            self.noted.begin_tape();
            write_clocks(&mut self.tape)?;
        }
        Ok(())
    }

    fn tell_account(&mut self) -> Result<()> {
        let lost = self.losses.lost;
        self.losses.of_rings(&self.inside.counted().lost);
        self.losses.tell_untold(monotonic_ns(), &mut self.tape)?;
        // Of which function a lost call was the rings do not say.
        self.collector.looked_for_losses(if self.losses.lost > lost { LostCalls::OfGraphs } else { LostCalls::None });
        self.tallies.look(Counting::of(None, Some(&self.inside)), self.collector.settled(), monotonic_ns())?;
        self.tallies.tell(&mut self.tape)?;
        Ok(())
    }

    fn look_at_cost(&mut self, elapsed: Duration) {
        let counters = vec![Counters::default(); self.functions.len()];
        let spent = vec![Spent::default(); self.functions.len()];
        self.cost.look(&counters, &spent, 0, elapsed);
    }

    /// Ends processes that are gone, after their last records.
    fn forget_the_gone(&mut self, child: &mut Child) -> Result<()> {
        let has_ended = |(pid, member): &(&u32, &Member)| has_ended(**pid, member.pidfd.as_ref());
        let gone: Vec<u32> = self.members.iter().filter(has_ended).map(|(&pid, _)| pid).collect();
        if gone.is_empty() {
            return Ok(());
        }
        // What it made with its last breath, and whoever began just before.
        for pid in self.look()? {
            self.begin_process(pid, Python::Unknown(0))?;
        }
        while self.drain()? > 0 {}
        for pid in gone {
            // Of others than the command only that they have ended is known.
            let status = if pid == child.id() { child.try_wait()? } else { None };
            let status = status.map_or(0, |status| i64::from(status.into_raw()));
            self.lifecycle(pid, lifecycle_kind::PROCESS_EXIT, monotonic_ns(), status)?;
            self.inside.tell_device_time(pid, &self.collector, &mut self.tape)?;
            self.inside.tell_cost([pid], &self.collector, &mut self.tape)?;
            self.collector.end_process(pid, &mut self.tape)?;
            self.inside.end_process(pid);
            self.members.remove(&pid);
        }
        Ok(())
    }

    /// Finds a process's Python, and has its stacks walked; as in [`Session`](super::session::Session).
    fn look_for_python(&mut self, pid: u32) -> Result<()> {
        let Some(member) = self.members.get_mut(&pid) else { return Ok(()) };
        let mut python = std::mem::replace(&mut member.python, Python::Settled);
        let looked = self.locate(pid, &mut python, true);
        if let Some(member) = self.members.get_mut(&pid) {
            member.python = python;
        }
        looked
    }

    /// Goes on with what is known of a process's Python; `is_member` says whether there is anybody to tell.
    fn locate(&mut self, pid: u32, python: &mut Python, is_member: bool) -> Result<()> {
        if let Python::Unknown(looked_at) = python {
            // Hundreds of files may be mapped, and most processes never map a Python.
            let mapped = std::fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
            let mapped = FxBuildHasher.hash_one(&mapped) | 1;
            if *looked_at == mapped {
                return Ok(());
            }
            match find::locate(pid) {
                Ok(located) => {
                    *python = Python::Unproven(Box::new(located.interpreter), Instant::now());
                    if is_member {
                        self.tell_interpreter(pid, &located.interpreter);
                    }
                }
                Err(Refusal::NoPython) => *python = Python::Unknown(mapped),
                Err(Refusal::Io(_)) => {}
                // Not before it is a process that is recorded: a shell in between is nobody's concern.
                Err(_) if !is_member => *python = Python::Unknown(mapped),
                Err(refusal) => {
                    *python = Python::Settled;
                    self.refuse_python(pid, &refusal)?;
                }
            }
        }
        let Python::Unproven(interpreter, since) = python else { return Ok(()) };
        if !is_member {
            return Ok(());
        }
        match find::prove(pid, interpreter) {
            Ok(()) => {
                let interpreter = **interpreter;
                *python = Python::Settled;
                self.tell_interpreter(pid, &interpreter);
                if let Ok(located) = find::locate(pid) {
                    self.collector.say_python(pid, &located.to_string(), &mut self.tape)?;
                }
            }
            Err(refusal @ Refusal::SelfTest { .. }) if since.elapsed() > PROVEN_WITHIN => {
                *python = Python::Settled;
                self.inside.set_interpreter(pid, &Interpreter::default());
                self.refuse_python(pid, &refusal)?;
            }
            Err(_) => {}
        }
        Ok(())
    }

    fn tell_interpreter(&mut self, pid: u32, interpreter: &Interpreter) {
        self.collector.set_interpreter(pid, interpreter);
        self.inside.set_interpreter(pid, interpreter);
    }

    fn refuse_python(&mut self, pid: u32, refusal: &Refusal) -> Result<()> {
        let why = format!("no Python stacks: {refusal}");
        self.collector.say_python(pid, &why, &mut self.tape)?;
        self.trouble(format!("process {pid}: {why}"));
        Ok(())
    }

    fn note_blind_spots(&mut self, child: &Child) {
        if self.recorded == 0
            && let Some(what) = self.driver.and_then(|mapped| mapped.silence(child.id(), "without the library"))
        {
            self.noted.add(Kind::SilentProcess, what, 1);
        }
    }

    /// Puts on the tape what cannot have been seen by now.
    fn tell_blind_spots(&mut self) -> Result<Vec<BlindSpot>> {
        let mut spots = self.noted.spots();
        spots.extend(super::blind_spots::of_collector(&self.collector));
        self.noted.tell(&spots, true, &mut self.tape)?;
        Ok(spots)
    }

    fn lifecycle(&mut self, pid: u32, kind: u8, start_ns: i64, code: i64) -> Result<()> {
        let process = self.collector.process_id(pid);
        self.tape.event(event::Lifecycle { start_ns, kind, process, code, ..event::Lifecycle::default() })?;
        Ok(())
    }

    fn progress(&self) -> Progress {
        Progress {
            elapsed: self.began.elapsed(),
            events: self.collector.events(),
            lost: self.losses.lost,
            processes: self.members.len(),
        }
    }

    fn trouble(&mut self, what: String) {
        let _ = self.troubles.note(what);
    }

    /// Waits a little, or for the end of a process.
    fn wait(&self, command: Option<&OwnedFd>) -> Result<()> {
        let pidfds = self
            .members
            .values()
            .filter_map(|member| member.pidfd.as_ref())
            .chain(command.filter(|_| self.members.is_empty()));
        let mut fds: Vec<PollFd<'_>> =
            pidfds.map(|pidfd| PollFd::from_borrowed_fd(pidfd.as_fd(), PollFlags::IN)).collect();
        match poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: PAUSE.as_nanos() as i64 })) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error).context("waiting for processes"),
        }
    }
}

/// Whether a process has libcuda mapped. What cannot be looked into has not.
fn has_driver(pid: u32) -> bool {
    let is_driver =
        |mapping: &maps::Mapping| mapping.is_file() && kind_of(&mapping.path) == Some(libraries::Kind::Driver);
    maps::of(pid).is_ok_and(|mappings| mappings.iter().any(is_driver))
}

/// Calls, by all tables but those of what is none.
fn sum_of_calls(slot: &Slot, of: impl Fn(&Slot) -> &[u64]) -> u64 {
    (1..).zip(&of(slot)[1..]).filter(|(table, _)| !NO_CALLS.contains(table)).map(|(_, count)| count).sum()
}
