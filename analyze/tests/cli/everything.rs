//! Timelines with rows of every kind and every bit pattern, as a damaged or hostile tape may hold them.

use ktape_analyze::timeline::Timeline;
use ktape_format::definition::{Definition, DefinitionVisitor, visit_definitions};
use ktape_format::event::{Event, KindVisitor, visit_kinds};
use ktape_format::table::Refers;
use ktape_format::{Memory, Row, Sink};
use proptest::prelude::*;

/// What the columns are filled with, in turns: anything, and often what is at an end or small.
pub(crate) fn numbers() -> impl Strategy<Value = Vec<u64>> {
    let extremes = prop_oneof![Just(u64::MAX), Just(i64::MIN as u64), Just(i64::MAX as u64)];
    prop::collection::vec(prop_oneof![any::<u64>(), 0..8_u64, extremes], 1..400)
}

/// A timeline with three rows of each kind of definition and event.
pub(crate) fn timeline(numbers: &[u64], strings: &[String]) -> Timeline {
    let mut memory = Memory::default();
    let Ok(()) = fill(&mut memory, numbers, strings);
    Timeline::new(memory.definitions, memory.events)
}

/// Writes three rows of each kind of definition and event.
pub(crate) fn fill<S: Sink>(sink: &mut S, numbers: &[u64], strings: &[String]) -> Result<(), S::Error> {
    for string in strings {
        sink.string(string)?;
    }
    let mut everything = Everything { sink, numbers: numbers.iter().copied().cycle() };
    visit_definitions(&mut everything)?;
    visit_kinds(&mut everything)
}

struct Everything<'a, S, I> {
    sink: &'a mut S,
    numbers: I,
}

impl<S, I: Iterator<Item = u64>> Everything<'_, S, I> {
    fn row<R: Row>(&mut self) -> R {
        let mut row = R::default();
        for (column, spec) in R::COLUMNS.iter().enumerate() {
            let bits = self.numbers.next().unwrap_or(0);
            // Most ids exist, so that what they stand for is looked at too.
            let is_id = matches!(spec.refers, Refers::To(_)) && bits != u64::MAX;
            row.set(column, if is_id { bits % 6 } else { bits });
        }
        row
    }
}

impl<S: Sink, I: Iterator<Item = u64>> KindVisitor for Everything<'_, S, I> {
    type Error = S::Error;
    fn visit<E: Event>(&mut self) -> Result<(), S::Error> {
        for _ in 0..3 {
            let row = self.row::<E>();
            self.sink.event(row)?;
        }
        Ok(())
    }
}

impl<S: Sink, I: Iterator<Item = u64>> DefinitionVisitor for Everything<'_, S, I> {
    type Error = S::Error;
    fn visit<T: Definition>(&mut self) -> Result<(), S::Error> {
        for _ in 0..3 {
            let row = self.row::<T>();
            self.sink.define(row)?;
        }
        Ok(())
    }
}
