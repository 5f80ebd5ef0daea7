//! What was seen and did not get onto the tape.
//!
//! The eBPF programs count each call before they ask the ring buffer for room, so what it had none for is known by function,
//! and looked at every second: a loss row says how many, of which kind, and between which two looks.

use ktape_ebpf::wire::tally::KINDS;
use ktape_ebpf::wire::{Counters, OffCounters};
use ktape_format::event::{self, Loss};
use ktape_format::table::Row;
use ktape_format::{Sink as _, TapeError};

use super::inside::NO_CALLS;
use super::output::Output;

use crate::probes::functions::Probed;

/// What was told already.
pub(super) struct Losses {
    told: Vec<u64>,
    /// What the rings of processes have lost that was told already, by table.
    told_of_rings: [u64; KINDS],
    /// What waits for room on the tape, by table and cause.
    untold: Vec<Untold>,
    looked_ns: i64,
    /// Calls lost so far.
    pub(super) lost: u64,
    /// CPU samples lost so far.
    pub(super) samples_lost: u64,
    /// Stretches off the processor lost so far.
    pub(super) off_cpu_lost: u64,
}

/// Rows that are to be told as lost.
struct Untold {
    kind: u16,
    count: u64,
    cause: &'static str,
}

const BUFFER: &str = "the ring buffer between the probes and the recorder was full";
/// The program counts these together.
const OFF_CPU: &str = "their end was not seen, the ring buffer was full, or too many threads were off their processors";
const RINGS: &str = "the ring between the library inside the process and the recorder was full";
const UNKNOWN: &str = "the recorder did not come to know their process";

impl Losses {
    pub(super) fn new(functions: usize, now_ns: i64) -> Losses {
        Losses {
            told: vec![0; functions],
            told_of_rings: [0; KINDS],
            untold: Vec::new(),
            looked_ns: now_ns,
            lost: 0,
            samples_lost: 0,
            off_cpu_lost: 0,
        }
    }

    /// Writes a row for each table that has lost rows since the last look.
    pub(super) fn tell(
        &mut self,
        functions: &[Probed],
        counters: &[Counters],
        samples: &Counters,
        off_cpu: &OffCounters,
        now_ns: i64,
        tape: &mut Output,
    ) -> Result<(), TapeError> {
        let mut by_table: Vec<(u16, u64)> = Vec::new();
        for ((function, counters), told) in functions.iter().zip(counters).zip(&mut self.told) {
            let new = counters.calls_lost - *told;
            *told = counters.calls_lost;
            if new > 0 && function.meaning.is_event() {
                add(&mut by_table, function.meaning.table(), new);
            }
        }
        for (kind, count) in by_table {
            self.lost += count;
            self.add(kind, count, BUFFER);
        }
        self.add(event::CpuSample::KIND, samples.calls_lost - self.samples_lost, BUFFER);
        self.samples_lost = samples.calls_lost;
        self.add(event::OffCpu::KIND, off_cpu.lost - self.off_cpu_lost, OFF_CPU);
        self.off_cpu_lost = off_cpu.lost;
        self.tell_untold(now_ns, tape)
    }

    /// Takes in what rings have lost so far, by table; what is no call is not added to the calls.
    pub(super) fn of_rings(&mut self, lost: &[u64; KINDS]) {
        for (kind, (&lost, told)) in
            lost.iter().zip(std::mem::replace(&mut self.told_of_rings, *lost)).enumerate().skip(1)
        {
            let count = lost.saturating_sub(told);
            self.lost += if NO_CALLS.contains(&(kind as u32)) { 0 } else { count };
            self.add(kind as u16, count, RINGS);
        }
    }

    /// Writes what is not told yet.
    pub(super) fn tell_untold(&mut self, now_ns: i64, tape: &mut Output) -> Result<(), TapeError> {
        let mut told = 0;
        for &Untold { kind, count, cause } in &self.untold {
            let cause = tape.string(cause)?;
            let duration_ns = (now_ns - self.looked_ns).max(0) as u64;
            let row = Loss { start_ns: self.looked_ns, duration_ns, process: 0, count, kind, cause };
            // A row that the tape has no room for is told with the next.
            if !tape.offer(row)? {
                break;
            }
            told += 1;
        }
        self.untold.drain(..told);
        if self.untold.is_empty() {
            self.looked_ns = now_ns;
        }
        Ok(())
    }

    fn add(&mut self, kind: u16, count: u64, cause: &'static str) {
        match self.untold.iter_mut().find(|untold| (untold.kind, untold.cause) == (kind, cause)) {
            _ if count == 0 => {}
            Some(untold) => untold.count += count,
            None => self.untold.push(Untold { kind, count, cause }),
        }
    }

    /// Writes a row for calls, samples and stretches off the processor that are neither on the tape nor told as lost: of processes whose beginning was lost.
    pub(super) fn tell_rest(
        &mut self,
        calls: u64,
        samples: u64,
        off_cpu: u64,
        now_ns: i64,
        tape: &mut Output,
    ) -> Result<(), TapeError> {
        self.lost += calls;
        self.samples_lost += samples;
        self.off_cpu_lost += off_cpu;
        self.add(0, calls, UNKNOWN);
        self.add(event::CpuSample::KIND, samples, UNKNOWN);
        self.add(event::OffCpu::KIND, off_cpu, UNKNOWN);
        self.tell_untold(now_ns, tape)
    }
}

fn add(counts: &mut Vec<(u16, u64)>, table: u16, count: u64) {
    match counts.iter_mut().find(|(known, _)| *known == table) {
        Some((_, sum)) => *sum += count,
        None => counts.push((table, count)),
    }
}
