//! What the whole tape costs, beside what this machine can do at best: staging an event, writing, opening, reading, and
//! reading one second of one process. The codec alone is `--bench codec`.
//!
//! `cargo bench -p ktape-format --bench tape -- [EVENTS]`

#[path = "codec/eager_decode.rs"]
mod eager_decode;

use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use ktape_format::definition::{Context, Frame, Function, KernelName, Process, Shape, Stack, Stream, Thread};
use ktape_format::event::{Kernel, Launch};
use ktape_format::header::ClockKind;
use ktape_format::{Catalog, Options, Row as _, Sink, Table, Tape, TapeError, TapeWriter, Wanted, WhenFull};

/// How many launches fill one of a recorder's halves, but for a few.
const HALF_EVENTS: u64 = 65_000;
const ROUNDS: usize = 40;
const PROCESSES: u32 = 4;
const SECOND_NS: i64 = 1_000_000_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let events = std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(5_000_000);
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("bench.ktape");
    staging(&path)?;
    recording(&path)?;
    reading(&path, events)
}

#[expect(clippy::print_stdout, reason = "this is what it is for")]
fn say(what: &str, figure: &str) {
    println!("{what:<58} {figure:>28}");
}

/// The nanoseconds that `count` things take each, at best of all rounds, and in the middle one.
fn each(count: u64, mut round: impl FnMut() -> Duration) -> (f64, f64) {
    let mut times: Vec<Duration> = (0..ROUNDS).map(|_| round()).collect();
    times.sort();
    let each = |time: Duration| time.as_nanos() as f64 / count as f64;
    (each(times[0]), each(times[ROUNDS / 2]))
}

fn best_and_median((best, median): (f64, f64)) -> String {
    format!("{best:.2} ns ({median:.2} median)")
}

fn launch(number: u64) -> Launch {
    Launch {
        start_ns: number as i64 * 6000,
        duration_ns: 3700,
        correlation: number,
        thread: 1,
        stream: 1,
        shape: (number % 400) as u32,
        stack: (number % 300) as u32,
        function: 1,
        ..Launch::default()
    }
}

/// The recorder's caller: it stores a record into the mapped half, while the sealer rests.
fn staging(path: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let options = Options { sync_every: None, ..Options::live("bench", ClockKind::Boot, "") };
    let mut writer = TapeWriter::create(path, &options)?;
    // Twice, so that both halves have their pages.
    for _ in 0..2 {
        (0..HALF_EVENTS).try_for_each(|number| writer.event(launch(number)))?;
        writer.seal()?;
    }
    let staged = each(HALF_EVENTS, || {
        let began = Instant::now();
        for number in 0..HALF_EVENTS {
            let _ = black_box(writer.event(launch(black_box(number))));
        }
        let time = began.elapsed();
        writer.seal().expect("room on the disk");
        time
    });
    // The same through a catalog, as a recording of many segments has it.
    let mut catalog = Catalog::default();
    let mut define = |number: u64| {
        let name = catalog.string(&format!("name {}", number % 400));
        let process = catalog.define(Process::default(), &mut writer)?;
        let thread = catalog.define(Thread { process, tid: 1 }, &mut writer)?;
        let context = catalog.define(Context { process, ..Context::default() }, &mut writer)?;
        let stream = catalog.define(Stream { context, ..Stream::default() }, &mut writer)?;
        let function = catalog.define(Function { name: 1, ..Function::default() }, &mut writer)?;
        let frame = catalog.define(Frame { name, ..Frame::default() }, &mut writer)?;
        let stack = catalog.define(Stack { frame, line: (number % 300) as u32, ..Stack::default() }, &mut writer)?;
        let kernel = catalog.define(KernelName { name, module: 0 }, &mut writer)?;
        let shape = catalog.define(Shape { kernel, ..Shape::default() }, &mut writer)?;
        Ok::<Launch, TapeError>(Launch { thread, stream, function, stack, shape, ..launch(number) })
    };
    let rows = (0..1200).map(&mut define).collect::<Result<Vec<_>, _>>()?;
    rows.iter().try_for_each(|&row| catalog.event(row, &mut writer))?;
    writer.seal()?;
    let carried = each(HALF_EVENTS, || {
        let began = Instant::now();
        for (number, row) in (0..HALF_EVENTS).zip(rows.iter().cycle()) {
            let row = Launch { start_ns: number as i64 * 6000, correlation: number, ..*row };
            let _ = black_box(catalog.event(black_box(row), &mut writer));
        }
        let time = began.elapsed();
        writer.seal().expect("room on the disk");
        time
    });
    // And the same rows without one.
    let copied = each(HALF_EVENTS, || {
        let began = Instant::now();
        for (number, row) in (0..HALF_EVENTS).zip(rows.iter().cycle()) {
            let row = Launch { start_ns: number as i64 * 6000, correlation: number, ..*row };
            let _ = black_box(writer.event(black_box(row)));
        }
        let time = began.elapsed();
        writer.seal().expect("room on the disk");
        time
    });
    // The limit: the same 64 bytes of each record into memory that is as warm.
    let mut memory = vec![[0_u64; 8]; HALF_EVENTS as usize];
    let stored = each(HALF_EVENTS, || {
        let began = Instant::now();
        for (number, record) in (0_u64..).zip(&mut memory) {
            let row = launch(black_box(number));
            let times = [row.start_ns as u64, row.duration_ns, row.correlation];
            let ids = [(row.thread, row.stream), (row.shape, row.stack), (row.function, row.args)];
            let ids = ids.map(|(low, high)| u64::from(low) | u64::from(high) << 32);
            *record = [0, times[0], times[1], times[2], ids[0], ids[1], ids[2], 0];
            black_box(record);
        }
        began.elapsed()
    });
    let clock = each(HALF_EVENTS, || {
        let began = Instant::now();
        (0..HALF_EVENTS).for_each(|_| _ = black_box(Instant::now()));
        began.elapsed()
    });
    say("stage a launch (64 bytes with its head)", &best_and_median(staged));
    say("  the same from a list of rows", &best_and_median(copied));
    say("  the same through a catalog of definitions", &best_and_median(carried));
    say("  limit: store its 64 bytes to memory", &best_and_median(stored));
    say("  for scale: read the clock once", &best_and_median(clock));
    let written = writer.finish()?;
    assert_eq!(
        written.events,
        (3 * ROUNDS as u64 + 2) * HALF_EVENTS + rows.len() as u64,
        "an event was lost: the figure would be of less work"
    );
    Ok(())
}

/// A recorder that gets events without a pause, as none does: how many a second can be kept.
fn recording(path: &Path) -> Result<(), Box<dyn std::error::Error>> {
    const EVENTS: u64 = 4_000_000;
    for (when_full, name) in [(WhenFull::Wait, "waiting"), (WhenFull::Lose, "losing")] {
        let options = Options { when_full, ..Options::live("bench", ClockKind::Boot, "") };
        let mut writer = TapeWriter::create(path, &options)?;
        let began = Instant::now();
        (0..EVENTS).try_for_each(|number| writer.event(launch(number)))?;
        let handed = began.elapsed();
        writer.finish()?;
        let contents = Tape::open(path)?.read(&Wanted::default())?;
        let lost: u64 = contents.events.loss.count.iter().sum();
        assert_eq!(contents.events.launch.len() as u64 + lost, EVENTS, "exact or counted");
        let rate = EVENTS as f64 / handed.as_secs_f64() / 1e6;
        say(
            &format!("record without a pause, {name}"),
            &format!("{rate:.1} M/s, {:.1} % lost", lost as f64 * 100.0 / EVENTS as f64),
        );
    }
    Ok(())
}

fn reading(path: &Path, events: usize) -> Result<(), Box<dyn std::error::Error>> {
    let began = Instant::now();
    let mut writer = TapeWriter::create(path, &Options::batch("bench"))?;
    eager_decode::eager_decode(&mut writer, events, PROCESSES)?;
    let written = writer.finish()?;
    let seconds = began.elapsed().as_secs_f64();
    say(
        &format!("write {:.1} M rows of {PROCESSES} processes, making them included", written.events as f64 / 1e6),
        &format!("{seconds:.2} s, {:.1} MB", written.file_bytes as f64 / 1e6),
    );
    let best = |what: &str, read: &dyn Fn() -> (u64, u64)| {
        let mut times = Vec::new();
        let mut found = (0, 0);
        for _ in 0..7 {
            let began = Instant::now();
            found = read();
            times.push(began.elapsed().as_secs_f64());
        }
        times.sort_by(f64::total_cmp);
        let figure = format!("{:.2} ms ({:.2} median)", times[0] * 1e3, times[3] * 1e3);
        say(&format!("{what}: {} kernels, {:.3} s", found.0, found.1 as f64 / 1e9), &figure);
        found
    };
    let open = || Tape::open(path).expect("was just written");
    best("open", &|| {
        black_box(open());
        (0, 0)
    });
    let sum = |wanted: &Wanted| {
        let contents = open().read(wanted).expect("is sound");
        (contents.events.kernel.len() as u64, contents.events.kernel.duration_ns.iter().sum())
    };
    let all = best("open, read all, sum", &|| sum(&Wanted::default()));
    let columns = vec!["duration_ns"];
    let less = best("open, read the kernels' durations, sum", &|| {
        sum(&Wanted { kinds: vec![Kernel::KIND], columns: columns.clone(), ..Wanted::default() })
    });
    assert_eq!(all, less);
    let first_ns = open().first_ns().expect("has events");
    let from_ns = first_ns + 3 * SECOND_NS;
    best("open, read one second of one process, sum", &|| {
        let (from_ns, to_ns) = (Some(from_ns), Some(from_ns + SECOND_NS));
        sum(&Wanted { from_ns, to_ns, processes: vec![2], kinds: vec![Kernel::KIND], columns: columns.clone() })
    });
    Ok(())
}
