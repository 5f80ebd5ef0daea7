//! Takes variables out of this process's environment, so that its children have the environment that they would have had.
//!
//! Other threads may be reading it. `unsetenv` moves the entries behind the variable down by one, and a `getenv` that is looking
//! through them at that moment can miss one. So a new list of the same entries is made, without those that go, and put in place of
//! the old one by one store: whoever is looking through the old one finds all in it. That one is never freed.
//!
//! What the program made of its environment before (Python's `os.environ` is a copy) stays; a child that is given the variables
//! from there finds that it is not the recorder's (`Control::parent`), and does nothing.

use std::ffi::{CStr, c_char};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

unsafe extern "C" {
    static mut environ: *mut *mut c_char;
}

/// Removes these variables.
pub(crate) fn remove(names: &[&str]) {
    // SAFETY: the C library's variable: a pointer, which is there as long as the process.
    let list = unsafe { AtomicPtr::from_ptr(&raw mut environ) };
    // Someone who sets a variable meanwhile may have put another list in place; then once more. Whoever does so all the time has
    // bigger troubles.
    for _ in 0..100 {
        let old = list.load(Ordering::Acquire);
        if old.is_null() {
            return;
        }
        // SAFETY: the environment is a list of C strings that ends in a null.
        let kept = unsafe { without(old, names) };
        // Never freed, as the C library does not free a list that it did not make either.
        let new = Box::leak(kept.into_boxed_slice()).as_mut_ptr();
        if list.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            return;
        }
    }
}

/// The entries of a list, but for those of these names, and a null.
unsafe fn without(list: *mut *mut c_char, names: &[&str]) -> Vec<*mut c_char> {
    let mut kept = Vec::new();
    for index in 0.. {
        // SAFETY: the null that ends the list has not been seen yet.
        let entry = unsafe { *list.add(index) };
        if entry.is_null() {
            break;
        }
        // SAFETY: a C string.
        let text = unsafe { CStr::from_ptr(entry) }.to_bytes();
        let is_of = |name: &&str| text.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.starts_with(b"="));
        if !names.iter().any(is_of) {
            kept.push(entry);
        }
    }
    kept.push(null_mut());
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_named_variables_go_and_all_others_keep_their_order() {
        let entries = [c"A=1", c"KTAPE=x", c"KTAPES=2", c"B=KTAPE=3", c"KTAPE=again", c"KTAPE", c"C="];
        let mut list: Vec<*mut c_char> = entries.iter().map(|entry| entry.as_ptr().cast_mut()).collect();
        list.push(null_mut());
        // SAFETY: a list of C strings that ends in a null.
        let kept = unsafe { without(list.as_mut_ptr(), &["KTAPE", "OTHER"]) };
        let expected = [0, 2, 3, 5, 6, 7].map(|index| list[index]);
        assert_eq!(kept, expected);
    }
}
