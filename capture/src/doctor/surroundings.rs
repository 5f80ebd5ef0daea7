//! What there is to be recorded: CUDA libraries, processes that use them, Python interpreters; and room for the tape.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{Access, access, statvfs};
use serde::Serialize;

use ktape_ebpf::python::LAYOUTS;

use crate::record::inside;
use crate::target::libraries::{Kind, kind_of};
use crate::target::{loader, maps, process};

/// The versions of CPython whose stacks are recorded.
pub(super) fn supported() -> impl Iterator<Item = (u32, u32)> {
    // A free-threaded build has a row of its own beside the other's.
    let rows = LAYOUTS.iter().filter(|layout| layout.free_threaded == 0);
    rows.map(|layout| (u32::from(layout.version >> 8), u32::from(layout.version & 0xff)))
}

/// What was found.
#[derive(Debug, Serialize)]
pub struct Surroundings {
    /// Copies that a Python started here would load.
    pub libraries: Vec<Found>,
    /// Copies of CUPTI that it would load, for `--device-time cupti`.
    pub cupti: Vec<PathBuf>,
    /// The library that is loaded into processes for that; null where there is none of this version.
    pub inside: Option<PathBuf>,
    /// Why there is none.
    pub no_inside: Option<String>,
    /// Running processes that have one mapped, as far as can be seen.
    pub processes: Vec<User>,
    /// The interpreters on `PATH`.
    pub interpreters: Vec<Interpreter>,
    /// Where the tape would go.
    pub space: Space,
}

/// A copy of a library.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Found {
    /// Which.
    pub kind: Kind,
    /// Where.
    pub path: PathBuf,
}

/// A process that uses CUDA.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct User {
    /// Its number.
    pub pid: u32,
    /// Its main thread's name.
    pub name: String,
}

/// A Python.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Interpreter {
    /// Its program.
    pub path: PathBuf,
    /// `cpython`, `pypy` and so on.
    pub implementation: String,
    /// Major, minor, micro.
    pub version: (u32, u32, u32),
    /// Whether its stacks can be read.
    pub supported: bool,
}

/// Where the tape would go.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Space {
    /// The folder.
    pub folder: PathBuf,
    /// Whether files can be made there.
    pub writable: bool,
    /// What this user may still fill; null for not known.
    pub free_bytes: Option<u64>,
}

impl Surroundings {
    /// Looks around.
    pub(super) fn new(folder: &Path) -> Surroundings {
        let interpreters = interpreters();
        let program = interpreters.first().map_or(Path::new("python3"), |python| &python.path);
        let inside = inside::find_library().and_then(|library| match interpreters.first() {
            Some(python) => inside::can_load(&python.path, &library).map(|()| library),
            None => Ok(library),
        });
        let inside = inside.map_err(|error| format!("{error:#}"));
        let libraries = loader::candidates(program, |name| std::env::var_os(name)).into_iter();
        Surroundings {
            libraries: libraries.map(|library| Found { kind: library.kind, path: library.path }).collect(),
            cupti: loader::cupti(program, |name| std::env::var_os(name)),
            no_inside: inside.as_ref().err().cloned(),
            inside: inside.ok(),
            processes: users(),
            interpreters,
            space: Space {
                folder: folder.to_owned(),
                writable: access(folder, Access::WRITE_OK).is_ok(),
                free_bytes: statvfs(folder).ok().map(|facts| facts.f_bavail.saturating_mul(facts.f_frsize)),
            },
        }
    }
}

/// Others' processes are left out where their mappings cannot be seen.
fn users() -> Vec<User> {
    let uses = |pid| {
        let mappings = maps::of(pid).ok()?;
        mappings.iter().find(|one| one.is_file() && kind_of(&one.path).is_some())?;
        Some(User { pid, name: process::thread_name(pid, pid).ok()? })
    };
    process::all().unwrap_or_default().into_iter().filter_map(uses).collect()
}

/// The interpreters that `python3` and its kin on `PATH` start, each once. A name may be a script that chooses one (pyenv has
/// such), so the interpreter itself is asked.
fn interpreters() -> Vec<Interpreter> {
    let minor = |version: &(u32, u32)| format!("python{}.{}", version.0, version.1);
    let names =
        ["python3".to_owned(), "python".to_owned()].into_iter().chain(supported().map(|version| minor(&version)));
    // One that has several names calls itself by the one it was started by.
    let is_same = |a: &Interpreter, b: &Interpreter| a.path.canonicalize().ok() == b.path.canonicalize().ok();
    let mut found: Vec<Interpreter> = Vec::new();
    for name in names {
        let program = loader::find_program(Path::new(&name), std::env::var_os("PATH"));
        if let Some(one) = program.as_deref().and_then(ask)
            && !found.iter().any(|other| is_same(other, &one))
        {
            found.push(one);
        }
    }
    found
}

const QUESTION: &str = "import sys; print(sys.implementation.name, *sys.version_info[:3], sys.executable)";

fn ask(program: &Path) -> Option<Interpreter> {
    // -I -S: nothing of the user's is run.
    let mut question = Command::new(program);
    question.args(["-I", "-S", "-c", QUESTION]).stdin(Stdio::null()).stderr(Stdio::null());
    parse(std::str::from_utf8(&question.output().ok()?.stdout).ok()?)
}

fn parse(answer: &str) -> Option<Interpreter> {
    let mut words = answer.trim_end().splitn(5, ' ');
    let implementation = words.next()?.to_owned();
    let mut number = || words.next()?.parse().ok();
    let version = (number()?, number()?, number()?);
    let path = PathBuf::from(words.next()?);
    let mut found = Interpreter { path, implementation, version, supported: false };
    found.supported = found.is_supported();
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_interpreter_answers() {
        let found = parse("cpython 3 11 7 /opt/a b/python3\n").expect("an interpreter");
        assert_eq!((found.path.to_str(), found.version, found.supported), (Some("/opt/a b/python3"), (3, 11, 7), true));
        assert!(!parse("cpython 3 7 1 /p").expect("an interpreter").supported);
        assert!(!parse("pypy 3 11 1 /p").expect("an interpreter").supported);
        assert_eq!(parse("pyenv: python3: command not found"), None);
    }
}
