//! Takes probes away. Whoever closes one has to wait until no processor runs its program any more: tens of milliseconds, which
//! all that wait at the same time wait together. So each is closed by a thread of its own.

use std::thread;

/// So many threads at once: where each probe is a file of its own there are hundreds.
const THREADS: usize = 64;

/// Closes all of these, and returns when none of their programs runs any more.
pub fn close_all<T: Send>(probes: Vec<T>) {
    let mut probes = probes.into_iter();
    while probes.len() > 0 {
        thread::scope(|scope| {
            for probe in probes.by_ref().take(THREADS) {
                // Without a thread it is closed here.
                let _ = thread::Builder::new().spawn_scoped(scope, move || drop(probe));
            }
        });
    }
}

/// Closes all of these sometime soon: for probes at code that nobody calls any more.
pub fn close_soon<T: Send + 'static>(probes: Vec<T>) {
    let _ = thread::Builder::new().spawn(move || close_all(probes));
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Barrier};

    use super::*;

    /// Its closing waits for that of others.
    struct Waits(Arc<Barrier>);

    impl Drop for Waits {
        fn drop(&mut self) {
            self.0.wait();
        }
    }

    #[test]
    fn probes_are_closed_at_the_same_time() {
        let all = Arc::new(Barrier::new(8));
        close_all((0..8).map(|_| Waits(all.clone())).collect());
        assert_eq!(Arc::strong_count(&all), 1);
    }

    #[test]
    fn more_probes_than_threads_are_all_closed() {
        let alone = Arc::new(Barrier::new(1));
        close_all((0..2 * THREADS + 1).map(|_| Waits(alone.clone())).collect());
        assert_eq!(Arc::strong_count(&alone), 1);
    }

    #[test]
    fn what_is_closed_soon_is_not_waited_for() {
        let with_this_one = Arc::new(Barrier::new(2));
        close_soon(vec![Waits(with_this_one.clone())]);
        with_this_one.wait();
    }
}
