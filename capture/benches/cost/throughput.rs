//! What recording costs a service end to end: the same requests served alone, recorded, and traced by others.
//!
//! The service launches kernel by kernel from one thread, and the kernels are as long as is said, so that the device is what it
//! waits for, as in most services. The work is the same each time, so what counts is how long it takes; each tracer has its turn in each
//! round, and is compared with the runs alone before and behind it.

use std::io::Read as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use ktape_capture::probes::library::Library;
use ktape_capture::probes::{self, Sites};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::figures::{Middle, Throughput, Traced};
use crate::target::{self, Driver};

/// What the service launches with.
const LAUNCHES: [&str; 2] = ["cuLaunchKernel", "cuLaunchKernelEx"];
/// Requests of a run: about five seconds with kernels of 20 µs.
const REQUESTS: &str = "100";
/// What has been started needs so long to set its probes and begin.
const SETTLED: Duration = Duration::from_secs(2);

/// One length of kernels.
pub(crate) struct Part {
    pub(crate) name: String,
    kernel_ns: u64,
    python: String,
}

/// All of them.
pub(crate) fn parts() -> Vec<Part> {
    let Some((version, python)) = target::pythons().pop() else { return Vec::new() };
    let part = |kernel_ns: u64| Part {
        name: format!("throughput: Python {version} service, kernels of {} µs", kernel_ns / 1000),
        kernel_ns,
        python: python.clone(),
    };
    vec![part(20_000), part(50_000)]
}

/// Who traces.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tracer {
    Capture(&'static [&'static str]),
    PerfRecord,
    Bpftrace,
}

const TRACERS: [(&str, Tracer); 6] = [
    ("capture: every call, Python stacks", Tracer::Capture(&[])),
    ("the same with --launch-durations", Tracer::Capture(&["--launch-durations"])),
    ("the same with --native", Tracer::Capture(&["--native"])),
    ("the same with --max-overhead 1%", Tracer::Capture(&["--max-overhead", "1%"])),
    ("perf record: launches, without stacks", Tracer::PerfRecord),
    ("bpftrace: launches printed, without stacks, at +0", Tracer::Bpftrace),
];

impl Part {
    /// As many rounds as there is time for, one at least.
    pub(crate) fn measure(self, time: Duration) -> Result<Throughput> {
        let driver = Driver::copy_with(self.kernel_ns)?;
        let began = std::time::Instant::now();
        let mut slower: Vec<Vec<f64>> = vec![Vec::new(); TRACERS.len()];
        let mut skipped = vec![None; TRACERS.len()];
        let (mut alone, mut launches) = (Vec::new(), 0);
        while alone.is_empty() || began.elapsed() < time {
            let (mut before, _) = self.run(&driver, &[])?;
            alone.push(before);
            for (index, (_, tracer)) in TRACERS.into_iter().enumerate() {
                if skipped[index].is_some() {
                    continue;
                }
                match self.traced(&driver, tracer) {
                    Ok((seconds, count)) => {
                        let (after, _) = self.run(&driver, &[])?;
                        slower[index].push(100.0 * (2.0 * seconds / (before + after) - 1.0));
                        alone.push(after);
                        (before, launches) = (after, count);
                    }
                    Err(error) => skipped[index] = Some(format!("{error:#}")),
                }
            }
        }
        let alone = Middle::of(alone).context("no run")?;
        Ok(Throughput {
            target: self.name,
            launches,
            launches_per_second: launches as f64 / alone.median,
            alone_seconds: alone,
            traced: TRACERS
                .iter()
                .zip(slower)
                .zip(skipped)
                .map(|(((name, _), slower), skipped)| Traced { name, slower_percent: Middle::of(slower), skipped })
                .collect(),
        })
    }

    /// Serves the requests below such a command, and returns how long that took, and how many launches there were.
    fn run(&self, driver: &Driver, below: &[&str]) -> Result<(f64, u64)> {
        let service = target::python(&self.python, "serve.py");
        let mut command = match below {
            [] => Command::new(service.get_program()),
            [program, options @ ..] => {
                let mut command = Command::new(program);
                command.args(options).arg(service.get_program());
                command
            }
        };
        command.args(service.get_args());
        command.args(["--threads", "1", "--no-graph", "--requests", REQUESTS, "--report", "-"]);
        driver.set_for(&mut command);
        let output = command.stdin(Stdio::null()).output()?;
        ensure!(output.status.success(), "{}: {}", self.name, String::from_utf8_lossy(&output.stderr));
        let report: Value = serde_json::from_slice(&output.stdout)?;
        let calls = |name: &&str| report["calls"][*name].as_u64().unwrap_or(0);
        Ok((report["seconds"].as_f64().context("no time")?, LAUNCHES.iter().map(calls).sum()))
    }

    fn traced(&self, driver: &Driver, tracer: Tracer) -> Result<(f64, u64)> {
        let tape = driver.folder().join("run.ktape").display().to_string();
        let (seconds, launches, counted) = match tracer {
            Tracer::Capture(options) => {
                let begin = [env!("CARGO_BIN_EXE_capture"), "run", "-q", "-o", &tape];
                let (seconds, launches) = self.run(driver, &[&begin[..], options, &["--"]].concat())?;
                (seconds, launches, crate::recorder::launches_on(Path::new(&tape))?)
            }
            Tracer::PerfRecord | Tracer::Bpftrace => {
                let tracing = Tracing::start(tracer, &driver.library(), &driver.folder().join("trace"))?;
                let (seconds, launches) = self.run(driver, &[])?;
                (seconds, launches, tracing.end()?)
            }
        };
        ensure!(counted == launches, "it has {counted} of {launches} launches");
        Ok((seconds, launches))
    }
}

/// A program that traces the service's launches into a file.
struct Tracing {
    tracer: Tracer,
    child: Child,
    file: std::path::PathBuf,
}

impl Tracing {
    fn start(tracer: Tracer, library: &Path, file: &Path) -> Result<Tracing> {
        let (library_path, file_path) = (library.display(), file.display());
        let mut command = match tracer {
            Tracer::Bpftrace => {
                let sites = LAUNCHES.map(|symbol| format!("uprobe:{library_path}:{symbol}")).join(",");
                let program = format!("{sites} {{ printf(\"%llu %d %llx\\n\", nsecs, tid, arg0); }}");
                let mut command = Command::new("bpftrace");
                command.args(["-q", "-o"]).arg(file).args(["-e", &program]);
                command
            }
            _ => {
                let bytes = std::fs::read(library)?;
                let kernel = probes::Kernel::ask().unwrap_or(probes::Kernel::OLD);
                let Sites { sites, .. } = probes::sites(&Library::parse(&bytes[..])?, LAUNCHES, kernel)?;
                let add: String = sites
                    .iter()
                    .map(|site| {
                        let (symbol, offset) = (&site.symbol, site.file_offset);
                        format!("echo 'p:ktape_trace/{symbol} {library_path}:{offset:#x}' >> $events || exit\n")
                    })
                    .collect();
                let script = format!(
                    "mount -t tracefs tracefs /sys/kernel/tracing || exit\n\
                     events=/sys/kernel/tracing/uprobe_events\n{add}\
                     perf record -q -a -m 16M -o {file_path} -e 'ktape_trace:*' -- cat\n\
                     perf script -i {file_path} -F event 2>&1 | grep -c ktape_trace > {file_path}.count\n\
                     for event in {}; do echo \"-:ktape_trace/$event\" >> $events; done",
                    LAUNCHES.join(" "),
                );
                let mut command = Command::new("unshare");
                command.args(["--mount", "sh", "-c", &script]);
                command
            }
        };
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let child = command.spawn().context("it can't be started")?;
        std::thread::sleep(SETTLED);
        Ok(Tracing { tracer, child, file: file.to_owned() })
    }

    /// Ends it, and returns how many launches it has.
    fn end(mut self) -> Result<u64> {
        if self.tracer == Tracer::Bpftrace
            && let Some(pid) = Pid::from_raw(self.child.id() as i32)
        {
            // One that has ended by itself says below why.
            let _ = kill_process(pid, Signal::INT);
        }
        drop(self.child.stdin.take());
        let mut said = String::new();
        if let Some(mut errors) = self.child.stderr.take() {
            errors.read_to_string(&mut said)?;
        }
        self.child.wait()?;
        let text = |path: &Path| std::fs::read_to_string(path).with_context(|| said.trim().replace('\n', "; "));
        Ok(match self.tracer {
            Tracer::Bpftrace => text(&self.file)?.lines().filter(|line| line.split(' ').count() == 3).count() as u64,
            _ => text(&self.file.with_extension("count"))?.trim().parse().with_context(|| said.clone())?,
        })
    }
}
