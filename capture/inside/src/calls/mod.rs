//! The host's side of calls: what the eBPF programs would tell of them, told from within the process.
//!
//! CUPTI says when a call begins and ends, and hands its arguments over; a record says what the function's
//! [`Plan`](ktape_ebpf::wire::Plan) keeps of them (`record.rs`), with the caller's Python stack ([`stack`](crate::stack)). Before it
//! comes what it refers to, behind it CUPTI's id of the call.
//!
//! A call within another has a smaller stack pointer, by which the collector knows. Here it is where CUPTI's structure of the arguments
//! is: that lies in the frame of the driver's function, so that of a call within is below it, and it is the same at the end.

mod parameters;
mod record;
#[cfg(test)]
mod tests;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use ktape_ebpf::inside::ring::Writer;
use ktape_ebpf::inside::{Correlated, FunctionEntry, FunctionName, kind};
use ktape_ebpf::python::Memory as _;
use ktape_ebpf::wire::{self, Call, Plain as _, Return, stack_use, tally};

use crate::cupti::callback::{CallbackData, symbol};
use crate::guest::{self, Guest};
use crate::memory::{Arguments, Guarded, ThisStack};
use crate::stack::sent::{What, mix};
use crate::stack::{SENT, Stacks};
use crate::{clock, rings};
pub use parameters::Parameters;

/// What is known of a function but for what the recorder says.
#[derive(Clone, Copy, Debug, Default)]
struct Function {
    parameters: Parameters,
    /// Whether it may take kernels away, so that their handles come to others.
    unloads: bool,
}

/// By their numbers in records.
static FUNCTIONS: OnceLock<Vec<Function>> = OnceLock::new();

/// How often kernels may have been taken away.
static UNLOADS: AtomicU64 = AtomicU64::new(0);

/// Gets to know the functions. Before any is called.
pub fn prepare(entries: &[FunctionEntry]) {
    FUNCTIONS.get_or_init(|| {
        let mut functions = vec![Function::default(); wire::MOST_FUNCTIONS as usize];
        for entry in entries {
            let name = std::str::from_utf8(symbol(entry)).unwrap_or_default();
            let parameters = Parameters::of(name).unwrap_or_default();
            let unloads = ["cuModuleUnload", "cuLibraryUnload", "cuCtxDestroy", "cuDevicePrimaryCtxRe"];
            let unloads = unloads.iter().any(|prefix| name.starts_with(prefix));
            if let Some(function) = functions.get_mut(entry.function as usize) {
                *function = Function { parameters, unloads };
            }
        }
        functions
    });
}

#[inline(always)]
fn function(entry: &FunctionEntry) -> Function {
    FUNCTIONS.get().and_then(|functions| functions.get(entry.function as usize)).copied().unwrap_or_default()
}

/// What a thread that calls is told with.
#[derive(Debug)]
pub struct Caller {
    arguments: Arguments,
    stacks: Stacks,
    /// Kernels whose names this thread has told: handle, name, unloads and rotation then.
    kernels: [(u64, u64, u64, u32); LAST_KERNELS],
}

/// How many of them are remembered.
const LAST_KERNELS: usize = 64;

impl Caller {
    /// The calling thread, of the process of this number.
    pub fn new(pid: u32) -> Caller {
        let arguments = Arguments { stack: ThisStack::find(), guarded: Guarded { pid } };
        Caller { arguments, stacks: Stacks::new(pid), kernels: [(0, 0, 0, 0); LAST_KERNELS] }
    }

    /// The hash of the thread's Python stack, told before if it is new: see [`Stacks::tell`].
    #[inline(always)]
    pub(crate) fn stack(&mut self, guest: &Guest, writer: &mut Writer) -> u64 {
        self.stacks.tell(guest.page, writer, writer.pid_tid())
    }

    /// Tells that a function was called.
    #[inline(always)]
    pub fn enter(
        &mut self,
        guest: &Guest,
        (data, entry): (&CallbackData, &FunctionEntry),
        time_ns: u64,
        writer: &mut Writer,
    ) {
        let plan = &entry.plan;
        let pid_tid = writer.pid_tid();
        let parameters = function(entry).parameters;
        let structure = data.function_params.cast::<u8>();
        // SAFETY: CUPTI hands over this function's arguments.
        let words = if structure.is_null() { Default::default() } else { unsafe { parameters.read(structure) } };
        let stack = if plan.stack != 0 { self.stack(guest, writer) } else { 0 };
        if plan.stack & stack_use::LAUNCH != 0 && parameters.kernel != 0 {
            self.name_kernel(words[usize::from(parameters.kernel) - 1], data, writer);
        }
        let here = 0u8;
        let is_on_stack = self.arguments.stack.holds(structure as u64, 1);
        let stack_pointer = if is_on_stack { structure as u64 } else { (&raw const here) as u64 };
        if !data.correlation_data.is_null() {
            // SAFETY: CUPTI's word for this call.
            unsafe { data.correlation_data.write(stack_pointer) };
        }
        writer.seen(plan.tally, time_ns);
        let [a, b, c, d, e, f, ..] = words;
        let call = Call {
            kind: plan.record as u16,
            cpu: tally::NO_CPU,
            function: entry.function,
            time_ns,
            pid_tid,
            stack,
            stack_pointer,
            registers: [a, b, c, d, e, f],
        };
        if !record::put(writer, call, &words, plan, &self.arguments) {
            writer.lost(plan.tally, time_ns);
            return;
        }
        let correlation = data.correlation_id;
        // Where it has no room, what the device did for this call stays without it, which is counted there.
        writer.put(Correlated { kind: kind::CORRELATED, correlation, time_ns, pid_tid }.as_bytes(), &[]);
    }

    /// Tells the name of a kernel that this thread launches for the first time.
    #[inline(always)]
    fn name_kernel(&mut self, handle: u64, data: &CallbackData, writer: &mut Writer) {
        let name = data.symbol_name as u64;
        let when = SENT.now();
        let unloads = UNLOADS.load(Ordering::Acquire);
        // Those that the thread launches again and again it has by itself.
        let last = (handle, name, unloads, when.rotation);
        let place = (handle >> 4) as usize % LAST_KERNELS;
        if name == 0 || self.kernels[place] == last {
            return;
        }
        let told = What::Kernel(handle, mix(unloads, name));
        if !SENT.was_sent(told, when, writer.pid_tid() as u32) {
            if !self.put_name(handle, name, writer) {
                return;
            }
            SENT.remember(told, when, writer.pid_tid() as u32);
        }
        self.kernels[place] = last;
    }

    #[cold]
    fn put_name(&self, handle: u64, name: u64, writer: &mut Writer) -> bool {
        const NAME_BYTES: usize = 1 << 16;
        let mut bytes = vec![0; NAME_BYTES];
        // Once a kernel: no pointer of another's has to be trusted for it.
        let length = Arguments { stack: ThisStack::default(), ..self.arguments }.string(name, &mut bytes);
        let bytes = bytes[..length].strip_suffix(&[0]).unwrap_or(&bytes[..length]);
        let (kind, pid_tid) = (kind::FUNCTION_NAME, writer.pid_tid());
        bytes.is_empty()
            || writer.put(FunctionName { kind, bytes: bytes.len() as u32, pid_tid, handle }.as_bytes(), bytes)
    }

    /// Tells that it returns.
    pub fn leave(&self, (data, entry): (&CallbackData, &FunctionEntry), time_ns: u64, writer: &mut Writer) {
        // SAFETY: CUPTI's word for this call, and a pointer to its result.
        let (stack_pointer, result) = unsafe {
            let stack_pointer = data.correlation_data.as_ref().copied().unwrap_or(data.function_params as u64);
            (stack_pointer, data.function_return_value.cast::<u32>().as_ref().copied().unwrap_or(0))
        };
        let returned = Return {
            kind: wire::kind::RETURN,
            function: entry.function,
            time_ns,
            pid_tid: writer.pid_tid(),
            stack_pointer: stack_pointer.wrapping_add(8),
            result: result.into(),
            outs: self.outs(data, entry),
        };
        // Where it has no room the call stays without a return, which is found out by the thread's next.
        writer.put(returned.as_bytes(), &[]);
    }

    /// What the call has handed out.
    fn outs(&self, data: &CallbackData, entry: &FunctionEntry) -> [u64; 2] {
        let structure = data.function_params.cast::<u8>();
        if entry.plan.outs[0] == 0 || structure.is_null() {
            return [0; 2];
        }
        // SAFETY: as in `enter`.
        let words = unsafe { function(entry).parameters.read(structure) };
        entry.plan.outs.map(|out| {
            let pointer = (out as usize).checked_sub(1).and_then(|argument| words.get(argument));
            pointer.and_then(|&pointer| self.arguments.word(pointer)).unwrap_or(0)
        })
    }
}

/// A function of the table was called.
#[inline(always)]
pub fn entered(data: &CallbackData, entry: &FunctionEntry) {
    let Some(guest) = guest::current() else { return };
    if function(entry).unloads {
        UNLOADS.fetch_add(1, Ordering::AcqRel);
    }
    let time_ns = clock::monotonic_ns();
    rings::with_ring(entry.plan.tally, time_ns, |ring| {
        let caller = ring.caller.get_or_insert_with(|| Box::new(Caller::new(guest.pid)));
        caller.enter(guest, (data, entry), time_ns, &mut ring.writer);
    });
}

/// It returns.
#[inline(always)]
pub fn left(data: &CallbackData, entry: &FunctionEntry) {
    // What was named meanwhile may be gone by now.
    if function(entry).unloads {
        UNLOADS.fetch_add(1, Ordering::AcqRel);
    }
    if entry.returns != 0 {
        let time_ns = clock::monotonic_ns();
        rings::with_ring(0, time_ns, |ring| {
            // Without one the call was not told.
            if let Some(caller) = &ring.caller {
                caller.leave((data, entry), time_ns, &mut ring.writer);
            }
        });
    }
}
