//! The name of the asyncio task that a thread runs.
//!
//! The loop runs a task's step by `Handle._run`, a frame of Python: its `self` is the handle, whose callback is the task's step or
//! its waking, and both lead to the task. That is so in every version that has tasks with names. A loop that has no such frame
//! (uvloop), and a task that is no `_asyncio.Task`, have their coroutines on the stack, but no name here.

use core::mem::size_of;

use super::{ABSENT, Interpreter, Layout, Memory, Part};

/// Bytes of a name that are kept.
pub const TASK_NAME_BYTES: usize = 128;

/// The name of a task, as the process has it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskName {
    /// Its length in the process, in bytes.
    pub length: u32,
    /// Bytes a character: 1, 2 or 4.
    pub width: u32,
    /// The first of them, and zeros.
    pub words: [u64; TASK_NAME_BYTES / 8],
}

/// Finds the name of the task that this frame of `Handle._run` runs. False for what is no task, and for one that nobody has
/// named: its number says nothing, and would make a stack of its own of every one.
#[inline(always)]
pub fn task_name<M: Memory>(memory: &M, interpreter: &Interpreter, frame: u64, into: &mut TaskName) -> bool {
    find(memory, interpreter, frame, into).is_some()
}

#[inline(always)]
fn find<M: Memory>(memory: &M, interpreter: &Interpreter, frame: u64, into: &mut TaskName) -> Option<()> {
    let layout = &interpreter.layout;
    if layout.task_name == ABSENT {
        return None;
    }
    // 3.14 keeps marks in the lowest bits of what is in a frame.
    let handle = memory.word(frame.wrapping_add(layout.frame_locals as u64))? & !7;
    // The first word of an object behind its head, and the second.
    let first = layout.object_bytes as u64;
    let second = first + 8;
    // `_callback`: the slots of a class lie in the order of their names, and `_args` is the first.
    let callback = memory.word(handle.wrapping_add(second))?;
    // `TaskStepMethWrapper.sw_task`, and `TaskWakeupMethWrapper.ww_task` before 3.10.
    let mut task = memory.word(callback.wrapping_add(first))?;
    if !is_task(memory, layout, task) {
        // `PyCFunctionObject.m_self`: from 3.10 on the waking is a method of the task.
        task = memory.word(callback.wrapping_add(second))?;
        if !is_task(memory, layout, task) {
            return None;
        }
    }
    let at = task.wrapping_add(layout.task_name as u64);
    let name = memory.word(at)?;
    // From 3.12 on the name of one that has none is a number.
    if memory.word(name.wrapping_add(layout.type_offset()))? != interpreter.string_type {
        return None;
    }
    let part = Part::of_string(memory, layout, at)?;
    into.length = if part.length > u32::MAX as u64 { u32::MAX } else { part.length as u32 };
    into.width = part.width;
    let mut word = 0;
    while word < TASK_NAME_BYTES / 8 {
        into.words[word] = 0;
        word += 1;
    }
    let length = if part.length > TASK_NAME_BYTES as u64 { TASK_NAME_BYTES } else { part.length as usize };
    // SAFETY: the words are that long, and any bytes are words.
    let bytes = unsafe { core::slice::from_raw_parts_mut(into.words.as_mut_ptr().cast::<u8>(), TASK_NAME_BYTES) };
    if length == 0 || !memory.read(part.address, bytes.get_mut(..length)?) || is_default(into) {
        return None;
    }
    Some(())
}

/// Whether an object is a task of the C accelerator: asked of its type's name, which has no other of that kind.
#[inline(always)]
fn is_task<M: Memory>(memory: &M, layout: &Layout, object: u64) -> bool {
    let name = memory
        .word(object.wrapping_add(layout.type_offset()))
        // `tp_name`, behind the head of an object with a length.
        .and_then(|class| memory.word(class.wrapping_add(layout.object_bytes as u64 + 8)))
        .and_then(|name| Some((memory.word(name)?, memory.word(name.wrapping_add(8))?)));
    // The end of the text and what lies behind it are not of the name.
    const END: u64 = (1 << 48) - 1;
    name.is_some_and(|(begin, end)| {
        begin == u64::from_le_bytes(*b"_asyncio") && end & END == u64::from_le_bytes(*b".Task\0\0\0")
    })
}

/// Whether a name is what a task without one is called: `Task-` and a number.
#[inline(always)]
fn is_default(name: &TaskName) -> bool {
    const PREFIX: u64 = (1 << 40) - 1;
    if name.width != 1 || name.words[0] & PREFIX != u64::from_le_bytes(*b"Task-\0\0\0") || name.length > 16 {
        return false;
    }
    let mut at = 5;
    while at < 16 {
        let byte = (name.words[at / 8] >> (8 * (at % 8))) as u8;
        if (at as u32) < name.length && !byte.is_ascii_digit() {
            return false;
        }
        at += 1;
    }
    name.length > 5
}

const _: () = assert!(size_of::<TaskName>() == 8 + TASK_NAME_BYTES);

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::super::LAYOUTS;
    use super::super::made::{LIMIT, Made};
    use super::*;

    const STRING: u64 = 0x500;
    /// One byte a character, compact, ASCII.
    const ASCII: u64 = 1 << 2 | 1 << 5 | 1 << 6;

    /// The name of the task that a frame at 0x1000 runs: the step's task is at 16 or 24, its name's type, length and words.
    fn named(task_at: u64, name_type: u64, length: u64, text: &[u8; 16]) -> Option<(u32, Vec<u8>)> {
        let layout = LAYOUTS[4];
        let (handle, step, task, class, class_name, name) = (0x2000, 0x3000, 0x4000, 0x5000, 0x6000, 0x7000);
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
        let memory = Made::of(&[
            // Marked, as in 3.14.
            (0x1000 + layout.frame_locals as u64, handle | 1),
            (handle + 24, step),
            (step + task_at, task),
            (task + 8, class),
            (class + 24, class_name),
            (class_name, word(b"_asyncio")),
            (class_name + 8, word(b".Task\0zz")),
            (task + layout.task_name as u64, name),
            (name + 8, name_type),
            (name + 16, length),
            (name + 32, ASCII),
            (name + 40, word(&text[..8])),
            (name + 48, word(&text[8..])),
        ]);
        let interpreter = Interpreter { layout, string_type: STRING, ..Interpreter::default() };
        let mut found = TaskName { length: 0, width: 0, words: [!0; TASK_NAME_BYTES / 8] };
        let is_found = task_name(&memory, &interpreter, 0x1000, &mut found);
        assert!(!task_name(&memory, &interpreter, LIMIT, &mut found.clone()));
        let bytes = found.words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        is_found.then_some((found.length, bytes))
    }

    #[test]
    fn a_step_and_a_waking_lead_to_the_tasks_name() {
        for task_at in [16, 24] {
            let (length, bytes) = named(task_at, STRING, 7, b"prefill\0\0\0\0\0\0\0\0\0").unwrap();
            assert_eq!((length, &bytes[..7]), (7, &b"prefill"[..]));
            assert!(bytes[7..].iter().all(|&byte| byte == 0));
        }
        assert_eq!(named(40, STRING, 7, b"prefill\0\0\0\0\0\0\0\0\0"), None);
    }

    #[test]
    fn a_task_that_nobody_named_has_no_name() {
        assert_eq!(named(16, STRING, 7, b"Task-12\0\0\0\0\0\0\0\0\0"), None);
        assert_eq!(named(16, STRING, 16, b"Task-12345678901"), None);
        // From 3.12 on it is a number.
        assert_eq!(named(16, STRING + 8, 7, b"prefill\0\0\0\0\0\0\0\0\0"), None);
        for (length, text) in [
            (8, b"Task-12b\0\0\0\0\0\0\0\0"),
            (5, b"Task-\0\0\0\0\0\0\0\0\0\0\0"),
            (4, b"Task\0\0\0\0\0\0\0\0\0\0\0\0"),
        ] {
            assert!(named(16, STRING, length, text).is_some(), "{text:?}");
        }
    }
}
