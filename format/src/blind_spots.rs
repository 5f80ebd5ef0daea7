//! Blind spots: what recorders cannot have seen, as their tapes tell it ([`property::BLIND_SPOTS`]), added up over several tapes.
//!
//! Each tape of a recording tells of what came up while it was written. So what is known of a recording is the sum of its tapes,
//! and a rollup keeps that of what it was made of.

use serde::{Deserialize, Serialize};

use crate::definition::{Definitions, property, subject};

/// What a recorder cannot have seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlindSpot {
    /// Of which sort: see `docs/run.md`.
    pub kind: String,
    /// How many.
    pub count: u64,
    /// Of what.
    pub what: String,
}

/// So many are told apart: a recording goes on for months, and each process may have its own words.
const MOST: usize = 1000;
/// What those beyond are called.
const OTHERS: &str = "of others of the sort";

/// Those of several tapes.
#[derive(Clone, Debug, Default)]
pub struct BlindSpots {
    /// In the order in which they were told first.
    pub spots: Vec<BlindSpot>,
}

impl BlindSpots {
    /// Adds those of a tape. What cannot be read, of a newer version or a stranger, is none.
    pub fn add(&mut self, definitions: &Definitions) {
        let json = definitions.property(subject::TAPE, 0, property::BLIND_SPOTS);
        let spots: Vec<BlindSpot> = json.and_then(|json| serde_json::from_str(json).ok()).unwrap_or_default();
        spots.into_iter().for_each(|spot| self.add_one(spot));
    }

    fn add_one(&mut self, spot: BlindSpot) {
        let place = |spots: &[BlindSpot], kind: &str, what: &str| {
            spots.iter().position(|known| known.kind == kind && known.what == what)
        };
        let known = place(&self.spots, &spot.kind, &spot.what);
        let what = if known.is_some() || self.spots.len() < MOST { spot.what } else { OTHERS.to_owned() };
        match known.or_else(|| place(&self.spots, &spot.kind, &what)) {
            Some(at) => self.spots[at].count = self.spots[at].count.saturating_add(spot.count),
            None => self.spots.push(BlindSpot { what, ..spot }),
        }
    }

    /// As a tape's property has them; `None` where there are none.
    pub fn json(&self) -> Option<String> {
        // Strings and numbers: it cannot fail.
        (!self.spots.is_empty()).then(|| serde_json::to_string(&self.spots).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Memory, Sink as _};

    fn tape(json: &str) -> Definitions {
        let mut memory = Memory::default();
        let Ok(()) = memory.property(subject::TAPE, 0, property::BLIND_SPOTS, json);
        memory.definitions
    }

    #[test]
    fn those_of_several_tapes_add_up_by_kind_and_words() {
        let mut all = BlindSpots::default();
        assert_eq!(all.json(), None);
        let first = r#"[{"kind":"no_launch","count":2,"what":"a"},{"kind":"unknown_stacks","count":3,"what":"b"}]"#;
        all.add(&tape(first));
        all.add(&tape(
            r#"[{"kind":"unknown_stacks","count":4,"what":"b"},{"kind":"unknown_stacks","count":5,"what":"c"}]"#,
        ));
        all.add(&tape("no JSON"));
        all.add(&Definitions::default());
        let told: Vec<_> = all.spots.iter().map(|spot| (spot.kind.as_str(), spot.count, spot.what.as_str())).collect();
        assert_eq!(told, [("no_launch", 2, "a"), ("unknown_stacks", 7, "b"), ("unknown_stacks", 5, "c")]);
        let mut again = BlindSpots::default();
        again.add(&tape(&all.json().unwrap()));
        assert_eq!(again.spots, all.spots);
    }

    #[test]
    fn words_without_end_become_one() {
        let mut all = BlindSpots::default();
        for number in 0..MOST as u64 + 10 {
            all.add_one(BlindSpot { kind: "silent_process".into(), count: 1, what: format!("process {number}") });
        }
        assert_eq!(all.spots.len(), MOST + 1);
        assert_eq!((all.spots[MOST].what.as_str(), all.spots[MOST].count), (OTHERS, 10));
    }
}
