//! What is on a tape, added up event by event: the truth that a Perfetto trace is held against.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use ktape_format::definition::{Frame, frame_kind};
use ktape_format::event::{Event, phase};
use ktape_format::{Contents, Wanted};
use ktape_format::{Events, Table as _, Tape};

/// A number of events and the sum of their durations in nanoseconds.
pub(crate) type Work = (i64, i64);

/// Counts and sums of one tape.
pub(crate) struct Facts {
    /// All kernels.
    pub(crate) kernels: Work,
    /// All copies and memsets.
    pub(crate) copies: Work,
    /// From the first operation's start to the last one's end.
    pub(crate) device_span_ns: (i64, i64),
    /// Host events by the category that the export gives them; instants have no duration.
    pub(crate) host: BTreeMap<&'static str, Work>,
    /// Device operations whose submitting call is on the tape.
    pub(crate) submitted: i64,
    /// The device time of those whose call has a stack.
    pub(crate) stacked_ns: i64,
    /// Calls and time of each kernel, by its name in the source.
    pub(crate) by_kernel: BTreeMap<String, Work>,
}

/// One operation: its process, correlation id, begin and duration.
struct Operation {
    key: (u32, u64),
    start_ns: i64,
    duration_ns: u64,
}

impl Facts {
    /// Reads a tape and adds up.
    pub(crate) fn of(tape: &Path) -> Facts {
        let Contents { definitions, events, .. } =
            Tape::open(tape).and_then(|tape| tape.read(&Wanted::default())).expect("a tape");
        let key = |stream: u32, correlation: u64| (definitions.process_of_stream(stream), correlation);
        let kernels = operations(&events.kernel, |row| key(row.stream, row.correlation));
        let mut copies = operations(&events.memcpy, |row| key(row.stream, row.correlation));
        copies.extend(operations(&events.memset, |row| key(row.stream, row.correlation)));

        let mut by_kernel: BTreeMap<String, Work> = BTreeMap::new();
        for row in events.kernel.rows() {
            add(by_kernel.entry(definitions.kernel_name(row.shape).to_owned()).or_default(), row.duration_ns);
        }

        // Calls by process and correlation id; whether one of them has a stack.
        let process = |thread: u32| definitions.process_of_thread(thread);
        let calls = events.launch.rows().map(|row| (process(row.thread), row.correlation, row.stack));
        let calls =
            calls.chain(events.graph_launch.rows().map(|row| (process(row.thread), row.correlation, row.stack)));
        let calls = calls.chain(events.api.rows().map(|row| (process(row.thread), row.correlation, row.stack)));
        let calls: Vec<_> = calls.filter(|(_, correlation, _)| *correlation != 0).collect();
        let known: HashSet<(u32, u64)> = calls.iter().map(|call| (call.0, call.1)).collect();
        let stacked: HashSet<(u32, u64)> =
            calls.iter().filter(|call| call.2 != 0).map(|call| (call.0, call.1)).collect();
        let all = || kernels.iter().chain(&copies);

        Facts {
            kernels: total(&kernels),
            copies: total(&copies),
            device_span_ns: (
                all().map(|op| op.start_ns).min().unwrap_or(0),
                all().map(|op| op.start_ns + op.duration_ns as i64).max().unwrap_or(0),
            ),
            host: host(&events, &definitions.frames.rows().collect::<Vec<_>>()),
            submitted: all().filter(|op| known.contains(&op.key)).count() as i64,
            stacked_ns: all().filter(|op| stacked.contains(&op.key)).map(|op| op.duration_ns as i64).sum(),
            by_kernel,
        }
    }
}

fn operations<T: ktape_format::Table>(table: &T, key: impl Fn(&T::Row) -> (u32, u64)) -> Vec<Operation>
where
    T::Row: Event,
{
    let operation =
        |row: T::Row| Operation { key: key(&row), start_ns: row.start_ns(), duration_ns: row.duration_ns() };
    table.rows().map(operation).collect()
}

fn total(operations: &[Operation]) -> Work {
    let mut work = (0, 0);
    operations.iter().for_each(|operation| add(&mut work, operation.duration_ns));
    work
}

fn add(work: &mut Work, duration_ns: u64) {
    work.0 += 1;
    work.1 += i64::try_from(duration_ns).expect("a duration");
}

/// Host events by category.
fn host(events: &Events, frames: &[Frame]) -> BTreeMap<&'static str, Work> {
    let mut host = BTreeMap::new();
    let mut put = |category, duration_ns| add(host.entry(category).or_default(), duration_ns);
    events.launch.rows().for_each(|row| put("api", row.duration_ns));
    events.graph_launch.rows().for_each(|row| put("api", row.duration_ns));
    events.api.rows().for_each(|row| put("api", row.duration_ns));
    events.sync.rows().for_each(|row| put("api", row.duration_ns));
    events.event_record.rows().for_each(|row| put("api", row.duration_ns));
    events.event_wait.rows().for_each(|row| put("api", row.duration_ns));
    events.alloc.rows().for_each(|row| put("memory", row.duration_ns));
    events.free.rows().for_each(|row| put("memory", row.duration_ns));
    events.mark.rows().for_each(|_| put("mark", 0));
    events.lifecycle.rows().for_each(|_| put("lifecycle", 0));
    for row in events.slice.rows() {
        put(
            match frames[row.frame as usize - 1].kind {
                frame_kind::PYTHON => "python",
                frame_kind::OPERATOR => "operator",
                frame_kind::OVERHEAD => "overhead",
                kind => panic!("no importer makes slices of kind {kind}"),
            },
            row.duration_ns,
        );
    }
    for row in events.range.rows() {
        assert_eq!(row.phase, phase::COMPLETE, "imported ranges are whole");
        let on_device = row.thread == 0 && row.stream != 0;
        put(if on_device { "gpu_range" } else { "range" }, row.duration_ns);
    }
    host
}
