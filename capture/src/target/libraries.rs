//! The copies of the CUDA libraries that a process has mapped.
//!
//! A probe belongs to an inode: placed once, it fires in every process that maps the file. So copies are told apart by what the
//! kernel tells them apart by, and each is opened as the process has it, in its container and even when it was deleted meanwhile:
//! a descriptor stays right where a path does not, and `/proc/self/fd/N` is a path for whoever needs one.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use object::ReadCache;
use rustc_hash::FxHashSet;
use rustix::fs::fstatfs;

use super::Error;
use super::maps::{self, Mapping};
use crate::probes::library::Library;

/// Which library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// libcuda: every call ends there.
    Driver,
    /// libcudart.
    Runtime,
    /// libnccl, which runs collectives.
    Collectives,
    /// A program with libcudart linked into it.
    StaticRuntime,
}

/// A file as the kernel tells files apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId {
    device: u64,
    inode: u64,
    /// In an overlay, as containers have it, one file has another device in each container of the same image, but a probe goes
    /// into the one beneath; two of them would count each call twice. The overlay passes on inode, length and times.
    beneath: Option<[i64; 5]>,
}

impl FileId {
    /// Its inode, as every filesystem that shows the file has it.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// Asks for an open file's.
    pub fn of(file: &File) -> io::Result<FileId> {
        const OVERLAYFS_SUPER_MAGIC: i64 = 0x794c_7630;
        let facts = file.metadata()?;
        let times = [facts.mtime(), facts.mtime_nsec(), facts.ctime(), facts.ctime_nsec()];
        let beneath = [facts.size().cast_signed(), times[0], times[1], times[2], times[3]];
        let is_overlay = fstatfs(file)?.f_type as i64 == OVERLAYFS_SUPER_MAGIC;
        let device = if is_overlay { 0 } else { facts.dev() };
        Ok(FileId { device, inode: facts.ino(), beneath: is_overlay.then_some(beneath) })
    }
}

/// A copy of a library.
#[derive(Debug)]
pub struct LibraryFile {
    /// Which one.
    pub kind: Kind,
    /// Where the process has it, for people: it may be of another container, or gone.
    pub path: PathBuf,
    /// What tells it from other copies.
    pub id: FileId,
    /// The file itself.
    pub file: File,
    /// Where the process has loaded it: what is added to an address of the file. 0 if no process was looked at.
    pub load_address: u64,
}

impl LibraryFile {
    /// A path that leads to this file as long as it is open here.
    pub fn open_path(&self) -> PathBuf {
        open_path(&self.file)
    }
}

/// A path that leads to a file as long as it is open here.
pub fn open_path(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Which library a file is, by its name.
pub fn kind_of(path: &Path) -> Option<Kind> {
    let name = path.file_name()?.to_str()?;
    // Wheels rename a library that they bring along: libcudart-d0da41ae.so.11.0.
    let is = |base: &str| {
        let rest = name.strip_prefix(base)?;
        let (mangled, version) = rest.split_once(".so")?;
        let is_version = version.is_empty() || version.starts_with('.');
        let is_hash = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        (is_version && (mangled.is_empty() || mangled.strip_prefix('-').is_some_and(is_hash))).then_some(())
    };
    let kinds = [("libcuda", Kind::Driver), ("libcudart", Kind::Runtime), ("libnccl", Kind::Collectives)];
    kinds.into_iter().find_map(|(base, kind)| is(base).map(|()| kind))
}

/// Every copy that a process has mapped, each once. A copy that cannot be opened is an error: without it calls would be missed.
pub fn mapped(pid: u32) -> Result<Vec<LibraryFile>, Error> {
    let mappings = maps::of(pid)?;
    let mut found = mapped_libraries(pid, &mappings)?;
    found.extend(static_runtime(pid, &mappings)?);
    Ok(found)
}

/// The same, but for its program, of a process with these mappings.
pub fn mapped_libraries(pid: u32, mappings: &[Mapping]) -> Result<Vec<LibraryFile>, Error> {
    let mut known = FxHashSet::default();
    let mut found = Vec::new();
    for mapping in mappings.iter().filter(|mapping| mapping.is_file() && mapping.executable) {
        let Some(kind) = kind_of(&mapping.path) else { continue };
        let file = open_mapping(pid, mapping)?;
        let id = FileId::of(&file).map_err(|error| Error::of(pid, "map_files", error))?;
        if known.insert(id) {
            found.push(LibraryFile {
                kind,
                path: mapping.path.clone(),
                id,
                file,
                load_address: load_address(mappings, mapping),
            });
        }
    }
    Ok(found)
}

/// The dynamic linker of a process with these mappings; `None` for a program that was linked statically.
pub fn dynamic_linker(pid: u32, mappings: &[Mapping]) -> Result<Option<(FileId, File)>, Error> {
    let is_linker = |mapping: &&Mapping| {
        let name = mapping.path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        // Older systems have it under its library's version: ld-2.31.so.
        mapping.is_file() && mapping.executable && name.starts_with("ld-") && name.contains(".so")
    };
    let Some(mapping) = mappings.iter().find(is_linker) else { return Ok(None) };
    let file = open_mapping(pid, mapping)?;
    let id = FileId::of(&file).map_err(|error| Error::of(pid, "map_files", error))?;
    Ok(Some((id, file)))
}

/// The program of a process with these mappings, if it has the runtime library inside.
pub fn static_runtime(pid: u32, mappings: &[Mapping]) -> Result<Option<LibraryFile>, Error> {
    let of = |error| Error::of(pid, "exe", error);
    let exe = format!("/proc/{pid}/exe");
    // A thread of the kernel has none.
    let Ok(path) = fs::read_link(&exe) else { return Ok(None) };
    let file = File::open(&exe).map_err(of)?;
    if !has_static_runtime(&file) {
        return Ok(None);
    }
    let id = FileId::of(&file).map_err(of)?;
    let inode = file.metadata().map_err(of)?.ino();
    let code = mappings.iter().find(|mapping| mapping.executable && mapping.inode == inode && mapping.path == path);
    let load_address = code.map_or(0, |code| load_address(mappings, code));
    Ok(Some(LibraryFile { kind: Kind::StaticRuntime, path, id, file, load_address }))
}

/// Whether a program has the runtime library inside. One that cannot be understood has not.
pub fn has_static_runtime(program: &File) -> bool {
    let Ok(program) = program.try_clone() else { return false };
    let data = ReadCache::new(program);
    Library::parse(&data).and_then(|library| library.has("cudaLaunchKernel")).unwrap_or(false)
}

/// Where the file of a mapping is loaded: its first mapping in front of this one begins with what stands first in the file.
pub(crate) fn load_address(mappings: &[Mapping], code: &Mapping) -> u64 {
    let of_file =
        |other: &&Mapping| (other.device, other.inode) == (code.device, code.inode) && other.start <= code.start;
    let first = mappings.iter().filter(of_file).rfind(|other| other.file_offset == 0).unwrap_or(code);
    first.start.wrapping_sub(first.file_offset)
}

/// Opens a mapped file: by its mapping, which needs a capability, else by its path in the process's own root.
pub(crate) fn open_mapping(pid: u32, mapping: &Mapping) -> Result<File, Error> {
    let by_mapping = match File::open(format!("/proc/{pid}/map_files/{}", mapping.name())) {
        Ok(file) => return Ok(file),
        Err(error) => error,
    };
    let path = mapping.path.strip_prefix("/").unwrap_or(&mapping.path);
    let by_path = File::open(Path::new(&format!("/proc/{pid}/root")).join(path));
    // The path may lead to another file by now. Some file systems tell `stat` another device than the mapping, but no other inode.
    let same = |file: &File| file.metadata().is_ok_and(|facts| facts.ino() == mapping.inode);
    by_path.ok().filter(same).ok_or_else(|| Error::of(pid, "map_files", by_mapping))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_libraries() {
        for (name, kind) in [
            ("libcuda.so.1", Some(Kind::Driver)),
            ("libcuda.so", Some(Kind::Driver)),
            ("libcuda.so.535.261.03", Some(Kind::Driver)),
            ("libcudart.so.12", Some(Kind::Runtime)),
            ("libcudart-d0da41ae.so.11.0", Some(Kind::Runtime)),
            ("libnccl.so.2", Some(Kind::Collectives)),
            ("libnccl-net.so", None),
            ("libcudadebugger.so.1", None),
            ("libcudart_static.a", None),
            ("libcuda.so.1.bak", Some(Kind::Driver)),
            ("libcuda.sorry", None),
            ("xlibcuda.so", None),
        ] {
            assert_eq!(kind_of(&Path::new("/a").join(name)), kind, "{name}");
        }
        assert_eq!(kind_of(Path::new("/")), None);
    }

    #[test]
    fn a_library_is_loaded_where_its_first_byte_would_be() {
        let mapping = |start: u64, file_offset, inode| Mapping {
            start,
            end: start + 0x1000,
            executable: file_offset > 0,
            file_offset,
            device: (1, 1),
            inode,
            path: PathBuf::new(),
            deleted: false,
        };
        // Mapped twice, as after dlmopen.
        let all =
            [mapping(0x1000, 0, 7), mapping(0x2000, 0x1000, 7), mapping(0x9000, 0, 7), mapping(0xa000, 0x1000, 7)];
        assert_eq!([1, 3].map(|code| load_address(&all, &all[code])), [0x1000, 0x9000]);
        assert_eq!(load_address(&all[1..2], &all[1]), 0x1000);
    }
}
