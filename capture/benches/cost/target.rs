//! A process that launches when it is asked to, on a driver of its own.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;

/// What this project has built: the folder of the stand-in driver, or of the workload in C.
pub(crate) fn built(name: &str) -> Result<PathBuf> {
    let path = root().join("target").join(name);
    ensure!(path.exists(), "no {}: run `make capture-bench`, which builds it", path.display());
    Ok(path)
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The workload in C.
pub(crate) fn launches() -> Result<Command> {
    Ok(Command::new(built("workloads/launches")?))
}

/// A workload in Python.
pub(crate) fn python(interpreter: &str, script: &str) -> Command {
    let mut command = Command::new(interpreter);
    command.arg(root().join("fixtures/workloads").join(script));
    command
}

/// The interpreters that stacks are measured with: what is called like that, or what pyenv has.
pub(crate) fn pythons() -> Vec<(&'static str, String)> {
    let runs =
        |program: &str| Command::new(program).args(["-c", ""]).output().is_ok_and(|output| output.status.success());
    let home = std::env::var("HOME").unwrap_or_default();
    let installed = std::fs::read_dir(Path::new(&home).join(".pyenv/versions")).into_iter().flatten().flatten();
    let installed: Vec<PathBuf> = installed.map(|entry| entry.path()).collect();
    ["3.11", "3.12"]
        .into_iter()
        .filter_map(|version| {
            let of_version = |path: &&PathBuf| {
                path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&format!("{version}.")))
            };
            let mut candidates =
                installed.iter().filter(of_version).map(|path| path.join("bin/python").display().to_string());
            let program = candidates
                .find(|program| runs(program))
                .or_else(|| Some(format!("python{version}")).filter(|program| runs(program)))?;
            Some((version, program))
        })
        .collect()
}

/// A copy of the driver. Probes belong to a file, whoever maps it: so nothing else has those of a target.
pub(crate) struct Driver(TempDir);

impl Driver {
    /// With kernels that are over in no time, so that nothing waits for them.
    pub(crate) fn copy() -> Result<Driver> {
        Driver::copy_with(100)
    }

    /// With kernels that all take so long.
    pub(crate) fn copy_with(kernel_ns: u64) -> Result<Driver> {
        let folder = tempfile::tempdir()?;
        let driver = built("simcuda")?;
        for file in std::fs::read_dir(driver)?.flatten().filter(|file| file.path().is_file()) {
            std::fs::copy(file.path(), folder.path().join(file.file_name()))?;
        }
        std::fs::write(folder.path().join("durations"), format!("* {kernel_ns}\n"))?;
        Ok(Driver(folder))
    }

    pub(crate) fn folder(&self) -> &Path {
        self.0.path()
    }

    /// Has a program use it.
    pub(crate) fn set_for(&self, command: &mut Command) {
        command.env("LD_LIBRARY_PATH", self.folder()).env("SIMCUDA_DURATIONS", self.folder().join("durations"));
    }

    pub(crate) fn library(&self) -> PathBuf {
        self.0.path().join("libcuda.so.1")
    }
}

/// A running target.
pub(crate) struct Target {
    child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
    pub(crate) driver: Driver,
}

impl Target {
    /// Starts a workload that takes requests, and pins it to one processor.
    pub(crate) fn start(mut command: Command) -> Result<Target> {
        let driver = Driver::copy()?;
        driver.set_for(&mut command);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("{:?}", command.get_program()))?;
        let requests = child.stdin.take().context("it is piped")?;
        let answers = BufReader::new(child.stdout.take().context("it is piped")?);
        let mut target = Target { child, requests, answers, driver };
        // Once it answers it has all its threads, so that they can be pinned.
        target.launch(1)?;
        target.pin()?;
        Ok(target)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Has it launch so often. Returns the nanoseconds of processor time of a launch.
    pub(crate) fn launch(&mut self, count: u64) -> Result<f64> {
        writeln!(self.requests, "{count}").context("the target is gone")?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        let took_ns: u64 = line.trim().parse().context("the target gave no answer")?;
        Ok(took_ns as f64 / count as f64)
    }

    /// All its threads to the last processor that is ours: the readers of ring buffers then take another.
    fn pin(&self) -> Result<()> {
        let ours = rustix::thread::sched_getaffinity(None)?;
        let last = (0..rustix::thread::CpuSet::MAX_CPU).rev().find(|&cpu| ours.is_set(cpu));
        let mut one = rustix::thread::CpuSet::new();
        one.set(last.context("no processor")?);
        for thread in std::fs::read_dir(format!("/proc/{}/task", self.pid()))?.flatten() {
            let thread = thread.file_name().to_string_lossy().parse().ok().and_then(rustix::thread::Pid::from_raw);
            rustix::thread::sched_setaffinity(thread, &one)?;
        }
        Ok(())
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
