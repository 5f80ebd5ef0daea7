//! What was found in a part of the text joins what was found before it: its ids become the sink's, its numbers those
//! of the whole.
//!
//! Parts come in the text's order, and each of their lists is in the order of appearance, so ids and numbers are
//! those of one reader that reads all of the text.

use ktape_format::Sink;
use ktape_format::Table as _;
use ktape_format::definition::{Definitions, Frame, Function, KernelName, Shape, Stack};

use super::collect::Found;
use super::edges::{Begin, Edge};
use super::records::{Call, DeviceOp, NamedRange, Records, SyncRecord, ThreadSlice, Work};

/// The sink's ids by the ids of a part; element 0 is 0, none.
struct Ids {
    strings: Vec<u32>,
    frames: Vec<u32>,
    stacks: Vec<u32>,
    kernels: Vec<u32>,
    functions: Vec<u32>,
}

impl Ids {
    /// Defines in the sink what a part has defined.
    fn of<S: Sink>(part: &Definitions, sink: &mut S) -> Result<Ids, S::Error> {
        let mut strings = vec![0];
        for string in &part.strings {
            strings.push(sink.string(string)?);
        }
        let string = |id: u32| strings[id as usize];
        let mut frames = vec![0];
        for Frame { kind, name, file, line } in part.frames.rows() {
            frames.push(sink.define(Frame { kind, name: string(name), file: string(file), line })?);
        }
        let mut stacks = vec![0];
        for Stack { parent, frame, line } in part.stacks.rows() {
            let (parent, frame) = (stacks[parent as usize], frames[frame as usize]);
            stacks.push(sink.define(Stack { parent, frame, line })?);
        }
        let mut kernels = vec![0];
        for KernelName { name, module } in part.kernels.rows() {
            kernels.push(sink.define(KernelName { name: string(name), module: string(module) })?);
        }
        let mut functions = vec![0];
        for Function { name, domain, callback_id } in part.functions.rows() {
            functions.push(sink.define(Function { name: string(name), domain, callback_id })?);
        }
        Ok(Ids { strings, frames, stacks, kernels, functions })
    }

    fn string(&self, id: u32) -> u32 {
        self.strings[id as usize]
    }
}

impl Records {
    /// Takes the records of the next part of the text.
    pub(super) fn join<S: Sink>(&mut self, part: Found, sink: &mut S) -> Result<(), S::Error> {
        let Found { definitions, records: part, summary: _ } = part;
        let ids = Ids::of(&definitions, sink)?;
        let threads = self.threads.number_all(&part.threads, |key| key);
        let places = self.places.number_all(&part.places, |place| place);
        let shapes = self.shapes.number_all(&part.shapes, |shape| {
            let kernel = ids.kernels[shape.kernel as usize];
            Shape { kernel, ..shape }
        });
        let thread = |number: u32| threads[number as usize];
        let place = |number: u32| places[number as usize];
        self.calls.extend(part.calls.into_iter().map(|call| Call {
            thread: thread(call.thread),
            function: ids.functions[call.function as usize],
            args: ids.string(call.args),
            shape: call.shape.map(|shape| shapes[shape as usize]),
            ..call
        }));
        self.device_ops.extend(part.device_ops.into_iter().map(|op| DeviceOp {
            place: place(op.place),
            args: ids.string(op.args),
            work: match op.work {
                Work::Kernel(shape) => Work::Kernel(shapes[shape as usize]),
                Work::Memcpy { bytes, kind, source_memory, target_memory, peer_device, name } => {
                    let name = ids.string(name);
                    Work::Memcpy { bytes, kind, source_memory, target_memory, peer_device, name }
                }
                Work::Memset { bytes, target_memory, name } => {
                    Work::Memset { bytes, target_memory, name: ids.string(name) }
                }
            },
            ..op
        }));
        self.slices.extend(part.slices.into_iter().map(|ThreadSlice { mut row, rank, call_stack }| {
            row.thread = thread(row.thread);
            row.frame = ids.frames[row.frame as usize];
            row.args = ids.string(row.args);
            ThreadSlice { row, rank, call_stack: ids.stacks[call_stack as usize] }
        }));
        self.edges.extend(part.edges.into_iter().map(|edge| Edge {
            thread: thread(edge.thread),
            name: ids.string(edge.name),
            begins: edge.begins.map(|begin| Begin {
                frame: ids.frames[begin.frame as usize],
                args: ids.string(begin.args),
                ..begin
            }),
            ..edge
        }));
        self.ranges.extend(part.ranges.into_iter().map(|range| {
            let NamedRange { mut row, place: at, frame, correlation } = range;
            row.thread = thread(row.thread);
            row.name = ids.string(row.name);
            row.category = ids.string(row.category);
            row.args = ids.string(row.args);
            NamedRange { row, place: at.map(place), frame: ids.frames[frame as usize], correlation }
        }));
        self.memory.extend(part.memory.into_iter().map(|mut instant| {
            instant.thread = thread(instant.thread);
            instant
        }));
        self.marks.extend(part.marks.into_iter().map(|mut mark| {
            mark.thread = thread(mark.thread);
            mark.name = ids.string(mark.name);
            mark.category = ids.string(mark.category);
            mark.args = ids.string(mark.args);
            mark
        }));
        self.counters.extend(part.counters.into_iter().map(|mut counter| {
            counter.name = ids.string(counter.name);
            counter
        }));
        for (correlation, sync) in part.syncs {
            self.syncs.insert(correlation, SyncRecord { place: place(sync.place), ..sync });
        }
        for (number, priority) in part.priorities {
            self.priorities.entry(place(number)).or_insert(priority);
        }
        self.processes.number_all(&part.processes, |pid| pid);
        self.metadata.extend(part.metadata);
        self.starts.join(part.starts);
        Ok(())
    }
}
