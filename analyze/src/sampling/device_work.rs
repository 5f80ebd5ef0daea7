//! What a sampler of the GPU can find: each operation, on its stream, from its start to its end.

use ktape_format::Definitions;
use ktape_format::definition::{Frame, frame_kind};
use ktape_format::event::timing;
use rustc_hash::FxHashMap;

use super::work::{By, Collector, Interval};
use crate::timeline::names::{FrameName, MOST_FRAMES, frames_cut, short_kernel_name, without_addresses};
use crate::timeline::{DeviceOp, DeviceOpKind, OpClass, Timeline};

/// Adds all device operations that have a time.
pub(super) fn collect(collector: &mut Collector, timeline: &Timeline, ops: &[DeviceOp], by: By) {
    let mut keys = Keys { timeline, by, of_class: FxHashMap::default(), of_stack: FxHashMap::default() };
    for op in ops {
        match op.timing {
            timing::ABSENT => {
                collector.times.absent += 1;
                continue;
            }
            timing::BOUNDED => collector.times.bounded += 1,
            _ => collector.times.measured += 1,
        }
        let key = keys.key(collector, op);
        let track = collector.track(op.stream);
        collector.call(key, op.duration_ns());
        collector.interval(Interval { start_ns: op.start_ns, end_ns: op.end_ns, key, track });
    }
}

/// Keys of operations; names are made once a class or stack, as there are millions of operations.
struct Keys<'a> {
    timeline: &'a Timeline,
    by: By,
    of_class: FxHashMap<OpClass, u32>,
    of_stack: FxHashMap<u32, u32>,
}

impl Keys<'_> {
    fn key(&mut self, collector: &mut Collector, op: &DeviceOp) -> u32 {
        let timeline = self.timeline;
        match self.by {
            By::Kernel => *self.of_class.entry(timeline.op_class(op)).or_insert_with(|| {
                let name = timeline.op_name(op);
                let is_kernel = op.kind == DeviceOpKind::Kernel;
                collector.key(&name, || if is_kernel { short_kernel_name(&name) } else { name.clone() })
            }),
            By::Function | By::Stack => {
                let stack = timeline.stack_of(op).unwrap_or(0);
                *self.of_stack.entry(stack).or_insert_with(|| {
                    let (name, label) = stack_key(&timeline.definitions, stack, self.by);
                    collector.key(&name, || label)
                })
            }
        }
    }
}

/// What stands for a stack where rows are functions or stacks: the key's name and label.
pub(super) fn stack_key(definitions: &Definitions, stack: u32, by: By) -> (String, String) {
    if by == By::Stack {
        let path = path(definitions, stack);
        (path.join(";"), stack_label(&path))
    } else {
        let function = innermost(definitions, stack);
        (function.clone(), function)
    }
}

const NO_STACK: &str = "[no stack recorded]";

/// A stack's frames from the root on.
fn path(definitions: &Definitions, stack: u32) -> Vec<String> {
    let nodes = definitions.stack_nodes(stack).take(MOST_FRAMES + 1);
    let mut path: Vec<String> = nodes.map(|(_, node)| function_label(definitions, node.frame)).collect();
    if path.len() > MOST_FRAMES {
        path[MOST_FRAMES] = frames_cut();
    }
    path.reverse();
    if path.is_empty() {
        path.push(NO_STACK.to_owned());
    }
    path
}

/// The innermost Python function of a stack; without Python, the innermost frame.
fn innermost(definitions: &Definitions, stack: u32) -> String {
    let is_python = |frame: &u32| definitions.get::<Frame>(*frame).is_some_and(|f| f.kind == frame_kind::PYTHON);
    let frames = || definitions.stack_nodes(stack).map(|(_, node)| node.frame);
    let frame = frames().find(is_python).or_else(|| frames().next());
    frame.map_or_else(|| NO_STACK.to_owned(), |frame| function_label(definitions, frame))
}

/// A frame's label without the addresses that make one function look like many (`… object at 0x7f3a…`).
pub(super) fn function_label(definitions: &Definitions, frame: u32) -> String {
    without_addresses(&FrameName::of_frame(definitions, frame).full()).0.into_owned()
}

/// How a stack is shown in a table: the last of it, callers without their files.
pub(super) fn stack_label<T: AsRef<str>>(path: &[T]) -> String {
    const CALLERS: usize = 2;
    let Some((innermost, callers)) = path.split_last() else { return String::new() };
    let shown = &callers[callers.len().saturating_sub(CALLERS)..];
    let mut label = if callers.len() > CALLERS { "… > ".to_owned() } else { String::new() };
    for caller in shown {
        let name = caller.as_ref();
        label.push_str(name.rsplit_once(" (").map_or(name, |(name, _file)| name));
        label.push_str(" > ");
    }
    label + innermost.as_ref()
}
