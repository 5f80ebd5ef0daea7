//! The walk over the elements of `traceEvents`: one event at a time, borrowed from the text, nothing kept.
//!
//! serde_json finds where values begin and end. What an event needs as text (its name, category and phase) is
//! decoded; its arguments are read in the same pass where its category is known by then, as it is in whatever Kineto
//! writes; everything else stays a slice of the text ([`RawValue`]) until somebody asks. The walk is over a part of
//! the array and says how it ended, so that a trace can be read in pieces. [`Handler`] is the border: what stands
//! behind it does not know how the events were found.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::arguments::{Arguments, Reader};
use super::category::{Category, MEMORY};
use super::error::Fault;
use crate::import::Broken;
use crate::import::mixup::MEMORY_TIMELINE;
use memchr::memchr_iter;

use super::mend::mended;
use super::pieces::next_event;

/// One element of `traceEvents`.
#[derive(Debug, Default)]
pub(super) struct RawEvent<'a> {
    /// `ph`: what kind of entry it is.
    pub(super) phase: Cow<'a, str>,
    /// `name`.
    pub(super) name: Cow<'a, str>,
    /// `cat`.
    pub(super) category: Cow<'a, str>,
    /// `ts`: when, in microseconds.
    pub(super) ts: Option<&'a RawValue>,
    /// `dur`: how long, in microseconds.
    pub(super) dur: Option<&'a RawValue>,
    /// `pid`: a number or a text.
    pub(super) pid: Option<&'a RawValue>,
    /// `tid`: a number or a text.
    pub(super) tid: Option<&'a RawValue>,
    /// `args`.
    pub(super) args: Args<'a>,
    /// The keys beside these.
    pub(super) other_keys: Vec<Cow<'a, str>>,
}

/// An event's arguments.
#[derive(Debug, Default)]
pub(super) enum Args<'a> {
    #[default]
    None,
    /// As they stand in the text.
    Raw(&'a RawValue),
    /// Read already, as those of an event of this category.
    Read(Category),
}

impl RawEvent<'_> {
    /// The category of an event, if what was read of it so far tells.
    fn known_category(&self) -> Option<Category> {
        match &*self.phase {
            "X" if !self.category.is_empty() => Some(Category::of(&self.category)),
            "i" | "I" if self.name == MEMORY => Some(Category::Memory),
            _ => None,
        }
    }
}

impl<'a> Args<'a> {
    /// The JSON of arguments that were not read yet.
    pub(super) fn raw(&self) -> Option<&'a RawValue> {
        match self {
            Args::Raw(value) => Some(value),
            Args::None | Args::Read(_) => None,
        }
    }
}

/// Takes what the walk finds, in the file's order.
pub(super) trait Handler {
    /// What reads an event's arguments.
    fn reader(&mut self) -> &mut Reader;
    /// An element of `traceEvents`. `arguments` are its own if they were read already.
    fn event<'a>(&mut self, event: &RawEvent<'a>, arguments: &Arguments<'a>) -> Result<(), BadValue<'a>>;
    /// An event that was broken. It was mended and handed to [`Handler::event`], or left out.
    fn broken(&mut self, broken: Broken);
}

/// A value that is JSON, but not what belongs there.
#[derive(Debug)]
pub(super) struct BadValue<'a> {
    pub(super) value: &'a RawValue,
    pub(super) problem: String,
}

/// What comes next in the array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expect {
    /// An element or the array's end.
    First,
    /// An element, after a comma.
    Element,
    /// A comma or the array's end.
    Comma,
}

/// How the walk over a part of the array ended.
#[derive(Debug)]
pub(super) struct Stop {
    /// How much of the text was read.
    pub(super) at: usize,
    /// What is expected there; of no meaning after the array's end.
    pub(super) expect: Expect,
    pub(super) state: StopState,
}

/// Why a walk ended.
#[derive(Debug)]
pub(super) enum StopState {
    /// The text ended between two elements.
    Between,
    /// The text ended within the element that begins at [`Stop::at`], or may have.
    Within,
    /// The array ended.
    Closed,
    /// What begins at [`Stop::at`] is broken, and no event seems to begin behind it.
    Broken { offset: usize, problem: String },
    /// The import cannot go on.
    Fault(Fault),
}

/// Why an element was not taken.
enum Refused {
    /// The text ends in it.
    Cut,
    /// It is not JSON, or not an event.
    Broken { offset: usize, problem: String },
    /// The text is no trace.
    Fault(Fault),
}

/// Walks over elements. With `lenient` a broken one is mended or left out, and the walk goes on where the next event
/// seems to begin.
pub(super) fn elements(text: &[u8], mut expect: Expect, lenient: bool, handler: &mut impl Handler) -> Stop {
    let mut at = 0;
    let mut valid = Valid::from(text, at);
    // How much may be read in vain before a broken place is skipped to where it is broken: what nests without end would
    // otherwise be read again from each level.
    let mut patience = 16 * text.len();
    loop {
        at = text.len() - text[at..].trim_ascii_start().len();
        let stop = |state| Stop { at, expect, state };
        let (offset, problem) = match (text.get(at), expect) {
            (None, _) => return stop(StopState::Between),
            (Some(b']'), Expect::First | Expect::Comma) => {
                return Stop { at: at + 1, expect, state: StopState::Closed };
            }
            (Some(b','), Expect::Comma) => {
                at += 1;
                expect = Expect::Element;
                continue;
            }
            // Commas too many or too few cost no event.
            (Some(b']'), Expect::Element) if lenient => {
                handler.broken(without_loss(at, "a comma behind the last event"));
                return Stop { at: at + 1, expect, state: StopState::Closed };
            }
            (Some(b','), Expect::First | Expect::Element) if lenient => {
                handler.broken(without_loss(at, "a comma where an event was expected"));
                at += 1;
                expect = Expect::Element;
                continue;
            }
            (Some(b'{'), Expect::Comma) if lenient => {
                handler.broken(without_loss(at, "no comma between two events"));
                expect = Expect::Element;
                continue;
            }
            (Some(_), Expect::Comma) => (at, "not JSON here: expected `,` or `]` after an event".into()),
            (Some(_), Expect::First | Expect::Element) => match element(valid.after(at), expect, handler) {
                Ok(length) => {
                    at += length;
                    expect = Expect::Comma;
                    continue;
                }
                Err(Refused::Cut) if valid.reach(text, at) => continue,
                Err(Refused::Cut) => match valid.bad {
                    None => return stop(StopState::Within),
                    Some(offset) => (offset, "a byte that is not UTF-8, as JSON must be".into()),
                },
                Err(Refused::Broken { offset, problem }) => (at + offset, problem),
                Err(Refused::Fault(fault)) => return stop(StopState::Fault(fault)),
            },
        };
        patience = patience.saturating_sub(offset - at);
        let next = match lenient {
            true if patience == 0 => next_event(text, offset.max(at + 1)).map(|next| (next, Expect::Element)),
            true => behind_broken(text, &mut valid, at, expect, &mut patience),
            false => None,
        };
        match next {
            Some((next, expected)) => {
                broken(&text[..next], at, problem, handler);
                at = next;
                expect = expected;
                if valid.bad.is_some_and(|bad| bad < at) {
                    valid = Valid::from(text, at);
                }
            }
            None => return stop(StopState::Broken { offset, problem }),
        }
    }
}

/// Where to go on behind something broken, if the text is long enough to know: what is JSON and no event ends where
/// its JSON ends; anything else ends where the next event seems to begin.
fn behind_broken<'t>(
    text: &'t [u8],
    valid: &mut Valid<'t>,
    at: usize,
    expect: Expect,
    patience: &mut usize,
) -> Option<(usize, Expect)> {
    let next = || next_event(text, at + 1).map(|next| (next, Expect::Element));
    if expect == Expect::Comma {
        return next();
    }
    loop {
        let rest = valid.after(at);
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<IgnoredAny>();
        let value = values.next();
        let may_go_on = match &value {
            Some(Ok(_)) => values.byte_offset() == rest.len(),
            Some(Err(error)) => syntax_fault(rest.as_bytes(), error).is_none(),
            None => true,
        };
        if may_go_on && valid.reach(text, at) {
            continue;
        }
        match value {
            Some(Ok(_)) => {
                let end = at + values.byte_offset();
                match text[end..].trim_ascii_start().first() {
                    Some(b',' | b']') => return Some((end, Expect::Comma)),
                    Some(_) => {}
                    None => return None,
                }
            }
            Some(Err(error)) if error.is_eof() && valid.bad.is_none() => return None,
            Some(Err(error)) => {
                let read = syntax_fault(rest.as_bytes(), &error).map_or(rest.len(), |(offset, _)| offset);
                *patience = patience.saturating_sub(read);
            }
            None => {}
        }
        return next();
    }
}

/// A broken place that has nothing in it.
fn without_loss(at: usize, problem: &str) -> Broken {
    Broken { offset: at as u64, bytes: 0, mended: true, problem: problem.to_owned() }
}

/// Takes what begins at `at`, and ends with the text, as far as it can be mended.
pub(super) fn broken(text: &[u8], at: usize, problem: String, handler: &mut impl Handler) {
    let span = text[at..].trim_ascii_end();
    let span = span.strip_suffix(b",").unwrap_or(span).trim_ascii_end();
    let whole = mended(span);
    let (mended, behind) = match element(&whole, Expect::Element, handler) {
        Ok(length) => (true, whole[length..].trim_ascii_start().len().min(span.len())),
        Err(_) => (span.is_empty(), 0),
    };
    let (offset, bytes) = (at as u64, (span.len() - behind) as u64);
    handler.broken(Broken { offset, bytes, mended, problem });
    if behind > 0 {
        let problem = "what follows the event is no other".to_owned();
        handler.broken(Broken { offset: offset + bytes, bytes: behind as u64, mended: false, problem });
    }
}

/// The text from a place on, as far as it is UTF-8: checked once, so that strings need not be looked at again. It is
/// checked only as far as something was asked for, as an array may end long before the text that it is in.
struct Valid<'t> {
    from: usize,
    text: &'t str,
    /// Where there is a byte that is not; none where the text ends, be it within a character.
    bad: Option<usize>,
    /// How much was checked.
    bytes: usize,
    /// Whether that is all of the text.
    to_the_end: bool,
}

/// How much is checked at first.
const CHECKED_BYTES: usize = 4 << 10;

impl<'t> Valid<'t> {
    fn from(text: &'t [u8], from: usize) -> Valid<'t> {
        Valid::within(text, from, CHECKED_BYTES)
    }

    fn within(text: &'t [u8], from: usize, bytes: usize) -> Valid<'t> {
        let to = from.saturating_add(bytes).min(text.len());
        let (valid, bad) = match std::str::from_utf8(&text[from..to]) {
            Ok(text) => (text, None),
            Err(error) => {
                let valid = std::str::from_utf8(&text[from..from + error.valid_up_to()]).unwrap_or_default();
                (valid, error.error_len().map(|_| from + error.valid_up_to()))
            }
        };
        Valid { from, text: valid, bad, bytes, to_the_end: to == text.len() }
    }

    /// Checks on from a place, twice as much as before, if there is more.
    fn reach(&mut self, text: &'t [u8], at: usize) -> bool {
        let more = self.bad.is_none() && !self.to_the_end;
        if more {
            *self = Valid::within(text, at, self.bytes.saturating_mul(2));
        }
        more
    }

    fn after(&self, at: usize) -> &'t str {
        self.text.get(at - self.from..).unwrap_or_default()
    }
}

/// Reads the element that the text begins with and hands it on. Returns its length.
fn element(text: &str, expect: Expect, handler: &mut impl Handler) -> Result<usize, Refused> {
    let mut json = serde_json::Deserializer::from_str(text);
    let reader = handler.reader();
    // Filled in place: moving them costs as much as a tenth of the reading.
    let (mut event, mut arguments) = (RawEvent::default(), Arguments::default());
    let element = ElementSeed { reader, event: &mut event, arguments: &mut arguments }.deserialize(&mut json);
    match element {
        Ok(Element::Event) => {
            let end = json.into_iter::<IgnoredAny>().byte_offset();
            match handler.event(&event, &arguments) {
                Ok(()) => Ok(end),
                Err(BadValue { value, problem }) => {
                    let offset = value.get().as_ptr().addr() - text.as_ptr().addr();
                    Err(Refused::Broken { offset, problem })
                }
            }
        }
        Ok(Element::Row) if expect == Expect::First => {
            Err(Refused::Fault(Fault::NotATrace(MEMORY_TIMELINE.to_owned())))
        }
        Ok(Element::Row) => Err(Refused::Broken { offset: 0, problem: "an array where an event was expected".into() }),
        Err(error) => match syntax_fault(text.as_bytes(), &error) {
            Some((offset, problem)) => Err(Refused::Broken { offset, problem }),
            None => Err(Refused::Cut),
        },
    }
}

/// What an element is.
enum Element {
    /// An event, which was filled in.
    Event,
    /// An array, which in a trace is nothing, and in a memory timeline a row.
    Row,
}

struct ElementSeed<'r, 'de> {
    reader: &'r mut Reader,
    /// Where to put the event.
    event: &'r mut RawEvent<'de>,
    /// Where to put its arguments.
    arguments: &'r mut Arguments<'de>,
}

impl<'de> DeserializeSeed<'de> for ElementSeed<'_, 'de> {
    type Value = Element;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Element, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ElementSeed<'_, 'de> {
    type Value = Element;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an event (an object with `ph`, `ts`, `name`)")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Element, A::Error> {
        self.reader.begin();
        let event = self.event;
        while let Some(Text(key)) = map.next_key()? {
            match &*key {
                "ph" => event.phase = map.next_value::<Text>()?.0,
                "name" => event.name = map.next_value::<Text>()?.0,
                "cat" => event.category = map.next_value::<Text>()?.0,
                "ts" => event.ts = Some(map.next_value()?),
                "dur" => event.dur = Some(map.next_value()?),
                "pid" => event.pid = Some(map.next_value()?),
                "tid" => event.tid = Some(map.next_value()?),
                "args" if let Some(category) = event.known_category() => {
                    map.next_value_seed(self.reader.of(category, self.arguments))?;
                    event.args = Args::Read(category);
                }
                "args" => event.args = Args::Raw(map.next_value()?),
                _ => {
                    map.next_value::<IgnoredAny>()?;
                    event.other_keys.push(key);
                }
            }
        }
        Ok(Element::Event)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Element, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Element::Row)
    }
}

/// A string that is borrowed unless it has escapes.
pub(super) struct Text<'a>(pub(super) Cow<'a, str>);

impl<'de> Deserialize<'de> for Text<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;
        impl<'de> Visitor<'de> for TextVisitor {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }
            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(text)))
            }
            fn visit_str<E>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
            fn visit_string<E>(self, text: String) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text)))
            }
        }
        deserializer.deserialize_str(TextVisitor)
    }
}

/// Where in the text something is no JSON, and what: serde_json names line and column, people with a 50 MB line need
/// the byte. `None` if it may be that the text only ends too early: a number that ends in `-` or `e` is called wrong.
pub(super) fn syntax_fault(text: &[u8], error: &serde_json::Error) -> Option<(usize, String)> {
    if error.is_eof() {
        return None;
    }
    let line_start = match error.line() {
        0 | 1 => 0,
        line => memchr_iter(b'\n', text).nth(line - 2).map_or(0, |at| at + 1),
    };
    let offset = (line_start + error.column()).saturating_sub(1);
    if offset + 1 >= text.len() {
        return None;
    }
    let said = error.to_string();
    let said = said.rsplit_once(" at line ").map_or(said.as_str(), |(what, _)| what);
    let problem = match text.get(offset) {
        Some(byte) if said.starts_with("control character") => {
            format!("a control character ({byte:#04x}) inside a string, which JSON forbids")
        }
        // Sound JSON that is not what belongs there.
        _ if error.is_data() => said.to_owned(),
        _ => format!("not JSON here: {said}"),
    };
    Some((offset, problem))
}
