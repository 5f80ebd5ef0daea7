//! What user space knows already, so that it is sent once: and when it must be sent again.
//!
//! Stacks go by their hash, code objects by their address. The hash has the process's *epoch* in it, which is raised when code that
//! was sent is freed, so that what comes to its address is not taken for it; and the key has the *rotation*, which is raised
//! before the map that remembers is so full that it forgets.

use ktape_ebpf::wire::Target;

use crate::maps::{EPOCH_ENTRIES, EPOCHS, KNOWN, KNOWN_ENTRIES, ROTATION, SENT, SENT_ENTRIES, SentKey, count};

/// Puts one word more into a hash.
#[inline(always)]
pub(crate) fn mix(hash: u64, word: u64) -> u64 {
    let mixed = (hash ^ word).wrapping_mul(0xd6e8_feb8_6659_fd93);
    mixed ^ mixed >> 32
}

/// Whether user space knows this already.
#[inline(always)]
pub(crate) fn was_sent(key: &SentKey) -> bool {
    let fingerprint = mix(key.what, key.generation);
    let Some(known) = KNOWN.get_ptr_mut(fingerprint as u32 % KNOWN_ENTRIES) else { return false };
    // SAFETY: a map's value. One word, so that whoever else writes it meanwhile writes it whole.
    if unsafe { *known } == fingerprint {
        return true;
    }
    let was_sent = SENT.get_ptr(key).is_some();
    if was_sent {
        // SAFETY: as above.
        unsafe { *known = fingerprint };
    }
    was_sent
}

#[inline(always)]
pub(crate) fn remember(key: &SentKey) {
    // A full map forgets the oldest, which is then sent again.
    let _ = SENT.insert(key, 1, 0);
    if let Some(rotation) = ROTATION.get_ptr_mut(0) {
        // SAFETY: a map's value. If two come here at once it rotates twice: more is sent again then, and no less is known.
        unsafe {
            count(&raw mut (*rotation).sent);
            if (*rotation).sent > u64::from(SENT_ENTRIES / 2) {
                (*rotation).sent = 0;
                count(&raw mut (*rotation).number);
            }
        }
    }
}

/// The number of the rotation.
#[inline(always)]
pub(crate) fn rotation() -> u64 {
    // SAFETY: a map's value.
    ROTATION.get(0).map_or(0, |rotation| unsafe { core::ptr::read_volatile(&raw const rotation.number) })
}

/// What a [`SentKey`] has of a program's generation, which is a time, and a rotation.
#[inline(always)]
pub(crate) fn generation(of_program: u64, rotation: u64) -> u64 {
    of_program.wrapping_add(rotation << 48)
}

/// See `EPOCHS`.
#[inline(always)]
pub(crate) fn epoch(pid: u32) -> u64 {
    // SAFETY: a map's value.
    EPOCHS.get(pid % EPOCH_ENTRIES).map_or(0, |epoch| unsafe { core::ptr::read_volatile(epoch) })
}

/// Makes all stacks of a process new: what has the address of an unmapped library may be another.
#[inline(always)]
pub(crate) fn renew(pid: u32) {
    if let Some(epoch) = EPOCHS.get_ptr_mut(pid % EPOCH_ENTRIES) {
        count(epoch);
    }
}

/// A code object is about to be freed: what comes to its address is another.
#[inline(always)]
pub(crate) fn forget(target: *const Target, pid: u32, code: u64) {
    // SAFETY: a map's value.
    let key = SentKey { what: code | 1, generation: generation(unsafe { (*target).generation }, rotation()) };
    let mut was_known = SENT.remove(key).is_ok();
    let fingerprint = mix(key.what, key.generation);
    if let Some(known) = KNOWN.get_ptr_mut(fingerprint as u32 % KNOWN_ENTRIES) {
        // SAFETY: as in `was_sent`.
        unsafe {
            if *known == fingerprint {
                *known = 0;
                was_known = true;
            }
        }
    }
    if was_known {
        renew(pid);
    }
}
