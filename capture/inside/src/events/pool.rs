//! A thread's pairs of events in one context, and the two ways between it and the library's own thread.
//!
//! The thread takes a pair that is free, and hands it on when it is recorded; the library's thread gives it back when it is read. Each way has
//! one writer and one reader, so that neither waits. Pairs are made by the batch, where none is free: first few, then as many again,
//! up to a bound. A thread that has as many under way has its next launches counted.

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use super::contexts::Context;
use super::driver::{Driver, Handle};

/// Pairs of a thread in a context, at most.
pub(super) const MOST_PAIRS: u32 = 4096;
/// Pairs of a process.
const MOST_OF_ALL: u32 = 1 << 16;
/// How many are made at first.
const FIRST_BATCH: u32 = 64;
/// And at once at most, as the launch that they are made at waits for all of them.
const MOST_AT_ONCE: u32 = 512;

/// A launch that takes longer makes events, or its thread has been interrupted.
const LONG_NS: u64 = 100_000;

/// How many the process has.
static ALL: AtomicU32 = AtomicU32::new(0);

/// Two events.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pair {
    pub(super) start: Handle,
    pub(super) end: Handle,
}

/// A launch with events around it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Recorded {
    pub(super) pair: Pair,
    /// The number of the launch: see [`ktape_ebpf::inside::Ran`].
    pub(super) correlation: u32,
    /// What an event that is not over says of others: one stream's are over in their order. As the program names it.
    pub(super) stream: Handle,
    /// When it was launched.
    pub(super) launched_ns: u64,
}

/// A row of values from one thread to another.
#[derive(Debug)]
pub(super) struct Queue<T> {
    places: Box<[UnsafeCell<T>]>,
    /// How many were put in.
    put: AtomicU32,
    /// How many were taken out.
    taken: AtomicU32,
}

// SAFETY: a place is the writer's until it is put in, and the reader's until it is taken out.
unsafe impl<T: Send> Sync for Queue<T> {}

impl<T: Copy + Default> Queue<T> {
    fn new() -> Queue<T> {
        let places = (0..MOST_PAIRS).map(|_| UnsafeCell::new(T::default())).collect();
        Queue { places, put: AtomicU32::new(0), taken: AtomicU32::new(0) }
    }

    /// Puts one in. There is room, as there are no more pairs than places.
    #[inline(always)]
    pub(super) fn put(&self, value: T) {
        let put = self.put.load(Ordering::Relaxed);
        debug_assert!(put.wrapping_sub(self.taken.load(Ordering::Relaxed)) < MOST_PAIRS);
        // SAFETY: this thread is the only writer, and the place is free.
        unsafe { self.places[(put % MOST_PAIRS) as usize].get().write(value) };
        self.put.store(put.wrapping_add(1), Ordering::Release);
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.taken.load(Ordering::Relaxed) == self.put.load(Ordering::Acquire)
    }

    /// Takes the first one out.
    #[inline(always)]
    pub(super) fn take(&self) -> Option<T> {
        let taken = self.taken.load(Ordering::Relaxed);
        if taken == self.put.load(Ordering::Acquire) {
            return None;
        }
        // SAFETY: this thread is the only reader, and the place has been written.
        let value = unsafe { self.places[(taken % MOST_PAIRS) as usize].get().read() };
        self.taken.store(taken.wrapping_add(1), Ordering::Release);
        Some(value)
    }
}

/// A thread's pairs in one context, as far as both sides have to do with them.
#[derive(Debug)]
pub(super) struct Pool {
    pub(super) context: Arc<Context>,
    /// From the library's thread.
    pub(super) free: Queue<Pair>,
    /// To it.
    pub(super) recorded: Queue<Recorded>,
    /// The thread has ended.
    pub(super) has_ended: AtomicBool,
    /// What the thread's launches took. It alone writes it.
    pub(super) took: Took,
}

/// What launches took: how many, and how long.
#[derive(Debug, Default)]
pub(super) struct Took {
    pub(super) launches: AtomicU64,
    pub(super) ns: AtomicU64,
    /// Of them, those that took long.
    pub(super) long: AtomicU64,
    pub(super) long_ns: AtomicU64,
}

impl Took {
    /// Adds a launch. By the one thread that does.
    #[inline(always)]
    pub(super) fn add(&self, ns: u64) {
        let add = |word: &AtomicU64, by: u64| word.store(word.load(Ordering::Relaxed) + by, Ordering::Relaxed);
        add(&self.launches, 1);
        if ns < LONG_NS {
            add(&self.ns, ns);
        } else {
            add(&self.long, 1);
            add(&self.long_ns, ns);
        }
    }

    /// All words, in one order.
    pub(super) fn words(&self) -> [&AtomicU64; 4] {
        [&self.launches, &self.ns, &self.long, &self.long_ns]
    }
}

impl Pool {
    /// One without any pairs.
    pub(super) fn new(context: Arc<Context>) -> Arc<Pool> {
        Arc::new(Pool {
            context,
            free: Queue::new(),
            recorded: Queue::new(),
            has_ended: AtomicBool::new(false),
            took: Took::default(),
        })
    }
}

/// A pool in the hands of its thread.
#[derive(Debug)]
pub(super) struct Mine {
    pub(super) pool: Arc<Pool>,
    /// Made, and not used since.
    spare: Vec<Pair>,
    /// How many there are.
    pairs: u32,
}

impl Mine {
    /// With these pairs.
    pub(super) fn new(pool: Arc<Pool>, pairs: Vec<Pair>) -> Mine {
        Mine { pool, pairs: pairs.len() as u32, spare: pairs }
    }

    /// A pair that is free, made if there is none.
    #[inline(always)]
    pub(super) fn take(&mut self, driver: &Driver) -> Option<Pair> {
        match self.spare.pop().or_else(|| self.pool.free.take()) {
            None => self.make(driver),
            some => some,
        }
    }

    /// Takes one back that was not used. There is room: it was one of them.
    #[inline(always)]
    pub(super) fn put_back(&mut self, pair: Pair) {
        self.spare.push(pair);
    }

    /// Those that were not used.
    pub(super) fn into_spare(self) -> Vec<Pair> {
        self.spare
    }

    #[cold]
    fn make(&mut self, driver: &Driver) -> Option<Pair> {
        let wanted = self.pairs.clamp(FIRST_BATCH, MOST_AT_ONCE).min(MOST_PAIRS - self.pairs);
        if ALL.fetch_add(wanted, Ordering::Relaxed) > MOST_OF_ALL {
            ALL.fetch_sub(wanted, Ordering::Relaxed);
            return None;
        }
        self.spare.reserve(wanted as usize + 1);
        driver.aside(|| {
            let pair = || Some(Pair { start: driver.new_event()?, end: driver.new_event()? });
            self.spare.extend(std::iter::repeat_with(pair).take(wanted as usize).map_while(|pair| pair));
        });
        let made = self.spare.len() as u32;
        ALL.fetch_sub(wanted - made, Ordering::Relaxed);
        self.pool.context.pairs.fetch_add(made, Ordering::Relaxed);
        self.pairs += made;
        self.spare.pop()
    }
}

/// Pairs that went with their context.
pub(super) fn forget(pairs: u32) {
    ALL.fetch_sub(pairs, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launches_that_took_long_are_counted_apart() {
        let took = Took::default();
        [2_000, 3_000, 5_000_000].into_iter().for_each(|ns| took.add(ns));
        assert_eq!(took.words().map(|word| word.load(Ordering::Relaxed)), [3, 5_000, 1, 5_000_000]);
    }

    #[test]
    fn what_is_put_in_comes_out_in_its_order_on_another_thread() {
        let queue = Queue::<u32>::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for value in 0..100_000 {
                    while value - queue.taken.load(Ordering::Acquire) >= MOST_PAIRS {
                        std::hint::spin_loop();
                    }
                    queue.put(value);
                }
            });
            for expected in 0..100_000 {
                let value = loop {
                    match queue.take() {
                        Some(value) => break value,
                        None => std::hint::spin_loop(),
                    }
                };
                assert_eq!(value, expected);
            }
        });
        assert_eq!(queue.take(), None);
    }
}
