//! The host's side of calls: what the eBPF programs would tell of them, told from within the process.

use ktape_ebpf::inside::{Correlated, FunctionEntry, kind};
use ktape_ebpf::wire::Plain as _;

use crate::cupti::callback::CallbackData;
use crate::{clock, rings};

/// A function of the table was called.
pub fn entered(data: &CallbackData, entry: &FunctionEntry) {
    let time_ns = clock::monotonic_ns();
    rings::with_writer(entry.plan.tally, time_ns, |writer| {
        let record =
            Correlated { kind: kind::CORRELATED, correlation: data.correlation_id, time_ns, pid_tid: writer.pid_tid() };
        writer.put(record.as_bytes(), &[])
    });
}

/// It returns.
pub fn left(_: &CallbackData, _: &FunctionEntry) {}
