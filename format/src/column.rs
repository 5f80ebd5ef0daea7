//! One column of one block, as bytes.
//!
//! ```text
//! values           1000  1004  1012  1016        (u64, whatever the field's type)
//! - predicted             1000  1004  1012        predictor: what the row before says
//! = differences       0     4     8     4
//! / greatest common divisor 4:  0  1  2  1        a clock that ticks in microseconds costs no more than one in ns
//! zigzag              0     2     4     2         small magnitudes small
//! byte planes       [0 2 4 2]                     all lowest bytes, then all second bytes …, as many as needed
//! each plane        raw, one repeated byte, or a zstd frame of its own
//! ```
//!
//! Why planes, each in its own frame: the low byte of a time is noise and the high ones are structure; under one
//! Huffman table both would cost more. Packing bits before zstd makes it worse, as that destroys the byte alignment
//! which zstd lives on.

use rustc_hash::FxHashMap;
use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe::CParameter;

use crate::varint::{put, take, take_bytes, unzigzag, zigzag};

/// All values are the same.
const CONSTANT: u8 = 0;
/// Differences from the least value.
const LEAST: u8 = 1;
/// Differences from the value before.
const PREVIOUS: u8 = 2;
/// Differences from the end of the row before on the same stream.
const STREAM_END: u8 = 3;

/// A plane as it is.
const PLANE_RAW: u64 = 0;
/// A plane as a zstd frame.
const PLANE_ZSTD: u64 = 1;
/// A plane of one repeated byte.
const PLANE_CONSTANT: u64 = 2;

/// zstd's level for planes; higher ones are slower and no smaller on this data.
const PLANE_LEVEL: i32 = 1;
/// zstd's level for strings: there are few, each is written once, and names repeat long substrings.
const TEXT_LEVEL: i32 = 9;

/// What a column is predicted from, with the other columns that this needs.
#[derive(Clone, Copy)]
pub(crate) enum Prediction<'a> {
    Least,
    Previous,
    StreamEnd { stream: (usize, &'a [u64]), duration: (usize, &'a [u64]) },
}

/// Compression state and buffers, reused from column to column.
pub(crate) struct Encoder {
    planes: Compressor<'static>,
    text: Compressor<'static>,
    residuals: Vec<u64>,
    plane: Vec<u8>,
    packed: Vec<u8>,
}

impl Encoder {
    pub(crate) fn new() -> std::io::Result<Encoder> {
        let compressor = |level| {
            let mut compressor = Compressor::new(level)?;
            // The block's directory has the sizes and its header the checksum.
            compressor.set_parameter(CParameter::ContentSizeFlag(false))?;
            compressor.set_parameter(CParameter::ChecksumFlag(false))?;
            std::io::Result::Ok(compressor)
        };
        Ok(Encoder {
            planes: compressor(PLANE_LEVEL)?,
            text: compressor(TEXT_LEVEL)?,
            residuals: Vec::new(),
            plane: Vec::new(),
            packed: Vec::new(),
        })
    }

    /// Appends a column's parameters to `parameters` and its planes to `body`. `values` is not empty.
    pub(crate) fn column(
        &mut self,
        values: &[u64],
        prediction: Prediction<'_>,
        parameters: &mut Vec<u8>,
        body: &mut Vec<u8>,
    ) {
        if values.iter().all(|&value| value == values[0]) {
            parameters.push(CONSTANT);
            put(parameters, values[0]);
            return;
        }
        let divisor = match prediction {
            Prediction::Least => {
                parameters.push(LEAST);
                let least = values.iter().copied().min().unwrap_or(0);
                put(parameters, least);
                self.residuals.clear();
                self.residuals.extend(values.iter().map(|value| value - least));
                let divisor = common_divisor(self.residuals.iter().copied());
                if divisor > 1 {
                    self.residuals.iter_mut().for_each(|value| *value /= divisor);
                }
                divisor
            }
            Prediction::Previous => {
                parameters.push(PREVIOUS);
                put(parameters, values[0]);
                let mut before = values[0];
                self.signed(values.iter().map(|&value| {
                    let difference = value.wrapping_sub(before);
                    before = value;
                    difference
                }))
            }
            Prediction::StreamEnd { stream, duration } => {
                parameters.push(STREAM_END);
                put(parameters, values[0]);
                put(parameters, stream.0 as u64);
                put(parameters, duration.0 as u64);
                let mut ends = StreamEnds::new(values[0]);
                self.signed(values.iter().zip(stream.1).zip(duration.1).map(|((&value, &stream), &duration)| {
                    let predicted = ends.predict(stream);
                    ends.saw(stream, value, duration);
                    value.wrapping_sub(predicted)
                }))
            }
        };
        put(parameters, divisor);
        let widest = self.residuals.iter().fold(0, |all, value| all | value);
        let width = (64 - widest.leading_zeros()).div_ceil(8) as u8;
        parameters.push(width);
        for byte in 0..width {
            self.plane.clear();
            self.plane.extend(self.residuals.iter().map(|value| (value >> (8 * byte)) as u8));
            self.plane_out(parameters, body);
        }
    }

    /// Fills the residuals with zigzagged differences over their common divisor, which it returns.
    fn signed(&mut self, differences: impl Iterator<Item = u64>) -> u64 {
        self.residuals.clear();
        self.residuals.extend(differences);
        let divisor = common_divisor(self.residuals.iter().map(|&value| (value as i64).unsigned_abs()));
        // A divisor above i64::MAX divides i64::MIN only: then every difference is that or 0, and 1 serves as well.
        let divisor = i64::try_from(divisor).unwrap_or(1);
        if divisor > 1 {
            self.residuals.iter_mut().for_each(|value| *value = zigzag(*value as i64 / divisor));
        } else {
            self.residuals.iter_mut().for_each(|value| *value = zigzag(*value as i64));
        }
        divisor as u64
    }

    fn plane_out(&mut self, parameters: &mut Vec<u8>, body: &mut Vec<u8>) {
        let first = self.plane[0];
        if self.plane.iter().all(|&byte| byte == first) {
            put(parameters, 1 << 2 | PLANE_CONSTANT);
            body.push(first);
            return;
        }
        match compress(&mut self.planes, &self.plane, &mut self.packed) {
            Some(packed) => {
                put(parameters, (packed.len() as u64) << 2 | PLANE_ZSTD);
                body.extend_from_slice(packed);
            }
            None => {
                put(parameters, (self.plane.len() as u64) << 2 | PLANE_RAW);
                body.extend_from_slice(&self.plane);
            }
        }
    }

    /// Appends `text` to `body` and how it was packed to `parameters`.
    pub(crate) fn text(&mut self, text: &[u8], parameters: &mut Vec<u8>, body: &mut Vec<u8>) {
        let (packed, codec) = match compress(&mut self.text, text, &mut self.packed) {
            Some(packed) => (packed, PLANE_ZSTD),
            None => (text, PLANE_RAW),
        };
        put(parameters, (packed.len() as u64) << 2 | codec);
        body.extend_from_slice(packed);
    }
}

/// `plain` as a zstd frame in `buffer`, if that saves at least one part in fifty.
fn compress<'a>(compressor: &mut Compressor<'_>, plain: &[u8], buffer: &'a mut Vec<u8>) -> Option<&'a [u8]> {
    buffer.clear();
    buffer.reserve(zstd::zstd_safe::compress_bound(plain.len()));
    let packed = compressor.compress_to_buffer(plain, buffer).ok()?;
    (packed + plain.len() / 50 < plain.len()).then(|| &buffer[..packed])
}

/// The greatest number that divides all values; 1 if they are all 0. Stops at the first 1, mostly after a few values.
fn common_divisor(values: impl Iterator<Item = u64>) -> u64 {
    let mut divisor = 0_u64;
    for value in values {
        let (mut a, mut b) = (divisor, value);
        while b != 0 {
            (a, b) = (b, a % b);
        }
        divisor = a;
        if divisor == 1 {
            break;
        }
    }
    divisor.max(1)
}

/// Where each stream's work ended last; a stream not seen yet is predicted from the row before.
struct StreamEnds {
    ends: FxHashMap<u64, u64>,
    before: u64,
}

impl StreamEnds {
    fn new(first: u64) -> StreamEnds {
        StreamEnds { ends: FxHashMap::default(), before: first }
    }

    fn predict(&self, stream: u64) -> u64 {
        self.ends.get(&stream).copied().unwrap_or(self.before)
    }

    fn saw(&mut self, stream: u64, start: u64, duration: u64) {
        self.ends.insert(stream, start.wrapping_add(duration));
        self.before = start;
    }
}

/// A column's parameters and body, read but not yet decoded.
#[derive(Clone, Copy)]
pub(crate) struct Encoded<'a> {
    parameters: &'a [u8],
    body: &'a [u8],
}

impl<'a> Encoded<'a> {
    pub(crate) fn new(parameters: &'a [u8], body: &'a [u8]) -> Encoded<'a> {
        Encoded { parameters, body }
    }

    /// The columns that must be decoded before this one: (stream, duration).
    pub(crate) fn needs(&self) -> Option<(u64, u64)> {
        let (&coding, mut parameters) = self.parameters.split_first()?;
        (coding == STREAM_END).then_some(())?;
        take(&mut parameters)?;
        Some((take(&mut parameters)?, take(&mut parameters)?))
    }
}

impl<'a> Encoded<'a> {
    /// How many bytes it takes.
    pub(crate) fn bytes(&self) -> usize {
        self.parameters.len() + self.body.len()
    }

    /// Its coding, and those of its planes that are zstd frames.
    pub(crate) fn frames(&self) -> Option<(u8, Vec<&'a [u8]>)> {
        let Encoded { parameters, mut body } = *self;
        let (&coding, mut parameters) = parameters.split_first()?;
        take(&mut parameters)?;
        let mut frames = Vec::new();
        let others = match coding {
            CONSTANT => return Some((coding, frames)),
            STREAM_END => 3,
            _ => 1,
        };
        for _ in 0..others {
            take(&mut parameters)?;
        }
        let (&width, mut planes) = parameters.split_first()?;
        for _ in 0..width {
            let tag = take(&mut planes)?;
            let bytes = take_bytes(&mut body, tag >> 2)?;
            if tag & 3 == PLANE_ZSTD {
                frames.push(bytes);
            }
        }
        Some((coding, frames))
    }
}

/// Decompression state and buffers, reused from column to column.
pub(crate) struct Decoder {
    zstd: Decompressor<'static>,
    plane: Vec<u8>,
}

impl Decoder {
    pub(crate) fn new() -> std::io::Result<Decoder> {
        Ok(Decoder { zstd: Decompressor::new()?, plane: Vec::new() })
    }

    /// Decodes a column of `rows` values into `out`; `None` if its bytes contradict themselves.
    /// `needed` are the columns that [`Encoded::needs`] named, of `rows` values each.
    pub(crate) fn column(
        &mut self,
        encoded: Encoded<'_>,
        rows: usize,
        needed: Option<(&[u64], &[u64])>,
        out: &mut Vec<u64>,
    ) -> Option<()> {
        let Encoded { parameters, mut body } = encoded;
        let (&coding, mut parameters) = parameters.split_first()?;
        let base = take(&mut parameters)?;
        out.clear();
        if coding == CONSTANT {
            out.resize(rows, base);
            return Some(());
        }
        if coding == STREAM_END {
            take(&mut parameters)?;
            take(&mut parameters)?;
        }
        let divisor = take(&mut parameters)?;
        let (&width, rest) = parameters.split_first()?;
        let mut planes = rest;
        out.resize(rows, 0);
        for byte in 0..u32::from(width) {
            let shift = 8 * byte;
            let tag = take(&mut planes)?;
            let bytes = take_bytes(&mut body, tag >> 2)?;
            let plane = self.plane_in(tag & 3, bytes, rows)?;
            if shift > 56 {
                return None;
            }
            for (value, &byte) in out.iter_mut().zip(plane) {
                *value |= u64::from(byte) << shift;
            }
        }
        match (coding, needed) {
            (LEAST, _) => out.iter_mut().for_each(|value| *value = value.wrapping_mul(divisor).wrapping_add(base)),
            (PREVIOUS, _) => {
                let mut before = base;
                for value in out {
                    before = before.wrapping_add((unzigzag(*value) as u64).wrapping_mul(divisor));
                    *value = before;
                }
            }
            (STREAM_END, Some((streams, durations))) => {
                let mut ends = StreamEnds::new(base);
                for ((value, &stream), &duration) in out.iter_mut().zip(streams).zip(durations) {
                    let difference = (unzigzag(*value) as u64).wrapping_mul(divisor);
                    *value = ends.predict(stream).wrapping_add(difference);
                    ends.saw(stream, *value, duration);
                }
            }
            _ => return None,
        }
        Some(())
    }

    fn plane_in<'a>(&'a mut self, codec: u64, bytes: &'a [u8], rows: usize) -> Option<&'a [u8]> {
        match codec {
            PLANE_RAW => (bytes.len() == rows).then_some(bytes),
            PLANE_ZSTD => {
                self.plane.resize(rows, 0);
                let got = self.zstd.decompress_to_buffer(bytes, &mut self.plane[..rows]).ok()?;
                (got == rows).then_some(&self.plane[..rows])
            }
            PLANE_CONSTANT => {
                self.plane.clear();
                self.plane.resize(rows, *bytes.first()?);
                Some(&self.plane)
            }
            _ => None,
        }
    }

    /// Decodes text of exactly `length` bytes.
    pub(crate) fn text(&mut self, encoded: Encoded<'_>, length: usize) -> Option<Vec<u8>> {
        let Encoded { mut parameters, mut body } = encoded;
        let tag = take(&mut parameters)?;
        let bytes = take_bytes(&mut body, tag >> 2)?;
        match tag & 3 {
            PLANE_RAW => (bytes.len() == length).then(|| bytes.to_vec()),
            PLANE_ZSTD => {
                let text = self.zstd.decompress(bytes, length).ok()?;
                (text.len() == length).then_some(text)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn round_trip(values: &[u64], prediction: Prediction<'_>, needed: Option<(&[u64], &[u64])>) -> usize {
        let (mut parameters, mut body, mut out) = (Vec::new(), Vec::new(), Vec::new());
        Encoder::new().unwrap().column(values, prediction, &mut parameters, &mut body);
        let encoded = Encoded::new(&parameters, &body);
        Decoder::new().unwrap().column(encoded, values.len(), needed, &mut out).unwrap();
        assert_eq!(out, values);
        parameters.len() + body.len()
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
        fn any_values_come_back(values in prop::collection::vec(extreme(), 1..300)) {
            round_trip(&values, Prediction::Least, None);
            round_trip(&values, Prediction::Previous, None);
        }

        #[test]
        fn any_stream_work_comes_back(rows in prop::collection::vec((extreme(), 0..3_u64, extreme()), 1..200)) {
            let starts: Vec<u64> = rows.iter().map(|row| row.0).collect();
            let streams: Vec<u64> = rows.iter().map(|row| row.1).collect();
            let durations: Vec<u64> = rows.iter().map(|row| row.2).collect();
            let prediction = Prediction::StreamEnd { stream: (3, &streams), duration: (1, &durations) };
            round_trip(&starts, prediction, Some((&streams, &durations)));
        }

        #[test]
        fn stranger_bytes_never_panic(parameters in prop::collection::vec(any::<u8>(), 0..40),
                                      body in prop::collection::vec(any::<u8>(), 0..40), rows in 0..50_usize) {
            let encoded = Encoded::new(&parameters, &body);
            let other = vec![1; rows];
            let mut out = Vec::new();
            let mut decoder = Decoder::new().unwrap();
            let _ = decoder.column(encoded, rows, Some((&other, &other)), &mut out);
            let _ = decoder.text(encoded, rows);
        }
    }

    #[test]
    fn microsecond_clocks_cost_no_more_than_their_ticks() {
        let ticks: Vec<u64> = (0..4096_u64).map(|i| i * 7 + i * i % 5).collect();
        let nanoseconds: Vec<u64> = ticks.iter().map(|t| 1_700_000_000_000_000_000 + t * 1000).collect();
        let fine = round_trip(&ticks, Prediction::Previous, None);
        let coarse = round_trip(&nanoseconds, Prediction::Previous, None);
        assert!(coarse <= fine + 12, "{coarse} bytes against {fine}");
    }

    #[test]
    fn equal_values_cost_a_few_bytes_whatever_their_number() {
        assert!(round_trip(&[u64::MAX; 50_000], Prediction::Least, None) <= 11);
    }
}
