//! Why it is no loss that a column, or a row, has no place on the tape.

use crate::import::Reason;

/// Columns that number single events, or that the correlation joins already.
const IDS: &[&str] = &[
    "gridId",
    "rangeId",
    "correlationId",
    "eventSyncId",
    "pc",
    "originalIP",
    "globalVid",
    "nameEnum",
    "virtualAddress",
];
/// Columns that follow from others: the short name of a kernel from its whole one, the times of a record of a call
/// (which differ from the call's by what CUPTI needs to notice it) from that call, that a frame has no symbol from its
/// name, the hour from the clock, the device of a context from its streams.
const DERIVED: &[&str] = &[
    "shortName",
    "start",
    "end",
    "timestamp",
    "eventClass",
    "deprecatedSrcId",
    "deprecatedSyncType",
    "unresolved",
    "utcTime",
    "localTime",
    "deviceId",
    "numMultiprocessors",
];

/// The reason for what this importer counts under a description, and what to call it; `None` if it is another's.
pub(in crate::import) fn reason(description: &str) -> Option<(Reason, &str)> {
    let column = description.strip_prefix("column ")?;
    let reason = match column {
        "color" => Reason::Display,
        column if IDS.contains(&column) => Reason::Id,
        column if DERIVED.contains(&column) => Reason::Derived,
        _ => return Some((Reason::Unknown, description)),
    };
    Some((reason, column))
}
