//! One rule each, on the smallest trace that shows it.

use ktape_format::definition::{Context, Device, KernelName, Process, Shape, Stream, Thread};
use ktape_format::event::{Api, GraphLaunch, Kernel, Launch, Memcpy, Memset, Range, Slice};
use ktape_format::{Memory, Sink as _};

use super::*;

/// A process with a thread and a stream, all of id 1, that began at 1,000 ns.
fn made_up(fill: impl FnOnce(&mut Memory)) -> Timeline {
    let mut memory = Memory::default();
    let Ok(process) = memory.define(Process { pid: 42, ..Process::default() });
    let Ok(_) = memory.define(Thread { process, tid: 42 });
    let Ok(device) = memory.define(Device { process, index: 3, vendor: vendor::NVIDIA, ..Device::default() });
    let Ok(context) = memory.define(Context { process, device, native: 1 });
    let Ok(_) = memory.define(Stream { context, native: 7, ..Stream::default() });
    let Ok(name) = memory.string("gemm");
    let Ok(kernel) = memory.define(KernelName { name, ..KernelName::default() });
    let Ok(_) = memory.define(Shape { kernel, ..Shape::default() });
    fill(&mut memory);
    Timeline::new(memory.definitions, memory.events)
}

fn put<E: Event>(memory: &mut Memory, row: E) {
    let Ok(()) = memory.event(row);
}

fn kernel(start_ns: i64, duration_ns: u64, correlation: u64) -> Kernel {
    Kernel { start_ns, duration_ns, correlation, stream: 1, shape: 1, timing: timing::MEASURED, ..Kernel::default() }
}

fn launch(start_ns: i64, correlation: u64) -> Launch {
    Launch { start_ns, duration_ns: 5, correlation, thread: 1, ..Launch::default() }
}

fn audit(fill: impl FnOnce(&mut Memory)) -> Audit {
    made_up(fill).audit(1_000, true)
}

/// Which findings there are.
fn faults(audit: &Audit) -> Vec<&'static str> {
    let counts = [
        ("impossible", audit.impossible.count),
        ("longer_than_host", audit.longer_than_host.count),
        ("overlaps", audit.overlaps.count),
        ("graph_branches", audit.graph_branches.count),
        ("before_launch", audit.before_launch.count),
        ("unlaunched", audit.unlaunched.count),
        ("launches_without_work", audit.launches_without_work.unwrap_or(0)),
        ("zero_duration", audit.zero_duration),
        ("no_correlation", audit.no_correlation),
        ("absent", audit.absent),
        ("bounded", audit.bounded),
        ("crossings", audit.crossings),
        ("same_rank", audit.same_rank.len() as u64),
        ("mixed_vendors", audit.mixed_vendors.len() as u64),
    ];
    counts.into_iter().filter(|(_, count)| *count > 0).map(|(name, _)| name).collect()
}

#[test]
fn a_sound_trace_has_no_faults() {
    let audit = audit(|memory| {
        [1, 2].into_iter().for_each(|id| put(memory, launch(1_000 + id as i64 * 100, id)));
        put(memory, kernel(1_120, 60, 1));
        put(memory, kernel(1_220, 30, 2));
    });
    assert_eq!(faults(&audit), [""; 0]);
    assert_eq!((audit.device_ns, audit.repaired_device_ns, audit.launches), (90, 90, 2));
    assert!(faults(&Timeline::default().audit(0, true)).is_empty());
}

#[test]
fn an_overlap_is_shown_with_its_later_operation() {
    let audit = audit(|memory| {
        [1, 2, 3].into_iter().for_each(|id| put(memory, launch(1_000, id)));
        put(memory, kernel(1_100, 60, 1));
        put(memory, kernel(1_150, 70, 2));
        put(memory, kernel(1_400, 10, 3));
        // The host is longer than any of them.
        put(memory, launch(1_500, 0));
    });
    assert_eq!(faults(&audit), ["overlaps"]);
    let Some(worst) = &audit.overlaps.worst else { panic!("no example") };
    assert_eq!((audit.overlaps.ns, &*worst.name, worst.device, worst.stream), (10, "gemm", 3, 7));
    assert_eq!((worst.after_ns, worst.duration_ns, worst.ns), (150, 70, 10));
}

#[test]
fn graph_branches_are_no_fault_of_the_stream() {
    let audit = audit(|memory| {
        put(memory, GraphLaunch { start_ns: 1_000, duration_ns: 900, correlation: 1, thread: 1, ..Default::default() });
        put(memory, kernel(1_100, 60, 1));
        put(memory, kernel(1_150, 70, 1));
    });
    assert_eq!(faults(&audit), ["graph_branches"]);
    assert_eq!(audit.graph_branches.ns, 10);
}

#[test]
fn an_impossible_duration_is_cut_and_no_longer_leads_the_kernels() {
    let timeline = made_up(|memory| {
        put(memory, Api { start_ns: 0, duration_ns: 10_000_000, thread: 1, ..Api::default() });
        let (Ok(name), Ok(other)) = (memory.string("small"), memory.string("faulty"));
        let (Ok(small), Ok(faulty)) = (
            memory.define(KernelName { name, ..KernelName::default() }),
            memory.define(KernelName { name: other, ..KernelName::default() }),
        );
        let Ok(small) = memory.define(Shape { kernel: small, ..Shape::default() });
        let Ok(faulty) = memory.define(Shape { kernel: faulty, ..Shape::default() });
        (1..=3).for_each(|id| put(memory, launch(1_000, id)));
        put(memory, Kernel { shape: faulty, ..kernel(2_000, 5_000_000, 1) });
        put(memory, Kernel { shape: small, ..kernel(2_100, 300, 2) });
        put(memory, kernel(2_400, 200, 3));
    });
    let audit = timeline.audit(0, true);
    assert_eq!(faults(&audit), ["impossible"]);
    assert_eq!((audit.device_ns, audit.repaired_device_ns), (5_000_500, 600));
    assert_eq!(audit.impossible.ns, 5_000_000 - 100);
    let kernels = timeline.kernel_summaries(&audit);
    let figures: Vec<_> = kernels.iter().map(|row| (&*row.name, row.total_ns, row.repaired_ns)).collect();
    assert_eq!(figures, [("small", 300, 300), ("gemm", 200, 200), ("faulty", 5_000_000, 100)]);
}

#[test]
fn what_was_not_measured_is_no_evidence() {
    let audit = audit(|memory| {
        (1..=3).for_each(|id| put(memory, launch(1_000, id)));
        put(memory, Kernel { timing: timing::BOUNDED, ..kernel(1_000, 90_000_000, 1) });
        put(memory, kernel(1_050, 40, 2));
        put(memory, Kernel { timing: timing::ABSENT, ..kernel(500, 0, 3) });
        put(memory, launch(2_000, 0));
    });
    assert_eq!(faults(&audit), ["absent", "bounded"]);
}

#[test]
fn longer_than_all_that_the_host_recorded() {
    let fill = |memory: &mut Memory| {
        put(memory, launch(1_000, 1));
        put(memory, kernel(1_002, 6, 1));
    };
    assert_eq!(faults(&audit(fill)), ["longer_than_host"]);
    assert!(faults(&made_up(fill).audit(0, false)).is_empty(), "the rest of the host may have been left out");
    assert_eq!(
        faults(&audit(|memory| put(memory, kernel(1_002, 6, 1)))),
        ["unlaunched"],
        "no host, nothing to compare"
    );
}

#[test]
fn device_work_before_its_call() {
    let audit = audit(|memory| {
        put(memory, launch(1_000, 1));
        put(memory, kernel(930, 20, 1));
        // A blocking copy: its operation lies within the call.
        put(memory, Api { start_ns: 2_000, duration_ns: 500, correlation: 2, thread: 1, ..Api::default() });
        let copy = Memcpy { start_ns: 2_000, duration_ns: 300, correlation: 2, stream: 1, ..Memcpy::default() };
        put(memory, Memcpy { timing: timing::MEASURED, ..copy });
    });
    assert_eq!(faults(&audit), ["before_launch"]);
    assert_eq!((audit.before_launch.count, audit.before_launch.ns), (1, 70));
    assert_eq!(audit.before_launch.worst.map(|worst| worst.after_ns), Some(-70));
}

#[test]
fn launches_and_device_work_without_each_other() {
    let fill = |memory: &mut Memory| {
        (1..=3).for_each(|id| put(memory, launch(1_000 + 10 * id as i64, id)));
        put(memory, Launch { result: 1, ..launch(1_050, 4) });
        put(memory, launch(9_000, 0));
        put(memory, kernel(1_200, 20, 1));
        put(memory, kernel(1_300, 80, 77));
        let memset = Memset { start_ns: 1_500, duration_ns: 9, stream: 1, ..Memset::default() };
        put(memory, Memset { timing: timing::MEASURED, ..memset });
    };
    let whole = audit(fill);
    assert_eq!(faults(&whole), ["unlaunched", "launches_without_work", "no_correlation"]);
    assert_eq!((whole.unlaunched.count, whole.unlaunched.ns, whole.no_correlation), (2, 89, 1));
    assert_eq!((whole.launches, whole.launches_without_work), (3, Some(2)), "failed ones have no work to lose");
    assert_eq!(made_up(fill).audit(0, false).launches_without_work, None);
}

/// A selection knows its device work's calls, though they are not in it.
#[test]
fn calls_outside_of_a_selection_are_not_missing() {
    let mut memory = Memory::default();
    put(&mut memory, launch(1_000, 1));
    let calls = memory.events;
    let mut timeline = made_up(|memory| put(memory, kernel(1_200, 20, 1)));
    timeline.learn_callers(&calls);
    assert!(faults(&timeline.audit(0, false)).is_empty());
}

#[test]
fn two_processes_do_not_launch_for_each_other() {
    let audit = audit(|memory| {
        let Ok(process) = memory.define(Process { pid: 43, ..Process::default() });
        let Ok(thread) = memory.define(Thread { process, tid: 43 });
        put(memory, Launch { thread, ..launch(1_000, 1) });
        put(memory, kernel(1_002, 2, 1));
    });
    assert_eq!(faults(&audit), ["unlaunched", "launches_without_work"]);
}

#[test]
fn a_duration_of_nothing() {
    let audit = audit(|memory| {
        put(memory, launch(1_000, 1));
        put(memory, kernel(1_010, 0, 1));
    });
    assert_eq!(faults(&audit), ["zero_duration"]);
}

#[test]
fn slices_and_calls_that_cross() {
    let audit = audit(|memory| {
        put(memory, Slice { start_ns: 1_000, duration_ns: 100, thread: 1, ..Slice::default() });
        put(memory, Range { start_ns: 1_050, duration_ns: 100, thread: 1, ..Range::default() });
        put(memory, Api { start_ns: 1_140, duration_ns: 11, thread: 1, ..Api::default() });
        // Of another thread, and of none.
        put(memory, Slice { start_ns: 1_050, duration_ns: 100, thread: 2, ..Slice::default() });
        put(memory, Range { start_ns: 1_120, duration_ns: 100, stream: 1, ..Range::default() });
    });
    assert_eq!((faults(&audit), audit.crossings), (vec!["crossings"], 2));
}

#[test]
fn ranks_and_makers() {
    let audit = audit(|memory| {
        let kind = DefinitionKind::Process as u16;
        let Ok(second) = memory.define(Process { pid: 43, ..Process::default() });
        let Ok(third) = memory.define(Process { pid: 44, ..Process::default() });
        for (process, rank) in [(1, "0"), (second, "1"), (third, "0")] {
            let Ok(()) = memory.property(kind, process, property::RANK, rank);
        }
        for (process, vendor) in [(1, vendor::AMD), (1, vendor::UNKNOWN), (second, vendor::AMD), (second, 200)] {
            let Ok(_) = memory.define(Device { process, index: u32::from(vendor), vendor, ..Device::default() });
        }
    });
    assert_eq!(audit.same_rank, [SameRank { rank: "0".to_owned(), pids: vec![42, 44] }]);
    let mixed = |pid, vendors: [&str; 2]| MixedVendors { pid: Some(pid), vendors: vendors.map(str::to_owned).to_vec() };
    assert_eq!(audit.mixed_vendors, [mixed(42, ["NVIDIA", "AMD"]), mixed(43, ["AMD", "maker 200"])]);
}

#[test]
fn the_ends_of_time() {
    let fill = |memory: &mut Memory| {
        for (start_ns, correlation) in [(i64::MIN, 1), (0, 1), (-5, 2), (i64::MAX, 3), (i64::MIN, u64::MAX)] {
            put(memory, kernel(start_ns, u64::MAX, correlation));
            put(memory, Launch { duration_ns: u64::MAX, ..launch(start_ns.saturating_neg(), correlation) });
            put(memory, Slice { start_ns, duration_ns: u64::MAX, thread: u32::MAX, ..Slice::default() });
        }
        // All others end when time does, so only this one can be outlasted.
        put(memory, kernel(7, 5, 9));
        put(memory, Memcpy { stream: u32::MAX, timing: 77, duration_ns: 1, ..Memcpy::default() });
    };
    for first_ns in [i64::MIN, 0, i64::MAX] {
        let audit = made_up(fill).audit(first_ns, true);
        assert_eq!(audit.device_ns, u64::MAX, "saturated");
        assert!(audit.impossible.count > 0 && audit.before_launch.count > 0);
    }
}

/// It said of all launches that they have no device work.
#[test]
fn launches_of_a_recording_without_kernels_lack_nothing() {
    let bounded = Memcpy { stream: 1, correlation: 2, timing: timing::BOUNDED, ..Memcpy::default() };
    let host_only = |memory: &mut Memory| {
        put(memory, launch(1_000, 1));
        put(memory, Api { correlation: 2, thread: 1, ..Api::default() });
        put(memory, bounded);
    };
    let without = audit(host_only);
    assert_eq!((without.launches, without.launches_without_work), (1, None));
    // One kernel is enough to miss the others.
    let with = audit(|memory| {
        host_only(memory);
        put(memory, kernel(1_100, 5, 3));
    });
    assert_eq!((with.launches, with.launches_without_work), (1, Some(1)));
}
