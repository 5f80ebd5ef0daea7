//! What live recording and recording from inside share: how programs begin, and how it is said that something is not tested.

use std::io::Write as _;

/// A program behind what sets the driver up: `cu`, with a context; `check` ends the program at an error; `handle` calls what hands
/// something out through its first argument.
macro_rules! with_driver {
    ($program:expr) => {
        concat!(
            r#"
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
"#,
            $program
        )
    };
}
pub(crate) use with_driver;

/// Says that something of these tests is not tested here: on stderr, past the test harness, and for the last lines of `make test`.
pub(crate) fn skip(tests: &str, what: &str) {
    assert!(std::env::var_os("KTAPE_REQUIRE_LIVE").is_none(), "{what}");
    let line = format!("SKIPPED {tests}: {what}\n");
    std::io::stderr().write_all(line.as_bytes()).expect("stderr is open");
    if let Some(file) = std::env::var_os("KTAPE_SKIPPED") {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(file);
        file.and_then(|mut file| file.write_all(line.as_bytes())).expect("the list of what is skipped");
    }
}

/// Runs a program by the same Python, while its parent, the recorder, stands still.
pub(crate) const WHILE_STOPPED: &str = r#"
import os, signal, subprocess, sys
recorder = os.getppid()
os.kill(recorder, signal.SIGSTOP)
try:
    subprocess.run([sys.executable, "-c", *sys.argv[1:]], check=True)
finally:
    os.kill(recorder, signal.SIGCONT)
"#;
