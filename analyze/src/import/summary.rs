//! What an import read, kept and did not keep. Every event of the file is counted exactly once.

use std::collections::BTreeMap;

use super::kineto::{DERIVED, IDS};
use super::stacks::{NODES_AN_EVENT, Stacks};
use super::{BrokenParts, FileSummary, Tool, nsys};
use crate::timeline::audit::stream_order::StreamOrder;
use crate::timeline::names::MOST_FRAMES;

/// What an import did. The counts of [`Summary::kept`] and [`Summary::not_kept`] together are those of
/// [`Summary::read`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// What the file has: entries of `traceEvents` by phase and category (`X kernel`), rows by table.
    pub read: BTreeMap<String, u64>,
    /// Entries that became events of the tape, by the events' kind; `property` for metadata.
    pub kept: BTreeMap<&'static str, u64>,
    /// Entries that did not, by what they were.
    pub not_kept: BTreeMap<String, u64>,
    /// Parts of kept entries that were dropped: arguments, and addresses in names.
    pub not_kept_parts: BTreeMap<String, u64>,
    /// Entries kept with a value put right, by what was wrong.
    pub repaired: BTreeMap<&'static str, u64>,
    /// What of the file is broken. Not among the entries read, as nobody knows how many they were.
    pub broken: BrokenParts,
    /// Device operations whose times contradict those of others on their stream: kept as they are.
    pub disorder: StreamDisorder,
    /// The files of a folder, in order; empty where it was one file.
    pub files: Vec<FileSummary>,
    /// The tool that wrote the trace, where it is not PyTorch's profiler.
    pub tool: Option<Tool>,
    /// What that tool's trace does not have that PyTorch's have.
    pub lacks: Vec<&'static str>,
    /// When the first and the last event begin, on the tape's clock.
    pub span_ns: Option<(i64, i64)>,
    /// The rank that the trace says it is of.
    pub rank: Option<String>,
    /// Kernels, copies and memsets whose launching call is in the file.
    pub matched: u64,
    /// Kernels, copies and memsets without it: they were submitted before the recording began.
    pub unmatched: u64,
}

/// How many device operations cannot have run when they say; `analyze info` names the worst.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct StreamDisorder {
    /// Began before the one before on the stream had ended, those of one graph launch left aside.
    pub overlaps: u64,
    /// Ran so far past later ones of the stream that their durations cannot be.
    pub impossible: u64,
    /// The time by which they did.
    pub impossible_ns: u64,
}

impl Summary {
    /// Takes in what was found of the operations of streams.
    pub(crate) fn take_disorder(&mut self, order: StreamOrder) {
        let found = order.finish();
        self.disorder.overlaps += found.overlaps.count;
        self.disorder.impossible += found.impossible.count;
        self.disorder.impossible_ns = self.disorder.impossible_ns.saturating_add(found.impossible.ns);
    }

    /// All that was not kept, entries and parts, by description.
    pub fn all_not_kept(&self) -> BTreeMap<String, u64> {
        self.not_kept.iter().chain(&self.not_kept_parts).map(|(name, count)| (name.clone(), *count)).collect()
    }

    /// Adds what was read of a part of the text that begins at `offset`.
    pub(crate) fn add(&mut self, part: Summary, offset: u64) {
        fn add<K: Ord>(all: &mut BTreeMap<K, u64>, part: BTreeMap<K, u64>) {
            part.into_iter().for_each(|(key, count)| *all.entry(key).or_default() += count);
        }
        add(&mut self.read, part.read);
        add(&mut self.kept, part.kept);
        add(&mut self.not_kept, part.not_kept);
        add(&mut self.not_kept_parts, part.not_kept_parts);
        add(&mut self.repaired, part.repaired);
        self.broken.add(part.broken, offset);
        self.disorder.overlaps += part.disorder.overlaps;
        self.disorder.impossible += part.disorder.impossible;
        self.disorder.impossible_ns = self.disorder.impossible_ns.saturating_add(part.disorder.impossible_ns);
        self.files.extend(part.files);
        self.tool = self.tool.max(part.tool);
        self.lacks.extend(part.lacks.into_iter().filter(|what| !self.lacks.contains(what)).collect::<Vec<_>>());
        part.span_ns.into_iter().for_each(|(first_ns, last_ns)| self.see_span(first_ns, last_ns));
        self.rank = self.rank.take().or(part.rank);
        self.matched += part.matched;
        self.unmatched += part.unmatched;
    }

    /// Takes into account that there are events between these times.
    pub(super) fn see_span(&mut self, first_ns: i64, last_ns: i64) {
        let (least_ns, greatest_ns) = self.span_ns.unwrap_or((first_ns, last_ns));
        self.span_ns = Some((least_ns.min(first_ns), greatest_ns.max(last_ns)));
    }

    /// Adds to the count of `what name` in one of the maps.
    pub(crate) fn count(map: &mut BTreeMap<String, u64>, what: &str, name: &str, count: u64) {
        *map.entry(format!("{what} {name}").trim().to_owned()).or_default() += count;
    }

    /// Counts what stacks lack that would have grown beyond all measure.
    pub(super) fn stacks(&mut self, stacks: &Stacks) {
        let too_deep = format!("slices within {MOST_FRAMES} others,");
        let cut_short = format!("stacks beyond {NODES_AN_EVENT} nodes an event,");
        for (what, name, count) in [
            (too_deep, "in the stacks of their calls", stacks.too_deep),
            (cut_short, "their innermost frames", stacks.cut_short),
        ] {
            if count > 0 {
                Summary::count(&mut self.not_kept_parts, &what, name, count);
            }
        }
    }

    /// Counts a value that was put right.
    pub(crate) fn repair(&mut self, what: &'static str) {
        self.repair_all(what, 1);
    }

    /// Counts values that were put right.
    pub(crate) fn repair_all(&mut self, what: &'static str, count: u64) {
        if count > 0 {
            *self.repaired.entry(what).or_default() += count;
        }
    }

    /// How many entries or rows the file has.
    pub fn entries(&self) -> u64 {
        self.read.values().sum()
    }
}

/// Why it is no loss that something was not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// It may be one.
    Unknown,
    /// What is on the tape says the same.
    Derived,
    /// It numbers one event, and the correlation joins what it joined.
    Id,
    /// It says how a viewer should show the trace.
    Display,
    /// It names a row that has no events.
    EmptyRow,
}

impl Reason {
    /// The reason for what [`Summary::not_kept`] or [`Summary::not_kept_parts`] counts under this description, and
    /// what to call it beside others with the same reason.
    pub fn of(description: &str) -> (Reason, &str) {
        if let Some(name) = description.strip_prefix("argument ") {
            let reason = match name {
                name if IDS.contains(&name) => Reason::Id,
                name if DERIVED.contains(&name) => Reason::Derived,
                _ => return (Reason::Unknown, description),
            };
            return (reason, name);
        }
        if let Some(entry) = description.strip_prefix("metadata of a row without events, ") {
            return (Reason::EmptyRow, entry);
        }
        if let Some(reason) = nsys::reason(description) {
            return reason;
        }
        match description {
            "address in a name" => (Reason::Id, description),
            // The scope of an instant: how high a viewer draws it.
            "key s" | "metadata process_sort_index" | "metadata thread_sort_index" => (Reason::Display, description),
            _ if description.starts_with("flow ") => (Reason::Derived, description),
            _ => (Reason::Unknown, description),
        }
    }

    /// The heading of a list.
    pub fn text(self) -> &'static str {
        match self {
            Reason::Unknown => "no place on the tape",
            Reason::Derived => "follows from what is kept",
            Reason::Id => "ids of single events",
            Reason::Display => "only for display",
            Reason::EmptyRow => "names of rows without events",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Reason;

    #[test]
    fn what_is_not_known_to_be_no_loss_may_be_one() {
        let reason = |description| Reason::of(description).0;
        assert_eq!(Reason::of("argument Ev Idx"), (Reason::Id, "Ev Idx"));
        assert_eq!(Reason::of("argument warps per SM"), (Reason::Derived, "warps per SM"));
        assert_eq!(reason("flow ac2g"), Reason::Derived);
        assert_eq!(Reason::of("metadata of a row without events, process_name"), (Reason::EmptyRow, "process_name"));
        assert_eq!(reason("metadata process_sort_index"), Reason::Display);
        for unknown in ["argument new in 2027", "event of phase N", "event without `ts`, category kernel", "key cname"]
        {
            assert_eq!(reason(unknown), Reason::Unknown, "{unknown}");
        }
    }
}
