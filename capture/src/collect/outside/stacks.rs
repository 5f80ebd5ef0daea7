//! The stacks of a process, by the hash that the eBPF program gave them.
//!
//! A stack's body comes once, before the first call that has it, and after the code objects in it. Frames are named at once,
//! while their code objects are what they were.

use ktape_ebpf::python::{CodeBody, End, Layout, RawFrame};
use ktape_ebpf::wire::{CodeRecord, Plain as _, StackBody};
use ktape_format::Sink;
use ktape_format::definition::{Frame, Stack, frame_kind};
use rustc_hash::FxHashMap;

use crate::python::code::Code;
use crate::python::frames::{Codes, Named};
use crate::python::memory::ProcessMemory;

/// The stacks of a process.
pub(super) struct Stacks {
    pid: u32,
    layout: Option<Layout>,
    by_hash: FxHashMap<u64, u32>,
    codes: Codes,
}

/// Reads a code object's record; it is too long to be copied about.
pub(super) fn code_record(record: &[u8]) -> Option<&CodeRecord> {
    let is_whole = record.len() >= size_of::<CodeRecord>() && record.as_ptr().cast::<CodeRecord>().is_aligned();
    // SAFETY: long enough and aligned, and any bytes are a value: it is made of integers.
    is_whole.then(|| unsafe { &*record.as_ptr().cast() })
}

impl Stacks {
    pub(super) fn new(pid: u32) -> Stacks {
        Stacks { pid, layout: None, by_hash: FxHashMap::default(), codes: Codes::default() }
    }

    /// Learns which Python it is. Without that there are no code objects and no stacks.
    pub(super) fn set_layout(&mut self, layout: Layout) {
        self.layout = Some(layout);
    }

    /// Whether it is known which Python it is.
    pub(super) fn has_layout(&self) -> bool {
        self.layout.is_some()
    }

    /// The id of a stack; `None` for one whose body did not come.
    pub(super) fn id(&self, hash: u64) -> Option<u32> {
        self.by_hash.get(&hash).copied()
    }

    /// Takes a code object. What did not fit into the record is read from the process, if that is still there.
    pub(super) fn add_code(&mut self, body: &CodeBody) {
        let Some(layout) = &self.layout else { return };
        let memory = ProcessMemory::open(self.pid).ok();
        self.codes.insert(body.code, Code::new(body, layout, memory.as_ref()));
    }

    /// Takes a stack's body. Returns how many of its frames have no name.
    pub(super) fn add<S: Sink>(&mut self, body: &StackBody, frames: &[u8], sink: &mut S) -> Result<u64, S::Error> {
        let frames = frames.chunks_exact(size_of::<RawFrame>()).take(body.depth as usize);
        let mut unknown = 0;
        let mut id = 0;
        let push = |frame: Frame, line: u32, id: u32, sink: &mut S| {
            let frame = sink.define(frame)?;
            sink.define(Stack { parent: id, frame, line })
        };
        if let Some(why) = incomplete(body.end) {
            let name = sink.string(why)?;
            id = push(Frame { kind: frame_kind::UNKNOWN, name, file: 0, line: 0 }, 0, id, sink)?;
        }
        for frame in frames.rev().filter_map(RawFrame::read) {
            match self.codes.name(&frame) {
                Named::Hidden => {}
                Named::Shown(shown) => {
                    let row = Frame {
                        kind: frame_kind::PYTHON,
                        name: sink.string(&shown.code.name)?,
                        file: sink.string(&shown.code.file)?,
                        line: shown.code.first_line.max(0) as u32,
                    };
                    id = push(row, shown.line.unwrap_or(0), id, sink)?;
                }
                Named::Unknown => {
                    unknown += 1;
                    let name = sink.string(&format!("unknown code @{:#x}", frame.code))?;
                    id = push(Frame { kind: frame_kind::PYTHON, name, file: 0, line: 0 }, 0, id, sink)?;
                }
            }
        }
        self.by_hash.insert(body.stack, id);
        Ok(unknown)
    }
}

/// What stands at the root of a stack that is not whole.
fn incomplete(end: u64) -> Option<&'static str> {
    match end {
        end if end == End::Outermost as u64 => None,
        end if end == End::Cut as u64 => Some("[further frames were not recorded]"),
        _ => Some("[further frames could not be read]"),
    }
}
