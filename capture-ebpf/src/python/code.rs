//! A code object, copied out of the process: what makes a name, a file and a line of a frame.

use core::mem::size_of;

use super::{ABSENT, Layout, Memory};

/// Bytes that a string or a table had in the process, and as many of them as fit here.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Copied<const CAPACITY: usize> {
    /// Their length in the process.
    pub length: u32,
    /// Bytes a character, 1 (Latin-1), 2 (UCS-2) or 4 (UCS-4), in the byte order of the machine; 1 for a table. 0 if they
    /// could not be read.
    pub width: u32,
    /// The first of them.
    pub bytes: [u8; CAPACITY],
}

impl<const CAPACITY: usize> Copied<CAPACITY> {
    /// Nothing.
    const NONE: Self = Self { length: 0, width: 0, bytes: [0; CAPACITY] };

    /// What was copied, or `None` if that isn't the whole.
    pub fn whole(&self) -> Option<&[u8]> {
        if self.width == 0 { None } else { self.bytes.get(..self.length as usize) }
    }

    #[inline(always)]
    fn clear(&mut self) {
        self.length = 0;
        self.width = 0;
    }

    #[inline(always)]
    fn fill<M: Memory>(&mut self, memory: &M, part: Part) {
        self.length = if part.length > u32::MAX as u64 { u32::MAX } else { part.length as u32 };
        let length = if part.length > CAPACITY as u64 { CAPACITY } else { part.length as usize };
        if let Some(into) = self.bytes.get_mut(..length)
            && memory.read(part.address, into)
        {
            self.width = part.width;
        }
    }
}

/// Where the characters of a string or the bytes of a table are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Of the first byte.
    pub address: u64,
    /// In bytes.
    pub length: u64,
    /// Bytes a character, as in [`Copied::width`].
    pub width: u32,
}

impl Part {
    /// The text of the `PyUnicodeObject` that the word at `pointer` points to.
    #[inline(always)]
    pub(super) fn of_string<M: Memory>(memory: &M, layout: &Layout, pointer: u64) -> Option<Self> {
        let string = memory.word(pointer)?;
        let head = string.wrapping_add(layout.object_bytes as u64);
        let length = memory.word(head)?;
        let state = memory.half(head.wrapping_add(STRING_STATE))?;
        let state = state >> (layout.string_kind_shift & 31);
        let width = state & 7;
        let (compact, ascii) = (state >> 3 & 1 != 0, state >> 4 & 1 != 0);
        if width != 1 && width != 2 && width != 4 {
            return None;
        }
        let address = if compact && ascii {
            string.wrapping_add(layout.ascii_text as u64)
        } else if compact {
            string.wrapping_add(layout.other_text as u64)
        } else {
            memory.word(string.wrapping_add(layout.other_text as u64))?
        };
        // A shift, because eBPF has no multiplication that tells of an overflow.
        let length = if length > u32::MAX as u64 { u32::MAX as u64 } else { length };
        Some(Self { address, length: length << (width >> 1), width })
    }

    /// `co_filename` of the code object at this address.
    #[inline(always)]
    pub fn file<M: Memory>(memory: &M, layout: &Layout, code: u64) -> Option<Self> {
        Self::of_string(memory, layout, code.wrapping_add(layout.code_file as u64))
    }

    /// `co_qualname`, `co_name` before 3.11.
    #[inline(always)]
    pub fn name<M: Memory>(memory: &M, layout: &Layout, code: u64) -> Option<Self> {
        Self::of_string(memory, layout, code.wrapping_add(layout.code_name as u64))
    }

    /// `co_linetable`, `co_lnotab` before 3.10: a `PyBytesObject`.
    #[inline(always)]
    pub fn line_table<M: Memory>(memory: &M, layout: &Layout, code: u64) -> Option<Self> {
        let object = memory.word(code.wrapping_add(layout.code_line_table as u64))?;
        let head = object.wrapping_add(layout.object_bytes as u64);
        let length = memory.word(head)?;
        Some(Self { address: head.wrapping_add(BYTES_TEXT), length, width: 1 })
    }
}

/// `PyASCIIObject.state`, from its length on, which follows the head of the object as `PyVarObject.ob_size` does: `interned`,
/// three bits `kind`, one `compact`, one `ascii`.
const STRING_STATE: u64 = 16;
/// `PyBytesObject.ob_sval`, from its length on.
const BYTES_TEXT: u64 = 16;

/// Bytes of a file's path that a [`CodeBody`] has room for.
pub const FILE_BYTES: usize = 512;
/// Bytes of a qualified name.
pub const NAME_BYTES: usize = 256;
/// Bytes of a location table.
pub const LINE_TABLE_BYTES: usize = 2048;

/// A code object, copied out of the process when it is first seen, so that it has a name even when the process is gone.
/// What doesn't fit comes before it in pieces.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CodeBody {
    /// Its address.
    pub code: u64,
    /// `co_firstlineno`.
    pub first_line: i32,
    /// The first instruction, in bytes, at which Python shows the frame; before 3.11 it shows every one.
    pub first_traceable: i32,
    /// `co_filename`.
    pub file: Copied<FILE_BYTES>,
    /// `co_qualname`, `co_name` before 3.11.
    pub name: Copied<NAME_BYTES>,
    /// `co_linetable`, `co_lnotab` before 3.10.
    pub line_table: Copied<LINE_TABLE_BYTES>,
}

const _: () = assert!(size_of::<CodeBody>() == 16 + 3 * 8 + FILE_BYTES + NAME_BYTES + LINE_TABLE_BYTES);

impl Default for CodeBody {
    fn default() -> Self {
        Self {
            code: 0,
            first_line: 0,
            first_traceable: i32::MIN,
            file: Copied::NONE,
            name: Copied::NONE,
            line_table: Copied::NONE,
        }
    }
}

/// Copies the code object at this address. Every field of `into` is written, but for the bytes after those that were copied;
/// what can't be read has the width 0. False if the object itself can't be read.
#[inline(always)]
pub fn copy_code<M: Memory>(memory: &M, layout: &Layout, code: u64, into: &mut CodeBody) -> bool {
    into.code = code;
    into.first_line = 0;
    into.first_traceable = i32::MIN;
    into.file.clear();
    into.name.clear();
    into.line_table.clear();
    let Some(first_line) = memory.half(code.wrapping_add(layout.code_first_line as u64)) else {
        return false;
    };
    into.first_line = first_line as i32;
    if layout.code_first_traceable != ABSENT {
        let Some(units) = memory.half(code.wrapping_add(layout.code_first_traceable as u64)) else {
            return false;
        };
        into.first_traceable = (units as i32).wrapping_mul(2);
    }
    // Each is worth having without the others.
    if let Some(part) = Part::file(memory, layout, code) {
        into.file.fill(memory, part);
    }
    if let Some(part) = Part::name(memory, layout, code) {
        into.name.fill(memory, part);
    }
    if let Some(part) = Part::line_table(memory, layout, code) {
        into.line_table.fill(memory, part);
    }
    true
}
