//! The records that the eBPF programs put into the ring buffer, and the maps by which both sides talk.
//!
//! The programs know no CUDA function: a probe's cookie is an index into a table of [`Plan`]s, and a plan says which
//! words of a call to keep. What the words mean is known in user space alone (`capture/src/probes/functions.rs`), so a
//! function more is one line there and none here.
//!
//! Everything is plain integers without padding, so that every byte of a record is written before it is shown.

pub mod tally;

use core::mem::size_of;

#[cfg(doc)]
use crate::python::End;
use crate::python::{CodeBody, Interpreter, RawFrame, TaskName};

/// How many plans there may be: the length of the plan table.
pub const MOST_FUNCTIONS: u32 = 512;
/// Words of a call that are on the stack: arguments seven to eleven.
pub const STACK_WORDS: usize = 5;
/// The most bytes that a call's record keeps of memory that an argument points to: a `CUDA_MEMCPY3D_PEER` has 200,
/// four elements of `CUDA_LAUNCH_PARAMS` take 224, a `CUgraphNodeParams` 232 up to the end of a copy.
pub const MEMORY_BYTES: usize = 232;
/// The most bytes that a call's record keeps of lists that arguments point to, all together.
pub const LISTS_BYTES: usize = 3072;
/// Of each, where there are three.
pub const LIST_BYTES: usize = LISTS_BYTES / 3;
/// The longest string that a record keeps, with its end; what is longer is read by user space.
pub const NAME_BYTES: usize = 4096;

/// Native frames of a stack that are kept, at most: the innermost. `kernel.perf_event_max_stack` is 127 where nobody changed it.
pub const MAX_NATIVE_FRAMES: usize = 128;

/// What a record is: its first two bytes. The two behind them are zero, or of a call the processor.
pub mod kind {
    /// [`super::Call`]
    pub const CALL: u32 = 1;
    /// [`super::StackCall`]
    pub const STACK_CALL: u32 = 2;
    /// [`super::MemoryCall`]
    pub const MEMORY_CALL: u32 = 3;
    /// [`super::NamedCall`]
    pub const NAMED_CALL: u32 = 4;
    /// [`super::Return`]
    pub const RETURN: u32 = 5;
    /// [`super::StackBody`]
    pub const STACK_BODY: u32 = 6;
    /// [`super::CodeRecord`]
    pub const CODE: u32 = 7;
    /// [`super::Lifecycle`]
    pub const LIFECYCLE: u32 = 8;
    /// [`super::NativeBody`]
    pub const NATIVE_BODY: u32 = 9;
    /// [`super::TaskBody`]
    pub const TASK_BODY: u32 = 10;
    /// [`super::TextPiece`]
    pub const TEXT_PIECE: u32 = 11;
    /// [`super::Sample`]
    pub const SAMPLE: u32 = 12;
    /// [`super::OffCpu`]
    pub const OFF_CPU: u32 = 13;
    /// [`super::RangeStack`]
    pub const RANGE_STACK: u32 = 14;
    /// [`super::ListsCall`]
    pub const LISTS_CALL: u32 = 16;
    /// [`super::Correlated`]
    pub const CORRELATED: u32 = 32;
}

/// What is to be kept of a function's calls. All zero for a function that has no probe.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The record that a call makes: `kind::CALL`, `STACK_CALL`, `MEMORY_CALL`, `NAMED_CALL` or `LISTS_CALL`.
    pub record: u32,
    /// What the Python stack is wanted for: see [`stack_use`]; 0 if it is not.
    pub stack: u32,
    /// For a [`MemoryCall`] the argument (from 0) that points to the memory, for a [`NamedCall`] to the string, for a
    /// [`ListsCall`] to the first list.
    pub pointer: u32,
    /// How many bytes of it, at most [`MEMORY_BYTES`]; of a list, how many an element has.
    pub bytes: u32,
    /// For a [`ListsCall`] how many lists: 1, or 3, which the arguments one behind the other point to.
    pub lists: u32,
    /// And the argument that says how many elements each has.
    pub count: u32,
    /// One more than the arguments that point to what the call hands out, read when it returns; 0 for none.
    pub outs: [u32; 2],
    /// The kind that a call counts as: the tape's table that its row goes into, 0 for one that is no event. See [`tally`].
    pub tally: u32,
}

/// What a stack is wanted for.
pub mod stack_use {
    /// The call is an event.
    pub const EVENT: u32 = 1;
    /// The call is a launch, which is not sent if its stack is left out.
    pub const LAUNCH: u32 = 2;
}

/// A call was entered.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// See [`kind`].
    pub kind: u16,
    /// The processor; [`tally::NO_CPU`] where the process itself tells the call.
    pub cpu: u16,
    /// Index of the function's plan.
    pub function: u32,
    /// When, on `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    /// The process in the upper half, the thread in the lower.
    pub pid_tid: u64,
    /// The hash of the Python stack; 0 for none.
    pub stack: u64,
    /// The stack pointer: a call within this one has a smaller one.
    pub stack_pointer: u64,
    /// The first six arguments: rdi, rsi, rdx, rcx, r8, r9.
    pub registers: [u64; 6],
}

/// A call with more than six arguments.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackCall {
    /// What every call has.
    pub call: Call,
    /// Arguments seven to eleven; zeros where they could not be read, and `call.kind` is then `kind::CALL`.
    pub words: [u64; STACK_WORDS],
}

/// A call with a structure that an argument points to.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryCall {
    /// What every call has.
    pub call: Call,
    /// How many of `memory` are the call's: 0 where it could not be read.
    pub bytes: u64,
    /// What the argument pointed to.
    pub memory: [u8; MEMORY_BYTES],
}

/// A call with lists that arguments point to, and with arguments on the stack.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListsCall {
    /// What every call has.
    pub call: Call,
    /// Arguments seven to eleven; zeros where they could not be read.
    pub words: [u64; STACK_WORDS],
    /// How many bytes there are of each list: no more than its share. 0 where one could not be read.
    pub bytes: u64,
    /// The lists, each at the beginning of its share.
    pub memory: [u8; LISTS_BYTES],
}

/// A call with a string that an argument points to.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedCall {
    /// What every call has.
    pub call: Call,
    /// The string's length with its end: [`NAME_BYTES`] for one that is longer, 0 where it could not be read.
    pub bytes: u64,
    /// The string.
    pub name: [u8; NAME_BYTES],
}

/// A call returned.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Return {
    /// `kind::RETURN`
    pub kind: u32,
    /// Index of the function's plan.
    pub function: u32,
    /// When, on `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    /// The process in the upper half, the thread in the lower.
    pub pid_tid: u64,
    /// The stack pointer: 8 more than the call's, as the return address is gone.
    pub stack_pointer: u64,
    /// The register rax; a `CUresult` is its lower half.
    pub result: u64,
    /// What the call handed out; 0 where nothing is asked for, or it could not be read.
    pub outs: [u64; 2],
}

/// CUPTI's correlation id of the call that this thread entered last: the call's own record came before, if it found room.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Correlated {
    /// `kind::CORRELATED`
    pub kind: u32,
    /// CUPTI's id; 32 bits, so it comes again after four billion calls.
    pub correlation: u32,
    /// The call was not entered before this, on `CLOCK_MONOTONIC`: so it is not the last that has a record where that is older. A process
    /// itself says when it was entered; a program, what is right behind the last call of the thread that found no room, or 0.
    pub time_ns: u64,
    /// The process in the upper half, the thread in the lower.
    pub pid_tid: u64,
}

/// A thread was found running.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// `kind::SAMPLE`
    pub kind: u32,
    /// The processor.
    pub cpu: u32,
    /// When, on `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    /// The process in the upper half, the thread in the lower.
    pub pid_tid: u64,
    /// The hash of the Python stack; 0 for none.
    pub stack: u64,
}

/// A thread runs again that was off its processor.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffCpu {
    /// `kind::OFF_CPU`
    pub kind: u32,
    /// The processor that it left.
    pub cpu: u32,
    /// When it left, on `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    /// The process in the upper half, the thread in the lower.
    pub pid_tid: u64,
    /// How long until it ran again.
    pub duration_ns: u64,
    /// How much of that, at its end, it could have run.
    pub runnable_ns: u64,
    /// Why it left: see [`off`].
    pub reason: u32,
    /// The processor that it came to, and on which this was counted.
    pub end_cpu: u32,
}

/// A thread that is off its processor.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Off {
    /// When it left, on `CLOCK_MONOTONIC`.
    pub left_ns: u64,
    /// Since when it can run; 0 for not yet.
    pub runnable_since_ns: u64,
    /// Its process.
    pub pid: u32,
    /// The processor that it left.
    pub cpu: u32,
    /// Why: see [`off`].
    pub reason: u64,
}

/// Why a thread left its processor, numbered as on the tape.
pub mod off {
    /// Another was to run, and this one could have gone on.
    pub const PREEMPTED: u64 = 1;
    /// It waited for something, and could be interrupted.
    pub const SLEEP: u64 = 2;
    /// It waited for something, and could not be interrupted.
    pub const UNINTERRUPTIBLE: u64 = 3;
    /// It was stopped, traced or frozen.
    pub const STOPPED: u64 = 4;
    /// It is new, and has not run yet.
    pub const NEW: u64 = 5;
}

/// How many recorded threads can be off their processors at a time.
pub const MOST_OFF: u32 = 1 << 15;

/// What one processor counted of threads that were off theirs.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OffCounters {
    /// Stretches that ended, or could not be kept when they began.
    pub seen: u64,
    /// Of these, those that could not be kept, or found the ring buffer full.
    pub lost: u64,
    /// Threads that ran again and had left unseen, most before they were recorded: since when is not known.
    pub unbegun: u64,
}

impl OffCounters {
    /// Adds another processor's.
    pub fn add(&mut self, other: &OffCounters) {
        self.seen += other.seen;
        self.lost += other.lost;
        self.unbegun += other.unbegun;
    }
}

/// A stack that was not seen before. Its `depth` [`RawFrame`]s follow, innermost first.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackBody {
    /// `kind::STACK_BODY`
    pub kind: u32,
    /// How many frames it has.
    pub depth: u32,
    /// The process in the upper half, the thread in the lower.
    pub pid_tid: u64,
    /// Its hash.
    pub stack: u64,
    /// Raised when code of the process is freed, when its libraries change, and when all that was sent counts as not sent: a
    /// hash of an earlier epoch comes no more.
    pub epoch: u64,
    /// The hash of the name of the task that runs in it; 0 for none.
    pub task: u64,
    /// How many frames, from the innermost, are that task's: the last of them runs it.
    pub task_at: u32,
    /// How the walk ended: an [`End`].
    pub end: u32,
    /// Whose frames these are: the calling thread's, or where that runs no Python one's that waits. See [`relation`].
    pub relation: u32,
    /// How many native frames were sent before this.
    pub native: u32,
}

/// What a thread that waits has to do with the one that calls.
pub mod relation {
    /// They are the same.
    pub const SAME: u32 = 0;
    /// It has started that one, or the one that did.
    pub const STARTER: u32 = 1;
    /// It is the last that called from Python.
    pub const LAST_CALLER: u32 = 2;
}

/// The native frames of a stack that was not seen before, whose [`StackBody`] comes next. `depth` addresses follow, innermost
/// first: the first is that of the next instruction, the others are where calls return to.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NativeBody {
    /// `kind::NATIVE_BODY`
    pub kind: u32,
    /// How many frames it has, at most [`MAX_NATIVE_FRAMES`].
    pub depth: u32,
    /// The process in the upper half, the thread in the lower.
    pub pid_tid: u64,
    /// The stack's hash.
    pub stack: u64,
}

/// The name of a task that was not seen before.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskBody {
    /// `kind::TASK_BODY`
    pub kind: u32,
    /// How often all that was sent has counted as not sent. What was sent before comes again before it is referred to.
    pub rotation: u32,
    /// The process in the upper half, the thread in the lower.
    pub pid_tid: u64,
    /// Its hash.
    pub hash: u64,
    /// The name.
    pub name: TaskName,
}

/// A code object that was not seen before.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CodeRecord {
    /// `kind::CODE`
    pub kind: u32,
    /// As in [`TaskBody`].
    pub rotation: u32,
    /// The process in the upper half, the thread in the lower.
    pub pid_tid: u64,
    /// What it says.
    pub body: CodeBody,
}

/// A piece of what is too long for a code object's record, which comes after the last piece.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TextPiece {
    /// `kind::TEXT_PIECE`
    pub kind: u32,
    /// What it is of: see [`text`].
    pub text: u32,
    /// The process in the upper half, the thread in the lower.
    pub pid_tid: u64,
    /// The address of the code object.
    pub code: u64,
    /// Where in the whole it begins, in bytes.
    pub offset: u64,
    /// How many of `bytes` are the text's: 0 where it could not be read.
    pub length: u64,
    /// The piece.
    pub bytes: [u8; PIECE_BYTES],
}

/// Bytes of a [`TextPiece`].
pub const PIECE_BYTES: usize = 4096;
/// Pieces of a text, at most. One that is longer, user space reads from the process.
pub const MOST_PIECES: usize = 16;

/// What of a code object a text is.
pub mod text {
    /// `co_filename`.
    pub const FILE: u32 = 0;
    /// `co_qualname`, or `co_name`.
    pub const NAME: u32 = 1;
    /// `co_linetable`, or `co_lnotab`.
    pub const LINE_TABLE: u32 = 2;
    /// How many there are.
    pub const KINDS: usize = 3;
}

/// A process or thread came, changed or went.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifecycle {
    /// `kind::LIFECYCLE`
    pub kind: u32,
    /// See [`life`].
    pub what: u32,
    /// When, on `CLOCK_MONOTONIC`. Of a fork and an exec it is the generation of the program that begins, as in [`Target`].
    pub time_ns: u64,
    /// The process in the upper half, the thread in the lower.
    pub pid_tid: u64,
    /// The child's process in the upper half and thread in the lower for a fork; the wait status for an exit.
    pub detail: u64,
}

/// What happened to a process or thread.
pub mod life {
    /// It forked.
    pub const FORK: u32 = 1;
    /// It began another program.
    pub const EXEC: u32 = 2;
    /// Its last thread ended.
    pub const EXIT: u32 = 3;
    /// A thread began.
    pub const THREAD_START: u32 = 4;
    /// A thread ended.
    pub const THREAD_EXIT: u32 = 5;
    /// It mapped or unmapped a library.
    pub const LIBRARIES: u32 = 6;
    /// It called for the first time, and is recorded from this call on; the time is the generation of its program.
    pub const ADMITTED: u32 = 7;
    /// It runs a Python whose file is known, so that its stacks are walked from here on; the detail is [`python`].
    pub const PYTHON: u32 = 8;

    /// The cookie of a Python's file, which has 16 bits, and where the process has `_PyRuntime`: user space's addresses have 47.
    pub const fn python(file: u64, runtime: u64) -> u64 {
        file << RUNTIME_BITS | runtime & ((1 << RUNTIME_BITS) - 1)
    }

    /// The cookie and the address of [`python`].
    pub const fn of_python(detail: u64) -> (u16, u64) {
        ((detail >> RUNTIME_BITS) as u16, detail & ((1 << RUNTIME_BITS) - 1))
    }

    const RUNTIME_BITS: u32 = 48;
}

/// Where a program names a range or mark of which a library inside of it is about to tell.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeStack {
    /// `kind::RANGE_STACK`
    pub kind: u32,
    /// Always 0.
    pub padding: u32,
    /// When it begins, as the library has it; a thread's are all different.
    pub time_ns: u64,
    /// The process in the upper half, the thread in the lower.
    pub pid_tid: u64,
    /// The stack's hash, as of a [`Call`].
    pub stack: u64,
}

/// What the programs could not say, by index of their counters.
pub mod unsaid {
    /// A [`super::Lifecycle`] that found the ring buffer full.
    pub const LIFECYCLES: u32 = 0;
    /// A child that is not recorded, as there were [`super::MOST_TARGETS`] processes.
    pub const CHILDREN: u32 = 1;
    /// A call of a process that is not recorded, as there were [`super::MOST_TARGETS`].
    pub const CALLS_NOT_ADMITTED: u32 = 2;
    /// How many kinds there are.
    pub const KINDS: u32 = 3;
}

/// What one processor counted of one function, whatever became of the records.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Calls entered.
    pub calls: u64,
    /// Calls that found the ring buffer full.
    pub calls_lost: u64,
    /// Calls that returned.
    pub returns: u64,
    /// Returns that found the ring buffer full.
    pub returns_lost: u64,
    /// Calls whose Python stack could not be walked: the processor's work space was taken, or memory could not be read.
    pub without_stack: u64,
    /// New stacks and code objects that found the ring buffer full. They are sent again with the next such call.
    pub bodies_lost: u64,
}

impl Counters {
    /// Adds another processor's.
    pub fn add(&mut self, other: &Counters) {
        self.calls += other.calls;
        self.calls_lost += other.calls_lost;
        self.returns += other.returns;
        self.returns_lost += other.returns_lost;
        self.without_stack += other.without_stack;
        self.bodies_lost += other.bodies_lost;
    }
}

/// What one processor spent in the programs at one function, of the calls that were timed: about one of 256.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// How many calls were timed.
    pub calls: u64,
    /// What the program took for them, without the trap that leads to it.
    pub calls_ns: u64,
    /// How many returns were timed.
    pub returns: u64,
    /// What the program took for them.
    pub returns_ns: u64,
}

impl Spent {
    /// Adds another processor's.
    pub fn add(&mut self, other: &Spent) {
        self.calls += other.calls;
        self.calls_ns += other.calls_ns;
        self.returns += other.returns;
        self.returns_ns += other.returns_ns;
    }
}

/// One call of so many is timed, where the clock's last digits, from the third on, are all zeros.
pub const TIMED_DIGITS: u64 = 0xff << 3;
/// A program that took longer was interrupted: its time says nothing.
pub const MOST_TIMED_NS: u64 = 100_000;

/// How much of calls' stacks is kept. User space lowers it where recording costs too much, and raises it again.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fidelity {
    /// Whether native frames are left out where they are wanted.
    pub without_native: u32,
    /// How many Python frames a stack may have, the innermost; 0 for [`MAX_FRAMES`](crate::python::MAX_FRAMES).
    pub most_frames: u32,
    /// One less than the power of two of which one call has its stack kept, by chance: 0 for each.
    pub stacks_mask: u32,
    /// Always 0.
    pub padding: u32,
}

/// The hash of a stack that was left out: see [`Fidelity`]. No stack's own, as those have the second bit set.
pub const STACK_LEFT_OUT: u64 = 4;

/// The hash of a stack that could not be read. No stack's own either.
pub const STACK_UNREADABLE: u64 = 8;

/// The hash of a stack that was not looked for, as the process had not been told its interpreter yet. No stack's own either.
pub const STACK_TOO_EARLY: u64 = 16;

/// Calls of one function that the scope of `capture node` left out, on one processor.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutOfScope {
    /// Calls of processes that are not in it. They are not among [`Counters::calls`].
    pub of_processes: u64,
    /// Calls of recorded processes that are not in it. They are.
    pub of_calls: u64,
}

/// A stack whose launches are left out, of one program.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Its hash.
    pub stack: u64,
    /// As in [`Target`].
    pub generation: u64,
}

/// How many processes can be recorded at a time.
pub const MOST_TARGETS: u32 = 4096;

/// A process that is recorded. User space says that it is; from then on the programs keep it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// Tells this program of this process from any other that had its number: a time.
    pub generation: u64,
    /// How many generations of its children are recorded too: `u32::MAX` for all.
    pub follow: u32,
    /// Whether native frames are wanted of every stack.
    pub native: u32,
    /// The state of the thread that last called from Python; 0 for none yet.
    pub last_state: u64,
    /// The thread itself.
    pub last_tid: u64,
}

/// The Python of a recorded process.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Walked {
    /// Which program of the process it is of, as in [`Target`]: another has none until it is found.
    pub generation: u64,
    /// Where it is.
    pub interpreter: Interpreter,
}

/// A record or map value that is plain integers: any bytes of its length are one.
///
/// # Safety
///
/// No padding, no value that is not valid.
pub unsafe trait Plain: Copy {
    /// Reads one from the beginning of a record; `None` if that is too short.
    fn read(bytes: &[u8]) -> Option<Self> {
        if bytes.len() < size_of::<Self>() {
            return None;
        }
        // SAFETY: there are enough bytes, and any are a value.
        Some(unsafe { bytes.as_ptr().cast::<Self>().read_unaligned() })
    }

    /// Its bytes.
    fn as_bytes(&self) -> &[u8] {
        // SAFETY: all of its bytes have been written, as there is no padding.
        unsafe { core::slice::from_raw_parts((&raw const *self).cast(), size_of::<Self>()) }
    }
}

macro_rules! plain {
    ($($record:ty),*) => { $(
        // SAFETY: integers and arrays of integers, in an order that needs no padding.
        unsafe impl Plain for $record {}
    )* };
}
plain!(
    Call, StackCall, MemoryCall, ListsCall, Return, Correlated, RangeStack, StackBody, NativeBody, TaskBody, Lifecycle,
    Sample, OffCpu, RawFrame
);

#[cfg(test)]
mod tests {
    use super::life;

    #[test]
    fn a_python_s_file_and_place_go_into_one_word() {
        for (file, runtime) in [(1, 0x5555_5555_0000), (u16::MAX, 0x7fff_ffff_f000), (0, 0), (0x8000, 0x40_0000)] {
            assert_eq!(life::of_python(life::python(file.into(), runtime)), (file, runtime));
        }
    }
}
