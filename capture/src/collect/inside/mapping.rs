//! A file in memory, shared with whoever else maps it.

use std::fs::File;
use std::io;
use std::ptr::{self, NonNull};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// A mapped file, zeros where nobody wrote.
#[derive(Debug)]
pub struct Mapping {
    memory: NonNull<u8>,
    length: usize,
}

// SAFETY: a mapping belongs to no thread; who uses its memory says how.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps the first `length` bytes, which the file must have. One that is cut short afterwards ends whoever reads it: only those
    /// who could end the recorder anyway, its own user, can write into the directory.
    pub fn of(file: &File, length: usize) -> io::Result<Mapping> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        if file.metadata()?.len() < length as u64 || length == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "too short"));
        }
        // SAFETY: a new mapping, in nobody's way.
        let memory = unsafe { mmap(ptr::null_mut(), length, protection, flags, file, 0)? };
        let memory = NonNull::new(memory.cast()).ok_or_else(|| io::Error::other("mapped at 0"))?;
        Ok(Mapping { memory, length })
    }

    /// Where it is: aligned to a page.
    pub fn memory(&self) -> *mut u8 {
        self.memory.as_ptr()
    }

    /// How long it is.
    pub fn length(&self) -> usize {
        self.length
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `of`, and nobody has a reference that outlives it. One that cannot be unmapped stays.
        let _ = unsafe { munmap(self.memory.as_ptr().cast(), self.length) };
    }
}
