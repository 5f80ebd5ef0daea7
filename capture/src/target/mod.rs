//! Processes and their libraries.

use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use crate::collect::outside::Identity;

/// A library that a process has mapped.
#[derive(Clone, Debug)]
pub struct MappedLibrary {
    /// Device and inode.
    pub id: (u64, u64),
    /// Where this process can open it.
    pub path: PathBuf,
}

/// Who a process is.
pub fn identity(pid: u32) -> Identity {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
    Identity {
        pid,
        start_ns: 0,
        name: read("comm").trim_end().to_owned(),
        command: read("cmdline").replace('\0', " ").trim_end().to_owned(),
    }
}

/// The copies of libcuda and libcudart that a process has mapped.
pub fn cuda_libraries(pid: u32) -> Vec<MappedLibrary> {
    mapped(pid, |name| name.starts_with("libcuda.so") || name.starts_with("libcudart"))
}

/// The dynamic linker of a process.
pub fn dynamic_linker(pid: u32) -> Vec<MappedLibrary> {
    mapped(pid, |name| name.starts_with("ld-linux"))
}

/// The copies that a program about to be started would find.
pub fn candidates() -> Vec<MappedLibrary> {
    let mut all = Vec::new();
    for directory in std::env::split_paths(&std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default()) {
        for name in ["libcuda.so.1", "libcudart.so"] {
            let path = directory.join(name);
            if let Ok(data) = std::fs::metadata(&path) {
                all.push(MappedLibrary { id: (data.dev(), data.ino()), path });
            }
        }
    }
    all
}

fn mapped(pid: u32, is_wanted: impl Fn(&str) -> bool) -> Vec<MappedLibrary> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let mut all: Vec<MappedLibrary> = Vec::new();
    for path in maps.lines().filter_map(|line| line.split_whitespace().nth(5)) {
        let name = path.rsplit('/').next().unwrap_or_default();
        if !is_wanted(name) {
            continue;
        }
        let path = PathBuf::from(format!("/proc/{pid}/root{path}"));
        if let Ok(data) = std::fs::metadata(&path) {
            let id = (data.dev(), data.ino());
            if all.iter().all(|known| known.id != id) {
                all.push(MappedLibrary { id, path });
            }
        }
    }
    all
}
