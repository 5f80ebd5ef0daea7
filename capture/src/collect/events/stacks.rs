//! The stacks of a process, by the hash that the eBPF program gave them.
//!
//! A stack's body comes once, before the first call that has it, and after the code objects in it. Frames are named at once,
//! while their code objects are what they were.

use std::rc::Rc;

use ktape_ebpf::python::{CodeBody, End, Interpreter, Layout, Memory as _, RawFrame};
use ktape_ebpf::wire::{CodeRecord, NativeBody, Plain as _, StackBody, TaskBody, TextPiece, relation, text};
use ktape_format::Sink;
use ktape_format::definition::{Frame, Stack, frame_kind, property};
use ktape_format::table::DefinitionKind;
use rustc_hash::FxHashMap;

use super::LaunchScope;
use super::native::{Builds, Natives, Place};
use crate::python::code::{Code, LongTexts, task_name};
use crate::python::frames::{Codes, Named};
use crate::python::memory::ProcessMemory;

/// The stacks of a process.
pub(super) struct Stacks {
    pid: u32,
    scope: Rc<LaunchScope>,
    layout: Option<Layout>,
    by_hash: FxHashMap<u64, Known>,
    /// The latest epoch of a stack, and the one that was the latest at the last [`Stacks::sweep`].
    epoch: u64,
    swept_epoch: u64,
    codes: Codes,
    /// In which rotation a code object came last.
    code_rotations: FxHashMap<u64, u32>,
    /// The latest rotation, and that at the last sweep.
    rotation: u32,
    swept_rotation: u32,
    /// Texts that are on their way in pieces: of which code object, by the thread that sends them and what they are.
    pieces: FxHashMap<(u32, u32), (u64, Vec<u8>)>,
    /// Names of tasks and their rotation, by their hash.
    tasks: FxHashMap<u64, (String, u32)>,
    /// How many there were, each time that it was new.
    named_tasks: usize,
    natives: Natives,
    /// The native frames of the stack whose body a thread sends next, and its hash, by the thread.
    native: FxHashMap<u32, (u64, Vec<u64>)>,
}

/// A stack whose body came.
struct Known {
    id: u32,
    epoch: u64,
    /// Whether launches that have it are out of scope.
    is_left_out: bool,
}

/// What came of a stack's body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Added {
    /// Frames without a name.
    pub(super) unknown_frames: u64,
    /// Whether it is not the whole stack.
    pub(super) is_incomplete: bool,
    /// Whether launches that have it are out of scope.
    pub(super) is_left_out: bool,
}

/// Tasks of a process that are named. One that gives each a name of its own has a stack of its own for each, too.
const MOST_TASKS: usize = 1000;

/// What stands between the frames of a thread that waits and those of one without Python.
fn mark_of(of: u32) -> &'static str {
    match of {
        relation::STARTER => "[thread without Python, started by this one, which waits]",
        _ => "[thread without Python; this one, which waits, called the driver last]",
    }
}

/// A record that is too long to be copied about, and consists of integers.
///
/// # Safety
///
/// Any bytes are a value.
pub(super) unsafe trait Large: Sized {
    /// The record, where it lies.
    fn of(record: &[u8]) -> Option<&Self> {
        let is_whole = record.len() >= size_of::<Self>() && record.as_ptr().cast::<Self>().is_aligned();
        // SAFETY: long enough and aligned, and any bytes are a value.
        is_whole.then(|| unsafe { &*record.as_ptr().cast() })
    }
}

// SAFETY: integers.
unsafe impl Large for CodeRecord {}
// SAFETY: integers.
unsafe impl Large for TextPiece {}

impl Stacks {
    pub(super) fn new(pid: u32, scope: Rc<LaunchScope>) -> Stacks {
        Stacks {
            pid,
            scope,
            layout: None,
            by_hash: FxHashMap::default(),
            epoch: 0,
            swept_epoch: 0,
            codes: Codes::default(),
            code_rotations: FxHashMap::default(),
            rotation: 0,
            swept_rotation: 0,
            pieces: FxHashMap::default(),
            tasks: FxHashMap::default(),
            named_tasks: 0,
            natives: Natives::new(pid),
            native: FxHashMap::default(),
        }
    }

    /// Learns which Python it is. Without that there are no code objects and no Python frames.
    pub(super) fn set_interpreter(&mut self, interpreter: &Interpreter) {
        self.layout = Some(interpreter.layout);
        self.natives.set_interpreter(interpreter.runtime);
    }

    /// Learns that it is the one that the process ran which forked this one, if nothing else is known.
    pub(super) fn inherit_interpreter(&mut self, (layout, runtime): (Layout, u64)) {
        if self.layout.is_none() {
            self.layout = Some(layout);
            self.natives.set_interpreter(runtime);
        }
    }

    /// The layout of the interpreter, and where it is.
    pub(super) fn interpreter(&self) -> Option<(Layout, u64)> {
        self.layout.map(|layout| (layout, self.natives.runtime()))
    }

    /// Learns that the process has mapped or unmapped a library.
    pub(super) fn libraries_changed(&mut self) {
        self.natives.read_mappings();
    }

    /// Whether it is known which Python it is.
    pub(super) fn has_layout(&self) -> bool {
        self.layout.is_some()
    }

    /// The id of a stack; `None` for one whose body did not come.
    pub(super) fn id(&self, hash: u64) -> Option<u32> {
        self.by_hash.get(&hash).map(|known| known.id)
    }

    /// All ids of stacks that a call may yet have.
    pub(super) fn ids(&self) -> impl Iterator<Item = u32> + '_ {
        self.by_hash.values().map(|known| known.id)
    }

    /// Whether launches with this stack are out of scope.
    pub(super) fn is_left_out(&self, hash: u64) -> bool {
        self.by_hash.get(&hash).is_some_and(|known| known.is_left_out)
    }

    /// Forgets the stacks that were of an earlier epoch at the last sweep already, and what was of an earlier rotation: no call
    /// has them any more, if sweeps are so far apart that a call that was on its way at the one has come before the other.
    pub(super) fn sweep(&mut self) {
        if self.epoch != self.swept_epoch {
            self.by_hash.retain(|_, known| known.epoch >= self.swept_epoch);
            self.swept_epoch = self.epoch;
        }
        if self.rotation != self.swept_rotation {
            let since = self.swept_rotation;
            self.code_rotations.retain(|_, rotation| *rotation >= since);
            self.codes.retain(|code| self.code_rotations.contains_key(&code));
            self.tasks.retain(|_, (_, rotation)| *rotation >= since);
            self.swept_rotation = self.rotation;
        }
    }

    /// Forgets what a thread that has ended had on its way.
    pub(super) fn end_thread(&mut self, tid: u32) {
        self.native.remove(&tid);
        self.pieces.retain(|(of, _), _| *of != tid);
    }

    /// Takes a piece of a text of the code object that comes next.
    pub(super) fn add_piece(&mut self, piece: &TextPiece) {
        let (code, text) = self.pieces.entry((piece.pid_tid as u32, piece.text)).or_default();
        if piece.offset == 0 {
            *code = piece.code;
            text.clear();
        }
        // One without the piece before it leaves the text short, which its length tells.
        if *code == piece.code && piece.offset == text.len() as u64 {
            text.extend(piece.bytes.iter().take(piece.length as usize));
        }
    }

    /// The texts of this code object that this thread has sent in pieces.
    fn take_texts(&mut self, tid: u32, code: u64) -> LongTexts {
        [text::FILE, text::NAME, text::LINE_TABLE].map(|text| {
            let (of, text) = self.pieces.remove(&(tid, text))?;
            (of == code).then_some(text)
        })
    }

    /// Takes a code object. What did not fit into the record is read from the process, if that is still there. If it is the
    /// one that runs asyncio's tasks, returns the type of strings.
    pub(super) fn add_code(&mut self, tid: u32, rotation: u32, body: &CodeBody) -> Option<u64> {
        let long = if self.pieces.is_empty() { LongTexts::default() } else { self.take_texts(tid, body.code) };
        let layout = self.layout.as_ref()?;
        let memory = ProcessMemory::open(self.pid).ok();
        let code = Code::new(body, &long, layout, memory.as_ref());
        let runs_tasks = matches!(&*code.name, "Handle._run" | "_run") && code.file.ends_with("asyncio/events.py");
        self.codes.insert(body.code, code);
        self.rotation = self.rotation.max(rotation);
        self.code_rotations.insert(body.code, rotation);
        let memory = memory.filter(|_| runs_tasks)?;
        let name = memory.word(body.code.wrapping_add(layout.code_name.into()))?;
        memory.word(name.wrapping_add(layout.type_offset()))
    }

    /// Takes the name of a task. True if no more of them should come.
    pub(super) fn add_task(&mut self, body: &TaskBody) -> bool {
        let known = self.tasks.insert(body.hash, (task_name(&body.name), body.rotation));
        self.named_tasks += usize::from(known.is_none());
        self.named_tasks == MOST_TASKS
    }

    /// Takes the native frames of a stack whose body comes next.
    pub(super) fn add_native(&mut self, body: &NativeBody, addresses: &[u8]) {
        let words = addresses.as_chunks().0.iter().take(body.depth as usize);
        self.native.insert(body.pid_tid as u32, (body.stack, words.map(|&word| u64::from_ne_bytes(word)).collect()));
    }

    /// Takes a stack's body.
    pub(super) fn add<S: Sink>(
        &mut self,
        body: &StackBody,
        frames: &[u8],
        builds: &mut Builds,
        sink: &mut S,
    ) -> Result<Added, S::Error> {
        let frames = frames.chunks_exact(size_of::<RawFrame>()).take(body.depth as usize);
        let mut added =
            Added { unknown_frames: 0, is_incomplete: body.end != End::Outermost as u32, is_left_out: false };
        let mut has_file = false;
        let mut stack = Growing { id: 0, sink };
        if let Some(why) = incomplete(body.end) {
            stack.mark(why)?;
        }
        for (at, frame) in frames.enumerate().rev() {
            let Some(frame) = RawFrame::read(frame) else { continue };
            // The task stands between the frame that runs it and that one's caller.
            if body.task != 0 && at + 1 == body.task_at as usize {
                let name = self.tasks.get(&body.task).map_or("[unknown]", |(name, _)| name);
                stack.push(frame_kind::RANGE, &format!("task {name}"), "", 0, 0)?;
            }
            match self.codes.name(&frame) {
                Named::Hidden => {}
                Named::Shown(shown) => {
                    has_file |= self.scope.has_file(&shown.code.file);
                    let first_line = shown.code.first_line.max(0) as u32;
                    let line = shown.line.unwrap_or(0);
                    stack.push(frame_kind::PYTHON, &shown.code.name, &shown.code.file, first_line, line)?;
                }
                Named::Unknown => {
                    added.unknown_frames += 1;
                    stack.push(frame_kind::PYTHON, &format!("unknown code @{:#x}", frame.code), "", 0, 0)?;
                }
            }
        }
        if body.relation != relation::SAME {
            stack.mark(mark_of(body.relation))?;
        }
        if body.native != 0 {
            let native = self.native.remove(&(body.pid_tid as u32)).filter(|(hash, _)| *hash == body.stack);
            let (_, addresses) = native.unwrap_or_default();
            // Below the thread's own Python frames stands what the innermost of them called.
            let is_below_python = body.depth > 0 && body.relation == relation::SAME;
            let native = self.natives.frames(&addresses, is_below_python);
            if let Some(why) = incomplete(native.end as u32) {
                added.is_incomplete = true;
                stack.mark(why)?;
            }
            for place in native.places.iter().rev() {
                stack.push_native(place, builds)?;
            }
        }
        self.epoch = self.epoch.max(body.epoch);
        // What is not known may be in it.
        let is_known = body.end == End::Outermost as u32 && added.unknown_frames == 0;
        added.is_left_out = self.scope.is_by_stack() && is_known && !has_file;
        let known = Known { id: stack.id, epoch: body.epoch, is_left_out: added.is_left_out };
        self.by_hash.insert(body.stack, known);
        Ok(added)
    }
}

/// A stack that is put together from the root on.
struct Growing<'sink, S> {
    id: u32,
    sink: &'sink mut S,
}

impl<S: Sink> Growing<'_, S> {
    fn push(&mut self, kind: u8, name: &str, file: &str, first_line: u32, line: u32) -> Result<(), S::Error> {
        let name = self.sink.string(name)?;
        let file = if file.is_empty() { 0 } else { self.sink.string(file)? };
        let frame = self.sink.define(Frame { kind, name, file, line: first_line })?;
        self.id = self.sink.define(Stack { parent: self.id, frame, line })?;
        Ok(())
    }

    /// A native frame, and which build of its file it is.
    fn push_native(&mut self, place: &Place, builds: &mut Builds) -> Result<(), S::Error> {
        let Place { name, module } = place;
        let Some(module) = module else { return self.push(frame_kind::NATIVE, name, "", 0, 0) };
        let file = builds.file(module);
        if let Some(build_id) = module.build_id.as_deref() {
            let file = self.sink.string(&file)?;
            self.sink.property(DefinitionKind::String as u16, file, property::BUILD_ID, build_id)?;
        }
        self.push(frame_kind::NATIVE, name, &file, 0, 0)
    }

    fn mark(&mut self, what: &str) -> Result<(), S::Error> {
        self.push(frame_kind::UNKNOWN, what, "", 0, 0)
    }
}

/// The stack of calls whose own was left out, defined once.
pub(super) fn left_out<S: Sink>(known: &mut u32, sink: &mut S) -> Result<u32, S::Error> {
    if *known == 0 {
        let mut stack = Growing { id: 0, sink };
        stack.push(frame_kind::OVERHEAD, "[stack left out to keep the cost of recording down]", "", 0, 0)?;
        *known = stack.id;
    }
    Ok(*known)
}

/// What stands at the root of a stack, or of its native frames, that is not whole.
fn incomplete(end: u32) -> Option<&'static str> {
    match end {
        end if end == End::Outermost as u32 => None,
        end if end == End::Cut as u32 => Some("[further frames were not recorded]"),
        _ => Some("[further frames could not be read]"),
    }
}

#[cfg(test)]
mod tests {
    use ktape_ebpf::wire::{PIECE_BYTES, kind};
    use ktape_format::Memory;

    use super::*;

    /// Those of this process, which is one of Python's as far as is asked here.
    fn stacks() -> Stacks {
        let mut stacks = Stacks::new(std::process::id(), Rc::default());
        stacks.set_interpreter(&Interpreter { layout: Layout::of(0x030c, false).unwrap(), ..Interpreter::default() });
        stacks
    }

    fn code(address: u64, name: &str) -> CodeBody {
        let mut body = CodeBody { code: address, ..CodeBody::default() };
        (body.name.length, body.name.width) = (name.len() as u32, 1);
        body.name.bytes[..name.len()].copy_from_slice(name.as_bytes());
        (body.file.width, body.line_table.width) = (1, 1);
        body
    }

    fn body(stack: u64) -> StackBody {
        let end = End::Outermost as u32;
        StackBody {
            kind: kind::STACK_BODY,
            depth: 0,
            pid_tid: 1,
            stack,
            epoch: 0,
            task: 0,
            task_at: 0,
            end,
            relation: 0,
            native: 0,
        }
    }

    /// A frame's record.
    fn frame(code: u64) -> Vec<u8> {
        [code, 0].into_iter().flat_map(u64::to_ne_bytes).collect()
    }

    fn names(memory: &Memory, id: u32) -> Vec<(u8, String)> {
        let frame = |node: Stack| memory.definitions.get::<Frame>(node.frame).unwrap();
        let frames = memory.definitions.stack_nodes(id).map(|(_, node)| frame(node));
        frames.map(|frame| (frame.kind, memory.definitions.string(frame.name).to_owned())).collect()
    }

    #[test]
    fn what_is_referred_to_no_more_is_forgotten_at_the_second_sweep() {
        let (mut stacks, mut memory) = (stacks(), Memory::default());
        let mut unknown = |stacks: &mut Stacks, stack, epoch, of| {
            let body = StackBody { depth: 1, epoch, ..body(stack) };
            stacks.add(&body, &frame(of), &mut Builds::default(), &mut memory).unwrap().unknown_frames
        };
        for rotation in 0..3 {
            let address = 0x1000 * (1 + u64::from(rotation));
            stacks.add_code(1, rotation, &code(address, "forward"));
            assert_eq!(unknown(&mut stacks, address, rotation.into(), address), 0);
            stacks.sweep();
        }
        assert_eq!([0x1000, 0x2000, 0x3000].map(|hash| stacks.id(hash).is_some()), [false, true, true]);
        let known = [0x1000, 0x2000, 0x3000].map(|code| unknown(&mut stacks, code + 2, 2, code));
        assert_eq!(known, [1, 0, 0]);
    }

    #[test]
    fn native_frames_of_threads_that_come_between_each_other_stay_apart() {
        let (mut stacks, mut memory) = (stacks(), Memory::default());
        let functions = [names as fn(&Memory, u32) -> _ as usize as u64, stacks_of_tests as fn() as usize as u64];
        for (tid, address) in (1..).zip(functions) {
            let native = NativeBody { kind: kind::NATIVE_BODY, depth: 1, pid_tid: tid, stack: 2 * tid };
            stacks.add_native(&native, &address.to_ne_bytes());
        }
        let mut frames_of = |tid: u64| {
            let body = StackBody { pid_tid: tid, native: 1, ..body(2 * tid) };
            let added = stacks.add(&body, &[], &mut Builds::default(), &mut memory).unwrap();
            (added.is_incomplete, names(&memory, stacks.id(2 * tid).unwrap()))
        };
        let (first, second) = (frames_of(1), frames_of(2));
        for (is_incomplete, frames) in [&first, &second] {
            assert!(!is_incomplete);
            assert!(matches!(frames.as_slice(), [(frame_kind::NATIVE, _)]), "{frames:?}");
        }
        assert_ne!(first, second);
        // That of a third got lost, which is told.
        assert_eq!(frames_of(3), (true, vec![(frame_kind::UNKNOWN, "[further frames could not be read]".to_owned())]));
    }

    fn stacks_of_tests() {}

    #[test]
    fn pieces_of_two_threads_make_each_its_own_name() {
        let (mut stacks, mut memory) = (stacks(), Memory::default());
        let whole = [b'a'; 5000];
        for tid in [1, 2] {
            for offset in [0, PIECE_BYTES] {
                // The second thread's first piece got lost.
                if (tid, offset) == (2, 0) {
                    continue;
                }
                let length = PIECE_BYTES.min(whole.len() - offset);
                let mut piece = TextPiece {
                    kind: kind::TEXT_PIECE,
                    text: text::NAME,
                    pid_tid: tid,
                    code: 0x1000 * tid,
                    offset: offset as u64,
                    length: length as u64,
                    bytes: [0; PIECE_BYTES],
                };
                piece.bytes[..length].copy_from_slice(&whole[offset..][..length]);
                stacks.add_piece(&piece);
            }
        }
        let mut named = |tid: u64| {
            let mut long = code(0x1000 * tid, "");
            long.name.length = whole.len() as u32;
            long.name.bytes.fill(b'a');
            stacks.add_code(tid as u32, 0, &long);
            let body = StackBody { depth: 1, pid_tid: tid, ..body(2 * tid) };
            stacks.add(&body, &frame(0x1000 * tid), &mut Builds::default(), &mut memory).unwrap();
            names(&memory, stacks.id(2 * tid).unwrap()).remove(0).1
        };
        assert_eq!(named(1).len(), whole.len());
        assert!(named(2).ends_with('…'));
        assert!(stacks.pieces.is_empty());
    }
}
