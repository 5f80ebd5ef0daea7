//! The processes of a recording: how they begin, what is looked for in them, how they end.
//!
//! Whatever a process did before something of it was known is told as far as it is known: a call does not wait. So what can be
//! known early is: the interpreter before the first call, libraries when the dynamic linker has mapped them.

use std::hash::BuildHasher as _;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use anyhow::Result;
use ktape_ebpf::python::Interpreter;
use ktape_ebpf::wire::{Lifecycle, unsaid};
use ktape_format::event::lifecycle_kind;
use rustc_hash::FxBuildHasher;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::session::{Session, monotonic_ns};
use crate::collect::outside::{Identity, Notice};
use crate::kernel::programs::KernelError;
use crate::python::find::{self, Refusal};
use crate::target;
use crate::target::libraries;
use crate::target::process::{Process, is_running};

/// How long an interpreter has for its layout to be proven: one that imports has its stacks in motion.
const PROVEN_WITHIN: Duration = Duration::from_secs(10);

/// A process that is being recorded.
pub(super) struct Recorded {
    /// Readable when it is gone.
    pub(super) pidfd: Option<OwnedFd>,
    /// Which of its programs this is: see [`Target`](ktape_ebpf::wire::Target).
    generation: u64,
    /// Whether it was found without a word of its beginning.
    was_unsaid: bool,
    /// When the last of its threads ended that did, and its wait status.
    last_end: Option<(i64, i64)>,
    python: Python,
    /// What the tape says of its Python.
    said_of_python: String,
    /// Whether its freed code objects are seen, or never will be, which then was told.
    is_code_watched: bool,
}

/// What is known of a process's interpreter.
pub(super) enum Python {
    /// None was found in what was mapped, by a hash of it; 0 before it was looked for.
    Unknown(u64),
    /// It is walked, and since when its layout is to be proven.
    Unproven(Interpreter, Instant),
    /// It is walked.
    Proven,
    /// It is not walked, and why was told.
    Refused,
}

impl Session {
    pub(super) fn notice(&mut self, notice: Notice) -> Result<()> {
        match notice {
            // The unsaid may have been looked for in between.
            Notice::Forked { child: pid, generation } | Notice::Executed { pid, generation }
                if self.is_found_later(pid, generation) => {}
            Notice::Forked { child, generation } => {
                // The program has made a target of it already. What it has in memory its parent has handed out.
                self.begin_known(child, Some(generation), false)?;
                self.look_at(child);
            }
            Notice::Executed { pid, generation } => {
                self.begin_known(pid, Some(generation), true)?;
                self.look_at(pid);
            }
            Notice::Libraries(pid) => self.look_at(pid),
            Notice::ThreadEnded { pid, time_ns, status } => {
                if let Some(recorded) = self.processes.get_mut(&pid) {
                    recorded.last_end = Some((time_ns, status));
                }
            }
            Notice::TaskRunner { pid, code, string_type } => self.name_tasks(pid, code, string_type)?,
            Notice::ManyTasks(pid) => {
                self.name_tasks(pid, 0, 0)?;
                self.trouble(format!("process {pid}: after so many names of asyncio tasks no more are recorded"));
            }
            Notice::Unknown(_) => {}
        }
        Ok(())
    }

    /// Whether a process was found before the word of its beginning came, with the program that this tells of or a later one.
    fn is_found_later(&self, pid: u32, generation: u64) -> bool {
        self.processes.get(&pid).is_some_and(|recorded| recorded.was_unsaid && recorded.generation >= generation)
    }

    /// Begins processes and programs whose beginning the ring buffer had no room to tell.
    pub(super) fn look_for_the_unsaid(&mut self) -> Result<()> {
        if self.kernel.unsaid(unsaid::LIFECYCLES)? == 0 {
            return Ok(());
        }
        for (pid, target) in self.kernel.targets()? {
            match self.processes.get(&pid).map(|recorded| recorded.generation) {
                Some(generation) if generation == target.generation => continue,
                _ if pid == std::process::id() => continue,
                known => self.begin_known(pid, None, known.is_some())?,
            }
            if let Some(recorded) = self.processes.get_mut(&pid) {
                recorded.was_unsaid = true;
            }
            self.look_at(pid);
        }
        Ok(())
    }

    pub(super) fn begin_process(&mut self, pid: u32) -> Result<()> {
        let target = self.new_target();
        // First the interpreter: a call that comes before it is known has no stack.
        let located = find::locate(pid).ok();
        if let Some(located) = &located {
            // What goes wrong here is tried again, and told then.
            let _ = self.watch_code(pid, located);
            self.kernel.set_interpreter(pid, target.generation, Some(located.interpreter))?;
        }
        self.kernel.set_target(pid, target)?;
        self.begin_known(pid, None, false)?;
        self.lifecycle(pid, lifecycle_kind::ATTACH, monotonic_ns(), 0)
    }

    /// Begins a process that the programs know, with the program of this generation, which it may not run any more, or the one
    /// that it runs now; `is_new` says whether nothing of it was missed.
    pub(super) fn begin_known(&mut self, pid: u32, generation: Option<u64>, is_new: bool) -> Result<()> {
        let pidfd = rustix::process::Pid::from_raw(pid as i32)
            .and_then(|pid| rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok());
        // One that ended meanwhile has left its calls in the ring buffer, and only its number is known of it.
        let identity = Process::of(pid).map_or_else(
            |_| Identity { pid, ..Identity::default() },
            |process| Identity {
                pid,
                start_ns: process.start_ns,
                name: process.name,
                command: process.command.join(" "),
                container: process.container.unwrap_or_default(),
            },
        );
        self.collector.begin_process(&identity, is_new, &mut self.tape)?;
        let now = || self.kernel.target(pid).map_or(0, |target| target.generation);
        let generation = generation.unwrap_or_else(now);
        let inherited = self.kernel.interpreter(pid, generation);
        if let Some(interpreter) = inherited {
            self.collector.set_interpreter(pid, &interpreter);
        }
        let python = inherited.map_or(Python::Unknown(0), |interpreter| Python::Unproven(interpreter, Instant::now()));
        let recorded = Recorded {
            pidfd,
            generation,
            was_unsaid: false,
            last_end: None,
            python,
            said_of_python: String::new(),
            is_code_watched: false,
        };
        if self.processes.insert(pid, recorded).is_none() {
            self.recorded += 1;
        }
        Ok(())
    }

    /// Looks for libraries and the interpreter of a process.
    pub(super) fn look_at(&mut self, pid: u32) {
        if self.is_ending {
            return;
        }
        // A process may end while it is looked at; whatever else is wrong with one is told.
        match libraries::dynamic_linker(pid) {
            Ok(Some((id, linker))) if self.libraries.insert(id) => self.watch_libraries(&linker),
            Ok(_) | Err(target::Error::NoSuchProcess(_)) => {}
            Err(error) => self.trouble(error.to_string()),
        }
        match libraries::mapped(pid) {
            Ok(mapped) => mapped.iter().for_each(|library| self.add_library(library)),
            Err(target::Error::NoSuchProcess(_)) => {}
            Err(error) => self.trouble(error.to_string()),
        }
        if let Err(error) = self.look_for_python(pid).and_then(|()| self.look_for_code(pid, None)) {
            self.trouble(error.to_string());
        }
    }

    /// Sees to it that the programs notice when a walked process frees code objects.
    fn look_for_code(&mut self, pid: u32, located: Option<&find::Python>) -> Result<()> {
        let Some(recorded) = self.processes.get(&pid).filter(|recorded| !recorded.is_code_watched) else {
            return Ok(());
        };
        let is_late = match recorded.python {
            Python::Unknown(_) | Python::Refused => return Ok(()),
            Python::Proven => true,
            Python::Unproven(_, since) => since.elapsed() > PROVEN_WITHIN,
        };
        // Of one that was inherited only the layout is known.
        let found = if located.is_none() { find::locate(pid).ok() } else { None };
        let Some(located) = located.or(found.as_ref()) else { return Ok(()) };
        self.say_python(pid, &located.to_string())?;
        let why = match self.watch_code(pid, located) {
            Ok(true) => None,
            // The dynamic linker may not have been there yet.
            Ok(false) if !is_late => return Ok(()),
            Ok(false) => Some("its type of code objects is not found".to_owned()),
            Err(error) => Some(format!("{error:#}")),
        };
        if let Some(recorded) = self.processes.get_mut(&pid) {
            recorded.is_code_watched = true;
        }
        if let Some(why) = why {
            self.trouble(format!("process {pid}: code that takes the place of freed code may have its names: {why}"));
        }
        Ok(())
    }

    /// Puts on the tape which Python a process runs, or why it has no Python stacks.
    fn say_python(&mut self, pid: u32, what: &str) -> Result<()> {
        let Some(recorded) = self.processes.get_mut(&pid).filter(|recorded| recorded.said_of_python != what) else {
            return Ok(());
        };
        recorded.said_of_python = what.to_owned();
        self.collector.say_python(pid, what, &mut self.tape)?;
        Ok(())
    }

    /// Gives the Python of a process up.
    fn refuse_python(&mut self, pid: u32, refusal: &Refusal) -> Result<()> {
        let why = format!("no Python stacks: {refusal}");
        self.say_python(pid, &why)?;
        self.trouble(format!("process {pid}: {why}"));
        Ok(())
    }

    /// Finds a process's interpreter, and has its stacks walked from then on. That can't wait for the proof that its memory is
    /// as its version says, as one that has just begun has nothing to prove it by; where the proof fails, there are no stacks.
    pub(super) fn look_for_python(&mut self, pid: u32) -> Result<()> {
        let Some(recorded) = self.processes.get_mut(&pid) else { return Ok(()) };
        let mut interpreter = match &recorded.python {
            Python::Proven | Python::Refused => return Ok(()),
            Python::Unproven(interpreter, _) => *interpreter,
            Python::Unknown(looked_at) => {
                // Hundreds of files may be mapped, and most processes never map a Python.
                let mapped = std::fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
                let mapped = FxBuildHasher.hash_one(&mapped) | 1;
                if *looked_at == mapped {
                    return Ok(());
                }
                let located = match find::locate(pid) {
                    Ok(located) => located,
                    Err(Refusal::NoPython) => {
                        recorded.python = Python::Unknown(mapped);
                        return Ok(());
                    }
                    Err(Refusal::Io(_)) => return Ok(()),
                    Err(refusal) => {
                        recorded.python = Python::Refused;
                        return self.refuse_python(pid, &refusal);
                    }
                };
                recorded.python = Python::Unproven(located.interpreter, Instant::now());
                let generation = recorded.generation;
                self.look_for_code(pid, Some(&located))?;
                self.collector.set_interpreter(pid, &located.interpreter);
                self.kernel.set_interpreter(pid, generation, Some(located.interpreter))?;
                located.interpreter
            }
        };
        let proof = find::prove(pid, &mut interpreter);
        let Some(recorded) = self.processes.get_mut(&pid) else { return Ok(()) };
        match proof {
            Ok(()) => {
                recorded.python = Python::Proven;
                if let Some(walked) = self.kernel.interpreter(pid, recorded.generation) {
                    (interpreter.task_runner, interpreter.string_type) = (walked.task_runner, walked.string_type);
                }
                self.kernel.set_interpreter(pid, recorded.generation, Some(interpreter))?;
            }
            Err(refusal @ Refusal::SelfTest { .. }) => {
                if let Python::Unproven(_, since) = recorded.python
                    && since.elapsed() > PROVEN_WITHIN
                {
                    recorded.python = Python::Refused;
                    self.kernel.set_interpreter(pid, recorded.generation, None)?;
                    self.refuse_python(pid, &refusal)?;
                }
            }
            Err(_) => {}
        }
        Ok(())
    }

    /// Has the programs look for the names of tasks, from where asyncio runs them.
    fn name_tasks(&mut self, pid: u32, code: u64, string_type: u64) -> Result<(), KernelError> {
        let Some(recorded) = self.processes.get(&pid) else { return Ok(()) };
        let Some(interpreter) = self.kernel.interpreter(pid, recorded.generation) else { return Ok(()) };
        let interpreter = Interpreter { task_runner: code, string_type, ..interpreter };
        self.kernel.set_interpreter(pid, recorded.generation, Some(interpreter))
    }

    /// Ends processes that are gone, after their last records.
    pub(super) fn forget_the_gone(&mut self) -> Result<()> {
        let is_gone = |pidfd: &OwnedFd| {
            let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
            poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
        };
        // Where no descriptor is left for it, /proc has to tell.
        let has_ended = |(pid, recorded): &(&u32, &Recorded)| match &recorded.pidfd {
            Some(pidfd) => is_gone(pidfd),
            None => !is_running(**pid),
        };
        let gone: Vec<u32> = self.processes.iter().filter(has_ended).map(|(&pid, _)| pid).collect();
        if gone.is_empty() {
            return Ok(());
        }
        // Whatever it did is in the ring buffer by now, which holds so many of the shortest records.
        self.drain(self.options.buffer_bytes as usize / size_of::<Lifecycle>())?;
        for pid in gone {
            let last_end = self.processes.get(&pid).and_then(|recorded| recorded.last_end);
            let (end_ns, status) = last_end.unwrap_or_else(|| (monotonic_ns(), 0));
            self.lifecycle(pid, lifecycle_kind::PROCESS_EXIT, end_ns, status)?;
            self.collector.end_process(pid, &mut self.tape)?;
            self.kernel.remove_target(pid);
            self.processes.remove(&pid);
        }
        Ok(())
    }
}
