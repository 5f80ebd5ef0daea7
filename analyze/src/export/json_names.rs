//! What ids stand for, as JSON.
//!
//! A definition's text is made once and kept: a stack of 80 frames is the work of 80 look-ups, and thousands of
//! launches have it. What is kept is bounded; a tape with more stacks than fit makes them again.

use std::io;

use ktape_format::Definitions;
use ktape_format::definition::{
    Context, CounterName, Definition, Device, Frame, Function, Graph, KernelName, Process, Property, Shape, Stack,
    Stream, Thread, property, vendor,
};
use ktape_format::table::DefinitionKind as D;
use rustc_hash::FxHashMap;
use serde::Serialize;
use serde_json::json;

use crate::timeline::names::{FrameName, MOST_FRAMES, demangled, frames_cut};

/// How much text is kept.
const KEPT_BYTES: usize = 64 << 20;

/// Writes what ids stand for:
/// - a string as it is, a frame as its label, a stack as an array of labels, the root first, a function as its name;
/// - a launch shape as `{"kernel", "grid", "block", …}`, the kernel's `name` demangled, with its `symbol` where that differs;
/// - a thread as `{"pid", "tid", "name"}`, a stream as `{"pid", "device", "context", "stream"}`, other things likewise.
#[derive(Debug)]
pub(super) struct Names<'a> {
    definitions: &'a Definitions,
    given: FxHashMap<(u16, u32), &'a str>,
    kept: FxHashMap<(D, u32), Box<[u8]>>,
    kept_bytes: usize,
}

impl<'a> Names<'a> {
    /// The names of what is defined there.
    pub(super) fn new(definitions: &'a Definitions) -> Names<'a> {
        let is_name = |row: &Property| definitions.string(row.key) == property::NAME;
        let given = ktape_format::Table::rows(&definitions.properties)
            .filter(is_name)
            .map(|row| ((row.subject_kind, row.subject), definitions.string(row.value)))
            .collect();
        Names { definitions, given, kept: FxHashMap::default(), kept_bytes: 0 }
    }

    /// What the names are made from.
    pub(super) fn definitions(&self) -> &'a Definitions {
        self.definitions
    }

    /// Writes what an id stands for at the end of `out`.
    pub(super) fn write(&mut self, kind: D, id: u32, out: &mut Vec<u8>) -> io::Result<()> {
        if id == 0 {
            out.extend_from_slice(b"null");
        } else if kind == D::String && id as usize <= self.definitions.strings.len() {
            serde_json::to_writer(out, self.definitions.string(id))?;
        } else if let Some(text) = self.kept.get(&(kind, id)) {
            out.extend_from_slice(text);
        } else {
            let begin = out.len();
            self.make(kind, id, out)?;
            self.keep(kind, id, &out[begin..]);
        }
        Ok(())
    }

    fn keep(&mut self, kind: D, id: u32, text: &[u8]) {
        if self.kept_bytes > KEPT_BYTES {
            self.kept.clear();
            self.kept_bytes = 0;
        }
        self.kept_bytes += text.len();
        self.kept.insert((kind, id), text.into());
    }

    fn make(&self, kind: D, id: u32, out: &mut Vec<u8>) -> io::Result<()> {
        match kind {
            D::Stack => self.known(id, out, |_: Stack| self.stack(id)),
            D::Frame => self.known(id, out, |_: Frame| FrameName::of_frame(self.definitions, id).full()),
            D::Shape => self.known(id, out, |row: Shape| self.shape(&row)),
            D::Kernel => self.known(id, out, |row: KernelName| self.kernel(&row)),
            D::Function => self.known(id, out, |row: Function| self.definitions.string(row.name)),
            D::Thread => self.known(id, out, |row: Thread| self.thread(id, &row)),
            D::Stream => self.known(id, out, |row: Stream| self.stream(id, &row)),
            D::Process => self.known(id, out, |row: Process| {
                json!({
                    "pid": row.pid,
                    "name": self.given_name(D::Process, id),
                    "start_ns": row.start_ns,
                    "host": self.string(row.host),
                    "source": self.string(row.source),
                })
            }),
            D::Device => self.known(id, out, |row: Device| {
                json!({
                    "pid": self.pid(row.process),
                    "device": row.index,
                    "name": self.given_name(D::Device, id),
                    "vendor": vendor::NAMES.get(row.vendor as usize),
                    "uuid": self.string(row.uuid),
                })
            }),
            D::Context => self.known(id, out, |row: Context| {
                json!({ "pid": self.pid(row.process), "device": self.device(row.device), "context": row.native })
            }),
            D::Graph => self.known(id, out, |row: Graph| json!({ "pid": self.pid(row.process), "graph": row.native })),
            D::Counter => self.known(id, out, |row: CounterName| {
                json!({
                    "name": self.string(row.name),
                    "unit": self.string(row.unit),
                    "pid": self.pid(row.process),
                    "device": self.device(row.device),
                })
            }),
            // No column refers to a property or a node; a string that is defined has been written already.
            D::Property | D::GraphNode | D::String => undefined(id, out),
        }
    }

    fn known<T: Definition, S: Serialize>(
        &self,
        id: u32,
        out: &mut Vec<u8>,
        text: impl FnOnce(T) -> S,
    ) -> io::Result<()> {
        match self.definitions.get::<T>(id) {
            Some(row) => Ok(serde_json::to_writer(out, &text(row))?),
            None => undefined(id, out),
        }
    }

    fn stack(&self, id: u32) -> Vec<String> {
        let nodes = self.definitions.stack_nodes(id);
        let mut labels: Vec<String> =
            nodes.take(MOST_FRAMES + 1).map(|(_, node)| FrameName::of_stack(self.definitions, &node).full()).collect();
        if labels.len() > MOST_FRAMES {
            labels[MOST_FRAMES] = frames_cut();
        }
        labels.reverse();
        labels
    }

    fn shape(&self, row: &Shape) -> serde_json::Value {
        let kernel = self.definitions.get::<KernelName>(row.kernel).map(|kernel| self.kernel(&kernel));
        let cluster = [row.cluster_x, row.cluster_y, row.cluster_z];
        json!({
            "kernel": kernel,
            "grid": [row.grid_x, row.grid_y, row.grid_z],
            "block": [row.block_x, row.block_y, row.block_z],
            "cluster": (cluster != [0; 3]).then_some(cluster),
            "registers": row.registers,
            "static_shared_bytes": row.static_shared_bytes,
            "dynamic_shared_bytes": row.dynamic_shared_bytes,
            "shared_bytes": row.shared_bytes,
            "local_bytes": row.local_bytes,
        })
    }

    fn kernel(&self, row: &KernelName) -> serde_json::Value {
        let symbol = self.definitions.string(row.name);
        let name = demangled(symbol);
        json!({ "name": name, "symbol": (name != symbol).then_some(symbol), "module": self.string(row.module) })
    }

    fn thread(&self, id: u32, row: &Thread) -> serde_json::Value {
        json!({ "pid": self.pid(row.process), "tid": row.tid, "name": self.given_name(D::Thread, id) })
    }

    fn stream(&self, id: u32, row: &Stream) -> serde_json::Value {
        let context = self.definitions.get::<Context>(row.context);
        json!({
            "pid": context.and_then(|context| self.pid(context.process)),
            "device": context.and_then(|context| self.device(context.device)),
            "context": context.map(|context| context.native),
            "stream": row.native,
            "name": self.given_name(D::Stream, id),
            "priority": row.priority,
            "flags": row.flags,
        })
    }

    fn given_name(&self, kind: D, id: u32) -> Option<&'a str> {
        self.given.get(&(kind as u16, id)).copied()
    }

    fn pid(&self, process: u32) -> Option<i64> {
        self.definitions.get::<Process>(process).map(|row| row.pid)
    }

    fn device(&self, device: u32) -> Option<u32> {
        self.definitions.get::<Device>(device).map(|row| row.index)
    }

    fn string(&self, id: u32) -> Option<&'a str> {
        Some(self.definitions.string(id)).filter(|string| !string.is_empty())
    }
}

fn undefined(id: u32, out: &mut Vec<u8>) -> io::Result<()> {
    Ok(serde_json::to_writer(out, &json!({ "undefined": id }))?)
}
