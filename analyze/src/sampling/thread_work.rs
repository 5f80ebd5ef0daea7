//! What a sampler of the CPU can find: a thread is in one stack at an instant, so its slices are cut into *self* time.
//!
//! Of the slices that run, the thread is in the one that began last. Slices of real traces do not always nest (ends are
//! rounded, a profiler closes them late), so one may outlive the slice it began in; its stack stays the one it began
//! with.

use ktape_format::Table;
use ktape_format::definition::{Frame, frame_kind};
use ktape_format::event::Event as _;
use rustc_hash::FxHashMap;

use super::device_work::{function_label, stack_label};
use super::work::{By, Collector, Interval};
use crate::timeline::Timeline;
use crate::timeline::names::MOST_FRAMES;

/// Adds the self time of all threads: of Python functions or, where the trace has none, of all but a profiler's own
/// slices. Returns whether it is the latter.
pub(super) fn collect(collector: &mut Collector, timeline: &Timeline, by: By) -> bool {
    let slices = &timeline.events.slice;
    let kind = |frame: u32| timeline.definitions.get::<Frame>(frame).map_or(frame_kind::UNKNOWN, |frame| frame.kind);
    let operators_only = !slices.frame.iter().any(|&frame| kind(frame) == frame_kind::PYTHON);
    let mut of_thread: FxHashMap<u32, Vec<Slice>> = FxHashMap::default();
    for row in slices.rows() {
        let seen = if operators_only {
            kind(row.frame) != frame_kind::OVERHEAD
        } else {
            kind(row.frame) == frame_kind::PYTHON
        };
        if seen {
            let slice = Slice { start_ns: row.start_ns, end_ns: row.end_ns(), what: row.frame };
            of_thread.entry(row.thread).or_default().push(slice);
        }
    }
    let mut keys = Keys { timeline, by, found: FxHashMap::default() };
    cut_all(collector, of_thread, |collector, callers, caller, frame| match caller {
        Some(caller) if by == By::Stack && callers >= MOST_FRAMES => caller,
        _ => keys.key(collector, caller, frame),
    });
    operators_only
}

/// Adds the self time of each thread's slices. `key_of` says under which key a slice goes: by how many callers it has, the
/// nearest one's key, and what it is.
pub(super) fn cut_all(
    collector: &mut Collector,
    of_thread: FxHashMap<u32, Vec<Slice>>,
    mut key_of: impl FnMut(&mut Collector, usize, Option<u32>, u32) -> u32,
) {
    let mut threads: Vec<_> = of_thread.into_iter().collect();
    threads.sort_unstable_by_key(|(thread, _)| *thread);
    for (thread, mut slices) in threads {
        // Of those that begin together the longest is the caller.
        slices.sort_by_key(|slice| (slice.start_ns, std::cmp::Reverse(slice.end_ns)));
        let track = collector.track(thread);
        cut(collector, &mut key_of, track, &slices);
    }
}

/// A stretch of a thread's time.
#[derive(Clone, Copy)]
pub(super) struct Slice {
    pub(super) start_ns: i64,
    pub(super) end_ns: i64,
    /// What it is looked up by: a frame's id, or a stack's.
    pub(super) what: u32,
}

/// The key of time in which no sampler finds the thread. It is nobody's self time.
pub(super) const NOT_RUNNING: u32 = u32::MAX;

struct Open {
    end_ns: i64,
    key: u32,
    self_ns: u64,
}

/// Cuts a thread's slices, callers first, into self time.
fn cut(
    collector: &mut Collector,
    key_of: &mut impl FnMut(&mut Collector, usize, Option<u32>, u32) -> u32,
    track: u32,
    slices: &[Slice],
) {
    let mut open: Vec<Open> = Vec::new();
    // The time up to which the thread is accounted for.
    let mut now_ns = i64::MIN;
    for slice in slices {
        close(collector, track, &mut open, &mut now_ns, slice.start_ns);
        if let Some(top) = open.last_mut() {
            spend(collector, track, top, &mut now_ns, slice.start_ns);
        }
        now_ns = now_ns.max(slice.start_ns);
        let caller = open.last().map(|caller| caller.key);
        let key = key_of(collector, open.len(), caller, slice.what);
        open.push(Open { end_ns: slice.end_ns, key, self_ns: 0 });
    }
    close(collector, track, &mut open, &mut now_ns, i64::MAX);
}

/// Closes what is innermost and over by `until_ns`. What is over but not innermost waits until it is.
fn close(collector: &mut Collector, track: u32, open: &mut Vec<Open>, now_ns: &mut i64, until_ns: i64) {
    while let Some(mut top) = open.pop_if(|top| top.end_ns <= until_ns) {
        let end_ns = top.end_ns;
        spend(collector, track, &mut top, now_ns, end_ns);
        if top.key != NOT_RUNNING {
            collector.times.measured += 1;
            collector.call(top.key, top.self_ns);
        } else if !open.is_empty() {
            collector.not_running_ns = collector.not_running_ns.saturating_add(top.self_ns);
        }
    }
}

/// Gives the time from now on to the innermost slice.
fn spend(collector: &mut Collector, track: u32, top: &mut Open, now_ns: &mut i64, until_ns: i64) {
    if until_ns > *now_ns {
        top.self_ns += until_ns.abs_diff(*now_ns);
        if top.key != NOT_RUNNING {
            collector.interval(Interval { start_ns: *now_ns, end_ns: until_ns, key: top.key, track });
        }
        *now_ns = until_ns;
    }
}

/// Keys of slices, by the caller's key (where a key is a whole stack) and the frame.
struct Keys<'a> {
    timeline: &'a Timeline,
    by: By,
    found: FxHashMap<(Option<u32>, u32), u32>,
}

impl Keys<'_> {
    fn key(&mut self, collector: &mut Collector, caller: Option<u32>, frame: u32) -> u32 {
        let caller = caller.filter(|_| self.by == By::Stack);
        let definitions = &self.timeline.definitions;
        *self.found.entry((caller, frame)).or_insert_with(|| {
            let function = function_label(definitions, frame);
            match caller {
                None => collector.key(&function, || function.clone()),
                Some(caller) => {
                    let path = format!("{};{function}", collector.keys[caller as usize].name);
                    let frames: Vec<&str> = path.split(';').collect();
                    collector.key(&path, || stack_label(&frames))
                }
            }
        })
    }
}
