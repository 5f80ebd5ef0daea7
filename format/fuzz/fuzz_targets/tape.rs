//! Any bytes as a tape whose checksums hold: it is refused or read, and what is read is in proportion to its length.
#![no_main]

#[path = "../../tests/hostile/checksums.rs"]
mod checksums;

use ktape_format::block::{ALIGNMENT, MAGIC};
use ktape_format::event::Loss;
use ktape_format::{Owners, Row as _, Tape, Wanted};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut tape = bytes.to_vec();
    checksums::seal_front(&mut tape);
    checksums::seal_staging(&mut tape);
    for at in (512..tape.len()).step_by(ALIGNMENT as usize).filter(|&at| bytes[at..].starts_with(&MAGIC)) {
        checksums::seal_block(&mut tape[at..]);
    }
    let Ok(tape) = Tape::from_bytes(tape) else { return };
    let contents = tape.read(&Wanted::default()).expect("memory");
    // Eight for each byte on the tape, and eight for each byte that is lost.
    let rows = contents.definitions.len() + contents.events.len();
    assert!(rows <= 16 * bytes.len(), "{rows} rows on {} bytes", bytes.len());
    // Less that is wanted is less that is read, and never anything else.
    let wanted = Wanted { from_ns: tape.first_ns(), to_ns: Some(1 << 40), kinds: vec![1, 4, 15], ..Wanted::default() };
    let less = tape.read(&wanted).expect("memory");
    assert!(less.definitions == contents.definitions, "definitions depend on what is wanted");
    let mut events = contents.events;
    wanted.keep(&Owners::default(), &mut events);
    // A directory that is wrong about times, with a checksum that holds, hides rows; it never gives others. What the tail
    // says was lost has no time, so it always comes.
    for ((table, less), (_, all)) in less.events.counts().into_iter().zip(events.counts()) {
        let untold = usize::from(table == Loss::NAME);
        assert!(less <= all + untold, "{table}: {less} rows of {all}");
    }
});
