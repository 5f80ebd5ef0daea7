//! When events were, on the host's clock.
//!
//! The driver says how far apart two events are, as a float of milliseconds, and never when one was. So an event of the library's own is
//! recorded into a stream of its own, with the host's clock read before and after: that is its time, to within what lay between.
//! It is done anew ten times a second, and several of these are kept. An event is timed against the one that was closest before it:
//! so the float stays short (8 ns at a tenth of a second), and how the device's clock drifts matters for no longer either.

use super::driver::{Driver, Handle, NOT_READY, SUCCESS};
use crate::clock;

/// How often a new one is made.
pub(super) const EVERY_NS: u64 = 100_000_000;
/// How many are kept.
const KEPT: usize = 16;
/// Readings that are tried, and the uncertainty that is good enough: others were interrupted.
const READINGS: usize = 8;
const GOOD_NS: u64 = 15_000;
/// The longest that one is waited for: the device may be at something else.
const PATIENCE_NS: u64 = 5_000_000;

/// An event whose time is known.
#[derive(Clone, Copy, Debug)]
struct Reference {
    event: Handle,
    /// In the middle between the two readings.
    monotonic_ns: u64,
    /// How far apart these were.
    uncertainty_ns: u64,
}

/// Those of a context.
#[derive(Debug)]
pub(super) struct References {
    stream: Handle,
    /// The newest last.
    known: Vec<Reference>,
    unused: Vec<Handle>,
    /// The device's clock at the newest, from the first one on.
    device_ns: i64,
    tried_ns: u64,
}

/// Both clocks at one time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clocks {
    pub(super) monotonic_ns: u64,
    pub(super) device_ns: u64,
    pub(super) uncertainty_ns: u64,
}

impl References {
    /// With the first one, if the device is not too busy for it, in the current context. `None` where the driver refuses.
    pub(super) fn begin(driver: &Driver) -> Option<References> {
        let stream = driver.new_stream()?;
        let mut references = References { stream, known: Vec::new(), unused: Vec::new(), device_ns: 0, tried_ns: 0 };
        references.renew(driver);
        Some(references)
    }

    /// Whether there is none yet, and so no time of anything.
    pub(super) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Makes a new one, if it is time.
    pub(super) fn tend(&mut self, driver: &Driver) {
        if clock::monotonic_ns().saturating_sub(self.tried_ns) >= EVERY_NS {
            self.renew(driver);
        }
    }

    fn renew(&mut self, driver: &Driver) {
        self.tried_ns = clock::monotonic_ns();
        let mut best: Option<Reference> = None;
        for _ in 0..READINGS {
            let Some(event) = self.event(driver) else { break };
            match (read(driver, event, self.stream), &mut best) {
                (Some(new), Some(best)) if new.uncertainty_ns < best.uncertainty_ns => {
                    self.unused.push(std::mem::replace(best, new).event);
                }
                (Some(new), None) => best = Some(new),
                (_, _) => self.unused.push(event),
            }
            if best.is_none_or(|best| best.uncertainty_ns <= GOOD_NS) {
                break;
            }
        }
        let Some(best) = best else { return };
        match self.known.last() {
            Some(last) => self.device_ns += driver.elapsed_ns(last.event, best.event).unwrap_or(0),
            None => self.device_ns = best.monotonic_ns as i64,
        }
        self.known.push(best);
    }

    /// An event to record: one that is not used, a new one, or at last the oldest.
    fn event(&mut self, driver: &Driver) -> Option<Handle> {
        if let Some(event) = self.unused.pop() {
            return Some(event);
        }
        if self.known.len() >= KEPT {
            return Some(self.known.remove(0).event);
        }
        driver.new_event()
    }

    /// When an event was that is over. `near_ns` is about when, on the host's clock.
    pub(super) fn time_ns(&self, driver: &Driver, event: Handle, near_ns: u64) -> Option<u64> {
        let nearest = self.before(near_ns)?;
        let time_ns = nearest.time_ns(driver, event)?;
        // It may have waited for long in its stream.
        match self.before(time_ns)? {
            better if better.event != nearest.event => better.time_ns(driver, event),
            _ => Some(time_ns),
        }
    }

    /// The last one before that time, or the first.
    fn before(&self, time_ns: u64) -> Option<&Reference> {
        let behind = self.known.partition_point(|known| known.monotonic_ns <= time_ns);
        self.known.get(behind.saturating_sub(1))
    }

    /// The clocks at the newest one.
    pub(super) fn clocks(&self) -> Option<Clocks> {
        let &Reference { monotonic_ns, uncertainty_ns, .. } = self.known.last()?;
        Some(Clocks { monotonic_ns, device_ns: self.device_ns as u64, uncertainty_ns })
    }
}

impl Reference {
    fn time_ns(&self, driver: &Driver, event: Handle) -> Option<u64> {
        self.monotonic_ns.checked_add_signed(driver.elapsed_ns(self.event, event)?)
    }
}

/// Records an event and waits until it is over, with the clock read before and after.
fn read(driver: &Driver, event: Handle, stream: Handle) -> Option<Reference> {
    let before_ns = clock::monotonic_ns();
    if !driver.record(event, stream, false) {
        return None;
    }
    loop {
        let answer = driver.query(event);
        let uncertainty_ns = clock::monotonic_ns() - before_ns;
        match answer {
            SUCCESS => return Some(Reference { event, monotonic_ns: before_ns + uncertainty_ns / 2, uncertainty_ns }),
            NOT_READY if uncertainty_ns < PATIENCE_NS => std::hint::spin_loop(),
            _ => return None,
        }
    }
}
