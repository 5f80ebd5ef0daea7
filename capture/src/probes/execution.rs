//! How the kernel executes the instruction that a probe replaced: what a probe costs is decided there.
//!
//! A probe is an `int3`. When the program has been told of the hit, the kernel must do what the instruction would have done. A few
//! it emulates, by changing the registers it saved; for all others it makes a copy elsewhere and single-steps that, with a
//! second trap: fifteen times as long in a virtual machine. `arch/x86/kernel/uprobes.c` says which:
//!
//! | instruction | emulated | in |
//! |---|---|---|
//! | `push reg` as `50`…`57` or `41 50`…`41 57`, nothing else before it | since 4.17 | `push_setup_xol_ops` |
//! | `jmp rel8/32`, `jcc rel8/32`, `call rel32` | always; with prefix `66` no probe is possible | `branch_setup_xol_ops` |
//! | `nop` (`90`), also as `66 90` or `pause`; `xchg r8, rax` has the same opcode, and old kernels take it for one | always | the same |
//! | `nop` of several bytes (`0f 1f`) | since 6.18 | the same, `insn_is_nop` |
//! | the `nop` of five bytes, on one page | replaced by a call since 6.18: no trap at all | `can_optimize` |
//!
//! `push rsp` is emulated rightly; `push imm`, `push mem` and a `push` with any other prefix are not. No probe goes onto an
//! instruction with a segment prefix or `lock` (`is_prefix_bad`): thus not on the `nop` with `2e` that assemblers like to pad with.

use iced_x86::{Instruction, Mnemonic};
use serde::Serialize;

/// What a probe on an instruction costs. The times are of a virtual machine with Linux 6.18.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cost {
    /// The kernel puts a call in its place after the first hit: 0.4 µs.
    Optimised,
    /// One trap: 0.7 to 1.2 µs.
    Emulated,
    /// Two traps: 16 to 23 µs.
    Stepped,
}

impl Cost {
    /// As it is called.
    pub fn name(self) -> &'static str {
        match self {
            Cost::Optimised => "optimised",
            Cost::Emulated => "emulated",
            Cost::Stepped => "stepped",
        }
    }
}

/// In what kernels differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Kernel {
    /// What a probe costs on a `nop` of several bytes.
    pub long_nop: Cost,
    /// And on that of exactly five.
    pub nop5: Cost,
}

impl Kernel {
    /// Before 6.18. Right for any kernel in that nothing is cheaper than it says.
    pub const OLD: Kernel = Kernel { long_nop: Cost::Stepped, nop5: Cost::Stepped };

    /// What a probe costs on an instruction at this place of a file, of which the bytes are these; `None` where none can be.
    pub fn cost(self, instruction: &Instruction, bytes: &[u8], file_offset: u64) -> Option<Cost> {
        let (prefixes, rest) = bytes.split_at(bytes.iter().take_while(|byte| is_legacy_prefix(**byte)).count());
        if prefixes.iter().any(|prefix| matches!(prefix, 0x26 | 0x2e | 0x36 | 0x3e | 0xf0)) {
            return None;
        }
        let (rex, opcode) = match rest {
            [rex @ 0x40..=0x4f, opcode @ ..] => (*rex, opcode),
            opcode => (0, opcode),
        };
        let with_66 = prefixes.contains(&0x66);
        match opcode {
            [0x50..=0x57] if prefixes.is_empty() && matches!(rex, 0 | 0x41) => Some(Cost::Emulated),
            [0x70..=0x7f | 0xe8 | 0xe9 | 0xeb, ..] | [0x0f, 0x80..=0x8f, ..] if with_66 => None,
            [0x70..=0x7f | 0xe8 | 0xe9 | 0xeb, ..] | [0x0f, 0x80..=0x8f, ..] => Some(Cost::Emulated),
            [0x90] if rex & 1 == 0 => Some(Cost::Emulated),
            _ if bytes == NOP5 && file_offset % PAGE_BYTES <= PAGE_BYTES - NOP5.len() as u64 => Some(self.nop5),
            [0x0f, 0x1f, ..] => Some(self.long_nop),
            _ if refused(instruction) => None,
            _ => Some(Cost::Stepped),
        }
    }
}

const PAGE_BYTES: u64 = 4096;

/// `nop dword [rax+rax*1+0]`: the only form that is optimised.
pub(super) const NOP5: [u8; 5] = [0x0f, 0x1f, 0x44, 0x00, 0x00];

fn is_legacy_prefix(byte: u8) -> bool {
    matches!(byte, 0x66 | 0x67 | 0xf2 | 0xf3 | 0x26 | 0x2e | 0x36 | 0x3e | 0x64 | 0x65 | 0xf0)
}

/// Traps, ends and the kernel's own instructions: single-stepping them in another place means something else.
fn refused(instruction: &Instruction) -> bool {
    let traps = matches!(instruction.mnemonic(), Mnemonic::Int3 | Mnemonic::Int1 | Mnemonic::Int | Mnemonic::Ud2);
    traps || instruction.is_privileged() || matches!(instruction.mnemonic(), Mnemonic::Syscall | Mnemonic::Sysenter)
}
