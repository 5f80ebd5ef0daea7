//! The library's own thread: asks for what the device did, and looks whether anybody still wants to know.
//!
//! It has all signals blocked, so that none of the program's handlers runs on it. When the process exits it is asked for what is
//! left, and waited for, but not for long. When the recorder ends it is told what there is, and then everything is switched off: the
//! process's page says `QUIET`, and the recorder can take the rest out of the rings in peace. Only when the recorder's lock is gone too, as it
//! is at once where it died, their memory is given back.

use std::ptr::null_mut;
use std::sync::atomic::Ordering;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ktape_ebpf::inside::state;

use crate::cupti::{self, Cupti};
use crate::files::Recorder;
use crate::guest::{self, Guest};
use crate::{clock, events, files, rings, say, stack};

/// The longest that a process that exits is kept waiting.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often clocks are compared, and what was dropped is asked for.
const ROUND: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, PartialEq)]
enum Exit {
    NotYet,
    Wanted,
    Done,
}

static EXIT: Mutex<Exit> = Mutex::new(Exit::NotYet);
static CHANGED: Condvar = Condvar::new();

/// CUPTI, once the driver is there. Who holds it may say something in the process's page.
static CUPTI: Mutex<Option<Cupti>> = Mutex::new(None);

fn cupti() -> MutexGuard<'static, Option<Cupti>> {
    CUPTI.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has CUPTI begin, as the driver is there now. Returns whether it tells of calls.
pub(crate) fn begin_cupti(guest: &'static Guest) -> bool {
    let mut cupti = cupti();
    // Else the recorder has gone before.
    if guest::is_listening() {
        *cupti = cupti::begin(guest);
    }
    cupti.as_ref().is_some_and(Cupti::tells)
}

/// Leaves CUPTI to the library that the driver has loaded in place of this one.
pub(crate) fn leave_cupti(guest: &'static Guest) {
    let _lock = cupti();
    say(guest.page, state::OTHER_CLIENT, 0, "its library is in CUDA_INJECTION64_PATH");
}

/// Starts the thread.
pub(crate) fn begin(guest: &'static Guest) -> Result<(), String> {
    extern "C" fn exits() {
        let _ = std::panic::catch_unwind(wait_for_the_rest);
    }
    let started = with_signals_blocked(|| {
        let keeper = thread::Builder::new().name("ktape".to_owned()).stack_size(1 << 20);
        keeper.spawn(move || {
            // What it does not survive is not told on: the program goes on, and CUPTI fills its buffers until there are none.
            if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| keep(guest))).is_err() {
                guest::go_quiet();
                let _lock = cupti();
                say(guest.page, state::FAILED, 0, "its thread failed");
            }
            done();
        })
    });
    if let Err(error) = started {
        guest::go_quiet();
        say(guest.page, state::FAILED, 0, &format!("a thread: {error}"));
        return Err(format!("a thread: {error}"));
    }
    // SAFETY: the function stays, as the library is never unmapped.
    unsafe { libc::atexit(exits) };
    Ok(())
}

fn keep(guest: &Guest) {
    // Without a ring of its own nothing that the device did could be told, nor what others could not count.
    if rings::with_writer(0, 0, |_| ()).is_none() {
        guest::go_quiet();
        return say(guest.page, state::FAILED, 0, "no room for its thread's ring");
    }
    let period = Duration::from_millis(u64::from(guest.control.flush_ms.clamp(5, 1000)));
    let mut last_round = Instant::now();
    let process_began_ns = clock::process_cpu_ns();
    loop {
        let is_exit = wait(period);
        let recorder = files::recorder(&guest.directory);
        let is_gone = recorder != Recorder::Lives;
        let is_last = is_exit || guest.control.ended.load(Ordering::Relaxed) != 0;
        if !is_gone && guest::is_listening() {
            let is_round = is_last || last_round.elapsed() >= ROUND;
            if is_round {
                last_round = Instant::now();
            }
            tell(cupti().as_ref(), is_round, is_last);
            events::tell(guest, is_round, is_last);
            rings::with_writer(0, 0, |writer| rings::tell_elsewhere(writer));
            rings::cost_of_others().publish(guest.page, process_began_ns);
        }
        if (is_gone || is_last) && !is_exit && guest::go_quiet() {
            let mut cupti = cupti();
            let left = cupti.take().and_then(Cupti::end);
            stack::stop();
            match left {
                Some(file) => say(guest.page, state::LEFT_ENABLED, 0, &file.display().to_string()),
                None => say(guest.page, state::QUIET, 0, "the recorder is gone"),
            }
        }
        match recorder {
            Recorder::Lives => {}
            // What it has not read nobody will.
            Recorder::Died => return rings::give_back(),
            // It may be reading still.
            Recorder::OutOfSight => return,
        }
        if is_exit {
            return;
        }
    }
}

/// Has all told that CUPTI has.
fn tell(cupti: Option<&Cupti>, is_round: bool, is_last: bool) {
    if let Some(cupti) = cupti {
        // CUPTI hands out no buffer with a record that is not complete, unless it is forced to.
        cupti.flush(is_last);
        if is_round {
            cupti.account();
        }
    }
}

/// Until it is time, or the process exits. True for the latter.
fn wait(period: Duration) -> bool {
    let exit = EXIT.lock().unwrap_or_else(PoisonError::into_inner);
    let waited = CHANGED.wait_timeout_while(exit, period, |exit| *exit == Exit::NotYet);
    *waited.unwrap_or_else(PoisonError::into_inner).0 == Exit::Wanted
}

fn done() {
    *EXIT.lock().unwrap_or_else(PoisonError::into_inner) = Exit::Done;
    CHANGED.notify_all();
}

/// Called when the process exits, on the thread that makes it exit.
fn wait_for_the_rest() {
    // A child has no such thread, and the lock may be held by one that it does not have.
    if guest::is_child()
        || !guest::is_listening()
        || guest::current().is_none_or(|guest| guest.pid != std::process::id())
    {
        return;
    }
    let mut exit = EXIT.lock().unwrap_or_else(PoisonError::into_inner);
    if *exit == Exit::NotYet {
        *exit = Exit::Wanted;
        CHANGED.notify_all();
    }
    drop(CHANGED.wait_timeout_while(exit, PATIENCE, |exit| *exit != Exit::Done));
}

/// Runs something with all signals blocked on this thread, which a thread that it starts inherits.
fn with_signals_blocked<R>(run: impl FnOnce() -> R) -> R {
    // SAFETY: writes and reads signal sets of this function.
    unsafe {
        let [mut all, mut before] = [std::mem::zeroed::<libc::sigset_t>(); 2];
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let result = run();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, null_mut());
        result
    }
}
