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

/// A checksum of all ones stays as it is: so that bytes can say that a part is damaged.
fn put(field: &mut [u8], crc: u32) {
    if *field != [0xff; 4] {
        field.copy_from_slice(&crc.to_le_bytes());
    }
}
