//! What is sent of a stack that was not seen before: its code objects, those that are new, its native frames, and itself, in that
//! order. A text that is too long for a code object's record goes before that in pieces.

use core::ffi::c_void;
use core::mem::size_of;

use aya_ebpf::helpers::generated::{bpf_loop, bpf_probe_read_user};
use ktape_ebpf::python::{self, CodeBody, FILE_BYTES, LINE_TABLE_BYTES, MAX_FRAMES, NAME_BYTES, Part, RawFrame};
use ktape_ebpf::wire::{
    CodeRecord, MAX_NATIVE_FRAMES, MOST_PIECES, NativeBody, PIECE_BYTES, StackBody, TextPiece, kind, text,
};

use crate::maps::{EVENTS, Long, SentKey, Space, wake, with_room};
use crate::sent::{remember, was_sent};
use crate::stack::{User, space_of};

/// Sends one frame's code object, if it was not sent before. Returns 1 to end the loop.
#[inline(never)]
pub(crate) extern "C" fn send_code(index: u32, context: *mut c_void) -> i64 {
    let Some(space) = space_of(context) else { return 1 };
    if index >= space.walk.count {
        return 1;
    }
    let code = space.walk.frames[index as usize % MAX_FRAMES].code;
    let key = SentKey { what: code | 1, generation: space.generation };
    if was_sent(&key) {
        return 0;
    }
    let sent = send_long_texts(space, code, context)
        && with_room(|record: *mut CodeRecord| {
            // SAFETY: the record is reserved and as large as its type.
            unsafe {
                (&raw mut (*record).kind).write(kind::CODE);
                (&raw mut (*record).rotation).write(space.rotation as u32);
                (&raw mut (*record).pid_tid).write(space.pid_tid);
                let body: &mut CodeBody = &mut (*record).body;
                python::copy_code(&User, &space.interpreter.layout, code, body);
            }
            true
        });
    if sent {
        remember(&key);
    } else {
        space.bodies_lost = 1;
    }
    0
}

/// Sends what is too long for a code object's record. False if the ring buffer is full.
#[inline(always)]
fn send_long_texts(space: &mut Space, code: u64, context: *mut c_void) -> bool {
    space.text_lost = 0;
    let layout = &space.interpreter.layout;
    let (file, name) = (Part::file(&User, layout, code), Part::name(&User, layout, code));
    let line_table = Part::line_table(&User, layout, code);
    send_long(space, code, text::FILE, file, FILE_BYTES, context);
    send_long(space, code, text::NAME, name, NAME_BYTES, context);
    send_long(space, code, text::LINE_TABLE, line_table, LINE_TABLE_BYTES, context);
    space.text_lost == 0
}

/// Sends a text in pieces, if it is longer than what there is room for elsewhere.
#[inline(always)]
fn send_long(space: &mut Space, code: u64, text: u32, part: Option<Part>, room: usize, context: *mut c_void) {
    // Without a part its length is 0.
    let (address, length) = part.map_or((0, 0), |part| (part.address, part.length));
    if length <= room as u64 || length > (MOST_PIECES * PIECE_BYTES) as u64 {
        return;
    }
    space.long = Long { code, address, length, text: u64::from(text) };
    // SAFETY: as in `walk`.
    unsafe { bpf_loop(MOST_PIECES as u32, send_piece as *mut c_void, context, 0) };
}

/// Sends one piece of a long text. Returns 1 to end the loop.
#[inline(never)]
extern "C" fn send_piece(index: u32, context: *mut c_void) -> i64 {
    let Some(space) = space_of(context) else { return 1 };
    let offset = u64::from(index) * PIECE_BYTES as u64;
    if offset >= space.long.length {
        return 1;
    }
    let left = space.long.length - offset;
    let length = if left > PIECE_BYTES as u64 { PIECE_BYTES as u64 } else { left };
    let sent = with_room(|record: *mut TextPiece| {
        // SAFETY: the record is reserved and as large as its type; the helper checks the source.
        unsafe {
            (&raw mut (*record).kind).write(kind::TEXT_PIECE);
            (&raw mut (*record).text).write(space.long.text as u32);
            (&raw mut (*record).pid_tid).write(space.pid_tid);
            (&raw mut (*record).code).write(space.long.code);
            (&raw mut (*record).offset).write(offset);
            let bytes = (&raw mut (*record).bytes).cast();
            let from = space.long.address.wrapping_add(offset) as *const c_void;
            let is_read = bpf_probe_read_user(bytes, length as u32, from) == 0;
            (&raw mut (*record).length).write(if is_read { length } else { 0 });
        }
        false
    });
    if !sent {
        space.text_lost = 1;
        return 1;
    }
    0
}

/// Sends the native frames, if there are any.
#[inline(always)]
pub(crate) fn send_native(space: &mut Space) -> bool {
    let depth = space.native_body.depth;
    if depth == 0 {
        return true;
    }
    let depth = if depth > MAX_NATIVE_FRAMES as u32 { MAX_NATIVE_FRAMES as u32 } else { depth };
    space.native_body = NativeBody { kind: kind::NATIVE_BODY, depth, pid_tid: space.pid_tid, stack: space.hash };
    let bytes = size_of::<NativeBody>() as u64 + u64::from(depth) * 8;
    // SAFETY: the frames lie behind the body, as `maps.rs` asserts.
    let record = unsafe { core::slice::from_raw_parts((&raw const space.native_body).cast::<u8>(), bytes as usize) };
    EVENTS.output::<[u8]>(record, wake(false)).is_ok()
}

#[inline(always)]
pub(crate) fn send_body(space: &mut Space) -> bool {
    let count = space.walk.count;
    let frames = if count > MAX_FRAMES as u32 { MAX_FRAMES as u32 } else { count };
    space.body = StackBody {
        kind: kind::STACK_BODY,
        depth: frames,
        pid_tid: space.pid_tid,
        stack: space.hash,
        epoch: space.epoch,
        task: space.task.hash,
        task_at: space.task_at,
        end: space.walk.end,
        relation: space.relation,
        native: space.native_body.depth,
    };
    let bytes = size_of::<StackBody>() as u64 + u64::from(frames) * size_of::<RawFrame>() as u64;
    // SAFETY: the frames lie behind the body, as `maps.rs` asserts.
    let record = unsafe { core::slice::from_raw_parts((&raw const space.body).cast::<u8>(), bytes as usize) };
    // No hurry: what its frames are called is in the buffer before it.
    EVENTS.output::<[u8]>(record, wake(false)).is_ok()
}
