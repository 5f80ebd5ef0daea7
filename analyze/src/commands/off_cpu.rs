//! Time off the processor, as `info` says it.

use std::io::{self, Write};

use crate::human::{HumanCount, counted, duration, share, text_table};
use crate::timeline::names::printable;
use crate::timeline::off_cpu::{OffCpuSide, Spent, ThreadOffCpu};

/// How many rows a table has; the JSON has all.
const MOST_ROWS: usize = 10;

pub(super) fn print(out: &mut impl Write, off_cpu: &OffCpuSide) -> io::Result<()> {
    let times = counted(off_cpu.stretches as usize, "time");
    write!(out, "\nthreads left their processor {times}")?;
    if off_cpu.threads.is_empty() {
        return writeln!(out, "; none of those that made calls did");
    }
    writeln!(out, "; of those that made calls:")?;
    let gap = format!("gaps of {} or more between launches", duration(off_cpu.long_gap_ns as f64));
    let mut table = text_table(["time", "of", "running", "blocked", "waiting for a processor", "thread"], &[1, 5]);
    for thread in off_cpu.threads.iter().take(MOST_ROWS) {
        for (what, spent) in [
            ("all", &thread.observed),
            ("calls", &thread.calls),
            ("calls that wait for the device", &thread.waits),
            (&*gap, &thread.gaps),
        ] {
            // Where launches have no duration only the other calls can tell.
            if spent.duration_ns > 0 {
                table.add_row(row(what, spent, thread));
            }
        }
    }
    writeln!(out, "{}", table.trim_fmt())?;
    match off_cpu.threads.len().saturating_sub(MOST_ROWS) {
        0 => Ok(()),
        more => writeln!(out, "and {} more: --json lists all", counted(more, "thread")),
    }
}

fn row(what: &str, spent: &Spent, thread: &ThreadOffCpu) -> [String; 6] {
    let of = |part_ns| share(part_ns, spent.duration_ns);
    let pid = thread.pid.map_or("?".to_owned(), |pid| pid.to_string());
    [
        duration(spent.duration_ns as f64),
        if what == "all" { what.to_owned() } else { format!("{} {what}", HumanCount(spent.count)) },
        of(spent.running_ns),
        of(spent.blocked_ns),
        of(spent.runnable_ns),
        format!("{} {} of process {pid}", thread.tid, printable(&thread.name)).replace("  ", " "),
    ]
}
