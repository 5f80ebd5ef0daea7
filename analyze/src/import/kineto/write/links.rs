//! Which device work belongs to which call: found by correlation before anything is written.
//!
//! Ids count within a process, so work is found by process and correlation, and its process by its call.

use rustc_hash::FxHashMap;

use super::super::devices::Places;
use super::super::records::{CallsByCorrelation, Records, Work};

/// The device work of one call, by numbers into [`Records::device_ops`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Submitted {
    /// The first operation, by start.
    pub(super) first: u32,
    /// The first kernel, by start.
    pub(super) kernel: Option<u32>,
    /// Whether any of it belongs to a graph.
    pub(super) in_graph: bool,
}

/// What belongs together.
#[derive(Debug, Default)]
pub(super) struct Links {
    calls: CallsByCorrelation,
    /// The call of each device operation, by number into [`Records::calls`].
    pub(super) call_of_op: Vec<Option<u32>>,
    /// The device work of each call.
    pub(super) work_of_call: Vec<Option<Submitted>>,
}

impl Links {
    pub(super) fn of(records: &Records, places: &Places) -> Links {
        let mut links = Links { calls: records.calls_by_correlation(), ..Links::default() };
        let mut submitted = FxHashMap::<(u32, u64), Submitted>::default();
        links.call_of_op.reserve(records.device_ops.len());
        for (number, op) in (0..).zip(&records.device_ops) {
            let call = links.calls.get(&op.correlation).copied();
            links.call_of_op.push(call);
            if op.correlation == 0 {
                continue;
            }
            let process = process_of(call, records, places);
            let first = Submitted { first: number, kernel: None, in_graph: false };
            let of_call = submitted.entry((process, op.correlation)).or_insert(first);
            of_call.in_graph |= op.graph != 0 || op.graph_node != 0;
            if matches!(op.work, Work::Kernel(_)) {
                of_call.kernel.get_or_insert(number);
            }
        }
        let work_of =
            |thread, correlation| submitted.get(&(places.process_of_thread(records, thread), correlation)).copied();
        links.work_of_call = records.calls.iter().map(|call| work_of(call.thread, call.correlation)).collect();
        links
    }

    /// The process of the device work with a correlation.
    pub(super) fn process(&self, records: &Records, places: &Places, correlation: u64) -> u32 {
        match records.processes.things.len() {
            0 | 1 => places.main_process,
            _ => process_of(self.calls.get(&correlation).copied(), records, places),
        }
    }
}

/// The process of a call's device work: the only one there is, else that of the call, else the first.
fn process_of(call: Option<u32>, records: &Records, places: &Places) -> u32 {
    match call {
        Some(call) if records.processes.things.len() > 1 => {
            places.process_of_thread(records, records.calls[call as usize].thread)
        }
        _ => places.main_process,
    }
}
