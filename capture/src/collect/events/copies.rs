//! Copies and memsets: from where to where, how much, in what kind of memory.
//!
//! Some functions say the direction by their name, some in a structure, some leave it to the driver, which knows its memory. So
//! does the collector, as far as it has seen it being handed out. A copy is two events, as on any tape: the call, and the copy
//! itself with its bytes and direction. When the device did it is not seen from here: a copy that the call waits for lies
//! between its beginning and end (`timing::BOUNDED`), of any other only the call is known (`timing::ABSENT`, and a duration of 0).
//! One that the driver refused is a call only, which then has what was asked for among its arguments.

use ktape_ebpf::wire::LIST_BYTES;
use ktape_format::Sink;
use ktape_format::event::{Api, Memcpy, Memset, copy_kind, memory_kind, timing};

use super::arguments::Arguments;
use super::calls::Within;
use super::objects::Objects;
use super::open::Open;
use crate::probes::functions::{Argument, CopyShape};

/// What a copy is asked to do.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    pub(super) kind: u8,
    pub(super) source: u64,
    pub(super) target: u64,
    pub(super) bytes: u64,
}

impl Asked {
    /// What a structure describes: `CUDA_MEMCPY2D`, `CUDA_MEMCPY3D`, `CUDA_MEMCPY3D_PEER` or `CUDA_MEMCPY3D_BATCH_OP`.
    pub(super) fn by_shape(shape: CopyShape, a: &Arguments<'_>, objects: &Objects) -> Asked {
        if shape == CopyShape::Operands {
            return Asked::by_operands(a);
        }
        /// `CU_MEMORYTYPE_HOST`; 2 is device, 3 array, 4 unified.
        const HOST: u32 = 1;
        // Where the type of each side stands; its host address is behind it, then its device address.
        let (source, target, width) = match shape {
            CopyShape::Rows => (16, 72, 112),
            _ => (32, 120, 176),
        };
        let address = |side: usize| a.memory_word(if a.memory_half(side) == HOST { side + 8 } else { side + 16 });
        let kind = match (a.memory_half(source), a.memory_half(target)) {
            (1, 1) => copy_kind::HTOH,
            (1, 2) => copy_kind::HTOD,
            (1, 3) => copy_kind::HTOA,
            (2, 1) => copy_kind::DTOH,
            (2, 2) if shape == CopyShape::PeerVolume => {
                // Source and target context.
                objects.peer_copy_kind((a.memory_word(64), a.memory_word(152)), copy_kind::DTOD)
            }
            (2, 2) => copy_kind::DTOD,
            (2, 3) => copy_kind::DTOA,
            (3, 1) => copy_kind::ATOH,
            (3, 2) => copy_kind::ATOD,
            (3, 3) => copy_kind::ATOA,
            _ => copy_kind::UNKNOWN,
        };
        let depth = if shape == CopyShape::Rows { 1 } else { a.memory_word(width + 16) };
        let bytes = a.memory_word(width).saturating_mul(a.memory_word(width + 8)).saturating_mul(depth);
        Asked { kind, source: address(source), target: address(target), bytes }
    }

    /// What a `CUDA_MEMCPY3D_BATCH_OP` describes.
    fn by_operands(a: &Arguments<'_>) -> Asked {
        /// `CU_MEMCPY_OPERAND_TYPE_ARRAY`; 1 is a pointer.
        const ARRAY: u32 = 2;
        let (from_array, to_array) = (a.memory_half(0) == ARRAY, a.memory_half(40) == ARRAY);
        let elements = [80, 88, 96].into_iter().fold(1_u64, |product, at| product.saturating_mul(a.memory_word(at)));
        // An element of an array has as many bytes as its format says, which is not here.
        let bytes = if from_array || to_array { 0 } else { elements };
        let kind = if from_array && to_array { copy_kind::ATOA } else { copy_kind::UNKNOWN };
        let side = |is_array: bool, at| if is_array { 0 } else { a.memory_word(at) };
        Asked { kind, source: side(from_array, 8), target: side(to_array, 48), bytes }
    }

    /// What the two sides are: as the direction tells, else as their memory was handed out.
    fn memories(&self, objects: &Objects) -> (u8, u8) {
        use memory_kind::{ARRAY, DEVICE, UNKNOWN};
        let (source, target) = match self.kind {
            copy_kind::HTOD => (UNKNOWN, DEVICE),
            copy_kind::DTOH => (DEVICE, UNKNOWN),
            copy_kind::DTOD | copy_kind::PTOP => (DEVICE, DEVICE),
            copy_kind::HTOA => (UNKNOWN, ARRAY),
            copy_kind::ATOH => (ARRAY, UNKNOWN),
            copy_kind::ATOA => (ARRAY, ARRAY),
            copy_kind::ATOD => (ARRAY, DEVICE),
            copy_kind::DTOA => (DEVICE, ARRAY),
            _ => (UNKNOWN, UNKNOWN),
        };
        let look = |known, address| if known == UNKNOWN { objects.memory_at(address) } else { known };
        (look(source, self.source), look(target, self.target))
    }
}

/// The direction between two kinds of memory. Managed memory counts as the device's, as copies of it go through the device.
fn direction(source: u8, target: u8) -> u8 {
    let is_host = |memory| matches!(memory, memory_kind::PAGEABLE | memory_kind::PINNED);
    let is_device = |memory| matches!(memory, memory_kind::DEVICE | memory_kind::MANAGED);
    match (source, target) {
        (source, target) if is_host(source) && is_device(target) => copy_kind::HTOD,
        (source, target) if is_device(source) && is_host(target) => copy_kind::DTOH,
        (source, target) if is_device(source) && is_device(target) => copy_kind::DTOD,
        (source, target) if is_host(source) && is_host(target) => copy_kind::HTOH,
        _ => copy_kind::UNKNOWN,
    }
}

impl Within<'_> {
    pub(super) fn copy<S: Sink>(
        &mut self,
        arguments: &Arguments<'_>,
        asked: Asked,
        stream: Option<Argument>,
        sink: &mut S,
    ) -> Result<Open, S::Error> {
        let stream_id = self.stream_argument(arguments, stream, sink)?;
        let api = self.api(arguments);
        let row = self.copy_row(&api, asked, stream_id);
        // Copies to the host are over when their call returns; of others it may be that only the host's part is.
        let is_waited_for = stream.is_none() && matches!(row.kind, copy_kind::DTOH | copy_kind::ATOH | copy_kind::HTOH);
        Ok(Open::Copy(api, row, is_waited_for))
    }

    fn copy_row(&self, api: &Api, asked: Asked, stream: u32) -> Memcpy {
        let (source_memory, target_memory) = asked.memories(self.objects);
        let kind = if asked.kind == copy_kind::UNKNOWN { direction(source_memory, target_memory) } else { asked.kind };
        // The program's own memory may have been registered before the recording.
        let told = |memory| if memory == memory_kind::PAGEABLE { memory_kind::UNKNOWN } else { memory };
        Memcpy {
            start_ns: api.start_ns,
            correlation: api.correlation,
            stream,
            bytes: asked.bytes,
            kind,
            source_memory: told(source_memory),
            target_memory: told(target_memory),
            timing: timing::ABSENT,
            ..Memcpy::default()
        }
    }

    /// Copies by lists of targets, sources and bytes.
    pub(super) fn copy_batch<S: Sink>(
        &mut self,
        a: &Arguments<'_>,
        stream: Argument,
        sink: &mut S,
    ) -> Result<Open, S::Error> {
        let count = a.word(3);
        let kept = if a.memory.is_empty() { 0 } else { count.min(LIST_BYTES as u64 / 8) as usize };
        let word = |list: usize, index: usize| a.memory_word(list * LIST_BYTES + 8 * index);
        let asked = (0..kept).map(|index| Asked {
            kind: copy_kind::UNKNOWN,
            target: word(0, index),
            source: word(1, index),
            bytes: word(2, index),
        });
        self.copies(a, asked, count, stream, sink)
    }

    /// Copies by a list of structures.
    pub(super) fn copy_shapes<S: Sink>(
        &mut self,
        a: &Arguments<'_>,
        stream: Argument,
        sink: &mut S,
    ) -> Result<Open, S::Error> {
        let count = a.word(0);
        let structures = a.memory.chunks_exact(CopyShape::Operands.bytes() as usize);
        let asked = structures
            .take(count as usize)
            .map(|memory| Asked::by_operands(&Arguments { call: a.call, words: &[], memory }));
        self.copies(a, asked, count, stream, sink)
    }

    /// One call's copies. Those that did not fit into its record are counted, and the call says how many there are.
    fn copies<S: Sink>(
        &mut self,
        a: &Arguments<'_>,
        asked: impl Iterator<Item = Asked>,
        count: u64,
        stream: Argument,
        sink: &mut S,
    ) -> Result<Open, S::Error> {
        let stream = self.stream(a.word(stream), sink)?;
        let args = sink.string(&serde_json::json!({ "copies": count }).to_string())?;
        let api = Api { args, ..self.api(a) };
        let rows: Vec<Memcpy> = asked.map(|asked| self.copy_row(&api, asked, stream)).collect();
        self.note_unreadable(count > rows.len() as u64);
        Ok(Open::Copies(api, rows))
    }

    /// A memset of `bytes` in elements of `element_bytes`.
    pub(super) fn set<S: Sink>(
        &mut self,
        arguments: &Arguments<'_>,
        value: u32,
        bytes: u64,
        element_bytes: u8,
        stream: Option<Argument>,
        sink: &mut S,
    ) -> Result<Open, S::Error> {
        let stream = self.stream_argument(arguments, stream, sink)?;
        let api = self.api(arguments);
        let row = Memset {
            start_ns: api.start_ns,
            correlation: api.correlation,
            stream,
            bytes,
            value: value & (u32::MAX >> (32 - 8 * u32::from(element_bytes))),
            target_memory: memory_kind::DEVICE,
            timing: timing::ABSENT,
            ..Memset::default()
        };
        Ok(Open::Set(api, row))
    }
}

/// The call of a copy that was refused.
pub(super) fn refused_copy<S: Sink>(api: Api, row: &Memcpy, sink: &mut S) -> Result<Api, S::Error> {
    let kind = copy_kind::NAMES.get(usize::from(row.kind)).copied().unwrap_or_default();
    let args = sink.string(&serde_json::json!({ "bytes": row.bytes, "copy_kind": kind }).to_string())?;
    Ok(Api { args, ..api })
}

/// The call of copies of which one was refused.
pub(super) fn refused_copies<S: Sink>(api: Api, rows: &[Memcpy], sink: &mut S) -> Result<Api, S::Error> {
    let bytes = rows.iter().fold(0_u64, |sum, row| sum.saturating_add(row.bytes));
    let args = sink.string(&serde_json::json!({ "copies": rows.len(), "bytes": bytes }).to_string())?;
    Ok(Api { args, ..api })
}

/// The call of a memset that was refused.
pub(super) fn refused_set<S: Sink>(api: Api, row: &Memset, sink: &mut S) -> Result<Api, S::Error> {
    let args = sink.string(&serde_json::json!({ "bytes": row.bytes, "value": row.value }).to_string())?;
    Ok(Api { args, ..api })
}

#[cfg(test)]
mod tests {
    use ktape_ebpf::wire::{Call, LISTS_BYTES, ListsCall, Return, kind};
    use ktape_format::Memory;

    use super::super::{Collector, Identity};
    use super::*;
    use crate::probes::functions;

    /// The bytes of a record.
    fn bytes_of<T: ktape_ebpf::wire::Plain>(record: &T) -> &[u8] {
        // SAFETY: plain integers without padding.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(record).cast(), size_of::<T>()) }
    }

    /// What becomes of a call of `cuMemcpyBatchAsync_v2` with `count` copies, of which `kept` bytes of each list came through.
    fn batch(count: u64, kept: u64, result: u64) -> (Memory, u64) {
        let functions = functions::all();
        let function = functions.iter().position(|function| function.symbol == "cuMemcpyBatchAsync_v2").expect("it");
        let mut memory = [0; LISTS_BYTES];
        for copy in 0..LIST_BYTES / 8 {
            for (list, value) in [0x1000 * copy, 0x90_0000 + copy, copy + 1].into_iter().enumerate() {
                memory[list * LIST_BYTES + 8 * copy..][..8].copy_from_slice(&(value as u64).to_le_bytes());
            }
        }
        let call = Call {
            kind: kind::LISTS_CALL as u16,
            cpu: 0,
            function: function as u32,
            time_ns: 10,
            pid_tid: 7 << 32 | 7,
            stack: 0,
            stack_pointer: 0x7000,
            registers: [1, 2, 3, count, 0, 0],
        };
        let call = ListsCall { call, words: [0, 0x77, 0, 0, 0], bytes: kept, memory };
        let end = Return {
            kind: kind::RETURN,
            function: function as u32,
            time_ns: 30,
            pid_tid: 7 << 32 | 7,
            stack_pointer: 0x7008,
            result,
            outs: [0; 2],
        };
        let (mut collector, mut sink) = (Collector::new(functions, false), Memory::default());
        let Ok(()) = collector.begin_process(&Identity { pid: 7, ..Identity::default() }, true, &mut sink);
        for record in [bytes_of(&call), bytes_of(&end)] {
            let Ok(notice) = collector.take(record, &mut sink);
            assert_eq!(notice, None);
        }
        (sink, collector.gaps().unreadable_arguments)
    }

    #[test]
    fn copies_of_a_batch_that_do_not_fit_are_counted_and_the_call_tells_of_them() {
        for (count, kept, rows, unreadable) in [(3, 24, 3, 0), (128, 1024, 128, 0), (200, 1024, 128, 1), (5, 0, 0, 1)] {
            let (sink, gaps) = batch(count, kept, 0);
            let copies = &sink.events.memcpy;
            assert_eq!((copies.bytes.len(), gaps), (rows, unreadable), "{count} copies");
            assert_eq!(copies.bytes.iter().sum::<u64>(), (1..=rows as u64).sum::<u64>());
            assert_eq!(sink.events.api.duration_ns, [20]);
            let args = sink.definitions.string(sink.events.api.args[0]);
            assert_eq!(args, format!(r#"{{"copies":{count}}}"#));
            assert!(copies.correlation.iter().all(|correlation| *correlation == sink.events.api.correlation[0]));
        }
        let (sink, _) = batch(u64::MAX, 1024, 1);
        assert!(sink.events.memcpy.bytes.is_empty(), "one that was refused has no copies");
    }

    #[test]
    fn what_the_driver_has_to_find_out_is_told_by_the_memory() {
        use memory_kind::{DEVICE, MANAGED, PAGEABLE, PINNED, UNKNOWN};
        for (source, target, expected) in [
            (PAGEABLE, DEVICE, copy_kind::HTOD),
            (DEVICE, PINNED, copy_kind::DTOH),
            (DEVICE, DEVICE, copy_kind::DTOD),
            (PINNED, PAGEABLE, copy_kind::HTOH),
            (PAGEABLE, MANAGED, copy_kind::HTOD),
            (UNKNOWN, DEVICE, copy_kind::UNKNOWN),
        ] {
            assert_eq!(direction(source, target), expected, "{source} {target}");
        }
    }
}
