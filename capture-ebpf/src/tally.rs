//! What was seen and what was lost, by processor, kind and interval: the programs' side of the proof that nothing is missing.
//!
//! A program says what it saw before it does anything else with it, and says that it was lost if the ring buffer has no room:
//! so of what is counted as seen, each has a record or is counted as lost. It belongs to the interval of its own time, which the
//! record has too, so that both sides count it under the same. A program stays on its processor to its end, so the processor
//! that it counts on is the one that it writes into the record. Others may run there in between, and raise the same counters:
//! they are raised in one step.
//!
//! The counters are never reset, neither here nor by user space: so nothing can be counted twice, or be wiped out by a program
//! that was held up. Intervals take turns in `SLOTS` slots, and user space knows what each held when its interval began. See
//! `capture/src/record/tally.rs`.

use aya_ebpf::macros::map;
use aya_ebpf::maps::PerCpuArray;
use ktape_ebpf::wire::tally::{self, KINDS, SLOTS, Slot};

use crate::maps::count;

/// By the interval's number, modulo their count.
#[map]
static TALLIES: PerCpuArray<Slot> = PerCpuArray::with_max_entries(SLOTS, 0);

/// What a program counts into: `None` only where there is no such slot, which there always is.
#[inline(always)]
pub(crate) fn slot(time_ns: u64) -> Option<*mut Slot> {
    TALLIES.get_ptr_mut(tally::interval(time_ns) as u32 & (SLOTS - 1))
}

/// Counts something of a kind (a table of the tape; 0 for what is no event) that was seen.
#[inline(always)]
pub(crate) fn seen(slot: *mut Slot, kind: u32) {
    // SAFETY: a map's value, and an index within it.
    count(unsafe { &raw mut (*slot).seen[kind as usize & (KINDS - 1)] });
}

/// Counts something that was seen, and that the ring buffer had no room for.
#[inline(always)]
pub(crate) fn lost(slot: *mut Slot, kind: u32) {
    // SAFETY: as above.
    count(unsafe { &raw mut (*slot).lost[kind as usize & (KINDS - 1)] });
}
