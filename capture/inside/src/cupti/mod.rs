//! NVIDIA's profiling library, as a client of which this one learns of calls ([`callback`]) and of what the device ran
//! ([`activity`]).
//!
//! There is one client in a process, or few. This one comes with the first `cuInit`, so before a profiler that the program itself
//! starts, and it has the lower rank:
//!
//! - A client that is there already keeps CUPTI to itself: nothing is done, and the process's page says so.
//! - Where calls are told or announced, this library is the subscriber until the recorder ends. One that comes later is refused by
//!   CUPTI (`MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED`), which cannot be noticed from here: who wants to run such a profiler records without
//!   device times, or from outside.
//! - Where only device times are wanted, nobody is kept out: the subscription that found out whether there is a client is given
//!   back at once. A client that comes later registers its own buffers and gets what follows; what was not told is then counted as
//!   launches without a kernel. Kinds of activity are enabled for the whole process: at the end it is found out again whether there is
//!   a client, and if so they stay enabled, and what is in its buffers is not forced out of them half done.

use std::ffi::c_void;
use std::path::Path;
use std::sync::atomic::Ordering;

use ktape_ebpf::inside::{device_time, state};

use crate::guest::Guest;
use crate::say;

pub mod activity;
pub mod callback;
mod find;
mod library;
pub(crate) mod names;
mod pool;
pub mod records;
mod times;

use library::{Library, Refusal, SubscriberHandle};

/// CUPTI at work.
#[derive(Debug)]
pub(crate) struct Cupti {
    library: &'static Library,
    subscriber: Option<SubscriberHandle>,
    is_active: bool,
}

/// Has CUPTI tell what the recorder wants. `None` where it does not; then the process's page says why.
pub(crate) fn begin(guest: &'static Guest) -> Option<Cupti> {
    let asked = text(&guest.control.cupti);
    let library: &'static Library = match find::find(asked) {
        Ok(library) => Box::leak(Box::new(library)),
        Err(looked) => {
            say(guest.page, state::NO_CUPTI, 0, &looked);
            return None;
        }
    };
    guest.page.cupti_version.store(library.version, Ordering::Relaxed);
    match subscribe(guest, library) {
        Ok(cupti) => Some(cupti),
        Err(refusal) => {
            let state = if refusal.is_other_client() { state::OTHER_CLIENT } else { state::REFUSED };
            say(guest.page, state, refusal.code, refusal.what);
            None
        }
    }
}

fn subscribe(guest: &'static Guest, library: &'static Library) -> Result<Cupti, Refusal> {
    let subscriber = library.subscribe(callback::called)?;
    let mut cupti = Cupti { library, subscriber: None, is_active: false };
    if guest.calls || guest.announce {
        cupti.subscriber = Some(subscriber);
    } else {
        library.unsubscribe(subscriber);
    }
    if let Some(subscriber) = &cupti.subscriber
        && let Err(refusal) = callback::enable(library, subscriber, &guest.functions)
    {
        cupti.end();
        return Err(refusal);
    }
    if guest.control.device_time == device_time::CUPTI {
        // Calls are told even so.
        if let Err(refusal) = activity::begin(library) {
            say(guest.page, state::REFUSED, refusal.code, refusal.what);
            return match cupti.subscriber {
                Some(_) => Ok(cupti),
                None => Err(refusal),
            };
        }
        cupti.is_active = true;
    }
    say(guest.page, state::RECORDING, 0, &library.path.display().to_string());
    Ok(cupti)
}

impl Cupti {
    /// Whether it tells of calls.
    pub(crate) fn tells(&self) -> bool {
        self.subscriber.is_some()
    }

    /// Has what the device has done handed over; at the end also what is not complete, where nobody else may have records.
    pub(crate) fn flush(&self, is_last: bool) {
        if self.is_active {
            activity::flush(self.library, is_last && !self.has_other_client());
        }
    }

    /// Whether another client has come. Where this one is the subscriber there is none: a second is refused.
    fn has_other_client(&self) -> bool {
        self.subscriber.is_none()
            && match self.library.subscribe(callback::called) {
                Ok(subscriber) => {
                    self.library.unsubscribe(subscriber);
                    false
                }
                Err(refusal) => refusal.is_other_client(),
            }
    }

    /// Tells what is missing, and how CUPTI's clock goes.
    pub(crate) fn account(&self) {
        if self.is_active {
            activity::account(self.library);
        }
    }

    /// Switches everything off. `cuptiFinalize` is not called: it is only safe where no call is under way. Returns CUPTI's file where
    /// another client has come, for which all stays as it is.
    pub(crate) fn end(self) -> Option<&'static Path> {
        let is_left = self.is_active && self.has_other_client();
        if let Some(subscriber) = self.subscriber {
            self.library.unsubscribe(subscriber);
        }
        if self.is_active && !is_left {
            activity::end(self.library);
        }
        is_left.then_some(&self.library.path)
    }
}

/// The text before the first zero.
fn text(bytes: &[u8]) -> &[u8] {
    bytes.split(|&byte| byte == 0).next().unwrap_or_default()
}

/// What a function of CUPTI's takes as a pointer of the client's own: nothing.
const NO_DATA: *mut c_void = std::ptr::null_mut();
