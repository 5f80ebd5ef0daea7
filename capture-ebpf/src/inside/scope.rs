//! Kernels whose launches get no CUDA events, as nobody asked for them: what the recorder tells the libraries inside of processes.
//!
//! Which kernels these are takes an expression and their names, so the recorder decides, when it first sees one launched. A library
//! knows a kernel by its handle alone. What is not in the table gets events.
//!
//! A table of words that both map, in which a key is looked for from its own place on. The recorder alone writes; a key that is taken out
//! leaves a mark, so that those behind it are still found.

use core::sync::atomic::{AtomicU64, Ordering};

/// The file of the table.
pub const SCOPE_FILE: &str = "scope";
/// Words of the table.
const WORDS: usize = 1 << 14;
/// So far from its own place a key can be.
const FARTHEST: usize = 64;
/// Nothing has been here.
const FREE: u64 = 0;
/// A key was here.
const REMOVED: u64 = 1;

/// The table. All zeros is one that is empty.
#[repr(C)]
pub struct LeftOut([AtomicU64; WORDS]);

impl LeftOut {
    /// Whether a process's kernel is in it.
    #[inline(always)]
    pub fn has(&self, pid: u32, kernel: u64) -> bool {
        let key = key(pid, kernel);
        for place in places(key) {
            match self.0[place].load(Ordering::Relaxed) {
                FREE => return false,
                found if found == key => return true,
                _ => {}
            }
        }
        false
    }

    /// Puts a kernel in. One for which there is no room gets events.
    pub fn put(&self, pid: u32, kernel: u64) {
        let key = key(pid, kernel);
        let is_free = |place: &usize| self.0[*place].load(Ordering::Relaxed) <= REMOVED;
        if !self.has(pid, kernel)
            && let Some(place) = places(key).find(is_free)
        {
            self.0[place].store(key, Ordering::Relaxed);
        }
    }

    /// Takes it out: its handle is another's by now.
    pub fn remove(&self, pid: u32, kernel: u64) {
        let key = key(pid, kernel);
        if let Some(place) = places(key).find(|place| self.0[*place].load(Ordering::Relaxed) == key) {
            self.0[place].store(REMOVED, Ordering::Relaxed);
        }
    }
}

/// A kernel of a process: above all marks.
fn key(pid: u32, kernel: u64) -> u64 {
    // splitmix64
    let mut key = kernel ^ u64::from(pid) << 40;
    key = (key ^ (key >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    key = (key ^ (key >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (key ^ (key >> 31)).max(REMOVED + 1)
}

fn places(key: u64) -> impl Iterator<Item = usize> {
    (0..FARTHEST).map(move |step| (key as usize + step) % WORDS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_in_is_found_until_it_is_taken_out_and_nothing_else_is() {
        let table = LeftOut([const { AtomicU64::new(0) }; WORDS]);
        let kernels = || (0..8000_u64).map(|index| (7 + index as u32 % 3, 0x5600_0000_0000 + index * 16));
        kernels().for_each(|(pid, kernel)| table.put(pid, kernel));
        assert!(kernels().all(|(pid, kernel)| table.has(pid, kernel)));
        assert!(kernels().all(|(pid, kernel)| !table.has(pid + 3, kernel) && !table.has(pid, kernel + 8)));
        kernels().step_by(2).for_each(|(pid, kernel)| table.remove(pid, kernel));
        assert!(kernels().enumerate().all(|(index, (pid, kernel))| table.has(pid, kernel) == (index % 2 == 1)));
        // Twice is once.
        table.put(1, 1);
        table.put(1, 1);
        table.remove(1, 1);
        assert!(!table.has(1, 1));
    }

    #[test]
    fn a_full_table_has_what_it_has() {
        let table = LeftOut([const { AtomicU64::new(0) }; WORDS]);
        (0..2 * WORDS as u64).for_each(|kernel| table.put(1, kernel));
        let had = (0..2 * WORDS as u64).filter(|kernel| table.has(1, *kernel)).count();
        assert!(had > WORDS / 2 && had <= WORDS);
    }
}
