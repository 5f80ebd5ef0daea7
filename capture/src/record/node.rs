//! Recording the whole node: which files get probes, and which processes are recorded.
//!
//! A process is recorded from its first call on: the program in the probe makes it a target and says so (`node.rs` of the
//! programs). So what is to be found is not processes but files: each copy of a library gets its probes once, those that are
//! mapped when the recording begins, those that programs of this machine would load, and whatever is mapped later, which the
//! kernel tells (`kernel/mappings.rs`). Where it does not, processes are looked through every few seconds, each less and less often.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use ktape_ebpf::wire::{LeftOut, OutOfScope};
use ktape_format::event::lifecycle_kind;
use rustc_hash::FxHashMap;

use super::clocks::monotonic_ns;
use super::files::What;
use super::scope::{Scope, out_of_scope};
use super::session::Session;
use crate::kernel::mappings::Mappings;
use crate::probes::groups::Group;
use crate::python::find;
use crate::target::libraries::{self, Kind, kind_of};
use crate::target::process::{self, Process};
use crate::target::stubs::live;
use crate::target::{self, loader};

/// How often processes are looked through where the kernel does not tell what they map.
const SCAN: Duration = Duration::from_secs(2);

/// After so many files, or host stubs in them, what is known of these is forgotten, and read again.
const MOST_FILES: usize = 4096;
const MOST_STUBS: usize = 1 << 20;

/// What a recording of the whole node has more than another.
pub(super) struct Node {
    pub(super) scope: Scope,
    mappings: Option<Mappings>,
    /// How many scans each process has been there, where the kernel does not tell.
    scanned: FxHashMap<u32, u32>,
    last_scan: Instant,
    /// Whether what runs when the recording begins has been looked at.
    has_begun: bool,
    searches: Searches,
}

impl Node {
    pub(super) fn new(scope: Scope) -> Result<Node> {
        Ok(Node {
            scope,
            mappings: None,
            scanned: FxHashMap::default(),
            last_scan: Instant::now(),
            has_begun: false,
            searches: Searches::begin()?,
        })
    }
}

impl Session {
    /// Records the node from now on: processes that run and those that come.
    pub fn add_node(&mut self) -> Result<()> {
        let Some(node) = &mut self.node else { return Ok(()) };
        let scope = node.scope.clone();
        let told = scope.of_processes(self.options.native)?;
        // From here on nothing is mapped without a word.
        let mappings = Mappings::open();
        if let Err(error) = &mappings {
            let what =
                format!("the kernel does not tell what processes map ({error}): they are looked at every {SCAN:?}");
            self.trouble(what);
        }
        if let Some(node) = &mut self.node {
            node.mappings = mappings.ok();
        }
        self.kernel.node().context("the programs are not for a node")?.set_scope(&told)?;
        // Processes that run first, then libraries: one that calls meanwhile becomes a target by itself, and is left to that.
        let running = users_of_cuda()?;
        for &pid in &running {
            let is_in = Process::of(pid).is_ok_and(|process| scope.has(&process));
            if is_in && self.kernel.target(pid).is_none() {
                self.begin_process(pid)?;
            }
        }
        for library in loader::candidates(Path::new("/"), |name| std::env::var_os(name)) {
            self.add_candidate(&library);
        }
        for pid in running {
            self.look_for_libraries(pid);
            if self.processes.contains_key(&pid) {
                self.look_at(pid);
            }
        }
        if let Some(node) = &mut self.node {
            node.has_begun = true;
        }
        Ok(())
    }

    /// What a recording of the node has to do each time round.
    pub(super) fn look_after_node(&mut self) -> Result<()> {
        let Some(node) = &mut self.node else { return Ok(()) };
        let mut found = Vec::new();
        while let Some(search) = node.searches.found() {
            found.push(search);
        }
        let is_scan_due = node.last_scan.elapsed() >= SCAN;
        let mut pids = Vec::new();
        let mut scans_all = false;
        if let Some(mappings) = &mut node.mappings {
            let mapped = mappings.take(|path| kind_of(path).is_some());
            (pids, scans_all) = (mapped.pids, mapped.is_incomplete);
            if is_scan_due {
                node.last_scan = Instant::now();
                scans_all |= mappings.follow_processors().unwrap_or(true);
            }
        } else if is_scan_due {
            node.last_scan = Instant::now();
            pids = node.due();
        }
        if scans_all {
            pids = users_of_cuda()?;
        }
        for pid in pids {
            self.look_for_libraries(pid);
            self.meet(pid)?;
            self.told.insert(pid);
        }
        for (pid, stack) in self.collector.take_left_out() {
            if let Some(recorded) = self.processes.get(&pid)
                && let Some(told) = self.kernel.node()
            {
                told.leave_out(LeftOut { stack, generation: recorded.generation })?;
            }
        }
        for Search { pid, generation, found } in found {
            if self.processes.get(&pid).is_some_and(|recorded| recorded.generation == generation) {
                self.collector.learn_stubs(pid, found);
            }
        }
        Ok(())
    }

    /// See [`out_of_scope`].
    pub(super) fn out_of_scope(&mut self) -> Result<(BTreeMap<Group, u64>, u64)> {
        out_of_scope(&self.functions, &self.collector, |function| match self.kernel.node() {
            Some(counted) => Ok(counted.out_of_scope(function)?),
            None => Ok(OutOfScope::default()),
        })
    }

    /// Looks for the Python of a process that may call soon: a call that comes before it is known has no stack.
    fn meet(&mut self, pid: u32) -> Result<()> {
        if self.processes.contains_key(&pid) {
            return Ok(());
        }
        let Ok(located) = find::locate(pid) else { return Ok(()) };
        // What goes wrong here is tried again when it calls, and told then.
        let _ = self.watch_code(pid, &located);
        if let Some(told) = self.kernel.node() {
            told.set_interpreter(pid, located.interpreter)?;
        }
        Ok(())
    }

    /// Sets probes in the libraries that a process has mapped.
    fn look_for_libraries(&mut self, pid: u32) {
        match libraries::mapped(pid) {
            Ok(mapped) => {
                for library in &mapped {
                    let is_late = !self.files.has(library.id, What::Library) && library.kind != Kind::StaticRuntime;
                    self.add_library(library);
                    // Before the recording began it does not matter.
                    if is_late && self.node.as_ref().is_some_and(|node| node.has_begun) {
                        let path = library.path.display();
                        let what = "a new copy: what was called in the milliseconds before it had probes was not seen";
                        self.trouble(format!("{path}: {what} (process {pid})"));
                    }
                }
            }
            Err(target::Error::NoSuchProcess(_)) => {}
            Err(error) => self.trouble(error.to_string()),
        }
    }

    /// Begins a process whose first call has made it a target.
    pub(super) fn admit(&mut self, pid: u32, generation: u64) -> Result<()> {
        // Another record of it may have come first.
        let is_known = self.processes.get(&pid).is_some_and(|recorded| recorded.generation == generation);
        let start_ns = Process::of(pid).map_or(0, |process| process.start_ns);
        let mapped = libraries::mapped(pid).unwrap_or_default();
        let missed: Vec<Kind> = mapped
            .iter()
            .filter(|library| !self.files.was_attached(library.id, start_ns))
            .map(|library| library.kind)
            .collect();
        if !is_known {
            self.begin_known(pid, Some(generation), start_ns > 0 && missed.is_empty())?;
        }
        self.look_at(pid);
        if missed.iter().any(|kind| matches!(kind, Kind::Runtime | Kind::StaticRuntime))
            && let Some(node) = &self.node
        {
            // It may have said which kernels it has before anybody listened; its files tell.
            node.searches.ask(pid, generation);
        }
        self.lifecycle(pid, lifecycle_kind::ATTACH, generation as i64, 0)
    }

    /// Ends the recording of a process that runs another program now, until that calls.
    pub(super) fn leave(&mut self, pid: u32) -> Result<()> {
        self.note_blind_spots_of(pid);
        self.collector.end_process(pid, &mut self.tape)?;
        if let Some(recorded) = self.processes.remove(&pid) {
            self.kernel.remove_interpreter(pid, recorded.generation);
        }
        Ok(())
    }

    /// Changes which processes are recorded. Those that are not in the scope any more are recorded no longer; those that are now
    /// are with their next call.
    ///
    /// # Errors
    ///
    /// If the scope can't be told to the programs; then nothing is changed.
    pub fn set_scope(&mut self, scope: &Scope) -> Result<()> {
        let told = scope.of_processes(self.options.native)?;
        self.kernel.node().context("not of a node")?.set_scope(&told)?;
        let outside: Vec<u32> = self
            .processes
            .keys()
            .copied()
            .filter(|&pid| Process::of(pid).is_ok_and(|process| !scope.has(&process)))
            .collect();
        for &pid in &outside {
            self.kernel.remove_target(pid);
        }
        self.kernel.forget_off_cpu(&outside)?;
        // What they did before is theirs.
        self.drain(self.options.buffer_bytes as usize / 8)?;
        for pid in outside {
            self.lifecycle(pid, lifecycle_kind::DETACH, monotonic_ns(), 0)?;
            self.leave(pid)?;
        }
        if let Some(node) = &mut self.node {
            let Scope { pids, comms, cgroups, .. } = scope.clone();
            node.scope = Scope { pids, comms, cgroups, ..node.scope.clone() };
        }
        Ok(())
    }
}

impl Node {
    /// The processes that are to be looked at in this scan: each in the first it is there, the second, the fourth, the eighth.
    fn due(&mut self) -> Vec<u32> {
        let all = process::all().unwrap_or_default();
        let mut scanned = FxHashMap::default();
        for pid in all {
            scanned.insert(pid, self.scanned.get(&pid).map_or(1, |scans| scans.saturating_add(1)));
        }
        self.scanned = scanned;
        let due = self.scanned.iter().filter(|(_, scans)| scans.is_power_of_two()).map(|(&pid, _)| pid);
        due.filter(|&pid| uses_cuda(pid)).collect()
    }
}

/// The processes that have a library of CUDA's mapped.
fn users_of_cuda() -> Result<Vec<u32>> {
    let mut pids = process::all().context("/proc")?;
    pids.retain(|&pid| uses_cuda(pid));
    Ok(pids)
}

/// Whether a process has one mapped. Cheap: most have none.
fn uses_cuda(pid: u32) -> bool {
    let maps = std::fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
    ["/libcuda", "/libnccl"].iter().any(|name| memchr::memmem::find(&maps, name.as_bytes()).is_some())
}

/// Searches through processes' files for host stubs, by a thread of their own: they may take seconds.
struct Searches {
    asked: Sender<(u32, u64)>,
    found: Receiver<Search>,
}

/// What was found for a process.
struct Search {
    pid: u32,
    generation: u64,
    found: live::Found,
}

impl Searches {
    fn begin() -> Result<Searches> {
        let (asked, questions) = mpsc::channel::<(u32, u64)>();
        let (answers, found) = mpsc::channel();
        let search = move || {
            let mut known = live::Known::default();
            for (pid, generation) in questions {
                let found = live::of(pid, &mut known).unwrap_or_default();
                let stubs: usize = known.values().map(|file| file.named.len() + file.handles.len()).sum();
                if known.len() > MOST_FILES || stubs > MOST_STUBS {
                    known.clear();
                }
                // Nobody listens when the recording has ended.
                if answers.send(Search { pid, generation, found }).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("stubs".to_owned()).spawn(search).context("a thread")?;
        Ok(Searches { asked, found })
    }

    fn ask(&self, pid: u32, generation: u64) {
        // The thread ends after us.
        let _ = self.asked.send((pid, generation));
    }

    fn found(&self) -> Option<Search> {
        self.found.try_recv().ok()
    }
}
