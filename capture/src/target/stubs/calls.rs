//! Calls in a file's code, and the constants in the registers that carry their arguments.
//!
//! To decode hundreds of megabytes would take seconds. But a call has its opcode and the distance to what it calls: a search for
//! these bytes finds every call of a function at memory's speed, and the few that are found are decoded with what stands in
//! front of them. Backwards, instructions cannot be told apart; so decoding begins some hundred bytes before, at one byte after
//! the other, until it meets the call and knows the arguments. Bytes that look like a call by chance have senseless arguments, which the caller sees.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use iced_x86::{Decoder, DecoderOptions, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register};
use memchr::{memchr_iter, memmem};
use rustc_hash::FxHashMap;

use super::Place;
use crate::probes::Error;

/// So much code of one file is read; the largest libraries have a tenth of it.
const MOST_CODE_BYTES: u64 = 4 << 30;
const PIECE_BYTES: u64 = 1 << 20;

/// So many calls of one file are decoded; libtorch has 70 thousand.
const MOST_CALLS: usize = 1 << 18;

/// Arguments are set so close before a call: ten of them take 60 bytes.
const BEFORE_BYTES: usize = 128;
/// The longest call, and what stands in front of a trampoline's jump.
const CALL_BYTES: usize = 6;
const ENDBR: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

/// Decoding begins at so many places, one byte after the other: no instruction is longer.
const BEGINNINGS: usize = 15;

/// What is called: addresses of the file, and which function that means.
#[derive(Debug, Default)]
pub(super) struct Callees {
    /// Slots in which the loader puts a function's address.
    pub(super) slots: FxHashMap<u64, usize>,
    /// Functions, and the trampolines (PLT) that jump through a slot.
    pub(super) functions: FxHashMap<u64, usize>,
}

/// An argument of a call that a register carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Argument {
    First,
    Second,
    Fourth,
}

impl Argument {
    fn register(self) -> Register {
        match self {
            Argument::First => Register::RDI,
            Argument::Second => Register::RSI,
            Argument::Fourth => Register::RCX,
        }
    }
}

/// What is known of the registers at one place.
#[derive(Clone, Debug, Default)]
struct Registers([Option<Place>; 16]);

impl Registers {
    /// What an instruction does to them.
    fn follow(&mut self, instruction: &Instruction, factory: &mut InstructionInfoFactory) {
        let value = match (instruction.mnemonic(), instruction.op1_kind()) {
            (Mnemonic::Lea, OpKind::Memory) if instruction.is_ip_rel_memory_operand() => {
                Some(Place::At(instruction.ip_rel_memory_address()))
            }
            (Mnemonic::Mov, OpKind::Memory)
                if instruction.is_ip_rel_memory_operand() && instruction.op0_register().is_gpr64() =>
            {
                Some(Place::Slot(instruction.ip_rel_memory_address()))
            }
            (Mnemonic::Mov, OpKind::Register) if instruction.op1_register().is_gpr64() => {
                self.0[instruction.op1_register().number()]
            }
            // A program that is not to be moved has addresses in its instructions.
            (Mnemonic::Mov, OpKind::Immediate32 | OpKind::Immediate64 | OpKind::Immediate32to64) => {
                Some(Place::At(instruction.immediate(1)))
            }
            _ => None,
        };
        for used in factory.info(instruction).used_registers() {
            let is_written = !matches!(used.access(), OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess);
            let whole = used.register().full_register();
            if is_written && whole.is_gpr64() {
                self.0[whole.number()] = None;
            }
        }
        let target = instruction.op0_register();
        if instruction.op0_kind() == OpKind::Register && (target.is_gpr64() || target.is_gpr32()) && value.is_some() {
            self.0[target.number()] = value;
        }
        if matches!(instruction.mnemonic(), Mnemonic::Call) {
            // A function keeps these, and no others.
            let kept = [Register::RBX, Register::RBP, Register::R12, Register::R13, Register::R14, Register::R15];
            let kept = kept.map(|register| register.number());
            (0..16).filter(|number| !kept.contains(number)).for_each(|number| self.0[number] = None);
        }
    }
}

/// The code of a file.
pub(super) struct Code<'f> {
    file: &'f File,
    /// Where in the file, the address, how many bytes.
    ranges: Vec<(u64, u64, u64)>,
}

/// A piece of code, with what stands before it and a call's length of what follows.
struct Piece<'b> {
    bytes: &'b [u8],
    /// Of its first byte.
    address: u64,
    /// What is this piece's own: where a match must begin.
    own: std::ops::Range<usize>,
}

impl<'f> Code<'f> {
    pub(super) fn new(file: &'f File, ranges: Vec<(u64, u64, u64)>) -> Code<'f> {
        Code { file, ranges }
    }

    /// Adds the trampolines that jump through a slot.
    pub(super) fn find_trampolines(&self, callees: &mut Callees) -> Result<(), Error> {
        if callees.slots.is_empty() {
            return Ok(());
        }
        let jump = memmem::Finder::new(&[0xff, 0x25]);
        self.pieces(&mut |piece| {
            for at in jump.find_iter(piece.bytes).filter(|at| piece.own.contains(at)) {
                let Some(&name) = piece.slot(at).and_then(|slot| callees.slots.get(&slot)) else { continue };
                // It may have a prefix, and where calls are guarded a landing place.
                let is_bound = at > 0 && piece.bytes[at - 1] == 0xf2;
                let begin = at - usize::from(is_bound);
                let is_guarded = piece.bytes[..begin].ends_with(&ENDBR);
                let begin = begin - if is_guarded { ENDBR.len() } else { 0 };
                callees.functions.insert(piece.address.wrapping_add(begin as u64), name);
            }
            true
        })
    }

    /// Tells of every call of one of these whose wanted arguments, two for each of them, are known; until `tell` has had
    /// enough.
    pub(super) fn find_calls(
        &self,
        callees: &Callees,
        wanted: &[[Argument; 2]],
        tell: &mut dyn FnMut(usize, [Place; 2]) -> bool,
    ) -> Result<(), Error> {
        let mut factory = InstructionInfoFactory::new();
        let mut calls_left = MOST_CALLS;
        let indirect = memmem::Finder::new(&[0xff, 0x15]);
        self.pieces(&mut |piece| {
            let own = |at: &usize| piece.own.contains(at);
            let direct = memchr_iter(0xe8, piece.bytes).filter(own).filter_map(|at| {
                let address = piece.relative(at + 1, at + 5)?;
                Some((at, *callees.functions.get(&address)?))
            });
            let through_slot = indirect.find_iter(piece.bytes).filter(own).filter_map(|at| {
                let slot = piece.slot(at)?;
                Some((at, *callees.slots.get(&slot)?))
            });
            direct.chain(through_slot).all(|(at, name)| {
                if calls_left == 0 {
                    return false;
                }
                calls_left -= 1;
                let arguments = piece.arguments(at, wanted[name], &mut factory);
                arguments.is_none_or(|arguments| tell(name, arguments))
            })
        })
    }

    /// Reads all of it, until `take` has had enough.
    fn pieces(&self, take: &mut dyn FnMut(&Piece<'_>) -> bool) -> Result<(), Error> {
        let mut left = MOST_CODE_BYTES;
        let mut buffer = vec![0; BEFORE_BYTES + PIECE_BYTES as usize + CALL_BYTES];
        for &(file_offset, address, bytes) in &self.ranges {
            let bytes = bytes.min(left);
            left -= bytes;
            for begin in (0..bytes).step_by(PIECE_BYTES as usize) {
                let before = begin.min(BEFORE_BYTES as u64);
                let end = (begin + PIECE_BYTES).min(bytes);
                let read = (end + CALL_BYTES as u64).min(bytes) - (begin - before);
                let buffer = &mut buffer[..read as usize];
                let at = file_offset.checked_add(begin - before).ok_or(Error::Broken("its code"))?;
                self.file.read_exact_at(buffer, at).map_err(|_| Error::Broken("its code"))?;
                let piece = Piece {
                    bytes: buffer,
                    address: address.wrapping_add(begin - before),
                    own: before as usize..(before + end - begin) as usize,
                };
                if !take(&piece) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

impl Piece<'_> {
    /// The address that is so far from `end` as the four bytes at `at` say.
    fn relative(&self, at: usize, end: usize) -> Option<u64> {
        let distance = i32::from_le_bytes(*self.bytes.get(at..)?.first_chunk()?);
        Some(self.address.wrapping_add(end as u64).wrapping_add_signed(distance.into()))
    }

    /// The slot that an indirect jump or call at `at` goes through.
    fn slot(&self, at: usize) -> Option<u64> {
        self.relative(at + 2, at + 6)
    }

    /// What these arguments of the call at `at` are, by the instructions in front of it. A beginning that is out of step misses
    /// instructions, and hardly ever makes up one that takes an address.
    fn arguments(&self, at: usize, wanted: [Argument; 2], factory: &mut InstructionInfoFactory) -> Option<[Place; 2]> {
        let from = at.saturating_sub(BEFORE_BYTES);
        (from..at.min(from + BEGINNINGS)).find_map(|begin| {
            let registers = self.decode(begin, at, factory)?;
            let [first, second] = wanted.map(|argument| registers.0[argument.register().number()]);
            Some([first?, second?])
        })
    }

    /// Decodes from one place to the other; `None` if no instruction begins at the latter.
    fn decode(&self, begin: usize, end: usize, factory: &mut InstructionInfoFactory) -> Option<Registers> {
        let mut registers = Registers::default();
        let address = self.address.wrapping_add(begin as u64);
        let mut decoder = Decoder::with_ip(64, &self.bytes[begin..end], address, DecoderOptions::NONE);
        let mut instruction = Instruction::default();
        while decoder.can_decode() {
            decoder.decode_out(&mut instruction);
            if instruction.is_invalid() {
                // In front of a function there may be anything.
                registers = Registers::default();
                if decoder.position() == end - begin {
                    return None;
                }
            } else {
                registers.follow(&instruction, factory);
            }
        }
        Some(registers)
    }
}
