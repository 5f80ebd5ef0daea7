//! Processes, devices, contexts and streams as definitions, with what the file says of them.
//!
//! The file has device rows under the device's number where host rows have a process. All of a device's work belongs
//! to the process that was traced.

use std::collections::BTreeMap;

use ktape_format::Sink;
use ktape_format::definition::{Context, Device, Process, Stream, Thread, property, vendor};
use ktape_format::table::DefinitionKind;
use rustc_hash::FxHashMap;
use serde_json::Value;

use super::error::Fault;
use super::records::{Metadata, Place, Records};
use crate::import::Summary;

/// The definitions of where events happened.
pub(super) struct Places {
    source: u32,
    vendor: u8,
    properties: BTreeMap<u32, serde_json::Map<String, Value>>,
    priorities: FxHashMap<Place, i32>,
    processes: FxHashMap<i64, u32>,
    devices: FxHashMap<(u32, u32), u32>,
    streams: FxHashMap<(u32, Place), u32>,
    /// The stream of a device and a number, whatever its context.
    streams_of_device: FxHashMap<(u32, u64), u32>,
    /// By the number that the records have, from 1.
    threads: Vec<u32>,
    /// The process of device work whose launch is not known; 0 if the file has none.
    pub(super) main_process: u32,
}

impl Places {
    /// Defines the file's processes and threads.
    pub(super) fn new<S: Sink>(sink: &mut S, source: &str, records: &Records) -> Result<Places, Fault> {
        let mut places = Places {
            source: sink.string(source)?,
            vendor: records.vendor,
            properties: device_properties(records.device_properties.as_deref()),
            priorities: records
                .priorities
                .iter()
                .map(|(place, priority)| (records.places.get(*place), *priority))
                .collect(),
            processes: FxHashMap::default(),
            devices: FxHashMap::default(),
            streams: FxHashMap::default(),
            streams_of_device: FxHashMap::default(),
            threads: vec![0],
            main_process: 0,
        };
        let main_pid = records.processes.things.first().or(records.threads.things.first().map(|(pid, _)| pid)).copied();
        // A file with device work only still has had a process; its number is not known.
        if let Some(pid) = main_pid.or((!records.device_ops.is_empty()).then_some(-1)) {
            places.main_process = places.process(sink, pid)?;
        }
        for (pid, tid) in &records.threads.things {
            // Python threads that the profiler could not identify are written as pid 0.
            let real = *pid != 0 || records.processes.things.len() != 1;
            let process = if real { places.process(sink, *pid)? } else { places.main_process };
            places.threads.push(sink.define(Thread { process, tid: *tid })?);
        }
        let listed: Vec<u32> = places.properties.keys().copied().collect();
        for index in listed {
            places.device(sink, places.main_process, index)?;
        }
        Ok(places)
    }

    fn process<S: Sink>(&mut self, sink: &mut S, pid: i64) -> Result<u32, Fault> {
        if let Some(process) = self.processes.get(&pid) {
            return Ok(*process);
        }
        let process = sink.define(Process { pid, start_ns: 0, host: 0, source: self.source })?;
        self.processes.insert(pid, process);
        Ok(process)
    }

    /// The process with a pid, if the file has events of it.
    pub(super) fn process_of(&self, pid: i64) -> Option<u32> {
        self.processes.get(&pid).copied()
    }

    /// The process of a thread by its number in the records; the first where it is not known.
    pub(super) fn process_of_thread(&self, records: &Records, thread: u32) -> u32 {
        (thread as usize)
            .checked_sub(1)
            .and_then(|row| self.process_of(records.threads.things[row].0))
            .unwrap_or(self.main_process)
    }

    /// The thread of a number in the records.
    pub(super) fn thread(&self, number: u32) -> u32 {
        self.threads[number as usize]
    }

    /// A device as a process numbers it.
    pub(super) fn device<S: Sink>(&mut self, sink: &mut S, process: u32, index: u32) -> Result<u32, Fault> {
        if let Some(device) = self.devices.get(&(process, index)) {
            return Ok(*device);
        }
        let properties = self.properties.get(&index);
        let name = properties.and_then(|properties| properties.get("name")?.as_str()).unwrap_or("");
        let vendor = vendor_of(name).unwrap_or(self.vendor);
        let device = sink.define(Device { process, index, vendor, uuid: 0 })?;
        for (key, value) in properties.into_iter().flat_map(named_properties) {
            sink.property(DefinitionKind::Device as u16, device, key, &value)?;
        }
        self.devices.insert((process, index), device);
        Ok(device)
    }

    /// A stream of a process; 0 for a place that is none.
    pub(super) fn stream<S: Sink>(&mut self, sink: &mut S, process: u32, place: Place) -> Result<u32, Fault> {
        let Some(native) = place.stream else { return Ok(0) };
        if place.context.is_none()
            && let Some(stream) = self.streams_of_device.get(&(place.device, native))
        {
            return Ok(*stream);
        }
        if let Some(stream) = self.streams.get(&(process, place)) {
            return Ok(*stream);
        }
        let device = self.device(sink, process, place.device)?;
        let context = sink.define(Context { process, device, native: place.context.unwrap_or(0) })?;
        let priority = self.priorities.get(&place).copied().unwrap_or(0);
        let stream = sink.define(Stream { context, native, priority, flags: 0 })?;
        self.streams.insert((process, place), stream);
        self.streams_of_device.entry((place.device, native)).or_insert(stream);
        Ok(stream)
    }

    /// Says names and labels of processes, threads, devices and streams. Rows of devices without events are counted.
    pub(super) fn name<S: Sink>(&self, sink: &mut S, records: &Records, summary: &mut Summary) -> Result<(), Fault> {
        for Metadata { entry, pid, tid, value } in &records.metadata {
            let process = self.processes.get(pid).map(|id| (DefinitionKind::Process, *id));
            let device = u32::try_from(*pid).ok().and_then(|index| self.devices.get(&(self.main_process, index)));
            let device = device.map(|id| (DefinitionKind::Device, *id));
            let (subject, key) = match *entry {
                "process_name" => (process, property::NAME),
                "process_labels" => (process.or(device), "labels"),
                _ => (self.thread_or_stream(records, *pid, *tid), property::NAME),
            };
            match subject {
                Some((kind, id)) => {
                    sink.property(kind as u16, id, key, value)?;
                    *summary.kept.entry("property").or_default() += 1;
                }
                None => Summary::count(&mut summary.not_kept, "metadata of a row without events,", entry, 1),
            }
        }
        Ok(())
    }

    fn thread_or_stream(&self, records: &Records, pid: i64, tid: i64) -> Option<(DefinitionKind, u32)> {
        if let Some(number) = records.threads.find((pid, tid)) {
            return Some((DefinitionKind::Thread, self.thread(number)));
        }
        let place = (u32::try_from(pid).ok()?, u64::try_from(tid).ok()?);
        self.streams_of_device.get(&place).map(|stream| (DefinitionKind::Stream, *stream))
    }

    /// Says the rank of the traced process, and returns it.
    pub(super) fn rank<S: Sink>(&self, sink: &mut S, distributed_info: Option<&str>) -> Result<Option<String>, Fault> {
        let info: serde_json::Map<String, Value> =
            distributed_info.and_then(|json| serde_json::from_str(json).ok()).unwrap_or_default();
        for (name, key) in [("rank", property::RANK), ("world_size", property::WORLD_SIZE)] {
            if let Some(value) = info.get(name).filter(|_| self.main_process != 0) {
                sink.property(DefinitionKind::Process as u16, self.main_process, key, &plain(value))?;
            }
        }
        Ok(info.get("rank").map(plain))
    }
}

fn device_properties(json: Option<&str>) -> BTreeMap<u32, serde_json::Map<String, Value>> {
    let list: Vec<serde_json::Map<String, Value>> =
        json.and_then(|json| serde_json::from_str(json).ok()).unwrap_or_default();
    let numbered = list.into_iter().filter_map(|device| Some((device.get("id")?.as_u64()?.try_into().ok()?, device)));
    numbered.collect()
}

fn vendor_of(name: &str) -> Option<u8> {
    const MAKES: &[(&str, u8)] = &[
        ("NVIDIA", vendor::NVIDIA),
        ("Tesla", vendor::NVIDIA),
        ("Quadro", vendor::NVIDIA),
        ("GeForce", vendor::NVIDIA),
        ("AMD", vendor::AMD),
        ("Radeon", vendor::AMD),
        ("Intel", vendor::INTEL),
    ];
    MAKES.iter().find(|(make, _)| name.contains(make)).map(|(_, vendor)| *vendor)
}

/// A device's properties under the names that reports read, the others under their own.
fn named_properties(properties: &serde_json::Map<String, Value>) -> Vec<(&str, String)> {
    let mut named = Vec::new();
    for (key, value) in properties {
        let key = match key.as_str() {
            "id" | "computeMinor" => continue,
            "computeMajor" => {
                let minor = properties.get("computeMinor").map_or("0".to_owned(), plain);
                named.push((property::COMPUTE_CAPABILITY, format!("{}.{minor}", plain(value))));
                continue;
            }
            "name" => property::NAME,
            "totalGlobalMem" => property::MEMORY_BYTES,
            "numSms" => property::MULTIPROCESSORS,
            "maxThreadsPerMultiprocessor" => property::THREADS_PER_MULTIPROCESSOR,
            "regsPerMultiprocessor" => property::REGISTERS_PER_MULTIPROCESSOR,
            "sharedMemPerMultiprocessor" | "maxSharedMemoryPerMultiProcessor" => {
                property::SHARED_BYTES_PER_MULTIPROCESSOR
            }
            "warpSize" => property::WARP_SIZE,
            other => other,
        };
        named.push((key, plain(value)));
    }
    named
}

/// A string as it is, anything else as JSON.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
