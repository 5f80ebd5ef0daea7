//! A function of our own to put probes on: a page of code in a file in memory, mapped into this process.
//!
//! What a probe costs depends on the instruction under it, so it can only be tried on a function whose bytes are chosen.

use std::ffi::c_void;
use std::fs::File;
use std::io::{self, Write as _};
use std::ptr;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

const PAGE_BYTES: usize = 4096;
const RET: u8 = 0xc3;

/// The page. It is unmapped when this is dropped.
pub struct CodePage {
    file: File,
    mapping: *mut c_void,
}

impl CodePage {
    /// A function of these bytes, and behind them nothing but `ret`.
    ///
    /// # Safety
    ///
    /// With a `ret` behind it the code is a function of C without arguments, at its beginning.
    pub unsafe fn new(code: &[u8]) -> io::Result<CodePage> {
        let file = File::from(memfd_create("ktape-probe-trial", MemfdFlags::CLOEXEC)?);
        let mut page = [RET; PAGE_BYTES];
        page[..code.len()].copy_from_slice(code);
        (&file).write_all(&page)?;
        // SAFETY: a new private mapping of a file of one page, which nothing else knows.
        let mapping = unsafe {
            mmap(ptr::null_mut(), PAGE_BYTES, ProtFlags::READ | ProtFlags::EXEC, MapFlags::PRIVATE, &file, 0)?
        };
        Ok(CodePage { file, mapping })
    }

    /// The file that a probe is put on; the function is at its beginning.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Calls the function.
    pub fn call(&self) {
        // SAFETY: by the word of who made it a function is there; the processor sees what was written before it was mapped.
        let function = unsafe { std::mem::transmute::<*mut c_void, extern "C" fn()>(self.mapping) };
        function();
    }
}

impl Drop for CodePage {
    fn drop(&mut self) {
        // SAFETY: the mapping made above, which nobody is in any more. That it may fail changes nothing.
        let _ = unsafe { munmap(self.mapping, PAGE_BYTES) };
    }
}
