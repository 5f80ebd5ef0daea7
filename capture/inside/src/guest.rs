//! What this library is in its process: whom it works for, and whether it works.

use std::path::PathBuf;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use ktape_ebpf::inside::{Control, FunctionEntry, ProcessPage, device_time};

/// Whom it works for.
pub struct Guest {
    /// The directory that is shared with the recorder.
    pub directory: PathBuf,
    /// What the recorder wants.
    pub control: &'static Control,
    /// What is said of the process.
    pub page: &'static ProcessPage,
    /// The functions that are told of.
    pub functions: Vec<FunctionEntry>,
    /// As the recorder's page says: these do not change.
    pub calls: bool,
    /// Likewise.
    pub announce: bool,
    /// Likewise.
    pub ring_bytes: u32,
    /// The process, as it sees itself.
    pub pid: u32,
}

impl Guest {
    /// Whether there is something to be learnt from CUPTI. Where events say when kernels ran, a launch announces itself.
    pub(crate) fn wants_cupti(&self) -> bool {
        let is_timed_by = |source| self.control.device_time == source;
        is_timed_by(device_time::CUPTI) || self.calls || (self.announce && !is_timed_by(device_time::EVENTS))
    }
}

/// Never freed once it is there.
static GUEST: AtomicPtr<Guest> = AtomicPtr::new(null_mut());

static STATE: AtomicU32 = AtomicU32::new(IDLE);

/// There is nobody to tell anything.
const IDLE: u32 = 0;
/// The recorder takes what is told.
const LISTENING: u32 = 1;
/// It does no longer.
const QUIET: u32 = 2;
/// This is a child of the process that was recorded, by `fork`: nothing here is its own. Once the parent has called `cuInit`, CUDA does
/// not work in it anyway.
const CHILD: u32 = 3;

/// Begins to work for a recorder.
pub fn begin(guest: Guest) -> &'static Guest {
    let guest = Box::into_raw(Box::new(guest));
    GUEST.store(guest, Ordering::Release);
    STATE.store(LISTENING, Ordering::Release);
    // SAFETY: never freed.
    unsafe { &*guest }
}

/// For whom, once that is known.
#[inline(always)]
pub fn current() -> Option<&'static Guest> {
    // SAFETY: null or never freed.
    unsafe { GUEST.load(Ordering::Acquire).as_ref() }
}

/// Whether the recorder takes what is told.
#[inline(always)]
pub fn is_listening() -> bool {
    STATE.load(Ordering::Relaxed) == LISTENING
}

/// Whether this is a child, to which nothing here belongs.
pub(crate) fn is_child() -> bool {
    STATE.load(Ordering::Relaxed) == CHILD
}

/// Nothing is told from now on. False if that was so already.
pub(crate) fn go_quiet() -> bool {
    STATE.compare_exchange(LISTENING, QUIET, Ordering::SeqCst, Ordering::Relaxed).is_ok()
}

/// Makes children know what they are. One store, as a child may do little: a lock may be held by a thread that it does not have.
pub(crate) fn mark_children() {
    extern "C" fn child() {
        STATE.store(CHILD, Ordering::Relaxed);
    }
    // SAFETY: the function stays, as the library is never unmapped.
    unsafe { libc::pthread_atfork(None, None, Some(child)) };
}
