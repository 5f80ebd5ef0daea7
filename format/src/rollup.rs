//! Rollups: exact totals of a tape's events, a few kilobytes that stay when the tape is deleted.
//!
//! A [`Digest`] takes tapes in, segments and rollups alike, and adds up by process, kind, kernel, graph, stack, function and
//! binary digit of the duration. So the rollup of many tapes is the same whether it is made of them or of rollups of any parts of
//! them. What launches of a graph ran is not added up: a rollup has the graph's nodes, as a segment has, and whoever reads it
//! multiplies. So nothing is there twice, and a graph takes its nodes' room once, however often it is launched.
//!
//! Beside the totals it has the losses, tallies and blind spots of its tapes, added up too, and the first and last clock pairs.
//! What was seen with too many different keys goes into one row a kind and function, which is counted.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;

use crate::blind_spots::BlindSpots;
use crate::carry::{Carrier, OfTape};
use crate::definition::{Definitions, Shape, property, subject};
use crate::error::{Damage, TapeError};
use crate::event::{
    ClockPair, CpuSample, Event, Events, GraphLaunch, KindVisitor, Loss, OffCpu, Rollup, Tally, visit_kinds,
};
use crate::owners::Owners;
use crate::reader::{Part, Tape};
use crate::table::{DefinitionKind, Refers, Row, Table};
use crate::wanted::Wanted;
use crate::{Memory, Sink};

/// Totals that are told apart: beyond these, a stack or kernel that is new is not.
pub const MOST_KEYS: usize = 1 << 18;

/// Adds up tapes.
#[derive(Debug)]
pub struct Digest {
    /// The definitions of all tapes so far; what `totals` refers to.
    memory: Memory,
    sums: Sums,
    losses: BTreeMap<(u32, u16, u32), (i64, i64, u64)>,
    tallies: BTreeMap<(u32, u16), (i64, i64, [u64; 4])>,
    /// Kernels whose names were learned after they were defined: of what is on other tapes, too.
    renamed: BTreeSet<u32>,
    /// The first and the last pair of each clock and device.
    clocks: BTreeMap<(u8, u32), (ClockPair, ClockPair)>,
    /// From the first event to the end of the last.
    span: Option<(i64, i64)>,
    blind_spots: BlindSpots,
}

/// Totals by what they are about.
#[derive(Debug)]
struct Sums {
    totals: FxHashMap<Key, Totals>,
    /// How many keys are not of the rest.
    told_apart: usize,
    most_keys: usize,
    /// Events that are in rows of their kind and function only.
    rest: u64,
}

impl Sums {
    fn new(most_keys: usize) -> Sums {
        Sums { totals: FxHashMap::default(), told_apart: 0, most_keys, rest: 0 }
    }

    #[inline]
    fn add(&mut self, key: Key, totals: Totals) {
        if let Some(known) = self.totals.get_mut(&key) {
            return known.add(totals);
        }
        let key = if key.is_rest() {
            key
        } else if self.told_apart < self.most_keys {
            self.told_apart += 1;
            key
        } else {
            self.rest += totals.count;
            key.rest()
        };
        self.totals.entry(key).or_insert(Totals::NONE).add(totals);
    }
}

/// What one row of totals is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Key {
    process: u32,
    kind: u16,
    /// How many binary digits the duration has.
    digits: u8,
    kernel: u32,
    /// Of launches of graphs only: what else speaks of a graph did not launch it.
    graph: u32,
    stack: u32,
    function: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Totals {
    count: u64,
    failed: u64,
    sum_ns: u64,
    min_ns: u64,
    max_ns: u64,
    bytes: u64,
}

impl Totals {
    const NONE: Totals = Totals { count: 0, failed: 0, sum_ns: 0, min_ns: u64::MAX, max_ns: 0, bytes: 0 };

    fn add(&mut self, other: Totals) {
        // Only a damaged tape has so much that a sum does not fit.
        self.count = self.count.saturating_add(other.count);
        self.failed = self.failed.saturating_add(other.failed);
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
        self.min_ns = self.min_ns.min(other.min_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}

/// How many binary digits a duration has: which bar of the histogram it is in.
pub fn digits(duration_ns: u64) -> u8 {
    (u64::BITS - duration_ns.leading_zeros()) as u8
}

/// Whether events of a kind are added up: those that say who called, what was launched or how much was moved, and stretches off
/// the processor, which recorders count as they do calls.
pub fn is_rolled_up<E: Event>() -> bool {
    let says = |of: DefinitionKind| E::COLUMNS.iter().any(|column| column.refers == Refers::To(of));
    E::KIND != Rollup::KIND
        && (says(DefinitionKind::Stack)
            || says(DefinitionKind::Function)
            || says(DefinitionKind::Shape)
            || column::<E>("bytes").is_some()
            || E::KIND == OffCpu::KIND)
}

fn column<R: Row>(name: &str) -> Option<usize> {
    R::COLUMNS.iter().position(|column| column.name == name)
}

impl Default for Digest {
    fn default() -> Digest {
        Digest::with_most_keys(MOST_KEYS)
    }
}

impl Digest {
    /// A digest that tells so many keys apart.
    pub fn with_most_keys(most_keys: usize) -> Digest {
        Digest {
            memory: Memory::default(),
            sums: Sums::new(most_keys),
            losses: BTreeMap::new(),
            tallies: BTreeMap::new(),
            renamed: BTreeSet::new(),
            clocks: BTreeMap::new(),
            span: None,
            blind_spots: BlindSpots::default(),
        }
    }

    /// Takes a tape in: its events, or its rows of totals if it is a rollup. What of it cannot be read is a loss.
    pub fn add_tape(&mut self, tape: &Tape) -> Result<(), TapeError> {
        let mut adding = Adding::new(self.sums.most_keys);
        let mut owners = Owners::default();
        let mut damage = Vec::new();
        // All definitions are known at the end only, and a part gets those so far: shapes and owners are read part by part.
        let wanted = Wanted { kinds: wanted_kinds(), ..Wanted::default() };
        let lost = tape.scan(&wanted, |definitions, mut part: Part<'_>| {
            owners.update(definitions);
            adding.add(definitions, &owners, &part.events);
            damage.append(&mut part.damage);
            Ok::<(), TapeError>(())
        })?;
        damage.extend(lost);
        self.take(&tape.definitions()?, adding, &damage);
        Ok(())
    }

    /// Takes a trace in memory in.
    pub fn add_events(&mut self, definitions: &Definitions, events: &Events) {
        let mut adding = Adding::new(self.sums.most_keys);
        adding.add(definitions, &Owners::of(definitions), events);
        self.take(definitions, adding, &[]);
    }

    /// Events that are in rows of their kind and function only, as there were too many different keys.
    pub fn rest(&self) -> u64 {
        self.sums.rest
    }

    /// Takes over what was added up by a tape's ids.
    fn take(&mut self, definitions: &Definitions, adding: Adding, damage: &[Damage]) {
        let known = OfTape::new(definitions);
        let mut carrier = Carrier::default();
        let memory = &mut self.memory;
        let mut carry = |kind: DefinitionKind, id: u32| {
            let Ok(there) = carrier.carry(kind as u16, id, &known, memory);
            there
        };
        self.blind_spots.add(definitions);
        self.sums.rest += adding.sums.rest;
        let rest = definitions.property(subject::TAPE, 0, property::ROLLED_UP_TOGETHER);
        self.sums.rest += rest.and_then(|rest| rest.parse::<u64>().ok()).unwrap_or(0);
        // In the order of their ids, so that the same tapes give the same bytes.
        let mut totals: Vec<(Key, Totals)> = adding.sums.totals.into_iter().collect();
        totals.sort_unstable_by_key(|(key, _)| *key);
        for (key, sums) in totals {
            let there = Key {
                process: carry(DefinitionKind::Process, key.process),
                kernel: carry(DefinitionKind::Kernel, key.kernel),
                graph: carry(DefinitionKind::Graph, key.graph),
                stack: carry(DefinitionKind::Stack, key.stack),
                function: carry(DefinitionKind::Function, key.function),
                ..key
            };
            self.sums.add(there, sums);
        }
        self.renamed.extend(known.renamed_kernels().map(|kernel| carry(DefinitionKind::Kernel, kernel)));
        let losses = adding.losses.into_iter().map(|((process, kind, cause), loss)| {
            ((carry(DefinitionKind::Process, process), kind, carry(DefinitionKind::String, cause)), loss)
        });
        for (key, (start_ns, end_ns, count)) in losses.collect::<Vec<_>>() {
            add_loss(&mut self.losses, key, start_ns, end_ns, count);
        }
        for damage in damage {
            let Ok(cause) = self.memory.string(&format!("part of the tape is damaged: {}", damage.reason));
            // Where nothing tells when it was, it was behind what came before.
            let behind = || self.span.map(|(_, end_ns)| (end_ns, end_ns));
            let (start_ns, end_ns) = adding.span.or_else(behind).unwrap_or_default();
            add_loss(&mut self.losses, (0, 0, cause), start_ns, end_ns, damage.rows.unwrap_or(0));
        }
        for (key, (start_ns, end_ns, counts)) in adding.tallies {
            add_tally(&mut self.tallies, key, start_ns, end_ns, counts);
        }
        for pair in adding.clocks {
            // Clocks of devices are for device times, of which a rollup has none.
            if pair.device == 0 {
                let (first, last) = self.clocks.entry((pair.clock, 0)).or_insert((pair, pair));
                if pair.start_ns < first.start_ns {
                    *first = pair;
                }
                if pair.start_ns > last.start_ns {
                    *last = pair;
                }
            }
        }
        if let Some((start_ns, end_ns)) = adding.span {
            extend(&mut self.span, start_ns, end_ns);
        }
    }

    /// Writes it all, with the definitions that it refers to.
    pub fn write<S: Sink>(&self, sink: &mut S) -> Result<(), S::Error> {
        let known = OfTape::new(&self.memory.definitions);
        let mut carrier = Carrier::default();
        if self.sums.rest > 0 {
            sink.property(subject::TAPE, 0, property::ROLLED_UP_TOGETHER, &self.sums.rest.to_string())?;
        }
        if let Some(json) = self.blind_spots.json() {
            sink.property(subject::TAPE, 0, property::BLIND_SPOTS, &json)?;
        }
        for &(first, last) in self.clocks.values() {
            carrier.event(first, &known, sink)?;
            if last != first {
                carrier.event(last, &known, sink)?;
            }
        }
        let (start_ns, end_ns) = self.span.unwrap_or_default();
        let duration_ns = end_ns.wrapping_sub(start_ns) as u64;
        let mut totals: Vec<(&Key, &Totals)> = self.sums.totals.iter().collect();
        totals.sort_unstable_by_key(|(key, _)| **key);
        for (key, sums) in totals {
            let row = Rollup {
                start_ns,
                duration_ns,
                process: key.process,
                kind: key.kind,
                kernel: key.kernel,
                graph: key.graph,
                stack: key.stack,
                function: key.function,
                count: sums.count,
                failed: sums.failed,
                sum_ns: sums.sum_ns,
                min_ns: sums.min_ns,
                max_ns: sums.max_ns,
                bytes: sums.bytes,
            };
            carrier.event(row, &known, sink)?;
        }
        for &kernel in &self.renamed {
            carrier.carry(DefinitionKind::Kernel as u16, kernel, &known, sink)?;
        }
        for (&(process, kind, cause), &(start_ns, end_ns, count)) in &self.losses {
            let duration_ns = end_ns.wrapping_sub(start_ns) as u64;
            carrier.event(Loss { start_ns, duration_ns, process, count, kind, cause }, &known, sink)?;
        }
        for (&(cpu, kind), &(start_ns, end_ns, [seen, written, lost, left_out])) in &self.tallies {
            let duration_ns = end_ns.wrapping_sub(start_ns) as u64;
            carrier.event(Tally { start_ns, duration_ns, cpu, kind, seen, written, lost, left_out }, &known, sink)?;
        }
        Ok(())
    }
}

impl Key {
    fn is_rest(self) -> bool {
        self == self.rest()
    }

    /// The row of all that is not told apart.
    fn rest(self) -> Key {
        Key { process: 0, kernel: 0, graph: 0, stack: 0, ..self }
    }
}

/// What is added up of one tape, by that tape's ids.
struct Adding {
    sums: Sums,
    losses: BTreeMap<(u32, u16, u32), (i64, i64, u64)>,
    tallies: BTreeMap<(u32, u16), (i64, i64, [u64; 4])>,
    clocks: Vec<ClockPair>,
    span: Option<(i64, i64)>,
}

impl Adding {
    fn new(most_keys: usize) -> Adding {
        Adding {
            sums: Sums::new(most_keys),
            losses: BTreeMap::new(),
            tallies: BTreeMap::new(),
            clocks: Vec::new(),
            span: None,
        }
    }

    fn add(&mut self, definitions: &Definitions, owners: &Owners, events: &Events) {
        let Ok(()) = visit_kinds(&mut Rows { adding: self, definitions, owners, events });
        for row in events.rollup.rows() {
            let key = Key {
                process: row.process,
                kind: row.kind,
                digits: digits(row.max_ns),
                kernel: row.kernel,
                graph: row.graph,
                stack: row.stack,
                function: row.function,
            };
            let Rollup { count, failed, sum_ns, min_ns, max_ns, bytes, .. } = row;
            self.sums.add(key, Totals { count, failed, sum_ns, min_ns, max_ns, bytes });
            extend(&mut self.span, row.start_ns, row.end_ns());
        }
        for row in events.loss.rows() {
            let key = (row.process, row.kind, row.cause);
            add_loss(&mut self.losses, key, row.start_ns, row.end_ns(), row.count);
        }
        for row in events.tally.rows() {
            let counts = [row.seen, row.written, row.lost, row.left_out];
            add_tally(&mut self.tallies, (row.cpu, row.kind), row.start_ns, row.end_ns(), counts);
        }
        for pair in events.clock.rows() {
            // The first and the last, as many a tape has.
            match self.clocks.iter().rposition(|known| (known.clock, known.device) == (pair.clock, pair.device)) {
                Some(last) if self.clocks[..last].iter().any(|known| known.clock == pair.clock) => {
                    self.clocks[last] = pair;
                }
                _ => self.clocks.push(pair),
            }
        }
    }
}

/// Adds the rows of each kind up, by their columns.
struct Rows<'a> {
    adding: &'a mut Adding,
    definitions: &'a Definitions,
    owners: &'a Owners,
    events: &'a Events,
}

impl KindVisitor for Rows<'_> {
    type Error = std::convert::Infallible;
    fn visit<E: Event>(&mut self) -> Result<(), Self::Error> {
        let table = E::table(self.events);
        if !is_rolled_up::<E>() || table.is_empty() {
            return Ok(());
        }
        let bits = |of: Option<usize>| {
            let mut bits = Vec::new();
            if let Some(column) = of {
                table.column_bits(column, 0..table.len(), &mut bits);
            }
            bits
        };
        let refers = |to| E::COLUMNS.iter().position(|column| column.refers == Refers::To(to));
        let starts = bits(Some(0));
        // The time that a sample stands for is no duration of its own, but it is what adds up.
        let duration = if E::KIND == CpuSample::KIND { "weight_ns" } else { "duration_ns" };
        let durations = bits(column::<E>(duration));
        let shapes = bits(refers(DefinitionKind::Shape));
        let stacks = bits(refers(DefinitionKind::Stack));
        let functions = bits(refers(DefinitionKind::Function));
        let results = bits(column::<E>("result"));
        let bytes = bits(column::<E>("bytes"));
        let processes = self.owners.of_rows(table);
        let at = |values: &[u64], row: usize| values.get(row).copied().unwrap_or(0);
        let graphs = bits(refers(DefinitionKind::Graph).filter(|_| E::KIND == GraphLaunch::KIND));
        for (row, &start) in starts.iter().enumerate() {
            let duration_ns = at(&durations, row);
            let shape = at(&shapes, row) as u32;
            let key = Key {
                process: processes[row],
                kind: E::KIND,
                digits: digits(duration_ns),
                kernel: self.definitions.get::<Shape>(shape).map_or(0, |shape| shape.kernel),
                graph: at(&graphs, row) as u32,
                stack: at(&stacks, row) as u32,
                function: at(&functions, row) as u32,
            };
            let totals = Totals {
                count: 1,
                failed: u64::from(at(&results, row) != 0),
                sum_ns: duration_ns,
                min_ns: duration_ns,
                max_ns: duration_ns,
                bytes: at(&bytes, row),
            };
            self.adding.sums.add(key, totals);
            let start_ns = start as i64;
            let end_ns = start_ns.saturating_add_unsigned(duration_ns);
            let (from_ns, to_ns) = match E::KIND {
                CpuSample::KIND => (start_ns, start_ns),
                // It may have begun hours before the tape did.
                OffCpu::KIND => (end_ns, end_ns),
                _ => (start_ns, end_ns),
            };
            extend(&mut self.adding.span, from_ns, to_ns);
        }
        Ok(())
    }
}

fn wanted_kinds() -> Vec<u16> {
    struct Kinds(Vec<u16>);
    impl KindVisitor for Kinds {
        type Error = std::convert::Infallible;
        fn visit<E: Event>(&mut self) -> Result<(), Self::Error> {
            let whole = [Rollup::KIND, Loss::KIND, Tally::KIND, ClockPair::KIND];
            if is_rolled_up::<E>() || whole.contains(&E::KIND) {
                self.0.push(E::KIND);
            }
            Ok(())
        }
    }
    let mut kinds = Kinds(Vec::new());
    let Ok(()) = visit_kinds(&mut kinds);
    kinds.0
}

fn extend(span: &mut Option<(i64, i64)>, start_ns: i64, end_ns: i64) {
    let (first, last) = span.get_or_insert((start_ns, end_ns));
    (*first, *last) = ((*first).min(start_ns), (*last).max(end_ns));
}

fn add_loss(
    losses: &mut BTreeMap<(u32, u16, u32), (i64, i64, u64)>,
    key: (u32, u16, u32),
    start_ns: i64,
    end_ns: i64,
    count: u64,
) {
    let (start, end, sum) = losses.entry(key).or_insert((start_ns, end_ns, 0));
    (*start, *end, *sum) = ((*start).min(start_ns), (*end).max(end_ns), sum.saturating_add(count));
}

fn add_tally(
    tallies: &mut BTreeMap<(u32, u16), (i64, i64, [u64; 4])>,
    key: (u32, u16),
    start_ns: i64,
    end_ns: i64,
    counts: [u64; 4],
) {
    let (start, end, sums) = tallies.entry(key).or_insert((start_ns, end_ns, [0; 4]));
    (*start, *end) = ((*start).min(start_ns), (*end).max(end_ns));
    sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum = sum.saturating_add(count));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::definition::{Frame, KernelName, Process, Stack, Thread};
    use crate::event::{Alloc, Launch};
    use crate::header::HEADER_BYTES;
    use crate::{Options, TapeWriter};

    /// What happens, by small numbers: kind, stack, kernel, duration, result, bytes.
    type What = (bool, u32, u32, u64, bool, u64);

    /// The events as a tape has them that defines what it meets, in this order.
    fn trace(events: &[What]) -> Memory {
        let mut memory = Memory::default();
        for &(is_launch, stack, kernel, duration_ns, failed, bytes) in events {
            let Ok(process) = memory.define(Process { pid: i64::from(stack % 2), ..Process::default() });
            let Ok(thread) = memory.define(Thread { process, tid: 1 });
            let Ok(name) = memory.string(&format!("function {stack}"));
            let Ok(frame) = memory.define(Frame { name, ..Frame::default() });
            let Ok(stack) = memory.define(Stack { parent: 0, frame, line: 1 });
            let result = i32::from(failed);
            let Ok(()) = if is_launch {
                let Ok(name) = memory.string(&format!("kernel {kernel}"));
                let Ok(kernel) = memory.define(KernelName { name, module: 0 });
                let Ok(shape) = memory.define(Shape { kernel, ..Shape::default() });
                memory.event(Launch { duration_ns, thread, stack, shape, result, ..Launch::default() })
            } else {
                memory.event(Alloc { duration_ns, thread, stack, bytes, result, ..Alloc::default() })
            };
        }
        memory
    }

    /// The rows with names in the place of ids.
    fn rows(digest: &Digest) -> BTreeMap<(i64, u16, u8, String, String), [u64; 6]> {
        let mut memory = Memory::default();
        let Ok(()) = digest.write(&mut memory);
        let definitions = &memory.definitions;
        let frame = |stack| definitions.get::<Stack>(stack).and_then(|stack| definitions.get::<Frame>(stack.frame));
        let row = |row: Rollup| {
            let process = definitions.get(row.process).map_or(-1, |process: Process| process.pid);
            let kernel = definitions.get(row.kernel).map_or("", |kernel: KernelName| definitions.string(kernel.name));
            let stack = frame(row.stack).map_or("", |frame| definitions.string(frame.name));
            let key = (process, row.kind, digits(row.max_ns), kernel.to_owned(), stack.to_owned());
            (key, [row.count, row.failed, row.sum_ns, row.min_ns, row.max_ns, row.bytes])
        };
        let rows: Vec<_> = memory.events.rollup.rows().map(row).collect();
        let count = rows.len();
        let rows: BTreeMap<_, _> = rows.into_iter().collect();
        assert_eq!(rows.len(), count, "one row for each key");
        rows
    }

    /// A digest on a tape, and read again.
    fn tape(digest: &Digest) -> Tape {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r.ktape");
        let mut tape = TapeWriter::create(&path, &Options::batch("test")).unwrap();
        digest.write(&mut tape).unwrap();
        tape.finish().unwrap();
        Tape::from_bytes(std::fs::read(path).unwrap()).unwrap()
    }

    fn what() -> impl Strategy<Value = What> {
        (
            any::<bool>(),
            0..5_u32,
            0..3_u32,
            prop_oneof![0..20_u64, any::<u32>().prop_map(u64::from)],
            any::<bool>(),
            0..99_u64,
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn the_rollup_of_all_is_that_of_the_rollups_of_any_parts(
            events in prop::collection::vec(what(), 0..200),
            cuts in prop::collection::vec(0..200_usize, 0..5),
        ) {
            let mut whole = Digest::default();
            let memory = trace(&events);
            whole.add_events(&memory.definitions, &memory.events);
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(events.len())).collect();
            cuts.extend([0, events.len()]);
            cuts.sort_unstable();
            let mut merged = Digest::default();
            for cut in cuts.windows(2) {
                let memory = trace(&events[cut[0]..cut[1]]);
                let mut part = Digest::default();
                part.add_events(&memory.definitions, &memory.events);
                merged.add_tape(&tape(&part)).unwrap();
            }
            prop_assert_eq!(rows(&merged), rows(&whole));
            let count: u64 = rows(&whole).values().map(|sums| sums[0]).sum();
            prop_assert_eq!(count, events.len() as u64);
        }
    }

    #[test]
    fn a_kernel_that_is_named_on_a_later_tape_has_the_name_in_what_is_made_of_both() {
        // The handle's launches, and then its name, whose tape has no launch of it.
        let tape_of = |name: Option<&str>| {
            let mut memory = Memory::default();
            let Ok(handle) = memory.string("unknown kernel @0x5620 of process 7");
            let Ok(kernel) = memory.define(KernelName { name: handle, module: 0 });
            match name {
                Some(name) => {
                    let Ok(()) = memory.property(DefinitionKind::Kernel as u16, kernel, property::NAME, name);
                }
                None => {
                    let Ok(shape) = memory.define(Shape { kernel, ..Shape::default() });
                    let Ok(()) = memory.event(Launch { shape, ..Launch::default() });
                }
            }
            let mut digest = Digest::default();
            digest.add_events(&memory.definitions, &memory.events);
            tape(&digest)
        };
        let mut both = Digest::default();
        both.add_tape(&tape_of(None)).unwrap();
        both.add_tape(&tape_of(Some("gemm"))).unwrap();
        let both = tape(&both).read(&Wanted::default()).unwrap();
        let kernel = both.events.rollup.kernel[0];
        assert_eq!(both.definitions.property(DefinitionKind::Kernel as u16, kernel, property::NAME), Some("gemm"));
        assert_eq!(both.definitions.kernels.len(), 1);
    }

    #[test]
    fn stretches_off_the_processor_are_added_up_by_process_and_belong_where_they_end() {
        let mut memory = Memory::default();
        let Ok(process) = memory.define(Process { pid: 7, ..Process::default() });
        for (tid, start_ns, duration_ns) in [(1, -1_000_000, 1_000_050), (2, 40, 30), (1, 70, 31)] {
            let Ok(thread) = memory.define(Thread { process, tid });
            let Ok(()) = memory.event(OffCpu { start_ns, duration_ns, thread, ..OffCpu::default() });
        }
        let mut digest = Digest::default();
        digest.add_events(&memory.definitions, &memory.events);
        let sums: Vec<_> = rows(&digest).into_iter().map(|((pid, kind, ..), sums)| (pid, kind, sums)).collect();
        let kind = OffCpu::KIND;
        assert_eq!(sums, [(7, kind, [2, 0, 61, 30, 31, 0]), (7, kind, [1, 0, 1_000_050, 1_000_050, 1_000_050, 0])]);
        assert_eq!(digest.span, Some((50, 101)));
    }

    /// It was told for the time 0, hours before the recording began.
    #[test]
    fn damage_of_a_time_that_is_not_known_is_behind_what_came_before() {
        let mut digest = Digest::default();
        let mut memory = Memory::default();
        let Ok(()) = memory.event(Launch { start_ns: 1_000, duration_ns: 10, ..Launch::default() });
        digest.add_events(&memory.definitions, &memory.events);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("damaged.ktape");
        let mut damaged = TapeWriter::create(&path, &Options::batch("test")).unwrap();
        for index in 0..100 {
            damaged.event(Launch { start_ns: 2_000 + index * index, ..Launch::default() }).unwrap();
        }
        damaged.finish().unwrap();
        let mut bytes = std::fs::read(path).unwrap();
        bytes[HEADER_BYTES + 100] ^= 1;
        digest.add_tape(&Tape::from_bytes(bytes).unwrap()).unwrap();
        let lost = tape(&digest).read(&Wanted::default()).unwrap().events.loss;
        assert_eq!((lost.start_ns, lost.duration_ns), (vec![1_010], vec![0]));
    }

    #[test]
    fn what_is_not_told_apart_is_in_rows_of_its_kind_and_counted() {
        let events: Vec<What> = (0..100).map(|index| (true, index % 50, 0, 5, false, 0)).collect();
        let memory = trace(&events);
        let mut digest = Digest::with_most_keys(10);
        digest.add_events(&memory.definitions, &memory.events);
        let check = |digest: &Digest| {
            assert_eq!(digest.rest(), 80);
            let rows = rows(digest);
            assert_eq!(rows.values().map(|sums| sums[0]).sum::<u64>(), 100);
            assert_eq!(rows[&(-1, Launch::KIND, 3, String::new(), String::new())][0], 80);
        };
        check(&digest);
        let mut again = Digest::default();
        again.add_tape(&tape(&digest)).unwrap();
        check(&again);
    }

    #[test]
    fn losses_and_tallies_are_added_up() {
        let mut memory = Memory::default();
        let Ok(cause) = memory.string("full");
        for start_ns in [10, 5] {
            let loss = Loss { start_ns, duration_ns: 3, count: 7, kind: Launch::KIND, cause, ..Loss::default() };
            let Ok(()) = memory.event(loss);
            let tally = Tally {
                start_ns,
                duration_ns: 4,
                cpu: 1,
                kind: Launch::KIND,
                seen: 9,
                written: 2,
                lost: 6,
                left_out: 1,
            };
            let Ok(()) = memory.event(tally);
        }
        let mut digest = Digest::default();
        digest.add_events(&memory.definitions, &memory.events);
        let Ok(()) = {
            memory = Memory::default();
            digest.write(&mut memory)
        };
        let losses: Vec<Loss> = memory.events.loss.rows().collect();
        let loss = Loss { start_ns: 5, duration_ns: 8, count: 14, kind: Launch::KIND, cause: 1, ..Loss::default() };
        assert_eq!((losses, memory.definitions.string(1)), (vec![loss], "full"));
        let tally = Tally {
            start_ns: 5,
            duration_ns: 9,
            cpu: 1,
            kind: Launch::KIND,
            seen: 18,
            written: 4,
            lost: 12,
            left_out: 2,
        };
        assert_eq!(memory.events.tally.rows().collect::<Vec<_>>(), [tally]);
    }
}
