//! Any bytes as a PyTorch trace: what is read is kept or counted, and what strict takes lenient takes as it is.
#![no_main]

use ktape_analyze::import::{Options, Summary, kineto};
use ktape_format::{Memory, Table as _};
use libfuzzer_sys::fuzz_target;

fn import(bytes: &[u8], lenient: bool) -> Option<(Summary, String)> {
    let mut memory = Memory::default();
    let summary = kineto::import_bytes(bytes, "trace.json", &mut memory, Options { lenient }, |_| {}).ok()?;
    let not_kept: u64 = summary.not_kept.values().sum();
    assert_eq!(summary.entries(), summary.kept.values().sum::<u64>() + not_kept, "read = kept + not kept");
    assert_eq!(memory.events.loss.is_empty(), !summary.broken.is_loss(), "what is missing is a loss");
    Some((summary, format!("{memory:?}")))
}

fuzz_target!(|bytes: &[u8]| {
    let strict = import(bytes, false);
    let lenient = import(bytes, true);
    if strict.is_some() {
        assert!(strict == lenient, "a sound trace is no other for a lenient reader");
    }
});
