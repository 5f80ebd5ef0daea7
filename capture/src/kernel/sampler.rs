//! CPU samples: a clock on each processor, at whose ticks the program `sampled` looks at what runs there.
//!
//! It is the kernel's software clock, which every machine has, a virtual one too. It ticks with a fixed period, so it is known
//! how much time a sample stands for. A clock belongs to one processor while that is online: processors are looked at again
//! now and then, as some come and go.

use std::collections::BTreeMap;

use aya::Ebpf;
use aya::maps::{MapData, PerCpuArray};
use aya::programs::PerfEvent;
use aya::programs::perf_event::{PerfEventConfig, PerfEventLinkId, PerfEventScope, SamplePolicy, SoftwareEvent};
use ktape_ebpf::wire::Counters;

use super::programs::{KernelError, Wire};

/// The most samples a second and processor: beyond, taking them is what is measured.
pub const MOST_HZ: u32 = 10_000;

/// The time between two samples, in whole nanoseconds as timers have it: 10,101,010 for 99 Hz.
pub fn period_ns(hz: u32) -> u64 {
    let hz = u64::from(hz.max(1));
    (1_000_000_000 + hz / 2) / hz
}

/// The clocks that tick.
pub(super) struct Sampler {
    period_ns: u64,
    clocks: BTreeMap<u32, PerfEventLinkId>,
    counters: PerCpuArray<MapData, Wire<Counters>>,
}

/// What changed since processors were looked at last.
#[derive(Debug, Default, PartialEq, Eq)]
struct Changes {
    came: Vec<u32>,
    went: Vec<u32>,
}

fn changes(clocks: impl Iterator<Item = u32> + Clone, online: &[u32]) -> Changes {
    Changes {
        came: online.iter().copied().filter(|cpu| !clocks.clone().any(|clock| clock == *cpu)).collect(),
        went: clocks.filter(|clock| !online.contains(clock)).collect(),
    }
}

impl Sampler {
    /// Loads the program. No clock ticks yet.
    pub(super) fn load(
        ebpf: &mut Ebpf,
        counters: PerCpuArray<MapData, Wire<Counters>>,
        hz: u32,
    ) -> Result<Sampler, KernelError> {
        program(ebpf)?.load()?;
        Ok(Sampler { period_ns: period_ns(hz), clocks: BTreeMap::new(), counters })
    }

    /// Gives each of these processors a clock, and takes those of others away. Returns the processors that got one.
    pub(super) fn follow(&mut self, ebpf: &mut Ebpf, online: &[u32]) -> Result<Vec<u32>, KernelError> {
        let program = program(ebpf)?;
        let Changes { came, went } = changes(self.clocks.keys().copied(), online);
        for link in went.iter().filter_map(|cpu| self.clocks.remove(cpu)) {
            program.detach(link)?;
        }
        for &cpu in &came {
            let clock = PerfEventConfig::Software(SoftwareEvent::CpuClock);
            let scope = PerfEventScope::AllProcessesOneCpu { cpu };
            let link = program.attach(clock, scope, SamplePolicy::Period(self.period_ns), false)?;
            self.clocks.insert(cpu, link);
        }
        Ok(came)
    }

    /// What was counted on all processors together.
    pub(super) fn counters(&self) -> Result<Counters, KernelError> {
        let mut sum = Counters::default();
        self.counters.get(&0, 0)?.iter().for_each(|Wire(counters)| sum.add(counters));
        Ok(sum)
    }
}

fn program(ebpf: &mut Ebpf) -> Result<&mut PerfEvent, KernelError> {
    Ok(ebpf.program_mut("sampled").ok_or(KernelError::Missing("sampled"))?.try_into()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_are_whole_nanoseconds() {
        assert_eq!([1, 99, 100, 10_000].map(period_ns), [1_000_000_000, 10_101_010, 10_000_000, 100_000]);
    }

    #[test]
    fn processors_that_come_and_go_are_told_apart() {
        let clocks = [0, 1, 3];
        assert_eq!(changes(clocks.into_iter(), &[0, 2, 3, 4]), Changes { came: vec![2, 4], went: vec![1] });
        assert_eq!(changes(clocks.into_iter(), &clocks), Changes::default());
    }
}
