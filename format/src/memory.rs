//! A trace in memory: the same definitions and events as on a tape, without one.

use std::convert::Infallible;

use crate::definition::{Definition, Definitions, Index};
use crate::event::{Event, Events};
use crate::{Sink, Table};

/// Collects definitions and events in memory. What tests build, and what a report over an imported trace reads.
#[derive(Debug, Default)]
pub struct Memory {
    /// What was defined.
    pub definitions: Definitions,
    /// What was recorded, in the order in which it came.
    pub events: Events,
    index: Index,
}

impl Sink for Memory {
    type Error = Infallible;

    fn string(&mut self, string: &str) -> Result<u32, Infallible> {
        Ok(self.index.find_string(string).unwrap_or_else(|| {
            self.definitions.strings.push(string.into());
            self.index.add_string(string)
        }))
    }

    fn define<T: Definition>(&mut self, row: T) -> Result<u32, Infallible> {
        Ok(self.index.find(&row).unwrap_or_else(|| {
            T::table_mut(&mut self.definitions).push(row);
            self.index.add(row)
        }))
    }

    fn event<E: Event>(&mut self, row: E) -> Result<(), Infallible> {
        E::table_mut(&mut self.events).push(row);
        Ok(())
    }
}
