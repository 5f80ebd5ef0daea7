//! A recording: from the first probe to the closed tape.
//!
//! [`Session::run`] goes round: take what the ring buffer has, write it, look after processes that came, changed or went, wait
//! for more. It waits at most [`TICK`], as the programs wake it only for what is urgent. Here is what a session has, and its round;
//! `begin.rs` and `end.rs` are what comes before and after, `account.rs` what it tells of itself. What is done for processes is in
//! `../processes.rs`, for libraries in `../libraries.rs`.

mod account;
mod begin;
pub(super) mod end;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use aya::maps::{MapData, RingBuf};
use ktape_format::Sink as _;
use ktape_format::event;
use rustc_hash::{FxHashMap, FxHashSet};
use rustix::event::Timespec;

use super::blind_spots::Noted;
use super::clocks::write_clocks;
use super::cost::Cost;
use super::files::Files;
use super::governor::Governor;
use super::inside::{self, Inside};
use super::listed::Listed;
use super::losses::Losses;
use super::node::Node;
use super::output::Output;
use super::processes::{Looks, Recorded};
use super::scope::Scope;
use super::segments;
use super::tally::Tallies;
use super::troubles::Troubles;
use super::waiting::Waiting;
use crate::collect::events::{Collector, LaunchScope, Notice};
use crate::collect::nvml::GpuCounters;
use crate::kernel::programs::Kernel;
use crate::probes;
use crate::probes::functions::Probed;
use crate::target::stubs::live;

/// How long a record may lie before it is looked for.
pub(super) const TICK: Duration = Duration::from_millis(20);
/// How often processes are looked at again: for libraries and interpreters that came without a word.
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// How often losses are told.
pub(super) const TELL_LOSSES: Duration = Duration::from_secs(1);
/// How often the clocks are read together.
pub(super) const CLOCKS: Duration = Duration::from_secs(10);
/// After so many records the other duties have their turn.
pub(super) const RECORDS_A_ROUND: usize = 65_536;

/// What to record, and where to.
#[derive(Clone, Debug)]
pub struct Options {
    /// The tape.
    pub output: PathBuf,
    /// Whether it is a directory instead, of which segments.
    pub segments: Option<segments::Options>,
    /// Whether children of recorded processes are recorded too.
    pub follow: bool,
    /// Whether launches get a duration and a result.
    pub launch_durations: bool,
    /// Whether every stack gets the native frames below its Python frames.
    pub native: bool,
    /// How much may wait between the programs and the recorder: a power of two.
    pub buffer_bytes: u32,
    /// How often a second running threads are looked at; `None` for never.
    pub cpu_hz: Option<u32>,
    /// The share of its time, as parts of 1, that the thread which calls most often may spend in probes; `None` for any.
    pub max_overhead: Option<f64>,
    /// Whether it is recorded when threads do not run.
    pub off_cpu: bool,
    /// How often a second the machine's GPUs are asked for their counters; `None` for never.
    pub gpu_hz: Option<u32>,
    /// The whole node is recorded, as far as this has it; `None` for named processes.
    pub node: Option<Scope>,
    /// Which launches of named processes are recorded.
    pub launches: LaunchScope,
    /// What a library inside of the processes is asked for, and its file; `None` for none.
    pub inside: Option<(inside::Options, PathBuf)>,
}

/// Told of each trouble when it comes first.
type Tell = Box<dyn FnMut(&str)>;

/// A recording that goes on.
pub struct Session {
    pub(super) options: Options,
    pub(super) functions: Vec<Probed>,
    pub(super) kernel: Kernel,
    /// How this kernel executes what lies under a probe.
    pub(super) site_kernel: probes::Kernel,
    pub(super) ring: RingBuf<MapData>,
    pub(super) collector: Collector,
    pub(super) tape: Output,
    /// Set by whoever wants the segment to end.
    pub(super) rotation: Arc<AtomicBool>,
    pub(super) losses: Losses,
    /// Calls that change graphs, and their returns, that were lost so far: those that change no executable graph, and the others.
    lost_of_graphs: [u64; 2],
    pub(super) cost: Cost,
    gpu_counters: Option<GpuCounters>,
    governor: Option<Governor>,
    pub(super) tallies: Tallies,
    /// What the libraries inside of processes tell.
    pub(super) inside: Option<Inside>,
    /// What there is more where the whole node is recorded.
    pub(super) node: Option<Node>,
    pub(super) processes: FxHashMap<u32, Recorded>,
    /// Those that said that they mapped something.
    pub(super) told: FxHashSet<u32>,
    pub(super) looks: Looks,
    pub(super) waiting: Waiting,
    /// Processes that seem to have ended.
    pub(super) gone: Vec<u32>,
    pub(super) files: Files,
    pub(super) library_paths: Listed<PathBuf>,
    /// What files tell of host stubs.
    pub(super) stubs: live::Known,
    pub(super) probes: usize,
    /// Which functions have a probe.
    pub(super) hooked: Vec<bool>,
    pub(super) noted: Noted,
    pub(super) recorded: u64,
    /// Whether the probes have been taken away: no new ones then.
    pub(super) is_ending: bool,
    troubles: Troubles,
    /// Who is told of each when it comes.
    tell: Option<Tell>,
    /// What was kept less of, and of what more again.
    fidelity_changes: Listed<String>,
    pub(super) began: Instant,
    pub(super) looked_again: Instant,
    pub(super) told_losses: Instant,
    pub(super) read_clocks: Instant,
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
    /// Records until `stop` says so, or no recorded process is left; of the whole node there always may come one. `progress` is called every so often.
    pub fn run(&mut self, stop: &AtomicBool, mut progress: impl FnMut(Progress)) -> Result<()> {
        while !stop.load(Ordering::Relaxed) && (self.node.is_some() || !self.processes.is_empty()) {
            let taken = self.drain(RECORDS_A_ROUND)?;
            self.drain_inside()?;
            self.look_after_node()?;
            self.duties()?;
            progress(self.progress());
            self.wait(if taken < RECORDS_A_ROUND { TICK } else { Duration::ZERO })?;
            self.forget_the_gone()?;
        }
        Ok(())
    }

    fn progress(&self) -> Progress {
        Progress {
            elapsed: self.began.elapsed(),
            events: self.collector.events(),
            lost: self.losses.lost,
            processes: self.processes.len(),
        }
    }

    /// Takes what the ring buffer has, up to `most` records.
    pub(super) fn drain(&mut self, most: usize) -> Result<usize> {
        let mut taken = 0;
        while taken < most {
            let Some(record) = self.ring.next() else { break };
            taken += 1;
            let notice = self.collector.take(&record, &mut self.tape)?;
            // The word of a process's beginning was lost, or it is that of the recorder itself, about to spawn one.
            let unknown = match notice {
                Some(Notice::Unknown(pid)) => Some((pid, aligned_copy(&record))),
                _ => None,
            };
            drop(record);
            let notice = match unknown {
                None => notice,
                Some((pid, record)) => {
                    self.begin_known(pid, None, false)?;
                    self.look_at(pid);
                    self.collector.take(bytes_of(&record), &mut self.tape)?
                }
            };
            if let Some(notice) = notice {
                self.notice(notice)?;
            }
        }
        self.look_at_those_that_told();
        Ok(taken)
    }

    pub(super) fn trouble(&mut self, what: String) {
        if let Some(what) = self.troubles.note(what) {
            self.tell.iter_mut().for_each(|tell| tell(&what));
        }
    }

    /// Has troubles told when they come, each once; they are in the summary too.
    pub fn tell_troubles(&mut self, tell: impl FnMut(&str) + 'static) {
        self.tell = Some(Box::new(tell));
        for what in self.troubles.known() {
            self.tell.iter_mut().for_each(|tell| tell(what));
        }
    }

    fn duties(&mut self) -> Result<()> {
        let tended = self.tape.tend();
        for trouble in self.tape.take_troubles() {
            self.trouble(trouble);
        }
        tended?;
        self.rotate_if_due()?;
        if let Some(counters) = &mut self.gpu_counters {
            counters.write(&mut self.tape)?;
        }
        if self.looked_again.elapsed() >= LOOK_AGAIN {
            self.looked_again = Instant::now();
            self.look_again()?;
            self.let_go_of_unused();
            self.follow_processors();
        }
        if self.told_losses.elapsed() >= TELL_LOSSES {
            let elapsed = std::mem::replace(&mut self.told_losses, Instant::now()).elapsed();
            self.tell_account(elapsed)?;
            self.sweep_device()?;
        }
        if self.read_clocks.elapsed() >= CLOCKS {
            self.collector.sweep();
            self.tell_blind_spots(false)?;
            self.read_clocks()?;
        }
        Ok(())
    }

    /// Has processors sampled that came online. One that went again just now is no reason to end the recording.
    fn follow_processors(&mut self) {
        match self.kernel.follow_processors() {
            Ok(came) => came.into_iter().for_each(|cpu| {
                self.trouble(format!("processor {cpu} came online: what runs there is sampled only since"));
            }),
            Err(error) => self.trouble(format!("CPU samples: {error}")),
        }
    }

    /// Ends the segment that is written and begins the next; of one tape nothing.
    pub fn rotate(&mut self) -> Result<()> {
        if matches!(self.tape, Output::Segments(_)) {
            // What is known by now is told where its rows are.
            self.settle_account()?;
            if let Some(inside) = &self.inside {
                inside.tell_all_cost(&self.collector, &mut self.tape)?;
            }
        }
        let Output::Segments(segments) = &mut self.tape else { return Ok(()) };
        let collector = &self.collector;
        if segments.rotate(|kept| collector.kept(kept))? {
            self.collector.begin_tape();
            self.noted.begin_tape();
            self.read_clocks()?;
        }
        Ok(())
    }

    /// Has other limits count for the segments from now on.
    pub fn change_segments(&mut self, options: segments::Options) {
        if let Output::Segments(segments) = &mut self.tape {
            segments.change(options);
        }
    }

    /// A flag whose setter, a signal's handler, has the segment end.
    pub fn rotation(&self) -> Arc<AtomicBool> {
        self.rotation.clone()
    }

    fn rotate_if_due(&mut self) -> Result<()> {
        let is_asked = self.rotation.swap(false, Ordering::Relaxed);
        match &self.tape {
            Output::Segments(segments) if is_asked || segments.is_due() => self.rotate(),
            _ => Ok(()),
        }
    }

    fn read_clocks(&mut self) -> Result<()> {
        self.read_clocks = Instant::now();
        write_clocks(&mut self.tape)
    }

    pub(super) fn lifecycle(&mut self, pid: u32, kind: u8, start_ns: i64, code: i64) -> Result<()> {
        let process = self.collector.process_id(pid);
        self.tape.event(event::Lifecycle { start_ns, kind, process, code, ..event::Lifecycle::default() })?;
        Ok(())
    }

    /// Waits for records, or for the end of a process, at most so long.
    fn wait(&mut self, most: Duration) -> Result<()> {
        let timeout = Timespec { tv_sec: most.as_secs() as i64, tv_nsec: most.subsec_nanos().into() };
        let gone = self.waiting.wait(&timeout).context("waiting for records")?;
        self.gone.extend(gone);
        Ok(())
    }
}

/// A record's bytes, at an address that suits it.
fn aligned_copy(record: &[u8]) -> Vec<u64> {
    let words = record.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_ne_bytes(word)
    });
    words.collect()
}

fn bytes_of(words: &[u64]) -> &[u8] {
    // SAFETY: any words are bytes.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), 8 * words.len()) }
}
