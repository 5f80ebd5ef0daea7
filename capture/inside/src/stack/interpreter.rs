//! The interpreter, as the recorder has found it from outside, and the calling thread's state in it.

use std::sync::atomic::{AtomicU32, Ordering, fence};

use ktape_ebpf::inside::ProcessPage;
use ktape_ebpf::python::{
    self, ABSENT, Interpreter, KEY_BY_LIST, KEY_TLS, KEY_UNREAD, Layout, MAX_SEARCH, Memory, Search,
};

use crate::memory::{Alive, Guarded};

/// The interpreter, as one thread has read it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Known {
    /// The page's version when it was read; 0 for not yet.
    version: u32,
    pub(super) interpreter: Interpreter,
    /// Where the runtime says that it ends; 0 where that is not known, and nothing is walked.
    finalizing: u64,
}

impl Known {
    /// Reads what the recorder has written, if that is new. False while there is none.
    #[inline(always)]
    pub(super) fn refresh(&mut self, page: &ProcessPage, guarded: Guarded) -> Option<Change> {
        match page.interpreter_version.load(Ordering::Acquire) {
            0 => None,
            version if version == self.version => Some(Change::Same),
            _ => self.read(page, guarded),
        }
    }

    #[cold]
    fn read(&mut self, page: &ProcessPage, guarded: Guarded) -> Option<Change> {
        let version = read_under(&page.interpreter_version, || {
            // SAFETY: the page is mapped; what is read while it is written is thrown away, and any bytes are an interpreter.
            unsafe { page.interpreter.get().read_volatile() }
        });
        // It is written right now: by the next call it will be there.
        let Some((version, interpreter)) = version else {
            return if self.version == 0 { None } else { Some(Change::Same) };
        };
        self.version = version;
        self.interpreter = interpreter;
        self.finalizing = finalizing(&interpreter, guarded).unwrap_or(0);
        Some(Change::Other)
    }

    /// Whether the interpreter ends, or has: then the states of other threads are freed under them. `None` where it cannot be told.
    #[inline(always)]
    pub(super) fn is_finalizing(&self, memory: &Alive) -> Option<bool> {
        if self.finalizing == 0 {
            return None;
        }
        Some(memory.word(self.finalizing)? != 0)
    }

    /// The calling thread's state; 0 if it is no thread of Python's. `None` if it cannot be told.
    #[inline(always)]
    pub(super) fn state(&self, memory: &Alive, guarded: Guarded) -> Option<u64> {
        let interpreter = &self.interpreter;
        if interpreter.main != 0 && python::slot_tells(memory, interpreter) != Some(true) {
            return search(interpreter, guarded);
        }
        // The slot is asked for of the C library, which knows its place better than anybody, and gives no value of a key that had the
        // same number before.
        let key = match interpreter.tss_key {
            KEY_TLS => return python::thread_state(memory, interpreter, thread_pointer()),
            KEY_UNREAD | KEY_BY_LIST => match read_key(memory, interpreter)? {
                Some(key) => key,
                None => return Some(0),
            },
            key => key,
        };
        // SAFETY: any number is answered, with null for a key that there is not.
        Some(unsafe { libc::pthread_getspecific(key) } as u64)
    }
}

/// Whether another interpreter was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Same,
    Other,
}

/// What is read while the version is even and stays the same, and the version.
fn read_under<T>(version: &AtomicU32, read: impl FnOnce() -> T) -> Option<(u32, T)> {
    let before = version.load(Ordering::Acquire);
    if before == 0 || before % 2 == 1 {
        return None;
    }
    let value = read();
    fence(Ordering::Acquire);
    (version.load(Ordering::Relaxed) == before).then_some((before, value))
}

/// `autoTSSkey`; an inner `None` where it has not begun.
fn read_key<M: Memory>(memory: &M, interpreter: &Interpreter) -> Option<Option<u32>> {
    if interpreter.layout.tss_key == ABSENT {
        return None;
    }
    let read = memory.word(interpreter.runtime.wrapping_add(interpreter.layout.tss_key.into()))?;
    Some((read as u32 != 0).then_some((read >> 32) as u32))
}

/// What `pthread_self` gives, which is the thread pointer.
pub(super) fn thread_pointer() -> u64 {
    // SAFETY: always succeeds.
    unsafe { libc::pthread_self() as u64 }
}

/// The state that the calling thread runs of those in the interpreters' lists. Other threads' states are looked at, which may go.
#[cold]
fn search(interpreter: &Interpreter, guarded: Guarded) -> Option<u64> {
    let mut search = Search::default();
    search.begin(thread_pointer());
    let is_over = (0..MAX_SEARCH).any(|_| !search.advance(&guarded, interpreter));
    is_over.then_some(search.found)
}

/// Where `_PyRuntimeState._finalizing` is. From 3.13 on the runtime says so itself.
fn finalizing(interpreter: &Interpreter, guarded: Guarded) -> Option<u64> {
    /// `_Py_DebugOffsets.runtime_state.finalizing`, behind the cookie, version, build, and the size.
    const SAID_AT: u64 = 32;
    let Layout { version, .. } = interpreter.layout;
    let offset = match version {
        0x0308..=0x030a => 16,
        0x030b..=0x030c => 24,
        0x030d.. => guarded.word(interpreter.runtime.wrapping_add(SAID_AT)).filter(|offset| *offset < 1 << 20)?,
        _ => return None,
    };
    Some(interpreter.runtime.wrapping_add(offset))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interpreter_is_read_once_it_is_whole_and_again_when_it_changes() {
        // SAFETY: zeros are a page.
        let page: ProcessPage = unsafe { std::mem::zeroed() };
        let guarded = Guarded { pid: std::process::id() };
        let write = |runtime, version| {
            let interpreter =
                Interpreter { runtime, layout: Layout::of(0x030c, false).unwrap(), ..Interpreter::default() };
            // SAFETY: nobody else has it.
            unsafe { page.interpreter.get().write(interpreter) };
            page.interpreter_version.store(version, Ordering::Release);
        };
        let mut known = Known::default();
        assert_eq!(known.refresh(&page, guarded), None);
        write(0x1000, 1);
        assert_eq!(known.refresh(&page, guarded), None);
        write(0x1000, 2);
        assert_eq!(known.refresh(&page, guarded), Some(Change::Other));
        assert_eq!((known.interpreter.runtime, known.finalizing), (0x1000, 0x1018));
        assert_eq!(known.refresh(&page, guarded), Some(Change::Same));
        write(0x2000, 3);
        assert_eq!(known.refresh(&page, guarded), Some(Change::Same));
        assert_eq!(known.interpreter.runtime, 0x1000);
        write(0x2000, 4);
        assert_eq!(known.refresh(&page, guarded), Some(Change::Other));
        assert_eq!(known.interpreter.runtime, 0x2000);
    }

    #[test]
    fn the_state_is_what_the_thread_has_under_the_key() {
        let mut key = 0;
        // SAFETY: makes a key, and sets this thread's value.
        unsafe {
            assert_eq!(libc::pthread_key_create(&raw mut key, None), 0);
            assert_eq!(libc::pthread_setspecific(key, 0x7000 as *const _), 0);
        }
        let guarded = Guarded { pid: std::process::id() };
        let words = [u64::from(key) << 32 | 1, 0];
        let layout = Layout { tss_key: 0, ..Layout::of(0x030c, false).unwrap() };
        let of = |tss_key, word: usize| {
            let runtime = (&raw const words[word]) as u64;
            let interpreter = Interpreter { runtime, tss_key, layout, ..Interpreter::default() };
            Known { interpreter, ..Known::default() }.state(&Alive::new(), guarded)
        };
        assert_eq!([of(key, 1), of(KEY_UNREAD, 0), of(KEY_BY_LIST, 0)], [Some(0x7000); 3]);
        // One that has not begun, and another thread.
        assert_eq!(of(KEY_UNREAD, 1), Some(0));
        assert_eq!(std::thread::scope(|scope| scope.spawn(|| of(key, 1)).join().unwrap()), Some(0));
    }
}
