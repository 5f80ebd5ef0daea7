//! When threads did not run: the answer of `analyze info` where a tape has their time off the processor.
//!
//! A thread is on a processor, or *blocked* (it sleeps, waits for a disk, is stopped), or *waits for a processor* though it could
//! run. The recorder tells each stretch off, with the part at its end in which the thread could have run; what lies between two
//! stretches it ran. So from the beginning of a thread's first stretch to the end of its last all its time is accounted for, and that
//! of any call within.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use ktape_format::definition::{Process, Thread, property};
use ktape_format::event::{Event as _, GraphLaunch, Launch, OffCpu, Sync, off_cpu_reason};
use ktape_format::table::DefinitionKind;
use ktape_format::{Row as _, Table as _};
use rustc_hash::FxHashMap;
use serde::Serialize;

use super::Timeline;

/// A thread that submits nothing for so long may let its device run dry: a queue of a few kernels lasts no longer.
pub const LONG_GAP_NS: u64 = 100_000;

/// Time off the processor in figures. The field names are the keys of `off_cpu` in `analyze info --json`.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub struct OffCpuSide {
    /// How many stretches there are.
    pub stretches: u64,
    /// From which length on what is between two launches of a thread counts as a gap.
    pub long_gap_ns: u64,
    /// The threads that made calls, most launches first.
    pub threads: Vec<ThreadOffCpu>,
    /// How many other threads have stretches.
    pub other_threads: usize,
}

/// One thread's time.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub struct ThreadOffCpu {
    /// Its process's number.
    pub pid: Option<i64>,
    /// Its number.
    pub tid: i64,
    /// Its name; empty if not known.
    pub name: String,
    /// Launches of kernels and graphs.
    pub launches: u64,
    /// From the beginning of its first stretch off a processor to the end of its last.
    pub observed: Spent,
    /// How often it left its processor, by reason.
    pub left: BTreeMap<&'static str, u64>,
    /// How long it was blocked, by reason.
    pub blocked_ns: BTreeMap<&'static str, u64>,
    /// In calls that do not wait for the device.
    pub calls: Spent,
    /// In calls that do: synchronisations.
    pub waits: Spent,
    /// Between one launch and the next, where that is long.
    pub gaps: Spent,
}

/// A sum of times: of calls, of gaps. It is `running_ns`, `blocked_ns` and `runnable_ns` together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Spent {
    /// How many.
    pub count: u64,
    /// How long, all together; what overlaps counts once.
    pub duration_ns: u64,
    /// How much of that the thread ran.
    pub running_ns: u64,
    /// How much it could not run.
    pub blocked_ns: u64,
    /// How much it could run, and waited for a processor.
    pub runnable_ns: u64,
}

impl Timeline {
    /// Time off the processor in figures; `None` if the trace has none.
    pub fn off_cpu_side(&self) -> Option<OffCpuSide> {
        let rows = &self.events.off_cpu;
        if rows.is_empty() {
            return None;
        }
        let mut of_thread = FxHashMap::<u32, Stretches>::default();
        for row in rows.rows() {
            of_thread.entry(row.thread).or_default().add(&row);
        }
        let calls = self.calls_of_threads();
        let is_other = |thread: &&u32| !calls.contains_key(*thread);
        let mut side = OffCpuSide {
            stretches: rows.len() as u64,
            long_gap_ns: LONG_GAP_NS,
            other_threads: of_thread.keys().filter(is_other).count(),
            threads: Vec::new(),
        };
        for (id, calls) in calls {
            side.threads.extend(of_thread.get(&id).map(|stretches| self.thread_off_cpu(id, stretches, calls)));
        }
        side.threads.sort_by_key(|thread| Reverse((thread.launches, thread.calls.count)));
        Some(side)
    }

    fn thread_off_cpu(&self, id: u32, stretches: &Stretches, mut calls: Calls) -> ThreadOffCpu {
        let thread = self.definitions.get::<Thread>(id).unwrap_or_default();
        let name = self.definitions.property(DefinitionKind::Thread as u16, id, property::NAME);
        calls.launches.sort_unstable();
        let gaps = calls.launches.windows(2).filter_map(|pair| {
            let (from, to) = (pair[0].1, pair[1].0);
            (to > from && to.abs_diff(from) >= LONG_GAP_NS).then_some((from, to))
        });
        let observed = stretches.off.first().zip(stretches.off.last());
        ThreadOffCpu {
            pid: self.definitions.get::<Process>(thread.process).map(|process| process.pid),
            tid: thread.tid,
            name: name.unwrap_or_default().to_owned(),
            launches: calls.launches.len() as u64,
            observed: stretches.spent(observed.map(|(first, last)| (first.start_ns, last.end_ns))),
            left: stretches.left.clone(),
            blocked_ns: stretches.blocked_ns.clone(),
            gaps: stretches.spent(gaps),
            calls: stretches.spent_in(calls.working),
            waits: stretches.spent_in(calls.waiting),
        }
    }

    fn calls_of_threads(&self) -> BTreeMap<u32, Calls> {
        let mut threads = BTreeMap::<u32, Calls>::new();
        self.visit_calls(|kind, thread, span| {
            let calls = threads.entry(thread).or_default();
            if matches!(kind, Launch::KIND | GraphLaunch::KIND) {
                calls.launches.push(span);
            }
            if kind == Sync::KIND { calls.waiting.push(span) } else { calls.working.push(span) }
        });
        threads
    }
}

/// The calls of a thread, as begin and end.
#[derive(Default)]
struct Calls {
    launches: Vec<(i64, i64)>,
    working: Vec<(i64, i64)>,
    waiting: Vec<(i64, i64)>,
}

/// A thread's stretches off its processor, in order: they do not overlap.
#[derive(Default)]
struct Stretches {
    off: Vec<Stretch>,
    left: BTreeMap<&'static str, u64>,
    blocked_ns: BTreeMap<&'static str, u64>,
}

struct Stretch {
    start_ns: i64,
    /// When the thread could run again.
    runnable_ns: i64,
    end_ns: i64,
    /// How much it was blocked, and how much it waited for a processor, in all stretches before this.
    before: (u64, u64),
}

impl Stretch {
    /// How much the thread was blocked, and how much it waited for a processor, in this stretch up to an instant.
    fn until(&self, time_ns: i64) -> (u64, u64) {
        let part = |from: i64, to: i64| time_ns.clamp(from, to).abs_diff(from);
        (part(self.start_ns, self.runnable_ns), part(self.runnable_ns, self.end_ns))
    }
}

impl Stretches {
    /// Adds one; they come by their beginning. A thread is off once at a time: of what a strange tape has twice, the first counts.
    fn add(&mut self, row: &OffCpu) {
        let reach = self.off.last().map_or(i64::MIN, |last| last.end_ns);
        let start_ns = row.start_ns.max(reach);
        let end_ns = row.end_ns().max(start_ns);
        let runnable_ns = end_ns.saturating_sub_unsigned(row.runnable_ns).max(start_ns);
        let name = off_cpu_reason::NAMES.get(row.reason as usize).copied().unwrap_or(off_cpu_reason::NAMES[0]);
        *self.left.entry(name).or_default() += 1;
        let blocked_ns = runnable_ns.abs_diff(start_ns);
        if blocked_ns > 0 {
            let sum = self.blocked_ns.entry(name).or_default();
            *sum = sum.saturating_add(blocked_ns);
        }
        let before = self.total(i64::MAX);
        self.off.push(Stretch { start_ns, runnable_ns, end_ns, before });
    }

    /// How much the thread was blocked, and how much it waited for a processor, up to an instant.
    fn total(&self, time_ns: i64) -> (u64, u64) {
        let begun = self.off.partition_point(|stretch| stretch.start_ns < time_ns);
        let Some(last) = begun.checked_sub(1).map(|at| &self.off[at]) else { return (0, 0) };
        let (blocked_ns, runnable_ns) = last.until(time_ns);
        (last.before.0.saturating_add(blocked_ns), last.before.1.saturating_add(runnable_ns))
    }

    /// How the thread spent these times, which do not overlap.
    fn spent(&self, times: impl IntoIterator<Item = (i64, i64)>) -> Spent {
        let mut spent = Spent::default();
        for (from, to) in times {
            let (before, after) = (self.total(from), self.total(to));
            let (blocked_ns, runnable_ns) = (after.0 - before.0, after.1 - before.1);
            let duration_ns = to.abs_diff(from);
            let running_ns = duration_ns.saturating_sub(blocked_ns).saturating_sub(runnable_ns);
            spent.count += 1;
            for (sum, more) in [
                (&mut spent.duration_ns, duration_ns),
                (&mut spent.running_ns, running_ns),
                (&mut spent.blocked_ns, blocked_ns),
                (&mut spent.runnable_ns, runnable_ns),
            ] {
                *sum = sum.saturating_add(more);
            }
        }
        spent
    }

    /// The same of calls, which may lie within each other.
    fn spent_in(&self, mut calls: Vec<(i64, i64)>) -> Spent {
        calls.sort_unstable();
        let count = calls.len() as u64;
        let mut merged: Vec<(i64, i64)> = Vec::new();
        for (from, to) in calls {
            match merged.last_mut() {
                Some(last) if from <= last.1 => last.1 = last.1.max(to),
                _ => merged.push((from, to)),
            }
        }
        Spent { count, ..self.spent(merged) }
    }
}

#[cfg(test)]
mod tests {
    use ktape_format::event::Event;
    use ktape_format::{Memory, Sink as _};

    use super::*;

    fn off(start_ns: i64, duration_ns: u64, runnable_ns: u64, reason: u8) -> OffCpu {
        OffCpu { start_ns, duration_ns, runnable_ns, reason, thread: 1, cpu: 0 }
    }

    fn side(fill: impl FnOnce(&mut Memory)) -> Option<OffCpuSide> {
        let mut memory = Memory::default();
        let Ok(process) = memory.define(Process { pid: 7, ..Process::default() });
        for tid in [8, 9] {
            let Ok(_) = memory.define(Thread { process, tid });
        }
        fill(&mut memory);
        Timeline::new(memory.definitions, memory.events).off_cpu_side()
    }

    fn put<E: Event>(memory: &mut Memory, row: E) {
        let Ok(()) = memory.event(row);
    }

    fn spent(count: u64, running_ns: u64, blocked_ns: u64, runnable_ns: u64) -> Spent {
        Spent { count, duration_ns: running_ns + blocked_ns + runnable_ns, running_ns, blocked_ns, runnable_ns }
    }

    #[test]
    fn time_is_split_where_a_thread_leaves_can_run_and_runs() {
        let side = side(|memory| {
            put(memory, off(100, 50, 20, off_cpu_reason::SLEEP));
            put(memory, off(200, 10, 10, off_cpu_reason::PREEMPTED));
            put(memory, off(400, 100, 0, off_cpu_reason::UNINTERRUPTIBLE));
            put(memory, OffCpu { thread: 2, ..off(0, 5, 5, off_cpu_reason::NEW) });
            // Ends in the midst of a sleep, begins in the midst of a wait for a processor, has neither.
            put(memory, Launch { start_ns: 90, duration_ns: 30, thread: 1, ..Launch::default() });
            put(memory, Launch { start_ns: 140, duration_ns: 40, thread: 1, ..Launch::default() });
            put(memory, GraphLaunch { start_ns: 300, duration_ns: 40, thread: 1, ..GraphLaunch::default() });
            put(memory, Sync { start_ns: 350, duration_ns: 200, thread: 1, ..Sync::default() });
        });
        let side = side.expect("stretches");
        assert_eq!((side.stretches, side.other_threads, side.threads.len()), (4, 1, 1));
        let thread = &side.threads[0];
        assert_eq!((thread.pid, thread.tid, thread.launches), (Some(7), 8, 3));
        assert_eq!(thread.observed, spent(1, 240, 130, 30));
        assert_eq!(thread.left, BTreeMap::from([("preempted", 1), ("sleep", 1), ("uninterruptible", 1)]));
        assert_eq!(thread.blocked_ns, BTreeMap::from([("sleep", 30), ("uninterruptible", 100)]));
        assert_eq!(thread.calls, spent(3, 10 + 30 + 40, 20, 10));
        assert_eq!(thread.waits, spent(1, 100, 100, 0));
        assert_eq!(thread.gaps, Spent::default());
    }

    #[test]
    fn only_long_gaps_between_launches_count() {
        let side = side(|memory| {
            for start_ns in [0, 99_999, 300_000] {
                put(memory, Launch { start_ns, thread: 1, ..Launch::default() });
            }
            put(memory, off(150_000, 60_000, 20_000, off_cpu_reason::SLEEP));
        });
        assert_eq!(side.expect("a stretch").threads[0].gaps, spent(1, 300_000 - 99_999 - 60_000, 40_000, 20_000));
    }

    #[test]
    fn calls_within_calls_count_once_and_strange_stretches_do_no_harm() {
        let side = side(|memory| {
            put(memory, Launch { start_ns: 0, duration_ns: 100, thread: 1, ..Launch::default() });
            put(memory, GraphLaunch { start_ns: 50, duration_ns: 20, thread: 1, ..GraphLaunch::default() });
            put(memory, off(10, 30, 10, off_cpu_reason::SLEEP));
            put(memory, off(20, 10, 50, 200));
            put(memory, off(i64::MAX - 5, u64::MAX, u64::MAX, off_cpu_reason::SLEEP));
        });
        let thread = &side.expect("stretches").threads[0];
        assert_eq!(thread.calls, spent(2, 70, 20, 10));
        assert_eq!(thread.left, BTreeMap::from([("sleep", 2), ("unknown", 1)]));
        assert_eq!(side_without_rows(), None);
    }

    fn side_without_rows() -> Option<OffCpuSide> {
        side(|memory| put(memory, Launch { thread: 1, ..Launch::default() }))
    }
}
