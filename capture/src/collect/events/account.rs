//! What became of the calls and samples whose records came: the collector's side of the proof that nothing is missing.
//!
//! Each is settled once, when it becomes a row, under the processor, kind and interval that the eBPF program counted it under:
//! its record says the first, its function the second, its own time the third. `record/tally.rs` puts both sides together.

use ktape_ebpf::wire::tally;
use ktape_format::Sink;
use ktape_format::event::Event;
use rustc_hash::FxHashMap;

/// Under what something is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(u64);

impl Key {
    /// What happened at a time, on a processor, of a kind: the number of a table, 0 for no event.
    pub fn new(time_ns: u64, cpu: u16, kind: u16) -> Key {
        Key(tally::interval(time_ns) << 32 | u64::from(cpu) << 16 | u64::from(kind))
    }

    /// The interval's number: see [`tally::interval`].
    pub fn interval(self) -> u64 {
        self.0 >> 32
    }

    /// The processor.
    pub fn cpu(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// The table.
    pub fn kind(self) -> u16 {
        self.0 as u16
    }

    fn of_kind(self, kind: u16) -> Key {
        Key(self.0 & !0xffff | u64::from(kind))
    }
}

/// What became of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is no event.
    NoEvent,
    /// Its row is on the tape, in this table.
    Written(u16),
    /// The tape had no room for its row in this table, and has a loss row for it, or will have.
    Lost(u16),
    /// It was not to be recorded.
    LeftOut,
}

impl Fate {
    /// The better of two rows' fates.
    pub(super) fn or(self, other: Fate) -> Fate {
        if matches!(self, Fate::Written(_)) { self } else { other }
    }
}

/// Gives a row to the sink, and says what became of it.
pub(in super::super) fn give<E: Event, S: Sink>(row: E, sink: &mut S) -> Result<Fate, S::Error> {
    let lost = sink.lost_events();
    sink.event(row)?;
    Ok(if sink.lost_events() == lost { Fate::Written(E::KIND) } else { Fate::Lost(E::KIND) })
}

/// How many had which fate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// See [`Fate::Written`].
    pub written: u64,
    /// See [`Fate::Lost`].
    pub lost: u64,
    /// See [`Fate::LeftOut`].
    pub left_out: u64,
    /// Seen as another kind, and a row of this one: a launch into a stream that is captured is a call and no launch. Negative for the
    /// kind that they were seen as. Or seen by the collector itself.
    pub came: i64,
}

/// What was settled since it was looked at last.
#[derive(Debug, Default)]
pub(in super::super) struct Account {
    settled: FxHashMap<Key, Settled>,
}

impl Account {
    /// Settles one call. Returns 1 if it is an event.
    pub(in super::super) fn settle(&mut self, key: Key, fate: Fate) -> u64 {
        if fate == Fate::NoEvent {
            return 0;
        }
        let key = match fate {
            Fate::Written(kind) | Fate::Lost(kind) if kind != key.kind() => {
                self.settled.entry(key).or_default().came -= 1;
                let key = key.of_kind(kind);
                self.settled.entry(key).or_default().came += 1;
                key
            }
            _ => key,
        };
        let settled = self.settled.entry(key).or_default();
        match fate {
            Fate::NoEvent => {}
            Fate::Written(_) => settled.written += 1,
            Fate::Lost(_) => settled.lost += 1,
            Fate::LeftOut => settled.left_out += 1,
        }
        u64::from(fate != Fate::LeftOut)
    }

    /// Counts what no program counts, as the collector saw it itself. It is to be settled as all else.
    pub(super) fn saw(&mut self, key: Key) {
        self.settled.entry(key).or_default().came += 1;
    }

    /// Settles what was counted under a time that its row does not have.
    pub(in super::super) fn settle_at(&mut self, key: Key, time_ns: u64, fate: Fate) {
        let own = Key::new(time_ns, key.cpu(), key.kind());
        if own != key {
            self.settled.entry(key).or_default().came -= 1;
            self.settled.entry(own).or_default().came += 1;
        }
        self.settle(own, fate);
    }

    /// Settles a row that nobody has counted: it is seen where it is written.
    pub(in super::super) fn settle_uncounted(&mut self, key: Key, fate: Fate) {
        self.settled.entry(key).or_default().came += 1;
        self.settle(key, fate);
    }

    pub(in super::super) fn take(&mut self) -> impl Iterator<Item = (Key, Settled)> {
        self.settled.drain()
    }
}

#[cfg(test)]
mod tests {
    use ktape_ebpf::wire::{Call, Plain, Return, STACK_WORDS, StackCall, kind};
    use ktape_format::Memory;
    use ktape_format::definition::Definition;

    use super::super::{Collector, Identity};
    use super::*;
    use crate::probes::functions;

    /// A sink that has room for so many events.
    struct Full {
        memory: Memory,
        room: u64,
        lost: u64,
    }

    impl Sink for Full {
        type Error = std::convert::Infallible;
        fn string(&mut self, string: &str) -> Result<u32, Self::Error> {
            self.memory.string(string)
        }
        fn define<T: Definition>(&mut self, row: T) -> Result<u32, Self::Error> {
            self.memory.define(row)
        }
        fn event<E: Event>(&mut self, row: E) -> Result<(), Self::Error> {
            if self.room == 0 {
                self.lost += 1;
                return Ok(());
            }
            self.room -= 1;
            self.memory.event(row)
        }
        fn lost_events(&self) -> u64 {
            self.lost
        }
    }

    fn bytes_of<T: Plain>(record: &T) -> &[u8] {
        // SAFETY: plain integers without padding.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(record).cast(), size_of::<T>()) }
    }

    const CPU: u16 = 3;

    fn call(symbol: &str, time_ns: u64) -> Call {
        let functions = functions::all();
        let function = functions.iter().position(|function| function.symbol == symbol).expect("it") as u32;
        Call {
            kind: kind::CALL as u16,
            cpu: CPU,
            function,
            time_ns,
            pid_tid: 7 << 32 | 7,
            stack: 0,
            stack_pointer: 0x7000,
            registers: [0; 6],
        }
    }

    fn return_of(call: &Call) -> Return {
        Return {
            kind: kind::RETURN,
            function: call.function,
            time_ns: call.time_ns + 9,
            pid_tid: call.pid_tid,
            stack_pointer: call.stack_pointer + 8,
            result: 0,
            outs: [0; 2],
        }
    }

    fn collector(room: u64) -> (Collector, Full) {
        let mut sink = Full { memory: Memory::default(), room, lost: 0 };
        let mut collector = Collector::new(functions::all(), false);
        let Ok(()) = collector.begin_process(&Identity { pid: 7, ..Identity::default() }, true, &mut sink);
        (collector, sink)
    }

    fn launch(time_ns: u64) -> StackCall {
        let call = Call { kind: kind::STACK_CALL as u16, ..call("cuLaunchKernel", time_ns) };
        StackCall { call, words: [0; STACK_WORDS] }
    }

    const SECOND: u64 = 1 << tally::INTERVAL_SHIFT;

    #[test]
    fn a_call_is_settled_under_its_own_time_and_processor_when_its_row_is_written() {
        let (mut collector, mut sink) = collector(100);
        // It begins in one interval, and ends in the next: another call is settled before it.
        let copy = call("cuMemcpyHtoD_v2", SECOND - 5);
        let within = call("cuCtxSetCurrent", SECOND - 4);
        let within = Call { stack_pointer: within.stack_pointer - 64, ..within };
        for record in [bytes_of(&copy), bytes_of(&within)] {
            collector.take(record, &mut sink).expect("infallible");
        }
        assert_eq!(collector.settled().count(), 0, "the one has not returned, the other is no event");
        collector.take(bytes_of(&return_of(&copy)), &mut sink).expect("infallible");
        collector.take(bytes_of(&launch(SECOND + 9)), &mut sink).expect("infallible");
        let mut settled: Vec<_> = collector.settled().collect();
        settled.sort_by_key(|(key, _)| *key);
        let one = Settled { written: 1, ..Settled::default() };
        assert_eq!(settled, [(Key::new(0, CPU, 3), one), (Key::new(SECOND, CPU, 1), one)]);
        assert_eq!((sink.memory.events.api.start_ns.len(), sink.memory.events.memcpy.start_ns.len()), (1, 1));
    }

    #[test]
    fn what_the_sink_loses_is_settled_as_lost() {
        let (mut collector, mut sink) = collector(3);
        let copy = call("cuMemcpyHtoD_v2", 100);
        collector.take(bytes_of(&launch(10)), &mut sink).expect("infallible");
        collector.take(bytes_of(&launch(20)), &mut sink).expect("infallible");
        collector.take(bytes_of(&copy), &mut sink).expect("infallible");
        // There is room for the call, and none for what it copied.
        collector.take(bytes_of(&return_of(&copy)), &mut sink).expect("infallible");
        collector.take(bytes_of(&launch(200)), &mut sink).expect("infallible");
        let settled: FxHashMap<_, _> = collector.settled().collect();
        assert_eq!(settled[&Key::new(0, CPU, 1)], Settled { written: 2, lost: 1, ..Settled::default() });
        assert_eq!(settled[&Key::new(0, CPU, 3)], Settled { written: 1, ..Settled::default() });
        assert_eq!(sink.lost, 2);
    }

    #[test]
    fn a_key_keeps_what_it_is_made_of() {
        let key = Key::new(5 << tally::INTERVAL_SHIFT | 77, 8191, 15);
        assert_eq!((key.interval(), key.cpu(), key.kind()), (5, 8191, 15));
    }

    #[test]
    fn each_is_settled_once() {
        let (a, b) = (Key::new(0, 0, 1), Key::new(0, 1, 1));
        let mut account = Account::default();
        let fates = [Fate::Written(1), Fate::Lost(1), Fate::NoEvent, Fate::LeftOut, Fate::Written(1)];
        assert_eq!(fates.map(|fate| account.settle(a, fate)), [1, 1, 0, 0, 1]);
        account.settle(b, Fate::Lost(1));
        let mut taken: Vec<_> = account.take().collect();
        taken.sort_by_key(|(key, _)| *key);
        let settled = |written, lost, left_out| Settled { written, lost, left_out, came: 0 };
        assert_eq!(taken, [(a, settled(2, 1, 1)), (b, settled(0, 1, 0))]);
        assert_eq!(account.take().count(), 0);
    }

    #[test]
    fn a_call_whose_row_is_in_another_table_is_seen_there() {
        let mut account = Account::default();
        let fates = [Fate::Written(1), Fate::Written(3), Fate::Lost(3)];
        assert_eq!(fates.map(|fate| account.settle(Key::new(0, 2, 1), fate)), [1, 1, 1]);
        let mut taken: Vec<_> = account.take().collect();
        taken.sort_by_key(|(key, _)| *key);
        let launches = Settled { written: 1, came: -2, ..Settled::default() };
        let calls = Settled { written: 1, lost: 1, came: 2, ..Settled::default() };
        assert_eq!(taken, [(Key::new(0, 2, 1), launches), (Key::new(0, 2, 3), calls)]);
    }
}
