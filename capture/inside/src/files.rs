//! The files that are shared with the recorder: opened by their paths each time, as a program may close or reuse any descriptor.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::atomic::Ordering;

use ktape_ebpf::inside::{
    CONTROL_FILE, Control, FUNCTIONS_FILE, FunctionEntry, LAYOUT, MAGIC, PROCESS_SUFFIX, ProcessPage, RING_SUFFIX,
};
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

/// Maps the recorder's page, if it is one that this library understands.
pub(crate) fn control(directory: &Path) -> Result<&'static Control, String> {
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

/// Makes this process's page. It takes the place of the one of the program that the process was before it called `exec`.
pub(crate) fn process(directory: &Path, pid: u32, generation: u64) -> Result<&'static ProcessPage, String> {
    let [path, new] = ["", ".new"].map(|suffix| directory.join(format!("{pid}{PROCESS_SUFFIX}{suffix}")));
    let mapping = create(&new, size_of::<ProcessPage>()).map_err(|error| told(&new, &error))?;
    let page = mapping.address().cast::<ProcessPage>();
    // SAFETY: zeros, large enough, and nobody knows of it yet.
    unsafe {
        (&raw mut (*page).layout).write(LAYOUT);
        (&raw mut (*page).pid).write(pid);
        (&raw mut (*page).generation).write(generation);
        (*page).magic.store(MAGIC, Ordering::Release);
    }
    fs::rename(&new, &path).map_err(|error| told(&path, &error))?;
    Ok(mapping.leak())
}

/// Makes a ring's file.
pub(crate) fn new_ring(directory: &Path, (pid, number): (u32, u32), bytes: usize) -> io::Result<Mapping> {
    create(&directory.join(format!("{pid}.{number}{RING_SUFFIX}")), bytes)
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

/// Whether the recorder has died: as long as it lives, it has its page's file locked.
pub(crate) fn is_recorder_gone(directory: &Path) -> bool {
    let Ok(path) = CString::new(directory.join(CONTROL_FILE).as_os_str().as_bytes()) else { return true };
    // SAFETY: ends in a zero; the descriptor is this function's own. Closing it gives the lock up.
    unsafe {
        let file = libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_CLOEXEC);
        if file < 0 {
            // Gone with its directory. A process that has no descriptor left has not learnt anything.
            return *libc::__errno_location() == libc::ENOENT;
        }
        let is_locked = libc::flock(file, libc::LOCK_SH | libc::LOCK_NB) != 0;
        libc::close(file);
        !is_locked
    }
}

fn open(path: &Path, options: &mut OpenOptions) -> Result<File, String> {
    options.custom_flags(libc::O_NOFOLLOW).open(path).map_err(|error| told(path, &error))
}

fn told(path: &Path, error: &io::Error) -> String {
    format!("{}: {error}", path.display())
}
