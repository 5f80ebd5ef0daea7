//! What a sampler can find: intervals on tracks (streams or threads), each with a key (kernel, function, stack).
//!
//! On a stream, operations may overlap (programmatic dependent launch, parallel nodes of a graph); each is an interval
//! of its own, and a sample finds all that run. On a thread, a sample finds one stack, so slices are cut into pieces
//! of *self* time: at each instant the thread is in the slice that, of those running, began last.

use ktape_format::Table as _;
use ktape_format::event::timing;
use rustc_hash::FxHashMap;
use serde::Serialize;

use super::{Error, call_work, device_work, thread_work};
use crate::timeline::Timeline;
use crate::timeline::weights::Overflow;

/// What a simulated sampler looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Sampler {
    /// What runs on each stream at the instant
    Gpu,
    /// Where each thread's stack is at the instant
    Cpu,
}

/// What a row of a comparison is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum By {
    /// A kernel, kind of copy or memset
    Kernel,
    /// A function: the innermost of the stack (on the GPU: of the stack that launched)
    Function,
    /// A whole stack
    Stack,
}

/// A stretch of time in which a sample of a track finds a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    /// When it begins.
    pub start_ns: i64,
    /// When it is over: a sample at this instant finds it no more.
    pub end_ns: i64,
    /// Index into [`Work::keys`].
    pub key: u32,
    /// Which stream or thread, counted from 0.
    pub track: u32,
}

/// Something that a sampler can find, and the truth about it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Key {
    /// The whole name: unique.
    pub name: String,
    /// The name as a person reads it; may be shared.
    pub label: String,
    /// How often it ran.
    pub calls: u64,
    /// For how long, all calls together.
    pub exact_ns: u64,
}

/// How good the exact times are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Times {
    /// Operations timed on the device, or host slices.
    pub measured: u64,
    /// Operations of which only the widest possible interval is known.
    pub bounded: u64,
    /// Operations without a time, which no sampler can find.
    pub absent: u64,
}

/// All that a sampler can find in a trace.
#[derive(Clone, Debug)]
pub struct Work {
    /// What is looked at.
    pub sampler: Sampler,
    /// What a key is.
    pub by: By,
    /// The keys by exact rank: longest time first, then by name. An index is a rank less one.
    pub keys: Vec<Key>,
    /// Sorted by track, then start.
    pub intervals: Vec<Interval>,
    /// How long each call is found for: key and self time.
    pub calls: Vec<(u32, u64)>,
    /// How many streams or threads.
    pub tracks: u32,
    /// The track of each stream or thread, by its id.
    pub track_of: FxHashMap<u32, u32>,
    /// The time that can be observed: the whole trace.
    pub span_ns: (i64, i64),
    /// How good the times are.
    pub times: Times,
    /// Whether threads are seen in operators, as the trace has no Python functions.
    pub operators_only: bool,
    /// Where threads are seen only while they are in a recorded call, how much of that is left out as they waited in it.
    pub calls_only: Option<Waits>,
}

/// Calls that wait for the device: a thread in one does not run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Waits {
    /// How many.
    pub calls: u64,
    /// How long they took.
    pub waited_ns: u64,
    /// In the others, the time in which the thread did not run; `None` where that was not recorded, and is in their time.
    pub not_running_ns: Option<u64>,
}

impl Work {
    /// Collects what `sampler` can find, by default whatever the trace has. All its times together fit 64 bits.
    pub fn collect(timeline: &Timeline, sampler: Option<Sampler>, by: Option<By>) -> Result<Work, Error> {
        let ops = timeline.device_ops();
        let has_times = !timeline.host_only && ops.iter().any(|op| op.timing != timing::ABSENT);
        let sampler = sampler.unwrap_or(if has_times { Sampler::Gpu } else { Sampler::Cpu });
        let by = by.unwrap_or(if sampler == Sampler::Gpu { By::Kernel } else { By::Function });
        let mut collector = Collector::default();
        let mut calls_only = None;
        let operators_only = match (sampler, by) {
            (Sampler::Gpu, _) if timeline.host_only => return Err(Error::HostOnly),
            (Sampler::Gpu, _) => {
                device_work::collect(&mut collector, timeline, &ops, by);
                if collector.intervals.is_empty() {
                    return Err(Error::NoDeviceWork);
                }
                false
            }
            (Sampler::Cpu, By::Kernel) => return Err(Error::KernelsOnCpu),
            (Sampler::Cpu, _) => {
                let operators_only = thread_work::collect(&mut collector, timeline, by);
                if collector.intervals.is_empty() && timeline.host_only {
                    calls_only = call_work::collect(&mut collector, timeline, &ops, by);
                    if calls_only.is_none() {
                        return Err(Error::HostOnly);
                    }
                }
                if collector.intervals.is_empty() {
                    let is_live = !timeline.events.lifecycle.is_empty();
                    return Err(if is_live { Error::CallsBesideDevice } else { Error::NoHostSlices });
                }
                operators_only
            }
        };
        if collector.exact_ns > u128::from(u64::MAX) {
            return Err(Overflow.into());
        }
        let span_ns = timeline.span_ns().unwrap_or_default();
        Ok(Work { calls_only, ..collector.finish(sampler, by, span_ns, operators_only) })
    }

    /// The time of all keys together.
    pub fn exact_ns(&self) -> u64 {
        self.keys.iter().map(|key| key.exact_ns).sum()
    }
}

/// Work as it is found, its keys in order of appearance.
#[derive(Default)]
pub(super) struct Collector {
    pub(super) keys: Vec<Key>,
    ids: FxHashMap<String, u32>,
    intervals: Vec<Interval>,
    calls: Vec<(u32, u64)>,
    tracks: FxHashMap<u32, u32>,
    /// The time of all calls.
    exact_ns: u128,
    /// The time in calls in which the thread did not run.
    pub(super) not_running_ns: u64,
    pub(super) times: Times,
}

impl Collector {
    /// The key of this name.
    pub(super) fn key(&mut self, name: &str, label: impl FnOnce() -> String) -> u32 {
        if let Some(&id) = self.ids.get(name) {
            return id;
        }
        let id = self.keys.len() as u32;
        self.keys.push(Key { name: name.to_owned(), label: label(), ..Key::default() });
        self.ids.insert(name.to_owned(), id);
        id
    }

    /// The track of a stream or thread.
    pub(super) fn track(&mut self, id: u32) -> u32 {
        let next = self.tracks.len() as u32;
        *self.tracks.entry(id).or_insert(next)
    }

    /// Counts a call that can be found for so long.
    pub(super) fn call(&mut self, key: u32, found_ns: u64) {
        let entry = &mut self.keys[key as usize];
        entry.calls += 1;
        entry.exact_ns = entry.exact_ns.saturating_add(found_ns);
        self.exact_ns += u128::from(found_ns);
        self.calls.push((key, found_ns));
    }

    /// Adds time in which a key is found; an empty interval is none.
    pub(super) fn interval(&mut self, interval: Interval) {
        if interval.end_ns > interval.start_ns {
            self.intervals.push(interval);
        }
    }

    /// Puts the keys into the order of their exact ranks.
    fn finish(mut self, sampler: Sampler, by: By, span_ns: (i64, i64), operators_only: bool) -> Work {
        let mut order: Vec<u32> = (0..self.keys.len() as u32).collect();
        order.sort_unstable_by(|&a, &b| {
            let (a, b) = (&self.keys[a as usize], &self.keys[b as usize]);
            b.exact_ns.cmp(&a.exact_ns).then_with(|| a.name.cmp(&b.name))
        });
        let mut rank_of = vec![0; order.len()];
        for (rank, &key) in order.iter().enumerate() {
            rank_of[key as usize] = rank as u32;
        }
        for interval in &mut self.intervals {
            interval.key = rank_of[interval.key as usize];
        }
        for (key, _) in &mut self.calls {
            *key = rank_of[*key as usize];
        }
        self.intervals
            .sort_unstable_by_key(|interval| (interval.track, interval.start_ns, interval.end_ns, interval.key));
        let keys = order.iter().map(|&key| std::mem::take(&mut self.keys[key as usize])).collect();
        let (intervals, calls, times, tracks) = (self.intervals, self.calls, self.times, self.tracks.len() as u32);
        let track_of = self.tracks;
        Work { sampler, by, keys, intervals, calls, tracks, track_of, span_ns, times, operators_only, calls_only: None }
    }
}
