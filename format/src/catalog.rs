//! What a recording of many tapes has defined: ids that stay valid from one tape to the next.
//!
//! Whoever writes keeps the ids of what it defined, for weeks. A [`Catalog`] gives it ids of its own, and puts onto each tape
//! what that tape's events refer to, when the first of them does ([`Carrier`]). What no event has referred to and nobody
//! keeps is forgotten when a tape ends, so that memory follows what is there and not what has ever been.

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::Sink;
use crate::carry::{Carrier, Known, PLACE};
use crate::definition::{
    Context, Definition, DefinitionVisitor, Device, GraphNode, Property, Shelves, Stream, Thread, property, subject,
    visit_definitions,
};
use crate::event::Event;
use crate::table::{DefinitionKind, Refers, Row};

/// What has been defined, and what of it is on the tape that is being written.
#[derive(Debug, Default)]
pub struct Catalog {
    known: Defined,
    carrier: Carrier,
}

#[derive(Debug, Default)]
struct Defined {
    strings: Shelf<Arc<str>>,
    shelves: Shelves,
    /// Keys and last values by subject.
    said: FxHashMap<(u16, u32), Vec<(u32, u32)>>,
    nodes: FxHashMap<u32, Vec<GraphNode>>,
}

/// The rows of one kind, by id.
#[derive(Debug)]
pub struct Shelf<T> {
    known: FxHashMap<T, u32>,
    /// The id and the row of each place; of a free one, the id that it will have next.
    places: Vec<(u32, T)>,
    free: VecDeque<u32>,
}

impl<T> Default for Shelf<T> {
    fn default() -> Shelf<T> {
        Shelf { known: FxHashMap::default(), places: Vec::new(), free: VecDeque::new() }
    }
}

impl<T: std::hash::Hash + Eq + Clone> Shelf<T> {
    /// Gives a row an id. After 16 million rows that are all in use there is none, and the row becomes "none".
    fn add(&mut self, row: T) -> u32 {
        let id = match self.free.pop_front() {
            Some(place) => {
                let entry = &mut self.places[place as usize];
                entry.1 = row.clone();
                entry.0
            }
            // Place 0 stays free, as id 0 is none.
            None if self.places.len() as u32 >= PLACE => return 0,
            None => {
                self.places.push((self.places.len() as u32 + 1, row.clone()));
                self.places.len() as u32
            }
        };
        self.known.insert(row, id);
        id
    }

    fn get(&self, id: u32) -> Option<&T> {
        let (known, row) = self.places.get(((id & PLACE) as usize).checked_sub(1)?)?;
        (*known == id).then_some(row)
    }

    /// Forgets what `keeps` does not. The next row in its place has another id.
    fn retain(&mut self, mut keeps: impl FnMut(u32) -> bool) {
        let Shelf { known, places, free } = self;
        known.retain(|_, &mut id| {
            let keeps = keeps(id);
            if !keeps {
                let place = (id & PLACE) - 1;
                places[place as usize].0 = id.wrapping_add(PLACE + 1);
                free.push_back(place);
            }
            keeps
        });
    }
}

impl Defined {
    fn define_string(&mut self, string: &str) -> u32 {
        if string.is_empty() {
            return 0;
        }
        match self.strings.known.get(string) {
            Some(&id) => id,
            None => self.strings.add(string.into()),
        }
    }
}

impl Known for Defined {
    fn string(&self, id: u32) -> Option<&str> {
        self.strings.get(id).map(|string| &**string)
    }

    fn row<T: Definition>(&self, id: u32) -> Option<T> {
        T::shelf(&self.shelves).get(id).copied()
    }

    fn said_of(&self, subject_kind: u16, subject: u32) -> impl Iterator<Item = (u32, u32)> {
        self.said.get(&(subject_kind, subject)).into_iter().flatten().copied()
    }

    fn nodes_of(&self, graph: u32) -> impl Iterator<Item = GraphNode> {
        self.nodes.get(&graph).into_iter().flatten().copied()
    }
}

impl Catalog {
    /// The id of a string, here and not on any tape. The empty string is 0.
    pub fn string(&mut self, string: &str) -> u32 {
        self.known.define_string(string)
    }

    /// The id of a definition, here and not on any tape. Properties and nodes of graphs belong to what they are said of: they
    /// have no id, and go at once onto a tape that has their subject. A kernel's name, which is only a property where it is learned
    /// late, takes the kernel along.
    pub fn define<T: Definition, S: Sink>(&mut self, row: T, tape: &mut S) -> Result<u32, S::Error> {
        if let Some(said) = same::<T, Property>(&row) {
            let all = self.known.said.entry((said.subject_kind, said.subject)).or_default();
            match all.iter_mut().find(|(key, _)| *key == said.key) {
                Some((_, value)) if *value == said.value => return Ok(0),
                Some((_, value)) => *value = said.value,
                None => all.push((said.key, said.value)),
            }
            let kernel = DefinitionKind::Kernel as u16;
            let is_name = said.subject_kind == kernel && self.known.string(said.key) == Some(property::NAME);
            if is_name && !self.carrier.has(kernel, said.subject) {
                // Its launches may all be on tapes that have ended: who reads those looks for its name on this one too.
                self.carrier.carry(kernel, said.subject, &self.known, tape)?;
                return Ok(0);
            }
            self.carrier.say(said, &self.known, tape)?;
            return Ok(0);
        }
        if let Some(node) = same::<T, GraphNode>(&row) {
            let nodes = self.known.nodes.entry(node.graph).or_default();
            // Nodes mostly come in the order of their numbers.
            let at = node.index as usize;
            if nodes.get(at) != Some(&node) && (nodes.len() <= at || !nodes.contains(&node)) {
                nodes.push(node);
                self.carrier.node(node, &self.known, tape)?;
            }
            return Ok(0);
        }
        let shelf = T::shelf_mut(&mut self.known.shelves);
        Ok(match shelf.known.get(&row) {
            Some(&id) => id,
            None => shelf.add(row),
        })
    }

    /// Writes an event, and first what of its definitions is not on the tape yet.
    #[inline]
    pub fn event<E: Event, S: Sink>(&mut self, row: E, tape: &mut S) -> Result<(), S::Error> {
        self.carrier.event(row, &self.known, tape)
    }

    /// The row as it stands on the tape, on which all that it refers to is then.
    pub fn carried<R: Row, S: Sink>(&mut self, mut row: R, tape: &mut S) -> Result<R, S::Error> {
        row.map_references(|kind, id| self.carrier.carry(kind as u16, id, &self.known, tape))?;
        Ok(row)
    }

    /// References to what had been forgotten, which became 0: somebody kept an id and did not say so.
    pub fn missing(&self) -> u64 {
        self.carrier.missing()
    }

    /// How many definitions are known, strings included.
    pub fn len(&self) -> usize {
        struct Count<'a>(&'a Shelves, usize);
        impl DefinitionVisitor for Count<'_> {
            type Error = std::convert::Infallible;
            fn visit<T: Definition>(&mut self) -> Result<(), Self::Error> {
                self.1 += T::shelf(self.0).known.len();
                Ok(())
            }
        }
        let mut count = Count(&self.known.shelves, self.known.strings.known.len());
        let Ok(()) = visit_definitions(&mut count);
        count.1
    }

    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Ends a tape: what none of its events referred to is forgotten, but for what `kept` names, what belongs to a process that
    /// it names, except for its graphs, of which it may make any number, and what these refer to. All that is left goes onto the next tape when an event refers to it.
    pub fn end_tape(&mut self, kept: impl FnOnce(&mut dyn FnMut(DefinitionKind, u32))) {
        let Catalog { known, carrier } = self;
        let mut marking = Marking { known, carrier, work: Vec::new() };
        kept(&mut |kind, id| marking.mark(kind as u16, id));
        marking.go_on();
        marking.belongings();
        marking.said();
        known.said.retain(|&(kind, subject), _| kind == subject::TAPE || carrier.has(kind, subject));
        known.nodes.retain(|&graph, _| carrier.has(DefinitionKind::Graph as u16, graph));
        known.strings.retain(|id| carrier.has(DefinitionKind::String as u16, id));
        let Ok(()) = visit_definitions(&mut Forget { shelves: &mut known.shelves, carrier });
        carrier.clear();
    }

    /// Begins a tape: says what is said of each.
    pub fn begin_tape<S: Sink>(&mut self, tape: &mut S) -> Result<(), S::Error> {
        for (key, value) in self.known.said_of(subject::TAPE, 0) {
            let said = Property { subject_kind: subject::TAPE, subject: 0, key, value };
            self.carrier.say(said, &self.known, tape)?;
        }
        Ok(())
    }
}

struct Forget<'a> {
    shelves: &'a mut Shelves,
    carrier: &'a Carrier,
}

impl DefinitionVisitor for Forget<'_> {
    type Error = std::convert::Infallible;
    fn visit<T: Definition>(&mut self) -> Result<(), Self::Error> {
        T::shelf_mut(self.shelves).retain(|id| self.carrier.has(T::KIND, id));
        Ok(())
    }
}

/// Finds out what is to be kept. What is on the tape that ends has all that it refers to there.
struct Marking<'a> {
    known: &'a Defined,
    carrier: &'a mut Carrier,
    /// Marked, but not what they refer to.
    work: Vec<(u16, u32)>,
}

impl Marking<'_> {
    fn mark(&mut self, kind: u16, id: u32) {
        if id != 0 && !self.carrier.has(kind, id) {
            self.carrier.mark(kind, id);
            self.work.push((kind, id));
        }
    }

    /// Marks what marked definitions refer to.
    fn go_on(&mut self) {
        struct References<'m, 'a>(&'m mut Marking<'a>, u16, u32);
        impl DefinitionVisitor for References<'_, '_> {
            type Error = std::convert::Infallible;
            fn visit<T: Definition>(&mut self) -> Result<(), Self::Error> {
                if T::KIND == self.1
                    && let Some(row) = self.0.known.row::<T>(self.2)
                {
                    self.0.references(row);
                }
                Ok(())
            }
        }
        while let Some((kind, id)) = self.work.pop() {
            let Ok(()) = visit_definitions(&mut References(self, kind, id));
        }
    }

    fn references<R: Row>(&mut self, mut row: R) {
        let Ok(()) = row.map_references(|kind, id| {
            self.mark(kind as u16, id);
            Ok::<u32, std::convert::Infallible>(0)
        });
    }

    /// Marks what belongs to something that is marked.
    fn belongings(&mut self) {
        self.belonging::<Thread>();
        self.belonging::<Device>();
        self.belonging::<Context>();
        self.belonging::<Stream>();
        let known = self.known;
        for (&graph, nodes) in &known.nodes {
            if self.carrier.has(DefinitionKind::Graph as u16, graph) {
                nodes.iter().for_each(|&node| self.references(node));
            }
        }
        self.go_on();
    }

    /// Marks those of a kind whose first reference is marked, or none.
    fn belonging<T: Definition>(&mut self) {
        let owner = T::COLUMNS.iter().enumerate().find_map(|(column, spec)| match spec.refers {
            Refers::To(kind) => Some((column, kind as u16)),
            _ => None,
        });
        let Some((column, kind)) = owner else { return };
        let shelf = T::shelf(&self.known.shelves);
        for (row, &id) in &shelf.known {
            let owner = row.get(column) as u32;
            if owner == 0 || self.carrier.has(kind, owner) {
                self.mark(T::KIND, id);
            }
        }
        self.go_on();
    }

    /// Marks the strings of what was said of marked definitions.
    fn said(&mut self) {
        let known = self.known;
        // What was said of a string (a file's build) may be said of one that is only marked here.
        for _ in 0..2 {
            for (&(kind, subject), said) in &known.said {
                if kind == subject::TAPE || self.carrier.has(kind, subject) {
                    said.iter().for_each(|&(key, value)| {
                        self.mark(DefinitionKind::String as u16, key);
                        self.mark(DefinitionKind::String as u16, value);
                    });
                }
            }
        }
        self.go_on();
    }
}

/// A row as the kind that it is, if it is of that kind.
fn same<A: Row, B: Row>(row: &A) -> Option<B> {
    (A::KIND == B::KIND).then(|| {
        let mut same = B::default();
        (0..B::COLUMNS.len()).for_each(|column| same.set(column, row.get(column)));
        same
    })
}
