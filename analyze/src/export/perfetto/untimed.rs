//! Copies and memsets whose time nobody knows.
//!
//! On a stream's track they would stand where their call was made, as if the device had worked then. So they are no device
//! work in the trace but arguments of the call, which is all that is known of them. One whose call is not on the tape, or
//! had several, stays on its stream, marked by its timing: nothing falls out.

use ktape_format::event::timing;
use rustc_hash::FxHashMap;

use crate::timeline::{DeviceOp, DeviceOpKind, Submitter, Timeline};

/// The operations that are arguments of their call.
pub(super) struct Untimed {
    by_call: FxHashMap<u32, DeviceOp>,
}

impl Untimed {
    /// Takes them out of all operations.
    pub(super) fn take(timeline: &Timeline, ops: &mut Vec<DeviceOp>) -> Untimed {
        let call = |op: &DeviceOp| match timeline.submitter(op) {
            Some(Submitter::Api(row)) => Some(row),
            _ => None,
        };
        let is_untimed = |op: &DeviceOp| op.kind != DeviceOpKind::Kernel && op.timing == timing::ABSENT;
        let mut by_call = FxHashMap::default();
        if !ops.iter().any(is_untimed) {
            return Untimed { by_call };
        }
        let mut of_call = FxHashMap::<u32, usize>::default();
        ops.iter().filter_map(call).for_each(|row| *of_call.entry(row).or_default() += 1);
        ops.retain(|op| match call(op) {
            Some(row) if is_untimed(op) && of_call[&row] == 1 => by_call.insert(row, *op).is_some(),
            _ => true,
        });
        Untimed { by_call }
    }

    /// What the call in this row of `events.api` asked for.
    pub(super) fn of_call(&self, row: usize) -> Option<&DeviceOp> {
        self.by_call.get(&(row as u32))
    }
}
