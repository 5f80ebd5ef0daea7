//! The contexts that were launched in, and reading their events.
//!
//! One lock is held for all of it: by the library's thread while it reads, by a thread of the program's that launches in a context for the first time,
//! and by one that ends a context. That reads what is over by then, and nobody touches any of the context's events behind it.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ktape_ebpf::inside::{Clocks, Missing, ProcessPage, Ran, kind, missing};
use ktape_ebpf::wire::{Plain as _, tally};
use rustc_hash::FxHashSet;

use super::driver::{Driver, Handle, NOT_READY, SUCCESS};
use super::pool::{self, Mine, Pair, Pool, Recorded, Took};
use super::reference::References;
use crate::guest::Guest;
use crate::{clock, rings};

/// A context, as whoever launches in it knows it.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) handle: Handle,
    device: u32,
    /// It is gone, and its handle may be another's.
    pub(super) has_ended: AtomicBool,
    /// Pairs of events that were made in it.
    pub(super) pairs: AtomicU32,
}

/// And as whoever reads its events does.
#[derive(Debug)]
struct Known {
    context: Arc<Context>,
    references: References,
    pools: Vec<Reading>,
    /// Pairs of threads that have ended.
    spare: Vec<Pair>,
}

/// A pool that is read.
#[derive(Debug)]
struct Reading {
    pool: Arc<Pool>,
    /// Recorded, and not over when they were asked for last.
    pending: Vec<Recorded>,
}

static CONTEXTS: Mutex<Vec<Known>> = Mutex::new(Vec::new());

/// What is missing and was not told yet, by [`missing`].
static MISSING: [AtomicU64; missing::COUNT] = [const { AtomicU64::new(0) }; missing::COUNT];
/// Since when.
static MISSING_SINCE_NS: AtomicU64 = AtomicU64::new(0);
/// What launches took of pools that are gone.
static GONE: Took =
    Took { launches: AtomicU64::new(0), ns: AtomicU64::new(0), long: AtomicU64::new(0), long_ns: AtomicU64::new(0) };

fn contexts() -> MutexGuard<'static, Vec<Known>> {
    CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts a kernel whose time is missing.
pub(super) fn count(why: u32, by: u64) {
    if by != 0 {
        // Since the first of them: a time before the count, so that nothing is told to be missing later than it is.
        let _ = MISSING_SINCE_NS.compare_exchange(0, clock::monotonic_ns(), Ordering::Relaxed, Ordering::Relaxed);
        MISSING[why as usize].fetch_add(by, Ordering::Relaxed);
    }
}

/// A pool for this thread in its current context. `None` where the driver refuses.
pub(super) fn new_pool(driver: &'static Driver, handle: Handle) -> Option<Mine> {
    let mut contexts = contexts();
    let known = match contexts.iter().position(|known| known.context.handle == handle) {
        Some(at) => &mut contexts[at],
        None => {
            let (device, references) = driver.aside(|| Some((driver.device()?, References::begin(driver)?)))?;
            let (has_ended, pairs) = (AtomicBool::new(false), AtomicU32::new(0));
            let context = Arc::new(Context { handle, device, has_ended, pairs });
            contexts.push(Known { context, references, pools: Vec::new(), spare: Vec::new() });
            contexts.last_mut()?
        }
    };
    let pool = Pool::new(known.context.clone());
    known.pools.push(Reading { pool: pool.clone(), pending: Vec::new() });
    let left = known.spare.len().saturating_sub(pool::MOST_PAIRS as usize);
    Some(Mine::new(pool, known.spare.split_off(left)))
}

/// A thread has ended.
pub(super) fn give_back(mine: Mine) {
    let mut contexts = contexts();
    let pool = mine.pool.clone();
    if let Some(known) = contexts.iter_mut().find(|known| Arc::ptr_eq(&known.context, &pool.context)) {
        known.spare.extend(mine.into_spare());
    }
    pool.has_ended.store(true, Ordering::Release);
}

/// A context is about to end: what is over is told, and the rest counted.
pub(super) fn end(driver: &'static Driver, handle: Handle) {
    let mut contexts = contexts();
    contexts.retain_mut(|known| {
        let is_meant = known.context.handle == handle;
        if is_meant {
            let _ = driver.within(handle, || known.read(driver));
            known.forget();
        }
        !is_meant
    });
}

/// As [`end`], of a device's primary context, which `call` may end. Other contexts of that device are forgotten with it, and met anew.
pub(super) fn end_primary(driver: &'static Driver, device: i32, call: impl FnOnce() -> u32) -> u32 {
    let mut contexts = contexts();
    let is_meant = |known: &Known| i64::from(known.context.device) == i64::from(device);
    for known in contexts.iter_mut().filter(|known| is_meant(known)) {
        let _ = driver.within(known.context.handle, || known.read(driver));
    }
    // Nobody else touches their events meanwhile.
    let result = call();
    if !driver.aside(|| driver.has_primary(device)) {
        contexts.retain_mut(|known| {
            let is_meant = is_meant(known);
            if is_meant {
                known.forget();
            }
            !is_meant
        });
    }
    result
}

/// Tells which kernels are over since the last time; in the last round, how many never will be known.
pub(crate) fn tell(guest: &Guest, is_round: bool, is_last: bool) {
    let Some(driver) = super::launch::driver() else { return };
    let mut contexts = contexts();
    for known in contexts.iter_mut() {
        let read = driver.within(known.context.handle, || {
            known.references.tend(driver);
            known.read(driver);
        });
        if read.is_none() || is_last {
            known.give_up();
        }
        if is_round {
            known.tell_clocks();
        }
        known.forget_ended();
    }
    tell_cost(guest.page, &contexts);
    drop(contexts);
    if is_round {
        tell_missing();
    }
}

impl Known {
    /// Tells what is over. In the context.
    fn read(&mut self, driver: &Driver) {
        if self.references.is_empty() {
            return;
        }
        let mut waiting = FxHashSet::default();
        for Reading { pool, pending } in &mut self.pools {
            // Of a thread that has ended nothing comes behind this.
            let has_ended = pool.has_ended.load(Ordering::Acquire);
            pending.extend(std::iter::from_fn(|| pool.recorded.take()));
            waiting.clear();
            pending.retain(|recorded| {
                // What is behind it in the stream is not over either.
                if waiting.contains(&recorded.stream) {
                    return true;
                }
                match driver.query(recorded.pair.end) {
                    NOT_READY => {
                        waiting.insert(recorded.stream);
                        return true;
                    }
                    SUCCESS => match times(driver, &self.references, recorded) {
                        Some((start_ns, end_ns)) => tell_kernel(recorded.correlation, start_ns, end_ns),
                        None => count(missing::EVENT_FAILED, 1),
                    },
                    _ => count(missing::EVENT_FAILED, 1),
                }
                if has_ended {
                    self.spare.push(recorded.pair)
                } else {
                    pool.free.put(recorded.pair)
                }
                false
            });
        }
    }

    /// Counts what is not over: nobody will ask again.
    fn give_up(&mut self) {
        for Reading { pool, pending } in &mut self.pools {
            pending.extend(std::iter::from_fn(|| pool.recorded.take()));
            count(missing::CUT_OFF, pending.len() as u64);
            pending.clear();
        }
    }

    /// Its events are gone.
    fn forget(&mut self) {
        self.give_up();
        self.context.has_ended.store(true, Ordering::Release);
        self.pools.drain(..).for_each(|reading| count_gone(&reading.pool));
        pool::forget(self.context.pairs.load(Ordering::Relaxed));
    }

    /// Takes over the pairs of threads that have ended, once all that they had recorded is over.
    fn forget_ended(&mut self) {
        self.pools.retain(|Reading { pool, pending }| {
            let is_over = pool.has_ended.load(Ordering::Acquire) && pending.is_empty() && pool.recorded.is_empty();
            if is_over {
                self.spare.extend(std::iter::from_fn(|| pool.free.take()));
                count_gone(pool);
            }
            !is_over
        });
    }

    fn tell_clocks(&self) {
        let Some(clocks) = self.references.clocks() else { return };
        rings::with_writer(0, 0, |writer| {
            let record = Clocks {
                kind: kind::CLOCKS,
                device: self.context.device + 1,
                pid_tid: writer.pid_tid(),
                monotonic_ns: clocks.monotonic_ns,
                other_ns: clocks.device_ns,
                uncertainty_ns: clocks.uncertainty_ns,
            };
            writer.put(record.as_bytes(), &[])
        });
    }
}

/// When a kernel ran, at the widest.
fn times(driver: &Driver, references: &References, recorded: &Recorded) -> Option<(u64, u64)> {
    let start_ns = references.time_ns(driver, recorded.pair.start, recorded.launched_ns)?;
    let duration_ns = driver.elapsed_ns(recorded.pair.start, recorded.pair.end)?;
    Some((start_ns, start_ns.checked_add_signed(duration_ns.max(0))?))
}

fn tell_kernel(correlation: u32, start_ns: u64, end_ns: u64) {
    let ran = Ran { kind: kind::KERNEL_TIMED, correlation, start_ns, end_ns, ..Ran::default() };
    rings::with_ring(tally::KERNEL, ran.counted_ns(), |ring| {
        let writer = &mut ring.writer;
        writer.seen(tally::KERNEL, ran.counted_ns());
        if !writer.put(Ran { pid_tid: writer.pid_tid(), ..ran }.as_bytes(), &[]) {
            writer.lost(tally::KERNEL, ran.counted_ns());
        }
    });
}

fn tell_missing() {
    let since_ns = MISSING_SINCE_NS.swap(0, Ordering::Relaxed);
    let until_ns = clock::monotonic_ns();
    for (why, count) in MISSING.iter().enumerate() {
        let missed = count.swap(0, Ordering::Relaxed);
        let put = missed == 0
            || rings::with_writer(0, 0, |writer| {
                let (why, pid_tid) = (why as u32, writer.pid_tid());
                let record = Missing { kind: kind::MISSING, why, pid_tid, since_ns, until_ns, count: missed };
                writer.put(record.as_bytes(), &[])
            }) == Some(true);
        if !put {
            // The next time, then, with all that is missing since.
            count.fetch_add(missed, Ordering::Relaxed);
            MISSING_SINCE_NS.store(since_ns, Ordering::Relaxed);
        }
    }
}

fn count_gone(pool: &Pool) {
    for (gone, word) in GONE.words().into_iter().zip(pool.took.words()) {
        gone.fetch_add(word.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

fn tell_cost(page: &ProcessPage, contexts: &[Known]) {
    let mut sums = GONE.words().map(|word| word.load(Ordering::Relaxed));
    for reading in contexts.iter().flat_map(|known| &known.pools) {
        sums.iter_mut().zip(reading.pool.took.words()).for_each(|(sum, word)| *sum += word.load(Ordering::Relaxed));
    }
    let words = [&page.timed, &page.timed_ns, &page.timed_long, &page.timed_long_ns];
    words.into_iter().zip(sums).for_each(|(word, sum)| word.store(sum, Ordering::Relaxed));
}
