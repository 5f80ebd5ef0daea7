//! What is written on a frame.
//!
//! Frames with the same text and class are one frame. Text is made fit for all formats here, once: the folded format
//! separates frames by `;` and ends a stack with a space and a number, XML has no control characters.

use ktape_format::Definitions;
use ktape_format::definition::{Context, Device, Process, Stack, Stream, frame_kind, property};
use ktape_format::table::DefinitionKind;
use rustc_hash::FxHashMap;

use crate::timeline::names::{FrameName, kernel_labels};
use crate::timeline::weights::{Leaf, LeafKind, Place};

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
    /// The text, never empty, without `;`, control characters and outer white space.
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
            })
            .collect()
    }

    /// The label of the stream that work ran on.
    pub(super) fn stream(&mut self, definitions: &Definitions, place: &Place) -> u32 {
        let Some(stream) = definitions.get::<Stream>(place.stream) else {
            return self.text(Class::Note, "[no stream]");
        };
        let context = definitions.get::<Context>(stream.context).unwrap_or_default();
        let device =
            definitions.get::<Device>(context.device).map_or("?".to_owned(), |device| device.index.to_string());
        // A stream's number means something within its process and context only.
        let mut text = format!("device {device} stream {}", stream.native);
        if definitions.contexts.process.iter().any(|&process| process != context.process) {
            text = format!("{text}, {}", process_text(definitions, context.process));
        }
        let device_of_row = definitions.contexts.device.iter().zip(&definitions.contexts.process);
        if device_of_row.filter(|row| *row == (&context.device, &context.process)).count() > 1 {
            text = format!("{text}, context {:#x}", context.native);
        }
        self.text(Class::Note, &text)
    }

    /// The label of the process that work belongs to.
    pub(super) fn process(&mut self, definitions: &Definitions, place: &Place) -> u32 {
        let text = process_text(definitions, place.process);
        let rank = definitions.property(DefinitionKind::Process as u16, place.process, property::RANK);
        match rank {
            Some(rank) => self.text(Class::Note, &format!("rank {rank}, {text}")),
            None => self.text(Class::Note, &text),
        }
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

fn process_text(definitions: &Definitions, process: u32) -> String {
    match definitions.get::<Process>(process) {
        Some(row) => format!("pid {}", row.pid),
        None => "[no process]".to_owned(),
    }
}

/// Text as [`Label::text`] promises. A semicolon becomes the full-width one, which looks the same and separates
/// nothing.
fn clean(text: &str) -> String {
    let fit = |c: char| match c {
        ';' => '；',
        '\u{fffe}' | '\u{ffff}' => char::REPLACEMENT_CHARACTER,
        c if c.is_control() || c == '\u{2028}' || c == '\u{2029}' => ' ',
        c => c,
    };
    let clean: String = text.trim().chars().map(fit).collect();
    match clean.trim() {
        "" => "[no name]".to_owned(),
        trimmed => trimmed.to_owned(),
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
        assert_eq!(clean("normal<int, 4>"), "normal<int, 4>");
    }
}
