//! The library inside: loaded into a process by the CUDA driver, which finds it in `CUDA_INJECTION64_PATH`.
//!
//! It tells the recorder what only the process itself can learn, above all when the GPU ran what, through rings in mapped files
//! (`ktape_ebpf::inside`). It is a guest in somebody's server: nothing in here may panic across the boundary, wait, or end the
//! process, and where the recorder is gone it goes quiet.
//!
//! The driver calls [`InitializeInjection`] in `cuInit`. From then on there are two ways through the code: a call is told on the
//! thread that makes it (`cupti::callback`, `calls`, [`rings`]), where nothing allocates, locks or makes a system call; and what the
//! device ran comes in buffers, on a thread of CUPTI's or on the library's own (`cupti::activity`, `keeper`).

use std::io::{Write as _, stderr};
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use ktape_ebpf::inside::{DIRECTORY_VARIABLE, LAYOUT, ProcessPage, device_time, state};

pub mod announce;
pub mod calls;
pub mod clock;
pub mod cupti;
mod environment;
mod files;
pub mod guest;
mod keeper;
pub mod memory;
pub mod nvtx;
pub mod rings;
pub mod stack;

use guest::Guest;

/// The variable by which the driver finds the library.
const INJECTION_VARIABLE: &str = "CUDA_INJECTION64_PATH";

/// What this library is, for who reads it out of the file.
#[unsafe(no_mangle)]
pub static KTAPE_INSIDE_LAYOUT: AtomicU32 = AtomicU32::new(LAYOUT);

/// What the driver calls in `cuInit`. What it answers is of no consequence.
#[unsafe(no_mangle)]
pub extern "C" fn InitializeInjection() -> i32 {
    static IS_BEGUN: AtomicBool = AtomicBool::new(false);
    if !IS_BEGUN.swap(true, Ordering::Relaxed) {
        let _ = catch_unwind(|| {
            let Some(directory) = std::env::var_os(DIRECTORY_VARIABLE).map(PathBuf::from) else { return };
            // Of a recorder that is gone, with its directory: a service that it started goes on without it.
            if files::is_recorder_gone(&directory) {
                return;
            }
            if let Err(why) = begin(&directory) {
                let _ = writeln!(stderr(), "ktape: this process is not recorded from inside: {why}");
            }
        });
    }
    1
}

fn begin(directory: &Path) -> Result<(), String> {
    let control = files::control(directory)?;
    let pid = std::process::id();
    if control.process != 0 && control.process != pid {
        return Ok(());
    }
    if control.follow == 0 {
        environment::remove(&[DIRECTORY_VARIABLE, INJECTION_VARIABLE]);
    }
    let functions = files::functions(directory, control.functions)?;
    let page = files::process(directory, pid, clock::monotonic_ns())?;
    say(page, state::LOADED, 0, "");
    control.files.fetch_add(1, Ordering::Release);
    calls::prepare(&functions);
    guest::mark_children();
    rings::prepare();
    let [calls, announce] = [control.calls != 0, control.announce != 0];
    let ring_bytes = control.ring_bytes;
    let directory = directory.to_owned();
    let guest = guest::begin(Guest { directory, control, page, functions, calls, announce, ring_bytes, pid });
    if control.device_time == device_time::OFF && !calls && !announce {
        say(page, state::RECORDING, 0, "");
        return Ok(());
    }
    keeper::begin(guest, cupti::begin(guest))
}

/// Says in the process's page what became of its recording.
fn say(page: &ProcessPage, state: u32, code: u32, detail: &str) {
    // SAFETY: only this library writes there, and only one of its threads at a time: first the driver's caller, then the keeper.
    let place = unsafe { &mut *page.detail.get() };
    let length = detail.len().min(place.len() - 1);
    place[..length].copy_from_slice(&detail.as_bytes()[..length]);
    place[length..].fill(0);
    page.code.store(code, Ordering::Relaxed);
    page.state.store(state, Ordering::Release);
}
