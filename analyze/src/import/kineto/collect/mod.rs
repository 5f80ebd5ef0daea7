//! Each event of the file becomes a record: classified, its times exact, its text interned, its loss counted.
//!
//! This file has the border to the walk, and what all events share; `host`, `device` and `entries` know their
//! kinds, `foreign` those of other tools.

mod device;
mod entries;
mod foreign;
mod host;

use std::borrow::Cow;

use ktape_format::definition::{Definition, Definitions};
use ktape_format::{Memory, Sink};
use rustc_hash::FxHashMap;
use serde_json::value::RawValue;

use super::arguments::{Arguments, Reader, text};
use super::category::Category;
use super::dialect;
use super::json::{Args, BadValue, Handler, RawEvent};
use super::records::{Records, ThreadKey};
use super::time::{Time, parse_microseconds};
use crate::import::{Broken, Summary, Tool};

/// What was found in a part of the text. Ids and numbers are its own.
pub(super) struct Found {
    pub(super) definitions: Definitions,
    pub(super) records: Records,
    pub(super) summary: Summary,
}

/// Collects records from events.
#[derive(Default)]
pub(super) struct Collector {
    sink: Memory,
    reader: Reader,
    /// Stacks of Python frames that 2021's operators name, by their text.
    call_stacks: FxHashMap<Box<str>, u32>,
    read: Vec<Entries>,
    /// The elements of `read` by phase and category.
    read_numbers: FxHashMap<String, FxHashMap<String, usize>>,
    /// The element of `read` that was counted last.
    last_read: usize,
    /// How many keys there were beside those that events have, by name.
    other_keys: FxHashMap<String, u64>,
    records: Records,
    summary: Summary,
}

/// How many entries there are of a phase and category.
struct Entries {
    phase: String,
    category: String,
    count: u64,
}

/// A complete event, its times and arguments read.
struct Complete<'e, 't> {
    event: &'e RawEvent<'t>,
    category: Category,
    start_ns: i64,
    duration_ns: u64,
    arguments: &'e Arguments<'t>,
    /// Process and thread, where the event's row is something else.
    thread: Option<ThreadKey>,
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

/// Reads a time in microseconds.
fn time<'a>(value: &'a RawValue, key: &str) -> Result<Time, BadValue<'a>> {
    // rocprof writes numbers in quotes.
    let quoted = value.get().strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    parse_microseconds(quoted.unwrap_or(value.get())).ok_or_else(|| {
        let shown: String = value.get().chars().take(40).collect();
        let problem = format!("`{key}` is {shown}; expected microseconds as a decimal number within ±292 years");
        BadValue { value, problem }
    })
}

impl Handler for Collector {
    fn reader(&mut self) -> &mut Reader {
        &mut self.reader
    }

    fn event<'a>(&mut self, event: &RawEvent<'a>, arguments: &Arguments<'a>) -> Result<(), BadValue<'a>> {
        // Times first: an event with a bad one leaves no trace.
        let timed = matches!(&*event.phase, "X" | "B" | "E" | "i" | "I" | "C");
        let start = event.ts.filter(|_| timed).map(|ts| time(ts, "ts")).transpose()?;
        let duration = event.dur.filter(|_| event.phase == "X").map(|dur| time(dur, "dur")).transpose()?;
        let cut = [start, duration].into_iter().flatten().filter(|time| time.cut).count() as u64;
        self.summary.repair_all("time finer than a nanosecond, cut", cut);
        let (start_ns, duration_ns) = (start.map(|time| time.ns), duration.map(|time| time.ns));
        self.count_read(event);
        if let Some(start_ns) = start_ns {
            self.records.starts.see(start_ns);
        }
        match (&*event.phase, start_ns) {
            ("X", Some(start_ns)) => self.complete(event, arguments, start_ns, duration_ns),
            ("B" | "E", Some(start_ns)) => self.edge(event, start_ns),
            ("i" | "I", Some(start_ns)) => self.instant(event, arguments, start_ns),
            ("C", Some(start_ns)) => self.counter(event, start_ns),
            ("X" | "B" | "E" | "i" | "I" | "C", None) => {
                Summary::count(&mut self.summary.not_kept, "event without `ts`, category", &event.category, 1);
            }
            ("M", _) => self.metadata(event),
            // An arrow says what the correlation says; counted by `finish`.
            ("s" | "t" | "f", _) => return Ok(()),
            (phase, _) => Summary::count(&mut self.summary.not_kept, "event of phase", phase, 1),
        }
        self.reader.count();
        for key in &event.other_keys {
            match self.other_keys.get_mut(&**key) {
                Some(count) => *count += 1,
                None => _ = self.other_keys.insert(key.to_string(), 1),
            }
        }
        Ok(())
    }

    fn broken(&mut self, broken: Broken) {
        self.summary.broken.see(broken);
    }
}

impl Collector {
    /// What was found, and what was read and dropped.
    pub(super) fn finish(self) -> Found {
        let mut summary = self.summary;
        for (name, count) in self.reader.dropped() {
            Summary::count(&mut summary.not_kept_parts, "argument", &name, count);
        }
        for (key, count) in self.other_keys {
            Summary::count(&mut summary.not_kept_parts, "key", &key, count);
        }
        for Entries { phase, category, count } in self.read {
            Summary::count(&mut summary.read, &phase, &category, count);
            if matches!(&*phase, "s" | "t" | "f") {
                Summary::count(&mut summary.not_kept, "flow", &category, count);
            }
        }
        Found { definitions: self.sink.definitions, records: self.records, summary }
    }

    fn string(&mut self, string: &str) -> u32 {
        let Ok(id) = self.sink.string(string);
        id
    }

    fn define<T: Definition>(&mut self, row: T) -> u32 {
        let Ok(id) = self.sink.define(row);
        id
    }

    fn count_read(&mut self, event: &RawEvent<'_>) {
        // Events of one kind come in runs, so the kind of the event before is asked first.
        let is_of = |entries: &Entries| *entries.phase == *event.phase && *entries.category == *event.category;
        if !self.read.get(self.last_read).is_some_and(is_of) {
            let known = self.read_numbers.get(&*event.phase).and_then(|categories| categories.get(&*event.category));
            self.last_read = known.copied().unwrap_or_else(|| {
                let (phase, category) = (event.phase.to_string(), event.category.to_string());
                self.read_numbers.entry(phase.clone()).or_default().insert(category.clone(), self.read.len());
                self.read.push(Entries { phase, category, count: 0 });
                self.read.len() - 1
            });
        }
        self.read[self.last_read].count += 1;
    }

    fn complete(&mut self, event: &RawEvent<'_>, read: &Arguments<'_>, start_ns: i64, duration_ns: Option<i64>) {
        if event.category.is_empty() {
            self.foreign(event, start_ns, duration_ns);
            return;
        }
        let category = Category::of(&event.category);
        self.see_tool(Tool::of_category(&event.category));
        let duration_ns = self.duration(duration_ns);
        let arguments = match &event.args {
            Args::Read(read_as) if *read_as == category => read,
            args => &self.reader.read(category, args.raw()),
        };
        let event = Complete { event, category, start_ns, duration_ns, arguments, thread: None };
        match category {
            Category::Kernel | Category::Memcpy | Category::Memset => self.device_op(event),
            Category::Runtime | Category::Driver => self.call(event),
            Category::Operator | Category::Python | Category::Overhead | Category::Unnamed => self.slice(event),
            Category::Annotation | Category::OnStream | Category::Sync | Category::Memory | Category::Other => {
                self.range(event)
            }
        }
    }

    /// Remembers whose trace it is.
    fn see_tool(&mut self, tool: Option<Tool>) {
        self.summary.tool = self.summary.tool.max(tool);
    }

    fn duration(&mut self, duration_ns: Option<i64>) -> u64 {
        match duration_ns.map(u64::try_from) {
            Some(Ok(duration_ns)) => duration_ns,
            Some(Err(_)) => {
                self.summary.repair("negative `dur`, taken as 0");
                0
            }
            None => {
                self.summary.repair("complete event without `dur`, taken as 0");
                0
            }
        }
    }

    /// The number of an event's thread; 0, with pid and tid kept as arguments, where they are no numbers.
    fn thread(&mut self, event: &RawEvent<'_>, category: Category) -> u32 {
        if let (Some(pid), Some(tid)) = (Id::of(event.pid).number(), Id::of(event.tid).number()) {
            return self.thread_with((pid, tid), category);
        }
        if let Id::Text(tid) = Id::of(event.tid)
            && let Some(thread) = dialect::thread_of(&tid)
        {
            return self.thread_with(thread, category);
        }
        for (key, value) in [("pid", event.pid), ("tid", event.tid)] {
            if let Some(value) = value.filter(|value| value.get() != "\"\"") {
                self.reader.keep(key, value.get());
            }
        }
        0
    }

    /// The number of the thread that an event says it is of, else that of its row.
    fn thread_of(&mut self, event: &RawEvent<'_>, category: Category, said: Option<ThreadKey>) -> u32 {
        match said {
            Some(thread) => self.thread_with(thread, category),
            None => self.thread(event, category),
        }
    }

    fn thread_with(&mut self, (pid, tid): (i64, i64), category: Category) -> u32 {
        if category.is_of_a_real_process() {
            self.records.processes.number(pid);
        }
        self.records.threads.number((pid, tid))
    }

    /// The id of the arguments that are kept of the event read last.
    fn kept_args(&mut self) -> u32 {
        let Ok(id) = self.sink.string(self.reader.kept_json());
        id
    }
}
