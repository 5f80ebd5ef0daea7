//! What is sent of a stack that this thread has not sent before: its code objects, those that are new, and itself, in that order. A text
//! that is too long for a code object's record goes before that in pieces. As `capture-ebpf/src/bodies.rs` does it.

use std::mem::size_of;

use ktape_ebpf::inside::ring::Writer;
use ktape_ebpf::python::{
    CodeBody, End, FILE_BYTES, LINE_TABLE_BYTES, Layout, Memory as _, NAME_BYTES, Part, RawFrame, copy_code,
};
use ktape_ebpf::wire::{CodeRecord, MOST_PIECES, PIECE_BYTES, StackBody, TextPiece, kind, relation, text};

use crate::memory::Guarded;

/// Where records go, and what stands in each.
pub(super) struct Sender<'a> {
    pub(super) writer: &'a mut Writer,
    pub(super) pid_tid: u64,
    pub(super) rotation: u32,
}

impl Sender<'_> {
    /// Sends a code object. False if there is no room for all of it.
    ///
    /// Read through the kernel: it is read once, and nothing of it has been looked at before.
    pub(super) fn code(&mut self, layout: &Layout, code: u64, memory: Guarded) -> bool {
        let parts = [
            (text::FILE, Part::file(&memory, layout, code), FILE_BYTES),
            (text::NAME, Part::name(&memory, layout, code), NAME_BYTES),
            (text::LINE_TABLE, Part::line_table(&memory, layout, code), LINE_TABLE_BYTES),
        ];
        for (text, part, room) in parts {
            let Some(part) = part else { continue };
            let is_long = part.length > room as u64 && part.length <= (MOST_PIECES * PIECE_BYTES) as u64;
            if is_long && !self.pieces(code, text, part, memory) {
                return false;
            }
        }
        self.in_place(size_of::<CodeRecord>(), |record: *mut CodeRecord, sender| {
            // SAFETY: there is room for one, and all of it but the ends of texts is written.
            unsafe {
                (&raw mut (*record).kind).write(kind::CODE);
                (&raw mut (*record).rotation).write(sender.rotation);
                (&raw mut (*record).pid_tid).write(sender.pid_tid);
                let body: &mut CodeBody = &mut (*record).body;
                copy_code(&memory, layout, code, body);
            }
        })
    }

    fn pieces(&mut self, code: u64, text: u32, part: Part, memory: Guarded) -> bool {
        (0..part.length).step_by(PIECE_BYTES).all(|offset| {
            let length = (part.length - offset).min(PIECE_BYTES as u64);
            self.in_place(size_of::<TextPiece>(), |record: *mut TextPiece, sender| {
                // SAFETY: as above.
                unsafe {
                    (&raw mut (*record).kind).write(kind::TEXT_PIECE);
                    (&raw mut (*record).text).write(text);
                    (&raw mut (*record).pid_tid).write(sender.pid_tid);
                    (&raw mut (*record).code).write(code);
                    (&raw mut (*record).offset).write(offset);
                    let bytes = &mut (&mut (*record).bytes)[..length as usize];
                    let is_read = memory.read(part.address.wrapping_add(offset), bytes);
                    (&raw mut (*record).length).write(if is_read { length } else { 0 });
                }
            })
        })
    }

    /// Sends a stack: what its record says but for what all have, and its frames, innermost first.
    pub(super) fn stack(&mut self, body: Body, frames: impl Iterator<Item = RawFrame>) -> bool {
        let bytes = size_of::<StackBody>() + body.depth as usize * size_of::<RawFrame>();
        self.in_place(bytes, |record: *mut StackBody, sender| {
            let Body { depth, stack, epoch, task, task_at, end } = body;
            let (kind, pid_tid, end) = (kind::STACK_BODY, sender.pid_tid, end as u32);
            let relation = relation::SAME;
            // SAFETY: there is room for it and so many frames.
            unsafe {
                record.write(StackBody { kind, depth, pid_tid, stack, epoch, task, task_at, end, relation, native: 0 });
                let room = record.add(1).cast::<RawFrame>();
                for (at, frame) in frames.take(depth as usize).enumerate() {
                    room.add(at).write(frame);
                }
            }
        })
    }

    /// Has a record written where it is read. False if there is no room for it.
    fn in_place<T>(&mut self, bytes: usize, write: impl FnOnce(*mut T, &Self)) -> bool {
        const { assert!(align_of::<T>() <= 8) };
        let Some(room) = self.writer.room(bytes) else { return false };
        write(room.cast(), self);
        self.writer.show(bytes);
        true
    }
}

/// What is said of a stack.
pub(super) struct Body {
    pub(super) depth: u32,
    pub(super) stack: u64,
    pub(super) epoch: u64,
    pub(super) task: u64,
    pub(super) task_at: u32,
    pub(super) end: End,
}
