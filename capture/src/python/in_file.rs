//! What the file of a Python tells of the interpreter that each of its processes will have, before any of them runs.
//!
//! Of an interpreter that has just begun the walker must know where `_PyRuntime` is and how its version lays memory out. Both are in
//! the file, and so is `code_dealloc`, which every Python runs while it begins. A probe there, put in advance, knows the
//! interpreter of a process before that has run a line of a script, however late the recorder gets to look at it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use ktape_ebpf::python::Memory;
use object::read::elf::ElfFile64;
use object::{Endianness, Object as _, ObjectSegment as _, ReadCache, RelocationTarget, elf};

use super::dealloc::CodeDealloc;
use super::files::MappedFile;
use super::find::{self, Python};
use crate::probes;

type Elf<'data> = ElfFile64<'data, Endianness, &'data ReadCache<File>>;

/// What a file tells.
#[derive(Debug)]
pub struct InFile {
    /// The interpreter, as if the file were loaded where it says.
    pub python: Python,
    /// Where `code_dealloc` is in the file, and its address; `None` if it does not tell.
    dealloc: Option<(u64, u64)>,
    file: File,
}

impl InFile {
    /// The place of the probe. `None` if there is none.
    ///
    /// # Errors
    ///
    /// If the file can't be read.
    pub fn dealloc(&self, kernel: probes::Kernel) -> io::Result<Option<CodeDealloc>> {
        let Some((function, address)) = self.dealloc else { return Ok(None) };
        CodeDealloc::at(self.file.try_clone()?, function, address, kernel)
    }
}

/// Reads a file. `None` if it has no CPython that is supported and has dynamic symbols; then it is known when a process of it
/// runs.
///
/// # Errors
///
/// If it can't be read.
pub fn read(path: &Path) -> io::Result<Option<InFile>> {
    let file = open(path)?;
    let cache = ReadCache::new(file.try_clone()?);
    let Ok(elf) = Elf::parse(&cache) else { return Ok(None) };
    let image = Image::of(&elf, &file);
    let Some(begin) = image.segments.iter().map(|segment| segment.address).min() else { return Ok(None) };
    let mapped = MappedFile { path: path.to_owned(), begin, end: begin, offset: 0 };
    let Some(python) = find::in_image(&image, &mapped, || file.try_clone()) else { return Ok(None) };
    let slot = python.code_type.map(|code_type| code_type.wrapping_add(python.interpreter.layout.dealloc_offset()));
    let function = slot.and_then(|slot| relocated(&elf, slot).or_else(|| image.word(slot)));
    let dealloc = function.and_then(|function| Some((image.place(function, 1)?, function)));
    Ok(Some(InFile { python, dealloc, file }))
}

/// A library of Python that a program is linked with.
#[derive(Debug, PartialEq, Eq)]
pub struct Linked {
    /// Its name.
    pub name: String,
    /// Folders in which the program says that it may be; `$ORIGIN` is the program's own.
    pub folders: Vec<String>,
}

/// Reads which library of Python a program is linked with.
///
/// # Errors
///
/// If the program can't be read.
pub fn linked_python(program: &Path) -> io::Result<Option<Linked>> {
    let cache = ReadCache::new(open(program)?);
    let Ok(elf) = Elf::parse(&cache) else { return Ok(None) };
    let Ok(table) = elf.elf_dynamic_table() else { return Ok(None) };
    let texts = |tag| {
        let of_tag = table.iter().filter(move |entry| entry.tag == tag);
        of_tag.filter_map(|entry| Some(String::from_utf8_lossy(table.string(entry).ok()?).into_owned()))
    };
    let Some(name) = texts(elf::DT_NEEDED).find(|name| name.starts_with("libpython")) else { return Ok(None) };
    let folders: Vec<String> = texts(elf::DT_RUNPATH).chain(texts(elf::DT_RPATH)).collect();
    Ok(Some(Linked { name, folders: folders.iter().flat_map(|all| all.split(':')).map(str::to_owned).collect() }))
}

/// Opens a file, and nothing that would wait or never end.
fn open(path: &Path) -> io::Result<File> {
    if !path.metadata()?.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    File::open(path)
}

/// A file as a process has it that loads it at the addresses in it, but for what the dynamic linker writes.
struct Image<'f> {
    file: &'f File,
    segments: Vec<Segment>,
}

struct Segment {
    address: u64,
    file_offset: u64,
    bytes: u64,
}

impl<'f> Image<'f> {
    fn of(elf: &Elf<'_>, file: &'f File) -> Self {
        let segments = elf.segments().map(|segment| {
            let (file_offset, bytes) = segment.file_range();
            Segment { address: segment.address(), file_offset, bytes }
        });
        Self { file, segments: segments.collect() }
    }

    /// Where in the file so many bytes are.
    fn place(&self, address: u64, bytes: u64) -> Option<u64> {
        self.segments.iter().find_map(|segment| {
            let offset = address.checked_sub(segment.address)?;
            (offset.checked_add(bytes)? <= segment.bytes).then(|| segment.file_offset.checked_add(offset)).flatten()
        })
    }
}

impl Memory for Image<'_> {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        self.place(address, into.len() as u64).is_some_and(|place| self.file.read_exact_at(into, place).is_ok())
    }
}

/// What the dynamic linker writes at this address of a file that is loaded where it says, if that is an address in the file.
fn relocated(elf: &Elf<'_>, address: u64) -> Option<u64> {
    let (_, relocation) = elf.dynamic_relocations()?.find(|(at, _)| *at == address)?;
    matches!(relocation.target(), RelocationTarget::Absolute).then_some(relocation.addend() as u64)
}
