//! What is said of the report as a whole, and the tables that nothing else reads.

use std::collections::BTreeMap;

use ktape_format::Sink;
use ktape_format::definition::subject;
use ktape_format::event::{ClockPair, Loss, clock_kind};
use ktape_format::table::DefinitionKind;
use serde_json::{Value, json};

use super::Importer;
use super::database::Columns;
use super::error::Fault;
use crate::import::calls::Keep as _;
use crate::import::{Progress, Summary};

/// Tables of a name and a value.
const NAMED: &[&str] = &["META_DATA_EXPORT", "EXPORT_META_DATA", "META_DATA_CAPTURE", "TARGET_INFO_SYSTEM_ENV"];
/// Part of the names of variables of the environment, which can be secrets and are as many as the shell had.
const ENVIRONMENT: &str = "ENVIRONMENT_VARIABLE";

impl<S: Sink, P: FnMut(Progress)> Importer<'_, '_, S, P> {
    /// Says what the report says of itself.
    pub(super) fn about(&mut self) -> Result<(), Fault> {
        let mut said = BTreeMap::<String, Vec<String>>::new();
        let columns = Columns { known: &["name", "value"], dropped: &["globalVid", "devStateName", "nameEnum"] };
        for &table in NAMED {
            self.each(table, columns, "", |me, row| {
                let name = row.plain(0)?.unwrap_or_default();
                if name.contains(ENVIRONMENT) {
                    me.not_kept("variable of the environment", "", 1);
                    return Ok(());
                }
                said.entry(name).or_default().push(row.plain(1)?.unwrap_or_default());
                me.kept("property", 1);
                Ok(())
            })?;
        }
        self.each("ANALYSIS_DETAILS", Columns { known: &[], dropped: &["globalVid"] }, "", |me, row| {
            row.rest(|name, value| {
                said.entry(format!("ANALYSIS_DETAILS.{name}")).or_default().push(value.to_string());
                Ok(())
            })?;
            me.kept("property", 1);
            Ok(())
        })?;
        let known = &["timestamp", "severity", "source", "text"];
        let mut diagnostics: Vec<Value> = Vec::new();
        self.each("DIAGNOSTIC_EVENT", Columns { known, dropped: &["timestampType", "globalPid"] }, "", |me, row| {
            let text = row.text(3)?.unwrap_or_default();
            diagnostics.push(json!({"ns": row.int(0)?, "severity": row.int(1)?, "source": row.int(2)?, "text": text}));
            me.kept("property", 1);
            Ok(())
        })?;
        let (subject, id) = match self.places.first_process() {
            Some(process) if self.of_many => (DefinitionKind::Process as u16, process),
            _ => (subject::TAPE, 0),
        };
        for (key, values) in said {
            let value = match <[String; 1]>::try_from(values) {
                Ok([value]) => value,
                Err(values) => json!(values).to_string(),
            };
            self.sink.property(subject, id, &key, &value)?;
        }
        if !diagnostics.is_empty() {
            self.sink.property(subject, id, "diagnostics", &Value::Array(diagnostics).to_string())?;
        }
        Ok(())
    }

    /// Times count from the start of the session, of which the report says when it was.
    pub(super) fn clock(&mut self) -> Result<(), Fault> {
        let columns = Columns { known: &["utcEpochNs"], dropped: &["utcTime", "localTime", "systemClockNs"] };
        let mut first = true;
        self.each("TARGET_INFO_SESSION_START_TIME", columns, "", |me, row| {
            let Some(value_ns) = row.int(0)?.filter(|_| std::mem::take(&mut first)) else {
                me.not_kept("table", "TARGET_INFO_SESSION_START_TIME", 1);
                return Ok(());
            };
            // Several traces lie beside each other on one clock; one alone counts as its own tool shows it.
            me.base_ns = if me.of_many { value_ns } else { 0 };
            let start_ns = me.base_ns;
            me.event(ClockPair { start_ns, clock: clock_kind::UNIX, value_ns, ..ClockPair::default() })
        })
    }

    /// Counts the rows of every table that was not read. Those of numbers and texts only (`StringIds`, `ENUM_…`) have
    /// nothing of their own.
    pub(super) fn rest_of_tables(&mut self) -> Result<(), Fault> {
        let database = self.database;
        for (name, table) in &database.tables {
            if self.read.contains(name.as_str()) || name == "StringIds" || name.starts_with("ENUM_") {
                continue;
            }
            let rows = database.count(table)?;
            if rows > 0 {
                Summary::count(&mut self.summary.read, name, "", rows);
                self.not_kept("table", name, rows);
            }
        }
        for name in &database.not_read {
            Summary::count(&mut self.summary.read, name, "", 1);
            self.not_kept("", name, 1);
        }
        Ok(())
    }

    /// Rows that were left out are a loss like any other.
    pub(super) fn losses(&mut self) -> Result<(), Fault> {
        let count = self.summary.broken.left_out;
        if count > 0 {
            let cause = self.sink.string("wrong values in the report that was imported; left out")?;
            // Not through `event`, as it is no row of the report.
            let (start_ns, last_ns) = self.summary.span_ns.unwrap_or((self.base_ns, self.base_ns));
            let duration_ns = last_ns.abs_diff(start_ns);
            self.sink.event(Loss { start_ns, duration_ns, count, cause, ..Loss::default() })?;
        }
        Ok(())
    }
}
