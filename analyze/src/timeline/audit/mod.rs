//! What in a trace cannot be right, or limits what can be concluded from it.
//!
//! Profilers lose records and write times that cannot be: seven impossible durations have made more than half of a
//! trace's GPU time. Nothing on the tape is changed for that. Each sort of fault is counted here, with its worst example,
//! and beside the device time as it was recorded stands the one without the impossible part ([`stream_order`] says what
//! is impossible and what is left of it).
//!
//! What was not measured on the device ([`timing`]) is no evidence: it takes no part in what is said of times.

mod nesting;
pub mod stream_order;

use std::collections::BTreeMap;
use std::convert::Infallible;

use ktape_format::definition::{Context, Device, Process, Stream, property, vendor};
use ktape_format::event::{Event, KindVisitor, timing, visit_kinds};
use ktape_format::table::{DefinitionKind, Refers};
use ktape_format::{Definitions, Table};
use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;

use self::stream_order::{StreamOrder, Tally};
use super::{DeviceOp, DeviceOpKind, Submitter, Timeline};

/// What was found. The field names are the keys of `audit` in `analyze info --json`.
#[derive(Debug, Default, Serialize)]
pub struct Audit {
    /// The durations of all device operations, added up.
    pub device_ns: u64,
    /// The same, with the impossible ones cut.
    pub repaired_device_ns: u64,
    /// Device operations that run past later ones of their stream; `ns` is what the cuts take off.
    pub impossible: Finding,
    /// Device operations that are longer than all the time that host events span; `ns` is their durations. It is not
    /// looked for in a part of a trace, or in one without host events.
    pub longer_than_host: Finding,
    /// Device operations that began before the one before them on their stream had ended; `ns` is what they share.
    pub overlaps: Finding,
    /// Such operations of one graph launch, whose branches may run side by side.
    pub graph_branches: Finding,
    /// Device operations that began before the call that launched them; `ns` is by how much.
    pub before_launch: Finding,
    /// Device operations without the call that launched them; `ns` is their durations.
    pub unlaunched: Finding,
    /// Launches of kernels and graphs, failed ones and those without a correlation id aside.
    pub launches: u64,
    /// How many of them have no device work on the tape; not known of a part of a trace, and no question where no device
    /// work was recorded at all ([`Timeline::host_only`]).
    pub launches_without_work: Option<u64>,
    /// Device operations whose measured duration is 0.
    pub zero_duration: u64,
    /// Device operations without a correlation id, so that their call cannot be found.
    pub no_correlation: u64,
    /// Device operations without a device time.
    pub absent: u64,
    /// Device operations whose time is only a bound.
    pub bounded: u64,
    /// Calls, slices and ranges that begin within another of their thread and end after it.
    pub crossings: u64,
    /// The ranks that several processes have.
    pub same_rank: Vec<SameRank>,
    /// The processes with devices of several makers.
    pub mixed_vendors: Vec<MixedVendors>,
    /// What is left of the impossible durations.
    #[serde(skip)]
    repaired_ns: FxHashMap<(DeviceOpKind, u32), u64>,
}

/// Some device operations with one fault.
#[derive(Debug, Default, Serialize)]
pub struct Finding {
    /// How many.
    pub count: u64,
    /// Their time, added up. What it is the time of, the finding says.
    pub ns: u64,
    /// The one with the most of it, of several the first.
    pub worst: Option<Example>,
}

/// A device operation with a fault.
#[derive(Debug, Serialize)]
pub struct Example {
    /// What it is called, as the source has it.
    pub name: String,
    /// The device's number.
    pub device: u32,
    /// The stream's number.
    pub stream: u64,
    /// From the trace's beginning to its start.
    pub after_ns: i64,
    /// How long it lasted.
    pub duration_ns: u64,
    /// Its part of the finding's time.
    pub ns: u64,
}

/// A rank that several processes have: figures by rank would mix them.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct SameRank {
    /// The rank.
    pub rank: String,
    /// The processes' numbers.
    pub pids: Vec<i64>,
}

/// A process with devices of several makers: what it is a trace of is in doubt.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct MixedVendors {
    /// The process's number; absent where the host numbers its devices.
    pub pid: Option<i64>,
    /// The makers.
    pub vendors: Vec<String>,
}

impl Audit {
    /// What a row of a device table lasted, if it is not what the row says.
    pub fn repaired_ns(&self, kind: DeviceOpKind, row: u32) -> Option<u64> {
        self.repaired_ns.get(&(kind, row)).copied()
    }
}

impl Timeline {
    /// Looks for what cannot be right. The trace began at `first_ns`. Of a part of one (not `is_whole`) nothing is said
    /// that depends on what was left out.
    pub fn audit(&self, first_ns: i64, is_whole: bool) -> Audit {
        let ops = self.device_ops();
        let mut audit = Audit::default();
        self.audit_streams(&ops, first_ns, &mut audit);
        self.audit_launches(&ops, first_ns, is_whole, &mut audit);
        let host = Host::of(self);
        if let (true, Some((start, end))) = (is_whole, host.span) {
            let longest_ns = end.abs_diff(start);
            let is_longer = |op: &DeviceOp| op.timing == timing::MEASURED && op.duration_ns() > longest_ns;
            let mut tally = Tally::default();
            let longer = ops.iter().enumerate().filter(|(_, op)| is_longer(op));
            longer.for_each(|(index, op)| tally.add(index, op.duration_ns()));
            audit.longer_than_host = self.finding(tally, first_ns, |index| &ops[index]);
        }
        audit.crossings = host.by_thread.into_values().map(|mut spans| nesting::crossings(&mut spans)).sum();
        audit.same_rank = same_ranks(&self.definitions);
        audit.mixed_vendors = mixed_vendors(&self.definitions);
        audit
    }

    fn audit_streams(&self, ops: &[DeviceOp], first_ns: i64, audit: &mut Audit) {
        let measured: Vec<&DeviceOp> = ops.iter().filter(|op| op.timing == timing::MEASURED).collect();
        let mut order = StreamOrder::default();
        measured.iter().for_each(|op| order.see(op.stream, op.start_ns, op.duration_ns(), op.correlation));
        let disorder = order.finish();
        let worst = |number: usize| measured[number];
        audit.overlaps = self.finding(disorder.overlaps, first_ns, worst);
        audit.graph_branches = self.finding(disorder.branches, first_ns, worst);
        audit.impossible = self.finding(disorder.impossible, first_ns, worst);
        let cut = |number: usize| (measured[number].kind, measured[number].row);
        audit.repaired_ns = disorder.cuts.iter().map(|found| (cut(found.operation), found.repaired_ns)).collect();
        for op in ops {
            let duration_ns = op.duration_ns();
            let repaired_ns = audit.repaired_ns(op.kind, op.row).unwrap_or(duration_ns);
            audit.device_ns = audit.device_ns.saturating_add(duration_ns);
            audit.repaired_device_ns = audit.repaired_device_ns.saturating_add(repaired_ns);
            audit.zero_duration += u64::from(duration_ns == 0 && op.timing == timing::MEASURED);
            audit.absent += u64::from(op.timing == timing::ABSENT);
            audit.bounded += u64::from(op.timing == timing::BOUNDED);
        }
    }

    fn audit_launches(&self, ops: &[DeviceOp], first_ns: i64, is_whole: bool, audit: &mut Audit) {
        let (mut early, mut unlaunched) = (Tally::default(), Tally::default());
        let mut with_work = FxHashSet::default();
        for (index, op) in ops.iter().enumerate() {
            with_work.insert((self.definitions.process_of_stream(op.stream), op.correlation));
            audit.no_correlation += u64::from(op.correlation == 0);
            let call_ns = self.submitter(op).map(|submitter| match submitter {
                Submitter::Launch(row) => self.events.launch.start_ns[row as usize],
                Submitter::GraphLaunch(row) => self.events.graph_launch.start_ns[row as usize],
                Submitter::Api(row) => self.events.api.start_ns[row as usize],
            });
            match call_ns {
                // A blocking copy runs inside of its call, but no operation begins before it.
                Some(call_ns) if op.start_ns < call_ns && op.timing == timing::MEASURED => {
                    early.add(index, call_ns.abs_diff(op.start_ns));
                }
                Some(_) => {}
                None if self.stack_of(op).is_none() => unlaunched.add(index, op.duration_ns()),
                None => {}
            }
        }
        audit.before_launch = self.finding(early, first_ns, |index| &ops[index]);
        audit.unlaunched = self.finding(unlaunched, first_ns, |index| &ops[index]);
        let launches = self.events.launch.rows().map(|row| (row.thread, row.correlation, row.result));
        let graphs = self.events.graph_launch.rows().map(|row| (row.thread, row.correlation, row.result));
        let mut without_work = 0;
        for (thread, correlation, _) in launches.chain(graphs).filter(|&(_, id, result)| id != 0 && result == 0) {
            audit.launches += 1;
            let call = (self.definitions.process_of_thread(thread), correlation);
            without_work += u64::from(!with_work.contains(&call));
        }
        audit.launches_without_work = (is_whole && !self.host_only).then_some(without_work);
    }

    fn finding<'a>(&self, tally: Tally, first_ns: i64, op: impl Fn(usize) -> &'a DeviceOp) -> Finding {
        let worst = tally.worst.map(|(number, ns)| {
            let op = op(number);
            let stream: Stream = self.definitions.get(op.stream).unwrap_or_default();
            let context: Context = self.definitions.get(stream.context).unwrap_or_default();
            Example {
                name: self.op_name(op),
                device: self.definitions.get::<Device>(context.device).unwrap_or_default().index,
                stream: stream.native,
                after_ns: op.start_ns.saturating_sub(first_ns),
                duration_ns: op.duration_ns(),
                ns,
            }
        });
        Finding { count: tally.count, ns: tally.ns, worst }
    }
}

/// What the host's threads did.
#[derive(Default)]
struct Host {
    /// From the start of the first event of a thread to the end of the last.
    span: Option<(i64, i64)>,
    /// The start and end of those that lasted.
    by_thread: FxHashMap<u32, Vec<(i64, i64)>>,
}

impl Host {
    fn of(timeline: &Timeline) -> Host {
        struct Look<'a>(&'a Timeline, Host);
        impl KindVisitor for Look<'_> {
            type Error = Infallible;
            fn visit<E: Event>(&mut self) -> Result<(), Infallible> {
                let is_thread = |refers: Refers| refers == Refers::To(DefinitionKind::Thread);
                let Some(column) = E::COLUMNS.iter().position(|column| is_thread(column.refers)) else {
                    return Ok(());
                };
                for row in E::table(&self.0.events).rows() {
                    // Ids have 32 bits.
                    let (thread, start, end) = (row.get(column) as u32, row.start_ns(), row.end_ns());
                    if thread == 0 {
                        continue;
                    }
                    let (first, last) = self.1.span.unwrap_or((start, end));
                    self.1.span = Some((first.min(start), last.max(end)));
                    if end > start {
                        self.1.by_thread.entry(thread).or_default().push((start, end));
                    }
                }
                Ok(())
            }
        }
        let mut look = Look(timeline, Host::default());
        let Ok(()) = visit_kinds(&mut look);
        look.1
    }
}

fn same_ranks(definitions: &Definitions) -> Vec<SameRank> {
    let mut by_rank = BTreeMap::<&str, Vec<i64>>::new();
    for (id, process) in (1..).zip(definitions.processes.rows()) {
        if let Some(rank) = definitions.property(DefinitionKind::Process as u16, id, property::RANK) {
            by_rank.entry(rank).or_default().push(process.pid);
        }
    }
    let several = by_rank.into_iter().filter(|(_, pids)| pids.len() > 1);
    several.map(|(rank, pids)| SameRank { rank: rank.to_owned(), pids }).collect()
}

fn mixed_vendors(definitions: &Definitions) -> Vec<MixedVendors> {
    let mut by_process = BTreeMap::<u32, Vec<u8>>::new();
    for device in definitions.devices.rows().filter(|device| device.vendor != vendor::UNKNOWN) {
        let vendors = by_process.entry(device.process).or_default();
        if !vendors.contains(&device.vendor) {
            vendors.push(device.vendor);
        }
    }
    let name =
        |code: u8| vendor::NAMES.get(usize::from(code)).map_or_else(|| format!("maker {code}"), |n| (*n).to_owned());
    let several = by_process.into_iter().filter(|(_, vendors)| vendors.len() > 1);
    several
        .map(|(process, vendors)| MixedVendors {
            pid: definitions.get::<Process>(process).map(|process| process.pid),
            vendors: vendors.into_iter().map(name).collect(),
        })
        .collect()
}

#[cfg(test)]
mod tests;
