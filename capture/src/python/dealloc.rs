//! Where an interpreter frees its code objects.
//!
//! A code object is known by its address, and the address of one that was freed goes to another. `code_dealloc` has no symbol in
//! most builds, but the type of code objects has, and points to it. A probe there costs nothing but where code is freed, which a
//! look at every code object of every stack would not.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use ktape_ebpf::python::Memory as _;

use super::find::{Python, code_type};
use super::memory::ProcessMemory;
use crate::probes::{self, site};
use crate::target::libraries::{FileId, open_mapping};
use crate::target::{Error, maps};

/// A place for a probe at the beginning of `code_dealloc`.
#[derive(Debug)]
pub struct CodeDealloc {
    /// The file that it is in.
    pub file: File,
    /// What tells that from others.
    pub id: FileId,
    /// Where in it.
    pub file_offset: u64,
}

/// Bytes of code that are looked at for the place.
const CODE_BYTES: usize = 256;

/// Finds it. `None` where the type has no symbol and no code runs yet, or where it does not point to code: the dynamic linker has
/// yet to fill it in.
pub fn find(pid: u32, python: &Python, kernel: probes::Kernel) -> Result<Option<CodeDealloc>, Error> {
    let memory = ProcessMemory::open(pid).map_err(|error| Error::of(pid, "mem", error))?;
    let code_type = python.code_type.or_else(|| code_type(&memory, &python.interpreter));
    let Some(code_type) = code_type else { return Ok(None) };
    let slot = code_type.wrapping_add(python.interpreter.layout.dealloc_offset());
    let Some(address) = memory.word(slot) else { return Ok(None) };
    let mappings = maps::of(pid)?;
    let is_there = |mapping: &&maps::Mapping| (mapping.start..mapping.end).contains(&address) && mapping.executable;
    let Some(mapping) = mappings.iter().find(is_there).filter(|mapping| mapping.is_file()) else { return Ok(None) };
    let file = open_mapping(pid, mapping)?;
    let of = |error| Error::of(pid, "map_files", error);
    let function = address - mapping.start + mapping.file_offset;
    let mut code = [0; CODE_BYTES];
    let bytes = file.read_at(&mut code, function).map_err(of)?;
    let Ok(place) = site::choose(&code[..bytes], function, kernel) else { return Ok(None) };
    Ok(Some(CodeDealloc { id: FileId::of(&file).map_err(of)?, file, file_offset: function + place.offset }))
}
