//! What a sampler of the CPU can find in a recording of calls: a thread, while it is in one.
//!
//! Between calls nobody knows where a thread is. Within one it is in the stack that made the call, so the time of calls is
//! credited to the calling function or stack. Calls that wait for the device are left out: a thread that waits does not run, and
//! what is simulated here is a sampler of running threads. Where the trace tells when threads were off their processors, that is left out
//! to the nanosecond; else what a call waited for a processor is in its time.

use ktape_format::Table as _;
use ktape_format::event::{Alloc, Api, Event, EventRecord, EventWait, Free, GraphLaunch, Launch, timing};
use rustc_hash::{FxHashMap, FxHashSet};

use super::device_work::stack_key;
use super::thread_work::{NOT_RUNNING, Slice, cut_all};
use super::work::{By, Collector, Waits};
use crate::timeline::{DeviceOp, Submitter, Timeline};

/// Adds the time of all threads in calls; returns how much they waited in others. `None`, and nothing is added, if it is not
/// known how long launches take: what is left then are the few calls that are long.
pub(super) fn collect(collector: &mut Collector, timeline: &Timeline, ops: &[DeviceOp], by: By) -> Option<Waits> {
    let events = &timeline.events;
    let launches = if events.launch.is_empty() { &events.graph_launch.duration_ns } else { &events.launch.duration_ns };
    if launches.iter().all(|&duration_ns| duration_ns == 0) {
        return None;
    }
    let mut calls = Calls { timeline, of_thread: FxHashMap::default(), absent: 0 };
    calls.add::<Launch>(|_, row| Some((row.thread, row.stack)));
    calls.add::<GraphLaunch>(|_, row| Some((row.thread, row.stack)));
    calls.add::<EventRecord>(|_, row| Some((row.thread, row.stack)));
    calls.add::<EventWait>(|_, row| Some((row.thread, row.stack)));
    calls.add::<Alloc>(|_, row| Some((row.thread, row.stack)));
    calls.add::<Free>(|_, row| Some((row.thread, row.stack)));
    // A copy that is known by its bound is one that its call waited for.
    let bounded = ops.iter().filter(|op| op.timing == timing::BOUNDED);
    let waiting: FxHashSet<u32> = bounded
        .filter_map(|op| match timeline.submitter(op) {
            Some(Submitter::Api(row)) => Some(row),
            _ => None,
        })
        .collect();
    calls.add::<Api>(|row, api| (!waiting.contains(&row)).then_some((api.thread, api.stack)));
    let waits = events.sync.duration_ns.iter();
    let waits = waits.chain(waiting.iter().filter_map(|&row| events.api.duration_ns.get(row as usize)));
    let mut sum = Waits { calls: (events.sync.len() + waiting.len()) as u64, waited_ns: 0, not_running_ns: None };
    waits.for_each(|&duration_ns| sum.waited_ns = sum.waited_ns.saturating_add(duration_ns));
    collector.times.absent += calls.absent;
    // As slices they cut what they lie in. Of threads that made no such call there is nothing to cut.
    for row in events.off_cpu.rows() {
        if let Some(slices) = calls.of_thread.get_mut(&row.thread) {
            slices.push(Slice { start_ns: row.start_ns, end_ns: row.end_ns(), what: OFF });
        }
    }
    let mut keys = FxHashMap::<u32, u32>::default();
    cut_all(collector, calls.of_thread, |collector, _, _, stack| {
        if stack == OFF {
            return NOT_RUNNING;
        }
        *keys.entry(stack).or_insert_with(|| {
            let (name, label) = stack_key(&timeline.definitions, stack, by);
            collector.key(&name, || label)
        })
    });
    sum.not_running_ns = (!events.off_cpu.is_empty()).then_some(collector.not_running_ns);
    Some(sum)
}

/// In the place of a stack: the thread was off its processor. Ids are numbered from 1, and do not come so far.
const OFF: u32 = u32::MAX;

struct Calls<'a> {
    timeline: &'a Timeline,
    of_thread: FxHashMap<u32, Vec<Slice>>,
    /// Calls that it is not known of how long they took.
    absent: u64,
}

impl Calls<'_> {
    /// Adds the calls of one table that have a thread and stack by `place`.
    fn add<E: Event>(&mut self, place: impl Fn(u32, &E) -> Option<(u32, u32)>) {
        for (index, row) in (0..).zip(E::table(&self.timeline.events).rows()) {
            let Some((thread, stack)) = place(index, &row) else { continue };
            if row.duration_ns() == 0 {
                self.absent += 1;
                continue;
            }
            let slice = Slice { start_ns: row.start_ns(), end_ns: row.end_ns(), what: stack };
            self.of_thread.entry(thread).or_default().push(slice);
        }
    }
}
