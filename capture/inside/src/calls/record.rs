//! One call's record, written where it is read.

use std::mem::{offset_of, size_of};

use ktape_ebpf::inside::ring::Writer;
use ktape_ebpf::python::Memory as _;
use ktape_ebpf::wire::{
    Call, LIST_BYTES, LISTS_BYTES, ListsCall, MEMORY_BYTES, MemoryCall, NAME_BYTES, NamedCall, Plan, STACK_WORDS,
    StackCall, kind,
};

use super::parameters::MOST;
use crate::memory::Arguments;

const _: () = assert!(MOST == 6 + STACK_WORDS);

/// Puts a call of these arguments, and what they point to as the plan says. False if there is no room for it.
#[inline(always)]
pub(super) fn put(writer: &mut Writer, call: Call, words: &[u64; MOST], plan: &Plan, memory: &Arguments) -> bool {
    match plan.record {
        kind::CALL => in_place(writer, size_of::<Call>(), |record: *mut Call| {
            // SAFETY: there is room for one.
            unsafe { record.write(call) };
            size_of::<Call>()
        }),
        kind::STACK_CALL => in_place(writer, size_of::<StackCall>(), |record: *mut StackCall| {
            // SAFETY: as above.
            unsafe { record.write(StackCall { call, words: of_stack(words) }) };
            size_of::<StackCall>()
        }),
        kind::MEMORY_CALL => in_place(writer, size_of::<MemoryCall>(), |record: *mut MemoryCall| {
            let bytes = (plan.bytes as usize).min(MEMORY_BYTES);
            // SAFETY: as above.
            unsafe {
                (&raw mut (*record).call).write(call);
                let is_read = memory.read(argument(words, plan.pointer), &mut (&mut (*record).memory)[..bytes]);
                (&raw mut (*record).bytes).write(if is_read { bytes as u64 } else { 0 });
            }
            size_of::<MemoryCall>()
        }),
        kind::LISTS_CALL => in_place(writer, size_of::<ListsCall>(), |record: *mut ListsCall| {
            let share = if plan.lists == 1 { LISTS_BYTES } else { LIST_BYTES };
            let elements = argument(words, plan.count).min(LISTS_BYTES as u64) as usize;
            let bytes = (elements * plan.bytes as usize).min(share);
            // SAFETY: as above.
            unsafe {
                (&raw mut (*record).call).write(call);
                (&raw mut (*record).words).write(of_stack(words));
                let lists: &mut [u8; LISTS_BYTES] = &mut (*record).memory;
                let lists = lists.chunks_mut(share).take(plan.lists as usize);
                let is_read = lists
                    .zip(plan.pointer..)
                    .all(|(list, pointer)| memory.read(argument(words, pointer), &mut list[..bytes]));
                (&raw mut (*record).bytes).write(if is_read { bytes as u64 } else { 0 });
            }
            size_of::<ListsCall>()
        }),
        _ => in_place(writer, size_of::<NamedCall>(), |record: *mut NamedCall| {
            // SAFETY: as above.
            let bytes = unsafe {
                (&raw mut (*record).call).write(call);
                let name: &mut [u8; NAME_BYTES] = &mut (*record).name;
                let bytes = memory.string(argument(words, plan.pointer), name);
                (&raw mut (*record).bytes).write(bytes as u64);
                bytes
            };
            // The name's end is the record's.
            offset_of!(NamedCall, name) + bytes
        }),
    }
}

/// Has a record of so many bytes at most written in its place; `write` says how many there are of it.
#[inline(always)]
fn in_place<T>(writer: &mut Writer, most: usize, write: impl FnOnce(*mut T) -> usize) -> bool {
    const { assert!(align_of::<T>() <= 8) };
    let Some(room) = writer.room(most) else { return false };
    let bytes = write(room.cast());
    writer.show(bytes.min(most));
    true
}

#[inline(always)]
fn of_stack(words: &[u64; MOST]) -> [u64; STACK_WORDS] {
    std::array::from_fn(|at| words[6 + at])
}

#[inline(always)]
fn argument(words: &[u64; MOST], index: u32) -> u64 {
    words.get(index as usize).copied().unwrap_or(0)
}
