//! Rows of processes that are not known: what they are lost as.
//!
//! A library inside tells of its process what the eBPF programs do not know yet, or no more. Such rows have nothing to refer to. They are
//! counted as seen by the process itself, so each is settled here, and loss rows say how many, of which table and when.

use std::collections::BTreeMap;

use ktape_ebpf::inside::{self, Missing, Ran, RangeTold, range};
use ktape_ebpf::wire::Plain as _;
use ktape_ebpf::wire::tally::NO_CPU;
use ktape_format::event::{self, Kernel, Mark, Memcpy, Memset, Range};
use ktape_format::{Row as _, Sink};

use super::Collector;
use super::account::{Fate, Key};

const CAUSE: &str = "what the library inside told of a process that is not known";

/// Rows that are lost and not told yet, by table: how many, from when to when.
#[derive(Debug, Default)]
pub(super) struct Unknown(BTreeMap<u16, (u64, u64, u64)>);

impl Unknown {
    fn add(&mut self, table: u16, start_ns: u64, end_ns: u64) {
        let (count, first_ns, last_ns) = self.0.entry(table).or_insert((0, start_ns, end_ns));
        *count += 1;
        *first_ns = start_ns.min(*first_ns);
        *last_ns = end_ns.max(*last_ns);
    }

    /// Writes a loss row for each table.
    pub(super) fn tell<S: Sink>(&mut self, sink: &mut S) -> Result<(), S::Error> {
        for (kind, (count, first_ns, last_ns)) in std::mem::take(&mut self.0) {
            let cause = sink.string(CAUSE)?;
            let (start_ns, duration_ns) = (first_ns as i64, last_ns.saturating_sub(first_ns));
            sink.event(event::Loss { start_ns, duration_ns, process: 0, count, kind, cause })?;
        }
        Ok(())
    }
}

impl Collector {
    /// Gives up a record of a library inside whose process is not known and does not become so. Calls are not told by one where
    /// this happens.
    pub fn lose<S: Sink>(&mut self, record: &[u8], sink: &mut S) -> Result<(), S::Error> {
        let Some(kind) = record.first_chunk::<2>().map(|kind| u16::from_ne_bytes(*kind).into()) else { return Ok(()) };
        let (table, start_ns, end_ns, counted_ns) = match kind {
            inside::kind::KERNEL_RAN | inside::kind::KERNEL_TIMED | inside::kind::COPY_RAN | inside::kind::SET_RAN => {
                let Some(ran) = Ran::read(record) else { return Ok(()) };
                let table = match kind {
                    inside::kind::KERNEL_RAN | inside::kind::KERNEL_TIMED => Kernel::KIND,
                    inside::kind::COPY_RAN => Memcpy::KIND,
                    _ => Memset::KIND,
                };
                (table, ran.start_ns, ran.end_ns, ran.counted_ns())
            }
            inside::kind::RANGE => {
                let Some(told) = RangeTold::read(record) else { return Ok(()) };
                let table = match told.what {
                    range::PUSH | range::START => Range::KIND,
                    range::MARK => Mark::KIND,
                    // What ends a range is no row.
                    _ => return Ok(()),
                };
                (table, told.time_ns, told.time_ns, told.time_ns)
            }
            inside::kind::MISSING => {
                return Missing::read(record).map_or(Ok(()), |missing| self.missing(&missing, sink));
            }
            _ => return Ok(()),
        };
        self.account.settle(Key::new(counted_ns, NO_CPU, table), Fate::Lost(table));
        self.unknown.add(table, start_ns, end_ns);
        Ok(())
    }
}
