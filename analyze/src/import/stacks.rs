//! Which slices a thread was in at an instant: the stack of every call, allocation and range.
//!
//! Slices of real traces cross (an annotation ends before the Python function that opened it), so the open ones are a
//! list that any entry may leave, not a stack. One pass over slices and instants in order of time; a step costs at
//! most the depth. The stack nodes of a prefix of the list stay valid until an entry of that prefix leaves.

use std::cmp::Reverse;

use ktape_format::Sink;
use ktape_format::definition::Stack;
use rayon::slice::ParallelSliceMut as _;

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

/// Answers all queries: the stack for slot `i` is element `i`. A slice is in the stack at `t` if it began at or before
/// `t` and ends after it, or is empty and lies at `t`.
pub(super) fn resolve<S: Sink>(
    sink: &mut S,
    mut spans: Vec<Span>,
    mut queries: Vec<Query>,
    slots: usize,
) -> Result<Vec<u32>, S::Error> {
    // Both sorts are stable: what is equal in all else stays in the file's order.
    spans.par_sort_by_key(|span| (span.thread, span.start_ns, Reverse(span.end_ns), span.rank));
    queries.par_sort_by_key(|query| (query.thread, query.at_ns));
    let mut stacks = vec![0; slots];
    let mut open = Open::default();
    let mut spans = spans.into_iter().peekable();
    for query in queries {
        while let Some(span) = spans.next_if(|span| (span.thread, span.start_ns) <= (query.thread, query.at_ns)) {
            open.enter(sink, span, &mut stacks)?;
        }
        open.advance(query.thread, query.at_ns);
        stacks[query.slot as usize] = open.stack(sink)?;
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
    fn enter<S: Sink>(&mut self, sink: &mut S, span: Span, stacks: &mut [u32]) -> Result<(), S::Error> {
        self.advance(span.thread, span.start_ns);
        if let Some(slot) = span.slot {
            stacks[slot as usize] = self.stack(sink)?;
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
    fn stack<S: Sink>(&mut self, sink: &mut S) -> Result<u32, S::Error> {
        let root = self.entries.iter().rev().map(|entry| entry.call_stack).find(|stack| *stack != 0).unwrap_or(0);
        if root != self.root {
            (self.root, self.known) = (root, 0);
        }
        let mut parent = match self.known {
            0 => root,
            known => self.entries[known - 1].stack,
        };
        for entry in &mut self.entries[self.known..] {
            entry.stack = sink.define(Stack { parent, frame: entry.frame, line: 0 })?;
            parent = entry.stack;
        }
        self.known = self.entries.len();
        Ok(parent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ktape_format::Memory;
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
        stacks.iter().map(|stack| frames(&memory, *stack)).collect()
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
        assert_eq!(frames(&memory, stacks[0]), [1]);
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
        assert_eq!(frames(&memory, stacks[0]), [70, 1]);
        assert_eq!(frames(&memory, stacks[1]), [70, 71, 1, 2, 3]);
        assert_eq!(frames(&memory, stacks[2]), [70, 1]);
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
