//! Reports of Nsight Systems: real ones held against independent counts, made-up ones rule by rule, and what is wrong
//! with some.

mod made_up;
mod real;
mod wrong;

use std::path::{Path, PathBuf};

use ktape_analyze::import::{self, ImportError, Options, Summary};
use ktape_analyze::timeline::Timeline;
use ktape_format::Memory;
use rusqlite::Connection;
use tempfile::TempDir;

/// A made-up report: the tables of a year of `fixtures/nsys`, with rows.
struct Report {
    folder: TempDir,
    path: PathBuf,
}

impl Report {
    fn new(year: u32, rows: &str) -> Report {
        let folder = tempfile::tempdir().unwrap();
        // A path that is an address with a query if nobody takes care.
        let path = folder.path().join("a report?mode=rwc#%41.sqlite");
        let report = Report { folder, path };
        let schema = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../fixtures/nsys/{year}.sql"));
        report.run(&std::fs::read_to_string(schema).unwrap());
        report.run(rows);
        report
    }

    fn run(&self, sql: &str) {
        Connection::open(&self.path).unwrap().execute_batch(sql).unwrap_or_else(|error| panic!("{error}: {sql}"));
    }

    fn import(&self) -> (Timeline, Summary) {
        self.try_import(Options::default()).unwrap_or_else(|error| panic!("{error}"))
    }

    fn try_import(&self, options: Options) -> Result<(Timeline, Summary), ImportError> {
        let mut memory = Memory::default();
        let summary = import::import(&self.path, &mut memory, options, |_| {})?;
        every_row_is_accounted_for(&memory, &summary);
        Ok((Timeline::new(memory.definitions, memory.events), summary))
    }
}

/// Every row of the tables that were read is on the tape or counted.
fn every_row_is_accounted_for(memory: &Memory, summary: &Summary) {
    let kept: u64 = summary.kept.values().sum();
    let not_kept: u64 = summary.not_kept.values().sum();
    assert_eq!(summary.entries(), kept + not_kept, "read = kept + not kept: {summary:#?}");
    assert_eq!(memory.events.loss.count.iter().sum::<u64>(), summary.broken.left_out, "what was left out is a loss");
    for (kind, rows) in memory.events.counts().into_iter().filter(|(kind, _)| *kind != "loss") {
        assert_eq!(rows as u64, summary.kept.get(kind).copied().unwrap_or(0), "{kind}");
    }
}

/// A `globalPid`, as Nsight numbers processes.
const fn process(pid: i64) -> i64 {
    1 << 48 | pid << 24
}

/// A `globalTid`.
const fn thread(pid: i64, tid: i64) -> i64 {
    process(pid) | tid
}

/// The frames of a stack, outermost first.
fn stack(timeline: &Timeline, stack: u32) -> Vec<String> {
    use ktape_analyze::timeline::names::FrameName;
    let definitions = &timeline.definitions;
    let mut frames: Vec<String> =
        definitions.stack_nodes(stack).map(|(_, node)| FrameName::of_stack(definitions, &node).full()).collect();
    frames.reverse();
    frames
}
