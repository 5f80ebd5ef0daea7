//! The driver's functions that events take, as the driver itself has them: not this library's functions of the same names.

use std::ffi::{CStr, c_void};
use std::mem::transmute;
use std::sync::OnceLock;

use super::interpose::find_beside;
use super::own;

/// A `CUcontext`, `CUstream` or `CUevent`.
pub(super) type Handle = u64;

/// What functions answer.
pub(super) const SUCCESS: u32 = 0;
/// As yet.
pub(super) const NOT_READY: u32 = 600;

/// `CU_STREAM_NON_BLOCKING`: nothing of the program's waits for what is in it, or is waited for.
const NON_BLOCKING: u32 = 1;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`: this thread's calls are no matter of anybody's capture.
const RELAXED: u32 = 2;
/// `CU_STREAM_CAPTURE_STATUS_NONE`.
const NOT_CAPTURING: u32 = 0;

macro_rules! functions {
    ($($symbol:ident($($argument:ty),*);)*) => {
        #[expect(non_snake_case, reason = "the driver's names")]
        #[derive(Debug)]
        pub(super) struct Driver {
            $($symbol: unsafe extern "C" fn($($argument),*) -> u32,)*
        }

        impl Driver {
            fn load() -> Option<Driver> {
                Some(Driver {
                    // SAFETY: the driver's function of this name has had these arguments since there is one.
                    $($symbol: unsafe {
                        transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> u32>(
                            find_beside(const { name(concat!(stringify!($symbol), "\0")) })?
                        )
                    },)*
                })
            }
        }
    };
}

functions! {
    cuCtxGetCurrent(*mut Handle);
    cuCtxGetDevice(*mut i32);
    cuCtxPushCurrent_v2(Handle);
    cuCtxPopCurrent_v2(*mut Handle);
    cuDevicePrimaryCtxGetState(i32, *mut u32, *mut i32);
    cuStreamCreate(*mut Handle, u32);
    cuStreamIsCapturing(Handle, *mut u32);
    cuStreamIsCapturing_ptsz(Handle, *mut u32);
    cuThreadExchangeStreamCaptureMode(*mut u32);
    cuEventCreate(*mut Handle, u32);
    cuEventRecord(Handle, Handle);
    cuEventRecord_ptsz(Handle, Handle);
    cuEventQuery(Handle);
    cuEventElapsedTime(*mut f32, Handle, Handle);
}

const fn name(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("one NUL, at the end"),
    }
}

/// Whether a stream is captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Capture {
    No,
    Yes,
    /// The driver does not say: of the legacy stream it cannot while another captures, and nothing may go into it then.
    Unknown,
}

impl Driver {
    /// The driver. `None` for one that is too old, before CUDA 10.1.
    pub(super) fn get() -> Option<&'static Driver> {
        static DRIVER: OnceLock<Option<Driver>> = OnceLock::new();
        DRIVER.get_or_init(Driver::load).as_ref()
    }

    /// This thread's context; 0 for none.
    #[inline(always)]
    pub(super) fn current(&self) -> Handle {
        let mut context = 0;
        // SAFETY: writes one handle.
        unsafe { (self.cuCtxGetCurrent)(&raw mut context) };
        context
    }

    /// The number of the current context's device.
    pub(super) fn device(&self) -> Option<u32> {
        let mut device = 0;
        // SAFETY: writes one number.
        let answer = unsafe { (self.cuCtxGetDevice)(&raw mut device) };
        (answer == SUCCESS).then_some(device as u32)
    }

    /// Whether a device's primary context is there.
    pub(super) fn has_primary(&self, device: i32) -> bool {
        let (mut flags, mut is_active) = (0, 0);
        // SAFETY: writes two numbers.
        let answer = unsafe { (self.cuDevicePrimaryCtxGetState)(device, &raw mut flags, &raw mut is_active) };
        answer == SUCCESS && is_active != 0
    }

    /// Whether a stream is captured; `per_thread` says which one 0 is.
    #[inline(always)]
    pub(super) fn capture(&self, stream: Handle, per_thread: bool) -> Capture {
        let ask = if per_thread { self.cuStreamIsCapturing_ptsz } else { self.cuStreamIsCapturing };
        let mut status = NOT_CAPTURING;
        // SAFETY: writes one number; the stream is one that the program launches into.
        match (unsafe { ask(stream, &raw mut status) }, status) {
            (SUCCESS, NOT_CAPTURING) => Capture::No,
            (SUCCESS, _) => Capture::Yes,
            _ => Capture::Unknown,
        }
    }

    /// Records an event into a stream.
    #[inline(always)]
    pub(super) fn record(&self, event: Handle, stream: Handle, per_thread: bool) -> bool {
        let record = if per_thread { self.cuEventRecord_ptsz } else { self.cuEventRecord };
        // SAFETY: an event of ours; the stream is one that the program launches into, or ours.
        own(|| unsafe { record(event, stream) }) == SUCCESS
    }

    /// What the driver says of an event: whether all before it is over.
    pub(super) fn query(&self, event: Handle) -> u32 {
        // SAFETY: an event of ours.
        unsafe { (self.cuEventQuery)(event) }
    }

    /// How long after one event another was, in nanoseconds: of those that are over. To a float's precision of milliseconds.
    pub(super) fn elapsed_ns(&self, from: Handle, to: Handle) -> Option<i64> {
        let mut milliseconds = 0f32;
        // SAFETY: writes one number; both events are ours.
        let answer = unsafe { (self.cuEventElapsedTime)(&raw mut milliseconds, from, to) };
        (answer == SUCCESS).then(|| (f64::from(milliseconds) * 1e6).round() as i64)
    }

    /// A new event, in the current context. One that nobody sleeps for, with a time.
    pub(super) fn new_event(&self) -> Option<Handle> {
        let mut event = 0;
        // SAFETY: writes one handle.
        let answer = unsafe { (self.cuEventCreate)(&raw mut event, 0) };
        (answer == SUCCESS).then_some(event)
    }

    /// A new stream that has nothing to do with others.
    pub(super) fn new_stream(&self) -> Option<Handle> {
        let mut stream = 0;
        // SAFETY: writes one handle.
        let answer = unsafe { (self.cuStreamCreate)(&raw mut stream, NON_BLOCKING) };
        (answer == SUCCESS).then_some(stream)
    }

    /// Makes calls for the library itself that a capture of the program's would else be ended by.
    pub(super) fn aside<R>(&self, calls: impl FnOnce() -> R) -> R {
        own(|| {
            let mut mode = RELAXED;
            // SAFETY: reads and writes one number.
            let answer = unsafe { (self.cuThreadExchangeStreamCaptureMode)(&raw mut mode) };
            let result = calls();
            if answer == SUCCESS {
                // SAFETY: as above.
                unsafe { (self.cuThreadExchangeStreamCaptureMode)(&raw mut mode) };
            }
            result
        })
    }

    /// Makes calls in a context, as [`Driver::aside`]. `None` if it cannot be had.
    pub(super) fn within<R>(&self, context: Handle, calls: impl FnOnce() -> R) -> Option<R> {
        self.aside(|| {
            // SAFETY: a context that has not ended, as whoever ends one says so before.
            if unsafe { (self.cuCtxPushCurrent_v2)(context) } != SUCCESS {
                return None;
            }
            let result = calls();
            let mut popped = 0;
            // SAFETY: writes one handle.
            unsafe { (self.cuCtxPopCurrent_v2)(&raw mut popped) };
            Some(result)
        })
    }
}
