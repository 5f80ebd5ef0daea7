//! Copies and memsets: from where to where, how much, in what kind of memory.
//!
//! Some functions say the direction by their name, some in a structure, some leave it to the driver, which knows its memory. So
//! does the collector, as far as it has seen it being handed out. A copy is two events, as on any tape: the call, and the copy
//! itself with its bytes and direction. When the device did it is not seen from here: a copy that the call waits for lies
//! between its beginning and end (`timing::BOUNDED`), of any other only the call is known (`timing::ABSENT`, and a duration of 0).
//! One that the driver refused is a call only, which then has what was asked for among its arguments.

use ktape_format::Sink;
use ktape_format::event::{Api, Memcpy, Memset, copy_kind, memory_kind, timing};

use super::calls::{Arguments, Open, Within};
use super::objects::Objects;
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
    /// What a structure describes: `CUDA_MEMCPY2D`, `CUDA_MEMCPY3D` or `CUDA_MEMCPY3D_PEER`.
    pub(super) fn by_shape(shape: CopyShape, a: &Arguments<'_>, objects: &Objects) -> Asked {
        /// `CU_MEMORYTYPE_HOST`; 2 is device, 3 array, 4 unified.
        const HOST: u32 = 1;
        // Where the type of each side stands; its host address is behind it, then its device address.
        let (source, target, width) = match shape {
            CopyShape::Rows => (16, 72, 112),
            CopyShape::Volume | CopyShape::PeerVolume => (32, 120, 176),
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
        let (source_memory, target_memory) = asked.memories(self.objects);
        let kind = if asked.kind == copy_kind::UNKNOWN { direction(source_memory, target_memory) } else { asked.kind };
        // Copies to the host are over when their call returns; of others it may be that only the host's part is.
        let is_waited_for = stream.is_none() && matches!(kind, copy_kind::DTOH | copy_kind::ATOH | copy_kind::HTOH);
        let stream = self.stream_argument(arguments, stream, sink)?;
        let api = self.api(arguments);
        // The program's own memory may have been registered with the driver, which is not looked at.
        let told = |memory| if memory == memory_kind::PAGEABLE { memory_kind::UNKNOWN } else { memory };
        let row = Memcpy {
            start_ns: api.start_ns,
            correlation: api.correlation,
            stream,
            bytes: asked.bytes,
            kind,
            source_memory: told(source_memory),
            target_memory: told(target_memory),
            timing: timing::ABSENT,
            ..Memcpy::default()
        };
        Ok(Open::Copy(api, row, is_waited_for))
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

/// The call of a memset that was refused.
pub(super) fn refused_set<S: Sink>(api: Api, row: &Memset, sink: &mut S) -> Result<Api, S::Error> {
    let args = sink.string(&serde_json::json!({ "bytes": row.bytes, "value": row.value }).to_string())?;
    Ok(Api { args, ..api })
}

#[cfg(test)]
mod tests {
    use super::*;

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
