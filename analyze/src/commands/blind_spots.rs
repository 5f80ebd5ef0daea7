//! What a recorder cannot have seen, as it says on the tape.

use std::io::{self, Write};

use ktape_format::Definitions;
use ktape_format::definition::{property, subject};
use serde::{Deserialize, Serialize};

use crate::human::HumanCount;
use crate::timeline::names::printable;

/// What a recorder cannot have seen.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct BlindSpot {
    /// Of which sort: see `docs/run.md`.
    kind: String,
    /// How many.
    count: u64,
    /// Of what.
    what: String,
}

/// Those of a tape. What cannot be read, of a newer version or a stranger, is none.
pub(super) fn of(definitions: &Definitions) -> Vec<BlindSpot> {
    let json = definitions.property(subject::TAPE, 0, property::BLIND_SPOTS);
    json.and_then(|json| serde_json::from_str(json).ok()).unwrap_or_default()
}

/// Lists them.
pub(super) fn print(out: &mut impl Write, spots: &[BlindSpot]) -> io::Result<()> {
    if !spots.is_empty() {
        writeln!(out, "blind spots of the recording:")?;
    }
    spots
        .iter()
        .try_for_each(|BlindSpot { count, what, .. }| writeln!(out, "  {} {}", HumanCount(*count), printable(what)))
}
