//! What of the recorder works on this machine, for this user, and what to do about the rest.
//!
//! Everything that can be tried is tried, on a file in memory and in this process: versions lie, as distributions carry features
//! back, and capabilities do not count in a container. [`kernel`] tries, [`surroundings`] looks for libraries and interpreters.

use std::path::Path;

use serde::Serialize;

use crate::probes::Kernel;
use surroundings::{Interpreter, Space, Surroundings};

pub mod kernel;
pub mod surroundings;

/// What a thing is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Need {
    /// Nothing is recorded by probes without it.
    Recording,
    /// Without it, only processes of the same user are recorded.
    OthersProcesses,
    /// Without it, something is slower.
    Speed,
}

/// A thing that is there or not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What it is.
    pub what: &'static str,
    /// What it is wanted for.
    pub need: Need,
    /// Whether it is there; null where that could not be tried.
    pub works: Option<bool>,
    /// What was seen.
    pub seen: String,
    /// What to do, if anything.
    pub fix: Option<&'static str>,
}

/// A way of recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Mode {
    /// As it is called on the command line.
    pub mode: &'static str,
    /// Whether it works here.
    pub works: bool,
    /// What to do, if it does not.
    pub fix: Option<&'static str>,
}

/// All that was found.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Whether recording works at all, by whichever mode.
    pub records: bool,
    /// The ways of recording.
    pub modes: Vec<Mode>,
    /// The things tried.
    pub checks: Vec<Check>,
    /// What probes on `nop`s cost; null where none could be placed.
    pub nops: Option<Kernel>,
    /// Libraries and interpreters.
    #[serde(flatten)]
    pub surroundings: Surroundings,
}

impl Report {
    /// Examines this machine for a recording into a folder.
    pub fn new(folder: &Path) -> Report {
        let tried = kernel::try_all();
        let surroundings = Surroundings::new(folder);
        let checks: Vec<Check> = tried.checks.into_iter().chain([space(&surroundings.space)]).collect();
        let first_missing =
            |needs: &[Need]| checks.iter().find(|check| needs.contains(&check.need) && check.works != Some(true));
        let mode = |mode, needs: &[Need]| match first_missing(needs) {
            None => Mode { mode, works: true, fix: None },
            Some(missing) => Mode { mode, works: false, fix: missing.fix },
        };
        // The interpreter that counts is the target's own, which may be in a container. None here is worth a word, no more.
        let modes = vec![
            mode("run", &[Need::Recording]),
            mode("attach to your processes", &[Need::Recording]),
            mode("attach to anybody's", &[Need::Recording, Need::OthersProcesses]),
            inside(&surroundings),
        ];
        Report { records: modes.iter().any(|mode| mode.works), modes, checks, nops: tried.nops, surroundings }
    }
}

/// What `capture run` does where there can be no probes. A command may have its own CUPTI beside it; one that was found here is sure.
fn inside(found: &Surroundings) -> Mode {
    let fix = match (&found.inside, found.cupti.is_empty()) {
        (None, _) => Some("have libktape_inside.so where capture finds and Python loads it: see FOUND"),
        (Some(_), true) => {
            Some("have CUPTI where Python finds it, name one with --cupti, or take --device-time events")
        }
        (Some(_), false) => None,
    };
    Mode { mode: "run --collector inside", works: fix.is_none(), fix }
}

/// A recorder on a full disk counts what it loses; better that it need not.
fn space(space: &Space) -> Check {
    const LITTLE_BYTES: u64 = 1 << 30;
    let seen = match (space.writable, space.free_bytes) {
        (false, _) => "cannot be written".to_owned(),
        (true, None) => "free space not known".to_owned(),
        (true, Some(bytes)) => format!("{:.1} GiB free", bytes as f64 / f64::from(1 << 30)),
    };
    let works = space.writable && space.free_bytes.is_none_or(|bytes| bytes >= LITTLE_BYTES);
    let fix = (!works).then_some("record into another folder with -o, with 1 GiB free");
    // Not being able to write here hinders nobody who names another place.
    Check { what: "working directory", need: Need::Speed, works: Some(works), seen, fix }
}

impl Interpreter {
    /// Whether its stacks can be read.
    pub fn is_supported(&self) -> bool {
        self.implementation == "cpython"
            && surroundings::supported().any(|version| version == (self.version.0, self.version.1))
    }
}
