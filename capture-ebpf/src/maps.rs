//! The maps, and how a record gets into the ring buffer.

use core::intrinsics::{AtomicOrdering, atomic_xadd};
use core::mem::{offset_of, size_of};

use aya_ebpf::bindings::{BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP};
use aya_ebpf::helpers::bpf_ktime_get_ns;
use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, HashMap, LruHashMap, PerCpuArray, RingBuf};
use ktape_ebpf::python::{Interpreter, Search, Walk};
use ktape_ebpf::wire::{
    Counters, Fidelity, MAX_NATIVE_FRAMES, MOST_FUNCTIONS, MOST_TARGETS, NativeBody, Plan, Spent, StackBody, Target,
    TaskBody, Walked,
};
use ktape_ebpf::wire::{MOST_TIMED_NS, TIMED_DIGITS, unsaid};

/// The recorded processes, by number.
#[map]
pub(crate) static TARGETS: HashMap<u32, Target> = HashMap::with_max_entries(MOST_TARGETS, 0);

/// The interpreters of recorded processes whose stacks are walked, by number. A map of its own, as user space writes it at any
/// time, and what it writes must not undo what the programs have put down in `TARGETS`.
#[map]
pub(crate) static INTERPRETERS: HashMap<u32, Walked> = HashMap::with_max_entries(MOST_TARGETS, 0);

/// Interpreters by their files: what a process will have that runs this one, by the cookie of the probe at the file's
/// `code_dealloc`, with `runtime` counted from that probe. Files come and go for weeks; those that nobody runs are forgotten.
#[map]
pub(crate) static PYTHONS: LruHashMap<u64, Interpreter> = LruHashMap::with_max_entries(1024, 0);

/// What to keep of each function's calls.
#[map]
pub(crate) static PLANS: Array<Plan> = Array::with_max_entries(MOST_FUNCTIONS, 0);

/// What was seen and what was lost of each function.
#[map]
pub(crate) static COUNTERS: PerCpuArray<Counters> = PerCpuArray::with_max_entries(MOST_FUNCTIONS, 0);

/// What the programs take at each function.
#[map]
pub(crate) static SPENT: PerCpuArray<Spent> = PerCpuArray::with_max_entries(MOST_FUNCTIONS, 0);

/// See [`Fidelity`]. User space changes it while programs run.
#[map]
pub(crate) static FIDELITY: Array<Fidelity> = Array::with_max_entries(1, 0);

/// What the programs could not say: see [`unsaid`].
#[map]
pub(crate) static UNSAID: PerCpuArray<u64> = PerCpuArray::with_max_entries(unsaid::KINDS, 0);

/// Raises a counter of what could not be said.
#[inline(always)]
pub(crate) fn count_unsaid(kind: u32) {
    if let Some(counter) = UNSAID.get_ptr_mut(kind) {
        count(counter);
    }
}

/// Everything on its way to user space. The loader sets its size.
#[map]
pub(crate) static EVENTS: RingBuf = RingBuf::with_byte_size(16 << 20, 0);

/// What user space knows already: stacks and code objects whose body was sent.
#[map]
pub(crate) static SENT: LruHashMap<SentKey, u8> = LruHashMap::with_max_entries(SENT_ENTRIES, 0);

/// What was sent, of which program.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct SentKey {
    /// A stack's hash, or a code object's address, which is never odd, with the lowest bit set.
    pub(crate) what: u64,
    /// The program's generation and the rotation, in one.
    pub(crate) generation: u64,
}

pub(crate) const SENT_ENTRIES: u32 = 1 << 17;

/// How often something was put into `SENT` since the last rotation, and how many rotations there were.
///
/// A full map forgets, and must not forget a code object that is part of a stack which it remembers: its end would not be
/// noticed. So when it is half full, everything counts as not sent, as if it had been emptied; user space can forget as much.
#[map]
pub(crate) static ROTATION: Array<Rotation> = Array::with_max_entries(1, 0);

/// See [`ROTATION`].
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Rotation {
    pub(crate) sent: u64,
    pub(crate) number: u64,
}

/// What was found in `SENT` lately, by fingerprint: asking an array is cheaper.
///
/// It may forget, and it may know what `SENT` has forgotten: what was sent stays sent.
#[map]
pub(crate) static KNOWN: Array<u64> = Array::with_max_entries(KNOWN_ENTRIES, 0);

pub(crate) const KNOWN_ENTRIES: u32 = 1 << 14;

/// How many code objects that user space knows were freed, by the process's number: those that share one share the count. Where
/// native frames are wanted, changes of the libraries count too.
///
/// What has the address of a freed one is another, and with it every stack that it is in. So the count is part of a stack's
/// hash: all stacks are new then. That costs once for each stack, and code objects in use are seldom freed.
#[map]
pub(crate) static EPOCHS: Array<u64> = Array::with_max_entries(EPOCH_ENTRIES, 0);

pub(crate) const EPOCH_ENTRIES: u32 = 4096;

/// Work space for walks: an eBPF program's own stack has 512 bytes.
///
/// A probe runs with preemption on, so another thread may hit a probe while one is in it, on the same processor. Each takes
/// a space that is free; there are as many as can reasonably meet.
#[map]
pub(crate) static SPACES: PerCpuArray<Space> = PerCpuArray::with_max_entries(SPACES_A_PROCESSOR, 0);

pub(crate) const SPACES_A_PROCESSOR: u32 = 4;

/// One walk's work space.
#[repr(C)]
pub(crate) struct Space {
    /// 0 if it is free, else its own number plus one.
    pub(crate) taken: u64,
    pub(crate) interpreter: Interpreter,
    /// The walked thread's program, as in [`SentKey`].
    pub(crate) generation: u64,
    /// See `ROTATION`.
    pub(crate) rotation: u64,
    /// See `EPOCHS`; rotations are counted with it.
    pub(crate) epoch: u64,
    pub(crate) pid_tid: u64,
    pub(crate) thread_pointer: u64,
    pub(crate) search: Search,
    /// What the thread that is walked has to do with the calling one ([`relation`](ktape_ebpf::wire::relation)), and its state
    /// where it is another.
    pub(crate) relation: u32,
    pub(crate) awaiting_state: u64,
    /// Whether native frames are wanted.
    pub(crate) wants_native: u32,
    pub(crate) hash: u64,
    pub(crate) bodies_lost: u64,
    /// The innermost frame that runs a task, and how many there are up to it; 0 until the walk has come by one.
    pub(crate) task_frame: u64,
    pub(crate) task_at: u32,
    /// 1 if a text was to be sent and could not.
    pub(crate) text_lost: u32,
    /// The name of that task.
    pub(crate) task: TaskBody,
    /// The text that is being sent in pieces.
    pub(crate) long: Long,
    /// What the native frames of a new stack are sent as.
    pub(crate) native_body: NativeBody,
    pub(crate) native: [u64; MAX_NATIVE_FRAMES],
    /// What a new stack is sent as: this, and the frames of the walk behind it.
    pub(crate) body: StackBody,
    pub(crate) walk: Walk,
}

/// A text that is too long for a code object's record.
#[repr(C)]
pub(crate) struct Long {
    pub(crate) code: u64,
    pub(crate) address: u64,
    pub(crate) length: u64,
    pub(crate) text: u64,
}

const _: () = assert!(offset_of!(Space, native_body) + size_of::<NativeBody>() == offset_of!(Space, native));
const _: () =
    assert!(offset_of!(Space, body) + size_of::<StackBody>() == offset_of!(Space, walk) + offset_of!(Walk, frames));

/// Who started a thread, by the thread's process and number; a thread that has ended has none.
#[map]
pub(crate) static STARTERS: LruHashMap<u64, Starter> = LruHashMap::with_max_entries(16384, 0);

/// See [`STARTERS`].
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Starter {
    pub(crate) thread_pointer: u64,
    /// 0 for an ended one's.
    pub(crate) tid: u64,
}

/// The state of a thread that was found in the list of threads, by the thread's process and number.
#[map]
pub(crate) static STATES: LruHashMap<u64, u64> = LruHashMap::with_max_entries(16384, 0);

/// Whose call a remembered pointer is.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct OutKey {
    pub(crate) pid_tid: u64,
    pub(crate) function: u64,
}

/// Where calls that are under way hand something out.
#[map]
pub(crate) static OUTS: LruHashMap<OutKey, [u64; 2]> = LruHashMap::with_max_entries(16384, 0);

/// When the last call of a thread was entered whose record found no room, by process and thread: what is [`ANNOUNCED`] next may be
/// of that one, and not of the last that user space knows.
#[map]
pub(crate) static LOST_CALLS: LruHashMap<u64, u64> = LruHashMap::with_max_entries(4096, 0);

/// Where `tgid`, `pid` and `exit_code` are in a `task_struct`, and the thread pointer. The loader sets them, from BTF.
#[unsafe(no_mangle)]
pub(crate) static TASK_TGID: u64 = 0;
#[unsafe(no_mangle)]
pub(crate) static TASK_PID: u64 = 0;
#[unsafe(no_mangle)]
pub(crate) static TASK_EXIT_CODE: u64 = 0;
#[unsafe(no_mangle)]
pub(crate) static TASK_THREAD_POINTER: u64 = 0;
/// The recorder's own process: a target while it starts one, and never to be looked at. The loader sets it.
#[unsafe(no_mangle)]
pub(crate) static RECORDER: u64 = 0;
/// Whether a library inside of processes announces the numbers of calls. The loader sets it.
#[unsafe(no_mangle)]
pub(crate) static ANNOUNCED: u64 = 0;
/// How much may lie in the ring buffer before its reader is woken, in bytes.
#[unsafe(no_mangle)]
pub(crate) static WAKE_AT_BYTES: u64 = 0;

/// The value of a setting, as the loader has it: not the one that the compiler sees.
#[inline(always)]
pub(crate) fn setting(of: &'static u64) -> u64 {
    // SAFETY: a reference is valid to be read.
    unsafe { core::ptr::read_volatile(of) }
}

/// Raises a counter of this processor's.
#[inline(always)]
pub(crate) fn count(counter: *mut u64) {
    // SAFETY: a counter is 8 bytes, aligned, in a map, and only ever raised like this.
    unsafe { atomic_xadd::<u64, u64, { AtomicOrdering::Relaxed }>(counter, 1) };
}

/// What has passed since, if this is one of those that are timed ([`TIMED_DIGITS`]) and was not interrupted.
#[inline(always)]
pub(crate) fn timed_ns(since_ns: u64) -> Option<u64> {
    if since_ns & TIMED_DIGITS != 0 {
        return None;
    }
    // SAFETY: a helper without arguments.
    let took_ns = unsafe { bpf_ktime_get_ns() }.wrapping_sub(since_ns);
    if took_ns > MOST_TIMED_NS { None } else { Some(took_ns) }
}

/// Sends a record; false if there was no room. The reader finds it when it looks next.
#[inline(always)]
pub(crate) fn send<T: Copy + 'static>(record: &T) -> bool {
    with_room(|room: *mut T| {
        // SAFETY: the room is reserved and as large as its type.
        unsafe { room.write(*record) };
        false
    })
}

/// Sends a record that cannot wait.
#[inline(always)]
pub(crate) fn send_urgent<T: Copy + 'static>(record: &T) -> bool {
    with_room(|room: *mut T| {
        // SAFETY: as above.
        unsafe { room.write(*record) };
        true
    })
}

/// Reserves room for a record and has it written; `write` says whether the reader is to be woken for it. False, and
/// nothing is written, if there is no room.
#[inline(always)]
pub(crate) fn with_room<T: 'static>(write: impl FnOnce(*mut T) -> bool) -> bool {
    let Some(mut room) = EVENTS.reserve::<T>(0) else { return false };
    let urgent = write(room.as_mut_ptr());
    room.submit(wake(urgent));
    true
}

/// Waking costs a microsecond or more, and the reader looks by itself every so often: so it is woken only for what is
/// urgent, and where the buffer fills.
#[inline(always)]
pub(crate) fn wake(urgent: bool) -> u64 {
    if urgent || EVENTS.query(aya_ebpf::bindings::BPF_RB_AVAIL_DATA as u64) > setting(&WAKE_AT_BYTES) {
        BPF_RB_FORCE_WAKEUP as u64
    } else {
        BPF_RB_NO_WAKEUP as u64
    }
}
