//! Nsight Systems reports, as `nsys export --type sqlite` writes them, in the schemas of 2022 to 2026.
//!
//! `docs/import.md` says what becomes of each table. The way through this module: `database` (which tables and columns
//! there are, and their rows), `strings` and `places` (what rows name by number), then one file for each sort of event:
//! `device`, `details` (of host calls), `calls`, `nvtx`, `samples`, `memory`, `overhead`, and `about` for the report
//! as a whole. Rows become the tape's own rows as they are read; what is kept until it can be written in order of time
//! is those rows, of some 50 bytes, and what joins them.

mod about;
mod calls;
mod chains;
mod columns;
mod database;
mod details;
mod device;
mod error;
mod memory;
mod nvtx;
mod overhead;
mod places;
mod samples;
mod strings;

use std::collections::BTreeSet;
use std::path::Path;

use ktape_format::event::{ClockPair, Event};
use ktape_format::{Row as _, Sink};

use database::{Columns, Database, Row};
use error::Fault;
use places::Places;
use strings::Strings;

pub(in crate::import) use columns::reason;

use crate::import::calls::Keep;
use crate::import::{ImportError, Options, Progress, Summary, name_of};

/// What every SQLite database begins with.
const SQLITE: &[u8] = b"SQLite format 3\0";
/// What a report begins with that was not exported: the tool's name when it was for Tegra only.
const REPORT: &[u8] = b"NVIDIA Tegra Profiler Report";

/// Whether a file is one for this importer, if only to be refused with what to do about it.
pub(super) fn is_ours(path: &Path, first_bytes: &[u8]) -> bool {
    first_bytes.starts_with(SQLITE) || is_report(path, first_bytes)
}

fn is_report(path: &Path, first_bytes: &[u8]) -> bool {
    // What 2022's and older `.qdrep` and raw `.qdstrm` files begin with is not known.
    let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or("");
    first_bytes.starts_with(REPORT) || ["nsys-rep", "qdrep", "qdstrm"].contains(&ending)
}

/// Imports an exported report, one of several traces on the tape or the only one.
pub(super) fn import<S: Sink>(
    path: &Path,
    first_bytes: &[u8],
    of_many: bool,
    sink: &mut S,
    options: Options,
    progress: impl FnMut(Progress),
) -> Result<Summary, ImportError> {
    let name = name_of(path);
    let database = if first_bytes.starts_with(SQLITE) {
        complete(path).and_then(|()| Database::open(path))
    } else {
        Err(Fault::NotATrace(format!(
            "is a report of Nsight Systems that only its own tool can read; export it first: \
             nsys export --type sqlite -o report.sqlite {name}"
        )))
    };
    database
        .and_then(|database| Importer::run(&database, &name, of_many, sink, options, progress))
        .map_err(|fault| fault.in_file(path))
}

/// Imports the bytes of an exported report into `sink`. `name` is what the file is called, in the tape and in errors.
pub fn import_bytes<S: Sink>(
    bytes: &[u8],
    name: &str,
    sink: &mut S,
    options: Options,
    progress: impl FnMut(Progress),
) -> Result<Summary, ImportError> {
    Database::of_bytes(bytes)
        .and_then(|database| Importer::run(&database, name, false, sink, options, progress))
        .map_err(|fault| fault.in_file(Path::new(name)))
}

/// Refuses a database with rows that are still in a journal beside it: it would be read as if they were not there.
fn complete(path: &Path) -> Result<(), Fault> {
    for journal in ["-wal", "-journal"] {
        let mut beside = path.as_os_str().to_owned();
        beside.push(journal);
        if std::fs::metadata(&beside).is_ok_and(|file| file.len() > 0) {
            return Err(Fault::NotATrace(format!(
                "is still being written, or its writer was stopped: there is a journal beside it, {}; export it again",
                beside.display()
            )));
        }
    }
    Ok(())
}

/// Reads one export into a sink.
struct Importer<'s, 'd, S, P> {
    sink: &'s mut S,
    database: &'d Database,
    options: Options,
    /// Whether the tape gets other traces too, so that what this one says of itself is said of its first process.
    of_many: bool,
    /// What times count from.
    base_ns: i64,
    progress: P,
    summary: Summary,
    strings: Strings,
    places: Places,
    /// Start, stream, duration and correlation of each device operation, until their order was looked at.
    operations: Vec<(i64, u32, u64, u64)>,
    /// The tables read so far.
    read: BTreeSet<&'static str>,
}

/// What rows are counted under that were left out, with their table.
const WRONG_ROW: &str = "row with a wrong value,";

/// A correlation id, which counts within a process.
type CallKey = (u32, u64);

impl<'s, 'd, S: Sink, P: FnMut(Progress)> Importer<'s, 'd, S, P> {
    fn run(
        database: &'d Database,
        name: &str,
        of_many: bool,
        sink: &'s mut S,
        options: Options,
        progress: P,
    ) -> Result<Summary, Fault> {
        let known = ["StringIds", "META_DATA_EXPORT", "EXPORT_META_DATA"];
        if !known.iter().any(|table| database.tables.contains_key(*table)) {
            return Err(Fault::NotATrace(
                "is an SQLite database, but not one that Nsight Systems exported (`nsys export --type sqlite`): it has \
                 no table StringIds"
                    .to_owned(),
            ));
        }
        let mut summary = Summary::default();
        let strings = Strings::read(database, &mut summary)?;
        let places = Places::new(sink.string(name)?);
        let mut importer = Importer {
            sink,
            database,
            options,
            of_many,
            base_ns: 0,
            progress,
            summary,
            strings,
            places,
            operations: Vec::new(),
            read: BTreeSet::new(),
        };
        importer.read_places()?;
        importer.clock()?;
        let mut details = importer.details()?;
        let memory = importer.memory_rows(&mut details)?;
        let (submitted, graphs) = importer.device_work()?;
        importer.host(submitted, graphs, &mut details)?;
        importer.memory(memory, &details)?;
        importer.samples()?;
        importer.overhead()?;
        importer.name_places()?;
        importer.about()?;
        importer.rest_of_tables()?;
        importer.losses()?;
        Ok(importer.summary)
    }

    /// Runs `each` over the rows of a table that the export may lack. A row with a wrong value ends the import, or is
    /// counted where that was asked for.
    fn each(
        &mut self,
        name: &'static str,
        columns: Columns<'_>,
        condition: &str,
        mut each: impl FnMut(&mut Self, &Row<'_>) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let database = self.database;
        let Some(table) = database.tables.get(name) else { return Ok(()) };
        let (mut rows, mut wrong) = (0, 0);
        let mut dropped: Vec<(String, u64)> = Vec::new();
        database.rows(table, columns, condition, |row| {
            rows += 1;
            match each(self, row) {
                Err(Fault::Value { .. }) if self.options.lenient => wrong += 1,
                Err(fault) => return Err(fault),
                Ok(()) => row.dropped(|column| match dropped.iter_mut().find(|(name, _)| *name == column) {
                    Some((_, count)) => *count += 1,
                    None => dropped.push((column.to_owned(), 1)),
                })?,
            }
            Ok(())
        })?;
        if rows > 0 {
            Summary::count(&mut self.summary.read, name, "", rows);
        }
        self.not_kept(WRONG_ROW, name, wrong);
        self.summary.broken.left_out += wrong;
        for (column, count) in dropped {
            Summary::count(&mut self.summary.not_kept_parts, "column", &column, count);
        }
        self.read.insert(name);
        let (done, all) = (self.read.len() as u64, self.database.tables.len().max(self.read.len()) as u64);
        let total_bytes = self.database.bytes;
        (self.progress)(Progress { done_bytes: total_bytes * done / all, total_bytes: Some(total_bytes) });
        Ok(())
    }

    fn kept(&mut self, what: &'static str, count: u64) {
        if count > 0 {
            *self.summary.kept.entry(what).or_default() += count;
        }
    }

    fn not_kept(&mut self, what: &str, name: &str, count: u64) {
        if count > 0 {
            Summary::count(&mut self.summary.not_kept, what, name, count);
        }
    }

    /// How many rows of a table were read and not left out.
    fn good_rows(&self, table: &str) -> u64 {
        let wrong = self.summary.not_kept.get(&format!("{WRONG_ROW} {table}")).copied().unwrap_or(0);
        self.summary.read.get(table).copied().unwrap_or(0) - wrong
    }

    /// When an event began and how long it lasted.
    fn interval(&mut self, row: &Row<'_>, start: usize, end: usize) -> Result<(i64, u64), Fault> {
        let (start_ns, end_ns) = (row.need(start)?, row.need(end)?);
        Ok((self.time(start_ns)?, self.duration(start_ns, end_ns)))
    }

    /// A time of the report as one of the tape.
    fn time(&self, ns: i64) -> Result<i64, Fault> {
        ns.checked_add(self.base_ns).ok_or_else(|| Fault::Times(format!("has a time beyond the year 2262: {ns}")))
    }

    fn duration(&mut self, start_ns: i64, end_ns: i64) -> u64 {
        if end_ns < start_ns {
            self.summary.repair("event that ends before it begins, its duration set to 0");
            return 0;
        }
        end_ns.abs_diff(start_ns)
    }

    /// The sink's id of the text with a number.
    fn string(&mut self, number: i64) -> Result<u32, Fault> {
        if let Some(id) = self.strings.ids.get(&number) {
            return Ok(*id);
        }
        let id = match self.strings.text(number) {
            Some(text) => self.sink.string(text)?,
            None => {
                self.summary.repair("number of a string that is not in the file, left empty");
                return Ok(0);
            }
        };
        self.strings.ids.insert(number, id);
        Ok(id)
    }

    /// The arguments of an event: `args`, and the columns that its reader does not know. 0 for none.
    fn args(&mut self, row: &Row<'_>, mut args: serde_json::Map<String, serde_json::Value>) -> Result<u32, Fault> {
        row.rest(|name, value| {
            args.insert(name.to_owned(), value);
            Ok(())
        })?;
        if args.is_empty() { Ok(0) } else { Ok(self.sink.string(&serde_json::Value::Object(args).to_string())?) }
    }
}

impl<S: Sink, P: FnMut(Progress)> Keep for Importer<'_, '_, S, P> {
    type Error = Fault;

    fn event<E: Event>(&mut self, row: E) -> Result<(), Fault> {
        self.sink.event(row)?;
        self.kept(E::NAME, 1);
        // The clock's row may be long before.
        if E::KIND != ClockPair::KIND {
            self.summary.see_span(row.start_ns(), row.start_ns());
        }
        Ok(())
    }
}
