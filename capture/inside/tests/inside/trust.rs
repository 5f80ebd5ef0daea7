//! Somebody's server goes on as it was, whatever happens to it, to the library in it, and to the recorder.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ktape_ebpf::inside::ring::HEADER_BYTES;
use ktape_ebpf::inside::{Control, LAYOUT, PROCESS_SUFFIX, RING_SUFFIX, state};
use ktape_ebpf::wire::tally;

use super::recorder::{Recorder, assert_ended_well, client, library};

/// How often the program says that it launched.
fn said(output: &std::process::Output) -> usize {
    String::from_utf8_lossy(&output.stdout).trim().parse().unwrap()
}

#[test]
fn two_hundred_threads_have_a_ring_each_and_lose_nothing_uncounted() {
    let mut recorder = Recorder::new(|control| control.ring_bytes = 1 << 17);
    let Some(mut command) = client(&["threads", "200", "50"]) else { return };
    assert_ended_well(&recorder.run(&mut command));
    // Each thread's own ring has room for all of its calls; the kernels all come through the one of CUPTI's thread.
    assert_eq!((recorder.told.calls, recorder.counted(1)), (10_000, (10_000, 0)));
    let (seen, lost) = recorder.counted(tally::KERNEL);
    assert_eq!((seen, recorder.told.kernels.len() as u64 + lost), (10_000, 10_000));
    let ended = recorder.rings().filter(|ring| ring.header().ended.load(Ordering::Relaxed) == 1).count();
    assert!(ended >= 200, "{ended}");
}

#[test]
fn what_a_process_did_before_it_ends_without_a_word_is_there() {
    // `_exit` runs no handler. What CUPTI still had is gone; what calls told is not.
    let mut recorder = Recorder::new(|_| {});
    let Some(mut command) = client(&["_exit", "5000"]) else { return };
    let output = recorder.run(&mut command);
    assert_eq!(output.status.code(), Some(7));
    assert_eq!((recorder.told.calls, recorder.counted(1)), (5000, (5000, 0)));
    assert!(recorder.told.kernels.len() <= 5000);
}

#[test]
fn a_process_killed_in_the_middle_leaves_whole_records() {
    for after_ms in [60, 110, 230] {
        let mut recorder = Recorder::new(|control| control.flush_ms = 5);
        let Some(mut command) = client(&["for", "20000"]) else { return };
        let mut killed = None;
        let mut begun = None;
        let output = recorder.run_with(&mut command, |recorder, pid| {
            if !recorder.told.kernels.is_empty() {
                let begun = *begun.get_or_insert_with(Instant::now);
                if killed.is_none() && begun.elapsed() > Duration::from_millis(after_ms) {
                    // SAFETY: no pointers.
                    killed = Some(unsafe { libc::kill(pid as i32, libc::SIGKILL) });
                }
            }
        });
        assert!(!output.status.success() && killed == Some(0));
        // `take` has read all rings to their ends without finding one broken.
        let (seen, lost) = recorder.counted(tally::KERNEL);
        let told = recorder.told.kernels.len() as u64;
        // One may have been counted as seen and not been put yet.
        assert!(seen - lost == told || seen - lost == told + 1, "{seen} {lost} {told}");
    }
}

/// Has the recorder go while the program launches: what it does then, and how many launches there were and were told.
fn gone(go: impl Fn(&mut Recorder)) -> Option<(Recorder, usize, usize)> {
    let mut recorder = Recorder::new(|_| {});
    let mut command = client(&["for", "3000"])?;
    let [mut gone, mut quiet] = [None; 2];
    let output = recorder.run_with(&mut command, |recorder, _| {
        if gone.is_none() && recorder.told.kernels.len() > 1000 {
            gone = Some(Instant::now());
            go(recorder);
        }
        if gone.is_some() && quiet.is_none() && recorder.pages()[0].state == state::QUIET {
            quiet = Some(Instant::now());
        }
    });
    assert_ended_well(&output);
    let behind = quiet.expect("it never went quiet") - gone.unwrap();
    assert!(behind < Duration::from_secs(2), "{behind:?}");
    let told = recorder.told.calls;
    Some((recorder, said(&output), told))
}

#[test]
fn when_the_recorder_dies_the_library_goes_quiet_and_gives_its_memory_back() {
    let Some((recorder, launched, told)) = gone(Recorder::die) else { return };
    assert!(launched > told);
    for ring in recorder.files(RING_SUFFIX) {
        let blocks = fs::metadata(&ring).unwrap().blocks();
        assert!(blocks * 512 < HEADER_BYTES as u64, "{} has {blocks} blocks", ring.display());
    }
}

#[test]
fn when_the_recorder_ends_it_is_told_what_there_is_and_then_nothing() {
    let Some((recorder, launched, told)) = gone(|recorder| recorder.control().ended.store(1, Ordering::Relaxed)) else {
        return;
    };
    assert!(launched > told);
    let (seen, lost) = recorder.counted(tally::KERNEL);
    assert_eq!(seen - lost, recorder.told.kernels.len() as u64);
}

#[test]
fn a_forked_child_is_inert_and_hangs_nowhere() {
    let mut recorder = Recorder::new(|_| {});
    let Some(mut command) = client(&["fork", "5000"]) else { return };
    assert_ended_well(&recorder.run(&mut command));
    // What the parent's eight threads told is whole, and no child has added to it, though each was forked in the middle of launches.
    let (seen, lost) = recorder.counted(1);
    assert_eq!((seen, recorder.told.calls as u64 + lost), (40_000, 40_000));
    let (pid, page) = (recorder.rings().next().unwrap().header().pid, &recorder.pages()[0]);
    assert!(recorder.rings().all(|ring| ring.header().pid == pid), "a child has a ring");
    assert_eq!((page.state, page.cost.own_calls), (state::RECORDING, 2 * 40_000));
    assert_eq!(recorder.files(PROCESS_SUFFIX).len(), 1);
}

#[test]
fn a_program_that_execs_is_two_programs() {
    let mut recorder = Recorder::new(|control| control.follow = 1);
    let Some(mut command) = client(&["exec", "1000"]) else { return };
    assert_ended_well(&recorder.run(&mut command));
    assert_eq!((recorder.told.kernels.len(), recorder.told.correlated.len()), (2000, 2000));
    // Its page is the second one's.
    assert_eq!(recorder.files(PROCESS_SUFFIX).len(), 1);
}

#[test]
fn children_have_the_environment_that_they_would_have_had() {
    let environment = |output: std::process::Output| {
        assert_ended_well(&output);
        let text = String::from_utf8(output.stdout).unwrap();
        let mut lines: Vec<String> = text.lines().filter(|line| !line.starts_with("_=")).map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let Some(mut command) = client(&["environment"]) else { return };
    let without = environment(command.output().unwrap());
    let mut recorder = Recorder::new(|_| {});
    assert_eq!(environment(recorder.run(&mut client(&["environment"]).unwrap())), without);
    let mut recorder = Recorder::new(|control| control.follow = 1);
    let with = environment(recorder.run(&mut client(&["environment"]).unwrap()));
    let more: Vec<&String> = with.iter().filter(|line| !without.contains(line)).collect();
    assert!(
        more.len() == 2 && more[0].starts_with("CUDA_INJECTION64_PATH=") && more[1].starts_with("KTAPE_INSIDE="),
        "{more:?}"
    );
}

#[test]
fn only_the_recorder_s_own_child_is_recorded_where_that_is_asked_for_whoever_has_the_variables() {
    let mut recorder = Recorder::new(|control| control.parent = 1);
    let Some(mut command) = client(&["launches", "100"]) else { return };
    assert_ended_well(&recorder.run(&mut command));
    assert_eq!((recorder.files(PROCESS_SUFFIX).len(), recorder.told.kernels.len()), (0, 0));
    let mut recorder = Recorder::new(|control| control.parent = std::process::id());
    assert_ended_well(&recorder.run(&mut client(&["child", "100"]).unwrap()));
    assert_eq!((recorder.files(PROCESS_SUFFIX).len(), recorder.told.kernels.len()), (1, 100));
    // A child that has them all the same, with nothing said against it.
    let mut recorder = Recorder::new(|_| {});
    assert_ended_well(&recorder.run(&mut client(&["child", "100"]).unwrap()));
    assert_eq!((recorder.files(PROCESS_SUFFIX).len(), recorder.told.kernels.len()), (2, 200));
}

#[test]
fn the_librarys_thread_runs_none_of_the_programs_handlers() {
    let mut recorder = Recorder::new(|_| {});
    let Some(mut command) = client(&["whose"]) else { return };
    let output = recorder.run(&mut command);
    assert_ended_well(&output);
    assert_eq!(said(&output), 0);
}

#[test]
fn closing_the_library_does_not_unmap_it() {
    let mut recorder = Recorder::new(|_| {});
    let Some(mut command) = client(&["dlclose", "50"]) else { return };
    assert_ended_well(&recorder.run(command.env("LIBRARY", library())));
    assert_eq!(recorder.told.kernels.len(), 150);
}

#[test]
fn a_program_that_closes_and_reuses_all_descriptors_is_recorded_on() {
    let mut recorder = Recorder::new(|_| {});
    let Some(mut command) = client(&["closed", "1000"]) else { return };
    assert_ended_well(&recorder.run(&mut command));
    assert_eq!((recorder.told.kernels.len(), recorder.told.correlated.len()), (1001, 1001));
}

#[test]
fn without_a_recorder_that_it_understands_the_program_is_as_without_the_library() {
    for (why, layout, ring_bytes) in [("layout 99", 99, 4096), ("makes no sense", LAYOUT, 100)] {
        let change = |control: &mut Control| (control.layout, control.ring_bytes) = (layout, ring_bytes);
        let mut recorder = Recorder::new(change);
        let Some(mut command) = client(&["launches", "100"]) else { return };
        let output = recorder.run(&mut command);
        assert!(output.status.success());
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.starts_with("ktape: this process is not recorded from inside: ") && said.contains(why), "{said}");
        assert_eq!(said.lines().count(), 1);
    }
    // A recorder that is dead already, and one that is gone with its directory: not worth a word.
    let mut recorder = Recorder::new(|_| {});
    recorder.die();
    assert_ended_well(&recorder.run(&mut client(&["launches", "100"]).unwrap()));
    assert_eq!(recorder.files(PROCESS_SUFFIX).len(), 0);
    let mut command = client(&["launches", "100"]).unwrap();
    let output = command.env("CUDA_INJECTION64_PATH", library()).env("KTAPE_INSIDE", "/nowhere").output().unwrap();
    assert_ended_well(&output);
}

#[test]
fn files_are_the_users_own() {
    use std::os::unix::fs::PermissionsExt as _;
    let mut recorder = Recorder::new(|_| {});
    let Some(mut command) = client(&["launches", "100"]) else { return };
    assert_ended_well(&recorder.run(&mut command));
    for file in [recorder.files(PROCESS_SUFFIX), recorder.files(RING_SUFFIX)].concat() {
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600, "{}", file.display());
    }
}

#[test]
fn a_view_is_at_most_a_second_behind() {
    let mut recorder = Recorder::new(|control| control.flush_ms = 100);
    let Some(mut command) = client(&["wait", "1500"]) else { return };
    let mut behind = None;
    let mut begun = None;
    assert_ended_well(&recorder.run_with(&mut command, |recorder, _| {
        if recorder.told.correlated.len() >= 100 {
            begun.get_or_insert_with(Instant::now);
        }
        if recorder.told.kernels.len() == 100 && behind.is_none() {
            behind = begun.map(|begun| begun.elapsed());
        }
    }));
    assert!(behind.is_some_and(|behind| behind < Duration::from_secs(1)), "{behind:?}");
}

/// A profiler that the program itself starts comes later than the library.
#[test]
fn a_profiler_that_comes_later_is_kept_out_only_where_calls_are_told() {
    for (calls, answer) in [(0, "0"), (1, "39")] {
        let mut recorder = Recorder::new(|control| control.calls = calls);
        let Some(mut command) = client(&["profiler", "100"]) else { return };
        let output = recorder.run(&mut command);
        assert_ended_well(&output);
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), answer);
        assert_eq!(recorder.told.kernels.len(), 100);
    }
}

/// One that comes where only device times are wanted has its own buffers, and goes on when the recorder ends.
#[test]
fn a_client_that_came_later_keeps_its_records_when_the_recorder_ends() {
    let mut recorder = Recorder::new(|control| control.calls = 0);
    let Some(mut command) = client(&["later", "1000"]) else { return };
    let mut began = None;
    let output = recorder.run_with(&mut command, |recorder, _| {
        let began = began.get_or_insert_with(Instant::now);
        if began.elapsed() > Duration::from_millis(500) {
            recorder.control().ended.store(1, Ordering::Release);
        }
    });
    assert_ended_well(&output);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let numbers: Vec<u64> = said.split_whitespace().map(|number| number.parse().unwrap()).collect();
    assert!(numbers[0] > 500 && numbers[0] == numbers[1], "launches and kernels of the other: {said}");
    assert_eq!(recorder.told.kernels.len(), 100, "those before it came");
    let page = &recorder.pages()[0];
    assert_eq!(page.state, state::LEFT_ENABLED, "{page:?}");
    assert!(page.detail.contains("libcupti.so.12"), "{page:?}");
}

#[test]
fn a_process_that_exits_is_not_kept_for_long_by_what_never_completes() {
    let mut recorder = Recorder::new(|_| {});
    let Some(mut command) = client(&["launches", "100"]) else { return };
    let begun = Instant::now();
    assert_ended_well(&recorder.run(command.env("SIMCUPTI_LATE_MS", "60000")));
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    assert_eq!(recorder.told.correlated.len(), 100);
}
