//! Native frames with the names of their functions in place of addresses.

use std::convert::Infallible;

use ktape_format::definition::{Frame, Stack, StackTable};
use ktape_format::event::{Event, KindVisitor, visit_kinds};
use ktape_format::table::{ColumnWriter, DefinitionKind, Refers, Value};
use ktape_format::{Definitions, Events, Table as _};
use rustc_hash::FxHashMap;

use super::Timeline;
use crate::symbols::{Function, Named};

impl Timeline {
    /// Gives native frames the names that were found. A frame that was several functions, as the compiler had put one into the
    /// other, becomes several; stacks then have other ids, and the events are told.
    pub fn name_native_frames(&mut self, named: &Named) {
        if named.is_empty() {
            return;
        }
        let frames = define(&mut self.definitions, named);
        let Some(ids) = rename(&mut self.definitions, &frames) else { return };
        struct Visitor<'a>(&'a mut Events, &'a [u32]);
        impl KindVisitor for Visitor<'_> {
            type Error = Infallible;
            fn visit<E: Event>(&mut self) -> Result<(), Infallible> {
                let of_stacks = |column: &usize| E::COLUMNS[*column].refers == Refers::To(DefinitionKind::Stack);
                for column in (0..E::COLUMNS.len()).filter(of_stacks) {
                    E::table_mut(self.0).write_column(column, Renumber(self.1));
                }
                Ok(())
            }
        }
        let Ok(()) = visit_kinds(&mut Visitor(&mut self.events, &ids));
        for stack in self.callers_elsewhere.values_mut() {
            *stack = renumbered(*stack, &ids);
        }
    }
}

/// Frames and the lines in them that stand in the place of one frame, the outermost first.
type Renamed = FxHashMap<u32, Vec<(u32, u32)>>;

/// Defines the functions as frames: the innermost takes the place of the frame itself.
fn define(definitions: &mut Definitions, named: &Named) -> Renamed {
    let mut strings = FxHashMap::default();
    let mut others: FxHashMap<Frame, u32> = FxHashMap::default();
    let mut ids: Vec<u32> = named.keys().copied().collect();
    ids.sort_unstable();
    let mut renamed = Renamed::default();
    for id in ids {
        let Some(known) = definitions.get::<Frame>(id) else { continue };
        let mut string = |text: &str| match text {
            "" => 0,
            text => *strings.entry(text.to_owned()).or_insert_with(|| {
                definitions.strings.push(text.into());
                definitions.strings.len() as u32
            }),
        };
        let row = |function: &Function| {
            // Without a source file the library's own is all that is known.
            let file = string(&function.file);
            let file = if file == 0 { known.file } else { file };
            Frame { kind: known.kind, name: string(&function.name), file, line: 0 }
        };
        let rows: Vec<Frame> = named[&id].iter().map(row).collect();
        let Some((&innermost, outer)) = rows.split_last() else { continue };
        let mut frames = Vec::with_capacity(rows.len());
        for &frame in outer {
            let id = *others.entry(frame).or_insert_with(|| {
                definitions.frames.push(frame);
                definitions.frames.len() as u32
            });
            frames.push(id);
        }
        frames.push(id);
        let at = id as usize - 1;
        (definitions.frames.name[at], definitions.frames.file[at]) = (innermost.name, innermost.file);
        renamed.insert(id, frames.into_iter().zip(named[&id].iter().map(|function| function.line)).collect());
    }
    renamed
}

/// Puts the frames into the stacks. Returns the new id of each stack, from 0 on, if there are new ones.
fn rename(definitions: &mut Definitions, frames: &Renamed) -> Option<Vec<u32>> {
    /// What the stacks can grow by: a tape may be made so that each of its frames is many functions.
    const MOST_NEW: usize = 1 << 22;
    let old = std::mem::take(&mut definitions.stacks);
    let most = old.len().saturating_add(MOST_NEW);
    let mut new = StackTable::default();
    let mut ids = vec![0_u32];
    for stack in old.rows() {
        // A parent that is no caller is none.
        let mut parent = ids.get(stack.parent as usize).copied().unwrap_or(0);
        match frames.get(&stack.frame) {
            Some(frames) if new.len() < most => {
                for &(frame, line) in frames {
                    new.push(Stack { parent, frame, line });
                    parent = new.len() as u32;
                }
            }
            _ => new.push(Stack { parent, ..stack }),
        }
        ids.push(new.len() as u32);
    }
    let grew = new.len() > old.len();
    definitions.stacks = new;
    grew.then_some(ids)
}

fn renumbered(stack: u32, ids: &[u32]) -> u32 {
    // One whose definition was lost keeps to mean none.
    ids.get(stack as usize).copied().unwrap_or(u32::MAX)
}

struct Renumber<'a>(&'a [u32]);

impl ColumnWriter for Renumber<'_> {
    type Out = ();
    fn write<T: Value>(self, values: &mut Vec<T>) {
        for value in values {
            *value = T::from_bits(renumbered(value.to_bits() as u32, self.0).into());
        }
    }
}
