//! From the frames of a walk to what Python would show: `sys._getframe` and its `f_back`s.

use ktape_ebpf::python::{CodeBody, End, Layout, MAX_STEPS, Memory, RawFrame, Step, Walk, copy_code, first_frame};
use rustc_hash::FxHashMap;

use super::code::{Code, LongTexts};

/// Walks a thread's frames from user space.
pub fn walk<M: Memory>(memory: &M, layout: &Layout, thread_state: u64) -> Box<Walk> {
    let mut walk = Box::<Walk>::default();
    let Some(frame) = first_frame(memory, layout, thread_state) else {
        walk.end = End::Unreadable as u32;
        return walk;
    };
    walk.begin(frame);
    for _ in 0..MAX_STEPS {
        if let Step::End(_) = walk.advance(memory, layout) {
            break;
        }
    }
    walk
}

/// The code objects of one process, by their address.
#[derive(Debug, Default)]
pub struct Codes(FxHashMap<u64, Code>);

/// A frame as it is told to people.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'codes> {
    /// Its code: name and file.
    pub code: &'codes Code,
    /// The line it is at.
    pub line: Option<u32>,
}

/// What a [`RawFrame`] is.
#[derive(Clone, Copy, Debug)]
pub enum Named<'codes> {
    /// A frame that Python shows.
    Shown(Frame<'codes>),
    /// A frame that is still being made, which Python hides.
    Hidden,
    /// Its code object is unknown: none was put in.
    Unknown,
}

impl Codes {
    /// Puts a code object in, in place of the one that had its address before.
    pub fn insert(&mut self, address: u64, code: Code) {
        self.0.insert(address, code);
    }

    /// Forgets those whose address does not satisfy this.
    pub fn retain(&mut self, mut keep: impl FnMut(u64) -> bool) {
        self.0.retain(|&address, _| keep(address));
    }

    /// Whether there is one at this address.
    pub fn contains(&self, address: u64) -> bool {
        self.0.contains_key(&address)
    }

    /// Reads the code objects of these frames that aren't known yet from the process.
    pub fn read<M: Memory>(&mut self, memory: &M, layout: &Layout, frames: &[RawFrame]) {
        let mut body = Box::new(CodeBody::default());
        for frame in frames {
            if !self.contains(frame.code) && copy_code(memory, layout, frame.code, &mut body) {
                self.insert(frame.code, Code::new(&body, &LongTexts::default(), layout, Some(memory)));
            }
        }
    }

    /// What this frame is.
    pub fn name(&self, frame: &RawFrame) -> Named<'_> {
        match self.0.get(&frame.code) {
            None => Named::Unknown,
            Some(code) if code.hides(frame) => Named::Hidden,
            Some(code) => Named::Shown(Frame { code, line: code.line(frame.instruction) }),
        }
    }
}
