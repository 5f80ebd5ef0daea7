//! Broken traces, one fault each, through the binary: what is refused with its place and nothing left behind, and
//! what `--lenient` keeps of it.
//!
//! The files are in `fixtures/kineto/broken`. Their sound events are `good 1`, `good 2`, …, one a line, so that what is
//! kept can be told by name. Faults that need a large file, or bytes that are no text, are made here.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::Output;

use serde_json::Value;

use super::fixture;
use crate::common::analyze;

/// A folder with a trace in it, and the tape that it becomes.
struct Case {
    folder: tempfile::TempDir,
    trace: PathBuf,
    text: Vec<u8>,
}

/// A trace of `fixtures/kineto/broken`.
fn case(name: &str) -> Case {
    made(name, &std::fs::read(fixture("broken").join(name)).unwrap())
}

/// A trace that is made here.
fn made(name: &str, text: &[u8]) -> Case {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join(name);
    std::fs::write(&trace, text).unwrap();
    Case { folder, trace, text: text.to_vec() }
}

/// What becomes of the broken places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// All could be put right: nothing is lost.
    Mended,
    /// So many were left out.
    LeftOut(u64),
    /// The text ends early, and so many places were left out.
    Cut(u64),
}

impl Case {
    fn import(&self, options: &[&str]) -> Output {
        let tape = self.tape();
        let trace = [self.trace.to_str().unwrap(), "-o", tape.to_str().unwrap()];
        analyze([&["import"], &trace[..], options].concat())
    }

    fn tape(&self) -> PathBuf {
        self.folder.path().join("out.ktape")
    }

    /// The one line that refuses the trace; nothing is left behind.
    fn refusal(&self) -> String {
        let output = self.import(&[]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
        assert!(error.contains(self.trace.file_name().unwrap().to_str().unwrap()), "{error}");
        assert!(error.contains("--lenient"), "the way out: {error}");
        assert_eq!(std::fs::read_dir(self.folder.path()).unwrap().count(), 1, "only the trace is there");
        error
    }

    /// It is refused at the first byte of `at`, which is in the text once, after so many good events.
    fn refused(&self, at: &[u8], good_events: u64, why: &str) -> &Self {
        let offset = self.find(at);
        self.refused_at(offset, good_events, why)
    }

    fn refused_at(&self, offset: usize, good_events: u64, why: &str) -> &Self {
        let before = &self.text[..offset];
        let line = before.split(|byte| *byte == b'\n').count();
        let column = before.len() - before.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1) + 1;
        let error = self.refusal();
        for part in [
            &format!("byte {offset} (line {line}, column {column})"),
            &format!("good events before: {good_events};"),
            why,
        ] {
            assert!(error.contains(part), "{part:?} is not in {error}");
        }
        self
    }

    /// Where a line begins, counted from 1.
    fn line(&self, number: usize) -> usize {
        self.text.split_inclusive(|byte| *byte == b'\n').take(number - 1).map(<[u8]>::len).sum()
    }

    fn find(&self, part: &[u8]) -> usize {
        let mut places = self.text.windows(part.len()).enumerate().filter(|(_, window)| *window == part);
        let (at, _) = places.next().expect("the text has it");
        assert!(places.next().is_none(), "the text has it once");
        at
    }

    /// `--lenient` keeps the events with these names, and what happened to the broken places is told by the import
    /// and, where something is lost, first of all by `info`.
    fn keeps(&self, names: &[&str], fate: Fate) -> &Self {
        let output = self.import(&["--lenient", "--json"]);
        let said = String::from_utf8(output.stderr).unwrap();
        let is_loss = fate != Fate::Mended;
        assert_eq!(output.status.code(), Some(if is_loss { 3 } else { 0 }), "{said}");
        let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
        let broken = &summary["broken"];
        let (left_out, is_cut) = match fate {
            Fate::Mended => (0, false),
            Fate::LeftOut(count) => (count, false),
            Fate::Cut(count) => (count, true),
        };
        assert_eq!(broken["left_out"], left_out, "{broken}");
        assert_eq!(broken["cut"].is_string(), is_cut, "{broken}");
        assert!(is_cut || !broken["first"].as_array().unwrap().is_empty(), "each place is told: {broken}");
        let kept: u64 = summary["kept"].as_object().unwrap().values().map(|count| count.as_u64().unwrap()).sum();
        assert_eq!((self.names(), kept), (names.iter().map(ToString::to_string).collect(), names.len() as u64));
        let info = analyze(["info", self.tape().to_str().unwrap()]);
        assert_eq!(info.status.code(), output.status.code(), "info ends like the import");
        let first = String::from_utf8(info.stdout).unwrap().lines().take(2).collect::<Vec<_>>().join("\n");
        let tells = first.contains("events were lost") || first.contains("a number not known");
        assert_eq!(tells, is_loss, "info tells the loss first: {first}");
        self
    }

    /// The broken places as the import's text tells them: what each begins with, which is in the text once, and its
    /// fate.
    fn tells(&self, places: &[(&str, &str)]) -> &Self {
        let places: Vec<_> = places.iter().map(|(at, fate)| (self.find(at.as_bytes()), *fate)).collect();
        self.tells_at(&places)
    }

    fn tells_at(&self, places: &[(usize, &str)]) -> &Self {
        let output = self.import(&["--lenient", "--force"]);
        let said = String::from_utf8(output.stdout).unwrap();
        let told: Vec<&str> = said.lines().filter(|line| line.starts_with("    byte ")).collect();
        assert_eq!(told.len(), places.len(), "{said}");
        for (line, (at, fate)) in told.iter().zip(places) {
            assert!(line.starts_with(&format!("    byte {}, ", at)), "{line}");
            assert!(line.contains(fate), "{line}");
        }
        self
    }

    /// It is no fault: the import keeps these events and ends well.
    fn is_sound(&self, names: &[&str]) -> &Self {
        let output = self.import(&[]);
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(self.names(), names);
        self
    }

    fn slices(&self) -> Vec<Value> {
        let dump = analyze(["dump", self.tape().to_str().unwrap(), "--kind", "slice"]);
        let lines = String::from_utf8(dump.stdout).unwrap();
        // What was lost comes before the slices.
        let rows = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        rows.filter(|row| row["kind"] == "slice").collect()
    }

    fn names(&self) -> Vec<String> {
        self.slices().iter().map(|slice| slice["frame"].as_str().unwrap().to_owned()).collect()
    }
}

const LEFT_OUT: &str = "left out";
const PUT_RIGHT: &str = "put right";
const NOT_JSON: &str = "not JSON here";

#[test]
fn cut_in_an_event() {
    let case = case("cut_in_event.json");
    case.refused_at(case.text.len(), 2, "the file ends in the middle of its JSON")
        .keeps(&["good 1", "good 2"], Fate::Cut(1))
        .tells_at(&[(case.text.len() - 40, LEFT_OUT)]);
}

#[test]
fn cut_between_events() {
    let case = case("cut_between_events.json");
    case.refused_at(case.text.len(), 2, "the file ends").keeps(&["good 1", "good 2"], Fate::Cut(0)).tells(&[]);
}

#[test]
fn cut_before_a_comma() {
    let case = case("cut_before_comma.json");
    case.refused_at(case.text.len(), 2, "the file ends").keeps(&["good 1", "good 2"], Fate::Cut(0));
}

#[test]
fn cut_in_a_top_level_value() {
    let case = case("cut_in_top_level_value.json");
    case.refused_at(case.text.len(), 2, "the file ends")
        .keeps(&["good 1", "good 2"], Fate::Cut(1))
        .tells(&[(r#"{"rank""#, LEFT_OUT)]);
}

#[test]
fn cut_in_a_gzip_stream() {
    let text: Vec<u8> = std::iter::once(b"{\"traceEvents\": [\n".to_vec())
        .chain((1..2000).map(|n: u64| event(&format!("good {n}"), &n.wrapping_mul(0x9e37_79b9).to_string())))
        .collect::<Vec<_>>()
        .concat();
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(&text).unwrap();
    let packed = packed.finish().unwrap();
    let case = made("cut.json.gz", &packed[..packed.len() / 2]);
    let error = case.refusal();
    assert!(error.contains("gzip is damaged or cut off after"), "{error}");
    let good_events: usize =
        error.split("keep the ").nth(1).unwrap().split(' ').next().unwrap().parse().expect("the number of events");
    assert!((500..2000).contains(&good_events), "{error}");
    let names: Vec<String> = (1..=good_events).map(|n| format!("good {n}")).collect();
    case.keeps(&names.iter().map(String::as_str).collect::<Vec<_>>(), Fate::Cut(1));
}

/// An event with a comma behind it.
fn event(name: &str, more: &str) -> Vec<u8> {
    format!(
        r#"{{"ph": "X", "cat": "cpu_op", "name": "{name}", "pid": 1, "tid": 1, "ts": 7, "dur": 1, "args": {{"more": {more}}}}},
"#
    )
    .into()
}

#[test]
fn a_quote_in_a_name() {
    let case = case("quote_in_name.json");
    case.refused(b"hi\" twice", 1, NOT_JSON)
        .keeps(&["good 1", "say \"hi\" twice", "good 3"], Fate::Mended)
        .tells_at(&[(case.line(3), PUT_RIGHT)]);
}

#[test]
fn a_control_character() {
    let case = case("control_character.json");
    case.refused(b"\x01", 1, "a control character (0x01) inside a string")
        .keeps(&["good 1", "be\u{1}ll", "good 3"], Fate::Mended)
        .tells_at(&[(case.line(3), PUT_RIGHT)]);
}

#[test]
fn a_byte_that_is_not_utf8() {
    let case = case("not_utf8.json");
    case.refused(b"\xe9", 1, "UTF-8")
        .keeps(&["good 1", "caf\u{fffd}", "good 3"], Fate::Mended)
        .tells_at(&[(case.line(3), PUT_RIGHT)]);
}

#[test]
fn a_windows_path() {
    let case = case("windows_path.json");
    case.refused(b"Users", 1, "invalid escape")
        .keeps(&["good 1", r"C:\Users\me\x.py(3): f", "good 3"], Fate::Mended)
        .tells_at(&[(case.line(3), PUT_RIGHT)]);
}

#[test]
fn not_a_number_and_infinity() {
    let nan = case("nan.json");
    nan.refused(b"NaN", 1, NOT_JSON).keeps(&["good 1", "not a number", "good 3"], Fate::Mended);
    assert_eq!(nan.slices()[1]["args"], serde_json::json!({"loss": null}));
    let infinity = case("infinity.json");
    infinity.refused(b"Infinity, ", 1, "").keeps(&["good 1", "no end", "good 3"], Fate::Mended);
    assert_eq!(infinity.slices()[1]["args"], serde_json::json!({"low": null, "high": null}));
}

#[test]
fn a_number_with_two_points() {
    let case = case("bad_number.json");
    case.refused(b".0, ", 1, NOT_JSON)
        .keeps(&["good 1", "good 3"], Fate::LeftOut(1))
        .tells_at(&[(case.line(3), LEFT_OUT)]);
}

#[test]
fn a_time_that_is_none() {
    let case = case("bad_time.json");
    case.refused(b"\"soon\"", 1, "`ts` is \"soon\"; expected microseconds")
        .keeps(&["good 1", "good 3"], Fate::LeftOut(1))
        .tells_at(&[(case.line(3), LEFT_OUT)]);
}

#[test]
fn a_comma_too_few() {
    let case = case("missing_comma.json");
    case.refused_at(case.line(3), 1, "expected `,` or `]`")
        .keeps(&["good 1", "good 2", "good 3"], Fate::Mended)
        .tells_at(&[(case.line(3), PUT_RIGHT)]);
}

#[test]
fn a_comma_behind_the_last_event() {
    let case = case("trailing_comma.json");
    case.refused(b"]}", 2, NOT_JSON).keeps(&["good 1", "good 2"], Fate::Mended).tells(&[("]}", PUT_RIGHT)]);
}

#[test]
fn two_commas() {
    let case = case("doubled_comma.json");
    case.refused_at(case.line(3) - 2, 1, NOT_JSON)
        .keeps(&["good 1", "good 2", "good 3"], Fate::Mended)
        .tells_at(&[(case.line(3) - 2, PUT_RIGHT)]);
}

#[test]
fn an_event_without_its_last_brace() {
    let case = case("missing_brace.json");
    case.refused_at(case.line(4), 1, NOT_JSON)
        .keeps(&["good 1", "good 3", "good 4"], Fate::LeftOut(1))
        .tells_at(&[(case.line(3), LEFT_OUT)]);
}

#[test]
fn garbage_between_events() {
    let case = case("garbage_between.json");
    case.refused_at(case.line(3), 1, NOT_JSON)
        .keeps(&["good 1", "good 2", "good 3"], Fate::LeftOut(1))
        .tells_at(&[(case.line(3), LEFT_OUT)]);
}

#[test]
fn an_event_that_is_something_else() {
    for name in ["event_is_a_number.json", "event_is_a_string.json", "event_is_an_array.json"] {
        let case = case(name);
        let error = case.refusal();
        assert!(error.contains("(line 3, ") && error.contains("good events before: 1;"), "{error}");
        case.keeps(&["good 1", "good 3"], Fate::LeftOut(1)).tells_at(&[(case.line(3), LEFT_OUT)]);
    }
    let case = case("name_is_a_number.json");
    case.refused(b"7, ", 1, "expected a string").keeps(&["good 1", "good 3"], Fate::LeftOut(1));
}

#[test]
fn no_bracket_behind_the_events() {
    let case = case("missing_bracket.json");
    case.refused_at(case.line(4), 2, "expected `,` or `]`")
        .keeps(&["good 1", "good 2"], Fate::Mended)
        .tells_at(&[(case.line(4), PUT_RIGHT)]);
}

#[test]
fn no_bracket_but_a_key_behind_the_events() {
    let case = case("missing_bracket_before_key.json");
    let error = case.refusal();
    assert!(error.contains("(line 4, ") && error.contains("good events before: 2;"), "{error}");
    case.keeps(&["good 1", "good 2"], Fate::Mended).tells_at(&[(case.line(4), PUT_RIGHT)]);
    assert_eq!(case.slices()[0]["start_ns"], 6_000_000, "the base is there");
}

#[test]
fn text_behind_the_end() {
    let case = case("text_behind.json");
    case.refused(b"Segmentation", 2, "something follows after the trace's end")
        .keeps(&["good 1", "good 2"], Fate::LeftOut(1))
        .tells(&[("Segmentation", LEFT_OUT)]);
}

#[test]
fn a_second_trace_behind_the_end() {
    let case = case("second_trace_behind.json");
    case.refused_at(case.line(5), 2, "something follows after the trace's end")
        .keeps(&["good 1", "good 2"], Fate::LeftOut(1))
        .tells_at(&[(case.line(5), LEFT_OUT)]);
}

#[test]
fn a_broken_key_before_the_events() {
    let case = case("key_broken_before.json");
    case.refused(b"b}", 0, NOT_JSON).keeps(&["good 1", "good 2"], Fate::LeftOut(1)).tells(&[(r#"{"a""#, LEFT_OUT)]);
    assert_eq!(case.slices()[0]["start_ns"], 6_000_000, "the base between it and the events is there");
}

#[test]
fn a_broken_key_behind_the_events() {
    let case = case("key_broken_behind.json");
    case.refused(b"b}", 2, NOT_JSON).keeps(&["good 1", "good 2"], Fate::LeftOut(1)).tells(&[(r#"{"a""#, LEFT_OUT)]);
    assert_eq!(case.slices()[0]["start_ns"], 6_000_000, "the base behind it is there");
}

#[test]
fn the_base_behind_a_broken_last_event() {
    let case = case("base_behind_broken_event.json");
    case.refused_at(case.line(4) - 1, 1, "").keeps(&["good 1"], Fate::LeftOut(1)).tells_at(&[(case.line(3), LEFT_OUT)]);
    assert_eq!(case.slices()[0]["start_ns"], 6_000_000);
}

#[test]
fn a_base_that_is_no_number() {
    let case = case("base_is_no_number.json");
    case.refused(b"\"noon\"", 0, "`baseTimeNanoseconds` is not a whole number")
        .keeps(&["good 1"], Fate::LeftOut(1))
        .tells(&[("\"noon\"", LEFT_OUT)]);
}

#[test]
fn two_broken_events_in_a_row() {
    let case = case("two_in_a_row.json");
    case.refused(b"\"soon\"", 1, "`ts`")
        .keeps(&["good 1", "good 4"], Fate::LeftOut(2))
        .tells_at(&[(case.line(3), LEFT_OUT), (case.line(4), LEFT_OUT)]);
}

#[test]
fn a_broken_first_event() {
    let case = case("first_event.json");
    case.refused(b".0, ", 0, NOT_JSON).keeps(&["good 2"], Fate::LeftOut(1)).tells_at(&[(case.line(2), LEFT_OUT)]);
}

#[test]
fn a_broken_only_event() {
    let case = case("only_event.json");
    case.refused(b".0, ", 0, NOT_JSON).keeps(&[], Fate::LeftOut(1)).tells_at(&[(case.line(2), LEFT_OUT)]);
}

#[test]
fn deeper_than_any_event() {
    let nested = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    let mut text = b"{\"traceEvents\": [\n".to_vec();
    text.extend(event("good 1", "0"));
    text.extend(event("deep", &nested));
    text.extend(event("good 3", "0"));
    let whole = [text.trim_ascii_end().strip_suffix(b",").unwrap(), b"]}"].concat();
    // No call is made for a level, so depth alone is no fault; neither to what reads the arguments later.
    let case = made("deep.json", &whole);
    assert_eq!(case.import(&[]).status.code(), Some(0));
    let (tape, out) = (case.tape(), case.folder.path().join("out.pftrace"));
    let (tape, out) = (tape.to_str().unwrap(), out.to_str().unwrap());
    for command in [&["info", tape][..], &["dump", tape, "--kind", "slice"], &["perfetto", tape, "-o", out]] {
        let output = analyze(command);
        assert_eq!(output.status.code(), Some(0), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn odd_but_sound() {
    case("odd_newline_and_bom.json").is_sound(&["good 1"]);
    case("odd_empty.json").is_sound(&[]);
    case("odd_crlf.json").is_sound(&["good 1", "good 2"]);
    // JSON leaves open what a key that comes twice means. Nothing is thrown away.
    case("odd_twice.json").is_sound(&["good 1", "good 2"]);
}

#[test]
fn a_name_of_three_megabytes_and_a_hundred_thousand_arguments() {
    let long = "n".repeat(3_000_000);
    let many: Vec<String> = (0..100_000).map(|n| format!("\"argument {n}\": {n}")).collect();
    let mut text = b"{\"traceEvents\": [\n".to_vec();
    text.extend(event(&long, "0"));
    text.extend(event("many", &format!("{{{}}}", many.join(", "))));
    let whole = [text.trim_ascii_end().strip_suffix(b",").unwrap(), b"]}"].concat();
    let case = made("large.json", &whole);
    case.is_sound(&[&long, "many"]);
    assert_eq!(case.slices()[1]["args"]["more"].as_object().unwrap().len(), 100_000);
    // And the same where it is broken.
    let case = made("large_broken.json", &whole[..whole.len() - 2000]);
    case.refused_at(case.text.len(), 1, "the file ends").keeps(&[&long], Fate::Cut(1));
}

#[test]
fn what_is_sound_json_is_not_called_otherwise() {
    for (name, said) in [("name_is_a_number.json", "invalid type"), ("event_is_a_string.json", "invalid type")] {
        let error = case(name).refusal();
        assert!(error.contains(said) && !error.contains(NOT_JSON), "{error}");
    }
}

/// The event is kept, so only what follows it is left out.
#[test]
fn something_behind_a_mended_event() {
    let good = |number: u32| {
        format!(
            r#"{{"ph": "X", "cat": "cpu_op", "name": "good {number}", "pid": 1, "tid": 1, "ts": {number}, "dur": 1"#
        )
    };
    let text = format!("[{}, \"args\": {{\"a\": NaN}}}} rubbish, {}}}]", good(1), good(2));
    made("behind.json", text.as_bytes())
        .keeps(&["good 1", "good 2"], Fate::LeftOut(1))
        .tells(&[(r#"{"ph": "X", "cat": "cpu_op", "name": "good 1""#, PUT_RIGHT), ("rubbish", LEFT_OUT)]);
}

/// As tapes and block devices fill up what is written on them; `gzip -d` takes it too.
#[test]
fn zeros_behind_a_gzip_stream_are_skipped_and_counted() {
    let text = std::fs::read(fixture("modern.json")).unwrap();
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(&text).unwrap();
    let mut packed = packed.finish().unwrap();
    packed.extend([0; 700]);
    let output = made("padded.json.gz", &packed).import(&["--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(summary["repaired"]["zero byte behind the end of the gzip, skipped"], 700);
}
