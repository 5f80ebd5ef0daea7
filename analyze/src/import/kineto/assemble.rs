//! The text's outermost level, and the pieces of `traceEvents` put together: what was read of a piece counts only if
//! an element of the array begins where the piece begins.
//!
//! This is the one place that knows where in the text the import is. It reads the top-level object itself; where a
//! piece begins in the middle of something, what was read of it is thrown away and its text joins what is left of the
//! one before (`rest`).

use std::borrow::Cow;

use ktape_format::Sink;
use ktape_format::definition::vendor;
use memchr::{memchr_iter, memrchr};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::arguments::text;
use super::collect::{Collector, Found};
use super::error::Fault;
use super::json::{Expect, Stop, StopState, Text, broken, syntax_fault};
use super::pieces::PIECE_BYTES;
use super::read::{ReadPiece, found_in};
use super::records::Records;
use crate::import::mixup::{ROCPROFV3, other_than_json};
use crate::import::{Broken, Summary, Tool};

/// The longest event or top-level value, and the most text that is skipped to find the next event. Longer ones would
/// have to be held in memory whole, and read again with every piece that they go on in.
const LONGEST_BYTES: usize = 64 << 20;

/// How many times the text may be read in vain before the rest of it is left out.
const MOST_IN_VAIN: u64 = 16;

/// What comes next in the text.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Next {
    /// The beginning.
    Begin,
    /// A key of the top-level object; or its end, where it is empty.
    Key { or_end: bool },
    /// The colon after a key.
    Colon(String),
    /// The value of a key.
    Value(String),
    /// A comma or the end, after a value.
    Comma,
    /// More of `traceEvents`.
    Events(Expect),
    /// Nothing.
    End,
    /// What is behind something broken, after the events.
    Ignored,
}

/// Where in the text something is, for people.
#[derive(Debug)]
pub(super) struct Position {
    pub(super) offset: u64,
    pub(super) line: u64,
    pub(super) column: u64,
}

/// Puts the pieces together.
pub(super) struct Assembler<'s, S> {
    sink: &'s mut S,
    lenient: bool,
    next: Next,
    /// Whether the text is an array without the object around it.
    bare: bool,
    has_events: bool,
    /// What is ignored, and why.
    ignored: Option<Broken>,
    /// The text that was not read yet.
    rest: Vec<u8>,
    /// How many lines end in `rest`.
    rest_lines: u64,
    /// A piece that was read to its end.
    spent: Vec<u8>,
    /// How long that must be before it is looked at again: twice as long as when it was not enough, as looking at it
    /// with every piece would take a time that grows with its square.
    enough: usize,
    /// How much was read in vain of what was then found to be broken.
    vain_bytes: u64,
    /// Where `rest` begins in the text.
    offset: u64,
    /// How many lines end before `rest`.
    lines: u64,
    /// Where the line begins in which `rest` begins.
    line_offset: u64,
    records: Records,
    summary: Summary,
}

/// What a step came to.
enum Step {
    /// It read up to here.
    To(usize),
    /// The text from here on is not enough.
    More(usize),
    /// What begins at `from` is not right, at `offset`.
    Broken { from: usize, offset: usize, problem: String },
}

impl<'s, S: Sink> Assembler<'s, S> {
    pub(super) fn new(sink: &'s mut S, lenient: bool) -> Self {
        Assembler {
            sink,
            lenient,
            next: Next::Begin,
            bare: false,
            has_events: false,
            ignored: None,
            rest: Vec::new(),
            rest_lines: 0,
            spent: Vec::new(),
            enough: 0,
            vain_bytes: 0,
            offset: 0,
            lines: 0,
            line_offset: 0,
            records: Records::default(),
            summary: Summary::default(),
        }
    }

    /// Takes the next piece, and gives back one that it is done with. A fault's offset is one for
    /// [`Assembler::position`].
    pub(super) fn piece(&mut self, read: ReadPiece) -> Result<Vec<u8>, Fault> {
        let ReadPiece { text, lines, found, stop } = read;
        let is_right = self.rest.is_empty() && self.next == Next::Events(Expect::Element);
        if self.rest.is_empty() {
            self.rest = text;
        } else {
            self.rest.extend_from_slice(&text);
            self.spent = text;
        }
        self.rest_lines += lines;
        if self.rest.len() >= self.enough {
            self.advance(is_right.then_some((found, stop)), false)?;
        }
        Ok(std::mem::take(&mut self.spent))
    }

    /// Takes the end of the text. `cut` says that it is not the file's, and why.
    pub(super) fn end(&mut self, cut: Option<String>) -> Result<(), Fault> {
        self.advance(None, true)?;
        if !self.has_events {
            return Err(Fault::NotATrace(
                "JSON without `traceEvents`: not a profiler trace; export one with `prof.export_chrome_trace(…)`"
                    .into(),
            ));
        }
        if let Some(why) = cut {
            self.summary.broken.cut = Some(why);
        }
        Ok(())
    }

    /// All records, and what was read and dropped so far.
    pub(super) fn finish(self) -> (&'s mut S, Records, Summary) {
        (self.sink, self.records, self.summary)
    }

    /// How many events were read.
    pub(super) fn events(&self) -> u64 {
        self.summary.entries()
    }

    /// Where a fault's offset is in the text.
    pub(super) fn position(&self, offset: usize) -> Position {
        let before = &self.rest[..offset.min(self.rest.len())];
        let offset = self.offset + before.len() as u64;
        let line = self.lines + memchr_iter(b'\n', before).count() as u64 + 1;
        Position { offset, line, column: offset - self.line_offset_at(before.len()) + 1 }
    }

    /// Where the line begins in the text in which a place of `rest` is.
    fn line_offset_at(&self, at: usize) -> u64 {
        memrchr(b'\n', &self.rest[..at]).map_or(self.line_offset, |at| self.offset + at as u64 + 1)
    }

    /// Reads on, as far as the text at hand goes; `read` is what was read of it already.
    fn advance(&mut self, mut read: Option<(Found, Stop)>, last: bool) -> Result<(), Fault> {
        let mut at = 0;
        loop {
            let step = match self.next {
                Next::Events(expect) => {
                    let (found, stop) = read.take().unwrap_or_else(|| found_in(&self.rest[at..], expect, self.lenient));
                    self.events_from(at, found, stop, last)
                }
                Next::Ignored => {
                    let bytes = (self.rest.len() - at) as u64;
                    self.ignored.iter_mut().for_each(|ignored| ignored.bytes += bytes);
                    Ok(Step::More(self.rest.len()))
                }
                _ => self.outermost(at, last),
            };
            let step = match step? {
                Step::Broken { from, offset, problem } if self.lenient => self.skip(from, offset, problem, last)?,
                step => step,
            };
            match step {
                Step::To(to) => at = to,
                Step::More(from) if !last && self.rest.len() - from <= LONGEST_BYTES => {
                    self.leave(from);
                    self.enough = (2 * self.rest.len()).min(LONGEST_BYTES + 1);
                    return Ok(());
                }
                Step::More(from) if !last => {
                    let problem = format!("what begins here is longer than {} MiB", LONGEST_BYTES >> 20);
                    return Err(Fault::At { offset: from, problem });
                }
                Step::More(from) => return self.cut_off(from),
                Step::Broken { offset, problem, .. } => return Err(Fault::At { offset, problem }),
            }
        }
    }

    /// Forgets the text before a place.
    fn leave(&mut self, at: usize) {
        // What is left is short; to count in what is not would take long.
        let lines_left = memchr_iter(b'\n', &self.rest[at..]).count() as u64;
        let lines = self.rest_lines - lines_left;
        if lines > 0 {
            self.line_offset = self.line_offset_at(at);
        }
        self.offset += at as u64;
        self.lines += lines;
        self.rest_lines = lines_left;
        if at == self.rest.len() {
            self.spent = std::mem::take(&mut self.rest);
        } else {
            self.rest.drain(..at);
        }
    }

    /// Takes what was found in the array from a place on.
    fn events_from(&mut self, at: usize, mut found: Found, stop: Stop, last: bool) -> Result<Step, Fault> {
        self.summary.add(std::mem::take(&mut found.summary), self.offset + at as u64);
        self.records.join(found, self.sink)?;
        let to = at + stop.at;
        self.next = Next::Events(stop.expect);
        match stop.state {
            StopState::Between | StopState::Within => Ok(Step::More(to)),
            StopState::Closed => {
                self.next = if self.bare { Next::End } else { Next::Comma };
                Ok(Step::To(to))
            }
            // The next event may begin in the next piece.
            StopState::Broken { .. } if self.lenient && !last => Ok(Step::More(to)),
            StopState::Broken { offset, problem } => Ok(Step::Broken { from: to, offset: at + offset, problem }),
            StopState::Fault(fault) => Err(fault),
        }
    }

    /// Reads a part of the outermost level, from a place on.
    fn outermost(&mut self, at: usize, last: bool) -> Result<Step, Fault> {
        let at = self.rest.len() - self.rest[at..].trim_ascii_start().len();
        let broken = |problem: &str| Ok(Step::Broken { from: at, offset: at, problem: problem.to_owned() });
        let byte = self.rest.get(at).copied();
        let (next, length) = match (&self.next, byte) {
            (Next::Begin, _) => return self.begin(at, last),
            (_, None) => return Ok(Step::More(at)),
            (Next::Key { or_end: true } | Next::Comma, Some(b'}')) => (Next::End, 1),
            (Next::Key { .. }, Some(b'"')) => match self.value::<Text>(at, last) {
                Ok((Text(key), length)) => (Next::Colon(key.into_owned()), length),
                Err(step) => return Ok(step),
            },
            (Next::Key { .. }, Some(_)) => return broken("not JSON here: expected a key"),
            (Next::Colon(key), Some(b':')) if key == "rocprofiler-sdk-tool" => {
                return Err(Fault::NotATrace(ROCPROFV3.to_owned()));
            }
            (Next::Colon(key), Some(b':')) => (Next::Value(key.clone()), 1),
            (Next::Colon(_), Some(_)) => return broken("not JSON here: expected `:`"),
            (Next::Value(key), Some(b'[')) if key == "traceEvents" => {
                self.has_events = true;
                (Next::Events(Expect::First), 1)
            }
            (Next::Value(key), Some(_)) if key == "traceEvents" => return broken("expected an array of events"),
            (Next::Value(key), Some(_)) => {
                let key = key.clone();
                let (value, length) = match self.value::<&RawValue>(at, last) {
                    Ok((value, length)) => (value.get().to_owned(), length),
                    Err(step) => return Ok(step),
                };
                if let Err(problem) = self.property_of_the_trace(&key, &value) {
                    return broken(problem);
                }
                (Next::Comma, length)
            }
            (Next::Comma, Some(b',')) => (Next::Key { or_end: false }, 1),
            (Next::Comma, Some(_)) => return broken("not JSON here: expected `,` or `}`"),
            (Next::End, Some(_)) => return broken("not JSON here: something follows after the trace's end"),
            (Next::Events(_) | Next::Ignored, Some(_)) => (self.next.clone(), 0),
        };
        self.next = next;
        Ok(Step::To(at + length))
    }

    fn begin(&mut self, at: usize, last: bool) -> Result<Step, Fault> {
        let begin = self.rest[at..].strip_prefix(b"\xef\xbb\xbf").unwrap_or(&self.rest[at..]).trim_ascii_start();
        if begin.is_empty() && !last {
            return Ok(Step::More(at));
        }
        if let Some(found) = other_than_json(begin) {
            return Err(Fault::NotATrace(found.to_owned()));
        }
        (self.bare, self.has_events) = (begin[0] == b'[', begin[0] == b'[');
        self.next = if self.bare { Next::Events(Expect::First) } else { Next::Key { or_end: true } };
        Ok(Step::To(self.rest.len() - begin.len() + 1))
    }

    /// Reads a value, and says how long it is.
    fn value<'a, T: Deserialize<'a>>(&'a self, at: usize, last: bool) -> Result<(T, usize), Step> {
        let text = &self.rest[at..];
        let mut values = serde_json::Deserializer::from_slice(text).into_iter::<T>();
        match values.next() {
            // A number may go on in the next piece.
            Some(Ok(_)) if values.byte_offset() == text.len() && !last => Err(Step::More(at)),
            Some(Ok(value)) => Ok((value, values.byte_offset())),
            Some(Err(error)) => Err(match syntax_fault(text, &error) {
                Some((offset, problem)) => Step::Broken { from: at, offset: at + offset, problem },
                None => Step::More(at),
            }),
            None => Err(Step::More(at)),
        }
    }

    /// Keeps what the trace says of itself. The error is what is wrong with the value.
    fn property_of_the_trace(&mut self, key: &str, json: &str) -> Result<(), &'static str> {
        match key {
            "baseTimeNanoseconds" => match json.parse() {
                Ok(base_ns) => self.records.base_ns = base_ns,
                Err(_) => return Err("`baseTimeNanoseconds` is not a whole number of nanoseconds"),
            },
            "viztracer_metadata" => {
                let metadata: serde_json::Map<String, serde_json::Value> =
                    serde_json::from_str(json).unwrap_or_default();
                self.records.base_ns = metadata.get("baseTimeNanoseconds").and_then(|base| base.as_i64()).unwrap_or(0);
                self.summary.tool = self.summary.tool.max(Some(Tool::VizTracer));
            }
            "deviceProperties" => self.records.device_properties = Some(json.to_owned()),
            "distributedInfo" => self.records.distributed_info = Some(json.to_owned()),
            _ if key.starts_with("cupti") || key.starts_with("cuda") => self.records.vendor = vendor::NVIDIA,
            _ if key.starts_with("roctracer") || key.starts_with("hip") => self.records.vendor = vendor::AMD,
            _ => {}
        }
        let value = text(json).unwrap_or(Cow::Borrowed(json)).into_owned();
        self.records.properties.push((key.to_owned(), value));
        Ok(())
    }

    /// Leaves out, or mends, what is broken from a place on, and says where to go on: in the array where it seems to
    /// end, as there is no further event; around it where a key begins that traces have.
    fn skip(&mut self, from: usize, offset: usize, problem: String, last: bool) -> Result<Step, Fault> {
        let rest = &self.rest[from..];
        // What begins or ends again and again would be read, or looked for, from each place to the end.
        let gives_up = self.vain_bytes > MOST_IN_VAIN * (self.offset + rest.len() as u64 + PIECE_BYTES as u64);
        if matches!(self.next, Next::Events(_)) && !gives_up {
            let (length, next) = end_of_events(rest, self.bare);
            // Before, an event was looked for in all of it.
            self.vain_bytes += rest.len() as u64;
            let mut collector = Collector::default();
            broken(&rest[..length], 0, problem, &mut collector);
            let mut found = collector.finish();
            self.summary.add(std::mem::take(&mut found.summary), self.offset + from as u64);
            self.records.join(found, self.sink)?;
            self.next = next;
            return Ok(Step::To(from + length));
        }
        let is_comma_missing = self.next == Next::Comma && rest.starts_with(b"\"");
        let length = match if is_comma_missing { Some(0) } else { next_key(rest, 1) } {
            Some(length) if self.next != Next::End && !gives_up => length,
            None if !last && self.next != Next::End && !gives_up => return Ok(Step::More(from)),
            _ if self.has_events => {
                let offset = self.offset + from as u64;
                self.ignored = Some(Broken { offset, bytes: 0, mended: false, problem });
                self.next = Next::Ignored;
                return Ok(Step::To(from));
            }
            _ => return Err(Fault::At { offset, problem }),
        };
        self.next = Next::Key { or_end: false };
        self.vain_bytes += (offset - from) as u64;
        let (offset, bytes) = (self.offset + from as u64, length as u64);
        self.summary.broken.see(Broken { offset, bytes, mended: is_comma_missing, problem });
        Ok(Step::To(from + length))
    }

    /// The text ends where more is expected.
    fn cut_off(&mut self, from: usize) -> Result<(), Fault> {
        const CUT: &str = "the file ends in the middle of its JSON; the writer was killed or the copy cut short: record \
                           or copy it again";
        if let Some(ignored) = self.ignored.take() {
            self.summary.broken.see(ignored);
        }
        if matches!(self.next, Next::End | Next::Ignored) {
            return Ok(());
        }
        if !self.lenient || !self.has_events {
            return Err(Fault::At { offset: self.rest.len(), problem: CUT.to_owned() });
        }
        if from < self.rest.len() {
            let (offset, bytes) = (self.offset + from as u64, (self.rest.len() - from) as u64);
            self.summary.broken.see(Broken { offset, bytes, mended: false, problem: "the file ends in it".to_owned() });
        }
        self.summary.broken.cut = Some("the file ends in the middle of its JSON".to_owned());
        Ok(())
    }
}

/// Where the array seems to end that a text is in, and what comes there: its bracket with a key that traces have or
/// the object's end behind it; or, where there is no bracket, such a key or the object's end itself.
fn end_of_events(text: &[u8], bare: bool) -> (usize, Next) {
    let until = text.trim_ascii_end();
    let ends_here = |at: usize| {
        let behind = until[at + 1..].trim_ascii_start();
        match behind.strip_prefix(b",") {
            Some(behind) => is_key(behind.trim_ascii_start()),
            None if bare => behind.is_empty(),
            None => behind == b"}",
        }
    };
    let key = if bare { None } else { next_key(text, 0) };
    let before_key = &text[..key.unwrap_or(text.len())];
    let bracket = memchr_iter(b']', before_key).find(|at| ends_here(*at)).map(|at| (at, Next::Events(Expect::Comma)));
    let nearest = bracket.or(key.map(|at| (at, Next::Key { or_end: false })));
    nearest.unwrap_or(match text.trim_ascii() {
        b"}" if !bare => (0, Next::Comma),
        _ => (text.len(), Next::Events(Expect::Comma)),
    })
}

/// Where the next key begins that traces have, from a place on.
fn next_key(text: &[u8], from: usize) -> Option<usize> {
    let is_next = |at: usize| {
        let before = text[..at].trim_ascii_end();
        is_key(&text[at..]) && (before.is_empty() || before.ends_with(b",") || text[at..].starts_with(TRACE_EVENTS))
    };
    memchr_iter(b'"', text.get(from..)?).map(|at| from + at).find(|at| is_next(*at))
}

/// Whether a text begins with a key of a trace's own.
fn is_key(text: &[u8]) -> bool {
    let is = |key: &[u8]| text.strip_prefix(key).is_some_and(|rest| rest.trim_ascii_start().starts_with(b":"));
    is(TRACE_EVENTS) || TOP_LEVEL_KEYS.iter().any(|key| is(key.as_bytes()))
}

const TRACE_EVENTS: &[u8] = b"\"traceEvents\"";

/// Keys that whoever writes a trace puts around its events.
const TOP_LEVEL_KEYS: &[&str] = &[
    "\"traceName\"",
    "\"displayTimeUnit\"",
    "\"baseTimeNanoseconds\"",
    "\"schemaVersion\"",
    "\"deviceProperties\"",
    "\"distributedInfo\"",
    "\"otherData\"",
    "\"viztracer_metadata\"",
];
