//! Who called: the stack of the calling thread, as a hash.
//!
//! That is its Python frames, the asyncio task they run in, and where it is asked for the native frames below. A thread that runs
//! no Python has its native frames, under the Python frames of one that has started it and waits.
//!
//! The walk is that of `python.rs`, driven by `bpf_loop`. Its state lies in a map's value: on the program's stack the verifier
//! would follow its counter through every iteration and give up. A stack that was not seen before is sent once (`bodies.rs`,
//! `sent.rs`), before the call that has it: so user space can name its frames even if the process is gone by then.

use core::ffi::c_void;
use core::intrinsics::{AtomicOrdering, atomic_cxchg};
use core::mem::size_of;

use aya_ebpf::bindings::{BPF_F_USER_STACK, task_struct};
use aya_ebpf::helpers::bpf_probe_read_kernel;
use aya_ebpf::helpers::generated::{
    bpf_get_current_task, bpf_get_prandom_u32, bpf_get_stack, bpf_loop, bpf_probe_read_user,
};
use ktape_ebpf::python::{
    self, MAX_FRAMES, MAX_SEARCH, MAX_SEARCH_IN_INTERRUPT, MAX_STEPS, Memory, RawFrame, Step, TASK_NAME_BYTES,
};
use ktape_ebpf::wire::{
    Counters, Fidelity, MAX_NATIVE_FRAMES, STACK_LEFT_OUT, STACK_UNREADABLE, Target, Walked, kind, relation,
};

use crate::bodies::{send_body, send_code, send_native};
use crate::maps::{
    FIDELITY, INTERPRETERS, SPACES, SPACES_A_PROCESSOR, STARTERS, STATES, SentKey, Space, Starter, TASK_THREAD_POINTER,
    count, send, setting,
};
use crate::sent::{epoch, generation, mix, remember, rotation, was_sent};

/// The memory of the process that the program runs in.
pub(crate) struct User;

impl Memory for User {
    #[inline(always)]
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        // SAFETY: the destination is as long as is said; the helper checks the source.
        unsafe { bpf_probe_read_user(into.as_mut_ptr().cast(), into.len() as u32, address as *const c_void) == 0 }
    }
}

/// Where a thread is seen, with the program's context, which the kernel's own walk of native frames wants.
#[derive(Clone, Copy)]
pub(crate) enum Seen {
    /// At a call, and the stack pointer there.
    Calling(*mut c_void, u64),
    /// Anywhere.
    Running(*mut c_void),
}

/// The hash of this thread's stack; 0 for none, [`STACK_UNREADABLE`] and [`STACK_LEFT_OUT`] where it is not known.
#[inline(always)]
pub(crate) fn record(seen: Seen, target: *mut Target, pid_tid: u64, counters: *mut Counters) -> u64 {
    let walked = INTERPRETERS.get_ptr((pid_tid >> 32) as u32);
    // SAFETY: maps' values.
    let walked = walked.filter(|walked| unsafe { (**walked).generation == (*target).generation });
    // SAFETY: a map's value.
    if walked.is_none() && unsafe { (*target).native == 0 } {
        return 0;
    }
    let fidelity = FIDELITY.get(0).map_or(Fidelity::default(), |fidelity| *fidelity);
    // SAFETY: a helper without arguments.
    if matches!(seen, Seen::Calling(..)) && unsafe { bpf_get_prandom_u32() } & fidelity.stacks_mask != 0 {
        return STACK_LEFT_OUT;
    }
    let Some(index) = take_space(target, walked, fidelity, pid_tid) else {
        // SAFETY: a map's value.
        count(unsafe { &raw mut (*counters).without_stack });
        return STACK_UNREADABLE;
    };
    let hash = walk(seen, target, index).unwrap_or_else(|| {
        // SAFETY: a map's value.
        count(unsafe { &raw mut (*counters).without_stack });
        STACK_UNREADABLE
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
fn take_space(target: *const Target, walked: Option<*const Walked>, fidelity: Fidelity, pid_tid: u64) -> Option<u32> {
    let mut index = 0;
    while index < SPACES_A_PROCESSOR {
        let space = SPACES.get_ptr_mut(index)?;
        // SAFETY: a map's value, 8 bytes and aligned.
        let (_, taken) = unsafe {
            let number = u64::from(index) + 1;
            atomic_cxchg::<u64, { AtomicOrdering::Relaxed }, { AtomicOrdering::Relaxed }>(
                &raw mut (*space).taken,
                0,
                number,
            )
        };
        if taken {
            // SAFETY: maps' values; the space is this program's until it is given back.
            unsafe {
                match walked {
                    Some(walked) => {
                        copy_words(&raw mut (*space).interpreter, &raw const (*walked).interpreter);
                    }
                    None => (*space).interpreter.runtime = 0,
                }
                (*space).rotation = rotation();
                (*space).generation = generation((*target).generation, (*space).rotation);
                (*space).wants_native = if fidelity.without_native == 0 { (*target).native } else { 0 };
                (*space).walk.most_frames = fidelity.most_frames;
                // A rotation makes all stacks new, too.
                (*space).epoch = epoch((pid_tid >> 32) as u32).wrapping_add((*space).rotation);
                (*space).pid_tid = pid_tid;
                (*space).bodies_lost = 0;
                // Read where it was written: of a number that it knows the verifier goes through all that follows again for
                // each space there is.
                return Some((&raw const (*space).taken).read_volatile() as u32 - 1);
            }
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

/// The space that `walk` works in.
#[inline(always)]
pub(crate) fn space_of(context: *mut c_void) -> Option<&'static mut Space> {
    // SAFETY: `walk` gives the number of the space that it took.
    space(unsafe { *context.cast::<u32>() })
}

/// The hash of the stack of a work space's thread. `None` where it could not be read at all.
#[inline(always)]
fn walk(seen: Seen, target: *mut Target, index: u32) -> Option<u64> {
    // The helper takes only pointers to the program's own stack, so the callbacks are told which space, not where it is.
    let mut of_loops = index;
    let of_loops = (&raw mut of_loops).cast::<c_void>();
    begin(seen, target, index, of_loops)?;
    if space(index)?.walk.has_frames() {
        // SAFETY: the callback is a function of the type that the helper calls, and the context outlives it.
        unsafe { bpf_loop(MAX_STEPS / STEPS_A_TURN, steps as *mut c_void, of_loops, 0) };
        still_awaiting(index)?;
        add_task(space(index)?);
    }
    let walked = space(index)?;
    if walked.wants_native != 0 {
        add_native(seen, walked);
    }
    if walked.walk.count == 0 && walked.native_body.depth == 0 {
        return Some(0);
    }
    // A stack that was cut is another than the same one whole, and so is that of a thread that another waits for. Even: see
    // `SentKey`.
    let kind = u64::from(walked.walk.end) | u64::from(walked.relation) << 8;
    let hash = mix(walked.hash, kind) & !1 | 2;
    let key = SentKey { what: hash, generation: walked.generation };
    if was_sent(&key) {
        return Some(hash);
    }
    walked.hash = hash;
    // SAFETY: as above.
    unsafe { bpf_loop(MAX_FRAMES as u32, send_code as *mut c_void, of_loops, 0) };
    let walked = space(index)?;
    if send_native(walked) && send_body(walked) {
        remember(&key);
    } else {
        walked.bodies_lost = 1;
    }
    Some(hash)
}

/// Finds the innermost frame, and begins the walk there: the calling thread's, or where that runs no Python the one's that
/// waits for it.
#[inline(always)]
fn begin(seen: Seen, target: *mut Target, index: u32, of_loops: *mut c_void) -> Option<()> {
    space(index)?.thread_pointer = thread_pointer()?;
    let state = if space(index)?.interpreter.runtime == 0 { 0 } else { own_state(seen, index, of_loops)? };
    let space = space(index)?;
    let frame = if state == 0 { 0 } else { python::first_frame(&User, &space.interpreter.layout, state)? };
    space.hash = mix(HASH_SEED, space.epoch);
    space.relation = relation::SAME;
    space.native_body.depth = 0;
    (space.task_frame, space.task.hash) = (0, 0);
    space.walk.begin(frame);
    if frame != 0 {
        // SAFETY: a map's value. Written only if it changes: threads on other processors read it.
        unsafe {
            if matches!(seen, Seen::Calling(..)) && (*target).last_state != state {
                (*target).last_state = state;
                (*target).last_tid = space.pid_tid & 0xffff_ffff;
            }
        }
        return Some(());
    }
    space.wants_native = 1;
    if space.interpreter.runtime == 0 || await_starter(space, state) {
        return Some(());
    }
    // SAFETY: a map's value.
    let last = unsafe { (*target).last_state };
    if last != 0 && last != state {
        await_thread(space, last, relation::LAST_CALLER);
    }
    Some(())
}

const HASH_SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// How many threads up, each having started the one before, a thread of Python's is looked for.
const STARTERS_UP: u32 = 4;

/// Begins the walk at the thread of Python's that started the calling one, or the one that started that, if it waits. False
/// if it is not known, or has ended.
#[inline(always)]
fn await_starter(space: &mut Space, own_state: u64) -> bool {
    let mut pid_tid = space.pid_tid;
    let mut up = 0;
    while up < STARTERS_UP {
        let Some(starter) = STARTERS.get_ptr(pid_tid) else { return false };
        // SAFETY: a map's value.
        let Starter { thread_pointer, tid } = unsafe { *starter };
        // SAFETY: a map's value.
        let has_ended = |of: *const Starter| unsafe { (*of).tid } == 0;
        pid_tid = pid_tid & !0xffff_ffff | tid;
        if tid == 0 || STARTERS.get_ptr(pid_tid).is_some_and(has_ended) {
            return false;
        }
        if let Some(state) = python::thread_state(&User, &space.interpreter, thread_pointer)
            && state != 0
            && state != own_state
        {
            await_thread(space, state, relation::STARTER);
            return true;
        }
        up += 1;
    }
    false
}

/// Begins the walk at another thread, if that waits. Where its memory is gone it has ended, and waits no more.
#[inline(always)]
fn await_thread(space: &mut Space, state: u64, relation: u32) {
    if python::runs_python(&User, &space.interpreter, state) == Some(false)
        && let Some(frame) = python::first_frame(&User, &space.interpreter.layout, state)
        && frame != 0
    {
        (space.awaiting_state, space.relation) = (state, relation);
        space.walk.begin(frame);
    }
}

/// The calling thread's thread pointer.
#[inline(always)]
pub(crate) fn thread_pointer() -> Option<u64> {
    // SAFETY: a helper without arguments.
    let task = unsafe { bpf_get_current_task() } as *const task_struct;
    let at = task.cast::<u8>().wrapping_add(setting(&TASK_THREAD_POINTER) as usize).cast::<u64>();
    // SAFETY: the helper checks the address.
    unsafe { bpf_probe_read_kernel(at) }.ok()
}

/// The calling thread's state; 0 if it is no thread of Python's.
#[inline(always)]
fn own_state(seen: Seen, index: u32, of_loops: *mut c_void) -> Option<u64> {
    let taken = space(index)?;
    if python::slot_tells(&User, &taken.interpreter)? {
        return python::thread_state(&User, &taken.interpreter, taken.thread_pointer);
    }
    // With several interpreters a thread may run now the one and now the other.
    let is_lasting = taken.interpreter.main == 0;
    if is_lasting && let Some(known) = STATES.get_ptr(taken.pid_tid) {
        // SAFETY: a map's value.
        let state = unsafe { *known };
        if python::is_of_thread(&User, &taken.interpreter.layout, state, taken.thread_pointer) {
            return Some(state);
        }
    }
    taken.search.begin(taken.thread_pointer);
    let steps = if let Seen::Calling(..) = seen { MAX_SEARCH } else { MAX_SEARCH_IN_INTERRUPT };
    // SAFETY: as in `walk`.
    let taken_steps = unsafe { bpf_loop(steps, search as *mut c_void, of_loops, 0) };
    if taken_steps >= i64::from(steps) {
        // The list is longer, or has no end: whether the thread is in it is not known.
        return None;
    }
    let taken = space(index)?;
    if is_lasting && taken.search.found != 0 {
        let _ = STATES.insert(taken.pid_tid, taken.search.found, 0);
    }
    Some(taken.search.found)
}

/// One step of a search. Returns 1 to end the loop.
#[inline(never)]
extern "C" fn search(_: u32, context: *mut c_void) -> i64 {
    let Some(space) = space_of(context) else { return 1 };
    if space.search.advance(&User, &space.interpreter) { 0 } else { 1 }
}

/// A thread that waited may have gone on while its frames were read: then they are nobody's.
#[inline(always)]
fn still_awaiting(index: u32) -> Option<()> {
    let space = space(index)?;
    if space.relation != relation::SAME
        && python::runs_python(&User, &space.interpreter, space.awaiting_state) != Some(false)
    {
        space.relation = relation::SAME;
        space.hash = mix(HASH_SEED, space.epoch);
        space.task_frame = 0;
        space.walk.begin(0);
    }
    Some(())
}

/// Has the kernel walk the native frames, by frame pointers. The calling function is not among what it finds: a probe is hit
/// before a frame is set up, so that where the call returns to lies on top of the stack.
#[inline(always)]
fn add_native(seen: Seen, space: &mut Space) {
    const BYTES: u32 = 8 * (MAX_NATIVE_FRAMES as u32 - 1);
    let (context, found) = match seen {
        Seen::Calling(context, _) => (context, &raw mut space.native[1]),
        Seen::Running(context) => (context, &raw mut space.native[0]),
    };
    // SAFETY: the context is the program's own, the destination as long as is said.
    let bytes = unsafe { bpf_get_stack(context, found.cast(), BYTES, u64::from(BPF_F_USER_STACK)) };
    if bytes < 8 {
        return;
    }
    let mut depth = bytes as u32 / 8;
    if let Seen::Calling(_, stack_pointer) = seen {
        space.native[0] = space.native[1];
        space.native[1] = User.word(stack_pointer).unwrap_or(0);
        depth += 1;
    }
    let mut at = 0;
    while at < MAX_NATIVE_FRAMES {
        if at as u32 >= depth {
            break;
        }
        if !may_be_code(space.native[at], seen, space.thread_pointer) {
            // The same for all that is none, so that garbage which changes doesn't make new stacks.
            space.native[at] = 0;
            depth = at as u32 + 1;
        }
        space.hash = mix(space.hash, space.native[at]);
        at += 1;
    }
    space.native_body.depth = depth;
}

/// Whether an address may be one of code. Of code without frame pointers comes what a register held, often a place on the
/// stack. A thread's ends where the thread pointer points to, in glibc; the first thread's lies above everything else.
#[inline(always)]
fn may_be_code(address: u64, seen: Seen, thread_pointer: u64) -> bool {
    /// The lowest address that can be mapped, and the end of those of user space.
    const USER: core::ops::Range<u64> = 0x1_0000..1 << 47;
    let is_on_stack = match seen {
        Seen::Calling(_, stack_pointer) => {
            address >= stack_pointer && (stack_pointer > thread_pointer || address < thread_pointer)
        }
        Seen::Running(_) => false,
    };
    address >= USER.start && address < USER.end && !is_on_stack
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
    let at = space.walk.next_frame();
    match space.walk.advance(&User, &space.interpreter.layout) {
        Step::Frame(frame) => {
            // An address has 47 bits, an instruction's place 20 or so: put together they fit into one word.
            let RawFrame { code, instruction, kind } = frame;
            let word = code.rotate_left(17) ^ u64::from(instruction as u32) ^ u64::from(kind) << 16;
            space.hash = mix(space.hash, word);
            if code == space.interpreter.task_runner && space.task_frame == 0 {
                (space.task_frame, space.task_at) = (at, space.walk.count);
            }
            0
        }
        Step::Shim => 0,
        Step::End(_) => 1,
    }
}

/// Adds the name of the task that the stack runs, if it has one, and sends it, if it was not sent.
#[inline(always)]
fn add_task(space: &mut Space) {
    space.task.hash = 0;
    if space.task_frame == 0 || !python::task_name(&User, &space.interpreter, space.task_frame, &mut space.task.name) {
        return;
    }
    let mut hash = u64::from(space.task.name.length);
    let mut word = 0;
    while word < TASK_NAME_BYTES / 8 {
        hash = mix(hash, space.task.name.words[word]);
        word += 1;
    }
    // Odd: see `SentKey`.
    space.task.hash = hash | 1;
    space.hash = mix(space.hash, hash | 1);
    let key = SentKey { what: hash | 1, generation: space.generation };
    if was_sent(&key) {
        return;
    }
    (space.task.kind, space.task.rotation) = (kind::TASK_BODY, space.rotation as u32);
    space.task.pid_tid = space.pid_tid;
    if send(&space.task) {
        remember(&key);
    } else {
        space.bodies_lost = 1;
    }
}
