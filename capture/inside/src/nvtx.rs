//! NVTX: the ranges and marks by which a program says what it is doing.
//!
//! Every library that has NVTX's headers compiled in has its own copy of it, which looks for a tool at its first use: it loads what
//! `NVTX_INJECTION64_PATH` names and calls [`InitializeInjectionNvtx2`], with a function that hands out its tables. What a tool puts
//! into these is called from then on; what it leaves empty stays without effect. So the first of these calls can come before the
//! driver has loaded this library, and there can be many.
//!
//! Where the names come from, and the numbers: NVTX 3's public headers (`nvtxTypes.h`, `nvToolsExt.h`).

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use ktape_ebpf::inside::{RangeTold, kind, payload, range};
use ktape_ebpf::wire::Plain as _;
use ktape_ebpf::wire::tally;

use crate::calls::Caller;
use crate::{announce, clock, guest, rings};

/// `NVTX_ETID_CALLBACKS`
const CALLBACKS: u32 = 1;
/// `NVTX_CB_MODULE_CORE` and `…_CORE2`.
const CORE: u32 = 1;
const CORE2: u32 = 5;
/// What NVTX answers where no tool follows how deep ranges are: as if there were none.
const NO_PUSH_POP_TRACKING: c_int = -2;
/// The most of a text that is told, in bytes.
const MOST_TEXT: usize = 4096;

/// `NvtxExportTableCallbacks`
#[repr(C)]
struct ExportTable {
    bytes: usize,
    get: Option<unsafe extern "C" fn(u32, *mut *mut *mut *const c_void, *mut u32) -> c_int>,
}

/// `nvtxEventAttributes_t`, as of version 2; later ones add behind it.
#[repr(C)]
struct Attributes {
    version: u16,
    bytes: u16,
    category: u32,
    color_type: i32,
    color: u32,
    payload_type: i32,
    reserved: i32,
    payload: u64,
    message_type: i32,
    padding: i32,
    message: *const c_void,
}

/// `NVTX_MESSAGE_TYPE_ASCII` and the others.
const ASCII: i32 = 1;
const UNICODE: i32 = 2;
const REGISTERED: i32 = 3;

/// A text that the program was given a handle of. Never freed, as the program may keep the handle; each text once.
struct Kept(&'static [u8]);

/// All such texts.
#[derive(Default)]
struct Texts {
    known: HashMap<&'static [u8], &'static Kept>,
    bytes: usize,
}

static KEPT: Mutex<Option<Texts>> = Mutex::new(None);

/// What stands for texts beyond [`MOST_KEPT_BYTES`]: a program that registers a text for each request has more every day.
static BEYOND: Kept = Kept(b"[one text more than are kept]");
const MOST_KEPT_BYTES: usize = 64 << 20;
/// What each takes besides its bytes, about.
const KEPT_BYTES: usize = 64;

/// Numbers ranges that are started.
static STARTED: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// How often this thread has pushed and popped. Counted whether it could be told or not.
    static WORDS: Cell<u64> = const { Cell::new(0) };
}

/// What each copy of NVTX calls at its first use. 1: there is a tool.
///
/// # Safety
///
/// Called by NVTX.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn InitializeInjectionNvtx2(
    export_table: Option<unsafe extern "C" fn(u32) -> *const c_void>,
) -> c_int {
    catch_unwind(|| {
        if !crate::is_guest() {
            return 0;
        }
        // SAFETY: NVTX's function, which hands out its table or null.
        let Some(table) = export_table.and_then(|get| unsafe { get(CALLBACKS).cast::<ExportTable>().as_ref() }) else {
            return 0;
        };
        let Some(get) = table.get.filter(|_| table.bytes >= size_of::<ExportTable>()) else { return 0 };
        // SAFETY: NVTX's function; the functions have the types that the headers give these numbers.
        unsafe { fill(get, CORE, &core()) & fill(get, CORE2, &core2()) }.into()
    })
    .unwrap_or(0)
}

/// Puts functions into the places of a module. False if NVTX has none.
unsafe fn fill(
    get: unsafe extern "C" fn(u32, *mut *mut *mut *const c_void, *mut u32) -> c_int,
    module: u32,
    functions: &[(usize, *const c_void)],
) -> bool {
    let (mut table, mut length) = (std::ptr::null_mut(), 0);
    // SAFETY: writes both.
    if unsafe { get(module, &raw mut table, &raw mut length) } == 0 || table.is_null() {
        return false;
    }
    for &(index, function) in functions.iter().filter(|(index, _)| *index < length as usize) {
        // SAFETY: so many places there are; one that NVTX was compiled without is null.
        unsafe {
            let place = *table.add(index);
            if !place.is_null() {
                place.write(function);
            }
        }
    }
    true
}

/// By their `NvtxCallbackIdCore`.
fn core() -> [(usize, *const c_void); 11] {
    [
        (1, mark_ex as *const c_void),
        (2, mark_a as *const c_void),
        (3, mark_w as *const c_void),
        (4, start_ex as *const c_void),
        (5, start_a as *const c_void),
        (6, start_w as *const c_void),
        (7, end as *const c_void),
        (8, push_ex as *const c_void),
        (9, push_a as *const c_void),
        (10, push_w as *const c_void),
        (11, pop as *const c_void),
    ]
}

/// By their `NvtxCallbackIdCore2`.
fn core2() -> [(usize, *const c_void); 9] {
    [
        (1, domain_mark_ex as *const c_void),
        (2, domain_start_ex as *const c_void),
        (3, domain_end as *const c_void),
        (4, domain_push_ex as *const c_void),
        (5, domain_pop as *const c_void),
        (10, register_a as *const c_void),
        (11, register_w as *const c_void),
        (12, create_a as *const c_void),
        (13, create_w as *const c_void),
    ]
}

/// A handle that the program gives back: a domain or a registered string. Null for the default domain.
type Handle = *const Kept;

extern "C" fn mark_ex(attributes: *const Attributes) {
    tell_attributes(range::MARK, 0, std::ptr::null(), attributes);
}
extern "C" fn mark_a(text: *const c_char) {
    tell_text(range::MARK, 0, ascii(text));
}
extern "C" fn mark_w(text: *const u32) {
    tell_text(range::MARK, 0, &wide(text));
}
extern "C" fn start_ex(attributes: *const Attributes) -> u64 {
    domain_start_ex(std::ptr::null(), attributes)
}
extern "C" fn start_a(text: *const c_char) -> u64 {
    let id = next_id();
    tell_text(range::START, id, ascii(text));
    id
}
extern "C" fn start_w(text: *const u32) -> u64 {
    let id = next_id();
    tell_text(range::START, id, &wide(text));
    id
}
extern "C" fn end(id: u64) {
    tell_text(range::END, id, &[]);
}
extern "C" fn push_ex(attributes: *const Attributes) -> c_int {
    domain_push_ex(std::ptr::null(), attributes)
}
extern "C" fn push_a(text: *const c_char) -> c_int {
    tell_text(range::PUSH, 0, ascii(text));
    NO_PUSH_POP_TRACKING
}
extern "C" fn push_w(text: *const u32) -> c_int {
    tell_text(range::PUSH, 0, &wide(text));
    NO_PUSH_POP_TRACKING
}
extern "C" fn pop() -> c_int {
    domain_pop(std::ptr::null())
}
extern "C" fn domain_mark_ex(domain: Handle, attributes: *const Attributes) {
    tell_attributes(range::MARK, 0, domain, attributes);
}
extern "C" fn domain_start_ex(domain: Handle, attributes: *const Attributes) -> u64 {
    let id = next_id();
    tell_attributes(range::START, id, domain, attributes);
    id
}
extern "C" fn domain_end(domain: Handle, id: u64) {
    tell(Said { what: range::END, id, domain: kept(domain), ..Said::default() });
}
extern "C" fn domain_push_ex(domain: Handle, attributes: *const Attributes) -> c_int {
    tell_attributes(range::PUSH, 0, domain, attributes);
    NO_PUSH_POP_TRACKING
}
extern "C" fn domain_pop(domain: Handle) -> c_int {
    tell(Said { what: range::POP, domain: kept(domain), ..Said::default() });
    NO_PUSH_POP_TRACKING
}
extern "C" fn register_a(_: Handle, text: *const c_char) -> Handle {
    keep(ascii(text))
}
extern "C" fn register_w(_: Handle, text: *const u32) -> Handle {
    keep(&wide(text))
}
extern "C" fn create_a(text: *const c_char) -> Handle {
    keep(ascii(text))
}
extern "C" fn create_w(text: *const u32) -> Handle {
    keep(&wide(text))
}

fn next_id() -> u64 {
    STARTED.fetch_add(1, Ordering::Relaxed)
}

/// A C string's bytes, as many as are told.
fn ascii<'text>(text: *const c_char) -> &'text [u8] {
    if text.is_null() {
        return &[];
    }
    // SAFETY: the program's C string, which is there until the call returns.
    let bytes = unsafe { CStr::from_ptr(text) }.to_bytes();
    &bytes[..bytes.len().min(MOST_TEXT)]
}

/// A string of `wchar_t` as UTF-8, as much of it as is told.
fn wide(text: *const u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut at = text;
    // SAFETY: the program's string, which ends in a 0.
    while !at.is_null() && bytes.len() < MOST_TEXT && unsafe { *at } != 0 {
        // SAFETY: as above; the end has not been seen yet.
        let character = char::from_u32(unsafe { *at }).unwrap_or(char::REPLACEMENT_CHARACTER);
        bytes.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
        // SAFETY: as above.
        at = unsafe { at.add(1) };
    }
    bytes
}

/// A handle of a text.
fn keep(text: &[u8]) -> Handle {
    catch_unwind(|| {
        let mut texts = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
        let texts = texts.get_or_insert_default();
        if let Some(&known) = texts.known.get(text) {
            return known;
        }
        if texts.bytes >= MOST_KEPT_BYTES {
            return &BEYOND;
        }
        texts.bytes += text.len() + KEPT_BYTES;
        let text: &'static [u8] = Box::leak(text.into());
        let new: &'static Kept = Box::leak(Box::new(Kept(text)));
        texts.known.insert(text, new);
        new
    })
    .map_or(std::ptr::null(), std::ptr::from_ref)
}

/// The text of a handle; empty for none.
fn kept<'text>(handle: Handle) -> &'text [u8] {
    // SAFETY: null or from `keep`, whose texts stay: no other tool hands out handles where this one does.
    unsafe { handle.as_ref() }.map_or(&[], |kept| kept.0)
}

/// What the program says.
#[derive(Default)]
struct Said<'text> {
    what: u32,
    id: u64,
    domain: &'text [u8],
    text: &'text [u8],
    payload_type: u32,
    payload: u64,
}

fn tell_text(what: u32, id: u64, text: &[u8]) {
    tell(Said { what, id, text, ..Said::default() });
}

fn tell_attributes(what: u32, id: u64, domain: Handle, attributes: *const Attributes) {
    // SAFETY: the program's, until the call returns.
    let Some(attributes) = (unsafe { attributes.as_ref() }) else {
        return tell(Said { what, id, domain: kept(domain), ..Said::default() });
    };
    // A version before the first that is known has less.
    let is_whole = usize::from(attributes.bytes) >= size_of::<Attributes>();
    let widened;
    let text = match attributes.message_type {
        _ if !is_whole => &[],
        ASCII => ascii(attributes.message.cast()),
        REGISTERED => kept(attributes.message.cast()),
        UNICODE => {
            widened = wide(attributes.message.cast());
            &widened
        }
        _ => &[][..],
    };
    let payload_type = if is_whole { attributes.payload_type as u32 } else { payload::NONE };
    tell(Said { what, id, domain: kept(domain), text, payload_type, payload: attributes.payload });
}

/// Writes it down.
fn tell(said: Said<'_>) {
    let _ = catch_unwind(|| {
        let _accounted = rings::account();
        let time_ns = clock::monotonic_ns();
        let id = match said.what {
            range::PUSH | range::POP => {
                WORDS.set(WORDS.get() + 1);
                WORDS.get()
            }
            _ => said.id,
        };
        // What ends a range adds no event: that is counted where the range begins.
        let table = match said.what {
            range::PUSH | range::START => tally::RANGE,
            range::MARK => tally::MARK,
            _ => 0,
        };
        let guest = guest::current();
        // Beside probes these take its stack.
        let is_walked_here = guest.is_some_and(|guest| guest.calls);
        if table != 0 && !is_walked_here {
            announce::ktape_ranged(time_ns);
        }
        rings::with_ring(table, time_ns, |ring| {
            let writer = &mut ring.writer;
            if table != 0 {
                writer.seen(table, time_ns);
            }
            // Who asks for the stack of what ends a range has that of its beginning.
            let stack = match guest.filter(|_| table != 0 && is_walked_here) {
                Some(guest) => {
                    let caller = ring.caller.get_or_insert_with(|| Box::new(Caller::new(guest.pid)));
                    caller.stack(guest, writer)
                }
                None => 0,
            };
            let mut text = |text: &[u8]| match text {
                [] => Some(0),
                text => ring.names.id(writer, text),
            };
            let told = text(said.domain).zip(text(said.text)).is_some_and(|(domain, name)| {
                let record = RangeTold {
                    kind: kind::RANGE,
                    what: said.what,
                    time_ns,
                    pid_tid: writer.pid_tid(),
                    id,
                    domain,
                    name,
                    stack,
                    payload: said.payload,
                    payload_type: said.payload_type,
                    padding: 0,
                };
                writer.put(record.as_bytes(), &[])
            });
            if !told && table != 0 {
                writer.lost(table, time_ns);
            }
        });
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_kept_once_and_those_beyond_the_most_are_all_called_the_same() {
        let first = keep(b"first");
        assert_eq!(first, keep(b"first"));
        for number in 0..=MOST_KEPT_BYTES / (MOST_TEXT + KEPT_BYTES) {
            keep(format!("{number:0MOST_TEXT$}").as_bytes());
        }
        assert_eq!(kept(keep(b"late")), BEYOND.0);
        assert_eq!(keep(b"later"), keep(b"late"));
        assert_eq!((keep(b"first"), kept(first)), (first, &b"first"[..]));
    }
}
