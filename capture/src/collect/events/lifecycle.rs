//! Processes and threads that come, change and go.

use std::rc::Rc;

use ktape_ebpf::wire::{Lifecycle, life};
use ktape_format::definition::{self, property};
use ktape_format::table::DefinitionKind;
use ktape_format::{Sink, event};
use rustc_hash::FxHashMap;

use super::super::inside::ranges::{Books, Ranges};
use super::kernels::Kernels;
use super::objects::Objects;
use super::of_device::{Teller, teller};
use super::stacks::Stacks;
use super::thread::Pending;
use super::{Collector, Identity, MOST_KEPT, Notice, Process, books, lower, upper};

impl Collector {
    /// Begins a process, or a new program of one that is known. `is_new` says that nothing it did was missed.
    pub fn begin_process<S: Sink>(&mut self, identity: &Identity, is_new: bool, sink: &mut S) -> Result<(), S::Error> {
        let before = self.processes.get_mut(&identity.pid).map(|process| process.objects.graphs.take());
        self.end_process(identity.pid, sink)?;
        let row = definition::Process { pid: i64::from(identity.pid), start_ns: identity.start_ns, host: 0, source: 0 };
        let id = sink.define(row)?;
        let mut say = |key, value: &str| match value {
            "" => Ok(()),
            value => sink.property(DefinitionKind::Process as u16, id, key, value),
        };
        say(property::NAME, &identity.name)?;
        say(property::COMMAND, &identity.command)?;
        say(property::CONTAINER, &identity.container)?;
        let mut objects = Objects::new(id, is_new);
        objects.graphs.misses_launches = self.scope.is_by_stack();
        if let Some(before) = before {
            objects.graphs.go_on_from(before);
        }
        let process = Process {
            pid: identity.pid,
            id,
            threads: FxHashMap::default(),
            stacks: Stacks::new(identity.pid, self.scope.clone()),
            kernels: Kernels::new(identity.pid, is_new, self.scope.clone()),
            objects,
            ranges: Ranges::default(),
            calls: 0,
            stackless: 0,
            stackless_samples: 0,
            correlation: 0,
        };
        self.processes.insert(identity.pid, process);
        Ok(())
    }

    /// Ends a process: calls that never returned become events as they are.
    pub fn end_process<S: Sink>(&mut self, pid: u32, sink: &mut S) -> Result<(), S::Error> {
        self.leave_process(pid, true, sink)
    }

    fn leave_process<S: Sink>(&mut self, pid: u32, has_ended: bool, sink: &mut S) -> Result<(), S::Error> {
        let Some(mut process) = self.processes.remove(&pid) else { return Ok(()) };
        let calls = process.threads.values().map(|thread| thread.calls).max().unwrap_or(0);
        self.busiest_ended = self.busiest_ended.max(calls);
        let mut pending: Vec<Pending> = process.threads.values_mut().flat_map(|thread| thread.take_all()).collect();
        pending.sort_by_key(|pending| pending.start_ns);
        for pending in pending {
            self.gaps.calls_without_return += 1;
            let mut teller = teller!(self, process);
            self.events += teller.give_up(pending, sink)?;
        }
        let mut teller = teller!(self, process);
        teller.with_device(|device, around| device.finish(has_ended, around, sink))?;
        self.gaps.unknown_stacks += process.ranges.go_on(None, &mut books!(self), sink)?;
        process.ranges.finish(&mut books!(self), sink)?;
        self.unnamed_launches += process.kernels.unnamed_launches();
        for (kernel, source) in process.kernels.sources() {
            if self.sources.len() < MOST_KEPT || self.sources.contains_key(&kernel) {
                self.sources.insert(kernel, source);
            } else {
                *self.further_sources.entry(source).or_default() += 1;
            }
        }
        self.drivers.retain(|_, objects| Rc::strong_count(objects) > 1);
        Ok(())
    }

    /// Ends all processes.
    pub fn finish<S: Sink>(&mut self, sink: &mut S) -> Result<(), S::Error> {
        let mut pids: Vec<u32> = self.processes.keys().copied().collect();
        pids.sort_unstable();
        self.unknown.tell(sink)?;
        pids.into_iter().try_for_each(|pid| self.leave_process(pid, false, sink))
    }

    /// Takes such a word; returns what somebody has to look after.
    pub(super) fn lifecycle<S: Sink>(&mut self, life: &Lifecycle, sink: &mut S) -> Result<Option<Notice>, S::Error> {
        let (pid, tid) = (upper(life.pid_tid), lower(life.pid_tid));
        let notice = match life.what {
            life::FORK => Some(Notice::Forked { parent: pid, child: upper(life.detail), generation: life.time_ns }),
            life::EXEC => Some(Notice::Executed { pid, generation: life.time_ns }),
            life::ADMITTED => Some(Notice::Admitted { pid, generation: life.time_ns }),
            life::PYTHON => {
                let (file, runtime) = life::of_python(life.detail);
                Some(Notice::Python { pid, file, runtime })
            }
            life::LIBRARIES => {
                if let Some(process) = self.processes.get_mut(&pid) {
                    process.stacks.libraries_changed();
                }
                Some(Notice::Libraries(pid))
            }
            life::THREAD_EXIT => {
                Some(Notice::ThreadEnded { pid, time_ns: life.time_ns as i64, status: life.detail as i64 })
            }
            _ => None,
        };
        let kind = match life.what {
            life::FORK => event::lifecycle_kind::PROCESS_FORK,
            life::EXEC => event::lifecycle_kind::PROCESS_EXEC,
            life::THREAD_START => event::lifecycle_kind::THREAD_START,
            life::THREAD_EXIT => event::lifecycle_kind::THREAD_EXIT,
            _ => return Ok(notice),
        };
        let Some(process) = self.processes.get_mut(&pid) else { return Ok(notice) };
        let of_thread = matches!(life.what, life::THREAD_START | life::THREAD_EXIT);
        let thread =
            if of_thread { sink.define(definition::Thread { process: process.id, tid: i64::from(tid) })? } else { 0 };
        let code = match life.what {
            life::FORK => i64::from(upper(life.detail)),
            life::THREAD_EXIT => life.detail as i64,
            _ => 0,
        };
        sink.event(event::Lifecycle {
            start_ns: life.time_ns as i64,
            kind,
            process: process.id,
            thread,
            code,
            detail: 0,
        })?;
        if life.what == life::THREAD_EXIT
            && let Some(process) = self.processes.get_mut(&pid)
        {
            process.stacks.end_thread(tid);
            let ended = process.threads.remove(&tid);
            let calls = ended.as_ref().map_or(0, |thread| thread.calls);
            self.busiest_ended = self.busiest_ended.max(calls);
            for pending in ended.into_iter().flat_map(|mut thread| thread.take_all()) {
                self.gaps.calls_without_return += 1;
                let mut teller = teller!(self, process);
                self.events += teller.give_up(pending, sink)?;
            }
        }
        Ok(notice)
    }
}
