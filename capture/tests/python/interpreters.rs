//! The Pythons of this machine, and one of them at work: `workload.py`, stopped at places it has told of.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde::{Deserialize, Serialize};

/// Where the programs of these tests are.
pub(super) const DIRECTORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python");

/// Every different `python3.MINOR` on the path and under pyenv. Says so if there is none.
pub(super) fn builds_of(minor: u16) -> Vec<PathBuf> {
    let name = format!("python3.{minor}");
    let on_path = std::env::var_os("PATH").map(|path| std::env::split_paths(&path).collect::<Vec<_>>());
    let mut directories = on_path.unwrap_or_default();
    if let Ok(root) = Command::new("pyenv").arg("root").output() {
        let versions = Path::new(String::from_utf8_lossy(&root.stdout).trim()).join("versions");
        let installed = std::fs::read_dir(versions).into_iter().flatten().flatten();
        directories.extend(installed.map(|version| version.path().join("bin")));
    }
    // What it runs, asked of itself: a pyenv shim may run any version or none.
    let ask = "import os, sys; print(sys.version_info[1], os.path.realpath(sys.executable))";
    let mut builds = Vec::new();
    for candidate in directories.iter().map(|directory| directory.join(&name)).filter(|file| file.exists()) {
        let Ok(output) = Command::new(candidate).args(["-c", ask]).output() else { continue };
        let answer = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if let Some(file) = answer.strip_prefix(&format!("{minor} ")).map(PathBuf::from)
            && !builds.contains(&file)
        {
            builds.push(file);
        }
    }
    if builds.is_empty() {
        eprintln!("skipped: there is no {name} here");
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

/// `workload.py` with all of its threads stopped. Killed when dropped.
pub(super) struct Workload {
    child: Child,
    pub(super) stopped: BTreeMap<String, Stopped>,
}

impl Workload {
    pub(super) fn start(python: &Path, arguments: &[&str]) -> Self {
        let mut child = Command::new(python)
            .arg("workload.py")
            .args(arguments)
            .current_dir(DIRECTORY)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let Cases { cases } = serde_json::from_str(&lines.next().unwrap()).unwrap();
        let mut told: Vec<Stopped> =
            lines.by_ref().take(cases - 1).map(|line| serde_json::from_str(&line).unwrap()).collect();
        child.stdin.take().unwrap().write_all(b"\n").unwrap();
        told.extend(lines.take(1).map(|line| serde_json::from_str::<Stopped>(&line).unwrap()));
        assert_eq!(told.len(), cases, "a thread of the workload failed");
        let stopped = told.into_iter().map(|stopped| (stopped.case.clone(), stopped)).collect();
        Self { child, stopped }
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
