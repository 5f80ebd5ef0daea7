//! The recorder's part in the inside collector: the directory that it shares with the libraries in processes, what they write
//! there, and what they are told. Both sessions have it: the one with eBPF programs for what the device did, and the one without
//! ([`super::alone`]) for everything.

pub(super) mod beside;
mod directory;
mod library;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::ValueEnum;
use ktape_ebpf::inside::{DIRECTORY_VARIABLE, PythonEntry, device_time, state, untimed};
use ktape_ebpf::python::{Interpreter, KEY_BY_LIST};
use ktape_ebpf::wire::tally::Slot;
use ktape_format::definition::property;
use ktape_format::table::DefinitionKind;
use ktape_format::{Sink as _, TapeError};
use rustc_hash::FxHashMap;
use serde::Serialize;

pub use self::library::{can_load, find as find_library};
use super::blind_spots::Kind;
use super::output::Output;
use crate::collect::events::{Collector, DeviceTimes, Notice};
use crate::collect::inside::cost::Cost;
use crate::collect::inside::device::DeviceCounts;
use crate::collect::inside::pages::{Page, Timed, Word};
use crate::collect::inside::ranges::RangeCounts;
use crate::collect::inside::rings::{Of, Rings};
use crate::probes::functions::Probed;
use crate::python::in_file;

/// The variable in which the CUDA driver finds what it loads into a process.
pub const INJECTION_VARIABLE: &str = "CUDA_INJECTION64_PATH";
/// And that in which each copy of NVTX does.
pub const NVTX_VARIABLE: &str = "NVTX_INJECTION64_PATH";
/// And that in which the loader finds what it loads before all else.
pub const PRELOAD_VARIABLE: &str = "LD_PRELOAD";
/// How often the directory is looked through although no library has said that there is something new.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// Where the device's times come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum DeviceTime {
    /// They are not recorded.
    #[default]
    Off,
    /// CUPTI's activity records.
    Cupti,
    /// CUDA events around launches.
    Events,
}

impl DeviceTime {
    /// As libraries are told it.
    fn code(self) -> u32 {
        match self {
            DeviceTime::Off => device_time::OFF,
            DeviceTime::Cupti => device_time::CUPTI,
            DeviceTime::Events => device_time::EVENTS,
        }
    }

    /// What is told by them.
    pub(super) fn told(self) -> DeviceTimes {
        match self {
            DeviceTime::Off => DeviceTimes::None,
            DeviceTime::Cupti => DeviceTimes::OfAll,
            DeviceTime::Events => DeviceTimes::OfKernels,
        }
    }

    /// How often what the device did is asked for: a view of the tape while it is written is at most a second behind. Events that are not
    /// asked for are not free for other launches.
    fn flush_ms(self) -> u32 {
        if self == DeviceTime::Events { 20 } else { 200 }
    }
}

/// What libraries in processes are asked for.
#[derive(Clone, Debug)]
pub struct Options {
    /// The device's own times.
    pub device_time: DeviceTime,
    /// Calls, with their stacks: where no eBPF program sees them.
    pub calls: bool,
    /// Which call has which number in CUPTI: where an eBPF program listens.
    pub announce: bool,
    /// Ranges and marks that programs name by NVTX.
    pub ranges: bool,
    /// Whether launches are in scope by their kernels: those that are not get no events.
    pub by_kernel: bool,
    /// A file of CUPTI to load in place of what is found.
    pub cupti: Option<PathBuf>,
    /// How long the ring of a thread is: a power of two.
    pub ring_bytes: u32,
    /// Whether the command's children are recorded too.
    pub follow: bool,
}

impl Options {
    /// Whether the driver is to load the library. Where events are, a library of somebody else's that it loads is left to it: then the first launch
    /// begins the recording.
    fn wants_driver_to_load(&self) -> bool {
        match self.device_time {
            DeviceTime::Events => value_of(INJECTION_VARIABLE).is_none(),
            DeviceTime::Cupti => true,
            DeviceTime::Off => self.calls || self.announce,
        }
    }

    /// The variables by which the driver and NVTX find the library.
    fn variables(&self) -> impl Iterator<Item = &'static str> {
        let by_driver = self.wants_driver_to_load().then_some(INJECTION_VARIABLE);
        by_driver.into_iter().chain(self.ranges.then_some(NVTX_VARIABLE))
    }
}

/// What became of a process's library, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Said {
    pub(super) pid: u32,
    pub(super) what: String,
    /// What is missing of it, if something is.
    pub(super) trouble: Option<Kind>,
}

/// What a recording tells of its inside collector.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Processes that had loaded the library.
    pub processes: u64,
    /// What became of the library in them, with how many of them.
    pub states: BTreeMap<String, u64>,
    /// What the device did.
    #[serde(flatten)]
    pub counts: DeviceCounts,
    /// Ranges and marks.
    pub named: RangeCounts,
    /// Launches with CUDA events around them, if these were asked for.
    pub events: Option<EventsTook>,
    /// Rows of kernels, copies, memsets, ranges and marks that found no room in a ring.
    pub lost: u64,
    /// Records that made no sense.
    pub strange: u64,
    /// What the library and CUPTI took of the processes.
    pub cost: Cost,
}

/// What CUDA events around launches took.
#[derive(Clone, Debug, Serialize)]
pub struct EventsTook {
    /// Launches that have had events.
    pub launches: u64,
    /// How long the program's threads took for these, but for those that took long.
    pub own_ns: u64,
    /// Of these launches, those that took longer than a tenth of a millisecond: they made events, or their thread was interrupted.
    pub long: u64,
    /// How long those took.
    pub long_ns: u64,
    /// What share of one processor that is, over the time of the recording.
    pub processor_share: f64,
    /// Launches without events that nothing is missing of, by reason.
    pub untimed: BTreeMap<&'static str, u64>,
}

impl EventsTook {
    fn of(timed: &Timed, elapsed: Duration) -> EventsTook {
        let Timed { launches, own_ns, long, long_ns, untimed } = *timed;
        let processor_share = (own_ns + long_ns) as f64 / elapsed.as_nanos().max(1) as f64;
        let untimed = untimed::NAMES.into_iter().zip(untimed).collect();
        EventsTook { launches, own_ns, long, long_ns, processor_share, untimed }
    }

    /// For a person.
    pub fn in_words(&self) -> String {
        let EventsTook { launches, own_ns, long, long_ns, processor_share, .. } = self;
        let each_ns = *own_ns as f64 / launches.saturating_sub(*long).max(1) as f64;
        let (long_ms, share) = (*long_ns as f64 / 1e6, 100.0 * processor_share);
        format!(
            "{launches} launches timed, {each_ns:.0} ns each, but for {long} that made events or were interrupted: {long_ms:.1} ms; \
             together {share:.1} % of a processor"
        )
    }
}

/// The inside collector of a recording.
#[derive(Debug)]
pub(super) struct Inside {
    options: Options,
    library: PathBuf,
    pub(super) rings: Rings,
    pages: FxHashMap<u32, (Page, Word)>,
    processes: u64,
    states: BTreeMap<String, u64>,
    /// What was taken of processes that have ended.
    cost: Cost,
    /// And of programs that processes ran before those that they run now.
    earlier: FxHashMap<u32, Cost>,
    began: Instant,
    /// Of processes that have ended.
    timed: Timed,
    files: u64,
    looked: Instant,
    /// Goes last.
    directory: directory::Directory,
}

impl Inside {
    /// Makes the directory. Nothing is loaded yet.
    pub(super) fn begin(options: &Options, library: &Path, functions: &[Probed]) -> Result<Inside> {
        let directory = directory::Directory::create(options, functions)?;
        Ok(Inside {
            options: options.clone(),
            library: library.to_owned(),
            rings: Rings::new(directory.path()),
            pages: FxHashMap::default(),
            processes: 0,
            states: BTreeMap::new(),
            cost: Cost::default(),
            earlier: FxHashMap::default(),
            began: Instant::now(),
            timed: Timed::default(),
            files: 0,
            looked: Instant::now(),
            directory,
        })
    }

    pub(super) fn library(&self) -> &Path {
        &self.library
    }

    /// What a command's environment needs.
    pub(super) fn variables(&self) -> Vec<(&'static str, OsString)> {
        let library = self.library.as_os_str();
        let names = self.options.variables().map(|name| (name, library.to_owned()));
        let by_loader = (self.options.device_time == DeviceTime::Events).then(|| {
            // Before others: it hands out what they would have.
            let mut preloaded = library.to_owned();
            if let Some(others) = value_of(PRELOAD_VARIABLE) {
                preloaded.push(":");
                preloaded.push(others);
            }
            (PRELOAD_VARIABLE, preloaded)
        });
        names.chain(by_loader).chain([(DIRECTORY_VARIABLE, self.directory.path().as_os_str().to_owned())]).collect()
    }

    /// Whether it tells what the device did.
    pub(super) fn wants_device_time(&self) -> bool {
        self.options.device_time != DeviceTime::Off
    }

    /// Looks for processes that have loaded the library since the last time, and for new rings.
    pub(super) fn look(&mut self, troubles: &mut Vec<String>) -> Vec<u32> {
        let files = self.directory.control().files.load(Ordering::Acquire);
        if files == self.files && self.looked.elapsed() < LOOK_AGAIN {
            return Vec::new();
        }
        (self.files, self.looked) = (files, Instant::now());
        let found = match self.rings.look() {
            Ok(found) => found,
            Err(error) => {
                troubles.push(format!("{}: {error}", self.directory.path().display()));
                return Vec::new();
            }
        };
        troubles.extend(found.troubles);
        let pids: Vec<u32> = found.pages.iter().map(Page::pid).collect();
        self.processes += pids.len() as u64;
        for page in found.pages {
            if let Some((before, _)) = self.pages.insert(page.pid(), (page, Word::default())) {
                *self.earlier.entry(before.pid()).or_default() += before.cost();
            }
        }
        pids
    }

    /// What was taken of a process by now.
    fn cost_of(&self, pid: u32) -> Cost {
        let mut cost = self.earlier.get(&pid).cloned().unwrap_or_default();
        if let Some((page, _)) = self.pages.get(&pid) {
            cost += page.cost();
        }
        cost
    }

    /// Writes what was taken of processes by now: the last word counts.
    pub(super) fn tell_cost(
        &self,
        pids: impl IntoIterator<Item = u32>,
        collector: &Collector,
        tape: &mut Output,
    ) -> Result<()> {
        for pid in pids.into_iter().filter(|pid| self.pages.contains_key(pid)) {
            let (process, cost) = (collector.process_id(pid), self.cost_of(pid));
            if process != 0 && cost != Cost::default() {
                let text = serde_json::to_string(&cost)?;
                tape.property(DefinitionKind::Process as u16, process, property::INSIDE_COST, &text)?;
            }
        }
        Ok(())
    }

    /// Writes it of all processes.
    pub(super) fn tell_all_cost(&self, collector: &Collector, tape: &mut Output) -> Result<()> {
        let mut pids: Vec<u32> = self.pages.keys().copied().collect();
        pids.sort_unstable();
        self.tell_cost(pids, collector, tape)
    }

    /// Has launches get no events that are out of scope, as the collector has found.
    pub(super) fn tell_scope(&self, collector: &mut Collector) {
        let Some(table) = self.directory.left_out() else { return };
        for (pid, kernel, is_left_out) in collector.take_scope_changes() {
            if is_left_out { table.put(pid, kernel) } else { table.remove(pid, kernel) }
        }
    }

    /// Tells the tape what events took of a process of which no more comes.
    pub(super) fn tell_device_time(&self, pid: u32, collector: &Collector, tape: &mut Output) -> Result<(), TapeError> {
        let process = collector.process_id(pid);
        let Some((page, word)) = self.pages.get(&pid).filter(|_| process != 0) else { return Ok(()) };
        let timed = page.timed();
        if timed.launches == 0 {
            return Ok(());
        }
        let took = EventsTook::of(&timed, self.began.elapsed()).in_words();
        let said = in_words(word, &self.options).map_or_else(|| EVENTS.to_owned(), |(what, _)| what);
        tape.property(DefinitionKind::Process as u16, process, property::DEVICE_TIME, &format!("{said}; {took}"))
    }

    /// What processes say of themselves that they had not said before.
    pub(super) fn words(&mut self) -> Vec<Said> {
        let mut said = Vec::new();
        for (&pid, (page, known)) in &mut self.pages {
            let word = page.word();
            if word != *known {
                said.extend(in_words(&word, &self.options).map(|(what, trouble)| Said { pid, what, trouble }));
                *known = word;
            }
        }
        said.sort_by_key(|said| said.pid);
        said
    }

    /// Takes what rings have, up to the horizon and so many records. A process that is not known may be begun by `notice`; else what
    /// it tells is lost.
    pub(super) fn take(
        &mut self,
        horizon_ns: u64,
        most: usize,
        collector: &mut Collector,
        tape: &mut Output,
        mut notice: impl FnMut(Notice, &mut Collector, &mut Output) -> Result<(), TapeError>,
    ) -> Result<usize, TapeError> {
        self.rings.read(horizon_ns, most, |record| {
            let give = |collector: &mut Collector, tape: &mut Output| match record.of {
                Of::Device => collector.take_device(record.bytes, |id| record.text(id), horizon_ns, tape),
                Of::Range => collector.take_range(record.bytes, |id| record.text(id), tape),
                Of::Calls => collector.take(record.bytes, tape),
            };
            match give(collector, tape)? {
                Some(unknown @ Notice::Unknown(_)) => {
                    notice(unknown, collector, tape)?;
                    match give(collector, tape)? {
                        Some(Notice::Unknown(_)) => collector.lose(record.bytes, tape),
                        _ => Ok(()),
                    }
                }
                Some(other) => notice(other, collector, tape),
                None => Ok(()),
            }
        })
    }

    /// Takes the rings of threads away that have ended, of which all is read.
    pub(super) fn end_threads(&mut self, collector: &mut Collector, tape: &mut Output) -> Result<(), TapeError> {
        self.rings.remove_read(None).into_iter().try_for_each(|(pid, tid)| collector.end_ranges_of(pid, tid, tape))
    }

    /// Whether a process has loaded the library.
    pub(super) fn knows(&self, pid: u32) -> bool {
        self.pages.contains_key(&pid)
    }

    /// Tells a process its Python.
    pub(super) fn set_interpreter(&mut self, pid: u32, interpreter: &Interpreter) {
        if let Some((page, _)) = self.pages.get_mut(&pid) {
            page.set_interpreter(interpreter);
        }
    }

    /// Tells processes that are yet to load the library which Pythons these files have.
    pub(super) fn add_pythons(&self, files: &[PathBuf]) -> io::Result<()> {
        let known = files.iter().filter_map(|path| Some((in_file::read(path).ok()??, path.metadata().ok()?)));
        let entries = known.map(|(in_file, facts)| PythonEntry {
            device: facts.dev(),
            inode: facts.ino(),
            interpreter: in_file.python.interpreter,
        });
        // In 3.15 and later a library has the state wherever the loader put it.
        self.directory.write_pythons(entries.filter(|entry| entry.interpreter.tss_key != KEY_BY_LIST))
    }

    /// The Python that a process was told, or knew by its file.
    pub(super) fn interpreter(&self, pid: u32) -> Option<Interpreter> {
        self.pages.get(&pid).and_then(|(page, _)| page.interpreter())
    }

    /// Asks the libraries to tell what they have, and no more.
    pub(super) fn ask_to_end(&self) {
        self.directory.control().ended.store(1, Ordering::Release);
    }

    /// Whether all processes have nothing more to tell.
    pub(super) fn are_quiet(&self) -> bool {
        let needs_cupti = self.options.device_time != DeviceTime::Events;
        let is_quiet = |state| match state {
            state::NO_CUPTI | state::OTHER_CLIENT => needs_cupti,
            state::QUIET | state::LEFT_ENABLED | state::FAILED => true,
            _ => false,
        };
        self.pages.values().all(|(page, _)| is_quiet(page.word().state))
    }

    /// A process has ended, and what it told has been read.
    pub(super) fn end_process(&mut self, pid: u32) {
        self.rings.remove_read(Some(pid));
        self.cost += self.cost_of(pid);
        self.earlier.remove(&pid);
        if let Some((page, word)) = self.pages.remove(&pid) {
            *self.states.entry(state_name(word.state).to_owned()).or_default() += 1;
            let Timed { launches, own_ns, long, long_ns, untimed } = page.timed();
            self.timed.launches += launches;
            self.timed.own_ns += own_ns;
            self.timed.long += long;
            self.timed.long_ns += long_ns;
            self.timed.untimed.iter_mut().zip(untimed).for_each(|(sum, count)| *sum += count);
            page.remove();
            self.rings.forget_page(pid);
        }
    }

    /// What all rings have counted so far.
    pub(super) fn counted(&self) -> Slot {
        self.rings.counted()
    }

    pub(super) fn summary(&mut self, collector: &Collector) -> Summary {
        let (counts, named) = (collector.device(), collector.ranges());
        let pids: Vec<u32> = self.pages.keys().copied().collect();
        pids.into_iter().for_each(|pid| self.end_process(pid));
        let counted = self.counted();
        let lost = NO_CALLS.iter().map(|&table| counted.lost[table as usize]).sum();
        let (processes, states, strange) = (self.processes, self.states.clone(), self.rings.strange());
        let events =
            (self.options.device_time == DeviceTime::Events).then(|| EventsTook::of(&self.timed, self.began.elapsed()));
        Summary { processes, states, counts, named, events, lost, strange, cost: self.cost.clone() }
    }
}

/// The tables of what is in rings and no call: what the device did, and what the program names.
pub(super) const NO_CALLS: [u32; 5] = {
    use ktape_ebpf::wire::tally::{KERNEL, MARK, MEMCPY, MEMSET, RANGE};
    [KERNEL, MEMCPY, MEMSET, RANGE, MARK]
};

fn state_name(state: u32) -> &'static str {
    match state {
        state::LOADED => "loaded",
        state::RECORDING => "recording",
        state::NO_CUPTI => "no_cupti",
        state::REFUSED => "refused",
        state::OTHER_CLIENT => "other_client",
        state::QUIET => "quiet",
        state::FAILED => "failed",
        state::LEFT_ENABLED => "left_enabled",
        state::NOT_PRELOADED => "not_preloaded",
        _ => "unknown",
    }
}

/// What the property [`property::DEVICE_TIME`] begins with where events are.
const EVENTS: &str = "events: CUDA events around launches";

/// What a process says, for a person; and what is missing, if something is. `None` where nothing is to be said.
fn in_words(word: &Word, options: &Options) -> Option<(String, Option<Kind>)> {
    let Word { code, cupti_version, detail, .. } = word;
    let cupti = || format!("CUPTI {cupti_version}, {detail}");
    let no_cupti = match word.state {
        state::NO_CUPTI => format!("no CUPTI: {detail}"),
        state::REFUSED => format!("CUPTI answers {code}: {detail}"),
        state::OTHER_CLIENT => format!("another client of CUPTI is in the process: {detail}"),
        _ => String::new(),
    };
    let is_without_cupti = !no_cupti.is_empty();
    let missing = |what| (what, Some(Kind::SilentProcess));
    if options.device_time == DeviceTime::Events {
        return Some(match word.state {
            state::RECORDING if options.calls => (format!("{EVENTS}; calls from {}", cupti()), None),
            state::RECORDING => (EVENTS.to_owned(), None),
            _ if is_without_cupti => {
                (format!("{EVENTS}; of calls launches alone are recorded: {no_cupti}"), Some(Kind::OnlyLaunches))
            }
            state::NOT_PRELOADED => (
                "the device's times are not recorded: the library was not preloaded".to_owned(),
                Some(Kind::WithoutTime),
            ),
            state::FAILED => {
                missing(format!("the device's times are not recorded: the library inside failed: {detail}"))
            }
            _ => return None,
        });
    }
    let without = if options.calls { "nothing of it is recorded" } else { "the device's times are not recorded" };
    Some(match word.state {
        state::RECORDING if options.device_time != DeviceTime::Off || options.calls => (cupti(), None),
        // Calls are told all the same, if it was the device's times that CUPTI refused.
        state::REFUSED if options.calls => missing(format!("not all of it is recorded: {no_cupti}")),
        _ if is_without_cupti => missing(format!("{without}: {no_cupti}")),
        state::FAILED => missing(format!("{without}: the library inside failed: {detail}")),
        state::LEFT_ENABLED => (format!("{}; for another client that came later it stays on", cupti()), None),
        _ => return None,
    })
}

/// Makes sure that a command can load the library and that nothing else of the sort is wanted in it.
///
/// # Errors
///
/// Why not.
pub fn check(program: &Path, library: &Path, options: &Options) -> Result<()> {
    for name in options.variables() {
        let other = value_of(name);
        let without = if name == NVTX_VARIABLE { "--nvtx" } else { "--device-time and --collector inside" };
        ensure!(
            other.is_none(),
            "{name} is set already ({}), and one library only is loaded by it: unset it, or record without {without}",
            other.unwrap_or_default().to_string_lossy()
        );
    }
    can_load(program, library)
}

/// A variable's value in this process, and so in the command's. One that is empty is as none.
fn value_of(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}
