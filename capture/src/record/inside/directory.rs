//! The directory that the recorder and the libraries inside processes share.
//!
//! It lies in memory (`$XDG_RUNTIME_DIR`, else `/dev/shm`), is its user's alone, and goes with the recorder. One that was killed leaves
//! its own behind, and no lock on its control page: the next recorder of the user takes it away.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use anyhow::{Context as _, Result, ensure};
use ktape_ebpf::inside::scope::{LeftOut, SCOPE_FILE};
use ktape_ebpf::inside::{
    CONTROL_FILE, Control, FUNCTIONS_FILE, FunctionEntry, LAYOUT, MAGIC, MOST_PYTHONS, PYTHONS_FILE, PythonEntry,
};
use ktape_ebpf::wire::Plain as _;
use rustix::fs::{FlockOperation, flock};

use super::{DeviceTime, Options};
use crate::collect::inside::mapping::Mapping;
use crate::probes::functions::Probed;
use crate::target::process::is_running;

/// What its name begins with; then come the recorder's number and a count.
const PREFIX: &str = "ktape-";

/// The directory. It goes when this does.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    control: Mapping,
    /// Kernels whose launches get no events, where these are in scope by their kernels.
    left_out: Option<Mapping>,
    /// Locked as long as the recorder lives.
    _lock: File,
}

impl Directory {
    /// Makes it, with all that the library reads.
    pub(super) fn create(options: &Options, functions: &[Probed]) -> Result<Directory> {
        let parent = parent();
        remove_stale(&parent);
        let path = new_directory(&parent).with_context(|| format!("a directory in {}", parent.display()))?;
        let made = fill(&path, options, functions).with_context(|| path.display().to_string());
        if made.is_err() {
            let _ = fs::remove_dir_all(&path);
        }
        made
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the table of Pythons.
    pub(super) fn write_pythons(&self, entries: impl Iterator<Item = PythonEntry>) -> io::Result<()> {
        let mut table = new_file(&self.path, PYTHONS_FILE)?;
        entries.take(MOST_PYTHONS).try_for_each(|entry| table.write_all(entry.as_bytes()))
    }

    /// Kernels whose launches get no events, if that is asked.
    pub(super) fn left_out(&self) -> Option<&LeftOut> {
        // SAFETY: as long as the table, aligned, and made of atomic words.
        self.left_out.as_ref().map(|table| unsafe { &*table.memory().cast::<LeftOut>() })
    }

    pub(super) fn control(&self) -> &Control {
        // SAFETY: as long as the page, aligned, and written by `fill`; what changes is atomic.
        unsafe { &*self.control.memory().cast::<Control>() }
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        self.control().ended.store(1, Ordering::Release);
        // What cannot be removed the next recorder removes.
        let _ = fs::remove_dir_all(&self.path);
    }
}

fn parent() -> PathBuf {
    let own = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute() && path.is_dir());
    own.unwrap_or_else(|| PathBuf::from("/dev/shm"))
}

fn new_directory(parent: &Path) -> io::Result<PathBuf> {
    for count in 0.. {
        let path = parent.join(format!("{PREFIX}{}-{count}", std::process::id()));
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && count < 10_000 => {}
            made => return made.map(|()| path),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

fn new_file(directory: &Path, name: &str) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(directory.join(name))
}

fn fill(path: &Path, options: &Options, functions: &[Probed]) -> Result<Directory> {
    let file = |name: &str| new_file(path, name);
    let entries: Vec<FunctionEntry> =
        (0..).zip(functions).filter_map(|(index, function)| entry(index, function)).collect();
    let mut table = file(FUNCTIONS_FILE)?;
    entries.iter().try_for_each(|entry| table.write_all(entry.as_bytes()))?;
    let left_out = match options.by_kernel && options.device_time == DeviceTime::Events {
        true => {
            let table = file(SCOPE_FILE)?;
            table.set_len(size_of::<LeftOut>() as u64)?;
            Some(Mapping::of(&table, size_of::<LeftOut>())?)
        }
        false => None,
    };
    let lock = file(CONTROL_FILE)?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
    lock.set_len(size_of::<Control>() as u64)?;
    let control = Mapping::of(&lock, size_of::<Control>())?;
    let cupti = options.cupti.as_deref().map_or(&[][..], |path| path.as_os_str().as_bytes());
    let page = control.memory().cast::<Control>();
    // SAFETY: zeros, as long as the page, and nobody reads before the magic is there.
    unsafe {
        ensure!(cupti.len() < (*page).cupti.len(), "the path of CUPTI is too long");
        (&raw mut (*page).layout).write(LAYOUT);
        (&raw mut (*page).device_time).write(options.device_time.code());
        (&raw mut (*page).calls).write(options.calls.into());
        (&raw mut (*page).announce).write(options.announce.into());
        (&raw mut (*page).follow).write(options.follow.into());
        (&raw mut (*page).parent).write(if options.follow { 0 } else { std::process::id() });
        (&raw mut (*page).ring_bytes).write(options.ring_bytes);
        (&raw mut (*page).flush_ms).write(options.device_time.flush_ms());
        (&raw mut (*page).functions).write(entries.len() as u32);
        std::ptr::copy_nonoverlapping(cupti.as_ptr(), (&raw mut (*page).cupti).cast(), cupti.len());
        (*page).magic.store(MAGIC, Ordering::Release);
    }
    Ok(Directory { path: path.to_owned(), control, left_out, _lock: lock })
}

/// The entry of a function; `None` for one whose name is longer than any that CUPTI knows.
fn entry(index: u32, function: &Probed) -> Option<FunctionEntry> {
    let mut symbol = [0; 64];
    symbol[..63].get_mut(..function.symbol.len())?.copy_from_slice(function.symbol.as_bytes());
    let returns = function.meaning.wants_return(true).into();
    Some(FunctionEntry { symbol, plan: function.meaning.plan(), function: index, returns, padding: 0 })
}

/// Takes directories away whose recorders are gone.
fn remove_stale(parent: &Path) {
    let own = rustix::process::geteuid().as_raw();
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let is_own = entry.metadata().is_ok_and(|facts| facts.is_dir() && facts.uid() == own);
        if is_own && recorder_of(&entry.file_name()).is_some_and(|pid| !is_running(pid)) && !is_locked(&entry.path()) {
            // One that somebody else takes away at the same time is gone too.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// The recorder in a directory's name. It may be of another namespace, so its end alone is no reason.
fn recorder_of(name: &OsStr) -> Option<u32> {
    let (pid, count) = name.to_str()?.strip_prefix(PREFIX)?.split_once('-')?;
    count.parse::<u32>().ok()?;
    pid.parse().ok()
}

fn is_locked(path: &Path) -> bool {
    let control = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(path.join(CONTROL_FILE));
    control.is_ok_and(|file| flock(&file, FlockOperation::NonBlockingLockShared).is_err())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_its_user_s_alone_and_goes_with_the_recorder() {
        let functions = crate::probes::functions::all();
        let (cupti, ring_bytes) = (None, 1 << 16);
        let device_time = DeviceTime::Cupti;
        let options = Options {
            device_time,
            calls: true,
            announce: false,
            ranges: false,
            by_kernel: false,
            cupti,
            ring_bytes,
            follow: true,
        };
        let directory = Directory::create(&options, &functions).unwrap();
        let path = directory.path().to_owned();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
        assert!(is_locked(&path));
        let control = directory.control();
        assert_eq!(control.magic.load(Ordering::Relaxed), MAGIC);
        assert_eq!((control.device_time, control.calls, control.ring_bytes), (device_time.code(), 1, 1 << 16));
        let table = fs::read(path.join(FUNCTIONS_FILE)).unwrap();
        assert_eq!(table.len(), control.functions as usize * size_of::<FunctionEntry>());
        assert_eq!(control.functions as usize, functions.len(), "no name is too long");
        drop(directory);
        assert!(!path.exists());
    }

    #[test]
    fn what_a_dead_recorder_left_is_taken_away_and_a_living_one_s_is_not() {
        let parent = tempfile::tempdir().unwrap();
        let directory = |name: &str, is_locked: bool| {
            let path = parent.path().join(name);
            fs::create_dir(&path).unwrap();
            let file = File::create(path.join(CONTROL_FILE)).unwrap();
            if is_locked {
                flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
            }
            (path, file)
        };
        // No process has such a number.
        let dead = directory("ktape-4294967294-0", false);
        let locked = directory("ktape-4294967294-1", true);
        let living = directory(&format!("ktape-{}-0", std::process::id()), false);
        let other = directory("ktape-notes", false);
        remove_stale(parent.path());
        assert_eq!([dead, locked, living, other].map(|(path, _)| path.exists()), [false, true, true, true]);
    }
}
