//! Which process an event belongs to: that of its thread, its stream or its counter.
//!
//! Writers note in each section which processes have rows in it, so that who asks for one process need not even read
//! the others' blocks.

use crate::definition::Definitions;
use crate::table::{DefinitionKind, Refers, Row as _, Table};

/// The process (its id; 0 for none) of each thread, context, stream and counter, by id − 1.
#[derive(Clone, Debug, Default)]
pub struct Owners {
    threads: Vec<u32>,
    contexts: Vec<u32>,
    streams: Vec<u32>,
    counters: Vec<u32>,
    processes: usize,
}

impl Owners {
    /// The owners of all that is defined.
    pub fn of(definitions: &Definitions) -> Owners {
        let mut owners = Owners::default();
        owners.update(definitions);
        owners
    }

    /// Takes in what has been defined since: `all` begins with what is known already.
    pub fn update(&mut self, all: &Definitions) {
        let known = [self.threads.len(), self.contexts.len(), self.streams.len(), self.counters.len()];
        self.add_rows(all, known);
        self.processes = all.processes.len();
    }

    /// Takes in further definitions, which follow those so far.
    pub(crate) fn add(&mut self, new: &Definitions) {
        self.add_rows(new, [0; 4]);
        self.processes += new.processes.len();
    }

    /// Takes in the threads, contexts, streams and counters from these rows on.
    fn add_rows(&mut self, from: &Definitions, [threads, contexts, streams, counters]: [usize; 4]) {
        self.threads.extend((threads..from.threads.len()).map(|row| from.threads.row(row).process));
        self.contexts.extend((contexts..from.contexts.len()).map(|row| from.contexts.row(row).process));
        let owners = &self.contexts;
        self.streams.extend((streams..from.streams.len()).map(|row| at(owners, from.streams.row(row).context)));
        self.counters.extend((counters..from.counters.len()).map(|row| from.counters.row(row).process));
    }

    /// The process of each row of an event table: of the first of its columns that leads to one.
    pub fn of_rows<T: Table>(&self, table: &T) -> Vec<u32> {
        let mut owners = vec![0; table.len()];
        let mut ids = Vec::new();
        for (column, spec) in T::Row::COLUMNS.iter().enumerate() {
            let process: &dyn Fn(u32) -> u32 = match spec.refers {
                Refers::To(DefinitionKind::Process) => &|id| id,
                Refers::To(DefinitionKind::Thread) => &|id| at(&self.threads, id),
                Refers::To(DefinitionKind::Stream) => &|id| at(&self.streams, id),
                Refers::To(DefinitionKind::Counter) => &|id| at(&self.counters, id),
                _ => continue,
            };
            table.column_bits(column, 0..table.len(), &mut ids);
            for (owner, &id) in owners.iter_mut().zip(&ids) {
                if *owner == 0 {
                    *owner = process(id as u32);
                }
            }
        }
        owners
    }

    /// The processes that have rows in a table: bit *(id − 1) mod 64* for each.
    pub fn seen_in<T: Table>(&self, table: &T) -> u64 {
        self.of_rows(table).into_iter().fold(0, |mask, owner| mask | mask_of(owner))
    }

    /// The same as a section's directory entry says it: 0 says nothing, as where the tape has one process only.
    pub(crate) fn mask<T: Table>(&self, table: &T) -> u64 {
        match self.processes {
            0 | 1 => 0,
            _ => match self.seen_in(table) {
                // None of these rows has a process: whoever asks for one does not want them.
                0 => NOBODY,
                mask => mask,
            },
        }
    }
}

/// A mask that says that no row belongs to any process. Process 64 shares its bit, which costs it a look.
const NOBODY: u64 = 1 << 63;

/// The bit of a process in a section's mask; none for 0.
pub(crate) fn mask_of(process: u32) -> u64 {
    process.checked_sub(1).map_or(0, |row| 1 << (row % 64))
}

fn at(owners: &[u32], id: u32) -> u32 {
    (id as usize).checked_sub(1).and_then(|row| owners.get(row)).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::definition::{Context, Process, Stream, Thread};
    use crate::event::{Kernel, Launch, Loss};
    use crate::{Memory, Sink};

    #[test]
    fn the_first_column_that_leads_to_a_process_decides() {
        let mut memory = Memory::default();
        let [one, two] = [1, 2].map(|pid| memory.define(Process { pid, ..Process::default() }).unwrap());
        let thread = memory.define(Thread { process: two, tid: 9 }).unwrap();
        let context = memory.define(Context { process: one, ..Context::default() }).unwrap();
        let stream = memory.define(Stream { context, ..Stream::default() }).unwrap();
        memory.event(Launch { thread, stream, ..Launch::default() }).unwrap();
        memory.event(Launch { stream, ..Launch::default() }).unwrap();
        memory.event(Launch { thread: 77, ..Launch::default() }).unwrap();
        memory.event(Kernel { stream, ..Kernel::default() }).unwrap();
        memory.event(Loss { process: two, ..Loss::default() }).unwrap();
        let owners = Owners::of(&memory.definitions);
        assert_eq!(owners.of_rows(&memory.events.launch), [two, one, 0]);
        assert_eq!(owners.of_rows(&memory.events.loss), [two]);
        assert_eq!(owners.mask(&memory.events.launch), 0b11);
        assert_eq!(owners.mask(&memory.events.kernel), 0b01);
    }
}
