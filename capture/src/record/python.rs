//! The interpreters of recorded processes: found, walked, proven, told of on the tape; and what the programs must know to keep
//! its stacks true, which is where code objects are freed and where asyncio runs its tasks.

use std::hash::BuildHasher as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use ktape_ebpf::python::Interpreter;
use rustc_hash::FxBuildHasher;

use super::processes::Recorded;
use super::session::Session;
use crate::kernel::programs::KernelError;
use crate::python::find::{self, Refusal};
use crate::python::in_file;

/// How long an interpreter has for its layout to be proven: one that imports has its stacks in motion.
pub(super) const PROVEN_WITHIN: Duration = Duration::from_secs(10);

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
    /// Sees to it that the programs notice when a walked process frees code objects.
    pub(super) fn look_for_code(&mut self, pid: u32, located: Option<&find::Python>) -> Result<()> {
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

    /// Has the interpreter of this Python known in each process that runs it, before it has run a line of a script; how it turns out is
    /// seen when one does.
    pub fn add_python(&mut self, file: &Path) {
        if let Ok(Some(in_file)) = in_file::read(file)
            && let Ok(Some(dealloc)) = in_file.dealloc(self.site_kernel)
        {
            let _ = self.probe_code(&in_file.python, &dealloc);
        }
    }

    /// Learns of a process which Python it runs, as the programs know by its file. The first records with stacks come next, and the
    /// process may have ended by now.
    pub(super) fn learn_python(&mut self, pid: u32, file: u16, runtime: u64) {
        let is_unknown = |recorded: &Recorded| matches!(recorded.python, Python::Unknown(_));
        if self.processes.get(&pid).is_some_and(is_unknown)
            && let Some(interpreter) = self.kernel.python(file)
        {
            self.collector.set_interpreter(pid, &Interpreter { runtime, ..interpreter });
        }
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
    pub(super) fn name_tasks(&mut self, pid: u32, code: u64, string_type: u64) -> Result<(), KernelError> {
        let Some(recorded) = self.processes.get(&pid) else { return Ok(()) };
        let Some(interpreter) = self.kernel.interpreter(pid, recorded.generation) else { return Ok(()) };
        let interpreter = Interpreter { task_runner: code, string_type, ..interpreter };
        self.kernel.set_interpreter(pid, recorded.generation, Some(interpreter))
    }
}
