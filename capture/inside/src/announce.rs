//! The site at which the correlation ids of calls are announced to an eBPF probe.
//!
//! Its first instruction is a `nop` of five bytes, so that the kernel can put a probe's call there in place of a trap: a third of
//! what a probe costs elsewhere (USDT sites are made like that). Without a probe it is a call and a return.

/// Announces the id of the call that this thread is in. The first argument is where a probe finds it: `rdi`.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub extern "C" fn ktape_correlated(correlation_id: u32) {
    std::arch::naked_asm!(".byte 0x0f, 0x1f, 0x44, 0x00, 0x00", "ret")
}

/// Announces it.
#[inline(always)]
pub(crate) fn correlated(correlation_id: u32) {
    ktape_correlated(correlation_id);
}
