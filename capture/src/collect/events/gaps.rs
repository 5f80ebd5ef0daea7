//! What is on the tape and says less than it might, counted.

use ktape_ebpf::wire::STACK_TOO_EARLY;
use serde::Serialize;

use super::stacks::Stacks;

/// What could not be told in full. Not losses: the events are on the tape.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Gaps {
    /// Calls whose return never came: without duration and result.
    pub calls_without_return: u64,
    /// Returns of calls that began before the recording, or were lost.
    pub returns_without_call: u64,
    /// Calls whose stack's body is not known.
    pub unknown_stacks: u64,
    /// Calls of a Python process before its interpreter was found: without a stack.
    pub before_interpreter: u64,
    /// Calls whose stack was left out, to keep the cost down.
    pub stacks_left_out: u64,
    /// New stacks that are not whole: deeper than is recorded, or with a frame that could not be read.
    pub incomplete_stacks: u64,
    /// Frames whose code object could not be read.
    pub unknown_frames: u64,
    /// Calls with arguments that could not be read.
    pub unreadable_arguments: u64,
    /// Launches of graphs that were made before the recording: their kernels are not known.
    pub launches_of_older_graphs: u64,
    /// Launches of graphs of which some nodes are not known.
    pub launches_of_partly_known_graphs: u64,
    /// Changes of graphs or nodes whose handles were not seen being handed out.
    pub unknown_graph_changes: u64,
    /// Captures that were not seen to begin: what was called of their streams counts as done.
    pub captures_without_begin: u64,
}

/// Counts what came without a stack, if that is for want of an interpreter; of a process that never has one it is nothing. A library inside
/// tells by itself that it did not know it yet, as the recorder may when it reads that.
pub(super) fn count_stackless(stack: u64, stacks: &Stacks, stackless: &mut u64, gaps: &mut Gaps) {
    match (stack, stacks.has_layout()) {
        (_, false) => *stackless += 1,
        (STACK_TOO_EARLY, true) => gaps.before_interpreter += 1,
        (_, true) => {}
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use ktape_ebpf::python::Interpreter;

    use super::*;

    #[test]
    fn what_had_no_stack_for_want_of_an_interpreter_is_counted_also_where_that_is_known_by_now() {
        let (mut stacks, mut stackless, mut gaps) = (Stacks::new(7, Rc::default()), 0, Gaps::default());
        for stack in [0, STACK_TOO_EARLY] {
            count_stackless(stack, &stacks, &mut stackless, &mut gaps);
        }
        assert_eq!((stackless, gaps.before_interpreter), (2, 0), "it may have none at all");
        stacks.set_interpreter(&Interpreter::default());
        for stack in [0, STACK_TOO_EARLY] {
            count_stackless(stack, &stacks, &mut stackless, &mut gaps);
        }
        assert_eq!((stackless, gaps.before_interpreter), (2, 1), "a thread of C has no stack either");
    }
}
