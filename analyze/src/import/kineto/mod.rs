//! PyTorch profiler traces: the Chrome JSON that Kineto writes, in the shapes it had from 2021 to 2026; and that of other
//! tools (`dialect`), as far as it has device work or what threads did.
//!
//! `docs/import.md` says what becomes of each thing in the file. The way through this module is: `pieces` (the text, cut
//! where events begin), `read` (each piece on a thread of its own), `json` (a walk over a piece, event by event),
//! `collect` (each event becomes one of the `records`), `assemble` and `join` (the pieces become one again, in order),
//! `stacks` (what each thread was in), `write` (launch and kernel joined, everything in order of time into the sink).

mod arguments;
mod assemble;
mod category;
mod collect;
mod devices;
mod dialect;
mod edges;
mod error;
mod join;
mod json;
mod mend;
mod names;
mod pieces;
mod read;
mod records;
mod time;
mod write;

use std::sync::atomic::Ordering;

use ktape_format::Sink;

use assemble::{Assembler, Position};
use error::Fault;
use json::Expect;
use pieces::{Cutter, PIECE_BYTES};
use write::Writer;

pub(in crate::import) use arguments::{DERIVED, IDS};

use super::source::{Text, is_of_the_packing};
use super::{ImportError, Options, Progress, Summary, name_of};

/// Imports the JSON text of one trace into `sink`. `name` is what the file is called, in the tape and in errors.
pub fn import_bytes<S: Sink>(
    text: &[u8],
    name: &str,
    sink: &mut S,
    options: Options,
    progress: impl FnMut(Progress),
) -> Result<Summary, ImportError> {
    import_text(Text::of_bytes(text, name), PIECE_BYTES, false, sink, options, progress)
}

/// Imports a trace, one of several on the tape or the only one.
pub(super) fn import<S: Sink>(
    text: Text<'_>,
    of_many: bool,
    sink: &mut S,
    options: Options,
    progress: impl FnMut(Progress),
) -> Result<Summary, ImportError> {
    import_text(text, PIECE_BYTES, of_many, sink, options, progress)
}

fn import_text<S: Sink>(
    text: Text<'_>,
    piece_bytes: usize,
    of_many: bool,
    sink: &mut S,
    options: Options,
    mut progress: impl FnMut(Progress),
) -> Result<Summary, ImportError> {
    let Text { path, reader, unpacked, padding_bytes, done_bytes, file_bytes } = text;
    let name = name_of(&path);
    let mut assembler = Assembler::new(sink, options.lenient);
    let read = |text: &[u8]| read::found_in(text, Expect::Element, options.lenient);
    let ended = read::pieces(Cutter::new(reader, piece_bytes), read, |piece| {
        let spent = assembler.piece(piece)?;
        progress(Progress { done_bytes: done_bytes.load(Ordering::Relaxed), total_bytes: file_bytes });
        Ok(spent)
    });
    let good_events = assembler.events();
    let outcome = match ended {
        Ok(read::Ended { text_bytes, error: Some(source) }) => match is_of_the_packing(&source) && unpacked {
            true if options.lenient => assembler.end(Some(format!("gzip is damaged or cut off: {source}"))),
            true => return Err(ImportError::Gzip { path, unpacked_bytes: text_bytes, good_events, source }),
            false => return Err(ImportError::Read { path, source }),
        },
        Ok(read::Ended { error: None, .. }) => assembler.end(None),
        Err(fault) => Err(fault),
    };
    let fault = match outcome {
        Ok(()) => {
            let (sink, records, mut summary) = assembler.finish();
            summary.repair_all("zero byte behind the end of the gzip, skipped", padding_bytes.load(Ordering::Relaxed));
            match Writer::write(sink, &name, of_many, records, summary) {
                Ok(summary) => return Ok(summary),
                Err(fault) => fault.in_file(path),
            }
        }
        Err(Fault::At { offset, problem }) => {
            let (good_events, Position { offset, line, column }) = (assembler.events(), assembler.position(offset));
            ImportError::Malformed { path, offset, line, column, unpacked, good_events, problem }
        }
        Err(fault) => fault.in_file(path),
    };
    Err(fault)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ktape_format::Memory;
    use proptest::prelude::*;

    const MODERN: &[u8] = include_bytes!("../../../../fixtures/kineto/modern.json");
    const JAX: &[u8] = include_bytes!("../../../../fixtures/kineto/others/jax.json");
    const BEGIN_END: &[u8] = include_bytes!("../../../../fixtures/kineto/others/begin_end.json");

    /// All that an import gives, as text.
    fn outcome(text: &[u8], piece_bytes: usize, lenient: bool) -> String {
        let mut memory = Memory::default();
        let text = Text::of_bytes(text, "trace.json");
        let summary = import_text(text, piece_bytes, false, &mut memory, Options { lenient }, |_| {});
        match summary {
            Ok(summary) => format!("{summary:?} {:?} {:?}", memory.definitions, memory.events),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn pieces_of_any_length_make_the_same() {
        for text in [MODERN, JAX, BEGIN_END] {
            let whole = outcome(text, PIECE_BYTES, false);
            assert!(whole.contains("definitions") || whole.contains("strings"), "{whole}");
            for piece_bytes in 1..text.len() {
                let parts = outcome(text, piece_bytes, false);
                assert!(parts == whole, "pieces of {piece_bytes} bytes: {}", &parts[..parts.len().min(300)]);
            }
        }
    }

    /// Texts in which each place that could be an event's beginning has all of the rest behind it, which is broken.
    #[test]
    fn what_nests_without_end_is_not_read_from_each_level() {
        for level in [r#"{"ph":[1, "#, r#"{"args":[{}, "#, r#"{"name": 1, "args":[{}, "#] {
            let text = [r#"{"traceEvents": ["#, &level.repeat(40_000), "!]}"].concat();
            let began = std::time::Instant::now();
            outcome(text.as_bytes(), PIECE_BYTES, true);
            assert!(began.elapsed().as_secs() < 20, "{level}: {:?}", began.elapsed());
        }
    }

    /// Texts in which each of many places could be where the array ends or another begins, with all of the rest behind.
    #[test]
    fn what_begins_and_ends_without_end_is_not_read_from_each_place() {
        for (before, part, behind) in [
            (r#"{"traceEvents":[{"ph":!"#, "]}x", " "),
            (r#"{"a":1"#, r#","traceEvents":[]"#, "}"),
            (r#"{"traceEvents":[{"ph":!"#, r#","traceEvents":[]"#, "!"),
            (r#"{"traceEvents":[{"ph":!"#, r#","traceEvents":[!"#, "!"),
            (r#"{"traceEvents":[]"#, r#","traceEvents":[{"a":{"k":0"#, "!"),
            (r#"{"traceEvents":[]"#, r#","otherData":{"k":0"#, "!"),
        ] {
            let text = [before, &part.repeat(150_000), &behind.repeat(1_000_000)].concat();
            let began = std::time::Instant::now();
            outcome(text.as_bytes(), PIECE_BYTES, true);
            assert!(began.elapsed().as_secs() < 20, "{before}{part}: {:?}", began.elapsed());
        }
    }

    /// Each series of a counter is named with the counter's name in it.
    #[test]
    fn the_names_of_a_counters_series_are_not_many_times_the_text() {
        let counter = |name: &str| {
            let series: Vec<String> = (0..1000).map(|number| format!(r#""{number}": 1"#)).collect();
            let args = series.join(",");
            let text = format!(r#"[{{"ph": "C", "name": "{name}", "pid": 1, "ts": 1, "args": {{{args}}}}}]"#);
            outcome(text.as_bytes(), PIECE_BYTES, false)
        };
        assert!(counter("bytes").contains(r#"kept: {"counter": 1}"#));
        let long = counter(&"n".repeat(1000));
        assert!(long.contains(r#"not_kept: {"counter of too many series for its long name": 1}"#), "{long}");
        assert!(long.len() < 10_000);
    }

    #[test]
    fn times_beyond_the_clock_are_cut_and_those_that_are_none_begin_nothing() {
        let slice = |ts: &str, dur: &str| {
            format!(r#"{{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": {ts}, "dur": {dur}}}"#)
        };
        let text = format!("[{}, {}, {{!]", slice("0", "1"), slice("1700000000000000", "9223372036854775.807"));
        let mut memory = Memory::default();
        let text = Text::of_bytes(text.as_bytes(), "trace.json");
        let summary = import_text(text, PIECE_BYTES, false, &mut memory, Options { lenient: true }, |_| {}).unwrap();
        let first_ns = 1_700_000_000_000_000_000;
        assert_eq!(memory.events.clock.start_ns, [first_ns]);
        assert_eq!(memory.events.loss.start_ns, [first_ns]);
        assert_eq!(memory.events.slice.duration_ns, [1000, i64::MAX.abs_diff(first_ns)]);
        assert_eq!(summary.repaired.values().sum::<u64>(), 2, "{:?}", summary.repaired);
    }

    /// Its end is where it was.
    #[test]
    fn a_beginning_without_a_time_begins_with_the_file() {
        let edge =
            |phase: &str, ts: &str| format!(r#"{{"ph": "{phase}", "name": "a", "pid": 1, "tid": 1, "ts": {ts}}}"#);
        let other = edge("i", "1700000000000000");
        let text = format!("[{}, {other}, {}]", edge("B", "0"), edge("E", "1700000000000010"));
        let mut memory = Memory::default();
        import_bytes(text.as_bytes(), "trace.json", &mut memory, Options::default(), |_| {}).unwrap();
        let slices = &memory.events.slice;
        assert_eq!((slices.start_ns[0], slices.duration_ns[0]), (1_700_000_000_000_000_000, 10_000));
    }

    /// What does not end is not read again with every piece.
    #[test]
    fn what_is_long_is_read_twice_at_most() {
        for part in ["[", "{", "},{"] {
            let text = [r#"{"traceEvents": ["#, &part.repeat(2 << 20)].concat();
            let began = std::time::Instant::now();
            outcome(text.as_bytes(), 1 << 12, true);
            assert!(began.elapsed().as_secs() < 20, "{part}: {:?}", began.elapsed());
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        /// Whatever is wrong with a trace, where it is cut into pieces changes neither the fault nor what is kept.
        #[test]
        fn pieces_of_a_broken_trace_make_the_same(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
            noise in prop::sample::select(b"\"\\{}[],:\x01\xff9-NaN \n".to_vec()),
            end in any::<prop::sample::Index>(),
            is_cut in any::<bool>(),
            piece_bytes in 20_usize..600,
            lenient in any::<bool>(),
        ) {
            let mut text = MODERN.to_vec();
            for (at, byte) in changes {
                *at.get_mut(&mut text) = if byte % 2 == 0 { noise } else { byte };
            }
            text.truncate(if is_cut { end.index(text.len()) } else { text.len() });
            let (whole, parts) = (outcome(&text, PIECE_BYTES, lenient), outcome(&text, piece_bytes, lenient));
            let same = whole.bytes().zip(parts.bytes()).take_while(|(whole, part)| whole == part).count();
            let around = |text: &str| text.chars().skip(same.saturating_sub(80)).take(160).collect::<String>();
            prop_assert!(whole == parts, "{}\n{}\n{}", String::from_utf8_lossy(&text), around(&whole), around(&parts));
        }
    }
}
