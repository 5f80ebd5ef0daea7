//! Where a thread keeps its thread state, where the table can't say: in a thread-local variable from CPython 3.15 on, which has
//! no symbol and lies where the linker put it; under a key that isn't where a version has it.

use iced_x86::{Code as Op, Decoder, DecoderOptions, Instruction, OpKind, Register};
use ktape_ebpf::python::{Interpreter, KEY_TLS, Memory, thread_state};

use super::find::Thread;

/// Where `_Py_tss_gilstate` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ThreadLocal {
    /// As [`Interpreter::tls_module`].
    pub(super) module: u32,
    /// As [`Interpreter::tls_offset`].
    pub(super) offset: i32,
}

/// Bytes of a function that does nothing but return a variable.
const FUNCTION_BYTES: usize = 64;

/// Reads it out of `PyGILState_GetThisThreadState`, which returns it, whichever way it was compiled: for an executable, for a
/// library that is loaded at the start, or for one that may be loaded later.
pub(super) fn thread_local<M: Memory>(memory: &M, function: u64) -> Option<ThreadLocal> {
    let mut bytes = [0; FUNCTION_BYTES];
    memory.read(function, &mut bytes).then_some(())?;
    // The words that registers were loaded from, or the address itself: by `lea` the argument of `__tls_get_addr`.
    let mut loaded: Option<(Register, u64)> = None;
    let mut argument = None;
    let mut module = None;
    for instruction in Decoder::with_ip(64, &bytes, function, DecoderOptions::NONE) {
        let target = instruction.op0_register();
        let is_load = instruction.code() == Op::Mov_r64_rm64 && instruction.op1_kind() == OpKind::Memory;
        if is_load && instruction.segment_prefix() == Register::FS {
            return of_segment(memory, &instruction, loaded);
        } else if is_load && instruction.is_ip_rel_memory_operand() {
            loaded = Some((target, instruction.ip_rel_memory_address()));
        } else if is_load && module.is_some() && instruction.memory_base() == Register::RAX {
            let (module, offset) = module?;
            let offset = offset_of(offset, instruction.memory_displacement64())?;
            return Some(ThreadLocal { module, offset });
        } else if instruction.code() == Op::Lea_r64_m
            && target == Register::RDI
            && instruction.is_ip_rel_memory_operand()
        {
            argument = Some(instruction.ip_rel_memory_address());
        } else if matches!(instruction.code(), Op::Call_rel32_64 | Op::Call_rm64) {
            // `tls_index`: the module, and where in its storage.
            let index = argument.take()?;
            let number = memory.word(index)?;
            module =
                Some((u32::try_from(number).ok().filter(|&module| module > 0)?, memory.word(index.wrapping_add(8))?));
        } else if instruction.code() == Op::Retnq || instruction.is_invalid() {
            break;
        }
    }
    None
}

/// `mov rax, fs:[…]`: an offset from the thread pointer, as a constant or in a register that was loaded with it.
fn of_segment<M: Memory>(
    memory: &M,
    instruction: &Instruction,
    loaded: Option<(Register, u64)>,
) -> Option<ThreadLocal> {
    let known = match (instruction.memory_base(), loaded) {
        (Register::None, _) => 0,
        (base, Some((register, address))) if base == register => memory.word(address)?,
        _ => return None,
    };
    let offset = offset_of(known, instruction.memory_displacement64())?;
    // The thread pointer itself is at its own address.
    (offset != 0 && instruction.memory_index() == Register::None).then_some(ThreadLocal { module: 0, offset })
}

fn offset_of(known: u64, displacement: u64) -> Option<i32> {
    i32::try_from(known.wrapping_add(displacement) as i64).ok()
}

/// Whether a thread's state is where this says, for one thread at least: those of other interpreters have their own there only
/// while they run.
pub(super) fn holds<M: Memory>(memory: &M, interpreter: &Interpreter, threads: &[Thread]) -> bool {
    threads.iter().any(|thread| thread_state(memory, interpreter, thread.pthread) == Some(thread.state))
}

/// Keys that pthread has.
const KEYS: u32 = 1024;
/// Threads that are looked at for a key.
const THREADS: usize = 8;

/// The lowest key under which threads have their states. Others that do so (pybind11 does) begin after the interpreter.
pub(super) fn key_by_slots<M: Memory>(memory: &M, interpreter: &Interpreter, threads: &[Thread]) -> Option<u32> {
    if interpreter.tss_key == KEY_TLS {
        return None;
    }
    let some = &threads[..threads.len().min(THREADS)];
    (0..KEYS).find(|&tss_key| holds(memory, &Interpreter { tss_key, ..*interpreter }, some))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FUNCTION: u64 = 0x1000;

    /// A function, and some words elsewhere.
    struct Made(&'static [u8], &'static [(u64, u64)]);

    impl Memory for Made {
        fn read(&self, address: u64, into: &mut [u8]) -> bool {
            if address == FUNCTION {
                into.fill(0xcc);
                into[..self.0.len()].copy_from_slice(self.0);
                return true;
            }
            let word = self.1.iter().find(|(at, _)| *at == address);
            word.is_some_and(|(_, word)| {
                into.copy_from_slice(&word.to_le_bytes());
                true
            })
        }
    }

    #[test]
    fn an_executable_s_variable_is_at_a_constant_from_the_thread_pointer() {
        // endbr64; mov rax, fs:0xffffffffffffffd8; ret
        let code = b"\xf3\x0f\x1e\xfa\x64\x48\x8b\x04\x25\xd8\xff\xff\xff\xc3";
        assert_eq!(thread_local(&Made(code, &[]), FUNCTION), Some(ThreadLocal { module: 0, offset: -40 }));
    }

    #[test]
    fn a_variable_of_a_library_that_is_there_from_the_start_is_at_an_offset_in_its_table() {
        // mov rdx, [rip+0x100]; mov rax, fs:[rdx]; ret
        let code = b"\x48\x8b\x15\x00\x01\x00\x00\x64\x48\x8b\x02\xc3";
        let memory = Made(code, &[(0x1107, (-24_i64) as u64)]);
        assert_eq!(thread_local(&memory, FUNCTION), Some(ThreadLocal { module: 0, offset: -24 }));
        assert_eq!(thread_local(&Made(code, &[]), FUNCTION), None);
    }

    #[test]
    fn a_variable_of_any_other_library_is_in_its_storage() {
        // endbr64; push rbp; mov rbp, rsp; lea rdi, [rip+0x200]; call …; pop rbp; mov rax, [rax+0x28]; ret
        let code = b"\xf3\x0f\x1e\xfa\x55\x48\x89\xe5\x48\x8d\x3d\x00\x02\x00\x00\xe8\x00\x00\x00\x00\x5d\x48\x8b\x80\x28\x00\x00\x00\xc3";
        let memory = Made(code, &[(0x120f, 3), (0x1217, 0x10)]);
        assert_eq!(thread_local(&memory, FUNCTION), Some(ThreadLocal { module: 3, offset: 0x38 }));
        let huge = Made(code, &[(0x120f, 3), (0x1217, 1 << 60)]);
        assert_eq!(thread_local(&huge, FUNCTION), None);
    }

    #[test]
    fn any_other_code_is_no_variable() {
        for code in [&b"\xc3"[..], b"\x31\xc0\xc3", b"\x64\x48\x8b\x04\x25\x00\x00\x00\x00\xc3", b"\x06\x06"] {
            assert_eq!(thread_local(&Made(code, &[]), FUNCTION), None, "{code:?}");
        }
    }
}
