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
mod tests;
