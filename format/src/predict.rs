//! What a column's next value is likely to be, given the rows before: the codec writes the difference.
//!
//! Encoder and decoder run the same predictor over the same rows, so each is written once, here. They are exact
//! integer arithmetic that wraps; `docs/format.md` gives it number for number.

use rustc_hash::FxHashMap;

/// Says a value before it is known, then is told it.
pub(crate) trait Predict {
    /// What row `row` is likely to be. Rows come in order.
    fn predict(&mut self, row: usize) -> u64;
    /// What it was.
    fn saw(&mut self, row: usize, value: u64);
}

/// The row before.
pub(crate) struct Previous(pub(crate) u64);

impl Predict for Previous {
    #[inline(always)]
    fn predict(&mut self, _: usize) -> u64 {
        self.0
    }
    #[inline(always)]
    fn saw(&mut self, _: usize, value: u64) {
        self.0 = value;
    }
}

/// The end of the row before on the same stream; of a stream's first row, the row before.
pub(crate) struct StreamEnd<'a> {
    streams: &'a [u64],
    durations: &'a [u64],
    /// By stream, for small ids, which nearly all are.
    ends: Vec<Option<u64>>,
    others: FxHashMap<u64, u64>,
    before: u64,
}

const SMALL_STREAMS: usize = 256;

impl<'a> StreamEnd<'a> {
    pub(crate) fn new(first: u64, streams: &'a [u64], durations: &'a [u64]) -> StreamEnd<'a> {
        let ends = vec![None; SMALL_STREAMS];
        StreamEnd { streams, durations, ends, others: FxHashMap::default(), before: first }
    }
}

impl Predict for StreamEnd<'_> {
    #[inline(always)]
    fn predict(&mut self, row: usize) -> u64 {
        let stream = self.streams[row];
        let end = match self.ends.get(stream as usize) {
            Some(end) => *end,
            None => self.others.get(&stream).copied(),
        };
        end.unwrap_or(self.before)
    }
    #[inline(always)]
    fn saw(&mut self, row: usize, value: u64) {
        let (stream, end) = (self.streams[row], value.wrapping_add(self.durations[row]));
        match self.ends.get_mut(stream as usize) {
            Some(slot) => *slot = Some(end),
            None => _ = self.others.insert(stream, end),
        }
        self.before = value;
    }
}

/// The running mean of the rows with the same key, a whole number of ticks.
///
/// The mean moves a quarter of the way to each value: slow enough to average jitter, quick enough to follow a growing
/// context. Keys share a fixed number of slots by a hash, so that a stranger's keys take no memory.
pub(crate) struct KeyMean<'a> {
    keys: &'a [u64],
    means: Vec<Option<u64>>,
    first: u64,
    tick_bits: u32,
}

const SLOT_BITS: u32 = 12;

impl<'a> KeyMean<'a> {
    pub(crate) fn new(first: u64, keys: &'a [u64], tick_bits: u32) -> KeyMean<'a> {
        KeyMean { keys, means: vec![None; 1 << SLOT_BITS], first, tick_bits }
    }

    #[inline(always)]
    fn slot(&mut self, row: usize) -> &mut Option<u64> {
        let slot = self.keys[row].wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - SLOT_BITS);
        &mut self.means[slot as usize]
    }
}

impl Predict for KeyMean<'_> {
    #[inline(always)]
    fn predict(&mut self, row: usize) -> u64 {
        let (first, tick_bits) = (self.first, self.tick_bits);
        self.slot(row).unwrap_or(first) >> tick_bits << tick_bits
    }
    #[inline(always)]
    fn saw(&mut self, row: usize, value: u64) {
        let slot = self.slot(row);
        *slot = Some(match *slot {
            None => value,
            Some(mean) => mean.wrapping_add((value.wrapping_sub(mean) as i64 >> 2) as u64),
        });
    }
}
