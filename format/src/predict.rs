//! What a column's next value is likely to be, given the rows before: the codec writes the difference.
//!
//! Encoder and decoder run the same predictor over the same rows, so each is written once, here. They are exact
//! integer arithmetic that wraps; `docs/format.md` gives it number for number.
//!
//! Why chunks: all steps of the codec are done for a few hundred rows before the next few hundred, so their numbers
//! stay in the L1 cache, whatever the column's type each loop is compiled once, and no column has to be copied as a
//! whole for another that is predicted by it.

use std::ops::Range;

use rustc_hash::FxHashMap;

use crate::column::all_are;

/// No chunk has more rows.
pub(crate) const CHUNK: usize = 512;

/// Writes these rows of another column of the table, named by its number, into a vector, which it clears first.
pub(crate) type Others<'a> = &'a dyn Fn(usize, Range<usize>, &mut Vec<u64>);

/// Says each value before it is known, then is told it. Chunks come in order, from row 0 on.
pub(crate) trait Predict {
    /// Puts the differences from what was predicted in place of the values of the rows from `from` on.
    fn differences(&mut self, from: usize, numbers: &mut [u64]);
    /// Puts the values in place of their differences.
    fn values(&mut self, from: usize, numbers: &mut [u64]);
}

/// A predictor's one loop, whatever it is used for.
trait Each {
    /// Calls `step` for each row with what is predicted and the number in place; `step` gives the number to put there
    /// and the row's value.
    fn each(&mut self, from: usize, numbers: &mut [u64], step: impl Fn(u64, u64) -> (u64, u64));
}

impl<T: Each> Predict for T {
    fn differences(&mut self, from: usize, numbers: &mut [u64]) {
        self.each(from, numbers, |predicted, value| (value.wrapping_sub(predicted), value));
    }
    fn values(&mut self, from: usize, numbers: &mut [u64]) {
        self.each(from, numbers, |predicted, difference| {
            let value = predicted.wrapping_add(difference);
            (value, value)
        });
    }
}

/// Nothing is: the difference is the value.
pub(crate) struct Unpredicted;

impl Predict for Unpredicted {
    fn differences(&mut self, _: usize, _: &mut [u64]) {}
    fn values(&mut self, _: usize, _: &mut [u64]) {}
}

/// The row before.
pub(crate) struct Previous(pub(crate) u64);

impl Each for Previous {
    #[inline(always)]
    fn each(&mut self, _: usize, numbers: &mut [u64], step: impl Fn(u64, u64) -> (u64, u64)) {
        let mut before = self.0;
        for number in numbers {
            (*number, before) = step(before, *number);
        }
        self.0 = before;
    }
}

/// The end of the row before on the same stream; of a stream's first row, the row before.
pub(crate) struct StreamEnd<'a> {
    others: Others<'a>,
    stream: usize,
    duration: usize,
    streams: Vec<u64>,
    durations: Vec<u64>,
    /// By stream, for small ids, which nearly all are.
    ends: Vec<Option<u64>>,
    more_ends: FxHashMap<u64, Option<u64>>,
    before: u64,
}

const SMALL_STREAMS: u64 = 256;

impl<'a> StreamEnd<'a> {
    pub(crate) fn new(first: u64, others: Others<'a>, stream: usize, duration: usize) -> StreamEnd<'a> {
        StreamEnd {
            others,
            stream,
            duration,
            streams: Vec::new(),
            durations: Vec::new(),
            ends: vec![None; SMALL_STREAMS as usize],
            more_ends: FxHashMap::default(),
            before: first,
        }
    }
}

impl Each for StreamEnd<'_> {
    #[inline(always)]
    fn each(&mut self, from: usize, numbers: &mut [u64], step: impl Fn(u64, u64) -> (u64, u64)) {
        let rows = from..from + numbers.len();
        (self.others)(self.stream, rows.clone(), &mut self.streams);
        (self.others)(self.duration, rows, &mut self.durations);
        // Most traces have one stream at a time: its end stays in a register.
        let is_one = self.streams.first().is_some_and(|&stream| all_are(&self.streams, stream));
        let mut done = 0;
        while let Some(&stream) = self.streams.get(done) {
            let run = match is_one {
                true => done..self.streams.len(),
                false => done..done + self.streams[done..].iter().take_while(|&&next| next == stream).count(),
            };
            done = run.end;
            let slot = match stream {
                0..SMALL_STREAMS => &mut self.ends[stream as usize],
                _ => self.more_ends.entry(stream).or_default(),
            };
            let mut value = self.before;
            let mut end = slot.unwrap_or(value);
            for (number, duration) in numbers[run.clone()].iter_mut().zip(&self.durations[run]) {
                (*number, value) = step(end, *number);
                end = value.wrapping_add(*duration);
            }
            self.before = value;
            *slot = Some(end);
        }
    }
}

/// The running mean of the rows with the same key, a whole number of ticks.
///
/// The mean moves a quarter of the way to each value: slow enough to average jitter, quick enough to follow a growing
/// context. Keys share a fixed number of slots by a hash, so that a stranger's keys take no memory.
pub(crate) struct KeyMean<'a> {
    others: Others<'a>,
    key: usize,
    keys: Vec<u64>,
    means: Box<[u64; SLOTS]>,
    /// By how much less than all of the way each mean moves, as a power of two: 0 for the first value, which it becomes.
    shifts: Box<[u8; SLOTS]>,
    /// All but what is less than a tick.
    ticks: u64,
}

const SLOT_BITS: u32 = 12;
const SLOTS: usize = 1 << SLOT_BITS;

impl<'a> KeyMean<'a> {
    pub(crate) fn new(first: u64, others: Others<'a>, key: usize, tick_bits: u8) -> KeyMean<'a> {
        // Not from the stack.
        let means = vec![first; SLOTS].into_boxed_slice().try_into().expect("so long");
        let shifts = vec![0; SLOTS].into_boxed_slice().try_into().expect("so long");
        KeyMean { others, key, keys: Vec::new(), means, shifts, ticks: u64::MAX << tick_bits }
    }
}

impl Each for KeyMean<'_> {
    #[inline(always)]
    fn each(&mut self, from: usize, numbers: &mut [u64], step: impl Fn(u64, u64) -> (u64, u64)) {
        (self.others)(self.key, from..from + numbers.len(), &mut self.keys);
        // Named by themselves, as they could otherwise be moved by any store.
        let (means, shifts, ticks) = (&mut *self.means, &mut *self.shifts, self.ticks);
        for (number, key) in numbers.iter_mut().zip(&self.keys) {
            let slot = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - SLOT_BITS)) as usize;
            let mean = means[slot];
            let value;
            (*number, value) = step(mean & ticks, *number);
            means[slot] = mean.wrapping_add((value.wrapping_sub(mean) as i64 >> shifts[slot]) as u64);
            shifts[slot] = 2;
        }
    }
}
