//! What the fuzzers begin with, of format 2: `format/fuzz/corpus`. `UPDATE_CORPUS=1 cargo test -p ktape-format --test
//! hostile seeds` writes it. Seeds of format 1 stay as they were found.

use std::path::{Path, PathBuf};

use ktape_format::{Table as _, Tape, codec};

use crate::{read, tape};

/// Longer inputs are cut by `run.sh`.
const MAX_SEED_BYTES: usize = 16_384;
/// Of the seeds that have staged records.
const HALF_BYTES: usize = 3072;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/tapes")
}

fn seed(target: &str, name: &str, made: &dyn Fn() -> Vec<u8>) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target).join(name);
    if std::env::var_os("UPDATE_CORPUS").is_some() {
        std::fs::write(&path, made()).unwrap();
    }
    let bytes = std::fs::read(&path).unwrap();
    assert!(bytes.len() <= MAX_SEED_BYTES, "{name}: {} bytes", bytes.len());
    bytes
}

#[test]
fn seeds_reach_every_part_of_a_tape() {
    let golden = || std::fs::read(fixtures().join("v2.1.ktape")).unwrap();
    // A closed tape with every coding, and its blocks.
    let batch = seed("tape", "v2-batch", &golden);
    assert!(read(batch.clone()).events.kernel.len() > 300);
    let blocks = Tape::from_bytes(golden()).unwrap().blocks().to_vec();
    for (index, block) in blocks.iter().enumerate() {
        let part = || golden()[block.offset as usize..][..block.bytes as usize].to_vec();
        assert_eq!(codec::decode_block(&seed("block", &format!("v2-{index}"), &part)).err(), None);
    }
    // Rows of every kind in both halves.
    let staged = seed("tape", "v2-staged", &|| {
        let mut whole = tape(HALF_BYTES as u32, 1);
        whole.truncate(Tape::from_bytes(whole.clone()).unwrap().blocks()[1].offset as usize);
        whole
    });
    let contents = read(staged.clone());
    assert_eq!((contents.damage.len(), contents.events.len() as u64), (0, 3 * 19));
    assert!(contents.staged_rows > 2 * 19);
    // And losses that no row tells of.
    let lossy = seed("tape", "v2-lossy", &|| {
        let mut tape = staged.clone();
        let newest = if tape[512 + 8] == 2 { 512 } else { 512 + HALF_BYTES };
        tape[newest + 24..newest + 32].copy_from_slice(&[7, 0, 0, 0, 248, 255, 255, 255]);
        tape
    });
    assert_eq!(read(lossy).events.loss.count.last(), Some(&7));
}
