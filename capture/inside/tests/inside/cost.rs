//! What the library says that it takes of a process.

use ktape_ebpf::inside::overhead;

use super::recorder::{Recorder, assert_ended_well, client};

#[test]
fn each_call_is_counted_and_a_sample_of_them_says_what_they_take() {
    let mut recorder = Recorder::new(|_| {});
    let Some(mut command) = client(&["threads", "4", "20000"]) else { return };
    assert_ended_well(&recorder.run(&mut command));
    let cost = &recorder.pages()[0].cost;
    // Each launch is an entry and a return.
    assert_eq!(cost.own_calls, 2 * 4 * 20_000);
    // How much it is depends on the machine, but not by orders of magnitude.
    let call_ns = cost.own_ns / cost.own_calls;
    assert!((10..20_000).contains(&call_ns), "{call_ns} ns");
    assert!(cost.keeper_ns > 0 && cost.cupti_threads_ns > 0, "{cost:?}");
    assert!(cost.own_ns + cost.keeper_ns + cost.cupti_threads_ns < 2 * cost.process_ns, "{cost:?}");
}

/// Beside probes threads have no rings, as they only announce their calls.
#[test]
fn calls_that_are_only_announced_are_counted_too() {
    let mut recorder = Recorder::new(|control| (control.calls, control.announce) = (0, 1));
    let Some(mut command) = client(&["threads", "4", "5000"]) else { return };
    assert_ended_well(&recorder.run(&mut command));
    let cost = &recorder.pages()[0].cost;
    assert_eq!((cost.own_calls, recorder.told.kernels.len()), (2 * 4 * 5000, 4 * 5000));
    assert!(cost.own_ns > 0 && cost.cupti_threads_ns > 0, "{cost:?}");
}

#[test]
fn what_cupti_says_of_itself_is_added_up_by_its_sort_in_all_versions() {
    for version in ["18", "28", "130500"] {
        let mut recorder = Recorder::new(|_| {});
        let Some(mut command) = client(&["launches", "20000"]) else { return };
        command.envs([("SIMCUPTI_API", version), ("SIMCUPTI_OVERHEAD", "2")]);
        assert_ended_well(&recorder.run(&mut command));
        let mut told = recorder.pages()[0].cost.overhead_ns.clone();
        let mut made_up: Vec<u64> = (1..=10).map(|sort| 1000 * sort * 1000).collect();
        // Besides, it says what its flushes take.
        let flush = overhead::index(1 << 16);
        assert!(told[flush] >= made_up[flush], "{version}: {told:?}");
        (told[flush], made_up[flush]) = (0, 0);
        assert_eq!(told, made_up, "{version}");
        assert!(recorder.told.missing.is_empty());
    }
}

#[test]
fn a_cupti_that_does_not_say_what_it_costs_is_as_good() {
    let mut recorder = Recorder::new(|_| {});
    let Some(mut command) = client(&["launches", "1000"]) else { return };
    command.envs([("SIMCUPTI_ENABLE_ERROR", "21,17"), ("SIMCUPTI_OVERHEAD", "1")]);
    assert_ended_well(&recorder.run(&mut command));
    assert_eq!(recorder.told.kernels.len(), 1000);
    assert_eq!(recorder.pages()[0].cost.overhead_ns, [0; overhead::NAMES.len()]);
}
