//! The arrows: which device work a host call submitted, which it waited for, and which work waited for other work.
//!
//! A device operation is known by its place in [`Timeline::device_ops`]; its id in the trace is that plus one.

use ktape_format::Table;
use ktape_format::definition::{Context, Stream};
use ktape_format::event::{Event, EventRecord, EventWait, Sync, sync_kind};
use rustc_hash::FxHashMap;

use crate::timeline::{DeviceOp, DeviceOpKind, Submitter, Timeline};

/// A wait is for work that ends within it. The host's and the device's clock may disagree by as much as this.
const CLOCK_SLACK_NS: i64 = 10_000;

/// A wait for a whole context names the last work of this many streams at most.
const MAX_WAITED: usize = 64;

/// The id of a device operation in the trace.
pub(super) fn event_id(op: usize) -> u64 {
    op as u64 + 1
}

/// What is joined with what.
pub(super) struct Links {
    /// By row of `events.launch`.
    pub(super) launch: Submitted,
    /// By row of `events.graph_launch`.
    pub(super) graph_launch: Submitted,
    /// By row of `events.api`.
    pub(super) api: Submitted,
    /// By row of `events.sync`: the operations that it waited for.
    pub(super) sync: Groups,
    /// By operation: the operations that it had to wait for.
    pub(super) op_waits: FxHashMap<u32, Vec<u32>>,
    /// By operation: when it was submitted, or began if its submitting call is not on the tape.
    pub(super) submitted_ns: Vec<i64>,
    /// By operation: whether the call that submitted it is on the tape.
    pub(super) has_submitter: Vec<bool>,
}

impl Links {
    pub(super) fn new(timeline: &Timeline, ops: &[DeviceOp]) -> Links {
        let events = &timeline.events;
        let mut calls: [Vec<(u32, u32)>; 3] = Default::default();
        let mut submitted_ns = Vec::with_capacity(ops.len());
        let mut has_submitter = Vec::with_capacity(ops.len());
        for (index, op) in (0..).zip(ops) {
            let submitter = timeline.submitter(op);
            has_submitter.push(submitter.is_some());
            submitted_ns.push(match submitter {
                None => op.start_ns,
                Some(Submitter::Launch(row)) => {
                    calls[0].push((row, index));
                    events.launch.start_ns[row as usize]
                }
                Some(Submitter::GraphLaunch(row)) => {
                    calls[1].push((row, index));
                    events.graph_launch.start_ns[row as usize]
                }
                Some(Submitter::Api(row)) => {
                    calls[2].push((row, index));
                    events.api.start_ns[row as usize]
                }
            });
        }
        let queues = Queues::new(timeline, ops, &submitted_ns);
        let [launch, graph_launch, api] = calls;
        Links {
            launch: Submitted::new(events.launch.len(), launch, ops),
            graph_launch: Submitted::new(events.graph_launch.len(), graph_launch, ops),
            api: Submitted::new(events.api.len(), api, ops),
            sync: queues.host_waits(),
            op_waits: queues.device_waits(),
            submitted_ns,
            has_submitter,
        }
    }
}

/// Items by row, as one array with the rows' boundaries.
#[derive(Default)]
pub(super) struct Groups {
    bounds: Vec<u32>,
    items: Vec<u32>,
}

impl Groups {
    /// Groups items by their row; items of a row keep their order.
    fn new(rows: usize, pairs: &[(u32, u32)]) -> Groups {
        let mut bounds = vec![0_u32; rows + 1];
        for &(row, _) in pairs {
            bounds[row as usize + 1] += 1;
        }
        for row in 0..rows {
            bounds[row + 1] += bounds[row];
        }
        let mut next = bounds.clone();
        let mut items = vec![0; pairs.len()];
        for &(row, item) in pairs {
            items[next[row as usize] as usize] = item;
            next[row as usize] += 1;
        }
        Groups { bounds, items }
    }

    /// The items of a row.
    pub(super) fn of(&self, row: usize) -> &[u32] {
        &self.items[self.bounds[row] as usize..self.bounds[row + 1] as usize]
    }
}

/// What the calls of one table submitted.
pub(super) struct Submitted {
    /// The operations of each call.
    pub(super) ops: Groups,
    /// The exact device time of each call's operations.
    pub(super) device_ns: Vec<u64>,
}

impl Submitted {
    fn new(rows: usize, pairs: Vec<(u32, u32)>, ops: &[DeviceOp]) -> Submitted {
        let mut device_ns = vec![0_u64; rows];
        for &(row, op) in &pairs {
            device_ns[row as usize] = device_ns[row as usize].saturating_add(ops[op as usize].duration_ns());
        }
        Submitted { ops: Groups::new(rows, &pairs), device_ns }
    }
}

/// What was submitted to each stream, in order of submission.
struct Queues<'a> {
    timeline: &'a Timeline,
    ops: &'a [DeviceOp],
    /// By stream: when submitted, the operation, and the one of all up to it that ends last.
    streams: FxHashMap<u32, Vec<Queued>>,
    /// By process and correlation id: the stream and time of a call that recorded an event.
    records: FxHashMap<(u32, u64), (u32, i64)>,
}

struct Queued {
    submitted_ns: i64,
    op: u32,
    ends_last: u32,
}

impl<'a> Queues<'a> {
    fn new(timeline: &'a Timeline, ops: &'a [DeviceOp], submitted_ns: &[i64]) -> Queues<'a> {
        let mut streams: FxHashMap<u32, Vec<Queued>> = FxHashMap::default();
        for (index, op) in (0..).zip(ops) {
            let queued = Queued { submitted_ns: submitted_ns[index as usize], op: index, ends_last: index };
            streams.entry(op.stream).or_default().push(queued);
        }
        for queue in streams.values_mut() {
            queue.sort_by_key(|queued| (queued.submitted_ns, queued.op));
            for index in 1..queue.len() {
                let before = queue[index - 1].ends_last;
                if ops[before as usize].end_ns > ops[queue[index].op as usize].end_ns {
                    queue[index].ends_last = before;
                }
            }
        }
        let definitions = &timeline.definitions;
        let record = |row: EventRecord| {
            ((definitions.process_of_thread(row.thread), row.correlation), (row.stream, row.start_ns))
        };
        let records = timeline.events.event_record.rows().filter(|row| row.correlation != 0).map(record).collect();
        Queues { timeline, ops, streams, records }
    }

    /// Of what was submitted to a stream before a time, the operation that ends last.
    fn last_before(&self, stream: u32, time_ns: i64) -> Option<u32> {
        let queue = self.streams.get(&stream)?;
        let before = queue.partition_point(|queued| queued.submitted_ns < time_ns);
        Some(queue[before.checked_sub(1)?].ends_last)
    }

    /// The first operation submitted to a stream at or after a time.
    fn first_from(&self, stream: u32, time_ns: i64) -> Option<u32> {
        let queue = self.streams.get(&stream)?;
        let before = queue.partition_point(|queued| queued.submitted_ns < time_ns);
        queue.get(before).map(|queued| queued.op)
    }

    /// For each synchronisation: of each stream it waited for, the operation that held it up last.
    fn host_waits(&self) -> Groups {
        let syncs = &self.timeline.events.sync;
        let streams = self.streams_by_context();
        let mut pairs = Vec::new();
        for (index, row) in (0..).zip(syncs.rows()) {
            let held_up = |op: &u32| {
                let end_ns = self.ops[*op as usize].end_ns;
                end_ns > row.start_ns.saturating_sub(CLOCK_SLACK_NS)
                    && end_ns <= row.end_ns().saturating_add(CLOCK_SLACK_NS)
            };
            let (candidates, all) = self.candidates(&row, &streams);
            let waited: Vec<u32> = candidates.into_iter().filter(held_up).take(MAX_WAITED).collect();
            if all || waited.len() == 1 {
                pairs.extend(waited.into_iter().map(|op| (index, op)));
            }
        }
        Groups::new(syncs.len(), &pairs)
    }

    /// The last work of the streams that a synchronisation is for, and whether it is for all of them. If it is not
    /// known for which, it is for one of its process's, and is joined if there is only one that it can be.
    fn candidates(&self, row: &Sync, streams: &[(u32, u32, u32)]) -> (Vec<u32>, bool) {
        let definitions = &self.timeline.definitions;
        let process = definitions.process_of_thread(row.thread);
        let last_of = |wanted: &dyn Fn(u32, u32) -> bool| {
            let streams = streams.iter().filter(|(process, context, _)| wanted(*process, *context));
            streams.filter_map(|&(.., stream)| self.last_before(stream, row.start_ns)).collect()
        };
        let recorded = self.records.get(&(process, row.recorded_by));
        match (row.kind, definitions.get::<Stream>(row.stream), recorded) {
            (sync_kind::EVENT, _, Some(&(stream, time_ns))) => {
                (Vec::from_iter(self.last_before(stream, time_ns)), true)
            }
            (sync_kind::STREAM, Some(_), _) => (Vec::from_iter(self.last_before(row.stream, row.start_ns)), true),
            (sync_kind::CONTEXT, Some(stream), _) => (last_of(&|_, context| context == stream.context), true),
            (sync_kind::CONTEXT, None, _) => (last_of(&|of_process, _| of_process == process), true),
            _ => (last_of(&|of_process, _| of_process == process), false),
        }
    }

    /// Process, context and id of every stream with work, sorted.
    fn streams_by_context(&self) -> Vec<(u32, u32, u32)> {
        let definitions = &self.timeline.definitions;
        let place = |&stream: &u32| {
            let context = definitions.get::<Stream>(stream).map_or(0, |stream| stream.context);
            (definitions.get::<Context>(context).map_or(0, |context| context.process), context, stream)
        };
        let mut streams: Vec<_> = self.streams.keys().map(place).collect();
        streams.sort_unstable();
        streams
    }

    /// For each `cudaStreamWaitEvent`: the next operation of its stream waits for what preceded the event.
    fn device_waits(&self) -> FxHashMap<u32, Vec<u32>> {
        let mut waits: FxHashMap<u32, Vec<u32>> = FxHashMap::default();
        let process = |row: &EventWait| self.timeline.definitions.process_of_thread(row.thread);
        for row in self.timeline.events.event_wait.rows().filter(|row| row.recorded_by != 0) {
            let Some(&(stream, time_ns)) = self.records.get(&(process(&row), row.recorded_by)) else { continue };
            let Some(before) = self.last_before(stream, time_ns) else { continue };
            let Some(after) = self.first_from(row.stream, row.start_ns) else { continue };
            let waited = waits.entry(after).or_default();
            if before != after && !waited.contains(&before) {
                waited.push(before);
            }
        }
        waits
    }
}

/// Whether the operation is a kernel.
pub(super) fn is_kernel(op: &DeviceOp) -> bool {
    op.kind == DeviceOpKind::Kernel
}
