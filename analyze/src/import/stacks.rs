//! Which slices a thread was in at an instant: the stack of every call, allocation and range.
//!
//! Slices of real traces cross (an annotation ends before the Python function that opened it), so the open ones are a
//! list that any entry may leave, not a stack. One pass over slices and instants in order of time; a step costs at
//! most the depth. The stack nodes of a prefix of the list stay valid until an entry of that prefix leaves.

use std::cmp::Reverse;

use ktape_format::Sink;
use ktape_format::definition::Stack;
use rayon::slice::ParallelSliceMut as _;

use crate::timeline::names::MOST_FRAMES;

/// What stands outside of what when slices of one thread begin and end together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    /// A range that somebody named.
    Annotation,
    /// A Python function.
    Python,
    /// An operator.
    Operator,
}

/// A slice of a thread, as a frame of the stacks of what happens in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) thread: u32,
    pub(super) start_ns: i64,
    pub(super) end_ns: i64,
    pub(super) rank: Rank,
    pub(super) frame: u32,
    /// The stack of Python frames it says it was called from; 0 for none.
    pub(super) call_stack: u32,
    /// Where to put the stack that the slice itself was opened in.
    pub(super) slot: Option<u32>,
}

/// Asks for a thread's stack at an instant.
#[derive(Clone, Copy, Debug)]
pub(super) struct Query {
    pub(super) thread: u32,
    pub(super) at_ns: i64,
    /// Where to put the answer.
    pub(super) slot: u32,
}

/// The answers to queries.
#[derive(Debug)]
pub(super) struct Stacks {
    /// The stack for slot `i` is element `i`.
    pub(super) by_slot: Vec<u32>,
    /// How many slices are in no stack, as they lie within [`MOST_FRAMES`] others: only a damaged trace has such, and
    /// the time that a stack takes grows with its depth.
    pub(super) too_deep: u64,
    /// How many stacks lack their innermost frames, as there were more than [`NODES_AN_EVENT`].
    pub(super) cut_short: u64,
    /// How many nodes may still be made.
    nodes_left: u64,
}

/// How many nodes of stacks there may be for each slice and query. A slice makes one, and one that leaves from the middle
/// as many again as stand above it; no real trace at hand comes near this. Where all of them cross, each query would make
/// as many as the stack is deep, which fills the memory.
pub(super) const NODES_AN_EVENT: u64 = 16;

/// Answers all queries. A slice is in the stack at `t` if it began at or before `t` and ends after it, or is empty and
/// lies at `t`.
pub(super) fn resolve<S: Sink>(
    sink: &mut S,
    mut spans: Vec<Span>,
    mut queries: Vec<Query>,
    slots: usize,
) -> Result<Stacks, S::Error> {
    // Both sorts are stable: what is equal in all else stays in the file's order.
    spans.par_sort_by_key(|span| (span.thread, span.start_ns, Reverse(span.end_ns), span.rank));
    queries.par_sort_by_key(|query| (query.thread, query.at_ns));
    let mut stacks = Stacks {
        by_slot: vec![0; slots],
        too_deep: 0,
        cut_short: 0,
        nodes_left: NODES_AN_EVENT * (spans.len() + queries.len()) as u64,
    };
    let mut open = Open::default();
    let mut spans = spans.into_iter().peekable();
    for query in queries {
        while let Some(span) = spans.next_if(|span| (span.thread, span.start_ns) <= (query.thread, query.at_ns)) {
            open.enter(sink, span, &mut stacks)?;
        }
        open.advance(query.thread, query.at_ns);
        stacks.by_slot[query.slot as usize] = open.stack(sink, &mut stacks)?;
    }
    for span in spans {
        open.enter(sink, span, &mut stacks)?;
    }
    Ok(stacks)
}

/// The slices that a thread is in.
#[derive(Default)]
struct Open {
    thread: u32,
    entries: Vec<Entry>,
    /// No entry ends before this.
    earliest_end_ns: i64,
    /// How many entries, from the first, have their stack node.
    known: usize,
    /// The stack that the first entry's node has as its parent.
    root: u32,
}

struct Entry {
    /// The first instant at which it is over.
    over_ns: i64,
    frame: u32,
    call_stack: u32,
    /// The stack up to and including this entry.
    stack: u32,
}

impl Open {
    fn enter<S: Sink>(&mut self, sink: &mut S, span: Span, stacks: &mut Stacks) -> Result<(), S::Error> {
        self.advance(span.thread, span.start_ns);
        if let Some(slot) = span.slot {
            stacks.by_slot[slot as usize] = self.stack(sink, stacks)?;
        }
        if self.entries.len() >= MOST_FRAMES {
            stacks.too_deep += 1;
            return Ok(());
        }
        // An empty slice is over only after its instant.
        let over_ns = span.end_ns.max(span.start_ns.saturating_add(1));
        self.earliest_end_ns = self.earliest_end_ns.min(over_ns);
        self.entries.push(Entry { over_ns, frame: span.frame, call_stack: span.call_stack, stack: 0 });
        Ok(())
    }

    /// Drops what is over at an instant, wherever in the list it stands.
    fn advance(&mut self, thread: u32, at_ns: i64) {
        if thread != self.thread {
            *self = Open { thread, earliest_end_ns: i64::MAX, ..Open::default() };
        }
        if self.earliest_end_ns > at_ns {
            return;
        }
        if let Some(first) = self.entries.iter().position(|entry| entry.over_ns <= at_ns) {
            self.known = self.known.min(first);
        }
        self.entries.retain(|entry| entry.over_ns > at_ns);
        self.earliest_end_ns = self.entries.iter().map(|entry| entry.over_ns).min().unwrap_or(i64::MAX);
    }

    /// The stack of all entries. The frames that the innermost of them says it was called from come outermost: they
    /// are the whole Python stack at that instant, those of an outer operator an earlier one.
    fn stack<S: Sink>(&mut self, sink: &mut S, stacks: &mut Stacks) -> Result<u32, S::Error> {
        let root = self.entries.iter().rev().map(|entry| entry.call_stack).find(|stack| *stack != 0).unwrap_or(0);
        if root != self.root {
            (self.root, self.known) = (root, 0);
        }
        let mut parent = match self.known {
            0 => root,
            known => self.entries[known - 1].stack,
        };
        for entry in &mut self.entries[self.known..] {
            let Some(left) = stacks.nodes_left.checked_sub(1) else {
                stacks.cut_short += 1;
                break;
            };
            stacks.nodes_left = left;
            entry.stack = sink.define(Stack { parent, frame: entry.frame, line: 0 })?;
            parent = entry.stack;
            self.known += 1;
        }
        Ok(parent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ktape_format::{Memory, Table as _};
    use proptest::prelude::*;

    fn span(start_ns: i64, end_ns: i64, rank: Rank, frame: u32) -> Span {
        Span { thread: 1, start_ns, end_ns, rank, frame, call_stack: 0, slot: None }
    }

    /// The frames, outermost first, at each of the instants.
    fn frames_at(spans: &[Span], instants: &[i64]) -> Vec<Vec<u32>> {
        let mut memory = Memory::default();
        let query = |(slot, at_ns): (usize, &i64)| Query { thread: 1, at_ns: *at_ns, slot: slot as u32 };
        let queries: Vec<Query> = instants.iter().enumerate().map(query).collect();
        let Ok(stacks) = resolve(&mut memory, spans.to_vec(), queries, instants.len());
        stacks.by_slot.iter().map(|stack| frames(&memory, *stack)).collect()
    }

    fn frames(memory: &Memory, stack: u32) -> Vec<u32> {
        let mut frames: Vec<u32> = memory.definitions.stack_nodes(stack).map(|(_, node)| node.frame).collect();
        frames.reverse();
        frames
    }

    #[test]
    fn nested() {
        let spans = [span(0, 100, Rank::Python, 1), span(10, 50, Rank::Python, 2), span(20, 30, Rank::Operator, 3)];
        assert_eq!(frames_at(&spans, &[25, 40, 60, 100, 5]), [vec![1, 2, 3], vec![1, 2], vec![1], vec![], vec![1]]);
    }

    #[test]
    fn crossing() {
        // The annotation 2 was opened in function 1 and closed in function 3, which 1 does not contain.
        let spans = [span(0, 20, Rank::Python, 1), span(10, 40, Rank::Annotation, 2), span(30, 50, Rank::Python, 3)];
        assert_eq!(frames_at(&spans, &[15, 25, 35, 45]), [vec![1, 2], vec![2], vec![2, 3], vec![3]]);
    }

    #[test]
    fn together() {
        let spans = [
            span(5, 9, Rank::Operator, 1),
            span(5, 9, Rank::Python, 2),
            span(5, 9, Rank::Annotation, 3),
            span(5, 10, Rank::Operator, 4),
            span(5, 9, Rank::Operator, 5),
        ];
        assert_eq!(frames_at(&spans, &[5]), [vec![4, 3, 2, 1, 5]]);
    }

    #[test]
    fn ends_are_outside_and_empty_slices_are_where_they_lie() {
        let spans = [span(0, 10, Rank::Python, 1), span(10, 10, Rank::Operator, 2), span(10, 12, Rank::Operator, 3)];
        assert_eq!(frames_at(&spans, &[9, 10, 11]), [vec![1], vec![3, 2], vec![3]]);
    }

    #[test]
    fn other_threads_do_not_count() {
        let other = Span { thread: 2, ..span(0, 100, Rank::Python, 9) };
        assert_eq!(frames_at(&[other, span(0, 100, Rank::Python, 1)], &[50]), [[1]]);
    }

    #[test]
    fn a_slice_asks_for_what_it_was_opened_in() {
        let mut memory = Memory::default();
        let spans = vec![
            span(0, 10, Rank::Python, 1),
            Span { slot: Some(0), ..span(2, 8, Rank::Annotation, 2) },
            span(2, 6, Rank::Operator, 3),
        ];
        let Ok(stacks) = resolve(&mut memory, spans, Vec::new(), 1);
        assert_eq!(frames(&memory, stacks.by_slot[0]), [1]);
    }

    #[test]
    fn the_innermost_call_stack_is_the_root() {
        let mut memory = Memory::default();
        let Ok(outer) = memory.define(Stack { parent: 0, frame: 70, line: 1 });
        let Ok(inner) = memory.define(Stack { parent: outer, frame: 71, line: 2 });
        let spans = vec![
            Span { call_stack: outer, ..span(0, 10, Rank::Operator, 1) },
            Span { call_stack: inner, ..span(2, 8, Rank::Operator, 2) },
            span(3, 4, Rank::Operator, 3),
        ];
        let queries = [1, 3, 9].iter().enumerate();
        let queries = queries.map(|(slot, at_ns)| Query { thread: 1, at_ns: *at_ns, slot: slot as u32 }).collect();
        let Ok(stacks) = resolve(&mut memory, spans, queries, 3);
        assert_eq!(frames(&memory, stacks.by_slot[0]), [70, 1]);
        assert_eq!(frames(&memory, stacks.by_slot[1]), [70, 71, 1, 2, 3]);
        assert_eq!(frames(&memory, stacks.by_slot[2]), [70, 1]);
    }

    #[test]
    fn slices_of_no_end_of_depth_take_no_time() {
        let nested: Vec<Span> = (0..100_000).map(|at| span(at, 1_000_000 - at, Rank::Python, 1)).collect();
        let query = Query { thread: 1, at_ns: 500_000, slot: 0 };
        let mut memory = Memory::default();
        let Ok(stacks) = resolve(&mut memory, nested, vec![query], 1);
        assert_eq!(stacks.too_deep, 100_000 - MOST_FRAMES as u64);
        assert_eq!(frames(&memory, stacks.by_slot[0]).len(), MOST_FRAMES);
        let beside: Vec<Span> = (0..10_000).map(|at| span(at, at + 1, Rank::Python, 1)).collect();
        let Ok(stacks) = resolve(&mut memory, beside, Vec::new(), 0);
        assert_eq!(stacks.too_deep, 0);
    }

    #[test]
    fn slices_that_all_cross_do_not_fill_the_memory() {
        let count = 10_000;
        let crossing: Vec<Span> = (0..count).map(|at| span(at, at + 1500, Rank::Python, at as u32 + 1)).collect();
        let queries = (0..count).map(|at| Query { thread: 1, at_ns: at, slot: at as u32 }).collect();
        let mut memory = Memory::default();
        let Ok(stacks) = resolve(&mut memory, crossing, queries, count as usize);
        assert!(memory.definitions.stacks.len() as u64 <= NODES_AN_EVENT * 2 * count as u64);
        assert!(stacks.cut_short > 0 && frames(&memory, stacks.by_slot[100]).len() == 101);
    }

    proptest! {
        /// The pass agrees with looking at every slice for every instant.
        #[test]
        fn any_slices(parts in prop::collection::vec((0i64..40, 0i64..12, 0u8..3), 0..30)) {
            let spans: Vec<Span> = parts.iter().zip(1..).map(|((start, length, rank), frame)| {
                let rank = [Rank::Annotation, Rank::Python, Rank::Operator][usize::from(*rank)];
                span(*start, start + length, rank, frame)
            }).collect();
            let instants: Vec<i64> = (0..55).collect();
            let expected: Vec<Vec<u32>> = instants.iter().map(|at| {
                let mut inside: Vec<&Span> = spans.iter().filter(|span| {
                    span.start_ns <= *at && (*at < span.end_ns || span.start_ns == span.end_ns && span.start_ns == *at)
                }).collect();
                inside.sort_by_key(|span| (span.start_ns, Reverse(span.end_ns), span.rank, span.frame));
                inside.iter().map(|span| span.frame).collect()
            }).collect();
            prop_assert_eq!(frames_at(&spans, &instants), expected);
        }
    }
}
