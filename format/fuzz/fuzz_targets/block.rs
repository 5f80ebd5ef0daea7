//! Any bytes as one block whose checksums hold: decoding gives rows or a reason. Rows that it gives, encoded again and
//! decoded again, are the same rows.
#![no_main]

#[path = "../../tests/hostile/checksums.rs"]
#[expect(dead_code, reason = "whole tapes are the other target's")]
mod checksums;

use ktape_format::codec::{Encoder, decode_block};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut block = bytes.to_vec();
    checksums::seal_block(&mut block);
    let Ok((definitions, events)) = decode_block(&block) else { return };
    let (mut once, mut twice) = (Vec::new(), Vec::new());
    // An encoder of its own each time: one goes on with what it found best.
    Encoder::new().expect("memory").encode(&definitions, &events, &mut once);
    let (definitions, events) = decode_block(&once).expect("what was encoded can be decoded");
    // Bytes, not rows, are compared: a NaN does not equal itself.
    Encoder::new().expect("memory").encode(&definitions, &events, &mut twice);
    assert!(once == twice, "other rows came back");
});
