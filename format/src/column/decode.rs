//! A column from bytes to values.
//!
//! The planes are unpacked whole, as zstd wants it. All else is done chunk by chunk: the planes' bytes are put together,
//! scaled, added to what is predicted, and cut to the column's type.

use zstd::bulk::Decompressor;

use super::{
    CONSTANT, Encoded, KEY_MEAN, LEAST, MAX_PLANES, Needs, PLANE_CONSTANT, PLANE_RAW, PLANE_ZSTD, PREVIOUS, STREAM_END,
    ZIGZAG_PREVIOUS, ZIGZAG_STREAM_END, all_are, place,
};
use crate::predict::{CHUNK, KeyMean, Others, Predict, Previous, StreamEnd, Unpredicted};
use crate::table::{ColumnWriter, Value};
use crate::varint::{take, take_bytes, unzigzag};
use crate::wide::wide;

/// Decompression state and buffers, reused from column to column.
pub(crate) struct Decoder {
    zstd: Decompressor<'static>,
    buffers: [Vec<u8>; MAX_PLANES],
}

impl Decoder {
    pub(crate) fn new() -> std::io::Result<Decoder> {
        Ok(Decoder { zstd: Decompressor::new()?, buffers: Default::default() })
    }

    /// Decodes a column of `rows` values in place of what is in `out`; `None` if its bytes contradict themselves.
    /// `others` has the columns that it needs.
    pub(crate) fn column<T: Value>(
        &mut self,
        encoded: Encoded<'_>,
        rows: usize,
        others: Others<'_>,
        out: &mut Vec<T>,
    ) -> Option<()> {
        let (head, rest) = encoded.head()?;
        if head.coding == CONSTANT {
            fill(out, rows, T::from_bits(head.base));
            return Some(());
        }
        let planes = Planes::unpack(&mut self.zstd, &mut self.buffers, rest, encoded.body, head.tick_bits, rows)?;
        let mut predict: Box<dyn Predict + '_> = match (head.coding, head.needs) {
            (ZIGZAG_PREVIOUS | PREVIOUS, _) => Box::new(Previous(head.base)),
            (ZIGZAG_STREAM_END | STREAM_END, Needs::StreamEnd { stream, duration }) => Box::new(StreamEnd::new(
                head.base,
                others,
                usize::try_from(stream).ok()?,
                usize::try_from(duration).ok()?,
            )),
            (KEY_MEAN, Needs::Key(key)) => {
                Box::new(KeyMean::new(head.base, others, usize::try_from(key).ok()?, head.tick_bits))
            }
            _ => Box::new(Unpredicted),
        };
        let scale = Scale {
            is_zigzag: matches!(head.coding, ZIGZAG_PREVIOUS | ZIGZAG_STREAM_END),
            divisor: head.divisor,
            offset: if head.coding == LEAST { head.base } else { head.offset },
        };
        let mut numbers = [0; CHUNK];
        for (from, out) in (0..).step_by(CHUNK).zip(of_length(out, rows).chunks_mut(CHUNK)) {
            let numbers = &mut numbers[..out.len()];
            put_together(&planes, &scale, from, numbers);
            predict.values(from, numbers);
            cut(numbers, out);
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

/// A column's planes, unpacked: those that differ from row to row, and the bits that all rows have.
struct Planes<'a> {
    /// Each with its lowest bit.
    varying: [(&'a [u8], u8); MAX_PLANES],
    count: usize,
    constant: u64,
}

impl<'a> Planes<'a> {
    /// Those of `rows` bytes that `body` has and `parameters` describe.
    fn unpack(
        zstd: &mut Decompressor<'_>,
        buffers: &'a mut [Vec<u8>; MAX_PLANES],
        parameters: &[u8],
        mut body: &'a [u8],
        tick_bits: u8,
        rows: usize,
    ) -> Option<Planes<'a>> {
        let (&width, mut tags) = parameters.split_first()?;
        // The ninth plane is of a coding with a tick, whose first plane is not a byte.
        if usize::from(width) > MAX_PLANES - usize::from(tick_bits == 0) {
            return None;
        }
        let mut planes = Planes { varying: [(&[], 0); MAX_PLANES], count: 0, constant: 0 };
        for (plane, buffer) in (0..width).zip(buffers) {
            let tag = take(&mut tags)?;
            let bytes = take_bytes(&mut body, tag >> 2)?;
            let (shift, _) = place(plane, tick_bits);
            let plane = match tag & 3 {
                PLANE_RAW => (bytes.len() == rows).then_some(bytes)?,
                PLANE_ZSTD => {
                    buffer.resize(rows.max(buffer.len()), 0);
                    let got = zstd.decompress_to_buffer(bytes, &mut buffer[..rows]).ok()?;
                    (got == rows).then_some(&buffer[..rows])?
                }
                PLANE_CONSTANT => {
                    let &[byte] = bytes else { return None };
                    planes.constant |= u64::from(byte) << shift;
                    continue;
                }
                _ => return None,
            };
            planes.varying[planes.count] = (plane, shift);
            planes.count += 1;
        }
        Some(planes)
    }
}

/// How numbers come from residuals, before what is predicted is added.
struct Scale {
    is_zigzag: bool,
    divisor: u64,
    offset: u64,
}

wide! {
    /// The rows from `from` on: their planes put together and scaled.
    fn put_together(planes: &Planes<'_>, scale: &Scale, from: usize, out: &mut [u64]) {
        let rows = from..from + out.len();
        let plane = |index: usize| {
            let (bytes, shift) = planes.varying[index];
            (&bytes[rows.clone()], shift)
        };
        let constant = planes.constant;
        match planes.count {
            0 => out.fill(constant),
            1 => {
                let (bytes, shift) = plane(0);
                for (out, &byte) in out.iter_mut().zip(bytes) {
                    *out = u64::from(byte) << shift | constant;
                }
            }
            count => {
                let ((low, low_shift), (high, high_shift)) = (plane(0), plane(1));
                for ((out, &low), &high) in out.iter_mut().zip(low).zip(high) {
                    *out = u64::from(low) << low_shift | u64::from(high) << high_shift | constant;
                }
                for index in 2..count {
                    let (bytes, shift) = plane(index);
                    for (out, &byte) in out.iter_mut().zip(bytes) {
                        *out |= u64::from(byte) << shift;
                    }
                }
            }
        }
        if scale.is_zigzag {
            for number in &mut *out {
                *number = unzigzag(*number) as u64;
            }
        }
        if scale.divisor != 1 {
            for number in &mut *out {
                *number = number.wrapping_mul(scale.divisor);
            }
        }
        for number in out {
            *number = number.wrapping_add(scale.offset);
        }
    }

    /// Cuts numbers to a column's type.
    fn cut<T: Value>(numbers: &[u64], out: &mut [T]) {
        for (value, &number) in out.iter_mut().zip(numbers) {
            *value = T::from_bits(number);
        }
    }
}

/// `values` with this length, whatever they are: memory that is reused keeps what it has, new memory is zeros, which
/// the system has at hand.
fn of_length<T: Value>(values: &mut Vec<T>, length: usize) -> &mut [T] {
    let zero = T::from_bits(0);
    if values.capacity() < length {
        *values = vec![zero; length];
    } else {
        values.resize(length, zero);
    }
    values
}

/// Makes a column `rows` times `value`.
fn fill<T: Value>(values: &mut Vec<T>, rows: usize, value: T) {
    let values = of_length(values, rows);
    // Mostly the block before had the same.
    if !all_are(values, value) {
        values.fill(value);
    }
}

/// Decodes a column of a table, whatever its type.
pub(crate) struct Decode<'a> {
    pub(crate) decoder: &'a mut Decoder,
    pub(crate) encoded: Encoded<'a>,
    pub(crate) rows: usize,
    pub(crate) others: Others<'a>,
}

impl ColumnWriter for Decode<'_> {
    type Out = Option<()>;
    fn write<T: Value>(self, values: &mut Vec<T>) -> Option<()> {
        self.decoder.column(self.encoded, self.rows, self.others, values)
    }
}

/// Makes a column this many zeros.
pub(crate) struct Zeros(pub(crate) usize);

impl ColumnWriter for Zeros {
    type Out = ();
    fn write<T: Value>(self, values: &mut Vec<T>) {
        fill(values, self.0, T::from_bits(0));
    }
}
