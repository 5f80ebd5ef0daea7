//! The buffers that CUPTI fills: a bounded number, reserved ahead.
//!
//! CUPTI asks for a buffer on whatever thread makes a call, so handing one out is one step on a word of bits. None is ever unmapped
//! while CUPTI may have it. Where all are out, versions before 12.9 may crash on being given none (Kineto's finding), so a few more
//! are mapped; beyond those CUPTI is given none, and says how many records it dropped.

use std::ptr::{null_mut, without_provenance_mut};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// The size of a buffer: 5,000 kernels.
pub(super) const BUFFER_BYTES: usize = 1 << 20;
/// How many there are: a bit each.
const BUFFERS: usize = 64;
/// How many have their pages from the beginning, so that no launch pays for them. Address space is all that the others take until
/// they are used.
const READY: usize = 4;
/// How many more are mapped when all are out.
const MORE: usize = 192;

/// Where the buffers lie, one behind the other; null before they are reserved.
static REGION: AtomicPtr<u8> = AtomicPtr::new(null_mut());
/// A bit for each that is free.
static FREE: AtomicU64 = AtomicU64::new(0);
/// Those that were mapped beyond them.
static EXTRA: [AtomicPtr<u8>; MORE] = [const { AtomicPtr::new(null_mut()) }; MORE];
/// Stands for a buffer that is about to be mapped.
const CLAIMED: *mut u8 = without_provenance_mut(1);

/// Reserves the buffers. False if the address space is not to be had.
pub(super) fn reserve() -> bool {
    if !REGION.load(Ordering::Acquire).is_null() {
        return true;
    }
    let Some(region) = map(BUFFERS * BUFFER_BYTES) else { return false };
    // Pages ahead; where the kernel is too old for it (before 5.14), they come when they are used.
    // SAFETY: of the mapping just made.
    unsafe { libc::madvise(region.cast(), READY * BUFFER_BYTES, libc::MADV_POPULATE_WRITE) };
    REGION.store(region, Ordering::Release);
    FREE.store(u64::MAX, Ordering::Release);
    true
}

/// A buffer of zeros of [`BUFFER_BYTES`], if there is one.
pub(super) fn take() -> Option<*mut u8> {
    let mut free = FREE.load(Ordering::Acquire);
    while free != 0 {
        // The lowest, so that the same few are used as long as they suffice.
        let index = free.trailing_zeros();
        match FREE.compare_exchange_weak(free, free & !(1 << index), Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: within the region, which is there, as there was a free buffer.
            Ok(_) => return Some(unsafe { REGION.load(Ordering::Acquire).add(index as usize * BUFFER_BYTES) }),
            Err(now) => free = now,
        }
    }
    EXTRA.iter().find_map(|extra| {
        extra.compare_exchange(null_mut(), CLAIMED, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        let buffer = map(BUFFER_BYTES);
        extra.store(buffer.unwrap_or(null_mut()), Ordering::Release);
        buffer
    })
}

/// Takes a buffer back. One that is none of these is left alone.
pub(super) fn give_back(buffer: *mut u8) {
    let region = REGION.load(Ordering::Acquire);
    let offset = (buffer.addr()).wrapping_sub(region.addr());
    if !region.is_null() && offset < BUFFERS * BUFFER_BYTES && offset.is_multiple_of(BUFFER_BYTES) {
        // SAFETY: a whole buffer, which CUPTI has given back.
        unsafe { buffer.write_bytes(0, BUFFER_BYTES) };
        FREE.fetch_or(1 << (offset / BUFFER_BYTES), Ordering::AcqRel);
    } else if let Some(extra) = EXTRA.iter().find(|extra| extra.load(Ordering::Acquire) == buffer) {
        // SAFETY: mapped by `take`, and given back.
        unsafe { libc::munmap(buffer.cast(), BUFFER_BYTES) };
        extra.store(null_mut(), Ordering::Release);
    }
}

/// Gives the pages of all buffers that are back to the system. They stay usable, as CUPTI may still ask for one.
pub(super) fn shrink() {
    let region = REGION.load(Ordering::Acquire);
    for index in 0..BUFFERS {
        let bit = 1 << index;
        // Nobody takes it meanwhile.
        if FREE.fetch_and(!bit, Ordering::AcqRel) & bit != 0 {
            // SAFETY: a whole buffer of the region, which nobody has. Its pages are zeros from then on.
            unsafe { libc::madvise(region.add(index * BUFFER_BYTES).cast(), BUFFER_BYTES, libc::MADV_DONTNEED) };
            FREE.fetch_or(bit, Ordering::AcqRel);
        }
    }
}

fn map(bytes: usize) -> Option<*mut u8> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping.
    let address = unsafe { libc::mmap(null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    (address != libc::MAP_FAILED).then_some(address.cast())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// One test, as there is one pool in a process.
    #[test]
    fn buffers_are_handed_out_once_up_to_a_bound_and_come_back_as_zeros() {
        assert!(reserve());
        let taken: HashSet<*mut u8> = std::iter::from_fn(take).collect();
        assert_eq!(taken.len(), BUFFERS + MORE);
        assert_eq!(take(), None);
        // What it never gave out it does not take.
        let mut other = [1_u8; 64];
        give_back(other.as_mut_ptr());
        give_back(taken.iter().min().unwrap().wrapping_add(8));
        assert_eq!((take(), other), (None, [1; 64]));
        for &buffer in &taken {
            // SAFETY: a buffer of its whole size.
            unsafe { buffer.write_bytes(7, BUFFER_BYTES) };
            give_back(buffer);
        }
        assert_eq!(FREE.load(Ordering::Relaxed), u64::MAX);
        assert!(EXTRA.iter().all(|extra| extra.load(Ordering::Relaxed).is_null()));
        shrink();
        let buffer = take().unwrap();
        // SAFETY: as above.
        assert!(unsafe { std::slice::from_raw_parts(buffer, BUFFER_BYTES) }.iter().all(|&byte| byte == 0));
        give_back(buffer);
    }
}
