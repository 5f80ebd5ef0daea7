//! What one probe costs the process that it is in.
//!
//! The probes are set as a recording sets them, by the same code, and what they send is taken out of the ring buffer and thrown
//! away. A turn is a tenth of a second of batches, of which the middle one counts, in processor time of the launching thread: what
//! else runs on the machine then hardly matters. That a probe was in place is seen at the target's instructions, and that every
//! launch went through the recorder's program in its counters: a turn in which it did not is an error.

use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use aya::maps::{MapData, RingBuf};
use ktape_capture::kernel::links::{Link, Program};
use ktape_capture::kernel::programs::Kernel;
use ktape_capture::probes;
use ktape_capture::probes::functions;
use ktape_capture::probes::library::Library;
use ktape_capture::python::find;
use ktape_capture::target::libraries;
use ktape_ebpf::python::Interpreter;
use ktape_ebpf::wire::{Counters, Target as Recorded, kind};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::counters::{Counter, Counting};
use crate::figures::{Middle, Probe, Probes};
use crate::target::{self, Target};

/// The function whose calls are measured.
const SYMBOL: &str = "cuLaunchKernel";
/// How long a probe is measured at a time.
const TURN: Duration = Duration::from_millis(100);
/// Launches of a batch.
const BATCH: u64 = 1000;
/// Stacks that come in turn, so that each is known when it comes again.
const KNOWN_STACKS: u64 = 1000;
/// Stacks of which none comes again before the measurement is over.
const NEW_STACKS: u64 = 1 << 22;
/// How long a ring buffer's reader sleeps, as a recording's does.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// What is set at the function.
#[derive(Clone, Copy, PartialEq)]
enum Variant {
    Nothing,
    Empty(Place),
    /// The recorder's program.
    Recorded {
        stacks: bool,
        native: bool,
        returns: bool,
    },
    /// The same, of a process that is not among those it records.
    NotRecorded,
    Counted(Counter, Place),
}

#[derive(Clone, Copy, PartialEq)]
enum Place {
    /// Where the recorder sets its probes.
    Chosen,
    /// The function's first instruction.
    Entry,
}

const NO_STACKS: Variant = Variant::Recorded { stacks: false, native: false, returns: false };
const STACKS: Variant = Variant::Recorded { stacks: true, native: false, returns: false };
const NATIVE: Variant = Variant::Recorded { stacks: true, native: true, returns: false };

/// A target and what is set in it.
pub(crate) struct Part {
    pub(crate) name: String,
    command: Box<dyn Fn() -> Result<Command>>,
    /// Launches before it counts.
    warm_up: u64,
    variants: Vec<(Variant, Option<f64>)>,
}

/// All of them, with their goals.
pub(crate) fn parts() -> Vec<Part> {
    let mut parts = vec![Part {
        name: "C loop".to_owned(),
        command: Box::new(|| {
            let mut command = target::launches()?;
            command.arg("-i");
            Ok(command)
        }),
        warm_up: BATCH,
        variants: vec![
            (Variant::Nothing, None),
            (Variant::Empty(Place::Chosen), None),
            (Variant::Empty(Place::Entry), None),
            (NO_STACKS, Some(1.5)),
            (Variant::Recorded { stacks: false, native: false, returns: true }, None),
            (Variant::NotRecorded, None),
            (Variant::Counted(Counter::Perf, Place::Chosen), None),
            (Variant::Counted(Counter::Perf, Place::Entry), None),
            // Debian's can do no other place.
            (Variant::Counted(Counter::Bpftrace, Place::Entry), None),
        ],
    }];
    for (version, program) in target::pythons() {
        let mut python = |what: String, depth: u64, stacks: u64, warm_up: u64, measured: &[(Variant, Option<f64>)]| {
            let program = program.clone();
            let command = move || {
                let mut command = target::python(&program, "launches.py");
                let [depth, stacks] = [depth, stacks].map(|number| number.to_string());
                command.args(["--on-request", "--depth", &depth, "--distinct-stacks", &stacks]);
                Ok(command)
            };
            let floor = [(Variant::Nothing, None), (Variant::Empty(Place::Chosen), None)];
            let variants = floor.iter().chain(measured).copied().collect();
            parts.push(Part {
                name: format!("Python {version}, {what}"),
                command: Box::new(command),
                warm_up,
                variants,
            });
        };
        for depth in [10, 30, 100, 256] {
            let goal = (depth == 30).then_some(2.5);
            let each = [(NO_STACKS, Some(1.5)), (STACKS, goal), (NATIVE, None)];
            python(format!("one stack of {depth} frames"), depth, 1, BATCH, &each);
        }
        let changing = [(STACKS, Some(4.0))];
        python(format!("{KNOWN_STACKS} stacks of 30 frames in turn"), 30, KNOWN_STACKS, 2 * KNOWN_STACKS, &changing);
        python("a new stack of 30 frames each time".to_owned(), 30, NEW_STACKS, BATCH, &changing);
    }
    parts
}

impl Part {
    /// Has each variant its turn, round after round.
    pub(crate) fn measure(self, time: Duration) -> Result<Probes> {
        let mut rig = Rig::start((self.command)()?)?;
        let mut skipped = Vec::new();
        let mut lost = vec![0; self.variants.len()];
        let mut turns: Vec<Vec<f64>> = vec![Vec::new(); self.variants.len()];
        let mut is_left_out = vec![false; self.variants.len()];
        rig.turn(self.variants.last().context("a part without variants")?.0, self.warm_up)?;
        let rounds = (time.as_millis() / (TURN.as_millis() * self.variants.len() as u128)).max(3) as usize;
        for _ in 0..rounds {
            for (index, (variant, _)) in self.variants.iter().enumerate() {
                if is_left_out[index] {
                    continue;
                }
                match (rig.turn(*variant, BATCH), variant) {
                    (Ok(turn), _) => {
                        turns[index].push(turn.launch_ns);
                        lost[index] += turn.lost;
                    }
                    // Other programs may not work here, and then it is to be said why; ours must.
                    (Err(error), Variant::Counted(..)) => {
                        skipped.push(format!("{}: {error:#}", rig.name(*variant)));
                        is_left_out[index] = true;
                    }
                    (Err(error), _) => return Err(error),
                }
            }
        }
        let position = |wanted: Variant| self.variants.iter().position(|(variant, _)| *variant == wanted);
        let alone = position(Variant::Nothing).context("a part without a bare target")?;
        let floor = position(Variant::Empty(Place::Chosen)).context("a part without the empty program")?;
        let mut probes = Vec::new();
        for (index, &(variant, goal)) in self.variants.iter().enumerate() {
            if is_left_out[index] {
                continue;
            }
            let cost = |index: usize, round: usize| turns[index][round] - turns[alone][round];
            let launch_ns = Middle::of(turns[index].iter().copied()).context("no turns")?;
            let costs = Middle::of((0..rounds).map(|round| cost(index, round)));
            let ratios = Middle::of((0..rounds).map(|round| cost(index, round) / cost(floor, round)));
            let is_probe = variant != Variant::Nothing;
            probes.push(Probe {
                name: rig.name(variant),
                launch_ns,
                cost_ns: costs.filter(|_| is_probe),
                ratio: ratios.filter(|_| is_probe),
                goal,
                lost: lost[index],
            });
        }
        rig.end()?;
        Ok(Probes { target: self.name, rounds, probes, skipped })
    }
}

/// What a turn gave.
struct Turn {
    launch_ns: f64,
    lost: u64,
}

/// A target, and the kernel's side of a recording.
struct Rig {
    target: Target,
    library: PathBuf,
    site: probes::Site,
    /// Where the function is in the target's memory.
    address: u64,
    /// The function's place among all, which is what its probes are told.
    function: usize,
    kernel: Kernel,
    interpreter: Option<Interpreter>,
    reader: Reader,
    /// Records that were sent, by the programs' counters.
    sent: u64,
}

impl Rig {
    fn start(command: Command) -> Result<Rig> {
        let target = Target::start(command)?;
        let library = target.driver.library();
        let bytes = std::fs::read(&library)?;
        let site_kernel = probes::Kernel::ask().unwrap_or(probes::Kernel::OLD);
        let site = probes::sites(&Library::parse(&*bytes)?, [SYMBOL], site_kernel)?.sites.pop();
        let site = site.with_context(|| format!("no place for a probe in {SYMBOL}"))?;
        let mapped = libraries::mapped(target.pid())?;
        let mapped = mapped.iter().find(|mapped| mapped.path == library.canonicalize().unwrap_or_default());
        let address = mapped.context("the target has not mapped its driver")?.load_address + site.address;
        let functions = functions::all();
        let function =
            functions.iter().position(|function| function.symbol == SYMBOL).context("not a known function")?;
        let (kernel, ring) = Kernel::load_with_empty(&functions, 16 << 20)?;
        let interpreter = match find::locate(target.pid()) {
            Ok(mut located) => {
                find::prove(target.pid(), &mut located.interpreter)?;
                Some(located.interpreter)
            }
            Err(find::Refusal::NoPython) => None,
            Err(refusal) => return Err(refusal.into()),
        };
        let reader = Reader::start(ring);
        Ok(Rig { target, library, site, address, function, kernel, interpreter, reader, sent: 0 })
    }

    fn name(&self, variant: Variant) -> String {
        let at = |place| match place {
            Place::Chosen => format!("+{} ({})", self.site.offset_in_function, self.site.instruction),
            Place::Entry => "+0".to_owned(),
        };
        match variant {
            Variant::Nothing => "no probe".to_owned(),
            Variant::Empty(place) => format!("empty program at {}", at(place)),
            Variant::Recorded { stacks: false, returns: false, .. } => "recorded without stacks".to_owned(),
            Variant::Recorded { stacks: false, returns: true, .. } => "recorded with --launch-durations".to_owned(),
            Variant::Recorded { stacks: true, native: false, .. } => "recorded with stacks".to_owned(),
            Variant::Recorded { stacks: true, native: true, .. } => "recorded with --native".to_owned(),
            Variant::NotRecorded => "not recorded, while others are".to_owned(),
            Variant::Counted(counter, place) => format!("counted by {} at {}", counter.name(), at(place)),
        }
    }

    /// Sets a variant, has the target launch, and takes it away again.
    fn turn(&mut self, variant: Variant, batch: u64) -> Result<Turn> {
        let offset = match variant {
            Variant::Empty(Place::Entry) | Variant::Counted(_, Place::Entry) => 0,
            _ => self.site.offset_in_function,
        };
        let before = self.counters()?;
        let counting = self.set(variant, offset)?;
        let is_set = self.has_probe(offset)?;
        ensure!(is_set == (variant != Variant::Nothing), "{}: probed: {is_set}", self.name(variant));
        let mut batches = Vec::new();
        // The first one warms up.
        self.target.launch(batch)?;
        let began = Instant::now();
        while began.elapsed() < TURN || batches.len() < 3 {
            batches.push(self.target.launch(batch)?);
        }
        let launched = (batches.len() as u64 + 1) * batch;
        self.kernel.detach()?;
        self.kernel.remove_target(self.target.pid());
        if let Some(counting) = counting {
            let counted = counting.end()?;
            ensure!(counted == launched, "it counted {counted} of {launched} launches");
        }
        ensure!(!self.has_probe(offset)?, "{}: the probe is still there", self.name(variant));
        let lost = self.check(variant, launched, before)?;
        let launch_ns = Middle::of(batches).context("no batches")?.median;
        Ok(Turn { launch_ns, lost })
    }

    fn set(&mut self, variant: Variant, offset: u64) -> Result<Option<Counting>> {
        let file_offset = self.site.file_offset - self.site.offset_in_function + offset;
        let link = |program| Link { program, symbol: SYMBOL, file_offset, cookie: self.function as u64 };
        let links = match variant {
            Variant::Nothing => return Ok(None),
            Variant::Empty(_) => vec![link(Program::Empty)],
            Variant::Recorded { returns: true, .. } => vec![link(Program::Enter), link(Program::Leave)],
            Variant::Recorded { .. } | Variant::NotRecorded => vec![link(Program::Enter)],
            Variant::Counted(counter, _) => {
                if let Some(missing) = counter.missing() {
                    bail!(missing);
                }
                let mut counting = counter.start(&self.library, SYMBOL, offset, file_offset)?;
                while !self.has_probe(offset)? && !counting.has_ended() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                if counting.has_ended() {
                    counting.end()?;
                    bail!("it ended by itself");
                }
                // What has set its probe may still have to begin counting.
                std::thread::sleep(TURN);
                return Ok(Some(counting));
            }
        };
        if let Variant::Recorded { stacks, native, .. } = variant {
            // The same generation each time: what was sent in an earlier turn is known.
            let recorded = Recorded { generation: 1, native: native.into(), ..Recorded::default() };
            self.kernel.set_target(self.target.pid(), recorded)?;
            if stacks {
                self.kernel.set_interpreter(self.target.pid(), 1, self.interpreter)?;
            }
        }
        let refused = self.kernel.attach(&links, &self.library)?.refused;
        anyhow::ensure!(refused.is_empty(), "no probe at {}", refused.join(", "));
        Ok(None)
    }

    /// Whether there is a breakpoint at this place of the function.
    fn has_probe(&self, offset: u64) -> Result<bool> {
        let mut memory = std::fs::File::open(format!("/proc/{}/mem", self.target.pid()))?;
        memory.seek(SeekFrom::Start(self.address + offset))?;
        let mut byte = [0];
        memory.read_exact(&mut byte)?;
        // `int3`
        Ok(byte[0] == 0xcc)
    }

    fn counters(&self) -> Result<Counters> {
        Ok(self.kernel.counters()?[self.function])
    }

    /// Sees to it that the program saw what the target did. Returns how much of it found no room in the ring buffer.
    fn check(&mut self, variant: Variant, launched: u64, before: Counters) -> Result<u64> {
        let now = self.counters()?;
        let (calls, returns) = (now.calls - before.calls, now.returns - before.returns);
        let (expected_calls, expected_returns) = match variant {
            Variant::Recorded { returns, .. } => (launched, if returns { launched } else { 0 }),
            _ => (0, 0),
        };
        ensure!(
            (calls, returns) == (expected_calls, expected_returns),
            "{}: {calls} calls and {returns} returns of {launched} launches",
            self.name(variant)
        );
        let without = now.without_stack - before.without_stack;
        ensure!(without == 0, "{}: {without} of {launched} launches have no stack", self.name(variant));
        let lost = now.calls_lost - before.calls_lost + now.returns_lost - before.returns_lost;
        self.sent += calls + returns - lost;
        if matches!(variant, Variant::Recorded { stacks: true, .. }) {
            self.reader.expected_stacks.fetch_add(calls - (now.calls_lost - before.calls_lost), Ordering::Relaxed);
        }
        Ok(lost)
    }

    /// Sees to it that everything that was sent came through.
    fn end(self) -> Result<()> {
        let expected_stacks = self.reader.expected_stacks.load(Ordering::Relaxed);
        let read = self.reader.end()?;
        ensure!(read.calls == self.sent, "{} records were sent, and {} read", self.sent, read.calls);
        ensure!(
            read.stacks == expected_stacks,
            "{expected_stacks} records have a stack, and {} were read",
            read.stacks
        );
        Ok(())
    }
}

/// What was read of the ring buffer.
#[derive(Default)]
struct Read {
    /// Calls and returns.
    calls: u64,
    /// Calls with a stack.
    stacks: u64,
}

/// Takes what comes out of the ring buffer and throws it away.
struct Reader {
    stop: Arc<AtomicBool>,
    expected_stacks: AtomicU64,
    thread: JoinHandle<Read>,
}

impl Reader {
    fn start(mut ring: RingBuf<MapData>) -> Reader {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut read = Read::default();
            loop {
                let is_last = stopped.load(Ordering::Acquire);
                while let Some(record) = ring.next() {
                    count(&record, &mut read);
                }
                if is_last {
                    return read;
                }
                // Whatever woke it, it looks.
                let _ = poll(&mut [PollFd::new(&ring, PollFlags::IN)], Some(&TICK));
            }
        });
        Reader { stop, expected_stacks: AtomicU64::new(0), thread }
    }

    fn end(self) -> Result<Read> {
        self.stop.store(true, Ordering::Release);
        self.thread.join().ok().context("the reader panicked")
    }
}

fn count(record: &[u8], read: &mut Read) {
    let word = |at: usize| record.get(at..).and_then(|rest| rest.first_chunk()).map(|&bytes| u64::from_ne_bytes(bytes));
    // Behind the kind a call says on which processor it was made.
    match u32::from(word(0).unwrap_or(0) as u16) {
        kind::CALL | kind::STACK_CALL => {
            read.calls += 1;
            let stack = word(std::mem::offset_of!(ktape_ebpf::wire::Call, stack));
            read.stacks += u64::from(stack.is_some_and(|stack| stack != 0));
        }
        kind::RETURN => read.calls += 1,
        _ => {}
    }
}
