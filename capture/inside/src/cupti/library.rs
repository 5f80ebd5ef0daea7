//! CUPTI's functions, found by name in the file that was loaded.
//!
//! `cudarc` has bindings to all of them and loads CUPTI too, but only by the names that the loader knows (in a Python environment it
//! does not lie where that looks), it panics where the library lacks a function, and its functions return Rust enums, which a
//! library newer than they are can fill with what is no value of theirs. So of `cudarc` the names of numbers are used, and numbers go in
//! and out here.

use std::error::Error as _;
use std::ffi::{CStr, OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::ptr::null_mut;

use cudarc::cupti::sys::{
    CUpti_ActivityAttribute, CUpti_ActivityFlag, CUpti_ActivityKind, CUpti_CallbackDomain, CUptiResult,
};
use libloading::os::unix;

pub(crate) const DOMAIN_DRIVER_API: u32 = CUpti_CallbackDomain::CUPTI_CB_DOMAIN_DRIVER_API as u32;
pub(crate) const KIND_KERNEL: u32 = CUpti_ActivityKind::CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL as u32;
pub(crate) const KIND_COPY: u32 = CUpti_ActivityKind::CUPTI_ACTIVITY_KIND_MEMCPY as u32;
pub(crate) const KIND_PEER_COPY: u32 = CUpti_ActivityKind::CUPTI_ACTIVITY_KIND_MEMCPY2 as u32;
pub(crate) const KIND_SET: u32 = CUpti_ActivityKind::CUPTI_ACTIVITY_KIND_MEMSET as u32;
pub(crate) const KIND_OVERHEAD: u32 = CUpti_ActivityKind::CUPTI_ACTIVITY_KIND_OVERHEAD as u32;
pub(crate) const ZEROED_BUFFERS: u32 = CUpti_ActivityAttribute::CUPTI_ACTIVITY_ATTR_ZEROED_OUT_ACTIVITY_BUFFER as u32;
const FLUSH_FORCED: u32 = CUpti_ActivityFlag::CUPTI_ACTIVITY_FLAG_FLUSH_FORCED as u32;
const SUCCESS: u32 = CUptiResult::CUPTI_SUCCESS as u32;
const END_OF_BUFFER: u32 = CUptiResult::CUPTI_ERROR_MAX_LIMIT_REACHED as u32;
const OTHER_CLIENT: u32 = CUptiResult::CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED as u32;

/// The version of CUDA 11.8: records of older ones are shorter.
const OLDEST: u32 = 18;

/// What CUPTI refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// The function, and what it was asked for.
    pub(crate) what: &'static str,
    /// Its answer.
    pub(crate) code: u32,
}

impl Refusal {
    /// Whether the reason is another client of CUPTI's.
    pub(crate) fn is_other_client(self) -> bool {
        self.code == OTHER_CLIENT
    }
}

fn asked(what: &'static str, code: u32) -> Result<(), Refusal> {
    if code == SUCCESS { Ok(()) } else { Err(Refusal { what, code }) }
}

/// A subscription to callbacks.
#[derive(Debug)]
pub(crate) struct SubscriberHandle(*mut c_void);

// SAFETY: a handle, which CUPTI takes on any thread.
unsafe impl Send for SubscriberHandle {}

/// A next record in a buffer.
pub(crate) enum Next {
    Record(*const u8),
    End,
    Unreadable,
}

pub(crate) type Called = extern "C" fn(*mut c_void, u32, u32, *const c_void);
pub(crate) type Request = extern "C" fn(*mut *mut u8, *mut usize, *mut usize);
pub(crate) type Complete = extern "C" fn(*mut c_void, u32, *mut u8, usize, usize);
pub(crate) type Timestamp = extern "C" fn() -> u64;

macro_rules! functions {
    ($($symbol:ident: fn($($argument:ty),*);)*) => {
        #[expect(non_snake_case, reason = "CUPTI's names")]
        #[derive(Debug)]
        struct Functions {
            $($symbol: Option<unsafe extern "C" fn($($argument),*) -> u32>,)*
        }

        impl Functions {
            /// SAFETY: the library is CUPTI.
            unsafe fn of(library: &unix::Library) -> Functions {
                Functions {
                    // SAFETY: the function has these arguments in all versions, and the library is never closed.
                    $($symbol: unsafe { library.get(concat!(stringify!($symbol), "\0")) }.ok().map(|found| *found),)*
                }
            }
        }
    };
}

functions! {
    cuptiGetVersion: fn(*mut u32);
    cuptiSubscribe: fn(*mut *mut c_void, Called, *mut c_void);
    cuptiUnsubscribe: fn(*mut c_void);
    cuptiEnableCallback: fn(u32, *mut c_void, u32, u32);
    cuptiGetCallbackName: fn(u32, u32, *mut *const c_char);
    cuptiGetTimestamp: fn(*mut u64);
    cuptiActivityRegisterTimestampCallback: fn(Timestamp);
    cuptiActivitySetAttribute: fn(u32, *mut usize, *mut c_void);
    cuptiActivityRegisterCallbacks: fn(Request, Complete);
    cuptiActivityEnable: fn(u32);
    cuptiActivityDisable: fn(u32);
    cuptiActivityFlushAll: fn(u32);
    cuptiActivityGetNextRecord: fn(*mut u8, usize, *mut *mut u8);
    cuptiActivityGetNumDroppedRecords: fn(*mut c_void, u32, *mut usize);
}

/// Calls a function, or says that this CUPTI does not have it.
macro_rules! call {
    ($library:expr, $symbol:ident($($argument:expr),*)) => {
        match $library.functions.$symbol {
            // SAFETY: with what its documentation asks for; see each caller.
            Some(function) => unsafe { function($($argument),*) },
            None => CUptiResult::CUPTI_ERROR_NOT_SUPPORTED as u32,
        }
    };
}

/// CUPTI, loaded. It stays.
#[derive(Debug)]
pub(crate) struct Library {
    /// Its file.
    pub(crate) path: PathBuf,
    /// What it says it is: `CUPTI_API_VERSION` of its header.
    pub(crate) version: u32,
    functions: Functions,
}

impl Library {
    /// Loads a file, or one that is loaded already.
    pub(crate) fn load(path: &[u8]) -> Result<Library, String> {
        // SAFETY: CUPTI, or whatever the user has named: loading it runs its initialisers.
        let file = unsafe { unix::Library::open(Some(OsStr::from_bytes(path)), libc::RTLD_NOW | libc::RTLD_NODELETE) };
        // What the loader says is behind what `libloading` says, and names the file.
        let file = file.map_err(|error| error.source().unwrap_or(&error).to_string())?;
        // SAFETY: by its name and its functions it is CUPTI.
        let functions = unsafe { Functions::of(&file) };
        let mut library = Library { path: PathBuf::from(OsStr::from_bytes(path)), version: 0, functions };
        let mut version = 0;
        let answer = call!(library, cuptiGetVersion(&raw mut version));
        if answer != SUCCESS {
            return Err(format!("{}: cuptiGetVersion answers {answer}", library.path.display()));
        }
        if version < OLDEST {
            return Err(format!("{}: version {version} is older than CUDA 11.8", library.path.display()));
        }
        library.version = version;
        library.path = library.file().unwrap_or(library.path);
        std::mem::forget(file);
        Ok(library)
    }

    /// The file that the functions are in: the loader may have found it by a name alone.
    fn file(&self) -> Option<PathBuf> {
        let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
        // SAFETY: writes the structure, whose name is a C string that stays as long as the library.
        unsafe {
            let found = libc::dladdr(self.functions.cuptiGetVersion? as *const c_void, info.as_mut_ptr()) != 0;
            let name = info.assume_init().dli_fname;
            (found && !name.is_null()).then(|| PathBuf::from(OsStr::from_bytes(CStr::from_ptr(name).to_bytes())))
        }
    }

    pub(crate) fn subscribe(&self, called: Called) -> Result<SubscriberHandle, Refusal> {
        let mut handle = null_mut();
        asked("cuptiSubscribe", call!(self, cuptiSubscribe(&raw mut handle, called, super::NO_DATA)))?;
        Ok(SubscriberHandle(handle))
    }

    pub(crate) fn unsubscribe(&self, subscriber: SubscriberHandle) {
        let _ = call!(self, cuptiUnsubscribe(subscriber.0));
    }

    pub(crate) fn enable_callback(&self, subscriber: &SubscriberHandle, domain: u32, cbid: u32) -> Result<(), Refusal> {
        asked("cuptiEnableCallback", call!(self, cuptiEnableCallback(1, subscriber.0, domain, cbid)))
    }

    /// What a function is called. Valid for good.
    pub(crate) fn callback_name(&self, domain: u32, cbid: u32) -> Option<&'static CStr> {
        let mut name = std::ptr::null();
        let answer = call!(self, cuptiGetCallbackName(domain, cbid, &raw mut name));
        // SAFETY: a constant of CUPTI's.
        (answer == SUCCESS && !name.is_null()).then(|| unsafe { CStr::from_ptr(name) })
    }

    /// CUPTI's clock, as its records have it.
    pub(crate) fn timestamp(&self) -> Option<u64> {
        let mut time = 0;
        (call!(self, cuptiGetTimestamp(&raw mut time)) == SUCCESS).then_some(time)
    }

    pub(crate) fn take_timestamps_from(&self, clock: Timestamp) -> Result<(), Refusal> {
        let answer = call!(self, cuptiActivityRegisterTimestampCallback(clock));
        asked("cuptiActivityRegisterTimestampCallback", answer)
    }

    /// Sets an attribute that is a byte.
    pub(crate) fn set_attribute(&self, attribute: u32, mut value: u8) -> Result<(), Refusal> {
        let mut bytes = size_of::<u8>();
        let answer = call!(self, cuptiActivitySetAttribute(attribute, &raw mut bytes, (&raw mut value).cast()));
        asked("cuptiActivitySetAttribute", answer)
    }

    pub(crate) fn register_buffers(&self, request: Request, complete: Complete) -> Result<(), Refusal> {
        asked("cuptiActivityRegisterCallbacks", call!(self, cuptiActivityRegisterCallbacks(request, complete)))
    }

    pub(crate) fn enable(&self, what: &'static str, kind: u32) -> Result<(), Refusal> {
        asked(what, call!(self, cuptiActivityEnable(kind)))
    }

    pub(crate) fn disable(&self, kind: u32) {
        let _ = call!(self, cuptiActivityDisable(kind));
    }

    /// Has buffers handed over: those whose records are complete, or all.
    pub(crate) fn flush(&self, is_forced: bool) {
        let _ = call!(self, cuptiActivityFlushAll(if is_forced { FLUSH_FORCED } else { 0 }));
    }

    /// The record behind this one; behind null the first.
    pub(crate) fn next_record(&self, buffer: *mut u8, bytes: usize, record: *const u8) -> Next {
        let mut record = record.cast_mut();
        match call!(self, cuptiActivityGetNextRecord(buffer, bytes, &raw mut record)) {
            SUCCESS if !record.is_null() => Next::Record(record),
            END_OF_BUFFER => Next::End,
            _ => Next::Unreadable,
        }
    }

    /// How many records were dropped since this was asked last.
    pub(crate) fn dropped(&self) -> u64 {
        let mut count = 0;
        match call!(self, cuptiActivityGetNumDroppedRecords(null_mut(), 0, &raw mut count)) {
            SUCCESS => count as u64,
            _ => 0,
        }
    }
}
