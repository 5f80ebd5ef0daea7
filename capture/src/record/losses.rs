//! What was seen and did not get onto the tape.
//!
//! The eBPF programs count each call before they ask the ring buffer for room, so what it had none for is known by function,
//! and looked at every second: a loss row says how many, of which kind, and between which two looks.

use ktape_ebpf::wire::Counters;
use ktape_format::Sink;
use ktape_format::event::{self, Loss};
use ktape_format::table::Row;

use crate::probes::functions::{Meaning, Probed};

/// What was told already.
pub(super) struct Losses {
    told: Vec<u64>,
    looked_ns: i64,
    /// Calls lost so far.
    pub(super) lost: u64,
}

impl Losses {
    pub(super) fn new(functions: usize, now_ns: i64) -> Losses {
        Losses { told: vec![0; functions], looked_ns: now_ns, lost: 0 }
    }

    /// Writes a row for each table that has lost rows since the last look.
    pub(super) fn tell<S: Sink>(
        &mut self,
        functions: &[Probed],
        counters: &[Counters],
        now_ns: i64,
        sink: &mut S,
    ) -> Result<(), S::Error> {
        let mut by_table: Vec<(u16, u64)> = Vec::new();
        for ((function, counters), told) in functions.iter().zip(counters).zip(&mut self.told) {
            let new = counters.calls_lost - *told;
            *told = counters.calls_lost;
            if new == 0 || !function.meaning.is_event() {
                continue;
            }
            let table = table(function.meaning);
            match by_table.iter_mut().find(|(known, _)| *known == table) {
                Some((_, count)) => *count += new,
                None => by_table.push((table, new)),
            }
        }
        for (kind, count) in by_table {
            self.lost += count;
            let cause = sink.string("the ring buffer between the probes and the recorder was full")?;
            sink.event(Loss {
                start_ns: self.looked_ns,
                duration_ns: (now_ns - self.looked_ns).max(0) as u64,
                process: 0,
                count,
                kind,
                cause,
            })?;
        }
        self.looked_ns = now_ns;
        Ok(())
    }
}

/// The table that a call's row goes into.
fn table(meaning: Meaning) -> u16 {
    match meaning {
        Meaning::Launch | Meaning::LaunchConfig | Meaning::LaunchMulti => event::Launch::KIND,
        Meaning::GraphLaunch => event::GraphLaunch::KIND,
        Meaning::Wait { .. } => event::Sync::KIND,
        Meaning::EventRecord => event::EventRecord::KIND,
        Meaning::EventWait => event::EventWait::KIND,
        Meaning::Alloc { .. } | Meaning::AllocPitch => event::Alloc::KIND,
        Meaning::Free { .. } => event::Free::KIND,
        _ => event::Api::KIND,
    }
}
