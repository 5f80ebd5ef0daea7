//! Samples of the processors: where threads were when a counter ran over.

use ktape_format::Sink;
use ktape_format::event::CpuSample;

use super::Importer;
use super::database::Columns;
use super::error::Fault;
use crate::import::Progress;

impl<S: Sink, P: FnMut(Progress)> Importer<'_, '_, S, P> {
    /// Writes the samples. What time one stands for is not known: the period counts cycles or instructions.
    pub(super) fn samples(&mut self) -> Result<(), Fault> {
        let mut chains = self.chains("SAMPLING_CALLCHAINS")?;
        let mut samples: Vec<(i64, CpuSample)> = Vec::new();
        let columns = Columns { known: &["id", "start", "globalTid", "cpu"], dropped: &["threadState", "cpuCycles"] };
        self.each("COMPOSITE_EVENTS", columns, "", |me, row| {
            let (id, start_ns, cpu) = (row.need(0)?, me.time(row.need(1)?)?, row.u32(3)?.unwrap_or(0));
            let (thread, _) = me.thread(row.int(2)?)?;
            samples.push((id, CpuSample { start_ns, weight_ns: 0, thread, stack: 0, cpu }));
            Ok(())
        })?;
        samples.sort_by_key(|(_, sample)| sample.start_ns);
        for (id, sample) in samples {
            let stack = self.stack_on(&mut chains, 0, Some(id))?;
            self.event(CpuSample { stack, ..sample })?;
        }
        Ok(())
    }
}
