//! The state of a thread, looked for in the lists that the runtime keeps: where pthread's slot doesn't tell it.
//!
//! That is so with a C library whose slots are elsewhere, and up to 3.11 with several interpreters in a process: the slot then
//! has the thread's state in the main one, also while it runs another. A thread's state is the one that has its `pthread_self`
//! and runs something. The youngest interpreter comes first in the list, and has been entered last.

use super::{Interpreter, Layout, Memory, first_frame};

/// The most steps to give a search: threads and interpreters. One that takes them all may have missed the thread.
pub const MAX_SEARCH: u32 = 4096;
/// The same where everything else waits.
pub const MAX_SEARCH_IN_INTERRUPT: u32 = 256;

/// Whether a state that was found is still this thread's.
#[inline(always)]
pub fn is_of_thread<M: Memory>(memory: &M, layout: &Layout, state: u64, thread_pointer: u64) -> bool {
    memory.word(state.wrapping_add(layout.thread_id as u64)) == Some(thread_pointer)
}

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

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::super::LAYOUTS;
    use super::super::made::{LIMIT, Made};
    use super::*;

    const THREAD: u64 = 0x7000;

    /// 3.10: what an interpreter, the youngest first, has of threads: the state's address, its `pthread_self`, its frame.
    fn found(interpreters: &[&[(u64, u64, u64)]]) -> u64 {
        let layout = LAYOUTS[2];
        let mut words = Vec::new();
        for (number, states) in interpreters.iter().enumerate() {
            let owner = 0x1000 * (number as u64 + 1);
            words.push(match number {
                0 => (layout.interpreters_head as u64, owner),
                _ => (owner - 0x1000 + layout.interpreter_next as u64, owner),
            });
            let nexts = states.iter().skip(1).map(|state| state.0).chain([0]);
            words.push((owner + layout.threads_head as u64, states.first().map_or(0, |state| state.0)));
            for (&(state, thread, frame), next) in states.iter().zip(nexts) {
                words.push((state + layout.thread_next as u64, next));
                words.push((state + layout.thread_id as u64, thread));
                words.push((state + layout.current_frame as u64, frame));
            }
        }
        search(&Made::of(&words))
    }

    fn search(memory: &Made) -> u64 {
        let interpreter = Interpreter { layout: LAYOUTS[2], ..Interpreter::default() };
        let mut search = Search::default();
        search.begin(THREAD);
        let mut steps = 0;
        while steps < MAX_SEARCH && search.advance(memory, &interpreter) {
            steps += 1;
        }
        search.found
    }

    #[test]
    fn a_thread_is_found_by_its_pthread_self() {
        assert_eq!(found(&[&[(0x8000, 1, 9), (0x8400, THREAD, 9), (0x8800, 2, 9)]]), 0x8400);
        assert_eq!(found(&[&[(0x8000, 1, 9)]]), 0);
        assert_eq!(found(&[]), 0);
    }

    #[test]
    fn of_several_states_the_one_that_runs_in_the_youngest_interpreter_is_meant() {
        let main: &[_] = &[(0x8000, THREAD, 9)];
        assert_eq!(found(&[&[(0x8400, THREAD, 9)], main]), 0x8400);
        assert_eq!(found(&[&[(0x8400, THREAD, 0)], main]), 0x8000);
        assert_eq!(found(&[&[(0x8400, 1, 9)], &[], main]), 0x8000);
        assert_eq!(found(&[&[(0x8400, THREAD, 0)], &[(0x8000, 1, 9)]]), 0x8400);
    }

    #[test]
    fn a_list_that_runs_in_a_circle_or_out_of_memory_finds_nothing() {
        let layout = LAYOUTS[2];
        let at = |words: &[(u64, u64)]| search(&Made::of(words));
        let owner = (layout.interpreters_head as u64, 0x1000);
        let first = (0x1000 + layout.threads_head as u64, 0x8000);
        assert_eq!(at(&[owner, first, (0x8000 + layout.thread_next as u64, 0x8000)]), 0);
        assert_eq!(at(&[owner, first, (0x8000 + layout.thread_next as u64, LIMIT)]), 0);
        assert_eq!(at(&[(layout.interpreters_head as u64, LIMIT)]), 0);
    }
}
