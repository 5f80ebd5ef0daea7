//! What CUPTI hands over when a call is entered and left, and who takes it.
//!
//! Read through a structure of our own: the fields are those of `CUpti_CallbackData`, the same in all versions from CUDA 11.8 on,
//! but whatever number a newer version puts where its header has an enum, here it is a number.

use std::cell::Cell;
use std::ffi::{c_char, c_void};
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicU32, Ordering};

use ktape_ebpf::inside::FunctionEntry;

use super::library::{DOMAIN_DRIVER_API, Library, Refusal, SubscriberHandle};
use crate::{announce, calls, events, guest, rings};

/// A call, as CUPTI tells of it: `CUpti_CallbackData`.
#[repr(C)]
#[derive(Debug)]
pub struct CallbackData {
    /// [`ENTER`] or [`EXIT`].
    pub site: u32,
    /// The function's symbol. Stays valid.
    pub function_name: *const c_char,
    /// Its arguments, packed as a C structure of them would be.
    pub function_params: *const c_void,
    /// Points to the call's `CUresult`, at [`EXIT`].
    pub function_return_value: *const c_void,
    /// At launches the kernel's mangled name, else nothing that can be read.
    pub symbol_name: *const c_char,
    /// The thread's current context, or null.
    pub context: *const c_void,
    /// CUPTI's number of that context.
    pub context_uid: u32,
    /// A word that belongs to this call: what is left there at [`ENTER`] is there at [`EXIT`].
    pub correlation_data: *mut u64,
    /// CUPTI's id of the call, which its activity records carry too.
    pub correlation_id: u32,
}

/// The call begins: nothing of it has been done yet.
pub const ENTER: u32 = 0;
/// The call has ended, and its result is there.
pub const EXIT: u32 = 1;

thread_local! {
    /// CUPTI's id of the first call of this thread since [`expect`]; 0 for none.
    static MET: Cell<u32> = const { Cell::new(0) };
}

/// Waits for the next call of this thread. 0, as there is none yet.
#[inline(always)]
pub(crate) fn expect() -> u32 {
    MET.set(0);
    0
}

/// CUPTI's id of that call; 0 if it has not come.
#[inline(always)]
pub(crate) fn met() -> u32 {
    MET.get()
}

/// More than CUPTI has functions of the driver: 13.5 has about 800.
const MOST_CBIDS: usize = 4096;

/// By CUPTI's number of a function, one more than its index in the table of functions; 0 for one that is not told of.
static ENTRIES: [AtomicU32; MOST_CBIDS] = [const { AtomicU32::new(0) }; MOST_CBIDS];

/// Has the calls of all functions told that are in the table, and of no others. Returns how many there are.
pub(super) fn enable(
    library: &Library,
    subscriber: &SubscriberHandle,
    functions: &[FunctionEntry],
) -> Result<usize, Refusal> {
    let mut enabled = 0;
    // Where the numbers end is not to be asked, only what each is called. 0 is none.
    for (cbid, of_cbid) in ENTRIES.iter().enumerate().skip(1) {
        let Some(name) = library.callback_name(DOMAIN_DRIVER_API, cbid as u32) else { continue };
        let Some(index) = functions.iter().position(|entry| symbol(entry) == name.to_bytes()) else { continue };
        of_cbid.store(index as u32 + 1, Ordering::Relaxed);
        library.enable_callback(subscriber, DOMAIN_DRIVER_API, cbid as u32)?;
        enabled += 1;
    }
    Ok(enabled)
}

/// A function's symbol, without the zeros behind it.
pub fn symbol(entry: &FunctionEntry) -> &[u8] {
    let end = entry.symbol.iter().position(|&byte| byte == 0).unwrap_or(entry.symbol.len());
    &entry.symbol[..end]
}

/// What CUPTI calls, on the thread that makes the call.
pub(super) extern "C" fn called(_: *mut c_void, domain: u32, cbid: u32, data: *const c_void) {
    if domain != DOMAIN_DRIVER_API || data.is_null() || !guest::is_listening() || events::is_own() {
        return;
    }
    // The way of every launch: nothing in here allocates, waits or makes a system call once the thread has its ring.
    let _ = catch_unwind(|| {
        let _accounted = rings::account();
        let Some(guest) = guest::current() else { return };
        let Some(index) = ENTRIES.get(cbid as usize).map(|entry| entry.load(Ordering::Relaxed)) else { return };
        let Some(entry) = (index as usize).checked_sub(1).and_then(|index| guest.functions.get(index)) else { return };
        // SAFETY: in this domain CUPTI hands over such a structure, valid for the time of the callback.
        let data = unsafe { &*data.cast::<CallbackData>() };
        match data.site {
            ENTER => {
                if MET.get() == 0 {
                    MET.set(data.correlation_id);
                }
                if guest.calls {
                    calls::entered(data, entry);
                }
                if guest.announce {
                    announce::correlated(data.correlation_id);
                }
            }
            EXIT if guest.calls => calls::left(data, entry),
            _ => {}
        }
    });
}
