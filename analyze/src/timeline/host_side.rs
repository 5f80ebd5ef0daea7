//! The host's side of a trace in figures: who launched, who waited, what was copied, and what was never freed.
//!
//! It is what a recording that has launches without kernels ([`Timeline::host_only`]) can tell. Nothing here is a device's
//! time: a wait is the host's, and a copy that its call waited for lasted at most as long as that.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use ktape_format::definition::{Process, Thread, property};
use ktape_format::event::{Alloc, Event as _, Free, GraphLaunch, Launch, Sync, allocator, copy_kind, timing};
use ktape_format::table::DefinitionKind;
use ktape_format::{Row as _, Table as _};
use rustc_hash::FxHashMap;
use serde::Serialize;

use super::Timeline;
use super::graphs::Graphs;
use super::names::{FrameName, MOST_FRAMES, frames_cut};

/// The host's side of a trace. The field names are the keys of `host` in `analyze info --json`.
#[derive(Debug, Default, Serialize)]
pub struct HostSide {
    /// Launches of kernels and graphs by stack, most first.
    pub launches: Vec<AtStack>,
    /// How many launches failed; they are among the others.
    pub failed_launches: u64,
    /// What the launches of graphs come to.
    pub graphs: GraphLaunches,
    /// Synchronisations by stack, the longest wait first.
    pub waits: Vec<AtStack>,
    /// How long threads waited in them, all together.
    pub waited_ns: u64,
    /// Copies and memsets by direction, most bytes first.
    pub copies: Vec<Copies>,
    /// Memory that was allocated and not freed, by stack, most bytes first.
    pub unfreed: Vec<AtStack>,
    /// Its size.
    pub unfreed_bytes: u64,
    /// Frees of memory that was allocated before the recording, or by a call that was lost.
    pub frees_of_unknown: u64,
    /// The threads that called the API, most launches first.
    pub threads: Vec<ThreadCalls>,
}

/// What the launches of graphs come to.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub struct GraphLaunches {
    /// How many graphs were launched.
    pub launches: u64,
    /// The kernels that they ran, as far as the graphs' nodes are known.
    pub kernels: u64,
    /// Launches of graphs of which something is not known.
    pub not_whole: u64,
}

/// What one stack called for.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct AtStack {
    /// The frames, the root first; empty for calls that were recorded without a stack.
    pub stack: Vec<String>,
    /// How many calls.
    pub count: u64,
    /// How long they took, where that is what is added up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ns: Option<u64>,
    /// How much memory it is, where that is what is added up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// The stack's id.
    #[serde(skip)]
    pub id: u32,
}

/// The copies of one direction, or the memsets.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Copies {
    /// `HtoD`, `DtoH`, …, or `memset`.
    pub direction: String,
    /// How many.
    pub operations: u64,
    /// Of how many bytes together.
    pub bytes: u64,
    /// How many of them the calling thread waited for.
    pub waited_for: u64,
    /// How long it did: the most that these copies can have taken.
    pub waited_ns: u64,
}

/// What one thread called.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct ThreadCalls {
    /// Its process's number.
    pub pid: Option<i64>,
    /// Its number.
    pub tid: i64,
    /// Its name; empty if not known.
    pub name: String,
    /// All its calls of the API.
    pub calls: u64,
    /// Those that launched kernels and graphs.
    pub launches: u64,
    /// Those that waited for device work.
    pub waits: u64,
    /// How long these waited.
    pub waited_ns: u64,
}

impl Timeline {
    /// The host's side of this trace.
    pub fn host_side(&self) -> HostSide {
        let events = &self.events;
        let mut launches = Sums::default();
        let kernels = events.launch.rows().map(|row| (row.stack, row.result));
        let graphs = events.graph_launch.rows().map(|row| (row.stack, row.result));
        let mut failed_launches = 0_u64;
        for (stack, result) in kernels.chain(graphs) {
            launches.add(stack, 0);
            failed_launches += u64::from(result != 0);
        }
        let mut waits = Sums::default();
        events.sync.rows().for_each(|row| waits.add(row.stack, row.duration_ns));
        let (unfreed, frees_of_unknown) = self.unfreed();
        for row in events.rollup.rows() {
            match row.kind {
                Launch::KIND | GraphLaunch::KIND => {
                    launches.add_many(row.stack, row.count, 0);
                    failed_launches = failed_launches.saturating_add(row.failed);
                }
                Sync::KIND => waits.add_many(row.stack, row.count, row.sum_ns),
                _ => {}
            }
        }
        HostSide {
            failed_launches,
            graphs: self.graph_launches(),
            waited_ns: waits.total(),
            unfreed_bytes: unfreed.total(),
            frees_of_unknown,
            copies: self.copies(),
            launches: self.at_stacks(launches, |sum| (sum.count, None, None)),
            waits: self.at_stacks(waits, |sum| (sum.amount, Some(sum.amount), None)),
            unfreed: self.at_stacks(unfreed, |sum| (sum.amount, None, Some(sum.amount))),
            threads: self.thread_calls(),
        }
    }

    fn graph_launches(&self) -> GraphLaunches {
        let graphs = Graphs::new(self);
        let launches = self.events.graph_launch.graph.iter().map(|&graph| (graph, 1));
        let mut sums = GraphLaunches::default();
        for (graph, count) in launches.chain(self.rolled_up_graphs().map(|row| (row.graph, row.count))) {
            sums.launches = sums.launches.saturating_add(count);
            if !graphs.is_whole(graph) {
                sums.not_whole = sums.not_whole.saturating_add(count);
            }
        }
        let kernels = self.ran_by_graphs(&graphs).kernels.into_values();
        GraphLaunches { kernels: kernels.fold(0, u64::saturating_add), ..sums }
    }

    /// The sums by what `weight` says comes first; it also says what the amount is.
    fn at_stacks(&self, sums: Sums, weight: impl Fn(&Sum) -> (u64, Option<u64>, Option<u64>)) -> Vec<AtStack> {
        let mut sums: Vec<(u32, Sum)> = sums.0.into_iter().collect();
        sums.sort_by_key(|(stack, sum)| (Reverse((weight(sum).0, sum.count)), *stack));
        let at_stack = |(id, sum): (u32, Sum)| {
            let (_, duration_ns, bytes) = weight(&sum);
            AtStack { stack: self.frames_of(id), count: sum.count, duration_ns, bytes, id }
        };
        sums.into_iter().map(at_stack).collect()
    }

    fn frames_of(&self, stack: u32) -> Vec<String> {
        let nodes = self.definitions.stack_nodes(stack).take(MOST_FRAMES + 1);
        let mut frames: Vec<String> =
            nodes.map(|(_, node)| FrameName::of_stack(&self.definitions, &node).full()).collect();
        if frames.len() > MOST_FRAMES {
            frames[MOST_FRAMES] = frames_cut();
        }
        frames.reverse();
        frames
    }

    fn copies(&self) -> Vec<Copies> {
        let mut by_direction = BTreeMap::<&str, Copies>::new();
        let mut add = |direction, bytes: u64, code: u8, duration_ns: u64| {
            let none =
                || Copies { direction: String::from(direction), operations: 0, bytes: 0, waited_for: 0, waited_ns: 0 };
            let copies = by_direction.entry(direction).or_insert_with(none);
            copies.operations += 1;
            copies.bytes = copies.bytes.saturating_add(bytes);
            if code == timing::BOUNDED {
                copies.waited_for += 1;
                copies.waited_ns = copies.waited_ns.saturating_add(duration_ns);
            }
        };
        for row in self.events.memcpy.rows() {
            let direction = copy_kind::NAMES.get(usize::from(row.kind)).copied().unwrap_or("unknown");
            add(direction, row.bytes, row.timing, row.duration_ns);
        }
        self.events.memset.rows().for_each(|row| add("memset", row.bytes, row.timing, row.duration_ns));
        let mut copies: Vec<Copies> = by_direction.into_values().collect();
        copies.sort_by_key(|copies| Reverse(copies.bytes));
        copies
    }

    /// The allocations that no free gave back, and how many frees gave back what no allocation is known of.
    ///
    /// An address is handed out when its allocation *ends* and may be handed out again once its free *began*, so that is
    /// their order.
    fn unfreed(&self) -> (Sums, u64) {
        #[derive(PartialEq, Eq, PartialOrd, Ord)]
        enum What {
            Free,
            Alloc(u32),
        }
        let process = |thread: u32| self.definitions.process_of_thread(thread);
        let key = |thread, code, address| (process(thread), address_space(code), address);
        let allocs = (0..).zip(self.events.alloc.rows()).filter(|(_, row): &(u32, Alloc)| row.result == 0);
        let frees = self.events.free.rows().filter(|row: &Free| row.result == 0 && row.address != 0);
        let mut steps: Vec<_> = allocs
            .map(|(index, row)| (row.end_ns(), What::Alloc(index), key(row.thread, row.allocator, row.address)))
            .chain(frees.map(|row| (row.start_ns, What::Free, key(row.thread, row.allocator, row.address))))
            .collect();
        steps.sort();
        let mut live = FxHashMap::default();
        let mut frees_of_unknown = 0;
        for (_, what, key) in steps {
            match what {
                What::Alloc(row) => _ = live.insert(key, row),
                What::Free => frees_of_unknown += u64::from(live.remove(&key).is_none()),
            }
        }
        let mut unfreed = Sums::default();
        for row in live.into_values() {
            let row = row as usize;
            unfreed.add(self.events.alloc.stack[row], self.events.alloc.bytes[row]);
        }
        (unfreed, frees_of_unknown)
    }

    fn thread_calls(&self) -> Vec<ThreadCalls> {
        let mut calls = BTreeMap::<u32, (u64, u64, u64, u64)>::new();
        self.visit_calls(|kind, thread, (start_ns, end_ns)| {
            let (calls, launches, waits, waited_ns) = calls.entry(thread).or_default();
            *calls += 1;
            *launches += u64::from(matches!(kind, Launch::KIND | GraphLaunch::KIND));
            if kind == Sync::KIND {
                *waits += 1;
                *waited_ns = waited_ns.saturating_add(end_ns.abs_diff(start_ns));
            }
        });
        let name = |id| self.definitions.property(DefinitionKind::Thread as u16, id, property::NAME);
        let mut threads: Vec<ThreadCalls> = calls
            .into_iter()
            .map(|(id, (calls, launches, waits, waited_ns))| {
                let thread = self.definitions.get::<Thread>(id).unwrap_or_default();
                ThreadCalls {
                    pid: self.definitions.get::<Process>(thread.process).map(|process| process.pid),
                    tid: thread.tid,
                    name: name(id).unwrap_or_default().to_owned(),
                    calls,
                    launches,
                    waits,
                    waited_ns,
                }
            })
            .collect();
        threads.sort_by_key(|thread| Reverse((thread.launches, thread.calls)));
        threads
    }
}

/// The allocator that stands for all those that an address is to be looked for among. Who frees is often another function
/// than who allocated: `cuMemFree` takes managed memory too. A framework's addresses are apart, as they lie within the
/// driver's, and so are handles of virtual memory, which are none.
pub(crate) fn address_space(code: u8) -> u8 {
    match code {
        allocator::CACHING | allocator::HOST | allocator::VIRTUAL => code,
        _ => allocator::DRIVER,
    }
}

/// Something counted and added up by stack.
#[derive(Default)]
struct Sums(FxHashMap<u32, Sum>);

#[derive(Clone, Copy, Default)]
struct Sum {
    count: u64,
    amount: u64,
}

impl Sums {
    fn add(&mut self, stack: u32, amount: u64) {
        self.add_many(stack, 1, amount);
    }

    fn add_many(&mut self, stack: u32, count: u64, amount: u64) {
        let sum = self.0.entry(stack).or_default();
        sum.count = sum.count.saturating_add(count);
        sum.amount = sum.amount.saturating_add(amount);
    }

    fn total(&self) -> u64 {
        self.0.values().fold(0, |total, sum| total.saturating_add(sum.amount))
    }
}

#[cfg(test)]
mod tests {
    use ktape_format::definition::Frame;
    use ktape_format::event::Event;
    use ktape_format::{Memory, Sink as _};

    use super::*;

    fn host_side(fill: impl FnOnce(&mut Memory)) -> HostSide {
        let mut memory = Memory::default();
        for pid in [10, 20] {
            let Ok(process) = memory.define(Process { pid, ..Process::default() });
            let Ok(_) = memory.define(Thread { process, tid: pid });
        }
        let Ok(frame) = memory.define(Frame::default());
        for line in 1..=3 {
            let Ok(_) = memory.define(ktape_format::definition::Stack { parent: 0, frame, line });
        }
        fill(&mut memory);
        Timeline::new(memory.definitions, memory.events).host_side()
    }

    fn put<E: Event>(memory: &mut Memory, row: E) {
        let Ok(()) = memory.event(row);
    }

    fn alloc(start_ns: i64, duration_ns: u64, address: u64, stack: u32) -> Alloc {
        Alloc { start_ns, duration_ns, thread: 1, address, bytes: 100, stack, ..Alloc::default() }
    }

    fn free(start_ns: i64, address: u64) -> Free {
        Free { start_ns, duration_ns: 5, thread: 1, address, ..Free::default() }
    }

    /// The stacks of what was not freed, and the frees of what is not known.
    fn unfreed(host: &HostSide) -> (Vec<(u32, u64)>, u64) {
        (host.unfreed.iter().map(|row| (row.id, row.count)).collect(), host.frees_of_unknown)
    }

    #[test]
    fn an_address_is_handed_out_again_after_its_free_began() {
        let host = host_side(|memory| {
            put(memory, alloc(0, 5, 0xa, 1));
            // Another thread asks before this one frees, and gets the same address as it had to wait.
            put(memory, alloc(10, 30, 0xa, 2));
            put(memory, free(20, 0xa));
        });
        assert_eq!(unfreed(&host), (vec![(2, 1)], 0));
        assert_eq!(host.unfreed_bytes, 100);
    }

    #[test]
    fn what_failed_neither_takes_nor_gives() {
        let host = host_side(|memory| {
            put(memory, Alloc { result: 2, ..alloc(0, 5, 0, 1) });
            put(memory, alloc(10, 5, 0xa, 2));
            put(memory, Free { result: 1, ..free(20, 0xa) });
            // `free(NULL)` is no free of anything.
            put(memory, free(30, 0));
        });
        assert_eq!(unfreed(&host), (vec![(2, 1)], 0));
    }

    #[test]
    fn an_address_is_one_of_its_process_and_allocator() {
        let host = host_side(|memory| {
            put(memory, Alloc { allocator: allocator::MANAGED, ..alloc(0, 5, 0xa, 1) });
            put(memory, Alloc { allocator: allocator::CACHING, ..alloc(10, 5, 0xa, 2) });
            put(memory, Alloc { thread: 2, ..alloc(20, 5, 0xa, 3) });
            put(memory, Free { allocator: allocator::DRIVER, ..free(30, 0xa) });
            put(memory, Free { allocator: allocator::DRIVER, ..free(40, 0xa) });
        });
        assert_eq!(unfreed(&host), (vec![(2, 1), (3, 1)], 1));
    }

    #[test]
    fn the_most_comes_first() {
        let host = host_side(|memory| {
            for (stack, thread, result) in [(1, 1, 0), (2, 2, 0), (2, 2, 700)] {
                put(memory, Launch { stack, thread, result, ..Launch::default() });
            }
            put(memory, GraphLaunch { stack: 0, thread: 1, ..GraphLaunch::default() });
            put(memory, Sync { stack: 1, thread: 2, duration_ns: 5, ..Sync::default() });
            put(memory, Sync { stack: 3, thread: 1, duration_ns: 7, ..Sync::default() });
        });
        let ids = |rows: &[AtStack]| rows.iter().map(|row| (row.id, row.count)).collect::<Vec<_>>();
        assert_eq!(ids(&host.launches), [(2, 2), (0, 1), (1, 1)]);
        assert_eq!(host.launches[1].stack, [""; 0], "recorded without a stack");
        assert_eq!((ids(&host.waits), host.waited_ns), (vec![(3, 1), (1, 1)], 12));
        assert_eq!(host.failed_launches, 1);
        let threads: Vec<_> =
            host.threads.iter().map(|row| (row.pid, row.launches, row.waited_ns, row.calls)).collect();
        assert_eq!(threads, [(Some(10), 2, 7, 3), (Some(20), 2, 5, 3)]);
    }
}
