//! Tapes that no writer makes, with checksums that hold: what is behind the checksums must stand on its own.
//! Written from `docs/format.md`, not with the encoder, which refuses to make most of this.

use ktape_format::header::{self, FileHeader};

use crate::checksums::{seal_block, seal_front};

/// A section to be forged: its entry in the directory, and its bytes.
#[derive(Clone, Default)]
pub(crate) struct Section {
    pub(crate) table: u64,
    pub(crate) rows: u64,
    pub(crate) first_id: u64,
    pub(crate) bytes: Vec<u8>,
}

/// A column: number, parameters, body.
pub(crate) type Column = (u64, Vec<u8>, Vec<u8>);

/// LEB128.
pub(crate) fn varint(mut value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
    out
}

/// The file header of a tape whose halves claim this length.
pub(crate) fn front(staging_half_bytes: u64) -> Vec<u8> {
    let mut bytes = vec![0; header::HEADER_BYTES];
    bytes[..8].copy_from_slice(&header::MAGIC);
    bytes[8..10].copy_from_slice(&header::MAJOR.to_le_bytes());
    bytes[64..72].copy_from_slice(&staging_half_bytes.to_le_bytes());
    seal_front(&mut bytes);
    FileHeader::read(&bytes).expect("a header that is right");
    bytes
}

/// A section's bytes: columns as the page orders them.
pub(crate) fn columns(columns: &[Column]) -> Vec<u8> {
    let mut out = varint(columns.len() as u64);
    for (number, parameters, body) in columns {
        out.extend([varint(*number), varint(parameters.len() as u64), varint(body.len() as u64)].concat());
        out.extend(parameters);
    }
    columns.iter().for_each(|(.., body)| out.extend(body));
    out
}

/// A block with these sections and everything else as it should be.
pub(crate) fn block(sequence: u64, sections: &[Section]) -> Vec<u8> {
    let mut directory = Vec::new();
    let mut payload = Vec::<u8>::new();
    for Section { table, rows, first_id, bytes } in sections {
        directory.extend([*table, *rows, *first_id, 0, 0, 0, bytes.len() as u64].map(varint).concat());
        payload.extend(bytes);
    }
    let rows: u64 = sections.iter().fold(0, |sum, section| section.rows.wrapping_add(sum));
    let mut out = b"KTAPEBLK\x03\0\0\0".to_vec();
    out.extend((directory.len() as u32).to_le_bytes());
    for word in [sequence, 0, 0, rows, payload.len() as u64] {
        out.extend(word.to_le_bytes());
    }
    out.extend([0; 8]);
    out.extend(directory);
    out.extend(payload);
    seal_block(&mut out);
    out.resize(out.len().next_multiple_of(64), 0);
    out
}
