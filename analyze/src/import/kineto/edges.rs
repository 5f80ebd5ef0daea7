//! Slices that come as two entries: a beginning (`"ph": "B"`) and an end (`"ph": "E"`) of one thread, nested.
//!
//! They can only be paired when all of the text was read: the two may stand in different pieces. An end closes what
//! its thread began last; one that has a name closes the last beginning with that name. A beginning without an end was
//! going on when the recording stopped, so it reaches to the last time that its thread has.

use ktape_format::event::Slice;
use rustc_hash::FxHashMap;

use super::records::{Records, ThreadSlice};
use crate::import::Summary;
use crate::import::stacks::Rank;

/// A beginning or an end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Edge {
    pub(super) at_ns: i64,
    /// Number into [`Records::threads`].
    pub(super) thread: u32,
    /// The name; of an end 0 if it has none.
    pub(super) name: u32,
    /// What begins; `None` for an end.
    pub(super) begins: Option<Begin>,
}

/// What a beginning says of its slice.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begin {
    pub(super) frame: u32,
    pub(super) rank: Option<Rank>,
    pub(super) args: u32,
}

/// Pairs all edges to slices.
pub(super) fn pair(records: &mut Records, summary: &mut Summary) {
    let mut edges = std::mem::take(&mut records.edges);
    // What is at one time stays in the file's order.
    edges.sort_by_key(|edge| edge.at_ns);
    let mut open = FxHashMap::<u32, Vec<(Edge, Begin)>>::default();
    // How many of a name are open, so that an end without a beginning costs no search.
    let mut open_names = FxHashMap::<(u32, u32), u32>::default();
    let mut last_ns = FxHashMap::<u32, i64>::default();
    let (mut ends, mut stray, mut unended) = (0, 0, 0);
    let mut close = |(edge, begin): (Edge, Begin), end_ns: i64| {
        let Begin { frame, rank, args } = begin;
        let (start_ns, duration_ns) = (edge.at_ns, end_ns.abs_diff(edge.at_ns));
        let row = Slice { start_ns, duration_ns, thread: edge.thread, frame, sequence: -1, args };
        records.slices.push(ThreadSlice { row, rank, call_stack: 0 });
    };
    for edge in edges {
        last_ns.insert(edge.thread, edge.at_ns);
        let stack = open.entry(edge.thread).or_default();
        if let Some(begin) = edge.begins {
            stack.push((edge, begin));
            *open_names.entry((edge.thread, edge.name)).or_default() += 1;
            continue;
        }
        let is_its = |(began, _): &(Edge, Begin)| edge.name == 0 || began.name == edge.name;
        let may_be = edge.name == 0 || open_names.get(&(edge.thread, edge.name)).is_some_and(|open| *open > 0);
        let at = if may_be { stack.iter().rposition(is_its) } else { None };
        let Some(at) = at else {
            stray += 1;
            continue;
        };
        // What began within it and has no end cannot go on longer.
        unended += stack.len() as u64 - at as u64 - 1;
        ends += 1;
        for began in stack.drain(at..) {
            open_names.entry((edge.thread, began.0.name)).and_modify(|open| *open -= 1);
            close(began, edge.at_ns);
        }
    }
    for (thread, stack) in open {
        unended += stack.len() as u64;
        stack.into_iter().for_each(|began| close(began, last_ns[&thread]));
    }
    if ends > 0 {
        *summary.kept.entry("end of a slice").or_default() += ends;
    }
    if stray > 0 {
        Summary::count(&mut summary.not_kept, "end of a slice without its beginning", "", stray);
    }
    summary.repair_all("slice without an end, taken to last as long as what it is in", unended);
}
