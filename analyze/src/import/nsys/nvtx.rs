//! What programs say of themselves: NVTX ranges and marks.

use ktape_format::Sink;
use ktape_format::definition::{Frame, frame_kind};
use ktape_format::event::{Mark, Range, phase};
use rustc_hash::FxHashMap;
use serde_json::{Map, Value};

use super::Importer;
use super::database::{Columns, Row};
use super::error::Fault;
use crate::import::Progress;

// `ENUM_NSYS_EVENT_TYPE`; the second of a pair is of text that was imported into the report (NVTXT).
const CATEGORY: i64 = 33;
const MARKS: [i64; 2] = [34, 65];
const PUSHED: [i64; 2] = [59, 70];
const STARTED: [i64; 2] = [60, 71];
const DOMAIN: i64 = 75;
/// Rows that name a domain or a category.
const NAMING: &str = "WHERE eventType IN (33, 75)";

/// What the ranges of the default domain belong to.
const DEFAULT_DOMAIN: &str = "NVTX";

const COLUMNS: Columns<'_> = Columns {
    known: &[
        "eventType",
        "start",
        "end",
        "globalTid",
        "endGlobalTid",
        "domainId",
        "category",
        "text",
        "textId",
        "jsonText",
        "jsonTextId",
    ],
    dropped: &["color", "rangeId"],
};
const TYPE: usize = 0;
const START: usize = 1;
const END: usize = 2;
const THREAD: usize = 3;
const END_THREAD: usize = 4;
const DOMAIN_ID: usize = 5;
const CATEGORY_ID: usize = 6;
const TEXT: usize = 7;
const JSON: usize = 9;

/// A range, and its frame in the stacks of its thread; 0 for one that is in none.
pub(super) struct NamedRange {
    pub(super) row: Range,
    pub(super) frame: u32,
}

/// The names of domains and categories, by process.
#[derive(Default)]
struct Names {
    domains: FxHashMap<(u32, i64), String>,
    categories: FxHashMap<(u32, i64, i64), String>,
}

impl<S: Sink, P: FnMut(Progress)> Importer<'_, '_, S, P> {
    /// Reads ranges and marks, in the order of the table.
    pub(super) fn nvtx(&mut self) -> Result<(Vec<NamedRange>, Vec<Mark>), Fault> {
        let names = self.nvtx_names()?;
        let (mut ranges, mut marks) = (Vec::new(), Vec::new());
        self.each("NVTX_EVENTS", COLUMNS, "", |me, row| {
            let kind = row.need(TYPE)?;
            match kind {
                CATEGORY | DOMAIN => me.kept("property", 1),
                kind if MARKS.contains(&kind) => marks.push(me.mark(row, &names)?),
                kind if PUSHED.contains(&kind) || STARTED.contains(&kind) => ranges.push(me.range(row, kind, &names)?),
                kind => me.not_kept("NVTX event of type", &kind.to_string(), 1),
            }
            Ok(())
        })?;
        Ok((ranges, marks))
    }

    fn nvtx_names(&mut self) -> Result<Names, Fault> {
        let mut names = Names::default();
        let database = self.database;
        let Some(table) = database.tables.get("NVTX_EVENTS") else { return Ok(names) };
        if !table.has("eventType") {
            return Ok(names);
        }
        database.rows(table, COLUMNS, NAMING, |row| {
            // A row with a wrong value is met again, and told of, with all others.
            let read =
                || Ok::<_, Fault>((row.int(THREAD)?, row.int(DOMAIN_ID)?, row.int(CATEGORY_ID)?, row.int(TYPE)?));
            let Ok((thread, domain, category, kind)) = read() else { return Ok(()) };
            let Ok(Some(text)) = self.text_of(row, TEXT) else { return Ok(()) };
            let (process, domain) = (self.thread(thread)?.1, domain.unwrap_or(0));
            if kind == Some(DOMAIN) {
                names.domains.insert((process, domain), text);
            } else {
                names.categories.insert((process, domain, category.unwrap_or(0)), text);
            }
            Ok(())
        })?;
        Ok(names)
    }

    /// A text that stands in one column, or by its number in the next.
    fn text_of(&mut self, row: &Row<'_>, column: usize) -> Result<Option<String>, Fault> {
        if let Some(text) = row.text(column)? {
            return Ok(Some(text));
        }
        let Some(number) = row.int(column + 1)? else { return Ok(None) };
        let text = self.strings.text(number).map(str::to_owned);
        if text.is_none() {
            self.summary.repair("number of a string that is not in the file, left empty");
        }
        Ok(text)
    }

    /// The id of what a row is called.
    fn nvtx_name(&mut self, row: &Row<'_>) -> Result<u32, Fault> {
        match row.text(TEXT)? {
            Some(text) => Ok(self.sink.string(&text)?),
            None => row.int(TEXT + 1)?.map_or(Ok(0), |number| self.string(number)),
        }
    }

    /// The domain of a row, as the category of its event, and the arguments that a row has whatever it is.
    fn nvtx_said(&mut self, row: &Row<'_>, names: &Names, process: u32) -> Result<(u32, Map<String, Value>), Fault> {
        let (domain, category) = (row.int(DOMAIN_ID)?.unwrap_or(0), row.int(CATEGORY_ID)?.unwrap_or(0));
        let mut args = Map::new();
        if category != 0 {
            let name = names.categories.get(&(process, domain, category));
            args.insert("category".to_owned(), name.map_or_else(|| category.into(), |name| name.as_str().into()));
        }
        if let Some(json) = self.text_of(row, JSON)?.filter(|json| !json.is_empty()) {
            args.insert("json".to_owned(), json.into());
        }
        let domain = match (domain, names.domains.get(&(process, domain))) {
            (_, Some(name)) => self.sink.string(name)?,
            (0, None) => self.sink.string(DEFAULT_DOMAIN)?,
            (domain, None) => self.sink.string(&format!("{DEFAULT_DOMAIN} domain {domain}"))?,
        };
        Ok((domain, args))
    }

    fn mark(&mut self, row: &Row<'_>, names: &Names) -> Result<Mark, Fault> {
        let (start_ns, global) = (self.time(row.need(START)?)?, row.int(THREAD)?);
        let name = self.nvtx_name(row)?;
        let (thread, process) = self.thread(global)?;
        let (category, args) = self.nvtx_said(row, names, process)?;
        let args = self.args(row, args)?;
        Ok(Mark { start_ns, thread, name, category, stack: 0, args })
    }

    fn range(&mut self, row: &Row<'_>, kind: i64, names: &Names) -> Result<NamedRange, Fault> {
        let (start_ns, end_ns, global) = (row.need(START)?, row.int(END)?, row.int(THREAD)?);
        let ended_on = row.int(END_THREAD)?.filter(|end| *end != 0 && Some(*end) != global);
        let name = self.nvtx_name(row)?;
        let (thread, process) = self.thread(global)?;
        let (category, mut args) = self.nvtx_said(row, names, process)?;
        let (duration_ns, phase) = match end_ns {
            Some(end_ns) => (self.duration(start_ns, end_ns), phase::COMPLETE),
            None => (0, phase::PUSH),
        };
        // A range that was started here and ended by another thread says nothing of what this thread did meanwhile.
        let elsewhere = STARTED.contains(&kind) && ended_on.is_some();
        if let Some(end) = ended_on.filter(|_| elsewhere) {
            args.insert("ended_by_thread".to_owned(), (end & 0xff_ffff).into());
        }
        let args = self.args(row, args)?;
        let frame = match elsewhere || thread == 0 {
            true => 0,
            false => self.sink.define(Frame { kind: frame_kind::RANGE, name, file: 0, line: 0 })?,
        };
        let start_ns = self.time(start_ns)?;
        let row = Range { start_ns, duration_ns, thread, stream: 0, name, category, phase, stack: 0, args };
        Ok(NamedRange { row, frame })
    }
}
