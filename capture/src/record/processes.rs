//! The processes of a recording: how they begin, what is looked for in them, how they end.
//!
//! Whatever a process did before something of it was known is told as far as it is known: a call does not wait. So what can be
//! known early is: the interpreter before the first call (`python.rs`), libraries when the dynamic linker has mapped them.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use anyhow::Result;
use ktape_ebpf::python::KEY_BY_LIST;
use ktape_ebpf::wire::{Lifecycle, unsaid};
use ktape_format::event::lifecycle_kind;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::blind_spots::Mapped;
use super::clocks::monotonic_ns;
use super::files::What;
use super::python::Python;
use super::session::Session;
use crate::collect::events::{Identity, Notice};
use crate::python::find;
use crate::target::libraries::{self, Kind};
use crate::target::process::{Process, is_running};
use crate::target::stubs::live;
use crate::target::{self, maps};

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
    /// Whether it is told when it maps a library.
    tells: bool,
    /// Whether its program was looked at, which does not change.
    has_program: bool,
}

/// Processes are looked at one after the other, each once in so many times that some are looked at again: what they map is told, and
/// this is for what nobody has thought of. 5 minutes.
const ROUND: usize = 600;
/// How often it is looked what those have run that have not called.
const LOOK_AT_SILENT: Duration = Duration::from_secs(2);

impl Recorded {
    /// Whether something is to be found out still that nobody tells.
    fn is_unsettled(&self) -> bool {
        match self.python {
            _ if !self.tells => true,
            Python::Unproven(..) => true,
            Python::Proven => !self.is_code_watched,
            Python::Unknown(_) | Python::Refused => false,
        }
    }
}

/// Which processes are to be looked at.
#[derive(Default)]
pub(super) struct Looks {
    /// The one that was looked at last in the round.
    last: u32,
    /// Processes by times, of which [`ROUND`] make one look.
    owed: usize,
    /// Words that the ring buffer had no room for, when that was looked at.
    unsaid: u64,
    silent: Option<Instant>,
}

impl Looks {
    /// Those of these processes whose turn it is, if they are asked for every [`LOOK_AGAIN`](super::session::LOOK_AGAIN).
    fn turn(&mut self, mut pids: Vec<u32>) -> Vec<u32> {
        pids.sort_unstable();
        self.owed += pids.len();
        let count = self.owed / ROUND;
        self.owed %= ROUND;
        let first = pids.partition_point(|&pid| pid <= self.last);
        pids.rotate_left(first);
        pids.truncate(count);
        self.last = pids.last().copied().unwrap_or(self.last);
        pids
    }

    fn is_silent_due(&mut self) -> bool {
        let is_due = self.silent.is_none_or(|looked| looked.elapsed() >= LOOK_AT_SILENT);
        if is_due {
            self.silent = Some(Instant::now());
        }
        is_due
    }
}

impl Session {
    pub(super) fn notice(&mut self, notice: Notice) -> Result<()> {
        match notice {
            // The unsaid may have been looked for in between.
            Notice::Forked { child: pid, generation, .. } | Notice::Executed { pid, generation }
                if self.is_found_later(pid, generation) => {}
            Notice::Forked { parent, child, generation } => {
                // The program has made a target of it already. What it has in memory its parent has handed out.
                self.begin_known(child, Some(generation), false)?;
                // It may run something else by now, and the programs know of that only.
                self.collector.inherit_interpreter(parent, child);
                self.look_at(child);
            }
            // The program has taken it out.
            Notice::Executed { pid, .. } if self.node.is_some() => self.leave(pid)?,
            Notice::Admitted { pid, generation } => self.admit(pid, generation)?,
            Notice::Executed { pid, generation } => {
                self.begin_known(pid, Some(generation), true)?;
                self.look_at(pid);
            }
            Notice::Python { pid, file, runtime } => self.learn_python(pid, file, runtime),
            // There may be hundreds of them in a row.
            Notice::Libraries(pid) => {
                self.told.insert(pid);
            }
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
        let pidfd = pidfd_of(pid).filter(|pidfd| self.waiting.add(pid, pidfd).is_ok());
        self.collector.begin_process(&identity_of(pid), is_new, &mut self.tape)?;
        let now = || self.kernel.target(pid).map_or(0, |target| target.generation);
        let generation = generation.unwrap_or_else(now);
        let inherited = self.kernel.interpreter(pid, generation);
        if let Some(interpreter) = inherited {
            self.collector.set_interpreter(pid, &interpreter);
        }
        // One whose threads are found by lists may be known by its file only, and in the process there may be more to know it by.
        let inherited = inherited.filter(|interpreter| interpreter.tss_key != KEY_BY_LIST);
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
            tells: false,
            has_program: false,
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
        match self.look_for_libraries_of(pid) {
            Ok(()) | Err(target::Error::NoSuchProcess(_)) => {}
            Err(error) => self.trouble(error.to_string()),
        }
        self.look_into(pid);
    }

    /// Looks for the interpreter of a process.
    fn look_into(&mut self, pid: u32) {
        if let Err(error) = self.look_for_python(pid).and_then(|()| self.look_for_code(pid, None)) {
            self.trouble(format!("{error:#}"));
        }
    }

    fn look_for_libraries_of(&mut self, pid: u32) -> Result<(), target::Error> {
        let mappings = maps::of(pid)?;
        let linker = libraries::dynamic_linker(pid, &mappings)?;
        // One that was linked statically maps no library.
        let tells = linker.is_none_or(|(id, linker)| {
            self.watch_libraries(id, &linker);
            self.files.is_attached(id, What::Linker)
        });
        let mut has_program = true;
        if let Some(recorded) = self.processes.get_mut(&pid) {
            recorded.tells = tells;
            has_program = std::mem::replace(&mut recorded.has_program, true);
        }
        let program = if has_program { None } else { libraries::static_runtime(pid, &mappings)? };
        for library in libraries::mapped_libraries(pid, &mappings)?.iter().chain(&program) {
            if library.kind == Kind::Driver {
                self.collector.set_driver(pid, library.id);
                self.look_at_driver(pid);
            }
            self.add_library(library);
        }
        Ok(())
    }

    /// Looks what a process has run that has the driver mapped.
    fn look_at_driver(&mut self, pid: u32) {
        if let Some(recorded) = self.processes.get_mut(&pid) {
            recorded.driver = Mapped::look(recorded.driver, pid);
        }
    }

    /// Looks at processes that said that they mapped something.
    pub(super) fn look_at_those_that_told(&mut self) {
        for pid in std::mem::take(&mut self.told) {
            if self.processes.contains_key(&pid) {
                self.look_at(pid);
            }
        }
    }

    /// Looks at processes of which something is to be found out that nobody tells. If a word of any may have been lost, at all.
    pub(super) fn look_again(&mut self) -> Result<()> {
        let unsaid = self.kernel.unsaid(unsaid::LIFECYCLES)?;
        if std::mem::replace(&mut self.looks.unsaid, unsaid) != unsaid {
            self.look_for_the_unsaid()?;
            self.told.extend(self.processes.keys());
        }
        let turn = self.looks.turn(self.processes.keys().copied().collect());
        self.told.extend(turn);
        let is_silent_due = self.looks.is_silent_due();
        let mut unsettled = Vec::new();
        for (&pid, recorded) in &self.processes {
            match recorded {
                Recorded { tells: false, .. } => drop(self.told.insert(pid)),
                _ if recorded.is_unsettled() => unsettled.push(pid),
                _ => {}
            }
            // Where no descriptor is left for it, /proc has to tell.
            if recorded.pidfd.is_none() && !is_running(pid) {
                self.gone.push(pid);
            }
        }
        unsettled.into_iter().for_each(|pid| self.look_into(pid));
        if is_silent_due {
            let with_driver = self.processes.iter().filter(|(_, recorded)| recorded.driver.is_some());
            let silent: Vec<u32> =
                with_driver.map(|(&pid, _)| pid).filter(|&pid| self.collector.calls(pid) == 0).collect();
            silent.into_iter().for_each(|pid| self.look_at_driver(pid));
        }
        Ok(())
    }

    /// Ends processes that are gone, after their last records.
    pub(super) fn forget_the_gone(&mut self) -> Result<()> {
        // Another may have its number by now.
        let is_over =
            |pid: &u32| self.processes.get(pid).is_some_and(|recorded| has_ended(*pid, recorded.pidfd.as_ref()));
        let mut gone = std::mem::take(&mut self.gone);
        gone.retain(is_over);
        if gone.is_empty() {
            return Ok(());
        }
        // Whatever it did is in the ring buffer by now, which holds so many of the shortest records.
        self.drain(self.options.buffer_bytes as usize / size_of::<Lifecycle>())?;
        self.drain_inside()?;
        for pid in gone {
            // What it ran last is known until its parent takes note of its end.
            if self.collector.calls(pid) == 0
                && self.processes.get(&pid).is_some_and(|recorded| recorded.driver.is_some())
            {
                self.look_at_driver(pid);
            }
            let last_end = self.processes.get(&pid).and_then(|recorded| recorded.last_end);
            let (end_ns, status) = last_end.unwrap_or_else(|| (monotonic_ns(), 0));
            self.lifecycle(pid, lifecycle_kind::PROCESS_EXIT, end_ns, status)?;
            self.note_blind_spots_of(pid);
            if let Some(inside) = &self.inside {
                inside.tell_device_time(pid, &self.collector, &mut self.tape)?;
                inside.tell_cost([pid], &self.collector, &mut self.tape)?;
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_process_has_its_turn_once_in_a_round() {
        let mut looks = Looks::default();
        let pids: Vec<u32> = (1..=1500).rev().collect();
        let turns: Vec<Vec<u32>> = (0..2 * ROUND).map(|_| looks.turn(pids.clone())).collect();
        assert!(turns.iter().all(|turn| (2..=3).contains(&turn.len())));
        let all = turns.concat();
        assert_eq!(all, (1..=1500).chain(1..=1500).collect::<Vec<_>>());
        let alone: usize = (0..3 * ROUND).map(|_| looks.turn(vec![7]).len()).sum();
        assert_eq!(alone, 3);
        assert!(looks.turn(Vec::new()).is_empty());
    }
}
