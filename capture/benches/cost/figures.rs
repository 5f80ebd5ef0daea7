//! What was measured, for a person and for a program.

use std::fmt;

use serde::Serialize;

use crate::drain::Drain;

/// Everything.
#[derive(Default, Serialize)]
pub(crate) struct Report {
    pub(crate) probes: Vec<Probes>,
    pub(crate) recordings: Vec<Recording>,
    pub(crate) throughputs: Vec<Throughput>,
    pub(crate) drain: Option<Drain>,
}

/// The middle of some measurements, and the quarters below and above which the others lie.
#[derive(Clone, Copy, Serialize)]
pub(crate) struct Middle {
    pub(crate) median: f64,
    pub(crate) lower: f64,
    pub(crate) upper: f64,
}

impl Middle {
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Middle> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let at = |part: usize| values.get((values.len().checked_sub(1)? * part).div_ceil(4)).copied();
        Some(Middle { median: at(2)?, lower: at(1)?, upper: at(3)? })
    }
}

/// Probes in one target.
#[derive(Serialize)]
pub(crate) struct Probes {
    pub(crate) target: String,
    /// Turns of each probe.
    pub(crate) rounds: usize,
    pub(crate) probes: Vec<Probe>,
    /// What could not be measured, and why.
    pub(crate) skipped: Vec<String>,
}

/// One probe.
#[derive(Serialize)]
pub(crate) struct Probe {
    pub(crate) name: String,
    /// Processor time of a launch with it, in the target.
    pub(crate) launch_ns: Middle,
    /// The same less that without a probe.
    pub(crate) cost_ns: Option<Middle>,
    /// The cost as a multiple of that of the empty program.
    pub(crate) ratio: Option<Middle>,
    /// What the ratio should be at most.
    pub(crate) goal: Option<f64>,
    /// Launches that found no room in the ring buffer.
    pub(crate) lost: u64,
}

impl fmt::Display for Probes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}, median and quartiles of {} rounds", self.target, self.rounds)?;
        let cell = |of: Option<Middle>, digits: usize| {
            of.map_or(String::new(), |Middle { median, lower, upper }| {
                format!("{median:.digits$} ({lower:.digits$} to {upper:.digits$})")
            })
        };
        writeln!(f, "  {:<46} {:>26} {:>24} {:>22}  goal", "", "ns a launch", "cost", "× the empty program")?;
        for probe in &self.probes {
            write!(
                f,
                "  {:<46} {:>26} {:>24} {:>22}",
                probe.name,
                cell(Some(probe.launch_ns), 0),
                cell(probe.cost_ns, 0),
                cell(probe.ratio, 2),
            )?;
            if let (Some(goal), Some(ratio)) = (probe.goal, probe.ratio) {
                write!(f, "  {goal} {}", if ratio.median <= goal { "met" } else { "MISSED" })?;
            }
            if probe.lost > 0 {
                write!(f, "  {} lost", probe.lost)?;
            }
            writeln!(f)?;
        }
        self.skipped.iter().try_for_each(|why| writeln!(f, "  SKIPPED {why}"))?;
        writeln!(f)
    }
}

/// One recording of a whole process.
#[derive(Serialize)]
pub(crate) struct Recording {
    pub(crate) target: String,
    pub(crate) seconds: f64,
    /// What the target does, and how often a second without and with the recorder.
    pub(crate) unit: &'static str,
    pub(crate) alone_per_second: f64,
    pub(crate) recorded_per_second: f64,
    pub(crate) seen: u64,
    pub(crate) written: u64,
    pub(crate) lost: u64,
    pub(crate) seen_per_second: f64,
    pub(crate) tape_bytes_per_event: f64,
    /// Processor time of the recorder over time, while the target ran.
    pub(crate) recorder_cores: f64,
    /// The same for each event.
    pub(crate) recorder_ns_per_event: f64,
    pub(crate) most_resident_bytes: u64,
    /// Of that the ring buffer, which is mapped twice in a row, so that records never break: each page counts twice.
    pub(crate) ring_resident_bytes: u64,
    pub(crate) wakeups_per_second: f64,
    pub(crate) goals: Vec<Goal>,
    /// What the recorder said of things that went wrong.
    pub(crate) troubles: Vec<String>,
}

/// What a figure should be at most.
#[derive(Serialize)]
pub(crate) struct Goal {
    pub(crate) what: &'static str,
    pub(crate) at_most: f64,
    pub(crate) is: f64,
}

impl fmt::Display for Recording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes as f64 / (1 << 20) as f64;
        writeln!(f, "{}, {:.1} s", self.target, self.seconds)?;
        let mut row = |what: &str, value: String| writeln!(f, "  {what:<46} {value}");
        let change = 100.0 * (self.recorded_per_second / self.alone_per_second - 1.0);
        row(
            self.unit,
            format!("{:.0} alone, {:.0} recorded ({change:+.1} %)", self.alone_per_second, self.recorded_per_second),
        )?;
        row("calls", format!("{} seen, {} written, {} lost", self.seen, self.written, self.lost))?;
        row("calls a second", format!("{:.0}", self.seen_per_second))?;
        row("bytes an event on the tape", format!("{:.2}", self.tape_bytes_per_event))?;
        row("recorder, cores", format!("{:.3}", self.recorder_cores))?;
        row("recorder, ns an event", format!("{:.0}", self.recorder_ns_per_event))?;
        let ring = mib(self.ring_resident_bytes);
        row(
            "recorder, resident MiB at most",
            format!("{:.0}, of them {ring:.0} the ring's two mappings", mib(self.most_resident_bytes)),
        )?;
        row("recorder, wakeups a second", format!("{:.0}", self.wakeups_per_second))?;
        for Goal { what, at_most, is } in &self.goals {
            let met = if is <= at_most { "met" } else { "MISSED" };
            row(&format!("goal: {what}"), format!("{is:.3}, at most {at_most} {met}"))?;
        }
        self.troubles.iter().try_for_each(|trouble| writeln!(f, "  {trouble}"))?;
        writeln!(f)
    }
}

/// The same work alone and traced.
#[derive(Serialize)]
pub(crate) struct Throughput {
    pub(crate) target: String,
    pub(crate) launches: u64,
    pub(crate) launches_per_second: f64,
    pub(crate) alone_seconds: Middle,
    pub(crate) traced: Vec<Traced>,
}

/// Under one tracer.
#[derive(Serialize)]
pub(crate) struct Traced {
    pub(crate) name: &'static str,
    /// How much longer the work took.
    pub(crate) slower_percent: Option<Middle>,
    /// Why it could not be measured.
    pub(crate) skipped: Option<String>,
}

impl fmt::Display for Throughput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Middle { median, lower, upper } = self.alone_seconds;
        writeln!(
            f,
            "{}: {} launches, {:.0} a second; alone {median:.2} s ({lower:.2} to {upper:.2})",
            self.target, self.launches, self.launches_per_second
        )?;
        for Traced { name, slower_percent, skipped } in &self.traced {
            match (slower_percent, skipped) {
                (Some(Middle { median, lower, upper }), _) => {
                    writeln!(f, "  {name:<52} {median:+.2} % ({lower:+.2} to {upper:+.2})")?;
                }
                (None, why) => writeln!(f, "  SKIPPED {name}: {}", why.as_deref().unwrap_or("not tried"))?,
            }
        }
        writeln!(f)
    }
}
