//! What a recording cannot have seen, and says so.
//!
//! Losses are calls that were seen and are not on the tape. Blind spots are what no counter counts, and what is on the tape but
//! says less than it should: a process that kept the driver busy past all probes, graphs and kernels from before the recording,
//! interpreters that are not walked. They are told at the end, and stand on the tape as its property `blind_spots`.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Result;
use ktape_format::Sink as _;
use ktape_format::definition::{property, subject};
use serde::Serialize;

use super::output::Output;
use super::python::Python;
use super::session::Session;
use crate::collect::events::Collector;
use crate::probes::functions::Meaning;
use crate::target::process;

/// A process that has had the driver mapped for so long, and has run for [`BUSY`] of it, is expected to have called it.
const MAPPED: Duration = Duration::from_secs(5);
/// See [`MAPPED`].
const BUSY: Duration = Duration::from_millis(500);

/// What sort of blind spot it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A process had the driver mapped and ran, and no probe saw it. The count is of processes.
    SilentProcess,
    /// Other functions were called, but none that launches. The count is of such functions with a probe.
    NoLaunch,
    /// A library got no probes. The count is of libraries.
    UnprobedLibrary,
    /// A function got no probe. The count is of probes.
    RefusedProbe,
    /// Launches of graphs that are not known.
    OlderGraphs,
    /// Launches of kernels without a name.
    UnnamedKernels,
    /// Calls of a process whose interpreter is not walked.
    UnwalkedInterpreter,
    /// Calls before the process's interpreter was found.
    BeforeInterpreter,
    /// Calls whose Python stack could not be read.
    UnreadableStacks,
    /// Calls whose Python stack did not come through.
    UnknownStacks,
    /// Returns that the ring buffer had no room for: calls without a duration and a result.
    LostReturns,
    /// Calls with arguments that could not be read.
    UnreadableArguments,
    /// Work of the device without its time.
    WithoutTime,
    /// Work of the device without the call that had it done.
    WithoutCall,
    /// Launches without their kernel.
    WithoutKernel,
    /// Work of the device that ended after the next of its stream had begun.
    Overlapping,
    /// Of calls launches alone are recorded. The count is of processes.
    OnlyLaunches,
}

/// What a recording cannot have seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BlindSpot {
    /// Of which sort.
    pub kind: Kind,
    /// How many, of what the kind says.
    pub count: u64,
    /// In words, without the count.
    pub what: String,
}

/// So many are told apart.
const MOST_NOTED: usize = 200;

/// What is noted of blind spots on the way.
#[derive(Debug, Default)]
pub(super) struct Noted {
    /// Those of processes that ended, and of libraries, by kind and words.
    counts: BTreeMap<(Kind, String), u64>,
    /// What was on the tape last: the counts are told at the end only, so that a long recording is not full of them.
    told: Vec<(Kind, String)>,
    /// What the tapes before have told: this one tells the rest.
    on_earlier_tapes: BTreeMap<(Kind, String), u64>,
    /// The same, with this one.
    on_tapes: BTreeMap<(Kind, String), u64>,
}

impl Noted {
    pub(super) fn add(&mut self, kind: Kind, what: String, count: u64) {
        if count == 0 {
            return;
        }
        // A node has processes without end, and each its own words.
        let is_known = self.counts.contains_key(&(kind, what.clone()));
        let what = if is_known || self.counts.len() < MOST_NOTED { what } else { "of others of the sort".to_owned() };
        *self.counts.entry((kind, what)).or_default() += count;
    }

    /// Of all that is known by now, what came since the tape was begun.
    fn of_this_tape(&self, spots: &[BlindSpot]) -> Vec<BlindSpot> {
        let rest = |spot: &BlindSpot| {
            let before = self.on_earlier_tapes.get(&(spot.kind, spot.what.clone())).copied().unwrap_or(0);
            BlindSpot { count: spot.count.saturating_sub(before), ..spot.clone() }
        };
        spots.iter().map(rest).filter(|spot| spot.count > 0).collect()
    }

    /// Puts on the tape what came since that was begun, if there are others than before. At the end the counts are told too.
    pub(super) fn tell(&mut self, spots: &[BlindSpot], is_end: bool, tape: &mut Output) -> Result<()> {
        let new = self.of_this_tape(spots);
        let kinds: Vec<(Kind, String)> = new.iter().map(|spot| (spot.kind, spot.what.clone())).collect();
        if kinds != self.told || (is_end && !new.is_empty()) {
            tape.property(subject::TAPE, 0, property::BLIND_SPOTS, &serde_json::to_string(&new)?)?;
            self.told = kinds;
            self.on_tapes = spots.iter().map(|spot| ((spot.kind, spot.what.clone()), spot.count)).collect();
        }
        Ok(())
    }

    /// Learns that another tape was begun.
    pub(super) fn begin_tape(&mut self) {
        self.told.clear();
        self.on_earlier_tapes.clone_from(&self.on_tapes);
    }

    /// All that was noted.
    pub(super) fn spots(&self) -> Vec<BlindSpot> {
        let spot =
            |((kind, what), &count): (&(Kind, String), &u64)| BlindSpot { kind: *kind, count, what: what.clone() };
        self.counts.iter().map(spot).collect()
    }
}

/// The driver in a process: since when, and what the process has run since.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mapped {
    since: Instant,
    ran_before: Duration,
    looked: Instant,
    ran: Duration,
}

impl Mapped {
    /// Looks at a process that has the driver mapped. One that is gone leaves what was seen of it.
    pub(super) fn look(known: Option<Mapped>, pid: u32) -> Option<Mapped> {
        let (Ok(ran), looked) = (process::cpu_time(pid), Instant::now()) else { return known };
        let Mapped { since, ran_before, .. } = known.unwrap_or(Mapped { since: looked, ran_before: ran, looked, ran });
        Some(Mapped { since, ran_before, looked, ran })
    }

    /// Says of a process that was busy with the driver that nothing of it was seen.
    pub(super) fn silence(&self, pid: u32, how: &str) -> Option<String> {
        self.is_busy().then(|| {
            format!(
                "process {how}: {pid} had the driver mapped for {:.0} s and ran for {:.1} s of it",
                self.looked.duration_since(self.since).as_secs_f64(),
                self.ran.saturating_sub(self.ran_before).as_secs_f64(),
            )
        })
    }

    fn is_busy(&self) -> bool {
        self.looked.duration_since(self.since) >= MAPPED && self.ran.saturating_sub(self.ran_before) >= BUSY
    }
}

impl Session {
    /// Notes what was not seen of a process that ends, or whose recording does.
    pub(super) fn note_blind_spots_of(&mut self, pid: u32) {
        let Some(recorded) = self.processes.get(&pid) else { return };
        let calls = self.collector.calls(pid);
        if calls == 0
            && let Some(what) =
                recorded.driver.and_then(|mapped| mapped.silence(pid, "without a call that the probes saw"))
        {
            self.noted.add(Kind::SilentProcess, what, 1);
        }
        if let Some(inside) =
            self.inside.as_ref().filter(|inside| inside.wants_device_time() && calls > 0 && !inside.knows(pid))
        {
            let name = inside.library().file_name().unwrap_or_default().to_string_lossy();
            let what = format!("calls of process {pid}, which has not loaded {name}: without times of the device");
            self.noted.add(Kind::WithoutTime, what, calls);
        }
        if let Python::Refused = recorded.python {
            let what = format!("calls of process {pid}: {}", recorded.said_of_python);
            self.noted.add(Kind::UnwalkedInterpreter, what, self.collector.stackless_calls(pid));
        }
    }

    /// All that is known of by now, the worst first.
    pub(super) fn blind_spots(&self) -> Result<Vec<BlindSpot>> {
        let spot = |kind, count, what: &str| BlindSpot { kind, count, what: what.to_owned() };
        let mut spots = self.noted.spots();
        spots.extend(of_collector(&self.collector));
        let counters = self.kernel.counters()?;
        let functions = || self.functions.iter().zip(&counters).zip(&self.hooked).filter(|(_, hooked)| **hooked);
        let launches = functions().filter(|((function, _), _)| function.meaning.is_launch());
        let (hooked, launched) =
            launches.fold((0, 0), |(hooked, launched), ((_, counters), _)| (hooked + 1, launched + counters.calls));
        // Setting up is not enough to expect launches; copies and waits are.
        let worked = functions().any(|((function, counters), _)| {
            matches!(function.meaning, Meaning::Copy { .. } | Meaning::Set { .. } | Meaning::Wait { .. })
                && counters.calls > 0
        });
        let no_launch = if worked && launched == 0 { hooked } else { 0 };
        let sum = |of: fn(&ktape_ebpf::wire::Counters) -> u64| counters.iter().map(of).sum::<u64>();
        spots.extend(
            [
                spot(
                    Kind::NoLaunch,
                    no_launch,
                    "functions that launch have a probe and were never called, while others were",
                ),
                spot(
                    Kind::UnreadableStacks,
                    sum(|counters| counters.without_stack),
                    "calls whose Python stack could not be read",
                ),
                spot(
                    Kind::LostReturns,
                    sum(|counters| counters.returns_lost),
                    "returns that the ring buffer had no room for",
                ),
            ]
            .into_iter()
            .filter(|spot| spot.count > 0),
        );
        spots.sort_by(|a, b| (a.kind, &a.what).cmp(&(b.kind, &b.what)));
        Ok(spots)
    }

    /// Puts them on the tape, if there are others than before. At the end the counts are told too.
    pub(super) fn tell_blind_spots(&mut self, is_end: bool) -> Result<Vec<BlindSpot>> {
        let spots = self.blind_spots()?;
        self.noted.tell(&spots, is_end, &mut self.tape)?;
        Ok(spots)
    }
}

/// What a collector knows of, however its records came.
pub(super) fn of_collector(collector: &Collector) -> impl Iterator<Item = BlindSpot> {
    let (gaps, device) = (collector.gaps(), collector.device());
    [
        (
            Kind::OlderGraphs,
            gaps.launches_of_older_graphs,
            "launches of graphs that were made before the recording: of which kernels is not known",
        ),
        (Kind::UnnamedKernels, collector.unnamed_launches(), "launches of kernels without a name"),
        (
            Kind::BeforeInterpreter,
            gaps.before_interpreter,
            "calls before the process's interpreter was found: without a stack",
        ),
        (Kind::UnknownStacks, gaps.unknown_stacks, "calls whose Python stack did not come through"),
        (Kind::UnreadableArguments, gaps.unreadable_arguments, "calls with arguments that could not be read"),
        (Kind::WithoutTime, device.without_time, "kernels, copies and memsets that CUPTI has no time for"),
        (
            Kind::WithoutCall,
            device.of_older_calls,
            "kernels, copies and memsets of calls that are older than the recording",
        ),
        (
            Kind::WithoutCall,
            device.of_unknown_calls,
            "kernels, copies and memsets whose call was lost, or is of a function that is not recorded",
        ),
        (
            Kind::WithoutKernel,
            device.launches_cut_off,
            "launches whose process ended before their kernel was told of",
        ),
        (
            Kind::WithoutKernel,
            device.launches_without_kernel,
            "launches whose kernel was not told of: that was dropped or lost, had no events around it, or the launch was refused",
        ),
        (
            Kind::WithoutKernel,
            device.graph_launches_cut_off,
            "launches of graphs whose process ended before CUPTI told of their work",
        ),
        (
            Kind::WithoutKernel,
            device.graph_launches_without_work,
            "launches of graphs of which CUPTI told nothing, though they have kernels, copies or memsets",
        ),
        (Kind::WithoutTime, device.copies_without_time, "copies and memsets that CUPTI did not tell of"),
        (
            Kind::Overlapping,
            device.overlapping,
            "kernels, copies and memsets that by CUPTI's word ended after the next of their stream had begun",
        ),
    ]
    .into_iter()
    .filter(|(_, count, _)| *count > 0)
    .map(|(kind, count, what)| BlindSpot { kind, count, what: what.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_busy_that_ran_with_the_driver_for_a_while() {
        let now = Instant::now();
        let mapped = |seconds, ran_ms| Mapped {
            since: now,
            ran_before: Duration::from_secs(7),
            looked: now + Duration::from_secs(seconds),
            ran: Duration::from_secs(7) + Duration::from_millis(ran_ms),
        };
        assert!(mapped(5, 500).is_busy());
        assert!(!mapped(4, 4000).is_busy());
        assert!(!mapped(60, 100).is_busy(), "it waits for something else");
    }

    #[test]
    fn each_tape_tells_what_came_while_it_was_written() {
        let spot = |count, what: &str| BlindSpot { kind: Kind::UnknownStacks, count, what: what.to_owned() };
        let mut noted = Noted::default();
        // What each of three tapes is told of all that is known by then, and tells.
        let known = [
            vec![spot(3, "a"), spot(1, "b")],
            vec![spot(5, "a"), spot(1, "b"), spot(7, "c")],
            // A kernel that has a name now was without one on the tapes before.
            vec![spot(4, "a"), spot(1, "b"), spot(8, "c")],
        ];
        let told = known.map(|spots| {
            let file = tempfile::NamedTempFile::new().unwrap();
            let options = ktape_format::Options::batch("test");
            let mut tape = Output::tape(file.path(), &options).unwrap();
            noted.tell(&spots, true, &mut tape).unwrap();
            noted.begin_tape();
            assert_eq!(tape.finish().failure, None);
            let definitions = ktape_format::Tape::open(file.path()).unwrap().definitions().unwrap();
            let json = definitions.property(subject::TAPE, 0, property::BLIND_SPOTS).map(str::to_owned);
            json.unwrap_or_default()
        });
        let json = |spots: &[BlindSpot]| serde_json::to_string(spots).unwrap();
        let expected =
            [json(&[spot(3, "a"), spot(1, "b")]), json(&[spot(2, "a"), spot(7, "c")]), json(&[spot(1, "c")])];
        assert_eq!(told, expected);
    }

    #[test]
    fn a_process_that_is_gone_leaves_what_was_seen_of_it() {
        let own = Mapped::look(None, std::process::id());
        assert!(own.is_some());
        assert!(Mapped::look(own, u32::MAX).is_some());
        assert!(Mapped::look(None, u32::MAX).is_none());
    }
}
