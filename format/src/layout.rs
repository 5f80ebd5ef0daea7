//! Where a tape's bytes go: what each section and each of its columns takes.
//!
//! Reads only the lists of columns in front of the sections (see `docs/format.md`, "Sections"), so nothing is decoded,
//! and a column of a version or a coding that this one does not know is measured as well as any other. All parts of a
//! block add up to its length, to the byte.

use crate::block::{BlockInfo, HEADER_BYTES};
use crate::reader::Tape;
use crate::table::DefinitionKind;
use crate::varint::{take, take_bytes};

/// What the parts of one block take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockLayout {
    /// Its fixed header.
    pub header_bytes: u64,
    /// Its directory.
    pub directory_bytes: u64,
    /// Its sections, in order.
    pub sections: Vec<SectionLayout>,
    /// What is behind its last section, up to the next block. The last block of a file may lack it.
    pub padding_bytes: u64,
}

/// What the parts of one section take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SectionLayout {
    /// The number of its table.
    pub table: u16,
    /// How many rows it has.
    pub rows: u64,
    /// The length of all of it.
    pub bytes: u64,
    /// Its columns, in order; none if their list contradicts itself.
    pub columns: Vec<ColumnLayout>,
}

/// What one column of a section takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnLayout {
    /// Its number.
    pub column: u64,
    /// How its values are written.
    pub coding: Coding,
    /// Its entry in the section's list, but for the parameters: its number and two lengths.
    pub entry_bytes: u64,
    /// Its parameters.
    pub parameter_bytes: u64,
    /// Its values.
    pub body_bytes: u64,
}

/// How a column's values are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Coding {
    /// By the rule of this number.
    Values(u8),
    /// As one text, packed in the way of this number.
    Text(u8),
    /// It has no parameters, and so no values that could be read.
    Absent,
}

impl SectionLayout {
    /// What belongs to no column: the number of columns, and what is behind the last.
    pub fn rest_bytes(&self) -> u64 {
        self.bytes - self.columns.iter().map(ColumnLayout::bytes).sum::<u64>()
    }
}

impl ColumnLayout {
    /// All that it takes.
    pub fn bytes(&self) -> u64 {
        self.entry_bytes + self.parameter_bytes + self.body_bytes
    }
}

impl std::fmt::Display for Coding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Coding::Values(0) => f.write_str("constant"),
            Coding::Values(1) => f.write_str("least"),
            Coding::Values(2) => f.write_str("zigzag previous"),
            Coding::Values(3) => f.write_str("zigzag stream end"),
            Coding::Values(4) => f.write_str("previous"),
            Coding::Values(5) => f.write_str("stream end"),
            Coding::Values(6) => f.write_str("key mean"),
            Coding::Values(coding) => write!(f, "coding {coding}"),
            Coding::Text(0) => f.write_str("text, raw"),
            Coding::Text(1) => f.write_str("text, zstd"),
            Coding::Text(packing) => write!(f, "text, packing {packing}"),
            Coding::Absent => f.write_str("absent"),
        }
    }
}

impl Tape {
    /// Measures the parts of a block; an error, with what is wrong, if its contents cannot be trusted.
    pub fn layout(&self, block: &BlockInfo) -> Result<BlockLayout, &'static str> {
        let payload = self.payload(block)?;
        let begins = block.payload().start;
        let mut sections = Vec::with_capacity(block.sections.len());
        for section in &block.sections {
            let from = (section.range.start - begins) as usize;
            let bytes = section.range.end - section.range.start;
            let columns = columns(section.table, &payload[from..from + bytes as usize]).unwrap_or_default();
            sections.push(SectionLayout { table: section.table, rows: section.rows, bytes, columns });
        }
        let contents_end = block.sections.last().map_or(begins, |section| section.range.end);
        let header_bytes = HEADER_BYTES as u64;
        Ok(BlockLayout {
            header_bytes,
            directory_bytes: begins - block.offset - header_bytes,
            sections,
            padding_bytes: (block.offset + block.bytes).min(self.file_bytes()) - contents_end,
        })
    }
}

/// The list in front of a section, measured; `None` if it promises more than is there.
fn columns(table: u16, section: &[u8]) -> Option<Vec<ColumnLayout>> {
    let mut rest = section;
    let count = take(&mut rest)?;
    let mut columns = Vec::new();
    for _ in 0..count {
        let before = rest.len();
        let column = take(&mut rest)?;
        let parameter_bytes = take(&mut rest)?;
        let body_bytes = take(&mut rest)?;
        let entry_bytes = (before - rest.len()) as u64;
        let parameters = take_bytes(&mut rest, parameter_bytes)?;
        let is_text = table == DefinitionKind::String as u16 && column == 1;
        let coding = match parameters.first() {
            None => Coding::Absent,
            Some(tag) if is_text => Coding::Text(tag & 3),
            Some(coding) => Coding::Values(*coding),
        };
        columns.push(ColumnLayout { column, coding, entry_bytes, parameter_bytes, body_bytes });
    }
    let bodies = columns.iter().try_fold(0_u64, |sum, column| sum.checked_add(column.body_bytes))?;
    (bodies <= rest.len() as u64).then_some(columns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_columns_is_measured_to_the_byte() {
        // Two columns: number 0, constant 7; number 300, coding 9 with a body of two bytes; then a byte of padding.
        let section = [2, 0, 2, 0, 0, 7, 0xac, 0x02, 1, 2, 9, 1, 2, 0];
        let columns = columns(1, &section).unwrap();
        assert_eq!(
            columns.iter().map(|c| (c.column, c.coding.to_string(), c.bytes())).collect::<Vec<_>>(),
            [(0, "constant".to_owned(), 5), (300, "coding 9".to_owned(), 7)]
        );
        let section = SectionLayout { table: 1, rows: 3, bytes: section.len() as u64, columns };
        assert_eq!(section.rest_bytes(), 2);
    }

    #[test]
    fn a_list_that_promises_more_than_is_there_is_refused() {
        for section in [&[][..], &[1], &[1, 0, 9, 0, 0], &[1, 0, 1, 2, 0, 5], &[0xff; 12], &[1, 0, 0xff, 0xff, 1, 0]] {
            assert_eq!(columns(1, section), None, "{section:?}");
        }
        assert_eq!(columns(256, &[1, 1, 0, 0]).unwrap()[0].coding, Coding::Absent);
    }
}
