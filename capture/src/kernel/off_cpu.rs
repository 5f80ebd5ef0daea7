//! Time off the processor: the programs that run at context switches and wake-ups, loaded only where that was asked for.

use aya::Ebpf;
use aya::maps::{HashMap, MapData, PerCpuArray};
use aya::programs::RawTracePoint;
use aya::programs::raw_trace_point::RawTracePointLinkId;
use ktape_ebpf::wire::{Off, OffCounters};

use super::btf::{Btf, BtfError};
use super::programs::{KernelError, Wire, take};

/// The programs and where they belong. The wake-ups first, and away last: a thread that is seen to leave is seen to wake.
const PROGRAMS: [(&str, &str); 3] =
    [("woken", "sched_wakeup"), ("begun", "sched_wakeup_new"), ("switched", "sched_switch")];

/// What the programs have to know of this kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Layout {
    /// Where a `task_struct` has its flags.
    pub(super) flags: u64,
    /// Where it has its state.
    pub(super) state: u64,
    /// 1 if `sched_switch` tells the state too. Read from the task it may have changed already.
    pub(super) switch_tells_state: u64,
}

impl Layout {
    /// # Errors
    ///
    /// If the tracepoint has other arguments than any kernel that is known.
    pub(super) fn of(btf: &Btf) -> Result<Layout, BtfError> {
        let arguments = btf.tracepoint_arguments("sched_switch")?;
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let switch_tells_state = match arguments[..] {
            ["", "task_struct", "task_struct"] => 0,
            ["", "task_struct", "task_struct", ""] => 1,
            _ => return Err(BtfError::Tracepoint("sched_switch")),
        };
        let offset = |path| btf.offset("task_struct", path);
        // It was renamed in Linux 5.14.
        let state = offset("__state").or_else(|_| offset("state"))?;
        Ok(Layout { flags: offset("flags")?, state, switch_tells_state })
    }
}

/// The programs that watch.
pub(super) struct OffCpuWatch {
    links: Vec<(&'static str, RawTracePointLinkId)>,
    off: HashMap<MapData, u32, Wire<Off>>,
    counters: PerCpuArray<MapData, Wire<OffCounters>>,
}

// SAFETY: plain integers without padding; any bytes are values.
unsafe impl aya::Pod for Wire<Off> {}
// SAFETY: as above.
unsafe impl aya::Pod for Wire<OffCounters> {}

impl OffCpuWatch {
    /// Loads the programs and has them run from now on.
    pub(super) fn begin(ebpf: &mut Ebpf) -> Result<OffCpuWatch, KernelError> {
        // Whether the programs know this kernel; what they know they were told when they were loaded.
        Layout::of(&Btf::of_this_kernel()?)?;
        let off = HashMap::try_from(take(ebpf, "OFF_CPU")?)?;
        let counters = PerCpuArray::try_from(take(ebpf, "OFF_COUNTERS")?)?;
        let mut links = Vec::new();
        for (name, _) in PROGRAMS {
            program(ebpf, name)?.load()?;
        }
        for (name, tracepoint) in PROGRAMS {
            links.push((name, program(ebpf, name)?.attach(tracepoint)?));
        }
        Ok(OffCpuWatch { links, off, counters })
    }

    /// Takes the programs away.
    pub(super) fn end(&mut self, ebpf: &mut Ebpf) -> Result<(), KernelError> {
        while let Some((name, link)) = self.links.pop() {
            program(ebpf, name)?.detach(link)?;
        }
        Ok(())
    }

    /// The threads that are off their processors, by number.
    pub(super) fn off(&self) -> Result<Vec<(u32, Off)>, KernelError> {
        let off = self.off.iter().map(|thread| thread.map(|(tid, Wire(off))| (tid, off)));
        Ok(off.collect::<Result<_, _>>()?)
    }

    /// Forgets the threads of processes that are recorded no longer, which nobody sees come back.
    pub(super) fn forget(&mut self, pids: &[u32]) -> Result<(), KernelError> {
        for (tid, _) in self.off()?.into_iter().filter(|(_, off)| pids.contains(&off.pid)) {
            // One that came back meanwhile is not there any more.
            let _ = self.off.remove(&tid);
        }
        Ok(())
    }

    /// What was counted on all processors together.
    pub(super) fn counters(&self) -> Result<OffCounters, KernelError> {
        let mut sum = OffCounters::default();
        self.counters.get(&0, 0)?.iter().for_each(|Wire(counters)| sum.add(counters));
        Ok(sum)
    }
}

fn program<'a>(ebpf: &'a mut Ebpf, name: &'static str) -> Result<&'a mut RawTracePoint, KernelError> {
    Ok(ebpf.program_mut(name).ok_or(KernelError::Missing(name))?.try_into()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::btf::VMLINUX;

    #[test]
    fn this_kernel_is_one_that_is_known() {
        let Ok(btf) = Btf::of_this_kernel() else {
            eprintln!("SKIPPED: no {VMLINUX}");
            return;
        };
        let layout = Layout::of(&btf).expect("a layout");
        assert!(layout.flags > 0 && layout.state > 0, "{layout:?}");
    }
}
