//! What the recorder does with a launch's record: from the bytes in the ring buffer to a row that is staged on the tape.
//!
//! Beside it, in turns, the same rows go onto a tape without anything before: that is the floor. Blocks are sealed between the
//! turns, so that neither has the other thread's work in it.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use ktape_capture::collect::events::{Collector, Identity};
use ktape_capture::probes::functions;
use ktape_ebpf::wire::{Call, STACK_WORDS, StackCall, kind};
use ktape_format::event::Launch;
use ktape_format::{Options, Sink as _, TapeWriter};
use serde::Serialize;

use crate::figures::Middle;

/// Launches in one turn: their rows fit into a half, their records take as much as a ring buffer.
const LAUNCHES: usize = 100_000;
const HALF_BYTES: u32 = 16 << 20;

/// What was measured.
#[derive(Serialize)]
pub(crate) struct Drain {
    rounds: usize,
    /// From record to staged row.
    take_ns: Middle,
    /// Only the row.
    stage_ns: Middle,
    ratio: Middle,
}

pub(crate) fn measure(time: Duration) -> Result<Drain> {
    let functions = functions::all();
    let launch = functions.iter().position(|function| function.symbol == "cuLaunchKernel").context("no launch")?;
    let records: Vec<StackCall> = (0..LAUNCHES as u64).map(|index| record(launch as u32, index)).collect();
    let mut collector = Collector::new(functions, false);
    let (mut tape, mut bare) = (tape()?, tape()?);
    collector.begin_process(&Identity { pid: PID, ..Identity::default() }, true, &mut tape)?;
    let (mut takes, mut stages, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    let began = Instant::now();
    while takes.len() < 5 || began.elapsed() < time {
        let took = Instant::now();
        for record in &records {
            // SAFETY: a record is plain integers without padding.
            let bytes =
                unsafe { std::slice::from_raw_parts(std::ptr::from_ref(record).cast(), size_of::<StackCall>()) };
            collector.take(bytes, &mut tape)?;
        }
        let took = took.elapsed().as_nanos() as f64 / LAUNCHES as f64;
        collector.settled().for_each(drop);
        tape.seal()?;
        let staged = Instant::now();
        for record in &records {
            let start_ns = record.call.time_ns as i64;
            let (correlation, thread) = (record.call.registers[1], record.call.pid_tid as u32 & 3);
            bare.event(Launch {
                start_ns,
                correlation,
                thread,
                stream: 1,
                shape: 1,
                function: 1,
                ..Launch::default()
            })?;
        }
        let staged = staged.elapsed().as_nanos() as f64 / LAUNCHES as f64;
        bare.seal()?;
        takes.push(took);
        stages.push(staged);
        ratios.push(took / staged);
    }
    let rounds = takes.len();
    let middle = |values| Middle::of(values).context("nothing was measured");
    Ok(Drain { rounds, take_ns: middle(takes)?, stage_ns: middle(stages)?, ratio: middle(ratios)? })
}

const PID: u32 = 4711;

/// One of two threads launches one of eight kernels in one of three shapes, into one of two streams.
fn record(function: u32, index: u64) -> StackCall {
    let mut words = [0; STACK_WORDS];
    (words[1], words[2]) = (64, 0x7000 + index % 2);
    let call = Call {
        kind: kind::STACK_CALL as u16,
        cpu: (index / 64 % 2) as u16,
        function,
        time_ns: 1_000_000_000 + 2_000 * index,
        pid_tid: u64::from(PID) << 32 | (u64::from(PID) + index / 64 % 2),
        stack: 0,
        stack_pointer: 0x7fff_0000,
        registers: [0x1000 + index % 8, 108 + index % 3, 1, 1, 256, 1],
    };
    StackCall { call, words }
}

fn tape() -> Result<TapeWriter> {
    Ok(TapeWriter::new(tempfile::tempfile()?, &Options { half_bytes: HALF_BYTES, ..Options::batch("bench") })?)
}

impl fmt::Display for Drain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cell = |Middle { median, lower, upper }: Middle| format!("{median:.1} ({lower:.1} to {upper:.1})");
        writeln!(f, "drain, median and quartiles of {} rounds of {LAUNCHES} launches", self.rounds)?;
        writeln!(f, "  record to staged row, ns a launch              {}", cell(self.take_ns))?;
        writeln!(f, "  staged row alone                               {}", cell(self.stage_ns))?;
        writeln!(f, "  × the row alone                                {}", cell(self.ratio))
    }
}
