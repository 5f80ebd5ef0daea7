//! What a launch's callback costs, from what CUPTI hands over to the record in the ring, on a thread that Python runs.
//!
//! `benches/launch.sh` has Python load this and call [`cost`] with a stack of some depth below. CUPTI and the driver are not part
//! of it: the callback's data is made up, and is that of a `cuLaunchKernel`. The account that the library keeps of what it takes is. What
//! is written is thrown away every so often.

use std::alloc::{Layout as Size, alloc_zeroed};
use std::ptr::null;
use std::sync::atomic::Ordering;
use std::time::Instant;

use ktape_ebpf::inside::ring::{HEADER_BYTES, Header, Writer};
use ktape_ebpf::inside::{Control, FunctionEntry, ProcessPage, device_time};
use ktape_ebpf::python::{Interpreter, Layout};
use ktape_ebpf::wire::{Plan, kind, stack_use};
use ktape_inside::calls::{self, Caller};
use ktape_inside::clock;
use ktape_inside::cupti::callback::CallbackData;
use ktape_inside::guest::{self, Guest};
use ktape_inside::rings;

const RING_BYTES: usize = 1 << 22;
/// Calls that are timed together.
const BATCH: u64 = 1000;

/// The nanoseconds of one call in the quickest of so many batches, and in the middle one. `version` is 0 for no stack.
///
/// # Safety
///
/// `runtime` is where this process has `_PyRuntime`, of that version; `result` has room for two.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cost(runtime: u64, version: u16, batches: u64, result: *mut f64) {
    let zeros = |bytes: usize| {
        // SAFETY: the size is not 0. Never freed.
        unsafe { alloc_zeroed(Size::from_size_align(bytes, 4096).unwrap()) }
    };
    // SAFETY: zeros are a page of either kind, and nobody else has these.
    let (control, page) = unsafe { (&mut *zeros(4096).cast::<Control>(), &*zeros(4096).cast::<ProcessPage>()) };
    control.device_time = device_time::CUPTI;
    if version != 0 {
        let layout = Layout::of(version, false).unwrap();
        // SAFETY: as the caller says.
        let tss_key = unsafe { *((runtime + u64::from(layout.tss_key) + 4) as *const u32) };
        // SAFETY: nobody else looks at it.
        unsafe { *page.interpreter.get() = Interpreter { runtime, tss_key, layout, ..Interpreter::default() } };
        page.interpreter_version.store(2, Ordering::Release);
    }
    let (record, tally) = (kind::STACK_CALL, 1);
    let stack = if version == 0 { 0 } else { stack_use::EVENT | stack_use::LAUNCH };
    let mut symbol = [0; 64];
    symbol[..14].copy_from_slice(b"cuLaunchKernel");
    let plan = Plan { record, stack, tally, ..Plan::default() };
    let entry = FunctionEntry { symbol, plan, function: 0, returns: 0, padding: 0 };
    calls::prepare(&[entry]);
    let pid = std::process::id();
    let guest = guest::begin(Guest {
        directory: "".into(),
        control,
        page,
        functions: Vec::new(),
        calls: true,
        announce: false,
        ring_bytes: RING_BYTES as u32,
        pid,
    });
    let memory = zeros(HEADER_BYTES + RING_BYTES);
    // SAFETY: zeros, never freed, large enough.
    let mut writer = unsafe { Writer::begin(memory, RING_BYTES as u64, (pid, 1), 1) };
    // SAFETY: as above.
    let header = unsafe { &*memory.cast::<Header>() };
    #[repr(C)]
    struct Parameters(u64, [u32; 7], u64, u64, u64);
    let parameters = Parameters(0x5000, [1, 2, 3, 4, 5, 6, 7], 8, 9, 10);
    let mut word = 0;
    let data = CallbackData {
        site: 0,
        function_name: c"cuLaunchKernel".as_ptr(),
        function_params: (&raw const parameters).cast(),
        function_return_value: null(),
        symbol_name: c"_Z5scalePf".as_ptr(),
        context: null(),
        context_uid: 1,
        correlation_data: &raw mut word,
        correlation_id: 1,
    };
    let mut caller = Caller::new(pid);
    let mut batch = |calls: u64| {
        let begun = Instant::now();
        for _ in 0..calls {
            let _accounted = rings::account();
            caller.enter(guest, (&data, &entry), clock::monotonic_ns(), &mut writer);
        }
        let took = begun.elapsed().as_nanos() as f64 / calls as f64;
        header.tail.store(header.head.load(Ordering::Relaxed), Ordering::Relaxed);
        took
    };
    batch(BATCH);
    let mut times: Vec<f64> = (0..batches).map(|_| batch(BATCH)).collect();
    times.sort_by(f64::total_cmp);
    // SAFETY: as the caller says.
    unsafe { result.cast::<[f64; 2]>().write([times[0], times[times.len() / 2]]) };
}
