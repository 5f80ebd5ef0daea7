//! What the library takes of its process, measured where it is taken: on the program's threads, on the library's own, and on CUPTI's.
//!
//! What it takes of a thread of the program's is asked of one call in 64 or so, by the clock before and after, and stands for the
//! others. Which call that is differs by a random number each time, as calls come in patterns: each launch is an entry and a return.
//! Some calls stand for nobody but themselves: a thread's first, which may make its ring, and those that took so long that the thread
//! must have been interrupted. Each thread writes into a line of its own; the keeper adds up and puts the sums into the process's page.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use ktape_ebpf::inside::{ProcessPage, overhead};

use crate::clock;

/// A call that takes longer has been interrupted, or does what it does once.
const LONG_NS: u64 = 100_000;

/// What two readings of the clock are apart if nothing is between them.
static CLOCK_NS: AtomicU64 = AtomicU64::new(0);

/// What CUPTI says of itself, by [`overhead`].
static OVERHEADS: [AtomicU64; overhead::NAMES.len()] = [const { AtomicU64::new(0) }; overhead::NAMES.len()];

/// One thread's. Only that thread writes it.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Account {
    /// Calls of the program's that came here.
    calls: AtomicU64,
    /// Of these, those that were measured and stand for others.
    samples: AtomicU64,
    sampled_ns: AtomicU64,
    /// What those took that stand for themselves.
    single_ns: AtomicU64,
    /// How many calls the next sample is away.
    distance: AtomicU32,
    seed: AtomicU32,
    /// CPU time of this thread, if it is one by which CUPTI hands buffers over.
    thread_ns: AtomicU64,
}

impl Account {
    /// Counts a call. True if it is to be measured.
    #[inline(always)]
    pub(crate) fn is_turn(&self) -> bool {
        self.calls.store(self.calls.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        match self.distance.load(Ordering::Relaxed).checked_sub(1) {
            Some(less) => {
                self.distance.store(less, Ordering::Relaxed);
                false
            }
            None => {
                self.go_on();
                true
            }
        }
    }

    /// Chooses the next sample: 33 to 96 calls from here.
    #[cold]
    fn go_on(&self) {
        let seed = self.seed.load(Ordering::Relaxed).wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        self.seed.store(seed, Ordering::Relaxed);
        self.distance.store(32 + (seed >> 26), Ordering::Relaxed);
    }

    /// A call was measured, from here until now.
    pub(crate) fn sampled(&self, began_ns: u64) {
        let took_ns = took_ns(began_ns);
        if took_ns > LONG_NS {
            return add(&self.single_ns, took_ns);
        }
        add(&self.samples, 1);
        add(&self.sampled_ns, took_ns);
    }

    /// The thread's first call was measured.
    pub(crate) fn first(&self, began_ns: u64) {
        add(&self.calls, 1);
        add(&self.single_ns, took_ns(began_ns));
    }

    /// CUPTI has handed a buffer over on this thread.
    pub(crate) fn is_cuptis(&self) {
        self.thread_ns.store(clock::thread_cpu_ns(), Ordering::Relaxed);
    }
}

/// By the thread that has the word to itself.
fn add(word: &AtomicU64, by: u64) {
    word.store(word.load(Ordering::Relaxed) + by, Ordering::Relaxed);
}

fn took_ns(began_ns: u64) -> u64 {
    (clock::monotonic_ns() - began_ns).saturating_sub(CLOCK_NS.load(Ordering::Relaxed))
}

/// Measures the clock. Before anything else is.
pub(crate) fn prepare() {
    let between = |_| {
        let before = clock::monotonic_ns();
        clock::monotonic_ns() - before
    };
    CLOCK_NS.store((0..100).map(between).min().unwrap_or(0), Ordering::Relaxed);
}

/// CUPTI says that it took so long for something.
pub(crate) fn cupti_took(kind: u32, ns: u64) {
    OVERHEADS[overhead::index(kind)].fetch_add(ns, Ordering::Relaxed);
}

/// The sum of threads' accounts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sum {
    calls: u64,
    samples: u64,
    sampled_ns: u64,
    single_ns: u64,
    cupti_ns: u64,
}

impl Sum {
    /// Of no thread.
    pub(crate) const NOTHING: Sum = Sum { calls: 0, samples: 0, sampled_ns: 0, single_ns: 0, cupti_ns: 0 };

    /// Adds a thread's.
    pub(crate) fn add(&mut self, account: &Account) {
        let calls = account.calls.load(Ordering::Relaxed);
        self.calls += calls;
        self.samples += account.samples.load(Ordering::Relaxed);
        self.sampled_ns += account.sampled_ns.load(Ordering::Relaxed);
        self.single_ns += account.single_ns.load(Ordering::Relaxed);
        // A thread that makes calls is the program's, though CUPTI may hand a buffer over on it.
        if calls == 0 {
            self.cupti_ns += account.thread_ns.load(Ordering::Relaxed);
        }
    }

    fn own_ns(&self) -> u64 {
        let estimate = u128::from(self.sampled_ns) * u128::from(self.calls) / u128::from(self.samples.max(1));
        estimate as u64 + self.single_ns
    }

    /// Puts it into the process's page, with what the calling thread has taken, which is the keeper, and the whole process.
    pub(crate) fn publish(&self, page: &ProcessPage, process_began_ns: u64) {
        page.own_calls.store(self.calls, Ordering::Relaxed);
        page.own_ns.store(self.own_ns(), Ordering::Relaxed);
        page.cupti_threads_ns.store(self.cupti_ns, Ordering::Relaxed);
        page.keeper_ns.store(clock::thread_cpu_ns(), Ordering::Relaxed);
        page.process_ns.store(clock::process_cpu_ns().saturating_sub(process_began_ns), Ordering::Relaxed);
        for (sum, own) in page.overhead_ns.iter().zip(&OVERHEADS) {
            sum.store(own.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_call_in_sixty_four_is_measured_and_no_pattern_is_followed() {
        let account = Account::default();
        let measured: Vec<u64> = (0..640_000).filter(|_| account.is_turn()).collect();
        assert!((9_500..10_500).contains(&measured.len()), "{}", measured.len());
        let odd = measured.iter().filter(|call| *call % 2 == 1).count() as f64 / measured.len() as f64;
        assert!((0.47..0.53).contains(&odd), "{odd}");
        assert_eq!(account.calls.load(Ordering::Relaxed), 640_000);
    }

    /// Something that takes about as long each time, whoever else has the processor.
    fn work(rounds: u64) {
        (0..rounds).for_each(|round| _ = std::hint::black_box(round));
    }

    /// Each second call takes four times as long as the others: which are measured must not go by such a pattern.
    #[test]
    fn what_a_sample_says_is_right_within_a_quarter() {
        prepare();
        let account = Account::default();
        let began_ns = clock::thread_cpu_ns();
        for call in 0..100_000 {
            let rounds = if call % 2 == 0 { 1000 } else { 4000 };
            if account.is_turn() {
                let began_ns = clock::monotonic_ns();
                work(rounds);
                account.sampled(began_ns);
            } else {
                work(rounds);
            }
        }
        let took_ns = clock::thread_cpu_ns() - began_ns;
        let mut sum = Sum::NOTHING;
        sum.add(&account);
        let ratio = (sum.own_ns() - account.single_ns.load(Ordering::Relaxed)) as f64 / took_ns as f64;
        assert!((0.8..1.25).contains(&ratio), "{ratio}");
    }

    #[test]
    fn samples_stand_for_the_others_and_long_ones_for_themselves() {
        let account = Account::default();
        let now_ns = clock::monotonic_ns();
        account.first(now_ns - 5_000_000_000);
        account.calls.store(1000, Ordering::Relaxed);
        for _ in 0..10 {
            account.sampled(clock::monotonic_ns() - 50_000);
        }
        account.sampled(now_ns - 3_000_000_000);
        let mut sum = Sum::NOTHING;
        sum.add(&account);
        // The thousand as the ten were, and the two.
        let short_ns = sum.own_ns() - 8_000_000_000;
        assert!((50_000_000..150_000_000).contains(&short_ns), "{short_ns}");
    }

    #[test]
    fn only_a_thread_that_makes_no_calls_is_cuptis() {
        let [cuptis, programs] = [Account::default(), Account::default()];
        cuptis.is_cuptis();
        programs.is_cuptis();
        programs.first(clock::monotonic_ns());
        let mut sum = Sum::NOTHING;
        [&cuptis, &programs].into_iter().for_each(|account| sum.add(account));
        assert_eq!(sum.cupti_ns, cuptis.thread_ns.load(Ordering::Relaxed));
        assert!(sum.cupti_ns > 0);
    }

    #[test]
    fn overheads_have_places_by_their_numbers_and_unknown_ones_share_one() {
        for (kind, name) in [
            (1, "driver compiler"),
            (1 << 16, "buffer flush"),
            (2 << 16, "instrumentation"),
            (6 << 16, "command buffer full"),
            (8 << 16, "UVM activity init"),
            (9 << 16, "other"),
            (2, "other"),
            (0, "other"),
            (u32::MAX, "other"),
        ] {
            assert_eq!(overhead::NAMES[overhead::index(kind)], name, "{kind}");
        }
    }
}
