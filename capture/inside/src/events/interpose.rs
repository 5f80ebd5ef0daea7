//! Standing between the program and the driver: this library's functions of the driver's names, and how the program comes to them.
//!
//! A program gets the driver's functions in three ways: by `dlsym`, by `cuGetProcAddress`, or by being linked to the driver. So a library
//! that is preloaded has a `dlsym` of its own, which hands out this library's functions for the few names below; so does its
//! `cuGetProcAddress`; and it exports these names. Everything else is the driver's own, and the C library's: what this `dlsym` does not
//! answer goes on to the real one with a jump, so that it still sees who has called (`RTLD_NEXT` and `RTLD_DEFAULT` depend on it).
//!
//! Where the library was loaded in another way (by the driver, by NVTX) nobody is led here, as its names are not in the global scope; and in
//! a process without a recorder the real ones are handed out.
//!
//! Each function calls the driver's that was found under its name. One of a second copy of the driver in the process is handed out
//! as it is.

use std::ffi::{CStr, c_char, c_void};
use std::mem::transmute;
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use ktape_ebpf::inside::FunctionEntry;

use super::driver::Handle;
use super::launch;
use crate::guest::{self, Guest};

/// What a function answers whose driver is not there.
const NOT_INITIALIZED: u32 = 3;
/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`.
const PER_THREAD: u64 = 2;

/// One that is stood in for.
#[derive(Debug)]
pub(super) struct Function {
    /// As the driver exports it.
    symbol: &'static CStr,
    /// Ours.
    own: *const c_void,
    /// The driver's, once it was found.
    real: AtomicPtr<c_void>,
    /// One more than its place in the recorder's table; 0 where it is not there.
    entry: AtomicU32,
    /// Whether stream 0 is the thread's own.
    pub(super) per_thread: bool,
}

// SAFETY: the pointer is a function's.
unsafe impl Sync for Function {}

impl Function {
    const fn new(symbol: &'static str, own: *const c_void) -> Function {
        let bytes = symbol.as_bytes();
        let Ok(symbol) = CStr::from_bytes_with_nul(bytes) else { panic!("one NUL, at the end") };
        let end = bytes.len();
        let per_thread = end > 6 && matches!(bytes.split_at(end - 6).1, b"_ptsz\0");
        Function { symbol, own, real: AtomicPtr::new(null_mut()), entry: AtomicU32::new(0), per_thread }
    }

    /// The driver's function.
    #[inline(always)]
    fn real(&self) -> Option<*mut c_void> {
        let real = self.real.load(Ordering::Acquire);
        if real.is_null() { self.find() } else { Some(real) }
    }

    /// The program is linked to the driver: nobody has asked for it by name.
    #[cold]
    fn find(&self) -> Option<*mut c_void> {
        let found = find_beside(self.symbol)?;
        self.stand_in(found)?;
        Some(self.real.load(Ordering::Acquire))
    }

    /// Ours in place of what was found under the name. `None` where that is ours already, or another copy's.
    fn stand_in(&self, found: *mut c_void) -> Option<*const c_void> {
        if found.is_null() || std::ptr::eq(found, self.own) {
            return None;
        }
        match self.real.compare_exchange(null_mut(), found, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Some(self.own),
            // `cuGetProcAddress` may have another entrance to the same.
            Err(known) if known == found || library_of(known) == library_of(found) => Some(self.own),
            Err(_) => None,
        }
    }

    /// Its entry in the recorder's table.
    #[inline(always)]
    pub(super) fn entry<'guest>(&self, guest: &'guest Guest) -> Option<&'guest FunctionEntry> {
        guest.functions.get((self.entry.load(Ordering::Relaxed) as usize).checked_sub(1)?)
    }
}

/// Finds the functions in the recorder's table.
pub(super) fn prepare(guest: &Guest) {
    for function in FUNCTIONS {
        let entry = launch::entry_of(guest, function.symbol.to_bytes()).map_or(0, |index| index + 1);
        function.entry.store(entry as u32, Ordering::Relaxed);
    }
}

/// Where the library lies that has this address.
fn library_of(address: *const c_void) -> *mut c_void {
    about(address).map_or(null_mut(), |about| about.dli_fbase)
}

fn about(address: *const c_void) -> Option<libc::Dl_info> {
    let mut about = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: writes the structure.
    unsafe { (libc::dladdr(address, about.as_mut_ptr()) != 0).then(|| about.assume_init()) }
}

/// The driver's own function of this name: of the copy that the program launches with, where that is known.
pub(super) fn find_beside(symbol: &CStr) -> Option<*mut c_void> {
    let known = FUNCTIONS.iter().map(|function| function.real.load(Ordering::Acquire)).find(|real| !real.is_null());
    let path = known.and_then(|known| about(known)).map_or(c"libcuda.so.1".as_ptr(), |about| about.dli_fname);
    // SAFETY: a C string. Only where it is loaded already: nothing is run. The handle is kept, which does the same as nothing.
    let library = unsafe { libc::dlopen(path, libc::RTLD_NOW | libc::RTLD_NOLOAD) };
    if library.is_null() {
        return None;
    }
    // SAFETY: a handle and a C string.
    let found = unsafe { real_dlsym()?(library, symbol.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// Whether programs are led here: the library's names are in the global scope.
pub(super) fn is_preloaded() -> bool {
    // SAFETY: the program itself, with what it was started with; C strings. Only whether there is such a name matters.
    unsafe {
        let program = libc::dlopen(null_mut(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
        real_dlsym().is_some_and(|dlsym| !dlsym(program, c"KTAPE_INSIDE_LAYOUT".as_ptr()).is_null())
    }
}

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// The C library's `dlsym`; null before it was looked for. Read by the jump in [`dlsym`].
static REAL_DLSYM: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

fn real_dlsym() -> Option<Dlsym> {
    let mut real = REAL_DLSYM.load(Ordering::Acquire);
    if real.is_null() {
        // Behind this library, by the version that it has had from the beginning.
        // SAFETY: two C strings.
        real = unsafe { libc::dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), c"GLIBC_2.2.5".as_ptr()) };
        REAL_DLSYM.store(real, Ordering::Release);
    }
    // SAFETY: null, or the function of this name.
    unsafe { transmute::<*mut c_void, Option<Dlsym>>(real) }
}

/// The C library's function of this name, but for the driver's launches. Not in unit tests, whose own it would become; in other programs that
/// have this crate it only jumps.
///
/// # Safety
///
/// As the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void {
    std::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {choose}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jnz 2f",
        // The caller's return address is on the top of the stack, as it has called.
        "mov rax, [rip + {real}]",
        "test rax, rax",
        "jz 2f",
        "jmp rax",
        "2: ret",
        choose = sym choose,
        real = sym REAL_DLSYM,
    )
}

/// What this library's `dlsym` answers by itself; null for what is the real one's to answer. Nothing in here allocates: allocators ask too.
extern "C" fn choose(library: *mut c_void, name: *const c_char) -> *const c_void {
    let Some(real) = real_dlsym() else { return null_mut() };
    // By the scope of who asks: it finds this library's name there, if the driver's is.
    if name.is_null() || library == libc::RTLD_DEFAULT || library == libc::RTLD_NEXT {
        return null_mut();
    }
    // SAFETY: a C string, as the caller says.
    let text = unsafe { CStr::from_ptr(name) };
    let Some(function) = function(text).filter(|_| has_recorder()) else { return null_mut() };
    // SAFETY: what the caller asks for. What is not found the real one says again, with the reason.
    let found = unsafe { real(library, name) };
    function.stand_in(found).unwrap_or(null_mut())
}

fn function(symbol: &CStr) -> Option<&'static Function> {
    let is_of_driver = symbol.to_bytes().starts_with(b"cu");
    is_of_driver.then(|| FUNCTIONS.iter().find(|function| function.symbol == symbol)).flatten().copied()
}

/// Whether there is a recorder for this process, as its environment said when it was first looked; the library may have taken the variable away
/// by then.
fn has_recorder() -> bool {
    static KNOWN: OnceLock<bool> = OnceLock::new();
    // SAFETY: a C string.
    *KNOWN.get_or_init(|| guest::current().is_some() || !unsafe { libc::getenv(VARIABLE.as_ptr()) }.is_null())
}

/// [`DIRECTORY_VARIABLE`](ktape_ebpf::inside::DIRECTORY_VARIABLE).
const VARIABLE: &CStr = c"KTAPE_INSIDE";

/// What `cuGetProcAddress` is asked for and found, as this library answers.
///
/// # Safety
///
/// `found` is null or where the driver wrote what it had found under `name`, a C string.
unsafe fn stand_in(name: *const c_char, found: *mut *mut c_void, version: i32, flags: u64) {
    if name.is_null() || found.is_null() || !has_recorder() {
        return;
    }
    // SAFETY: as this function's caller says.
    let (name, found) = unsafe { (CStr::from_ptr(name).to_bytes(), &mut *found) };
    let is_it = |function: &&Function| {
        let symbol = function.symbol.to_bytes();
        let base = if flags & PER_THREAD != 0 { symbol.strip_suffix(b"_ptsz") } else { None };
        let base = base.or_else(|| symbol.strip_suffix(b"_v2")).unwrap_or(symbol);
        base == name
    };
    // Of several the last one: the newer version, and the thread's own stream where that is asked for.
    let of_name = FUNCTIONS.iter().copied().rfind(is_it);
    // The one of before CUDA 12 has fewer arguments.
    let is_older = name == b"cuGetProcAddress" && version < 12_000;
    let function = if is_older { function(c"cuGetProcAddress") } else { of_name };
    if let Some(own) = function.and_then(|function| function.stand_in(*found)) {
        *found = own.cast_mut();
    }
}

/// The beginning of a `CUlaunchConfig`.
#[repr(C)]
#[derive(Debug)]
pub struct LaunchConfig {
    shape: [u32; 7],
    stream: Handle,
}

/// A pointer that is handed on.
type Pointer = *mut c_void;

/// `symbol(arguments) => what(argument)`: this library's function, which does that around the driver's.
macro_rules! functions {
    ($($symbol:ident($($argument:ident: $type:ty),*) => $what:ident($($with:expr)?);)*) => {
        /// All of them.
        static FUNCTIONS: &[&Function] = &[$(&$symbol::FUNCTION),*];

        $(
            #[expect(non_snake_case, reason = "named as the driver's")]
            mod $symbol {
                use super::*;

                pub(super) static FUNCTION: Function =
                    Function::new(concat!(stringify!($symbol), "\0"), $symbol as *const c_void);

                /// The arguments as a C structure has them.
                #[repr(C)]
                #[derive(Clone, Copy)]
                struct Arguments {
                    $($argument: $type),*
                }

                #[cfg_attr(not(test), unsafe(no_mangle))]
                unsafe extern "C-unwind" fn $symbol($($argument: $type),*) -> u32 {
                    let arguments = Arguments { $($argument),* };
                    let Some(real) = FUNCTION.real() else { return NOT_INITIALIZED };
                    // SAFETY: the driver's function of this name has these arguments.
                    let real = unsafe { transmute::<Pointer, unsafe extern "C-unwind" fn($($type),*) -> u32>(real) };
                    // SAFETY: what the program has called it with.
                    let call = || unsafe { real($($argument),*) };
                    functions!(@$what call, arguments, ($($with)?))
                }
            }
        )*
    };
    (@launch $call:ident, $arguments:ident, ($stream:expr)) => {
        launch::launch(&FUNCTION, (&raw const $arguments).cast(), $stream, $call)
    };
    (@graph $call:ident, $arguments:ident, ()) => {
        launch::graph(&FUNCTION, (&raw const $arguments).cast(), $call)
    };
    (@explain $call:ident, $arguments:ident, ()) => {
        launch::explain(&FUNCTION, (&raw const $arguments).cast(), $call)
    };
    (@destroy_context $call:ident, $arguments:ident, ($context:expr)) => {{
        let _ = $arguments;
        launch::destroy_context($context, $call)
    }};
    (@end_primary $call:ident, $arguments:ident, ($device:expr)) => {{
        let _ = $arguments;
        launch::end_primary($device, $call)
    }};
    (@get_proc_address $call:ident, $arguments:ident, ($found:expr)) => {{
        let _ = $arguments;
        let answer = $call();
        let (name, found, version, flags) = $found;
        if answer == 0 {
            // SAFETY: as the driver was called with them, which has written there.
            unsafe { stand_in(name, found, version, flags) };
        }
        answer
    }};
}

functions! {
    cuGetProcAddress(name: *const c_char, found: *mut Pointer, version: i32, flags: u64)
        => get_proc_address((name, found, version, flags));
    cuGetProcAddress_v2(name: *const c_char, found: *mut Pointer, version: i32, flags: u64, status: Pointer)
        => get_proc_address((name, found, version, flags));
    cuLaunchKernel(
        function: Handle, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32, shared_bytes: u32,
        stream: Handle, parameters: Pointer, extra: Pointer
    ) => launch((stream, function));
    cuLaunchKernel_ptsz(
        function: Handle, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32, shared_bytes: u32,
        stream: Handle, parameters: Pointer, extra: Pointer
    ) => launch((stream, function));
    cuLaunchKernelEx(config: *const LaunchConfig, function: Handle, parameters: Pointer, extra: Pointer)
        => launch((stream_of(config), function));
    cuLaunchKernelEx_ptsz(config: *const LaunchConfig, function: Handle, parameters: Pointer, extra: Pointer)
        => launch((stream_of(config), function));
    cuLaunchCooperativeKernel(
        function: Handle, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32, shared_bytes: u32,
        stream: Handle, parameters: Pointer
    ) => launch((stream, function));
    cuLaunchCooperativeKernel_ptsz(
        function: Handle, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32, shared_bytes: u32,
        stream: Handle, parameters: Pointer
    ) => launch((stream, function));
    cuGraphLaunch(graph: Handle, stream: Handle) => graph();
    cuGraphLaunch_ptsz(graph: Handle, stream: Handle) => graph();
    cuModuleGetFunction(function: *mut Handle, module: Handle, name: *const c_char) => explain();
    cuLibraryGetKernel(kernel: *mut Handle, library: Handle, name: *const c_char) => explain();
    cuKernelGetFunction(function: *mut Handle, kernel: Handle) => explain();
    cuCtxDestroy(context: Handle) => destroy_context(context);
    cuCtxDestroy_v2(context: Handle) => destroy_context(context);
    cuDevicePrimaryCtxReset(device: i32) => end_primary(device);
    cuDevicePrimaryCtxReset_v2(device: i32) => end_primary(device);
    cuDevicePrimaryCtxRelease(device: i32) => end_primary(device);
    cuDevicePrimaryCtxRelease_v2(device: i32) => end_primary(device);
}

/// The stream of a launch by configuration. Of none at all the driver says what it thinks of it.
#[inline(always)]
fn stream_of(config: *const LaunchConfig) -> Handle {
    // SAFETY: null, or what the program launches by.
    unsafe { config.as_ref() }.map_or(0, |config| config.stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stands_in(name: &CStr, version: i32, flags: u64) -> Option<&'static str> {
        let mut found = std::ptr::without_provenance_mut(0x1000);
        // SAFETY: a C string, and a place.
        unsafe { stand_in(name.as_ptr(), &raw mut found, version, flags) };
        FUNCTIONS
            .iter()
            .find(|function| std::ptr::eq(function.own, found))
            .map(|function| function.symbol.to_str().unwrap())
    }

    #[test]
    fn who_asks_for_the_drivers_functions_gets_those_of_the_default_stream_and_version_that_are_meant() {
        // SAFETY: no other test of this program has to do with this variable.
        unsafe { std::env::set_var("KTAPE_INSIDE", "/nowhere") };
        assert_eq!(stands_in(c"cuLaunchKernel", 12_000, 0), Some("cuLaunchKernel"));
        assert_eq!(stands_in(c"cuLaunchKernel", 12_000, 1), Some("cuLaunchKernel"));
        assert_eq!(stands_in(c"cuLaunchKernel", 12_000, PER_THREAD), Some("cuLaunchKernel_ptsz"));
        assert_eq!(stands_in(c"cuCtxDestroy", 12_000, PER_THREAD), Some("cuCtxDestroy_v2"));
        assert_eq!(stands_in(c"cuGetProcAddress", 12_000, 0), Some("cuGetProcAddress_v2"));
        assert_eq!(stands_in(c"cuGetProcAddress", 11_030, 0), Some("cuGetProcAddress"));
        assert_eq!(stands_in(c"cuMemAlloc", 12_000, 0), None);
    }
}
