//! The proof that nothing is missing: the tape's own account, counted again without the recorder's code.

use std::collections::BTreeMap;
use std::path::Path;

use ktape_format::definition::{property, subject};
use ktape_format::event::{Event, OffCpu, Tally};
use ktape_format::{Contents, Row as _, Table as _, Tape, Wanted};
use serde_json::Value;

use crate::common::with_driver;
use crate::exact;
use crate::processes::{self, Recorder, Scene, Target, pythons};

/// A program that maps the driver, and computes for as many seconds as its argument says.
const SILENT: &str = r#"
import ctypes, sys, time
ctypes.CDLL("libcuda.so.1")
print("mapped", flush=True)
sys.stdin.readline()
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    sum(range(1000))
"#;

/// A program whose two threads launch for as many seconds as its argument says.
const TWO_THREADS: &str = with_driver!(
    r#"
import threading, time
module = handle(cu.cuModuleLoadData, b"SIMCUDA-IMAGE\nkernel gemm\n")
gemm = handle(cu.cuModuleGetFunction, module, b"gemm")
def launches():
    check(cu.cuCtxSetCurrent(handle(cu.cuDevicePrimaryCtxRetain, 0)))
    end = time.monotonic() + float(sys.argv[1])
    while time.monotonic() < end:
        check(cu.cuLaunchKernel(gemm, 1, 1, 1, 1, 1, 1, 0, None, None, None))
        time.sleep(0.001)
threads = [threading.Thread(target=launches) for _ in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"#
);

pub(crate) fn contents(path: &Path) -> Contents {
    let contents = Tape::open(path).expect("a tape").read(&Wanted::default()).expect("it can be read");
    assert_eq!(contents.damage, []);
    contents
}

/// What a tape's account says, held against its rows.
pub(crate) struct Account {
    seen: u64,
    written: u64,
    lost: u64,
    /// Seen, written and lost of each kind.
    pub(crate) of_kinds: BTreeMap<u16, [u64; 3]>,
    /// Intervals by their beginning, and whether they are closed.
    pub(crate) intervals: BTreeMap<i64, bool>,
    cpus: usize,
}

/// Demands that everything in closed intervals adds up: for each processor, kind and interval what was seen, for each kind and
/// interval what is on the tape.
pub(crate) fn account(contents: &Contents) -> Account {
    let events = &contents.events;
    let mut intervals = BTreeMap::<i64, bool>::new();
    let mut written = BTreeMap::<(u16, i64), u64>::new();
    let mut of_kinds = BTreeMap::<u16, [u64; 3]>::new();
    let mut cpus = std::collections::BTreeSet::new();
    for Tally { start_ns, cpu, kind, seen, written: here, lost, left_out, .. } in events.tally.rows() {
        *intervals.entry(start_ns).or_default() |= kind == 0;
        assert_eq!(seen, here + lost + left_out, "kind {kind} on processor {cpu} at {start_ns}");
        *written.entry((kind, start_ns)).or_default() += here;
        let sums = of_kinds.entry(kind).or_default();
        sums.iter_mut().zip([seen, here, lost]).for_each(|(sum, more)| *sum += more);
        if kind != 0 {
            cpus.insert(cpu);
        }
    }
    let mut rows = BTreeMap::<(u16, i64), u64>::new();
    fn count<E: Event>(rows: &mut BTreeMap<(u16, i64), u64>, all: impl Iterator<Item = E>) {
        for row in all {
            // One that was off its processor counts where it came back.
            let time_ns = if E::KIND == OffCpu::KIND { row.end_ns() } else { row.start_ns() };
            *rows.entry((E::KIND, time_ns >> 33 << 33)).or_default() += 1;
        }
    }
    count(&mut rows, events.launch.rows());
    count(&mut rows, events.graph_launch.rows());
    count(&mut rows, events.api.rows());
    count(&mut rows, events.sync.rows());
    count(&mut rows, events.alloc.rows());
    count(&mut rows, events.free.rows());
    count(&mut rows, events.cpu_sample.rows());
    count(&mut rows, events.off_cpu.rows());
    let is_closed = |start_ns: i64| intervals.get(&start_ns).copied().unwrap_or(false);
    for (&(kind, start_ns), &rows) in rows.iter().filter(|((_, start_ns), _)| is_closed(*start_ns)) {
        assert_eq!(written.remove(&(kind, start_ns)), Some(rows), "kind {kind} at {start_ns}");
    }
    written.retain(|(kind, start_ns), count| *kind != 0 && *count > 0 && is_closed(*start_ns));
    assert_eq!(written, BTreeMap::new(), "there are no rows for these");
    let [seen, written, lost] = [0, 1, 2].map(|at| of_kinds.values().map(|sums| sums[at]).sum());
    Account { seen, written, lost, of_kinds, intervals, cpus: cpus.len() }
}

fn blind_spots(contents: &Contents) -> Vec<Value> {
    let json = contents.definitions.property(subject::TAPE, 0, property::BLIND_SPOTS);
    json.map_or_else(Vec::new, |json| serde_json::from_str(json).expect("an array"))
}

#[test]
fn all_that_was_seen_is_on_the_tape_by_processor_kind_and_interval() {
    for python in pythons() {
        let Some(scene) = Scene::new("account") else { return };
        let tape = scene.path("run.ktape");
        let mut run =
            scene.capture(&["run", "--json", "--cpu-hz", "99", "-o", &tape, "--", &python, "-c", TWO_THREADS]);
        let output = run.arg("20").output().expect("capture starts");
        assert!(output.status.success(), "{output:?}");
        let summary: Value = serde_json::from_slice(&output.stdout).expect("a summary");
        let contents = contents(Path::new(&tape));
        let account = account(&contents);
        let samples = contents.events.cpu_sample.len() as u64;
        assert_eq!(account.seen - samples, summary["seen"].as_u64().expect("a number"));
        assert_eq!((account.seen, account.lost), (account.written, 0));
        assert!(account.intervals.len() >= 3, "{:?}", account.intervals);
        assert!(account.intervals.values().all(|is_closed| *is_closed), "{:?}", account.intervals);
        assert!(account.cpus >= 1);
        let of_stacks = ["before_interpreter", "unreadable_stacks", "unknown_stacks"];
        let mut spots = blind_spots(&contents);
        spots.retain(|spot| spot["kind"].as_str().is_none_or(|kind| !of_stacks.contains(&kind)));
        assert_eq!(spots, Vec::<Value>::new());
    }
}

#[test]
fn what_an_overloaded_recorder_loses_is_in_the_account_of_its_interval() {
    for python in pythons() {
        let Some(scene) = Scene::new("account of losses") else { return };
        Recorder::stalled(&scene, &python, "holes.ktape");
        let path = scene.path("holes.ktape");
        let account = account(&contents(Path::new(&path)));
        assert_eq!(account.seen, account.written + account.lost);
        assert_eq!(account.lost, exact::lost(Path::new(&path)), "the loss rows tell of as many");
        assert!(account.lost > 10_000, "{} lost", account.lost);
        assert!(account.intervals.values().all(|is_closed| *is_closed));
    }
}

#[test]
fn the_account_of_a_killed_recorder_holds_as_far_as_it_goes() {
    let Some(python) = pythons().pop() else { return };
    let Some(scene) = Scene::new("account of a killed recorder") else { return };
    let mut target = Target::start(&scene, &python, processes::LAUNCHES);
    let recorder = scene.attach(&target, "cut.ktape");
    let path = scene.path("cut.ktape");
    // As it is being written: whether that can be read everywhere is another test's.
    let has_closed = || {
        let contents = Tape::open(Path::new(&path)).and_then(|tape| tape.read(&Wanted::default()));
        contents.is_ok_and(|contents| contents.events.tally.rows().any(|tally| tally.kind == 0))
    };
    for turn in 1..=320 {
        target.go_on_until(10 * turn);
        std::thread::sleep(std::time::Duration::from_millis(100));
        if turn % 10 == 0 && has_closed() {
            break;
        }
    }
    recorder.kill();
    target.end();
    let account = account(&contents(Path::new(&path)));
    assert!(account.intervals.values().any(|is_closed| *is_closed), "{:?}", account.intervals);
    assert_eq!((account.seen, account.lost), (account.written, 0));
}

#[test]
fn a_recording_that_saw_nothing_of_a_busy_process_says_so() {
    let Some(python) = pythons().pop() else { return };
    let Some(scene) = Scene::new("silent process") else { return };
    let tape = scene.path("run.ktape");
    let silent = |seconds: &str| {
        let mut run = scene.capture(&["run", "-o", &tape, "--", &python, "-c", SILENT, seconds]);
        let output = run.stdin(std::process::Stdio::null()).output().expect("capture starts");
        (output.status.code(), String::from_utf8(output.stderr).expect("text"))
    };
    let (code, said) = silent("7");
    assert_eq!(code, Some(4), "{said}");
    assert!(said.contains("nothing was seen") && said.contains("libcuda.so.1"), "{said}");
    let spots = blind_spots(&contents(Path::new(&tape)));
    assert_eq!(spots.len(), 1, "{spots:?}");
    assert_eq!((&spots[0]["kind"], &spots[0]["count"]), (&"silent_process".into(), &1.into()));
    // One that is over soon may not have come to it.
    assert_eq!(silent("1").0, Some(0));
}

#[test]
fn launches_of_kernels_without_a_name_are_a_blind_spot() {
    let Some(python) = pythons().pop() else { return };
    let Some(scene) = Scene::new("kernels without a name") else { return };
    let program = processes::LAUNCHES.replace(
        r#"handle(cu.cuModuleGetFunction, module, b"gemm"), handle(cu.cuModuleGetFunction, module, b"softmax")
        print"#,
        "print",
    );
    assert_ne!(program, processes::LAUNCHES);
    let mut target = Target::start(&scene, &python, &program);
    let recorder = scene.attach(&target, "late.ktape");
    target.go_on_until(200);
    target.end();
    recorder.wait();
    let contents = contents(Path::new(&scene.path("late.ktape")));
    let spots = blind_spots(&contents);
    let unnamed: Vec<&Value> = spots.iter().filter(|spot| spot["kind"] == "unnamed_kernels").collect();
    assert_eq!(unnamed.len(), 1, "{spots:?}");
    assert_eq!(unnamed[0]["count"], contents.events.launch.len());
}
