//! Curves: kernels queued, copy bandwidth, memory handed out, and the counters that are on the tape.
//!
//! The first three are derived. Sums run over integers (bandwidth in bytes a second), so a curve comes back to
//! exactly 0. At each time a curve has one value, the last.

use std::collections::BTreeMap;

use ktape_format::Table as _;
use ktape_format::definition::{CounterName, Device};
use ktape_format::event::{Alloc, Free, allocator, copy_kind, timing};
use rustc_hash::FxHashMap;

use super::links::{Links, is_kernel};
use super::proto::{TrackEvent, event_type};
use super::tracks::{Owner, Tracks};
use crate::timeline::host_side::address_space;
use crate::timeline::{DeviceOp, Timeline};

/// All curves.
pub(super) struct Counters {
    curves: Vec<Curve>,
    /// Where each curve's points begin in the list of all points; one more for the end.
    starts: Vec<usize>,
}

struct Curve {
    uuid: u64,
    points: Points,
}

/// Times and values, by time.
enum Points {
    Integer(Vec<(i64, i64)>),
    Real(Vec<(i64, f64)>),
}

impl Points {
    fn len(&self) -> usize {
        match self {
            Points::Integer(points) => points.len(),
            Points::Real(points) => points.len(),
        }
    }
}

impl Counters {
    /// Derives and collects all curves; their tracks are described in `tracks`.
    pub(super) fn new(timeline: &Timeline, ops: &[DeviceOp], links: &Links, tracks: &mut Tracks<'_>) -> Counters {
        let mut counters = Counters { curves: Vec::new(), starts: vec![0] };
        counters.queued(timeline, ops, links, tracks);
        counters.bandwidth(timeline, tracks);
        counters.memory(timeline, tracks);
        counters.recorded(timeline, tracks);
        counters
    }

    /// How many points there are.
    pub(super) fn len(&self) -> usize {
        self.starts.last().copied().unwrap_or(0)
    }

    /// Fills the packets of a range of the list of all points; `write` gets each with its time.
    pub(super) fn walk(&self, range: std::ops::Range<usize>, mut write: impl FnMut(i64, &dyn Fn(&mut TrackEvent))) {
        let mut curve = self.starts.partition_point(|start| *start <= range.start) - 1;
        for at in range {
            while at >= self.starts[curve + 1] {
                curve += 1;
            }
            let Curve { uuid, points } = &self.curves[curve];
            let point = at - self.starts[curve];
            let (time_ns, integer, real) = match points {
                Points::Integer(points) => (points[point].0, Some(points[point].1), None),
                Points::Real(points) => (points[point].0, None, Some(points[point].1)),
            };
            write(time_ns, &|event| {
                event.r#type = event_type::COUNTER;
                event.track_uuid = *uuid;
                event.counter_value = integer;
                event.double_counter_value = real;
            });
        }
    }

    fn add(&mut self, uuid: u64, points: Points) {
        self.starts.push(self.len() + points.len());
        self.curves.push(Curve { uuid, points });
    }

    /// Kernels that were launched and have not begun, by stream, and by device where it has several streams.
    fn queued(&mut self, timeline: &Timeline, ops: &[DeviceOp], links: &Links, tracks: &mut Tracks<'_>) {
        let mut streams: BTreeMap<(u32, u32), Vec<(i64, i64)>> = BTreeMap::new();
        for (index, op) in ops.iter().enumerate().filter(|(index, op)| is_kernel(op) && links.has_submitter[*index]) {
            let launched_ns = links.submitted_ns[index];
            let steps = streams.entry((op.device, op.stream)).or_default();
            // Where the clocks disagree, a kernel seems to begin before its launch; it was never queued then.
            steps.extend([(launched_ns, 1), (op.start_ns.max(launched_ns), -1)]);
        }
        let mut devices: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for &(device, stream) in streams.keys() {
            devices.entry(device).or_default().push(stream);
        }
        for (device, of_device) in devices.into_iter().filter(|(_, streams)| streams.len() > 1) {
            let steps = of_device.iter().flat_map(|&stream| &streams[&(device, stream)]).copied().collect();
            let name = format!("Kernels queued, {}", tracks.device_name(device));
            let process = timeline.definitions.process_of_stream(of_device[0]);
            let uuid = tracks.counter(Owner::Process(process), name, "kernels");
            self.add(uuid, Points::Integer(running_sum(steps)));
        }
        for ((_, stream), steps) in streams {
            let name = format!("Kernels queued, {}", tracks.stream_name(stream));
            let uuid = tracks.counter(Owner::Stream(stream), name, "kernels");
            self.add(uuid, Points::Integer(running_sum(steps)));
        }
    }

    /// What copies move, by process, device and direction, while they run. Of a copy that ran within a bound it is not known.
    fn bandwidth(&mut self, timeline: &Timeline, tracks: &mut Tracks<'_>) {
        let definitions = &timeline.definitions;
        let mut directions: BTreeMap<(u32, u32, u8), Vec<(i64, i64)>> = BTreeMap::new();
        for row in timeline.events.memcpy.rows().filter(|row| row.duration_ns > 0 && row.timing != timing::BOUNDED) {
            let rate = u128::from(row.bytes) * 1_000_000_000 / u128::from(row.duration_ns);
            let rate = i64::try_from(rate).unwrap_or(i64::MAX);
            let end_ns = row.start_ns.saturating_add_unsigned(row.duration_ns);
            let key = (definitions.process_of_stream(row.stream), definitions.device_of_stream(row.stream), row.kind);
            directions.entry(key).or_default().extend([(row.start_ns, rate), (end_ns, -rate)]);
        }
        for ((process, device, kind), steps) in directions {
            let direction = copy_kind::NAMES.get(kind as usize).unwrap_or(&"unknown");
            let name = format!("Copy bandwidth {direction}, {}", tracks.device_name(device));
            let uuid = tracks.counter(Owner::Process(process), name, "GB/s");
            let gigabytes = |(time_ns, bytes): (i64, i64)| (time_ns, bytes as f64 / 1e9);
            self.add(uuid, Points::Real(running_sum(steps).into_iter().map(gigabytes).collect()));
        }
    }

    /// What each allocator has handed out and reserved, by process and device.
    fn memory(&mut self, timeline: &Timeline, tracks: &mut Tracks<'_>) {
        let definitions = &timeline.definitions;
        let mut heaps: BTreeMap<(u32, u32, u8), Heap> = BTreeMap::new();
        // A free may not know where its memory was, or who had handed it out.
        let mut heap_of_address: FxHashMap<(u32, u8, u64), (u32, u32, u8)> = FxHashMap::default();
        let (mut allocs, mut frees) = (timeline.events.alloc.rows().peekable(), timeline.events.free.rows().peekable());
        loop {
            let free_first = match (allocs.peek(), frees.peek()) {
                (Some(alloc), Some(free)) => free.start_ns < alloc.start_ns,
                (None, Some(_)) => true,
                (Some(_), None) => false,
                (None, None) => break,
            };
            let heap = |thread, device, allocator| (definitions.process_of_thread(thread), device, allocator);
            if free_first && let Some(row) = frees.next() {
                let heap = heap(row.thread, row.device, row.allocator);
                let known = heap_of_address.remove(&(heap.0, address_space(row.allocator), row.address));
                heaps.entry(known.unwrap_or(heap)).or_default().free(&row);
            } else if let Some(row) = allocs.next() {
                let heap = heap(row.thread, row.device, row.allocator);
                heap_of_address.insert((heap.0, address_space(row.allocator), row.address), heap);
                heaps.entry(heap).or_default().alloc(&row);
            }
        }
        for ((process, device, code), heap) in heaps {
            let allocator = allocator::NAMES.get(code as usize).unwrap_or(&"unknown");
            let place = definitions.get::<Device>(device).map_or("host".to_owned(), |_| tracks.device_name(device));
            let mut add = |what: &str, points: Vec<(i64, i64)>| {
                if !points.is_empty() {
                    let uuid =
                        tracks.counter(Owner::Process(process), format!("{what} ({allocator}), {place}"), "bytes");
                    self.add(uuid, Points::Integer(last_of_each_time(points)));
                }
            };
            add("Allocated", if heap.stated.is_empty() { heap.summed } else { heap.stated });
            add("Reserved", heap.reserved);
        }
    }

    /// The counters on the tape.
    fn recorded(&mut self, timeline: &Timeline, tracks: &mut Tracks<'_>) {
        let definitions = &timeline.definitions;
        let mut counters: BTreeMap<u32, Vec<(i64, f64)>> = BTreeMap::new();
        for row in timeline.events.counter.rows() {
            counters.entry(row.counter).or_default().push((row.start_ns, row.value));
        }
        for (id, points) in counters {
            let counter = definitions.get::<CounterName>(id).unwrap_or_default();
            let name = match definitions.string(counter.name) {
                "" => format!("Counter {id}"),
                name if counter.device != 0 => format!("{name}, {}", tracks.device_name(counter.device)),
                name => name.to_owned(),
            };
            let owner = if counter.process == 0 { Owner::Trace } else { Owner::Process(counter.process) };
            let uuid = tracks.counter(owner, name, definitions.string(counter.unit));
            self.add(uuid, Points::Real(points));
        }
    }
}

/// One allocator's memory on one device.
#[derive(Default)]
struct Heap {
    /// What the source says is allocated, where it does.
    stated: Vec<(i64, i64)>,
    /// What the allocations and frees on the tape add up to.
    summed: Vec<(i64, i64)>,
    reserved: Vec<(i64, i64)>,
    /// Sizes by address. What was allocated before the recording is not in the sum, so its free is not either.
    live: FxHashMap<u64, u64>,
    sum: i64,
}

impl Heap {
    fn alloc(&mut self, row: &Alloc) {
        self.live.insert(row.address, row.bytes);
        self.sum = self.sum.saturating_add_unsigned(row.bytes);
        self.point(row.start_ns, row.allocated_bytes, row.reserved_bytes);
    }

    fn free(&mut self, row: &Free) {
        self.sum = self.sum.saturating_sub_unsigned(self.live.remove(&row.address).unwrap_or(0));
        self.point(row.start_ns, row.allocated_bytes, row.reserved_bytes);
    }

    fn point(&mut self, time_ns: i64, allocated: u64, reserved: u64) {
        let value = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        if allocated != 0 || !self.stated.is_empty() {
            self.stated.push((time_ns, value(allocated)));
        }
        if reserved != 0 || !self.reserved.is_empty() {
            self.reserved.push((time_ns, value(reserved)));
        }
        self.summed.push((time_ns, self.sum));
    }
}

/// Turns changes into values.
fn running_sum(mut steps: Vec<(i64, i64)>) -> Vec<(i64, i64)> {
    steps.sort_by_key(|(time_ns, _)| *time_ns);
    let mut sum = 0_i64;
    let mut points = steps;
    for point in &mut points {
        sum = sum.saturating_add(point.1);
        point.1 = sum;
    }
    last_of_each_time(points)
}

fn last_of_each_time(mut points: Vec<(i64, i64)>) -> Vec<(i64, i64)> {
    let mut kept = 0;
    for index in 0..points.len() {
        if points.get(index + 1).is_none_or(|next| next.0 != points[index].0) {
            points[kept] = points[index];
            kept += 1;
        }
    }
    points.truncate(kept);
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_value_for_each_time_and_back_to_nothing() {
        let steps = vec![(10, 5), (0, 7), (10, -7), (20, -5)];
        assert_eq!(running_sum(steps), [(0, 7), (10, 5), (20, 0)]);
        assert_eq!(running_sum(Vec::new()), []);
    }

    #[test]
    fn memory_from_before_the_recording_is_not_subtracted() {
        let mut heap = Heap::default();
        heap.free(&Free { start_ns: 1, address: 9, bytes: 100, ..Free::default() });
        heap.alloc(&Alloc { start_ns: 2, address: 1, bytes: 50, ..Alloc::default() });
        heap.free(&Free { start_ns: 3, address: 1, bytes: 0, ..Free::default() });
        assert_eq!(heap.summed, [(1, 0), (2, 50), (3, 0)]);
        assert!(heap.stated.is_empty() && heap.reserved.is_empty());
    }
}
