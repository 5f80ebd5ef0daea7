//! A recording: from the first probe to the closed tape.
//!
//! [`Session::run`] goes round: take what the ring buffer has, write it, look after processes that came, changed or went, wait
//! for more. It waits at most [`TICK`], as the programs wake it only for what is urgent.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use aya::maps::{MapData, RingBuf};
use ktape_ebpf::python::Interpreter;
use ktape_ebpf::wire::{Counters, Target};
use ktape_format::event::{self, ClockPair, clock_kind, lifecycle_kind};
use ktape_format::header::ClockKind;
use ktape_format::{Options as TapeOptions, Sink as _, TapeWriter};
use rustc_hash::{FxHashMap, FxHashSet};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::{ClockId, clock_gettime};

use super::losses::Losses;
use super::summary::Summary;
use crate::collect::outside::{Identity, Notice, Outside};
use crate::kernel::links::{Link, Program};
use crate::kernel::programs::{Kernel, KernelError};
use crate::probes;
use crate::probes::functions::{self, Probed};
use crate::probes::library::Library;
use crate::python::find::{self, Refusal};
use crate::target;
use crate::target::libraries::{self, FileId, LibraryFile};
use crate::target::process::Process;

/// How long a record may lie before it is looked for.
const TICK: Duration = Duration::from_millis(20);
/// How often processes are looked at again: for libraries and interpreters that came without a word.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// How long an interpreter has for its layout to be proven: one that imports has its stacks in motion.
const PROVEN_WITHIN: Duration = Duration::from_secs(10);
/// How often losses are told.
const TELL_LOSSES: Duration = Duration::from_secs(1);
/// How often the clocks are read together.
const CLOCKS: Duration = Duration::from_secs(10);
/// After so many records the other duties have their turn.
const RECORDS_A_ROUND: usize = 65_536;

/// What to record, and where to.
#[derive(Clone, Debug)]
pub struct Options {
    /// The tape.
    pub output: PathBuf,
    /// Whether children of recorded processes are recorded too.
    pub follow: bool,
    /// Whether launches get a duration and a result.
    pub launch_durations: bool,
    /// How much may wait between the programs and the recorder: a power of two.
    pub buffer_bytes: u32,
}

/// A recording that goes on.
pub struct Session {
    options: Options,
    functions: Vec<Probed>,
    kernel: Kernel,
    /// How this kernel executes what lies under a probe.
    site_kernel: probes::Kernel,
    ring: RingBuf<MapData>,
    collector: Outside,
    tape: TapeWriter,
    losses: Losses,
    processes: FxHashMap<u32, Recorded>,
    /// Libraries that have probes, by device and inode.
    libraries: FxHashSet<FileId>,
    library_paths: Vec<PathBuf>,
    probes: usize,
    recorded: u64,
    troubles: BTreeMap<String, u64>,
    began: Instant,
    looked_again: Instant,
    told_losses: Instant,
    read_clocks: Instant,
}

/// A process that is being recorded.
struct Recorded {
    /// Readable when it is gone.
    pidfd: Option<OwnedFd>,
    python: Python,
}

/// What is known of a process's interpreter.
enum Python {
    /// None was found yet.
    Unknown,
    /// It is walked, and since when its layout is to be proven.
    Unproven(Interpreter, Instant),
    /// It is walked.
    Proven,
    /// It is not walked, and why was told.
    Refused,
}

/// How a recording stands, for a line on a terminal.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Since it began.
    pub elapsed: Duration,
    /// Events so far.
    pub events: u64,
    /// Calls lost so far.
    pub lost: u64,
    /// Processes that are being recorded.
    pub processes: usize,
}

impl Session {
    /// Loads the programs and begins the tape. Nothing is recorded yet.
    pub fn begin(options: Options) -> Result<Session> {
        let functions = functions::all();
        let (kernel, ring) = Kernel::load(&functions, options.buffer_bytes)?;
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let writer = concat!("capture ", env!("CARGO_PKG_VERSION"));
        let tape_options = TapeOptions::live(writer, ClockKind::Monotonic, &host);
        let tape = TapeWriter::create(&options.output, &tape_options)
            .with_context(|| format!("cannot begin {}", options.output.display()))?;
        let now = Instant::now();
        let mut session = Session {
            collector: Outside::new(functions.clone(), options.launch_durations),
            losses: Losses::new(functions.len(), monotonic_ns()),
            options,
            functions,
            kernel,
            site_kernel: probes::Kernel::ask().unwrap_or(probes::Kernel::OLD),
            ring,
            tape,
            processes: FxHashMap::default(),
            libraries: FxHashSet::default(),
            library_paths: Vec::new(),
            probes: 0,
            recorded: 0,
            troubles: BTreeMap::new(),
            began: now,
            looked_again: now,
            told_losses: now,
            read_clocks: now,
        };
        session.read_clocks()?;
        Ok(session)
    }

    /// Records a process that runs: its libraries get probes, its interpreter is looked at, and from then on its calls count.
    ///
    /// # Errors
    ///
    /// If there is no such process, or it may not be looked into.
    pub fn add_process(&mut self, pid: u32) -> Result<()> {
        libraries::mapped(pid)?;
        self.begin_process(pid)?;
        self.look_at(pid);
        Ok(())
    }

    /// Records what this process spawns, from its first instruction on, until [`Session::spawned`].
    pub fn before_spawn(&mut self) -> Result<()> {
        let pid = std::process::id();
        self.kernel.set_target(pid, Target { follow: 1, ..self.new_target() })?;
        Ok(())
    }

    /// The end of [`Session::before_spawn`].
    pub fn spawned(&mut self) {
        self.kernel.remove_target(std::process::id());
    }

    /// Waits for the word of a process that was spawned.
    pub fn expect(&mut self, pid: u32) -> Result<()> {
        let began = Instant::now();
        while !self.processes.contains_key(&pid) && began.elapsed() < Duration::from_secs(1) {
            self.drain(RECORDS_A_ROUND)?;
        }
        Ok(())
    }

    /// Sets probes in a library, if it has none yet.
    pub fn add_library(&mut self, library: &LibraryFile) {
        if self.libraries.insert(library.id) {
            self.attach(library);
        }
    }

    /// Has the dynamic linker tell when it maps libraries.
    fn watch_libraries(&mut self, linker: &File) {
        let symbol = "_dl_debug_state";
        let path = &libraries::open_path(linker);
        let watched = self.sites(path, &[symbol]).and_then(|sites| {
            let links: Vec<Link<'_>> = sites
                .sites
                .iter()
                .map(|site| Link { program: Program::Libraries, symbol, file_offset: site.file_offset, cookie: 0 })
                .collect();
            Ok(self.kernel.attach(&links, path)?)
        });
        if let Err(error) = watched {
            self.trouble(format!("the dynamic linker: {error:#}; libraries are looked for every {LOOK_AGAIN:?}"));
        }
    }

    fn sites(&self, path: &Path, symbols: &[&str]) -> Result<probes::Sites> {
        let file = File::open(path)?;
        // SAFETY: a mapping that is only read. Libraries are replaced, not written over.
        let bytes = unsafe { memmap2::Mmap::map(&file)? };
        Ok(probes::sites(&Library::parse(&*bytes)?, symbols.iter().copied(), self.site_kernel)?)
    }

    /// Records until `stop` says so, or no recorded process is left. `progress` is called every so often.
    pub fn run(&mut self, stop: &AtomicBool, mut progress: impl FnMut(Progress)) -> Result<()> {
        while !stop.load(Ordering::Relaxed) && !self.processes.is_empty() {
            let taken = self.drain(RECORDS_A_ROUND)?;
            self.duties()?;
            progress(self.progress());
            if taken < RECORDS_A_ROUND {
                self.wait()?;
            }
            self.forget_the_gone()?;
        }
        Ok(())
    }

    /// Takes the probes away, writes what is still on its way, and closes the tape.
    pub fn end(mut self) -> Result<Summary> {
        let duration_ns = self.began.elapsed().as_nanos() as u64;
        let now_ns = monotonic_ns();
        let pids: Vec<u32> = self.processes.keys().copied().collect();
        self.kernel.detach()?;
        for &pid in &pids {
            self.kernel.remove_target(pid);
        }
        while self.drain(usize::MAX)? > 0 {}
        for pid in pids {
            self.lifecycle(pid, lifecycle_kind::DETACH, now_ns, 0)?;
        }
        self.collector.finish(&mut self.tape)?;
        let counters = self.kernel.counters()?;
        self.losses.tell(&self.functions, &counters, now_ns, &mut self.tape)?;
        self.read_clocks()?;
        let is_event = |(function, _): &(&Probed, _)| function.meaning.is_event();
        let seen = self.functions.iter().zip(&counters).filter(is_event).map(|(_, c)| c.calls).sum();
        let without_stack = counters.iter().map(|counters: &Counters| counters.without_stack).sum();
        let written = self.tape.finish()?;
        Ok(Summary {
            tape: self.options.output,
            tape_bytes: written.file_bytes,
            duration_ns,
            processes: self.recorded,
            libraries: self.library_paths,
            probes: self.probes,
            seen,
            written: self.collector.events(),
            lost: self.losses.lost,
            without_stack,
            gaps: self.collector.gaps(),
            troubles: self.troubles.into_iter().map(|(what, count)| many(what, count)).collect(),
        })
    }

    fn progress(&self) -> Progress {
        Progress {
            elapsed: self.began.elapsed(),
            events: self.collector.events(),
            lost: self.losses.lost,
            processes: self.processes.len(),
        }
    }

    fn new_target(&self) -> Target {
        Target { generation: monotonic_ns() as u64, follow: self.options.follow.into(), ..Target::default() }
    }

    /// Takes what the ring buffer has, up to `most` records.
    fn drain(&mut self, most: usize) -> Result<usize> {
        let mut taken = 0;
        while taken < most {
            let Some(record) = self.ring.next() else { break };
            taken += 1;
            let notice = self.collector.take(&record, &mut self.tape)?;
            drop(record);
            if let Some(notice) = notice {
                self.notice(notice)?;
            }
        }
        Ok(taken)
    }

    fn notice(&mut self, notice: Notice) -> Result<()> {
        match notice {
            Notice::Forked { child, .. } => {
                // The program has made a target of it already. What it has in memory its parent has handed out.
                self.begin_known(child, false)?;
                self.look_at(child);
            }
            Notice::Executed { pid } => {
                // What was told to the programs meanwhile was of the program before.
                self.kernel.set_interpreter(pid, None)?;
                self.begin_known(pid, true)?;
                self.look_at(pid);
            }
            Notice::Libraries { pid } => self.look_at(pid),
            Notice::ThreadEnded { .. } => {}
        }
        Ok(())
    }

    fn begin_process(&mut self, pid: u32) -> Result<()> {
        let mut target = self.new_target();
        // First the interpreter: a call that comes before it is known has no stack.
        if let Ok(located) = find::locate(pid) {
            (target.interpreter, target.has_interpreter) = (located.interpreter, 1);
        }
        self.kernel.set_target(pid, target)?;
        self.begin_known(pid, false)?;
        self.lifecycle(pid, lifecycle_kind::ATTACH, monotonic_ns(), 0)
    }

    /// Begins a process that the programs know; `is_new` says whether nothing of it was missed.
    fn begin_known(&mut self, pid: u32, is_new: bool) -> Result<()> {
        let pidfd = rustix::process::Pid::from_raw(pid as i32)
            .and_then(|pid| rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok());
        // One that ended meanwhile has left its calls in the ring buffer, and only its number is known of it.
        let identity = Process::of(pid).map_or_else(
            |_| Identity { pid, ..Identity::default() },
            |process| Identity {
                pid,
                start_ns: process.start_ns,
                name: process.name,
                command: process.command.join(" "),
                container: process.container.unwrap_or_default(),
            },
        );
        self.collector.begin_process(&identity, is_new, &mut self.tape)?;
        let target = self.kernel.target(pid);
        let inherited = target.filter(|target| target.has_interpreter != 0).map(|target| target.interpreter);
        if let Some(interpreter) = inherited {
            self.collector.set_layout(pid, interpreter.layout);
        }
        let python = inherited.map_or(Python::Unknown, |interpreter| Python::Unproven(interpreter, Instant::now()));
        if self.processes.insert(pid, Recorded { pidfd, python }).is_none() {
            self.recorded += 1;
        }
        Ok(())
    }

    /// Looks for libraries and the interpreter of a process.
    fn look_at(&mut self, pid: u32) {
        // A process may end while it is looked at; whatever else is wrong with one is told.
        match libraries::dynamic_linker(pid) {
            Ok(Some((id, linker))) if self.libraries.insert(id) => self.watch_libraries(&linker),
            Ok(_) | Err(target::Error::NoSuchProcess(_)) => {}
            Err(error) => self.trouble(error.to_string()),
        }
        match libraries::mapped(pid) {
            Ok(mapped) => mapped.iter().for_each(|library| self.add_library(library)),
            Err(target::Error::NoSuchProcess(_)) => {}
            Err(error) => self.trouble(error.to_string()),
        }
        if let Err(error) = self.look_for_python(pid) {
            self.trouble(error.to_string());
        }
    }

    /// Finds a process's interpreter, and has its stacks walked from then on. That can't wait for the proof that its memory is
    /// as its version says, as one that has just begun has nothing to prove it by; where the proof fails, there are no stacks.
    fn look_for_python(&mut self, pid: u32) -> Result<(), KernelError> {
        let Some(recorded) = self.processes.get_mut(&pid) else { return Ok(()) };
        let mut interpreter = match &recorded.python {
            Python::Proven | Python::Refused => return Ok(()),
            Python::Unproven(interpreter, _) => *interpreter,
            Python::Unknown => {
                let located = match find::locate(pid) {
                    Ok(located) => located,
                    Err(Refusal::NoPython | Refusal::Io(_)) => return Ok(()),
                    Err(refusal) => {
                        recorded.python = Python::Refused;
                        self.trouble(format!("process {pid}: no Python stacks: {refusal}"));
                        return Ok(());
                    }
                };
                recorded.python = Python::Unproven(located.interpreter, Instant::now());
                self.collector.set_layout(pid, located.interpreter.layout);
                self.kernel.set_interpreter(pid, Some(located.interpreter))?;
                located.interpreter
            }
        };
        let proof = find::prove(pid, &mut interpreter);
        let Some(recorded) = self.processes.get_mut(&pid) else { return Ok(()) };
        match proof {
            Ok(()) => {
                recorded.python = Python::Proven;
                self.kernel.set_interpreter(pid, Some(interpreter))?;
            }
            Err(refusal @ Refusal::SelfTest { .. }) => {
                if let Python::Unproven(_, since) = recorded.python
                    && since.elapsed() > PROVEN_WITHIN
                {
                    recorded.python = Python::Refused;
                    self.kernel.set_interpreter(pid, None)?;
                    self.trouble(format!("process {pid}: no Python stacks: {refusal}"));
                }
            }
            Err(_) => {}
        }
        Ok(())
    }

    /// Sets probes in a library.
    fn attach(&mut self, library: &LibraryFile) {
        match self.try_attach(&library.open_path()) {
            Ok(0) => {}
            Ok(probes) => {
                self.probes += probes;
                self.library_paths.push(library.path.clone());
            }
            Err(error) => self.trouble(format!("{}: {error:#}", library.path.display())),
        }
    }

    fn try_attach(&mut self, path: &Path) -> Result<usize> {
        let symbols: Vec<&str> = self.functions.iter().map(|function| function.symbol.as_str()).collect();
        let sites = self.sites(path, &symbols)?;
        let mut links = Vec::new();
        for site in &sites.sites {
            let names = std::iter::once(&site.symbol).chain(&site.aliases);
            let index =
                names.filter_map(|name| self.functions.iter().position(|function| function.symbol == *name)).next();
            let Some(index) = index else { continue };
            let link =
                |program| Link { program, symbol: &site.symbol, file_offset: site.file_offset, cookie: index as u64 };
            links.push(link(Program::Enter));
            if self.functions[index].meaning.wants_return(self.options.launch_durations) {
                links.push(link(Program::Leave));
            }
        }
        self.kernel.attach(&links, path)?;
        Ok(links.len())
    }

    fn trouble(&mut self, what: String) {
        *self.troubles.entry(what).or_default() += 1;
    }

    fn duties(&mut self) -> Result<()> {
        self.tape.seal_if_due();
        if self.looked_again.elapsed() >= LOOK_AGAIN {
            self.looked_again = Instant::now();
            let pids: Vec<u32> = self.processes.keys().copied().collect();
            pids.into_iter().for_each(|pid| self.look_at(pid));
        }
        if self.told_losses.elapsed() >= TELL_LOSSES {
            self.told_losses = Instant::now();
            let counters = self.kernel.counters()?;
            self.losses.tell(&self.functions, &counters, monotonic_ns(), &mut self.tape)?;
        }
        if self.read_clocks.elapsed() >= CLOCKS {
            self.read_clocks()?;
        }
        Ok(())
    }

    fn read_clocks(&mut self) -> Result<()> {
        self.read_clocks = Instant::now();
        for (clock, id) in [(clock_kind::UNIX, ClockId::Realtime), (clock_kind::BOOT, ClockId::Boottime)] {
            let before = monotonic_ns();
            let value_ns = clock_ns(id);
            let after = monotonic_ns();
            self.tape.event(ClockPair {
                start_ns: before + (after - before) / 2,
                clock,
                value_ns,
                uncertainty_ns: (after - before) as u64,
                device: 0,
            })?;
        }
        Ok(())
    }

    fn lifecycle(&mut self, pid: u32, kind: u8, start_ns: i64, code: i64) -> Result<()> {
        let process = self.collector.process_id(pid);
        self.tape.event(event::Lifecycle { start_ns, kind, process, code, ..event::Lifecycle::default() })?;
        Ok(())
    }

    /// Waits for records, or for the end of a process.
    fn wait(&self) -> Result<()> {
        let mut fds = vec![PollFd::new(&self.ring, PollFlags::IN)];
        let pidfds = self.processes.values().filter_map(|recorded| recorded.pidfd.as_ref());
        fds.extend(pidfds.map(|pidfd| PollFd::from_borrowed_fd(pidfd.as_fd(), PollFlags::IN)));
        let timeout = Timespec { tv_sec: 0, tv_nsec: TICK.as_nanos() as i64 };
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error).context("waiting for records"),
        }
    }

    /// Ends processes that are gone, after their last records.
    fn forget_the_gone(&mut self) -> Result<()> {
        let is_gone = |pidfd: &OwnedFd| {
            let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
            poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
        };
        let gone = self.processes.iter().filter(|(_, recorded)| recorded.pidfd.as_ref().is_none_or(is_gone));
        let gone: Vec<u32> = gone.map(|(&pid, _)| pid).collect();
        if gone.is_empty() {
            return Ok(());
        }
        // Whatever it did is in the ring buffer by now.
        while self.drain(RECORDS_A_ROUND)? > 0 {}
        for pid in gone {
            self.lifecycle(pid, lifecycle_kind::PROCESS_EXIT, monotonic_ns(), 0)?;
            self.collector.end_process(pid, &mut self.tape)?;
            self.kernel.remove_target(pid);
            self.processes.remove(&pid);
        }
        Ok(())
    }
}

fn many(what: String, count: u64) -> String {
    if count == 1 { what } else { format!("{what} ({count} times)") }
}

/// Now, on the tape's clock, which is that of the eBPF programs.
fn monotonic_ns() -> i64 {
    clock_ns(ClockId::Monotonic)
}

fn clock_ns(id: ClockId) -> i64 {
    let time = clock_gettime(id);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}
