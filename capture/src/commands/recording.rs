//! What `run` and `attach` share: options, signals, the line on a terminal, the report at the end.

use std::io::{self, IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::ValueEnum as _;
use signal_hook::consts::{SIGINT, SIGTERM};

use super::Outcome;
use crate::kernel::sampler::MOST_HZ;
use crate::record::session::Progress;
use crate::record::summary::Summary;

/// The options of a recording.
#[derive(clap::Args)]
pub(super) struct Recording {
    /// The tape; an existing one is replaced [default: capture-NAME-PID.ktape]
    #[arg(short, long, value_name = "PATH")]
    output: Option<PathBuf>,
    /// Also measure how long launches take, and their results: one more probe for each
    #[arg(long)]
    pub(super) launch_durations: bool,
    /// Also look so many times a second at every thread that runs on a processor, and record its stack: 99 is usual, as it does
    /// not beat with what happens every 10 ms. A thread that waits is not seen. `analyze flamegraph --value cpu` draws it
    #[arg(long, value_name = "HZ", value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_HZ)))]
    pub(super) cpu_hz: Option<u32>,
    /// Also record the native frames of every stack: from what the innermost Python function called, through C and C++ libraries, to
    /// the driver. They are found by frame pointers; at code that was compiled without them (GCC's -fno-omit-frame-pointer
    /// keeps them) the stack ends, and says so. `analyze` names the functions
    #[arg(long)]
    pub(super) native: bool,
    /// How much may wait between the probes and the recorder, in MiB: a power of two. It has to last while the recorder is
    /// kept from running; 16 are half a second at 200,000 calls a second
    #[arg(long, value_name = "MIB", default_value_t = 16, value_parser = buffer)]
    pub(super) buffer: u32,
    /// Print the summary for a program instead of a person
    #[arg(long)]
    json: bool,
    /// Print nothing but errors
    #[arg(short, long)]
    pub(super) quiet: bool,
}

pub(super) fn buffer(text: &str) -> Result<u32, String> {
    let number = text.parse().map_err(|_| "not a number of MiB".to_owned())?;
    let fits = |&mib: &u32| mib.is_power_of_two() && mib <= 1024;
    Some(number).filter(fits).ok_or_else(|| "must be a power of two, 1024 at most".to_owned())
}

impl Recording {
    /// The tape's path.
    pub(super) fn output(&self, name: &str, pid: u32) -> PathBuf {
        let name = name.rsplit('/').next().unwrap_or_default();
        self.output.clone().unwrap_or_else(|| PathBuf::from(format!("capture-{name}-{pid}.ktape")))
    }
}

/// A flag that SIGINT and SIGTERM set. The second of them ends the program at once: whatever is on the tape stays readable.
pub(super) fn stop_on_signals() -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 1, stop.clone())?;
        signal_hook::flag::register(signal, stop.clone())?;
    }
    Ok(stop)
}

/// Says that a recording has begun: whoever waits for that reads it.
pub(super) fn announce(recording: &Recording, what: &str, output: &std::path::Path) {
    if !recording.quiet {
        // A closed stderr leaves nobody to tell.
        let _ = writeln!(io::stderr(), "recording {what} onto {}; Ctrl-C ends it", output.display());
    }
}

/// Draws how a recording stands, where there is a terminal.
pub(super) fn show_progress(quiet: bool) -> impl FnMut(Progress) {
    let draws = !quiet && io::stderr().is_terminal();
    let mut last: Option<(Instant, u64)> = None;
    move |progress| {
        if !draws || last.is_some_and(|(drawn, _)| drawn.elapsed() < Duration::from_millis(500)) {
            return;
        }
        let rate = last
            .map_or(0.0, |(drawn, events)| (progress.events - events) as f64 / drawn.elapsed().as_secs_f64().max(1e-3));
        last = Some((Instant::now(), progress.events));
        let Progress { elapsed, events, lost, processes } = progress;
        let seconds = elapsed.as_secs();
        // A closed terminal has nobody to tell.
        let _ = write!(
            io::stderr(),
            "\r\x1b[Krecording {processes} processes, {}:{:02}: {events} events, {rate:.0} a second, {lost} lost",
            seconds / 60,
            seconds % 60,
        );
    }
}

/// How a recording ended whose report was given.
pub(super) fn outcome(summary: &Summary) -> Result<Outcome> {
    match &summary.failure {
        Some(failure) => Err(anyhow::anyhow!("{failure}")),
        None if summary.is_complete() => Ok(Outcome::Done),
        None => Ok(Outcome::Losses),
    }
}

/// Says what was recorded.
pub(super) fn report(summary: &Summary, recording: &Recording) -> Result<()> {
    report_as(summary, recording.json, recording.quiet)
}

/// Says what was recorded: to a program, to a person, or to nobody.
pub(super) fn report_as(summary: &Summary, json: bool, quiet: bool) -> Result<()> {
    if json {
        let mut out = io::stdout().lock();
        serde_json::to_writer_pretty(&mut out, summary)?;
        writeln!(out)?;
        return Ok(());
    }
    if quiet {
        return Ok(());
    }
    let mut out = io::stderr().lock();
    if io::stderr().is_terminal() {
        write!(out, "\r\x1b[K")?;
    }
    let Summary { seen, written, lost, without_stack, gaps, .. } = summary;
    writeln!(
        out,
        "{}: {} bytes, {:.1} s, {} processes, {} probes in {} libraries",
        summary.tape.display(),
        summary.tape_bytes,
        summary.duration_ns as f64 / 1e9,
        summary.processes,
        summary.probes,
        summary.libraries.len(),
    )?;
    writeln!(out, "calls: {seen} seen, {written} written, {lost} lost")?;
    if !summary.out_of_scope.is_empty() {
        let groups: Vec<String> = summary
            .out_of_scope
            .iter()
            .map(|(group, calls)| {
                format!(
                    "{calls} {}",
                    group.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
                )
            })
            .collect();
        writeln!(out, "out of scope: {}", groups.join(", "))?;
    }
    if !summary.kernels.is_empty() {
        let sources: Vec<String> =
            summary.kernels.iter().map(|(source, count)| format!("{count} {}", source.name())).collect();
        writeln!(out, "kernels, by where their names are from: {}", sources.join(", "))?;
    }
    if let Some(samples) = &summary.cpu_samples {
        writeln!(
            out,
            "CPU samples: {} seen, {} written, {} lost; each is {:.3} ms of a running thread",
            samples.seen,
            samples.taken.written,
            samples.lost,
            samples.period_ns as f64 / 1e6,
        )?;
        for (count, what) in [
            (samples.without_stack, "samples whose Python stack could not be read"),
            (samples.taken.unknown_stacks, "samples whose Python stack did not come through"),
            (samples.taken.before_interpreter, "samples before the process's interpreter was found: without a stack"),
        ] {
            if count > 0 {
                writeln!(out, "  {count} {what}")?;
            }
        }
    }
    for (count, what) in [
        (*without_stack, "calls whose Python stack could not be read"),
        (gaps.unknown_stacks, "calls whose Python stack did not come through"),
        (gaps.before_interpreter, "calls before the process's interpreter was found: without a stack"),
        (gaps.incomplete_stacks, "stacks that are not whole: too deep, or with a frame that could not be read"),
        (gaps.unknown_frames, "frames without a name"),
        (summary.tape_lost_events, "rows that the tape could not be written fast enough for"),
        (summary.returns_lost, "returns that the ring buffer had no room for"),
        (gaps.calls_without_return, "calls that were not seen to return"),
        (gaps.returns_without_call, "returns of calls that were not seen"),
        (gaps.unreadable_arguments, "calls with arguments that could not be read"),
        (
            gaps.launches_of_older_graphs,
            "launches of graphs that were made before the recording: of which kernels is not known",
        ),
    ] {
        if count > 0 {
            writeln!(out, "  {count} {what}")?;
        }
    }
    if summary.libraries.is_empty() {
        writeln!(out, "  no library of CUDA was mapped: there were no calls to record")?;
    }
    for trouble in &summary.troubles {
        writeln!(out, "  {trouble}")?;
    }
    Ok(())
}
