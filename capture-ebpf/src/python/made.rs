//! Memory that tests make up.

extern crate std;

use std::collections::BTreeMap;

use super::Memory;

/// Words at made-up addresses; everything between them is zero, up to a limit.
pub(super) struct Made(BTreeMap<u64, u64>);

/// Where it ends.
pub(super) const LIMIT: u64 = 1 << 20;

impl Made {
    pub(super) fn of(words: &[(u64, u64)]) -> Self {
        Self(words.iter().copied().collect())
    }
}

impl Memory for Made {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        for (offset, byte) in into.iter_mut().enumerate() {
            let at = address.wrapping_add(offset as u64);
            if at >= LIMIT {
                return false;
            }
            let word = self.0.get(&(at & !7)).copied().unwrap_or(0);
            *byte = word.to_le_bytes()[(at % 8) as usize];
        }
        true
    }
}
