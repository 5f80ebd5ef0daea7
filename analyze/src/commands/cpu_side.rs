//! The CPU samples of a trace, as `info` says them.

use std::io::{self, Write};

use crate::human::{HumanCount, counted, duration, share, text_table};
use crate::timeline::cpu_side::CpuSide;
use crate::timeline::names::printable;

/// How many rows a table has; the JSON has all.
const MOST_ROWS: usize = 10;

pub(super) fn print(out: &mut impl Write, cpu: &CpuSide) -> io::Result<()> {
    write!(out, "\n{}", counted(cpu.samples as usize, "CPU sample"))?;
    match cpu.time_ns {
        0 => write!(out, " of running threads (how much time each stands for is not known)")?,
        time_ns => write!(out, ": about {} of running threads", duration(time_ns as f64))?,
    }
    if cpu.without_stack > 0 {
        write!(out, ", {} without a stack", HumanCount(cpu.without_stack))?;
    }
    writeln!(out)?;
    if !cpu.functions.is_empty() {
        let mut table = text_table(["self", "with callees", "function"], &[2]);
        for function in cpu.functions.iter().take(MOST_ROWS) {
            table.add_row([
                share(function.own, cpu.samples),
                share(function.total, cpu.samples),
                printable(&function.function).into_owned(),
            ]);
        }
        writeln!(out, "{}", table.trim_fmt())?;
        more(out, cpu.functions.len().saturating_sub(MOST_ROWS), "function")?;
    }
    let mut table = text_table(["samples", "share", "ran on a processor"], &[2]);
    for thread in cpu.threads.iter().take(MOST_ROWS) {
        let pid = thread.pid.map_or("?".to_owned(), |pid| pid.to_string());
        let name = format!("{} {} of process {pid}", thread.tid, printable(&thread.name)).replace("  ", " ");
        table.add_row([HumanCount(thread.samples).to_string(), share(thread.samples, cpu.samples), name]);
    }
    writeln!(out, "{}", table.trim_fmt())?;
    more(out, cpu.threads.len().saturating_sub(MOST_ROWS), "thread")
}

fn more(out: &mut impl Write, more: usize, what: &str) -> io::Result<()> {
    if more == 0 { Ok(()) } else { writeln!(out, "and {} more: --json lists all", counted(more, what)) }
}
