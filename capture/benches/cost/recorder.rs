//! What the recorder itself takes: it records a whole process, and is watched.
//!
//! Its processor time is read while the target runs, so that its start and end are not in it. What the target does is compared with
//! a run without the recorder, before and after: on a machine that is busy the two runs say how far to trust the third.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use ktape_format::event::Launch;
use ktape_format::{Row as _, Table as _, Tape, Wanted};
use serde_json::Value;

use crate::figures::{Goal, Recording};
use crate::target::{self, Driver};

/// How often the recorder is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// Where its start is over.
const STARTED: Duration = Duration::from_secs(1);

/// A process that is recorded.
pub(crate) struct Part {
    pub(crate) name: String,
    unit: &'static str,
    /// The command for so many seconds.
    command: Box<dyn Fn(u64) -> Result<Command>>,
    /// How much it did, and in how many seconds, by what it reports.
    done: fn(&Value) -> Option<(f64, f64)>,
    most_cores: Option<f64>,
}

/// All of them.
pub(crate) fn parts() -> Vec<Part> {
    let c_loop = |name: &str, threads: u64, rate: Option<u64>, most_cores| Part {
        name: format!("recorder: {name}"),
        unit: "launches a second",
        command: Box::new(move |seconds| {
            let mut command = target::launches()?;
            command.args(["-s", &seconds.to_string(), "-t", &threads.to_string()]);
            rate.map(|rate| command.args(["-r", &rate.to_string()]));
            Ok(command)
        }),
        done: |report| Some((report["launches"].as_f64()?, report["seconds"].as_f64()?)),
        most_cores,
    };
    let mut parts = vec![
        c_loop("C loop at full speed", 1, None, None),
        c_loop("C loop at full speed, four threads", 4, None, None),
        c_loop("C loop at 200,000 launches a second", 1, Some(200_000), Some(0.3)),
        // Each thread at its share.
        c_loop("C loop at 500,000 launches a second, two threads", 2, Some(250_000), None),
    ];
    for (version, program) in target::pythons() {
        parts.push(Part {
            name: format!("recorder: Python {version} service"),
            unit: "tokens a second",
            command: Box::new(move |seconds| {
                let mut command = target::python(&program, "serve.py");
                command.args(["--seconds", &seconds.to_string(), "--report", "-"]).stderr(Stdio::null());
                Ok(command)
            }),
            done: |report| Some((report["tokens"].as_f64()?, report["seconds"].as_f64()?)),
            most_cores: None,
        });
    }
    parts
}

impl Part {
    pub(crate) fn measure(self, time: Duration) -> Result<Recording> {
        let driver = Driver::copy()?;
        let seconds = time.as_secs().max(4);
        let alone = |command: Command| -> Result<f64> {
            let output = on(&driver, command).output()?;
            ensure!(output.status.success(), "{} failed", self.name);
            self.rate(&serde_json::from_slice(&output.stdout)?)
        };
        let before = alone((self.command)(seconds / 4)?)?;
        let tape = driver.folder().join("run.ktape");
        let watched = watch(on(&driver, recorded(&(self.command)(seconds)?, &tape)))?;
        let after = alone((self.command)(seconds / 4)?)?;

        let mut said = serde_json::Deserializer::from_str(&watched.said).into_iter::<Value>();
        let report = said.next().context("the target reported nothing")??;
        let summary = said.next().context("the recorder reported nothing")??;
        let count = |key: &str| summary[key].as_u64().with_context(|| format!("the recorder did not say {key}"));
        let (seen, written) = (count("seen")?, count("written")?);
        let on_tape = OnTape::read(&tape)?;
        if let Some(launches) = report["launches"].as_u64() {
            let OnTape { launches: there, lost } = on_tape;
            ensure!(
                there + lost == launches,
                "of {launches} launches {there} are on the tape, and {lost} told as lost"
            );
        }
        let (_, ran) = (self.done)(&report).context("the target did not say what it did")?;
        let seen_per_second = seen as f64 / ran;
        let recorder_cores = watched.cores;
        let mut goals = vec![
            Goal { what: "lost", at_most: 0.0, is: on_tape.lost as f64 },
            Goal { what: "resident MB", at_most: 100.0, is: watched.most_resident_bytes as f64 / 1e6 },
        ];
        goals.extend(self.most_cores.map(|at_most| Goal { what: "cores", at_most, is: recorder_cores }));
        let troubles = summary["troubles"].as_array().into_iter().flatten();
        Ok(Recording {
            seconds: ran,
            unit: self.unit,
            alone_per_second: (before + after) / 2.0,
            recorded_per_second: self.rate(&report)?,
            seen,
            written,
            lost: on_tape.lost,
            seen_per_second,
            tape_bytes_per_event: count("tape_bytes")? as f64 / written.max(1) as f64,
            recorder_cores,
            recorder_ns_per_event: 1e9 * recorder_cores / seen_per_second,
            most_resident_bytes: watched.most_resident_bytes,
            ring_resident_bytes: watched.ring_resident_bytes,
            wakeups_per_second: watched.wakeups_per_second,
            goals,
            troubles: troubles.filter_map(|trouble| trouble.as_str().map(str::to_owned)).collect(),
            target: self.name,
        })
    }

    fn rate(&self, report: &Value) -> Result<f64> {
        let (done, seconds) = (self.done)(report).context("the target did not say what it did")?;
        Ok(done / seconds)
    }
}

/// What a tape says of its own.
#[derive(Default)]
struct OnTape {
    launches: u64,
    lost: u64,
}

impl OnTape {
    fn read(tape: &Path) -> Result<OnTape> {
        let mut on_tape = OnTape::default();
        let wanted = Wanted { kinds: vec![Launch::KIND], columns: vec!["start_ns"], ..Wanted::default() };
        let damage = Tape::open(tape)?.scan::<anyhow::Error>(&wanted, |_, part| {
            on_tape.launches += part.events.launch.len() as u64;
            on_tape.lost += part.events.loss.rows().map(|loss| loss.count).sum::<u64>();
            Ok(())
        })?;
        ensure!(damage.is_empty(), "the tape is damaged: {damage:?}");
        Ok(on_tape)
    }
}

/// How many launches are on a tape that has lost none.
pub(crate) fn launches_on(tape: &Path) -> Result<u64> {
    let OnTape { launches, lost } = OnTape::read(tape)?;
    ensure!(lost == 0, "{lost} events were lost");
    Ok(launches)
}

fn on(driver: &Driver, mut command: Command) -> Command {
    driver.set_for(&mut command);
    command.stdin(Stdio::null());
    command
}

fn recorded(command: &Command, tape: &Path) -> Command {
    let mut capture = Command::new(env!("CARGO_BIN_EXE_capture"));
    capture.args(["run", "--json", "-o"]).arg(tape).arg("--").arg(command.get_program()).args(command.get_args());
    // Its standard output has what the target says, and then what it says itself.
    capture.stdout(Stdio::piped()).stderr(Stdio::null());
    capture
}

/// What was seen of a recorder.
struct Watched {
    cores: f64,
    wakeups_per_second: f64,
    most_resident_bytes: u64,
    ring_resident_bytes: u64,
    said: String,
}

/// One look at it.
#[derive(Clone, Copy)]
struct Look {
    at: Instant,
    processor: Duration,
    wakeups: u64,
}

fn watch(mut command: Command) -> Result<Watched> {
    let mut child = command.spawn()?;
    let began = Instant::now();
    let (mut first, mut last) = (None, None);
    let (mut most_resident_bytes, mut ring_resident_bytes) = (0, 0);
    while child.try_wait()?.is_none() {
        std::thread::sleep(LOOK);
        // The target is its child: without one it is ending, or gone.
        let pid = child.id();
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        let (false, Some(look)) = (children.trim().is_empty(), look(pid)) else { continue };
        if began.elapsed() >= STARTED {
            first.get_or_insert(look);
        }
        last = Some(look);
        most_resident_bytes = status(pid, "VmHWM:").unwrap_or(0) * 1024;
        if ring_resident_bytes == 0 && began.elapsed() > 3 * STARTED {
            ring_resident_bytes = ring(pid);
        }
    }
    let said = said(child)?;
    let (first, last) = first.zip(last).context("it was over too soon to be watched")?;
    let seconds = (last.at - first.at).as_secs_f64();
    Ok(Watched {
        cores: (last.processor - first.processor).as_secs_f64() / seconds,
        wakeups_per_second: (last.wakeups - first.wakeups) as f64 / seconds,
        most_resident_bytes,
        ring_resident_bytes,
        said,
    })
}

fn said(mut child: Child) -> Result<String> {
    let mut said = String::new();
    std::io::Read::read_to_string(&mut child.stdout.take().context("it is piped")?, &mut said)?;
    Ok(said)
}

/// A look at a process: all its threads together.
fn look(pid: u32) -> Option<Look> {
    let (mut processor, mut wakeups) = (Duration::ZERO, 0);
    for thread in std::fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten() {
        let read = |name: &str| std::fs::read_to_string(thread.path().join(name)).ok();
        // Its first word is the time on a processor, in nanoseconds.
        processor += Duration::from_nanos(read("schedstat")?.split_whitespace().next()?.parse().ok()?);
        wakeups += number(&read("status")?, "voluntary_ctxt_switches:")?;
    }
    Some(Look { at: Instant::now(), processor, wakeups })
}

fn status(pid: u32, key: &str) -> Option<u64> {
    number(&std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?, key)
}

/// The number in the line that begins with this.
fn number(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key))?.split_whitespace().next()?.parse().ok()
}

/// How much of the mappings of eBPF maps is resident.
fn ring(pid: u32) -> u64 {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap_or_default();
    let mut is_map = false;
    let mut kib = 0;
    for line in maps.lines() {
        if line.split_whitespace().next().is_some_and(|word| word.contains('-')) {
            is_map = line.contains("bpf");
        } else if is_map {
            kib += number(line, "Rss:").unwrap_or(0);
        }
    }
    kib * 1024
}
