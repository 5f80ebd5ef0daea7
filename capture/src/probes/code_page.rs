//! Functions of our own to put probes on: a page of code in a file in memory, mapped into this process.
//!
//! What a probe costs depends on the instruction under it, so it can only be tried on a function whose bytes are chosen.

use std::ffi::c_void;
use std::fs::File;
use std::io::{self, Write as _};
use std::ptr;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

const PAGE_BYTES: usize = 4096;
/// From one function to the next.
const FUNCTION_BYTES: usize = 64;
const RET: u8 = 0xc3;

/// The page. It is unmapped when this is dropped.
pub struct CodePage {
    file: File,
    mapping: *mut c_void,
}

impl CodePage {
    /// Functions of these bytes, and behind each nothing but `ret`.
    ///
    /// # Safety
    ///
    /// With a `ret` behind it each code is a function of C without arguments.
    pub unsafe fn new(codes: &[&[u8]]) -> io::Result<CodePage> {
        let file = File::from(memfd_create("ktape-probe-trial", MemfdFlags::CLOEXEC)?);
        let mut page = [RET; PAGE_BYTES];
        for (function, code) in page.chunks_mut(FUNCTION_BYTES).zip(codes) {
            function[..code.len()].copy_from_slice(code);
        }
        (&file).write_all(&page)?;
        // SAFETY: a new private mapping of a file of one page, which nothing else knows.
        let mapping = unsafe {
            mmap(ptr::null_mut(), PAGE_BYTES, ProtFlags::READ | ProtFlags::EXEC, MapFlags::PRIVATE, &file, 0)?
        };
        Ok(CodePage { file, mapping })
    }

    /// The file that probes are put on.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Where a function begins in the file.
    pub fn offset(function: usize) -> u64 {
        (function * FUNCTION_BYTES) as u64
    }

    /// Calls a function.
    pub fn call(&self, function: usize) {
        let function = self.mapping.wrapping_byte_add(function * FUNCTION_BYTES % PAGE_BYTES);
        // SAFETY: by the word of who made it a function is there, or nothing but `ret`; the processor sees what was written before it
        // was mapped.
        let function = unsafe { std::mem::transmute::<*mut c_void, extern "C" fn()>(function) };
        function();
    }
}

impl Drop for CodePage {
    fn drop(&mut self) {
        // SAFETY: the mapping made above, which nobody is in any more. That it may fail changes nothing.
        let _ = unsafe { munmap(self.mapping, PAGE_BYTES) };
    }
}
