//! The stacks of a process, by the hash that the eBPF program gave them.
//!
//! A stack's body comes once, before the first call that has it, and after the code objects in it. Frames are named at once,
//! while their code objects are what they were.

use ktape_ebpf::python::{CodeBody, End, Interpreter, Layout, RawFrame};
use ktape_ebpf::wire::{CodeRecord, NativeBody, Plain as _, StackBody};
use ktape_format::Sink;
use ktape_format::definition::{Frame, Stack, frame_kind, property};
use ktape_format::table::DefinitionKind;
use rustc_hash::FxHashMap;

use super::native::{Builds, Natives, Place};
use crate::python::code::Code;
use crate::python::frames::{Codes, Named};
use crate::python::memory::ProcessMemory;

/// The stacks of a process.
pub(super) struct Stacks {
    pid: u32,
    layout: Option<Layout>,
    by_hash: FxHashMap<u64, Known>,
    /// The latest epoch of a stack, and the one that was the latest at the last [`Stacks::sweep`].
    epoch: u64,
    swept_epoch: u64,
    codes: Codes,
    natives: Natives,
    /// The native frames of the stack whose body comes next, by its hash.
    native: Option<(u64, Vec<u64>)>,
}

/// A stack whose body came.
struct Known {
    id: u32,
    epoch: u64,
}

/// Between the frames of a thread that waits and those of one without Python that it waits for.
const AWAITED: &str = "[awaited thread without Python]";

/// Reads a code object's record; it is too long to be copied about.
pub(super) fn code_record(record: &[u8]) -> Option<&CodeRecord> {
    let is_whole = record.len() >= size_of::<CodeRecord>() && record.as_ptr().cast::<CodeRecord>().is_aligned();
    // SAFETY: long enough and aligned, and any bytes are a value: it is made of integers.
    is_whole.then(|| unsafe { &*record.as_ptr().cast() })
}

impl Stacks {
    pub(super) fn new(pid: u32) -> Stacks {
        Stacks {
            pid,
            layout: None,
            by_hash: FxHashMap::default(),
            epoch: 0,
            swept_epoch: 0,
            codes: Codes::default(),
            natives: Natives::new(pid),
            native: None,
        }
    }

    /// Learns which Python it is. Without that there are no code objects and no Python frames.
    pub(super) fn set_interpreter(&mut self, interpreter: &Interpreter) {
        self.layout = Some(interpreter.layout);
        self.natives.set_interpreter(interpreter.runtime);
    }

    /// Learns that the process has mapped or unmapped a library.
    pub(super) fn libraries_changed(&mut self) {
        self.natives.read_mappings();
    }

    /// Whether it is known which Python it is.
    pub(super) fn has_layout(&self) -> bool {
        self.layout.is_some()
    }

    /// The id of a stack; `None` for one whose body did not come.
    pub(super) fn id(&self, hash: u64) -> Option<u32> {
        self.by_hash.get(&hash).map(|known| known.id)
    }

    /// Forgets the stacks that were of an earlier epoch at the last sweep already: no call has them any more, if sweeps are so
    /// far apart that a call that was on its way at the one has come before the other.
    pub(super) fn sweep(&mut self) {
        if self.epoch != self.swept_epoch {
            self.by_hash.retain(|_, known| known.epoch >= self.swept_epoch);
            self.swept_epoch = self.epoch;
        }
    }

    /// Takes a code object. What did not fit into the record is read from the process, if that is still there.
    pub(super) fn add_code(&mut self, body: &CodeBody) {
        let Some(layout) = &self.layout else { return };
        let memory = ProcessMemory::open(self.pid).ok();
        self.codes.insert(body.code, Code::new(body, layout, memory.as_ref()));
    }

    /// Takes the native frames of a stack whose body comes next.
    pub(super) fn add_native(&mut self, body: &NativeBody, addresses: &[u8]) {
        let words = addresses.as_chunks().0.iter().take(body.depth as usize);
        self.native = Some((body.stack, words.map(|&word| u64::from_ne_bytes(word)).collect()));
    }

    /// Takes a stack's body. Returns how many of its frames have no name.
    pub(super) fn add<S: Sink>(
        &mut self,
        body: &StackBody,
        frames: &[u8],
        builds: &mut Builds,
        sink: &mut S,
    ) -> Result<u64, S::Error> {
        let frames = frames.chunks_exact(size_of::<RawFrame>()).take(body.depth as usize);
        let mut unknown = 0;
        let mut stack = Growing { id: 0, sink };
        if let Some(why) = incomplete(body.end) {
            stack.mark(why)?;
        }
        for frame in frames.rev().filter_map(RawFrame::read) {
            match self.codes.name(&frame) {
                Named::Hidden => {}
                Named::Shown(shown) => {
                    let first_line = shown.code.first_line.max(0) as u32;
                    let line = shown.line.unwrap_or(0);
                    stack.push(frame_kind::PYTHON, &shown.code.name, &shown.code.file, first_line, line)?;
                }
                Named::Unknown => {
                    unknown += 1;
                    stack.push(frame_kind::PYTHON, &format!("unknown code @{:#x}", frame.code), "", 0, 0)?;
                }
            }
        }
        if body.awaited_by != 0 {
            stack.mark(AWAITED)?;
        }
        if let Some((_, addresses)) = self.native.take().filter(|(hash, _)| *hash == body.stack) {
            // Below the thread's own Python frames stands what the innermost of them called.
            let is_below_python = body.depth > 0 && body.awaited_by == 0;
            let native = self.natives.frames(&addresses, is_below_python);
            if let Some(why) = incomplete(native.end as u32) {
                stack.mark(why)?;
            }
            for place in native.places.iter().rev() {
                stack.push_native(place, builds)?;
            }
        }
        self.epoch = self.epoch.max(body.epoch);
        self.by_hash.insert(body.stack, Known { id: stack.id, epoch: body.epoch });
        Ok(unknown)
    }
}

/// A stack that is put together from the root on.
struct Growing<'sink, S> {
    id: u32,
    sink: &'sink mut S,
}

impl<S: Sink> Growing<'_, S> {
    fn push(&mut self, kind: u8, name: &str, file: &str, first_line: u32, line: u32) -> Result<(), S::Error> {
        let name = self.sink.string(name)?;
        let file = if file.is_empty() { 0 } else { self.sink.string(file)? };
        let frame = self.sink.define(Frame { kind, name, file, line: first_line })?;
        self.id = self.sink.define(Stack { parent: self.id, frame, line })?;
        Ok(())
    }

    /// A native frame, and once for each file which build of it it is.
    fn push_native(&mut self, place: &Place, builds: &mut Builds) -> Result<(), S::Error> {
        let Place { name, module } = place;
        let Some(module) = module else { return self.push(frame_kind::NATIVE, name, "", 0, 0) };
        let (file, is_new) = builds.file(module);
        if let Some(build_id) = module.build_id.as_deref().filter(|_| is_new) {
            let file = self.sink.string(&file)?;
            self.sink.property(DefinitionKind::String as u16, file, property::BUILD_ID, build_id)?;
        }
        self.push(frame_kind::NATIVE, name, &file, 0, 0)
    }

    fn mark(&mut self, what: &str) -> Result<(), S::Error> {
        self.push(frame_kind::UNKNOWN, what, "", 0, 0)
    }
}

/// What stands at the root of a stack, or of its native frames, that is not whole.
fn incomplete(end: u32) -> Option<&'static str> {
    match end {
        end if end == End::Outermost as u32 => None,
        end if end == End::Cut as u32 => Some("[further frames were not recorded]"),
        _ => Some("[further frames could not be read]"),
    }
}
