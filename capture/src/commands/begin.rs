//! The beginning of a session, which no signal may come into: the kernel leaves off checking an eBPF program with `EAGAIN` when there is
//! one to handle, and that would be taken for what the kernel cannot do.

use std::io;

use anyhow::Result;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::record::session::{Options, Session};

/// Begins a recording, while signals wait.
pub(super) fn session(options: Options) -> Result<Session> {
    let _held = Held::signals([SIGHUP, SIGINT, SIGTERM])?;
    Session::begin(options)
}

/// Signals wait for this thread, and for those that it begins, until it is dropped.
struct Held {
    before: libc::sigset_t,
}

impl Held {
    fn signals<const N: usize>(signals: [i32; N]) -> io::Result<Held> {
        // SAFETY: a set of bits, which `sigemptyset` makes an empty one.
        let (mut held, mut before): (libc::sigset_t, libc::sigset_t) = unsafe { std::mem::zeroed() };
        // SAFETY: it writes the set, which is ours.
        unsafe { libc::sigemptyset(&raw mut held) };
        for signal in signals {
            // SAFETY: likewise.
            unsafe { libc::sigaddset(&raw mut held, signal) };
        }
        // SAFETY: both sets are ours and alive.
        match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const held, &raw mut before) } {
            0 => Ok(Held { before }),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: the set is what the kernel said before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use signal_hook::consts::SIGUSR2;

    use super::*;

    #[test]
    fn a_signal_that_comes_while_it_is_held_is_handled_then() {
        let came = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(SIGUSR2, came.clone()).expect("nobody else has it");
        let held = Held::signals([SIGUSR2]).expect("it is a signal");
        // SAFETY: it goes to this thread, which has a handler.
        unsafe { libc::pthread_kill(libc::pthread_self(), SIGUSR2) };
        assert!(!came.load(Ordering::Relaxed));
        drop(held);
        assert!(came.load(Ordering::Relaxed));
    }
}
