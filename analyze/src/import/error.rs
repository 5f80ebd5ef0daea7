//! Why a trace cannot be imported: which file, where in it, what was expected, and what to do.

use std::io;
use std::path::PathBuf;

/// Why a trace cannot be imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The file cannot be read.
    #[error("{}: cannot read it", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The compressed stream is damaged or ends early.
    #[error("{}: gzip is damaged or cut off after {unpacked_bytes} unpacked bytes; fetch or record the trace again, or keep the {good_events} events before it with `analyze import --lenient`", path.display())]
    Gzip {
        /// The file.
        path: PathBuf,
        /// How much could be unpacked.
        unpacked_bytes: u64,
        /// How many events were read before.
        good_events: u64,
        /// Why no more.
        #[source]
        source: io::Error,
    },
    /// The file is something else than a trace that can be read.
    #[error("{}: {found}", path.display())]
    NotATrace {
        /// The file.
        path: PathBuf,
        /// What it is instead, and what to do.
        found: String,
    },
    /// The file is a trace, but its times are beyond what the tape's clock can count.
    #[error("{}: {problem}", path.display())]
    Times {
        /// The file.
        path: PathBuf,
        /// Which times, and what may be wrong.
        problem: String,
    },
    /// The text is broken, or a value in it is not what belongs there.
    #[error("{}: byte {offset} (line {line}, column {column}){}: {problem}; good events before: {good_events}; `analyze import --lenient` keeps what is sound", path.display(), if *unpacked { " of the unpacked file" } else { "" })]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Where, counted from 0 in the unpacked file.
        offset: u64,
        /// The line, counted from 1.
        line: u64,
        /// The byte in that line, counted from 1.
        column: u64,
        /// Whether the file was compressed, so that the offset is not one in the file as it lies on the disk.
        unpacked: bool,
        /// How many events were read before.
        good_events: u64,
        /// What is wrong and what was expected.
        problem: String,
    },
    /// SQLite cannot read a database, or a table of it.
    #[error("{}: {}; export the report again", path.display(), if table.is_empty() { "the database is damaged".to_owned() } else { format!("table {table} is damaged") })]
    Database {
        /// The file.
        path: PathBuf,
        /// The table; empty for the database as a whole.
        table: String,
        /// Why.
        #[source]
        source: rusqlite::Error,
    },
    /// A row of a database has a value that its column cannot have.
    #[error("{}: {place}: {problem}; `analyze import --lenient` leaves such rows out", path.display())]
    Row {
        /// The file.
        path: PathBuf,
        /// The table, row and column.
        place: String,
        /// What is wrong and what was expected.
        problem: String,
    },
    /// The system gives no thread to read with.
    #[error("{}: cannot start a thread to read it; end other programs, or raise the limit (`ulimit -u`)", path.display())]
    Thread {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The events cannot be written.
    #[error("cannot write the events of {}", path.display())]
    Sink {
        /// The file they come from.
        path: PathBuf,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}
