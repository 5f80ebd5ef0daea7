//! Chrome JSON that others than Kineto write: what its events are, and whose it is.
//!
//! Kineto gives each event a category, which decides (`category`); so do VizTracer and nsys2json, whose categories stand
//! there too. XLA, TensorFlow and rocprof give none: what an event of theirs is, its arguments say. Each event is
//! decided alone, because a piece of the text knows nothing of the others; only which device and stream a row is, the
//! rows' names say, which are known at the end (`Rows`).

use std::borrow::Cow;
use std::collections::BTreeMap;

use ktape_format::event::copy_kind;
use rustc_hash::FxHashMap;
use serde_json::value::RawValue;

use super::arguments::{Arguments, Reader, text};
use super::names::copy_kind_of;
use super::records::{Metadata, Records, Work};
use crate::import::Tool;
use crate::import::stacks::Rank;

/// What an event without a category is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Kernel,
    Memcpy,
    Memset,
    /// A call of a GPU's API.
    Call,
    /// A range that somebody named.
    Annotation,
    /// What a thread did.
    Slice,
}

/// An event without a category, read.
#[derive(Debug)]
pub(super) struct Seen<'a> {
    pub(super) what: What,
    pub(super) tool: Option<Tool>,
    pub(super) arguments: Arguments<'a>,
    /// Begin and end in nanoseconds, where the tool says them beside rounded ones.
    pub(super) span_ns: Option<(i64, i64)>,
    /// Process and thread, where the row is something else.
    pub(super) thread: Option<(i64, i64)>,
}

/// Reads an event without a category. What of its arguments is not used is kept.
pub(super) fn read<'a>(name: &str, args: Option<&'a RawValue>, reader: &mut Reader) -> Seen<'a> {
    let mut args: BTreeMap<Cow<'a, str>, &'a RawValue> =
        args.and_then(|args| serde_json::from_str(args.get()).ok()).unwrap_or_default();
    let seen = match args.contains_key("BeginNs") && args.contains_key("EndNs") {
        true => of_rocprof(name, &mut args),
        false => of_xla(name, &mut args),
    };
    args.into_iter().for_each(|(key, value)| reader.keep(&key, value.get()));
    seen
}

type Args<'a> = BTreeMap<Cow<'a, str>, &'a RawValue>;

/// Takes a number, in quotes or not.
fn take<T: std::str::FromStr>(args: &mut Args<'_>, key: &str) -> Option<T> {
    let value = args.get(key)?.get().trim_matches('"').parse().ok()?;
    args.remove(key);
    Some(value)
}

/// rocprof (v1): all values are texts; device work says its device, host calls and markers their process and thread.
fn of_rocprof<'a>(name: &str, args: &mut Args<'a>) -> Seen<'a> {
    let span_ns = take(args, "BeginNs").zip(take(args, "EndNs"));
    take::<u64>(args, "DurationNs");
    let thread = take(args, "pid").zip(take(args, "tid"));
    let device = take(args, "dev-id");
    let stream = take(args, "stream-id");
    // What is in the event itself, or says nothing.
    args.retain(|key, value| !(key == "Name" || matches!(value.get(), "\"\"" | "\"None\"")));
    let has = |part: &str| name.contains(part);
    let what = match device {
        Some(_) if has("Fill") => What::Memset,
        Some(_) if has("Copy") || has("Memcpy") => What::Memcpy,
        Some(_) => What::Kernel,
        None if name.starts_with("hip") || name.starts_with("hsa_") => What::Call,
        None => What::Annotation,
    };
    let arguments = Arguments { device, stream, ..Arguments::default() };
    Seen { what, tool: Some(Tool::Rocprof), arguments, span_ns, thread }
}

/// XLA and TensorFlow: device work has details, in one text.
fn of_xla<'a>(name: &str, args: &mut Args<'a>) -> Seen<'a> {
    let mut arguments = Arguments {
        correlation: take(args, "correlation_id").unwrap_or(0),
        context: args.get("context_id").and_then(|value| value.get().trim_matches(['"', '$']).parse().ok()),
        ..Arguments::default()
    };
    if arguments.context.is_some() {
        args.remove("context_id");
    }
    let of = |args: &Args<'a>, key: &str| args.get(key).and_then(|value| text(value.get()));
    let is_of_xla = args.keys().any(|key| key.starts_with("hlo_"));
    let mut what = What::Slice;
    if let Some(details) = of(args, "kernel_details") {
        what = What::Kernel;
        if kernel_details(&details, &mut arguments) {
            args.remove("kernel_details");
        }
    } else if let Some(details) = of(args, "memcpy_details").or_else(|| of(args, "memset_details")) {
        what = if args.contains_key("memcpy_details") { What::Memcpy } else { What::Memset };
        arguments.bytes = parts(&details)
            .find(|(key, _)| matches!(*key, "size" | "num_bytes"))
            .and_then(|(_, value)| value.parse().ok());
        arguments.copy_kind = xla_copy_kind(name);
    } else if arguments.correlation != 0 && ["cu", "hip"].iter().any(|vendor| name.starts_with(vendor)) {
        what = What::Call;
    }
    let tool = match what {
        _ if is_of_xla => Some(Tool::Xla),
        What::Slice => None,
        _ => Some(Tool::TensorFlow),
    };
    Seen { what, tool, arguments, span_ns: None, thread: None }
}

fn parts(details: &str) -> impl Iterator<Item = (&str, &str)> {
    details.split_ascii_whitespace().filter_map(|part| part.split_once(':'))
}

/// Takes `regs:32 static_shared:0 dynamic_shared:1024 grid:4,1,1 block:128,1,1 occ_pct:50` apart; says whether all of
/// it has a place. The occupancy follows from the rest.
fn kernel_details(details: &str, into: &mut Arguments<'_>) -> bool {
    let mut shared_bytes = 0_u32;
    let mut all = details.split_ascii_whitespace().all(|part| part.contains(':'));
    for (key, value) in parts(details) {
        let triple = || {
            let mut numbers = value.split(',').map(str::parse);
            match (numbers.next(), numbers.next(), numbers.next(), numbers.next()) {
                (Some(Ok(x)), Some(Ok(y)), Some(Ok(z)), None) => Some([x, y, z]),
                _ => None,
            }
        };
        all &= match key {
            "regs" => value.parse().map(|registers| into.registers = registers).is_ok(),
            "static_shared" | "dynamic_shared" => {
                value.parse().map(|bytes: u32| shared_bytes = shared_bytes.saturating_add(bytes)).is_ok()
            }
            "grid" => triple().map(|grid| into.grid = grid).is_some(),
            "block" => triple().map(|block| into.block = block).is_some(),
            "occ_pct" => true,
            _ => false,
        };
    }
    into.shared_bytes = shared_bytes;
    all
}

/// The direction of `MemcpyH2D`.
fn xla_copy_kind(name: &str) -> Option<u8> {
    let kind = name.strip_prefix("Memcpy")?.get(..3)?.replace('2', "to");
    copy_kind_of(&kind).filter(|kind| *kind != copy_kind::UNKNOWN)
}

/// A thread whose row has a text: nsys2json's `CUDA API Thread 12`. Of which process, the text does not say.
pub(super) fn thread_of(tid: &str) -> Option<(i64, i64)> {
    Some((-1, tid.rsplit_once("Thread ")?.1.parse().ok()?))
}

/// A device or stream whose row has a text: `Stream 7`, `run Device 0`.
pub(super) fn number_behind(what: &str, id: &str) -> Option<i64> {
    let (_, number) = id.rsplit_once(what)?;
    number.trim().parse().ok()
}

/// Finds devices, streams and the traced process by the names of XLA's rows: `/device:GPU:0`, `Stream #7(Compute)`,
/// `/host:CPU`. Returns whether there are such rows.
pub(super) fn name_rows(records: &mut Records) -> bool {
    let (mut devices, mut streams) = (FxHashMap::<i64, u32>::default(), FxHashMap::<(i64, i64), u64>::default());
    for Metadata { entry, pid, tid, value } in &records.metadata {
        match *entry {
            "process_name" if value.starts_with("/host:") => _ = records.processes.number(*pid),
            "process_name" if value.contains("/device:") => {
                let number = value.rsplit(':').next().and_then(|part| part.split(' ').next()?.parse().ok());
                number.map(|number| devices.insert(*pid, number));
            }
            "thread_name" => {
                let number = value.strip_prefix("Stream #").unwrap_or("");
                let digits = number.len() - number.trim_start_matches(|char: char| char.is_ascii_digit()).len();
                number[..digits].parse().map(|number| streams.insert((*pid, *tid), number)).ok();
            }
            _ => {}
        }
    }
    if devices.is_empty() {
        return !records.processes.things.is_empty() && records.metadata.iter().any(|row| row.value == "/host:CPU");
    }
    for place in &mut records.places.things {
        let pid = i64::from(place.device);
        let tid = place.stream.and_then(|stream| i64::try_from(stream).ok());
        if let Some(stream) = tid.and_then(|tid| streams.get(&(pid, tid))) {
            place.stream = Some(*stream);
        }
        if let Some(device) = devices.get(&pid) {
            place.device = *device;
        }
    }
    for row in &mut records.metadata {
        let is_stream = row.entry == "thread_name" && records.threads.find((row.pid, row.tid)).is_none();
        if let (true, Some(stream), Some(device)) = (is_stream, streams.get(&(row.pid, row.tid)), devices.get(&row.pid))
        {
            (row.pid, row.tid) = (i64::from(*device), *stream as i64);
        }
    }
    true
}

/// What a trace does not have that Kineto's have.
pub(super) fn lacks(records: &Records, matched: u64) -> Vec<&'static str> {
    let has_python = records.slices.iter().any(|slice| slice.rank == Some(Rank::Python));
    let kernels = records.device_ops.iter().filter_map(|op| match op.work {
        Work::Kernel(shape) => Some(records.shapes.get(shape)),
        _ => None,
    });
    let mut kernels = kernels.peekable();
    let has_work = !records.device_ops.is_empty();
    let lacks = [
        (!has_work, "device work"),
        (has_work && records.calls.is_empty(), "launches"),
        (has_work && !records.calls.is_empty() && matched == 0, "link from device work to its launch"),
        (kernels.peek().is_some() && kernels.all(|shape| shape.grid_x == 0), "shapes of kernels"),
        (!has_python, "Python frames"),
    ];
    lacks.into_iter().filter(|(is_lacking, _)| *is_lacking).map(|(_, what)| what).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_of_kernels() {
        let mut arguments = Arguments::default();
        let details = "regs:32 static_shared:1 dynamic_shared:1024 grid:4,2,1 block:128,1,1 occ_pct:50";
        assert!(kernel_details(details, &mut arguments));
        assert_eq!((arguments.registers, arguments.shared_bytes), (32, 1025));
        assert_eq!((arguments.grid, arguments.block), ([4, 2, 1], [128, 1, 1]));
        for unknown in ["regs:x", "regs:1 lanes:4", "grid:1,2", "alone"] {
            assert!(!kernel_details(unknown, &mut arguments), "{unknown}");
        }
    }

    #[test]
    fn rows_with_texts() {
        assert_eq!(thread_of("CUDA API Thread 12"), Some((-1, 12)));
        assert_eq!((thread_of("Thread"), thread_of("PyTorch Profiler")), (None, None));
        assert_eq!(
            (number_behind("Device ", "run.sqlite Device 3"), number_behind("Stream ", "Stream x")),
            (Some(3), None)
        );
        assert_eq!(xla_copy_kind("MemcpyD2H"), Some(copy_kind::DTOH));
        assert_eq!((xla_copy_kind("Memcpy"), xla_copy_kind("MemcpyXYZ")), (None, None));
    }
}
