//! The contexts and streams of a process, by the driver's handles; its graphs are in `graphs.rs`.
//!
//! Calls name a stream, not its context; that is the thread's current one, which is known once the thread has set it. A
//! stream keeps the context that it was first seen in. Streams 0 (and 1) and 2 are no objects but names: the default stream of
//! the current context, and of the current context and thread; the latter has the thread's number in the upper half of its
//! native number on the tape, as each thread has its own.

use std::collections::BTreeMap;

use ktape_format::Sink;
use ktape_format::definition::{Context, Device, Stream, property, vendor};
use ktape_format::event::{allocator, copy_kind, memory_kind};
use ktape_format::table::DefinitionKind;
use rustc_hash::FxHashMap;

use super::super::inside::device;
use super::MOST_KEPT;
use super::graphs::Graphs;
use super::thread::Thread;

/// `CU_STREAM_LEGACY`
const LEGACY: u64 = 1;
/// `CU_STREAM_PER_THREAD`
const PER_THREAD: u64 = 2;

/// Allocations of a process that are known at a time.
const MOST_ALLOCATED: usize = 1 << 20;

/// A map with room for one more: one that is full is emptied, and what was in it counts as from before the recording.
fn bounded<K, V>(map: &mut FxHashMap<K, V>) -> &mut FxHashMap<K, V> {
    if map.len() >= MOST_KEPT {
        map.clear();
    }
    map
}

/// The contexts and streams of a process.
pub(super) struct Objects {
    process: u32,
    /// Devices by context.
    devices: FxHashMap<u64, u32>,
    /// Streams by native number and, for the default streams, context.
    streams: FxHashMap<(u64, u64), u32>,
    /// Flags and priorities of streams whose making was seen.
    made: FxHashMap<u64, (u32, i32)>,
    /// Sizes of allocations and what kind of memory they are, by address.
    allocated: BTreeMap<u64, (u64, u8)>,
    /// Whether all allocations there are have been seen.
    is_new: bool,
    pub(super) graphs: Graphs,
    /// What the device did, and the calls that had it do that.
    pub(super) device: device::Device,
    /// The context of each stream, by their definitions.
    pub(super) context_of: FxHashMap<u32, u32>,
    /// The call that recorded each event last.
    recorded: FxHashMap<u64, u64>,
    /// Block and shared memory of functions that are launched as before CUDA 4.
    launch_shapes: FxHashMap<u64, ([u32; 3], u32)>,
    /// Rank and number of ranks of NCCL's communicators.
    communicators: FxHashMap<u64, (u32, u32)>,
}

impl Objects {
    pub(super) fn new(process: u32, is_new: bool) -> Objects {
        Objects {
            process,
            devices: FxHashMap::default(),
            streams: FxHashMap::default(),
            made: FxHashMap::default(),
            allocated: BTreeMap::new(),
            is_new,
            graphs: Graphs::new(process),
            device: device::Device::default(),
            context_of: FxHashMap::default(),
            recorded: FxHashMap::default(),
            launch_shapes: FxHashMap::default(),
            communicators: FxHashMap::default(),
        }
    }

    /// Learns on which device a context is.
    pub(super) fn context_on(&mut self, context: u64, device: u32) {
        bounded(&mut self.devices).insert(context, device);
    }

    /// Learns that a context is on the device of another.
    pub(super) fn context_beside(&mut self, context: u64, other: u64) {
        if let Some(&device) = self.devices.get(&other) {
            self.context_on(context, device);
        }
    }

    /// The direction of a copy between these contexts: `within` if they are known to be on one device.
    pub(super) fn peer_copy_kind(&self, (source, target): (u64, u64), within: u8) -> u8 {
        let device = |context| self.devices.get(&context);
        let is_one_device = source == target || device(source).is_some_and(|known| Some(known) == device(target));
        if is_one_device { within } else { copy_kind::PTOP }
    }

    /// The device of the thread's current context; 0 where that is not known.
    pub(super) fn device<S: Sink>(&mut self, thread: &Thread, sink: &mut S) -> Result<u32, S::Error> {
        let index = thread.contexts.last().and_then(|context| self.devices.get(context));
        index.map_or(Ok(0), |&index| sink.define(Device { process: 0, index, vendor: vendor::NVIDIA, uuid: 0 }))
    }

    /// Learns how a stream was made.
    pub(super) fn stream_made(&mut self, handle: u64, flags: u32, priority: i32) {
        bounded(&mut self.made).insert(handle, (flags, priority));
        if let Some(before) = self.streams.remove(&(handle, 0)) {
            self.graphs.captures.forget(before);
        }
    }

    /// The definition of a stream, as a call of this thread names it; `per_thread` says what 0 means.
    pub(super) fn stream<S: Sink>(
        &mut self,
        handle: u64,
        per_thread: bool,
        thread: &Thread,
        sink: &mut S,
    ) -> Result<u32, S::Error> {
        let native = match handle {
            0 if per_thread => PER_THREAD | u64::from(thread.tid) << 32,
            PER_THREAD => PER_THREAD | u64::from(thread.tid) << 32,
            LEGACY => 0,
            handle => handle,
        };
        let is_default = handle <= PER_THREAD;
        let current = thread.contexts.last().copied().unwrap_or(0);
        let key = (native, if is_default { current } else { 0 });
        if let Some(&id) = self.streams.get(&key) {
            return Ok(id);
        }
        let device = self.device(thread, sink)?;
        let context = sink.define(Context { process: self.process, device, native: current })?;
        let (flags, priority) = self.made.get(&native).copied().unwrap_or_default();
        let id = sink.define(Stream { context, native, priority, flags })?;
        self.context_of.insert(id, context);
        if is_default {
            let name = if native == 0 {
                "default stream".to_owned()
            } else {
                format!("default stream of thread {}", thread.tid)
            };
            sink.property(DefinitionKind::Stream as u16, id, property::NAME, &name)?;
        }
        bounded(&mut self.streams).insert(key, id);
        Ok(id)
    }

    pub(super) fn recorded(&mut self, event: u64, correlation: u64) {
        bounded(&mut self.recorded).insert(event, correlation);
    }

    /// The correlation id of the call that recorded an event last; 0 for none that was seen.
    pub(super) fn recorded_by(&self, event: u64) -> u64 {
        self.recorded.get(&event).copied().unwrap_or(0)
    }

    pub(super) fn allocated(&mut self, address: u64, bytes: u64, by: u8) {
        let memory = match by {
            allocator::PINNED | allocator::REGISTERED => memory_kind::PINNED,
            allocator::MANAGED => memory_kind::MANAGED,
            // What is handed out is a handle, and no address.
            allocator::VIRTUAL => return,
            _ => memory_kind::DEVICE,
        };
        self.remember(address, bytes, memory);
    }

    /// Learns that there is memory of a device behind addresses.
    pub(super) fn mapped(&mut self, address: u64, bytes: u64) {
        self.remember(address, bytes, memory_kind::DEVICE);
    }

    fn remember(&mut self, address: u64, bytes: u64, memory: u8) {
        if self.allocated.len() >= MOST_ALLOCATED {
            self.allocated.clear();
            self.is_new = false;
        }
        self.allocated.insert(address, (bytes, memory));
    }

    /// Learns that there is none any more: it may have been mapped in several parts.
    pub(super) fn unmapped(&mut self, address: u64, bytes: u64) {
        let parts = self.allocated.range(address..address.saturating_add(bytes));
        let parts: Vec<u64> = parts.map(|(&start, _)| start).collect();
        for start in parts {
            self.allocated.remove(&start);
        }
    }

    /// Block and shared memory of launches that don't say them; zeros for what was said before the recording.
    pub(super) fn launch_shape(&self, function: u64) -> ([u32; 3], u32) {
        self.launch_shapes.get(&function).copied().unwrap_or_default()
    }

    pub(super) fn set_block(&mut self, function: u64, block: [u32; 3]) {
        bounded(&mut self.launch_shapes).entry(function).or_default().0 = block;
    }

    pub(super) fn set_shared_bytes(&mut self, function: u64, bytes: u32) {
        bounded(&mut self.launch_shapes).entry(function).or_default().1 = bytes;
    }

    pub(super) fn communicator_made(&mut self, communicator: u64, rank: u32, ranks: u32) {
        bounded(&mut self.communicators).insert(communicator, (rank, ranks));
    }

    pub(super) fn communicator_ended(&mut self, communicator: u64) {
        self.communicators.remove(&communicator);
    }

    /// Rank and number of ranks of a communicator whose making was seen.
    pub(super) fn communicator(&self, communicator: u64) -> Option<(u32, u32)> {
        self.communicators.get(&communicator).copied()
    }

    /// What kind of memory an address is in. What the driver has not handed out is the host's, if all that it handed out is
    /// known; it stands for pageable memory here, and may have been registered.
    pub(super) fn memory_at(&self, address: u64) -> u8 {
        let before = self.allocated.range(..=address).next_back();
        match before.filter(|(start, (bytes, _))| address - **start < (*bytes).max(1)) {
            Some((_, (_, memory))) => *memory,
            None if self.is_new => memory_kind::PAGEABLE,
            None => memory_kind::UNKNOWN,
        }
    }

    /// The size of what is given back; 0 for what was handed out before the recording.
    pub(super) fn freed(&mut self, address: u64) -> u64 {
        self.allocated.remove(&address).map_or(0, |(bytes, _)| bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_never_gives_back_is_bounded_and_then_unknown() {
        let mut objects = Objects::new(1, true);
        objects.recorded(1, 77);
        assert_eq!(objects.recorded_by(1), 77);
        for event in 0..3 * MOST_KEPT as u64 {
            objects.recorded(1000 + event, event);
        }
        assert!(objects.recorded.len() <= MOST_KEPT);
        assert_eq!(objects.recorded_by(1), 0);
        assert_eq!(objects.memory_at(5), memory_kind::PAGEABLE);
        for address in 0..=MOST_ALLOCATED as u64 {
            objects.mapped(0x1000 * (1 + address), 0x1000);
        }
        assert!(objects.allocated.len() <= MOST_ALLOCATED);
        assert_eq!(objects.memory_at(5), memory_kind::UNKNOWN, "what was handed out is not known any more");
    }
}
