//! `analyze verify` from its user's side: what it says of each sort of damage, and what a repair keeps.

use std::fs;
use std::path::{Path, PathBuf};

use ktape_fixtures::decode_loop::{DecodeLoop, decode_loop};
use ktape_format::definition::{Frame, KernelName, Shape, Stack};
use ktape_format::event::{Kernel, Launch, Loss, Mark, OffCpu, Sync, Tally};
use ktape_format::header::ClockKind;
use ktape_format::recording::Name;
use ktape_format::rollup::Digest;
use ktape_format::{Contents, Options, Row, Sink, Table, Tape, TapeWriter, Wanted};
use serde_json::Value;

use crate::checksums::seal_block;
use crate::common::{analyze, shared};
use crate::forge::{Section, block, columns, front, varint};

/// Rows of one kind in one block of [`three_blocks`].
const ROWS: u64 = 10;

/// Three blocks: each defines a kernel with its shape and stack, and has launches and kernels of them and of the first.
fn fill(writer: &mut TapeWriter, sealed: u64) {
    for part in 0..3_u64 {
        let name = writer.string(&format!("kernel_{part}")).unwrap();
        let kernel = writer.define(KernelName { name, module: 0 }).unwrap();
        let shape = writer.define(Shape { kernel, grid_x: 1, ..Shape::default() }).unwrap();
        let frame = writer.define(Frame { name, line: 7, ..Frame::default() }).unwrap();
        let stack = writer.define(Stack { parent: part as u32, frame, line: 7 }).unwrap();
        for row in 0..ROWS {
            let start_ns = (1000 * part + 10 * row) as i64 + 5_000;
            let correlation = 1 + ROWS * part + row;
            let shape = if row % 2 == 0 { shape } else { 1 };
            writer.event(Launch { start_ns, duration_ns: 2, correlation, shape, stack, ..Launch::default() }).unwrap();
            let kernel = Kernel { start_ns: start_ns + 5, duration_ns: 20, correlation, shape, ..Kernel::default() };
            writer.event(kernel).unwrap();
        }
        if part < sealed {
            writer.seal().unwrap();
        }
    }
}

fn three_blocks() -> Vec<u8> {
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut writer = TapeWriter::create(file.path(), &Options::batch("test")).unwrap();
    fill(&mut writer, 3);
    writer.finish().unwrap();
    fs::read(file.path()).unwrap()
}

/// A tape whose writer was killed when so many blocks were sealed.
fn killed(sealed: u64) -> Vec<u8> {
    let file = tempfile::NamedTempFile::new().unwrap();
    let options = Options { half_bytes: 65_536, ..Options::live("test", ClockKind::Monotonic, "") };
    let mut writer = TapeWriter::create(file.path(), &options).unwrap();
    fill(&mut writer, sealed);
    fs::read(file.path()).unwrap()
}

/// Flips a bit at an offset within block `index`.
fn with_flipped_bit(mut tape: Vec<u8>, index: usize, at: u64) -> Vec<u8> {
    let offset = Tape::from_bytes(tape.clone()).unwrap().blocks()[index].offset + at;
    tape[offset as usize] ^= 1;
    tape
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        fs::write(self.path(name), bytes).unwrap();
        self.path(name)
    }
}

fn verify(tape: &Path) -> (Value, Option<i32>) {
    let output = analyze(["verify", tape.to_str().unwrap(), "--json"]);
    let error = String::from_utf8_lossy(&output.stderr);
    (serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("no JSON, but {error}")), output.status.code())
}

fn repair(tape: &Path, into: &Path) -> (Value, Option<i32>) {
    let arguments = ["verify", tape.to_str().unwrap(), "--json", "--repair", "-o", into.to_str().unwrap()];
    let output = analyze(arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    (serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("no JSON, but {error}")), output.status.code())
}

fn text(arguments: &[&str]) -> String {
    let output = analyze(arguments);
    String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap()
}

fn kinds(report: &Value) -> Vec<&str> {
    let mut kinds: Vec<&str> =
        report["findings"].as_array().unwrap().iter().map(|finding| finding["kind"].as_str().unwrap()).collect();
    kinds.dedup();
    kinds
}

fn contents(tape: &Path) -> Contents {
    let contents = Tape::open(tape).unwrap().read(&Wanted::default()).unwrap();
    assert_eq!(contents.damage, []);
    contents
}

fn dump(tape: &Path) -> Vec<u8> {
    analyze(["dump", tape.to_str().unwrap()]).stdout
}

/// How many rows of a table a repair left out; of all if it is `None`.
fn left_out(repaired: &Value, table: Option<u16>) -> u64 {
    let rows = repaired["repaired"]["left_out"].as_array().unwrap();
    let of_table = rows.iter().filter(|row| table.is_none_or(|table| row["table"] == table));
    of_table.map(|row| row["count"].as_u64().unwrap()).sum()
}

#[test]
fn a_sound_tape_is_said_to_be_and_its_repair_is_the_same_in_dump() {
    let folder = Folder::new();
    let path = folder.path("loop.ktape");
    let mut writer = TapeWriter::create(&path, &Options::batch("test")).unwrap();
    decode_loop(&mut writer, &DecodeLoop { steps: 3, context: 64, seed: 3 }).unwrap();
    let written = writer.finish().unwrap();
    let (report, code) = verify(&path);
    assert_eq!((code, &report["verdict"], &report["closed"]), (Some(0), &"sound".into(), &true.into()), "{report}");
    assert_eq!((&report["events"], &report["definitions"]), (&written.events.into(), &written.definitions.into()));
    assert_eq!(report["findings"], Value::Array(vec![]));
    let said = text(&["verify", path.to_str().unwrap()]);
    assert!(said.contains(": sound: ") && said.lines().count() == 1, "{said}");
    let whole = folder.path("whole.ktape");
    let (repaired, code) = repair(&path, &whole);
    assert_eq!((code, left_out(&repaired, None)), (Some(0), 0));
    assert_eq!(dump(&whole), dump(&path));
    assert_eq!(contents(&whole).definitions, contents(&path).definitions);
    assert_eq!(verify(&whole).1, Some(0));
}

#[test]
fn what_an_importer_writes_is_sound() {
    let folder = Folder::new();
    let kineto = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/kineto");
    let mut sources: Vec<PathBuf> =
        ["modern.json", "hip.json", "schema2021.json", "to_repair.json"].map(|name| kineto.join(name)).to_vec();
    if let Some(shared) = shared() {
        let traces = shared.join("traces/AMD-AGI+TraceLens/tests/traces");
        sources.push(traces.join("b200/eager_trace.json.gz"));
    }
    for (number, source) in sources.iter().enumerate() {
        let path = folder.path(&format!("{number}.ktape"));
        let output = analyze(["import".as_ref(), source.as_os_str(), "-o".as_ref(), path.as_os_str()]);
        assert!(output.status.success(), "{}", source.display());
        let (report, code) = verify(&path);
        assert_eq!((code, &report["verdict"]), (Some(0), &"sound".into()), "{}: {report}", source.display());
    }
}

/// Its rows are numbers in a row, which no program would write: everything but their meaning is sound.
#[test]
fn the_tape_of_version_1_0_has_whole_bytes_and_made_up_ids() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/tapes/v1.0.ktape");
    let (report, code) = verify(&path);
    assert_eq!((code, kinds(&report)), (Some(1), vec!["undefined_id", "order", "unknown_code"]), "{report}");
    let folder = Folder::new();
    let (repaired, code) = repair(&path, &folder.path("whole.ktape"));
    assert_eq!(code, Some(3));
    let (rows, kept) = (&report["events"], &repaired["repaired"]["events"]);
    let loss_rows = repaired["repaired"]["left_out"].as_array().unwrap().len() as u64;
    let events: u64 = (1..256).map(|table| left_out(&repaired, Some(table))).sum();
    assert_eq!(rows.as_u64().unwrap(), kept.as_u64().unwrap() - loss_rows + events, "each is kept or counted");
    assert_eq!(verify(&folder.path("whole.ktape")).1, Some(3));
}

#[test]
fn a_tape_that_says_that_events_were_lost_is_sound_with_losses() {
    let folder = Folder::new();
    let path = folder.path("run.ktape");
    let mut writer = TapeWriter::create(&path, &Options::batch("test")).unwrap();
    let cause = writer.string("the ring buffer was full").unwrap();
    for count in [40, 2] {
        writer.event(Loss { count, cause, ..Loss::default() }).unwrap();
    }
    writer.finish().unwrap();
    let (report, code) = verify(&path);
    assert_eq!((code, &report["verdict"], &report["lost"]), (Some(3), &"losses".into(), &42.into()));
    assert_eq!(report["losses"]["the ring buffer was full"], 42);
    assert!(text(&["verify", path.to_str().unwrap()]).contains("the ring buffer was full 42"));
    assert_eq!(repair(&path, &folder.path("again.ktape")).1, Some(3));
}

#[test]
fn a_writer_that_was_killed_leaves_a_sound_tape() {
    let folder = Folder::new();
    let whole = folder.file("whole.ktape", &three_blocks());
    for sealed in 0..=3 {
        let path = folder.file("killed.ktape", &killed(sealed));
        let (report, code) = verify(&path);
        assert_eq!(
            (code, &report["verdict"], &report["closed"]),
            (Some(0), &"sound".into(), &false.into()),
            "{report}"
        );
        assert_eq!((&report["events"], &report["staged_rows"]), (&60.into(), &(25 * (3 - sealed)).into()));
        assert!(text(&["verify", path.to_str().unwrap()]).contains("not closed: its writer was killed or is at work"));
        let closed = folder.path(&format!("closed{sealed}.ktape"));
        assert_eq!(repair(&path, &closed).1, Some(0));
        assert_eq!(dump(&closed), dump(&whole));
        assert_eq!(verify(&closed).0["closed"], true);
    }
    // The last block is torn, but the half that it was written from is there.
    let mut torn = killed(2);
    torn.truncate(torn.len() - 100);
    let (report, code) = verify(&folder.file("torn.ktape", &torn));
    assert_eq!((code, &report["events"]), (Some(0), &60.into()), "{report}");
}

/// Each damaged tape with the sorts of findings, and where the first of them is said to be.
fn damaged_tapes() -> Vec<(&'static str, Vec<u8>, Vec<&'static str>)> {
    let tape = three_blocks();
    let blocks = Tape::from_bytes(tape.clone()).unwrap().blocks().to_vec();
    let at = |index: usize| blocks[index].offset as usize;
    let launches = blocks[1].sections.iter().find(|section| section.table == Launch::KIND).unwrap();
    let in_launches = launches.range.start - blocks[1].offset;

    let mut without_middle = tape.clone();
    without_middle[at(1)..at(2)].fill(0);
    let cut_out = [&tape[..at(1)], &tape[at(2)..]].concat();
    let mut bad_list = tape.clone();
    // Its number of columns.
    bad_list[launches.range.start as usize] = 0x7f;
    seal_block(&mut bad_list[at(1)..]);
    let mut other_times = tape.clone();
    other_times[at(1) + 24..at(1) + 32].copy_from_slice(&1_i64.to_le_bytes());
    seal_block(&mut other_times[at(1)..]);
    let twice_ended = [&tape[..], &block(4, &[])].concat();

    vec![
        ("a bit in a payload", with_flipped_bit(tape.clone(), 1, in_launches), vec!["unreadable", "lost_definition"]),
        ("a bit in a header", with_flipped_bit(tape.clone(), 1, 30), vec!["unreadable", "lost_definition"]),
        ("a bit in the last header", with_flipped_bit(tape.clone(), 2, 30), vec!["unreadable"]),
        ("zeros over a block", without_middle, vec!["unreadable", "lost_definition"]),
        ("a block cut out", cut_out, vec!["unreadable"]),
        ("a file cut short", tape[..at(2) + 100].to_vec(), vec!["unreadable"]),
        ("a table's list of columns", bad_list, vec!["unreadable"]),
        ("a header that has other times", other_times, vec!["directory"]),
        ("a block behind the end mark", twice_ended, vec!["end_mark"]),
    ]
}

#[test]
fn damage_is_found_and_all_that_is_sound_can_be_kept() {
    let folder = Folder::new();
    let sound = contents(&folder.file("sound.ktape", &three_blocks()));
    for (what, bytes, expected) in damaged_tapes() {
        let path = folder.file("damaged.ktape", &bytes);
        let (report, code) = verify(&path);
        assert_eq!((code, &report["verdict"]), (Some(1), &"damaged".into()), "{what}: {report}");
        assert_eq!(kinds(&report), expected, "{what}: {report}");
        let offset = report["findings"][0]["offset"].as_u64();
        assert!(offset.is_some_and(|offset| offset < bytes.len() as u64), "{what}: {report}");
        let said = text(&["verify", path.to_str().unwrap()]);
        assert!(said.contains("damaged") && said.contains(&format!("byte {}", offset.unwrap())), "{what}: {said}");

        let whole = folder.path("whole.ktape");
        let _ = fs::remove_file(&whole);
        let (repaired, code) = repair(&path, &whole);
        let losses = left_out(&repaired, None) > 0 || what == "a file cut short" || what.contains("last header");
        let (again, again_code) = verify(&whole);
        assert_eq!(again_code, code, "{what}: {again}");
        assert_eq!(code, Some(if losses { 3 } else { 0 }), "{what}: {repaired}");
        let kept = contents(&whole);
        // Ids are as they were: what is there is what was there under them.
        for (id, string) in kept.definitions.strings.iter().enumerate().take(sound.definitions.strings.len()) {
            let is_cause = string.starts_with("damaged on the tape: ");
            assert!(string.is_empty() || is_cause || *string == sound.definitions.strings[id], "{what}: {string}");
        }
        for launch in kept.events.launch.rows() {
            assert!(sound.events.launch.rows().any(|row| row == launch), "{what}: {launch:?}");
            let (name, was) = (kept.definitions.kernel_name(launch.shape), sound.definitions.kernel_name(launch.shape));
            assert!(name.is_empty() || name == was, "{what}: {name} was {was}");
        }
        for kernel in kept.events.kernel.rows() {
            assert!(sound.events.kernel.rows().any(|row| row == kernel), "{what}: {kernel:?}");
        }
        let said = text(&["dump", whole.to_str().unwrap(), "--kind", "loss"]);
        assert_eq!(said.contains("damaged on the tape: "), losses, "{what}: {said}");
    }
}

#[test]
fn what_a_lost_block_held_is_counted_by_table_and_time() {
    let folder = Folder::new();
    let bytes = damaged_tapes().into_iter().find(|(what, ..)| *what == "a bit in a payload").unwrap().1;
    let path = folder.file("damaged.ktape", &bytes);
    let (repaired, code) = repair(&path, &folder.path("whole.ktape"));
    assert_eq!(code, Some(3));
    for (table, count) in [(Launch::KIND, ROWS), (Kernel::KIND, ROWS), (Shape::KIND, 1), (256, 1), (Mark::KIND, 0)] {
        assert_eq!(left_out(&repaired, Some(table)), count, "table {table}: {repaired}");
    }
    let kept = contents(&folder.path("whole.ktape"));
    let launches = kept.events.loss.rows().find(|row| row.kind == Launch::KIND).unwrap();
    assert_eq!((launches.start_ns, launches.duration_ns, launches.count), (6_000, 92, ROWS));
    assert_eq!((kept.events.launch.len(), kept.definitions.shapes.len()), (20, 3));
    assert_eq!(kept.definitions.shapes.row(1), Shape::default(), "an empty one in its place");
    assert_eq!(kept.definitions.kernel_name(3), "kernel_2");
    let info: Value =
        serde_json::from_slice(&analyze(["info", folder.path("whole.ktape").to_str().unwrap(), "--json"]).stdout)
            .unwrap();
    assert_eq!(info["lost"], left_out(&repaired, None));
}

#[test]
fn a_loss_of_unknown_number_lies_between_its_neighbours_and_is_said() {
    let folder = Folder::new();
    let bytes = damaged_tapes().into_iter().find(|(what, ..)| *what == "a bit in a header").unwrap().1;
    let path = folder.file("damaged.ktape", &bytes);
    let whole = folder.path("whole.ktape");
    repair(&path, &whole);
    let kept = contents(&whole);
    let unknown = kept.events.loss.rows().find(|row| row.count == 0).unwrap();
    // The last kernel of block 0 ends, the first launch of block 2 begins.
    assert_eq!((unknown.start_ns, unknown.duration_ns, unknown.kind), (5_115, 1_885, 0));
    let said = text(&["info", whole.to_str().unwrap()]);
    assert!(said.contains("a number not known at") && said.contains("damaged on the tape: byte"), "{said}");
}

/// The ids of lost definitions that no later block follows are in use, and so known to have been.
#[test]
fn events_keep_ids_of_lost_definitions_that_none_follow() {
    let folder = Folder::new();
    let path = folder.path("run.ktape");
    let mut writer = TapeWriter::create(&path, &Options::batch("test")).unwrap();
    let names: Vec<u32> = ["a", "b", "c"].map(|name| writer.string(name).unwrap()).to_vec();
    writer.seal().unwrap();
    let late = writer.string("d").unwrap();
    writer.seal().unwrap();
    for name in names.into_iter().chain([late]) {
        writer.event(Mark { start_ns: 5, name, ..Mark::default() }).unwrap();
    }
    writer.finish().unwrap();
    let bytes = with_flipped_bit(fs::read(&path).unwrap(), 1, 30);
    let path = folder.file("damaged.ktape", &bytes);
    let (report, _) = verify(&path);
    assert_eq!(kinds(&report), ["unreadable", "lost_definition"], "{report}");
    repair(&path, &folder.path("whole.ktape"));
    let kept = contents(&folder.path("whole.ktape"));
    assert_eq!(kept.events.mark.name, [1, 2, 3, 4]);
    assert_eq!(kept.definitions.strings[..4].iter().map(|s| &**s).collect::<Vec<_>>(), ["a", "b", "c", ""]);
    assert_eq!(verify(&folder.path("whole.ktape")).1, Some(3));
}

/// A block whose checksums hold and whose contents do not: what no writer makes.
#[test]
fn forged_contents_are_told_apart() {
    let constant = |number: u64, value: u64| (number, [vec![0], varint(value)].concat(), Vec::new());
    let section = |table: u16, rows: u64, list: &[(u64, Vec<u8>, Vec<u8>)]| Section {
        table: u64::from(table),
        rows,
        first_id: u64::from(table >= 256),
        bytes: columns(list),
    };
    let all_text = |text: &[u8]| (1, varint((text.len() as u64) << 2), text.to_vec());
    let strings = |bytes: &[u8]| section(256, 1, &[constant(0, bytes.len() as u64), all_text(bytes)]);
    let end = |sections: &[Section]| {
        let mut end = block(1, sections);
        end[8] = 2;
        seal_block(&mut end);
        end
    };
    let cases = [
        ("an id of nothing", vec![section(Mark::KIND, 3, &[constant(2, 7)])], vec!["undefined_id"], 3),
        ("a stack that is its own caller", vec![section(Stack::KIND, 3, &[constant(0, 3)])], vec!["order"], 3),
        ("a start that the directory lacks", vec![section(Mark::KIND, 3, &[constant(0, 9)])], vec!["directory"], 0),
        ("no end", vec![section(Launch::KIND, 3, &[constant(1, u64::MAX)])], vec!["directory", "time"], 3),
        ("a table of the future", vec![section(99, 3, &[constant(0, 0)])], vec!["no_such_table"], 3),
        ("a column of the future", vec![section(Mark::KIND, 3, &[constant(99, 1)])], vec!["no_such_table"], 3),
        ("a code of the future", vec![section(Kernel::KIND, 3, &[constant(7, 99)])], vec!["unknown_code"], 0),
        ("no UTF-8", vec![strings(b"a\xff")], vec!["replaced_text"], 0),
        ("a sound string", vec![strings(b"ab")], vec![], 0),
    ];
    let folder = Folder::new();
    for (what, sections, expected, repaired_code) in cases {
        let path = folder.file("forged.ktape", &[front(0), block(0, &sections), end(&[])].concat());
        let (report, code) = verify(&path);
        assert_eq!(kinds(&report), expected, "{what}: {report}");
        let remarks = ["unknown_code", "replaced_text"];
        let damaged = expected.iter().any(|kind| !remarks.contains(kind));
        assert_eq!(code, Some(i32::from(damaged)), "{what}: {report}");
        let whole = folder.path("whole.ktape");
        let _ = fs::remove_file(&whole);
        let (repaired, code) = repair(&path, &whole);
        assert_eq!((code, verify(&whole).1), (Some(repaired_code), code), "{what}: {repaired}");
    }
    let path = folder.file("forged.ktape", &[front(0), end(&[section(Mark::KIND, 3, &[])])].concat());
    let (report, code) = verify(&path);
    assert!(code == Some(1) && kinds(&report).contains(&"end_mark"), "{report}");
    let nothing = [section(Mark::KIND, 3, &[constant(2, 7)])];
    let path = folder.file("forged.ktape", &[front(0), block(0, &nothing), end(&[])].concat());
    let said = text(&["verify", path.to_str().unwrap()]);
    assert!(said.contains("byte 512, block 0, mark.name, row 0 and 2 more: there is no string 7"), "{said}");
}

#[test]
fn a_newer_tape_is_checked_and_not_repaired() {
    let folder = Folder::new();
    let mut tape = three_blocks();
    tape[10] = 7;
    let crc = crc32c::crc32c(&tape[..508]);
    tape[508..512].copy_from_slice(&crc.to_le_bytes());
    let path = folder.file("newer.ktape", &tape);
    assert_eq!(verify(&path).1, Some(0));
    let said = text(&["verify", path.to_str().unwrap(), "--repair", "-o", folder.path("x").to_str().unwrap()]);
    assert!(said.contains("format 2.7") && said.contains("update ktape"), "{said}");
    assert!(!folder.path("x").exists());
}

#[test]
fn many_findings_do_not_fill_the_screen_and_are_all_in_json() {
    let folder = Folder::new();
    let mut tape = front(0);
    for sequence in 0..50 {
        let marks = columns(&[(2, vec![0, 7], Vec::new())]);
        tape.extend(block(sequence, &[Section { table: Mark::KIND.into(), rows: 3, first_id: 0, bytes: marks }]));
    }
    let path = folder.file("many.ktape", &tape);
    let said = text(&["verify", path.to_str().unwrap()]);
    assert!(said.contains("(50):") && said.contains("and 30 more") && said.lines().count() < 30, "{said}");
    assert_eq!(verify(&path).0["findings"].as_array().unwrap().len(), 50);
}

#[test]
fn what_is_no_tape_is_refused_in_one_line() {
    let folder = Folder::new();
    let json = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/kineto/modern.json");
    let mut header = three_blocks();
    header[100] ^= 1;
    for (path, expected) in [
        (json, "is not a tape; `analyze import` makes one"),
        (folder.file("empty.ktape", b""), "is empty"),
        (folder.file("cut.ktape", b"\x89KTAP\r\n\x1a12345"), "ends within its header"),
        (folder.file("header.ktape", &header), "does not match its checksum"),
        (folder.path("absent.ktape"), "No such file"),
        (folder.0.path().to_owned(), "directory"),
    ] {
        let output = analyze(["verify", path.to_str().unwrap()]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), error.lines().count()), (Some(1), 1), "{error}");
        assert!(error.contains(path.to_str().unwrap()) && error.contains(expected), "{error}");
    }
    for wrong in
        [&["verify"][..], &["verify", "x", "--repair"], &["verify", "x", "-o", "y"], &["verify", "x", "--force"]]
    {
        assert_eq!(analyze(wrong).status.code(), Some(2), "{wrong:?}");
    }
}

/// The intervals of a recorder's account.
const INTERVAL_NS: u64 = 1 << 33;

/// A recorder's tape of three intervals, each with four launches and a wait on two processors, and two launches that were lost;
/// without the row of a launch in interval `without`. Each interval is a block.
fn recorded(writer: &mut TapeWriter, without: Option<u64>) {
    let cause = writer.string("the ring buffer was full").unwrap();
    for interval in 0..3 {
        let begin_ns = ((10 + interval) * INTERVAL_NS) as i64;
        for row in 0..4 {
            if without != Some(interval) || row != 2 {
                let correlation = 1 + 4 * interval + row;
                writer.event(Launch { start_ns: begin_ns + row as i64, correlation, ..Launch::default() }).unwrap();
            }
        }
        writer.event(Sync { start_ns: begin_ns + 9, duration_ns: INTERVAL_NS, ..Sync::default() }).unwrap();
        let loss = Loss { start_ns: begin_ns, count: 2, kind: Launch::KIND, cause, ..Loss::default() };
        writer.event(loss).unwrap();
        for (cpu, kind, seen, written, lost) in
            [(0, Launch::KIND, 5, 3, 2), (1, Launch::KIND, 1, 1, 0), (1, Sync::KIND, 1, 1, 0), (0, 0, 0, 0, 0)]
        {
            let duration_ns = INTERVAL_NS;
            let row = Tally { start_ns: begin_ns, duration_ns, cpu, kind, seen, written, lost, left_out: 0 };
            writer.event(row).unwrap();
        }
        writer.seal().unwrap();
    }
}

fn recording(path: &Path, without: Option<u64>) {
    let mut writer = TapeWriter::create(path, &Options::batch("test")).unwrap();
    recorded(&mut writer, without);
    writer.finish().unwrap();
}

#[test]
fn a_recording_shows_what_became_of_all_that_was_seen() {
    let folder = Folder::new();
    let path = folder.path("run.ktape");
    recording(&path, None);
    let (report, code) = verify(&path);
    let complete = &report["completeness"];
    assert_eq!((code, &report["verdict"]), (Some(3), &"losses".into()), "{report}");
    assert_eq!(
        (&complete["holds"], &complete["closed"], &complete["missing"]),
        (&true.into(), &true.into(), &0.into())
    );
    let launches = &complete["by_kind"][0];
    let counts = ["seen", "written", "lost", "on_tape"].map(|key| launches[key].as_u64().unwrap());
    assert_eq!((&launches["kind"], counts), (&"launch".into(), [18, 12, 6, 12]));
    assert_eq!(complete["by_cpu"].as_array().unwrap().len(), 3);
    assert_eq!(complete["by_interval"].as_array().unwrap().len(), 6);
    let name = path.to_str().unwrap();
    let said = text(&["verify", name]);
    assert!(said.contains("complete: all that was seen is on the tape or told as lost"), "{said}");
    assert_eq!(said.lines().filter(|line| line.contains("launch ")).count(), 1, "{said}");
    assert_eq!(text(&["verify", name, "--by", "interval"]).lines().filter(|line| line.contains("launch ")).count(), 3);
    assert_eq!(text(&["verify", name, "--by", "cpu"]).lines().filter(|line| line.contains("launch ")).count(), 2);
    assert!(!text(&["info", name]).contains("not complete"));
}

#[test]
fn a_row_that_is_missing_from_a_recording_is_noticed() {
    let folder = Folder::new();
    let path = folder.path("forged.ktape");
    recording(&path, Some(1));
    let (report, code) = verify(&path);
    assert_eq!((code, &report["verdict"], kinds(&report)), (Some(1), &"damaged".into(), vec!["missing"]), "{report}");
    assert_eq!(report["completeness"]["missing"], 1);
    let what = report["findings"][0]["what"].as_str().unwrap();
    assert!(what.contains(&format!("from {} ns on", 11 * INTERVAL_NS)), "{what}");
    let name = path.to_str().unwrap();
    assert!(text(&["verify", name]).contains("not complete: 1 are missing"));
    let said = text(&["info", name]);
    assert!(said.lines().next().unwrap().contains("not complete: 1 calls are missing"), "{said}");
}

#[test]
fn a_stretch_off_the_processor_that_is_missing_is_noticed_where_it_ended() {
    let folder = Folder::new();
    for without in [None, Some(1)] {
        let path = folder.path(&format!("off {without:?}.ktape"));
        let mut writer = TapeWriter::create(&path, &Options::batch("test")).unwrap();
        for interval in 10..12 {
            let begin_ns = (interval * INTERVAL_NS) as i64;
            // It left long before, and came back in this interval.
            for duration_ns in [7 * INTERVAL_NS, 3, 1].into_iter().skip(usize::from(without == Some(interval - 10))) {
                let start_ns = begin_ns + 5 - duration_ns as i64;
                writer.event(OffCpu { start_ns, duration_ns, ..OffCpu::default() }).unwrap();
            }
            for (cpu, kind, seen, written, lost) in [(0, OffCpu::KIND, 4, 3, 1), (0, 0, 0, 0, 0)] {
                let duration_ns = INTERVAL_NS;
                let row = Tally { start_ns: begin_ns, duration_ns, cpu, kind, seen, written, lost, left_out: 0 };
                writer.event(row).unwrap();
            }
        }
        writer.finish().unwrap();
        let (report, code) = verify(&path);
        let missing = u64::from(without.is_some());
        assert_eq!(report["completeness"]["missing"], missing, "{report}");
        assert_eq!(code, Some(missing as i32));
        if without.is_some() {
            let what = report["findings"][0]["what"].as_str().unwrap();
            let expected = format!("off_cpu: 1 were written and are not there, from {} ns on", 11 * INTERVAL_NS);
            assert_eq!(what, expected);
        }
        // A rollup of it says the same.
        let directory = folder.path(&format!("recording {without:?}"));
        fs::create_dir(&directory).unwrap();
        let mut digest = Digest::default();
        digest.add_tape(&Tape::open(&path).unwrap()).unwrap();
        let name = Name { recording: "r".to_owned(), begin_s: 0, segments: (1, 1) };
        let mut rollup = TapeWriter::create(&directory.join(name.rollup()), &Options::batch("test")).unwrap();
        digest.write(&mut rollup).unwrap();
        rollup.finish().unwrap();
        let (report, code) = verify(&directory);
        assert_eq!((&report["completeness"]["missing"], code), (&missing.into(), Some(missing as i32)), "{report}");
    }
}

#[test]
fn a_recording_that_was_cut_off_is_proven_up_to_where_its_account_goes() {
    let folder = Folder::new();
    let path = folder.path("killed.ktape");
    let mut writer = TapeWriter::create(&path, &Options::live("test", ClockKind::Monotonic, "")).unwrap();
    recorded(&mut writer, None);
    // The next interval, of which the recorder did not come to tell.
    let start_ns = (13 * INTERVAL_NS) as i64;
    writer.event(Launch { start_ns, ..Launch::default() }).unwrap();
    drop(writer);
    let (report, code) = verify(&path);
    let complete = &report["completeness"];
    assert_eq!((code, &report["closed"], &complete["holds"]), (Some(3), &false.into(), &true.into()), "{report}");
    assert_eq!((&complete["proven_until_ns"], &complete["unproven"]), (&start_ns.into(), &1.into()));
}

#[test]
fn what_a_repair_leaves_out_of_a_recording_is_not_missing_twice() {
    let folder = Folder::new();
    let path = folder.path("run.ktape");
    recording(&path, None);
    let tape = Tape::from_bytes(fs::read(&path).unwrap()).unwrap();
    let launches =
        tape.blocks()[1].sections.iter().find(|section| section.table == Launch::KIND).unwrap().range.clone();
    let mut bytes = fs::read(&path).unwrap();
    bytes[launches.start as usize + 30] ^= 1;
    let damaged = folder.file("damaged.ktape", &bytes);
    // The block's account is lost with it: so nothing is missing, and nothing behind it proven.
    let until = |report: &Value| report["completeness"]["proven_until_ns"].as_u64();
    let (report, code) = verify(&damaged);
    assert_eq!((code, until(&report)), (Some(1), Some(11 * INTERVAL_NS)), "{report}");
    let whole = folder.path("whole.ktape");
    assert_eq!(repair(&damaged, &whole).1, Some(3));
    let (report, code) = verify(&whole);
    assert_eq!((code, until(&report)), (Some(3), Some(11 * INTERVAL_NS)), "{report}");
    assert_eq!((&report["completeness"]["holds"], &report["completeness"]["closed"]), (&true.into(), &false.into()));
}
