//! The sites at which eBPF probes hear what this process does: the correlation ids of calls, and ranges.
//!
//! The first instruction of each is a `nop` of five bytes, so that the kernel can put a probe's call there in place of a trap: a third of
//! what a probe costs elsewhere (USDT sites are made like that). Without a probe it is a call and a return.

/// Announces the id of the call that this thread is in, or has just made. With an id of 0 it announces how far from the thread pointer the
/// word is by which a thread says that it calls the driver for the library. The arguments are where a probe finds them: `rdi`, `rsi`.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub extern "C" fn ktape_correlated(correlation_id: u32, word: u64) {
    std::arch::naked_asm!(".byte 0x0f, 0x1f, 0x44, 0x00, 0x00", "ret")
}

/// Announces that a range or mark begins, of which its thread tells next: the probe takes the stack. The argument is where a probe
/// finds it: `rdi`.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub extern "C" fn ktape_ranged(time_ns: u64) {
    std::arch::naked_asm!(".byte 0x0f, 0x1f, 0x44, 0x00, 0x00", "ret")
}

/// Announces it.
#[inline(always)]
pub(crate) fn correlated(correlation_id: u32) {
    ktape_correlated(correlation_id, 0);
}

/// Announces where that word is. Of a library that was loaded with the program, as it is as far away in every thread then.
pub(crate) fn own_calls(word: *const u32) {
    let thread_pointer: u64;
    // SAFETY: reads the word at the thread pointer, which is that itself, as the ABI of threads has it.
    unsafe { std::arch::asm!("mov {}, fs:0", out(reg) thread_pointer, options(nostack, readonly, preserves_flags)) };
    ktape_correlated(0, (word as u64).wrapping_sub(thread_pointer));
}
