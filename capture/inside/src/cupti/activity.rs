//! What the device ran: CUPTI's activity records, taken out of its buffers and told.
//!
//! Kernels, copies and memsets are asked for, and what CUPTI says that it costs itself, if it says so. What calls tell better
//! (synchronisations, allocations) is not: each kind that is enabled has a price on the thread that makes calls.
//!
//! Buffers come back on CUPTI's thread when they are full, and on the keeper's when it asks for them, which it does often enough for
//! a view that follows. A record is told or counted: kept out are those that end before they begin, and kinds that nobody asked for.
//! One without times (start and end 0: CUPTI ran out of its own memory) is told as such, under the time at which it is told.

use std::ffi::c_void;
use std::panic::catch_unwind;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use ktape_ebpf::inside::{CopyRan, KernelRan, Missing, Ran, SetRan, kind, missing};
use ktape_ebpf::wire::{Plain, tally};

use super::library::{
    KIND_COPY, KIND_KERNEL, KIND_OVERHEAD, KIND_PEER_COPY, KIND_SET, Library, Next, Refusal, ZEROED_BUFFERS,
};
use super::records::{Copy, Kernel, Overhead, PeerCopy, Set};
use super::{pool, times};
use crate::{clock, cost, guest, rings};

/// What is asked for, and how that is called where it is refused.
const KINDS: [(&str, u32); 4] = [
    ("cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL)", KIND_KERNEL),
    // Those between devices come only where the others are asked for too.
    ("cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMCPY)", KIND_COPY),
    ("cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMCPY2)", KIND_PEER_COPY),
    ("cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMSET)", KIND_SET),
];

/// The longest name that is read.
const NAME_BYTES: usize = 1 << 16;

/// Whose buffers these are; null before they are registered.
static LIBRARY: AtomicPtr<Library> = AtomicPtr::new(null_mut());
/// What is missing and was not told yet, by [`missing`].
static MISSING: [AtomicU64; 5] = [const { AtomicU64::new(0) }; 5];
/// Since when.
static MISSING_SINCE_NS: AtomicU64 = AtomicU64::new(0);

/// Enables what is asked for. If one thing is refused, none is.
pub(super) fn begin(library: &'static Library) -> Result<(), Refusal> {
    const NO_MEMORY: u32 = 8; // CUPTI_ERROR_OUT_OF_MEMORY
    if !pool::reserve() {
        return Err(Refusal { what: "memory for buffers", code: NO_MEMORY });
    }
    LIBRARY.store((&raw const *library).cast_mut(), Ordering::Release);
    MISSING_SINCE_NS.store(clock::monotonic_ns(), Ordering::Relaxed);
    times::begin(library);
    // Buffers of zeros spare CUPTI the filling, which it does on the thread that makes a call. Where it does not know of it, it fills.
    let _ = library.set_attribute(ZEROED_BUFFERS, 1);
    library.register_buffers(requested, completed)?;
    for (index, (what, kind)) in KINDS.iter().enumerate() {
        if let Err(refusal) = library.enable(what, *kind) {
            KINDS[..index].iter().for_each(|(_, kind)| library.disable(*kind));
            return Err(refusal);
        }
    }
    // One that does not say what it costs is as good.
    let _ = library.enable("cuptiActivityEnable(CUPTI_ACTIVITY_KIND_OVERHEAD)", KIND_OVERHEAD);
    Ok(())
}

/// Has buffers handed over. At the last time first those that are complete, then the others too.
pub(super) fn flush(library: &Library, is_last: bool) {
    times::compare(library);
    library.flush(false);
    if is_last {
        library.flush(true);
    }
}

/// Tells what is missing, and how the clocks go. Not from a callback: CUPTI holds a lock there that it takes for the count too.
pub(super) fn account(library: &Library) {
    count(missing::DROPPED, library.dropped());
    times::tell(library);
    let [since_ns, until_ns] = [MISSING_SINCE_NS.load(Ordering::Relaxed), clock::monotonic_ns()];
    let mut is_told = true;
    for (why, count) in MISSING.iter().enumerate() {
        let missed = count.load(Ordering::Relaxed);
        if missed != 0 {
            let put = rings::with_writer(0, 0, |writer| {
                let (why, pid_tid) = (why as u32, writer.pid_tid());
                let record = Missing { kind: kind::MISSING, why, pid_tid, since_ns, until_ns, count: missed };
                writer.put(record.as_bytes(), &[])
            });
            match put {
                Some(true) => _ = count.fetch_sub(missed, Ordering::Relaxed),
                // The next time, then, with all that is missing since.
                _ => is_told = false,
            }
        }
    }
    if is_told {
        MISSING_SINCE_NS.store(until_ns, Ordering::Relaxed);
    }
}

/// Disables everything, and has all buffers handed back: nothing in them is told any more.
pub(super) fn end(library: &Library) {
    KINDS.iter().for_each(|(_, kind)| library.disable(*kind));
    library.disable(KIND_OVERHEAD);
    library.flush(true);
    pool::shrink();
}

fn count(why: u32, by: u64) {
    MISSING[why as usize].fetch_add(by, Ordering::Relaxed);
}

/// CUPTI wants a buffer.
extern "C" fn requested(buffer: *mut *mut u8, bytes: *mut usize, most_records: *mut usize) {
    let taken = catch_unwind(pool::take).unwrap_or_default();
    // SAFETY: CUPTI hands over where to write these.
    unsafe {
        *buffer = taken.unwrap_or(null_mut());
        *bytes = if taken.is_some() { pool::BUFFER_BYTES } else { 0 };
        *most_records = 0; // As many as there is room for.
    }
}

/// CUPTI hands a buffer back.
extern "C" fn completed(_: *mut c_void, _: u32, buffer: *mut u8, _: usize, valid_bytes: usize) {
    let _ = catch_unwind(|| {
        // SAFETY: null or never freed.
        if let Some(library) = unsafe { LIBRARY.load(Ordering::Acquire).as_ref() }
            && !buffer.is_null()
        {
            if guest::is_listening() {
                take_all(library, buffer, valid_bytes.min(pool::BUFFER_BYTES));
            }
            pool::give_back(buffer);
            rings::is_cuptis_thread();
        }
    });
}

/// Tells all records of a buffer.
fn take_all(library: &Library, buffer: *mut u8, bytes: usize) {
    let mut record = null();
    while guest::is_listening() {
        match library.next_record(buffer, bytes, record) {
            Next::Record(next) => record = next,
            Next::End => return,
            Next::Unreadable => return count(missing::UNREADABLE, 1),
        }
        let room = (buffer.addr() + bytes).saturating_sub(record.addr());
        if record.addr() < buffer.addr() || !take(record, room) {
            return count(missing::UNREADABLE, 1);
        }
    }
}

/// Tells a record. False if it is cut off.
fn take(record: *const u8, room: usize) -> bool {
    /// The record as a structure, if so much of it is there.
    fn read<T>(record: *const u8, room: usize) -> Option<T> {
        // SAFETY: `room` bytes are in the buffer. Of all types here, any bytes are a value.
        (size_of::<T>() <= room).then(|| unsafe { record.cast::<T>().read_unaligned() })
    }
    let Some(kind) = read::<u32>(record, room) else { return false };
    let is_read = match kind {
        KIND_KERNEL => read(record, room).map(|kernel| tell_kernel(&kernel)),
        KIND_COPY => read(record, room).map(|copy| tell_copy(&copy)),
        KIND_PEER_COPY => read(record, room).map(|copy| tell_peer_copy(&copy)),
        KIND_SET => read(record, room).map(|set| tell_set(&set)),
        KIND_OVERHEAD => read(record, room).map(|overhead| take_overhead(&overhead)),
        _ => {
            count(missing::UNKNOWN_KIND, 1);
            Some(())
        }
    };
    is_read.is_some()
}

/// Puts a record of something that the device did. What has no room is counted.
fn tell<R: Plain>(table: u32, mut ran: Ran, make: impl FnOnce(&mut rings::Ring, Ran) -> Option<R>) {
    if (ran.start_ns, ran.end_ns) == (0, 0) {
        // It happened, and this is when that became known.
        ran.start_ns = clock::monotonic_ns();
    } else if ran.end_ns < ran.start_ns {
        return count(missing::BACKWARDS, 1);
    }
    // Without a time it counts where it is told, and says when that was.
    let is_timed = ran.start_ns != 0 || ran.end_ns != 0;
    let ran = if is_timed { ran } else { Ran { start_ns: clock::monotonic_ns(), ..ran } };
    rings::with_ring(table, ran.counted_ns(), |ring| {
        ring.writer.seen(table, ran.counted_ns());
        let pid_tid = ring.writer.pid_tid();
        let is_put = make(ring, Ran { pid_tid, ..ran }).is_some_and(|record| ring.writer.put(record.as_bytes(), &[]));
        if !is_put {
            ring.writer.lost(table, ran.counted_ns());
        }
    });
}

/// Where and when, of any of the records.
macro_rules! ran {
    ($kind:expr, $record:ident) => {
        Ran {
            kind: $kind,
            correlation: $record.correlation,
            pid_tid: 0,
            start_ns: times::to_ours($record.start),
            end_ns: times::to_ours($record.end),
            device: $record.device,
            context: $record.context,
            stream: $record.stream,
            graph: $record.graph,
            graph_node: $record.graph_node,
        }
    };
}

fn tell_kernel(kernel: &Kernel) {
    let ran = ran!(kind::KERNEL_RAN, kernel);
    tell(tally::KERNEL, ran, |ring, ran| {
        let name = if kernel.name.is_null() {
            &[][..]
        } else {
            // SAFETY: CUPTI's string, which is there until this callback returns.
            unsafe { std::slice::from_raw_parts(kernel.name.cast(), libc::strnlen(kernel.name, NAME_BYTES)) }
        };
        Some(KernelRan {
            ran,
            name: ring.names.id(&mut ring.writer, name)?,
            registers: kernel.registers.into(),
            grid: kernel.grid,
            block: kernel.block,
            static_shared_bytes: kernel.static_shared,
            dynamic_shared_bytes: kernel.dynamic_shared,
            local_bytes: kernel.local_per_thread,
            padding: 0,
        })
    });
}

fn tell_copy(copy: &Copy) {
    let ran = ran!(kind::COPY_RAN, copy);
    let memory = memory(copy.source, copy.target);
    tell(tally::MEMCPY, ran, |_, ran| {
        Some(CopyRan { ran, bytes: copy.bytes, copy: copy.copy.into(), memory, peer: 0, padding: 0 })
    });
}

fn tell_peer_copy(copy: &PeerCopy) {
    let ran = ran!(kind::COPY_RAN, copy);
    let memory = memory(copy.source, copy.target);
    let peer = if copy.target_device == copy.device { copy.source_device } else { copy.target_device };
    let peer = peer.wrapping_add(1);
    tell(tally::MEMCPY, ran, |_, ran| {
        Some(CopyRan { ran, bytes: copy.bytes, copy: copy.copy.into(), memory, peer, padding: 0 })
    });
}

fn tell_set(set: &Set) {
    let ran = ran!(kind::SET_RAN, set);
    tell(tally::MEMSET, ran, |_, ran| {
        Some(SetRan { ran, bytes: set.bytes, value: set.value, memory: set.memory.into() })
    });
}

/// What CUPTI says that it took is added up. Its times are no work of the device's.
fn take_overhead(overhead: &Overhead) {
    match overhead.end.checked_sub(overhead.start) {
        Some(ns) => cost::cupti_took(overhead.overhead, ns),
        None => count(missing::BACKWARDS, 1),
    }
}

/// The kinds of memory of source and target in one number.
fn memory(source: u8, target: u8) -> u32 {
    u32::from(source) | u32::from(target) << 16
}
