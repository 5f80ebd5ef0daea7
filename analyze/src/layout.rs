//! Where the bytes of a tape go: each lies in one column of one table, or is named here as what holds the columns
//! together, so that all add up to the file's length.

use std::collections::BTreeMap;

use ktape_format::Tape;
use ktape_format::block::{BlockInfo, BlockKind};
use ktape_format::header::HEADER_BYTES;
use ktape_format::layout::{Coding, SectionLayout};
use ktape_format::table::DefinitionKind;
use serde::Serialize;

use crate::tables::KnownTables;

/// What takes how many bytes.
#[derive(Debug, Serialize)]
pub struct Layout {
    /// The events' tables, the largest first.
    pub events: Vec<TableLayout>,
    /// The definitions' tables, strings among them, the largest first.
    pub definitions: Vec<TableLayout>,
    /// The strings, which are a table of one long text.
    pub strings: Strings,
    /// The blocks with rows.
    pub blocks: Blocks,
    /// What is no row.
    pub fixed: Fixed,
}

/// What a table takes in all blocks together.
#[derive(Debug, Serialize)]
pub struct TableLayout {
    /// Its name.
    pub table: String,
    /// How many rows.
    pub rows: u64,
    /// All of its sections.
    pub bytes: u64,
    /// What belongs to none of its columns.
    pub rest_bytes: u64,
    /// Its columns, the largest first.
    pub columns: Vec<ColumnLayout>,
}

/// What a column takes in all blocks together.
#[derive(Debug, Serialize)]
pub struct ColumnLayout {
    /// Its name.
    pub column: String,
    /// How it is written, to the number of blocks where it is so.
    pub codings: BTreeMap<String, u64>,
    /// How many rows it has: those of the blocks that have the column.
    pub rows: u64,
    /// Its values, and what says how they are written.
    pub bytes: u64,
}

/// The strings.
#[derive(Debug, Serialize)]
pub struct Strings {
    /// How many.
    pub number: u64,
    /// All their text, as a reader gets it; also that of the tape's open tail.
    pub text_bytes: u64,
    /// What text and lengths take in the blocks.
    pub bytes: u64,
}

/// The blocks with rows.
#[derive(Debug, Serialize)]
pub struct Blocks {
    /// How many.
    pub number: u64,
    /// Their rows.
    pub rows: Range,
    /// Their lengths.
    pub bytes: Range,
}

/// The least, middle and greatest of some numbers; 0 of none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Range {
    /// The least.
    pub min: u64,
    /// The lower one of the two in the middle, where there are two.
    pub median: u64,
    /// The greatest.
    pub max: u64,
}

/// The bytes that are no row's.
#[derive(Debug, Default, Serialize)]
pub struct Fixed {
    /// The file's header.
    pub file_header_bytes: u64,
    /// The staging area.
    pub staging_bytes: u64,
    /// The headers of the blocks.
    pub block_header_bytes: u64,
    /// The directories of the blocks.
    pub directory_bytes: u64,
    /// What is behind the sections, up to the next block.
    pub padding_bytes: u64,
    /// The block that says that the tape is complete.
    pub end_mark_bytes: u64,
    /// What cannot be read.
    pub damaged_bytes: u64,
}

impl Fixed {
    /// The parts, named.
    pub fn parts(&self) -> [(&'static str, u64); 7] {
        [
            ("file header", self.file_header_bytes),
            ("staging area", self.staging_bytes),
            ("block headers", self.block_header_bytes),
            ("directories", self.directory_bytes),
            ("padding", self.padding_bytes),
            ("end mark", self.end_mark_bytes),
            ("damaged", self.damaged_bytes),
        ]
    }
}

impl Layout {
    /// Measures a tape, which has these strings.
    pub fn new(tape: &Tape, strings: &[Box<str>]) -> Layout {
        let blocks_offset = tape.header().blocks_offset().min(tape.file_bytes());
        let file_header_bytes = HEADER_BYTES as u64;
        let staging_bytes = blocks_offset - file_header_bytes;
        let mut fixed = Fixed { file_header_bytes, staging_bytes, ..Fixed::default() };
        let mut tables = BTreeMap::<u16, Sums>::new();
        let mut end = blocks_offset;
        for block in tape.blocks() {
            // What is between two blocks is what the reader could not read.
            fixed.damaged_bytes += block.offset - end;
            end = (block.offset + block.bytes).min(tape.file_bytes());
            match tape.layout(block) {
                _ if block.kind == BlockKind::End => fixed.end_mark_bytes += end - block.offset,
                Err(_) => fixed.damaged_bytes += end - block.offset,
                Ok(layout) => {
                    fixed.block_header_bytes += layout.header_bytes;
                    fixed.directory_bytes += layout.directory_bytes;
                    fixed.padding_bytes += layout.padding_bytes;
                    layout.sections.iter().for_each(|section| tables.entry(section.table).or_default().add(section));
                }
            }
        }
        fixed.damaged_bytes += tape.file_bytes() - end;
        let strings = Strings {
            number: strings.len() as u64,
            text_bytes: strings.iter().map(|string| string.len() as u64).sum(),
            bytes: tables.get(&(DefinitionKind::String as u16)).map_or(0, |sums| sums.bytes),
        };
        let known = KnownTables::new();
        let mut tables: Vec<(u16, TableLayout)> =
            tables.into_iter().map(|(table, sums)| (table, sums.finish(table, &known))).collect();
        tables.sort_by_key(|(table, layout)| (std::cmp::Reverse(layout.bytes), *table));
        let (events, definitions): (Vec<_>, Vec<_>) =
            tables.into_iter().partition(|(table, _)| *table < DefinitionKind::String as u16);
        let plain = |tables: Vec<(u16, TableLayout)>| tables.into_iter().map(|(_, layout)| layout).collect();
        let blocks = Blocks::new(tape.blocks());
        Layout { events: plain(events), definitions: plain(definitions), strings, blocks, fixed }
    }
}

impl Blocks {
    fn new(blocks: &[BlockInfo]) -> Blocks {
        let data = || blocks.iter().filter(|block| block.kind == BlockKind::Data);
        Blocks {
            number: data().count() as u64,
            rows: Range::new(data().map(|block| block.rows).collect()),
            bytes: Range::new(data().map(|block| block.bytes).collect()),
        }
    }
}

impl Range {
    fn new(mut numbers: Vec<u64>) -> Range {
        numbers.sort_unstable();
        let median = numbers.len().saturating_sub(1) / 2;
        match (numbers.first(), numbers.get(median), numbers.last()) {
            (Some(&min), Some(&median), Some(&max)) => Range { min, median, max },
            _ => Range::default(),
        }
    }
}

/// What a table's sections add up to so far.
#[derive(Default)]
struct Sums {
    rows: u64,
    bytes: u64,
    rest_bytes: u64,
    columns: BTreeMap<u64, ColumnSums>,
}

#[derive(Default)]
struct ColumnSums {
    codings: BTreeMap<Coding, u64>,
    rows: u64,
    bytes: u64,
}

impl Sums {
    fn add(&mut self, section: &SectionLayout) {
        self.rows += section.rows;
        self.bytes += section.bytes;
        self.rest_bytes += section.rest_bytes();
        for column in &section.columns {
            let sums = self.columns.entry(column.column).or_default();
            *sums.codings.entry(column.coding).or_default() += 1;
            sums.rows += section.rows;
            sums.bytes += column.bytes();
        }
    }

    fn finish(self, table: u16, known: &KnownTables) -> TableLayout {
        let column = |(number, sums): (u64, ColumnSums)| ColumnLayout {
            column: known.column_name(table, number),
            codings: sums.codings.into_iter().map(|(coding, blocks)| (coding.to_string(), blocks)).collect(),
            rows: sums.rows,
            bytes: sums.bytes,
        };
        let mut columns: Vec<ColumnLayout> = self.columns.into_iter().map(column).collect();
        columns.sort_by_key(|column| std::cmp::Reverse(column.bytes));
        TableLayout {
            table: known.name(table),
            rows: self.rows,
            bytes: self.bytes,
            rest_bytes: self.rest_bytes,
            columns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_one_of_the_numbers() {
        for (numbers, median) in [(vec![], 0), (vec![7], 7), (vec![9, 1], 1), (vec![5, 1, 9], 5)] {
            assert_eq!(Range::new(numbers).median, median);
        }
    }
}
