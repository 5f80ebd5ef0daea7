//! What is wrong with a trace, as `info` says it: a line for each sort of fault that it has, and what follows from it.

use std::io::{self, Write};

use textwrap::Options;

use crate::human::{HumanCount, columns, duration, share};
use crate::timeline::audit::{Audit, Example, Finding};
use crate::timeline::names::{printable, short_kernel_name};

/// Writes what was found; nothing if nothing was. That a recording of the host's side has no device times is no fault.
pub(super) fn print(out: &mut impl Write, audit: &Audit, host_only: bool) -> io::Result<()> {
    let lines = lines(audit, host_only);
    if !lines.is_empty() {
        writeln!(out, "to know before the figures:")?;
    }
    for line in lines {
        let options = Options::new(columns()).initial_indent("  ").subsequent_indent("      ");
        let filled = textwrap::fill(&printable(&line), options);
        writeln!(out, "{filled}")?;
    }
    Ok(())
}

fn lines(audit: &Audit, host_only: bool) -> Vec<String> {
    let mut lines = Vec::new();
    let Audit { impossible, longer_than_host, overlaps, graph_branches, before_launch, unlaunched, .. } = audit;
    if impossible.count > 0 {
        lines.push(format!(
            "{} far past later ones on the stream, so such durations cannot be: of {} of device time in all, {} are \
             left with them cut where the next begins; worst is {}",
            operations(impossible.count, "runs", "run"),
            duration(audit.device_ns as f64),
            duration(audit.repaired_device_ns as f64),
            worst(impossible),
        ));
    }
    if longer_than_host.count > 0 {
        lines.push(format!(
            "{} longer than all that the host recorded: a wrong duration, or a host of which little was recorded; worst \
             is {}",
            operations(longer_than_host.count, "is", "are"),
            worst(longer_than_host),
        ));
    }
    if overlaps.count > 0 {
        lines.push(format!(
            "{} before the one before on the stream had ended, by {} in all: so do dependent launches (PDL), and clocks \
             that disagree; add up no durations; worst is {}",
            operations(overlaps.count, "began", "began"),
            duration(overlaps.ns as f64),
            worst(overlaps),
        ));
    }
    if graph_branches.count > 0 {
        lines.push(format!(
            "{} while another of the same graph launch ran on the stream, {} in all: branches of the graph; add up no \
             durations",
            operations(graph_branches.count, "began", "began"),
            duration(graph_branches.ns as f64),
        ));
    }
    if before_launch.count > 0 {
        lines.push(format!(
            "{} before the call that launched it, by up to {}: the clocks of host and device disagree, so delays \
             between them do not hold; worst is {}",
            operations(before_launch.count, "began", "began"),
            duration(before_launch.worst.as_ref().map_or(0, |worst| worst.ns) as f64),
            worst(before_launch),
        ));
    }
    if unlaunched.count > 0 {
        lines.push(format!(
            "{} no launching call on the tape (launched before the recording, or the call was lost), {} of the device \
             time: that time has no stack",
            operations(unlaunched.count, "has", "have"),
            share(unlaunched.ns, audit.device_ns),
        ));
    }
    if let Some(without @ 1..) = audit.launches_without_work {
        lines.push(format!(
            "{} of {} launches have no device work on the tape: it was captured into a graph, ran after the recording, \
             its record was lost, or it is a graph's, around which there are no CUDA events",
            HumanCount(without),
            HumanCount(audit.launches),
        ));
    }
    let (absent, bounded) = if host_only { (0, 0) } else { (audit.absent, audit.bounded) };
    let counts = [
        (audit.zero_duration, "lasted 0 ns: shorter than the profiler's clock can tell"),
        (audit.no_correlation, "without a correlation id: no call can be found for them"),
        (absent, "without a device time: they count as 0"),
        (bounded, "with bounds instead of a device time: theirs is the most that it can be"),
    ];
    for (count, what) in counts.into_iter().filter(|(count, _)| *count > 0) {
        lines.push(operations(count, what, what));
    }
    if audit.crossings > 0 {
        let many =
            if audit.crossings == 1 { "host call, slice or range ends" } else { "host calls, slices and ranges end" };
        lines.push(format!(
            "{} {many} after another of the thread that it began in: these do not nest, so stacks leave frames from the \
             middle",
            HumanCount(audit.crossings)
        ));
    }
    for same in &audit.same_rank {
        let pids: Vec<String> = same.pids.iter().map(i64::to_string).collect();
        lines.push(format!("rank {} is several processes: {}", same.rank, pids.join(", ")));
    }
    for mixed in &audit.mixed_vendors {
        let whose = mixed.pid.map_or_else(|| "the host".to_owned(), |pid| format!("process {pid}"));
        lines.push(format!("{whose} has devices of several makers: {}", mixed.vendors.join(", ")));
    }
    lines
}

fn operations(count: u64, one: &str, many: &str) -> String {
    match count {
        1 => format!("1 device operation {one}"),
        _ => format!("{} device operations {many}", HumanCount(count)),
    }
}

/// `gemm, 3.74 µs, at 0.001000 s on stream 7 of device 0`, as long as a line allows.
fn worst(finding: &Finding) -> String {
    const LONGEST_NAME: usize = 48;
    let Some(Example { name, device, stream, after_ns, duration_ns, ns }) = &finding.worst else {
        return String::new();
    };
    let mut short: String = short_kernel_name(name);
    if let Some((end, _)) = short.char_indices().nth(LONGEST_NAME) {
        short.truncate(end);
        short.push('…');
    }
    let after_s = *after_ns as f64 / 1e9;
    let by = if ns == duration_ns { String::new() } else { format!(" ({} of it)", duration(*ns as f64)) };
    format!("{short}, {}{by}, at {after_s:.6} s on stream {stream} of device {device}", duration(*duration_ns as f64))
}
