//! Where in a function a probe goes.
//!
//! A probe must see the arguments as they were passed and fire once for each call. That holds at the entry, but not only
//! there, and a probe on one instruction costs a twentieth of what it costs on another ([`super::execution`]). The driver's functions
//! all begin like this:
//!
//! ```text
//! +0    cmp dword [rip+…], 321CBA00h    a probe here is single-stepped: 17 µs
//! +10   je  +24                         emulated: 0.7 µs
//! +12   jmp [rip+…]
//! ```
//!
//! So the prologue is walked, and the first cheap instruction is taken, as long as nothing before it
//!
//! - writes an argument register, or `rsp`, which the arguments on the stack and the return probe are found by;
//! - writes memory, which may be what an argument points to: only the library's own variables are taken to be nobody's argument;
//! - leaves: what is behind a branch or a call is not reached on every path, or not before something happened.
//!
//! Nor may anything in the function jump back to the site or before it: a loop would fire it again.

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Formatter as _, Instruction, InstructionInfoFactory, IntelFormatter,
    OpAccess, OpKind, Register,
};
use serde::Serialize;

use super::execution::{Cost, Kernel};

/// A prologue is not looked for further than this: a compiler has begun the function's work by then.
const MOST_PROLOGUE_BYTES: usize = 64;

/// A place in a function for a probe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Place {
    /// From the function's entry.
    pub offset: u64,
    /// The instruction there, for a person.
    pub instruction: String,
    /// What a probe costs there.
    pub cost: Cost,
    /// Why there, in one clause.
    pub why: String,
}

/// Chooses the place in a function with this code, which is at `file_offset` of its file; an error says why there is none.
pub fn choose(code: &[u8], file_offset: u64, kernel: Kernel) -> Result<Place, &'static str> {
    let mut fallback = None;
    let mut info = InstructionInfoFactory::new();
    let mut decoder = Decoder::with_ip(64, code, 0, DecoderOptions::NONE);
    let mut loops = None;
    let stopped = loop {
        let offset = decoder.position();
        if offset >= MOST_PROLOGUE_BYTES.min(code.len()) {
            break "its prologue has no instruction that the kernel emulates".to_owned();
        }
        let instruction = decoder.decode();
        if instruction.is_invalid() {
            break "what follows cannot be decoded".to_owned();
        }
        let earliest_loop = *loops.get_or_insert_with(|| first_loop(code));
        if earliest_loop.is_some_and(|head| offset as u64 >= head) {
            break format!("a loop leads back to +{}", earliest_loop.unwrap_or_default());
        }
        let bytes = &code[offset..offset + instruction.len()];
        let cost = kernel.cost(&instruction, bytes, file_offset.saturating_add(offset as u64));
        let place = |cost, why| Place { offset: offset as u64, instruction: text(&instruction), cost, why };
        match cost {
            Some(cost) if cost < Cost::Stepped => {
                let why = if offset == 0 { "at the entry" } else { "nothing before it writes an argument or leaves" };
                return Ok(place(cost, why.to_owned()));
            }
            // The earliest of those that cost the same.
            Some(cost) if fallback.is_none() => fallback = Some(place(cost, String::new())),
            _ => {}
        }
        if let Some(why) = disturbs(&mut info, &instruction) {
            break format!("{} {why}", text(&instruction));
        }
    };
    match fallback {
        Some(place) => Ok(Place { why: stopped, ..place }),
        None if code.is_empty() => Err("it has no code"),
        None => Err("no instruction of its prologue can be probed"),
    }
}

/// What an instruction does so that a probe behind it would come too late.
fn disturbs(info: &mut InstructionInfoFactory, instruction: &Instruction) -> Option<String> {
    if instruction.flow_control() != FlowControl::Next {
        return Some("leaves".to_owned());
    }
    let info = info.info(instruction);
    let register = info.used_registers().iter().find(|used| writes(used.access()) && is_argument(used.register()));
    if let Some(used) = register {
        return Some(format!("writes {:?}", used.register().full_register()).to_lowercase());
    }
    let elsewhere = |memory: &&iced_x86::UsedMemory| {
        writes(memory.access()) && (memory.base(), memory.index()) != (Register::None, Register::None)
    };
    info.used_memory().iter().find(elsewhere).map(|_| "writes memory".to_owned())
}

fn writes(access: OpAccess) -> bool {
    !matches!(access, OpAccess::None | OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess)
}

/// Integer arguments in the order of the System V ABI, and where the others are.
fn is_argument(register: Register) -> bool {
    use Register as R;
    [R::RDI, R::RSI, R::RDX, R::RCX, R::R8, R::R9, R::RSP].contains(&register.full_register())
}

/// The first instruction behind the entry to which the function itself jumps back. What is decoded of data between the
/// instructions, if anything, can only make a better site go unused.
fn first_loop(code: &[u8]) -> Option<u64> {
    let back = |instruction: &Instruction| {
        let target = instruction.near_branch_target();
        let is_back = (1..=instruction.ip()).contains(&target);
        (instruction.op0_kind() == OpKind::NearBranch64 && is_back).then_some(target)
    };
    let prologue = |target: &u64| *target < MOST_PROLOGUE_BYTES as u64;
    Decoder::with_ip(64, code, 0, DecoderOptions::NONE).iter().filter_map(|one| back(&one)).filter(prologue).min()
}

/// As a person reads it; branches lead to offsets in the function.
fn text(instruction: &Instruction) -> String {
    let mut text = String::new();
    let mut formatter = IntelFormatter::new();
    formatter.options_mut().set_space_after_operand_separator(true);
    formatter.options_mut().set_rip_relative_addresses(true);
    if instruction.op0_kind() == OpKind::NearBranch64 {
        formatter.format_mnemonic(instruction, &mut text);
        return format!("{text} {:+}", instruction.near_branch_target().cast_signed());
    }
    formatter.format(instruction, &mut text);
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NEW: Kernel = Kernel { long_nop: Cost::Emulated, nop5: Cost::Optimised };

    /// Offset, instruction and cost on an old kernel.
    fn at(code: &[u8]) -> (u64, String, Cost) {
        let place = choose(code, 0, Kernel::OLD).expect("a place");
        (place.offset, place.instruction, place.cost)
    }

    fn is(code: &[u8], offset: u64, instruction: &str, cost: Cost) {
        assert_eq!(at(code), (offset, instruction.to_owned(), cost), "{code:x?}");
    }

    #[test]
    fn the_trampoline_of_libcuda() {
        // As in libcuda.so.535.261.03: cmp, je, jmp, nop, mov, ret.
        let code = [
            0x81, 0x3d, 0x06, 0x2a, 0x4d, 0x01, 0x00, 0xba, 0x21, 0x03, 0x74, 0x0c, 0xff, 0x25, 0x46, 0x2a, 0x4d, 0x01,
            0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00, 0xb8, 0x04, 0x00, 0x00, 0x00, 0xc3,
        ];
        is(&code, 10, "je +24", Cost::Emulated);
    }

    #[test]
    fn usual_prologues() {
        is(&[0x55, 0x48, 0x89, 0xe5, 0xc3], 0, "push rbp", Cost::Emulated);
        is(&[0x41, 0x57, 0xc3], 0, "push r15", Cost::Emulated);
        is(&[0x54, 0xc3], 0, "push rsp", Cost::Emulated);
        is(&[0xf3, 0x0f, 0x1e, 0xfa, 0xc3], 0, "endbr64", Cost::Stepped);
        is(&[0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0xc3], 4, "push rbp", Cost::Emulated);
        is(&[0xeb, 0x10], 0, "jmp +18", Cost::Emulated);
        is(&[0xe9, 0x00, 0xff, 0xff, 0xff], 0, "jmp -251", Cost::Emulated);
        is(&[0x0f, 0x84, 0x00, 0x01, 0x00, 0x00], 0, "je +262", Cost::Emulated);
        is(&[0xe8, 0x00, 0x01, 0x00, 0x00, 0xc3], 0, "call +261", Cost::Emulated);
        is(&[0x90, 0xc3], 0, "nop", Cost::Emulated);
        is(&[0xf3, 0x90, 0xc3], 0, "pause", Cost::Emulated);
    }

    #[test]
    fn nothing_that_disturbs_an_argument_may_come_before() {
        // A register that is none may be written: xor eax, eax.
        is(&[0x31, 0xc0, 0x55, 0xc3], 2, "push rbp", Cost::Emulated);
        for (disturbs, why) in [
            (&[0x48, 0x83, 0xec, 0x18][..], "sub rsp, 18h writes rsp"),
            (&[0x89, 0xf7], "mov edi, esi writes rdi"),
            (&[0x40, 0xb6, 0x01], "mov sil, 1 writes rsi"),
            (&[0x0f, 0xa2], "cpuid writes rcx"),
            (&[0x41, 0x5c], "pop r12 writes rsp"),
            (&[0xff, 0xf0], "push rax writes rsp"),
            (&[0x48, 0x89, 0x07], "mov [rdi], rax writes memory"),
            (&[0xff, 0x25, 0, 0, 0, 0], "jmp qword [rip+0] leaves"),
            (&[0xff, 0xd0], "call rax leaves"),
        ] {
            let code = [disturbs, &[0x55, 0xc3]].concat();
            let place = choose(&code, 0, Kernel::OLD).expect("the entry");
            assert_eq!((place.offset, place.cost), (0, Cost::Stepped), "{why}");
            assert!(place.why == why || why.starts_with("jmp") || why.starts_with("cpuid"), "{} {why}", place.why);
        }
    }

    #[test]
    fn a_loop_would_fire_the_probe_again() {
        // mov eax, 1; dec eax; jne -4: the branch is reached many times.
        is(&[0xb8, 1, 0, 0, 0, 0xff, 0xc8, 0x75, 0xfc, 0xc3], 0, "mov eax, 1", Cost::Stepped);
        // mov eax, 1; push rbp; … jmp to the push.
        is(&[0xb8, 1, 0, 0, 0, 0x55, 0x5d, 0xeb, 0xfc], 0, "mov eax, 1", Cost::Stepped);
        // … jmp behind the push.
        is(&[0xb8, 1, 0, 0, 0, 0x55, 0x5d, 0xeb, 0xfd], 5, "push rbp", Cost::Emulated);
    }

    #[test]
    fn nops_depend_on_the_kernel() {
        let nop5 = [0x0f, 0x1f, 0x44, 0x00, 0x00, 0x55, 0xc3];
        is(&nop5, 5, "push rbp", Cost::Emulated);
        let new = |code: &[u8], file_offset| choose(code, file_offset, NEW).map(|place| (place.offset, place.cost));
        assert_eq!(new(&nop5, 0), Ok((0, Cost::Optimised)));
        assert_eq!(new(&nop5, 4091), Ok((0, Cost::Optimised)));
        // Across the end of a page it cannot be replaced at once.
        assert_eq!(new(&nop5, 4092), Ok((0, Cost::Emulated)));
        assert_eq!(new(&[0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00, 0xc3], 0), Ok((0, Cost::Emulated)));
        // With a segment prefix no probe is possible.
        assert_eq!(new(&[0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0, 0x55, 0xc3], 0), Ok((10, Cost::Emulated)));
    }

    #[test]
    fn what_only_looks_emulated() {
        is(&[0x41, 0x90, 0xc3], 0, "xchg r8d, eax", Cost::Stepped);
        is(&[0x40, 0x55, 0xc3], 0, "push rbp", Cost::Stepped);
        is(&[0x66, 0x55, 0xc3], 0, "push bp", Cost::Stepped);
        is(&[0x6a, 0x01, 0xc3], 0, "push 1", Cost::Stepped);
        is(&[0xc5, 0xf8, 0x77, 0xc3], 0, "vzeroupper", Cost::Stepped);
    }

    #[test]
    fn no_place_at_all() {
        assert_eq!(choose(&[], 0, NEW), Err("it has no code"));
        for code in [&[0xcc][..], &[0x0f, 0x0b], &[0xf4], &[0x06], &[0x48], &[0x0f, 0x1f, 0x44]] {
            assert_eq!(choose(code, 0, NEW), Err("no instruction of its prologue can be probed"), "{code:x?}");
        }
        // What cannot be probed at the entry may be passed: lock inc dword [rip+0]; push rbp.
        is(&[0xf0, 0xff, 0x05, 0, 0, 0, 0, 0x55, 0xc3], 7, "push rbp", Cost::Emulated);
    }

    proptest! {
        /// Walks the same bytes again, by the register's number instead of the decoder's analysis where it can.
        #[test]
        fn in_any_bytes_the_place_is_sound(code in prop::collection::vec(any::<u8>(), 0..128), new: bool) {
            let kernel = if new { NEW } else { Kernel::OLD };
            let Ok(place) = choose(&code, 0, kernel) else { return Ok(()) };
            let mut info = InstructionInfoFactory::new();
            let mut end = 0;
            for instruction in Decoder::with_ip(64, &code, 0, DecoderOptions::NONE).iter() {
                prop_assert!(!instruction.is_invalid());
                end = instruction.ip();
                if end >= place.offset {
                    break;
                }
                prop_assert_eq!(instruction.flow_control(), FlowControl::Next);
                for used in info.info(&instruction).used_registers() {
                    let register = used.register().full_register();
                    if register.is_gpr() && used.access() != OpAccess::Read && used.access() != OpAccess::CondRead {
                        // rax, rbx, rbp and r10 to r15.
                        prop_assert!([0, 3, 5, 10, 11, 12, 13, 14, 15].contains(&register.number()), "{register:?}");
                    }
                }
            }
            prop_assert_eq!(end, place.offset);
        }
    }
}
