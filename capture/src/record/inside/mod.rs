//! The recorder's part in the inside collector: the directory that it shares with the libraries in processes, what they write
//! there, and what they are told. Both sessions have it: the one with eBPF programs for what the device did, and the one without
//! ([`super::alone`]) for everything.

pub(super) mod beside;
mod directory;
mod library;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use ktape_ebpf::inside::{DIRECTORY_VARIABLE, state};
use ktape_ebpf::python::Interpreter;
use ktape_ebpf::wire::tally::Slot;
use ktape_format::definition::property;
use ktape_format::table::DefinitionKind;
use ktape_format::{Sink as _, TapeError};
use rustc_hash::FxHashMap;
use serde::Serialize;

pub use self::library::{can_load, find as find_library};
use super::output::Output;
use crate::collect::events::{Collector, Notice};
use crate::collect::inside::cost::Cost;
use crate::collect::inside::device::DeviceCounts;
use crate::collect::inside::pages::{Page, Word};
use crate::collect::inside::ranges::RangeCounts;
use crate::collect::inside::rings::{Of, Rings};
use crate::probes::functions::Probed;

/// The variable in which the CUDA driver finds what it loads into a process.
pub const INJECTION_VARIABLE: &str = "CUDA_INJECTION64_PATH";
/// And that in which each copy of NVTX does.
pub const NVTX_VARIABLE: &str = "NVTX_INJECTION64_PATH";
/// How often the directory is looked through although no library has said that there is something new.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// What libraries in processes are asked for.
#[derive(Clone, Debug)]
pub struct Options {
    /// The device's own times.
    pub device_time: bool,
    /// Calls, with their stacks: where no eBPF program sees them.
    pub calls: bool,
    /// Which call has which number in CUPTI: where an eBPF program listens.
    pub announce: bool,
    /// Ranges and marks that programs name by NVTX.
    pub ranges: bool,
    /// A file of CUPTI to load in place of what is found.
    pub cupti: Option<PathBuf>,
    /// How long the ring of a thread is: a power of two.
    pub ring_bytes: u32,
    /// Whether the command's children are recorded too.
    pub follow: bool,
}

impl Options {
    /// Whether CUPTI is wanted, and so the driver to load the library.
    fn wants_cupti(&self) -> bool {
        self.device_time || self.calls || self.announce
    }

    /// The variables by which processes find the library.
    fn variables(&self) -> impl Iterator<Item = &'static str> {
        let by_driver = self.wants_cupti().then_some(INJECTION_VARIABLE);
        by_driver.into_iter().chain(self.ranges.then_some(NVTX_VARIABLE))
    }
}

/// What became of a process's library, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Said {
    pub(super) pid: u32,
    pub(super) what: String,
    /// Whether nothing of the device comes from it.
    pub(super) is_trouble: bool,
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
    /// Rows of kernels, copies, memsets, ranges and marks that found no room in a ring.
    pub lost: u64,
    /// Records that made no sense.
    pub strange: u64,
    /// What the library and CUPTI took of the processes.
    pub cost: Cost,
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
        let names = self.options.variables().map(|name| (name, self.library.as_os_str().to_owned()));
        names.chain([(DIRECTORY_VARIABLE, self.directory.path().as_os_str().to_owned())]).collect()
    }

    /// Whether it tells what the device did.
    pub(super) fn wants_device_time(&self) -> bool {
        self.options.device_time
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

    /// What processes say of themselves that they had not said before.
    pub(super) fn words(&mut self) -> Vec<Said> {
        let mut said = Vec::new();
        for (&pid, (page, known)) in &mut self.pages {
            let word = page.word();
            if word != *known {
                said.extend(in_words(&word, &self.options).map(|(what, is_trouble)| Said { pid, what, is_trouble }));
                *known = word;
            }
        }
        said.sort_by_key(|said| said.pid);
        said
    }

    /// Takes what rings have, up to the horizon and so many records. A process that is not known is begun by `begin`.
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
                    give(collector, tape).map(|_| ())
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

    /// The Python that a process was told.
    pub(super) fn interpreter(&self, pid: u32) -> Option<Interpreter> {
        self.pages.get(&pid).and_then(|(page, _)| page.interpreter())
    }

    /// Asks the libraries to tell what they have, and no more.
    pub(super) fn ask_to_end(&self) {
        self.directory.control().ended.store(1, Ordering::Release);
    }

    /// Whether all processes have nothing more to tell.
    pub(super) fn are_quiet(&self) -> bool {
        let is_quiet = |state| {
            use state::{FAILED, LEFT_ENABLED, NO_CUPTI, OTHER_CLIENT, QUIET};
            matches!(state, QUIET | LEFT_ENABLED | FAILED | NO_CUPTI | OTHER_CLIENT)
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
        Summary { processes, states, counts, named, lost, strange, cost: self.cost.clone() }
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
        _ => "unknown",
    }
}

/// What a process says, for a person; and whether that is trouble. `None` where nothing is to be said.
fn in_words(word: &Word, options: &Options) -> Option<(String, bool)> {
    let without = if options.calls { "nothing of it is recorded" } else { "the device's times are not recorded" };
    let Word { code, cupti_version, detail, .. } = word;
    Some(match word.state {
        state::RECORDING if options.device_time || options.calls => (format!("CUPTI {cupti_version}, {detail}"), false),
        state::NO_CUPTI => (format!("{without}: no CUPTI: {detail}"), true),
        // Calls are told all the same, if it was the device's times that CUPTI refused.
        state::REFUSED if options.calls => (format!("not all of it is recorded: CUPTI answers {code}: {detail}"), true),
        state::REFUSED => (format!("{without}: CUPTI answers {code}: {detail}"), true),
        state::OTHER_CLIENT => (format!("{without}: another client of CUPTI is in the process: {detail}"), true),
        state::LEFT_ENABLED => {
            (format!("CUPTI {cupti_version}, {detail}; for another client that came later it stays on"), false)
        }
        state::FAILED => (format!("{without}: the library inside failed: {detail}"), true),
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
        let other = std::env::var_os(name).filter(|value| !value.is_empty());
        let without = if name == NVTX_VARIABLE { "--nvtx" } else { "--device-time and --collector inside" };
        ensure!(
            other.is_none(),
            "{name} is set already ({}), and one library only is loaded by it: unset it, or record without {without}",
            other.unwrap_or_default().to_string_lossy()
        );
    }
    can_load(program, library)
}
