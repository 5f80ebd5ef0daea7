//! What `run` and `attach` share: options, signals, the line on a terminal, the report at the end.

use std::io::{self, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::ValueEnum as _;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::print::write_json;
use super::segments::{Segments, is_directory};
use super::{Outcome, WrongOptions};
use crate::collect::events::LaunchScope;
use crate::collect::inside::cost::Cost;
use crate::collect::inside::device::DeviceCounts;
use crate::collect::inside::ranges::RangeCounts;
use crate::collect::nvml;
use crate::kernel::sampler::MOST_HZ;
use crate::record::blind_spots::Kind;
use crate::record::cost::Spending;
use crate::record::session::{Options, Progress, Session};
use crate::record::summary::{GpuValues, Summary};

/// How much may wait between the probes and the recorder, unless something else is said.
pub(super) const BUFFER_MIB: u32 = 32;

/// The options of a recording.
#[derive(clap::Args)]
pub(super) struct Recording {
    /// The tape; an existing one is replaced. Or a directory, for a recording of many segments: one that is there, or a path with
    /// a slash at its end [default: capture-NAME-PID.ktape]
    #[arg(short, long, value_name = "PATH")]
    output: Option<PathBuf>,
    #[command(flatten)]
    segments: Segments,
    /// Also measure how long launches take, and their results: one more probe for each
    #[arg(long)]
    pub(super) launch_durations: bool,
    /// Also look so many times a second at every thread that runs on a processor, and record its stack: 99 is usual, as it does
    /// not beat with what happens every 10 ms. A thread that waits is not seen. `analyze flamegraph --value cpu` draws it
    #[arg(long, value_name = "HZ", value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_HZ)))]
    pub(super) cpu_hz: Option<u32>,
    /// Also record when threads of the recorded processes do not run: why they left their processor, for how long, and how much
    /// of that they waited for one. Costs a little at every context switch of the machine. `analyze info` adds it up, `analyze
    /// perfetto` draws it
    #[arg(long)]
    pub(super) off_cpu: bool,
    /// Also ask the machine's GPUs so many times a second for their utilisation, memory, power, clocks, temperature and traffic
    /// (NVML), and record the values as counters: 10 if no number is given
    #[arg(long, value_name = "HZ", num_args = 0..=1, require_equals = true, default_missing_value = "10")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(nvml::MOST_HZ)))]
    pub(super) gpu_counters: Option<u32>,
    /// Also record the native frames of every stack: from what the innermost Python function called, through C and C++ libraries, to
    /// the driver. They are found by frame pointers; at code that was compiled without them (GCC's -fno-omit-frame-pointer
    /// keeps them) the stack ends, and says so. `analyze` names the functions
    #[arg(long)]
    pub(super) native: bool,
    /// How much may wait between the probes and the recorder, in MiB: a power of two. It has to last while the recorder is
    /// kept from running; 32 are half a second at 500,000 launches a second
    #[arg(long, value_name = "MIB", default_value_t = BUFFER_MIB, value_parser = buffer)]
    pub(super) buffer: u32,
    /// Keep less of each event where the probes take more of a thread's time than this: leave out native frames, cut stacks to 32
    /// and then 8 frames, keep the stack of one call in 4, 16, 64, leave out durations of launches. No event is left out; each
    /// step is on the tape. The thread that calls most often decides
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub(super) max_overhead: Option<f64>,
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

/// A share as parts of 1, from `1%` or `1`.
pub(super) fn percent(text: &str) -> Result<f64, String> {
    let number: f64 =
        text.strip_suffix('%').unwrap_or(text).trim_end().parse().map_err(|_| "not a percentage".to_owned())?;
    Some(number / 100.0)
        .filter(|share| *share > 0.0 && *share < 1.0)
        .ok_or_else(|| "must lie between 0 and 100 %".to_owned())
}

impl Recording {
    /// The tape's path.
    pub(super) fn output(&self, name: &str, pid: u32) -> PathBuf {
        let name = name.rsplit('/').next().unwrap_or_default();
        self.output.clone().unwrap_or_else(|| PathBuf::from(format!("capture-{name}-{pid}.ktape")))
    }
}

impl Recording {
    /// How long the ring of a thread is, where a library inside of the process collects: as there are many threads, a part of what
    /// may wait in all.
    pub(super) fn ring_bytes(&self) -> u32 {
        const THREADS: u32 = 8;
        ((self.buffer << 20) / THREADS).clamp(1 << 16, 1 << 27)
    }

    /// The option that is set and cannot be without eBPF probes.
    pub(super) fn needs_probes(&self) -> Option<&'static str> {
        let options = [
            (self.native, "--native"),
            (self.cpu_hz.is_some(), "--cpu-hz"),
            (self.off_cpu, "--off-cpu"),
            (self.max_overhead.is_some(), "--max-overhead"),
        ];
        options.into_iter().find_map(|(is_set, option)| is_set.then_some(option))
    }

    /// What is to be recorded, and where to: segments, if the output is a directory.
    pub(super) fn options(&self, output: PathBuf, follow: bool) -> Result<Options, WrongOptions> {
        let is_segmented = is_directory(&output);
        if let Some(option) = self.segments.asked_for().filter(|_| !is_segmented) {
            let (path, why) = (output.display(), "is for a recording of many segments");
            return Err(WrongOptions(format!("{option} {why}, and {path} is one tape: -o DIR/ names a directory")));
        }
        Ok(Options {
            segments: is_segmented.then(|| self.segments.options(&output)),
            output,
            follow,
            launch_durations: self.launch_durations,
            native: self.native,
            buffer_bytes: self.buffer << 20,
            cpu_hz: self.cpu_hz,
            gpu_hz: self.gpu_counters,
            max_overhead: self.max_overhead,
            off_cpu: self.off_cpu,
            node: None,
            launches: LaunchScope::default(),
            inside: None,
        })
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

/// What the end of a terminal or connection does: it ends the segment, or a recording that has none. Where it is ignored (`nohup`), so it
/// stays.
pub(super) fn on_hangup(rotation: Arc<AtomicBool>, is_segmented: bool, stop: &Arc<AtomicBool>) -> io::Result<()> {
    // SAFETY: asks for what is set, and changes nothing; zeros are such a description.
    let is_ignored = unsafe {
        let mut before: libc::sigaction = std::mem::zeroed();
        libc::sigaction(SIGHUP, std::ptr::null(), &raw mut before) == 0 && before.sa_sigaction == libc::SIG_IGN
    };
    match is_segmented {
        true => signal_hook::flag::register(SIGHUP, rotation).map(|_| ()),
        false if is_ignored => Ok(()),
        false => signal_hook::flag::register(SIGHUP, stop.clone()).map(|_| ()),
    }
}

/// Says that a recording has begun: whoever waits for that reads it.
pub(super) fn announce(recording: &Recording, what: &str, output: &Path) {
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

/// Ends a recording, and first of all one that could not go on: what it has is closed then, and the error is how it ended.
pub(super) fn end(session: Session, ran: Result<()>) -> Result<Summary> {
    let ended = session.end();
    ran.and(ended)
}

/// How a recording ended whose report was given.
pub(super) fn outcome(summary: &Summary) -> Result<Outcome> {
    match &summary.failure {
        Some(failure) => Err(anyhow::anyhow!("{failure}")),
        None if summary.is_blind() => Ok(Outcome::Blind),
        None if summary.is_complete() => Ok(Outcome::Done),
        None => Ok(Outcome::Losses),
    }
}

/// Says what was recorded.
pub(super) fn report(summary: &Summary, recording: &Recording) -> Result<()> {
    report_as(summary, recording.json, recording.quiet)
}

/// Writes each in a line of its own, and how many more there were.
fn list(out: &mut impl io::Write, shown: &[impl std::fmt::Display], further: u64) -> io::Result<()> {
    shown.iter().try_for_each(|one| writeln!(out, "  {one}"))?;
    match further {
        0 => Ok(()),
        further => writeln!(out, "  and {further} more"),
    }
}

/// What the library inside of processes took of them, for a person.
fn in_words(cost: &Cost) -> String {
    let seconds = |ns: u64| format!("{:.3} s", ns as f64 / 1e9);
    let says: u64 = cost.cupti_says_ns.values().sum();
    format!(
        "from inside: {} of the program's threads in the library ({:.2} % of the processes' CPU time, {:.0} ns a call), {} its own \
         threads, {} CUPTI's; CUPTI says that it took {}",
        seconds(cost.own_ns),
        100.0 * cost.own_ns as f64 / cost.process_ns.max(1) as f64,
        cost.own_ns as f64 / cost.own_calls.max(1) as f64,
        seconds(cost.keeper_ns),
        seconds(cost.cupti_threads_ns),
        seconds(says),
    )
}

/// Says what was recorded: to a program, to a person, or to nobody. Who does not listen any more is not told, and that is no failure.
pub(super) fn report_as(summary: &Summary, json: bool, quiet: bool) -> Result<()> {
    if json {
        return match write_json(io::stdout().lock(), summary) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                Err(error).context("cannot write standard output")
            }
            _ => Ok(()),
        };
    }
    if !quiet {
        let _ = print(io::stderr().lock(), summary);
    }
    Ok(())
}

fn print(mut out: impl io::Write, summary: &Summary) -> io::Result<()> {
    if io::stderr().is_terminal() {
        write!(out, "\r\x1b[K")?;
    }
    let Summary { seen, written, lost, gaps, .. } = summary;
    writeln!(
        out,
        "{}: {} bytes, {:.1} s, {} processes, {} probes in {} libraries",
        summary.tape.display(),
        summary.tape_bytes,
        summary.duration_ns as f64 / 1e9,
        summary.processes,
        summary.probes,
        summary.libraries.len() as u64 + summary.further_libraries,
    )?;
    writeln!(out, "calls: {seen} seen, {written} written, {lost} lost")?;
    let Spending { recorder_cpu_ns, probes_ns, hits, busiest_thread_share } = summary.spending;
    let of_time = |ns: u64| 100.0 * ns as f64 / summary.duration_ns.max(1) as f64;
    if summary.inside.is_some() && summary.probes == 0 {
        writeln!(out, "cost: the recorder took {:.1} % of a processor", of_time(recorder_cpu_ns))?;
    } else {
        writeln!(
            out,
            "cost: the recorder took {:.1} % of a processor; the probes, by estimate, {:.1} % of one: {:.2} µs a hit, at most {:.1} % of a \
         thread's time",
            of_time(recorder_cpu_ns),
            of_time(probes_ns),
            probes_ns as f64 / 1e3 / hits.max(1) as f64,
            100.0 * busiest_thread_share,
        )?;
    }
    if let Some(inside) = &summary.inside {
        writeln!(out, "cost {}", in_words(&inside.cost))?;
    }
    list(&mut out, &summary.fidelity_changes, summary.further_fidelity_changes)?;
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
    if let Some(GpuValues { gpus, written, lost }) = summary.gpu_counters {
        writeln!(out, "GPU counters: {written} values of {gpus} GPUs written, {lost} lost")?;
    }
    if let Some(inside) = &summary.inside {
        let counts = &inside.counts;
        // Not where only ranges were asked for.
        if inside.named == RangeCounts::default() || *counts != DeviceCounts::default() {
            let (by, processes) = match inside.events {
                Some(_) => ("CUDA events", inside.processes),
                None => ("CUPTI", inside.states.get("recording").copied().unwrap_or(0)),
            };
            writeln!(
                out,
                "device: {} kernels, {} copies, {} memsets of {} processes with {by}; {} lost",
                counts.kernels,
                counts.copies,
                counts.sets,
                processes,
                inside.lost + counts.missing,
            )?;
        }
        if let Some(events) = &inside.events {
            let untimed: Vec<String> = events
                .untimed
                .iter()
                .filter(|(_, count)| **count > 0)
                .map(|(why, count)| format!("{count} {why}"))
                .collect();
            writeln!(out, "events: {}", events.in_words())?;
            if !untimed.is_empty() {
                writeln!(out, "  and without any, as they should: {}", untimed.join(", "))?;
            }
        }
        let RangeCounts { ranges, marks, left_open, given_up, closes_nothing } = inside.named;
        if inside.named != RangeCounts::default() {
            writeln!(
                out,
                "NVTX: {ranges} ranges and {marks} marks, {} ranges without an end: {given_up} of them as what closed them was not \
                 seen; {closes_nothing} closed nothing",
                left_open + given_up
            )?;
        }
        if counts.refused_launches > 0 {
            writeln!(out, "  {} launches were refused, and have no kernel", counts.refused_launches)?;
        }
    }
    if let Some(off_cpu) = &summary.off_cpu {
        writeln!(
            out,
            "off CPU: {} stretches seen, {} written, {} lost; {} threads were off before, {} at the end",
            off_cpu.seen, off_cpu.written, off_cpu.lost, off_cpu.unbegun, off_cpu.off_at_end,
        )?;
    }
    for (count, what) in [
        (gaps.stacks_left_out, "calls whose stack was left out to keep the cost down"),
        (gaps.incomplete_stacks, "stacks that are not whole: too deep, or with a frame that could not be read"),
        (gaps.unknown_frames, "frames without a name"),
        (summary.tape_lost_events, "rows that the tape could not be written fast enough for"),
        (gaps.calls_without_return, "calls that were not seen to return"),
        (gaps.returns_without_call, "returns of calls that were not seen"),
        (gaps.launches_of_partly_known_graphs, "launches of graphs of which not all kernels are known"),
        (
            gaps.unknown_graph_changes,
            "changes of graphs that were made before the recording, or by handles that were not seen",
        ),
        (gaps.captures_without_begin, "captures that began before the recording: calls in them count as done"),
    ] {
        if count > 0 {
            writeln!(out, "  {count} {what}")?;
        }
    }
    if summary.libraries.is_empty() {
        writeln!(out, "  no library of CUDA was mapped: there were no calls to record")?;
    }
    // What got no probe is among the troubles, too.
    let is_trouble = |kind| matches!(kind, Kind::UnprobedLibrary | Kind::RefusedProbe);
    for spot in summary.blind_spots.iter().filter(|spot| !is_trouble(spot.kind)) {
        writeln!(out, "  {} {}", spot.count, spot.what)?;
    }
    if summary.is_blind() {
        writeln!(out, "nothing was seen: {} probes were set, in", summary.probes)?;
        let paths: Vec<_> = summary.libraries.iter().map(|library| library.display()).collect();
        list(&mut out, &paths, summary.further_libraries)?;
    }
    for trouble in &summary.troubles {
        writeln!(out, "  {trouble}")?;
    }
    Ok(())
}
