//! Any bytes as an exported report of Nsight Systems: what is read is kept or counted, and what strict takes lenient
//! takes as it is.
#![no_main]

use ktape_analyze::import::{Options, Summary, nsys};
use ktape_format::Memory;
use libfuzzer_sys::fuzz_target;

fn import(bytes: &[u8], lenient: bool) -> Option<(Summary, String)> {
    let mut memory = Memory::default();
    let summary = nsys::import_bytes(bytes, "report.sqlite", &mut memory, Options { lenient }, |_| {}).ok()?;
    let not_kept: u64 = summary.not_kept.values().sum();
    assert_eq!(summary.entries(), summary.kept.values().sum::<u64>() + not_kept, "read = kept + not kept");
    Some((summary, format!("{memory:?}")))
}

fuzz_target!(|bytes: &[u8]| {
    let strict = import(bytes, false);
    let lenient = import(bytes, true);
    if strict.is_some() {
        assert!(strict == lenient, "a sound report is no other for a lenient reader");
    }
});
