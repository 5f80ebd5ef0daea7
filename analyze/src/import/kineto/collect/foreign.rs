//! Events as other tools write them: without a category, or as beginning and end.

use ktape_format::definition::frame_kind;

use super::super::category::Category;
use super::super::dialect::{self, Seen, What};
use super::super::edges::{Begin, Edge};
use super::super::json::RawEvent;
use super::{Collector, Complete};
use crate::import::stacks::Rank;
use crate::import::{Summary, Tool};

impl Collector {
    /// A complete event without a category.
    pub(super) fn foreign(&mut self, event: &RawEvent<'_>, start_ns: i64, duration_ns: Option<i64>) {
        let Seen { what, tool, arguments, span_ns, thread } =
            dialect::read(&event.name, event.args.raw(), &mut self.reader);
        self.see_tool(tool);
        let (start_ns, duration_ns) = match span_ns {
            Some((begin_ns, end_ns)) => (begin_ns, end_ns.checked_sub(begin_ns)),
            None => (start_ns, duration_ns),
        };
        self.records.starts.see(start_ns);
        let duration_ns = self.duration(duration_ns);
        let category = match what {
            What::Kernel => Category::Kernel,
            What::Memcpy => Category::Memcpy,
            What::Memset => Category::Memset,
            What::Call => Category::Runtime,
            What::Annotation => Category::Annotation,
            What::Slice if event.name.starts_with('$') => Category::Python,
            What::Slice => Category::Unnamed,
        };
        let complete = Complete { event, category, start_ns, duration_ns, arguments: &arguments, thread };
        match category {
            Category::Kernel | Category::Memcpy | Category::Memset => self.device_op(complete),
            Category::Runtime => self.call(complete),
            Category::Annotation => self.range(complete),
            _ => self.slice(complete),
        }
    }

    /// A beginning or an end of a slice.
    pub(super) fn edge(&mut self, event: &RawEvent<'_>, at_ns: i64) {
        self.see_tool(Tool::of_category(&event.category));
        let begins = event.phase == "B";
        let category = if event.category.is_empty() { Category::Unnamed } else { Category::of(&event.category) };
        self.reader.read(Category::Other, event.args.raw().filter(|_| begins));
        if !begins && event.args.raw().is_some_and(|args| args.get() != "{}") {
            Summary::count(&mut self.summary.not_kept_parts, "arguments of an end", "", 1);
        }
        let thread = self.thread(event, category);
        if thread == 0 {
            Summary::count(&mut self.summary.not_kept, "beginning or end on a row that is no thread", "", 1);
            return;
        }
        let begins = begins.then(|| {
            let (frame, rank) = match category {
                Category::Python => (self.python_frame(&event.name), Rank::Python),
                Category::Annotation => (self.named_frame(frame_kind::RANGE, &event.name), Rank::Annotation),
                _ => (self.named_frame(frame_kind::OPERATOR, &event.name), Rank::Operator),
            };
            Begin { frame, rank: Some(rank), args: self.kept_args() }
        });
        let name = self.string(&event.name);
        self.records.edges.push(Edge { at_ns, thread, name, begins });
    }
}
