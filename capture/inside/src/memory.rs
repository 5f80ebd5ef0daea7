//! The process's own memory, read without a fault, whatever a pointer says.
//!
//! There is no handler of `SIGSEGV` in here, as the process may have its own. So there are three ways to read, and who reads knows
//! which one is right:
//!
//! - [`Guarded`] has the kernel copy (`process_vm_readv` on itself). It says no where nothing can be read, also where another thread
//!   takes the memory away meanwhile. A few hundred nanoseconds each: for what is read once, and for pointers that nobody vouches for.
//! - [`ThisStack`] reads what lies on the calling thread's own stack above where it is now: that cannot go while it runs there. Most
//!   structures that calls are given lie there.
//! - [`Alive`] loads directly, and is for what lives as long as the calling thread is where it is: its Python thread state, its
//!   chain of frames, and their code objects. The interpreter frees none of them while the call lasts; all that could is the end of
//!   the interpreter, for which `stack/interpreter.rs` looks out. What that leaves is a pointer that is none, as the layout
//!   it was read with is not this Python's. So a page that was never read before is asked for first (one system call); the pages
//!   that were found readable are remembered, for a page that has gone since has no live object in it that could be asked for.

use std::cell::Cell;
use std::ffi::c_void;

use ktape_ebpf::python::Memory;

/// Memory is there or not by the page.
const PAGE_SHIFT: u32 = 12;
const PAGE_BYTES: u64 = 1 << PAGE_SHIFT;

/// Reads through the kernel.
#[derive(Clone, Copy, Debug)]
pub struct Guarded {
    /// The process's own number.
    pub pid: u32,
}

impl Memory for Guarded {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        if into.is_empty() {
            return true;
        }
        let _errno = Errno::kept();
        let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
        let remote = libc::iovec { iov_base: address as *mut c_void, iov_len: into.len() };
        // SAFETY: the kernel writes no more than `into` has room for, and checks the other side.
        let read = unsafe { libc::process_vm_readv(self.pid as i32, &raw const local, 1, &raw const remote, 1, 0) };
        if read >= 0 {
            return read as usize == into.len();
        }
        match Errno::now() {
            libc::EPERM | libc::ENOSYS => read_checked(address, into),
            _ => false,
        }
    }
}

impl Guarded {
    /// Whether the word at this address, which is `value`, can be written: it is written over with the same.
    pub fn can_write(self, address: u64, value: u64) -> bool {
        let _errno = Errno::kept();
        let local = libc::iovec { iov_base: (&raw const value).cast_mut().cast(), iov_len: 8 };
        let remote = libc::iovec { iov_base: address as *mut c_void, iov_len: 8 };
        // SAFETY: the kernel checks the address, and changes nothing by what it writes.
        address.is_multiple_of(8)
            && unsafe { libc::process_vm_writev(self.pid as i32, &raw const local, 1, &raw const remote, 1, 0) } == 8
    }
}

/// For where a filter of system calls forbids the better way: asks for each page, then reads it. Another thread that takes it away in
/// between would be missed.
#[cold]
fn read_checked(address: u64, into: &mut [u8]) -> bool {
    let Some(last) = address.checked_add(into.len() as u64 - 1) else { return false };
    if !(address >> PAGE_SHIFT..=last >> PAGE_SHIFT).all(is_readable) {
        return false;
    }
    // SAFETY: all pages could be read just now.
    unsafe { copy(address, into) };
    true
}

/// Copies from an address.
///
/// # Safety
///
/// The memory can be read.
#[inline(always)]
unsafe fn copy(address: u64, into: &mut [u8]) {
    // SAFETY: see above. Others may write there meanwhile; any bytes are bytes.
    unsafe { std::ptr::copy_nonoverlapping(address as *const u8, into.as_mut_ptr(), into.len()) };
}

/// Whether a page can be read, asked of a system call that reads a signal set there and then refuses what it is told to do with it.
/// It is never forbidden, and changes nothing.
#[cold]
fn is_readable(page: u64) -> bool {
    const NO_SUCH_WAY: i32 = -1;
    let _errno = Errno::kept();
    // SAFETY: the kernel checks the address, and sets nothing, as there is no such way.
    let answer = unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, NO_SUCH_WAY, page << PAGE_SHIFT, std::ptr::null_mut::<c_void>(), 8)
    };
    answer == -1 && Errno::now() == libc::EINVAL
}

/// Puts `errno` back as it was: the call that the process makes has it to itself.
struct Errno(i32);

impl Errno {
    fn kept() -> Errno {
        Errno(Errno::now())
    }

    fn now() -> i32 {
        // SAFETY: the thread's own.
        unsafe { *libc::__errno_location() }
    }
}

impl Drop for Errno {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = self.0 };
    }
}

/// How many pages are remembered. A stack of Python's frames has one or two, those of older versions some more.
const KNOWN_PAGES: usize = 64;

/// Reads what lives as long as the calling thread is where it is: see the module. Each thread has its own.
#[derive(Debug)]
pub struct Alive {
    /// Pages that could be read, by the last digits of their numbers.
    known: [Cell<u64>; KNOWN_PAGES],
}

impl Alive {
    /// Knows no page yet.
    pub const fn new() -> Alive {
        Alive { known: [const { Cell::new(u64::MAX) }; KNOWN_PAGES] }
    }

    #[inline(always)]
    fn is_readable(&self, page: u64) -> bool {
        let known = &self.known[page as usize % KNOWN_PAGES];
        if known.get() == page {
            return true;
        }
        let is_readable = is_readable(page);
        if is_readable {
            known.set(page);
        }
        is_readable
    }
}

impl Default for Alive {
    fn default() -> Alive {
        Alive::new()
    }
}

impl Memory for Alive {
    #[inline(always)]
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        let Some(last) = address.checked_add((into.len() as u64).saturating_sub(1)) else { return false };
        if !(address >> PAGE_SHIFT..=last >> PAGE_SHIFT).all(|page| self.is_readable(page)) {
            return false;
        }
        // SAFETY: the pages can be read, as the module says why.
        unsafe { copy(address, into) };
        true
    }

    #[inline(always)]
    fn word(&self, address: u64) -> Option<u64> {
        if !address.is_multiple_of(8) || !self.is_readable(address >> PAGE_SHIFT) {
            return None;
        }
        // SAFETY: as above, and it lies in one page. Volatile, as another thread may write it.
        Some(unsafe { (address as *const u64).read_volatile() })
    }
}

/// The calling thread's stack, as the C library made it. A thread that runs on another one (a fibre's) has nothing in here.
#[derive(Clone, Copy, Debug, Default)]
pub struct ThisStack {
    low: u64,
    high: u64,
}

impl ThisStack {
    /// The calling thread's. To be asked once a thread: it may allocate and read files.
    pub fn find() -> ThisStack {
        let _errno = Errno::kept();
        let mut attributes = std::mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
        let (mut low, mut bytes) = (std::ptr::null_mut(), 0);
        // SAFETY: the attributes are written by the first call, if it succeeds, and used only then.
        unsafe {
            if libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) != 0 {
                return ThisStack::default();
            }
            let found = libc::pthread_attr_getstack(attributes.as_ptr(), &raw mut low, &raw mut bytes);
            libc::pthread_attr_destroy(attributes.as_mut_ptr());
            if found != 0 {
                return ThisStack::default();
            }
        }
        ThisStack { low: low as u64, high: (low as u64).saturating_add(bytes as u64) }
    }

    /// Whether so many bytes from this address lie on it, above where the thread is now.
    #[inline(always)]
    pub fn holds(&self, address: u64, bytes: usize) -> bool {
        let here = 0u8;
        let here = (&raw const here) as u64;
        let Some(end) = address.checked_add(bytes as u64) else { return false };
        self.low <= here && here <= address && end <= self.high
    }
}

/// Memory in which what could be read before can be read again.
pub trait Again: Memory {
    /// The eight bytes at an address.
    ///
    /// # Safety
    ///
    /// They have been read there before, and what lies there lives: see the module.
    unsafe fn again(&self, address: u64) -> Option<u64>;
}

impl Again for Alive {
    #[inline(always)]
    unsafe fn again(&self, address: u64) -> Option<u64> {
        // SAFETY: see above.
        Some(unsafe { (address as *const u64).read_volatile() })
    }
}

impl Again for Guarded {
    unsafe fn again(&self, address: u64) -> Option<u64> {
        self.word(address)
    }
}

/// Where arguments of the calling thread's calls point to.
#[derive(Clone, Copy, Debug)]
pub struct Arguments {
    /// Its stack, for what lies there.
    pub stack: ThisStack,
    /// For everything else.
    pub guarded: Guarded,
}

impl Memory for Arguments {
    #[inline(always)]
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        if self.stack.holds(address, into.len()) {
            // SAFETY: it lies on the stack that this runs on.
            unsafe { copy(address, into) };
            return true;
        }
        self.guarded.read(address, into)
    }
}

impl Arguments {
    /// Copies a string with its end; as much of it as there is room for. How many bytes that is; 0 where it could not be read.
    pub fn string(&self, address: u64, into: &mut [u8]) -> usize {
        let mut length = 0;
        while length < into.len() {
            let at = address.wrapping_add(length as u64);
            // Not beyond its page before it is known that it goes on there.
            let page_left = (PAGE_BYTES - at % PAGE_BYTES) as usize;
            let step = page_left.min(into.len() - length);
            let piece = &mut into[length..length + step];
            if !self.read(at, piece) {
                return 0;
            }
            if let Some(end) = piece.iter().position(|&byte| byte == 0) {
                return length + end + 1;
            }
            length += step;
        }
        length
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// Pages of memory, to do with as one likes.
    struct Pages(u64, usize);

    impl Pages {
        fn new(pages: usize) -> Pages {
            let bytes = pages * PAGE_BYTES as usize;
            let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            // SAFETY: new memory.
            let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, flags, -1, 0) };
            assert_ne!(at, libc::MAP_FAILED);
            Pages(at as u64, bytes)
        }

        fn page(&self, number: usize) -> *mut c_void {
            (self.0 + number as u64 * PAGE_BYTES) as *mut c_void
        }

        fn fill(&self, byte: u8) {
            // SAFETY: all is mapped, and nobody else looks at it.
            unsafe { std::ptr::write_bytes(self.0 as *mut u8, byte, self.1) };
        }

        fn unmap(&self, number: usize) {
            // SAFETY: nobody reads it but through what is tested.
            assert_eq!(unsafe { libc::munmap(self.page(number), PAGE_BYTES as usize) }, 0);
        }

        fn forbid(&self, number: usize) {
            // SAFETY: as above.
            assert_eq!(unsafe { libc::mprotect(self.page(number), PAGE_BYTES as usize, libc::PROT_NONE) }, 0);
        }
    }

    impl Drop for Pages {
        fn drop(&mut self) {
            // SAFETY: as above.
            unsafe { libc::munmap(self.page(0), self.1) };
        }
    }

    fn guarded() -> Guarded {
        Guarded { pid: std::process::id() }
    }

    fn arguments() -> Arguments {
        Arguments { stack: ThisStack::find(), guarded: guarded() }
    }

    /// What every way says of so many bytes.
    fn read(address: u64, bytes: usize) -> [Option<Vec<u8>>; 4] {
        let by = |memory: &dyn Fn(&mut [u8]) -> bool| {
            let mut into = vec![0; bytes];
            memory(&mut into).then_some(into)
        };
        [
            by(&|into| guarded().read(address, into)),
            by(&|into| arguments().read(address, into)),
            by(&|into| Alive::new().read(address, into)),
            by(&|into| read_checked(address, into)),
        ]
    }

    #[test]
    fn what_is_there_is_read_and_what_is_not_is_refused() {
        let pages = Pages::new(4);
        pages.fill(7);
        pages.unmap(1);
        pages.forbid(3);
        let at = |page: u64, offset: u64| pages.0 + page * PAGE_BYTES + offset;
        for (address, bytes, is_there) in [
            (at(0, 0), 4096, true),
            (at(0, 4088), 8, true),
            (at(0, 4089), 8, false),
            (at(1, 0), 1, false),
            (at(2, 100), 3000, true),
            (at(2, 4000), 97, false),
            (at(3, 0), 8, false),
            (0, 8, false),
            (8, 8, false),
            (u64::MAX - 3, 8, false),
            (u64::MAX - 7, 8, false),
            (1 << 47, 8, false),
            (0xdead_beef_dead_beef, 8, false),
            (0xffff_8000_0000_0000, 8, false),
        ] {
            let expected = is_there.then(|| vec![7; bytes]);
            assert_eq!(read(address, bytes), [const { None }; 4].map(|_: Option<()>| expected.clone()), "{address:#x}");
        }
        assert_eq!(Alive::new().word(at(0, 8)), Some(0x0707_0707_0707_0707));
        assert_eq!([at(0, 4), at(1, 0), 0].map(|address| Alive::new().word(address)), [None; 3]);
    }

    #[test]
    fn what_goes_while_it_is_read_is_refused() {
        // Many times as likely to crash as not, if the kernel did not copy.
        let pages = Pages::new(2);
        pages.fill(1);
        let ends = AtomicBool::new(false);
        let (mut there, mut gone) = (0, 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    pages.unmap(1);
                    let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
                    // SAFETY: the place is this test's.
                    unsafe { libc::mmap(pages.page(1), 4096, access, flags | libc::MAP_FIXED, -1, 0) };
                }
            });
            let begun = std::time::Instant::now();
            while (there == 0 || gone == 0) && begun.elapsed().as_secs() < 10 || there + gone < 10_000 {
                match guarded().read(pages.0 + 4096, &mut [0; 64]) {
                    true => there += 1,
                    false => gone += 1,
                }
            }
            ends.store(true, Ordering::Relaxed);
        });
        assert!(there > 0 && gone > 0, "{there} {gone}");
    }

    #[test]
    fn a_string_ends_with_its_end_or_with_the_room_and_not_with_its_page() {
        let pages = Pages::new(3);
        pages.fill(b'a');
        pages.unmap(2);
        let end = (pages.0 + 5000) as *mut u8;
        // SAFETY: within.
        unsafe { end.write(0) };
        let length = |address: u64, room: usize| arguments().string(address, &mut vec![0; room]);
        assert_eq!(length(pages.0 + 4000, 4096), 1001);
        assert_eq!(length(pages.0 + 4000, 96), 96);
        assert_eq!(length(pages.0 + 4000, 97), 97);
        // One without an end, and none.
        assert_eq!(length(pages.0 + 6000, 4096), 0);
        assert_eq!(length(0, 4096), 0);
    }

    #[test]
    fn only_what_lies_above_on_the_same_stack_is_on_it() {
        let stack = ThisStack::find();
        let above = [1u8; 64];
        let address = above.as_ptr() as u64;
        assert!(stack.holds(address, 64));
        assert!(!stack.holds(Box::new(1u8).as_ref() as *const u8 as u64, 1));
        assert!(!stack.holds(stack.high - 8, 9) && stack.holds(stack.high - 8, 8));
        assert!(!stack.holds(u64::MAX, 9) && !stack.holds(stack.low, 8));
        let is_held = std::thread::scope(|scope| scope.spawn(|| ThisStack::find().holds(address, 64)).join().unwrap());
        assert!(!is_held, "it is another thread's");
        assert!(!ThisStack::default().holds(address, 64));
    }

    #[test]
    fn errno_stays_what_it_was() {
        // SAFETY: the thread's own.
        unsafe { *libc::__errno_location() = 1234 };
        assert_eq!(read(8, 8), [const { None }; 4]);
        ThisStack::find();
        assert_eq!(Errno::now(), 1234);
    }
}
