//! Who called: the Python stack of the calling thread, as a hash.
//!
//! The walk is that of `python.rs`, driven by `bpf_loop`. Its state lies in a map's value: on the program's stack the verifier
//! would follow its counter through every iteration and give up. A stack that was not seen before is sent once, and before it
//! the code objects in it that were not: so user space knows a stack before the call that has it, and can name its frames even
//! if the process is gone by then.

use core::ffi::c_void;
use core::intrinsics::{AtomicOrdering, atomic_cxchg};
use core::mem::size_of;

use aya_ebpf::bindings::task_struct;
use aya_ebpf::helpers::bpf_probe_read_kernel;
use aya_ebpf::helpers::generated::{bpf_get_current_task, bpf_loop, bpf_probe_read_user};
use ktape_ebpf::python::{self, CodeBody, MAX_FRAMES, MAX_STEPS, Memory, RawFrame, Step};
use ktape_ebpf::wire::{CodeRecord, Counters, StackBody, Target, kind};

use crate::maps::{
    EVENTS, KNOWN, KNOWN_ENTRIES, SENT, SPACES, SPACES_A_PROCESSOR, SentKey, Space, TASK_THREAD_POINTER, count,
    setting, wake, with_room,
};

/// The memory of the process that the program runs in.
struct User;

impl Memory for User {
    #[inline(always)]
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        // SAFETY: the destination is as long as is said; the helper checks the source.
        unsafe { bpf_probe_read_user(into.as_mut_ptr().cast(), into.len() as u32, address as *const c_void) == 0 }
    }
}

/// The hash of the calling thread's Python stack; 0 for none.
#[inline(always)]
pub(crate) fn record(target: *const Target, pid_tid: u64, counters: *mut Counters) -> u64 {
    // SAFETY: a map's value.
    if unsafe { (*target).has_interpreter } == 0 {
        return 0;
    }
    let Some(index) = take_space(target, pid_tid) else {
        // SAFETY: a map's value.
        count(unsafe { &raw mut (*counters).without_stack });
        return 0;
    };
    let hash = walk(index).unwrap_or_else(|| {
        // SAFETY: a map's value.
        count(unsafe { &raw mut (*counters).without_stack });
        0
    });
    if let Some(space) = space(index) {
        if space.bodies_lost != 0 {
            // SAFETY: a map's value.
            count(unsafe { &raw mut (*counters).bodies_lost });
        }
        // SAFETY: a reference is valid to be written. Volatile, as another program may take the space from here on.
        unsafe { core::ptr::write_volatile(&raw mut space.taken, 0) };
    }
    hash
}

/// Takes a work space of this processor's that is free, and says in it whose stack is wanted.
#[inline(always)]
fn take_space(target: *const Target, pid_tid: u64) -> Option<u32> {
    let mut index = 0;
    while index < SPACES_A_PROCESSOR {
        let space = SPACES.get_ptr_mut(index)?;
        // SAFETY: a map's value, 8 bytes and aligned.
        let (_, taken) = unsafe {
            atomic_cxchg::<u64, { AtomicOrdering::Relaxed }, { AtomicOrdering::Relaxed }>(&raw mut (*space).taken, 0, 1)
        };
        if taken {
            // SAFETY: maps' values; the space is this program's until it is given back.
            unsafe {
                copy_words(&raw mut (*space).interpreter, &raw const (*target).interpreter);
                (*space).generation = (*target).generation;
                (*space).pid_tid = pid_tid;
                (*space).bodies_lost = 0;
            }
            return Some(index);
        }
        index += 1;
    }
    None
}

/// Copies a value by the word; the compiler's own way is a loop over its bytes.
///
/// # Safety
///
/// Both are valid, and a multiple of eight bytes long, at such addresses.
#[inline(always)]
unsafe fn copy_words<T>(to: *mut T, from: *const T) {
    const { assert!(size_of::<T>() % 8 == 0 && align_of::<T>() == 8) };
    let mut word = 0;
    while word < size_of::<T>() / 8 {
        // SAFETY: see above. Volatile, so that no byte loop is made of it.
        unsafe { to.cast::<u64>().add(word).write_volatile(from.cast::<u64>().add(word).read()) };
        word += 1;
    }
}

/// A work space that was taken. Asked for anew after each loop, whose callbacks have changed it behind the compiler's back.
#[inline(always)]
fn space(index: u32) -> Option<&'static mut Space> {
    // SAFETY: a map's value, which nobody else uses while it is taken.
    unsafe { SPACES.get_ptr_mut(index)?.as_mut() }
}

/// The hash of the stack of a work space's thread. `None` where it could not be read at all.
#[inline(always)]
fn walk(index: u32) -> Option<u64> {
    begin(space(index)?)?;
    if space(index)?.walk.count == u32::MAX {
        return Some(0);
    }
    // The helper takes only pointers to the program's own stack, so the callbacks are told which space, not where it is.
    let mut context = index;
    let context = (&raw mut context).cast::<c_void>();
    // SAFETY: the callback is a function of the type that the helper calls, and the context outlives it.
    unsafe { bpf_loop(MAX_STEPS / STEPS_A_TURN, steps as *mut c_void, context, 0) };
    let walked = space(index)?;
    // A stack that was cut is another than the same one whole. Even: see `SentKey`.
    let hash = mix(walked.hash, u64::from(walked.walk.end)) & !1 | 2;
    let key = SentKey { what: hash, generation: walked.generation };
    if was_sent(&key) {
        return Some(hash);
    }
    walked.hash = hash;
    // SAFETY: as above.
    unsafe { bpf_loop(MAX_FRAMES as u32, send_code as *mut c_void, context, 0) };
    let walked = space(index)?;
    if send_body(walked) {
        remember(&key);
    } else {
        walked.bodies_lost = 1;
    }
    Some(hash)
}

/// Finds the thread's innermost frame, and begins the walk there.
#[inline(always)]
fn begin(space: &mut Space) -> Option<()> {
    // SAFETY: a helper without arguments.
    let task = unsafe { bpf_get_current_task() } as *const task_struct;
    // SAFETY: the helper checks the address.
    let thread_pointer =
        unsafe { bpf_probe_read_kernel(task.cast::<u8>().add(setting(&TASK_THREAD_POINTER) as usize).cast::<u64>()) };
    let state = python::thread_state(&User, &space.interpreter, thread_pointer.ok()?)?;
    let frame = if state == 0 { 0 } else { python::first_frame(&User, &space.interpreter.layout, state)? };
    space.walk.begin(frame);
    if frame == 0 {
        // A thread that is no thread of Python's, or runs none of it now.
        space.walk.count = u32::MAX;
    }
    space.hash = 0x9e37_79b9_7f4a_7c15;
    Some(())
}

#[inline(always)]
fn mix(hash: u64, word: u64) -> u64 {
    let mixed = (hash ^ word).wrapping_mul(0xd6e8_feb8_6659_fd93);
    mixed ^ mixed >> 32
}

/// The space that `walk` works in.
#[inline(always)]
fn space_of(context: *mut c_void) -> Option<&'static mut Space> {
    // SAFETY: `walk` gives the number of the space that it took.
    space(unsafe { *context.cast::<u32>() })
}

/// Steps in one turn of the loop: what a turn costs by itself is then shared.
const STEPS_A_TURN: u32 = 4;

const _: () = assert!(MAX_STEPS % STEPS_A_TURN == 0);

/// Some frames. Returns 1 to end the loop.
#[inline(never)]
extern "C" fn steps(_: u32, context: *mut c_void) -> i64 {
    let Some(space) = space_of(context) else { return 1 };
    let mut taken = 0;
    while taken < STEPS_A_TURN {
        if step(space) != 0 {
            return 1;
        }
        taken += 1;
    }
    0
}

/// One frame. Returns 1 at the last.
#[inline(always)]
fn step(space: &mut Space) -> i64 {
    match space.walk.advance(&User, &space.interpreter.layout) {
        Step::Frame(frame) => {
            // An address has 47 bits, an instruction's place 20 or so: put together they fit into one word.
            let RawFrame { code, instruction, generator } = frame;
            let word = code.rotate_left(17) ^ u64::from(instruction as u32) ^ u64::from(generator) << 16;
            space.hash = mix(space.hash, word);
            0
        }
        Step::Shim => 0,
        Step::End(_) => 1,
    }
}

/// Sends one frame's code object, if it was not sent before. Returns 1 to end the loop.
#[inline(never)]
extern "C" fn send_code(index: u32, context: *mut c_void) -> i64 {
    let Some(space) = space_of(context) else { return 1 };
    if index >= space.walk.count {
        return 1;
    }
    let code = space.walk.frames[index as usize % MAX_FRAMES].code;
    let key = SentKey { what: code | 1, generation: space.generation };
    if was_sent(&key) {
        return 0;
    }
    let sent = with_room(|record: *mut CodeRecord| {
        // SAFETY: the record is reserved and as large as its type.
        unsafe {
            (&raw mut (*record).kind).write(kind::CODE);
            (&raw mut (*record).reserved).write(0);
            (&raw mut (*record).pid_tid).write(space.pid_tid);
            let body: &mut CodeBody = &mut (*record).body;
            python::copy_code(&User, &space.interpreter.layout, code, body);
        }
        true
    });
    if sent {
        remember(&key);
    } else {
        space.bodies_lost = 1;
    }
    0
}

/// Whether user space knows this already.
#[inline(always)]
fn was_sent(key: &SentKey) -> bool {
    let fingerprint = mix(key.what, key.generation);
    let Some(known) = KNOWN.get_ptr_mut(fingerprint as u32 % KNOWN_ENTRIES) else { return false };
    // SAFETY: a map's value. One word, so that whoever else writes it meanwhile writes it whole.
    if unsafe { *known } == fingerprint {
        return true;
    }
    let was_sent = SENT.get_ptr(key).is_some();
    if was_sent {
        // SAFETY: as above.
        unsafe { *known = fingerprint };
    }
    was_sent
}

#[inline(always)]
fn remember(key: &SentKey) {
    // A full map forgets the oldest, which is then sent again.
    let _ = SENT.insert(key, 1, 0);
}

#[inline(always)]
fn send_body(space: &mut Space) -> bool {
    let count = space.walk.count;
    let frames = if count > MAX_FRAMES as u32 { MAX_FRAMES as u32 } else { count };
    space.body = StackBody {
        kind: kind::STACK_BODY,
        depth: frames,
        pid_tid: space.pid_tid,
        stack: space.hash,
        end: u64::from(space.walk.end),
    };
    let bytes = size_of::<StackBody>() as u64 + u64::from(frames) * size_of::<RawFrame>() as u64;
    // SAFETY: the frames lie behind the body, as `maps.rs` asserts.
    let record = unsafe { core::slice::from_raw_parts((&raw const space.body).cast::<u8>(), bytes as usize) };
    // No hurry: what its frames are called is in the buffer before it.
    EVENTS.output::<[u8]>(record, wake(false)).is_ok()
}
