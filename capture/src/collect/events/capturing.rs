//! Streams that are captured: what is called of them is not done, but becomes nodes of a graph.
//!
//! A capture begins in one stream and spreads by events: one that is recorded in a captured stream makes every stream that waits
//! for it captured too. Such a call is on the tape as what it was, a call (`api`, with `captured` among its arguments), and not as a
//! launch, copy or memset: those come with the launches of the graph. A call that is refused adds nothing where its return is
//! known; of launches it is not, unless it was asked for, and a capture with a refused launch has a node too many.

use ktape_format::Sink;
use ktape_format::definition::node_kind;
use ktape_format::event::{Api, allocator};
use ktape_format::table::DefinitionKind;
use rustc_hash::{FxHashMap, FxHashSet};

use super::arguments::Arguments;
use super::calls::{Configuration, Within};
use super::copies::Asked;
use super::graphs::{Body, Change, Child, Node, Nodes};
use super::objects::Objects;
use super::open::Open;
use crate::probes::functions::{Argument, CopyShape, Meaning};
use crate::probes::graphs::{GraphCall, Params};

/// `CU_EVENT_RECORD_EXTERNAL` and `CU_EVENT_WAIT_EXTERNAL`: the event is no tie between captured streams but a node.
const EXTERNAL: u32 = 1;

/// A capture that goes on.
pub(super) struct Capture {
    stream: u32,
    /// What it has captured; `None` for nothing yet.
    pub(super) nodes: Option<Nodes>,
    /// The graph that the nodes are for, if there was one before.
    pub(super) into: Option<u64>,
    /// Whether they take the place of those that it has.
    pub(super) replaces: bool,
}

/// The captures of a process that go on.
#[derive(Default)]
pub(super) struct Captures {
    by_number: FxHashMap<u32, Capture>,
    last: u32,
    /// The capture of each captured stream, by the stream's definition.
    streams: FxHashMap<u32, u32>,
    /// The capture that an event was recorded in.
    events: FxHashMap<u64, u32>,
}

impl Captures {
    /// Whether a stream is being captured.
    pub(super) fn are_under_way(&self) -> bool {
        !self.by_number.is_empty()
    }

    /// What each capture has by now.
    pub(super) fn nodes(&self) -> impl Iterator<Item = &Nodes> {
        self.by_number.values().filter_map(|capture| capture.nodes.as_ref())
    }

    pub(super) fn begin(&mut self, stream: u32, into: Option<u64>, replaces: bool) {
        // The end of one that still seems to go on was not seen.
        self.end(stream);
        self.last += 1;
        self.by_number.insert(self.last, Capture { stream, nodes: None, into, replaces });
        self.streams.insert(stream, self.last);
    }

    /// Ends the capture that began in this stream.
    pub(super) fn end(&mut self, stream: u32) -> Option<Capture> {
        let number = *self.streams.get(&stream)?;
        if self.by_number.get(&number)?.stream != stream {
            return None;
        }
        self.streams.retain(|_, of| *of != number);
        self.events.retain(|_, of| *of != number);
        self.by_number.remove(&number)
    }

    pub(super) fn get(&mut self, number: u32) -> Option<&mut Capture> {
        self.by_number.get_mut(&number)
    }

    /// All that go on.
    pub(super) fn numbers(&self) -> Vec<u32> {
        self.by_number.keys().copied().collect()
    }

    /// The capture of a stream.
    fn of(&self, stream: u32) -> Option<u32> {
        self.streams.get(&stream).copied()
    }

    /// An event was recorded in a stream. Returns the capture that it is tied to.
    fn recorded(&mut self, event: u64, stream: u32) -> Option<u32> {
        let capture = self.of(stream);
        match capture {
            Some(capture) => self.events.insert(event, capture),
            None => self.events.remove(&event),
        };
        capture
    }

    /// A stream waits for an event. Returns the capture that it is, or now is, part of.
    fn waits(&mut self, stream: u32, event: u64) -> Option<u32> {
        if stream == 0 {
            return None;
        }
        let capture = self.of(stream).or_else(|| self.events.get(&event).copied())?;
        self.streams.insert(stream, capture);
        Some(capture)
    }

    /// The handle of a stream is that of another from now on.
    pub(super) fn forget(&mut self, stream: u32) {
        self.streams.remove(&stream);
    }
}

/// What a call into a captured stream adds when it has succeeded.
#[derive(Clone)]
pub(super) struct Captured {
    capture: u32,
    nodes: Vec<Node>,
    /// Bytes and allocator of memory that it hands out.
    allocated: Option<(u64, u8)>,
}

impl Captured {
    /// Names the definitions whose ids are kept for its nodes.
    pub(super) fn name_kept(&self, keep: &mut dyn FnMut(DefinitionKind, u32)) {
        self.nodes.iter().for_each(|node| node.name_kept(&mut FxHashSet::default(), keep));
    }

    pub(super) fn add(self, handed_out: u64, objects: &mut Objects) {
        for node in self.nodes {
            objects.graphs.add_captured(self.capture, node);
        }
        if let Some((bytes, by)) = self.allocated {
            objects.allocated(handed_out, bytes, by);
        }
    }
}

impl Within<'_> {
    /// Whether what is called of this stream is not done but captured.
    pub(super) fn is_captured(&self, stream: u32) -> bool {
        self.objects.graphs.captures.of(stream).is_some()
    }

    /// What a call is if its stream is captured. One whose return is not waited for adds its nodes at once.
    pub(super) fn captured<S: Sink>(
        &mut self,
        a: &Arguments<'_>,
        open: Open,
        has_return: bool,
        sink: &mut S,
    ) -> Result<Open, S::Error> {
        if self.objects.graphs.captures.by_number.is_empty() {
            return Ok(open);
        }
        let (function, stack) = (self.function_id, self.stack);
        let node = |body: Body| Node { body, function, stack };
        let one = |kind, shape, bytes| vec![node(Body { kind, shape, bytes, child: Child::None })];
        let captures = &mut self.objects.graphs.captures;
        let is_external = a.half(2) == EXTERNAL;
        let (capture, nodes, allocated) = match &open {
            Open::Launch(row) => (captures.of(row.stream), one(node_kind::KERNEL, row.shape, 0), None),
            Open::Copy(_, row, _) => (captures.of(row.stream), one(node_kind::MEMCPY, 0, row.bytes), None),
            Open::Set(_, row) => (captures.of(row.stream), one(node_kind::MEMSET, 0, row.bytes), None),
            Open::Copies(_, rows) => {
                let capture = rows.first().and_then(|row| captures.of(row.stream));
                let nodes = rows.iter().flat_map(|row| one(node_kind::MEMCPY, 0, row.bytes)).collect();
                (capture, nodes, None)
            }
            Open::GraphLaunch(row, is_whole) => {
                let child = Child::Defined { id: row.graph, is_whole: *is_whole };
                let nodes = vec![node(Body { kind: node_kind::GRAPH, child, ..Body::default() })];
                (captures.of(row.stream), nodes, None)
            }
            Open::Alloc(row) if row.allocator == allocator::POOL => {
                let nodes = one(node_kind::ALLOC, 0, row.bytes);
                (captures.of(row.stream), nodes, Some((row.bytes, row.allocator)))
            }
            Open::Free(row) => (captures.of(row.stream), one(node_kind::FREE, 0, row.bytes), None),
            Open::EventRecord(row) => {
                // The flags are a parameter of the variant that has them in its name.
                let is_node = is_external && self.function.symbol.contains("WithFlags");
                let capture = if is_node { captures.of(row.stream) } else { captures.recorded(row.event, row.stream) };
                let nodes = if is_node { one(node_kind::EVENT_RECORD, 0, 0) } else { Vec::new() };
                (capture, nodes, None)
            }
            Open::EventWait(row) => {
                let capture = if is_external { captures.of(row.stream) } else { captures.waits(row.stream, row.event) };
                let nodes = if is_external { one(node_kind::WAIT_EVENT, 0, 0) } else { Vec::new() };
                (capture, nodes, None)
            }
            Open::Api(_) => {
                let (stream, kind) = match self.function.meaning {
                    Meaning::Queued { stream, node } => (stream, node),
                    // Work, but what it comes to as a node is not known.
                    Meaning::Other { stream: Some(stream) } if self.function.symbol.starts_with("cuMem") => {
                        (stream, node_kind::UNKNOWN)
                    }
                    _ => return Ok(open),
                };
                let stream = self.stream(a.word(stream), sink)?;
                (self.objects.graphs.captures.of(stream), one(kind, 0, 0), None)
            }
            _ => return Ok(open),
        };
        let Some(capture) = capture else { return Ok(open) };
        let api = self.captured_call(&open, a, sink)?;
        let captured = Captured { capture, nodes, allocated };
        if has_return {
            return Ok(Open::Captured(api, captured));
        }
        captured.add(0, self.objects);
        Ok(Open::Api(api))
    }

    /// The row of a call into a captured stream.
    fn captured_call<S: Sink>(&mut self, open: &Open, a: &Arguments<'_>, sink: &mut S) -> Result<Api, S::Error> {
        let mut args = serde_json::json!({ "captured": true });
        if let Meaning::Queued { stream, .. } | Meaning::Other { stream: Some(stream) } = self.function.meaning {
            args["stream"] = a.word(stream).into();
        }
        let args = sink.string(&args.to_string())?;
        // It has the number that it was given already.
        let correlation = open.correlation();
        let api = if correlation == 0 { self.api(a) } else { self.api_of(a, correlation) };
        Ok(Api { args, ..api })
    }

    /// A call that captures streams, or builds, changes or ends graphs.
    pub(super) fn graph_call<S: Sink>(
        &mut self,
        a: &Arguments<'_>,
        call: GraphCall,
        sink: &mut S,
    ) -> Result<Open, S::Error> {
        let api = self.api(a);
        Ok(match call {
            GraphCall::BeginCapture { graph, replaces } => {
                let (stream, into) = (self.stream(a.word(0), sink)?, graph.map(|graph| a.word(graph)));
                let api = Api { args: stream_argument(a.word(0), sink)?, ..api };
                Open::Graph(api, Change::BeginCapture { stream, into, replaces })
            }
            GraphCall::EndCapture { .. } => {
                let stream = self.stream(a.word(0), sink)?;
                let api = Api { args: stream_argument(a.word(0), sink)?, ..api };
                Open::Graph(api, Change::EndCapture { stream })
            }
            GraphCall::Create => Open::Graph(api, Change::Create),
            GraphCall::Destroy => Open::Graph(api, Change::Destroy(a.word(0))),
            GraphCall::Clone => Open::Graph(api, Change::Clone(a.word(1))),
            GraphCall::FindInClone => Open::Graph(api, Change::FindInClone { node: a.word(1), clone: a.word(2) }),
            GraphCall::Add { params, at } => {
                let body = self.node_body(a, params, at, sink)?;
                let node = Node { body, function: self.function_id, stack: self.stack };
                Open::Graph(api, Change::Add { graph: a.word(1), node })
            }
            GraphCall::DestroyNode => Open::Graph(api, Change::DestroyNode(a.word(0))),
            GraphCall::Set { params } => {
                Open::Graph(api, Change::Set { node: a.word(0), body: self.node_body(a, params, 1, sink)? })
            }
            GraphCall::SetInExec { params } => {
                let body = self.node_body(a, params, 2, sink)?;
                Open::Graph(api, Change::SetInExec { exec: a.word(0), node: a.word(1), body })
            }
            GraphCall::SetEnabled => {
                let is_enabled = a.half(2) != 0;
                Open::Graph(api, Change::SetEnabled { exec: a.word(0), node: a.word(1), is_enabled })
            }
            GraphCall::Update => Open::Graph(api, Change::Update { exec: a.word(0), graph: a.word(1) }),
            GraphCall::ExecDestroy => Open::Graph(api, Change::ExecDestroy(a.word(0))),
        })
    }

    /// What a node's parameters say that it does.
    fn node_body<S: Sink>(
        &mut self,
        a: &Arguments<'_>,
        params: Params,
        at: Argument,
        sink: &mut S,
    ) -> Result<Body, S::Error> {
        let is_read = !matches!(params, Params::Child | Params::Unread(_));
        if is_read && a.memory.is_empty() {
            self.note_unreadable(true);
            return Ok(Body::default());
        }
        let child = |graph, objects: &Objects| Body {
            kind: node_kind::GRAPH,
            child: objects.graphs.child(graph),
            ..Body::default()
        };
        Ok(match params {
            Params::Unread(kind) => Body { kind, ..Body::default() },
            Params::Child => child(a.word(at), self.objects),
            Params::Kernel { .. } => {
                Body { kind: node_kind::KERNEL, shape: self.node_shape(a, sink)?, ..Body::default() }
            }
            Params::Copy => {
                let asked = Asked::by_shape(CopyShape::Volume, a, self.objects);
                Body { kind: node_kind::MEMCPY, bytes: asked.bytes, ..Body::default() }
            }
            Params::Set => {
                let elements = a.memory_word(24).saturating_mul(a.memory_word(32));
                let bytes = elements.saturating_mul(a.memory_half(20).into());
                Body { kind: node_kind::MEMSET, bytes, ..Body::default() }
            }
            Params::Alloc => Body { kind: node_kind::ALLOC, bytes: a.memory_word(104), ..Body::default() },
            Params::Any => {
                /// Where the union begins; of a copy, the structure lies behind its flags and context.
                const UNION: usize = 16;
                const COPY: usize = UNION + 16;
                let within = |offset: usize| Arguments {
                    call: a.call,
                    words: &[],
                    memory: a.memory.get(offset..).unwrap_or_default(),
                };
                // Numbered as `node_kind` from 1.
                match u8::try_from(a.memory_half(0).saturating_add(1)).unwrap_or(0) {
                    node_kind::KERNEL => self.node_body(&within(UNION), Params::Kernel { bytes: 72 }, at, sink)?,
                    node_kind::MEMCPY => self.node_body(&within(COPY), Params::Copy, at, sink)?,
                    node_kind::MEMSET => self.node_body(&within(UNION), Params::Set, at, sink)?,
                    node_kind::ALLOC => self.node_body(&within(UNION), Params::Alloc, at, sink)?,
                    node_kind::GRAPH => child(a.memory_word(UNION), self.objects),
                    kind if usize::from(kind) < node_kind::NAMES.len() => Body { kind, ..Body::default() },
                    _ => Body::default(),
                }
            }
        })
    }

    /// The shape that a `CUDA_KERNEL_NODE_PARAMS` describes; a kernel of a library may stand in place of the function.
    fn node_shape<S: Sink>(&mut self, a: &Arguments<'_>, sink: &mut S) -> Result<u32, S::Error> {
        let function = match a.memory_word(0) {
            0 => a.memory_word(56),
            function => function,
        };
        let [grid, block] = [[8, 12, 16], [20, 24, 28]].map(|at| at.map(|offset| a.memory_half(offset)));
        let configuration = Configuration { grid, block, shared_bytes: a.memory_half(32) };
        self.shape(function, None, &configuration, sink)
    }
}

/// The arguments of a call that names a stream.
pub(super) fn stream_argument<S: Sink>(stream: u64, sink: &mut S) -> Result<u32, S::Error> {
    sink.string(&serde_json::json!({ "stream": stream }).to_string())
}

/// Whether a capture goes on after its end was asked for and refused: in another stream, or by another thread.
pub(super) fn is_still_captured(result: i32) -> bool {
    /// `CUDA_ERROR_STREAM_CAPTURE_UNMATCHED`
    const UNMATCHED: i32 = 903;
    /// `CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD`
    const WRONG_THREAD: i32 = 908;
    matches!(result, UNMATCHED | WRONG_THREAD)
}
