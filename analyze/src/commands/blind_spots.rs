//! What a recorder cannot have seen, as it says on the tape.

use std::io::{self, Write};

use ktape_format::Definitions;
use ktape_format::blind_spots::{BlindSpot, BlindSpots};

use crate::human::HumanCount;
use crate::timeline::names::printable;

/// Those of a tape, or of all of a recording.
pub(super) fn of(definitions: &Definitions) -> Vec<BlindSpot> {
    let mut all = BlindSpots::default();
    all.add(definitions);
    all.spots
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
