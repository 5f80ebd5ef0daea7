//! The ids of definitions that the collector keeps, for a sink that forgets what nobody keeps.
//!
//! What belongs to a process (threads, contexts, streams) is kept with it and not named here. Of its graphs those are that may be
//! launched, or are part of others.

use std::convert::Infallible;

use ktape_format::Sink;
use ktape_format::definition::Definition;
use ktape_format::event::Event;
use ktape_format::table::DefinitionKind;

use super::super::inside::device::Work;
use super::Collector;
use super::open::Open;

/// Names what events refer to, in the place of writing them.
struct Kept<'a>(&'a mut dyn FnMut(DefinitionKind, u32));

impl Sink for Kept<'_> {
    type Error = Infallible;

    fn string(&mut self, _: &str) -> Result<u32, Infallible> {
        Ok(0)
    }

    fn define<T: Definition>(&mut self, _: T) -> Result<u32, Infallible> {
        Ok(0)
    }

    fn event<E: Event>(&mut self, mut row: E) -> Result<(), Infallible> {
        row.map_references(|kind, id| {
            (self.0)(kind, id);
            Ok(id)
        })
    }
}

fn name_work(work: Work, keep: &mut dyn FnMut(DefinitionKind, u32)) {
    let Ok(()) = match work {
        Work::Copy(row) => Kept(keep).event(row),
        Work::Set(row) => Kept(keep).event(row),
    };
}

impl Collector {
    /// Names each definition whose id is kept.
    pub fn kept(&self, keep: &mut dyn FnMut(DefinitionKind, u32)) {
        keep(DefinitionKind::Stack, self.stack_left_out);
        self.function_ids.iter().for_each(|&id| keep(DefinitionKind::Function, id));
        for process in self.processes.values() {
            keep(DefinitionKind::Process, process.id);
            process.stacks.ids().for_each(|id| keep(DefinitionKind::Stack, id));
            process.objects.graphs.name_kept(keep);
            process.objects.device.kept(keep);
            process.ranges.kept(keep);
            process.objects.device.waiting().for_each(|work| name_work(work, keep));
            process.kernels.ids().for_each(|id| keep(DefinitionKind::Kernel, id));
            for pending in process.threads.values().flat_map(|thread| thread.pending()) {
                match &pending.open {
                    Open::Captured(_, captured) => captured.name_kept(keep),
                    Open::Graph(_, change) => change.name_kept(keep),
                    _ => {}
                }
                let mut work = Vec::new();
                let Ok(_) = pending.open.clone().emit(&mut work, &mut Kept(keep));
                work.into_iter().for_each(|work| name_work(work, keep));
            }
        }
    }
}
