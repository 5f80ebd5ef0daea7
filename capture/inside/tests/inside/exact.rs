//! What is told against the truth record of the stand-in driver, and against the bad habits that its CUPTI can have.

use std::collections::{HashMap, HashSet};

use ktape_ebpf::inside::{device_time, missing, state};
use ktape_ebpf::wire::tally;
use ktape_simcuda_truth::{DeviceKind, Truth};

use super::recorder::{Recorder, assert_ended_well, client};

/// CUPTI does not tell its own overhead, so that all records are the device's.
const NO_OVERHEAD: (&str, &str) = ("SIMCUPTI_ENABLE_ERROR", "21,17");

/// What the device did, by the truth: for each correlation id when it began and ended.
fn truth(path: &std::path::Path, of: impl Fn(&DeviceKind) -> bool) -> HashMap<u32, (u64, u64)> {
    let truth = Truth::open(path).unwrap();
    assert_eq!(truth.unrecorded(), 0);
    truth.device().filter(|row| of(&row.kind)).map(|row| (row.correlation, (row.start_ns, row.end_ns))).collect()
}

/// Runs the program with a truth record, and gives where that is.
fn run(recorder: &mut Recorder, arguments: &[&str], settings: &[(&str, &str)]) -> Option<tempfile::TempDir> {
    let folder = tempfile::tempdir().unwrap();
    let mut command = client(arguments)?;
    command.env("SIMCUDA_TRUTH", folder.path().join("truth")).envs(settings.iter().copied());
    assert_ended_well(&recorder.run(&mut command));
    Some(folder)
}

/// Has so many kernels run, and compares each with the truth.
fn compare_kernels(count: usize, version: &str, ring_bytes: u32) -> Option<Recorder> {
    let mut recorder = Recorder::new(|control| control.ring_bytes = ring_bytes);
    let folder = run(&mut recorder, &["launches", &count.to_string()], &[("SIMCUPTI_API", version)])?;
    let truth = truth(&folder.path().join("truth"), |kind| *kind == DeviceKind::Kernel);
    assert_eq!((recorder.counted(tally::KERNEL), truth.len()), ((count as u64, 0), count), "{version}");
    let told = recorder.told.kernels.iter().map(|(kernel, _)| kernel.ran);
    let told: HashMap<_, _> = told.map(|ran| (ran.correlation, (ran.start_ns, ran.end_ns))).collect();
    assert!(told == truth, "{version}");
    assert_eq!(recorder.told.kernels.len(), count);
    // Each launch's own correlation id was told on the thread that made it.
    let launches: HashSet<u32> = recorder.told.correlated.iter().map(|call| call.correlation).collect();
    assert!(launches.len() == count && launches.iter().all(|id| truth.contains_key(id)), "{version}");
    assert!(recorder.told.missing.is_empty());
    Some(recorder)
}

#[test]
fn kernels_have_the_devices_own_times_in_all_versions_of_cupti() {
    for version in ["18", "28", "130500"] {
        let Some(recorder) = compare_kernels(10_000, version, 1 << 22) else { return };
        let (kernel, name) = &recorder.told.kernels[0];
        assert_eq!(name, "_Z11vector_scalePffi");
        assert_eq!((kernel.grid, kernel.block, kernel.dynamic_shared_bytes), ([2, 3, 4], [32, 2, 1], 16));
        let pages = recorder.pages();
        assert_eq!((pages[0].state, pages[0].cupti_version.to_string().as_str()), (state::RECORDING, version));
    }
}

#[test]
fn a_million_kernels_have_the_devices_own_times() {
    compare_kernels(1_000_000, "28", 1 << 27);
}

#[test]
fn copies_and_memsets_have_the_devices_own_times() {
    let mut recorder = Recorder::new(|_| {});
    let Some(folder) = run(&mut recorder, &["copies", "2000"], &[]) else { return };
    let copies = truth(&folder.path().join("truth"), |kind| *kind == DeviceKind::Copy);
    let told: HashMap<_, _> =
        recorder.told.copies.iter().map(|copy| (copy.ran.correlation, (copy.ran.start_ns, copy.ran.end_ns))).collect();
    assert_eq!((told.len(), &told), (2000, &copies));
    let sets = truth(&folder.path().join("truth"), |kind| *kind == DeviceKind::Set);
    let told: HashMap<_, _> =
        recorder.told.sets.iter().map(|set| (set.ran.correlation, (set.ran.start_ns, set.ran.end_ns))).collect();
    assert_eq!((told.len(), &told), (2000, &sets));
    let bytes = |last: u64| 100 * 2000 + (0..2000).sum::<u64>() + last;
    assert_eq!(recorder.told.sets.iter().map(|set| set.bytes).sum::<u64>(), bytes(0));
    assert!(recorder.told.sets.iter().all(|set| set.value == 5));
}

#[test]
fn device_times_alone_need_no_subscription_and_off_means_off() {
    let mut recorder = Recorder::new(|control| control.calls = 0);
    if run(&mut recorder, &["launches", "1000"], &[]).is_none() {
        return;
    }
    assert_eq!((recorder.told.kernels.len(), recorder.told.correlated.len()), (1000, 0));
    let mut recorder = Recorder::new(|control| control.device_time = device_time::OFF);
    run(&mut recorder, &["launches", "1000"], &[]);
    assert_eq!((recorder.told.kernels.len(), recorder.told.calls), (0, 1000));
}

#[test]
fn where_cupti_keeps_its_own_clock_times_are_converted() {
    let mut recorder = Recorder::new(|_| {});
    // Not implemented, and a clock that is an hour ahead.
    let settings = [("SIMCUPTI_TIMESTAMP_ERROR", "27"), ("SIMCUPTI_CLOCK_OFFSET_NS", "3600000000000")];
    let Some(folder) = run(&mut recorder, &["launches", "1000"], &settings) else { return };
    let truth = truth(&folder.path().join("truth"), |_| true);
    assert_eq!(recorder.told.kernels.len(), 1000);
    for (kernel, _) in &recorder.told.kernels {
        let (start_ns, end_ns) = truth[&kernel.ran.correlation];
        assert!(kernel.ran.start_ns.abs_diff(start_ns) < 1_000_000, "{} {start_ns}", kernel.ran.start_ns);
        // The conversion of one record does not change between its two ends by more than the clock was off in between.
        assert!((kernel.ran.end_ns - kernel.ran.start_ns).abs_diff(end_ns - start_ns) < 1_000_000);
    }
    assert!(!recorder.told.clocks.is_empty());
}

#[test]
fn what_is_invalid_is_counted_and_the_rest_is_told() {
    let mut recorder = Recorder::new(|_| {});
    if run(&mut recorder, &["launches", "1000"], &[("SIMCUPTI_INVALID", "10"), ("SIMCUPTI_UNKNOWN", "7")]).is_none() {
        return;
    }
    let count = |why| {
        recorder.told.missing.iter().filter(|missing| missing.why == why).map(|missing| missing.count).sum::<u64>()
    };
    let without_times = recorder.told.kernels.iter().filter(|(kernel, _)| kernel.ran.end_ns == 0);
    let without_times = without_times.count() as u64;
    assert!(without_times > 0 && count(missing::BACKWARDS) > 0);
    assert_eq!(without_times + count(missing::BACKWARDS), 100);
    assert_eq!(recorder.told.kernels.len() as u64 + count(missing::BACKWARDS), 1000);
    assert!(count(missing::UNKNOWN_KIND) > 100, "{:?}", recorder.told.missing);
}

#[test]
fn what_cupti_drops_is_counted() {
    let mut recorder = Recorder::new(|_| {});
    if run(&mut recorder, &["for", "600"], &[("SIMCUPTI_DROP_BUFFERS", "5"), NO_OVERHEAD]).is_none() {
        return;
    }
    let dropped: u64 =
        recorder.told.missing.iter().filter(|gap| gap.why == missing::DROPPED).map(|gap| gap.count).sum();
    assert!(dropped > 0);
    let (_, lost) = recorder.counted(tally::KERNEL);
    let (launched, _) = recorder.counted(1);
    assert_eq!(recorder.told.kernels.len() as u64 + lost + dropped, launched);
}

#[test]
fn a_buffer_that_is_cut_off_is_read_up_to_there() {
    // CUPTI itself ends there, so that the record that is cut off is not known of: it is a launch without a kernel.
    let mut recorder = Recorder::new(|_| {});
    if run(&mut recorder, &["for", "600"], &[("SIMCUPTI_CUT", "3"), NO_OVERHEAD]).is_none() {
        return;
    }
    let (seen, lost) = recorder.counted(tally::KERNEL);
    assert_eq!(seen - lost, recorder.told.kernels.len() as u64);
    assert!(seen > 0 && seen < recorder.counted(1).0);
}

#[test]
fn a_ring_that_is_too_small_loses_and_says_how_many() {
    let mut recorder = Recorder::new(|control| control.ring_bytes = 4096);
    if run(&mut recorder, &["launches", "20000"], &[]).is_none() {
        return;
    }
    let (seen, lost) = recorder.counted(tally::KERNEL);
    assert!(lost > 0);
    assert_eq!((seen, recorder.told.kernels.len() as u64 + lost), (20_000, 20_000));
}

#[test]
fn a_refusal_is_told_and_another_client_is_left_alone() {
    let mut recorder = Recorder::new(|control| control.calls = 0);
    if run(&mut recorder, &["launches", "100"], &[("SIMCUPTI_ENABLE_ERROR", "35")]).is_none() {
        return;
    }
    let pages = recorder.pages();
    assert_eq!((pages[0].state, pages[0].code), (state::REFUSED, 35));
    assert_eq!(pages[0].detail, "cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL)");
    // Calls are told even so, where they are wanted.
    let mut recorder = Recorder::new(|_| {});
    run(&mut recorder, &["launches", "100"], &[("SIMCUPTI_ENABLE_ERROR", "35,2")]);
    assert_eq!((recorder.told.kernels.len(), recorder.told.correlated.len()), (0, 100));
    assert_eq!(recorder.pages()[0].detail, "cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMSET)");

    let mut recorder = Recorder::new(|_| {});
    run(&mut recorder, &["launches", "100"], &[("SIMCUPTI_SUBSCRIBED", "nsys")]);
    let pages = recorder.pages();
    assert_eq!((pages[0].state, pages[0].code, pages[0].detail.as_str()), (state::OTHER_CLIENT, 39, "cuptiSubscribe"));
    assert_eq!(recorder.told.kernels.len() + recorder.told.correlated.len(), 0);
}
