//! Where a test happens: a folder, the stand-ins, a Python that any user may run, and `capture` without privileges.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use ktape_format::{Contents, Tape, Wanted};
use ktape_simcuda_truth::Truth;

use super::common;

/// The user that has nothing.
const NOBODY: u32 = 65_534;
pub(crate) const PYTHON: &str = "/usr/bin/python3";

/// A folder.
pub(crate) struct Scene {
    folder: tempfile::TempDir,
    driver: PathBuf,
    library: PathBuf,
}

/// How a recording ended.
pub(crate) struct Outcome {
    pub(crate) summary: serde_json::Value,
    pub(crate) said: String,
}

impl Scene {
    /// A folder; `None`, and said, where something is not here.
    pub(crate) fn new(test: &str) -> Option<Scene> {
        let capture = Path::new(env!("CARGO_BIN_EXE_capture"));
        let driver = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/simcuda").canonicalize().ok();
        let library = capture.with_file_name("libktape_inside.so");
        let driver = driver.filter(|driver| driver.join("libcuda.so.1").exists());
        let missing = [
            (driver.is_none(), "no stand-in driver: run fixtures/simcuda/build.sh"),
            (
                !driver.as_ref().is_some_and(|driver| driver.join("libcupti.so.12").exists()),
                "no stand-in CUPTI: run fixtures/simcuda/build.sh",
            ),
            (!library.exists(), "no library inside: run cargo build -p ktape-inside"),
            (!Path::new(PYTHON).exists(), "no /usr/bin/python3"),
        ];
        if let Some((_, why)) = missing.iter().find(|(is_missing, _)| *is_missing) {
            skip(&format!("{test}: {why}"));
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).expect("ours");
        Some(Scene { folder, driver: driver?, library })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Where the stand-in driver is.
    pub(crate) fn driver(&self) -> &Path {
        &self.driver
    }

    /// `capture run` of a program of Python, by a user without privileges.
    pub(crate) fn command(&self, options: &[&str], program: &str, arguments: &[&str]) -> Command {
        self.command_onto("run.ktape", options, program, arguments)
    }

    /// The same, onto a tape or directory of this name.
    pub(crate) fn command_onto(&self, name: &str, options: &[&str], program: &str, arguments: &[&str]) -> Command {
        let mut command = self.command_of(name, options, Path::new(PYTHON));
        command.args(["-c", program]).args(arguments);
        command
    }

    /// The same of any program.
    pub(crate) fn command_of(&self, name: &str, options: &[&str], program: &Path) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_capture"));
        command.arg("run").args(["--json", "-o"]).arg(self.path(name)).args(options).arg("--").arg(program);
        command
            .current_dir(self.folder.path())
            .env("LD_LIBRARY_PATH", &self.driver)
            .env("SIMCUDA_TRUTH", self.path("truth"))
            .env("KTAPE_INSIDE_LIBRARY", &self.library)
            .env_remove("XDG_RUNTIME_DIR");
        if rustix::process::geteuid().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        command
    }

    /// Runs it; it ends well.
    pub(crate) fn run(&self, options: &[&str], program: &str, arguments: &[&str]) -> Outcome {
        self.run_until(0, options, program, arguments)
    }

    /// Runs it; it ends with this code.
    pub(crate) fn run_until(&self, code: i32, options: &[&str], program: &str, arguments: &[&str]) -> Outcome {
        let output = self.command(options, program, arguments).output().expect("capture starts");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{said}{}", String::from_utf8_lossy(&output.stdout));
        let summary = serde_json::from_slice(&output.stdout).expect("a summary");
        Outcome { summary, said }
    }

    /// The driver's record.
    pub(crate) fn truth(&self) -> Truth {
        Truth::open(&self.path("truth")).expect("the driver's record")
    }

    pub(crate) fn has_truth(&self) -> bool {
        self.path("truth").exists()
    }

    /// All that is on the tape.
    pub(crate) fn tape(&self) -> Contents {
        Tape::open(&self.path("run.ktape")).expect("a tape").read(&Wanted::default()).expect("a sound tape")
    }
}

/// Says that something is not tested here.
pub(crate) fn skip(what: &str) {
    common::skip("recording from inside", what);
}
