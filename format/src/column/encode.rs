//! A column from values to bytes.
//!
//! Why several candidates: whether a duration is better told by the kernel or by the pattern that it repeats depends
//! on the trace. The encoder tries them on the first rows of the block and takes the smallest.

use zstd::bulk::Compressor;
use zstd::zstd_safe::CParameter;

use super::{
    CONSTANT, KEY_MEAN, LEAST, PLANE_CONSTANT, PLANE_RAW, PLANE_ZSTD, PREVIOUS, STREAM_END, all_are, extent, place,
};
use crate::predict::{CHUNK, KeyMean, Others, Predict, Previous, StreamEnd, Unpredicted};
use crate::table::{ColumnReader, Value};
use crate::varint::put;
use crate::wide::wide;

/// zstd's level for planes; higher ones are slower and no smaller on this data.
const PLANE_LEVEL: i32 = 1;
/// zstd's level for strings: there are few, each is written once, and names repeat long substrings.
const TEXT_LEVEL: i32 = 9;
/// NVIDIA's device clock ticks in 2⁵ ns.
const DEVICE_TICK_BITS: u8 = 5;
/// Candidates are tried on this many rows.
const TRIED_ROWS: usize = 4096;

/// How a column may be predicted, with the numbers of the other columns that this needs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Prediction {
    Least,
    Previous,
    StreamEnd { tick_bits: u8, stream: usize, duration: usize },
    KeyMean { tick_bits: u8, key: usize },
}

impl Prediction {
    /// Plain, or with the device's tick, whose remainder has a plane of its own.
    pub(crate) const TICKS: [u8; 2] = [0, DEVICE_TICK_BITS];

    fn tick_bits(self) -> u8 {
        match self {
            Prediction::StreamEnd { tick_bits, .. } | Prediction::KeyMean { tick_bits, .. } => tick_bits,
            Prediction::Least | Prediction::Previous => 0,
        }
    }
}

/// Compression state and buffers, reused from column to column.
pub(crate) struct Encoder {
    zstd: Compressor<'static>,
    text_zstd: Compressor<'static>,
    residuals: Vec<u64>,
    /// One behind the other.
    planes: Vec<u8>,
    packed: Vec<u8>,
    tried: Tried,
}

/// Which candidate a column's blocks take. What is true of one block is mostly true of the next ones.
#[derive(Clone, Copy, Default)]
pub(crate) struct Choice {
    best: usize,
    blocks_left: u32,
}

/// So many blocks are encoded as the first of them was found to be best.
const CHOICE_BLOCKS: u32 = 8;

/// What a candidate made of the first rows; only its length counts.
#[derive(Default)]
struct Tried {
    parameters: Vec<u8>,
    body: Vec<u8>,
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
            zstd: compressor(PLANE_LEVEL)?,
            text_zstd: compressor(TEXT_LEVEL)?,
            residuals: Vec::new(),
            planes: Vec::new(),
            packed: Vec::new(),
            tried: Tried::default(),
        })
    }

    /// Appends a column's parameters to `parameters` and its planes to `body`, by the one of `candidates` that seems
    /// best. Neither `values` nor `candidates` is empty. `others` has the other columns of the table.
    pub(crate) fn column<T: Value>(
        &mut self,
        values: &[T],
        others: Others<'_>,
        candidates: &[Prediction],
        choice: &mut Choice,
        parameters: &mut Vec<u8>,
        body: &mut Vec<u8>,
    ) {
        if all_are(values, values[0]) {
            parameters.push(CONSTANT);
            put(parameters, values[0].to_bits());
            return;
        }
        if candidates.len() > 1 && choice.blocks_left == 0 {
            choice.blocks_left = CHOICE_BLOCKS;
            let sample = &values[..values.len().min(TRIED_ROWS)];
            let mut tried = std::mem::take(&mut self.tried);
            let mut bytes = |candidate: Prediction| {
                tried.parameters.clear();
                tried.body.clear();
                self.predicted(sample, others, candidate, &mut tried.parameters, &mut tried.body);
                tried.parameters.len() + tried.body.len()
            };
            choice.best = (0..candidates.len()).min_by_key(|&index| bytes(candidates[index])).unwrap_or(0);
            self.tried = tried;
        }
        choice.blocks_left = choice.blocks_left.saturating_sub(1);
        let best = candidates[choice.best.min(candidates.len() - 1)];
        self.predicted(values, others, best, parameters, body);
    }

    fn predicted<T: Value>(
        &mut self,
        values: &[T],
        others: Others<'_>,
        prediction: Prediction,
        parameters: &mut Vec<u8>,
        body: &mut Vec<u8>,
    ) {
        let first = values[0].to_bits();
        let tick_bits = prediction.tick_bits();
        let (least, most) = match prediction {
            Prediction::Least => {
                parameters.push(LEAST);
                self.differences(values, &mut Unpredicted, false)
            }
            Prediction::Previous => {
                parameters.push(PREVIOUS);
                put(parameters, first);
                self.differences(values, &mut Previous(first), true)
            }
            Prediction::StreamEnd { stream, duration, .. } => {
                parameters.push(STREAM_END);
                put(parameters, first);
                put(parameters, stream as u64);
                put(parameters, duration as u64);
                self.differences(values, &mut StreamEnd::new(first, others, stream, duration), true)
            }
            Prediction::KeyMean { key, .. } => {
                parameters.push(KEY_MEAN);
                put(parameters, first);
                put(parameters, key as u64);
                self.differences(values, &mut KeyMean::new(first, others, key, tick_bits), true)
            }
        };
        let above_least = self.residuals.iter().map(|value| value.wrapping_sub(least));
        let divisor = if least == most { 1 } else { common_divisor(above_least) };
        if divisor > 1 {
            self.residuals.iter_mut().for_each(|value| *value = value.wrapping_sub(least) / divisor);
        }
        let most = most.wrapping_sub(least) / divisor;
        // What the residuals still lack to begin at 0.
        let begin = if divisor == 1 { 0_u64.wrapping_sub(least) } else { 0 };
        if matches!(prediction, Prediction::Least) {
            put(parameters, least);
            put(parameters, divisor);
            self.planes_out(begin, most, 0, false, parameters, body);
        } else {
            let shift = self.centre(begin, most, tick_bits);
            parameters.push(tick_bits);
            put(parameters, least.wrapping_sub(shift.wrapping_mul(divisor)));
            put(parameters, divisor);
            self.planes_out(begin.wrapping_add(shift), most + shift, tick_bits, true, parameters, body);
        }
    }

    /// Fills the residuals with what `predict` did not know; the least and the most of them, signed or not.
    fn differences<T: Value>(&mut self, values: &[T], predict: &mut dyn Predict, is_signed: bool) -> (u64, u64) {
        // With the highest bit turned over, unsigned numbers are in the order of signed ones.
        let turn = if is_signed { 0 } else { 1 << 63 };
        let (mut least, mut most) = (i64::MAX, i64::MIN);
        self.residuals.resize(values.len(), 0);
        let chunks = values.chunks(CHUNK).zip(self.residuals.chunks_mut(CHUNK));
        for (from, (values, residuals)) in (0..).step_by(CHUNK).zip(chunks) {
            residuals.iter_mut().zip(values).for_each(|(residual, value)| *residual = value.to_bits());
            predict.differences(from, residuals);
            let extent = extent(residuals, turn);
            (least, most) = (least.min(extent.0), most.max(extent.1));
        }
        (least as u64 ^ turn, most as u64 ^ turn)
    }

    /// What to add to the residuals so that the bulk of them lies in the middle of what the lowest planes can tell
    /// apart: a bulk that lies across a boundary would make a coin toss of the plane above.
    fn centre(&self, begin: u64, most: u64, tick_bits: u8) -> u64 {
        let mut sample = [0; 64];
        let taken = self.residuals.iter().step_by((self.residuals.len() / 63).max(1));
        let taken = sample.iter_mut().zip(taken).map(|(slot, value)| *slot = value.wrapping_add(begin)).count();
        let (_, &mut median, _) = sample[..taken].select_nth_unstable(taken / 2);
        let (period, middle) = (256_u64 << tick_bits, 128_u64 << tick_bits | (1 << tick_bits) >> 1);
        let shift = middle.wrapping_sub(median) % period;
        let fits =
            |shift: u64| most.checked_add(shift).is_some_and(|top| width(top, tick_bits) == width(most, tick_bits));
        // If that costs a plane, only the remainder of the tick is centred.
        let within_tick = shift % (1 << tick_bits);
        [shift, within_tick].into_iter().find(|&shift| fits(shift)).unwrap_or(0)
    }

    /// Planes of the residuals plus `add`, which are at most `most`.
    fn planes_out(
        &mut self,
        add: u64,
        most: u64,
        tick_bits: u8,
        noisy: bool,
        parameters: &mut Vec<u8>,
        body: &mut Vec<u8>,
    ) {
        let (width, rows) = (width(most, tick_bits), self.residuals.len());
        parameters.push(width);
        let mut planes = std::mem::take(&mut self.planes);
        planes.resize(rows * usize::from(width), 0);
        for (from, residuals) in (0..).step_by(CHUNK).zip(self.residuals.chunks(CHUNK)) {
            for (plane, bytes) in (0..width).zip(planes.chunks_mut(rows)) {
                plane_of(residuals, add, place(plane, tick_bits), &mut bytes[from..]);
            }
        }
        for (index, plane) in planes.chunks(rows).enumerate() {
            self.plane_out(plane, noisy && index == 0, parameters, body);
        }
        self.planes = planes;
    }

    fn plane_out(&mut self, plane: &[u8], noisy: bool, parameters: &mut Vec<u8>, body: &mut Vec<u8>) {
        if all_are(plane, plane[0]) {
            put(parameters, 1 << 2 | PLANE_CONSTANT);
            body.push(plane[0]);
            return;
        }
        let packed = if noisy && is_noise(plane) { None } else { compress(&mut self.zstd, plane, &mut self.packed) };
        let (bytes, packing) = packed.map_or((plane, PLANE_RAW), |packed| (packed, PLANE_ZSTD));
        put(parameters, (bytes.len() as u64) << 2 | packing);
        body.extend_from_slice(bytes);
    }

    /// Appends `text` to `body` and how it was packed to `parameters`.
    pub(crate) fn text(&mut self, text: &[u8], parameters: &mut Vec<u8>, body: &mut Vec<u8>) {
        let (packed, codec) = match compress(&mut self.text_zstd, text, &mut self.packed) {
            Some(packed) => (packed, PLANE_ZSTD),
            None => (text, PLANE_RAW),
        };
        put(parameters, (packed.len() as u64) << 2 | codec);
        body.extend_from_slice(packed);
    }
}

/// How many planes tell numbers up to `most` apart.
fn width(most: u64, tick_bits: u8) -> u8 {
    let bits = 64 - most.leading_zeros() as u8;
    match tick_bits {
        0 => bits.div_ceil(8),
        _ if bits == 0 => 0,
        _ => 1 + bits.saturating_sub(tick_bits).div_ceil(8),
    }
}

wide! {
    /// The bytes of a plane, which has this place, of the residuals plus `add`.
    fn plane_of(residuals: &[u64], add: u64, place: (u8, u8), bytes: &mut [u8]) {
        let (shift, mask) = place;
        for (byte, residual) in bytes.iter_mut().zip(residuals) {
            *byte = (residual.wrapping_add(add) >> shift) as u8 & mask;
        }
    }
}

/// Whether a sample of the bytes is as good as random: then zstd has nothing to find.
fn is_noise(plane: &[u8]) -> bool {
    const SAMPLE: usize = 4096;
    if plane.len() < SAMPLE {
        return false;
    }
    let mut counts = [0_u32; 256];
    for &byte in plane.iter().step_by(plane.len() / SAMPLE).take(SAMPLE) {
        counts[usize::from(byte)] += 1;
    }
    // The sum of the squares is SAMPLE² / 256 + SAMPLE for even chances; a byte that is 2 % shorter by Huffman's code
    // has a tenth more.
    let squares: u64 = counts.iter().map(|&count| u64::from(count).pow(2)).sum();
    let (sample, even) = (SAMPLE as u64, (SAMPLE * SAMPLE / 256) as u64);
    squares < even + sample + even / 10
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
        // Mostly it divides already.
        if value == 0 || (divisor != 0 && value % divisor == 0) {
            continue;
        }
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

/// Encodes a column of a table, whatever its type.
pub(crate) struct Encode<'a> {
    pub(crate) encoder: &'a mut Encoder,
    pub(crate) others: Others<'a>,
    pub(crate) candidates: &'a [Prediction],
    pub(crate) choice: &'a mut Choice,
    pub(crate) parameters: &'a mut Vec<u8>,
    pub(crate) body: &'a mut Vec<u8>,
}

impl ColumnReader for Encode<'_> {
    type Out = ();
    fn read<T: Value>(self, values: &[T]) {
        self.encoder.column(values, self.others, self.candidates, self.choice, self.parameters, self.body);
    }
}
