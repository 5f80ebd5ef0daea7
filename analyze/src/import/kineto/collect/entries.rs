//! Instants, counters, metadata, and the trace's own properties.

use std::fmt;

use ktape_format::event::{Counter, Mark};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;

use super::super::arguments::Arguments;
use super::super::category::{Category, MEMORY};
use super::super::json::{Args, RawEvent};
use super::super::records::{CounterValue, MemoryInstant, Metadata};
use super::{Collector, Id};
use crate::import::Summary;

/// The category of instants on the profiler's own rows, which have none.
const PROFILERS_OWN: &str = "Trace";

/// How long the names of the series of one counter may be together: each has the counter's name in it, so that a long
/// one with many series would be many times as long as its text.
const SERIES_NAMES_BYTES: usize = 1 << 16;

/// A counter's series, all of them: a map would keep one of several with the same name.
#[derive(Default)]
struct Series(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Series {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Series, D::Error> {
        struct All;
        impl<'de> Visitor<'de> for All {
            type Value = Series;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the series of a counter")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Series, A::Error> {
                let mut all = Vec::new();
                while let Some(one) = map.next_entry()? {
                    all.push(one);
                }
                Ok(Series(all))
            }
        }
        deserializer.deserialize_map(All)
    }
}

impl Collector {
    pub(super) fn instant(&mut self, event: &RawEvent<'_>, read: &Arguments<'_>, start_ns: i64) {
        if event.name == MEMORY {
            match event.args {
                Args::Read(Category::Memory) => self.memory(event, start_ns, read),
                ref args => {
                    let arguments = self.reader.read(Category::Memory, args.raw());
                    self.memory(event, start_ns, &arguments);
                }
            }
            return;
        }
        self.reader.read(Category::Other, event.args.raw());
        let thread = self.thread(event, Category::Other);
        let name = self.string(&event.name);
        let category = if event.category.is_empty() && thread == 0 { PROFILERS_OWN } else { &event.category };
        let category = self.string(category);
        let args = self.kept_args();
        self.records.marks.push(Mark { start_ns, thread, name, category, stack: 0, args });
    }

    fn memory(&mut self, event: &RawEvent<'_>, start_ns: i64, arguments: &Arguments<'_>) {
        let thread = self.thread(event, Category::Memory);
        if arguments.bytes.is_none() {
            self.summary.repair("[memory] without `Bytes`, taken as 0");
        }
        // c10::DeviceType: 0 is the processor; 1 CUDA, 6 HIP.
        let on_device = arguments.device_type != 0;
        self.records.memory.push(MemoryInstant {
            start_ns,
            thread,
            device: u32::try_from(arguments.device_id).ok().filter(|_| on_device),
            bytes: arguments.bytes.unwrap_or(0),
            address: arguments.address,
            allocated_bytes: arguments.total_allocated,
            reserved_bytes: arguments.total_reserved,
        });
    }

    /// A counter event has one value for each of its arguments.
    pub(super) fn counter(&mut self, event: &RawEvent<'_>, start_ns: i64) {
        let series = event.args.raw().and_then(|args| serde_json::from_str(args.get()).ok());
        let Series(mut series) = series.unwrap_or_default();
        // By name; of one name in the file's order.
        series.sort_by(|(one, _), (other, _)| one.cmp(other));
        let pid = Id::of(event.pid);
        let device = match &pid {
            Id::Text(text) => text.strip_prefix("GPU ").and_then(|rest| rest.split(' ').next()?.parse().ok()),
            Id::Number(_) | Id::None => None,
        };
        if event.name.len().saturating_mul(series.len().saturating_sub(1)) > SERIES_NAMES_BYTES {
            Summary::count(&mut self.summary.not_kept, "counter of too many series for its long name", "", 1);
            return;
        }
        let mut kept = false;
        for (key, value) in series {
            let Some(value) = value.as_f64() else {
                Summary::count(&mut self.summary.not_kept_parts, "argument", &key, 1);
                continue;
            };
            let name = if key == "value" { event.name.to_string() } else { format!("{} {key}", event.name) };
            let name = self.string(&name);
            let row = Counter { start_ns, counter: 0, value };
            self.records.counters.push(CounterValue { row, name, pid: pid.number(), device });
            kept = true;
        }
        if kept {
            *self.summary.kept.entry("counter").or_default() += 1;
        } else {
            Summary::count(&mut self.summary.not_kept, "counter without a number", &event.name, 1);
        }
    }

    pub(super) fn metadata(&mut self, event: &RawEvent<'_>) {
        let wanted = match &*event.name {
            "process_name" => Some(("process_name", "name")),
            "process_labels" => Some(("process_labels", "labels")),
            "thread_name" => Some(("thread_name", "name")),
            _ => None,
        };
        let value = wanted.and_then(|(_, key)| {
            let args: std::collections::BTreeMap<String, serde_json::Value> =
                serde_json::from_str(event.args.raw()?.get()).ok()?;
            Some(args.get(key)?.as_str()?.trim().to_owned())
        });
        match (wanted, value, Id::of(event.pid).number(), Id::of(event.tid).number()) {
            (Some((entry, _)), Some(value), Some(pid), tid) => {
                self.records.metadata.push(Metadata { entry, pid, tid: tid.unwrap_or(0), value });
            }
            _ => Summary::count(&mut self.summary.not_kept, "metadata", &event.name, 1),
        }
    }
}
