//! The processes of a recording: how they begin, what is looked for in them, how they end.
//!
//! Whatever a process did before something of it was known is told as far as it is known: a call does not wait. So what can be
//! known early is: the interpreter before the first call (`python.rs`), libraries when the dynamic linker has mapped them.

use std::os::fd::OwnedFd;
use std::time::Instant;

use anyhow::Result;
use ktape_ebpf::wire::{Lifecycle, unsaid};
use ktape_format::event::lifecycle_kind;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::blind_spots::Mapped;
use super::python::Python;
use super::session::{Session, monotonic_ns};
use crate::collect::outside::{Identity, Notice};
use crate::python::find;
use crate::target;
use crate::target::libraries::{self, Kind};
use crate::target::process::{Process, is_running};
use crate::target::stubs::live;

/// A process that is being recorded.
pub(super) struct Recorded {
    /// Readable when it is gone.
    pub(super) pidfd: Option<OwnedFd>,
    /// Which of its programs this is: see [`Target`](ktape_ebpf::wire::Target).
    pub(super) generation: u64,
    /// Whether it was found without a word of its beginning.
    was_unsaid: bool,
    /// When the last of its threads ended that did, and its wait status.
    last_end: Option<(i64, i64)>,
    pub(super) python: Python,
    /// What the tape says of its Python.
    pub(super) said_of_python: String,
    /// The driver in it, if it has mapped that.
    pub(super) driver: Option<Mapped>,
    /// Whether its freed code objects are seen, or never will be, which then was told.
    pub(super) is_code_watched: bool,
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
            // The program has taken it out.
            Notice::Executed { pid, .. } if self.node.is_some() => self.leave(pid)?,
            Notice::Admitted { pid, generation } => self.admit(pid, generation)?,
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
        // Files of gigabytes may be read for it: that must not wait until calls come.
        let stubs = live::of(pid, &mut self.stubs).unwrap_or_default();
        if stubs.left_out > 0 {
            self.trouble(format!(
                "process {pid}: {} files were not searched for names of kernels in time",
                stubs.left_out
            ));
        }
        // First the interpreter: a call that comes before it is known has no stack.
        if let Ok(located) = find::locate(pid) {
            // What goes wrong here is tried again, and told then.
            let _ = self.watch_code(pid, &located);
            self.kernel.set_interpreter(pid, target.generation, Some(located.interpreter))?;
        }
        self.kernel.set_target(pid, target)?;
        self.begin_known(pid, None, false)?;
        self.collector.learn_stubs(pid, stubs);
        self.lifecycle(pid, lifecycle_kind::ATTACH, monotonic_ns(), 0)
    }

    /// Begins a process that the programs know, with the program of this generation, which it may not run any more, or the one
    /// that it runs now; `is_new` says whether nothing of it was missed.
    pub(super) fn begin_known(&mut self, pid: u32, generation: Option<u64>, is_new: bool) -> Result<()> {
        let pidfd = pidfd_of(pid);
        self.collector.begin_process(&identity_of(pid), is_new, &mut self.tape)?;
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
            driver: None,
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
            Ok(mapped) => mapped.iter().for_each(|library| {
                if library.kind == Kind::Driver {
                    self.collector.set_driver(pid, library.id);
                    if let Some(recorded) = self.processes.get_mut(&pid) {
                        recorded.driver = Mapped::look(recorded.driver, pid);
                    }
                }
                self.add_library(library);
            }),
            Err(target::Error::NoSuchProcess(_)) => {}
            Err(error) => self.trouble(error.to_string()),
        }
        if let Err(error) = self.look_for_python(pid).and_then(|()| self.look_for_code(pid, None)) {
            self.trouble(format!("{error:#}"));
        }
    }

    /// Ends processes that are gone, after their last records.
    pub(super) fn forget_the_gone(&mut self) -> Result<()> {
        let has_ended = |(pid, recorded): &(&u32, &Recorded)| has_ended(**pid, recorded.pidfd.as_ref());
        let gone: Vec<u32> = self.processes.iter().filter(has_ended).map(|(&pid, _)| pid).collect();
        if gone.is_empty() {
            return Ok(());
        }
        // Whatever it did is in the ring buffer by now, which holds so many of the shortest records.
        self.drain(self.options.buffer_bytes as usize / size_of::<Lifecycle>())?;
        self.drain_inside()?;
        for pid in gone {
            let last_end = self.processes.get(&pid).and_then(|recorded| recorded.last_end);
            let (end_ns, status) = last_end.unwrap_or_else(|| (monotonic_ns(), 0));
            self.lifecycle(pid, lifecycle_kind::PROCESS_EXIT, end_ns, status)?;
            self.note_blind_spots_of(pid);
            self.collector.end_process(pid, &mut self.tape)?;
            self.kernel.remove_target(pid);
            if let Some(inside) = &mut self.inside {
                inside.end_process(pid);
            }
            self.processes.remove(&pid);
        }
        Ok(())
    }
}

/// Who a process is. One that has ended meanwhile has left its calls behind, and only its number is known of it.
pub(super) fn identity_of(pid: u32) -> Identity {
    Process::of(pid).map_or_else(
        |_| Identity { pid, ..Identity::default() },
        |process| Identity {
            pid,
            start_ns: process.start_ns,
            name: process.name,
            command: process.command.join(" "),
            container: process.container.unwrap_or_default(),
        },
    )
}

/// A descriptor that is readable when the process is gone, if there is one to be had.
pub(super) fn pidfd_of(pid: u32) -> Option<OwnedFd> {
    let pid = rustix::process::Pid::from_raw(pid as i32)?;
    rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok()
}

/// Whether a process is gone. Where no descriptor is left for it, /proc has to tell.
pub(super) fn has_ended(pid: u32, pidfd: Option<&OwnedFd>) -> bool {
    let is_gone = |pidfd: &OwnedFd| {
        let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
    };
    pidfd.map_or_else(|| !is_running(pid), is_gone)
}
