//! The files of this machine that are of a certain build.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use object::ReadCache;
use rustc_hash::FxHashMap;

use super::Symbols;
use super::look_up::Elf;

/// Where distributions have separate debug files.
const SYSTEM: &str = "/usr/lib/debug";
/// A folder with more files is not looked through: what is in it is found by its usual names only.
const MOST_FILES: usize = 4096;

/// A file that frames are in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Module<'a> {
    /// Where it was.
    path: &'a str,
    /// Its build id as hexadecimal.
    build_id: &'a str,
}

impl<'a> Module<'a> {
    /// `None` if that is no build id. It is part of paths that are opened, so a tape can't be let say what it likes.
    pub fn new(path: &'a str, build_id: &'a str) -> Option<Module<'a>> {
        let is_one = build_id.len() >= 4
            && build_id.len().is_multiple_of(2)
            && build_id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        // Where one path meant several builds, all but the first have theirs behind it.
        let path = path.split(" (build id ").next().unwrap_or_default();
        is_one.then_some(Module { path, build_id })
    }
}

/// Where files are looked for.
#[derive(Debug)]
pub struct Folders {
    folders: Vec<PathBuf>,
    /// What is in the folders that were named, by build id.
    known: FxHashMap<String, Vec<PathBuf>>,
    /// What `debuginfod` has fetched earlier.
    fetched: Option<PathBuf>,
}

impl Folders {
    /// Looks through the folders that were named.
    pub fn new(symbols: &Symbols) -> Folders {
        let mut known: FxHashMap<String, Vec<PathBuf>> = FxHashMap::default();
        for folder in &symbols.folders {
            let mut files: Vec<PathBuf> = fs::read_dir(folder)
                .into_iter()
                .flatten()
                .flatten()
                .map(|entry| entry.path())
                .take(MOST_FILES)
                .collect();
            files.sort_unstable();
            for file in files {
                if let Some(build_id) = open(&file).and_then(|file| Some(Elf::parse(&file)?.build_id()?.to_owned())) {
                    known.entry(build_id).or_default().push(file);
                }
            }
        }
        let fetched = std::env::var_os("DEBUGINFOD_CACHE_PATH").filter(|path| !path.is_empty()).map(PathBuf::from);
        Folders { folders: symbols.folders.clone(), known, fetched }
    }

    /// The files of this build that are here: the module itself, and its debug files.
    pub fn files(&self, module: &Module<'_>) -> Vec<ReadCache<File>> {
        let mut paths = vec![PathBuf::from(module.path)];
        paths.extend(self.known.get(module.build_id).into_iter().flatten().cloned());
        let (first, rest) = module.build_id.split_at(2);
        for folder in self.folders.iter().map(PathBuf::as_path).chain([Path::new(SYSTEM)]) {
            paths.push(folder.join(format!(".build-id/{first}/{rest}.debug")));
            paths.push(folder.join(format!(".build-id/{first}/{rest}")));
            if let Some(name) = Path::new(module.path).file_name() {
                paths.push(folder.join(name));
            }
        }
        if let Some(fetched) = &self.fetched {
            paths.extend(["debuginfo", "executable"].map(|file| fetched.join(module.build_id).join(file)));
        }
        let mut files = Vec::new();
        let mut seen = Vec::new();
        for path in paths {
            let Ok(path) = path.canonicalize() else { continue };
            if seen.contains(&path) {
                continue;
            }
            let is_it =
                |file: &ReadCache<File>| Elf::parse(file).is_some_and(|elf| elf.build_id() == Some(module.build_id));
            files.extend(open(&path).filter(is_it));
            seen.push(path);
        }
        files
    }
}

/// Opens a file to be read in pieces: libraries have gigabytes, of which little is wanted. Not mapped, as whoever cuts a mapped
/// file short ends its reader. What is no regular file, a pipe that waits for ever, is none.
fn open(path: &Path) -> Option<ReadCache<File>> {
    fs::metadata(path).ok().filter(|facts| facts.is_file())?;
    File::open(path).ok().map(ReadCache::new)
}
