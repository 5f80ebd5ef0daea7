//! The CPython of a process: where it is, which it is, and whether its memory is laid out as the table says.
//!
//! `_PyRuntime` is found by its symbol, in `libpython` or in the executable itself. A layout is taken from the version, and
//! builds differ (distributions patch, debug builds shift fields), so nothing is believed before a walk over the process's own
//! threads has come out right: thread states where pthread keeps them, frames that end, names that are names.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ktape_ebpf::python::{
    ABSENT, End, GLIBC_FIRST_SLOTS, GLIBC_SLOT_TABLES, Interpreter, KEY_UNREAD, LAYOUTS, Layout, Memory, thread_state,
};
use object::{Object as _, ObjectSegment as _, ObjectSymbol as _, ReadCache};
use rustc_hash::FxHashSet;

use super::frames::{Codes, Named, walk};
use super::memory::ProcessMemory;

/// The interpreter of a process, checked.
#[derive(Clone, Debug)]
pub struct Python {
    /// What the walker needs.
    pub interpreter: Interpreter,
    /// The file it is in, as the process sees it.
    pub file: PathBuf,
    /// The address of `PyCode_Type`, where its symbol tells.
    pub code_type: Option<u64>,
}

/// Why a process gets no Python stacks.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// Nothing in it has the symbol `_PyRuntime`.
    #[error("no CPython is loaded")]
    NoPython,
    /// It may have Python later.
    #[error("its interpreter has not begun yet")]
    NotBegun,
    /// There is no layout that was tested.
    #[error("CPython {}.{} is not supported", .0 >> 8, .0 & 0xff)]
    Version(u16),
    /// Neither a symbol nor the name of the file tells.
    #[error("the version of the CPython in {} can't be told", .0.display())]
    UnknownVersion(PathBuf),
    /// Built with `--disable-gil`: its objects and frames are laid out otherwise.
    #[error("free-threaded builds of CPython are not supported")]
    FreeThreaded,
    /// The layout is not what the version has: a debug or a patched build, or another C library.
    #[error("its memory is not laid out as CPython {}.{} is: {fault}", .version >> 8, .version & 0xff)]
    SelfTest {
        /// Of the layout that was tried.
        version: u16,
        /// What came out wrong.
        fault: &'static str,
    },
    /// It has ended, or may not be read.
    #[error("reading the process")]
    Io(#[from] io::Error),
}

/// A thread that Python knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thread {
    /// The address of its `PyThreadState`.
    pub state: u64,
    /// `pthread_self`, which with glibc is the thread pointer. 0 before the thread has begun.
    pub pthread: u64,
    /// `gettid`; 0 before the thread has begun, and before 3.11.
    pub native: u64,
}

/// How often the walk over a running process is tried: it changes while it is read.
const TRIES: u32 = 50;
const BETWEEN_TRIES: Duration = Duration::from_millis(2);

/// Finds the interpreter of a process and tries its layout, several times.
pub fn find(pid: u32) -> Result<Python, Refusal> {
    let mut python = locate(pid)?;
    let mut tries = 1;
    loop {
        match prove(pid, &mut python.interpreter) {
            Ok(()) => return Ok(python),
            Err(Refusal::SelfTest { .. }) if tries < TRIES => tries += 1,
            Err(refusal) => return Err(refusal),
        }
        std::thread::sleep(BETWEEN_TRIES);
    }
}

/// Finds the interpreter of a process. Nothing is known yet of whether its memory is laid out as the version says; that is
/// for [`prove`], which a process that has just begun can't pass.
pub fn locate(pid: u32) -> Result<Python, Refusal> {
    let mut refusal = Refusal::NoPython;
    for file in candidates(pid)? {
        match locate_in(pid, &file) {
            Ok((interpreter, code_type)) => return Ok(Python { interpreter, file: file.path, code_type }),
            Err(Refusal::NoPython) => {}
            Err(other) => refusal = other,
        }
    }
    Err(refusal)
}

/// Tries an interpreter's layout once, and reads the key of its thread states.
pub fn prove(pid: u32, interpreter: &mut Interpreter) -> Result<(), Refusal> {
    let memory = ProcessMemory::open(pid)?;
    let place = interpreter.runtime.wrapping_add(interpreter.layout.tss_key.into());
    let key = memory.word(place).filter(|key| *key as u32 != 0).ok_or(Refusal::NotBegun)?;
    interpreter.tss_key = (key >> 32) as u32;
    if interpreter.layout.version < 0x030c {
        // The one that was made first is the last of the list.
        interpreter.main = interpreters(&memory, interpreter).last().copied().unwrap_or(0);
    }
    self_test(&memory, interpreter).map_err(|fault| Refusal::SelfTest { version: interpreter.layout.version, fault })
}

fn locate_in(pid: u32, file: &MappedFile) -> Result<(Interpreter, Option<u64>), Refusal> {
    let Some(symbols) = Symbols::read(pid, file)? else {
        return Err(Refusal::NoPython);
    };
    let memory = ProcessMemory::open(pid)?;
    let version = symbols
        .version
        .and_then(|address| memory.word(address))
        .map(|hex| (hex >> 16) as u16)
        .or_else(|| version_in_name(&file.path))
        .ok_or_else(|| Refusal::UnknownVersion(file.path.clone()))?;
    let layout = *LAYOUTS.iter().find(|layout| layout.version == version).ok_or(Refusal::Version(version))?;
    if version >= 0x030d && is_free_threaded(&memory, symbols.runtime) {
        return Err(Refusal::FreeThreaded);
    }
    let interpreter = Interpreter {
        runtime: symbols.runtime,
        main: 0,
        task_runner: 0,
        string_type: 0,
        tss_key: KEY_UNREAD,
        first_slots: GLIBC_FIRST_SLOTS,
        slot_tables: GLIBC_SLOT_TABLES,
        reserved: 0,
        layout,
    };
    Ok((interpreter, symbols.code_type))
}

/// `_Py_DebugOffsets.free_threaded`, which `_PyRuntime` begins with from 3.13 on, after a cookie and a version.
fn is_free_threaded<M: Memory>(memory: &M, runtime: u64) -> bool {
    memory.word(runtime) == Some(u64::from_ne_bytes(*b"xdebugpy")) && memory.word(runtime + 16) != Some(0)
}

/// Walks every thread, and says what doesn't come out as it must.
fn self_test<M: Memory>(memory: &M, interpreter: &Interpreter) -> Result<(), &'static str> {
    let threads = threads(memory, interpreter);
    if threads.is_empty() {
        return Err("there are no threads");
    }
    // Those of other interpreters have their own state in the slot only while they run.
    let own = |thread: &&Thread| thread_state(memory, interpreter, thread.pthread) == Some(thread.state);
    if threads.iter().find(own).is_none() {
        return Err("no thread state is where pthread keeps it");
    }
    let mut fault = None;
    for thread in &threads {
        match stack_fault(memory, &interpreter.layout, thread.state) {
            // One good stack of a frame or more is proof: others may have changed while they were read.
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(what) => fault = Some(what),
        }
    }
    fault.map_or(Ok(()), Err)
}

/// Whether the thread's stack has frames, all of which have names.
fn stack_fault<M: Memory>(memory: &M, layout: &Layout, state: u64) -> Result<bool, &'static str> {
    let walk = walk(memory, layout, state);
    if walk.end == End::Unreadable as u32 {
        return Err("a frame can't be read");
    }
    let frames = &walk.frames[..walk.count as usize];
    let mut codes = Codes::default();
    codes.read(memory, layout, frames);
    for frame in frames {
        match codes.name(frame) {
            Named::Unknown => return Err("a code object can't be read"),
            Named::Shown(frame) if frame.code.incomplete => return Err("a code object has no name, file or lines"),
            Named::Shown(frame) if frame.code.name.is_empty() => return Err("a code object's name is empty"),
            Named::Shown(_) | Named::Hidden => {}
        }
    }
    Ok(!frames.is_empty())
}

/// Every thread of every interpreter, by the lists that the runtime keeps. A list that is being changed, or is damaged, gives
/// what can be read of it.
pub fn threads<M: Memory>(memory: &M, interpreter: &Interpreter) -> Vec<Thread> {
    let layout = &interpreter.layout;
    let at = |base: u64, offset: u16| memory.word(base.wrapping_add(offset.into())).unwrap_or(0);
    let mut threads = Vec::new();
    let mut seen = FxHashSet::default();
    for owner in interpreters(memory, interpreter) {
        let mut state = at(owner, layout.threads_head);
        while state != 0 && seen.insert(state) && seen.len() < MAX_THREADS {
            let native = if layout.native_thread_id == ABSENT { 0 } else { at(state, layout.native_thread_id) };
            threads.push(Thread { state, pthread: at(state, layout.thread_id), native });
            state = at(state, layout.thread_next);
        }
    }
    threads
}

/// Every interpreter, the youngest first.
fn interpreters<M: Memory>(memory: &M, interpreter: &Interpreter) -> Vec<u64> {
    let at = |base: u64, offset: u16| memory.word(base.wrapping_add(offset.into())).unwrap_or(0);
    let mut all = Vec::new();
    let mut seen = FxHashSet::default();
    let mut owner = at(interpreter.runtime, interpreter.layout.interpreters_head);
    while owner != 0 && seen.insert(owner) && seen.len() < MAX_INTERPRETERS {
        all.push(owner);
        owner = at(owner, interpreter.layout.interpreter_next);
    }
    all
}

/// More interpreters than a process has: a list that is longer is damaged.
const MAX_INTERPRETERS: usize = 65_536;

/// The most threads that Linux can have, `PID_MAX_LIMIT`.
const MAX_THREADS: usize = 1 << 22;

/// A file that a process has mapped, at its lowest address.
#[derive(Debug, PartialEq, Eq)]
struct MappedFile {
    path: PathBuf,
    begin: u64,
    end: u64,
    /// Into the file.
    offset: u64,
}

/// The files that may hold the interpreter: libraries named for Python first, the executable last.
fn candidates(pid: u32) -> io::Result<Vec<MappedFile>> {
    // A path that is no UTF-8 is not one of Python's own.
    let maps = String::from_utf8_lossy(&std::fs::read(format!("/proc/{pid}/maps"))?).into_owned();
    let executable = std::fs::read_link(format!("/proc/{pid}/exe"))?;
    let mut files = mapped_files(&maps);
    files.retain(|file| file.path == executable || name_of(&file.path).starts_with("libpython"));
    files.sort_by_key(|file| file.path == executable);
    Ok(files)
}

fn name_of(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or("")
}

/// The first mapping of each file. They come in the order of addresses.
fn mapped_files(maps: &str) -> Vec<MappedFile> {
    let mut files: Vec<MappedFile> = Vec::new();
    for line in maps.lines() {
        let Some(file) = mapped_file(line) else { continue };
        if !files.iter().any(|known| known.path == file.path) {
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

/// The addresses, in the process, of what is looked for.
struct Symbols {
    runtime: u64,
    /// `Py_Version`, an `unsigned long`; from 3.11 on.
    version: Option<u64>,
    /// `PyCode_Type`.
    code_type: Option<u64>,
}

impl Symbols {
    /// `None` if the file is not an ELF file with a `_PyRuntime`.
    fn read(pid: u32, file: &MappedFile) -> io::Result<Option<Self>> {
        // The mapping itself leads to the file whatever has become of its path; it wants a capability that the path doesn't.
        let mapping = format!("/proc/{pid}/map_files/{:x}-{:x}", file.begin, file.end);
        let opened = File::open(mapping).or_else(|_| {
            let inside = file.path.strip_prefix("/").unwrap_or(&file.path);
            File::open(Path::new(&format!("/proc/{pid}/root")).join(inside))
        })?;
        let cache = ReadCache::new(opened);
        let Ok(elf) = object::File::parse(&cache) else { return Ok(None) };
        let page = |address: u64| address & !0xfff;
        let segment = elf.segments().find(|segment| page(segment.file_range().0) == file.offset);
        let Some(segment) = segment else { return Ok(None) };
        let bias = file.begin.wrapping_sub(page(segment.address()));
        let address = |name: &str| {
            let symbol = elf.dynamic_symbols().chain(elf.symbols());
            let is_it =
                |symbol: &object::Symbol<'_, '_, &ReadCache<File>>| symbol.is_definition() && symbol.name() == Ok(name);
            symbol.into_iter().find(is_it).map(|symbol| symbol.address().wrapping_add(bias))
        };
        let Some(runtime) = address("_PyRuntime") else { return Ok(None) };
        Ok(Some(Self { runtime, version: address("Py_Version"), code_type: address("PyCode_Type") }))
    }
}

/// 3.10 of `libpython3.10.so.1.0` or `python3.10`.
fn version_in_name(path: &Path) -> Option<u16> {
    let (_, version) = name_of(path).split_once("python")?;
    let mut numbers = version.split(|character: char| !character.is_ascii_digit());
    let major: u8 = numbers.next()?.parse().ok()?;
    let minor: u8 = numbers.next()?.parse().ok()?;
    Some(u16::from(major) << 8 | u16::from(minor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_names_of_files() {
        let version = |path| version_in_name(Path::new(path));
        assert_eq!(version("/usr/lib/libpython3.10.so.1.0"), Some(0x030a));
        assert_eq!(version("/opt/bin/python3.8"), Some(0x0308));
        assert_eq!(version("/opt/bin/python3.8-dbg"), Some(0x0308));
        assert_eq!(version("/opt/bin/python3"), None);
        assert_eq!(version("/opt/bin/serve"), None);
    }

    #[test]
    fn a_mapped_file_is_its_lowest_mapping() {
        let maps = "\
55d0a000-55d0b000 r--p 00000000 fe:01 42      /opt/my programs/python3.11
55d0b000-55d0d000 r-xp 00001000 fe:01 42      /opt/my programs/python3.11
7f000000-7f001000 rw-p 00000000 00:00 0
7f100000-7f101000 r-xp 00000000 00:00 0       [vdso]
7f200000-7f300000 r--p 00002000 fe:01 43      /lib/libpython3.11.so.1.0 (deleted)
";
        let files = mapped_files(maps);
        assert_eq!(files.len(), 2);
        let executable = Path::new("/opt/my programs/python3.11").to_owned();
        assert_eq!(files[0], MappedFile { path: executable, begin: 0x55d0_a000, end: 0x55d0_b000, offset: 0 });
        assert_eq!((files[1].begin, files[1].offset), (0x7f20_0000, 0x2000));
    }

    #[test]
    fn a_process_without_python_is_refused() {
        assert!(matches!(find(std::process::id()), Err(Refusal::NoPython)));
    }
}
