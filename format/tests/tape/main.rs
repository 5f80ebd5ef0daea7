//! The tape from its user's side: what goes in comes out, whole or as far as the file goes. One binary, one module a
//! subject; here is what they share.

mod damage;
#[cfg(target_os = "linux")]
mod disk;
mod flips;
mod growing;
#[cfg(unix)]
mod kill;
mod lock;
#[cfg(target_os = "linux")]
mod losing;
mod round_trip;
mod threads;
mod wanted;

use std::io::Write as _;

use ktape_format::definition::{DefinitionVisitor, Frame, Process, Stack, Thread, visit_definitions};
use ktape_format::event::{Event, Events, KindVisitor, Launch, visit_kinds};
use ktape_format::{Contents, Definition, Options, Row, Sink, Table, Tape, TapeError, TapeWriter, Wanted};

/// A row of any kind from a stream of numbers; every bit pattern of every column can come.
fn row<R: Row>(numbers: &mut impl Iterator<Item = u64>) -> R {
    let mut row = R::default();
    for column in 0..R::COLUMNS.len() {
        row.set(column, numbers.next().unwrap_or(0));
    }
    row
}

/// Writes `rows` rows of every kind of definition and event into a sink, from a stream of numbers.
struct Everything<'a, S: Sink, I> {
    sink: &'a mut S,
    numbers: I,
    rows: usize,
}

impl<S: Sink, I: Iterator<Item = u64>> KindVisitor for Everything<'_, S, I> {
    type Error = S::Error;
    fn visit<E: Event>(&mut self) -> Result<(), S::Error> {
        for _ in 0..self.rows {
            let row = row::<E>(&mut self.numbers);
            self.sink.event(row)?;
        }
        Ok(())
    }
}

impl<S: Sink, I: Iterator<Item = u64>> DefinitionVisitor for Everything<'_, S, I> {
    type Error = S::Error;
    fn visit<T: Definition>(&mut self) -> Result<(), S::Error> {
        for _ in 0..self.rows {
            let row = row::<T>(&mut self.numbers);
            self.sink.define(row)?;
        }
        Ok(())
    }
}

pub(crate) fn write_everything<S: Sink>(
    sink: &mut S,
    numbers: &[u64],
    strings: &[String],
    rows: usize,
) -> Result<(), S::Error> {
    for string in strings {
        sink.string(string)?;
    }
    let mut everything = Everything { sink, numbers: numbers.iter().copied().cycle(), rows };
    visit_definitions(&mut everything)?;
    visit_kinds(&mut everything)
}

/// NaNs do not equal themselves, so rows are compared by their bits.
pub(crate) fn same_events(a: &Events, b: &Events) -> bool {
    struct Same<'a>(&'a Events, &'a Events);
    impl KindVisitor for Same<'_> {
        type Error = ();
        fn visit<E: Event>(&mut self) -> Result<(), ()> {
            let (a, b) = (E::table(self.0), E::table(self.1));
            let bits = |row: E| (0..E::COLUMNS.len()).map(move |column| row.get(column));
            let same = a.len() == b.len() && a.rows().zip(b.rows()).all(|(a, b)| bits(a).eq(bits(b)));
            same.then_some(()).ok_or(())
        }
    }
    visit_kinds(&mut Same(a, b)).is_ok()
}

pub(crate) fn tape_of(options: &Options, fill: impl FnOnce(&mut TapeWriter) -> Result<(), TapeError>) -> Vec<u8> {
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut writer = TapeWriter::create(file.path(), options).unwrap();
    fill(&mut writer).unwrap();
    writer.finish().unwrap();
    std::fs::read(file.path()).unwrap()
}

pub(crate) fn staged(half_bytes: u32) -> Options {
    match half_bytes {
        0 => Options::batch("test"),
        _ => Options { staged: true, half_bytes, ..Options::batch("test") },
    }
}

/// Three blocks, each with definitions of its own and events that use them.
pub(crate) fn small_tape(options: &Options) -> Vec<u8> {
    tape_of(options, write_three_blocks)
}

/// The same, by a writer that was killed behind them.
pub(crate) fn small_killed_tape() -> Vec<u8> {
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut writer = TapeWriter::create(file.path(), &staged(4096)).unwrap();
    write_three_blocks(&mut writer).unwrap();
    std::fs::read(file.path()).unwrap()
}

fn write_three_blocks(writer: &mut TapeWriter) -> Result<(), TapeError> {
    for block in 0..3_i64 {
        let process = writer.define(Process { pid: 100 + block, ..Process::default() })?;
        let thread = writer.define(Thread { process, tid: block })?;
        let name = writer.string(&format!("function {block}"))?;
        let frame = writer.define(Frame { name, ..Frame::default() })?;
        let stack = writer.define(Stack { parent: 0, frame, line: 7 })?;
        for event in 0..20 {
            let start_ns = block * 1_000_000 + event * 1000;
            writer.event(Launch { start_ns, duration_ns: 500, thread, stack, ..Launch::default() })?;
        }
        writer.seal()?;
    }
    Ok(())
}

/// Two sealed blocks and a staged tail, each with definitions of its own, by a writer that was killed.
pub(crate) fn killed_tape() -> Vec<u8> {
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut writer = TapeWriter::create(file.path(), &staged(4096)).unwrap();
    for number in 0..3 {
        let args = writer.string(&format!("name {number}")).unwrap();
        writer.event(Launch { start_ns: 1000 + number, args, ..Launch::default() }).unwrap();
        if number < 2 {
            writer.seal().unwrap();
        }
    }
    std::fs::read(file.path()).unwrap()
}

pub(crate) fn read(tape: Vec<u8>) -> Contents {
    Tape::from_bytes(tape).unwrap().read(&Wanted::default()).unwrap()
}

/// Says something where it is seen: the test harness keeps `eprintln!` to itself.
pub(crate) fn say(what: &str) {
    writeln!(std::io::stderr(), "{what}").expect("stderr is open");
}
