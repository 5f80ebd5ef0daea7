//! Calls, slices and ranges of threads; ranges on streams.

use ktape_format::definition::{Frame, Function, Shape, Stack, api_domain, frame_kind};
use ktape_format::event::{Range, Slice, sync_kind};

use super::super::category::{CallName, Category};
use super::super::names::python_name;
use super::super::records::{Call, NamedRange, SyncRecord, ThreadSlice};
use super::{Collector, Complete};
use crate::import::Summary;
use crate::import::stacks::Rank;

impl Collector {
    pub(super) fn call(&mut self, complete: Complete<'_, '_>) {
        let Complete { event, category, start_ns, duration_ns, arguments, thread } = complete;
        let thread = self.thread_of(event, category, thread);
        // HIP says with the call what it launches, and how much dynamic shared memory it asks for.
        let shape = match &arguments.kernel {
            Some(kernel) => {
                let shape = self.shape(kernel, arguments);
                let dynamic_shared_bytes = shape.shared_bytes;
                Some(self.records.shapes.number(Shape { shared_bytes: 0, dynamic_shared_bytes, ..shape }))
            }
            None => None,
        };
        let domain = if category == Category::Driver { api_domain::DRIVER } else { api_domain::RUNTIME };
        let name = self.string(&event.name);
        let function = self.define(Function { name, domain, callback_id: arguments.callback_id });
        let args = self.kept_args();
        let name = match CallName::of(&event.name) {
            CallName::Other if shape.is_some() => CallName::Launch,
            name => name,
        };
        let correlation = arguments.correlation;
        self.records.calls.push(Call { start_ns, duration_ns, correlation, thread, function, args, name, shape });
    }

    pub(super) fn slice(&mut self, complete: Complete<'_, '_>) {
        let Complete { event, category, start_ns, duration_ns, arguments, thread } = complete;
        let thread = self.thread_of(event, category, thread);
        let (frame, rank) = match category {
            Category::Python => (self.python_frame(&event.name), Some(Rank::Python)),
            Category::Overhead => (self.named_frame(frame_kind::OVERHEAD, &event.name), None),
            _ => (self.named_frame(frame_kind::OPERATOR, &event.name), Some(Rank::Operator)),
        };
        let call_stack = match &arguments.call_stack {
            Some(stack) => self.call_stack(stack),
            None => 0,
        };
        let sequence = arguments.sequence.unwrap_or(-1);
        let args = self.kept_args();
        let row = Slice { start_ns, duration_ns, thread, frame, sequence, args };
        self.records.slices.push(ThreadSlice { row, rank, call_stack });
    }

    pub(super) fn range(&mut self, complete: Complete<'_, '_>) {
        let Complete { event, category, start_ns, duration_ns, arguments, thread } = complete;
        let mut row = Range { start_ns, duration_ns, ..Range::default() };
        let mut place = None;
        let mut frame = 0;
        match category {
            Category::OnStream => {
                let at = self.place(event, arguments);
                place = Some(self.records.places.number(at));
            }
            Category::Sync => {
                let at = self.place(event, arguments);
                let at = self.records.places.number(at);
                place = Some(at);
                let kind = sync_kind_of(arguments.sync_kind.as_deref().unwrap_or(&event.name));
                let record = SyncRecord { kind, place: at, event: arguments.event, recorded_by: arguments.recorded_by };
                self.records.syncs.insert(arguments.correlation, record);
            }
            Category::Annotation => {
                row.thread = self.thread_of(event, category, thread);
                frame = self.named_frame(frame_kind::RANGE, &event.name);
            }
            _ => row.thread = self.thread_of(event, category, thread),
        }
        row.name = self.string(&event.name);
        row.category = self.string(&event.category);
        row.args = self.kept_args();
        self.records.ranges.push(NamedRange { row, place, frame, correlation: arguments.correlation });
    }

    pub(super) fn named_frame(&mut self, kind: u8, name: &str) -> u32 {
        let name = self.string(name);
        self.define(Frame { kind, name, file: 0, line: 0 })
    }

    pub(super) fn python_frame(&mut self, text: &str) -> u32 {
        let python = python_name(text);
        if python.addresses > 0 {
            Summary::count(&mut self.summary.not_kept_parts, "address", "in a name", python.addresses);
        }
        let (name, file) = (self.string(&python.name), self.string(python.file));
        self.define(Frame { kind: frame_kind::PYTHON, name, file, line: python.line })
    }

    /// The stack of a 2021 operator's `Call stack`: innermost first, separated by `;`. Its lines are those being
    /// executed, where `python_function` events have the line on which the function begins.
    fn call_stack(&mut self, text: &str) -> u32 {
        if let Some(stack) = self.call_stacks.get(text) {
            return *stack;
        }
        let mut parent = 0;
        for entry in text.split(';').rev().filter(|entry| !entry.is_empty()) {
            let python = python_name(entry);
            let (name, file) = (self.string(&python.name), self.string(python.file));
            let frame = self.define(Frame { kind: frame_kind::PYTHON, name, file, line: 0 });
            parent = self.define(Stack { parent, frame, line: python.line });
        }
        self.call_stacks.insert(text.into(), parent);
        parent
    }
}

/// The `sync_kind` of a synchronisation record; `None` for one that makes a stream wait, not the host.
fn sync_kind_of(text: &str) -> Option<u8> {
    match text {
        "Stream Wait Event" => None,
        "Event Sync" => Some(sync_kind::EVENT),
        "Stream Sync" => Some(sync_kind::STREAM),
        "Context Sync" => Some(sync_kind::CONTEXT),
        _ => Some(sync_kind::UNKNOWN),
    }
}
