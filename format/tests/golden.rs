//! Tapes of every released version are read for ever: `fixtures/tapes/` has some of each, and here is what must come out
//! of them. `UPDATE_GOLDEN=1` writes those of the newest version.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use ktape_format::definition::{
    Context, DefinitionVisitor, Graph, GraphNode, Process, Shape, Stream, Thread, visit_definitions,
};
use ktape_format::event::{Event, Kernel, KindVisitor, Launch, OffCpu, Rollup, Tally, visit_kinds};
use ktape_format::header::TailKind;
use ktape_format::{Definition, Memory, Options, Row, Sink, Tape, TapeWriter, Wanted, codec};

/// What versions within a major one have added: the version, the table, and how many columns that had before.
const ADDED: [(u16, u16, usize); 5] =
    [(1, OffCpu::KIND, 0), (1, Rollup::KIND, 0), (1, Tally::KIND, 0), (1, Graph::KIND, 2), (1, GraphNode::KIND, 0)];

/// How many of a table's columns a minor version knows; 0 if it does not know the table.
fn known_columns<R: Row>(minor: u16) -> usize {
    let later = ADDED.iter().filter(|(version, kind, _)| *version > minor && *kind == R::KIND);
    later.map(|(.., columns)| *columns).min().unwrap_or(R::COLUMNS.len())
}

/// Three rows of every kind that a minor version knows, each column of each row another number, from `first` on.
fn one_of_everything<S: Sink>(sink: &mut S, minor: u16, first: u64) -> Result<(), S::Error> {
    struct Fill<'a, S>(&'a mut S, u16, u64);
    fn row<R: Row>(minor: u16, number: u64) -> R {
        let mut row = R::default();
        for column in 0..known_columns::<R>(minor) {
            row.set(column, (u64::from(R::KIND) * 31 + column as u64 * 7 + number) % 200);
        }
        row
    }
    impl<S: Sink> DefinitionVisitor for Fill<'_, S> {
        type Error = S::Error;
        fn visit<T: Definition>(&mut self) -> Result<(), S::Error> {
            let rows = if known_columns::<T>(self.1) > 0 { 3 } else { 0 };
            (self.2..self.2 + rows).try_for_each(|number| self.0.define(row::<T>(self.1, number)).map(drop))
        }
    }
    impl<S: Sink> KindVisitor for Fill<'_, S> {
        type Error = S::Error;
        fn visit<E: Event>(&mut self) -> Result<(), S::Error> {
            let rows = if known_columns::<E>(self.1) > 0 { 3 } else { 0 };
            (self.2..self.2 + rows).try_for_each(|number| self.0.event(row::<E>(self.1, number)))
        }
    }
    for string in ["kernel", "größer", "a longer name that comes twice, a longer name that comes twice"] {
        sink.string(string)?;
    }
    let mut fill = Fill(sink, minor, first);
    visit_definitions(&mut fill)?;
    visit_kinds(&mut fill)
}

/// Kernels of two processes as a GPU runs them: one behind the other on each stream, of durations that repeat by shape, in
/// ticks of 32 ns that a conversion of clocks blurs. What format 2 predicts such columns by is all on the tape so.
fn ticking<S: Sink>(sink: &mut S) -> Result<(), S::Error> {
    let mut random = 1_u64;
    let mut below = |limit: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % limit
    };
    let blurred = |ticks: u64, blur: u64| 32 * ticks - 1 + blur;
    let mut shapes = Vec::new();
    for grid_x in 1..=5 {
        shapes.push(sink.define(Shape { grid_x, block_x: 128, ..Shape::default() })?);
    }
    let mut streams = Vec::new();
    for pid in 1..=2 {
        let process = sink.define(Process { pid, ..Process::default() })?;
        let thread = sink.define(Thread { process, tid: pid })?;
        let context = sink.define(Context { process, native: 1, ..Context::default() })?;
        streams.push((thread, sink.define(Stream { context, native: 7, ..Stream::default() })?, 30_000_000));
    }
    for number in 0..300 {
        // A process has every third kernel, the other one the rest.
        let (thread, stream, end) = &mut streams[usize::from(number % 3 == 0)];
        let shape = number as usize * 7 % 11 % shapes.len();
        let (start, ticks) = (*end + 40 + below(200), (400 << shape) + below(200));
        *end = start + ticks;
        let (start_ns, duration_ns) = (blurred(start, below(3)), blurred(ticks, below(3)));
        let start_ns = start_ns as i64;
        let (thread, stream, shape) = (*thread, *stream, shapes[shape]);
        let launch =
            Launch { start_ns: start_ns - 9000, duration_ns: 2500 + number % 700, thread, ..Launch::default() };
        sink.event(Launch { correlation: number, stream, shape, ..launch })?;
        sink.event(Kernel {
            start_ns,
            duration_ns,
            correlation: number,
            stream,
            shape,
            timing: 1,
            ..Kernel::default()
        })?;
    }
    Ok(())
}

fn golden(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/tapes")).join(name)
}

fn is_updated() -> bool {
    std::env::var_os("UPDATE_GOLDEN").is_some()
}

/// The tape, on which nothing is damaged. What is read counts, never the bytes: another encoder makes others of it.
fn read(name: &str, expected: &Memory) -> Tape {
    let tape = Tape::open(&golden(name)).unwrap();
    let contents = tape.read(&Wanted::default()).unwrap();
    assert_eq!(contents.damage, []);
    assert_eq!(contents.definitions, expected.definitions);
    assert_eq!(contents.events, expected.events);
    tape
}

#[test]
fn the_tape_of_version_1_0_reads_as_it_was_written() {
    let mut expected = Memory::default();
    let Ok(()) = one_of_everything(&mut expected, 0, 0);
    let tape = read("v1.0.ktape", &expected);
    assert_eq!((tape.header().major, tape.is_closed()), (1, true));
}

#[test]
fn the_tape_of_version_2_0_reads_as_it_was_written() {
    let mut expected = Memory::default();
    let Ok(()) = ticking(&mut expected).and_then(|()| one_of_everything(&mut expected, 0, 0));
    let tape = read("v2.0.ktape", &expected);
    assert_eq!((tape.header().major, tape.header().minor, tape.is_closed()), (2, 0, true));
}

/// As its writer left it when it was killed: a block, and a half with records that no block has.
#[test]
fn the_open_tape_of_version_2_0_reads_as_it_was_written() {
    let mut expected = Memory::default();
    let Ok(()) = one_of_everything(&mut expected, 0, 0).and_then(|()| one_of_everything(&mut expected, 0, 50));
    let tape = read("v2.0-open.ktape", &expected);
    assert_eq!((tape.header().major, tape.header().tail, tape.is_closed()), (2, TailKind::Mapped, false));
    assert_eq!(tape.blocks().len(), 1);
}

#[test]
fn the_tape_of_version_2_1_reads_as_it_was_written() {
    let name = "v2.1.ktape";
    if is_updated() {
        let mut writer = TapeWriter::create(&golden(name), &Options::batch("ktape 0.1.0")).unwrap();
        ticking(&mut writer).unwrap();
        writer.seal().unwrap();
        one_of_everything(&mut writer, 1, 0).unwrap();
        writer.finish().unwrap();
    }
    let mut expected = Memory::default();
    let Ok(()) = ticking(&mut expected).and_then(|()| one_of_everything(&mut expected, 1, 0));
    let tape = read(name, &expected);
    assert_eq!((tape.header().major, tape.header().minor, tape.is_closed()), (2, 1, true));
    let bytes = std::fs::read(golden(name)).unwrap();
    let columns = tape.blocks().iter().flat_map(|block| codec::columns(&bytes[block.offset as usize..]).unwrap());
    let codings: BTreeSet<u8> = columns.map(|column| column.coding).collect();
    assert!(codings.is_superset(&BTreeSet::from([0, 1, 4, 5, 6])), "the tape has every coding: {codings:?}");
}

#[test]
fn the_open_tape_of_version_2_1_reads_as_it_was_written() {
    let name = "v2.1-open.ktape";
    if is_updated() {
        let options = Options { staged: true, half_bytes: 16 << 10, ..Options::batch("ktape 0.1.0") };
        let open = tempfile::NamedTempFile::new().unwrap();
        let mut writer = TapeWriter::create(open.path(), &options).unwrap();
        one_of_everything(&mut writer, 1, 0).unwrap();
        writer.seal().unwrap();
        one_of_everything(&mut writer, 1, 50).unwrap();
        std::fs::copy(open.path(), golden(name)).unwrap();
    }
    let mut expected = Memory::default();
    let Ok(()) = one_of_everything(&mut expected, 1, 0).and_then(|()| one_of_everything(&mut expected, 1, 50));
    let tape = read(name, &expected);
    assert_eq!((tape.header().major, tape.header().tail, tape.is_closed()), (2, TailKind::Mapped, false));
    assert_eq!(tape.blocks().len(), 1);
}
