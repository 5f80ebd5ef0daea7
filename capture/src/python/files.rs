//! The files that a process has mapped, and which of them an interpreter is looked for in first.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use rustc_hash::FxHashSet;

/// A file that a process has mapped: where its beginning is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MappedFile {
    /// As the process sees it; with ` (deleted)` behind where it is gone from there.
    pub(super) path: PathBuf,
    pub(super) begin: u64,
    pub(super) end: u64,
    /// Into the file.
    pub(super) offset: u64,
}

impl MappedFile {
    /// The last part of its path; nothing if that is no UTF-8.
    pub(super) fn name(&self) -> &str {
        self.path.file_name().and_then(|name| name.to_str()).unwrap_or("")
    }

    /// Opens it, whatever has become of its path, in whichever mount namespace.
    pub(super) fn open(&self, pid: u32) -> io::Result<File> {
        // The mapping itself leads to the file; it wants a capability that the path doesn't.
        File::open(format!("/proc/{pid}/map_files/{:x}-{:x}", self.begin, self.end)).or_else(|_| {
            let inside = self.path.strip_prefix("/").unwrap_or(&self.path);
            File::open(Path::new(&format!("/proc/{pid}/root")).join(inside))
        })
    }
}

/// What a process has mapped, the likeliest to hold an interpreter first.
pub(super) struct Candidates {
    /// All of them.
    pub(super) files: Vec<MappedFile>,
    /// How many of them, from the first, are named for Python or are the executable.
    pub(super) likely: usize,
}

impl Candidates {
    /// Reads the process's mappings.
    pub(super) fn of(pid: u32) -> io::Result<Self> {
        // A path that is no UTF-8 is still a file that has an address.
        let maps = String::from_utf8_lossy(&std::fs::read(format!("/proc/{pid}/maps"))?).into_owned();
        let executable = std::fs::read_link(format!("/proc/{pid}/exe"))?;
        Ok(Self::order(mapped_files(&maps), &executable))
    }

    fn order(mut files: Vec<MappedFile>, executable: &Path) -> Self {
        // A library comes before the executable that loads it, which may be linked with the interpreter's symbols all the same.
        let rank = |file: &MappedFile| match file.name() {
            name if name.starts_with("libpython") || name.starts_with("libpypy") => 0,
            // Started by the dynamic linker, an interpreter is a file like any other.
            name if file.path == executable || name.starts_with("python") => 1,
            _ => 2,
        };
        files.sort_by_key(rank);
        let likely = files.partition_point(|file| rank(file) < 2);
        Self { files, likely }
    }
}

/// The first mapping of each file, that of its beginning where there is one. They come in the order of addresses.
fn mapped_files(maps: &str) -> Vec<MappedFile> {
    let mut files: Vec<MappedFile> = Vec::new();
    let mut seen = FxHashSet::default();
    let all = || maps.lines().filter_map(mapped_file);
    for file in all().filter(|file| file.offset == 0).chain(all()) {
        if seen.insert(file.path.clone()) {
            files.push(file);
        }
    }
    files
}

/// One line: `begin-end permissions offset device inode   path`.
fn mapped_file(line: &str) -> Option<MappedFile> {
    let path = &line[line.find('/')?..];
    let mut fields = line.split_ascii_whitespace();
    let (begin, end) = fields.next()?.split_once('-')?;
    let offset = fields.nth(1)?;
    let number = |digits| u64::from_str_radix(digits, 16).ok();
    Some(MappedFile { path: path.into(), begin: number(begin)?, end: number(end)?, offset: number(offset)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
55d0a000-55d0b000 r--p 00000000 fe:01 42      /opt/my programs/serve
55d0b000-55d0d000 r-xp 00001000 fe:01 42      /opt/my programs/serve
7f000000-7f001000 rw-p 00000000 00:00 0
7f100000-7f101000 r-xp 00000000 00:00 0       [vdso]
7f1f0000-7f200000 r--p 00004000 fe:01 44      /lib/plugin.so
7f200000-7f300000 r--p 00002000 fe:01 43      /lib/libpython3.11.so.1.0 (deleted)
7f300000-7f301000 r--p 00000000 fe:01 44      /lib/plugin.so
7f400000-7f401000 r--p 00000000 fe:01 45      /usr/bin/python3.12
";

    #[test]
    fn a_mapped_file_is_where_it_begins() {
        let files = mapped_files(MAPS);
        let find = |name: &str| files.iter().find(|file| file.name().starts_with(name)).unwrap();
        assert_eq!(files.len(), 4);
        let executable = Path::new("/opt/my programs/serve").to_owned();
        assert_eq!(find("serve"), &MappedFile { path: executable, begin: 0x55d0_a000, end: 0x55d0_b000, offset: 0 });
        assert_eq!((find("libpython").begin, find("libpython").offset), (0x7f20_0000, 0x2000));
        assert_eq!((find("plugin").begin, find("plugin").offset), (0x7f30_0000, 0));
    }

    #[test]
    fn what_is_named_for_python_comes_first_and_the_rest_after_the_executable() {
        let candidates = Candidates::order(mapped_files(MAPS), Path::new("/opt/my programs/serve"));
        let names: Vec<_> = candidates.files.iter().map(MappedFile::name).collect();
        assert_eq!(names, ["libpython3.11.so.1.0 (deleted)", "serve", "python3.12", "plugin.so"]);
        assert_eq!(candidates.likely, 3);
    }
}
