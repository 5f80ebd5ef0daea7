//! The graphs of a process: which nodes each has, and what a launch of one runs.
//!
//! A graph's nodes are what was called while a stream was captured (`capturing.rs`), or added by calls. An executable graph
//! has those that its graph had when it was made; both share the list until one of them is changed. When an executable graph
//! is launched its nodes become definitions, if they are not yet: a [`Graph`] on the tape never changes, and an executable graph
//! that does is another from then on, by its column `earlier`. So what was never launched takes no room on the tape.
//!
//! What is not known is a node of kind `unknown`: all of a graph from before the recording, a change by a handle that was not
//! seen being handed out, what calls that were lost may have added, nodes beyond [`MOST_NODES`] and [`MOST_ROWS`]. A graph with
//! such a node is counted at each launch.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;

use ktape_format::Sink;
use ktape_format::definition::{Graph, GraphNode, node_kind};
use ktape_format::table::DefinitionKind;
use rustc_hash::{FxHashMap, FxHashSet};

use super::MOST_KEPT;
use super::capturing::{Capture, Captures, is_still_captured};

/// Nodes that are kept in memory for a process: 64 bytes each, and as much again for their handles.
const MOST_NODES: u64 = 1 << 20;
/// Nodes that are written onto one tape for a process. Only a program that changes its graphs between their launches comes to that.
const MOST_ROWS: u64 = 4 << 20;
/// Executable graphs that are kept apart.
const MOST_EXECS: usize = 1 << 18;
/// How deep graphs lie in graphs.
const MOST_LEVELS: u8 = 16;

/// What a node does.
#[derive(Clone, Default)]
pub(super) struct Body {
    pub(super) kind: u8,
    pub(super) shape: u32,
    pub(super) bytes: u64,
    pub(super) child: Child,
}

impl Body {
    fn name_kept(&self, named: &mut FxHashSet<*const Nodes>, keep: &mut dyn FnMut(DefinitionKind, u32)) {
        keep(DefinitionKind::Shape, self.shape);
        match &self.child {
            Child::None => {}
            Child::Defined { id, .. } => keep(DefinitionKind::Graph, *id),
            // No deeper than `MOST_LEVELS`.
            Child::Copy { nodes, .. } => nodes.name_kept(named, keep),
        }
    }
}

/// The graph that a node is.
#[derive(Clone, Default)]
pub(super) enum Child {
    #[default]
    None,
    /// It is on the tape already.
    Defined { id: u32, is_whole: bool },
    /// A copy of what this graph was.
    Copy { native: u64, nodes: Rc<Nodes> },
}

impl PartialEq for Body {
    fn eq(&self, other: &Body) -> bool {
        let is_same_child = match (&self.child, &other.child) {
            (Child::None, Child::None) => true,
            (Child::Defined { id, .. }, Child::Defined { id: other, .. }) => id == other,
            (Child::Copy { nodes, .. }, Child::Copy { nodes: other, .. }) => Rc::ptr_eq(nodes, other),
            _ => false,
        };
        (self.kind, self.shape, self.bytes) == (other.kind, other.shape, other.bytes) && is_same_child
    }
}

/// A node, and the call that added it.
#[derive(Clone, Default, PartialEq)]
pub(super) struct Node {
    pub(super) body: Body,
    pub(super) function: u32,
    pub(super) stack: u32,
}

impl Node {
    fn unknown() -> Node {
        Node::default()
    }

    pub(super) fn name_kept(&self, named: &mut FxHashSet<*const Nodes>, keep: &mut dyn FnMut(DefinitionKind, u32)) {
        keep(DefinitionKind::Function, self.function);
        keep(DefinitionKind::Stack, self.stack);
        self.body.name_kept(named, keep);
    }
}

/// Nodes by number; `None` for one that was ended.
pub(super) struct Nodes {
    list: Vec<Option<Node>>,
    /// How many levels of graphs are below it.
    levels: u8,
    /// Its definition and whether that is whole, once it is on the tape as part of another graph.
    defined: Cell<(u32, bool)>,
    /// How many nodes the process has in memory.
    kept: Rc<Cell<u64>>,
}

impl Clone for Nodes {
    fn clone(&self) -> Nodes {
        self.kept.set(self.kept.get() + self.list.len() as u64);
        Nodes { list: self.list.clone(), levels: self.levels, defined: Cell::default(), kept: self.kept.clone() }
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        self.kept.set(self.kept.get() - self.list.len() as u64);
    }
}

impl Nodes {
    fn new(kept: &Rc<Cell<u64>>) -> Nodes {
        Nodes { list: Vec::new(), levels: 0, defined: Cell::default(), kept: kept.clone() }
    }

    fn push(&mut self, node: Node) {
        let is_full = self.kept.get() >= MOST_NODES;
        // Of what can't be kept one node stands for all.
        let is_told = self.list.last().is_some_and(|last| last.as_ref().is_some_and(|last| *last == Node::unknown()));
        if is_full && is_told {
            return;
        }
        let node = if is_full { Node::unknown() } else { self.bounded(node) };
        self.defined = Cell::default();
        self.kept.set(self.kept.get() + 1);
        self.list.push(Some(node));
    }

    /// The node, or, where that would lie too deep, one that is not known.
    fn bounded(&mut self, node: Node) -> Node {
        let below = match &node.body.child {
            Child::Copy { nodes, .. } => nodes.levels.saturating_add(1),
            _ => 0,
        };
        if below > MOST_LEVELS {
            return Node { body: Body::default(), ..node };
        }
        self.levels = self.levels.max(below);
        node
    }

    /// Names the definitions that the nodes refer to; of lists that were named before, nothing.
    fn name_kept(&self, named: &mut FxHashSet<*const Nodes>, keep: &mut dyn FnMut(DefinitionKind, u32)) {
        if named.insert(std::ptr::from_ref(self)) {
            self.list.iter().flatten().for_each(|node| node.name_kept(named, keep));
            keep(DefinitionKind::Graph, self.defined.get().0);
        }
    }

    /// Whether there are nodes at the same numbers.
    fn is_laid_out_as(&self, other: &Nodes) -> bool {
        let is_there = |node: &Option<Node>| node.is_some();
        self.list.iter().map(is_there).eq(other.list.iter().map(is_there))
    }
}

/// A graph.
struct Built {
    /// Tells it from others of the same handle.
    serial: u64,
    nodes: Rc<Nodes>,
    /// Handles of its nodes that were seen being handed out.
    handles: Vec<u64>,
}

/// An executable graph.
struct Exec {
    /// The graph whose nodes' handles stand for its own.
    origin: u64,
    nodes: Rc<Nodes>,
    /// Numbers of those that are switched off.
    disabled: BTreeSet<u32>,
    /// The definition of what it is now, and whether all of that is known; 0 for none yet.
    defined: (u32, bool),
}

/// Where a node is.
#[derive(Clone, Copy)]
struct Place {
    graph: u64,
    serial: u64,
    index: u32,
}

/// What was lost since losses were looked for last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LostCalls {
    /// Nothing.
    None,
    /// Calls, but none that changes graphs.
    Some,
    /// Calls that change graphs, or their returns, but none that makes, changes or ends an executable graph.
    OfTemplates,
    /// Calls that change graphs, executable ones too, or their returns.
    OfGraphs,
}

/// What could not be told of graphs in full, since it was asked for last.
#[derive(Clone, Copy, Default)]
pub(super) struct Untold {
    /// Changes of graphs or nodes that are not known.
    pub(super) changes: u64,
    /// Captures that were not seen to begin.
    pub(super) captures: u64,
}

/// What is to happen to graphs when a call has succeeded.
#[derive(Clone)]
pub(super) enum Change {
    BeginCapture { stream: u32, into: Option<u64>, replaces: bool },
    EndCapture { stream: u32 },
    Create,
    Destroy(u64),
    Clone(u64),
    FindInClone { node: u64, clone: u64 },
    Add { graph: u64, node: Node },
    DestroyNode(u64),
    Set { node: u64, body: Body },
    SetInExec { exec: u64, node: u64, body: Body },
    SetEnabled { exec: u64, node: u64, is_enabled: bool },
    Instantiate(u64),
    Update { exec: u64, graph: u64 },
    ExecDestroy(u64),
}

impl Change {
    /// As [`Graphs::name_kept`].
    pub(super) fn name_kept(&self, keep: &mut dyn FnMut(DefinitionKind, u32)) {
        match self {
            Change::Add { node, .. } => node.name_kept(&mut FxHashSet::default(), keep),
            Change::Set { body, .. } | Change::SetInExec { body, .. } => {
                body.name_kept(&mut FxHashSet::default(), keep)
            }
            _ => {}
        }
    }
}

/// The graphs of a process.
pub(in super::super) struct Graphs {
    process: u32,
    graphs: FxHashMap<u64, Built>,
    execs: FxHashMap<u64, Exec>,
    nodes: FxHashMap<u64, Place>,
    pub(super) captures: Captures,
    serials: u64,
    kept: Rc<Cell<u64>>,
    /// How many graphs each handle has had on the tape; of others no more than `earlier`.
    defined: FxHashMap<u64, u32>,
    earlier: u32,
    rows: u64,
    /// Definitions of graphs that are known to have the device do something.
    working: FxHashSet<u32>,
    /// Graphs and executable graphs that were made or changed since losses were looked for.
    changed: (FxHashSet<u64>, FxHashSet<u64>),
    untold: Untold,
    /// Whether some launches are not sent, for their stacks: then one may be missing from any capture.
    pub(super) misses_launches: bool,
}

impl Graphs {
    /// Names the definitions whose ids are kept for nodes. See [`Collector::kept`](super::Collector::kept).
    pub(super) fn name_kept(&self, keep: &mut dyn FnMut(DefinitionKind, u32)) {
        let mut named = FxHashSet::default();
        self.graphs.values().for_each(|built| built.nodes.name_kept(&mut named, keep));
        for exec in self.execs.values() {
            exec.nodes.name_kept(&mut named, keep);
            keep(DefinitionKind::Graph, exec.defined.0);
        }
        self.captures.nodes().for_each(|nodes| nodes.name_kept(&mut named, keep));
    }

    pub(super) fn new(process: u32) -> Graphs {
        Graphs {
            process,
            graphs: FxHashMap::default(),
            execs: FxHashMap::default(),
            nodes: FxHashMap::default(),
            captures: Captures::default(),
            serials: 0,
            kept: Rc::default(),
            defined: FxHashMap::default(),
            earlier: 0,
            rows: 0,
            working: FxHashSet::default(),
            changed: Default::default(),
            untold: Untold::default(),
            misses_launches: false,
        }
    }

    /// All of them, to be handed on to the process's next program.
    pub(super) fn take(&mut self) -> Graphs {
        std::mem::replace(self, Graphs::new(self.process))
    }

    /// Takes over what an earlier program of the process has put on the tape.
    pub(super) fn go_on_from(&mut self, before: Graphs) {
        if before.process == self.process {
            (self.defined, self.earlier, self.rows) = (before.defined, before.earlier, before.rows);
        }
    }

    /// Another tape begins.
    pub(super) fn begin_tape(&mut self) {
        self.rows = 0;
        // Of those that can be launched still.
        let mut working = std::mem::take(&mut self.working);
        let mut kept = FxHashSet::default();
        self.name_kept(&mut |kind, id| _ = (kind == DefinitionKind::Graph).then(|| kept.insert(id)));
        working.retain(|id| kept.contains(id));
        self.working = working;
    }

    /// Whether a graph, by its definition, is known to have the device do something: it may be empty, or call the host only.
    pub(in super::super) fn has_work(&self, graph: u32) -> bool {
        self.working.contains(&graph)
    }

    /// How many graphs a handle has had on the tape, or more, before the one that is counted here.
    fn earlier(&mut self, native: u64) -> u32 {
        if self.defined.len() >= MOST_KEPT && !self.defined.contains_key(&native) {
            self.earlier = self.defined.values().copied().max().unwrap_or(0).max(self.earlier);
            self.defined.clear();
        }
        let count = self.defined.entry(native).or_insert(self.earlier);
        *count += 1;
        *count - 1
    }

    /// The definition of an executable graph as it is now, and whether all of its nodes are known; `None` in place of that if
    /// it was not seen being made.
    pub(super) fn launched<S: Sink>(&mut self, handle: u64, sink: &mut S) -> Result<(u32, Option<bool>), S::Error> {
        // What is beyond counts as one.
        let is_too_many = self.execs.len() >= MOST_EXECS && !self.execs.contains_key(&handle);
        let handle = if is_too_many { 0 } else { handle };
        let Some(exec) = self.execs.get(&handle) else {
            let exec = Exec { origin: 0, nodes: self.unknown(), disabled: BTreeSet::new(), defined: (0, false) };
            // It stays what it is.
            let (id, _) = self.define(handle, &exec.nodes, &exec.disabled, sink)?;
            self.execs.insert(handle, Exec { defined: (id, false), ..exec });
            return Ok((id, None));
        };
        if exec.defined.0 != 0 {
            let is_older = exec.origin == 0;
            return Ok((exec.defined.0, (!is_older).then_some(exec.defined.1)));
        }
        let (nodes, disabled) = (exec.nodes.clone(), exec.disabled.clone());
        let defined = self.define(handle, &nodes, &disabled, sink)?;
        if let Some(exec) = self.execs.get_mut(&handle) {
            exec.defined = defined;
        }
        Ok((defined.0, Some(defined.1)))
    }

    /// Puts a graph and its nodes on the tape.
    fn define<S: Sink>(
        &mut self,
        native: u64,
        nodes: &Nodes,
        disabled: &BTreeSet<u32>,
        sink: &mut S,
    ) -> Result<(u32, bool), S::Error> {
        let is_too_much = self.rows + nodes.list.len() as u64 > MOST_ROWS;
        let mut rows = Vec::new();
        let mut is_whole = !is_too_much;
        for (index, node) in nodes.list.iter().enumerate().filter(|_| !is_too_much) {
            let Some(node) = node else { continue };
            let index = index as u32;
            let Body { kind, shape, bytes, child } = &node.body;
            let (child, is_child_whole) = match child {
                Child::None => (0, true),
                Child::Defined { id, is_whole } => (*id, *is_whole),
                Child::Copy { native, nodes } => {
                    if nodes.defined.get().0 == 0 {
                        nodes.defined.set(self.define(*native, nodes, &BTreeSet::new(), sink)?);
                    }
                    nodes.defined.get()
                }
            };
            is_whole &= *kind != node_kind::UNKNOWN && is_child_whole;
            let row = GraphNode { index, function: node.function, stack: node.stack, ..GraphNode::default() };
            // One that is switched off does as much as an empty one.
            rows.push(match disabled.contains(&index) {
                true => GraphNode { kind: node_kind::EMPTY, ..row },
                false => GraphNode { kind: *kind, shape: *shape, bytes: *bytes, child, ..row },
            });
        }
        if is_too_much {
            rows.push(GraphNode { kind: node_kind::UNKNOWN, ..GraphNode::default() });
        }
        let is_work = |row: &GraphNode| match row.kind {
            node_kind::KERNEL | node_kind::MEMCPY | node_kind::MEMSET => true,
            node_kind::GRAPH => self.working.contains(&row.child),
            _ => false,
        };
        let has_work = rows.iter().any(is_work);
        self.rows += rows.len() as u64;
        let earlier = self.earlier(native);
        let graph = sink.define(Graph { process: self.process, native, earlier })?;
        if has_work {
            self.working.insert(graph);
        }
        for row in rows {
            sink.define(GraphNode { graph, ..row })?;
        }
        Ok((graph, is_whole))
    }

    /// The nodes of a graph of which nothing is known.
    fn unknown(&self) -> Rc<Nodes> {
        let mut nodes = Nodes::new(&self.kept);
        nodes.push(Node::unknown());
        Rc::new(nodes)
    }

    /// What a graph is now, to be part of another.
    pub(super) fn child(&self, graph: u64) -> Child {
        let nodes = self.graphs.get(&graph).map_or_else(|| self.unknown(), |built| built.nodes.clone());
        Child::Copy { native: graph, nodes }
    }

    fn insert(&mut self, handle: u64, nodes: Rc<Nodes>) {
        self.forget(handle);
        self.changed.0.insert(handle);
        self.serials += 1;
        self.graphs.insert(handle, Built { serial: self.serials, nodes, handles: Vec::new() });
    }

    fn forget(&mut self, graph: u64) {
        let Some(built) = self.graphs.remove(&graph) else { return };
        for handle in built.handles {
            if self.nodes.get(&handle).is_some_and(|place| place.serial == built.serial) {
                self.nodes.remove(&handle);
            }
        }
    }

    /// Adds a node to a graph, if that is known. Nodes that a capture adds have no handle here.
    fn add(&mut self, graph: u64, handle: Option<u64>, node: Node) {
        let Some(built) = self.graphs.get_mut(&graph) else {
            self.untold.changes += 1;
            return;
        };
        self.changed.0.insert(graph);
        let nodes = Rc::make_mut(&mut built.nodes);
        nodes.push(node);
        if let Some(handle) = handle {
            built.handles.push(handle);
            let index = nodes.list.len() as u32 - 1;
            self.nodes.insert(handle, Place { graph, serial: built.serial, index });
        }
    }

    /// Adds a node to what a stream's capture makes.
    pub(super) fn add_captured(&mut self, capture: u32, node: Node) {
        let kept = &self.kept;
        if let Some(capture) = self.captures.get(capture) {
            capture.nodes.get_or_insert_with(|| Nodes::new(kept)).push(node);
        }
    }

    /// A call was refused.
    pub(super) fn refused(&mut self, change: &Change, result: i32) {
        if let Change::EndCapture { stream } = change
            && !is_still_captured(result)
            && let Some(Capture { into: Some(into), .. }) = self.captures.end(*stream)
        {
            self.add(into, None, Node::unknown());
        }
    }

    /// Does what a call that has succeeded was for; `handed_out` is the handle that it said.
    pub(super) fn change(&mut self, change: Change, handed_out: u64) {
        match change {
            Change::BeginCapture { stream, into, replaces } => self.captures.begin(stream, into, replaces),
            Change::EndCapture { stream } => {
                self.end_capture(stream, handed_out);
                if self.misses_launches {
                    self.add(handed_out, None, Node::unknown());
                }
            }
            Change::Create => self.insert(handed_out, Rc::new(Nodes::new(&self.kept))),
            Change::Destroy(graph) => self.forget(graph),
            Change::Clone(graph) => {
                let nodes = self.graphs.get(&graph).map_or_else(|| self.unknown(), |built| built.nodes.clone());
                self.insert(handed_out, nodes);
            }
            Change::FindInClone { node, clone } => {
                if let (Some(place), Some(built)) = (self.nodes.get(&node), self.graphs.get_mut(&clone)) {
                    built.handles.push(handed_out);
                    let place = Place { graph: clone, serial: built.serial, index: place.index };
                    self.nodes.insert(handed_out, place);
                }
            }
            Change::Add { graph, node } => self.add(graph, Some(handed_out), node),
            Change::DestroyNode(node) => self.with_node(node, |node| *node = None),
            Change::Set { node, body } => self.with_node(node, |node| {
                if let Some(node) = node {
                    node.body = body;
                }
            }),
            Change::SetInExec { exec, node, body } => self.set_in_exec(exec, node, body),
            Change::SetEnabled { exec, node, is_enabled } => self.set_enabled(exec, node, is_enabled),
            Change::Instantiate(graph) => {
                let built = self.graphs.get(&graph);
                let nodes = built.map_or_else(|| self.unknown(), |built| built.nodes.clone());
                let origin = built.map_or(0, |built| built.serial);
                let exec = Exec { origin, nodes, disabled: BTreeSet::new(), defined: (0, false) };
                self.changed.1.insert(handed_out);
                self.execs.insert(handed_out, exec);
            }
            Change::Update { exec, graph } => self.update(exec, graph),
            Change::ExecDestroy(exec) => {
                self.execs.remove(&exec);
            }
        }
    }

    fn end_capture(&mut self, stream: u32, graph: u64) {
        let Some(capture) = self.captures.end(stream) else {
            self.untold.captures += 1;
            let nodes = self.unknown();
            self.insert(graph, nodes);
            return;
        };
        let nodes = capture.nodes.unwrap_or_else(|| Nodes::new(&self.kept));
        match capture.into {
            None => self.insert(graph, Rc::new(nodes)),
            Some(into) if capture.replaces => {
                let built = self.graphs.get_mut(&into);
                match built.filter(|built| built.nodes.is_laid_out_as(&nodes)) {
                    Some(built) => built.nodes = Rc::new(nodes),
                    None => self.add(into, None, Node::unknown()),
                }
            }
            Some(into) => nodes.list.iter().flatten().for_each(|node| self.add(into, None, node.clone())),
        }
    }

    /// Changes a node of a graph.
    fn with_node(&mut self, node: u64, change: impl FnOnce(&mut Option<Node>)) {
        let place = self.nodes.get(&node).copied();
        let built = place.and_then(|place| Some((place, self.graphs.get_mut(&place.graph)?)));
        let Some((place, built)) = built.filter(|(place, built)| place.serial == built.serial) else {
            self.untold.changes += 1;
            return;
        };
        self.changed.0.insert(place.graph);
        let nodes = Rc::make_mut(&mut built.nodes);
        nodes.defined = Cell::default();
        let Some(found) = nodes.list.get_mut(place.index as usize) else { return };
        change(found);
        if found.is_none() {
            self.nodes.remove(&node);
        }
    }

    /// The number of a node in an executable graph.
    fn index_in(&self, exec: &Exec, node: u64) -> Option<u32> {
        self.nodes.get(&node).filter(|place| place.serial == exec.origin).map(|place| place.index)
    }

    fn set_in_exec(&mut self, handle: u64, node: u64, body: Body) {
        self.changed.1.insert(handle);
        let index = self.execs.get(&handle).and_then(|exec| self.index_in(exec, node));
        let Some(exec) = self.execs.get_mut(&handle) else {
            self.untold.changes += 1;
            return;
        };
        let known = index.and_then(|index| exec.nodes.list.get(index as usize)).and_then(Option::as_ref);
        match (index, known) {
            (Some(_), Some(node)) if node.body == body => {}
            (Some(index), Some(_)) => {
                let nodes = Rc::make_mut(&mut exec.nodes);
                if let Some(Some(node)) = nodes.list.get_mut(index as usize) {
                    *node = Node { body, ..node.clone() };
                }
                exec.defined = (0, false);
            }
            _ => {
                self.untold.changes += 1;
                self.lose_track(handle);
            }
        }
    }

    fn set_enabled(&mut self, handle: u64, node: u64, is_enabled: bool) {
        self.changed.1.insert(handle);
        let index = self.execs.get(&handle).and_then(|exec| self.index_in(exec, node));
        match (self.execs.get_mut(&handle), index) {
            (Some(exec), Some(index)) => {
                let is_new = if is_enabled { exec.disabled.remove(&index) } else { exec.disabled.insert(index) };
                if is_new {
                    exec.defined = (0, false);
                }
            }
            _ => {
                self.untold.changes += 1;
                self.lose_track(handle);
            }
        }
    }

    /// From now on an executable graph has something that is not known.
    fn lose_track(&mut self, exec: u64) {
        let Some(exec) = self.execs.get_mut(&exec) else { return };
        let last = exec.nodes.list.last().and_then(Option::as_ref);
        if last.is_none_or(|last| *last != Node::unknown()) {
            Rc::make_mut(&mut exec.nodes).push(Node::unknown());
            exec.defined = (0, false);
        }
    }

    fn update(&mut self, handle: u64, graph: u64) {
        self.changed.1.insert(handle);
        let nodes = self.graphs.get(&graph).map_or_else(|| self.unknown(), |built| built.nodes.clone());
        let Some(exec) = self.execs.get_mut(&handle) else {
            self.untold.changes += 1;
            return;
        };
        if exec.nodes.list == nodes.list {
            return;
        }
        if !exec.nodes.is_laid_out_as(&nodes) {
            // Their nodes are told apart by number no more.
            exec.origin = u64::MAX;
            exec.disabled.clear();
        }
        exec.nodes = nodes;
        exec.defined = (0, false);
    }

    /// Losses were looked for. If calls were lost since the last time, what has changed since may have changed in other ways too;
    /// if some were that change graphs, any graph may have, and any executable graph if some were that change those.
    pub(super) fn looked_for_losses(&mut self, lost: LostCalls) {
        let changed = std::mem::take(&mut self.changed);
        let (graphs, execs) = match lost {
            LostCalls::None => return,
            LostCalls::Some => changed,
            // Those that were made before are what they were.
            LostCalls::OfTemplates => (self.graphs.keys().copied().collect(), changed.1),
            LostCalls::OfGraphs => (self.graphs.keys().copied().collect(), self.execs.keys().copied().collect()),
        };
        for graph in graphs {
            if self.graphs.contains_key(&graph) {
                self.add(graph, None, Node::unknown());
            }
        }
        execs.into_iter().for_each(|exec| self.lose_track(exec));
        for number in self.captures.numbers() {
            self.add_captured(number, Node::unknown());
        }
        self.changed = Default::default();
    }

    /// What could not be told in full since the last time.
    pub(super) fn take_untold(&mut self) -> Untold {
        std::mem::take(&mut self.untold)
    }
}

#[cfg(test)]
mod tests;
