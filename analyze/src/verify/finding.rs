//! What a check finds: one value for all rows of a column in a block that are wrong in the same way, so that a tape of
//! a stranger cannot fill the memory with complaints.

use std::fmt;

use serde::Serialize;

/// What sort of thing was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Bytes that cannot be read, and blocks that are missing.
    Unreadable,
    /// A directory or block header that says something else than the rows.
    Directory,
    /// An end mark that is not the end.
    EndMark,
    /// A table or column that no tape of this version has.
    NoSuchTable,
    /// An id that nothing defines.
    UndefinedId,
    /// A definition that refers to itself or to a later one of its own table: a stack before its caller.
    Order,
    /// An event that ends after the last time that can be written.
    Time,
    /// Rows that the recorder's account of them has, or has not, and the tape has not, or has.
    Missing,
    /// An id whose definition was lost in a damaged part.
    LostDefinition,
    /// A code that this version has no name for.
    UnknownCode,
    /// Text with the sign for bytes that are no UTF-8.
    ReplacedText,
    /// A table or column of a newer version.
    Newer,
}

impl Kind {
    /// Whether it is damage. What is not may be as its writer meant it, or follows from damage that was found elsewhere.
    pub fn is_damage(self) -> bool {
        self < Kind::LostDefinition
    }

    /// What a list of such findings is headed with.
    pub fn heading(self) -> &'static str {
        match self {
            Kind::Unreadable => "cannot be read",
            Kind::Directory => "described wrongly in front of a block",
            Kind::EndMark => "an end mark that is not the end",
            Kind::NoSuchTable => "unknown to the version that the tape says it has",
            Kind::UndefinedId => "ids that nothing defines",
            Kind::Order => "definitions that come before what they are made of",
            Kind::Time => "events without an end",
            Kind::Missing => "does not add up: seen, written and lost",
            Kind::LostDefinition => "remark: what these refer to was lost",
            Kind::UnknownCode => "remark: codes without a name",
            Kind::ReplacedText => "remark: text that is not as it was",
            Kind::Newer => "remark: written by a newer version, not checked",
        }
    }
}

/// Something found, and where.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Place {
    /// The byte of the file; none for staged rows.
    pub offset: Option<u64>,
    /// The sequence number of the block.
    pub block: Option<u64>,
    /// The table.
    pub table: Option<String>,
    /// The column.
    pub column: Option<String>,
    /// The first row concerned, counted from 0 within the block's table.
    pub row: Option<u64>,
    /// How many rows are concerned, if that can be told.
    pub rows: Option<u64>,
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The sort.
    pub kind: Kind,
    /// Where.
    #[serde(flatten)]
    pub place: Place,
    /// What, in words.
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place { offset, block, table, column, row, rows } = &self.place;
        match (offset, block) {
            (Some(offset), Some(block)) => write!(f, "byte {offset}, block {block}")?,
            (Some(offset), None) => write!(f, "byte {offset}")?,
            // Of the tape as a whole.
            (None, _) if self.kind == Kind::Missing => return write!(f, "{}", self.what),
            (None, _) => write!(f, "staged")?,
        }
        if let Some(table) = table {
            write!(f, ", {table}")?;
        }
        if let Some(column) = column {
            write!(f, ".{column}")?;
        }
        match (row, rows) {
            (Some(row), Some(2..)) => write!(f, ", row {row} and {} more", rows.unwrap_or(1) - 1)?,
            (Some(row), _) => write!(f, ", row {row}")?,
            (None, _) => {}
        }
        write!(f, ": {}", self.what)
    }
}

/// The rows of one table that one rule finds fault with.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    pub(super) rows: u64,
    pub(super) first_row: u64,
    /// The value in the first of them.
    pub(super) value: u64,
}

impl Tally {
    pub(super) fn add(&mut self, row: usize, value: u64) {
        if self.rows == 0 {
            (self.first_row, self.value) = (row as u64, value);
        }
        self.rows += 1;
    }
}
