//! What goes wrong inside of the importer, which knows tables and rows but not whose file they are in.

use std::path::Path;

use crate::import::ImportError;

/// Why an import stops.
#[derive(Debug)]
pub(super) enum Fault {
    /// SQLite cannot read this table, or with an empty name the file.
    Database {
        /// Which.
        table: String,
        /// Why.
        source: rusqlite::Error,
    },
    /// A row has a value that its column cannot have. The only fault that can be skipped.
    Value {
        /// The row's table.
        table: String,
        /// Its number in the table, where the table has such.
        rowid: Option<i64>,
        /// The column.
        column: String,
        /// What is there, and what should be.
        problem: String,
    },
    /// The database as a whole is something else.
    NotATrace(String),
    /// It has times that the tape's clock cannot count.
    Times(String),
    /// From the sink.
    Sink(Box<dyn std::error::Error + Send + Sync>),
}

// As `Fault` is no `std::error::Error`, `?` turns the sink's errors into it. Those of SQLite stay within `database`,
// which says with them what was read.
impl<E: std::error::Error + Send + Sync + 'static> From<E> for Fault {
    fn from(error: E) -> Fault {
        Fault::Sink(Box::new(error))
    }
}

impl Fault {
    /// The error that the user sees.
    pub(super) fn in_file(self, path: &Path) -> ImportError {
        let path = path.to_owned();
        match self {
            Fault::Database { table, source } => ImportError::Database { path, table, source },
            Fault::Value { table, rowid, column, problem } => {
                let row = rowid.map_or(String::new(), |rowid| format!(", row {rowid}"));
                ImportError::Row { path, place: format!("table {table}{row}, column {column}"), problem }
            }
            Fault::NotATrace(found) => ImportError::NotATrace { path, found },
            Fault::Times(problem) => ImportError::Times { path, problem },
            Fault::Sink(source) => ImportError::Sink { path, source },
        }
    }
}
