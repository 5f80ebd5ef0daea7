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
    use std::process::Command;
    use std::time::{Duration, Instant};

    use ktape_ebpf::wire::Target;

    use super::*;
    use crate::kernel::btf::VMLINUX;
    use crate::kernel::programs::Kernel;
    use crate::probes::functions;

    #[test]
    fn this_kernel_is_one_that_is_known() {
        let Ok(btf) = Btf::of_this_kernel() else {
            eprintln!("SKIPPED: no {VMLINUX}");
            return;
        };
        let layout = Layout::of(&btf).expect("a layout");
        assert!(layout.flags > 0 && layout.state > 0, "{layout:?}");
    }

    #[test]
    fn on_trial_threads_of_a_process_that_is_recorded_no_longer_are_forgotten() {
        if crate::privileges::demand().is_err() {
            eprintln!("SKIPPED: not root");
            return;
        }
        let (mut kernel, _ring) = Kernel::load(&functions::all(), 1 << 20).expect("the programs are loaded");
        kernel.watch_off_cpu().expect("this kernel is known");
        let mut shell = Command::new("sh").args(["-c", "while :; do sleep 0.01; done"]).spawn().expect("it starts");
        let pid = shell.id();
        let is_off = |kernel: &Kernel| kernel.off_cpu().expect("a map").iter().any(|(_, off)| off.pid == pid);
        let began = Instant::now();
        // It may come back in between, and leave no trace then.
        while !is_off(&kernel) {
            assert!(began.elapsed() < Duration::from_secs(20), "it never waits");
            kernel.set_target(pid, Target { generation: 1, ..Target::default() }).expect("there is room");
            std::thread::sleep(Duration::from_millis(15));
            kernel.remove_target(pid);
        }
        kernel.forget_off_cpu(&[pid]).expect("a map");
        let is_still_off = is_off(&kernel);
        shell.kill().expect("it is ours");
        shell.wait().expect("it ends");
        assert!(!is_still_off);
    }
}
