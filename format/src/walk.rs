//! Finds a tape's blocks: the walk from header to header, and what to do where one is damaged.
//!
//! A tape is bytes from a stranger. Every byte is looked at a bounded number of times: a header and its directory are
//! short, and no payload is read here.

use crate::block::{ALIGNMENT, BlockInfo, MAGIC};
use crate::error::Damage;

/// Finds the blocks from `from` on. Behind a damaged one it looks for the next place where a block begins.
pub(crate) fn walk(tape: &[u8], from: u64) -> (Vec<BlockInfo>, Vec<Damage>) {
    let (mut blocks, mut damage) = (Vec::<BlockInfo>::new(), Vec::<Damage>::new());
    let length = tape.len() as u64;
    let mut at = from;
    if from > length {
        damage.push(Damage { offset: length, bytes: 0, rows: None, reason: "the file ends within its staging area" });
    }
    while at < length {
        match BlockInfo::read(tape, at) {
            Ok(block) => {
                let known = damage.last().is_some_and(|damage| damage.offset + damage.bytes == at);
                if block.sequence != next_sequence(&blocks) && !known {
                    damage.push(Damage { offset: at, bytes: 0, rows: None, reason: "blocks are missing here" });
                }
                at += block.bytes;
                blocks.push(block);
            }
            Err(reason) => {
                let next = next_block(tape, at + ALIGNMENT).unwrap_or(length);
                damage.push(Damage { offset: at, bytes: next - at, rows: None, reason });
                at = next;
            }
        }
    }
    (blocks, damage)
}

/// The sequence number of the block that follows `blocks`.
pub(crate) fn next_sequence(blocks: &[BlockInfo]) -> u64 {
    blocks.last().map_or(0, |block| block.sequence.wrapping_add(1))
}

fn next_block(tape: &[u8], from: u64) -> Option<u64> {
    let from = usize::try_from(from).ok()?;
    let places = tape.get(from..)?.chunks(ALIGNMENT as usize);
    places.enumerate().find(|(_, place)| place.starts_with(&MAGIC)).map(|(n, _)| (from as u64) + n as u64 * ALIGNMENT)
}
