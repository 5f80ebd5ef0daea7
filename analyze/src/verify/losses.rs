//! What a repair leaves out, as loss rows: how many, of which table, when, why. So nothing goes without a trace.

use std::collections::BTreeMap;

use ktape_format::event::Loss;
use ktape_format::table::DefinitionKind;
use ktape_format::{Definitions, Events, Table};
use serde::Serialize;

use super::ids::AllIds;

/// How the cause of such a row begins.
pub const LEFT_OUT: &str = "damaged on the tape: ";

/// Rows that cannot be kept.
#[derive(Clone, Debug)]
pub(super) struct Lost {
    /// Their table; 0 for several or not known.
    pub(super) table: u16,
    /// How many; 0 for not known.
    pub(super) count: u64,
    pub(super) when: When,
    pub(super) why: String,
}

/// When lost rows were.
#[derive(Clone, Copy, Debug)]
pub(super) enum When {
    /// From the first start to the last end.
    Span(i64, i64),
    /// Between what is before and what is behind this byte of the file.
    At(u64),
}

/// Rows that a repair left out, as they stand on the new tape.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// The number of their table; 0 for several or not known.
    pub table: u16,
    /// How many; 0 for not known.
    pub count: u64,
    /// When the first of them was, or what is known before them.
    pub start_ns: i64,
    /// From there to the last of them, or to what is known behind them.
    pub duration_ns: u64,
    /// Why.
    pub cause: String,
}

/// Where the times of a part begin and end. `offset` says where the part is in the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct PartSpan {
    pub(super) offset: u64,
    pub(super) first_ns: i64,
    pub(super) last_ns: i64,
}

/// Gives losses their times. `spans` are in the order of their offsets.
pub(super) fn left_out(lost: Vec<Lost>, spans: &[PartSpan]) -> Vec<LeftOut> {
    lost.into_iter()
        .map(|Lost { table, count, when, why }| {
            let (first_ns, last_ns) = match when {
                When::Span(first_ns, last_ns) => (first_ns, last_ns),
                When::At(offset) => between(spans, offset),
            };
            let cause = format!("{LEFT_OUT}{why}");
            LeftOut { table, count, start_ns: first_ns, duration_ns: last_ns.abs_diff(first_ns), cause }
        })
        .collect()
}

/// The end of the last part before a byte of the file, and the start of the first behind it. The parts overlap in time,
/// as work on a device does; then it is from the earlier of the two.
fn between(spans: &[PartSpan], offset: u64) -> (i64, i64) {
    let behind = spans.partition_point(|span| span.offset < offset);
    let before_ns = behind.checked_sub(1).map(|last| spans[last].last_ns);
    let behind_ns = spans[behind..].iter().find(|span| span.offset > offset).map(|span| span.first_ns);
    let (a, b) = (before_ns.or(behind_ns).unwrap_or(0), behind_ns.or(before_ns).unwrap_or(0));
    (a.min(b), a.max(b))
}

/// The rows that say so, and the strings that they need, which get the next free ids.
pub(super) fn loss_rows(left_out: &[LeftOut], ids: &AllIds) -> (Definitions, Events) {
    let (mut definitions, mut events) = (Definitions::default(), Events::default());
    let taken = ids.taken(DefinitionKind::String as u16) as u32;
    let mut causes = BTreeMap::<&str, u32>::new();
    for LeftOut { table, count, start_ns, duration_ns, cause } in left_out {
        let cause = *causes.entry(cause).or_insert_with(|| {
            definitions.strings.push(cause.as_str().into());
            taken + definitions.strings.len() as u32
        });
        let (start_ns, duration_ns) = (*start_ns, *duration_ns);
        events.loss.push(Loss { start_ns, duration_ns, process: 0, count: *count, kind: *table, cause });
    }
    (definitions, events)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_is_between_its_neighbours() {
        let span = |offset, first_ns, last_ns| PartSpan { offset, first_ns, last_ns };
        let spans = [span(100, 5, 20), span(200, 30, 40), span(300, 35, 50)];
        let cases = [(50, (5, 5)), (150, (20, 30)), (200, (20, 35)), (250, (35, 40)), (400, (50, 50))];
        for (offset, expected) in cases {
            assert_eq!(between(&spans, offset), expected, "{offset}");
        }
        assert_eq!(between(&[], 9), (0, 0));
    }
}
