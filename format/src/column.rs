//! One column of one block, as bytes.
//!
//! ```text
//! values           1000  1004  1012  1016
//! - predicted             1000  1004  1012        what the rows before say, see `predict`
//! = differences       0     4     8     4
//! - offset            0     4     8     4         the least, so that none is negative
//! / greatest common divisor 4:  0  1  2  1        a clock that ticks in microseconds costs no more than one in ns
//! byte planes       [0 1 2 1]                     all lowest bytes, then all second bytes …, as many as needed
//! each plane        raw, one repeated byte, or a zstd frame of its own
//! ```
//!
//! Why planes, each in its own frame: the low byte of a time is noise and the high ones are structure; under one
//! Huffman table both would cost more. Packing bits before zstd makes it worse, as that destroys the byte alignment
//! which zstd lives on.
//!
//! The bytes and their meaning are here, the two ways in [`encode`] and [`decode`].

mod decode;
mod encode;

pub(crate) use decode::{Decode, Decoder, Zeros};
pub(crate) use encode::{Choice, Encode, Encoder, Prediction};

use crate::table::Value;
use crate::varint::{take, take_bytes};
use crate::wide::wide;

/// All values are the same.
const CONSTANT: u8 = 0;
/// Differences from the least value.
const LEAST: u8 = 1;
/// Format 1.0: differences from the value before, zigzag.
const ZIGZAG_PREVIOUS: u8 = 2;
/// Format 1.0: differences from the end of the row before on the same stream, zigzag.
const ZIGZAG_STREAM_END: u8 = 3;
/// Differences from the value before.
const PREVIOUS: u8 = 4;
/// Differences from the end of the row before on the same stream.
const STREAM_END: u8 = 5;
/// Differences from the running mean of the rows with the same key.
const KEY_MEAN: u8 = 6;

/// A plane as it is.
const PLANE_RAW: u64 = 0;
/// A plane as a zstd frame.
const PLANE_ZSTD: u64 = 1;
/// A plane of one repeated byte.
const PLANE_CONSTANT: u64 = 2;

/// Most planes of a column: a tick's remainder and eight bytes, or eight bytes.
const MAX_PLANES: usize = 9;

/// The lowest bit and the mask of a plane: bytes, or first the remainder of a tick and then bytes.
fn place(plane: u8, tick_bits: u8) -> (u8, u8) {
    match (plane, tick_bits) {
        (_, 0) => (8 * plane, 0xff),
        (0, _) => (0, (1 << tick_bits) - 1),
        _ => (8 * (plane - 1) + tick_bits, 0xff),
    }
}

wide! {
    /// Whether all values are this one, bit for bit. Stops at the first chunk with another, and reads a chunk without
    /// branches.
    pub(crate) fn all_are<T: Value>(values: &[T], one: T) -> bool {
        values.chunks(512).all(|chunk| !chunk.iter().fold(false, |other, value| other | !value.is_same(one)))
    }

    /// The least and the most of the numbers, as signed ones after their highest bit was turned over where `turn` has it.
    pub(crate) fn extent(numbers: &[u64], turn: u64) -> (i64, i64) {
        let (mut least, mut most) = (i64::MAX, i64::MIN);
        for number in numbers {
            let number = (number ^ turn) as i64;
            (least, most) = (least.min(number), most.max(number));
        }
        (least, most)
    }
}

/// A column's parameters and body, read but not yet decoded.
#[derive(Clone, Copy)]
pub(crate) struct Encoded<'a> {
    parameters: &'a [u8],
    body: &'a [u8],
}

/// What a column is decoded from besides its planes.
struct Head {
    coding: u8,
    base: u64,
    needs: Needs,
    tick_bits: u8,
    offset: u64,
    divisor: u64,
}

impl Needs {
    /// Their numbers.
    pub(crate) fn columns(self) -> [Option<u64>; 2] {
        match self {
            Needs::Nothing => [None, None],
            Needs::Key(key) => [Some(key), None],
            Needs::StreamEnd { stream, duration } => [Some(stream), Some(duration)],
        }
    }
}

/// The columns that must be decoded before another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needs {
    Nothing,
    Key(u64),
    StreamEnd { stream: u64, duration: u64 },
}

impl<'a> Encoded<'a> {
    pub(crate) fn new(parameters: &'a [u8], body: &'a [u8]) -> Encoded<'a> {
        Encoded { parameters, body }
    }

    /// The columns that must be decoded before this one; those of a key before those of a stream's end.
    pub(crate) fn needs(&self) -> Option<Needs> {
        Some(self.head()?.0.needs)
    }

    /// The head, and what follows of the parameters: the planes.
    fn head(&self) -> Option<(Head, &'a [u8])> {
        let (&coding, mut rest) = self.parameters.split_first()?;
        let base = take(&mut rest)?;
        let needs = match coding {
            CONSTANT | LEAST | ZIGZAG_PREVIOUS | PREVIOUS => Needs::Nothing,
            ZIGZAG_STREAM_END | STREAM_END => Needs::StreamEnd { stream: take(&mut rest)?, duration: take(&mut rest)? },
            KEY_MEAN => Needs::Key(take(&mut rest)?),
            _ => return None,
        };
        let (mut tick_bits, mut offset, mut divisor) = (0, 0, 0);
        if coding >= PREVIOUS {
            (tick_bits, rest) = rest.split_first().map(|(&bits, rest)| (bits, rest)).filter(|head| head.0 < 8)?;
            offset = take(&mut rest)?;
        }
        if coding != CONSTANT {
            divisor = take(&mut rest)?;
        }
        Some((Head { coding, base, needs, tick_bits, offset, divisor }, rest))
    }

    /// How many bytes it takes.
    pub(crate) fn bytes(&self) -> usize {
        self.parameters.len() + self.body.len()
    }

    /// Its coding, and those of its planes that are zstd frames.
    pub(crate) fn frames(&self) -> Option<(u8, Vec<&'a [u8]>)> {
        let (head, rest) = self.head()?;
        let mut frames = Vec::new();
        if head.coding != CONSTANT {
            let (&width, mut planes) = rest.split_first()?;
            let mut body = self.body;
            for _ in 0..width {
                let tag = take(&mut planes)?;
                let bytes = take_bytes(&mut body, tag >> 2)?;
                if tag & 3 == PLANE_ZSTD {
                    frames.push(bytes);
                }
            }
        }
        Some((head.coding, frames))
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use proptest::prelude::*;

    use super::*;
    use crate::varint::put;

    /// The columns beside the one that is tested.
    fn beside<'a>(columns: &'a [(usize, &'a [u64])]) -> impl Fn(usize, Range<usize>, &mut Vec<u64>) {
        |column, rows, out| {
            let found = columns.iter().find(|(number, _)| *number == column).expect("a column that there is");
            out.clear();
            out.extend_from_slice(&found.1[rows]);
        }
    }

    /// Encodes as `prediction` says, decodes, compares; returns the bytes that it took.
    fn round_trip<T: Value + PartialEq + std::fmt::Debug>(
        values: &[T],
        others: &[(usize, &[u64])],
        prediction: Prediction,
    ) -> usize {
        let (mut parameters, mut body, mut out) = (Vec::new(), Vec::new(), Vec::<T>::new());
        let mut encoder = Encoder::new().unwrap();
        encoder.column(values, &beside(others), &[prediction], &mut Choice::default(), &mut parameters, &mut body);
        let encoded = Encoded::new(&parameters, &body);
        Decoder::new().unwrap().column(encoded, values.len(), &beside(others), &mut out).unwrap();
        assert_eq!(out, values);
        parameters.len() + body.len()
    }

    /// The same by every coding, for whatever the other columns hold.
    fn round_trips<T: Value + PartialEq + std::fmt::Debug>(values: &[T], others: &[(u64, u64)]) {
        let (keys, durations): (Vec<u64>, Vec<u64>) = others.iter().copied().unzip();
        let others = [(3, &keys[..]), (1, &durations[..])];
        round_trip(values, &others, Prediction::Least);
        round_trip(values, &others, Prediction::Previous);
        for tick_bits in 0..8 {
            round_trip(values, &others, Prediction::KeyMean { tick_bits, key: 3 });
            round_trip(values, &others, Prediction::StreamEnd { tick_bits, stream: 3, duration: 1 });
        }
    }

    fn extreme() -> impl Strategy<Value = u64> {
        prop_oneof![
            Just(0),
            Just(1),
            Just(u64::MAX),
            Just(i64::MAX as u64),
            Just(i64::MIN as u64),
            any::<u64>(),
            0..1000_u64,
            (0..50_u64).prop_map(|v| v * 1000)
        ]
    }

    proptest! {
        #[test]
        fn any_values_come_back(rows in prop::collection::vec((extreme(), (extreme(), extreme())), 1..300)) {
            let (values, others): (Vec<u64>, Vec<(u64, u64)>) = rows.into_iter().unzip();
            round_trips(&values, &others);
            round_trips(&values.iter().map(|&value| value as i64).collect::<Vec<_>>(), &others);
            round_trips(&values.iter().map(|&value| value as u32).collect::<Vec<_>>(), &others);
            round_trips(&values.iter().map(|&value| value as i32).collect::<Vec<_>>(), &others);
            round_trips(&values.iter().map(|&value| value as u16).collect::<Vec<_>>(), &others);
            round_trips(&values.iter().map(|&value| value as u8).collect::<Vec<_>>(), &others);
        }

        #[test]
        fn few_streams_and_keys_come_back(rows in prop::collection::vec((extreme(), (0..3_u64, extreme())), 1..1300)) {
            let (values, others): (Vec<u64>, Vec<(u64, u64)>) = rows.into_iter().unzip();
            round_trips(&values, &others);
        }

        #[test]
        fn stranger_bytes_never_panic(coding in 0..9_u8, parameters in prop::collection::vec(any::<u8>(), 0..40),
                                      body in prop::collection::vec(any::<u8>(), 0..40), rows in 0..50_usize) {
            let parameters = [&[coding], &parameters[..]].concat();
            let encoded = Encoded::new(&parameters, &body);
            let all = |_: usize, rows: Range<usize>, out: &mut Vec<u64>| {
                out.clear();
                out.resize(rows.len(), u64::MAX - 1);
            };
            let mut decoder = Decoder::new().unwrap();
            let _ = encoded.frames();
            let _ = decoder.column(encoded, rows, &all, &mut Vec::<u64>::new());
            let _ = decoder.column(encoded, rows, &all, &mut Vec::<u8>::new());
            let _ = decoder.text(encoded, rows);
        }

        #[test]
        fn stranger_planes_never_panic(coding in 1..9_u8, tick_bits in 0..9_u8, width in 0..11_u8, rows in 0..20_usize,
                                       numbers in prop::collection::vec(extreme(), 4), byte in any::<u8>()) {
            let mut parameters = vec![coding];
            let numbers = match coding {
                ZIGZAG_STREAM_END | STREAM_END => &numbers[..3],
                KEY_MEAN => &numbers[..2],
                _ => &numbers[..1],
            };
            numbers.iter().for_each(|&number| put(&mut parameters, number));
            if coding >= PREVIOUS {
                parameters.push(tick_bits);
                put(&mut parameters, numbers[0]);
            }
            put(&mut parameters, numbers[0]);
            parameters.push(width);
            (0..width).for_each(|_| put(&mut parameters, 1 << 2 | PLANE_CONSTANT));
            let all = |_: usize, rows: Range<usize>, out: &mut Vec<u64>| {
                out.clear();
                out.resize(rows.len(), u64::MAX);
            };
            let body = [byte; 11];
            let encoded = Encoded::new(&parameters, &body);
            let mut decoder = Decoder::new().unwrap();
            let read = decoder.column(encoded, rows, &all, &mut Vec::<i32>::new());
            let ticks = if coding >= PREVIOUS { tick_bits } else { 0 };
            let most = if ticks == 0 { 8 } else { 9 };
            prop_assert_eq!(read.is_some(), coding <= KEY_MEAN && ticks < 8 && width <= most);
        }
    }

    /// A column as format 1.0 wrote it: zigzag, no offset.
    #[test]
    fn the_codings_of_format_1_mean_what_they_meant() {
        let zigzagged = [0_u8, 2, 3, 200];
        let mut parameters = vec![ZIGZAG_PREVIOUS];
        [1000, 5].iter().for_each(|&number| put(&mut parameters, number));
        parameters.push(1);
        put(&mut parameters, 4 << 2 | PLANE_RAW);
        let mut out = Vec::<u64>::new();
        let mut decoder = Decoder::new().unwrap();
        decoder.column(Encoded::new(&parameters, &zigzagged), 4, &beside(&[]), &mut out).unwrap();
        assert_eq!(out, [1000, 1005, 995, 1495]);
        let mut parameters = vec![ZIGZAG_STREAM_END];
        [1000, 3, 1, 1].iter().for_each(|&number| put(&mut parameters, number));
        parameters.push(1);
        put(&mut parameters, 4 << 2 | PLANE_RAW);
        let others: [(usize, &[u64]); 2] = [(3, &[1, 1, 2, 1]), (1, &[10, 20, 30, 40])];
        decoder.column(Encoded::new(&parameters, &zigzagged), 4, &beside(&others), &mut out).unwrap();
        // Its own end and one; the row before less two; the end of stream 1 and a hundred.
        assert_eq!(out, [1000, 1011, 1009, 1131]);
    }

    #[test]
    fn what_a_key_repeats_costs_only_its_jitter() {
        let shapes: Vec<u64> = (0..8192).map(|row| row * row % 61).collect();
        let jitter = |row: u64| row.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 61;
        let values: Vec<u64> =
            (0..8192).zip(&shapes).map(|(row, shape)| shape * 1000 + jitter(row) + row / 100).collect();
        let plain = round_trip(&values, &[], Prediction::Least);
        let by_key = round_trip(&values, &[(0, &shapes)], Prediction::KeyMean { tick_bits: 0, key: 0 });
        assert!(by_key < 8192 / 2 && by_key < plain / 2, "{by_key} bytes against {plain}");
    }

    #[test]
    fn a_tick_costs_its_count_and_its_blur_each_by_itself() {
        let random = |row: u64| (row + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let values: Vec<u64> = (0..8192).map(|row| 32 * (200 + random(row) % 12) + random(row * 7) % 3 - 1).collect();
        let keys = vec![1; values.len()];
        let plain = round_trip(&values, &[(0, &keys)], Prediction::KeyMean { tick_bits: 0, key: 0 });
        let ticks = round_trip(&values, &[(0, &keys)], Prediction::KeyMean { tick_bits: 5, key: 0 });
        assert!(ticks < plain * 9 / 10, "{ticks} bytes against {plain}");
    }

    #[test]
    fn microsecond_clocks_cost_no_more_than_their_ticks() {
        let ticks: Vec<u64> = (0..4096_u64).map(|i| i * 7 + i * i % 5).collect();
        let nanoseconds: Vec<u64> = ticks.iter().map(|t| 1_700_000_000_000_000_000 + t * 1000).collect();
        let fine = round_trip(&ticks, &[], Prediction::Previous);
        let coarse = round_trip(&nanoseconds, &[], Prediction::Previous);
        assert!(coarse <= fine + 12, "{coarse} bytes against {fine}");
    }

    #[test]
    fn equal_values_cost_a_few_bytes_whatever_their_number() {
        assert!(round_trip(&[u64::MAX; 50_000], &[], Prediction::Least) <= 11);
    }
}
