//! The files that are shared with the recorder: opened by their paths each time, as a program may close or reuse any descriptor.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::ptr::null_mut;
use std::sync::atomic::Ordering;

use ktape_ebpf::inside::ring::HEADER_BYTES;
use ktape_ebpf::inside::scope::{LeftOut, SCOPE_FILE};
use ktape_ebpf::inside::{
    CONTROL_FILE, Control, FUNCTIONS_FILE, FunctionEntry, LAYOUT, MAGIC, MOST_PYTHONS, PROCESS_SUFFIX, PYTHONS_FILE,
    ProcessPage, PythonEntry, RING_SUFFIX,
};
use ktape_ebpf::python::Interpreter;
use ktape_ebpf::wire::{MOST_FUNCTIONS, Plain as _};

/// A file in memory. Unmapped when it goes.
#[derive(Debug)]
pub(crate) struct Mapping {
    address: *mut u8,
    bytes: usize,
}

impl Mapping {
    fn new(file: &File, bytes: usize, flags: i32) -> io::Result<Mapping> {
        // SAFETY: a new mapping, of a file that is open.
        let address = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(null_mut(), bytes, protection, libc::MAP_SHARED | flags, file.as_raw_fd(), 0)
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Mapping { address: address.cast(), bytes })
    }

    /// Where it is: aligned to a page.
    pub(crate) fn address(&self) -> *mut u8 {
        self.address
    }

    /// Leaves it mapped for good.
    fn leak<T>(self) -> &'static T {
        let address = self.address;
        std::mem::forget(self);
        // SAFETY: the callers' types are plain or atomic words, smaller than what is mapped.
        unsafe { &*address.cast::<T>() }
    }

    /// Frees the file's memory. It is zeros from then on.
    pub(crate) fn give_back(&self) {
        // SAFETY: of this mapping, which stays.
        unsafe { libc::madvise(self.address.cast(), self.bytes, libc::MADV_REMOVE) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and no longer used.
        unsafe { libc::munmap(self.address.cast(), self.bytes) };
    }
}

/// Makes sure that what the directory says is this user's own word. The recorder takes it away with itself, but processes that go on
/// keep its name in their environment: whoever makes one of that name, in a place where all may, must not be listened to.
fn is_own(directory: &Path) -> Result<(), String> {
    let facts = fs::symlink_metadata(directory).map_err(|error| told(directory, &error))?;
    // SAFETY: no pointers.
    let user = unsafe { libc::geteuid() };
    if facts.is_dir() && facts.uid() == user && facts.mode() & 0o022 == 0 {
        Ok(())
    } else {
        Err(format!("{}: not a directory that this user alone writes into", directory.display()))
    }
}

/// Maps the recorder's page, if it is one that this library understands.
pub(crate) fn control(directory: &Path) -> Result<&'static Control, String> {
    is_own(directory)?;
    let path = directory.join(CONTROL_FILE);
    let file = open(&path, OpenOptions::new().read(true).write(true))?;
    let length = file.metadata().map_err(|error| told(&path, &error))?.len();
    if length < size_of::<Control>() as u64 {
        return Err(format!("{}: {length} bytes are too few", path.display()));
    }
    let control: &Control = Mapping::new(&file, size_of::<Control>(), 0).map_err(|error| told(&path, &error))?.leak();
    if control.magic.load(Ordering::Acquire) != MAGIC {
        return Err(format!("{}: not a recorder's", path.display()));
    }
    if control.layout != LAYOUT {
        return Err(format!(
            "{}: of layout {}, and this library knows layout {LAYOUT}",
            path.display(),
            control.layout
        ));
    }
    if !control.ring_bytes.is_power_of_two() || control.ring_bytes < 4096 || control.functions > MOST_FUNCTIONS {
        return Err(format!("{}: makes no sense", path.display()));
    }
    Ok(control)
}

/// Reads the table of functions.
pub(crate) fn functions(directory: &Path, count: u32) -> Result<Vec<FunctionEntry>, String> {
    let path = directory.join(FUNCTIONS_FILE);
    let mut bytes = vec![0; count as usize * size_of::<FunctionEntry>()];
    if !bytes.is_empty() {
        let mut file = open(&path, OpenOptions::new().read(true))?;
        file.read_exact(&mut bytes).map_err(|error| told(&path, &error))?;
    }
    Ok(bytes.chunks_exact(size_of::<FunctionEntry>()).filter_map(FunctionEntry::read).collect())
}

/// Reads the table of Pythons. One that is not there is an empty one.
pub(crate) fn pythons(directory: &Path) -> Vec<PythonEntry> {
    let mut bytes = Vec::new();
    let file = open(&directory.join(PYTHONS_FILE), OpenOptions::new().read(true));
    let most = (MOST_PYTHONS * size_of::<PythonEntry>()) as u64;
    if !file.is_ok_and(|file| file.take(most).read_to_end(&mut bytes).is_ok()) {
        return Vec::new();
    }
    bytes.chunks_exact(size_of::<PythonEntry>()).filter_map(PythonEntry::read).collect()
}

/// Maps the table of kernels whose launches get no events. `None` where the recorder has none.
pub(crate) fn left_out(directory: &Path) -> Option<&'static LeftOut> {
    let file = open(&directory.join(SCOPE_FILE), OpenOptions::new().read(true).write(true)).ok()?;
    let is_whole = file.metadata().is_ok_and(|facts| facts.len() >= size_of::<LeftOut>() as u64);
    is_whole.then(|| Mapping::new(&file, size_of::<LeftOut>(), 0).ok().map(Mapping::leak))?
}

/// Makes this process's page, with its interpreter, if that is known already. It takes the place of the one of the program that the process was before it called `exec`.
pub(crate) fn process(
    directory: &Path,
    (pid, generation): (u32, u64),
    interpreter: Option<Interpreter>,
) -> Result<&'static ProcessPage, String> {
    let [path, new] = ["", ".new"].map(|suffix| directory.join(format!("{pid}{PROCESS_SUFFIX}{suffix}")));
    let mapping = create(&new, size_of::<ProcessPage>()).map_err(|error| told(&new, &error))?;
    let page = mapping.address().cast::<ProcessPage>();
    // SAFETY: zeros, large enough, and nobody knows of it yet.
    unsafe {
        (&raw mut (*page).layout).write(LAYOUT);
        (&raw mut (*page).pid).write(pid);
        (&raw mut (*page).generation).write(generation);
        if let Some(interpreter) = interpreter {
            (*page).interpreter.get().write(interpreter);
            (*page).interpreter_version.store(2, Ordering::Relaxed);
        }
        (*page).magic.store(MAGIC, Ordering::Release);
    }
    fs::rename(&new, &path).map_err(|error| told(&path, &error))?;
    Ok(mapping.leak())
}

/// The shortest ring that is of use.
const LEAST_RING_BYTES: u64 = 64 << 10;

/// So much is enough for the program, whatever share it is.
const PLENTY_BYTES: u64 = 256 << 20;

/// Makes a ring's file, for so many bytes of data or, where the directory's file system is small, fewer: a power of two, which is
/// returned. The file system is memory that the program may want too (64 MiB of `/dev/shm` in many containers): a ring gets a
/// thirty-second of what is free, and none is made where less than a quarter is, if that is little.
pub(crate) fn new_ring(directory: &Path, (pid, number): (u32, u32), bytes: u32) -> io::Result<(Mapping, u32)> {
    let (free, all) = space(directory)?;
    if free < (all / 4).min(PLENTY_BYTES) {
        return Err(io::ErrorKind::StorageFull.into());
    }
    let mut data = u64::from(bytes);
    while data > LEAST_RING_BYTES && data > free / 32 {
        data /= 2;
    }
    let path = directory.join(format!("{pid}.{number}{RING_SUFFIX}"));
    create(&path, HEADER_BYTES + data as usize).map(|mapping| (mapping, data as u32))
}

/// What is free of a directory's file system, and all of it, in bytes.
fn space(directory: &Path) -> io::Result<(u64, u64)> {
    let path = CString::new(directory.as_os_str().as_bytes())?;
    // SAFETY: the path ends in a zero, and the call fills in all of the structure or fails.
    unsafe {
        let mut facts = std::mem::zeroed::<libc::statvfs>();
        match libc::statvfs(path.as_ptr(), &raw mut facts) {
            0 => Ok((facts.f_bavail * facts.f_frsize, facts.f_blocks * facts.f_frsize)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Makes a file of zeros that is there as a whole: no store into it can fail for want of space.
fn create(path: &Path, bytes: usize) -> io::Result<Mapping> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    let file = options.open(path)?;
    // SAFETY: no pointers.
    let allocated = match unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, bytes as libc::off_t) } {
        0 => Mapping::new(&file, bytes, libc::MAP_POPULATE),
        _ => Err(io::Error::last_os_error()),
    };
    if allocated.is_err() {
        let _ = fs::remove_file(path);
    }
    allocated
}

/// What can be seen of the recorder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recorder {
    /// It lives: it has its page's file locked.
    Lives,
    /// It has died: nobody has.
    Died,
    /// Its directory is not there: it has ended, or this process has another root by now and cannot see it.
    OutOfSight,
}

/// Looks for the recorder.
pub(crate) fn recorder(directory: &Path) -> Recorder {
    let Ok(path) = CString::new(directory.join(CONTROL_FILE).as_os_str().as_bytes()) else {
        return Recorder::OutOfSight;
    };
    // SAFETY: ends in a zero; the descriptor is this function's own. Closing it gives the lock up.
    unsafe {
        let file = libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_CLOEXEC);
        if file < 0 {
            // Gone with its directory. A process that has no descriptor left has not learnt anything.
            let is_gone = *libc::__errno_location() == libc::ENOENT;
            return if is_gone { Recorder::OutOfSight } else { Recorder::Lives };
        }
        let is_locked = libc::flock(file, libc::LOCK_SH | libc::LOCK_NB) != 0;
        libc::close(file);
        if is_locked { Recorder::Lives } else { Recorder::Died }
    }
}

fn open(path: &Path, options: &mut OpenOptions) -> Result<File, String> {
    options.custom_flags(libc::O_NOFOLLOW).open(path).map_err(|error| told(path, &error))
}

fn told(path: &Path, error: &io::Error) -> String {
    format!("{}: {error}", path.display())
}
