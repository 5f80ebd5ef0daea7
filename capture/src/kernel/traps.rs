//! What the way into a program and back costs, which no program can time itself.
//!
//! Probes are put on a function of our own that has the instruction of each [`Cost`] at its beginning, and it is called. The
//! program there finds that this process is not recorded, and ends.

use std::time::Instant;

use super::links::{Link, Program};
use super::programs::{Kernel, KernelError};
use crate::probes::Cost;
use crate::probes::code_page::CodePage;
use crate::target::libraries::open_path;

/// How often the function is called, in turns of which the median counts.
const TURNS: usize = 9;
const CALLS_A_TURN: u32 = 40;

/// The price of a probe, without what its program does for a recorded call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Traps {
    enter_ns: [f64; COSTS.len()],
    /// Of a return probe; that of the entry is not in it, but the kernel sets one up there.
    pub leave_ns: f64,
}

/// What can be under a probe, and a function that begins with it.
const COSTS: [(Cost, &[u8]); 3] = [
    (Cost::Emulated, &[0x55, 0x5d]),                                    // push rbp; pop rbp
    (Cost::Optimised, &[0x0f, 0x1f, 0x44, 0x00, 0x00]),                 // nop of five bytes
    (Cost::Stepped, &[0x48, 0x83, 0xec, 0x18, 0x48, 0x83, 0xc4, 0x18]), // sub rsp, 18h; add rsp, 18h
];

impl Traps {
    /// Where it could not be measured: then only what the programs take is known.
    pub const UNKNOWN: Traps = Traps { enter_ns: [0.0; COSTS.len()], leave_ns: 0.0 };

    /// Measures: some milliseconds.
    pub fn measure(kernel: &mut Kernel) -> Result<Traps, KernelError> {
        let mut enter_ns = [0.0; COSTS.len()];
        for (ns, (_, code)) in enter_ns.iter_mut().zip(COSTS) {
            *ns = price(kernel, code, Program::CodeFreed)?;
        }
        Ok(Traps { enter_ns, leave_ns: price(kernel, COSTS[0].1, Program::Leave)? })
    }

    #[cfg(test)]
    pub(crate) fn of(enter_ns: [f64; COSTS.len()], leave_ns: f64) -> Traps {
        Traps { enter_ns, leave_ns }
    }

    /// The price of a probe on such an instruction.
    pub fn enter_ns(&self, cost: Cost) -> f64 {
        COSTS.iter().position(|(known, _)| *known == cost).map_or(0.0, |at| self.enter_ns[at])
    }
}

fn price(kernel: &mut Kernel, code: &[u8], program: Program) -> Result<f64, KernelError> {
    // SAFETY: each code of `COSTS` leaves the stack and all registers that a caller keeps as they were.
    let page = unsafe { CodePage::new(code) }.map_err(KernelError::Trial)?;
    let plain = median_ns(&page);
    let link = Link { program, symbol: "a function of the recorder's own", file_offset: 0, cookie: 0 };
    let probed = kernel.while_attached(&[link], &open_path(page.file()), || median_ns(&page))?;
    Ok((probed - plain).max(0.0))
}

/// What a call of the function takes.
fn median_ns(page: &CodePage) -> f64 {
    let mut turns = [0.0; TURNS];
    for turn in &mut turns {
        let began = Instant::now();
        (0..CALLS_A_TURN).for_each(|_| page.call());
        *turn = began.elapsed().as_nanos() as f64 / f64::from(CALLS_A_TURN);
    }
    turns.sort_by(f64::total_cmp);
    turns[TURNS / 2]
}
