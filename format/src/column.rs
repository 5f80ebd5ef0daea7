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
//! Why several candidates: whether a duration is better told by the kernel or by the pattern that it repeats depends
//! on the trace. The encoder tries them on the first rows of the block and takes the smallest.

use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe::CParameter;

use crate::predict::{KeyMean, Predict, Previous, StreamEnd};
use crate::table::{ColumnReader, ColumnWriter, Value};
use crate::varint::{put, take, take_bytes, unzigzag};

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

/// zstd's level for planes; higher ones are slower and no smaller on this data.
const PLANE_LEVEL: i32 = 1;
/// zstd's level for strings: there are few, each is written once, and names repeat long substrings.
const TEXT_LEVEL: i32 = 9;
/// NVIDIA's device clock ticks in 2⁵ ns.
const DEVICE_TICK_BITS: u8 = 5;
/// Candidates are tried on this many rows.
const TRIED_ROWS: usize = 4096;

/// How a column may be predicted, with the numbers and values of the other columns that this needs.
#[derive(Clone, Copy)]
pub(crate) enum Prediction<'a> {
    Least,
    Previous,
    StreamEnd { tick_bits: u8, stream: (usize, &'a [u64]), duration: (usize, &'a [u64]) },
    KeyMean { tick_bits: u8, key: (usize, &'a [u64]) },
}

impl<'a> Prediction<'a> {
    /// Plain, or with the device's tick, whose remainder has a plane of its own.
    pub(crate) const TICKS: [u8; 2] = [0, DEVICE_TICK_BITS];

    fn tick_bits(self) -> u8 {
        match self {
            Prediction::StreamEnd { tick_bits, .. } | Prediction::KeyMean { tick_bits, .. } => tick_bits,
            _ => 0,
        }
    }
}

/// Compression state and buffers, reused from column to column.
pub(crate) struct Encoder {
    planes: Compressor<'static>,
    text: Compressor<'static>,
    residuals: Vec<u64>,
    plane: Vec<u8>,
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
            planes: compressor(PLANE_LEVEL)?,
            text: compressor(TEXT_LEVEL)?,
            residuals: Vec::new(),
            plane: Vec::new(),
            packed: Vec::new(),
            tried: Tried::default(),
        })
    }

    /// Appends a column's parameters to `parameters` and its planes to `body`, by the one of `candidates` that seems
    /// best. Neither `values` nor `candidates` is empty.
    pub(crate) fn column<T: Value>(
        &mut self,
        values: &[T],
        candidates: &[Prediction<'_>],
        choice: &mut Choice,
        parameters: &mut Vec<u8>,
        body: &mut Vec<u8>,
    ) {
        let first = values[0].to_bits();
        if all_are(values, first) {
            parameters.push(CONSTANT);
            put(parameters, first);
            return;
        }
        if candidates.len() > 1 && choice.blocks_left == 0 {
            choice.blocks_left = CHOICE_BLOCKS;
            let sample = &values[..values.len().min(TRIED_ROWS)];
            let mut tried = std::mem::take(&mut self.tried);
            let mut bytes = |candidate: Prediction<'_>| {
                tried.parameters.clear();
                tried.body.clear();
                self.predicted(sample, candidate, &mut tried.parameters, &mut tried.body);
                tried.parameters.len() + tried.body.len()
            };
            choice.best = (0..candidates.len()).min_by_key(|&index| bytes(candidates[index])).unwrap_or(0);
            self.tried = tried;
        }
        choice.blocks_left = choice.blocks_left.saturating_sub(1);
        let best = candidates[choice.best.min(candidates.len() - 1)];
        self.predicted(values, best, parameters, body);
    }

    fn predicted<T: Value>(
        &mut self,
        values: &[T],
        prediction: Prediction<'_>,
        parameters: &mut Vec<u8>,
        body: &mut Vec<u8>,
    ) {
        let first = values[0].to_bits();
        let (least, most) = match prediction {
            Prediction::Least => {
                parameters.push(LEAST);
                self.residuals.clear();
                self.residuals.extend(values.iter().map(|value| value.to_bits()));
                let bits = || self.residuals.iter().copied();
                let (least, most) = (bits().min().unwrap_or(0), bits().max().unwrap_or(0));
                put(parameters, least);
                let divisor = self.divide(least);
                put(parameters, divisor);
                let (least, most) = if divisor == 1 { (least, most - least) } else { (0, (most - least) / divisor) };
                self.planes_out(0_u64.wrapping_sub(least), most, 0, false, parameters, body);
                return;
            }
            Prediction::Previous => {
                parameters.push(PREVIOUS);
                put(parameters, first);
                self.differences(values, Previous(first))
            }
            Prediction::StreamEnd { stream, duration, .. } => {
                parameters.push(STREAM_END);
                put(parameters, first);
                put(parameters, stream.0 as u64);
                put(parameters, duration.0 as u64);
                self.differences(values, StreamEnd::new(first, stream.1, duration.1))
            }
            Prediction::KeyMean { tick_bits, key } => {
                parameters.push(KEY_MEAN);
                put(parameters, first);
                put(parameters, key.0 as u64);
                self.differences(values, KeyMean::new(first, key.1, u32::from(tick_bits)))
            }
        };
        let tick_bits = prediction.tick_bits();
        let divisor = self.divide(least);
        let most = most.wrapping_sub(least) / divisor;
        // What the residuals still lack to begin at 0.
        let begin = if divisor == 1 { 0_u64.wrapping_sub(least) } else { 0 };
        let shift = self.centre(begin, most, tick_bits);
        parameters.push(tick_bits);
        put(parameters, least.wrapping_sub(shift.wrapping_mul(divisor)));
        put(parameters, divisor);
        self.planes_out(begin.wrapping_add(shift), most + shift, tick_bits, true, parameters, body);
    }

    /// Fills the residuals with what `predict` did not know; the least and the most of them, signed.
    fn differences<T: Value>(&mut self, values: &[T], mut predict: impl Predict) -> (u64, u64) {
        let (mut least, mut most) = (i64::MAX, i64::MIN);
        self.residuals.clear();
        self.residuals.extend(values.iter().enumerate().map(|(row, value)| {
            let value = value.to_bits();
            let difference = value.wrapping_sub(predict.predict(row));
            predict.saw(row, value);
            least = least.min(difference as i64);
            most = most.max(difference as i64);
            difference
        }));
        (least as u64, most as u64)
    }

    /// The greatest common divisor of the residuals above the least; if it is not 1, they become its multiples.
    fn divide(&mut self, least: u64) -> u64 {
        let divisor = common_divisor(self.residuals.iter().map(|value| value.wrapping_sub(least)));
        if divisor > 1 {
            self.residuals.iter_mut().for_each(|value| *value = value.wrapping_sub(least) / divisor);
        }
        divisor
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
        let width = width(most, tick_bits);
        parameters.push(width);
        for plane in 0..width {
            let (shift, mask) = place(plane, tick_bits);
            self.plane.clear();
            self.plane.extend(self.residuals.iter().map(|value| (value.wrapping_add(add) >> shift) as u8 & mask));
            self.plane_out(noisy && plane == 0, parameters, body);
        }
    }

    fn plane_out(&mut self, noisy: bool, parameters: &mut Vec<u8>, body: &mut Vec<u8>) {
        let first = self.plane[0];
        if all_are(&self.plane, u64::from(first)) {
            put(parameters, 1 << 2 | PLANE_CONSTANT);
            body.push(first);
            return;
        }
        if noisy && is_noise(&self.plane) {
            put(parameters, (self.plane.len() as u64) << 2 | PLANE_RAW);
            body.extend_from_slice(&self.plane);
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

/// How many planes tell numbers up to `most` apart.
fn width(most: u64, tick_bits: u8) -> u8 {
    let bits = 64 - most.leading_zeros() as u8;
    match tick_bits {
        0 => bits.div_ceil(8),
        _ if bits == 0 => 0,
        _ => 1 + bits.saturating_sub(tick_bits).div_ceil(8),
    }
}

/// The lowest bit and the mask of a plane: bytes, or first the remainder of a tick and then bytes.
fn place(plane: u8, tick_bits: u8) -> (u8, u8) {
    match (plane, tick_bits) {
        (_, 0) => (8 * plane, 0xff),
        (0, _) => (0, (1 << tick_bits) - 1),
        _ => (8 * (plane - 1) + tick_bits, 0xff),
    }
}

/// Whether all values are this one. Stops at the first chunk with another, and reads a chunk without branches.
pub(crate) fn all_are<T: Value>(values: &[T], bits: u64) -> bool {
    values.chunks(512).all(|chunk| chunk.iter().fold(0, |other, value| other | (value.to_bits() ^ bits)) == 0)
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

/// Most planes of a column: a tick's remainder and eight bytes, or eight bytes.
const MAX_PLANES: usize = 9;

/// Decompression state and buffers, reused from column to column.
pub(crate) struct Decoder {
    zstd: Decompressor<'static>,
    buffers: [Vec<u8>; MAX_PLANES],
}

/// The columns that [`Needs`] named, decoded: the key; or the stream and the duration.
#[derive(Clone, Copy, Default)]
pub(crate) struct Needed<'a>(pub(crate) &'a [u64], pub(crate) &'a [u64]);

impl Decoder {
    pub(crate) fn new() -> std::io::Result<Decoder> {
        Ok(Decoder { zstd: Decompressor::new()?, buffers: Default::default() })
    }

    /// Decodes a column of `rows` values in place of what is in `out`; `None` if its bytes contradict themselves.
    pub(crate) fn column<T: Value>(
        &mut self,
        encoded: Encoded<'_>,
        rows: usize,
        needed: Needed<'_>,
        out: &mut Vec<T>,
    ) -> Option<()> {
        out.clear();
        let (head, rest) = encoded.head()?;
        if head.coding == CONSTANT {
            out.resize(rows, T::from_bits(head.base));
            return Some(());
        }
        let (keys, durations) = match head.needs {
            Needs::Nothing => (&[][..], &[][..]),
            Needs::Key(_) => (needed.0.get(..rows)?, &[][..]),
            Needs::StreamEnd { .. } => (needed.0.get(..rows)?, needed.1.get(..rows)?),
        };
        let (&width, mut tags) = rest.split_first()?;
        let width = usize::from(width);
        // The ninth plane is of a coding with a tick, whose first plane is not a byte.
        if width > MAX_PLANES - usize::from(head.tick_bits == 0) {
            return None;
        }
        let mut body = encoded.body;
        let mut planes = [&[][..]; MAX_PLANES];
        for (plane, buffer) in planes.iter_mut().zip(&mut self.buffers).take(width) {
            let tag = take(&mut tags)?;
            let bytes = take_bytes(&mut body, tag >> 2)?;
            *plane = plane_in(&mut self.zstd, tag & 3, bytes, rows, buffer)?;
        }
        let fill = Fill { head: &head, rows, keys, durations };
        let places = |plane: usize| u32::from(place(plane as u8, head.tick_bits).0);
        match width {
            0 => fill.out(out, |_| 0),
            1 => {
                let a = &planes[0][..rows];
                fill.out(out, |row| u64::from(a[row]));
            }
            2 => {
                let (a, b) = (&planes[0][..rows], &planes[1][..rows]);
                let second = places(1);
                fill.out(out, |row| u64::from(a[row]) | u64::from(b[row]) << second);
            }
            3 => {
                let (a, b, c) = (&planes[0][..rows], &planes[1][..rows], &planes[2][..rows]);
                let (second, third) = (places(1), places(2));
                fill.out(out, |row| u64::from(a[row]) | u64::from(b[row]) << second | u64::from(c[row]) << third);
            }
            _ => fill
                .out(out, |row| (0..width).fold(0, |all, plane| all | u64::from(planes[plane][row]) << places(plane))),
        }
        Some(())
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

/// Exactly `rows` bytes of a plane, in `buffer` if they are not in `bytes` as they are.
fn plane_in<'a>(
    zstd: &mut Decompressor<'_>,
    packing: u64,
    bytes: &'a [u8],
    rows: usize,
    buffer: &'a mut Vec<u8>,
) -> Option<&'a [u8]> {
    match packing {
        PLANE_RAW => (bytes.len() == rows).then_some(bytes),
        PLANE_ZSTD => {
            buffer.resize(rows, 0);
            let got = zstd.decompress_to_buffer(bytes, &mut buffer[..rows]).ok()?;
            (got == rows).then_some(&buffer[..rows])
        }
        PLANE_CONSTANT => {
            buffer.clear();
            buffer.resize(rows, *bytes.first()?);
            Some(buffer)
        }
        _ => None,
    }
}

/// From residuals to values.
struct Fill<'a> {
    head: &'a Head,
    rows: usize,
    keys: &'a [u64],
    durations: &'a [u64],
}

impl Fill<'_> {
    /// One loop for each coding and width: planes are put together, scaled and added to what is predicted in one go.
    #[inline(always)]
    fn out<T: Value>(&self, out: &mut Vec<T>, residual: impl Fn(usize) -> u64) {
        let &Head { coding, base, tick_bits, divisor, .. } = self.head;
        match coding {
            LEAST if divisor == 1 => {
                out.extend((0..self.rows).map(|row| T::from_bits(residual(row).wrapping_add(base))));
            }
            LEAST => {
                let value = |row| residual(row).wrapping_mul(divisor).wrapping_add(base);
                out.extend((0..self.rows).map(|row| T::from_bits(value(row))));
            }
            ZIGZAG_PREVIOUS | ZIGZAG_STREAM_END => {
                let residual = |row| unzigzag(residual(row)) as u64;
                match coding {
                    ZIGZAG_PREVIOUS => self.predicted(out, residual, Previous(base)),
                    _ => self.predicted(out, residual, StreamEnd::new(base, self.keys, self.durations)),
                }
            }
            PREVIOUS => self.predicted(out, residual, Previous(base)),
            STREAM_END => self.predicted(out, residual, StreamEnd::new(base, self.keys, self.durations)),
            _ => self.predicted(out, residual, KeyMean::new(base, self.keys, u32::from(tick_bits))),
        }
    }

    #[inline(always)]
    fn predicted<T: Value>(&self, out: &mut Vec<T>, residual: impl Fn(usize) -> u64, mut predict: impl Predict) {
        let &Head { offset, divisor, .. } = self.head;
        out.extend((0..self.rows).map(|row| {
            let difference = residual(row).wrapping_mul(divisor).wrapping_add(offset);
            let value = predict.predict(row).wrapping_add(difference);
            predict.saw(row, value);
            T::from_bits(value)
        }));
    }
}

/// Encodes a column of a table, whatever its type.
pub(crate) struct Encode<'a> {
    pub(crate) encoder: &'a mut Encoder,
    pub(crate) candidates: &'a [Prediction<'a>],
    pub(crate) choice: &'a mut Choice,
    pub(crate) parameters: &'a mut Vec<u8>,
    pub(crate) body: &'a mut Vec<u8>,
}

impl ColumnReader for Encode<'_> {
    type Out = ();
    fn read<T: Value>(self, values: &[T]) {
        self.encoder.column(values, self.candidates, self.choice, self.parameters, self.body);
    }
}

/// Decodes a column of a table, whatever its type.
pub(crate) struct Decode<'a> {
    pub(crate) decoder: &'a mut Decoder,
    pub(crate) encoded: Encoded<'a>,
    pub(crate) rows: usize,
    pub(crate) needed: Needed<'a>,
}

impl ColumnWriter for Decode<'_> {
    type Out = Option<()>;
    fn write<T: Value>(self, values: &mut Vec<T>) -> Option<()> {
        self.decoder.column(self.encoded, self.rows, self.needed, values)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Encodes as `prediction` says, decodes, compares; returns the bytes that it took.
    fn round_trip<T: Value + PartialEq + std::fmt::Debug>(values: &[T], prediction: Prediction<'_>) -> usize {
        let (mut parameters, mut body, mut out) = (Vec::new(), Vec::new(), Vec::<T>::new());
        let mut encoder = Encoder::new().unwrap();
        encoder.column(values, &[prediction], &mut Choice::default(), &mut parameters, &mut body);
        let needed = match prediction {
            Prediction::Least | Prediction::Previous => Needed::default(),
            Prediction::KeyMean { key, .. } => Needed(key.1, &[]),
            Prediction::StreamEnd { stream, duration, .. } => Needed(stream.1, duration.1),
        };
        let encoded = Encoded::new(&parameters, &body);
        Decoder::new().unwrap().column(encoded, values.len(), needed, &mut out).unwrap();
        assert_eq!(out, values);
        parameters.len() + body.len()
    }

    /// The same by every coding, for whatever the other columns hold.
    fn round_trips<T: Value + PartialEq + std::fmt::Debug>(values: &[T], others: &[(u64, u64)]) {
        let (keys, durations): (Vec<u64>, Vec<u64>) = others.iter().copied().unzip();
        let (key, duration) = ((3, &keys[..]), (1, &durations[..]));
        round_trip(values, Prediction::Least);
        round_trip(values, Prediction::Previous);
        for tick_bits in 0..8 {
            round_trip(values, Prediction::KeyMean { tick_bits, key });
            round_trip(values, Prediction::StreamEnd { tick_bits, stream: key, duration });
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
        fn few_streams_and_keys_come_back(rows in prop::collection::vec((extreme(), (0..3_u64, extreme())), 1..200)) {
            let (values, others): (Vec<u64>, Vec<(u64, u64)>) = rows.into_iter().unzip();
            round_trips(&values, &others);
        }

        #[test]
        fn stranger_bytes_never_panic(coding in 0..9_u8, parameters in prop::collection::vec(any::<u8>(), 0..40),
                                      body in prop::collection::vec(any::<u8>(), 0..40), rows in 0..50_usize) {
            let parameters = [&[coding], &parameters[..]].concat();
            let encoded = Encoded::new(&parameters, &body);
            let other = vec![u64::MAX - 1; rows];
            let mut decoder = Decoder::new().unwrap();
            let _ = encoded.frames();
            let _ = decoder.column(encoded, rows, Needed(&other, &other), &mut Vec::<u64>::new());
            let _ = decoder.column(encoded, rows, Needed::default(), &mut Vec::<u8>::new());
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
            let other = vec![u64::MAX; rows];
            let body = [byte; 11];
            let encoded = Encoded::new(&parameters, &body);
            let mut decoder = Decoder::new().unwrap();
            let read = decoder.column(encoded, rows, Needed(&other, &other), &mut Vec::<i32>::new());
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
        decoder.column(Encoded::new(&parameters, &zigzagged), 4, Needed::default(), &mut out).unwrap();
        assert_eq!(out, [1000, 1005, 995, 1495]);
        let mut parameters = vec![ZIGZAG_STREAM_END];
        [1000, 3, 1, 1].iter().for_each(|&number| put(&mut parameters, number));
        parameters.push(1);
        put(&mut parameters, 4 << 2 | PLANE_RAW);
        let (streams, durations) = ([1, 1, 2, 1], [10, 20, 30, 40]);
        decoder.column(Encoded::new(&parameters, &zigzagged), 4, Needed(&streams, &durations), &mut out).unwrap();
        // Its own end and one; the row before less two; the end of stream 1 and a hundred.
        assert_eq!(out, [1000, 1011, 1009, 1131]);
    }

    #[test]
    fn what_a_key_repeats_costs_only_its_jitter() {
        let shapes: Vec<u64> = (0..8192).map(|row| row * row % 61).collect();
        let jitter = |row: u64| row.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 61;
        let values: Vec<u64> =
            (0..8192).zip(&shapes).map(|(row, shape)| shape * 1000 + jitter(row) + row / 100).collect();
        let plain = round_trip(&values, Prediction::Least);
        let by_key = round_trip(&values, Prediction::KeyMean { tick_bits: 0, key: (0, &shapes) });
        assert!(by_key < 8192 / 2 && by_key < plain / 2, "{by_key} bytes against {plain}");
    }

    #[test]
    fn a_tick_costs_its_count_and_its_blur_each_by_itself() {
        let random = |row: u64| (row + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let values: Vec<u64> = (0..8192).map(|row| 32 * (200 + random(row) % 12) + random(row * 7) % 3 - 1).collect();
        let keys = vec![1; values.len()];
        let plain = round_trip(&values, Prediction::KeyMean { tick_bits: 0, key: (0, &keys) });
        let ticks = round_trip(&values, Prediction::KeyMean { tick_bits: 5, key: (0, &keys) });
        assert!(ticks < plain * 9 / 10, "{ticks} bytes against {plain}");
    }

    #[test]
    fn microsecond_clocks_cost_no_more_than_their_ticks() {
        let ticks: Vec<u64> = (0..4096_u64).map(|i| i * 7 + i * i % 5).collect();
        let nanoseconds: Vec<u64> = ticks.iter().map(|t| 1_700_000_000_000_000_000 + t * 1000).collect();
        let fine = round_trip(&ticks, Prediction::Previous);
        let coarse = round_trip(&nanoseconds, Prediction::Previous);
        assert!(coarse <= fine + 12, "{coarse} bytes against {fine}");
    }

    #[test]
    fn equal_values_cost_a_few_bytes_whatever_their_number() {
        assert!(round_trip(&[u64::MAX; 50_000], Prediction::Least) <= 11);
    }
}
