//! Finds a tape's blocks: the walk from header to header, and what to do where one is damaged.
//!
//! A tape is bytes from a stranger. Every byte is looked at a bounded number of times: a header and its directory are
//! short, and no payload is read here.

use std::io;
use std::ops::RangeInclusive;

use crate::block::{ALIGNMENT, BlockInfo, MAGIC, MAX_FRONT_BYTES};
use crate::error::Damage;
use crate::source::Source;

/// How much is looked through at once for the next block: little first, as it may begin right here, then ever more.
const SEARCH_BYTES: RangeInclusive<u64> = 4 << 10..=1 << 20;

/// What a walk has found so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Walk {
    pub(crate) blocks: Vec<BlockInfo>,
    pub(crate) damage: Vec<Damage>,
}

impl Walk {
    /// Goes on from `at` to the end of the tape. Behind a damaged block it looks for the next place where one begins.
    pub(crate) fn go_on(&mut self, tape: &Source, mut at: u64) -> io::Result<()> {
        let length = tape.length();
        if at > length {
            let reason = "the file ends within its staging area";
            self.damage.push(Damage { offset: length, bytes: 0, rows: None, reason });
        }
        while at < length {
            match BlockInfo::read(&tape.read(at, MAX_FRONT_BYTES)?, at, length) {
                Ok(block) => {
                    let known = self.damage.last().is_some_and(|damage| damage.offset + damage.bytes == at);
                    if block.sequence != next_sequence(&self.blocks) && !known {
                        self.damage.push(Damage {
                            offset: at,
                            bytes: 0,
                            rows: None,
                            reason: "blocks are missing here",
                        });
                    }
                    at += block.bytes;
                    self.blocks.push(block);
                }
                Err(reason) => {
                    let next = next_block(tape, at + ALIGNMENT)?;
                    self.damage.push(Damage { offset: at, bytes: next - at, rows: None, reason });
                    at = next;
                }
            }
        }
        Ok(())
    }
}

/// The sequence number of the block that follows `blocks`.
pub(crate) fn next_sequence(blocks: &[BlockInfo]) -> u64 {
    blocks.last().map_or(0, |block| block.sequence.wrapping_add(1))
}

/// Where the next block begins; the end of the tape if none does.
fn next_block(tape: &Source, mut at: u64) -> io::Result<u64> {
    let mut bytes = *SEARCH_BYTES.start();
    while at < tape.length() {
        let piece = tape.read(at, bytes)?;
        let mut places = piece.chunks(ALIGNMENT as usize);
        if let Some(place) = places.position(|place| place.starts_with(&MAGIC)) {
            return Ok(at + place as u64 * ALIGNMENT);
        }
        at += bytes;
        bytes = (2 * bytes).min(*SEARCH_BYTES.end());
    }
    Ok(tape.length())
}
