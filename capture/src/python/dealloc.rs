//! Where an interpreter frees its code objects.
//!
//! A code object is known by its address, and the address of one that was freed goes to another. `code_dealloc` has no symbol in
//! most builds, but the type of code objects has, and points to it. A probe there costs nothing but where code is freed, which a
//! look at every code object of every stack would not.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use ktape_ebpf::python::{ABSENT, Interpreter, KEY_BY_LIST, Memory as _};

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
    /// Its address.
    pub address: u64,
    /// Whether the file is that of the interpreter, and not of another that gave the type.
    pub is_interpreters: bool,
}

impl CodeDealloc {
    /// The interpreter of whichever process runs the same file, if `runtime` is counted from this place; `None` where that can't be.
    pub fn interpreter(&self, python: &Python) -> Option<Interpreter> {
        let Python { interpreter, .. } = python;
        let mut of_any = Interpreter { runtime: interpreter.runtime.wrapping_sub(self.address), ..*interpreter };
        if of_any.layout.tss_key == ABSENT {
            // Where a library has its thread-local variables is another place in each process.
            (of_any.tss_key, of_any.tls_module, of_any.tls_offset) = (KEY_BY_LIST, 0, 0);
        }
        self.is_interpreters.then_some(of_any)
    }

    /// A place for a probe in the function that is at this address, and here in the file. `None` if there is none.
    pub(super) fn at(file: File, function: u64, address: u64, kernel: probes::Kernel) -> io::Result<Option<Self>> {
        let mut code = [0; CODE_BYTES];
        let bytes = file.read_at(&mut code, function)?;
        let Ok(place) = site::choose(&code[..bytes], function, kernel) else { return Ok(None) };
        let (file_offset, address) = (function + place.offset, address + place.offset);
        Ok(Some(Self { id: FileId::of(&file)?, file, file_offset, address, is_interpreters: true }))
    }
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
    let is_interpreters = mapping.path == python.file;
    CodeDealloc::at(file, address - mapping.start + mapping.file_offset, address, kernel)
        .map(|found| found.map(|found| CodeDealloc { is_interpreters, ..found }))
        .map_err(|error| Error::of(pid, "map_files", error))
}
