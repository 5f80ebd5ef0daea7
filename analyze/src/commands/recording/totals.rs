//! A recording as totals: one rollup of everything, in memory.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;

use anyhow::Result;
use ktape_format::rollup::Digest;
use ktape_format::{Memory, Table as _};
use serde::Serialize;

use super::read;
use crate::commands::load::Loaded;
use crate::human::{HumanBytes, HumanCount, duration, text_table};
use crate::symbols::{self, Symbols};
use crate::tables::KnownTables;
use crate::timeline::Timeline;

/// Opens a recording as totals.
pub fn load_totals(path: &Path, symbols: &Symbols) -> Result<Loaded> {
    let read = read(
        path,
        || (Digest::default(), 0_u64),
        |(digest, file_bytes), _, tape, _| {
            // What of a tape is damaged is among its losses.
            digest.add_tape(tape)?;
            *file_bytes += tape.file_bytes();
            Ok(None)
        },
    )?;
    let (digest, file_bytes) = read.all;
    let mut memory = Memory::default();
    let Ok(()) = digest.write(&mut memory);
    let lost = memory.events.loss.count.iter().fold(0_u64, |sum, count| sum.saturating_add(*count));
    let first_ns = memory.events.rollup.start_ns.iter().copied().min().unwrap_or(0);
    let mut timeline = Timeline::new(memory.definitions, memory.events);
    let (named, unnamed) = symbols::names(&timeline.definitions, symbols);
    timeline.name_native_frames(&named);
    let unread = read.unread;
    Ok(Loaded { file_bytes, first_ns, lost, unnamed, unread, ..Loaded::whole(path, timeline) })
}

/// Totals of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct KindTotals {
    /// The kind.
    pub kind: String,
    /// How many events.
    pub count: u64,
    /// Of these, how many failed.
    pub failed: u64,
    /// Their durations together.
    pub sum_ns: u64,
    /// What they moved or handed out, together.
    pub bytes: u64,
}

/// The rows of rollups by kind.
pub fn totals(timeline: &Timeline) -> Vec<KindTotals> {
    let known = KnownTables::new();
    let mut totals = BTreeMap::<u16, KindTotals>::new();
    for row in timeline.events.rollup.rows() {
        let sums = totals.entry(row.kind).or_default();
        sums.count = sums.count.saturating_add(row.count);
        sums.failed = sums.failed.saturating_add(row.failed);
        sums.sum_ns = sums.sum_ns.saturating_add(row.sum_ns);
        sums.bytes = sums.bytes.saturating_add(row.bytes);
    }
    totals.into_iter().map(|(kind, sums)| KindTotals { kind: known.name(kind), ..sums }).collect()
}

/// Writes the totals by kind.
pub fn print_totals(out: &mut impl Write, totals: &[KindTotals]) -> io::Result<()> {
    if totals.is_empty() {
        return Ok(());
    }
    let mut table = text_table(["rolled up", "count", "failed", "time", "bytes"], &[0]);
    for row in totals {
        table.add_row([
            row.kind.clone(),
            HumanCount(row.count).to_string(),
            HumanCount(row.failed).to_string(),
            duration(row.sum_ns as f64),
            HumanBytes(row.bytes).to_string(),
        ]);
    }
    writeln!(out, "{}", table.trim_fmt())
}
