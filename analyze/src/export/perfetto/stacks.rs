//! Call stacks as Perfetto interns them: function names, frames, stacks.
//!
//! Only stacks that events refer to are written. A stack's interning id is its id on the tape, a function name's is
//! its frame's. Perfetto wants each frame in a mapped file ("mapping"); ours say what kind of frame it is.

use ktape_format::definition::{Frame as FrameRow, Stack, frame_kind};
use ktape_format::{Definitions, Table};
use rustc_hash::{FxHashMap, FxHashSet};

use super::proto::{Callstack, Frame, InternedData, InternedString, Mapping};
use super::text::{Texts, list};
use crate::timeline::names::{FrameName, MOST_FRAMES, frames_cut};

/// Numbers of ids in one packet.
const PORTION: usize = 100_000;

/// The interning of the stacks with these ids.
pub(super) struct Stacks<'a> {
    definitions: &'a Definitions,
    used: Vec<u32>,
    /// By frame and line.
    frames: FxHashMap<(u32, u32), u64>,
    frame_list: Vec<Frame>,
}

impl<'a> Stacks<'a> {
    pub(super) fn new(definitions: &'a Definitions, used: &FxHashSet<u32>, texts: &mut Texts<'_>) -> Stacks<'a> {
        let known = |id: &u32| *id != 0 && *id as usize <= definitions.stacks.len();
        let mut used: Vec<u32> = used.iter().copied().filter(known).collect();
        used.sort_unstable();
        let mut stacks = Stacks { definitions, used, frames: FxHashMap::default(), frame_list: Vec::new() };
        let mut seen = vec![false; definitions.stacks.len() + 1];
        for index in 0..stacks.used.len() {
            for (id, node) in definitions.stack_nodes(stacks.used[index]) {
                if std::mem::replace(&mut seen[id as usize], true) {
                    break;
                }
                stacks.intern(&node, texts);
            }
        }
        stacks
    }

    /// Whether there is a stack with this id.
    pub(super) fn id(&self, stack: u32) -> Option<u64> {
        (stack != 0 && stack as usize <= self.definitions.stacks.len()).then_some(u64::from(stack))
    }

    fn intern(&mut self, node: &Stack, texts: &mut Texts<'_>) {
        let iid = self.frames.len() as u64 + 1;
        if *self.frames.entry((node.frame, node.line)).or_insert(iid) != iid {
            return;
        }
        let frame = self.definitions.get::<FrameRow>(node.frame).unwrap_or_default();
        let source = texts.string(frame.file, list::SOURCE_PATH);
        let line = if node.line != 0 { node.line } else { frame.line };
        self.frame_list.push(Frame {
            iid,
            function_name_id: u64::from(node.frame),
            mapping_id: u64::from(frame.kind) + 1,
            rel_pc: u64::from(node.line),
            source_path_iid: Some(source).filter(|iid| *iid != 0),
            line_number: Some(line).filter(|line| *line != 0),
        });
    }

    fn cut_frame_iid(&self) -> u64 {
        self.frame_list.len() as u64 + 1
    }

    /// Everything that packets with these stacks need, in portions. Texts must be written before.
    pub(super) fn interned(&self) -> impl Iterator<Item = InternedData> + '_ {
        let kinds = || (1..).zip(frame_kind::NAMES.iter().chain(&["cut"]));
        let string = |(iid, name): (u64, &&str)| InternedString { iid, str: name.as_bytes().to_vec() };
        // Behind all ids of frames.
        let cut_name = u64::from(u32::MAX) + 1;
        let cut = Frame {
            iid: self.cut_frame_iid(),
            function_name_id: cut_name,
            mapping_id: frame_kind::NAMES.len() as u64 + 1,
            ..Frame::default()
        };
        let kinds = InternedData {
            mapping_paths: kinds().map(string).collect(),
            mappings: kinds().map(|(iid, _)| Mapping { iid, path_string_ids: vec![iid] }).collect(),
            function_names: vec![InternedString { iid: cut_name, str: frames_cut().into_bytes() }],
            frames: vec![cut],
            ..InternedData::default()
        };
        std::iter::once(kinds).filter(|_| !self.used.is_empty()).chain(self.names()).chain(self.callstacks())
    }

    fn names(&self) -> impl Iterator<Item = InternedData> + '_ {
        let mut named = FxHashSet::default();
        self.frame_list.chunks(2000).map(move |frames| {
            let new = frames.iter().map(|frame| frame.function_name_id).filter(|id| *id != 0 && named.insert(*id));
            let label = |id: u64| FrameName::of_frame(self.definitions, id as u32).full().into_bytes();
            InternedData {
                function_names: new.map(|iid| InternedString { iid, str: label(iid) }).collect(),
                frames: frames.to_vec(),
                ..InternedData::default()
            }
        })
    }

    fn callstacks(&self) -> impl Iterator<Item = InternedData> + '_ {
        let mut next = 0;
        std::iter::from_fn(move || {
            let mut callstacks = Vec::new();
            let mut ids = 0;
            while ids < PORTION
                && let Some(&id) = self.used.get(next)
            {
                let callstack = self.callstack(id);
                ids += callstack.frame_ids.len();
                callstacks.push(callstack);
                next += 1;
            }
            (!callstacks.is_empty()).then(|| InternedData { callstacks, ..InternedData::default() })
        })
    }

    /// One stack, outermost frame first.
    fn callstack(&self, id: u32) -> Callstack {
        let nodes = self.definitions.stack_nodes(id).take(MOST_FRAMES + 1);
        let mut frame_ids: Vec<u64> = nodes.map(|(_, node)| self.frames[&(node.frame, node.line)]).collect();
        if frame_ids.len() > MOST_FRAMES {
            frame_ids[MOST_FRAMES] = self.cut_frame_iid();
        }
        frame_ids.reverse();
        Callstack { iid: u64::from(id), frame_ids }
    }
}

#[cfg(test)]
mod tests {
    use ktape_format::definition::Frame as FrameRow;
    use ktape_format::{Memory, Sink as _};

    use super::*;

    #[test]
    fn outermost_first_and_too_deep_ones_are_cut_visibly() {
        let mut memory = Memory::default();
        let (Ok(main), Ok(forward)) = (memory.string("main"), memory.string("forward"));
        let Ok(main) = memory.define(FrameRow { name: main, ..FrameRow::default() });
        let Ok(forward) = memory.define(FrameRow { name: forward, ..FrameRow::default() });
        let Ok(root) = memory.define(Stack { parent: 0, frame: main, line: 0 });
        let Ok(leaf) = memory.define(Stack { parent: root, frame: forward, line: 7 });
        let mut deep = leaf;
        for _ in 0..2 * MOST_FRAMES {
            let Ok(next) = memory.define(Stack { parent: deep, frame: forward, line: 8 });
            deep = next;
        }
        let mut texts = Texts::new(&memory.definitions);
        let stacks = Stacks::new(&memory.definitions, &FxHashSet::from_iter([leaf, deep, 0, 1 << 30]), &mut texts);
        let data: Vec<InternedData> = stacks.interned().collect();
        let callstacks: Vec<&Callstack> = data.iter().flat_map(|data| &data.callstacks).collect();
        assert_eq!(callstacks[0].frame_ids, [2, 1], "ids in order of discovery, from the leaf");
        assert_eq!(callstacks[1].frame_ids.len(), MOST_FRAMES + 1);
        assert_eq!(callstacks[1].frame_ids[0], stacks.cut_frame_iid());
        let names: Vec<&[u8]> = data.iter().flat_map(|data| &data.function_names).map(|name| &*name.str).collect();
        assert_eq!(names, [frames_cut().as_bytes(), b"forward", b"main"]);
    }
}
