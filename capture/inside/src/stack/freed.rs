//! Noticing that Python frees a code object: what comes to its address is another.
//!
//! The eBPF programs have a probe at `code_dealloc`. In the process the same place is reached through the type of code objects, whose
//! `tp_dealloc` points to it: the slot is made to point here, and from here it goes on there. That is exact in every version, whoever
//! holds which lock, and costs nothing but where code is freed; to look at every code object of every stack would cost at each
//! launch, and could not tell apart two that are alike. When the library goes quiet the slot is put back. The library itself is never
//! unloaded, so that a thread that is in here just then finds its way.

use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use ktape_ebpf::python::{Layout, Memory};

use crate::memory::Guarded;

/// A `destructor`.
type Dealloc = unsafe extern "C" fn(*mut c_void);

/// The slot; null while none is watched.
static SLOT: AtomicPtr<AtomicUsize> = AtomicPtr::new(std::ptr::null_mut());
/// What it pointed to.
static ORIGINAL: AtomicUsize = AtomicUsize::new(0);

/// Sees to it that frees of code objects like this one are noticed. False if that cannot be: then no stack is to be told.
#[inline(always)]
pub(super) fn watch(layout: &Layout, code: u64, guarded: Guarded) -> bool {
    is_watched() || begin(layout, code, guarded).is_some()
}

fn is_watched() -> bool {
    let slot = SLOT.load(Ordering::Acquire);
    // SAFETY: the type of code objects is part of the interpreter's file, which stays mapped while its code runs.
    !slot.is_null() && unsafe { (*slot).load(Ordering::Relaxed) } == freed as Dealloc as usize
}

#[cold]
fn begin(layout: &Layout, code: u64, guarded: Guarded) -> Option<()> {
    let class = guarded.word(code.wrapping_add(layout.type_offset()))?;
    // `tp_name`, behind the head of an object with a length.
    let name = guarded.word(class.wrapping_add(u64::from(layout.object_bytes) + 8))?;
    let mut said = [0; 5];
    if !guarded.read(name, &mut said) || said != *b"code\0" {
        return None;
    }
    let slot = class.wrapping_add(layout.dealloc_offset());
    let original = guarded.word(slot)?;
    if original == 0 || !guarded.can_write(slot, original) {
        return None;
    }
    // SAFETY: a word of the type, which can be written, as was just found out.
    let place = unsafe { &*(slot as *const AtomicUsize) };
    let ours = freed as Dealloc as usize;
    if original as usize != ours {
        ORIGINAL.store(original as usize, Ordering::Release);
        // Who comes second finds it done.
        let _ = place.compare_exchange(original as usize, ours, Ordering::AcqRel, Ordering::Relaxed);
    }
    SLOT.store(std::ptr::from_ref(place).cast_mut(), Ordering::Release);
    is_watched().then_some(())
}

/// Puts the slot back, if nobody has put something else there.
pub(super) fn stop() {
    let slot = SLOT.swap(std::ptr::null_mut(), Ordering::AcqRel);
    if !slot.is_null() {
        let original = ORIGINAL.load(Ordering::Acquire);
        // SAFETY: as in `is_watched`.
        let slot = unsafe { &*slot };
        let _ = slot.compare_exchange(freed as Dealloc as usize, original, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// A code object is about to be freed.
unsafe extern "C" fn freed(code: *mut c_void) {
    super::code_freed(code as u64);
    // SAFETY: stored before this function was to be reached, and the slot held a function of this type.
    unsafe {
        let original: Dealloc = std::mem::transmute(ORIGINAL.load(Ordering::Acquire));
        original(code);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_code_object_is_left_alone() {
        let layout = Layout::of(0x030c, false).unwrap();
        let guarded = Guarded { pid: std::process::id() };
        let name = *b"cell\0\0\0\0";
        let mut class = [0u64; 10];
        class[3] = name.as_ptr() as u64;
        class[layout.dealloc_offset() as usize / 8] = 0x1234;
        let object = [1, class.as_ptr() as u64];
        assert!(!watch(&layout, object.as_ptr() as u64, guarded) && !watch(&layout, 8, guarded));
        assert_eq!(class[layout.dealloc_offset() as usize / 8], 0x1234);
    }
}
