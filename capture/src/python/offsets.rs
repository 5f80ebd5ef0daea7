//! `_Py_DebugOffsets`: what CPython 3.13 and later say of their own layout, at the beginning of `_PyRuntime`.
//!
//! It is a row of words, whose order each version has its own of (`Include/internal/pycore_debug_offsets.h`,
//! `pycore_runtime.h` of 3.13). It says most of what the table says, and is believed where the two differ, as far as it can be
//! true: a build may have been configured otherwise. What it doesn't say stays as in the table.

use ktape_ebpf::python::{ABSENT, Layout, Memory};

/// The words from `_PyRuntime` on that are looked at: all of every version.
const WORDS: usize = 128;

/// The offsets that an interpreter says it has.
pub(super) struct DebugOffsets([u64; WORDS]);

/// Where the parts of it begin, which is each with a size, and what is in them.
struct Order {
    thread: usize,
    thread_id: usize,
    frame: usize,
    code: usize,
    object: usize,
    bytes: usize,
    string: usize,
}

const ORDER_3_13: Order = Order { thread: 19, thread_id: 24, frame: 28, code: 34, object: 44, bytes: 64, string: 67 };
const ORDER_3_14: Order = Order { thread: 22, thread_id: 27, frame: 31, code: 39, object: 50, bytes: 74, string: 77 };
const ORDER_3_15: Order = Order { thread: 22, thread_id: 30, frame: 39, code: 47, object: 58, bytes: 86, string: 89 };

/// What is wrong with what it says.
pub(super) type Fault = &'static str;

impl DebugOffsets {
    /// `None` if there are none at `_PyRuntime`: it is of a version before 3.13, or not what it seems to be.
    pub(super) fn read<M: Memory>(memory: &M, runtime: u64) -> Option<Self> {
        let mut bytes = [0; 8 * WORDS];
        memory.read(runtime, &mut bytes).then_some(())?;
        let mut words = [0; WORDS];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        (words[0].to_le_bytes() == *b"xdebugpy").then_some(Self(words))
    }

    /// `PY_VERSION_HEX`.
    pub(super) fn version(&self) -> u32 {
        self.0[1] as u32
    }

    /// Whether it is a build without the interpreter lock.
    pub(super) fn is_free_threaded(&self) -> bool {
        self.0[2] != 0
    }

    /// The table's row for its version, with what it says itself.
    pub(super) fn layout(&self, row: Layout) -> Result<Layout, Fault> {
        let order = match row.version {
            0x030d => ORDER_3_13,
            0x030e => ORDER_3_14,
            0x030f => ORDER_3_15,
            _ => return Ok(row),
        };
        let offset = |at: usize| match u16::try_from(self.0[at]) {
            Ok(offset) if offset < ABSENT => Ok(offset),
            _ => Err("an offset that it gives is too large"),
        };
        let (thread, frame, code, string) = (order.thread, order.frame, order.code, order.string);
        // The frame's are words of the part that is read, which ends with the owner's.
        let word = |at: usize| match self.0[at] {
            offset if offset % 8 == 0 && offset < 8 * u64::from(MAX_FRAME_WORDS) => Ok((offset / 8) as u8),
            _ => Err("an offset in frames that it gives is senseless"),
        };
        let owner = offset(frame + 5)?;
        let owner_word = owner / 8;
        if owner_word >= MAX_FRAME_WORDS {
            return Err("an offset in frames that it gives is senseless");
        }
        let [code_word, previous_word, instruction_word] = [word(frame + 2)?, word(frame + 1)?, word(frame + 3)?];
        let last = [code_word, previous_word, instruction_word, owner_word as u8].into_iter().max().unwrap_or(0);
        let object_bytes = offset(order.object)?;
        let text = offset(string + 3)?;
        let layout = Layout {
            interpreters_head: offset(5)?,
            interpreter_next: offset(8)?,
            threads_head: offset(9)?,
            thread_next: offset(thread + 2)?,
            current_frame: offset(thread + 4)?,
            thread_id: offset(order.thread_id)?,
            native_thread_id: offset(order.thread_id + 1)?,
            frame_bytes: (u16::from(last) + 1) * 8,
            frame_code_word: code_word,
            frame_previous_word: previous_word,
            frame_instruction_word: instruction_word,
            frame_owner_word: owner_word as u8,
            frame_owner_shift: (owner % 8 * 8) as u8,
            code_file: offset(code + 1)?,
            code_name: offset(code + 3)?,
            code_line_table: offset(code + 4)?,
            code_first_line: offset(code + 5)?,
            code_instructions: offset(code + 9)?,
            object_bytes,
            ascii_text: text,
            // `utf8_length` and `utf8` follow.
            other_text: text.saturating_add(16),
            ..row
        };
        let says = [
            (offset(order.bytes + 1)?, object_bytes),
            (offset(order.bytes + 2)?, object_bytes.saturating_add(16)),
            (offset(string + 2)?, object_bytes),
            (offset(string + 1)?, object_bytes.saturating_add(16)),
        ];
        if says.iter().any(|(said, expected)| said != expected) {
            return Err("its strings are laid out otherwise");
        }
        if row.code_copies == ABSENT {
            return Ok(layout);
        }
        // The copies of instructions that threads run.
        if self.0[frame + 7] != u64::from(owner_word) * 8 {
            return Err("its frames are laid out otherwise");
        }
        Ok(Layout { code_copies: offset(code + 10)?, ..layout })
    }
}

/// What a walk reads of a frame, at most.
const MAX_FRAME_WORDS: u16 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    /// What CPython 3.14.10 says, as far as it is looked at.
    fn made() -> DebugOffsets {
        let mut words = [0; WORDS];
        words[..3].copy_from_slice(&[u64::from_le_bytes(*b"xdebugpy"), 0x030e_0af0, 0]);
        let known = [
            (5, 808),
            (8, 7272),
            (9, 7344),
            (24, 8),
            (26, 72),
            (27, 152),
            (28, 160),
            (32, 8),
            (33, 0),
            (34, 56),
            (36, 74),
            (40, 112),
            (42, 128),
            (43, 136),
            (44, 68),
            (48, 208),
            (50, 16),
            (75, 16),
            (76, 32),
            (78, 32),
            (79, 16),
            (80, 40),
        ];
        for (at, offset) in known {
            words[at] = offset;
        }
        DebugOffsets(words)
    }

    #[test]
    fn what_an_interpreter_says_is_the_table_where_nothing_differs() {
        let row = Layout::of(0x030e, false).unwrap();
        assert_eq!(made().layout(row), Ok(row));
    }

    #[test]
    fn what_an_interpreter_says_is_believed_where_it_differs() {
        let row = Layout::of(0x030e, false).unwrap();
        let mut offsets = made();
        offsets.0[9] = 7360;
        offsets.0[36] = 78;
        let layout = offsets.layout(row).unwrap();
        assert_eq!((layout.threads_head, layout.frame_owner_word, layout.frame_owner_shift), (7360, 9, 48));
    }

    #[test]
    fn senseless_offsets_are_refused_wherever_they_are() {
        let row = Layout::of(0x030e, false).unwrap();
        for value in [1 << 60, u64::MAX, 65_535, 65_536] {
            let mut refused = 0;
            for at in 3..WORDS {
                let mut offsets = made();
                offsets.0[at] = value;
                refused += usize::from(offsets.layout(row).is_err());
            }
            // Each that is looked at.
            assert_eq!(refused, 22, "{value:#x}");
        }
        let mut offsets = made();
        offsets.0[33] = 4;
        assert!(offsets.layout(row).is_err());
    }
}
