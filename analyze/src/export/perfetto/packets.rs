//! Packets to bytes: encoded in parallel by portions of events, written in order.
//!
//! Interning ids, track ids and event ids are all fixed before the first event is encoded, so portions know nothing
//! of each other: the bytes are the same whatever the number of threads, and only a few portions are in memory.

use std::io::{self, Write};
use std::ops::Range;

use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message as _;
use rayon::prelude::*;

use super::proto::{INCREMENTAL_STATE_CLEARED, NEEDS_INCREMENTAL_STATE, TracePacket};

/// Events of a portion.
const PORTION: usize = 4096;
/// Portions that are encoded together, and so are in memory together.
const PORTIONS: usize = 32;
/// `Trace.packet`: field 1, length-delimited.
const PACKET_TAG: u8 = 1 << 3 | 2;
/// All packets are of one sequence, which is what interning ids are valid for.
const SEQUENCE: u32 = 1;

/// Writes a trace's packets.
pub(super) struct PacketWriter<W> {
    out: W,
    gzip: bool,
    /// Bytes written so far, after compression.
    pub(super) bytes: u64,
    /// Packets written so far.
    pub(super) packets: u64,
}

impl<W: Write + Send> PacketWriter<W> {
    pub(super) fn new(out: W, gzip: bool) -> PacketWriter<W> {
        PacketWriter { out, gzip, bytes: 0, packets: 0 }
    }

    /// Writes the first packet, which starts the sequence.
    pub(super) fn first(&mut self, packet: TracePacket) -> io::Result<()> {
        let mut portion = Portion::default();
        portion.put(TracePacket { sequence_flags: INCREMENTAL_STATE_CLEARED, ..packet });
        self.write(&portion.finish(self.gzip)?)
    }

    /// Writes packets that describe things.
    pub(super) fn describe(&mut self, packets: impl IntoIterator<Item = TracePacket>) -> io::Result<()> {
        let mut portion = Portion::default();
        for packet in packets {
            portion.put(packet);
            if portion.bytes.len() > 1 << 20 {
                self.write(&std::mem::take(&mut portion).finish(self.gzip)?)?;
            }
        }
        if portion.packets > 0 { self.write(&portion.finish(self.gzip)?) } else { Ok(()) }
    }

    /// Writes `count` events; `encode` puts those of a range into a portion.
    pub(super) fn events<F>(&mut self, count: usize, encode: F) -> io::Result<()>
    where
        F: Fn(Range<usize>, &mut Portion) + Sync,
    {
        let gzip = self.gzip;
        let encode_portion = |begin: usize| {
            let mut portion = Portion::default();
            encode(begin..count.min(begin + PORTION), &mut portion);
            portion.finish(gzip)
        };
        let starts: Vec<usize> = (0..count).step_by(PORTION).collect();
        let mut ready: Vec<io::Result<Finished>> = Vec::new();
        for together in starts.chunks(PORTIONS) {
            // The previous portions are written while these are encoded.
            let (written, encoded) = rayon::join(
                || ready.drain(..).try_for_each(|portion| self.write(&portion?)),
                || together.par_iter().map(|&begin| encode_portion(begin)).collect(),
            );
            written?;
            ready = encoded;
        }
        ready.into_iter().try_for_each(|portion| self.write(&portion?))
    }

    /// Flushes; gives the destination back.
    pub(super) fn finish(mut self) -> io::Result<W> {
        self.out.flush()?;
        Ok(self.out)
    }

    fn write(&mut self, portion: &Finished) -> io::Result<()> {
        self.bytes += portion.bytes.len() as u64;
        self.packets += portion.packets;
        self.out.write_all(&portion.bytes)
    }
}

/// Some packets, encoded.
#[derive(Default)]
pub(super) struct Portion {
    bytes: Vec<u8>,
    packets: u64,
    packet: TracePacket,
}

struct Finished {
    bytes: Vec<u8>,
    packets: u64,
}

impl Portion {
    /// Adds the packet that `fill` makes of the previous one: what it does not touch stays as it was, so that lists
    /// keep their memory. One call of [`PacketWriter::events`] fills one kind of packet only.
    pub(super) fn add(&mut self, fill: impl FnOnce(&mut TracePacket)) {
        self.packet.trusted_packet_sequence_id = SEQUENCE;
        self.packet.sequence_flags = NEEDS_INCREMENTAL_STATE;
        fill(&mut self.packet);
        encode(&self.packet, &mut self.bytes);
        self.packets += 1;
    }

    fn put(&mut self, mut packet: TracePacket) {
        packet.trusted_packet_sequence_id = SEQUENCE;
        packet.sequence_flags |= NEEDS_INCREMENTAL_STATE;
        encode(&packet, &mut self.bytes);
        self.packets += 1;
    }

    /// Compresses the portion as a gzip member of its own; members one behind the other are one gzip file.
    fn finish(self, gzip: bool) -> io::Result<Finished> {
        if !gzip {
            return Ok(Finished { bytes: self.bytes, packets: self.packets });
        }
        let mut compressed = GzEncoder::new(Vec::with_capacity(self.bytes.len() / 4), Compression::default());
        compressed.write_all(&self.bytes)?;
        Ok(Finished { bytes: compressed.finish()?, packets: self.packets })
    }
}

fn encode(packet: &TracePacket, out: &mut Vec<u8>) {
    out.push(PACKET_TAG);
    packet.encode_length_delimited(out).expect("a vector grows");
}
