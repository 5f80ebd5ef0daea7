//! Perfetto traces: a timeline as protobuf for ui.perfetto.dev and trace_processor.
//!
//! Device work goes into Perfetto's native model of GPU compute (`device`), host work onto tracks of nesting slices
//! (`host`, `nest`, `host_events`), both joined by arrows (`links`); `counters` are curves. Every id that a packet
//! refers to (`tracks`, `text`, `labels`, `stacks`) is fixed before the first event is encoded, so that encoding
//! (`packets`, `proto`) runs in parallel and streams.
//!
//! Perfetto sorts packets by time and leaves those of one time in file order. Each track's packets are therefore
//! written together and in nesting order, which also settles what happens at equal times.

mod counters;
mod device;
mod host;
mod host_events;
mod labels;
mod links;
mod nest;
mod packets;
mod proto;
mod stacks;
mod text;
mod tracks;
mod untimed;

use std::io::{self, Write};

use ktape_format::Table as _;
use ktape_format::event::clock_kind;
use rustc_hash::FxHashMap;

use crate::timeline::Timeline;
use counters::Counters;
use device::DeviceEvents;
use host::Host;
use host_events::{HostEvents, used_stacks};
use labels::Labels;
use links::Links;
use packets::PacketWriter;
use proto::{BOOTTIME, Clock, ClockSnapshot, InternedData, MONOTONIC, REALTIME, TracePacket};
use stacks::Stacks;
use text::Texts;
use tracks::Tracks;
use untimed::Untimed;

/// What was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Summary {
    /// Events of the timeline.
    pub events: u64,
    /// Packets, of which a slice takes two.
    pub packets: u64,
    /// Bytes, after compression.
    pub bytes: u64,
    /// Slices that partly overlap others of their kind and thread, and so are on a second track.
    pub crossing_slices: u64,
    /// Ranges whose begin or end is not on the tape; they reach to the trace's edge.
    pub open_ranges: u64,
}

/// Writes a timeline to `out`, as a gzip file if `gzip` is set.
///
/// The bytes depend on the timeline only, not on the number of threads.
pub fn write<W: Write + Send>(timeline: &Timeline, out: W, gzip: bool) -> io::Result<Summary> {
    let span_ns = timeline.span_ns().unwrap_or((0, 0));
    let clock = TraceClock { shift_ns: span_ns.0.min(0) };
    let definitions = &timeline.definitions;
    let mut ops = timeline.device_ops();
    let untimed = Untimed::take(timeline, &mut ops);
    let links = Links::new(timeline, &ops);

    let mut tracks = Tracks::new(definitions, &lost_by_process(timeline), timeline.host_only);
    let host = Host::new(timeline, span_ns, &mut tracks);
    let counters = Counters::new(timeline, &ops, &links, &mut tracks);

    let mut texts = Texts::new(definitions);
    let labels = Labels::new(timeline, &mut texts);
    let stacks = Stacks::new(definitions, &used_stacks(&timeline.events), &mut texts);
    let mut host_events = HostEvents::new(timeline, &labels, &links, &untimed, &stacks, &mut texts);
    host.lanes().for_each(|lane| host_events.category(lane, &mut texts));
    let device_events = DeviceEvents::new(timeline, &ops, &labels, &links, &tracks, &mut texts);

    let mut writer = PacketWriter::new(out, gzip);
    writer.first(TracePacket {
        clock_snapshot: Some(clock.snapshot(timeline, span_ns.0)),
        ..stamped(&clock, span_ns.0)
    })?;
    writer.describe([TracePacket { gpu_info: Some(tracks.gpu_info()), ..stamped(&clock, span_ns.0) }])?;
    let descriptors = tracks.descriptors.iter().cloned();
    writer.describe(
        descriptors.map(|descriptor| TracePacket { track_descriptor: Some(descriptor), ..stamped(&clock, span_ns.0) }),
    )?;
    let places = InternedData {
        graphics_contexts: tracks.graphics_contexts(),
        gpu_specifications: tracks.queues().0,
        ..InternedData::default()
    };
    let interned =
        std::iter::once(places).chain(texts.interned()).chain(stacks.interned()).chain(device_events.interned(&tracks));
    writer.describe(interned.map(|data| TracePacket { interned_data: Some(data), ..stamped(&clock, span_ns.0) }))?;

    writer.events(ops.len(), |range, portion| {
        for index in range {
            portion.add(|packet| {
                packet.timestamp = Some(clock.time(ops[index].start_ns));
                device_events.fill(index, packet.gpu_render_stage_event.get_or_insert_default());
            });
        }
    })?;
    writer.events(host.edges(), |range, portion| {
        host.walk(range, |lane, uuid, slice, is_end| {
            if is_end && slice.is_instant() {
                return;
            }
            portion.add(|packet| {
                packet.timestamp = Some(clock.time(if is_end { slice.end_ns } else { slice.start_ns }));
                let event = packet.track_event.get_or_insert_default();
                if is_end { host_events.end(uuid, event) } else { host_events.begin(lane, uuid, slice, event) }
            });
        });
    })?;
    writer.events(counters.len(), |range, portion| {
        counters.walk(range, |time_ns, fill| {
            portion.add(|packet| {
                packet.timestamp = Some(clock.time(time_ns));
                fill(packet.track_event.get_or_insert_default());
            });
        });
    })?;

    let summary = Summary {
        events: timeline.events.len() as u64,
        packets: writer.packets,
        bytes: writer.bytes,
        crossing_slices: host.crossing,
        open_ranges: host.open_ranges,
    };
    writer.finish()?;
    Ok(summary)
}

/// How times of the tape are written: as they are, unless they are negative, which Perfetto's cannot be.
struct TraceClock {
    /// Subtracted from every time; 0 or negative.
    shift_ns: i64,
}

impl TraceClock {
    fn time(&self, time_ns: i64) -> u64 {
        u64::try_from(time_ns.saturating_sub(self.shift_ns)).unwrap_or(0)
    }

    /// The trace's first instant on the clocks that the tape knows. The tape's own is what Perfetto calls BOOTTIME,
    /// the clock of packets that name none.
    fn snapshot(&self, timeline: &Timeline, first_ns: i64) -> ClockSnapshot {
        let mut clocks = vec![Clock { clock_id: BOOTTIME, timestamp: Some(self.time(first_ns)) }];
        for (kind, clock_id) in [(clock_kind::UNIX, REALTIME), (clock_kind::MONOTONIC, MONOTONIC)] {
            if let Some(pair) = timeline.events.clock.rows().find(|pair| pair.clock == kind) {
                let time_ns = pair.value_ns.saturating_add(first_ns.saturating_sub(pair.start_ns));
                clocks.extend(u64::try_from(time_ns).ok().map(|time| Clock { clock_id, timestamp: Some(time) }));
            }
        }
        ClockSnapshot { clocks, primary_trace_clock: BOOTTIME }
    }
}

fn stamped(clock: &TraceClock, time_ns: i64) -> TracePacket {
    TracePacket { timestamp: Some(clock.time(time_ns)), ..TracePacket::default() }
}

/// How many events each process lost; under 0 those of no known process.
fn lost_by_process(timeline: &Timeline) -> FxHashMap<u32, u64> {
    let mut lost: FxHashMap<u32, u64> = FxHashMap::default();
    for loss in timeline.events.loss.rows() {
        let count = lost.entry(loss.process).or_default();
        *count = count.saturating_add(loss.count);
    }
    lost
}
