//! Which kernel a host stub launches, from the code that says so to the runtime library.
//!
//! A program that nvcc has compiled calls its kernels by *host stubs*: at its start it tells the runtime, for each, the stub and
//! the kernel's name (`__cudaRegisterFunction`). Since CUDA 12.9 a stub asks once for a handle (`__cudaGetKernel`), keeps it in a
//! static variable and launches by that. Whoever attaches later has seen none of these calls, but the code that made them is
//! still there: the arguments that matter are constants, set in the instructions in front of the call.
//!
//! So [`find`] reads a file's code for calls of these two functions ([`calls`]), which needs no symbols, and [`live`] looks up
//! in a process what the variables hold. Files are strangers' and of gigabytes: read piece by piece, and all that is kept is
//! bounded.

mod calls;
pub mod live;

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use object::ReadCache;

use crate::probes::Error;
use crate::probes::library::Library;
use calls::{Argument, Callees, Code};

/// What is kept of one file: libtorch has some ten thousand stubs.
const MOST_STUBS: usize = 1 << 18;
const MOST_NAME_BYTES: usize = 64 << 10;
const MOST_NAMES_BYTES: usize = 64 << 20;

/// Tells the runtime of a kernel: binary, host stub, the kernel's name for the host, and for the device.
const REGISTER: &str = "__cudaRegisterFunction";
/// Asks the runtime for a kernel's handle: where to put it, host stub.
const GET: &str = "__cudaGetKernel";

/// Where an address comes from that code takes, as addresses of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// It is this one.
    At(u64),
    /// The loader has put it here: a function that another file may have in its place.
    Slot(u64),
}

/// The host stubs of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stubs {
    /// Stubs, and the mangled names of their kernels.
    pub named: Vec<(Place, Arc<str>)>,
    /// Variables that hold a kernel's handle once its stub was called, by their addresses in the file, and the stub.
    pub handles: Vec<(u64, Place)>,
}

impl Stubs {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.named.is_empty() && self.handles.is_empty()
    }
}

/// The host stubs of a file; none for a file that tells the runtime of no kernels.
///
/// # Errors
///
/// If it is no ELF file for this machine, or broken.
pub fn find(file: &File) -> Result<Stubs, Error> {
    let data = ReadCache::new(file.try_clone().map_err(|_| Error::Broken("the file"))?);
    let library = Library::parse(&data)?;
    let names = [REGISTER, GET];
    let mut callees = Callees::default();
    for (slot, name) in library.slots(&names)? {
        callees.slots.insert(slot, name);
    }
    // A program that has the runtime inside calls it directly. What is not of CUDA is not searched for its symbols.
    if callees.slots.is_empty() && library.has_section(".nvFatBinSegment") {
        for function in library.functions(names)?.found {
            let name = names.iter().position(|name| function.names.iter().any(|found| found == name));
            name.into_iter().for_each(|name| _ = callees.functions.insert(function.address, name));
        }
    }
    let mut stubs = Stubs::default();
    if callees.slots.is_empty() && callees.functions.is_empty() {
        return Ok(stubs);
    }
    let code = Code::new(file, library.code_ranges());
    code.find_trampolines(&mut callees)?;
    let mut name_bytes = 0;
    let is_stub = |place| match place {
        Place::At(address) => library.access(address).is_some_and(|access| access.is_executable),
        Place::Slot(address) => library.access(address).is_some_and(|access| access.is_writable),
    };
    let wanted = [[Argument::Second, Argument::Fourth], [Argument::Second, Argument::First]];
    code.find_calls(&callees, &wanted, &mut |call, [stub, other]| {
        let Place::At(other) = other else { return true };
        if !is_stub(stub) {
            return true;
        }
        if names[call] == REGISTER {
            let Some(name) = name_at(file, &library, other) else { return true };
            name_bytes += name.len();
            stubs.named.push((stub, name.into()));
        } else if library.access(other).is_some_and(|access| access.is_writable) {
            stubs.handles.push((other, stub));
        }
        // What is left is not read.
        stubs.named.len().max(stubs.handles.len()) < MOST_STUBS && name_bytes < MOST_NAMES_BYTES
    })?;
    // A stub that is compiled into its callers is in each of them.
    stubs.named.sort_unstable();
    stubs.named.dedup();
    stubs.handles.sort_unstable();
    stubs.handles.dedup();
    Ok(stubs)
}

/// The kernel's name at an address of the file; `None` where none is.
fn name_at<'data, R: object::ReadRef<'data>>(file: &File, library: &Library<'data, R>, address: u64) -> Option<String> {
    if library.access(address)?.is_writable {
        return None;
    }
    let (mut at, mut behind) = library.place(address)?;
    let mut name = Vec::new();
    let mut piece = [0; 256];
    while name.len() < MOST_NAME_BYTES && behind > 0 {
        let piece = &mut piece[..behind.min(256) as usize];
        file.read_exact_at(piece, at).ok()?;
        if let Some(end) = memchr::memchr(0, piece) {
            name.extend_from_slice(&piece[..end]);
            return String::from_utf8(name).ok().filter(|name| is_kernel_name(name));
        }
        name.extend_from_slice(piece);
        at += piece.len() as u64;
        behind -= piece.len() as u64;
    }
    None
}

/// Whether a text can be a kernel's name: an identifier of PTX, or of C++ as it is mangled.
pub fn is_kernel_name(text: &str) -> bool {
    let is_first = |byte: u8| byte.is_ascii_alphabetic() || matches!(byte, b'_' | b'$' | b'%');
    let is_next = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'.');
    let mut bytes = text.bytes();
    text.len() > 1 && bytes.next().is_some_and(is_first) && bytes.all(is_next)
}

#[cfg(test)]
mod tests;
