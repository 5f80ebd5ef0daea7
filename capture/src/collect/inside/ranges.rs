//! NVTX's ranges and marks of one process, as rows.
//!
//! A range becomes a row when it ends, as a whole; one that has not ended by the end of its process or of the recording is a row
//! that is open. Ranges that are pushed and popped nest by thread and domain, and what closes one doesn't say which: so each word
//! has a number, and where one is missing, nothing that was open on that thread can be told to be closed by a later one. Those rows stay
//! open, and are counted.

use std::collections::VecDeque;
use std::rc::Rc;

use ktape_ebpf::inside::{RangeTold, payload, range};
use ktape_ebpf::wire::tally::NO_CPU;
use ktape_format::Sink;
use ktape_format::event::{Event, Mark, Range, phase};
use ktape_format::table::DefinitionKind;
use rustc_hash::FxHashMap;
use serde::Serialize;

use super::super::events::Key;
use super::super::events::account::{Account, give};

/// How deep ranges may nest, and how many may be started at a time. Programs that forget to close them are many.
const MOST_OPEN: usize = 1 << 16;

/// A range or mark, with what its record refers to.
#[derive(Clone, Debug)]
pub(in super::super) struct Said {
    pub(in super::super) told: RangeTold,
    /// The thread's definition.
    pub(in super::super) thread: u32,
    /// The domain's name; empty for the default.
    pub(in super::super) domain: Rc<str>,
    pub(in super::super) name: Rc<str>,
    /// The stack's definition.
    pub(in super::super) stack: u32,
}

/// What became of ranges and marks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RangeCounts {
    /// Ranges that are on the tape from their beginning to their end.
    pub ranges: u64,
    /// Marks.
    pub marks: u64,
    /// Ranges that are on the tape without an end, as their thread, process or recording ended before.
    pub left_open: u64,
    /// Likewise, as a word of their thread is missing, or as too many were open.
    pub given_up: u64,
    /// Words that close what was not seen to open.
    pub closes_nothing: u64,
}

/// Where rows are accounted for.
pub(in super::super) struct Books<'a> {
    pub(in super::super) account: &'a mut Account,
    pub(in super::super) counts: &'a mut RangeCounts,
}

impl Books<'_> {
    /// Writes a row, which its process has counted by the time of its beginning.
    fn write<E: Event, S: Sink>(&mut self, row: E, time_ns: u64, sink: &mut S) -> Result<(), S::Error> {
        let fate = give(row, sink)?;
        self.account.settle(Key::new(time_ns, NO_CPU, E::KIND), fate);
        Ok(())
    }
}

/// The ranges of a process that are open.
#[derive(Debug, Default)]
pub(in super::super) struct Ranges {
    /// By thread and domain, innermost last.
    pushed: FxHashMap<(u32, Rc<str>), Vec<Said>>,
    started: FxHashMap<u64, Said>,
    /// The last word of each thread.
    words: FxHashMap<u32, u64>,
    /// How many are open.
    open: usize,
    /// Words that wait for a stack, and what came behind them, in their order.
    waiting: VecDeque<Waiting>,
    /// The stacks of those of which no word came yet, by thread and when they begin.
    stacks: FxHashMap<(u32, u64), u32>,
}

/// What waits until its turn.
#[derive(Debug)]
enum Waiting {
    Word(Said),
    /// The end of a thread, by its definition.
    EndOfThread(u32),
}

/// A word waits at most so long for its stack. The two come on different ways, of which either may be the longer one for a moment: a
/// program that is interrupted while it writes holds up what others have written behind it.
const STACK_WITHIN_NS: u64 = 1_000_000_000;

impl Ranges {
    /// Keeps the stack of a range or mark that begins at this time, for its word.
    pub(in super::super) fn expect(&mut self, tid: u32, time_ns: u64, stack: u32) {
        // Of words that are lost nobody takes the stacks.
        if self.stacks.len() >= MOST_OPEN {
            self.stacks.clear();
        }
        self.stacks.insert((tid, time_ns), stack);
    }

    /// Keeps a word until its stack and all before it have come: see [`Ranges::go_on`].
    pub(in super::super) fn wait(&mut self, said: Said) {
        self.waiting.push_back(Waiting::Word(said));
    }

    /// Likewise the end of a thread.
    pub(in super::super) fn wait_to_end(&mut self, thread: u32) {
        self.waiting.push_back(Waiting::EndOfThread(thread));
    }

    /// Takes what waits, as far as stacks have come or are overdue at this time; without a time all of it. Returns how many had none.
    pub(in super::super) fn go_on<S: Sink>(
        &mut self,
        now_ns: Option<u64>,
        books: &mut Books<'_>,
        sink: &mut S,
    ) -> Result<u64, S::Error> {
        let mut without = 0;
        while let Some(next) = self.waiting.pop_front() {
            let mut said = match next {
                Waiting::EndOfThread(thread) => {
                    self.end_thread(thread, books, sink)?;
                    continue;
                }
                Waiting::Word(said) => said,
            };
            let RangeTold { what, time_ns, pid_tid, .. } = said.told;
            if matches!(what, range::PUSH | range::START | range::MARK) {
                let is_overdue = now_ns.is_none_or(|now_ns| time_ns.saturating_add(STACK_WITHIN_NS) < now_ns);
                match self.stacks.remove(&(pid_tid as u32, time_ns)) {
                    Some(stack) => said.stack = stack,
                    None if is_overdue || self.waiting.len() >= MOST_OPEN => without += 1,
                    None => {
                        self.waiting.push_front(Waiting::Word(said));
                        break;
                    }
                }
            }
            self.take(said, books, sink)?;
        }
        Ok(without)
    }

    /// Takes a word; writes the rows that it completes.
    pub(in super::super) fn take<S: Sink>(
        &mut self,
        said: Said,
        books: &mut Books<'_>,
        sink: &mut S,
    ) -> Result<(), S::Error> {
        let RangeTold { what, time_ns, id, .. } = said.told;
        if matches!(what, range::PUSH | range::POP) {
            let last = self.words.insert(said.thread, id).unwrap_or(0);
            if last.wrapping_add(1) != id {
                books.counts.given_up += self.give_up(said.thread, books, sink)?;
            }
        }
        let closed = match what {
            range::MARK => {
                let row = Mark {
                    start_ns: time_ns as i64,
                    thread: said.thread,
                    name: sink.string(&said.name)?,
                    category: sink.string(&said.domain)?,
                    stack: said.stack,
                    args: arguments(&said.told, sink)?,
                };
                books.counts.marks += 1;
                return books.write(row, time_ns, sink);
            }
            range::PUSH | range::START if self.open >= MOST_OPEN => {
                books.counts.given_up += 1;
                return write(&said, None, books, sink);
            }
            range::PUSH => {
                self.open += 1;
                self.pushed.entry((said.thread, said.domain.clone())).or_default().push(said);
                return Ok(());
            }
            range::START => {
                self.open += 1;
                return match self.started.insert(id, said) {
                    // Only who numbers ranges otherwise than the library does.
                    Some(before) => {
                        self.open -= 1;
                        books.counts.given_up += 1;
                        write(&before, None, books, sink)
                    }
                    None => Ok(()),
                };
            }
            range::POP => self.pushed.get_mut(&(said.thread, said.domain)).and_then(Vec::pop),
            _ => self.started.remove(&id),
        };
        match closed {
            Some(opened) => {
                self.open -= 1;
                books.counts.ranges += 1;
                write(&opened, Some(time_ns), books, sink)
            }
            None => {
                books.counts.closes_nothing += 1;
                Ok(())
            }
        }
    }

    /// The thread has ended: what it pushed closes no more.
    pub(in super::super) fn end_thread<S: Sink>(
        &mut self,
        thread: u32,
        books: &mut Books<'_>,
        sink: &mut S,
    ) -> Result<(), S::Error> {
        if self.words.remove(&thread).is_some() {
            books.counts.left_open += self.give_up(thread, books, sink)?;
        }
        Ok(())
    }

    /// Writes all that is open.
    pub(in super::super) fn finish<S: Sink>(&mut self, books: &mut Books<'_>, sink: &mut S) -> Result<(), S::Error> {
        let pushed = std::mem::take(&mut self.pushed).into_values().flatten();
        let mut open: Vec<Said> = pushed.chain(std::mem::take(&mut self.started).into_values()).collect();
        self.open = 0;
        books.counts.left_open += open.len() as u64;
        open.sort_unstable_by_key(|said| (said.told.time_ns, said.thread, said.told.id));
        open.iter().try_for_each(|said| write(said, None, books, sink))
    }

    /// Names each definition whose id is kept.
    pub(in super::super) fn kept(&self, keep: &mut dyn FnMut(DefinitionKind, u32)) {
        for said in self.pushed.values().flatten().chain(self.started.values()) {
            keep(DefinitionKind::Thread, said.thread);
            keep(DefinitionKind::Stack, said.stack);
        }
        for waiting in &self.waiting {
            let (Waiting::Word(Said { thread, .. }) | Waiting::EndOfThread(thread)) = waiting;
            keep(DefinitionKind::Thread, *thread);
        }
        self.stacks.values().for_each(|&stack| keep(DefinitionKind::Stack, stack));
    }

    /// Writes what a thread has pushed; returns how many these were.
    fn give_up<S: Sink>(&mut self, thread: u32, books: &mut Books<'_>, sink: &mut S) -> Result<u64, S::Error> {
        let of_thread = self.pushed.extract_if(|(of, _), _| *of == thread);
        let mut open: Vec<Said> = of_thread.flat_map(|(_, open)| open).collect();
        open.sort_unstable_by_key(|said| said.told.id);
        self.open -= open.len();
        open.iter().try_for_each(|said| write(said, None, books, sink))?;
        Ok(open.len() as u64)
    }
}

/// Writes a range, up to its end if that is known.
fn write<S: Sink>(said: &Said, end_ns: Option<u64>, books: &mut Books<'_>, sink: &mut S) -> Result<(), S::Error> {
    let row = Range {
        start_ns: said.told.time_ns as i64,
        duration_ns: end_ns.map_or(0, |end_ns| end_ns.saturating_sub(said.told.time_ns)),
        thread: said.thread,
        name: sink.string(&said.name)?,
        category: sink.string(&said.domain)?,
        phase: if end_ns.is_some() { phase::COMPLETE } else { phase::PUSH },
        stack: said.stack,
        args: arguments(&said.told, sink)?,
        ..Range::default()
    };
    books.write(row, said.told.time_ns, sink)
}

/// The number that was given with it, as the rows' other arguments are: JSON.
fn arguments<S: Sink>(told: &RangeTold, sink: &mut S) -> Result<u32, S::Error> {
    let bits = told.payload;
    let number = match told.payload_type {
        payload::U64 => bits.to_string(),
        payload::I64 => (bits as i64).to_string(),
        payload::F64 => real(f64::from_bits(bits)),
        payload::U32 => (bits as u32).to_string(),
        payload::I32 => (bits as i32).to_string(),
        payload::F32 => real(f32::from_bits(bits as u32).into()),
        _ => return Ok(0),
    };
    sink.string(&format!("{{\"payload\":{number}}}"))
}

/// A number as JSON has it, which knows no infinity.
fn real(number: f64) -> String {
    if number.is_finite() { number.to_string() } else { format!("\"{number}\"") }
}

#[cfg(test)]
mod tests {
    use ktape_format::{Memory, Row as _, Table as _};

    use super::*;

    fn told(what: u32, time_ns: u64, id: u64) -> RangeTold {
        RangeTold {
            kind: 0,
            what,
            time_ns,
            pid_tid: 0,
            id,
            domain: 0,
            name: 0,
            stack: 0,
            payload: 7,
            payload_type: payload::NONE,
            padding: 0,
        }
    }

    fn said(what: u32, time_ns: u64, id: u64, domain: &str, name: &str) -> Said {
        Said { told: told(what, time_ns, id), thread: 1, domain: domain.into(), name: name.into(), stack: 0 }
    }

    /// Name, domain, start, duration, whether it is whole; by start.
    fn rows(memory: &Memory) -> Vec<(String, String, i64, u64, bool)> {
        let text = |id| memory.definitions.string(id).to_owned();
        let row = |row: Range| {
            (text(row.name), text(row.category), row.start_ns, row.duration_ns, row.phase == phase::COMPLETE)
        };
        let mut rows: Vec<_> = memory.events.range.rows().map(row).collect();
        rows.sort_by_key(|row| row.2);
        rows
    }

    fn whole(name: &str, domain: &str, start_ns: i64, duration_ns: u64) -> (String, String, i64, u64, bool) {
        (name.to_owned(), domain.to_owned(), start_ns, duration_ns, true)
    }

    /// The ranges of a process, and what became of them.
    #[derive(Default)]
    struct Scene {
        ranges: Ranges,
        account: Account,
        counts: RangeCounts,
        memory: Memory,
    }

    impl Scene {
        fn take(&mut self, said: Said) {
            let mut books = Books { account: &mut self.account, counts: &mut self.counts };
            let Ok(()) = self.ranges.take(said, &mut books, &mut self.memory);
        }

        /// What waits goes on; returns how many had no stack.
        fn go_on(&mut self, now_ns: Option<u64>) -> u64 {
            let mut books = Books { account: &mut self.account, counts: &mut self.counts };
            let Ok(without) = self.ranges.go_on(now_ns, &mut books, &mut self.memory);
            without
        }

        fn finish(&mut self) {
            let mut books = Books { account: &mut self.account, counts: &mut self.counts };
            let Ok(()) = self.ranges.finish(&mut books, &mut self.memory);
        }

        /// Rows that were settled, by table.
        fn settled(&mut self, kind: u16) -> u64 {
            self.account.take().filter(|(key, _)| key.kind() == kind).map(|(_, settled)| settled.written).sum()
        }
    }

    #[test]
    fn ranges_nest_by_domain_and_started_ones_end_in_any_order() {
        let mut scene = Scene::default();
        for said in [
            said(range::PUSH, 10, 1, "", "outer"),
            said(range::PUSH, 11, 2, "nccl", "reduce"),
            said(range::START, 12, 1, "", "a"),
            said(range::START, 13, 2, "", "b"),
            said(range::PUSH, 14, 3, "", "inner"),
            said(range::POP, 15, 4, "", ""),
            said(range::END, 16, 1, "", ""),
            said(range::POP, 17, 5, "", ""),
            said(range::END, 18, 2, "", ""),
            said(range::POP, 19, 6, "nccl", ""),
        ] {
            scene.take(said);
        }
        let expected = [
            whole("outer", "", 10, 7),
            whole("reduce", "nccl", 11, 8),
            whole("a", "", 12, 4),
            whole("b", "", 13, 5),
            whole("inner", "", 14, 1),
        ];
        assert_eq!(rows(&scene.memory), expected);
        scene.take(said(range::POP, 20, 7, "", ""));
        assert_eq!(scene.counts, RangeCounts { ranges: 5, closes_nothing: 1, ..RangeCounts::default() });
        assert_eq!(scene.settled(Range::KIND), 5);
    }

    #[test]
    fn a_missing_word_closes_nothing_with_another() {
        let mut scene = Scene::default();
        scene.take(said(range::PUSH, 10, 1, "", "outer"));
        scene.take(said(range::PUSH, 11, 2, "", "inner"));
        // The third, which closed the inner one, was lost.
        scene.take(said(range::POP, 13, 4, "", ""));
        assert_eq!(scene.counts, RangeCounts { given_up: 2, closes_nothing: 1, ..RangeCounts::default() });
        scene.take(said(range::PUSH, 14, 5, "", "next"));
        scene.take(said(range::POP, 15, 6, "", ""));
        let open_row = |name: &str, start_ns| (name.to_owned(), String::new(), start_ns, 0, false);
        assert_eq!(rows(&scene.memory), [open_row("outer", 10), open_row("inner", 11), whole("next", "", 14, 1)]);
        assert_eq!(scene.settled(Range::KIND), 3);
    }

    /// Stacks by the ranges' starts.
    fn stacks(memory: &Memory) -> Vec<(i64, u32)> {
        let mut stacks: Vec<_> = memory.events.range.rows().map(|row: Range| (row.start_ns, row.stack)).collect();
        stacks.sort_unstable();
        stacks
    }

    #[test]
    fn words_and_their_stacks_meet_whichever_comes_first() {
        let mut scene = Scene::default();
        scene.ranges.expect(0, 10, 1);
        for word in [said(range::PUSH, 10, 1, "", "first"), said(range::PUSH, 20, 2, "", "second")] {
            scene.ranges.wait(word);
        }
        assert_eq!((scene.go_on(Some(20)), scene.ranges.open), (0, 1));
        // What comes behind the one that waits waits too.
        scene.ranges.wait(said(range::POP, 30, 3, "", ""));
        scene.ranges.wait(said(range::POP, 40, 4, "", ""));
        scene.ranges.wait_to_end(1);
        assert_eq!((scene.go_on(Some(40)), rows(&scene.memory).len()), (0, 0));
        scene.ranges.expect(0, 20, 2);
        assert_eq!(scene.go_on(Some(40)), 0);
        assert_eq!(rows(&scene.memory), [whole("first", "", 10, 30), whole("second", "", 20, 10)]);
        assert_eq!(stacks(&scene.memory), [(10, 1), (20, 2)]);
        assert!(scene.ranges.waiting.is_empty() && scene.ranges.stacks.is_empty() && scene.ranges.words.is_empty());
    }

    #[test]
    fn a_stack_that_is_overdue_is_not_waited_for_nor_is_any_at_the_end() {
        let mut scene = Scene::default();
        for (at, id) in [(10, 1), (20, 3)] {
            scene.ranges.wait(said(range::PUSH, at, id, "", "range"));
            scene.ranges.wait(said(range::POP, at + 5, id + 1, "", ""));
        }
        scene.ranges.expect(0, 20, 7);
        assert_eq!(scene.go_on(Some(STACK_WITHIN_NS)), 0);
        assert_eq!(scene.go_on(Some(STACK_WITHIN_NS + 11)), 1);
        assert_eq!(stacks(&scene.memory), [(10, 0), (20, 7)]);
        scene.ranges.wait(said(range::MARK, 30, 0, "", "mark"));
        assert_eq!((scene.go_on(Some(31)), scene.go_on(None)), (0, 1));
        assert_eq!((scene.memory.events.mark.len(), scene.counts.given_up), (1, 0));
    }

    #[test]
    fn what_is_open_at_the_end_is_written_and_payloads_are_kept() {
        let mut scene = Scene::default();
        let mut mark = said(range::MARK, 5, 0, "", "here");
        mark.told.payload_type = payload::F32;
        mark.told.payload = 0.5_f32.to_bits().into();
        scene.take(mark);
        scene.take(said(range::PUSH, 6, 1, "", "early"));
        scene.take(said(range::START, 7, 9, "", "late"));
        scene.finish();
        assert_eq!(scene.counts, RangeCounts { marks: 1, left_open: 2, ..RangeCounts::default() });
        assert_eq!(rows(&scene.memory).iter().map(|row| row.4).collect::<Vec<_>>(), [false, false]);
        let mark: Mark = scene.memory.events.mark.rows().next().expect("a mark");
        assert_eq!(scene.memory.definitions.string(mark.args), "{\"payload\":0.5}");
        assert_eq!(scene.account.take().count(), 2, "a mark, and ranges");
    }
}
