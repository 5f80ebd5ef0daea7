//! What the way into a program and back costs, which no program can time itself.
//!
//! Probes are put on functions of our own, of which each has the instruction of a [`Cost`] at its beginning, and they are called.
//! The program there finds that this process is not recorded, and ends. All are set at once, as each attaching takes the kernel
//! milliseconds.

use std::time::Instant;

use super::links::{Link, Program};
use super::programs::{Kernel, KernelError};
use crate::probes::Cost;
use crate::probes::code_page::CodePage;
use crate::target::libraries::open_path;

/// How often each function is called, in turns of which the median counts.
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
        let codes = COSTS.map(|(_, code)| code);
        // SAFETY: each code of `COSTS` leaves the stack and all registers that a caller keeps as they were.
        let page = unsafe { CodePage::new(&[codes[0], codes[1], codes[2], codes[0]]) }.map_err(KernelError::Trial)?;
        let programs = [Program::CodeFreed, Program::CodeFreed, Program::CodeFreed, Program::Leave];
        let symbol = "a function of the recorder's own";
        let links: Vec<Link<'_>> = (0..)
            .zip(programs)
            .map(|(at, program)| Link { program, symbol, file_offset: CodePage::offset(at), cookie: 0 })
            .collect();
        let measure = || std::array::from_fn(|at| median_ns(&page, at));
        let plain: [f64; 4] = measure();
        let probed: [f64; 4] = kernel.while_attached(&links, &open_path(page.file()), measure)?;
        let [emulated, optimised, stepped, leave_ns] = std::array::from_fn(|at| (probed[at] - plain[at]).max(0.0));
        Ok(Traps { enter_ns: [emulated, optimised, stepped], leave_ns })
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

/// What a call of a function takes.
fn median_ns(page: &CodePage, function: usize) -> f64 {
    let mut turns = [0.0; TURNS];
    for turn in &mut turns {
        let began = Instant::now();
        (0..CALLS_A_TURN).for_each(|_| page.call(function));
        *turn = began.elapsed().as_nanos() as f64 / f64::from(CALLS_A_TURN);
    }
    turns.sort_by(f64::total_cmp);
    turns[TURNS / 2]
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::probes::functions;

    /// In a process of its own: probes leave traces in one that other tests look for.
    #[test]
    fn on_trial_each_trap_has_its_price() {
        const ALONE: &str = "KTAPE_TEST_ALONE";
        if std::env::var_os(ALONE).is_none() {
            let mut alone = Command::new(std::env::current_exe().unwrap());
            alone.args(["--exact", "kernel::traps::tests::on_trial_each_trap_has_its_price", "--nocapture"]);
            assert!(alone.env(ALONE, "1").status().unwrap().success());
            return;
        }
        if crate::privileges::demand().is_err() {
            eprintln!("SKIPPED: not root");
            return;
        }
        let (mut kernel, _ring) = Kernel::load(&functions::all(), 1 << 20).expect("the programs are loaded");
        let traps = Traps::measure(&mut kernel).expect("probes are set");
        let [emulated, optimised, stepped] = traps.enter_ns;
        assert!(optimised > 0.0 && traps.leave_ns > 0.0, "{traps:?}");
        assert!(stepped > emulated && emulated > 0.0, "{traps:?}");
    }
}
