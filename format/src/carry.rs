//! Rows from one place to a tape, with the definitions that they refer to and no others.
//!
//! Ids are a tape's own, so a row that moves gets new ones. The first row that refers to a definition takes it along, and
//! what that refers to in turn, and what was said of it; all later rows find its new id in an array. So many segments of one
//! recording, or the parts of many tapes, cost what their rows need, and a reference costs one look.

use crate::Sink;
use crate::definition::{
    Definition, DefinitionVisitor, Definitions, GraphNode, Property, property, subject, visit_definitions,
};
use crate::event::Event;
use crate::table::{DefinitionKind, Row, Table as _};
use rustc_hash::FxHashMap;

/// How many definition tables there are.
const TABLES: usize = DefinitionKind::GraphNode as usize - DefinitionKind::String as usize + 1;
/// The table of strings.
const STRING: u16 = DefinitionKind::String as u16;
/// Which bits of an id say where its place in an array is. The others tell those apart that have had the same place.
pub(crate) const PLACE: u32 = (1 << 24) - 1;
/// The new id of a definition that waits for what it refers to.
const UNDER_WAY: u32 = u32::MAX;

/// Where definitions come from.
pub trait Known {
    /// The string with this id.
    fn string(&self, id: u32) -> Option<&str>;
    /// The definition with this id.
    fn row<T: Definition>(&self, id: u32) -> Option<T>;
    /// Keys and values of what was said of a definition, or of the tape.
    fn said_of(&self, subject_kind: u16, subject: u32) -> impl Iterator<Item = (u32, u32)>;
    /// The nodes of a graph.
    fn nodes_of(&self, graph: u32) -> impl Iterator<Item = GraphNode>;
}

/// Which definitions are on a tape already, and by which ids.
#[derive(Debug, Default)]
pub struct Carrier {
    /// By table and place: the id here and the one there; both 0 for none. A new id of 0 is that of one that is not known.
    tables: [Vec<(u32, u32)>; TABLES],
    /// What has to go first, each in front of what refers to it.
    work: Vec<(u16, u32)>,
    /// Graphs that are there, and whose nodes are not.
    graphs: Vec<u32>,
    missing: u64,
}

impl Carrier {
    /// Writes an event, after what it refers to.
    #[inline]
    pub fn event<E: Event, K: Known, S: Sink>(&mut self, mut row: E, known: &K, sink: &mut S) -> Result<(), S::Error> {
        let original = row;
        let mut has_all = true;
        let Ok(()) = row.map_references(|kind, id| {
            Ok::<u32, std::convert::Infallible>(self.found(kind as u16, id).unwrap_or_else(|| {
                has_all = false;
                0
            }))
        });
        if !has_all {
            row = original;
            row.map_references(|kind, id| self.carry(kind as u16, id, known, sink))?;
        }
        sink.event(row)
    }

    /// The id there of the definition that has this id here; 0 for one that is not known.
    #[cold]
    pub fn carry<K: Known, S: Sink>(&mut self, kind: u16, id: u32, known: &K, sink: &mut S) -> Result<u32, S::Error> {
        if id == 0 {
            return Ok(0);
        }
        if let Some(found) = self.found(kind, id) {
            return Ok(found);
        }
        let done = self.settle(kind, id, known, sink).and_then(|()| self.nodes(known, sink));
        if done.is_err() {
            // What was under way may be tried again.
            for (kind, id) in std::mem::take(&mut self.work) {
                if self.entry(kind, id) == (id, UNDER_WAY) {
                    self.set(kind, id, (0, 0));
                }
            }
        }
        done?;
        let (_, there) = self.entry(kind, id);
        self.missing += u64::from(there == 0);
        Ok(there)
    }

    /// Writes what was said of a definition, if that is there.
    pub fn say<K: Known, S: Sink>(&mut self, said: Property, known: &K, sink: &mut S) -> Result<(), S::Error> {
        let subject = match said.subject_kind {
            subject::TAPE => 0,
            kind if index(kind) >= TABLES => return Ok(()),
            kind => match self.found(kind, said.subject) {
                Some(there @ 1..) => there,
                _ => return Ok(()),
            },
        };
        let key = self.carry(STRING, said.key, known, sink)?;
        let value = self.carry(STRING, said.value, known, sink)?;
        sink.define(Property { subject, key, value, ..said }).map(|_| ())
    }

    /// Writes a node of a graph, if that is there.
    pub fn node<K: Known, S: Sink>(&mut self, mut node: GraphNode, known: &K, sink: &mut S) -> Result<(), S::Error> {
        if self.found(DefinitionKind::Graph as u16, node.graph).is_none_or(|there| there == 0) {
            return Ok(());
        }
        node.map_references(|kind, id| self.carry(kind as u16, id, known, sink))?;
        sink.define(node).map(|_| ())
    }

    /// References to definitions that are not known, which became 0.
    pub fn missing(&self) -> u64 {
        self.missing
    }

    /// Whether a definition is there.
    pub(crate) fn has(&self, kind: u16, id: u32) -> bool {
        self.entry(kind, id).0 == id
    }

    /// Takes a definition for one that is there. To be followed by [`Carrier::clear`].
    pub(crate) fn mark(&mut self, kind: u16, id: u32) {
        self.set(kind, id, (id, 0));
    }

    /// Begins another tape.
    pub(crate) fn clear(&mut self) {
        self.tables.iter_mut().for_each(|table| table.fill((0, 0)));
    }

    #[inline]
    fn found(&self, kind: u16, id: u32) -> Option<u32> {
        let (here, there) = self.entry(kind, id);
        (here == id && there != UNDER_WAY).then_some(there)
    }

    #[inline]
    fn entry(&self, kind: u16, id: u32) -> (u32, u32) {
        self.tables[index(kind)].get((id & PLACE) as usize).copied().unwrap_or_default()
    }

    fn set(&mut self, kind: u16, id: u32, entry: (u32, u32)) {
        let table = &mut self.tables[index(kind)];
        let place = (id & PLACE) as usize;
        if table.len() <= place {
            table.resize(place + 1, (0, 0));
        }
        table[place] = entry;
    }

    /// Writes a definition behind all that it refers to. Not by recursion: a stranger's stack may be a million frames deep.
    fn settle<K: Known, S: Sink>(&mut self, kind: u16, id: u32, known: &K, sink: &mut S) -> Result<(), S::Error> {
        self.work.push((kind, id));
        while let Some(&(kind, id)) = self.work.last() {
            if self.found(kind, id).is_some() {
                self.work.pop();
                continue;
            }
            self.set(kind, id, (id, UNDER_WAY));
            let waiting = self.work.len();
            if kind == STRING {
                let there = known.string(id).map_or(Ok(0), |string| sink.string(string))?;
                self.set(kind, id, (id, there));
            } else {
                visit_definitions(&mut One { kind, id, carrier: self, known, sink })?;
            }
            if self.work.len() == waiting {
                self.work.pop();
                self.said(kind, id, known, sink)?;
            }
        }
        Ok(())
    }

    /// Writes what was said of a definition that has just been written.
    fn said<K: Known, S: Sink>(&mut self, kind: u16, id: u32, known: &K, sink: &mut S) -> Result<(), S::Error> {
        let (_, subject) = self.entry(kind, id);
        if subject == 0 {
            return Ok(());
        }
        if kind == DefinitionKind::Graph as u16 {
            self.graphs.push(id);
        }
        for (key, value) in known.said_of(kind, id) {
            let mut there = |id| known.string(id).map_or(Ok(0), |string| sink.string(string));
            let (key, value) = (there(key)?, there(value)?);
            sink.define(Property { subject_kind: kind, subject, key, value })?;
        }
        Ok(())
    }

    /// Writes the nodes of graphs that have come to be there.
    fn nodes<K: Known, S: Sink>(&mut self, known: &K, sink: &mut S) -> Result<(), S::Error> {
        while let Some(graph) = self.graphs.pop() {
            for mut node in known.nodes_of(graph) {
                node.map_references(|kind, id| match self.found(kind as u16, id) {
                    Some(found) => Ok(found),
                    None => {
                        self.settle(kind as u16, id, known, sink)?;
                        Ok(self.entry(kind as u16, id).1)
                    }
                })?;
                sink.define(node)?;
            }
        }
        Ok(())
    }
}

/// Writes one definition of a kind that is not known where it is named, or adds what has to go first to the work.
struct One<'a, K, S> {
    kind: u16,
    id: u32,
    carrier: &'a mut Carrier,
    known: &'a K,
    sink: &'a mut S,
}

impl<K: Known, S: Sink> DefinitionVisitor for One<'_, K, S> {
    type Error = S::Error;
    fn visit<T: Definition>(&mut self) -> Result<(), S::Error> {
        if T::KIND != self.kind {
            return Ok(());
        }
        let Some(mut row) = self.known.row::<T>(self.id) else {
            self.carrier.set(self.kind, self.id, (self.id, 0));
            return Ok(());
        };
        let waiting = self.carrier.work.len();
        let Ok(()) = row.map_references(|kind, id| {
            let (here, there) = self.carrier.entry(kind as u16, id);
            Ok::<u32, std::convert::Infallible>(match here == id {
                // One that waits for this one, which a damaged tape may refer to, is none.
                true if there == UNDER_WAY => 0,
                true => there,
                false => {
                    self.carrier.work.push((kind as u16, id));
                    0
                }
            })
        });
        if T::KIND == DefinitionKind::Graph as u16 {
            // A graph that is a node of this one comes before it, as wherever graphs are defined: readers rely on it.
            for child in self.known.nodes_of(self.id).map(|node| node.child) {
                if child != 0 && self.carrier.entry(T::KIND, child).0 != child {
                    self.carrier.work.push((T::KIND, child));
                }
            }
        }
        if self.carrier.work.len() == waiting {
            let there = self.sink.define(row)?;
            self.carrier.set(self.kind, self.id, (self.id, there));
        }
        Ok(())
    }
}

#[inline]
fn index(kind: u16) -> usize {
    usize::from(kind.wrapping_sub(STRING))
}

/// The definitions of a tape, with what was said of each at hand.
pub struct OfTape<'a> {
    definitions: &'a Definitions,
    /// The last value of each subject and key, in the order in which the keys were first said.
    said: FxHashMap<(u16, u32), Vec<(u32, u32)>>,
    /// Rows of graphs' nodes.
    nodes: FxHashMap<u32, Vec<u32>>,
}

impl OfTape<'_> {
    /// All that is defined here.
    pub fn new(definitions: &Definitions) -> OfTape<'_> {
        let mut said: FxHashMap<(u16, u32), Vec<(u32, u32)>> = FxHashMap::default();
        for row in definitions.properties.rows() {
            let said = said.entry((row.subject_kind, row.subject)).or_default();
            match said.iter_mut().find(|(key, _)| *key == row.key) {
                Some((_, value)) => *value = row.value,
                None => said.push((row.key, row.value)),
            }
        }
        let mut nodes: FxHashMap<u32, Vec<u32>> = FxHashMap::default();
        for (row, &graph) in (0..).zip(&definitions.graph_nodes.graph) {
            nodes.entry(graph).or_default().push(row);
        }
        OfTape { definitions, said, nodes }
    }

    /// The kernels whose names were learned after they were defined. Whoever makes one of several tapes carries these too: what
    /// refers to them may be on another of the tapes.
    pub fn renamed_kernels(&self) -> impl Iterator<Item = u32> {
        let is_name = |said: &Property| {
            said.subject_kind == DefinitionKind::Kernel as u16 && self.definitions.string(said.key) == property::NAME
        };
        self.definitions.properties.rows().filter(is_name).map(|said| said.subject)
    }
}

impl Known for OfTape<'_> {
    fn string(&self, id: u32) -> Option<&str> {
        self.definitions.strings.get((id as usize).checked_sub(1)?).map(|string| &**string)
    }

    fn row<T: Definition>(&self, id: u32) -> Option<T> {
        self.definitions.get(id)
    }

    fn said_of(&self, subject_kind: u16, subject: u32) -> impl Iterator<Item = (u32, u32)> {
        self.said.get(&(subject_kind, subject)).into_iter().flatten().copied()
    }

    fn nodes_of(&self, graph: u32) -> impl Iterator<Item = GraphNode> {
        let rows = self.nodes.get(&graph).into_iter().flatten();
        rows.map(|&row| self.definitions.graph_nodes.row(row as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Memory;
    use crate::definition::{Frame, Graph, Shape, Stack};
    use crate::event::{GraphLaunch, Launch};

    #[test]
    fn a_stack_of_a_million_frames_and_one_that_is_its_own_parent_are_carried() {
        let mut memory = Memory::default();
        let mut parent = 0;
        for line in 0..1_000_000 {
            memory.definitions.stacks.push(Stack { parent, frame: 0, line });
            parent = memory.definitions.stacks.len() as u32;
        }
        memory.definitions.stacks.push(Stack { parent: parent + 2, frame: 0, line: 7 });
        memory.definitions.stacks.push(Stack { parent: parent + 1, frame: 0, line: 8 });
        let known = OfTape::new(&memory.definitions);
        let (mut carrier, mut there) = (Carrier::default(), Memory::default());
        for stack in [parent, parent + 1, parent + 2, parent + 3] {
            let Ok(()) = carrier.event(Launch { stack, ..Launch::default() }, &known, &mut there);
        }
        assert_eq!(there.definitions.stack_nodes(there.events.launch.stack[0]).count(), 1_000_000);
        assert_eq!(there.definitions.stack_nodes(there.events.launch.stack[1]).count(), 2);
        assert_eq!((there.events.launch.stack[3], carrier.missing()), (0, 1));
    }

    #[test]
    fn a_graph_takes_its_nodes_along_and_these_what_they_refer_to() {
        let mut memory = Memory::default();
        let Ok(frame) = memory.define(Frame::default());
        let Ok(stack) = memory.define(Stack { frame, ..Stack::default() });
        let Ok(shape) = memory.define(Shape { grid_x: 5, ..Shape::default() });
        let [outer, inner, other] =
            [1, 2, 3].map(|native| memory.define(Graph { native, ..Graph::default() }).unwrap());
        for (graph, child) in [(outer, inner), (inner, outer), (other, 0)] {
            let Ok(_) = memory.define(GraphNode { graph, child, shape, stack, ..GraphNode::default() });
        }
        let known = OfTape::new(&memory.definitions);
        let (mut carrier, mut there) = (Carrier::default(), Memory::default());
        let Ok(()) = carrier.event(GraphLaunch { graph: outer, ..GraphLaunch::default() }, &known, &mut there);
        let nodes: Vec<GraphNode> = there.definitions.graph_nodes.rows().collect();
        assert_eq!(nodes.len(), 2);
        assert_eq!((nodes[0].child, nodes[1].child), (nodes[1].graph, nodes[0].graph));
        assert_eq!(there.definitions.get::<Shape>(nodes[1].shape).unwrap().grid_x, 5);
        // Where none is in the other in turn, the one within comes first.
        let Ok(whole) = memory.define(Graph { native: 4, ..Graph::default() });
        let Ok(_) = memory.define(GraphNode { graph: whole, child: other, ..GraphNode::default() });
        let known = OfTape::new(&memory.definitions);
        let (mut carrier, mut there) = (Carrier::default(), Memory::default());
        let Ok(()) = carrier.event(GraphLaunch { graph: whole, ..GraphLaunch::default() }, &known, &mut there);
        let of = |native: u64| 1 + there.definitions.graphs.native.iter().position(|known| *known == native).unwrap();
        assert_eq!((of(3), of(4), there.events.graph_launch.graph[0]), (1, 2, 2));
    }
}
