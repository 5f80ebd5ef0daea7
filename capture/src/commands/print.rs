//! How commands print: JSON for programs, tables for people.

use std::io::{self, Write};

use comfy_table::{Cell, Color, Table, presets};
use serde::Serialize;

/// Prints an answer as JSON.
pub(super) fn write_json(mut out: impl Write, answer: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut out, answer)?;
    writeln!(out)
}

/// A table without lines; its colours are for a terminal only.
pub(super) fn text_table<H: Into<comfy_table::Row>>(head: H) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(head);
    // https://no-color.org: set and not empty.
    if std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty()) {
        table.force_no_tty();
    }
    table
}

/// A word that says how good something is.
pub(super) fn verdict(word: &str, good: bool) -> Cell {
    Cell::new(word).fg(if good { Color::Green } else { Color::Yellow })
}

/// A stranger's text without what would steer a terminal.
pub(super) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}
