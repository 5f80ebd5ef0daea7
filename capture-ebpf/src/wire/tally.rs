//! What was seen and lost by processor, kind and interval.

/// How long an interval is: 2 to the power of this, in nanoseconds, so 8.6 s. Intervals are counted from time 0.
pub const INTERVAL_SHIFT: u32 = 33;
/// How many intervals have counters at a time: nine minutes. A power of two.
pub const SLOTS: u32 = 64;
/// Kinds are less than this. A power of two.
pub const KINDS: usize = 32;

/// The tape's table of ranges.
pub const RANGE: u32 = 13;
/// The tape's table of marks.
pub const MARK: u32 = 14;
/// The tape's table of CPU samples.
pub const CPU_SAMPLE: u32 = 15;
/// The tape's table of time off the processor. A stretch belongs to the interval in which it ended: it may have begun hours
/// before, and until it ends there is nothing to be counted.
pub const OFF_CPU: u32 = 20;
/// The tape's table of kernels. What the device did belongs to the interval in which it ended, as above.
pub const KERNEL: u32 = 4;
/// The tape's table of copies.
pub const MEMCPY: u32 = 5;
/// The tape's table of memsets.
pub const MEMSET: u32 = 6;

/// What stands for the processor of what a process itself has seen: one that is counted by whoever writes it, and not by where
/// that runs.
pub const NO_CPU: u16 = u16::MAX;

/// What one processor counted in one interval, and in those so many [`SLOTS`] before, by kind. Who copies it from the
/// beginning to the end finds no more lost than seen, whatever is counted meanwhile.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slot {
    /// Of those seen, how many found the ring buffer full.
    pub lost: [u64; KINDS],
    /// How many were seen.
    pub seen: [u64; KINDS],
}

/// The interval of a time.
#[inline(always)]
pub const fn interval(time_ns: u64) -> u64 {
    time_ns >> INTERVAL_SHIFT
}
