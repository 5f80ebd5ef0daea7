//! The CPython of a process: where it is, which it is, and whether its memory is laid out as the table says.
//!
//! `_PyRuntime` is found by its symbol, in `libpython`, in the executable or in whatever else is loaded; in what is stripped, by
//! the section `.PyRuntime`. A layout is taken from the version and from what the interpreter says of itself, and builds differ
//! (distributions patch, debug builds shift fields), so nothing is believed before a walk over the process's own threads has
//! come out right: thread states where pthread keeps them, frames that end, names that are names.

use std::fmt;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use ktape_ebpf::python::{
    ABSENT, End, GLIBC_FIRST_SLOTS, GLIBC_SLOT_TABLES, Interpreter, KEY_BY_LIST, KEY_TLS, KEY_UNREAD, Layout, Memory,
};
use rustc_hash::FxHashSet;

use super::elf::{Module, OnDisk, versions_named_in};
use super::files::{Candidates, MappedFile};
use super::frames::{Codes, Named, walk};
use super::memory::ProcessMemory;
use super::offsets::DebugOffsets;
use super::slot;

/// The interpreter of a process. It shows itself as `CPython 3.13.5 (free-threaded), /usr/bin/python3.13`.
#[derive(Clone, Debug)]
pub struct Python {
    /// What the walker needs.
    pub interpreter: Interpreter,
    /// The file it is in, as the process sees it.
    pub file: PathBuf,
    /// The address of `PyCode_Type`, where its symbol tells.
    pub code_type: Option<u64>,
    /// `PY_VERSION_HEX`, where the interpreter tells it; otherwise its upper half, which the table has.
    pub version_hex: u32,
}

impl fmt::Display for Python {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [micro, level] = [self.version_hex >> 8 & 0xff, self.version_hex >> 4 & 0xf];
        write!(out, "CPython {}", Dotted(self.interpreter.layout.version))?;
        // The level says alpha, beta, candidate or final, so that 0 is of a version that was told by a name.
        match level {
            0 => {}
            0xf => write!(out, ".{micro}")?,
            _ => write!(out, ".{micro} (pre-release)")?,
        }
        if self.interpreter.layout.free_threaded != 0 {
            write!(out, " (free-threaded)")?;
        }
        write!(out, ", {}", self.file.display())
    }
}

/// 3.13 of 0x030d.
#[derive(Clone, Copy)]
struct Dotted(u16);

impl fmt::Display for Dotted {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}.{}", self.0 >> 8, self.0 & 0xff)
    }
}

/// Why a process gets no Python stacks, for people to read.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// Nothing in it has the symbol `_PyRuntime`.
    #[error("no CPython is loaded")]
    NoPython,
    /// It may have Python later.
    #[error("its interpreter has not begun yet")]
    NotBegun,
    /// Another Python.
    #[error("PyPy is not supported, only CPython is ({})", .0.display())]
    PyPy(PathBuf),
    /// There is no `_PyRuntime` before 3.7.
    #[error("CPython before 3.8 is not supported ({})", .0.display())]
    TooOld(PathBuf),
    /// There is no layout that was tested.
    #[error("CPython {} is not supported, only 3.8 to 3.15 are ({})", Dotted(*.0), .1.display())]
    Version(u16, PathBuf),
    /// Neither a symbol nor the name of the file tells, nor what is in it.
    #[error("the version of the CPython in {} can't be told", .0.display())]
    UnknownVersion(PathBuf),
    /// What it says of its own layout can't be.
    #[error("CPython {} gives a layout of itself that can't be: {fault}", Dotted(*.version))]
    Offsets {
        /// Its version.
        version: u16,
        /// What is wrong with it.
        fault: &'static str,
    },
    /// The layout is not what the version has: a debug or a patched build.
    #[error("its memory is not laid out as CPython {} is: {fault}", Dotted(*.version))]
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
    let candidates = Candidates::of(pid)?;
    let memory = ProcessMemory::open(pid)?;
    let (likely, others) = candidates.files.split_at(candidates.likely);
    // What has dynamic symbols, whatever it is called.
    let in_memory = |file: &MappedFile| Symbols::in_memory(&memory, file);
    let by_symbols = first_that_has_begun(pid, &memory, &candidates.files, in_memory);
    if !matches!(by_symbols, Err(Refusal::NoPython | Refusal::TooOld(_))) {
        return by_symbols;
    }
    // What has none: the interpreter in a stripped executable, or one whose symbols are hidden.
    let by_file = first_that_has_begun(pid, &memory, likely, |file| Symbols::on_disk(pid, file, true));
    if !matches!(by_file, Err(Refusal::NoPython)) {
        return by_file;
    }
    match first_that_has_begun(pid, &memory, others, |file| Symbols::on_disk(pid, file, false)) {
        Err(Refusal::NoPython) => by_symbols,
        by_section => by_section,
    }
}

/// The first of these files with an interpreter that has begun, or else with one: an executable may have one that isn't used,
/// as it embeds that of a library.
fn first_that_has_begun<M: Memory>(
    pid: u32,
    memory: &M,
    files: &[MappedFile],
    symbols: impl Fn(&MappedFile) -> Result<Option<Symbols>, Refusal>,
) -> Result<Python, Refusal> {
    let mut not_begun = None;
    let mut refusal = Refusal::NoPython;
    for file in files {
        let located = match symbols(file) {
            Ok(Some(symbols)) => interpreter_at(memory, file, &symbols, || file.open(pid)),
            Ok(None) => continue,
            Err(refusal) => Err(refusal),
        };
        match located {
            Ok(python) if has_begun(memory, &python.interpreter) => return Ok(python),
            Ok(python) => not_begun = not_begun.or(Some(python)),
            Err(other) if matches!(refusal, Refusal::NoPython) => refusal = other,
            Err(_) => {}
        }
    }
    not_begun.ok_or(refusal)
}

/// The interpreter of a file that nobody runs, in memory as it would be: what has dynamic symbols for it.
pub(super) fn in_image<M: Memory>(
    memory: &M,
    file: &MappedFile,
    open: impl FnOnce() -> io::Result<File>,
) -> Option<Python> {
    let symbols = Symbols::in_memory(memory, file).ok()??;
    interpreter_at(memory, file, &symbols, open).ok()
}

fn has_begun<M: Memory>(memory: &M, interpreter: &Interpreter) -> bool {
    memory
        .word(interpreter.runtime.wrapping_add(interpreter.layout.interpreters_head.into()))
        .is_some_and(|head| head != 0)
}

/// Tries an interpreter's layout once, and finds out where its threads keep their states: the key is in it afterwards.
pub fn prove(pid: u32, interpreter: &mut Interpreter) -> Result<(), Refusal> {
    prove_in(&ProcessMemory::open(pid)?, interpreter)
}

/// [`prove`] over any memory.
pub fn prove_in<M: Memory>(memory: &M, interpreter: &mut Interpreter) -> Result<(), Refusal> {
    if !has_begun(memory, interpreter) {
        return Err(Refusal::NotBegun);
    }
    let mut tried = *interpreter;
    if tried.layout.tss_key != ABSENT {
        // A `Py_tss_t`: whether it is made, and the key.
        let place = memory.word(tried.runtime.wrapping_add(tried.layout.tss_key.into()));
        tried.tss_key = place.filter(|key| *key as u32 != 0).map_or(KEY_UNREAD, |key| (key >> 32) as u32);
    }
    if tried.layout.version < 0x030c {
        // The one that was made first is the last of the list.
        tried.main = interpreters_up_to(memory, &tried, MAX_THREADS).last().copied().unwrap_or(0);
    }
    self_test(memory, &mut tried).map_err(|fault| Refusal::SelfTest { version: tried.layout.version, fault })?;
    *interpreter = tried;
    Ok(())
}

/// The addresses, in the process, of what is looked for.
struct Symbols {
    runtime: u64,
    /// `Py_Version`, an `unsigned long`; from 3.11 on.
    version: Option<u64>,
    /// `PyGILState_GetThisThreadState`.
    get_state: Option<u64>,
    /// `PyCode_Type`.
    code_type: Option<u64>,
}

impl Symbols {
    fn in_memory<M: Memory>(memory: &M, file: &MappedFile) -> Result<Option<Self>, Refusal> {
        let Some(module) = Module::at(memory, file.begin).filter(|_| file.offset == 0) else { return Ok(None) };
        if let Some(runtime) = module.symbol("_PyRuntime") {
            let [version, get_state, code_type] =
                ["Py_Version", "PyGILState_GetThisThreadState", "PyCode_Type"].map(|name| module.symbol(name));
            return Ok(Some(Self { runtime, version, get_state, code_type }));
        }
        // `libpython3.so` defines neither, and is no Python.
        if module.symbol("pypy_execute_source").is_some() {
            Err(Refusal::PyPy(file.path.clone()))
        } else if module.symbol("Py_Initialize").is_some() && module.symbol("PyThreadState_Swap").is_some() {
            Err(Refusal::TooOld(file.path.clone()))
        } else {
            Ok(None)
        }
    }

    /// A file that can't be read is one in which nothing is found: there are many others.
    fn on_disk(pid: u32, file: &MappedFile, in_symbols: bool) -> Result<Option<Self>, Refusal> {
        let Ok(OnDisk { runtime: Some(runtime), version }) = OnDisk::read(pid, file, in_symbols) else {
            return Ok(None);
        };
        Ok(Some(Self { runtime, version, get_state: None, code_type: None }))
    }
}

/// Makes an interpreter of what was found in a file.
fn interpreter_at<M: Memory>(
    memory: &M,
    file: &MappedFile,
    symbols: &Symbols,
    open: impl FnOnce() -> io::Result<File>,
) -> Result<Python, Refusal> {
    let offsets = DebugOffsets::read(memory, symbols.runtime);
    let version_hex = symbols
        .version
        .and_then(|address| memory.word(address))
        .map(|hex| hex as u32)
        .or_else(|| offsets.as_ref().map(DebugOffsets::version))
        .or_else(|| version_in_name(file.name()).map(|version| u32::from(version) << 16))
        .or_else(|| version_in_file(&open().ok()?).map(|version| u32::from(version) << 16))
        .ok_or_else(|| Refusal::UnknownVersion(file.path.clone()))?;
    let version = (version_hex >> 16) as u16;
    let is_free_threaded = offsets.as_ref().is_some_and(DebugOffsets::is_free_threaded);
    let row = Layout::of(version, is_free_threaded).ok_or_else(|| Refusal::Version(version, file.path.clone()))?;
    let layout = offsets.map_or(Ok(row), |offsets| offsets.layout(row));
    let layout = layout.map_err(|fault| Refusal::Offsets { version, fault })?;
    let mut interpreter = Interpreter {
        runtime: symbols.runtime,
        main: 0,
        task_runner: 0,
        string_type: 0,
        tss_key: KEY_UNREAD,
        first_slots: GLIBC_FIRST_SLOTS,
        slot_tables: GLIBC_SLOT_TABLES,
        tls_module: 0,
        tls_offset: 0,
        layout,
    };
    if layout.tss_key == ABSENT {
        let place = symbols.get_state.and_then(|function| slot::thread_local(memory, function));
        interpreter.tss_key = place.map_or(KEY_BY_LIST, |_| KEY_TLS);
        (interpreter.tls_module, interpreter.tls_offset) = place.map_or((0, 0), |place| (place.module, place.offset));
    }
    Ok(Python { interpreter, file: file.path.clone(), code_type: symbols.code_type, version_hex })
}

/// The address of `PyCode_Type`, where some thread runs code: every code object has it.
pub(super) fn code_type<M: Memory>(memory: &M, interpreter: &Interpreter) -> Option<u64> {
    let threads = threads_up_to(memory, interpreter, TESTED_THREADS);
    let code = threads.iter().find_map(|thread| {
        let walk = walk(memory, &interpreter.layout, thread.state);
        (walk.count > 0).then_some(walk.frames[0].code)
    })?;
    memory.word(code.wrapping_add(interpreter.layout.type_offset()))
}

/// Threads that the self-test looks at, at most: the first that the interpreter lists, which are its youngest.
const TESTED_THREADS: usize = 256;
/// Stacks that it walks until one is good, and frames of each whose names it reads. A process that has been made to mislead
/// takes this much of the recorder's time, and one code object of its memory.
const TESTED_STACKS: usize = 16;
const TESTED_FRAMES: usize = 64;

/// Walks threads, and says what doesn't come out as it must.
fn self_test<M: Memory>(memory: &M, interpreter: &mut Interpreter) -> Result<(), &'static str> {
    let threads = threads_up_to(memory, interpreter, TESTED_THREADS);
    if threads.is_empty() {
        return Err("there are no threads");
    }
    let mut outcome = Ok(false);
    for thread in threads.iter().take(TESTED_STACKS) {
        match stack_fault(memory, &interpreter.layout, thread.state) {
            // One good stack of a frame or more is proof: others may have changed while they were read.
            Ok(true) => {
                outcome = Ok(true);
                break;
            }
            Ok(false) => {}
            Err(what) => outcome = Err(what),
        }
    }
    let has_stack = outcome?;
    if slot::holds(memory, interpreter, &threads) {
        return Ok(());
    }
    if let Some(key) = slot::key_by_slots(memory, interpreter, &threads) {
        interpreter.tss_key = key;
        return Ok(());
    }
    // The slots are elsewhere, with another C library. The list is right if what it lists runs Python; an interpreter that is
    // just beginning has not filled its slot yet, and runs none.
    if !has_stack {
        return Err("no thread state is where pthread keeps it");
    }
    interpreter.tss_key = KEY_BY_LIST;
    Ok(())
}

/// Whether the thread's stack has frames, all of which have names and are at an instruction of theirs.
fn stack_fault<M: Memory>(memory: &M, layout: &Layout, state: u64) -> Result<bool, &'static str> {
    let walk = walk(memory, layout, state);
    if walk.end == End::Unreadable as u32 {
        return Err("a frame can't be read");
    }
    let frames = &walk.frames[..walk.count as usize];
    let mut named = FxHashSet::default();
    for frame in frames.iter().take(TESTED_FRAMES) {
        // Of 3.11 and later the length counts units of instructions, of two bytes. One that hasn't begun is before the first.
        if layout.instruction_scale == 0 {
            let units = memory.word(frame.code.wrapping_add(layout.object_bytes.into())).unwrap_or(0);
            if i64::from(frame.instruction) < -2 || i64::from(frame.instruction) > 2 * units.min(1 << 40) as i64 {
                return Err("a frame is at no instruction of its code");
            }
        }
        if !named.insert(frame.code) {
            continue;
        }
        let mut codes = Codes::default();
        codes.read(memory, layout, std::slice::from_ref(frame));
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
    threads_up_to(memory, interpreter, MAX_THREADS)
}

fn threads_up_to<M: Memory>(memory: &M, interpreter: &Interpreter, most: usize) -> Vec<Thread> {
    let layout = &interpreter.layout;
    let at = |base: u64, offset: u16| memory.word(base.wrapping_add(offset.into())).unwrap_or(0);
    let mut threads = Vec::new();
    let mut seen = FxHashSet::default();
    for owner in interpreters_up_to(memory, interpreter, most) {
        let mut state = at(owner, layout.threads_head);
        while state != 0 && seen.len() < most && seen.insert(state) {
            let native = if layout.native_thread_id == ABSENT { 0 } else { at(state, layout.native_thread_id) };
            threads.push(Thread { state, pthread: at(state, layout.thread_id), native });
            state = at(state, layout.thread_next);
        }
    }
    threads
}

/// Interpreters, the youngest first.
fn interpreters_up_to<M: Memory>(memory: &M, interpreter: &Interpreter, most: usize) -> Vec<u64> {
    let at = |base: u64, offset: u16| memory.word(base.wrapping_add(offset.into())).unwrap_or(0);
    let mut all = Vec::new();
    let mut seen = FxHashSet::default();
    let mut owner = at(interpreter.runtime, interpreter.layout.interpreters_head);
    while owner != 0 && seen.len() < most && seen.insert(owner) {
        all.push(owner);
        owner = at(owner, interpreter.layout.interpreter_next);
    }
    all
}

/// Threads and interpreters that are listed, at most: more than any process has, so that a list that has no end ends.
const MAX_THREADS: usize = 1 << 18;

/// 3.10 of `libpython3.10.so.1.0` or `python3.10`.
fn version_in_name(name: &str) -> Option<u16> {
    let (_, version) = name.split_once("python")?;
    let mut numbers = version.split(|character: char| !character.is_ascii_digit());
    let major: u8 = numbers.next()?.parse().ok()?;
    let minor: u8 = numbers.next()?.parse().ok()?;
    Some(u16::from(major) << 8 | u16::from(minor))
}

/// The one version that paths in the file's constants name, as of its own library; none if there are several.
fn version_in_file(file: &File) -> Option<u16> {
    match versions_named_in(file).as_slice() {
        [version] => Some(*version),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_names_of_files() {
        assert_eq!(version_in_name("libpython3.10.so.1.0"), Some(0x030a));
        assert_eq!(version_in_name("python3.8"), Some(0x0308));
        assert_eq!(version_in_name("python3.8-dbg"), Some(0x0308));
        assert_eq!(version_in_name("python3.8 (deleted)"), Some(0x0308));
        assert_eq!(version_in_name("python3"), None);
        assert_eq!(version_in_name("serve"), None);
    }

    #[test]
    fn a_python_says_what_it_is() {
        let of = |row, version_hex| {
            let interpreter = Interpreter { layout: row, ..Interpreter::default() };
            Python { interpreter, file: "/usr/bin/python3".into(), code_type: None, version_hex }.to_string()
        };
        let row = Layout::of(0x030d, true).unwrap();
        assert_eq!(of(row, 0x030d_05f0), "CPython 3.13.5 (free-threaded), /usr/bin/python3");
        let row = Layout::of(0x030f, false).unwrap();
        assert_eq!(of(row, 0x030f_00b2), "CPython 3.15.0 (pre-release), /usr/bin/python3");
        let row = Layout::of(0x0308, false).unwrap();
        assert_eq!(of(row, 0x0308_0000), "CPython 3.8, /usr/bin/python3");
    }

    #[test]
    fn a_process_without_python_is_refused() {
        assert!(matches!(find(std::process::id()), Err(Refusal::NoPython)));
    }
}
