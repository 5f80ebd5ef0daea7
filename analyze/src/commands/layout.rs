//! `analyze info --layout`: where a tape's bytes go, as tables.

use std::collections::BTreeMap;
use std::io::{self, Write};

use crate::human::{HumanBytes, HumanCount, counted, share, text_table};
use crate::layout::{ColumnLayout, Layout, TableLayout};

/// Prints a layout of a tape of so many bytes.
pub(super) fn print(out: &mut impl Write, layout: &Layout, file_bytes: u64) -> io::Result<()> {
    let (rows, bytes) = (layout.blocks.rows, layout.blocks.bytes);
    writeln!(
        out,
        "{}; rows: min {}, median {}, max {}; size: min {}, median {}, max {}",
        counted(layout.blocks.number as usize, "block"),
        HumanCount(rows.min),
        HumanCount(rows.median),
        HumanCount(rows.max),
        HumanBytes(bytes.min),
        HumanBytes(bytes.median),
        HumanBytes(bytes.max),
    )?;
    let strings = &layout.strings;
    writeln!(
        out,
        "{} of {}, packed into {}",
        counted(strings.number as usize, "string"),
        HumanBytes(strings.text_bytes),
        HumanBytes(strings.bytes),
    )?;
    writeln!(out, "{}", tables(layout, file_bytes).trim_fmt())?;
    writeln!(out, "{}", columns(layout, file_bytes).trim_fmt())
}

fn tables(layout: &Layout, file_bytes: u64) -> comfy_table::Table {
    let mut text = text_table(["table", "rows", "bytes", "bytes/row", "share"], &[0]);
    let mut add = |name: &str, rows: Option<u64>, bytes: u64| {
        let bytes_per_row = rows.map_or(String::new(), |rows| per_row(bytes, rows));
        let rows = rows.map_or(String::new(), |rows| HumanCount(rows).to_string());
        text.add_row([name.to_owned(), rows, HumanCount(bytes).to_string(), bytes_per_row, share(bytes, file_bytes)]);
    };
    for table in layout.events.iter().chain(&layout.definitions) {
        add(&table.table, Some(table.rows), table.bytes);
    }
    for (name, bytes) in layout.fixed.parts().into_iter().filter(|(_, bytes)| *bytes > 0) {
        add(name, None, bytes);
    }
    add("all", None, file_bytes);
    text
}

/// The columns that take at least a thousandth of the file. The others are one line: a tape has hundreds of columns, and
/// most say one value in a few bytes.
fn columns(layout: &Layout, file_bytes: u64) -> comfy_table::Table {
    let mut text = text_table(["column", "coding", "bytes", "bits/row", "share"], &[0, 1]);
    let (mut others, mut other_bytes) = (0, 0);
    for TableLayout { table, rest_bytes, columns, .. } in layout.events.iter().chain(&layout.definitions) {
        other_bytes += rest_bytes;
        for ColumnLayout { column, codings, rows, bytes } in columns {
            if *bytes < file_bytes.div_ceil(1000) {
                (others, other_bytes) = (others + 1, other_bytes + bytes);
                continue;
            }
            text.add_row([
                format!("{table}.{column}"),
                coding(codings),
                HumanCount(*bytes).to_string(),
                per_row(8 * bytes, *rows),
                share(*bytes, file_bytes),
            ]);
        }
    }
    let (name, bytes) = (counted(others, "smaller column"), HumanCount(other_bytes).to_string());
    text.add_row([name, String::new(), bytes, String::new(), share(other_bytes, file_bytes)]);
    text
}

/// The codings of a column, the most frequent first; in how many blocks where there are several.
fn coding(codings: &BTreeMap<String, u64>) -> String {
    let mut codings: Vec<(&String, &u64)> = codings.iter().collect();
    codings.sort_by_key(|(_, blocks)| std::cmp::Reverse(**blocks));
    match codings[..] {
        [(coding, _)] => coding.clone(),
        _ => codings.iter().map(|(coding, blocks)| format!("{coding} {blocks}")).collect::<Vec<_>>().join(", "),
    }
}

fn per_row(quantity: u64, rows: u64) -> String {
    if rows == 0 { "-".to_owned() } else { format!("{:.2}", quantity as f64 / rows as f64) }
}
