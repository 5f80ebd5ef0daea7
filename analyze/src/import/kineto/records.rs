//! What lies between reading and writing: the file's events, classified, before anything is joined.
//!
//! A trace can only be written after its last byte was read: the base of its times and the devices' properties may
//! come last, events are not in order of time, and a call is a launch only if a kernel has its correlation. Strings
//! and frames are already the sink's ids; threads and places on devices are numbers into the lists here, as their
//! process is not known yet.

use std::hash::Hash;

use ktape_format::definition::Shape;
use ktape_format::event::{Counter, Mark, Range, Slice, timing};
use rayon::slice::ParallelSliceMut as _;
use rustc_hash::FxHashMap;

use super::edges::Edge;
use super::error::Fault;
use crate::import::calls::CallName;
use crate::import::stacks::Rank;

/// A process id and a thread id as the file has them.
pub(super) type ThreadKey = (i64, i64);

/// A place on a device as the file has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub(super) device: u32,
    /// `None` where the file does not say (annotations); 0 for ROCm, which has none.
    pub(super) context: Option<u64>,
    /// `None` for the device as a whole.
    pub(super) stream: Option<u64>,
}

/// A call of the runtime or driver API.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) start_ns: i64,
    pub(super) duration_ns: u64,
    pub(super) correlation: u64,
    /// Number into [`Records::threads`].
    pub(super) thread: u32,
    pub(super) function: u32,
    pub(super) args: u32,
    pub(super) name: CallName,
    /// What a HIP launch says of its kernel: number into [`Records::shapes`].
    pub(super) shape: Option<u32>,
}

/// A kernel, copy or memset.
#[derive(Debug)]
pub(super) struct DeviceOp {
    pub(super) start_ns: i64,
    pub(super) duration_ns: u64,
    pub(super) correlation: u64,
    /// Number into [`Records::places`].
    pub(super) place: u32,
    pub(super) graph: u64,
    pub(super) graph_node: u64,
    pub(super) args: u32,
    /// The `timing` code.
    pub(super) timing: u8,
    pub(super) work: Work,
}

/// What a device did.
#[derive(Debug)]
pub(super) enum Work {
    /// With a number into [`Records::shapes`].
    Kernel(u32),
    Memcpy {
        bytes: u64,
        kind: u8,
        source_memory: u8,
        target_memory: u8,
        peer_device: Option<u32>,
        name: u32,
    },
    Memset {
        bytes: u64,
        target_memory: u8,
        name: u32,
    },
}

/// A slice of a thread.
#[derive(Debug)]
pub(super) struct ThreadSlice {
    /// With a number into [`Records::threads`].
    pub(super) row: Slice,
    /// Where it stands in a stack; `None` for what is in none.
    pub(super) rank: Option<Rank>,
    /// The stack of Python frames that a 2021 operator says it was called from; 0 for none.
    pub(super) call_stack: u32,
}

/// A range of a thread or of a place on a device.
#[derive(Debug)]
pub(super) struct NamedRange {
    /// With a number into [`Records::threads`].
    pub(super) row: Range,
    /// Where on a device, for one that is there: number into [`Records::places`].
    pub(super) place: Option<u32>,
    /// The frame that it is in the stacks of its thread; 0 for a range that is in none.
    pub(super) frame: u32,
    /// The correlation of a synchronisation record, which tells its process.
    pub(super) correlation: u64,
}

/// An allocation, or a release where `bytes` is negative.
#[derive(Debug)]
pub(super) struct MemoryInstant {
    pub(super) start_ns: i64,
    /// Number into [`Records::threads`].
    pub(super) thread: u32,
    /// `None` for host memory.
    pub(super) device: Option<u32>,
    pub(super) bytes: i64,
    pub(super) address: u64,
    pub(super) allocated_bytes: u64,
    pub(super) reserved_bytes: u64,
}

/// A counter's value, with what it belongs to.
#[derive(Debug)]
pub(super) struct CounterValue {
    /// Without the counter's id.
    pub(super) row: Counter,
    pub(super) name: u32,
    /// The pid in the file, if it is a number.
    pub(super) pid: Option<i64>,
    /// The device of a `GPU 0 Counters` row.
    pub(super) device: Option<u32>,
}

/// What a synchronisation record tells of the host call with its correlation.
#[derive(Clone, Copy, Debug)]
pub(super) struct SyncRecord {
    /// The `sync_kind` code; `None` where a stream is made to wait for an event, and the host does not.
    pub(super) kind: Option<u8>,
    /// Number into [`Records::places`].
    pub(super) place: u32,
    pub(super) event: u64,
    pub(super) recorded_by: u64,
}

/// A metadata entry: a name or label of a process or thread.
#[derive(Debug)]
pub(super) struct Metadata {
    /// `process_name`, `process_labels` or `thread_name`.
    pub(super) entry: &'static str,
    pub(super) pid: i64,
    pub(super) tid: i64,
    pub(super) value: String,
}

/// The first call with each correlation: its number in [`Records::calls`].
pub(super) type CallsByCorrelation = FxHashMap<u64, u32>;

/// Things that many records have, numbered from 1 in order of appearance; 0 is none.
#[derive(Debug)]
pub(super) struct Numbered<T> {
    pub(super) things: Vec<T>,
    numbers: FxHashMap<T, u32>,
    /// What was asked for last: the same comes many times in a row.
    last: Option<(T, u32)>,
}

impl<T> Default for Numbered<T> {
    fn default() -> Self {
        Numbered { things: Vec::new(), numbers: FxHashMap::default(), last: None }
    }
}

impl<T: Copy + Eq + Hash> Numbered<T> {
    /// The number of a thing.
    pub(super) fn number(&mut self, thing: T) -> u32 {
        if let Some((_, number)) = self.last.filter(|(last, _)| *last == thing) {
            return number;
        }
        let next = self.things.len() as u32 + 1;
        let number = *self.numbers.entry(thing).or_insert(next);
        if number == next {
            self.things.push(thing);
        }
        self.last = Some((thing, number));
        number
    }

    /// The number of a thing that has one.
    pub(super) fn find(&self, thing: T) -> Option<u32> {
        self.numbers.get(&thing).copied()
    }

    /// The thing with a number, which is not 0.
    pub(super) fn get(&self, number: u32) -> T {
        self.things[number as usize - 1]
    }

    /// Numbers the things of a part; returns their numbers here by those there, with 0 for none.
    pub(super) fn number_all(&mut self, part: &Numbered<T>, with: impl Fn(T) -> T) -> Vec<u32> {
        std::iter::once(0).chain(part.things.iter().map(|thing| self.number(with(*thing)))).collect()
    }
}

/// The range of the starts seen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Starts {
    pub(super) least_ns: i64,
    pub(super) greatest_ns: i64,
    /// The least that is not 0.
    pub(super) least_set_ns: i64,
}

impl Default for Starts {
    fn default() -> Self {
        Starts { least_ns: i64::MAX, greatest_ns: i64::MIN, least_set_ns: i64::MAX }
    }
}

impl Starts {
    /// Takes a start into account.
    pub(super) fn see(&mut self, start_ns: i64) {
        self.least_ns = self.least_ns.min(start_ns);
        self.greatest_ns = self.greatest_ns.max(start_ns);
        if start_ns != 0 {
            self.least_set_ns = self.least_set_ns.min(start_ns);
        }
    }

    /// Takes the starts of another part of the text into account.
    pub(super) fn join(&mut self, other: Starts) {
        self.least_ns = self.least_ns.min(other.least_ns);
        self.greatest_ns = self.greatest_ns.max(other.greatest_ns);
        self.least_set_ns = self.least_set_ns.min(other.least_set_ns);
    }

    /// The start of an event that the profiler gave none: the earliest of the others.
    pub(super) fn set(&self, start_ns: &mut i64) -> bool {
        let unset = self.is_unset(*start_ns);
        if unset {
            *start_ns = self.least_set_ns;
        }
        unset
    }

    /// Whether a start is one that the profiler did not set: 0 where all others are more than an hour later.
    fn is_unset(&self, start_ns: i64) -> bool {
        const HOUR_NS: i64 = 3_600_000_000_000;
        start_ns == 0 && self.least_set_ns > HOUR_NS && self.least_set_ns != i64::MAX
    }
}

/// Everything of a file.
#[derive(Debug, Default)]
pub(super) struct Records {
    pub(super) threads: Numbered<ThreadKey>,
    pub(super) places: Numbered<Place>,
    pub(super) shapes: Numbered<Shape>,
    /// The pids of processes that really ran, in order of appearance.
    pub(super) processes: Numbered<i64>,
    pub(super) calls: Vec<Call>,
    pub(super) device_ops: Vec<DeviceOp>,
    pub(super) slices: Vec<ThreadSlice>,
    /// Beginnings and ends of further slices.
    pub(super) edges: Vec<Edge>,
    pub(super) ranges: Vec<NamedRange>,
    pub(super) memory: Vec<MemoryInstant>,
    pub(super) marks: Vec<Mark>,
    pub(super) counters: Vec<CounterValue>,
    /// By correlation.
    pub(super) syncs: FxHashMap<u64, SyncRecord>,
    /// Streams' priorities, where the file says them, by number of the place.
    pub(super) priorities: FxHashMap<u32, i32>,
    pub(super) metadata: Vec<Metadata>,
    /// What the trace says of itself: its top-level keys and their values.
    pub(super) properties: Vec<(String, String)>,
    pub(super) starts: Starts,
    /// `baseTimeNanoseconds`.
    pub(super) base_ns: i64,
    /// `deviceProperties`, as JSON.
    pub(super) device_properties: Option<String>,
    /// `distributedInfo`, as JSON.
    pub(super) distributed_info: Option<String>,
    /// The vendor that the names of the profiler's own versions give away (`definition::vendor`).
    pub(super) vendor: u8,
}

/// Whether a kernel's own record, without shared memory, is otherwise what its call asked for.
pub(super) fn is_without_shared_memory_of(kernel: &Shape, call: &Shape) -> bool {
    kernel.shared_bytes == 0 && Shape { dynamic_shared_bytes: 0, ..*call } == *kernel
}

impl Records {
    /// The base of the file's times, if all of them lie on the tape's clock with it.
    pub(super) fn checked_base_ns(&self) -> Result<i64, Fault> {
        let ends = [self.starts.least_ns, self.starts.greatest_ns];
        if self.starts.least_ns <= self.starts.greatest_ns
            && ends.iter().any(|end| end.checked_add(self.base_ns).is_none())
        {
            let base_ns = self.base_ns;
            return Err(Fault::Times(format!(
                "its times from `baseTimeNanoseconds` {base_ns} on are beyond the year 2262; that key must be wrong"
            )));
        }
        Ok(self.base_ns)
    }

    /// Gives events without a time the earliest of the file, and device work that of its call, as work whose time is
    /// not known. Returns how many of each there were.
    pub(super) fn set_missing_times(&mut self) -> (u64, u64) {
        let starts = self.starts;
        // So it is in nearly all files.
        if starts.least_ns > 0 {
            return (0, 0);
        }
        if starts.is_unset(starts.least_ns) {
            self.starts.least_ns = starts.least_set_ns;
        }
        let mut on_host = 0;
        let mut set = |start_ns: &mut i64| on_host += u64::from(starts.set(start_ns));
        self.calls.iter_mut().for_each(|call| set(&mut call.start_ns));
        self.slices.iter_mut().for_each(|slice| set(&mut slice.row.start_ns));
        self.edges.iter_mut().for_each(|edge| set(&mut edge.at_ns));
        self.ranges.iter_mut().for_each(|range| set(&mut range.row.start_ns));
        self.memory.iter_mut().for_each(|instant| set(&mut instant.start_ns));
        self.marks.iter_mut().for_each(|mark| set(&mut mark.start_ns));
        self.counters.iter_mut().for_each(|counter| set(&mut counter.row.start_ns));
        let mut on_device = 0;
        if !self.device_ops.iter().any(|op| starts.is_unset(op.start_ns)) {
            return (on_host, on_device);
        }
        let calls = self.calls_by_correlation();
        for op in self.device_ops.iter_mut().filter(|op| starts.is_unset(op.start_ns)) {
            let call = calls.get(&op.correlation).map(|call| &self.calls[*call as usize]);
            op.start_ns = call.map_or(starts.least_set_ns, |call| call.start_ns);
            op.duration_ns = 0;
            op.timing = timing::ABSENT;
            on_device += 1;
        }
        (on_host, on_device)
    }

    /// Shortens what ends beyond the last time that the tape's clock has. Returns how many there were.
    pub(super) fn cut_ends(&mut self, base_ns: i64) -> u64 {
        let mut cut = 0;
        let mut fit = |start_ns: i64, duration_ns: &mut u64| {
            let longest_ns = i64::MAX.abs_diff(start_ns + base_ns);
            cut += u64::from(*duration_ns > longest_ns);
            *duration_ns = longest_ns.min(*duration_ns);
        };
        self.calls.iter_mut().for_each(|call| fit(call.start_ns, &mut call.duration_ns));
        self.device_ops.iter_mut().for_each(|op| fit(op.start_ns, &mut op.duration_ns));
        self.slices.iter_mut().for_each(|slice| fit(slice.row.start_ns, &mut slice.row.duration_ns));
        self.ranges.iter_mut().for_each(|range| fit(range.row.start_ns, &mut range.row.duration_ns));
        cut
    }

    /// Puts every kind in order of time; what begins together stays in the file's order.
    pub(super) fn sort(&mut self) {
        self.calls.par_sort_by_key(|call| call.start_ns);
        self.device_ops.par_sort_by_key(|op| op.start_ns);
        self.slices.par_sort_by_key(|slice| slice.row.start_ns);
        self.ranges.par_sort_by_key(|range| range.row.start_ns);
        self.memory.par_sort_by_key(|instant| instant.start_ns);
        self.marks.par_sort_by_key(|mark| mark.start_ns);
        self.counters.par_sort_by_key(|counter| counter.row.start_ns);
    }

    /// Finds calls by the correlation that their device work has too. 0 is none.
    pub(super) fn calls_by_correlation(&self) -> CallsByCorrelation {
        let mut calls = FxHashMap::default();
        for (number, call) in self.calls.iter().enumerate().filter(|(_, call)| call.correlation != 0) {
            calls.entry(call.correlation).or_insert(number as u32);
        }
        calls
    }
}
