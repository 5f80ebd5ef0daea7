//! Calls of the driver that the library inside a process makes for itself: they are none of the program's, and so not told.
//!
//! Each thread says so in a word of its own while it makes one. Where that word is, as far from the thread pointer in every thread, the
//! library announces once.

use aya_ebpf::helpers::bpf_probe_read_user;
use aya_ebpf::macros::map;
use aya_ebpf::maps::LruHashMap;
use ktape_ebpf::wire::{MOST_TARGETS, Target};

use crate::maps::setting;
use crate::stack::thread_pointer;

/// Whether any library makes such calls. The loader sets it.
#[unsafe(no_mangle)]
static OWN_CALLS: u64 = 0;

/// Where the word is, by the process's number.
#[map]
static OWN: LruHashMap<u32, Word> = LruHashMap::with_max_entries(MOST_TARGETS, 0);

/// See [`OWN`].
#[repr(C)]
#[derive(Clone, Copy)]
struct Word {
    /// Of the program that has announced it: another of the same process has it elsewhere, or not at all.
    generation: u64,
    /// From the thread pointer.
    offset: u64,
}

/// Learns where a process has it.
#[inline(always)]
pub(crate) fn learn(target: *const Target, pid_tid: u64, offset: u64) {
    // SAFETY: a map's value.
    let generation = unsafe { (*target).generation };
    let _ = OWN.insert((pid_tid >> 32) as u32, Word { generation, offset }, 0);
}

/// Whether the calling thread makes such a call.
#[inline(always)]
pub(crate) fn is_own(target: *const Target, pid_tid: u64) -> bool {
    if setting(&OWN_CALLS) == 0 {
        return false;
    }
    let Some(word) = OWN.get_ptr((pid_tid >> 32) as u32) else { return false };
    // SAFETY: a map's values.
    let (Word { generation, offset }, now) = unsafe { (*word, (*target).generation) };
    let Some(thread_pointer) = thread_pointer() else { return false };
    let at = thread_pointer.wrapping_add(offset) as *const u32;
    // SAFETY: the helper checks the address.
    generation == now && unsafe { bpf_probe_read_user(at) }.is_ok_and(|word| word != 0)
}
