//! What processes with the library say of themselves, and what they are told: a page each.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{Ordering, fence};

use ktape_ebpf::inside::{LAYOUT, MAGIC, ProcessPage, untimed};
use ktape_ebpf::python::Interpreter;

use super::cost::Cost;
use super::mapping::Mapping;

/// A process's page.
#[derive(Debug)]
pub struct Page {
    mapping: Mapping,
    path: PathBuf,
    /// What it was told last, or knew by itself.
    told: Option<Interpreter>,
}

/// Launches with CUDA events around them, and those that were not to have any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timed {
    /// Launches with events.
    pub launches: u64,
    /// How long the program's threads took for these, but for those that took long.
    pub own_ns: u64,
    /// Of these launches, those that took long, and how long.
    pub long: u64,
    /// See `long`.
    pub long_ns: u64,
    /// Launches without, by [`untimed`].
    pub untimed: [u64; untimed::NAMES.len()],
}

/// What a process says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Word {
    /// One of [`state`](ktape_ebpf::inside::state).
    pub state: u32,
    /// CUPTI's answer.
    pub code: u32,
    /// CUPTI's version; 0 for none.
    pub cupti_version: u32,
    /// What it is about.
    pub detail: String,
}

/// Opens a file of the directory: no link, and no pipe to hang at.
pub(super) fn open(path: &Path) -> io::Result<File> {
    let file =
        OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("no file")) }
}

impl Page {
    /// Maps a process's page. `None` for one that is not begun yet; an error for one of another version.
    pub fn open(path: &Path) -> io::Result<Option<Page>> {
        let mapping = match Mapping::of(&open(path)?, size_of::<ProcessPage>()) {
            Ok(mapping) => mapping,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut page = Page { mapping, path: path.to_owned(), told: None };
        page.told = page.own_interpreter();
        match (page.page().magic.load(Ordering::Acquire), page.page().layout) {
            (MAGIC, LAYOUT) => Ok(Some(page)),
            (MAGIC, other) => Err(io::Error::other(format!("the library has layout {other}, the recorder {LAYOUT}"))),
            _ => Ok(None),
        }
    }

    fn page(&self) -> &ProcessPage {
        // SAFETY: as long as a page, aligned, zeros or what the library wrote: any bytes are a value.
        unsafe { &*self.mapping.memory().cast::<ProcessPage>() }
    }

    /// The process's number.
    pub fn pid(&self) -> u32 {
        self.page().pid
    }

    /// When it began to be recorded.
    pub fn generation(&self) -> u64 {
        self.page().generation
    }

    /// What it says now.
    pub fn word(&self) -> Word {
        let page = self.page();
        let state = page.state.load(Ordering::Acquire);
        let detail = page.detail.get().cast::<u8>();
        let bytes: Vec<u8> = (0..size_of_val(&page.detail))
            // SAFETY: within the page; the process may write it meanwhile, and any byte is one.
            .map(|at| unsafe { detail.add(at).read_volatile() })
            .take_while(|byte| *byte != 0)
            .collect();
        Word {
            state,
            code: page.code.load(Ordering::Relaxed),
            cupti_version: page.cupti_version.load(Ordering::Relaxed),
            detail: String::from_utf8_lossy(&bytes).into_owned(),
        }
    }

    /// What the library takes of it by now.
    pub fn cost(&self) -> Cost {
        let page = self.page();
        let [own_ns, own_calls, keeper_ns, cupti_threads_ns, process_ns] =
            [&page.own_ns, &page.own_calls, &page.keeper_ns, &page.cupti_threads_ns, &page.process_ns]
                .map(|word| word.load(Ordering::Relaxed));
        let overhead_ns = std::array::from_fn(|index| page.overhead_ns[index].load(Ordering::Relaxed));
        Cost { own_ns, own_calls, keeper_ns, cupti_threads_ns, process_ns, ..Cost::default() }
            .with_overheads(overhead_ns)
    }

    /// Launches that have had CUDA events around them.
    pub fn timed(&self) -> Timed {
        let page = self.page();
        let [launches, own_ns, long, long_ns] = [&page.timed, &page.timed_ns, &page.timed_long, &page.timed_long_ns]
            .map(|word| word.load(Ordering::Relaxed));
        let untimed = page.untimed.each_ref().map(|count| count.load(Ordering::Relaxed));
        Timed { launches, own_ns, long, long_ns, untimed }
    }

    /// The Python that the library knew by its file, before anybody has told it.
    fn own_interpreter(&self) -> Option<Interpreter> {
        let page = self.page();
        // SAFETY: within the page; the library wrote it before there was a page, and then only this recorder does.
        let known = || unsafe { page.interpreter.get().read_volatile() };
        (page.interpreter_version.load(Ordering::Acquire) != 0).then(known)
    }

    /// Tells the process its Python, or, with an empty one, that its stacks are not to be walked.
    pub fn set_interpreter(&mut self, interpreter: &Interpreter) {
        self.told = Some(*interpreter);
        let page = self.page();
        let version = page.interpreter_version.load(Ordering::Relaxed) | 1;
        page.interpreter_version.store(version, Ordering::Relaxed);
        fence(Ordering::Release);
        // SAFETY: within the page; who reads it meanwhile sees an odd version, or another one behind it.
        unsafe { page.interpreter.get().write_volatile(*interpreter) };
        page.interpreter_version.store(version.wrapping_add(1), Ordering::Release);
    }

    /// The Python that the process was told, or knew by its file.
    pub fn interpreter(&self) -> Option<Interpreter> {
        self.told
    }

    /// Takes the file away.
    pub fn remove(&self) {
        // One that is gone already is what is wanted.
        let _ = fs::remove_file(&self.path);
    }
}
