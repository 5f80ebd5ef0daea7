//! A launch, with an event before it and one behind it.
//!
//! Repeated, it is a look at the thread's own storage, two questions to the driver that it answers from its own memory (which context, whether the
//! stream is captured), two records and a few stores: no lock, no allocation, no system call. Where there is no pair of events, some
//! are made.

use std::cell::Cell;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use ktape_ebpf::inside::scope::LeftOut;
use ktape_ebpf::inside::{FunctionEntry, missing, untimed};

use super::driver::{Capture, Driver, Handle};
use super::interpose::Function;
use super::pool::{Mine, Pair, Recorded};
use super::{contexts, listener, tells};
use crate::cupti::callback::{self, CallbackData, ENTER, EXIT, symbol};
use crate::guest::{self, Guest};
use crate::{announce, calls, clock, files, rings};

/// What the program's threads may launch with; null before it is known, or where the driver is too old.
static DRIVER: AtomicPtr<Driver> = AtomicPtr::new(null_mut());

/// The number of the last launch, where CUPTI gives none.
static LAST: AtomicU32 = AtomicU32::new(0);

/// One more than the key whose destructor gives a thread's pairs back; 0 before there is one.
static KEY: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// The thread's pools, that of the context it launched in last first. Null: none yet. [`NO_POOLS`]: it has them in hand.
    static MINE: Cell<*mut Pools> = const { Cell::new(null_mut()) };
}

type Pools = Vec<Mine>;

/// What stands for a thread's pools while they are used.
const NO_POOLS: *mut Pools = std::ptr::without_provenance_mut(align_of::<Pools>());

/// Before any launch is met.
pub(super) fn prepare(guest: &Guest) {
    super::interpose::prepare(guest);
    if let Some(table) = files::left_out(&guest.directory) {
        LEFT_OUT.store(std::ptr::from_ref(table).cast_mut(), Ordering::Relaxed);
    }
    let mut key = 0;
    // SAFETY: writes the key. The function stays, as the library is never unmapped.
    if unsafe { libc::pthread_key_create(&raw mut key, Some(thread_ends)) } == 0 {
        KEY.store(key + 1, Ordering::Release);
    }
    if let Some(driver) = Driver::get() {
        DRIVER.store(std::ptr::from_ref(driver).cast_mut(), Ordering::Release);
    }
}

/// Kernels whose launches get none; null where all do.
static LEFT_OUT: AtomicPtr<LeftOut> = AtomicPtr::new(null_mut());

#[inline(always)]
fn is_left_out(guest: &Guest, kernel: Handle) -> bool {
    // SAFETY: null or mapped for good.
    unsafe { LEFT_OUT.load(Ordering::Relaxed).as_ref() }.is_some_and(|table| table.has(guest.pid, kernel))
}

/// The driver, if launches are timed.
#[inline(always)]
pub(super) fn driver() -> Option<&'static Driver> {
    // SAFETY: null or never freed.
    unsafe { DRIVER.load(Ordering::Acquire).as_ref() }
}

/// A launch of one kernel into a stream; `call` is the driver's function with these arguments.
#[inline(always)]
pub(super) fn launch(
    function: &Function,
    arguments: *const c_void,
    (stream, kernel): (Handle, Handle),
    call: impl FnOnce() -> u32,
) -> u32 {
    let Some(guest) = listener() else { return call() };
    let began_ns = clock::monotonic_ns();
    let started = if is_left_out(guest, kernel) { Started::OutOfScope } else { begin(stream, function.per_thread) };
    let launched_ns = clock::monotonic_ns();
    let is_told = tells(guest) && !matches!(started, Started::Captured);
    let number = if is_told || guest.announce { next_number() } else { callback::expect() };
    let result = if is_told { told(guest, function, arguments, number, call) } else { call() };
    let returned_ns = clock::monotonic_ns();
    let number = if number == 0 { callback::met() } else { number };
    let Started::Timed(pair, context) = started else {
        if guest.announce && result == 0 && !matches!(started, Started::Captured) {
            announce::correlated(number);
        }
        count(guest, &started, result);
        return result;
    };
    if result == 0 && guest.announce {
        // The probe at the driver's function has seen the launch, and no call has come since.
        announce::correlated(number);
    }
    let recorded = Recorded { pair, correlation: number, stream, launched_ns };
    end(recorded, result == 0, function.per_thread, context, |ended_ns| {
        (launched_ns - began_ns) + (ended_ns - returned_ns)
    });
    result
}

/// What became of the event before a launch.
enum Started {
    /// It is recorded, in this context.
    Timed(Pair, Handle),
    /// Nothing is run.
    Captured,
    /// Nobody asked for it.
    OutOfScope,
    /// None is to be had, for this reason.
    Missing(u32),
}

/// Records the first event.
#[inline(always)]
fn begin(stream: Handle, per_thread: bool) -> Started {
    let Some(driver) = driver() else { return Started::Missing(missing::EVENT_FAILED) };
    match driver.capture(stream, per_thread) {
        Capture::No => {}
        Capture::Yes | Capture::Unknown => return Started::Captured,
    }
    let context = driver.current();
    with_pool(driver, context, |mine| {
        let Some(pair) = mine.take(driver) else { return Started::Missing(missing::NO_EVENT) };
        if driver.record(pair.start, stream, per_thread) {
            return Started::Timed(pair, context);
        }
        mine.put_back(pair);
        Started::Missing(missing::EVENT_FAILED)
    })
    .unwrap_or(Started::Missing(missing::EVENT_FAILED))
}

/// Records the second one, if there was a launch, and hands both on. `cost` says how long all of it took.
#[inline(always)]
fn end(recorded: Recorded, has_launched: bool, per_thread: bool, context: Handle, cost: impl FnOnce(u64) -> u64) {
    let Some(driver) = driver() else { return };
    // Without a number nobody could tell whose kernel it is.
    let has_number = recorded.correlation != 0;
    let is_timed = has_launched && has_number && driver.record(recorded.pair.end, recorded.stream, per_thread);
    with_pool(driver, context, |mine| {
        if !is_timed {
            return mine.put_back(recorded.pair);
        }
        mine.pool.recorded.put(recorded);
        mine.pool.took.add(cost(clock::monotonic_ns()));
    });
    if has_launched && !is_timed {
        contexts::count(missing::EVENT_FAILED, 1);
    }
}

/// Uses the thread's pool in a context. `None` where there is none to be had, or a signal's handler has come in between.
#[inline(always)]
fn with_pool<R>(driver: &'static Driver, context: Handle, action: impl FnOnce(&mut Mine) -> R) -> Option<R> {
    let pools = MINE.replace(NO_POOLS);
    if pools == NO_POOLS {
        return None;
    }
    let is_it =
        |mine: &Mine| mine.pool.context.handle == context && !mine.pool.context.has_ended.load(Ordering::Acquire);
    // SAFETY: null or this thread's own, and nobody else has them while `NO_POOLS` stands for them.
    let first = unsafe { pools.as_mut() }.and_then(|pools| pools.first_mut()).filter(|mine| is_it(mine));
    let (pools, result) = match first {
        Some(mine) => (pools, Some(action(mine))),
        None => {
            let pools = bring_forward(driver, pools, context, is_it);
            // SAFETY: as above, or just made.
            let first = unsafe { &mut *pools }.first_mut().filter(|mine| is_it(mine));
            (pools, first.map(action))
        }
    };
    MINE.set(pools);
    result
}

/// Puts the pool of a context first: it is found among the others, or made.
#[cold]
fn bring_forward(
    driver: &'static Driver,
    pools: *mut Pools,
    context: Handle,
    is_it: impl Fn(&Mine) -> bool,
) -> *mut Pools {
    let pools = if pools.is_null() { new_pools() } else { pools };
    // SAFETY: this thread's own, as in `with_pool`.
    let mine = unsafe { &mut *pools };
    // Those whose context is gone went with it.
    mine.retain(|mine| !mine.pool.context.has_ended.load(Ordering::Acquire));
    match mine.iter().position(is_it) {
        Some(at) => mine.swap(0, at),
        None if context == 0 => {}
        // What fails there is no matter of the program's.
        None => {
            if let Ok(Some(new)) = catch_unwind(|| contexts::new_pool(driver, context)) {
                mine.insert(0, new);
            }
        }
    }
    pools
}

fn new_pools() -> *mut Pools {
    let pools = Box::into_raw(Box::<Pools>::default());
    if let Some(key) = KEY.load(Ordering::Acquire).checked_sub(1) {
        // SAFETY: a key that was made, and never deleted.
        unsafe { libc::pthread_setspecific(key, pools.cast()) };
    }
    pools
}

/// Gives the pairs of a thread that ends back. What it launches behind this gets new ones.
extern "C" fn thread_ends(pools: *mut c_void) {
    // A child has its parent's, and they are not its own.
    if guest::is_child() {
        return;
    }
    MINE.set(null_mut());
    // SAFETY: made by `new_pools`, and nobody's from now on.
    let pools = unsafe { Box::from_raw(pools.cast::<Pools>()) };
    let _ = catch_unwind(AssertUnwindSafe(|| pools.into_iter().for_each(contexts::give_back)));
}

/// The next number of a launch: never 0.
fn next_number() -> u32 {
    let number = LAST.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
    if number == 0 { next_number() } else { number }
}

/// A launch that has no events.
#[cold]
fn count(guest: &Guest, started: &Started, result: u32) {
    match started {
        // One that the driver refuses has no kernel.
        _ if result != 0 => {}
        Started::Timed(..) => {}
        Started::Captured => _ = guest.page.untimed[untimed::CAPTURED].fetch_add(1, Ordering::Relaxed),
        Started::OutOfScope => _ = guest.page.untimed[untimed::OUT_OF_SCOPE].fetch_add(1, Ordering::Relaxed),
        Started::Missing(why) => contexts::count(*why, 1),
    }
}

/// A launch of a graph: it is counted.
#[inline(always)]
pub(super) fn graph(function: &Function, arguments: *const c_void, call: impl FnOnce() -> u32) -> u32 {
    let Some(guest) = listener() else { return call() };
    let result = if tells(guest) { told(guest, function, arguments, next_number(), call) } else { call() };
    if result == 0 {
        guest.page.untimed[untimed::GRAPH].fetch_add(1, Ordering::Relaxed);
    }
    result
}

/// A call that only explains launches: it is told where CUPTI does not.
#[inline(always)]
pub(super) fn explain(function: &Function, arguments: *const c_void, call: impl FnOnce() -> u32) -> u32 {
    match listener() {
        Some(guest) if tells(guest) => told(guest, function, arguments, 0, call),
        _ => call(),
    }
}

/// Makes a call and tells it, as CUPTI would.
#[inline(always)]
fn told(
    guest: &'static Guest,
    function: &Function,
    arguments: *const c_void,
    correlation_id: u32,
    call: impl FnOnce() -> u32,
) -> u32 {
    let Some(entry) = function.entry(guest) else { return call() };
    let mut word = 0u64;
    let mut data = CallbackData {
        site: ENTER,
        function_name: std::ptr::null(),
        function_params: arguments,
        function_return_value: std::ptr::null(),
        symbol_name: std::ptr::null(),
        context: std::ptr::null(),
        context_uid: 0,
        correlation_data: &raw mut word,
        correlation_id,
    };
    let tell = |data: &CallbackData, tell: fn(&CallbackData, &FunctionEntry)| {
        let _ = catch_unwind(AssertUnwindSafe(|| {
            let _accounted = rings::account();
            tell(data, entry);
        }));
    };
    tell(&data, calls::entered);
    let result = call();
    (data.site, data.function_return_value) = (EXIT, (&raw const result).cast());
    tell(&data, calls::left);
    result
}

/// A context is about to be destroyed.
pub(super) fn destroy_context(context: Handle, call: impl FnOnce() -> u32) -> u32 {
    if let (Some(_), Some(driver)) = (listener(), driver()) {
        let _ = catch_unwind(|| contexts::end(driver, context));
    }
    call()
}

/// A device's primary context may be about to end.
pub(super) fn end_primary(device: i32, call: impl FnOnce() -> u32) -> u32 {
    match (listener(), driver()) {
        (Some(_), Some(driver)) => contexts::end_primary(driver, device, call),
        _ => call(),
    }
}

/// The entry of a function in the recorder's table.
pub(super) fn entry_of(guest: &Guest, name: &[u8]) -> Option<usize> {
    guest.functions.iter().position(|entry| symbol(entry) == name)
}
