//! Each event of the file becomes a record: classified, its times exact, its text interned, its loss counted.
//!
//! This file has the border to the walk, and what all events share; `host`, `device` and `entries` know their kinds.

mod device;
mod entries;
mod host;

use std::borrow::Cow;

use ktape_format::Sink;
use rustc_hash::{FxHashMap, FxHashSet};
use serde_json::value::RawValue;

use super::arguments::{Arguments, Reader, text};
use super::category::Category;
use super::error::Fault;
use super::json::{Handler, RawEvent};
use super::records::Records;
use super::time::{Time, parse_microseconds};
use crate::import::Summary;

/// How many events lie between two reports of progress.
const PROGRESS_STEP: u64 = 4096;

/// Collects records from events.
pub(super) struct Collector<'t, 's, S, P> {
    text: &'t [u8],
    sink: &'s mut S,
    progress: P,
    reader: Reader,
    /// Stacks of Python frames that 2021's operators name, by their text.
    call_stacks: FxHashMap<Box<str>, u32>,
    /// How many entries of each phase and category.
    read: FxHashMap<String, FxHashMap<String, u64>>,
    /// The members of [`Records::processes`].
    processes: FxHashSet<i64>,
    entries: u64,
    records: Records,
    summary: Summary,
}

/// A complete event, its times and arguments read.
struct Complete<'e, 't> {
    event: &'e RawEvent<'t>,
    category: Category,
    start_ns: i64,
    duration_ns: u64,
    arguments: Arguments<'t>,
}

/// `pid` or `tid`.
enum Id<'a> {
    Number(i64),
    Text(Cow<'a, str>),
    None,
}

impl<'a> Id<'a> {
    /// 2021's files have numbers as texts.
    fn of(json: Option<&'a RawValue>) -> Id<'a> {
        let Some(json) = json.map(RawValue::get) else { return Id::None };
        if let Ok(number) = json.parse() {
            return Id::Number(number);
        }
        let id = text(json).unwrap_or(Cow::Borrowed(json));
        match id.parse() {
            Ok(number) => Id::Number(number),
            Err(_) if id.is_empty() => Id::None,
            Err(_) => Id::Text(id),
        }
    }

    fn number(&self) -> Option<i64> {
        match self {
            Id::Number(number) => Some(*number),
            Id::Text(_) | Id::None => None,
        }
    }
}

impl<'t, S: Sink, P: FnMut(u64)> Handler<'t> for Collector<'t, '_, S, P> {
    fn event(&mut self, event: RawEvent<'t>) -> Result<(), Fault> {
        self.count_read(&event);
        match &*event.phase {
            "X" => self.complete(&event)?,
            "i" | "I" => self.instant(&event)?,
            "C" => self.counter(&event)?,
            "M" => self.metadata(&event),
            // An arrow says what the correlation says.
            "s" | "t" | "f" => {
                Summary::count(&mut self.summary.not_kept, "flow", &event.category, 1);
                return Ok(());
            }
            phase => Summary::count(&mut self.summary.not_kept, "event of phase", phase, 1),
        }
        for key in &event.other_keys {
            Summary::count(&mut self.summary.not_kept_parts, "key", key, 1);
        }
        Ok(())
    }

    fn top_level(&mut self, key: &str, value: &'t RawValue) -> Result<(), Fault> {
        self.property_of_the_trace(key, value)
    }
}

impl<'t, 's, S: Sink, P: FnMut(u64)> Collector<'t, 's, S, P> {
    /// A collector for the events of `text`; `progress` is told how many of its bytes are done.
    pub(super) fn new(text: &'t [u8], sink: &'s mut S, progress: P) -> Self {
        Collector {
            text,
            sink,
            progress,
            reader: Reader::default(),
            call_stacks: FxHashMap::default(),
            read: FxHashMap::default(),
            processes: FxHashSet::default(),
            entries: 0,
            records: Records::default(),
            summary: Summary::default(),
        }
    }

    /// What was found, and what was read and dropped so far.
    pub(super) fn finish(self) -> (Records, Summary) {
        let mut summary = self.summary;
        for (phase, categories) in self.read {
            for (category, count) in categories {
                Summary::count(&mut summary.read, &phase, &category, count);
            }
        }
        for (name, count) in self.reader.dropped {
            Summary::count(&mut summary.not_kept_parts, "argument", &name, count);
        }
        (self.records, summary)
    }

    fn count_read(&mut self, event: &RawEvent<'t>) {
        let counted = self.read.get_mut(&*event.phase).and_then(|categories| categories.get_mut(&*event.category));
        match counted {
            Some(count) => *count += 1,
            None => {
                let categories = self.read.entry(event.phase.to_string()).or_default();
                categories.insert(event.category.to_string(), 1);
            }
        }
        self.entries += 1;
        if self.entries.is_multiple_of(PROGRESS_STEP)
            && let Some(value) = event.ts
        {
            let done_bytes = self.offset(value) as u64;
            (self.progress)(done_bytes);
        }
    }

    fn complete(&mut self, event: &RawEvent<'t>) -> Result<(), Fault> {
        let category = Category::of(&event.category);
        let Some(start_ns) = self.start_ns(event)? else { return Ok(()) };
        let duration_ns = self.duration_ns(event)?;
        let arguments = self.reader.read(category, event.args);
        let event = Complete { event, category, start_ns, duration_ns, arguments };
        match category {
            Category::Kernel | Category::Memcpy | Category::Memset => self.device_op(event),
            Category::Runtime | Category::Driver => self.call(event),
            Category::Operator | Category::Python | Category::Overhead => self.slice(event),
            Category::Annotation | Category::OnStream | Category::Sync | Category::Memory | Category::Other => {
                self.range(event)
            }
        }
    }

    /// Where a value stands in the file.
    fn offset(&self, value: &RawValue) -> usize {
        value.get().as_ptr().addr().saturating_sub(self.text.as_ptr().addr())
    }

    fn time(&mut self, value: &RawValue, key: &str) -> Result<i64, Fault> {
        match parse_microseconds(value.get()) {
            Some(Time { ns, cut }) => {
                if cut {
                    self.summary.repair("time finer than a nanosecond, cut");
                }
                Ok(ns)
            }
            None => {
                let shown: String = value.get().chars().take(40).collect();
                let problem =
                    format!("`{key}` is {shown}; expected microseconds as a decimal number within ±292 years");
                Err(Fault::At { offset: self.offset(value), problem })
            }
        }
    }

    /// The start, without the base of the file's times; an event without one is counted and left out.
    fn start_ns(&mut self, event: &RawEvent<'t>) -> Result<Option<i64>, Fault> {
        let Some(ts) = event.ts else {
            Summary::count(&mut self.summary.not_kept, "event without `ts`, category", &event.category, 1);
            return Ok(None);
        };
        let start_ns = self.time(ts, "ts")?;
        self.records.starts.see(start_ns);
        Ok(Some(start_ns))
    }

    fn duration_ns(&mut self, event: &RawEvent<'t>) -> Result<u64, Fault> {
        let Some(dur) = event.dur else {
            self.summary.repair("complete event without `dur`, taken as 0");
            return Ok(0);
        };
        let ns = self.time(dur, "dur")?;
        Ok(u64::try_from(ns).unwrap_or_else(|_| {
            self.summary.repair("negative `dur`, taken as 0");
            0
        }))
    }

    /// The number of an event's thread; 0, with pid and tid kept as arguments, where they are no numbers.
    fn thread(&mut self, event: &RawEvent<'t>, category: Category) -> u32 {
        if let (Some(pid), Some(tid)) = (Id::of(event.pid).number(), Id::of(event.tid).number()) {
            if category.is_of_a_real_process() && self.processes.insert(pid) {
                self.records.processes.push(pid);
            }
            return self.records.threads.number((pid, tid));
        }
        for (key, value) in [("pid", event.pid), ("tid", event.tid)] {
            if let Some(value) = value.filter(|value| value.get() != "\"\"") {
                self.reader.keep(key, value.get());
            }
        }
        0
    }

    /// The id of the arguments that are kept of the event read last.
    fn kept_args(&mut self) -> Result<u32, Fault> {
        Ok(self.sink.string(self.reader.kept_json())?)
    }
}
