//! Tapes read twice: by `ktape-format`, and by `fixtures/tapes/read.py`, whose every rule is in `docs/format.md` and
//! which shares no code. Every row of every table must be the same to the last bit, every definition at the same id, and what
//! one cannot read the other must not read either.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ktape_fixtures::decode_loop::{DecodeLoop, decode_loop};
use ktape_fixtures::random::Random;
use ktape_fixtures::service::service;
use ktape_format::definition::{
    Context, CounterName, Definition, DefinitionVisitor, Process, Stream, Thread, visit_definitions,
};
use ktape_format::event::{Counter, Event, Kernel, KindVisitor, Launch, Mark, visit_kinds};
use ktape_format::header::{ClockKind, TailKind};
use ktape_format::table::{Scalar, Table};
use ktape_format::{Contents, Options, Row, Sink, Tape, TapeError, TapeWriter, Wanted, WhenFull};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::common::{self, analyze};
use crate::everything;

/// Whether the second reader can run. A plain `cargo test` skips visibly where it cannot; `make test` installs what it
/// needs and sets `KTAPE_REQUIRE_SECOND_READER=1`.
fn installed() -> bool {
    let home = target().join("tapes/python");
    let found = home.exists();
    if !found {
        let say = format!("no {}: run fixtures/tapes/setup.sh", home.display());
        assert!(std::env::var("KTAPE_REQUIRE_SECOND_READER").as_deref() != Ok("1"), "{say}");
        common::skipped(&say);
    }
    found
}

fn target() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("target")
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures")
}

/// A row's columns as they are written, no number read as a float.
type Columns = BTreeMap<String, Box<RawValue>>;

/// What the second reader says.
#[derive(Default)]
struct Second {
    header: Value,
    /// By table; the key is the id of a definition, and the place of an event.
    rows: BTreeMap<String, BTreeMap<u64, Columns>>,
    next_id: BTreeMap<String, u64>,
    processes: Processes,
    damage: Vec<u64>,
}

/// Sections whose directory says which processes have rows in them, and those of them where others have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
struct Processes {
    checked: usize,
    wrong: usize,
}

/// One of its lines, which has only some of these.
#[derive(serde::Deserialize)]
struct Line {
    table: Option<String>,
    id: Option<u64>,
    row: Option<Columns>,
    header: Option<Value>,
    next_id: Option<BTreeMap<String, u64>>,
    processes: Option<Processes>,
    offset: Option<u64>,
}

/// `None` where the second reader refuses the tape.
fn second(path: &Path) -> Option<Second> {
    let mut command = Command::new("python3");
    // The script looks for what setup.sh installed where cargo builds.
    command.arg(fixtures().join("tapes/read.py")).arg(path).env("CARGO_TARGET_DIR", target());
    let output = command.output().expect("python3 runs");
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        assert_eq!((output.status.code(), said.lines().count()), (Some(1), 1), "{}: {said}", path.display());
        return None;
    }
    let mut second = Second::default();
    for line in std::str::from_utf8(&output.stdout).expect("UTF-8").lines() {
        let line: Line = serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        if let (Some(table), Some(row)) = (line.table, line.row) {
            let rows = second.rows.entry(table).or_default();
            let place = line.id.unwrap_or(rows.len() as u64);
            assert!(rows.insert(place, row).is_none(), "{place} comes twice");
        }
        second.header = line.header.unwrap_or(second.header);
        second.next_id = line.next_id.unwrap_or(second.next_id);
        second.processes = line.processes.unwrap_or(second.processes);
        second.damage.extend(line.offset);
    }
    Some(second)
}

/// Takes out of the second reader's rows what the first has too.
struct Compare<'a> {
    first: &'a Contents,
    second: Second,
}

impl Compare<'_> {
    fn table<T: Table>(&mut self, table: &T, first_id: Option<u64>) -> Result<(), String> {
        let name = T::Row::NAME;
        let mut rows = self.second.rows.remove(name).unwrap_or_default();
        for (place, row) in (first_id.unwrap_or(0)..).zip(table.rows()) {
            match rows.remove(&place) {
                Some(columns) => same_row(&columns, &row)?,
                // The first reader has an empty row where a definition is lost.
                None if first_id.is_some() && !self.first.damage.is_empty() && row == T::Row::default() => {}
                None => return Err(format!("{name} {place} is missing")),
            }
        }
        let end = first_id.unwrap_or(0) + table.len() as u64;
        if first_id.is_some() && self.second.next_id.remove(name) != Some(end) {
            return Err(format!("{name}: another number of definitions than {}", table.len()));
        }
        if rows.is_empty() { Ok(()) } else { Err(format!("{name}: {} rows more", rows.len())) }
    }

    fn strings(&mut self) -> Result<(), String> {
        let mut rows = self.second.rows.remove("string").unwrap_or_default();
        let strings = &self.first.definitions.strings;
        for (id, string) in (1..).zip(strings) {
            match rows.remove(&id) {
                Some(columns) if columns.len() == 1 => {
                    let text: String = serde_json::from_str(columns["text"].get()).expect("text");
                    if text != **string {
                        return Err(format!("string {id}: {text:?} is not {string:?}"));
                    }
                }
                None if string.is_empty() && !self.first.damage.is_empty() => {}
                _ => return Err(format!("string {id} is missing")),
            }
        }
        let same = rows.is_empty() && self.second.next_id.remove("string") == Some(strings.len() as u64 + 1);
        if same { Ok(()) } else { Err("more strings".to_owned()) }
    }
}

impl KindVisitor for Compare<'_> {
    type Error = String;
    fn visit<E: Event>(&mut self) -> Result<(), String> {
        self.table(E::table(&self.first.events), None)
    }
}

impl DefinitionVisitor for Compare<'_> {
    type Error = String;
    fn visit<T: Definition>(&mut self) -> Result<(), String> {
        self.table(T::table(&self.first.definitions), Some(1))
    }
}

fn same_row<R: Row>(columns: &Columns, row: &R) -> Result<(), String> {
    if columns.len() != R::COLUMNS.len() {
        return Err(format!("{}: {columns:?} has another number of columns", R::NAME));
    }
    for (column, spec) in R::COLUMNS.iter().enumerate() {
        let text = columns.get(spec.name).map(|text| text.get());
        if text.and_then(|text| bits(spec.scalar, text)) != Some(row.get(column)) {
            return Err(format!("{}.{}: {text:?} in {row:?}", R::NAME, spec.name));
        }
    }
    Ok(())
}

/// The bits of a value as it is written.
fn bits(scalar: Scalar, text: &str) -> Option<u64> {
    match scalar {
        Scalar::F64 => match text.strip_prefix('"') {
            Some(hexadecimal) => u64::from_str_radix(hexadecimal.strip_suffix('"')?, 16).ok(),
            None => text.parse().ok().map(f64::to_bits),
        },
        Scalar::I32 => text.parse().ok().map(|value: i32| u64::from(value as u32)),
        Scalar::I64 => text.parse().ok().map(|value: i64| value as u64),
        Scalar::U8 | Scalar::U16 | Scalar::U32 | Scalar::U64 => text.parse().ok(),
    }
}

/// Reads a tape twice and compares; gives what the first reader read, if both did not refuse it.
fn read_twice(path: &Path) -> Option<Contents> {
    let (first, second) = (Tape::open(path), second(path));
    let (tape, second) = match (first, second) {
        (Ok(tape), Some(second)) => (tape, second),
        (Err(_), None) => return None,
        (first, _) => panic!("{}: refused by one: the first says {:?}", path.display(), first.err()),
    };
    let contents = tape.read(&Wanted::default()).unwrap();
    let header = tape.header();
    // Format 1 does not say where the tail is.
    let tail = match header.tail {
        TailKind::Mapped if header.major > 1 => 1,
        TailKind::Memory if header.major > 1 => 2,
        _ => 0,
    };
    let expected = json!({
        "major": header.major,
        "tail": tail,
        "minor": header.minor,
        "created_unix_ns": header.created_unix_ns,
        "clock": header.clock as u8,
        "boot_id": header.boot_id.map(|byte| format!("{byte:02x}")).concat(),
        "host": header.host,
        "writer": header.writer,
        "half_bytes": header.staging_half_bytes,
        "closed": tape.is_closed(),
    });
    assert_eq!(second.header, expected, "{}", path.display());
    assert_eq!(second.damage.is_empty(), contents.damage.is_empty(), "{}: {:?}", path.display(), contents.damage);
    if contents.damage.is_empty() {
        let sections = tape.blocks().iter().flat_map(|block| &block.sections);
        let checked = sections.filter(|section| section.processes != 0).count();
        assert_eq!(second.processes, Processes { checked, wrong: 0 }, "{}", path.display());
    }
    let mut compare = Compare { first: &contents, second };
    let same =
        compare.strings().and_then(|()| visit_definitions(&mut compare)).and_then(|()| visit_kinds(&mut compare));
    assert_eq!(same, Ok(()), "{}: {:?}", path.display(), contents.damage);
    assert!(compare.second.rows.is_empty(), "{}: tables that are unknown here", path.display());
    Some(contents)
}

fn tape(path: &Path, options: &Options, fill: impl FnOnce(&mut TapeWriter) -> Result<(), TapeError>) {
    let mut writer = TapeWriter::create(path, options).unwrap();
    fill(&mut writer).unwrap();
    writer.finish().unwrap();
}

/// As after a kill: the file as its writer had it, never finished.
fn killed_tape(path: &Path, options: &Options, fill: impl FnOnce(&mut TapeWriter) -> Result<(), TapeError>) {
    let open = path.with_extension("open");
    let mut writer = TapeWriter::create(&open, options).unwrap();
    fill(&mut writer).unwrap();
    std::fs::copy(&open, path).unwrap();
}

fn live(half_bytes: u32) -> Options {
    Options { half_bytes, when_full: WhenFull::Wait, ..Options::live("test", ClockKind::Boot, "node-7") }
}

/// Numbers of every width, and those at the ends.
fn numbers(seed: u64) -> Vec<u64> {
    let mut random = Random::new(seed);
    (0..997).map(|_| random.next_u64() >> (random.next_u64() % 64)).chain([u64::MAX, 1 << 63, (1 << 63) - 1]).collect()
}

/// Three blocks and, if it is not finished, a staged tail, with rows of every kind in each.
fn every_kind(writer: &mut TapeWriter) -> Result<(), TapeError> {
    for part in 0..4 {
        let strings = [format!("part {part}"), "größer ".repeat(part * 20), "\u{0}\"\\".to_owned()];
        everything::fill(writer, &numbers(part as u64), &strings)?;
        if part < 3 {
            writer.seal()?;
        }
    }
    Ok(())
}

#[test]
fn a_tape_of_every_version_reads_the_same() {
    if !installed() {
        return;
    }
    let tapes = std::fs::read_dir(fixtures().join("tapes")).unwrap().map(|entry| entry.unwrap().path());
    let tapes: Vec<PathBuf> = tapes.filter(|path| path.extension().is_some_and(|end| end == "ktape")).collect();
    assert!(!tapes.is_empty());
    for path in tapes {
        assert_eq!(read_twice(&path).unwrap().damage, []);
    }
}

#[test]
fn made_up_traces_read_the_same() {
    if !installed() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("made-up.ktape");
    let decode = |writer: &mut TapeWriter| decode_loop(writer, &DecodeLoop { steps: 6, context: 512, seed: 5 });
    for options in [Options::batch("test"), live(1 << 16)] {
        tape(&path, &options, decode);
        assert!(read_twice(&path).unwrap().events.kernel.len() > 2000);
        killed_tape(&path, &options, |writer| service(writer, 5, 9));
        let staged = read_twice(&path).unwrap().staged_rows;
        assert_eq!(staged > 0, options.staged);
    }
}

#[test]
fn rows_of_every_kind_with_any_value_read_the_same() {
    if !installed() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("everything.ktape");
    for options in [Options::batch("test"), live(1 << 20)] {
        tape(&path, &options, every_kind);
        let contents = read_twice(&path).unwrap();
        assert!(contents.events.counts().iter().all(|&(_, rows)| rows == 12));
        killed_tape(&path, &options, every_kind);
        read_twice(&path).unwrap();
    }
}

#[test]
fn staged_rows_of_before_a_restart_are_left_out_by_both() {
    if !installed() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("restarted.ktape");
    let Ok(host) = std::fs::read_to_string("/proc/sys/kernel/hostname") else { return };
    let options = Options { boot_id: [7; 16], ..live(1 << 20) };
    for (host, staged) in [(host.trim(), false), ("elsewhere", true)] {
        killed_tape(&path, &Options { host: host.to_owned(), ..options.clone() }, every_kind);
        let contents = read_twice(&path).unwrap();
        assert_eq!((contents.staged_rows > 0, contents.damage.is_empty()), (staged, staged));
    }
}

/// More processes than a directory has bits for, in blocks that have rows of some of them, or of none.
#[test]
fn tapes_of_many_processes_read_the_same() {
    if !installed() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("processes.ktape");
    tape(&path, &Options::batch("test"), |writer| {
        let mut owned = Vec::new();
        for pid in 0..70 {
            let process = writer.define(Process { pid, ..Process::default() })?;
            let thread = writer.define(Thread { process, tid: pid })?;
            let context = writer.define(Context { process, ..Context::default() })?;
            let stream = writer.define(Stream { context, ..Stream::default() })?;
            let counter = writer.define(CounterName { process, ..CounterName::default() })?;
            owned.push((thread, stream, counter));
        }
        for processes in [0..1, 0..0, 3..9, 60..70, 0..70] {
            // Of no process: a thread that is not defined, and no stream.
            writer.event(Mark { thread: 4000, ..Mark::default() })?;
            writer.event(Kernel::default())?;
            for &(thread, stream, counter) in &owned[processes] {
                writer.event(Launch { stream, ..Launch::default() })?;
                writer.event(Launch { thread, stream: 1, ..Launch::default() })?;
                writer.event(Kernel { stream, ..Kernel::default() })?;
                writer.event(Counter { counter, ..Counter::default() })?;
            }
            writer.seal()?;
        }
        Ok(())
    });
    assert_eq!(read_twice(&path).unwrap().damage, []);
    let blocks = Tape::open(&path).unwrap();
    let masks: BTreeSet<u64> =
        blocks.blocks().iter().flat_map(|block| &block.sections).map(|section| section.processes).collect();
    let some = [1 << 63, 1, 0b1_1111_1000, 0b11_1111 | 0b1111 << 60, u64::MAX];
    assert!(masks.is_superset(&BTreeSet::from(some)), "{masks:x?}");
}

/// Puts a number into the head of a staging half, beside its complement.
fn put_number(tape: &mut [u8], at: usize, number: u32) {
    let bytes = [number.to_le_bytes(), (!number).to_le_bytes()].concat();
    tape[at..at + 8].copy_from_slice(&bytes);
}

/// What the halves of a tape say of losses counts where it is the newest that is known, and only there.
#[test]
fn losses_that_no_row_tells_of_read_the_same() {
    if !installed() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lost.ktape");
    const HALF: usize = 64 << 10;
    killed_tape(&path, &live(HALF as u32), every_kind);
    let whole = std::fs::read(&path).unwrap();
    let last = Tape::open(&path).unwrap().blocks().last().unwrap().offset as usize;
    let told = |contents: &Contents| contents.events.loss.count.last().copied();
    let before = read_twice(&path).unwrap();
    // Blocks 0 to 2 are sealed, so half 0 was of block 2 and half 1 is of block 3.
    for (half, count, counts) in [(0, 9, false), (1, 5, true), (1, u32::MAX, true)] {
        let mut bytes = whole.clone();
        put_number(&mut bytes, 512 + half * HALF + 24, count);
        std::fs::write(&path, &bytes).unwrap();
        let contents = read_twice(&path).unwrap();
        let rows = before.events.loss.len() + usize::from(counts);
        assert_eq!((contents.events.loss.len(), contents.damage.len()), (rows, 0));
        assert_eq!(told(&contents) == Some(u64::from(count)), counts);
    }
    // The newest half has nothing but a loss; the one before says another, and its block is sealed, or not.
    for file_bytes in [whole.len(), last] {
        let mut bytes = whole[..file_bytes].to_vec();
        put_number(&mut bytes, 512 + 24, 9);
        put_number(&mut bytes, 512 + HALF + 16, 0);
        for (newest, count) in [(5, 5), (0, 9)] {
            put_number(&mut bytes, 512 + HALF + 24, newest);
            std::fs::write(&path, &bytes).unwrap();
            assert_eq!(told(&read_twice(&path).unwrap()), Some(count));
        }
    }
    // Half 0 cannot be read, so what follows it cannot either; half 1 still says what was lost.
    let mut bytes = whole[..last].to_vec();
    bytes[512 + 40] ^= 1;
    put_number(&mut bytes, 512 + HALF + 24, 5);
    std::fs::write(&path, &bytes).unwrap();
    let contents = read_twice(&path).unwrap();
    assert_eq!((told(&contents), contents.damage.len()), (Some(5), 2));
}

/// A recorder that is killed. With `KTAPE_TEST_FULL` its file may not grow (see `killed`), so that it loses events.
#[test]
fn child_that_records_until_killed() {
    let Some(path) = std::env::var_os("KTAPE_TEST_SECOND_READER") else { return };
    let when_full = if std::env::var_os("KTAPE_TEST_FULL").is_some() { WhenFull::Lose } else { WhenFull::Wait };
    let mut writer = TapeWriter::create(Path::new(&path), &Options { when_full, ..live(RECORDER_HALF) }).unwrap();
    for seed in 0.. {
        service(&mut writer, 2, seed).unwrap();
        std::fs::write(Path::new(&path).with_extension("rounds"), seed.to_string()).unwrap();
    }
}

const RECORDER_HALF: u32 = 32 << 10;

/// Reads what a recorder leaves that is killed after so many rounds.
fn killed(path: &Path, rounds: u64, is_full: bool) -> Contents {
    let rounds_path = path.with_extension("rounds");
    let _ = std::fs::remove_file(&rounds_path);
    // The header and the halves, and not a block more, in the shell's units of 512 bytes.
    let limit = if is_full { format!("ulimit -f {};", 1 + 2 * RECORDER_HALF / 512) } else { String::new() };
    let mut command = Command::new("sh");
    command.args([
        "-c",
        &format!("trap '' XFSZ; {limit} exec \"$0\" --exact second_reader::child_that_records_until_killed"),
    ]);
    command.arg(std::env::current_exe().unwrap()).env("KTAPE_TEST_SECOND_READER", path).stdout(Stdio::null());
    if is_full {
        command.env("KTAPE_TEST_FULL", "1");
    }
    let mut child = command.spawn().unwrap();
    while std::fs::read_to_string(&rounds_path).ok().and_then(|text| text.parse().ok()).unwrap_or(0) < rounds {
        assert!(child.try_wait().unwrap().is_none(), "the recorder stopped by itself");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let contents = read_twice(path).unwrap();
    assert_eq!(contents.damage, []);
    contents
}

#[cfg(target_os = "linux")]
#[test]
fn what_a_killed_recorder_leaves_reads_the_same() {
    if !installed() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("killed.ktape");
    for rounds in 1..4 {
        let contents = killed(&path, rounds, false);
        // On a busy machine the recorder loses some, and may have sealed the last just when it was killed.
        let lost: u64 = contents.events.loss.count.iter().sum();
        assert!(contents.events.kernel.len() as u64 + lost > 300 && !contents.events.kernel.is_empty());
    }
    let contents = killed(&path, 3, true);
    let tape = Tape::open(&path).unwrap();
    assert_eq!(tape.blocks(), []);
    assert!(contents.events.loss.count.iter().sum::<u64>() > 1000, "{:?}", contents.events.loss);
}

/// Bytes changed at chance, and tapes cut short: both readers give up the same rows.
#[test]
fn damaged_tapes_read_the_same() {
    if !installed() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("damaged.ktape");
    let mut random = Random::new(11);
    let mut damaged = 0;
    for options in [Options::batch("test"), live(32 << 10)] {
        killed_tape(&path, &options, every_kind);
        let whole = std::fs::read(&path).unwrap();
        let blocks: Vec<u64> = Tape::open(&path).unwrap().blocks().iter().map(|block| block.offset).collect();
        // The header of each block, its directory, its payload; then anywhere.
        let mut places: Vec<usize> =
            blocks.iter().flat_map(|at| [0, 16, 70, 600].map(|in_it| *at as usize + in_it)).collect();
        places.extend((0..16).map(|_| random.next_u64() as usize % whole.len()));
        // The heads of the halves, and a record in each.
        let half = options.half_bytes as usize;
        let heads = [0, 8, 12, 16, 20, 24, 28, 34, 38, 60, 900].into_iter().filter(|_| options.staged);
        let staged: Vec<usize> = heads.flat_map(|at| [512 + at, 512 + half + at]).collect();
        // Without the last block its rows are in its half, and those of the other half follow them.
        let cut = &whole[..*blocks.last().unwrap() as usize];
        let cases = places.iter().map(|&place| (place, &whole[..])).chain(staged.iter().map(|&place| (place, cut)));
        for (place, whole) in cases {
            let mut bytes = whole.to_vec();
            bytes[place] ^= 1 << (random.next_u64() % 8);
            std::fs::write(&path, &bytes).unwrap();
            damaged += usize::from(read_twice(&path).is_none_or(|contents| !contents.damage.is_empty()));
            if place % 3 == 0 {
                std::fs::write(&path, &whole[..place]).unwrap();
                read_twice(&path);
            }
        }
    }
    assert!(damaged > 20, "{damaged} tapes were damaged");
}

#[test]
fn a_real_trace_reads_the_same() {
    let Some(shared) = common::shared() else { return };
    if !installed() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("real.ktape");
    for trace in [
        "AMD-AGI+TraceLens/tests/traces/b200/eager_trace.json.gz",
        "AMD-AGI+TraceLens/tests/traces/inference/vllm_decode_full/graph_execution.json.gz",
    ] {
        let trace = shared.join("traces").join(trace);
        let output =
            analyze(["import".as_ref(), trace.as_os_str(), "-o".as_ref(), path.as_os_str(), "--force".as_ref()]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(read_twice(&path).unwrap().events.kernel.len() > 10, "{}", trace.display());
    }
}
