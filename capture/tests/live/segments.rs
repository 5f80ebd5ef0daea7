//! Recordings of many segments: what the driver was asked is on one of them, whole, whenever they end.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ktape_format::definition::{Frame, Process, Stack};
use ktape_format::event::clock_kind;
use ktape_format::recording::Recording;
use ktape_format::{Definitions, Row as _, Table as _, Tape, Wanted};

use crate::processes::{self, Scene, pythons};

/// Turns of [`processes::LAUNCHES`], each two launches.
const TURNS: u64 = 60_000;

#[test]
fn segments_that_end_under_load_have_every_launch_once() {
    for python in pythons() {
        let Some(scene) = Scene::new("segments") else { return };
        let directory = scene.path("recording/");
        let mut run = scene.capture(&["run", "--json", "--segment-time", "1h", "-o", &directory, "--"]);
        run.args([python.as_str(), "-c", processes::LAUNCHES, &TURNS.to_string()]);
        let child = run.stdout(std::process::Stdio::piped()).spawn().expect("capture starts");
        // Whenever there is a segment, it has to end.
        let began = Instant::now();
        let mut asked = 0;
        let pid = child.id().cast_signed();
        let segments = || Recording::list(directory.as_ref()).map_or(0, |recording| recording.segments.len());
        while asked < 5 && began.elapsed() < Duration::from_secs(60) {
            if segments() > asked {
                std::thread::sleep(Duration::from_millis(100));
                asked += 1;
                // SAFETY: a signal to a child that is not waited for yet.
                assert_eq!(unsafe { libc::kill(pid, libc::SIGHUP) }, 0);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let output = child.wait_with_output().expect("capture ends");
        assert!(output.status.success(), "{python}: {output:?}");
        let summary: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a summary");
        assert_eq!((&summary["lost"], &summary["tape_lost_events"]), (&0.into(), &0.into()), "{summary}");
        assert_eq!(summary["failure"], serde_json::Value::Null, "{summary}");
        check(&directory);
    }
}

/// Whether the segments have what was launched, and each what its rows refer to.
fn check(directory: &str) {
    let recording = Recording::list(directory.as_ref()).unwrap();
    assert!(recording.segments.len() > 3, "{} segments", recording.segments.len());
    let mut launches = BTreeMap::<String, u64>::new();
    let mut rolled_up = 0;
    for segment in &recording.segments {
        let tape = Tape::open(segment.tape.as_ref().unwrap()).unwrap();
        assert!(tape.is_closed());
        let contents = tape.read(&Wanted::default()).unwrap();
        let definitions = &contents.definitions;
        let clocks = &contents.events.clock.clock;
        assert!(clocks.contains(&clock_kind::UNIX) && clocks.contains(&clock_kind::BOOT), "{clocks:?}");
        for row in contents.events.launch.rows() {
            *launches.entry(definitions.kernel_name(row.shape).to_owned()).or_default() += 1;
            assert_eq!(innermost(definitions, row.stack), "launch");
            assert_eq!(definitions.function_name(row.function), "cuLaunchKernel");
        }
        if !contents.events.launch.is_empty() {
            assert!(definitions.property(Process::KIND, 1, "name").is_some());
        }
        let rollup = Tape::open(segment.rollup.as_ref().unwrap()).unwrap().read(&Wanted::default()).unwrap();
        rolled_up += rollup.events.rollup.rows().filter(|row| row.kernel != 0).map(|row| row.count).sum::<u64>();
    }
    assert_eq!(launches, BTreeMap::from([("gemm".to_owned(), TURNS), ("softmax".to_owned(), TURNS)]));
    assert_eq!(rolled_up, 2 * TURNS);
}

fn innermost(definitions: &Definitions, stack: u32) -> &str {
    let frame = definitions.get::<Stack>(stack).and_then(|stack| definitions.get::<Frame>(stack.frame));
    frame.map_or("", |frame| definitions.string(frame.name))
}
