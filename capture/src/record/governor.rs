//! Keeps what recording costs under a limit, by keeping less of each event, never fewer events.
//!
//! The limit (`--max-overhead`) is on the share of its time that the thread which calls most often spends in probes. While that is
//! above it, the recorder goes one step down each second, and it goes one up when what it would then cost has been well under
//! the limit for a while. The steps, in their order: native frames are left out; stacks are cut to 32 frames, to 8; of the
//! stacks one in 4 is kept, one in 16, one in 64, by chance; launches lose their durations. Each step is an event on the tape.

use ktape_ebpf::wire::Fidelity;

use super::cost::Look;

/// It has to be under the limit by so much before more is kept again.
const WELL_UNDER: f64 = 0.7;
/// For so many looks.
const LOOKS_BEFORE_UP: u32 = 10;

/// What is left out, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Native frames.
    Native,
    /// Python frames beyond so many.
    Frames(u32),
    /// All stacks but one of so many.
    Stacks(u32),
    /// The durations of launches. They don't come back: their probes are gone.
    Durations,
}

impl Step {
    /// What is recorded from this step on.
    fn says(self) -> String {
        match self {
            Step::Native => "stacks have no native frames".to_owned(),
            Step::Frames(frames) => format!("stacks are cut to {frames} frames"),
            Step::Stacks(of) => format!("one call in {of} has its stack"),
            Step::Durations => "launches have no durations".to_owned(),
        }
    }
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Change {
    pub(super) fidelity: Fidelity,
    /// Whether the return probes of launches are to go.
    pub(super) drops_durations: bool,
    /// For the tape.
    pub(super) says: String,
}

/// See the module.
pub(super) struct Governor {
    limit: f64,
    steps: Vec<Step>,
    /// How many of them are taken.
    taken: usize,
    /// What a call cost when so many were taken.
    call_ns: Vec<f64>,
    looks_under: u32,
    was_told: bool,
}

impl Governor {
    /// `limit` is a share, as parts of 1.
    pub(super) fn new(limit: f64, has_native: bool, has_durations: bool) -> Governor {
        let native = has_native.then_some(Step::Native);
        let stacks = [Step::Frames(32), Step::Frames(8), Step::Stacks(4), Step::Stacks(16), Step::Stacks(64)];
        let durations = has_durations.then_some(Step::Durations);
        let steps: Vec<Step> = native.into_iter().chain(stacks).chain(durations).collect();
        let call_ns = vec![0.0; steps.len() + 1];
        Governor { limit, steps, taken: 0, call_ns, looks_under: 0, was_told: false }
    }

    /// Once a second: what changes, if anything does.
    pub(super) fn look(&mut self, look: &Look) -> Option<Change> {
        if look.call_ns > 0.0 {
            self.call_ns[self.taken] = look.call_ns;
        }
        let percent = |share: f64| format!("{:.2} %", 100.0 * share);
        let why = format!(
            "probes take {} of the time of the thread that calls most often, the limit is {}",
            percent(look.busiest_share),
            percent(self.limit)
        );
        if look.busiest_share > self.limit {
            self.looks_under = 0;
            if let Some(&step) = self.steps.get(self.taken) {
                self.taken += 1;
                let says = format!("from now on {}: {why}", step.says());
                let change = self.change(says, step == Step::Durations);
                if step == Step::Durations {
                    // It is the last, and is never taken back: as if it had not been there, so that those before it can be.
                    self.steps.pop();
                    self.taken -= 1;
                }
                return Some(change);
            }
            return (!std::mem::replace(&mut self.was_told, true))
                .then(|| self.change(format!("nothing more can be left out: {why}"), false));
        }
        let above = self.taken.checked_sub(1)?;
        let would_take = look.busiest_share * self.call_ns[above].max(look.call_ns) / look.call_ns.max(1.0);
        self.looks_under = if would_take < WELL_UNDER * self.limit { self.looks_under + 1 } else { 0 };
        if self.looks_under < LOOKS_BEFORE_UP {
            return None;
        }
        self.looks_under = 0;
        self.taken = above;
        let says = format!("no longer so that {}: {why}", self.steps[above].says());
        Some(self.change(says, false))
    }

    fn change(&self, says: String, drops_durations: bool) -> Change {
        let mut fidelity = Fidelity::default();
        for step in &self.steps[..self.taken] {
            match *step {
                Step::Native => fidelity.without_native = 1,
                Step::Frames(frames) => fidelity.most_frames = frames,
                Step::Stacks(of) => fidelity.stacks_mask = of - 1,
                Step::Durations => {}
            }
        }
        Change { fidelity, drops_durations, says }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread of so many calls a second, at the price of a step.
    fn at(calls: f64, call_ns: f64) -> Look {
        Look { busiest_share: calls * call_ns / 1e9, call_ns, ..Look::default() }
    }

    #[test]
    fn steps_are_taken_in_their_order_until_it_is_cheap_enough_and_back() {
        let mut governor = Governor::new(0.01, true, false);
        let said = |change: Option<Change>| change.map(|change| (change.fidelity, change.says));
        let (fidelity, says) = said(governor.look(&at(10_000.0, 5000.0))).unwrap();
        assert_eq!(fidelity, Fidelity { without_native: 1, ..Fidelity::default() });
        assert!(says.contains("no native frames") && says.contains("5.00 %") && says.contains("1.00 %"), "{says}");
        let (fidelity, _) = said(governor.look(&at(10_000.0, 3000.0))).unwrap();
        assert_eq!((fidelity.without_native, fidelity.most_frames), (1, 32));
        let (fidelity, _) = said(governor.look(&at(10_000.0, 1500.0))).unwrap();
        assert_eq!(fidelity.most_frames, 8);
        assert_eq!(governor.look(&at(10_000.0, 900.0)), None, "under the limit");
        // A call at the step above costs 1500: at 6000 calls that is 0.9 %, which is not well under.
        assert!((0..50).all(|_| governor.look(&at(6000.0, 900.0)).is_none()));
        assert!((1..LOOKS_BEFORE_UP).all(|_| governor.look(&at(4000.0, 900.0)).is_none()));
        let (fidelity, says) = said(governor.look(&at(4000.0, 900.0))).unwrap();
        assert_eq!(fidelity.most_frames, 32);
        assert!(says.contains("no longer so that stacks are cut to 8 frames"), "{says}");
    }

    #[test]
    fn what_cannot_be_kept_is_told_once_and_durations_do_not_come_back() {
        let mut governor = Governor::new(0.01, false, true);
        let changes: Vec<Change> = (0..20).filter_map(|_| governor.look(&at(100_000.0, 1000.0))).collect();
        assert_eq!(changes.len(), 7);
        assert_eq!(changes.iter().filter(|change| change.drops_durations).count(), 1);
        assert!(changes[6].says.contains("nothing more can be left out"), "{}", changes[6].says);
        assert_eq!(changes[6].fidelity, Fidelity { most_frames: 8, stacks_mask: 63, ..Fidelity::default() });
        // The others come back, the last one first.
        let changes: Vec<Change> = (0..60).filter_map(|_| governor.look(&at(1.0, 1000.0))).collect();
        assert!(changes[0].says.contains("no longer so that one call in 64"), "{}", changes[0].says);
        assert_eq!(changes.last().map(|change| change.fidelity), Some(Fidelity::default()));
        assert!(changes.iter().all(|change| !change.drops_durations));
    }
}
