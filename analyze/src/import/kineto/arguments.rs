//! An event's `args`: what has a column of its own, what is dropped (and counted), what is kept as JSON.
//!
//! Ids that are different in every event would make each argument object unique, so that none could be shared; what
//! can be computed from the rest says nothing new. Both are dropped. A value that is not what its column holds is
//! kept as it is: nothing is lost because a profiler changed its mind.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::category::Category;
use super::json::Text;
use super::names;

/// Declares names with a number each: the lists, and a match over them, which no loop over a list is as fast as.
macro_rules! numbered_names {
    ($($(#[$doc:meta])* $list:ident { $($name:literal = $number:literal),* $(,)? })*) => {
        $( $(#[$doc])* pub(in crate::import) const $list: &[&str] = &[$($name),*]; )*

        /// The number of a name in all lists, one after the other.
        fn number_of(name: &str) -> Option<u32> {
            match name {
                $( $( $name => Some($number), )* )*
                _ => None,
            }
        }
    };
}

numbered_names! {
    /// Ids of one event only. The correlation joins what they joined.
    IDS {
        "External id" = 0,
        "external id" = 1,
        "Ev Idx" = 2,
        "Record function id" = 3,
        "Python id" = 4,
        "Python parent id" = 5,
        "Profiler Event Index" = 6,
        "external ts" = 7,
        "cid" = 8,
        "Trace name" = 9,
        "Trace iteration" = 10,
    }
    /// What follows from size and duration, or from the shape and the device's limits; and `queued`, which is dropped
    /// where it is 0.
    DERIVED {
        "memory bandwidth (GB/s)" = 11,
        "blocks per SM" = 12,
        "warps per SM" = 13,
        "est. achieved occupancy %" = 14,
        "occupancy" = 15,
        "queued" = 16,
    }
}

/// Whether a name is one of [`IDS`].
fn is_id(name: &str) -> bool {
    number_of(name).is_some_and(|number| (number as usize) < IDS.len())
}

/// The arguments of an event that have columns. Absent ones are 0 or `None`.
#[derive(Debug, Default)]
pub(super) struct Arguments<'a> {
    pub(super) correlation: u64,
    pub(super) device: Option<i64>,
    pub(super) context: Option<i64>,
    pub(super) stream: Option<i64>,
    pub(super) bytes: Option<i64>,
    pub(super) grid: [u32; 3],
    pub(super) block: [u32; 3],
    pub(super) registers: u32,
    pub(super) shared_bytes: u32,
    pub(super) graph: u64,
    pub(super) graph_node: u64,
    pub(super) priority: Option<i32>,
    pub(super) callback_id: u32,
    /// The kernel that a HIP launch names.
    pub(super) kernel: Option<Cow<'a, str>>,
    pub(super) copy_kind: Option<u8>,
    /// Both ends of a copy between devices.
    pub(super) from_device: Option<u32>,
    pub(super) to_device: Option<u32>,
    pub(super) sequence: Option<i64>,
    pub(super) call_stack: Option<Cow<'a, str>>,
    pub(super) address: u64,
    pub(super) device_type: i64,
    pub(super) device_id: i64,
    pub(super) total_allocated: u64,
    pub(super) total_reserved: u64,
    pub(super) sync_kind: Option<Cow<'a, str>>,
    pub(super) event: u64,
    pub(super) recorded_by: u64,
}

/// Reads arguments; remembers what it dropped.
#[derive(Debug, Default)]
pub(super) struct Reader {
    /// What is to be kept of the event read last, as the inside of a JSON object.
    kept: String,
    /// Which of [`IDS`] and then [`DERIVED`] were dropped of the event read last, a bit each: counted when it is known
    /// that the whole of it is sound.
    had: u32,
    /// What else was dropped of it.
    had_others: Vec<String>,
    /// How many of each were dropped.
    known: [u64; IDS.len() + DERIVED.len()],
    /// How many others were dropped, by name.
    others: BTreeMap<String, u64>,
}

/// What became of an argument.
enum Fate {
    Column,
    Dropped,
    Kept,
}

impl Reader {
    /// Begins an event.
    pub(super) fn begin(&mut self) {
        self.kept.clear();
        self.had = 0;
        self.had_others.clear();
    }

    /// Reads the arguments of an event of a category, as part of reading the event.
    pub(super) fn of<'r, 'a>(&'r mut self, category: Category, into: &'r mut Arguments<'a>) -> ArgumentsSeed<'r, 'a> {
        ArgumentsSeed { reader: self, into, category }
    }

    /// Reads the arguments of an event whose category was not known before.
    pub(super) fn read<'a>(&mut self, category: Category, args: Option<&'a RawValue>) -> Arguments<'a> {
        let mut arguments = Arguments::default();
        if let Some(args) = args {
            // The text was found to be valid JSON when the event was.
            let json = &mut serde_json::Deserializer::from_str(args.get());
            let _ = self.of(category, &mut arguments).deserialize(json);
        }
        arguments
    }

    /// Adds to what is kept of the event read last. `value` is JSON.
    pub(super) fn keep(&mut self, key: &str, value: &str) {
        let separator = if self.kept.is_empty() { "" } else { "," };
        self.kept.push_str(separator);
        self.kept.push_str(&serde_json::Value::from(key).to_string());
        self.kept.push(':');
        push_compact(&mut self.kept, value);
    }

    /// What is kept of the event read last, as a JSON object; empty for nothing.
    pub(super) fn kept_json(&mut self) -> &str {
        if !self.kept.is_empty() && !self.kept.starts_with('{') {
            self.kept.insert(0, '{');
            self.kept.push('}');
        }
        &self.kept
    }

    /// Counts what was dropped of the event read last.
    pub(super) fn count(&mut self) {
        let mut had = self.had;
        while had != 0 {
            self.known[had.trailing_zeros() as usize] += 1;
            had &= had - 1;
        }
        self.had = 0;
        for name in self.had_others.drain(..) {
            *self.others.entry(name).or_default() += 1;
        }
    }

    /// How many arguments were dropped, by name.
    pub(super) fn dropped(&self) -> BTreeMap<String, u64> {
        let known = IDS.iter().chain(DERIVED).zip(self.known).filter(|(_, count)| *count > 0);
        let mut dropped = self.others.clone();
        known.for_each(|(name, count)| *dropped.entry((*name).to_owned()).or_default() += count);
        dropped
    }

    fn drop(&mut self, name: &str) {
        match number_of(name).map(|number| 1 << number) {
            Some(bit) if self.had & bit == 0 => self.had |= bit,
            // One that nobody knows, or the same once more.
            _ => self.had_others.push(name.to_owned()),
        }
    }
}

/// Reads an event's arguments.
pub(super) struct ArgumentsSeed<'r, 'a> {
    reader: &'r mut Reader,
    into: &'r mut Arguments<'a>,
    category: Category,
}

impl<'de> DeserializeSeed<'de> for ArgumentsSeed<'_, 'de> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ArgumentsSeed<'_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("arguments")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        while let Some(Text(key)) = map.next_key()? {
            if is_id(&key) {
                map.next_value::<IgnoredAny>()?;
                self.reader.drop(&key);
                continue;
            }
            let value: &RawValue = map.next_value()?;
            match self.into.take(self.category, &key, value.get()) {
                Fate::Column => {}
                Fate::Dropped => self.reader.drop(&key),
                Fate::Kept => self.reader.keep(&key, value.get()),
            }
        }
        Ok(())
    }

    // What is no object has no place among the columns: it is kept as it is.

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut elements: Vec<&str> = Vec::new();
        while let Some(element) = seq.next_element::<&RawValue>()? {
            elements.push(element.get());
        }
        self.kept(&format!("[{}]", elements.join(",")))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        self.kept(&serde_json::Value::from(text).to_string())
    }

    fn visit_u64<E>(self, number: u64) -> Result<Self::Value, E> {
        self.kept(&number.to_string())
    }

    fn visit_i64<E>(self, number: i64) -> Result<Self::Value, E> {
        self.kept(&number.to_string())
    }

    fn visit_f64<E>(self, number: f64) -> Result<Self::Value, E> {
        self.kept(&number.to_string())
    }

    fn visit_bool<E>(self, is: bool) -> Result<Self::Value, E> {
        self.kept(if is { "true" } else { "false" })
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(())
    }
}

impl ArgumentsSeed<'_, '_> {
    fn kept<E>(self, json: &str) -> Result<(), E> {
        self.reader.keep("args", json);
        Ok(())
    }
}

impl<'a> Arguments<'a> {
    fn take(&mut self, category: Category, key: &str, value: &'a str) -> Fate {
        let taken = match category {
            Category::Kernel | Category::Memcpy | Category::Memset => {
                if number_of(key).is_some() && (key != "queued" || value == "0") {
                    return Fate::Dropped;
                }
                self.take_of_device_work(key, value)
            }
            Category::Runtime | Category::Driver => self.take_of_call(key, value),
            Category::Operator => {
                if key == "Call stack" {
                    self.call_stack = text(value);
                }
                key == "Sequence number" && number(value, &mut self.sequence)
            }
            Category::Sync => {
                self.read_of_sync(key, value);
                false
            }
            // An allocation has no column for what is left over.
            Category::Memory if !self.take_of_memory(key, value) => return Fate::Dropped,
            Category::Memory => true,
            _ => false,
        };
        if taken { Fate::Column } else { Fate::Kept }
    }

    fn take_of_device_work(&mut self, key: &str, value: &'a str) -> bool {
        match key {
            "correlation" => whole(value, &mut self.correlation),
            "device" | "inDevice" => number(value, &mut self.device),
            "context" | "inContext" => number(value, &mut self.context),
            "stream" => number(value, &mut self.stream),
            "bytes" => number(value, &mut self.bytes),
            "grid" => triple(value, &mut self.grid),
            "block" => triple(value, &mut self.block),
            "registers per thread" => whole(value, &mut self.registers),
            "shared memory" => whole(value, &mut self.shared_bytes),
            "graph id" => whole(value, &mut self.graph),
            "graph node id" => whole(value, &mut self.graph_node),
            "priority" => number(value, &mut self.priority),
            "fromDevice" => number(value, &mut self.from_device),
            "toDevice" => number(value, &mut self.to_device),
            "kind" => {
                self.copy_kind = text(value).and_then(|kind| names::copy_kind_of(&kind));
                self.copy_kind.is_some()
            }
            _ => false,
        }
    }

    fn take_of_call(&mut self, key: &str, value: &'a str) -> bool {
        match key {
            "correlation" | "correlationId" => whole(value, &mut self.correlation),
            "cbid" => whole(value, &mut self.callback_id),
            "grid" => triple(value, &mut self.grid),
            "block" => triple(value, &mut self.block),
            "shared memory" => whole(value, &mut self.shared_bytes),
            "kernel" => {
                self.kernel = text(value);
                self.kernel.is_some()
            }
            _ => false,
        }
    }

    /// A synchronisation record stays whole beside what it tells of its call.
    fn read_of_sync(&mut self, key: &str, value: &'a str) {
        match key {
            "correlation" => _ = whole(value, &mut self.correlation),
            "device" => _ = number(value, &mut self.device),
            "context" => _ = number(value, &mut self.context),
            "stream" => _ = number(value, &mut self.stream),
            "cuda_sync_kind" => self.sync_kind = text(value),
            "wait_on_cuda_event_id" => _ = whole(value, &mut self.event),
            "wait_on_cuda_event_record_corr_id" => _ = whole(value, &mut self.recorded_by),
            _ => {}
        }
    }

    fn take_of_memory(&mut self, key: &str, value: &'a str) -> bool {
        match key {
            "Bytes" => number(value, &mut self.bytes),
            "Addr" => whole(value, &mut self.address),
            "Device Type" => whole(value, &mut self.device_type),
            "Device Id" => whole(value, &mut self.device_id),
            "Total Allocated" => whole(value, &mut self.total_allocated),
            "Total Reserved" => whole(value, &mut self.total_reserved),
            _ => false,
        }
    }
}

/// Reads an integer into `into`; leaves it alone and says no if the JSON is something else.
fn whole<T: std::str::FromStr>(json: &str, into: &mut T) -> bool {
    json.parse().map(|value| *into = value).is_ok()
}

fn number<T: std::str::FromStr>(json: &str, into: &mut Option<T>) -> bool {
    json.parse().map(|value| *into = Some(value)).is_ok()
}

/// Reads `[4995, 1, 1]`.
fn triple(json: &str, into: &mut [u32; 3]) -> bool {
    let inside = json.strip_prefix('[').and_then(|json| json.strip_suffix(']'));
    let mut numbers = inside.unwrap_or("").split(',').map(|number| number.trim().parse());
    match (numbers.next(), numbers.next(), numbers.next(), numbers.next()) {
        (Some(Ok(x)), Some(Ok(y)), Some(Ok(z)), None) => {
            *into = [x, y, z];
            true
        }
        _ => false,
    }
}

/// Reads a JSON string.
pub(super) fn text(json: &str) -> Option<Cow<'_, str>> {
    serde_json::from_str::<Text>(json).ok().map(|text| text.0)
}

/// Appends JSON without the spaces between its parts.
fn push_compact(out: &mut String, json: &str) {
    let mut in_string = false;
    let mut escaped = false;
    let mut from = 0;
    for (at, byte) in json.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => in_string = !in_string,
            b' ' | b'\n' | b'\r' | b'\t' if !in_string => {
                out.push_str(&json[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    out.push_str(&json[from..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_the_numbers_of_their_places() {
        for (number, name) in (0..).zip(IDS.iter().chain(DERIVED)) {
            assert_eq!(number_of(name), Some(number), "{name}");
        }
    }

    fn read(reader: &mut Reader, category: Category, json: &str) -> (Arguments<'static>, String) {
        let json: &'static str = Box::leak(json.to_owned().into_boxed_str());
        reader.begin();
        let arguments = reader.read(category, Some(serde_json::from_str(json).unwrap()));
        reader.count();
        (arguments, reader.kept_json().to_owned())
    }

    #[test]
    fn columns_dropped_and_kept() {
        let mut reader = Reader::default();
        let (arguments, kept) = read(
            &mut reader,
            Category::Kernel,
            r#"{"External id": 7, "queued": 0, "device": 1, "stream": 9, "correlation": 5, "grid": [4, 2, 1],
                "blocks per SM": 0.4, "graph node id": 3, "Collective name": "all  reduce", "In split size": [ 1, 2 ]}"#,
        );
        assert_eq!((arguments.device, arguments.stream, arguments.correlation), (Some(1), Some(9), 5));
        assert_eq!((arguments.grid, arguments.block, arguments.graph_node), ([4, 2, 1], [0; 3], 3));
        assert_eq!(kept, r#"{"Collective name":"all  reduce","In split size":[1,2]}"#);
        let dropped = reader.dropped();
        let dropped: Vec<_> = dropped.iter().map(|(name, count)| (name.as_str(), *count)).collect();
        assert_eq!(dropped, [("External id", 1), ("blocks per SM", 1), ("queued", 1)]);
    }

    #[test]
    fn a_value_that_is_not_its_columns_is_kept() {
        let mut reader = Reader::default();
        let (arguments, kept) =
            read(&mut reader, Category::Memcpy, r#"{"bytes": "4096", "kind": "Sideways", "queued": 4}"#);
        assert_eq!((arguments.bytes, arguments.copy_kind), (None, None));
        assert_eq!(kept, r#"{"bytes":"4096","kind":"Sideways","queued":4}"#);
        assert_eq!(read(&mut reader, Category::Memcpy, "[1, 2]").1, r#"{"args":[1,2]}"#);
        assert_eq!(read(&mut reader, Category::Memcpy, "null").1, "");
    }

    #[test]
    fn the_stream_of_an_operator_is_only_an_argument() {
        let (arguments, kept) =
            read(&mut Reader::default(), Category::Operator, r#"{"stream": 3, "Sequence number": 8}"#);
        assert_eq!((arguments.stream, arguments.sequence), (None, Some(8)));
        assert_eq!(kept, r#"{"stream":3}"#);
    }

    #[test]
    fn strings_keep_their_spaces_and_quotes() {
        let mut out = String::new();
        push_compact(&mut out, r#"{ "a \" b" : [ "c d" , 1 ] }"#);
        assert_eq!(out, r#"{"a \" b":["c d",1]}"#);
    }
}
