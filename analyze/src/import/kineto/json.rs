//! The walk over the file's JSON: one event at a time, borrowed from the text, nothing kept.
//!
//! serde_json finds where values begin and end. What an event needs as text (its name, category and phase) is
//! decoded; everything else stays a slice of the text ([`RawValue`]) until somebody asks. [`Handler`] is the border:
//! what stands behind it does not know how the events were found.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::error::Fault;

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
    pub(super) args: Option<&'a RawValue>,
    /// The keys beside these.
    pub(super) other_keys: Vec<Cow<'a, str>>,
}

/// Takes what the walk finds, in the file's order.
pub(super) trait Handler<'a> {
    /// An element of `traceEvents`.
    fn event(&mut self, event: RawEvent<'a>) -> Result<(), Fault>;
    /// Any other key of the top-level object, with its value as JSON.
    fn top_level(&mut self, key: &str, value: &'a RawValue) -> Result<(), Fault>;
}

/// Walks over a trace: an object with `traceEvents`, or only the array.
pub(super) fn walk<'a>(text: &'a [u8], handler: &mut impl Handler<'a>) -> Result<(), Fault> {
    let begin = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    expect_json(begin)?;
    let mut json = serde_json::Deserializer::from_slice(begin);
    let mut walk = Walk { handler, fault: None, events: 0, has_events: false };
    let outcome = json.deserialize_any(TopLevel(&mut walk)).and_then(|()| json.end());
    match (walk.fault, outcome) {
        (Some(fault), _) => Err(fault),
        (None, Err(error)) => Err(syntax_fault(text, text.len() - begin.len(), &error, walk.events)),
        (None, Ok(())) if !walk.has_events => Err(Fault::NotATrace(
            "JSON without `traceEvents`: not a profiler trace; export one with `prof.export_chrome_trace(…)`".into(),
        )),
        (None, Ok(())) => Ok(()),
    }
}

/// Says what a file is that cannot be JSON, where it is a likely mix-up.
fn expect_json(text: &[u8]) -> Result<(), Fault> {
    let found = match text.iter().find(|byte| !byte.is_ascii_whitespace()) {
        None => "is empty; the profiler had not written it yet, or its disk was full",
        Some(b'{' | b'[') => return Ok(()),
        _ if text.starts_with(&ktape_format::header::MAGIC) => "a tape already; `analyze info` says what is on it",
        _ if text.starts_with(b"SQLite format 3\0") => {
            "an SQLite database, as Nsight Systems exports it, but packed or through a pipe; unpack it into a file and \
             name that"
        }
        // PROTO and the protocol's number, 2 or later.
        _ if matches!(text, [0x80, 2..=5, ..]) => {
            "a Python pickle, as `torch.cuda.memory._dump_snapshot(…)` writes it, which cannot be read yet; export the \
             trace itself with `prof.export_chrome_trace(…)`"
        }
        _ if text.starts_with(b"PK\x03\x04") => "a ZIP archive; unpack it and name the trace in it",
        _ => "not JSON; expected a PyTorch profiler trace, as `prof.export_chrome_trace(…)` writes it",
    };
    Err(Fault::NotATrace(found.to_owned()))
}

struct Walk<'h, H> {
    handler: &'h mut H,
    /// What went wrong in the handler: serde's own errors carry text only.
    fault: Option<Fault>,
    events: u64,
    has_events: bool,
}

impl<H> Walk<'_, H> {
    fn checked<E: serde::de::Error>(&mut self, outcome: Result<(), Fault>) -> Result<(), E> {
        outcome.map_err(|fault| {
            self.fault = Some(fault);
            E::custom("stopped by the handler")
        })
    }
}

struct TopLevel<'w, 'h, H>(&'w mut Walk<'h, H>);

impl<'de, H: Handler<'de>> Visitor<'de> for TopLevel<'_, '_, H> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with `traceEvents`, or an array of events")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(Text(key)) = map.next_key()? {
            if key == "traceEvents" {
                map.next_value_seed(EventList(&mut *self.0))?;
            } else {
                let value = map.next_value()?;
                let outcome = self.0.handler.top_level(&key, value);
                self.0.checked(outcome)?;
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<(), A::Error> {
        EventList(self.0).visit_seq(seq)
    }
}

struct EventList<'w, 'h, H>(&'w mut Walk<'h, H>);

impl<'de, H: Handler<'de>> DeserializeSeed<'de> for EventList<'_, '_, H> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, H: Handler<'de>> Visitor<'de> for EventList<'_, '_, H> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of events")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        self.0.has_events = true;
        while let Some(element) = seq.next_element()? {
            let outcome = match element {
                Element::Event(event) => self.0.handler.event(event),
                Element::Row => Err(Fault::NotATrace(
                    "a memory timeline (`prof.export_memory_timeline(…)`), which has allocations but no kernels and no \
                     stacks; export the trace itself with `prof.export_chrome_trace(…)`"
                        .into(),
                )),
            };
            self.0.checked(outcome)?;
            self.0.events += 1;
        }
        Ok(())
    }
}

enum Element<'a> {
    Event(RawEvent<'a>),
    /// An array, which in a trace is nothing, and in a memory timeline a row.
    Row,
}

impl<'de> Deserialize<'de> for Element<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ElementVisitor;
        impl<'de> Visitor<'de> for ElementVisitor {
            type Value = Element<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an event (an object with `ph`, `ts`, `name`)")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Element<'de>, A::Error> {
                let mut event = RawEvent::default();
                while let Some(Text(key)) = map.next_key()? {
                    match &*key {
                        "ph" => event.phase = map.next_value::<Text>()?.0,
                        "name" => event.name = map.next_value::<Text>()?.0,
                        "cat" => event.category = map.next_value::<Text>()?.0,
                        "ts" => event.ts = Some(map.next_value()?),
                        "dur" => event.dur = Some(map.next_value()?),
                        "pid" => event.pid = Some(map.next_value()?),
                        "tid" => event.tid = Some(map.next_value()?),
                        "args" => event.args = Some(map.next_value()?),
                        _ => {
                            map.next_value::<IgnoredAny>()?;
                            event.other_keys.push(key);
                        }
                    }
                }
                Ok(Element::Event(event))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Element<'de>, A::Error> {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Element::Row)
            }
        }
        deserializer.deserialize_any(ElementVisitor)
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

/// serde_json names line and column; people with a 50 MB line need the byte.
fn syntax_fault(text: &[u8], skipped: usize, error: &serde_json::Error, events: u64) -> Fault {
    let line_start = match error.line() {
        0 | 1 => skipped,
        line => text.iter().enumerate().filter(|(_, byte)| **byte == b'\n').nth(line - 2).map_or(0, |(at, _)| at + 1),
    };
    let offset = if error.is_eof() { text.len() } else { (line_start + error.column()).saturating_sub(1) };
    let said = error.to_string();
    let said = said.rsplit_once(" at line ").map_or(said.as_str(), |(what, _)| what);
    let problem = if error.is_eof() {
        format!(
            "the file ends in the middle of its JSON (complete events before: {events}); the writer was killed or the \
             copy cut short: record or copy it again"
        )
    } else if said.starts_with("control character") {
        let byte = text.get(offset).copied().unwrap_or(0);
        format!(
            "a control character ({byte:#04x}) inside a string, which JSON forbids (good events before: {events}); \
             replace that byte"
        )
    } else {
        format!("not JSON here: {said} (good events before: {events})")
    };
    Fault::At { offset, problem }
}
