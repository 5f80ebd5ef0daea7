//! Processes, threads, devices, contexts and streams as definitions, with what the report says of them.
//!
//! A report lists every process of the machine and every stream that was created; on the tape are those in which
//! something happened. So what the report says is read first, and said when a place is first met.

use std::collections::BTreeMap;

use ktape_format::Sink;
use ktape_format::definition::{Context, Device, Process, Stream, Thread, property, vendor};
use ktape_format::table::DefinitionKind;
use rustc_hash::FxHashMap;

use super::Importer;
use super::database::Columns;
use super::error::Fault;
use crate::import::Progress;

/// A `globalPid` or `globalTid` without the thread: the hardware (8 bits), the virtual machine (8), the pid (24).
type ProcessKey = u64;

const PID_BITS: u32 = 24;
const TID_MASK: u64 = (1 << 24) - 1;

/// Where something happened on a device, with the report's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub(super) process: ProcessKey,
    pub(super) device: u32,
    pub(super) context: u64,
    pub(super) stream: u64,
}

/// What the report says of a stream.
#[derive(Clone, Copy, Default)]
struct StreamFacts {
    priority: i32,
    /// `CUpti_ActivityStreamFlag`.
    kind: i64,
}

/// The definitions of where events happened, and what is known of them.
#[derive(Default)]
pub(super) struct Places {
    source: u32,
    /// The hardware and virtual machine of the first process: the tape's own host.
    home: Option<u64>,
    /// The process of rows that do not say theirs.
    main: Option<ProcessKey>,
    processes: FxHashMap<ProcessKey, u32>,
    threads: FxHashMap<u64, u32>,
    devices: FxHashMap<(ProcessKey, u32), u32>,
    streams: FxHashMap<Place, u32>,
    process_names: FxHashMap<ProcessKey, String>,
    thread_names: FxHashMap<u64, i64>,
    /// Properties of devices, by the report's number.
    gpus: BTreeMap<i64, BTreeMap<String, String>>,
    /// The report's number of a process's device, where it says so.
    gpu_of: FxHashMap<(u64, u32), i64>,
    stream_facts: FxHashMap<(ProcessKey, u64, u64), StreamFacts>,
    context_facts: FxHashMap<(ProcessKey, u64), Vec<(&'static str, i64)>>,
    /// Rows of each table that were said of a place.
    said: BTreeMap<&'static str, u64>,
}

impl Places {
    /// The first process that something happened in.
    pub(super) fn first_process(&self) -> Option<u32> {
        self.processes.values().copied().min()
    }

    pub(super) fn new(source: u32) -> Places {
        Places { source, ..Places::default() }
    }
}

/// The key that a process has in tables that name its parts apart.
fn key_of(hardware: i64, machine: i64, pid: i64) -> ProcessKey {
    (hardware as u64) << 32 | (machine as u64 & 0xff) << PID_BITS | (pid as u64 & TID_MASK)
}

impl<S: Sink, P: FnMut(Progress)> Importer<'_, '_, S, P> {
    /// Reads what the report says of places.
    pub(super) fn read_places(&mut self) -> Result<(), Fault> {
        let only = |known| Columns { known, dropped: &[] };
        self.each("PROCESSES", only(&["globalPid", "name", "pid"]), "", |me, row| {
            if let (Some(global), Some(name)) = (row.int(0)?, row.text(1)?) {
                me.places.process_names.entry(global as u64 >> PID_BITS).or_insert(name);
            }
            Ok(())
        })?;
        let columns = Columns { known: &["globalTid", "nameId"], dropped: &["priority"] };
        self.each("ThreadNames", columns, "", |me, row| {
            if let (Some(global), Some(name)) = (row.int(0)?, row.int(1)?) {
                me.places.thread_names.insert(global as u64, name);
            }
            Ok(())
        })?;
        self.each("TARGET_INFO_GPU", only(&["id", "cuDevice"]), "", |me, row| {
            let id = row.need(0)?;
            let mut facts = BTreeMap::new();
            row.rest(|name, value| {
                let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                facts.insert(name.to_owned(), value);
                Ok(())
            })?;
            // The number that CUDA gives it, where that is not another's.
            if let Some(index) = row.u32(1)? {
                me.places.gpu_of.entry((0, index)).or_insert(id);
            }
            me.places.gpus.entry(id).or_insert(facts);
            Ok(())
        })?;
        let columns = Columns { known: &["gpuId", "cudaId", "pid"], dropped: &["uuid", "numMultiprocessors"] };
        self.each("TARGET_INFO_CUDA_DEVICE", columns, "", |me, row| {
            if let (Some(gpu), Some(index), Some(pid)) = (row.int(0)?, row.u32(1)?, row.int(2)?) {
                me.places.gpu_of.insert((pid as u64, index), gpu);
            }
            Ok(())
        })?;
        let known = &["hwId", "vmId", "processId", "contextId", "streamId", "priority", "flag"];
        self.each("TARGET_INFO_CUDA_STREAM", only(known), "", |me, row| {
            let key = (key_of(row.need(0)?, row.need(1)?, row.need(2)?), row.need(3)? as u64, row.need(4)? as u64);
            // A signed number of 32 bits, written as if it had no sign.
            let priority = row.int(5)?.unwrap_or(0) as u32 as i32;
            me.places.stream_facts.insert(key, StreamFacts { priority, kind: row.int(6)?.unwrap_or(0) });
            Ok(())
        })?;
        let known = &["hwId", "vmId", "processId", "contextId", "nullStreamId", "parentContextId", "isGreenContext"];
        let columns = Columns { known, dropped: &["deviceId"] };
        self.each("TARGET_INFO_CUDA_CONTEXT_INFO", columns, "", |me, row| {
            let key = (key_of(row.need(0)?, row.need(1)?, row.need(2)?), row.need(3)? as u64);
            let mut facts = Vec::new();
            for (column, name) in (4..).zip(["null_stream", "parent_context", "green_context"]) {
                facts.extend(row.int(column)?.filter(|value| *value != 0).map(|value| (name, value)));
            }
            me.places.context_facts.insert(key, facts);
            Ok(())
        })?;
        self.main_process()
    }

    /// Rows without a process belong to that of the first host call, else to one whose number is not known.
    fn main_process(&mut self) -> Result<(), Fault> {
        let Some(table) = self.database.tables.get("CUPTI_ACTIVITY_KIND_RUNTIME") else { return Ok(()) };
        if table.has("globalTid") {
            let columns = Columns { known: &["globalTid"], dropped: &[] };
            self.database.rows(table, columns, "WHERE globalTid IS NOT NULL LIMIT 1", |row| {
                self.places.main = row.int(0).unwrap_or(None).map(|global| global as u64 >> PID_BITS);
                Ok(())
            })?;
        }
        Ok(())
    }

    /// The key of a row's `globalPid` or `globalTid`.
    pub(super) fn process_key(&self, global: Option<i64>) -> ProcessKey {
        global.map(|global| global as u64 >> PID_BITS).or(self.places.main).unwrap_or(ProcessKey::MAX)
    }

    fn said(&mut self, table: &'static str) {
        *self.places.said.entry(table).or_default() += 1;
        self.kept("property", 1);
    }

    /// The process with a key.
    pub(super) fn process(&mut self, key: ProcessKey) -> Result<u32, Fault> {
        if let Some(process) = self.places.processes.get(&key) {
            return Ok(*process);
        }
        let (machine, pid) = (key >> PID_BITS, (key & TID_MASK) as i64);
        let home = *self.places.home.get_or_insert(machine);
        let host = if machine == home { 0 } else { self.sink.string(&format!("machine {machine}"))? };
        let pid = if key == ProcessKey::MAX { -1 } else { pid };
        let process = self.sink.define(Process { pid, start_ns: 0, host, source: self.places.source })?;
        self.places.processes.insert(key, process);
        if let Some(name) = self.places.process_names.get(&key) {
            self.sink.property(DefinitionKind::Process as u16, process, property::NAME, name)?;
            self.said("PROCESSES");
        }
        Ok(process)
    }

    /// The thread of a row's `globalTid` and its process; 0 and 0 for a row without one.
    pub(super) fn thread(&mut self, global: Option<i64>) -> Result<(u32, u32), Fault> {
        let Some(global) = global.map(|global| global as u64) else { return Ok((0, 0)) };
        let process = self.process(global >> PID_BITS)?;
        if let Some(thread) = self.places.threads.get(&global) {
            return Ok((*thread, process));
        }
        let thread = self.sink.define(Thread { process, tid: (global & TID_MASK) as i64 })?;
        self.places.threads.insert(global, thread);
        if let Some(name) = self.places.thread_names.get(&global).copied() {
            let name = self.strings.text(name).unwrap_or("");
            self.sink.property(DefinitionKind::Thread as u16, thread, property::NAME, name)?;
            self.said("ThreadNames");
        }
        Ok((thread, process))
    }

    /// A device as a process numbers it.
    pub(super) fn device(&mut self, key: ProcessKey, index: u32) -> Result<u32, Fault> {
        if let Some(device) = self.places.devices.get(&(key, index)) {
            return Ok(*device);
        }
        let process = self.process(key)?;
        let gpu_of = &self.places.gpu_of;
        // As the process numbers it, as CUDA does, or as the report.
        let gpu = gpu_of.get(&(key & TID_MASK, index)).or_else(|| gpu_of.get(&(0, index))).copied();
        let facts = self.places.gpus.get(&gpu.unwrap_or(i64::from(index))).cloned();
        let uuid = facts.as_ref().and_then(|facts| facts.get("uuid")).map_or("", |uuid| uuid.as_str());
        let uuid = self.sink.string(uuid)?;
        let device = self.sink.define(Device { process, index, vendor: vendor::NVIDIA, uuid })?;
        self.places.devices.insert((key, index), device);
        if let Some(facts) = facts {
            for (key, value) in named_properties(&facts) {
                self.sink.property(DefinitionKind::Device as u16, device, key, &value)?;
            }
        }
        Ok(device)
    }

    /// A stream of a process.
    pub(super) fn stream(&mut self, place: Place) -> Result<u32, Fault> {
        if let Some(stream) = self.places.streams.get(&place) {
            return Ok(*stream);
        }
        let process = self.process(place.process)?;
        let device = self.device(place.process, place.device)?;
        let context = self.sink.define(Context { process, device, native: place.context })?;
        if let Some(facts) = self.places.context_facts.remove(&(place.process, place.context)) {
            for (key, value) in facts {
                self.sink.property(DefinitionKind::Context as u16, context, key, &value.to_string())?;
            }
            self.said("TARGET_INFO_CUDA_CONTEXT_INFO");
        }
        let facts = self.places.stream_facts.remove(&(place.process, place.context, place.stream));
        let StreamFacts { priority, kind } = facts.unwrap_or_default();
        // `cudaStreamNonBlocking` is the only flag there is.
        let flags = u32::from(kind == 2);
        let stream = self.sink.define(Stream { context, native: place.stream, priority, flags })?;
        self.places.streams.insert(place, stream);
        if kind == 3 {
            self.sink.property(DefinitionKind::Stream as u16, stream, property::NAME, "null stream")?;
        }
        if facts.is_some() {
            self.said("TARGET_INFO_CUDA_STREAM");
        }
        Ok(stream)
    }

    /// Counts what was said of places in which nothing happened.
    pub(super) fn name_places(&mut self) -> Result<(), Fault> {
        // A device belongs to every process that used it, so its row may be said more than once.
        let gpus = self.places.gpus.len() as u64;
        self.kept("property", gpus);
        self.places.said.insert("TARGET_INFO_GPU", gpus);
        self.kept("property", self.good_rows("TARGET_INFO_CUDA_DEVICE"));
        for table in
            ["PROCESSES", "ThreadNames", "TARGET_INFO_GPU", "TARGET_INFO_CUDA_STREAM", "TARGET_INFO_CUDA_CONTEXT_INFO"]
        {
            let rows = self.good_rows(table);
            let said = self.places.said.get(table).copied().unwrap_or(0);
            self.not_kept("metadata of a row without events,", table, rows.saturating_sub(said));
        }
        Ok(())
    }
}

/// A device's properties under the names that reports read, the others under their own.
fn named_properties(facts: &BTreeMap<String, String>) -> Vec<(&str, String)> {
    let number = |name: &str| facts.get(name).and_then(|value| value.parse::<u64>().ok());
    let mut named = Vec::new();
    for (key, value) in facts {
        let key = match key.as_str() {
            "vmId" | "uuid" | "computeMinor" => continue,
            "computeMajor" => {
                let minor = number("computeMinor").unwrap_or(0);
                named.push((property::COMPUTE_CAPABILITY, format!("{value}.{minor}")));
                continue;
            }
            "name" => property::NAME,
            "totalMemory" => property::MEMORY_BYTES,
            "smCount" => property::MULTIPROCESSORS,
            "maxRegistersPerSm" => property::REGISTERS_PER_MULTIPROCESSOR,
            "maxShmemPerSm" => property::SHARED_BYTES_PER_MULTIPROCESSOR,
            "threadsPerWarp" => property::WARP_SIZE,
            other => other,
        };
        named.push((key, value.clone()));
    }
    if let (Some(warps), Some(threads)) = (number("maxWarpsPerSm"), number("threadsPerWarp")) {
        named.push((property::THREADS_PER_MULTIPROCESSOR, warps.saturating_mul(threads).to_string()));
    }
    named
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_key_from_either_form() {
        let global = 0x0002_0100_006f_0003_u64; // machine 2.. hardware 0, vm 2, pid 0x010000, tid 0x6f0003
        assert_eq!(global >> PID_BITS, key_of(0, 2, 0x01_0000));
        assert_eq!(0x0501_0000_6f00_0003_u64 >> PID_BITS, key_of(5, 1, 0x6f));
    }

    #[test]
    fn properties_that_reports_read() {
        let facts = [("computeMajor", "9"), ("maxWarpsPerSm", "64"), ("threadsPerWarp", "32"), ("chipName", "GH100")];
        let facts = facts.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let named: BTreeMap<_, _> = named_properties(&facts).into_iter().collect();
        assert_eq!(named[property::COMPUTE_CAPABILITY], "9.0");
        assert_eq!(named[property::THREADS_PER_MULTIPROCESSOR], "2048");
        assert_eq!((named[property::WARP_SIZE].as_str(), named["chipName"].as_str()), ("32", "GH100"));
    }
}
