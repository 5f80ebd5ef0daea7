//! The state of a thread, looked for in the lists that the runtime keeps: where pthread's slot doesn't tell it.
//!
//! That is so with a C library whose slots are elsewhere, and up to 3.11 with several interpreters in a process: the slot then
//! has the thread's state in the main one, also while it runs another. A thread's state is the one that has its `pthread_self`
//! and runs something. The youngest interpreter comes first in the list, and has been entered last.

use super::{Interpreter, Memory, first_frame};

/// The most steps to give a search: threads and interpreters. One that needs more has found nothing.
pub const MAX_SEARCH: u32 = 1 << 16;

/// Where a search stands.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Search {
    /// `pthread_self` of the thread, which is its thread pointer.
    thread_pointer: u64,
    /// The `PyInterpreterState` whose threads are looked at; 0 before the first.
    owner: u64,
    /// The `PyThreadState` to look at next; 0 at the end of a list.
    state: u64,
    /// The thread's state; 0 if it has none, as far as was looked.
    pub found: u64,
}

impl Search {
    /// Begins to look for this thread.
    #[inline(always)]
    pub fn begin(&mut self, thread_pointer: u64) {
        *self = Self { thread_pointer, ..Self::default() };
    }

    /// Looks at one state. False when the search has ended: found, at the end, or where memory does.
    #[inline(always)]
    pub fn advance<M: Memory>(&mut self, memory: &M, interpreter: &Interpreter) -> bool {
        self.step(memory, interpreter).is_some()
    }

    #[inline(always)]
    fn step<M: Memory>(&mut self, memory: &M, interpreter: &Interpreter) -> Option<()> {
        let layout = &interpreter.layout;
        let at = |base: u64, offset: u16| memory.word(base.wrapping_add(offset as u64));
        if self.state == 0 {
            let owner = match self.owner {
                0 => at(interpreter.runtime, layout.interpreters_head)?,
                owner => at(owner, layout.interpreter_next)?,
            };
            if owner == 0 {
                return None;
            }
            self.owner = owner;
            self.state = at(owner, layout.threads_head)?;
            return Some(());
        }
        let state = self.state;
        if at(state, layout.thread_id)? == self.thread_pointer {
            if first_frame(memory, layout, state)? != 0 {
                self.found = state;
                return None;
            }
            // It runs nothing here; it may elsewhere.
            if self.found == 0 {
                self.found = state;
            }
        }
        self.state = at(state, layout.thread_next)?;
        Some(())
    }
}
