//! Call chains: the stacks of calls and samples, as tables of frames.

use ktape_format::Sink;
use ktape_format::definition::{Frame, Stack, frame_kind};
use rustc_hash::FxHashMap;

use super::Importer;
use super::database::Columns;
use super::error::Fault;
use crate::import::Progress;
use crate::timeline::names::MOST_FRAMES;

/// The chains of one table.
#[derive(Default)]
pub(super) struct Chains {
    /// Chain, depth and frame; sorted. Depth 0 is where the thread was.
    frames: Vec<(i64, i64, u32)>,
    /// Stacks made, by the stack that they stand on and the chain.
    stacks: FxHashMap<(u32, i64), u32>,
}

impl Chains {
    /// The frames of a chain, innermost first. As deep as reports show stacks: only a damaged table has deeper ones.
    fn of(&self, chain: i64) -> &[(i64, i64, u32)] {
        let from = self.frames.partition_point(|(id, ..)| *id < chain);
        let rest = &self.frames[from..];
        let length = rest.partition_point(|(id, ..)| *id == chain);
        &rest[..length.min(MOST_FRAMES)]
    }
}

impl<S: Sink, P: FnMut(Progress)> Importer<'_, '_, S, P> {
    /// Reads a table of chains.
    pub(super) fn chains(&mut self, table: &'static str) -> Result<Chains, Fault> {
        let mut chains = Chains::default();
        let columns = Columns {
            known: &["id", "stackDepth", "symbol", "module", "kernelMode"],
            dropped: &["unresolved", "thumbCode", "specialEntry", "originalIP", "unwindMethod", "symbolName"],
        };
        self.each(table, columns, "", |me, row| {
            let (id, depth) = (row.need(0)?, row.need(1)?);
            let (symbol, module) = (row.need(2)?, row.int(3)?);
            let in_kernel = row.int(4)?.is_some_and(|value| value != 0);
            let kind = if in_kernel { frame_kind::SYSTEM } else { frame_kind::NATIVE };
            let (name, file) = (me.string(symbol)?, module.map_or(Ok(0), |module| me.string(module))?);
            let frame = me.sink.define(Frame { kind, name, file, line: 0 })?;
            chains.frames.push((id, depth, frame));
            me.kept("frame of a stack", 1);
            Ok(())
        })?;
        chains.frames.sort();
        Ok(chains)
    }

    /// The stack of a chain that stands on another stack: the frames of a call are within the ranges of its thread.
    pub(super) fn stack_on(&mut self, chains: &mut Chains, base: u32, chain: Option<i64>) -> Result<u32, Fault> {
        let Some(chain) = chain else { return Ok(base) };
        if let Some(stack) = chains.stacks.get(&(base, chain)) {
            return Ok(*stack);
        }
        let mut stack = base;
        for (_, _, frame) in chains.of(chain).iter().rev() {
            stack = self.sink.define(Stack { parent: stack, frame: *frame, line: 0 })?;
        }
        if stack != base {
            chains.stacks.insert((base, chain), stack);
        }
        Ok(stack)
    }
}
