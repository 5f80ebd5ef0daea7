//! What is on the tape and says less than it might, counted.

use serde::Serialize;

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
