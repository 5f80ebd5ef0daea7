//! What an import read, kept and did not keep. Every event of the file is counted exactly once.

use std::collections::BTreeMap;

/// What an import did. The counts of [`Summary::kept`] and [`Summary::not_kept`] together are those of
/// [`Summary::read`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Entries of `traceEvents` by phase and category (`X kernel`).
    pub read: BTreeMap<String, u64>,
    /// Entries that became events of the tape, by the events' kind; `property` for metadata.
    pub kept: BTreeMap<&'static str, u64>,
    /// Entries that did not, by what they were.
    pub not_kept: BTreeMap<String, u64>,
    /// Parts of kept entries that were dropped: arguments, and addresses in names.
    pub not_kept_parts: BTreeMap<String, u64>,
    /// Entries kept with a value put right, by what was wrong.
    pub repaired: BTreeMap<&'static str, u64>,
    /// Kernels, copies and memsets whose launching call is in the file.
    pub matched: u64,
    /// Kernels, copies and memsets without it: they were submitted before the recording began.
    pub unmatched: u64,
}

impl Summary {
    /// All that was not kept, for the tape's property: a JSON object of description to count.
    pub fn not_kept_json(&self) -> String {
        let all: BTreeMap<&str, u64> =
            self.not_kept.iter().chain(&self.not_kept_parts).map(|(name, count)| (name.as_str(), *count)).collect();
        serde_json::json!(all).to_string()
    }

    /// Adds to the count of `what name` in one of the maps.
    pub(super) fn count(map: &mut BTreeMap<String, u64>, what: &str, name: &str, count: u64) {
        *map.entry(format!("{what} {name}").trim_end().to_owned()).or_default() += count;
    }

    /// Counts a value that was put right.
    pub(super) fn repair(&mut self, what: &'static str) {
        self.repair_all(what, 1);
    }

    /// Counts values that were put right.
    pub(super) fn repair_all(&mut self, what: &'static str, count: u64) {
        if count > 0 {
            *self.repaired.entry(what).or_default() += count;
        }
    }

    /// How many entries `traceEvents` has.
    pub fn entries(&self) -> u64 {
        self.read.values().sum()
    }
}
