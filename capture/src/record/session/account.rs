//! What a recording tells of itself while it goes on: losses, the account of what was seen, and what it costs.

use std::time::{Duration, Instant};

use anyhow::Result;
use ktape_ebpf::wire::Counters;
use ktape_format::Sink as _;
use ktape_format::event::{self, lifecycle_kind};

use super::super::clocks::monotonic_ns;
use super::super::tally::Counting;
use super::Session;
use crate::collect::events::LostCalls;
use crate::probes::functions::Meaning;

impl Session {
    /// Writes losses, what is settled of the account, and blind spots: for a tape that ends before the recording does. The next
    /// one goes on with what is not settled yet.
    pub(super) fn settle_account(&mut self) -> Result<()> {
        self.tell_account(self.told_losses.elapsed())?;
        self.told_losses = Instant::now();
        self.tallies.tell_settled(&mut self.tape)?;
        self.tell_blind_spots(true)?;
        Ok(())
    }

    /// Writes what was lost, and the accounts of intervals that are over.
    pub(super) fn tell_account(&mut self, elapsed: Duration) -> Result<()> {
        let counters = self.kernel.counters()?;
        let sampled = self.kernel.sample_counters()?;
        let off_cpu = self.kernel.off_cpu_counters()?;
        let lost = self.losses.lost;
        if let Some(inside) = &self.inside {
            self.losses.of_rings(&inside.counted().lost);
        }
        self.losses.tell(&self.functions, &counters, &sampled, &off_cpu, monotonic_ns(), &mut self.tape)?;
        let mut lost_of_graphs = [0; 2];
        for (function, counters) in self.functions.iter().zip(&counters) {
            let of_executable = match function.meaning {
                Meaning::Graph(call) => call.is_of_executable(),
                Meaning::GraphInstantiate => true,
                _ => continue,
            };
            lost_of_graphs[usize::from(of_executable)] += counters.calls_lost + counters.returns_lost;
        }
        let before = std::mem::replace(&mut self.lost_of_graphs, lost_of_graphs);
        self.collector.looked_for_losses(match self.losses.lost > lost {
            _ if lost_of_graphs[1] != before[1] => LostCalls::OfGraphs,
            _ if lost_of_graphs[0] != before[0] => LostCalls::OfTemplates,
            true => LostCalls::Some,
            false => LostCalls::None,
        });
        self.tallies.look(
            Counting::of(&self.kernel, self.inside.as_ref()),
            self.collector.settled(),
            monotonic_ns(),
        )?;
        self.tallies.tell(&mut self.tape)?;
        self.look_at_cost(&counters, elapsed)
    }

    /// Tells what recording costs, and keeps less or more of each event where there is a limit.
    pub(super) fn look_at_cost(&mut self, counters: &[Counters], elapsed: Duration) -> Result<()> {
        let look = self.cost.look(counters, &self.kernel.spent()?, self.collector.busiest_calls(), elapsed);
        let now_ns = monotonic_ns();
        self.cost.tell(&look, now_ns, &mut self.tape)?;
        let governor = self.governor.as_mut().filter(|_| !self.is_ending);
        let Some(change) = governor.and_then(|governor| governor.look(&look)) else { return Ok(()) };
        self.kernel.set_fidelity(change.fidelity)?;
        if change.drops_durations {
            self.kernel.drop_launch_returns()?;
            self.options.launch_durations = false;
            self.collector.drop_launch_durations();
        }
        let detail = self.tape.string(&change.says)?;
        self.tape.event(event::Lifecycle {
            start_ns: now_ns,
            kind: lifecycle_kind::FIDELITY,
            detail,
            ..event::Lifecycle::default()
        })?;
        self.fidelity_changes.push(change.says);
        Ok(())
    }
}
