//! The host's side of a trace, as `info` says it where there are no device times: a table for each thing that was done.

use std::io::{self, Write};

use crate::human::{HumanBytes, HumanCount, counted, duration, share, text_table};
use crate::timeline::host_side::{AtStack, GraphLaunches, HostSide};
use crate::timeline::names::printable;
use crate::timeline::summary::KernelSummary;

/// How many rows a table has; the JSON has all.
const MOST_ROWS: usize = 10;

/// Writes a table for each thing that the host did: those that it did not do have none.
pub(super) fn print(
    out: &mut impl Write,
    host: &HostSide,
    kernels: &[KernelSummary],
    all_kernels: bool,
) -> io::Result<()> {
    print_kernels(out, kernels, if all_kernels { usize::MAX } else { MOST_ROWS })?;
    print_stacks(out, &host.launches, "launches", "launched by", |row| vec![HumanCount(row.count).to_string()])?;
    print_graphs(out, &host.graphs)?;
    if host.failed_launches > 0 {
        writeln!(out, "{} of these launches failed", HumanCount(host.failed_launches))?;
    }
    print_stacks(out, &host.waits, "syncs|waited", "waited in", |row| {
        vec![HumanCount(row.count).to_string(), duration(row.duration_ns.unwrap_or(0) as f64)]
    })?;
    print_copies(out, host)?;
    print_stacks(out, &host.unfreed, "not freed|bytes", "allocated by", |row| {
        vec![HumanCount(row.count).to_string(), HumanBytes(row.bytes.unwrap_or(0)).to_string()]
    })?;
    if host.frees_of_unknown > 0 {
        let frees = counted(host.frees_of_unknown as usize, "free");
        writeln!(out, "{frees} of memory that was allocated before the recording")?;
    }
    print_threads(out, host)
}

fn print_kernels(out: &mut impl Write, kernels: &[KernelSummary], most: usize) -> io::Result<()> {
    let all = |kernel: &KernelSummary| kernel.launches.saturating_add(kernel.graph_launches);
    let launches = kernels.iter().map(all).fold(0, u64::saturating_add);
    if launches == 0 {
        return Ok(());
    }
    let has_graphs = kernels.iter().any(|kernel| kernel.graph_launches > 0);
    let heads: &[&str] =
        if has_graphs { &["launches", "in graphs", "share", "kernel"] } else { &["launches", "share", "kernel"] };
    let mut table = text_table(heads, &[heads.len() - 1]);
    for kernel in kernels.iter().take(most) {
        let name = match &*printable(&kernel.name) {
            "" => "(unnamed kernel)".to_owned(),
            name => name.to_owned(),
        };
        let in_graphs = has_graphs.then(|| HumanCount(kernel.graph_launches).to_string());
        let cells = [HumanCount(all(kernel)).to_string()].into_iter().chain(in_graphs);
        table.add_row(cells.chain([share(all(kernel), launches), name]));
    }
    writeln!(out, "\n{}", table.trim_fmt())?;
    more(out, kernels.len().saturating_sub(most), "kernel", "--kernels lists all")
}

/// What the launches of graphs come to: the kernels among those above, and how many launches may have run others.
fn print_graphs(out: &mut impl Write, graphs: &GraphLaunches) -> io::Result<()> {
    if graphs.launches == 0 {
        return Ok(());
    }
    // A number only where it is one of kernels that are known: none is said of graphs of which nothing is.
    let kernels = match graphs.kernels {
        0 => String::new(),
        kernels => format!(", and those {} kernels", HumanCount(kernels)),
    };
    writeln!(out, "{} of these launched graphs{kernels}", HumanCount(graphs.launches))?;
    if graphs.not_whole > 0 {
        writeln!(out, "{} of these graphs' launches ran what is not known, or not all", HumanCount(graphs.not_whole))?;
    }
    Ok(())
}

/// A table by stack: `figures` are the columns that `heads` names.
fn print_stacks(
    out: &mut impl Write,
    rows: &[AtStack],
    heads: &str,
    stack_head: &str,
    figures: impl Fn(&AtStack) -> Vec<String>,
) -> io::Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    let heads: Vec<&str> = heads.split('|').chain([stack_head]).collect();
    let mut table = text_table(&heads, &[heads.len() - 1]);
    for row in rows.iter().take(MOST_ROWS) {
        table.add_row(figures(row).into_iter().chain([stack_line(&row.stack)]));
    }
    writeln!(out, "\n{}", table.trim_fmt())?;
    more(out, rows.len().saturating_sub(MOST_ROWS), "stack", "--json lists all")
}

fn print_copies(out: &mut impl Write, host: &HostSide) -> io::Result<()> {
    if host.copies.is_empty() {
        return Ok(());
    }
    let mut table = text_table(["copies", "bytes", "direction", "waited for", "took at most"], &[2]);
    for copies in &host.copies {
        table.add_row([
            HumanCount(copies.operations).to_string(),
            HumanBytes(copies.bytes).to_string(),
            copies.direction.clone(),
            HumanCount(copies.waited_for).to_string(),
            if copies.waited_for > 0 { duration(copies.waited_ns as f64) } else { "-".to_owned() },
        ]);
    }
    writeln!(out, "\n{}", table.trim_fmt())
}

fn print_threads(out: &mut impl Write, host: &HostSide) -> io::Result<()> {
    if host.threads.is_empty() {
        return Ok(());
    }
    let mut table = text_table(["launches", "syncs", "waited", "calls", "thread"], &[4]);
    for thread in host.threads.iter().take(MOST_ROWS) {
        let pid = thread.pid.map_or("?".to_owned(), |pid| pid.to_string());
        table.add_row([
            HumanCount(thread.launches).to_string(),
            HumanCount(thread.waits).to_string(),
            duration(thread.waited_ns as f64),
            HumanCount(thread.calls).to_string(),
            format!("{} {} of process {pid}", thread.tid, printable(&thread.name)).replace("  ", " "),
        ]);
    }
    writeln!(out, "\n{}", table.trim_fmt())?;
    more(out, host.threads.len().saturating_sub(MOST_ROWS), "thread", "--json lists all")
}

fn more(out: &mut impl Write, more: usize, what: &str, how: &str) -> io::Result<()> {
    if more == 0 { Ok(()) } else { writeln!(out, "and {} more: {how}", counted(more, what)) }
}

/// A stack as a line of a table: its innermost frame in full, before it its callers, of which the nearest say most.
fn stack_line(stack: &[String]) -> String {
    const CALLERS: usize = 3;
    let Some((innermost, callers)) = stack.split_last() else { return "(no stack)".to_owned() };
    let shown = &callers[callers.len().saturating_sub(CALLERS)..];
    let mut line = if callers.len() > CALLERS { "… > ".to_owned() } else { String::new() };
    for caller in shown {
        line.push_str(&without_file(caller));
        line.push_str(" > ");
    }
    printable(&(line + innermost)).into_owned()
}

/// `layer (/srv/model.py:18)` as `layer:18`.
fn without_file(frame: &str) -> String {
    let place = frame.strip_suffix(')').and_then(|frame| frame.rsplit_once(" ("));
    match place.and_then(|(name, place)| Some((name, place.rsplit_once(':')?.1))) {
        Some((name, line)) if !line.is_empty() && line.bytes().all(|byte| byte.is_ascii_digit()) => {
            format!("{name}:{line}")
        }
        _ => frame.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::stack_line;

    #[test]
    fn a_stack_is_one_line_that_ends_where_the_call_was_made() {
        let frames = |frames: &[&str]| frames.iter().map(|frame| (*frame).to_owned()).collect::<Vec<_>>();
        assert_eq!(stack_line(&frames(&["main (a.py:1)", "f(x) (b c.py:12)"])), "main:1 > f(x) (b c.py:12)");
        assert_eq!(stack_line(&frames(&["a (a.py:1)", "aten::mm", "b (b)", "c", "d"])), "… > aten::mm > b (b) > c > d");
        assert_eq!(stack_line(&[]), "(no stack)");
    }
}
