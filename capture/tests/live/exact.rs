//! The tape against the driver's own record, event for event.
//!
//! Every call that the driver was asked and that capture probes must be on the tape, thread by thread in the same order, with
//! the same arguments; and nothing else may be. Both sides are brought into one form, [`Call`], and compared field by field.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::rc::Rc;

use ktape_capture::probes::functions::{self, Meaning, Probed};
use ktape_capture::probes::graphs::GraphCall;
use ktape_ebpf::python::MAX_FRAMES;
use ktape_format::definition::{
    Context, Frame, Function, Graph, KernelName, Shape, Stack, Stream, Thread, frame_kind, property,
};
use ktape_format::event::{Memcpy, copy_kind};
use ktape_format::table::DefinitionKind;
use ktape_format::{Definitions, Table as _, Tape, Wanted};
use ktape_simcuda_truth::{CopyKind, Truth};
use rustc_hash::FxHashMap;

/// Qualified name, file, line.
pub(crate) type FrameLine = (String, String, u32);

/// A call as both sides tell it. What one of the two cannot know is left as it is by default in both.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Call {
    pub(crate) function: Rc<str>,
    pub(crate) kernel: Rc<str>,
    pub(crate) stream: u64,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared_bytes: u32,
    pub(crate) bytes: u64,
    pub(crate) copy: u8,
    pub(crate) address: u64,
    pub(crate) event: u64,
    pub(crate) graph: u64,
    pub(crate) result: i32,
    /// It was called of a stream that was captured: a call and no more. What it adds to the graph is `graphs.rs`' matter.
    pub(crate) captured: bool,
    /// Innermost first.
    pub(crate) stack: Rc<[FrameLine]>,
}

/// A call, when it was entered, and when it returned, where that is known.
#[derive(Clone, Debug)]
pub(crate) struct Timed {
    pub(crate) call: Call,
    pub(crate) start_ns: i64,
    pub(crate) end_ns: Option<i64>,
    /// Whether the driver refused it. The tape need not know: of launches it has results only on request.
    pub(crate) is_refused: bool,
}

/// The calls of each thread in the order of their start.
pub(crate) type Threads = BTreeMap<u32, Vec<Timed>>;

/// What is compared.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Compared {
    /// Whether launches have results and durations on the tape.
    pub(crate) launch_durations: bool,
    /// Whether the driver recorded stacks.
    pub(crate) stacks: bool,
}

/// The probed functions, by symbol.
fn probed() -> BTreeMap<String, Probed> {
    let events = functions::all().into_iter().filter(|function| function.meaning.is_event());
    events.map(|function| (function.symbol.clone(), function)).collect()
}

/// The driver's record.
pub(crate) fn truth(truth: &Truth, compared: Compared) -> Threads {
    let probed = probed();
    let mut threads = Threads::new();
    let mut names = Interned::default();
    let mut stacks: FxHashMap<u32, Rc<[FrameLine]>> = FxHashMap::default();
    for row in truth.calls() {
        let Some(function) = probed.get(row.symbol) else { continue };
        let meaning = function.meaning;
        let has_end = meaning.wants_return(compared.launch_durations);
        let is_launch = matches!(
            meaning,
            Meaning::Launch | Meaning::LaunchConfig | Meaning::LaunchMulti | Meaning::LaunchGrid { .. }
        );
        // What is neither done to a stream nor to memory, and what is done to memory.
        let is_other = matches!(
            meaning,
            Meaning::Queued { .. }
                | Meaning::Other { .. }
                | Meaning::Graph(_)
                | Meaning::GraphInstantiate
                | Meaning::AllocPitch
        );
        let has_addresses =
            matches!(meaning, Meaning::Register | Meaning::Reserve | Meaning::Map | Meaning::Unmap | Meaning::Range);
        let is_memory =
            has_addresses || matches!(meaning, Meaning::Alloc { .. } | Meaning::AllocPitch | Meaning::Free { .. });
        let own = |stream: u64| stream_on_tape(stream, function.per_thread_stream, row.thread);
        let stream = match meaning {
            // Among the arguments, as the caller gave it.
            Meaning::Queued { .. }
            | Meaning::Other { stream: Some(_) }
            | Meaning::Graph(GraphCall::BeginCapture { .. } | GraphCall::EndCapture { .. }) => row.stream,
            Meaning::EventRecord { stream: None, .. }
            | Meaning::EventWait { stream: None }
            | Meaning::Alloc { stream: None, .. }
            | Meaning::Free { stream: None, .. } => 0,
            Meaning::Wait { kind, .. } if kind != ktape_format::event::sync_kind::STREAM => 0,
            _ if has_addresses || is_other => 0,
            _ => own(row.stream),
        };
        let copy = match meaning {
            Meaning::Copy { kind, .. } if kind != copy_kind::UNKNOWN => kind,
            Meaning::Copy { .. }
            | Meaning::CopyPeer { .. }
            | Meaning::CopyShape { .. }
            | Meaning::CopyBatch { .. }
            | Meaning::CopyShapes { .. } => match row.copy {
                Some(CopyKind::HtoD) => copy_kind::HTOD,
                Some(CopyKind::DtoH) => copy_kind::DTOH,
                Some(CopyKind::DtoD) => copy_kind::DTOD,
                Some(CopyKind::HtoH) => copy_kind::HTOH,
                Some(CopyKind::PtoP) => copy_kind::PTOP,
                None => 0,
            },
            _ => 0,
        };
        let is_work = !is_other || matches!(meaning, Meaning::AllocPitch);
        let mut call = Call {
            function: names.get(row.symbol),
            kernel: names.get(if is_launch { row.kernel.unwrap_or("") } else { "" }),
            stream,
            grid: if is_work { row.grid } else { [0; 3] },
            block: if is_work { row.block } else { [0; 3] },
            shared_bytes: if is_work { row.shared_bytes } else { 0 },
            bytes: if is_work && !matches!(meaning, Meaning::Free { .. }) { row.bytes } else { 0 },
            copy,
            address: if is_memory { row.destination } else { 0 },
            event: if is_other { 0 } else { row.event },
            graph: if matches!(meaning, Meaning::GraphLaunch) { row.graph } else { 0 },
            result: if has_end { row.result.unwrap_or(0) as i32 } else { 0 },
            captured: row.captured,
            stack: row.stack.filter(|_| compared.stacks).map_or_else(Rc::default, |id| {
                let own = |frame: ktape_simcuda_truth::Frame<'_>| {
                    (frame.qualname.to_owned(), frame.file.to_owned(), frame.line)
                };
                let look_up = || as_kept(truth.stack(id).into_iter().map(own).collect());
                stacks.entry(id).or_insert_with(look_up).clone()
            }),
        };
        if row.captured {
            let Call { function, stream, result, captured, stack, .. } = call;
            let stream = if matches!(meaning, Meaning::Queued { .. }) { stream } else { 0 };
            call = Call { function, stream, result, captured, stack, ..Call::default() };
        }
        let end_ns = row.end_ns.filter(|_| has_end).map(|end| end as i64);
        threads.entry(row.thread).or_default().push(Timed {
            call,
            start_ns: row.start_ns as i64,
            end_ns,
            is_refused: row.result.is_some_and(|result| result != 0),
        });
    }
    threads
}

/// A stack as the tape has it: of a deep one the innermost frames, and at its root a mark that there are more.
fn as_kept(mut frames: Vec<FrameLine>) -> Rc<[FrameLine]> {
    if frames.len() > MAX_FRAMES {
        frames.truncate(MAX_FRAMES);
        frames.push(("[further frames were not recorded]".to_owned(), String::new(), 0));
    }
    frames.into()
}

/// A stream as the tape has it: the default streams are no handles.
fn stream_on_tape(stream: u64, per_thread: bool, thread: u32) -> u64 {
    match stream {
        0 if per_thread => 2 | u64::from(thread) << 32,
        2 => 2 | u64::from(thread) << 32,
        1 => 0,
        stream => stream,
    }
}

/// One process's calls on a tape.
pub(crate) fn tape(path: &Path, pid: u32, compared: Compared) -> Threads {
    let tape = Tape::open(path).expect("the tape opens");
    let contents = tape.read(&Wanted::default()).expect("the tape is read");
    let names = Names {
        definitions: &contents.definitions,
        with_stacks: compared.stacks,
        functions: RefCell::default(),
        kernels: RefCell::default(),
        stacks: RefCell::default(),
    };
    let mut threads = Threads::new();
    let mut add = |thread: u32, start_ns: i64, duration_ns: u64, has_end: bool, call: Call| {
        let Some(thread) = names.thread(thread, pid) else { return };
        let end_ns = has_end.then(|| start_ns + duration_ns as i64);
        threads.entry(thread).or_default().push(Timed { call, start_ns, end_ns, is_refused: false });
    };
    let events = &contents.events;
    for row in events.launch.rows() {
        let shape: Shape = names.definitions.get(row.shape).unwrap_or_default();
        let call = Call {
            kernel: names.kernel(shape.kernel),
            grid: [shape.grid_x, shape.grid_y, shape.grid_z],
            block: [shape.block_x, shape.block_y, shape.block_z],
            shared_bytes: shape.dynamic_shared_bytes,
            ..names.call(row.function, row.stream, row.result, row.stack)
        };
        add(row.thread, row.start_ns, row.duration_ns, compared.launch_durations, call);
    }
    for row in events.graph_launch.rows() {
        let graph: Graph = names.definitions.get(row.graph).unwrap_or_default();
        let call = Call { graph: graph.native, ..names.call(row.function, row.stream, row.result, row.stack) };
        add(row.thread, row.start_ns, row.duration_ns, true, call);
    }
    // Correlations are each process's own.
    let of_stream = |stream: u32| names.definitions.process_of_stream(stream);
    let of_thread = |thread: u32| names.definitions.process_of_thread(thread);
    let mut copies: FxHashMap<(u32, u64), Vec<Memcpy>> = FxHashMap::default();
    for row in events.memcpy.rows() {
        copies.entry((of_stream(row.stream), row.correlation)).or_default().push(row);
    }
    let sets: FxHashMap<(u32, u64), _> =
        events.memset.rows().map(|row| ((of_stream(row.stream), row.correlation), row)).collect();
    let probed = probed();
    for row in events.api.rows() {
        let mut call = names.call(row.function, 0, row.result, row.stack);
        // Of a call that only is a call, or whose copy or memset the driver refused, the arguments say what was asked.
        let asked: serde_json::Value = serde_json::from_str(names.definitions.string(row.args)).unwrap_or_default();
        let number = |key: &str| asked[key].as_u64().unwrap_or(0);
        (call.stream, call.bytes, call.address) = (number("stream"), number("bytes"), number("address"));
        call.captured = asked["captured"] == true;
        let kind = copy_kind::NAMES.iter().position(|name| asked["copy_kind"] == *name);
        call.copy = kind.unwrap_or_default() as u8;
        if let Some(copies) = copies.get(&(of_thread(row.thread), row.correlation)) {
            call.stream = names.stream(copies[0].stream);
            call.bytes = copies.iter().map(|copy| copy.bytes).sum();
            let is_one = copies.iter().all(|copy| copy.kind == copies[0].kind && copy.stream == copies[0].stream);
            call.copy = if is_one { copies[0].kind } else { 0 };
            assert!(asked["copies"].is_null() || number("copies") == copies.len() as u64, "{asked}");
        }
        if let Some(set) = sets.get(&(of_thread(row.thread), row.correlation)) {
            (call.stream, call.bytes) = (names.stream(set.stream), set.bytes);
        }
        let meaning = probed.get(&*call.function).map(|function| function.meaning);
        let has_end = meaning.is_some_and(|meaning| meaning.wants_return(compared.launch_durations));
        add(row.thread, row.start_ns, row.duration_ns, has_end, call);
    }
    for row in events.sync.rows() {
        let call = Call { event: row.event, ..names.call(row.function, row.stream, row.result, row.stack) };
        add(row.thread, row.start_ns, row.duration_ns, true, call);
    }
    for row in events.event_record.rows() {
        let call = Call { event: row.event, ..names.call(row.function, row.stream, row.result, row.stack) };
        add(row.thread, row.start_ns, row.duration_ns, compared.launch_durations, call);
    }
    for row in events.event_wait.rows() {
        let call = Call { event: row.event, ..names.call(row.function, row.stream, row.result, row.stack) };
        add(row.thread, row.start_ns, row.duration_ns, compared.launch_durations, call);
    }
    for row in events.alloc.rows() {
        let call = Call {
            bytes: row.bytes,
            address: row.address,
            ..names.call(row.function, row.stream, row.result, row.stack)
        };
        add(row.thread, row.start_ns, row.duration_ns, true, call);
    }
    for row in events.free.rows() {
        let call = Call { address: row.address, ..names.call(row.function, row.stream, row.result, row.stack) };
        add(row.thread, row.start_ns, row.duration_ns, true, call);
    }
    for calls in threads.values_mut() {
        calls.sort_by_key(|call| call.start_ns);
    }
    threads
}

/// What the tape says of losses: calls in all loss rows.
pub(crate) fn lost(path: &Path) -> u64 {
    let tape = Tape::open(path).expect("the tape opens");
    let contents = tape.read(&Wanted::default()).expect("the tape is read");
    contents.events.loss.rows().map(|row| row.count).sum()
}

/// Strings, each once: a million calls have few.
#[derive(Default)]
struct Interned(FxHashMap<String, Rc<str>>);

impl Interned {
    fn get(&mut self, text: &str) -> Rc<str> {
        if !self.0.contains_key(text) {
            self.0.insert(text.to_owned(), text.into());
        }
        self.0[text].clone()
    }
}

/// What ids on the tape mean, each looked up once.
struct Names<'a> {
    definitions: &'a Definitions,
    with_stacks: bool,
    functions: RefCell<FxHashMap<u32, Rc<str>>>,
    kernels: RefCell<FxHashMap<u32, Rc<str>>>,
    stacks: RefCell<FxHashMap<u32, Rc<[FrameLine]>>>,
}

impl Names<'_> {
    /// The thread's number, if it is one of this process.
    fn thread(&self, id: u32, pid: u32) -> Option<u32> {
        let thread: Thread = self.definitions.get(id)?;
        let process: ktape_format::definition::Process = self.definitions.get(thread.process)?;
        (process.pid == i64::from(pid)).then_some(thread.tid as u32)
    }

    /// What every call has.
    fn call(&self, function: u32, stream: u32, result: i32, stack: u32) -> Call {
        let (function, stream, stack) = (self.function(function), self.stream(stream), self.stack(stack));
        Call { function, stream, result, stack, ..Call::default() }
    }

    fn function(&self, id: u32) -> Rc<str> {
        let look_up = || {
            let function: Function = self.definitions.get(id).unwrap_or_default();
            self.definitions.string(function.name).into()
        };
        self.functions.borrow_mut().entry(id).or_insert_with(look_up).clone()
    }

    fn kernel(&self, id: u32) -> Rc<str> {
        let look_up = || {
            let learned = self.definitions.property(DefinitionKind::Kernel as u16, id, property::NAME);
            let kernel: KernelName = self.definitions.get(id).unwrap_or_default();
            learned.unwrap_or_else(|| self.definitions.string(kernel.name)).into()
        };
        self.kernels.borrow_mut().entry(id).or_insert_with(look_up).clone()
    }

    fn stream(&self, id: u32) -> u64 {
        let stream: Stream = self.definitions.get(id).unwrap_or_default();
        debug_assert!(id == 0 || self.definitions.get::<Context>(stream.context).is_some());
        stream.native
    }

    fn stack(&self, id: u32) -> Rc<[FrameLine]> {
        if !self.with_stacks {
            return Rc::default();
        }
        // What Python says of its stack has neither native frames nor tasks. A mark is about Python's frames if it is at their root.
        let frame = |node: Stack| {
            let frame: Frame = self.definitions.get(node.frame).unwrap_or_default();
            let told = (self.definitions.string(frame.name), self.definitions.string(frame.file), node.line);
            (frame.kind, (told.0.to_owned(), told.1.to_owned(), told.2))
        };
        let look_up = || {
            let mut frames: Vec<(u8, FrameLine)> =
                self.definitions.stack_nodes(id).map(|(_, node)| frame(node)).collect();
            let mark = frames.pop_if(|(kind, _)| *kind == frame_kind::UNKNOWN);
            frames.retain(|(kind, _)| *kind == frame_kind::PYTHON);
            let has_frames = !frames.is_empty();
            frames.into_iter().chain(mark.filter(|_| has_frames)).map(|(_, told)| told).collect()
        };
        self.stacks.borrow_mut().entry(id).or_insert_with(look_up).clone()
    }
}

/// Of the driver's record what lies between the first and the last call of each thread on the tape.
pub(crate) fn between(mut truth: Threads, tape: &Threads) -> Threads {
    truth.retain(|thread, _| tape.contains_key(thread));
    for (thread, calls) in &mut truth {
        let found = &tape[thread];
        let (Some(first), Some(last)) = (found.first(), found.last()) else { continue };
        // The probe is hit before the driver looks at its clock.
        calls.retain(|call| call.start_ns >= first.start_ns);
        let count = found.len();
        let after_last = calls.get(count.wrapping_sub(1)).is_some_and(|call| call.start_ns >= last.start_ns);
        if after_last {
            calls.truncate(count);
        }
    }
    truth
}

/// What the tape can be asked to have of a call.
fn knowable(expected: &Timed, found: &Timed) -> Timed {
    let mut expected = expected.clone();
    let call = &mut expected.call;
    if expected.is_refused {
        // Of a call that it refuses the driver notes only what it came to look at; the tape has what was asked.
        let noted = |noted: &mut u64, asked: u64| *noted = if *noted == 0 { asked } else { *noted };
        noted(&mut call.bytes, found.call.bytes);
        noted(&mut call.stream, found.call.stream);
        noted(&mut call.event, found.call.event);
        noted(&mut call.address, found.call.address);
        noted(&mut call.graph, found.call.graph);
        if call.copy == 0 {
            call.copy = found.call.copy;
        }
        if found.call.stream == 0 {
            // Of a copy that was refused the tape has the call, which has no stream.
            call.stream = 0;
        }
        if call.kernel.is_empty() {
            call.kernel = found.call.kernel.clone();
        }
    }
    expected
}

/// How the stacks of one kernel's launches compare.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// That the driver was asked for.
    pub(crate) launches: u64,
    /// Of them, those that are on the tape with the driver's stack, frame for frame.
    pub(crate) equal: u64,
    /// With another.
    pub(crate) differing: u64,
    /// With none, where the driver has one.
    pub(crate) without: u64,
    /// Not on the tape at all.
    pub(crate) missing: u64,
    /// The first that isn't equal.
    pub(crate) example: String,
}

impl Tally {
    pub(crate) fn add(&mut self, other: &Tally) {
        self.launches += other.launches;
        self.equal += other.equal;
        self.differing += other.differing;
        self.without += other.without;
        self.missing += other.missing;
        if self.example.is_empty() {
            self.example.clone_from(&other.example);
        }
    }
}

/// The stacks of launches, by kernel.
pub(crate) fn tally(truth: &Threads, tape: &Threads) -> BTreeMap<String, Tally> {
    let mut kernels: BTreeMap<String, Tally> = BTreeMap::new();
    let launches = |calls: &'_ [Timed]| -> Vec<Call> {
        calls.iter().filter(|call| !call.call.kernel.is_empty()).map(|call| call.call.clone()).collect()
    };
    for (thread, expected) in truth {
        let found = launches(tape.get(thread).map_or(&[], Vec::as_slice));
        for (index, expected) in launches(expected).into_iter().enumerate() {
            let tally = kernels.entry(expected.kernel.to_string()).or_default();
            tally.launches += 1;
            let found = found.get(index);
            let outcome = match found {
                None => &mut tally.missing,
                Some(found) if found.kernel == expected.kernel && found.stack == expected.stack => {
                    tally.equal += 1;
                    continue;
                }
                Some(found) if found.stack.is_empty() => &mut tally.without,
                Some(_) => &mut tally.differing,
            };
            *outcome += 1;
            if tally.example.is_empty() {
                tally.example = first_difference(&expected, found);
            }
        }
    }
    kernels
}

/// Where two launches' stacks part, in few words: they may have hundreds of frames.
fn first_difference(expected: &Call, found: Option<&Call>) -> String {
    let Some(found) = found else { return format!("{} is not on the tape", expected.kernel) };
    let at = expected.stack.iter().zip(&*found.stack).take_while(|(expected, found)| expected == found).count();
    let cut = |stack: &[FrameLine]| {
        let near = stack.iter().skip(at.saturating_sub(1)).take(3);
        near.map(|(name, file, line)| format!("{name:.60} ({file:.60}:{line})")).collect::<Vec<_>>().join(" < ")
    };
    format!(
        "of {} frames ({} of kernel {} on the tape) number {at} differs:\n  truth {}\n  tape  {}",
        expected.stack.len(),
        found.stack.len(),
        found.kernel,
        cut(&expected.stack),
        cut(&found.stack)
    )
}

/// What differs: nothing, if the tape is exact.
pub(crate) fn differences(truth: &Threads, tape: &Threads) -> String {
    const MOST: usize = 12;
    let mut text = String::new();
    let mut count = 0;
    let mut tell = |line: String| {
        count += 1;
        if count <= MOST {
            let _ = writeln!(text, "{line}");
        }
    };
    let none = Vec::new();
    let threads: std::collections::BTreeSet<u32> = truth.keys().chain(tape.keys()).copied().collect();
    for thread in threads {
        let (expected, found) = (truth.get(&thread).unwrap_or(&none), tape.get(&thread).unwrap_or(&none));
        if expected.len() != found.len() {
            tell(format!("thread {thread}: {} calls, {} on the tape", expected.len(), found.len()));
        }
        for (index, (expected, found)) in expected.iter().zip(found).enumerate() {
            let expected = knowable(expected, found);
            if expected.call != found.call {
                tell(format!("thread {thread}, call {index}:\n  truth {:?}\n  tape  {:?}", expected.call, found.call));
            } else if found.start_ns > expected.start_ns {
                tell(format!("thread {thread}, call {index}: {} ns late", found.start_ns - expected.start_ns));
            } else if let (Some(end), Some(seen)) = (expected.end_ns, found.end_ns)
                && seen < end
            {
                tell(format!("thread {thread}, call {index}: its end is {} ns early", end - seen));
            }
        }
    }
    if count > MOST {
        let _ = writeln!(text, "and {} more", count - MOST);
    }
    text
}
