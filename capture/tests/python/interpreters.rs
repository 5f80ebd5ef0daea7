//! The Pythons of this machine, and one of them at work: `workload.py`, stopped at places it has told of.

use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use serde::{Deserialize, Serialize};

use super::skip;

/// Where the programs of these tests are.
pub(super) const DIRECTORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python");

/// Every different `pythonVERSION` on the path, under pyenv and in target/pythons (fixtures/pythons/setup.sh). Says so if there
/// is none. The version may have the letters of a build behind it: 3.13t is free-threaded, 3.13d a debug build.
pub(super) fn builds_of(version: &str) -> Vec<PathBuf> {
    let name = format!("python{version}");
    let on_path = std::env::var_os("PATH").map(|path| std::env::split_paths(&path).collect::<Vec<_>>());
    let mut directories = on_path.unwrap_or_default();
    let folders_in =
        |folder: PathBuf| std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    if let Ok(root) = Command::new("pyenv").arg("root").output() {
        let versions = Path::new(String::from_utf8_lossy(&root.stdout).trim()).join("versions");
        directories.extend(folders_in(versions).map(|version| version.join("bin")));
    }
    let unpacked = folders_in(Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/pythons"));
    directories.extend(unpacked.flat_map(|python| [python.join("bin"), python.join("usr/bin")]));
    // What it runs, asked of itself: a pyenv shim may run any version or none.
    let ask = "import os, sys, sysconfig; debug = hasattr(sys, 'gettotalrefcount'); \
        free = sysconfig.get_config_var('Py_GIL_DISABLED'); \
        print('%d.%d%s%s' % (*sys.version_info[:2], 't' * bool(free), 'd' * debug), os.path.realpath(sys.executable))";
    let mut builds = Vec::new();
    for candidate in directories.iter().map(|directory| directory.join(&name)).filter(|file| file.exists()) {
        let Ok(output) = Command::new(candidate).args(["-c", ask]).output() else { continue };
        let answer = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if let Some(file) = answer.strip_prefix(&format!("{version} ")).map(PathBuf::from)
            && !builds.contains(&file)
        {
            builds.push(file);
        }
    }
    if builds.is_empty() {
        skip(&format!("there is no {name} here"));
    }
    builds
}

/// A frame as Python tells it: qualified name, file, line.
pub(super) type Told = (String, String, Option<u32>);

/// A thread that has stopped, and the stack it stopped with, innermost frame first.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Stopped {
    pub(super) case: String,
    pub(super) pthread: u64,
    pub(super) stack: Vec<Told>,
}

#[derive(Deserialize)]
struct Cases {
    cases: usize,
}

/// Runs `workload.py` under this relative name: given the path, Python would make it absolute, and images would name this machine.
pub(super) const RUN: &str = "exec(compile(open('workload.py').read(), 'workload.py', 'exec'))";

/// `workload.py` with its threads stopped. Killed when dropped.
pub(super) struct Workload {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    pub(super) stopped: Vec<Stopped>,
}

impl Workload {
    /// Starts it and waits until every thread but the first has told where it stops. It stops right after.
    pub(super) fn start(python: &Path, arguments: &[&str]) -> Self {
        let mut command = Command::new(python);
        command.args(["-c", RUN]).args(arguments);
        Self::of(command)
    }

    /// Starts it by this command, to which [`RUN`] is given already.
    pub(super) fn of(mut command: Command) -> Self {
        let mut child = command
            .current_dir(DIRECTORY)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut workload = Self { child, lines, stopped: Vec::new() };
        let Cases { cases } = serde_json::from_str(&workload.lines.next().unwrap().unwrap()).unwrap();
        for _ in 0..cases {
            workload.next();
        }
        workload
    }

    /// Lets the first thread stop too, with the interpreter lock held: from then on no other can run.
    pub(super) fn hold_the_lock(&mut self) {
        self.child.stdin.take().unwrap().write_all(b"\n").unwrap();
        self.next();
    }

    fn next(&mut self) {
        let line = self.lines.next().unwrap().unwrap();
        self.stopped.push(serde_json::from_str(&line).unwrap());
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Workload {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}
