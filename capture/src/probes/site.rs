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
    Decoder, DecoderOptions, FlowControl, Formatter as _, Instruction, InstructionInfoFactory, IntelFormatter, OpAccess,
    OpKind, Register,
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
        let is_branch = matches!(instruction.op0_kind(), OpKind::NearBranch64)
            && matches!(instruction.flow_control(), FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch);
        let target = instruction.near_branch_target();
        (is_branch && (1..=instruction.ip()).contains(&target)).then_some(target)
    };
    let prologue = |target: &u64| *target < MOST_PROLOGUE_BYTES as u64;
    Decoder::with_ip(64, code, 0, DecoderOptions::NONE).iter().filter_map(|one| back(&one)).filter(prologue).min()
}

fn text(instruction: &Instruction) -> String {
    let mut text = String::new();
    let mut formatter = IntelFormatter::new();
    formatter.options_mut().set_space_after_operand_separator(true);
    formatter.options_mut().set_branch_leading_zeros(false);
    formatter.format(instruction, &mut text);
    text
}
