//! What is wrong with a report: said in one line, or counted; never a panic, and never a file written beside it.

use std::path::Path;

use ktape_analyze::import::{self, ImportError, Options, nsys};
use ktape_format::{Memory, Table};
use proptest::prelude::*;

use super::super::refusals::says;
use super::{Report, process, thread};
use crate::common;

const LENIENT: Options = Options { lenient: true };

/// A report with a row of everything that is read.
fn small() -> Report {
    let (p, t) = (process(40), thread(40, 41));
    Report::new(
        2026,
        &format!(
            "INSERT INTO StringIds VALUES (1, 'cudaLaunchKernel_v7000'), (2, 'k'), (3, 'step'), (4, 'main');
             INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_SCHEMA_VERSION', '3.25.0');
             INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (1700000000000000000, 'a', 'b', 5);
             INSERT INTO TARGET_INFO_GPU VALUES (0, 0, 'NVIDIA H100', 80, 132, 'u', 0, 1, 2, 32, 64, 9, 0, 'GH100');
             INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES (0, 0, 40, NULL, NULL);
             INSERT INTO TARGET_INFO_CUDA_STREAM VALUES (7, 0, 1, 40, 1, 0, 1);
             INSERT INTO TARGET_INFO_CUDA_CONTEXT_INFO VALUES (7, 0, 1, 40, 0, 1, 0, 0);
             INSERT INTO PROCESSES VALUES ({p}, 40, 'app');
             INSERT INTO ThreadNames VALUES (4, 20, {t});
             INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (10, 15, 0, {t}, 5, 1, 0, 0), (50, 55, 0, {t}, 6, 1, 0, NULL);
             INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (20, 30, 0, 1, 0, 7, 5, {p}, 2, 2, 2, 1, 0, 8, 1, 1, 1, 32, 1, 1, 0, 0, 0, 0, 1, 0, NULL, NULL, 0, 0, 0, 0);
             INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (32, 34, 0, 1, 0, 7, 6, {p}, 64, 1, 0, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 1);
             INSERT INTO CUPTI_ACTIVITY_KIND_MEMSET VALUES (36, 38, 0, 1, 0, 7, 8, {p}, 0, 64, NULL, 2);
             INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (40, 45, 0, 1, 0, 7, 9, {p}, 3, 4);
             INSERT INTO CUPTI_ACTIVITY_KIND_SYNCHRONIZATION VALUES (51, 54, 0, 1, NULL, 7, 6, {p}, NULL, 3, 4294967295, 0);
             INSERT INTO CUPTI_ACTIVITY_KIND_CUDA_EVENT VALUES (2, 0, 1, NULL, 7, 1, {p}, 77, 900);
             INSERT INTO CUPTI_ACTIVITY_KIND_OVERHEAD VALUES (5, 9, 103, {t}, 1, 3, 7);
             INSERT INTO PROFILER_OVERHEAD VALUES (1, 3, {t}, 3, 3);
             INSERT INTO CUDA_GPU_MEMORY_USAGE_EVENTS VALUES (14, {p}, 0, 1, 4096, 0, 100, 2, 0, 'a', 5);
             INSERT INTO CUDA_CALLCHAINS VALUES (0, 4, 4, 0, 16, 0);
             INSERT INTO OSRT_API VALUES (16, 18, 27, {t}, 3, 0, 0, 0, NULL);
             INSERT INTO OSRT_CALLCHAINS (id, symbol, module, stackDepth) VALUES (0, 4, 4, 0);
             INSERT INTO COMPOSITE_EVENTS VALUES (1, 15, 3, 1, {t}, 1);
             INSERT INTO SAMPLING_CALLCHAINS (id, symbol, module, stackDepth) VALUES (1, 4, 4, 0);
             INSERT INTO SCHED_EVENTS VALUES (1, 0, 1, {t}, 0, NULL);
             INSERT INTO NVTX_EVENTS (start, end, eventType, textId, globalTid, domainId) VALUES (1, 60, 59, 3, {t}, 0), (2, NULL, 34, 3, {t}, 0);"
        ),
    )
}

const TABLES: &[&str] = &[
    "META_DATA_EXPORT",
    "TARGET_INFO_SESSION_START_TIME",
    "TARGET_INFO_GPU",
    "TARGET_INFO_CUDA_DEVICE",
    "TARGET_INFO_CUDA_STREAM",
    "TARGET_INFO_CUDA_CONTEXT_INFO",
    "PROCESSES",
    "ThreadNames",
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT",
    "CUPTI_ACTIVITY_KIND_OVERHEAD",
    "PROFILER_OVERHEAD",
    "CUDA_GPU_MEMORY_USAGE_EVENTS",
    "CUDA_CALLCHAINS",
    "OSRT_API",
    "OSRT_CALLCHAINS",
    "COMPOSITE_EVENTS",
    "SAMPLING_CALLCHAINS",
    "SCHED_EVENTS",
    "NVTX_EVENTS",
    "StringIds",
];

#[test]
fn any_table_can_be_absent() {
    small().import();
    for table in TABLES {
        let report = small();
        report.run(&format!("DROP TABLE {table}"));
        report.import();
    }
}

#[test]
fn any_column_can_be_absent() {
    let report = small();
    let columns: Vec<(String, String)> = {
        let database = rusqlite::Connection::open(&report.path).unwrap();
        let sql = "SELECT m.name, c.name FROM sqlite_master m, pragma_table_info(m.name) c WHERE m.type = 'table' AND c.pk = 0";
        let mut statement = database.prepare(sql).unwrap();
        statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap().map(Result::unwrap).collect()
    };
    assert!(columns.len() > 150);
    let whole = std::fs::read(&report.path).unwrap();
    for (table, column) in columns {
        std::fs::write(&report.path, &whole).unwrap();
        report.run(&format!("ALTER TABLE {table} DROP COLUMN \"{column}\""));
        // What an event cannot be without is missed by name; that is the only thing that may happen.
        if let Err(error) = report.try_import(Options::default()) {
            assert!(
                error.to_string().contains(&format!("table {table}")) && error.to_string().contains(&column),
                "{error}"
            );
        }
        report.try_import(LENIENT).unwrap();
    }
}

#[test]
fn an_empty_export_has_no_events() {
    let (timeline, summary) = Report::new(2026, "").import();
    assert_eq!((timeline.events.len(), summary.entries()), (0, 0));
}

#[test]
fn other_databases_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bookmarks.sqlite");
    rusqlite::Connection::open(&path).unwrap().execute_batch("CREATE TABLE bookmarks (url TEXT)").unwrap();
    says(&path, &["SQLite database", "Nsight Systems", "nsys export --type sqlite"]);
    for (name, bytes) in [
        ("report.nsys-rep", &b"NVIDIA Tegra Profiler Report 2025@1"[..]),
        ("renamed.sqlite", &b"NVIDIA Tegra Profiler Report 2025@1"[..]),
        ("old.qdrep", &b"\x01\x02\x03"[..]),
    ] {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        says(&path, &["nsys export --type sqlite -o report.sqlite"]);
    }
}

#[test]
fn a_damaged_database_is_refused_by_table() {
    let report = small();
    let root: i64 = rusqlite::Connection::open(&report.path)
        .unwrap()
        .query_row("SELECT rootpage FROM sqlite_master WHERE name = 'OSRT_API'", [], |row| row.get(0))
        .unwrap();
    let whole = std::fs::read(&report.path).unwrap();
    let mut bytes = whole.clone();
    bytes[(root as usize - 1) * 4096] = 0xff;
    std::fs::write(&report.path, &bytes).unwrap();
    says(&report.path, &["table OSRT_API is damaged", "malformed"]);
    std::fs::write(&report.path, &whole[..100]).unwrap();
    says(&report.path, &["the database is damaged"]);
    std::fs::write(&report.path, &whole[..whole.len() / 2]).unwrap();
    says(&report.path, &["damaged"]);
    std::fs::write(&report.path, b"SQLite format 3\0...").unwrap();
    says(&report.path, &["the database is damaged"]);
}

#[test]
fn a_wrong_value_stops_the_import_or_its_row_is_left_out() {
    for (change, place) in [
        (
            "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = NULL",
            "table CUPTI_ACTIVITY_KIND_KERNEL, row 1, column end: has NULL",
        ),
        ("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET gridX = 'many'", "row 1, column gridX: has a text"),
        ("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET gridX = -1", "column gridX: has a number that is not one of 32 bits"),
        (
            "UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET start = 1.5 WHERE start = 50",
            "row 2, column start: has a real number",
        ),
        ("UPDATE NVTX_EVENTS SET text = x'00' WHERE end IS NULL", "row 2, column text: has a blob"),
        ("UPDATE CUDA_GPU_MEMORY_USAGE_EVENTS SET memoryOperationType = 9", "neither 0, an allocation"),
        ("UPDATE CUPTI_ACTIVITY_KIND_SYNCHRONIZATION SET deviceId = 'x'", "column deviceId"),
        ("UPDATE TARGET_INFO_CUDA_STREAM SET hwId = NULL", "column hwId"),
    ] {
        let report = small();
        report.run(change);
        let error = report.try_import(Options::default()).unwrap_err().to_string();
        assert!(error.contains(place) && error.contains("--lenient"), "{error}");
        let (timeline, summary) = report.try_import(LENIENT).unwrap();
        let first_ns = timeline.events.launch.start_ns.iter().chain(&timeline.events.range.start_ns).min();
        assert!(first_ns.is_some_and(|first_ns| timeline.events.loss.start_ns[0] <= *first_ns), "{change}");
        assert!(timeline.events.loss.start_ns[0] > 0, "a loss is not told before all events: {change}");
        let wrong: Vec<_> =
            summary.not_kept.iter().filter(|(what, _)| what.starts_with("row with a wrong value")).collect();
        assert_eq!(wrong.iter().map(|(_, count)| **count).sum::<u64>(), 1, "{change}: {wrong:?}");
    }
}

#[test]
fn what_was_put_right_is_counted() {
    let report = small();
    report.run(&format!(
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = start - 1; UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET nameId = 999 WHERE start = 50;
         INSERT INTO NVTX_EVENTS (start, end, eventType, textId, globalTid) VALUES ({}, {}, 59, 3, {})",
        i64::MIN, i64::MAX, thread(40, 41),
    ));
    let (timeline, summary) = report.import();
    assert_eq!(timeline.events.kernel.duration_ns, [0]);
    assert_eq!(timeline.events.range.duration_ns[0], u64::MAX);
    assert_eq!(summary.repaired["event that ends before it begins, its duration set to 0"], 1);
    assert_eq!(summary.repaired["number of a string that is not in the file, left empty"], 1);
}

/// A view runs its author's code; a string may be longer than the memory; a number may be given twice.
#[test]
fn a_hostile_schema_does_nothing() {
    let report = small();
    report.run(
        "DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL; ALTER TABLE StringIds RENAME TO Old;
         CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS start FROM n;
         CREATE TABLE StringIds (id INTEGER, value TEXT);
         INSERT INTO StringIds SELECT * FROM Old; INSERT INTO StringIds VALUES (1, 'again'), (9, zeroblob(5)), (10, printf('%.*c', 2000000, 'x'));
         CREATE TRIGGER t AFTER INSERT ON StringIds BEGIN DELETE FROM StringIds; END;",
    );
    let (timeline, summary) = report.import();
    assert_eq!(timeline.events.kernel.len(), 0);
    assert_eq!(summary.not_kept["view CUPTI_ACTIVITY_KIND_KERNEL"], 1);
    assert_eq!(summary.repaired["string number given twice, the first counts"], 1);
    assert_eq!(summary.repaired["string that is no text or longer than 1 MiB, left out"], 2);
    assert_eq!(timeline.definitions.function_name(timeline.events.launch.function[0]), "cudaLaunchKernel");
}

#[test]
fn nothing_is_written_beside_a_report() {
    let report = small();
    report.run("PRAGMA journal_mode = WAL; PRAGMA wal_checkpoint(TRUNCATE);");
    let before = std::fs::read(&report.path).unwrap();
    let beside = |folder: &Path| {
        let mut names: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let names = beside(report.folder.path());
    report.import();
    assert_eq!(beside(report.folder.path()), names);
    assert_eq!(std::fs::read(&report.path).unwrap(), before);
}

#[test]
fn a_report_whose_rows_are_still_in_a_journal_is_refused() {
    let report = small();
    let mut journal = report.path.clone().into_os_string();
    journal.push("-wal");
    std::fs::write(journal, "rows").unwrap();
    says(&report.path, &["journal beside it", "export it again"]);
}

#[test]
fn bytes_are_as_good_as_a_file() {
    let report = small();
    let mut memory = Memory::default();
    let bytes = std::fs::read(&report.path).unwrap();
    let summary = nsys::import_bytes(&bytes, "report.sqlite", &mut memory, Options::default(), |_| {}).unwrap();
    assert_eq!(summary, report.import().1);
}

/// A report is imported in a time that grows with its rows, however they nest.
#[test]
fn deep_ranges_and_chains_take_no_time() {
    let here = thread(40, 41);
    let report = small();
    report.run(&format!(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000)
         INSERT INTO NVTX_EVENTS (start, end, eventType, textId, globalTid) SELECT i, 1000000 - i, 59, 3, {here} FROM n;
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000)
         INSERT INTO CUDA_CALLCHAINS SELECT 0, 4, 4, 0, 0, i FROM n;"
    ));
    let (timeline, summary) = report.import();
    assert_eq!(timeline.events.range.len(), 100_002);
    assert!(summary.not_kept_parts.keys().any(|what| what.contains("within 2048 others")), "{summary:?}");
}

#[test]
fn a_real_report_cut_anywhere_is_survived() {
    let Some(shared) = common::shared() else { return };
    let path = shared.join("traces/GindaChen+nsys-ai/tests/fixtures/mock.sqlite");
    let bytes = std::fs::read(path).unwrap();
    for length in (0..bytes.len()).step_by(4096 * 3 + 1) {
        let _ = nsys::import_bytes(&bytes[..length], "cut.sqlite", &mut Memory::default(), LENIENT, |_| {});
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    /// Whatever bytes are changed, the import succeeds or says why not; it never panics, and it ends.
    #[test]
    fn changed_bytes_are_survived(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..40), lenient: bool) {
        static SMALL: std::sync::LazyLock<Vec<u8>> = std::sync::LazyLock::new(|| std::fs::read(&small().path).unwrap());
        let mut bytes = SMALL.clone();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let _ = nsys::import_bytes(&bytes, "changed.sqlite", &mut Memory::default(), Options { lenient }, |_| {});
    }
}

/// In a folder, where its times are counted from 1970. Its device work was written before the time was met.
#[test]
fn a_report_with_times_beyond_the_clock_is_not_half_kept() {
    let report = small();
    report.run("UPDATE OSRT_API SET start = 9223372036854775800, end = 9223372036854775807");
    let outcome = import::import(report.folder.path(), &mut Memory::default(), Options::default(), |_| {});
    assert!(matches!(outcome, Err(ImportError::Times { .. })), "{outcome:?}");
}
