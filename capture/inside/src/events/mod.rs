//! When kernels ran, by CUDA events around their launches: for processes in which CUPTI cannot be had, or costs too much.
//!
//! The library is preloaded for it, so that it stands between the program and the driver: whoever asks for the driver's launches gets
//! this library's functions of the same names (`interpose`), which call the driver's own. Around a launch they record an event into
//! the same stream before it, and one behind it (`launch`), from a pool of the thread's own (`pool`). The library's thread asks
//! later which of them are over, and how far apart (`contexts`), against events whose time on the host's clock is known
//! (`reference`). So no launch waits, and no thread of the program's ever asks for a result.
//!
//! An event before a kernel is over at the latest when that begins, and one behind it at the earliest when it has ended. So a pair
//! bounds its kernel from outside. It is wider by what the device takes from one to the next, and, where the device waits for the
//! host, by what the host takes.
//!
//! What is not timed: launches into a stream that is captured, as nothing runs then; of graphs; and those for which no event is free.
//! All are counted. What the program is told of its calls is what the driver says: an event that fails is nobody's error but ours.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

use ktape_ebpf::inside::{device_time, state};

use crate::guest::{self, Guest};
use crate::{announce, keeper, say};

mod contexts;
mod driver;
pub mod interpose;
mod launch;
mod pool;
mod reference;

pub(crate) use contexts::tell;

/// Whether launches get events.
static IS_ON: AtomicBool = AtomicBool::new(false);
/// Whether it was looked whether they are to.
static HAS_BEGUN: AtomicBool = AtomicBool::new(false);
/// Whether CUPTI tells of calls. Else launches tell of themselves.
static CUPTI_TELLS: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Whether this thread is in a call of the driver that the library makes for itself.
    static IS_OWN: Cell<u32> = const { Cell::new(0) };
}

/// Has launches get events, if that is what the recorder wants. Where the driver is there, and CUPTI's part is decided.
pub(crate) fn begin(guest: &'static Guest, cupti_tells: bool) {
    HAS_BEGUN.store(true, Ordering::Relaxed);
    if guest.control.device_time != device_time::EVENTS {
        return;
    }
    if !interpose::is_preloaded() {
        return say(guest.page, state::NOT_PRELOADED, 0, "");
    }
    CUPTI_TELLS.store(cupti_tells, Ordering::Relaxed);
    launch::prepare(guest);
    if guest.announce {
        IS_OWN.with(|is_own| announce::own_calls(is_own.as_ptr()));
    }
    IS_ON.store(true, Ordering::Release);
}

/// For whom launches get events, if they do.
#[inline(always)]
fn listener() -> Option<&'static Guest> {
    if !IS_ON.load(Ordering::Acquire) && !begin_late() {
        return None;
    }
    guest::current().filter(|_| guest::is_listening())
}

/// Where the driver has not loaded the library, as somebody else's is in its variable, the first launch is the beginning. Without
/// CUPTI: that is the other's.
#[inline(always)]
fn begin_late() -> bool {
    #[cold]
    fn look() -> bool {
        if HAS_BEGUN.swap(true, Ordering::Relaxed) {
            return false;
        }
        if let Some(guest) = crate::guest() {
            if guest.wants_cupti() {
                keeper::leave_cupti(guest);
            }
            begin(guest, false);
        }
        IS_ON.load(Ordering::Relaxed)
    }
    !HAS_BEGUN.load(Ordering::Relaxed) && look()
}

/// Whether launches tell of themselves.
#[inline(always)]
fn tells(guest: &Guest) -> bool {
    guest.calls && !CUPTI_TELLS.load(Ordering::Relaxed)
}

/// Whether this thread is in a call of the driver that is the library's own: it is nothing that the program does.
#[inline(always)]
pub(crate) fn is_own() -> bool {
    IS_OWN.get() != 0
}

/// Makes calls of the driver that are the library's own.
#[inline(always)]
fn own<R>(call: impl FnOnce() -> R) -> R {
    let before = IS_OWN.replace(1);
    let result = call();
    IS_OWN.set(before);
    result
}
