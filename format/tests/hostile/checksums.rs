//! Makes the checksums of forged bytes hold, so that what is behind them is reached. The fuzz targets share this.

use crc32c::{crc32c, crc32c_append};

/// Makes the file header's checksum hold.
pub(crate) fn seal_front(tape: &mut [u8]) {
    if tape.len() >= 512 {
        let crc = crc32c(&tape[..508]);
        put(&mut tape[508..512], crc);
    }
}

/// Makes the checksums of the block at the front of `block` hold, as far as its lengths are within `block`.
pub(crate) fn seal_block(block: &mut [u8]) {
    if block.len() < 64 {
        return;
    }
    let directory = u32::from_le_bytes(block[12..16].try_into().unwrap()) as usize;
    let payload = u64::from_le_bytes(block[48..56].try_into().unwrap());
    let from = 64 + directory;
    let to = usize::try_from(payload).ok().and_then(|payload| from.checked_add(payload));
    if let Some(payload) = to.and_then(|to| block.get(from..to)) {
        let crc = crc32c(payload);
        put(&mut block[56..60], crc);
    }
    if let Some(directory) = block.get(64..from) {
        let crc = crc32c_append(crc32c(&block[..60]), directory);
        put(&mut block[60..64], crc);
    }
}

/// Makes the numbers of the halves' heads and the checks of their records hold, as far as their lengths are within `tape`.
/// Format 1 has neither.
pub(crate) fn seal_staging(tape: &mut [u8]) {
    if tape.len() < 512 || tape[8..10] == [1, 0] {
        return;
    }
    let half = u64::from_le_bytes(tape[64..72].try_into().unwrap());
    for index in 0..2 {
        let from = half.checked_mul(index).and_then(|at| at.checked_add(512));
        let to = from.and_then(|from| from.checked_add(half));
        if let (Some(from), Some(to)) = (from, to)
            && let Some(half) = tape.get_mut(from as usize..to as usize)
        {
            seal_half(half);
        }
    }
}

fn seal_half(half: &mut [u8]) {
    let Some((head, mut records)) = half.split_at_mut_checked(32) else { return };
    for number in head[8..].chunks_exact_mut(8) {
        let (number, complement) = number.split_at_mut(4);
        // So that bytes can say that a number is damaged.
        if complement != [0; 4] {
            complement.copy_from_slice(&number.iter().map(|byte| !byte).collect::<Vec<_>>());
        }
    }
    let committed = u32::from_le_bytes(head[16..20].try_into().unwrap()) as usize;
    let room = records.len();
    records = &mut records[..committed.min(room)];
    while let Some(head) = records.first_chunk::<4>() {
        let bytes = u32::from_le_bytes(*head) as usize;
        let padded = bytes.checked_next_multiple_of(8).and_then(|bytes| bytes.checked_add(8));
        let Some((record, rest)) = padded.and_then(|padded| records.split_at_mut_checked(padded)) else { return };
        record[8 + bytes..].fill(0);
        if record[6..8] != [0xff; 2] {
            record[6..8].fill(0);
            let check = check_of(record);
            record[6..8].copy_from_slice(&check.to_le_bytes());
        }
        records = rest;
    }
}

/// The check of a record that has 0 in its place.
fn check_of(record: &[u8]) -> u16 {
    let mut words = record.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
    let head = words.next().unwrap_or(0);
    let all = words.enumerate().fold(head, |all, (i, word)| all ^ word.rotate_left((5 * i % 64) as u32));
    [0, 16, 32, 48].iter().fold(0x6b74, |check, shift| check ^ (all >> shift) as u16)
}

/// A checksum of all ones stays as it is: so that bytes can say that a part is damaged.
fn put(field: &mut [u8], crc: u32) {
    if *field != [0xff; 4] {
        field.copy_from_slice(&crc.to_le_bytes());
    }
}
