//! The Python stack of a thread, read from outside: the same walk in an eBPF program, in user space and over saved memory.
//!
//! From the thread pointer to the frames: pthread's slot of `autoTSSkey` holds the thread state (also while the thread has
//! given the interpreter lock up, when `_Py_tss_tstate` is empty), the thread state leads to the innermost frame, and each
//! frame to its caller. Of a frame its prefix up to `owner` is read, several frames at a time; it gives the address of a code object and the
//! instruction in it, and names and lines are made of those in user space. Frames that called into C, and the Python that C
//! called back, are links of one chain in every version; CPython 3.12 and later put a shim frame between, which is skipped.
//!
//! It is written for the verifier: no recursion, no loop (the caller has one, see [`Walk`]), no slice index that may panic,
//! every offset masked to the buffer it goes into, and nothing large on the stack, of which an eBPF program has 512 bytes.

mod code;
mod layouts;
#[cfg(test)]
mod made;
mod search;
mod task;

pub use code::{CodeBody, Copied, FILE_BYTES, LINE_TABLE_BYTES, NAME_BYTES, Part, copy_code};
pub use layouts::{ABSENT, LAYOUTS, Layout};
pub use search::{MAX_SEARCH, MAX_SEARCH_IN_INTERRUPT, Search, is_of_thread};
pub use task::{TASK_NAME_BYTES, TaskName, task_name};

/// Memory of a process, wherever it is read from.
pub trait Memory {
    /// Fills `into` from `address`. False if not every byte can be read; `into` then holds anything.
    fn read(&self, address: u64, into: &mut [u8]) -> bool;

    /// The eight bytes at `address`.
    #[inline(always)]
    fn word(&self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        if self.read(address, &mut bytes) { Some(u64::from_ne_bytes(bytes)) } else { None }
    }

    /// The four bytes at `address`.
    #[inline(always)]
    fn half(&self, address: u64) -> Option<u32> {
        let mut bytes = [0; 4];
        if self.read(address, &mut bytes) { Some(u32::from_ne_bytes(bytes)) } else { None }
    }
}

/// `FRAME_OWNED_BY_CSTACK` of 3.12 and 3.13, `FRAME_OWNED_BY_INTERPRETER` of 3.14: this and every owner above it is a shim.
const OWNED_BY_C_STACK: u8 = 3;
/// `FRAME_OWNED_BY_GENERATOR`.
const OWNED_BY_GENERATOR: u8 = 1;

/// The interpreter of one process, as user space found it: what an eBPF program looks up by process id.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interpreter {
    /// The address of `_PyRuntime`.
    pub runtime: u64,
    /// The `PyInterpreterState` of the main interpreter, where there being others matters: up to 3.11 pthread's slot keeps the
    /// thread's state in the main one while it runs another. 0 where the slot is right whatever there is.
    pub main: u64,
    /// The code object of asyncio's `Handle._run`, whose frames run a task; 0 until one was seen.
    pub task_runner: u64,
    /// `PyUnicode_Type`, where `task_runner` is known.
    pub string_type: u64,
    /// The pthread key of the thread state, read out of `autoTSSkey` once: it stays for the life of the interpreter.
    /// [`KEY_UNREAD`] for one that has not begun yet: it is then read each time.
    pub tss_key: u32,
    /// From the thread pointer to the slots of the first 32 keys.
    pub first_slots: u32,
    /// From the thread pointer to the table of pointers to further slots, 32 each.
    pub slot_tables: u32,
    /// With [`KEY_TLS`], the module whose thread-local storage the state is in, by its index in the thread's vector of them;
    /// 0 if it is at an offset from the thread pointer that is the same in all threads.
    pub tls_module: u32,
    /// With [`KEY_TLS`], from the module's storage, or from the thread pointer.
    pub tls_offset: i32,
    /// Its version's offsets.
    pub layout: Layout,
}

// They go to and from eBPF maps as bytes, so there must be none that is not written.
const _: () = assert!(size_of::<Interpreter>() == 52 + size_of::<Layout>() && size_of::<Layout>() == 60);

/// `specific_1stblock` in glibc's `struct pthread`, x86-64: `{ uintptr_t seq; void *data }` each.
pub const GLIBC_FIRST_SLOTS: u32 = 0x310;
/// `specific` in the same.
pub const GLIBC_SLOT_TABLES: u32 = 0x510;

/// The key of an interpreter that has not begun yet.
pub const KEY_UNREAD: u32 = u32::MAX;
/// The key where the slot of a thread isn't where glibc keeps it (musl, say), but the interpreter's list of threads is right:
/// a thread's state is to be looked up in that, and [`thread_state`] says nothing.
pub const KEY_BY_LIST: u32 = u32::MAX - 1;
/// The key of 3.15 and later, which have none: the state is in the thread-local variable `_Py_tss_gilstate`, which, unlike
/// `_Py_tss_tstate`, stays while the thread has given the lock up.
pub const KEY_TLS: u32 = u32::MAX - 2;

/// From glibc's thread pointer to the vector of the storage of modules, `tcbhead_t.dtv`.
const TLS_VECTOR: u64 = 8;
/// The storage that a module has in no thread that hasn't used it: `TLS_DTV_UNALLOCATED`.
const TLS_UNALLOCATED: u64 = u64::MAX;

/// Keys in one block of slots, `PTHREAD_KEY_2NDLEVEL_SIZE`.
const SLOTS: u32 = 32;
/// Blocks, `PTHREAD_KEY_1STLEVEL_SIZE`.
const SLOT_TABLES: u32 = 32;

/// The `PyThreadState` of the thread whose thread pointer this is; 0 if the thread has none, being no thread of Python's.
/// `None` if memory on the way can't be read.
#[inline(always)]
pub fn thread_state<M: Memory>(memory: &M, interpreter: &Interpreter, thread_pointer: u64) -> Option<u64> {
    let mut key = interpreter.tss_key;
    if key == KEY_TLS {
        return thread_local(memory, interpreter, thread_pointer);
    }
    if key == KEY_UNREAD {
        let place = interpreter.runtime.wrapping_add(interpreter.layout.tss_key as u64);
        let read = memory.word(place)?;
        if read as u32 == 0 {
            return Some(0);
        }
        key = (read >> 32) as u32;
    }
    let slots = if key < SLOTS {
        thread_pointer.wrapping_add(interpreter.first_slots as u64)
    } else if key < SLOTS * SLOT_TABLES {
        let table = thread_pointer.wrapping_add(interpreter.slot_tables as u64);
        match memory.word(table.wrapping_add((key / SLOTS) as u64 * 8)) {
            Some(slots) if slots != 0 => slots,
            none => return none,
        }
    } else {
        return None;
    };
    memory.word(slots.wrapping_add((key % SLOTS) as u64 * 16).wrapping_add(8))
}

/// Whether the slot of a thread says which state it runs, so that [`thread_state`] is to be asked and no [`Search`] is needed.
#[inline(always)]
pub fn slot_tells<M: Memory>(memory: &M, interpreter: &Interpreter) -> Option<bool> {
    if interpreter.tss_key == KEY_BY_LIST {
        return Some(false);
    }
    if interpreter.main == 0 {
        return Some(true);
    }
    let head = memory.word(interpreter.runtime.wrapping_add(interpreter.layout.interpreters_head as u64))?;
    Some(head == interpreter.main)
}

/// `PyThreadState._status.active`.
const STATUS_ACTIVE: u32 = 1 << 4;

/// Whether a thread runs Python: holds the lock of its interpreter. One that doesn't waits for it, or for something in C.
#[inline(always)]
pub fn runs_python<M: Memory>(memory: &M, interpreter: &Interpreter, thread_state: u64) -> Option<bool> {
    let layout = &interpreter.layout;
    if layout.thread_status != ABSENT {
        let status = memory.half(thread_state.wrapping_add(layout.thread_status as u64))?;
        return Some(status & STATUS_ACTIVE != 0);
    }
    let current = memory.word(interpreter.runtime.wrapping_add(layout.current_state as u64))?;
    Some(current == thread_state)
}

/// The thread-local variable of the thread with this thread pointer; 0 if it has none.
#[inline(always)]
fn thread_local<M: Memory>(memory: &M, interpreter: &Interpreter, thread_pointer: u64) -> Option<u64> {
    let offset = interpreter.tls_offset as i64 as u64;
    if interpreter.tls_module == 0 {
        return memory.word(thread_pointer.wrapping_add(offset));
    }
    let vector = memory.word(thread_pointer.wrapping_add(TLS_VECTOR))?;
    // How many modules the vector has room for is in the entry before its first.
    if memory.word(vector.wrapping_sub(16))? < interpreter.tls_module as u64 {
        return Some(0);
    }
    match memory.word(vector.wrapping_add(interpreter.tls_module as u64 * 16))? {
        0 | TLS_UNALLOCATED => Some(0),
        storage => memory.word(storage.wrapping_add(offset)),
    }
}

/// The innermost frame of a thread state; 0 if it runs none. `None` if memory on the way can't be read.
#[inline(always)]
pub fn first_frame<M: Memory>(memory: &M, layout: &Layout, thread_state: u64) -> Option<u64> {
    let current = memory.word(thread_state.wrapping_add(layout.current_frame as u64));
    match current {
        Some(cframe) if cframe != 0 && layout.cframe_current_frame != ABSENT => {
            memory.word(cframe.wrapping_add(layout.cframe_current_frame as u64))
        }
        frame => frame,
    }
}

/// A frame as the walk finds it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RawFrame {
    /// The address of its code object.
    pub code: u64,
    /// The instruction it is at, in bytes from the first one; negative or senseless in a frame that hasn't begun.
    pub instruction: i32,
    /// What it is: see [`raw_kind`].
    pub kind: u32,
}

/// What a [`RawFrame`] is.
pub mod raw_kind {
    /// A function's frame. Before its code's first traceable instruction it is still being made, and Python doesn't show it.
    pub const FUNCTION: u32 = 0;
    /// A generator's or a coroutine's.
    pub const GENERATOR: u32 = 1;
}

/// Where a walk stands.
///
/// From 3.11 on the frames of Python calling Python lie behind one another in chunks of memory, the caller's below. So a read
/// takes a window that ends with the frame, and most callers are in it already.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Cursor {
    /// The frame to read next; 0 when there is none.
    pub frame: u64,
    /// The address of the window's first byte.
    window_address: u64,
    /// Frames that begin so many bytes or less behind it are wholly in the window.
    window_reach: u64,
    window: [u64; WINDOW_WORDS + FRAME_WORDS],
}

/// Words of a frame that are looked at, at most. A power of two, so that an index can be masked.
const FRAME_WORDS: usize = 16;
/// Words that one read takes, at most: a page, room for twenty frames or so. A power of two, for the same reason.
const WINDOW_WORDS: usize = 512;
const WINDOW_BYTES: usize = 8 * WINDOW_WORDS;
/// Memory is there or not by the page.
const PAGE_BYTES: usize = 4096;

impl Default for Cursor {
    fn default() -> Self {
        Self::at(0)
    }
}

impl Cursor {
    /// Begins at this frame.
    pub const fn at(frame: u64) -> Self {
        Self { frame, window_address: 0, window_reach: 0, window: [0; WINDOW_WORDS + FRAME_WORDS] }
    }

    /// Begins at this frame, with nothing read.
    #[inline(always)]
    fn begin(&mut self, frame: u64) {
        self.frame = frame;
        // The frame is no place behind itself, so it is not in the window.
        self.window_address = frame.wrapping_add(1);
        self.window_reach = 0;
    }

    /// Sees to it that the frame is in the window. False if it can't be read.
    #[inline(always)]
    fn fill<M: Memory>(&mut self, memory: &M, layout: &Layout) -> bool {
        if self.frame.wrapping_sub(self.window_address) <= self.window_reach {
            return true;
        }
        let frame_bytes = (layout.frame_bytes as usize).min(8 * FRAME_WORDS);
        // Before 3.11 a frame is an object of its own, and nothing of use lies before it.
        let most = if layout.instruction_scale == 0 { WINDOW_BYTES - frame_bytes } else { 0 };
        // Nor is what lies before its page looked at: there may be nothing, and a read that fails
        // costs a page fault.
        let reach = (self.frame as usize % PAGE_BYTES).min(most);
        self.read(memory, reach, frame_bytes) || reach > 0 && self.read(memory, 0, frame_bytes)
    }

    /// Reads the frame, and so many bytes before it.
    #[inline(always)]
    fn read<M: Memory>(&mut self, memory: &M, reach: usize, frame_bytes: usize) -> bool {
        self.window_reach = reach as u64;
        self.window_address = self.frame.wrapping_sub(self.window_reach);
        // SAFETY: the window is that long, and any bytes are words.
        let window = unsafe { core::slice::from_raw_parts_mut(self.window.as_mut_ptr().cast::<u8>(), WINDOW_BYTES) };
        match window.get_mut(..reach + frame_bytes) {
            Some(window) => memory.read(self.window_address, window),
            None => false,
        }
    }

    #[inline(always)]
    fn word(&self, index: u8) -> u64 {
        let frame = self.frame.wrapping_sub(self.window_address) as usize / 8 % WINDOW_WORDS;
        self.window[frame + index as usize % FRAME_WORDS]
    }
}

/// What one step found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A frame of Python code.
    Frame(RawFrame),
    /// A shim frame: nothing to show, the walk goes on.
    Shim,
    /// The end of the walk.
    End(End),
}

/// How a walk ended.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// At the outermost frame: the stack is whole.
    Outermost = 0,
    /// At the limit of frames: the stack is the innermost of a deeper one.
    Cut = 1,
    /// At memory that can't be read, or is no frame: the stack is what was found before.
    Unreadable = 2,
}

/// Reads the frame at the cursor and moves to its caller.
#[inline(always)]
pub fn step<M: Memory>(memory: &M, layout: &Layout, cursor: &mut Cursor) -> Step {
    if cursor.frame == 0 {
        return Step::End(End::Outermost);
    }
    if !cursor.fill(memory, layout) {
        return Step::End(End::Unreadable);
    }
    let code_word = cursor.word(layout.frame_code_word);
    let at = cursor.word(layout.frame_instruction_word);
    let previous = cursor.word(layout.frame_previous_word);
    let owner_word = cursor.word(layout.frame_owner_word);
    cursor.frame = previous;
    decode(memory, layout, code_word, at, owner_word)
}

/// What these words of a frame say: `frame_code_word`, `frame_instruction_word` and `frame_owner_word`.
#[inline(always)]
pub fn decode<M: Memory>(memory: &M, layout: &Layout, code_word: u64, at: u64, owner_word: u64) -> Step {
    let owner = if layout.instruction_scale == 0 { (owner_word >> (layout.frame_owner_shift & 63)) as u8 } else { 0 };
    if owner >= OWNED_BY_C_STACK {
        return Step::Shim;
    }
    // 3.14 and later keep marks in the lowest bits.
    let code = code_word & !7;
    if code == 0 {
        return Step::End(End::Unreadable);
    }
    let instruction = if layout.code_copies != ABSENT {
        match copy_of_instructions(memory, layout, code, owner_word as u32) {
            Some(copy) => at.wrapping_sub(copy) as i32,
            None => return Step::End(End::Unreadable),
        }
    } else if layout.instruction_scale == 0 {
        at.wrapping_sub(code).wrapping_sub(layout.code_instructions as u64) as i32
    } else {
        (at as i32).wrapping_mul(layout.instruction_scale as i32)
    };
    Step::Frame(RawFrame { code, instruction, kind: (owner == OWNED_BY_GENERATOR) as u32 })
}

/// Where the copy of a code object's instructions that a frame runs begins.
#[inline(always)]
fn copy_of_instructions<M: Memory>(memory: &M, layout: &Layout, code: u64, index: u32) -> Option<u64> {
    // A `_PyCodeArray`: how many there are, and their addresses.
    let copies = memory.word(code.wrapping_add(layout.code_copies as u64))?;
    if index as u64 >= memory.word(copies)? {
        return None;
    }
    memory.word(copies.wrapping_add(8).wrapping_add(index as u64 * 8)).filter(|&copy| copy != 0)
}

/// Frames of a stack that are kept, at most: the innermost. A power of two, so that an index can be masked.
pub const MAX_FRAMES: usize = 256;

/// Steps to give a walk: each frame that is kept, its shim, and slack. One that hasn't ended by then is cut.
pub const MAX_STEPS: u32 = 3 * MAX_FRAMES as u32;

/// A walk and the stack it has found so far, innermost frame first.
///
/// In an eBPF program it lies in a map value, never on the stack: the verifier takes what it loads from a map for unknown,
/// and so checks the callback of `bpf_loop` once; a count on the stack it would follow through every iteration.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Walk {
    /// The frames; those from `count` on are left over from an earlier walk.
    pub frames: [RawFrame; MAX_FRAMES],
    /// How many there are.
    pub count: u32,
    /// An [`End`] as a number.
    pub end: u32,
    /// How many there may be; 0 for [`MAX_FRAMES`].
    pub most_frames: u32,
    cursor: Cursor,
}

impl Default for Walk {
    fn default() -> Self {
        Self {
            frames: [RawFrame::default(); MAX_FRAMES],
            count: 0,
            end: End::Cut as u32,
            most_frames: 0,
            cursor: Cursor::at(0),
        }
    }
}

impl Walk {
    /// Begins at this frame, which [`first_frame`] found. What was found before is forgotten.
    #[inline(always)]
    pub fn begin(&mut self, frame: u64) {
        self.count = 0;
        // Until a step says otherwise: who runs out of steps has cut the stack.
        self.end = if frame == 0 { End::Outermost as u32 } else { End::Cut as u32 };
        self.cursor.begin(frame);
    }

    /// Whether there is a frame to begin with.
    #[inline(always)]
    pub fn has_frames(&self) -> bool {
        self.cursor.frame != 0
    }

    /// The frame that the next step takes.
    #[inline(always)]
    pub fn next_frame(&self) -> u64 {
        self.cursor.frame
    }

    #[inline(always)]
    fn most(&self) -> u32 {
        if self.most_frames == 0 { MAX_FRAMES as u32 } else { self.most_frames }
    }

    /// Takes a step and keeps the frame it finds. To be called until it gives [`Step::End`], [`MAX_STEPS`] times at most.
    #[inline(always)]
    pub fn advance<M: Memory>(&mut self, memory: &M, layout: &Layout) -> Step {
        let step = step(memory, layout, &mut self.cursor);
        match step {
            // Only another frame cuts the stack: what is left may be the outermost shim, or nothing.
            Step::Frame(_) if self.count >= self.most() => {
                self.end = End::Cut as u32;
                return Step::End(End::Cut);
            }
            Step::Frame(frame) => {
                self.frames[self.count as usize % MAX_FRAMES] = frame;
                self.count = self.count.wrapping_add(1);
            }
            Step::Shim => {}
            Step::End(end) => self.end = end as u32,
        }
        step
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::layouts::PYTHON_3_12;
    use super::made::{LIMIT, Made};
    use super::*;

    fn interpreter(tss_key: u32) -> Interpreter {
        Interpreter {
            tss_key,
            first_slots: GLIBC_FIRST_SLOTS,
            slot_tables: GLIBC_SLOT_TABLES,
            layout: PYTHON_3_12,
            ..Interpreter::default()
        }
    }

    /// A frame of 3.12 at this address.
    fn frame(address: u64, code: u64, previous: u64, unit: u64, owner: u64) -> [(u64, u64); 4] {
        let instruction = code + PYTHON_3_12.code_instructions as u64 + 2 * unit;
        [(address, code), (address + 8, previous), (address + 56, instruction), (address + 64, owner << 48)]
    }

    fn walk(memory: &Made, first: u64) -> (Vec<RawFrame>, u32) {
        let mut walk = Walk::default();
        walk.begin(first);
        let mut steps = 0;
        while steps < MAX_STEPS && !matches!(walk.advance(memory, &PYTHON_3_12), Step::End(_)) {
            steps += 1;
        }
        (walk.frames[..walk.count as usize].to_vec(), walk.end)
    }

    #[test]
    fn the_thread_state_is_in_the_slot_of_its_key() {
        let thread = 0x1000;
        let memory = Made::of(&[
            (thread + 0x310 + 5 * 16 + 8, 0xaaa0),
            (thread + 0x510 + 3 * 8, 0x8000),
            (0x8000 + 4 * 16 + 8, 0xbbb0),
            (thread + 0x510 + 4 * 8, LIMIT),
        ]);
        assert_eq!(thread_state(&memory, &interpreter(5), thread), Some(0xaaa0));
        assert_eq!(thread_state(&memory, &interpreter(3 * 32 + 4), thread), Some(0xbbb0));
        // A thread that never ran Python, in a slot and in a table that it doesn't have.
        assert_eq!(thread_state(&memory, &interpreter(6), thread), Some(0));
        assert_eq!(thread_state(&memory, &interpreter(2 * 32), thread), Some(0));
        // A table that can't be read, and no key.
        assert_eq!(thread_state(&memory, &interpreter(4 * 32), thread), None);
        assert_eq!(thread_state(&memory, &interpreter(32 * 32), thread), None);
    }

    #[test]
    fn shims_are_skipped_and_generators_told() {
        let frames = [
            frame(0x100, 0x9000, 0x200, 7, 1),
            frame(0x200, 0x9100, 0x300, 0, 3),
            frame(0x300, 0x9200, 0x400, 9, 0),
            frame(0x400, 0x9300, 0, 0, 4),
        ];
        let (found, end) = walk(&Made::of(frames.as_flattened()), 0x100);
        let expected =
            [RawFrame { code: 0x9000, instruction: 14, kind: 1 }, RawFrame { code: 0x9200, instruction: 18, kind: 0 }];
        assert_eq!((found.as_slice(), end), (expected.as_slice(), End::Outermost as u32));
    }

    #[test]
    fn a_chain_that_bites_its_tail_is_cut() {
        let (found, end) = walk(&Made::of(&frame(0x100, 0x9000, 0x100, 0, 0)), 0x100);
        assert_eq!((found.len(), end), (MAX_FRAMES, End::Cut as u32));
        let (found, end) = walk(&Made::of(&frame(0x100, 0x9000, 0x100, 0, 3)), 0x100);
        assert_eq!((found.len(), end), (0, End::Cut as u32));
    }

    #[test]
    fn a_thread_that_holds_the_lock_runs_python() {
        let state = 0x1000;
        let status = |bits: u64| Made::of(&[(state + 24, bits)]);
        let asked = Interpreter { runtime: 0x4000, ..interpreter(5) };
        assert_eq!(runs_python(&status(0b1_1011), &asked, state), Some(true));
        assert_eq!(runs_python(&status(0b0_1011), &asked, state), Some(false));
        assert_eq!(runs_python(&Made::of(&[]), &asked, LIMIT), None);
        // Up to 3.11 there is one lock, and the runtime knows who has it.
        let older = Interpreter { layout: LAYOUTS[3], ..asked };
        let held_by = |state| Made::of(&[(0x4000 + 576, state)]);
        assert_eq!(runs_python(&held_by(state), &older, state), Some(true));
        assert_eq!(runs_python(&held_by(0), &older, state), Some(false));
    }

    #[test]
    fn a_stack_as_deep_as_is_kept_is_whole_and_one_deeper_is_cut() {
        for (depth, expected) in [(256, End::Outermost), (257, End::Cut)] {
            let last = 0x100 * depth;
            // The outermost frame has a shim behind it.
            let frames: Vec<_> = (1..=depth)
                .map(|at| frame(0x100 * at, 0x9000, 0x100 * (at + 1), at, 0))
                .chain([frame(last + 0x100, 0x9000, 0, 0, 3)])
                .collect();
            let (found, end) = walk(&Made::of(frames.as_flattened()), 0x100);
            assert_eq!((found.len(), end), (256, expected as u32), "{depth} frames");
        }
    }

    #[test]
    fn a_stack_ends_where_memory_does() {
        let (found, end) = walk(&Made::of(&frame(0x100, 0x9000, LIMIT, 0, 0)), 0x100);
        assert_eq!((found.len(), end), (1, End::Unreadable as u32));
        // A frame without a code object is none.
        let (found, end) = walk(&Made::of(&frame(0x100, 0x9000, 0x200, 0, 0)), 0x100);
        assert_eq!((found.len(), end), (1, End::Unreadable as u32));
        assert_eq!(walk(&Made::of(&[]), 0), (Vec::new(), End::Outermost as u32));
    }

    #[test]
    fn a_thread_local_state_is_behind_the_thread_pointer_or_in_a_module_s_storage() {
        let thread = 0x1000;
        let memory = Made::of(&[
            (thread - 40, 0xaaa0),
            (thread + 8, 0x8000),
            // Room for three modules; of the second there is storage, of the third none yet.
            (0x8000 - 16, 3),
            (0x8000 + 2 * 16, 0x9000),
            (0x8000 + 3 * 16, u64::MAX),
            (0x9000 + 0x28, 0xbbb0),
        ]);
        let of = |tls_module, tls_offset| {
            let interpreter = Interpreter { tls_module, tls_offset, ..interpreter(KEY_TLS) };
            thread_state(&memory, &interpreter, thread)
        };
        assert_eq!(of(0, -40), Some(0xaaa0));
        assert_eq!(of(2, 0x28), Some(0xbbb0));
        assert_eq!((of(3, 0x28), of(4, 0x28)), (Some(0), Some(0)));
        assert_eq!(of(0, i32::MAX), None);
        assert_eq!(thread_state(&memory, &interpreter(KEY_BY_LIST), thread), None);
    }

    #[test]
    fn a_free_threaded_frame_is_in_its_own_copy_of_the_instructions() {
        let layout = Layout::of(0x030e, true).unwrap();
        let (code, copies) = (0x9000, 0xa000);
        let frame = |index: u64| [(0x100, code | 1), (0x100 + 56, 0xc010), (0x100 + 72, 1 << 48 | index)];
        let memory = |index| {
            let words = [(code + 224, copies), (copies, 2), (copies + 8, 0xb000), (copies + 16, 0xc000)];
            Made::of(&[&frame(index)[..], &words].concat())
        };
        let first = |index| step(&memory(index), &layout, &mut Cursor::at(0x100));
        let expected = |instruction| Step::Frame(RawFrame { code, instruction, kind: raw_kind::GENERATOR });
        assert_eq!(first(1), expected(0x10));
        assert_eq!(first(0), expected(0x1010));
        // Of a copy that there is not.
        assert_eq!(first(2), Step::End(End::Unreadable));
    }

    #[test]
    fn what_does_not_fit_says_how_long_it_is() {
        let (code, file, name) = (0x1000, 0x2000, 0x8000);
        let ascii = 1 << 2 | 1 << 5 | 1 << 6;
        let memory = Made::of(&[
            (code + 112, file),
            (file + 16, 2000),
            (file + 32, ascii),
            (code + 128, name),
            (name + 16, 3),
            // Four bytes a character, compact, not ASCII.
            (name + 32, 4 << 2 | 1 << 5),
            (name + 56, 0x0001_f40d),
            (code + 136, LIMIT),
        ]);
        let mut body = CodeBody::default();
        assert!(copy_code(&memory, &PYTHON_3_12, code, &mut body));
        assert_eq!((body.file.length, body.file.width, body.file.whole()), (2000, 1, None));
        assert_eq!((body.name.length, body.name.width), (12, 4));
        assert_eq!(body.name.whole().map(|bytes| &bytes[..4]), Some(&0x0001_f40d_u32.to_ne_bytes()[..]));
        assert_eq!((body.line_table.width, body.line_table.whole()), (0, None));
        assert!(!copy_code(&memory, &PYTHON_3_12, LIMIT, &mut body));
    }
}
