//! The copies of the CUDA libraries that a program would load, before it runs: where the dynamic loader looks, and where Python
//! wheels keep theirs.
//!
//! A process that is started under `capture run` could load a library and call it before anybody has seen that it is mapped. Probes
//! belong to files, so they are placed in every copy that is likely before the program begins; one that is loaded from elsewhere
//! is found when it is mapped.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use rustc_hash::FxHashSet;

use super::libraries::{FileId, Kind, LibraryFile, has_static_runtime, kind_of};
use crate::python::in_file;

const CACHE: &str = "/etc/ld.so.cache";

/// Searched by the loader when nothing else has a library, and, the last, where CUDA's own installer puts it.
const FOLDERS: [&str; 7] = [
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
    "/usr/local/cuda/lib64",
];

/// The copies that a program may load, each once, the likeliest first. `program` is its file, `variable` its environment.
pub fn candidates(program: &Path, variable: impl Fn(&str) -> Option<OsString>) -> Vec<LibraryFile> {
    let folders = variable_folders(&variable).into_iter();
    let cached = fs::read(CACHE).ok().and_then(|cache| cached_paths(&cache)).unwrap_or_default();
    let mut paths: Vec<PathBuf> = folders.flat_map(|folder| in_folder(&folder)).collect();
    paths.extend(cached);
    paths.extend(FOLDERS.iter().flat_map(|folder| in_folder(Path::new(folder))));
    paths.extend(wheels(program, variable("VIRTUAL_ENV")).iter().flat_map(|folder| in_folder(folder)));

    let mut known = FxHashSet::default();
    let libraries = paths.into_iter().filter_map(|path| Some((kind_of(&path)?, path)));
    let program = Some((Kind::StaticRuntime, program.to_owned()));
    let all = libraries.chain(program).filter_map(|(kind, path)| {
        let file = File::open(&path).ok().filter(|file| file.metadata().is_ok_and(|facts| facts.is_file()))?;
        let id = FileId::of(&file).ok()?;
        let is_one = kind != Kind::StaticRuntime || has_static_runtime(&file);
        (is_one && known.insert(id)).then_some(LibraryFile { kind, path, id, file, load_address: 0 })
    });
    all.collect()
}

/// The files of the Pythons that a program may be or start, the likeliest first: its own, that which its first line names, that which a
/// shell would find; and of each the library that it is linked with.
pub fn pythons(program: &Path, variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let in_path = |name: &Path| find_program(name, variable("PATH"));
    let named = interpreter_of_script(program, in_path);
    let of_shell = ["python3", "python"].iter().filter_map(|name| in_path(Path::new(name)));
    let programs = [program.to_owned()].into_iter().chain(named).chain(of_shell);
    programs.flat_map(|program| linked_python(&program, &variable).into_iter().chain([program])).collect()
}

/// The library of Python that a program is linked with, where the dynamic loader would find it.
fn linked_python(program: &Path, variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let linked = in_file::linked_python(program).ok()??;
    let of_program = program.canonicalize().ok()?.parent()?.to_owned();
    let named = linked.folders.iter().map(|folder| match folder.strip_prefix("$ORIGIN") {
        Some(rest) => of_program.join(rest.trim_start_matches('/')),
        None => PathBuf::from(folder),
    });
    let usual = ["/usr/local/lib"].iter().chain(&FOLDERS).map(PathBuf::from);
    let folders = named.chain(variable_folders(&variable)).chain(usual);
    folders.map(|folder| folder.join(&linked.name)).find(|path| path.is_file())
}

/// The program that the first line of a script names: itself, or by `env`.
fn interpreter_of_script(script: &Path, in_path: impl Fn(&Path) -> Option<PathBuf>) -> Option<PathBuf> {
    let mut head = Vec::new();
    File::open(script).ok()?.take(SCRIPT_HEAD_BYTES).read_to_end(&mut head).ok()?;
    let line = head.strip_prefix(b"#!")?.split(|&byte| byte == b'\n').next()?;
    let words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let mut words = words.map(|word| Path::new(OsStr::from_bytes(word)));
    let first = words.next()?;
    if !first.ends_with("env") {
        return Some(first.to_owned());
    }
    // `-S` in front says that what follows is to be divided, as it is here; then come variables.
    let is_program =
        |word: &&Path| !word.as_os_str().as_bytes().starts_with(b"-") && !word.as_os_str().as_bytes().contains(&b'=');
    in_path(words.find(is_program)?)
}

/// As much of a script's first line as the kernel reads.
const SCRIPT_HEAD_BYTES: u64 = 256;

/// The copies of CUPTI that a process of this program may load: beside its CUDA libraries, where CUDA's installer or PyPI's wheels put
/// them, or where the dynamic loader looks. The library inside looks again, from within the process, and knows better then.
pub fn cupti(program: &Path, variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let toolkits = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(&variable).map(PathBuf::from);
    let toolkits = toolkits.chain([PathBuf::from("/usr/local/cuda")]);
    let mut folders: Vec<PathBuf> =
        toolkits.flat_map(|toolkit| ["extras/CUPTI/lib64", "lib64"].map(|folder| toolkit.join(folder))).collect();
    folders.extend(variable_folders(&variable));
    folders.extend(FOLDERS.iter().map(PathBuf::from));
    folders.extend(wheels(program, variable("VIRTUAL_ENV")));
    let is_cupti = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.as_bytes().starts_with(b"libcupti.so")) && path.is_file()
    };
    folders.iter().flat_map(|folder| entries(folder)).filter(is_cupti).collect()
}

/// The folders in which the dynamic loader looks first.
fn variable_folders(variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let folders = variable("LD_LIBRARY_PATH").unwrap_or_default();
    // An empty one is the working directory.
    let folders = folders.as_bytes().split(|byte| matches!(byte, b':' | b';'));
    folders.map(|folder| PathBuf::from(OsString::from_vec(folder.to_vec()))).collect()
}

/// The file that a shell would run for a command.
pub fn find_program(command: &Path, path: Option<OsString>) -> Option<PathBuf> {
    let can_run = |file: &PathBuf| {
        use std::os::unix::fs::PermissionsExt as _;
        file.metadata().is_ok_and(|facts| facts.is_file() && facts.permissions().mode() & 0o111 != 0)
    };
    if command.as_os_str().as_bytes().contains(&b'/') {
        return Some(command.to_owned()).filter(can_run);
    }
    std::env::split_paths(&path?).map(|folder| folder.join(command)).find(can_run)
}

/// A folder's CUDA libraries, by name.
fn in_folder(folder: &Path) -> Vec<PathBuf> {
    let mut found = entries(folder);
    found.retain(|path| kind_of(path).is_some());
    found
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let mut found: Vec<PathBuf> =
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    found.sort_unstable();
    found
}

/// The folders of a Python's installed packages that have libraries: `site-packages/nvidia/*/lib` and PyTorch's own.
fn wheels(program: &Path, virtual_env: Option<OsString>) -> Vec<PathBuf> {
    let is_python = program.file_name().is_some_and(|name| name.as_bytes().starts_with(b"python"));
    // A virtual environment's interpreter is a link to another one, and packages may be with either.
    let programs = [Some(program.to_owned()), program.canonicalize().ok()].into_iter().flatten().filter(|_| is_python);
    let prefixes = programs.filter_map(|program| Some(program.parent()?.parent()?.to_owned()));
    let mut folders = Vec::new();
    for prefix in virtual_env.map(PathBuf::from).into_iter().chain(prefixes) {
        for version in entries(&prefix.join("lib")) {
            if !version.file_name().is_some_and(|name| name.as_bytes().starts_with(b"python3")) {
                continue;
            }
            for packages in ["site-packages", "dist-packages"].map(|name| version.join(name)) {
                folders.extend(entries(&packages.join("nvidia")).into_iter().map(|package| package.join("lib")));
                folders.push(packages.join("torch/lib"));
            }
        }
    }
    folders
}

/// The CUDA libraries in the loader's cache for this machine; `None` if it is no cache.
///
/// `sysdeps/generic/dl-cache.h` of glibc: behind the magic, as of a header of 48 bytes, the number of entries stands at 20; an entry
/// has 24 bytes, its flags at 0 and the place of its path at 8, counted from the magic. In front of it may be the old format.
fn cached_paths(cache: &[u8]) -> Option<Vec<PathBuf>> {
    const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
    const HEADER_BYTES: usize = 48;
    const ENTRY_BYTES: usize = 24;
    /// A library for x86-64 among several ABIs of one machine.
    const X86_64: u32 = 0x0300;
    let start = cache.windows(MAGIC.len()).position(|window| window == MAGIC)?;
    let cache = &cache[start..];
    let number = |at: usize| Some(u32::from_le_bytes(cache.get(at..at + 4)?.try_into().ok()?));
    let entries = cache.get(HEADER_BYTES..)?.chunks_exact(ENTRY_BYTES).len().min(number(20)? as usize);
    let paths = (0..entries).filter_map(|index| {
        let entry = HEADER_BYTES + index * ENTRY_BYTES;
        let path = cache.get(number(entry + 8)? as usize..)?;
        let path = &path[..path.iter().take(libc::PATH_MAX as usize).position(|byte| *byte == 0)?];
        let path = PathBuf::from(OsString::from_vec(path.to_vec()));
        (number(entry)? & 0xff00 == X86_64 && kind_of(&path).is_some()).then_some(path)
    });
    Some(paths.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cache as `ldconfig` writes it, behind some bytes of the old format.
    fn cache(libraries: &[(&str, u32)]) -> Vec<u8> {
        let mut strings = Vec::new();
        let mut entries = Vec::new();
        for (path, flags) in libraries {
            let at = (48 + 24 * libraries.len() + strings.len()) as u32;
            entries.extend([*flags, at, at, 0, 0, 0].iter().flat_map(|word| word.to_le_bytes()));
            strings.extend(path.bytes().chain([0]));
        }
        let mut header = b"ld.so-1.7.0\0glibc-ld.so.cache1.1".to_vec();
        header.extend((libraries.len() as u32).to_le_bytes());
        header.resize(12 + 48, 0);
        [header, entries, strings].concat()
    }

    #[test]
    fn the_cache_of_the_loader() {
        let bytes = cache(&[("/a/libcuda.so.1", 0x303), ("/b/libcuda.so.1", 0x003), ("/a/libc.so.6", 0x303)]);
        assert_eq!(cached_paths(&bytes), Some(vec![PathBuf::from("/a/libcuda.so.1")]));
        assert_eq!(cached_paths(b"no cache"), None);
        for end in 0..bytes.len() {
            let _ = cached_paths(&bytes[..end]);
        }
    }

    /// The tape of that name was replaced by one of nothing, before it was noticed that the command cannot be run.
    #[test]
    fn a_path_to_what_may_not_be_run_is_no_program() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("program");
        fs::write(&file, "#!/bin/sh").expect("a file");
        for (mode, found) in [(0o644, None), (0o755, Some(file.clone()))] {
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).expect("it is ours");
            assert_eq!(find_program(&file, None), found);
            assert_eq!(find_program(Path::new("program"), Some(folder.path().into())), found);
        }
    }

    #[test]
    fn the_interpreter_of_a_script_is_the_one_that_its_first_line_names() {
        let folder = tempfile::tempdir().expect("a folder");
        let script = folder.path().join("serve");
        let in_path = |name: &Path| Some(Path::new("/in/path").join(name));
        let of = |text: &str| {
            fs::write(&script, text).expect("a script");
            interpreter_of_script(&script, in_path)
        };
        for line in ["#!/venv/bin/python", "#!/venv/bin/python\nimport os\n", "#! /venv/bin/python -I\n"] {
            assert_eq!(of(line), Some("/venv/bin/python".into()), "{line}");
        }
        for line in ["#!/usr/bin/env python3\n", "#!/usr/bin/env -S A=1 python3 -I\n", "#!/bin/env -i python3"] {
            assert_eq!(of(line), Some("/in/path/python3".into()), "{line}");
        }
        for text in ["", "#!", "#!\n/venv/bin/python", "#!/usr/bin/env\n", "\x7fELF", "import os"] {
            assert_eq!(of(text), None, "{text}");
        }
        assert_eq!(interpreter_of_script(Path::new("/nowhere"), in_path), None);
    }

    #[test]
    fn what_a_python_with_wheels_would_load() {
        let folder = tempfile::tempdir().expect("a folder");
        let packages = folder.path().join("lib/python3.12/site-packages/nvidia/cuda_runtime/lib");
        let told = folder.path().join("told");
        for (folder, file) in [(&packages, "libcudart.so.12"), (&told, "libcuda.so.1"), (&told, "libother.so")] {
            fs::create_dir_all(folder).expect("a folder");
            fs::write(folder.join(file), file).expect("a file");
        }
        fs::hard_link(told.join("libcuda.so.1"), told.join("libcuda.so")).expect("a link");
        let program = folder.path().join("bin/python3");
        let variable = |name: &str| (name == "LD_LIBRARY_PATH").then(|| told.clone().into_os_string());
        let found = candidates(&program, variable);
        // The machine may have libraries of its own; and one file with two names is one copy.
        let ours = found.iter().filter(|library| library.path.starts_with(folder.path()));
        let ours: Vec<_> = ours.map(|library| (library.kind, library.path.clone())).collect();
        assert_eq!(ours, [(Kind::Driver, told.join("libcuda.so")), (Kind::Runtime, packages.join("libcudart.so.12"))]);
    }
}
