//! The library inside: loaded into a process by the CUDA driver, which finds it in `CUDA_INJECTION64_PATH`, or by NVTX, which finds
//! it in `NVTX_INJECTION64_PATH`.
//!
//! It tells the recorder what only the process itself can learn, above all when the GPU ran what, through rings in mapped files
//! (`ktape_ebpf::inside`). It is a guest in somebody's server: nothing in here may panic across the boundary, wait, or end the
//! process, and where the recorder is gone it goes quiet.
//!
//! The driver calls [`InitializeInjection`] in `cuInit`; NVTX calls [`nvtx::InitializeInjectionNvtx2`] at its first use, which may be
//! long before. Whichever comes first begins the guest ([`is_guest`]); CUPTI waits for the driver. From then on there are two ways
//! through the code: a call or range is told on the thread that makes it (`cupti::callback`, `calls`, [`nvtx`], [`rings`]), where nothing
//! allocates, locks or makes a system call; and what the device ran comes in buffers, on a thread of CUPTI's or on the library's own
//! (`cupti::activity`, `keeper`). Where CUDA events are to say that, in place of CUPTI, the library is preloaded ([`events`]).

use std::io::{Write as _, stderr};
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use ktape_ebpf::inside::{DIRECTORY_VARIABLE, LAYOUT, ProcessPage, state};

pub mod announce;
pub mod calls;
pub mod clock;
mod cost;
pub mod cupti;
mod environment;
pub mod events;
mod files;
pub mod guest;
mod keeper;
pub mod memory;
pub mod nvtx;
mod python;
pub mod rings;
pub mod stack;

use guest::Guest;

/// The variables by which the library is found: by the driver, by NVTX, and by itself.
const VARIABLES: [&str; 3] = ["CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", DIRECTORY_VARIABLE];

/// What this library is, for who reads it out of the file.
#[unsafe(no_mangle)]
pub static KTAPE_INSIDE_LAYOUT: AtomicU32 = AtomicU32::new(LAYOUT);

/// What the driver calls in `cuInit`. What it answers is of no consequence.
#[unsafe(no_mangle)]
pub extern "C" fn InitializeInjection() -> i32 {
    static IS_BEGUN: AtomicBool = AtomicBool::new(false);
    if !IS_BEGUN.swap(true, Ordering::Relaxed) {
        let _ = catch_unwind(|| match guest() {
            Some(guest) => {
                let cupti_tells = guest.wants_cupti() && keeper::begin_cupti(guest);
                events::begin(guest, cupti_tells);
            }
            None if guest::is_child() => {
                let why = "it was forked by one that had named ranges before";
                let _ = writeln!(stderr(), "ktape: this process is not recorded from inside: {why}");
            }
            None => {}
        });
    }
    1
}

/// Whether this process is recorded. Where that is not known yet, it begins.
pub(crate) fn is_guest() -> bool {
    guest().is_some()
}

/// The guest of this process. `None` in a child of one that had begun: nobody there ends a beginning that it was forked in.
fn guest() -> Option<&'static Guest> {
    static BEGUN_BY: AtomicU32 = AtomicU32::new(0);
    static GUEST: OnceLock<Option<&'static Guest>> = OnceLock::new();
    let pid = std::process::id();
    let begun_by = BEGUN_BY.compare_exchange(0, pid, Ordering::Relaxed, Ordering::Relaxed);
    if begun_by.is_err_and(|begun_by| begun_by != pid) {
        return None;
    }
    *GUEST.get_or_init(|| {
        let directory = std::env::var_os(DIRECTORY_VARIABLE).map(PathBuf::from)?;
        // Of a recorder that is gone, with its directory: a service that it started goes on without it.
        if files::recorder(&directory) != files::Recorder::Lives {
            return None;
        }
        begin(&directory).unwrap_or_else(|why| {
            let _ = writeln!(stderr(), "ktape: this process is not recorded from inside: {why}");
            None
        })
    })
}

/// Begins, but for CUPTI. `None` where this process is not to be recorded.
fn begin(directory: &Path) -> Result<Option<&'static Guest>, String> {
    let control = files::control(directory)?;
    let pid = std::process::id();
    if control.follow == 0 {
        environment::remove(&VARIABLES);
    }
    // SAFETY: no pointers.
    if control.parent != 0 && control.parent != unsafe { libc::getppid() } as u32 {
        return Ok(None);
    }
    if has_own_numbers() {
        return Err("it is in a namespace of process numbers of its own".to_owned());
    }
    let functions = files::functions(directory, control.functions)?;
    let interpreter = python::loaded(&files::pythons(directory));
    let page = files::process(directory, (pid, clock::monotonic_ns()), interpreter)?;
    say(page, state::LOADED, 0, "");
    control.files.fetch_add(1, Ordering::Release);
    calls::prepare(&functions);
    cost::prepare();
    guest::mark_children();
    rings::prepare();
    let [calls, announce] = [control.calls != 0, control.announce != 0];
    let ring_bytes = control.ring_bytes;
    let directory = directory.to_owned();
    let guest = guest::begin(Guest { directory, control, page, functions, calls, announce, ring_bytes, pid });
    if !guest.wants_cupti() {
        say(page, state::RECORDING, 0, "");
    }
    keeper::begin(guest)?;
    Ok(Some(guest))
}

/// Whether the process's number is another to those who see it from outside: then its files would be taken for a stranger's.
fn has_own_numbers() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    numbers.is_some_and(|numbers| numbers.split_whitespace().count() > 1)
}

/// Says in the process's page what became of its recording.
fn say(page: &ProcessPage, state: u32, code: u32, detail: &str) {
    // SAFETY: only this library writes there, and only one of its threads at a time: first who begins, then who holds the keeper's lock.
    let place = unsafe { &mut *page.detail.get() };
    let length = detail.len().min(place.len() - 1);
    place[..length].copy_from_slice(&detail.as_bytes()[..length]);
    place[length..].fill(0);
    page.code.store(code, Ordering::Relaxed);
    page.state.store(state, Ordering::Release);
}
