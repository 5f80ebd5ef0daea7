//! How a recording ends: the probes are taken away, what is on its way is written, the tape is closed.
//!
//! Counters are read when nothing raises them any more, and told before the tape is closed, which a full disk may not let happen.

use anyhow::Result;
use ktape_ebpf::wire::{Counters, unsaid};
use ktape_format::Sink as _;
use ktape_format::event::lifecycle_kind;

use super::super::clocks::monotonic_ns;
use super::super::output::Output;
use super::super::summary::{CpuSamples, GpuValues, OffCpu, Summary};
use super::super::tally::Counting;
use super::Session;
use crate::collect::nvml::GpuCounters;
use crate::kernel::sampler;
use crate::probes::functions::Probed;

impl Session {
    /// Takes the probes away, writes what is still on its way, and closes the tape.
    pub fn end(mut self) -> Result<Summary> {
        self.await_device()?;
        let duration_ns = self.began.elapsed().as_nanos() as u64;
        let now_ns = monotonic_ns();
        let pids: Vec<u32> = self.processes.keys().copied().collect();
        self.kernel.detach()?;
        for &pid in &pids {
            self.kernel.remove_target(pid);
        }
        self.is_ending = true;
        let gpu_counters = end_gpu_counters(self.gpu_counters.take(), &mut self.tape)?;
        while self.drain(usize::MAX)? > 0 {}
        self.drain_inside()?;
        let off_at_end = self.end_off_cpu(now_ns)?;
        for pid in pids {
            self.lifecycle(pid, lifecycle_kind::DETACH, now_ns, 0)?;
            if let Some(inside) = &self.inside {
                inside.tell_device_time(pid, &self.collector, &mut self.tape)?;
            }
            self.note_blind_spots_of(pid);
        }
        if let Some(inside) = &self.inside {
            inside.tell_all_cost(&self.collector, &mut self.tape)?;
        }
        self.collector.finish(&mut self.tape)?;
        let counters = self.kernel.counters()?;
        let sampled = self.kernel.sample_counters()?;
        self.look_at_cost(&counters, self.told_losses.elapsed())?;
        let off_cpu = self.kernel.off_cpu_counters()?;
        self.tallies.look_at_all(
            Counting::of(&self.kernel, self.inside.as_ref()),
            self.collector.settled(),
            monotonic_ns(),
        )?;
        self.read_clocks()?;
        let is_event = |(function, _): &(&Probed, _)| function.meaning.is_event();
        let (out_of_scope, left_out) = self.out_of_scope()?;
        let seen: u64 = self.functions.iter().zip(&counters).filter(is_event).map(|(_, c)| c.calls).sum();
        let seen = seen - left_out;
        let sum = |of: fn(&Counters) -> u64| counters.iter().map(of).sum();
        let unsaid = [unsaid::LIFECYCLES, unsaid::CHILDREN, unsaid::CALLS_NOT_ADMITTED]
            .map(|kind| self.kernel.unsaid(kind).unwrap_or(0));
        for (count, what) in unsaid.into_iter().zip([
            "words of processes and threads that came or went found the ring buffer full",
            "children were not recorded: there were 4096 processes",
            "calls were not recorded: of processes that came when there were 4096",
        ]) {
            if count > 0 {
                self.troubles.add(format!("{count} {what}"));
            }
        }
        let blind_spots = self.tell_blind_spots(true)?;
        // What was open has to be a block before there is room for sure; on a full disk there is none.
        let sealed = self.tape.seal();
        let written = self.collector.events();
        let samples = self.collector.samples();
        let off_written = self.collector.off_cpu_written() - off_at_end;
        if let Some(inside) = &self.inside {
            self.losses.of_rings(&inside.counted().lost);
        }
        let told = self.losses.tell(&self.functions, &counters, &sampled, &off_cpu, now_ns, &mut self.tape);
        let told = told.and_then(|()| {
            let calls = u64::saturating_sub(seen, written + self.losses.lost);
            let rest = sampled.calls.saturating_sub(samples.written + self.losses.samples_lost);
            let off = off_cpu.seen.saturating_sub(off_written + self.losses.off_cpu_lost);
            self.losses.tell_rest(calls, rest, off, now_ns, &mut self.tape)?;
            self.tallies.finish(&mut self.tape)
        });
        let inside = self.inside.as_mut().map(|inside| inside.summary(&self.collector));
        let tape_lost_events = self.tape.lost_events();
        let untold = sealed.and(told).err().map(|error| format!("{}: {error}", self.options.output.display()));
        let finished = self.tape.finish();
        for trouble in finished.troubles {
            self.troubles.add(trouble);
        }
        Ok(Summary {
            failure: untold.or(finished.failure),
            tape: self.options.output,
            tape_bytes: finished.bytes,
            tape_lost_events,
            returns_lost: sum(|counters| counters.returns_lost),
            duration_ns,
            processes: self.recorded,
            libraries: self.library_paths.shown,
            further_libraries: self.library_paths.further,
            probes: self.probes,
            seen,
            written,
            lost: self.losses.lost,
            without_stack: sum(|counters| counters.without_stack),
            kernels: self.collector.kernels(),
            spending: self.cost.spending(),
            fidelity_changes: self.fidelity_changes.shown,
            further_fidelity_changes: self.fidelity_changes.further,
            gaps: self.collector.gaps(),
            out_of_scope,
            cpu_samples: self.options.cpu_hz.map(|hz| CpuSamples {
                hz,
                period_ns: sampler::period_ns(hz),
                seen: sampled.calls,
                lost: self.losses.samples_lost,
                without_stack: sampled.without_stack,
                taken: samples,
            }),
            gpu_counters,
            inside,
            off_cpu: self.options.off_cpu.then_some(OffCpu {
                seen: off_cpu.seen,
                written: off_written,
                lost: self.losses.off_cpu_lost,
                unbegun: off_cpu.unbegun,
                off_at_end,
            }),
            blind_spots,
            troubles: self.troubles.into_lines(),
        })
    }

    /// Writes what is known of threads that are off their processors still; returns how many.
    fn end_off_cpu(&mut self, now_ns: i64) -> Result<u64> {
        let mut written = 0;
        for (tid, off) in self.kernel.off_cpu()? {
            written += u64::from(self.collector.still_off(tid, &off, now_ns as u64, &mut self.tape)?);
        }
        Ok(written)
    }
}

/// Writes the last values of the GPUs' counters.
pub(in super::super) fn end_gpu_counters(
    counters: Option<GpuCounters>,
    tape: &mut Output,
) -> Result<Option<GpuValues>> {
    let Some(mut counters) = counters else { return Ok(None) };
    counters.write(tape)?;
    let (written, lost) = counters.counts();
    Ok(Some(GpuValues { gpus: counters.gpus(), written, lost }))
}
