//! LEB128: seven bits a byte, least significant first, the high bit says that more follow.

/// Appends `value`.
pub(crate) fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Takes a value off the front of `bytes`; `None` if they end within it or it has more than 64 bits.
pub(crate) fn take(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let bits = u64::from(byte & 0x7f);
        if shift == 63 && bits > 1 {
            return None;
        }
        value |= bits << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

/// Takes `count` bytes off the front; `None` if there are fewer.
pub(crate) fn take_bytes<'a>(bytes: &mut &'a [u8], count: u64) -> Option<&'a [u8]> {
    let count = usize::try_from(count).ok().filter(|&count| count <= bytes.len())?;
    let (taken, rest) = bytes.split_at(count);
    *bytes = rest;
    Some(taken)
}

/// Signed as unsigned, small magnitudes small: 0, −1, 1, −2 … become 0, 1, 2, 3 …
pub(crate) fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

/// Inverse of [`zigzag`].
pub(crate) fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_of_edges() {
        for value in [0, 1, 127, 128, 16_383, 16_384, u64::MAX - 1, u64::MAX] {
            let mut bytes = Vec::new();
            put(&mut bytes, value);
            assert_eq!(take(&mut &bytes[..]), Some(value));
            assert_eq!(take(&mut &bytes[..bytes.len() - 1]), None);
            assert_eq!(zigzag(unzigzag(value)), value);
        }
        assert_eq!([0, -1, 1, -2].map(zigzag), [0, 1, 2, 3]);
    }

    #[test]
    fn more_than_64_bits_are_refused() {
        assert_eq!(take(&mut &[0xff; 10][..]), None);
        assert_eq!(take(&mut &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02][..]), None);
    }
}
