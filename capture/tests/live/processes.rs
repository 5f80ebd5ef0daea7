//! What the live tests work with: a folder, the stand-in driver, interpreters, `capture`.

use std::path::{Path, PathBuf};
use std::process::Command;

use ktape_simcuda_truth::Truth;

use crate::exact::{self, Compared};

/// A program that launches, waits and copies; its argument is how often.
pub(crate) const LAUNCHES: &str = r#"
import ctypes, sys
cu = ctypes.CDLL("libcuda.so.1")
def check(code):
    if code: raise SystemExit(f"CUresult {code}")
def handle(function, *arguments):
    out = ctypes.c_void_p()
    check(function(ctypes.byref(out), *arguments))
    return out
check(cu.cuInit(0))
check(cu.cuCtxSetCurrent(handle(cu.cuDevicePrimaryCtxRetain, 0)))
module = handle(cu.cuModuleLoadData, b"SIMCUDA-IMAGE\nkernel gemm\nkernel softmax\n")
gemm, softmax = handle(cu.cuModuleGetFunction, module, b"gemm"), handle(cu.cuModuleGetFunction, module, b"softmax")
memory = handle(cu.cuMemAlloc_v2, ctypes.c_size_t(1 << 20))
stream = handle(cu.cuStreamCreate, 1)
def launch(function, blocks):
    check(cu.cuLaunchKernel(function, blocks, 1, 1, 128, 1, 1, 64, stream, None, None))
def layer(index):
    launch(gemm, 16 + index % 3)
    launch(softmax, 8)
for index in range(int(sys.argv[1])):
    layer(index)
    if index % 100 == 0:
        check(cu.cuStreamSynchronize(stream))
buffer = ctypes.create_string_buffer(4096)
check(cu.cuMemcpyDtoH_v2(buffer, memory, ctypes.c_size_t(4096)))
check(cu.cuMemFree_v2(memory))
check(cu.cuCtxSynchronize())
"#;

/// Where a test happens.
pub(crate) struct Scene {
    folder: tempfile::TempDir,
    driver: PathBuf,
}

impl Scene {
    /// A folder with a driver; `None`, and said, where recording can't be tried.
    pub(crate) fn new(test: &str) -> Option<Scene> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let driver = root.join("target/simcuda");
        let missing = if !rustix::process::geteuid().is_root() {
            Some("recording needs root")
        } else if !driver.join("libcuda.so.1").exists() {
            Some("no stand-in driver: run fixtures/simcuda/build.sh")
        } else {
            None
        };
        if let Some(missing) = missing {
            assert!(std::env::var_os("KTAPE_REQUIRE_LIVE").is_none(), "{missing}");
            eprintln!("SKIPPED {test}: {missing}");
            return None;
        }
        Some(Scene { folder: tempfile::tempdir().expect("a folder"), driver })
    }

    /// A path in the folder.
    pub(crate) fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// A program on the stand-in driver, which keeps its truth in `truth`.
    pub(crate) fn program(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command
            .env("LD_LIBRARY_PATH", &self.driver)
            .env("SIMCUDA_TRUTH", self.path("truth"))
            .env("SIMCUDA_TRUTH_STACKS", "1");
        command
    }

    /// `capture` with these arguments, in the environment of a recorded program.
    pub(crate) fn capture(&self, arguments: &[&str]) -> Command {
        let mut command = self.program(env!("CARGO_BIN_EXE_capture"));
        command.args(arguments);
        command
    }

    /// Demands that a tape is what the driver recorded, and nothing was lost.
    pub(crate) fn compare(&self, tape: &str, compared: Compared) {
        let truth = Truth::open(Path::new(&self.path("truth"))).expect("the driver's record");
        assert_eq!(truth.unrecorded(), 0, "the driver could not record all");
        let expected = exact::truth(&truth, compared);
        let tape = self.path(tape);
        let found = exact::tape(Path::new(&tape), truth.process(), compared);
        let differences = exact::differences(&expected, &found);
        assert!(differences.is_empty(), "\n{differences}");
        assert_eq!(exact::lost(Path::new(&tape)), 0, "events were lost");
        assert!(expected.values().map(Vec::len).sum::<usize>() > 0, "the driver was not called");
    }
}

/// The interpreters that stacks are recorded of, as far as they are here.
pub(crate) fn pythons() -> Vec<String> {
    let found: Vec<String> = ["3.11", "3.12"].iter().filter_map(|version| python(version)).collect();
    if found.is_empty() {
        assert!(std::env::var_os("KTAPE_REQUIRE_LIVE").is_none(), "no CPython 3.11 or 3.12");
        eprintln!("SKIPPED: no CPython 3.11 or 3.12");
    }
    found
}

/// The executable of a version, on the path or of pyenv.
fn python(version: &str) -> Option<String> {
    let says = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).output().ok().filter(|output| output.status.success())?;
        Some(String::from_utf8(output.stdout).ok()?.trim().to_owned()).filter(|text| !text.is_empty())
    };
    let of = |program: &str| says(program, &["-c", "import sys; print(sys.executable)"]);
    of(&format!("python{version}")).or_else(|| {
        let newest = says("pyenv", &["latest", version])?;
        of(&format!("{}/bin/python", says("pyenv", &["prefix", &newest])?))
    })
}
