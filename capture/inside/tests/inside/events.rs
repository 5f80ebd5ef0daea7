//! CUDA events around launches, against the truth record of the stand-in driver.

use std::collections::HashMap;
use std::process::Command;
use std::sync::OnceLock;

use ktape_ebpf::inside::{Control, Ran, device_time, missing, state, untimed};
use ktape_ebpf::wire::tally;
use ktape_simcuda_truth::{DeviceKind, Truth};

use super::recorder::{Program, Recorder, assert_ended_well, program};

/// What a kernel's bounds may be off by for the clocks: what lies between two readings of the host's, on a busy machine.
const CLOCKS_NS: u64 = 30_000;
/// What the model needs until the device sees what it is given, and a float's precision.
const MODEL_NS: u64 = 1_100;

/// Where calls are from.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Calls {
    /// CUPTI's callbacks.
    Cupti,
    /// The launches themselves, as CUPTI has another client.
    Launches,
}

const BOTH: [Calls; 2] = [Calls::Cupti, Calls::Launches];

fn client(arguments: &[&str]) -> Option<Command> {
    static PROGRAM: OnceLock<Option<Program>> = OnceLock::new();
    program(&PROGRAM, "events.c", arguments)
}

fn recorder(change: impl FnOnce(&mut Control)) -> Recorder {
    Recorder::new(|control| {
        control.device_time = device_time::EVENTS;
        change(control);
    })
}

/// A kernel as the driver ran it.
#[derive(Clone, Copy, Debug)]
struct Kernel {
    start_ns: u64,
    end_ns: u64,
    /// How long the host took from before the first event to behind the second.
    host_ns: u64,
}

/// What was recorded, and the truth.
struct Run {
    recorder: Recorder,
    output: String,
    /// The launches of all threads, each with what was told of it.
    launches: Vec<(Kernel, Option<Ran>)>,
}

/// Runs the program, and finds for each of its launches what was told.
fn run(calls: Calls, arguments: &[&str], settings: &[(&str, &str)]) -> Option<Run> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("truth");
    let mut recorder = recorder(|control| control.ring_bytes = 1 << 24);
    let mut command = client(arguments)?;
    command.env("SIMCUDA_TRUTH", &path).envs(settings.iter().copied());
    if calls == Calls::Launches {
        command.env("SIMCUPTI_SUBSCRIBED", "nsys");
    }
    let output = recorder.run(&mut command);
    assert_ended_well(&output);
    let truth = Truth::open(&path).unwrap();
    assert_eq!(truth.unrecorded(), 0);
    // The how-manieth launch of its thread has the how-manieth number that this one told.
    let mut numbers = HashMap::<u32, Vec<u32>>::new();
    for told in &recorder.told.correlated {
        numbers.entry(told.pid_tid as u32).or_default().push(told.correlation);
    }
    let ran: HashMap<u32, Ran> = recorder.told.timed.iter().map(|ran| (ran.correlation, *ran)).collect();
    assert_eq!(ran.len(), recorder.told.timed.len(), "each is told once");
    let device: HashMap<u64, (u64, u64)> = truth
        .device()
        .filter(|row| row.kind == DeviceKind::Kernel)
        .map(|row| (row.cause, (row.start_ns, row.end_ns)))
        .collect();
    let mut threads = HashMap::<u32, Vec<ktape_simcuda_truth::Call<'_>>>::new();
    truth.calls().for_each(|call| threads.entry(call.thread).or_default().push(call));
    let mut launches = Vec::new();
    for (thread, calls) in &threads {
        let is_launch = |call: &&[ktape_simcuda_truth::Call<'_>]| call[1].symbol.starts_with("cuLaunchKernel");
        for (nth, call) in
            calls.windows(3).filter(is_launch).filter(|call| device.contains_key(&call[1].sequence)).enumerate()
        {
            let (start_ns, end_ns) = device[&call[1].sequence];
            let host_ns = call[2].end_ns.unwrap() - call[0].start_ns;
            let number = numbers.get(thread).and_then(|numbers| numbers.get(nth));
            let told = number.and_then(|number| ran.get(number)).copied();
            launches.push((Kernel { start_ns, end_ns, host_ns }, told));
        }
    }
    let output = String::from_utf8(output.stdout).unwrap();
    Some(Run { recorder, output, launches })
}

impl Run {
    /// How many of a reason are missing.
    fn missing(&self, why: u32) -> u64 {
        self.recorder.told.missing.iter().filter(|missing| missing.why == why).map(|missing| missing.count).sum()
    }

    /// That each launch has its times, and that they contain the kernel's. Returns by how much they are wider.
    fn all_contain(&self, count: usize) -> Vec<(u64, Kernel)> {
        assert_eq!((self.launches.len(), self.recorder.told.timed.len()), (count, count));
        assert_eq!(self.recorder.counted(tally::KERNEL), (count as u64, 0));
        assert!(self.recorder.told.missing.is_empty(), "{:?}", self.recorder.told.missing);
        let page = &self.recorder.pages()[0];
        assert_eq!(page.timed.0, count as u64);
        assert!(page.timed.1 > 0);
        let wider = self.launches.iter().map(|(kernel, told)| {
            let told = told.unwrap_or_else(|| panic!("nothing is told of {kernel:?}"));
            assert!(told.start_ns <= kernel.start_ns + CLOCKS_NS, "{told:?} {kernel:?}");
            assert!(told.end_ns + CLOCKS_NS >= kernel.end_ns, "{told:?} {kernel:?}");
            let [own, true_ns] = [told.end_ns - told.start_ns, kernel.end_ns - kernel.start_ns];
            // The pair's two ends are on one clock: no reading of the host's matters.
            assert!(own + MODEL_NS >= true_ns, "{told:?} {kernel:?}");
            (own.saturating_sub(true_ns), *kernel)
        });
        wider.collect()
    }
}

#[test]
fn a_pair_of_events_contains_its_kernel_and_is_wider_by_what_the_host_took_at_most() {
    for calls in BOTH {
        let Some(run) = run(calls, &["stream", "600"], &[("SIMCUDA_SEED", "7")]) else { return };
        for (wider_ns, kernel) in run.all_contain(600) {
            assert!(wider_ns <= kernel.host_ns + MODEL_NS, "{calls:?}: {wider_ns} {kernel:?}");
        }
        let expected = if calls == Calls::Cupti { state::RECORDING } else { state::OTHER_CLIENT };
        assert_eq!(run.recorder.pages()[0].state, expected);
        // The device's clock, as CUDA events have it.
        let clocks = &run.recorder.told.clocks;
        assert!(!clocks.is_empty() && clocks.iter().all(|clocks| clocks.device == 1));
    }
}

#[test]
fn four_threads_three_streams_and_both_default_streams_lose_nothing() {
    for calls in BOTH {
        let Some(run) = run(calls, &["threads", "250"], &[]) else { return };
        run.all_contain(4000);
    }
}

#[test]
fn without_any_cupti_launches_tell_of_themselves() {
    let folder = tempfile::tempdir().unwrap();
    let driver = super::recorder::part("simcuda").join("libcuda.so.1");
    if !driver.exists() {
        return super::skip("fixtures/simcuda/build.sh has not run");
    }
    std::os::unix::fs::symlink(driver.canonicalize().unwrap(), folder.path().join("libcuda.so.1")).unwrap();
    let library_path = folder.path().to_str().unwrap().to_owned();
    let Some(run) =
        run(Calls::Launches, &["stream", "100"], &[("LD_LIBRARY_PATH", &library_path), ("SIMCUPTI_SUBSCRIBED", "")])
    else {
        return;
    };
    run.all_contain(100);
    let page = &run.recorder.pages()[0];
    assert_eq!(page.state, state::NO_CUPTI, "{page:?}");
}

#[test]
fn a_capture_under_way_is_not_disturbed_and_what_it_captures_is_counted() {
    let bare = client(&["capture", "50"]).map(|mut command| command.output().unwrap());
    let Some(bare) = bare else { return };
    for calls in BOTH {
        let Some(run) = run(calls, &["capture", "50"], &[]) else { return };
        assert_eq!(run.output.trim(), "100", "nodes of the graph");
        assert_eq!(run.output.as_bytes(), bare.stdout);
        assert_eq!(run.launches.len(), 250);
        assert_eq!(run.recorder.told.timed.len(), 250);
        assert_eq!(run.recorder.pages()[0].untimed[untimed::CAPTURED], 100);
        assert!(run.recorder.told.missing.is_empty(), "{:?}", run.recorder.told.missing);
    }
}

#[test]
fn contexts_that_end_are_read_before_and_their_handles_may_be_others() {
    let Some(run) = run(Calls::Launches, &["contexts", "6"], &[]) else { return };
    assert!(run.output.trim().parse::<u32>().unwrap() > 0, "no handle came again: {}", run.output);
    // Of those that were waited for all is told. The others were under way when their context ended.
    let told = run.launches.iter().filter(|(_, told)| told.is_some()).count() as u64;
    assert_eq!(run.launches.len(), 1200);
    assert_eq!(told + run.missing(missing::CUT_OFF), 1200);
    assert!(told >= 900, "{told}");
    for (kernel, told) in run.launches.iter().filter_map(|(kernel, told)| Some((kernel, (*told)?))) {
        assert!(
            told.start_ns <= kernel.start_ns + CLOCKS_NS && told.end_ns + CLOCKS_NS >= kernel.end_ns,
            "{told:?} {kernel:?}"
        );
    }
}

#[test]
fn launches_for_which_no_event_is_free_are_counted() {
    let durations = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(durations.path(), "gemm 200000\n").unwrap();
    let settings = [("SIMCUDA_DURATIONS", durations.path().to_str().unwrap())];
    let Some(run) = run(Calls::Launches, &["many", "12000"], &settings) else { return };
    let missed = run.missing(missing::NO_EVENT);
    assert!(missed > 0);
    assert_eq!(run.recorder.told.timed.len() as u64 + missed, 12_100);
    // When the others are over their events are free again.
    assert!(run.launches[12_000..].iter().all(|(_, told)| told.is_some()));
}

#[test]
fn a_launch_that_is_refused_gives_its_events_back() {
    for calls in BOTH {
        let Some(run) = run(calls, &["refused", "3000"], &[]) else { return };
        assert!(run.recorder.told.missing.is_empty(), "{:?}", run.recorder.told.missing);
        // Twice as many have asked for a pair: were those of refused launches lost, there would not be enough.
        assert_eq!(run.recorder.told.timed.len(), 3000);
    }
}

#[test]
fn graphs_are_counted_and_have_no_times() {
    let Some(run) = run(Calls::Cupti, &["graphs", "20"], &[]) else { return };
    let page = &run.recorder.pages()[0];
    assert_eq!(page.untimed[untimed::GRAPH], 20);
    assert_eq!((page.untimed[untimed::CAPTURED], page.timed.0), (3, 0));
    assert!(run.recorder.told.timed.is_empty());
}

#[test]
fn a_forked_child_launches_as_it_would_have() {
    let Some(run) = run(Calls::Launches, &["fork", "100"], &[]) else { return };
    run.all_contain(300);
}

#[test]
fn where_the_loader_has_not_preloaded_the_library_it_says_so() {
    let mut recorder = recorder(|_| {});
    let Some(mut command) = client(&["stream", "100"]) else { return };
    assert_ended_well(&recorder.run_by("CUDA_INJECTION64_PATH", &mut command));
    assert_eq!((recorder.told.timed.len(), recorder.told.correlated.len()), (0, 100));
    assert_eq!(recorder.pages()[0].state, state::NOT_PRELOADED);
}

#[test]
fn where_the_driver_loads_another_tool_the_first_launch_is_the_beginning() {
    let mut recorder = recorder(|_| {});
    let Some(mut command) = client(&["stream", "100"]) else { return };
    assert_ended_well(&recorder.run_by("LD_PRELOAD", &mut command));
    // Of calls launches tell alone: CUPTI is the other tool's.
    assert_eq!(recorder.pages()[0].state, state::OTHER_CLIENT);
    assert_eq!((recorder.told.timed.len(), recorder.told.correlated.len()), (100, 100));
    assert_eq!(recorder.counted(tally::KERNEL), (100, 0));
}

#[test]
fn what_else_is_asked_for_by_name_is_the_c_librarys_to_answer() {
    let Some(run) = run(Calls::Launches, &["names"], &[]) else { return };
    assert_eq!(run.output.trim(), "1 1 1 1 1 1");
    // Without a recorder the real ones are handed out. The stand-in driver has its own from the loader, which knows of ours first.
    let output = client(&["names"]).unwrap().env("LD_PRELOAD", super::recorder::library()).output().unwrap();
    assert_ended_well(&output);
    assert!(["1 1 0 1 1 1", "1 1 1 1 1 1"].contains(&String::from_utf8_lossy(&output.stdout).trim()));
    // With one that wants something else all is as it wants it.
    let mut recorder = Recorder::new(|_| {});
    assert_ended_well(&recorder.run(client(&["stream", "100"]).unwrap().env("LD_PRELOAD", super::recorder::library())));
    assert_eq!((recorder.told.kernels.len(), recorder.told.timed.len(), recorder.told.correlated.len()), (100, 0, 100));
}
