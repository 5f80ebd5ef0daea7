//! Device memory handed out and given back (`nsys profile --cuda-memory-usage=true`).

use ktape_format::Sink;
use ktape_format::event::{Alloc, Free, allocator, memory_kind};

use super::database::Columns;
use super::details::Details;
use super::device::memory_of;
use super::error::Fault;
use super::{CallKey, Importer};
use crate::import::Progress;

/// One row, until its call is known.
pub(super) struct MemoryRow {
    start_ns: i64,
    call: CallKey,
    device: u32,
    address: u64,
    bytes: u64,
    memory: u8,
    is_free: bool,
}

impl<S: Sink, P: FnMut(Progress)> Importer<'_, '_, S, P> {
    /// Reads the rows, and asks for their calls.
    pub(super) fn memory_rows(&mut self, details: &mut Details) -> Result<Vec<MemoryRow>, Fault> {
        let mut rows = Vec::new();
        let known =
            &["start", "globalPid", "deviceId", "address", "bytes", "memKind", "memoryOperationType", "correlationId"];
        let dropped = &["contextId", "pc", "name", "streamId", "memoryPoolType", "localMemoryPoolAddress"];
        self.each("CUDA_GPU_MEMORY_USAGE_EVENTS", Columns { known, dropped }, "", |me, row| {
            let (start_ns, index) = (me.time(row.need(0)?)?, row.need_u32(2)?);
            let (address, bytes) = (row.int(3)?.unwrap_or(0) as u64, row.need(4)? as u64);
            let (memory, operation) = (memory_of(row.int(5)?), row.need(6)?);
            let correlation = row.id(7)?.unwrap_or(0);
            if !(0..=1).contains(&operation) {
                return Err(row.wrong(6, "is neither 0, an allocation, nor 1, a release"));
            }
            let process = me.process_key(row.int(1)?);
            let call = (me.process(process)?, correlation);
            let on_host = [memory_kind::PAGEABLE, memory_kind::PINNED].contains(&memory);
            let device = if on_host { 0 } else { me.device(process, index)? };
            if correlation != 0 {
                details.callers.entry(call).or_default();
            }
            rows.push(MemoryRow { start_ns, call, device, address, bytes, memory, is_free: operation == 1 });
            Ok(())
        })?;
        rows.sort_by_key(|row| row.start_ns);
        Ok(rows)
    }

    /// Writes the rows with their calls.
    pub(super) fn memory(&mut self, rows: Vec<MemoryRow>, details: &Details) -> Result<(), Fault> {
        for MemoryRow { start_ns, call, device, address, bytes, memory, is_free } in rows {
            let caller = details.callers.get(&call).copied().unwrap_or_default();
            let allocator = match memory {
                _ if caller.is_pool => allocator::POOL,
                memory_kind::PINNED => allocator::PINNED,
                memory_kind::MANAGED | memory_kind::MANAGED_STATIC => allocator::MANAGED,
                memory_kind::PAGEABLE => allocator::HOST,
                memory_kind::UNKNOWN => allocator::UNKNOWN,
                _ => allocator::DRIVER,
            };
            let (thread, stack, function, result) = (caller.thread, caller.stack, caller.function, caller.result);
            if is_free {
                let free = Free { start_ns, thread, device, address, bytes, allocator, ..Free::default() };
                self.event(Free { stack, function, result, ..free })?;
            } else {
                let alloc = Alloc { start_ns, thread, device, address, bytes, allocator, ..Alloc::default() };
                self.event(Alloc { stack, function, result, ..alloc })?;
            }
        }
        Ok(())
    }
}
