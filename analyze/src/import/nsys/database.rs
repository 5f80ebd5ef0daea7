//! The export as a database: which tables and columns it has, and their rows.
//!
//! Tables are created only where there was something to put in, and columns came, went and were renamed, so both are
//! looked up once and nothing is taken for granted. The file is a stranger's: only plain tables are read, in the order
//! of their rows and without an index, so that no view, trigger or function of its schema ever runs; a table cannot
//! have more rows than fit into the file, nor its reading more steps, which is what a damaged one that leads in circles
//! would pretend.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use rusqlite::config::DbConfig;
use rusqlite::limits::Limit;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags};

use super::error::Fault;

/// Longer values are refused: the longest that exports hold are names of kernels, of some 100 KiB.
const VALUE_BYTES: i32 = 64 << 20;
/// How many steps of SQLite's machine each byte of a file may take. A row takes one or two a column, and a column takes
/// at least a byte.
const STEPS_PER_BYTE: u64 = 64;
/// Steps that any file may take, and after how many they are counted.
const LEAST_STEPS: u64 = 1 << 20;
const STEPS_AT_ONCE: u32 = 10_000;
/// A row takes at least this much of its page: a pointer to it, its length and its number.
const LEAST_ROW_BYTES: u64 = 4;

/// An opened export.
pub(super) struct Database {
    connection: Connection,
    /// Its length.
    pub(super) bytes: u64,
    /// The plain tables, by name.
    pub(super) tables: BTreeMap<String, Table>,
    /// What is called like a table but is none: views and virtual tables.
    pub(super) not_read: Vec<String>,
}

/// A table as the schema has it.
pub(super) struct Table {
    name: String,
    columns: Vec<String>,
    has_rowid: bool,
}

/// Columns that one reader knows, by their numbers in its list, and those that it knows to have no place on the tape.
/// What is in neither list becomes an argument of the event.
#[derive(Clone, Copy)]
pub(super) struct Columns<'c> {
    pub(super) known: &'c [&'c str],
    pub(super) dropped: &'c [&'c str],
}

impl Database {
    /// Opens a file such that nothing is ever written to it or beside it.
    pub(super) fn open(path: &Path) -> Result<Database, Fault> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let length = std::fs::metadata(path)?.len();
        Database::new(Connection::open_with_flags(immutable_uri(path), flags).map_err(damaged(""))?, length)
    }

    /// Opens the bytes of a file.
    pub(super) fn of_bytes(bytes: &[u8]) -> Result<Database, Fault> {
        let mut connection = Connection::open_in_memory().map_err(damaged(""))?;
        connection.deserialize_read_exact("main", bytes, bytes.len(), true).map_err(damaged(""))?;
        Database::new(connection, bytes.len() as u64)
    }

    fn new(connection: Connection, bytes: u64) -> Result<Database, Fault> {
        let mut database = Database { connection, bytes, tables: BTreeMap::new(), not_read: Vec::new() };
        database.harden().and_then(|()| database.probe()).map_err(damaged(""))?;
        Ok(database)
    }

    fn harden(&mut self) -> rusqlite::Result<()> {
        let mut left = self.bytes.saturating_mul(STEPS_PER_BYTE).saturating_add(LEAST_STEPS);
        let connection = &mut self.connection;
        connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, VALUE_BYTES)?;
        connection.set_limit(Limit::SQLITE_LIMIT_ATTACHED, 0)?;
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false)?;
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_VIEW, false)?;
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
        let is_over = move || {
            left = left.saturating_sub(u64::from(STEPS_AT_ONCE));
            left == 0
        };
        connection.progress_handler(STEPS_AT_ONCE as i32, Some(is_over))?;
        connection.execute_batch("PRAGMA cell_size_check = ON; PRAGMA mmap_size = 0; PRAGMA query_only = ON;")
    }

    fn probe(&mut self) -> rusqlite::Result<()> {
        let mut list = self.connection.prepare("SELECT name, type, wr FROM pragma_table_list WHERE schema = 'main'")?;
        let mut rows = list.query([])?;
        let mut found = Vec::new();
        while let Some(row) = rows.next()? {
            found.push((row.get::<_, String>(0)?, row.get::<_, String>(1)?, row.get::<_, bool>(2)?));
        }
        drop(rows);
        drop(list);
        for (name, kind, without_rowid) in found {
            if name.starts_with("sqlite_") {
                continue;
            }
            if kind != "table" {
                self.not_read.push(format!("{kind} {name}"));
                continue;
            }
            let mut info = self.connection.prepare("SELECT name FROM pragma_table_info(?1)")?;
            let columns = info.query_map([&name], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
            drop(info);
            self.tables.insert(name.clone(), Table { name, columns, has_rowid: !without_rowid });
        }
        self.not_read.sort();
        Ok(())
    }

    /// Runs `each` over a table's rows, in their order.
    pub(super) fn rows(
        &self,
        table: &Table,
        columns: Columns<'_>,
        condition: &str,
        mut each: impl FnMut(&Row<'_>) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let reader = Reader::new(table, columns);
        let mut sql = String::from(if table.has_rowid { "SELECT rowid" } else { "SELECT NULL" });
        for column in &table.columns {
            let _ = write!(sql, ", {}", quoted(column));
        }
        let _ = write!(sql, " FROM main.{} NOT INDEXED {condition}", quoted(&table.name));
        self.walk(table, &sql, |row| each(&Row { row, reader: &reader, rest_read: Cell::new(false) }))
    }

    /// How many rows a table has. By walking over them: SQLite's own count is not bound by the file's length.
    pub(super) fn count(&self, table: &Table) -> Result<u64, Fault> {
        let mut count = 0;
        let sql = format!("SELECT NULL FROM main.{} NOT INDEXED", quoted(&table.name));
        self.walk(table, &sql, |_| {
            count += 1;
            Ok(())
        })?;
        Ok(count)
    }

    /// All texts of a table of `id` and `value`; `None` in place of a value that is no text or longer than `most_bytes`.
    pub(super) fn texts(
        &self,
        table: &Table,
        most_bytes: u32,
        mut each: impl FnMut(i64, Option<&str>),
    ) -> Result<(), Fault> {
        let sql = format!(
            "SELECT id, CASE WHEN octet_length(value) <= {most_bytes} THEN value END FROM main.{} NOT INDEXED",
            quoted(&table.name)
        );
        self.walk(table, &sql, |row| {
            let value = |column| row.get_ref(column).map_err(damaged(&table.name));
            if let ValueRef::Integer(id) = value(0)? {
                match value(1)? {
                    ValueRef::Text(text) => each(id, Some(&String::from_utf8_lossy(text))),
                    _ => each(id, None),
                }
            }
            Ok(())
        })
    }

    fn walk(
        &self,
        table: &Table,
        sql: &str,
        mut each: impl FnMut(&rusqlite::Row<'_>) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let damaged = damaged(&table.name);
        let mut statement = self.connection.prepare(sql).map_err(&damaged)?;
        let mut rows = statement.query([]).map_err(&damaged)?;
        let mut left = self.bytes / LEAST_ROW_BYTES;
        while let Some(row) = rows.next().map_err(&damaged)? {
            if left == 0 {
                let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT);
                let problem = Some("it has more rows than the file has room for".to_owned());
                return Err(damaged(rusqlite::Error::SqliteFailure(code, problem)));
            }
            left -= 1;
            each(row)?;
        }
        Ok(())
    }
}

impl Table {
    /// Whether it has a column.
    pub(super) fn has(&self, column: &str) -> bool {
        self.columns.iter().any(|name| name == column)
    }
}

/// Where a reader's columns are in the rows of one table. Column 0 is the row's number.
struct Reader<'t> {
    table: &'t Table,
    known: Vec<(&'t str, Option<usize>)>,
    dropped: Vec<(&'t str, usize)>,
    rest: Vec<usize>,
}

impl<'t> Reader<'t> {
    fn new(table: &'t Table, columns: Columns<'t>) -> Reader<'t> {
        let find = |name: &&str| table.columns.iter().position(|column| column == name).map(|at| at + 1);
        let known: Vec<_> = columns.known.iter().map(|name| (*name, find(name))).collect();
        let dropped: Vec<_> = columns.dropped.iter().filter_map(|name| Some((*name, find(name)?))).collect();
        let taken = |at: &usize| known.iter().all(|(_, k)| *k != Some(*at)) && dropped.iter().all(|(_, d)| d != at);
        let rest = (1..=table.columns.len()).filter(taken).collect();
        Reader { table, known, dropped, rest }
    }
}

/// A row of a table, asked by the numbers of a reader's known columns.
pub(super) struct Row<'r> {
    row: &'r rusqlite::Row<'r>,
    reader: &'r Reader<'r>,
    rest_read: Cell<bool>,
}

impl<'r> Row<'r> {
    fn value(&self, at: usize) -> Result<ValueRef<'r>, Fault> {
        self.row.get_ref(at).map_err(damaged(&self.reader.table.name))
    }

    fn known(&self, column: usize) -> Result<ValueRef<'r>, Fault> {
        self.reader.known[column].1.map_or(Ok(ValueRef::Null), |at| self.value(at))
    }

    /// The fault that a column has no value that it can have.
    pub(super) fn wrong(&self, column: usize, problem: impl Into<String>) -> Fault {
        Fault::Value {
            table: self.reader.table.name.clone(),
            rowid: self.row.get(0).ok(),
            column: self.reader.known[column].0.to_owned(),
            problem: problem.into(),
        }
    }

    /// An integer; `None` for NULL, and where the table has no such column.
    pub(super) fn int(&self, column: usize) -> Result<Option<i64>, Fault> {
        match self.known(column)? {
            ValueRef::Integer(value) => Ok(Some(value)),
            ValueRef::Null => Ok(None),
            other => Err(self.wrong(column, format!("has {} where an integer must be", type_of(&other)))),
        }
    }

    /// An integer that must be there.
    pub(super) fn need(&self, column: usize) -> Result<i64, Fault> {
        self.int(column)?.ok_or_else(|| self.wrong(column, "has NULL where an integer must be"))
    }

    /// A number of 32 bits.
    pub(super) fn u32(&self, column: usize) -> Result<Option<u32>, Fault> {
        let Some(value) = self.int(column)? else { return Ok(None) };
        let value = u32::try_from(value);
        value.map(Some).map_err(|_| self.wrong(column, "has a number that is not one of 32 bits"))
    }

    /// A number of 32 bits that must be there.
    pub(super) fn need_u32(&self, column: usize) -> Result<u32, Fault> {
        self.u32(column)?.ok_or_else(|| self.wrong(column, "has NULL where an integer must be"))
    }

    /// An id; `None` for NULL, and for the −1 of 32 bits with which CUPTI says that there is none.
    pub(super) fn id(&self, column: usize) -> Result<Option<u64>, Fault> {
        Ok(self.int(column)?.map(|id| id as u64).filter(|id| *id != u64::from(u32::MAX) && *id != u64::MAX))
    }

    /// A text; `None` for NULL, and where the table has no such column.
    pub(super) fn text(&self, column: usize) -> Result<Option<String>, Fault> {
        match self.known(column)? {
            ValueRef::Text(text) => Ok(Some(String::from_utf8_lossy(text).into_owned())),
            ValueRef::Null => Ok(None),
            other => Err(self.wrong(column, format!("has {} where a text must be", type_of(&other)))),
        }
    }

    /// Any value as text: what properties are made of.
    pub(super) fn plain(&self, column: usize) -> Result<Option<String>, Fault> {
        Ok(match self.known(column)? {
            ValueRef::Integer(value) => Some(value.to_string()),
            ValueRef::Real(value) => Some(value.to_string()),
            ValueRef::Text(text) => Some(String::from_utf8_lossy(text).into_owned()),
            ValueRef::Null | ValueRef::Blob(_) => None,
        })
    }

    /// Calls `each` with the name of every column that has a value here which is not on the tape: those that the
    /// reader drops, and those that it does not know and did not ask for.
    pub(super) fn dropped(&self, mut each: impl FnMut(&'r str)) -> Result<(), Fault> {
        for (name, at) in &self.reader.dropped {
            if !matches!(self.value(*at)?, ValueRef::Null | ValueRef::Integer(0)) {
                each(name);
            }
        }
        if self.rest_read.get() {
            return Ok(());
        }
        self.rest(|name, _| {
            each(name);
            Ok(())
        })
    }

    /// Every column that the reader does not know, with its value, if that is not what stands for "nothing said".
    pub(super) fn rest(
        &self,
        mut each: impl FnMut(&'r str, serde_json::Value) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        self.rest_read.set(true);
        for at in &self.reader.rest {
            let name: &str = &self.reader.table.columns[at - 1];
            let value = match self.value(*at)? {
                ValueRef::Integer(value) if !says_nothing(name, value) => value.into(),
                ValueRef::Real(value) => value.into(),
                ValueRef::Text(text) if !text.is_empty() => String::from_utf8_lossy(text).into(),
                ValueRef::Blob(blob) => hex(blob).into(),
                _ => continue,
            };
            each(name, value)?;
        }
        Ok(())
    }
}

/// Whether a number is what a column has where there is nothing to say. Not so for what an NVTX range carries, whose
/// columns are called `int64Value` and the like.
fn says_nothing(column: &str, value: i64) -> bool {
    match column {
        "launchType" | "copyCount" => value == 1 || value == 0,
        _ => value == 0 && !column.ends_with("Value"),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn type_of(value: &ValueRef<'_>) -> &'static str {
    match value {
        ValueRef::Null => "NULL",
        ValueRef::Integer(_) => "an integer",
        ValueRef::Real(_) => "a real number",
        ValueRef::Text(_) => "a text",
        ValueRef::Blob(_) => "a blob",
    }
}

fn damaged(table: &str) -> impl Fn(rusqlite::Error) -> Fault {
    move |source| Fault::Database { table: table.to_owned(), source }
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A path as the address that has SQLite write nothing: it takes no locks and looks for no journal.
fn immutable_uri(path: &Path) -> String {
    let mut uri = String::from("file:");
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    if !path.to_string_lossy().starts_with('/') {
        uri.push('/');
    }
    for byte in path.as_os_str().as_encoded_bytes() {
        match byte {
            b'/' | b'.' | b'-' | b'_' | b':' => uri.push(char::from(*byte)),
            b'\\' if cfg!(windows) => uri.push('/'),
            byte if byte.is_ascii_alphanumeric() => uri.push(char::from(*byte)),
            byte => {
                let _ = write!(uri, "%{byte:02X}");
            }
        }
    }
    uri.push_str("?immutable=1");
    uri
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_no_part_of_the_address() {
        assert_eq!(
            immutable_uri(Path::new("/a b/c?mode=rwc#%41.sqlite")),
            "file:/a%20b/c%3Fmode%3Drwc%23%2541.sqlite?immutable=1"
        );
    }

    #[test]
    fn what_says_nothing() {
        assert!(says_nothing("greenContextId", 0) && says_nothing("launchType", 1) && !says_nothing("launchType", 2));
        assert!(!says_nothing("int64Value", 0), "a payload of 0 was given");
    }
}
