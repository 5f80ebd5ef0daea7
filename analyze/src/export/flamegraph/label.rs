//! What is written on a frame.
//!
//! Frames with the same text and class are one frame. Text is made fit for all formats here, once: the folded format
//! separates frames by `;` and ends a stack with a space and a number, XML has no control characters.

use ktape_format::definition::{Context, Device, Process, Stack, Stream, frame_kind, property};
use ktape_format::table::DefinitionKind;
use ktape_format::{Definitions, Table};
use rustc_hash::FxHashMap;

use crate::timeline::names::{FrameName, kernel_labels};
use crate::timeline::weights::{Leaf, LeafKind, Place};

/// Looks like a space and is none.
pub(super) const NO_BREAK_SPACE: char = '\u{a0}';

/// What a frame is, which decides its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// A Python function.
    Python,
    /// A framework's operator or a named range.
    Operator,
    /// A native function, or one whose kind is not known.
    Native,
    /// A kernel.
    Kernel,
    /// A copy or memset.
    Copy,
    /// A call of the API.
    Call,
    /// A process, a stream, or what is not known: nothing that was called.
    Note,
}

/// What is written on a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// What it is.
    pub class: Class,
    /// The text, never empty, without `;`, a leading `# `, control characters and outer white space.
    pub text: String,
    /// The name alone, for formats that have fields for the rest.
    pub name: String,
    /// The file as the source has it; empty for none.
    pub file: String,
    /// The line; 0 for none.
    pub line: u32,
}

/// Labels by number: each combination of class and text has one.
#[derive(Debug, Default)]
pub(super) struct Labels {
    all: Vec<Label>,
    by_text: FxHashMap<(Class, String), u32>,
    by_frame: FxHashMap<(u32, u32), u32>,
    by_stream: FxHashMap<u32, u32>,
    by_process: FxHashMap<u32, u32>,
}

impl Labels {
    pub(super) fn into_vec(self) -> Vec<Label> {
        self.all
    }

    pub(super) fn as_slice(&self) -> &[Label] {
        &self.all
    }

    /// The label of a bare text.
    pub(super) fn text(&mut self, class: Class, text: &str) -> u32 {
        self.add(Label { class, text: clean(text), name: clean(text), file: String::new(), line: 0 })
    }

    /// The label of a stack's innermost frame.
    pub(super) fn frame(&mut self, definitions: &Definitions, stack: &Stack) -> u32 {
        if let Some(&label) = self.by_frame.get(&(stack.frame, stack.line)) {
            return label;
        }
        let frame = FrameName::of_stack(definitions, stack);
        let class = match frame.kind {
            frame_kind::PYTHON => Class::Python,
            frame_kind::OPERATOR | frame_kind::RANGE => Class::Operator,
            _ => Class::Native,
        };
        let label = self.add(Label {
            class,
            text: clean(&frame.short()),
            name: clean(&frame.name),
            file: frame.file.to_owned(),
            line: frame.line,
        });
        self.by_frame.insert((stack.frame, stack.line), label);
        label
    }

    /// The labels of leaves, in their order.
    pub(super) fn leaves(&mut self, definitions: &Definitions, leaves: &[Leaf]) -> Vec<u32> {
        let kernels = leaves.iter().filter(|leaf| leaf.kind == LeafKind::Kernel).map(|leaf| leaf.id);
        let kernels = kernel_labels(definitions, kernels);
        leaves
            .iter()
            .map(|leaf| match leaf.kind {
                LeafKind::Kernel => self.text(Class::Kernel, &kernels[&leaf.id]),
                LeafKind::Memcpy | LeafKind::Memset => self.text(Class::Copy, &leaf.name),
                LeafKind::Call if leaf.name.is_empty() => self.text(Class::Call, "[function not recorded]"),
                LeafKind::Call => self.text(Class::Call, &leaf.name),
                LeafKind::Running => self.text(Class::Note, &leaf.name),
            })
            .collect()
    }

    /// The label of the stream that work ran on.
    pub(super) fn stream(&mut self, definitions: &Definitions, place: &Place) -> u32 {
        if let Some(&label) = self.by_stream.get(&place.stream) {
            return label;
        }
        let label = self.text(Class::Note, &stream_text(definitions, place.stream));
        self.by_stream.insert(place.stream, label);
        label
    }

    /// The label of the process that work belongs to.
    pub(super) fn process(&mut self, definitions: &Definitions, place: &Place) -> u32 {
        if let Some(&label) = self.by_process.get(&place.process) {
            return label;
        }
        let text = process_text(definitions, place.process);
        let label = match definitions.property(DefinitionKind::Process as u16, place.process, property::RANK) {
            Some(rank) => self.text(Class::Note, &format!("rank {rank} ({text})")),
            None => self.text(Class::Note, &format!("{text} (no rank)")),
        };
        self.by_process.insert(place.process, label);
        label
    }

    fn add(&mut self, label: Label) -> u32 {
        let next = self.all.len() as u32;
        let id = *self.by_text.entry((label.class, label.text.clone())).or_insert(next);
        if id == next {
            self.all.push(label);
        }
        id
    }
}

/// A stream by its device and number; by its process and context too where there are several, as both number anew.
fn stream_text(definitions: &Definitions, stream: u32) -> String {
    let Some(stream) = definitions.get::<Stream>(stream) else { return "[no stream]".to_owned() };
    let Some(context) = definitions.get::<Context>(stream.context) else {
        return format!("stream {} (no device)", stream.native);
    };
    let device = definitions.get::<Device>(context.device).map_or("?".to_owned(), |device| device.index.to_string());
    let mut place = format!("device {device}");
    let beside = |other: &Context| (other.process, other.device) == (context.process, context.device);
    if definitions.contexts.rows().filter(beside).count() > 1 {
        place += &format!(", context {:#x}", context.native);
    }
    if definitions.contexts.rows().any(|other| other.process != context.process) {
        place += &format!(", {}", process_text(definitions, context.process));
    }
    format!("stream {} ({place})", stream.native)
}

fn process_text(definitions: &Definitions, process: u32) -> String {
    match definitions.get::<Process>(process) {
        Some(row) => format!("pid {}", row.pid),
        None => "[no process]".to_owned(),
    }
}

/// Text as [`Label::text`] promises. A semicolon becomes the full-width one, which looks the same and separates
/// nothing; the space of a leading `# `, which makes a line of folded text a comment, one that does not break.
fn clean(text: &str) -> String {
    let fit = |c: char| match c {
        ';' => '；',
        '\u{fffe}' | '\u{ffff}' => char::REPLACEMENT_CHARACTER,
        c if c.is_control() || c == '\u{2028}' || c == '\u{2029}' => ' ',
        c => c,
    };
    let clean: String = text.trim().chars().map(fit).collect();
    match (clean.trim(), clean.trim().strip_prefix("# ")) {
        ("", _) => "[no name]".to_owned(),
        (_, Some(rest)) => format!("#{NO_BREAK_SPACE}{rest}"),
        (trimmed, None) => trimmed.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::clean;

    #[test]
    fn text_is_fit_for_every_format() {
        assert_eq!(clean("a;b\nc\u{1}"), "a；b c");
        assert_eq!(clean(" \n"), "[no name]");
        assert_eq!(clean("\u{0} x \u{ffff}"), "x \u{fffd}");
        assert_eq!(clean("# no comment"), "#\u{a0}no comment");
        assert_eq!(clean("normal<int, 4>"), "normal<int, 4>");
    }
}
