//! Flamegraphs: weighted stacks as nested frames whose width is exact.
//!
//! [`Tree`] merges the stacks of a timeline by what is written on their frames; [`svg`] draws it, [`folded`] writes
//! it as text, [`super::speedscope`] as a profile. All three show the same frames in the same order, the widest
//! first, and the root's weight is the sum of the weights that went in: no renderer rounds, drops or samples.
//!
//! A kernel, copy or memset stands directly on the frame that called its launch. The API function in between is left
//! out: it would add a row of `cudaLaunchKernel` under every kernel and tell nothing; `Value::Api` shows those.

pub mod folded;
mod label;
pub mod svg;
mod tree;

pub use label::{Class, Label};
pub use tree::Tree;

use regex::Regex;

/// What stands at the root, below the stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum By {
    /// Nothing: the callers themselves
    #[default]
    Stack,
    /// The kernel, copy or call; above it who launched it
    Kernel,
    /// The device and stream that the work ran on
    Stream,
    /// The process and its rank
    Rank,
}

/// Which stacks a tree holds, and how they stand.
#[derive(Clone, Debug, Default)]
pub struct Shape {
    /// What stands at the root.
    pub by: By,
    /// Only stacks with a frame or leaf that this matches.
    pub filter: Option<Regex>,
    /// Leaves at the root, callers above them.
    pub reverse: bool,
}
