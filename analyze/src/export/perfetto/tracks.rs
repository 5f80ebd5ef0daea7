//! Who is who in the trace: processes, threads, devices and streams, their numbers and their tracks.
//!
//! Perfetto joins by pid and tid, so two processes must not share one. Those of different ranks, containers or hosts
//! may; the second gets a number of its own and shows the real one in its name. Likewise two processes may number
//! their devices alike. Every track has an id (`uuid`) that is handed out in a fixed order.

use ktape_format::Definitions;
use ktape_format::Table;
use ktape_format::definition::{Context, Device, Process, Property, Stream, Thread, property, vendor};
use ktape_format::table::DefinitionKind;
use rustc_hash::{FxHashMap, FxHashSet};

use super::proto::{
    API_CUDA, API_HIP, CounterDescriptor, Gpu, GpuInfo, GpuSpecification, GraphicsContext, KeyValue, ORDER_EXPLICIT,
    ProcessDescriptor, ThreadDescriptor, TrackDescriptor,
};

/// Numbers from here on are made up: Linux gives out none above 4,194,304.
const FIRST_MADE_UP: i32 = 10_000_000;
/// A device keeps its own number up to this, beyond which the list of devices would be mostly gaps.
const MAX_GPU_ID: u32 = 1024;

/// What a track hangs below.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Owner {
    /// Below nothing.
    Trace,
    /// Below a process.
    Process(u32),
    /// Below a thread.
    Thread(u32),
    /// Below the process of a stream.
    Stream(u32),
}

/// The tracks of one trace, and the numbers of what they show.
pub(super) struct Tracks<'a> {
    definitions: &'a Definitions,
    facts: FxHashMap<(u16, u32, &'a str), &'a str>,
    host_only: bool,
    pids: Vec<i32>,
    tids: Vec<i32>,
    gpu_ids: Vec<i32>,
    next_uuid: u64,
    /// The descriptions of all tracks, parents first.
    pub(super) descriptors: Vec<TrackDescriptor>,
}

impl<'a> Tracks<'a> {
    /// Describes all processes and threads. `lost` is how many events each process (0: none known) lost; a trace without
    /// device times (`host_only`) says so beside their names.
    pub(super) fn new(definitions: &'a Definitions, lost: &FxHashMap<u32, u64>, host_only: bool) -> Tracks<'a> {
        let fact = |row: Property| {
            let (key, value) = (definitions.string(row.key), definitions.string(row.value));
            ((row.subject_kind, row.subject, key), value)
        };
        let mut tracks = Tracks {
            definitions,
            facts: definitions.properties.rows().map(fact).collect(),
            host_only,
            pids: distinct(definitions.processes.rows().map(|process| process.pid)),
            tids: distinct(definitions.threads.rows().map(|thread| thread.tid)),
            gpu_ids: gpu_ids(definitions),
            next_uuid: (definitions.processes.len() + definitions.threads.len()) as u64 + 1,
            descriptors: Vec::new(),
        };
        for (id, process) in (1..).zip(definitions.processes.rows()) {
            let descriptor = tracks.process(id, &process, lost.get(&id).copied().unwrap_or(0));
            tracks.descriptors.push(descriptor);
        }
        for (id, thread) in (1..).zip(definitions.threads.rows()) {
            let descriptor = tracks.thread(id, &thread);
            tracks.descriptors.push(descriptor);
        }
        tracks
    }

    /// What is known of a definition under a key.
    pub(super) fn fact(&self, kind: DefinitionKind, id: u32, key: &str) -> Option<&'a str> {
        self.facts.get(&(kind as u16, id, key)).copied().filter(|value| !value.is_empty())
    }

    /// The pid of a process in the trace.
    pub(super) fn pid(&self, process: u32) -> i32 {
        (process as usize).checked_sub(1).and_then(|row| self.pids.get(row)).copied().unwrap_or(0)
    }

    /// The number of a device in the trace.
    pub(super) fn gpu_id(&self, device: u32) -> i32 {
        (device as usize).checked_sub(1).and_then(|row| self.gpu_ids.get(row)).copied().unwrap_or(0)
    }

    /// The name of a process, with its rank and, where the trace needs another pid, its real one.
    pub(super) fn process_name(&self, id: u32) -> String {
        let mut name = self.fact(DefinitionKind::Process, id, property::NAME).unwrap_or("process").to_owned();
        if let Some(rank) = self.fact(DefinitionKind::Process, id, property::RANK) {
            name += &format!(" rank {rank}");
        }
        match self.definitions.get::<Process>(id) {
            Some(process) if process.pid != i64::from(self.pid(id)) => name + &format!(" (pid {})", process.pid),
            _ => name,
        }
    }

    /// Adds a named track; gives its id.
    pub(super) fn named(&mut self, owner: Owner, name: String, rank: i32) -> u64 {
        self.add(owner, TrackDescriptor { name: Some(name), sibling_order_rank: Some(rank), ..Default::default() })
    }

    /// Adds a counter's track; gives its id.
    pub(super) fn counter(&mut self, owner: Owner, name: String, unit: &str) -> u64 {
        let counter = Some(CounterDescriptor { unit_name: unit.to_owned() });
        self.add(owner, TrackDescriptor { name: Some(name), counter, ..Default::default() })
    }

    fn add(&mut self, owner: Owner, descriptor: TrackDescriptor) -> u64 {
        let uuid = self.next_uuid;
        self.next_uuid += 1;
        self.descriptors.push(TrackDescriptor { uuid, parent_uuid: self.parent(owner), ..descriptor });
        uuid
    }

    fn parent(&self, owner: Owner) -> Option<u64> {
        let processes = self.definitions.processes.len() as u64;
        let of_process = |id: u32| (id != 0 && u64::from(id) <= processes).then_some(u64::from(id));
        match owner {
            Owner::Trace => None,
            Owner::Process(id) => of_process(id),
            Owner::Thread(id) if id == 0 || id as usize > self.definitions.threads.len() => None,
            Owner::Thread(id) => Some(processes + u64::from(id)),
            Owner::Stream(id) => of_process(self.definitions.process_of_stream(id)),
        }
    }

    fn process(&self, id: u32, process: &Process, lost: u64) -> TrackDescriptor {
        let fact = |key| self.fact(DefinitionKind::Process, id, key);
        let mut labels = Vec::new();
        if let Some(rank) = fact(property::RANK) {
            labels.push(
                fact(property::WORLD_SIZE).map_or_else(|| format!("rank {rank}"), |n| format!("rank {rank} of {n}")),
            );
        }
        if self.host_only {
            labels.push("launches without device times".to_owned());
        }
        if lost > 0 {
            labels.push(format!("{lost} events lost"));
        }
        for (what, string) in [("host", process.host), ("from", process.source)] {
            if !self.definitions.string(string).is_empty() {
                labels.push(format!("{what} {}", self.definitions.string(string)));
            }
        }
        TrackDescriptor {
            uuid: u64::from(id),
            process: Some(ProcessDescriptor {
                pid: self.pid(id),
                cmdline: fact(property::COMMAND).map(str::to_owned).into_iter().collect(),
                process_name: self.process_name(id),
                process_labels: labels,
            }),
            child_ordering: Some(ORDER_EXPLICIT),
            ..Default::default()
        }
    }

    fn thread(&self, id: u32, thread: &Thread) -> TrackDescriptor {
        let tid = self.tids[id as usize - 1];
        let mut name = self.fact(DefinitionKind::Thread, id, property::NAME).unwrap_or("thread").to_owned();
        if i64::from(tid) != thread.tid {
            name += &format!(" (tid {})", thread.tid);
        }
        TrackDescriptor {
            uuid: self.definitions.processes.len() as u64 + u64::from(id),
            parent_uuid: self.parent(Owner::Process(thread.process)),
            thread: Some(ThreadDescriptor { pid: self.pid(thread.process), tid: tid.into(), thread_name: name }),
            child_ordering: Some(ORDER_EXPLICIT),
            ..Default::default()
        }
    }

    /// What a stream is called: its number, and a name that says more than that.
    pub(super) fn stream_name(&self, id: u32) -> String {
        let Some(stream) = self.definitions.get::<Stream>(id) else { return "Unknown stream".to_owned() };
        let said = format!("stream {}", stream.native);
        match self.fact(DefinitionKind::Stream, id, property::NAME) {
            Some(name) if name.trim() != said => format!("Stream #{} {name}", stream.native),
            _ => format!("Stream #{}", stream.native),
        }
    }

    /// What a device is called.
    pub(super) fn device_name(&self, id: u32) -> String {
        self.definitions.get::<Device>(id).map_or("Device".to_owned(), |device| format!("Device #{}", device.index))
    }

    /// The devices.
    pub(super) fn gpu_info(&self) -> GpuInfo {
        let count = self.gpu_ids.iter().max().map_or(0, |max| *max as usize + 1);
        let mut gpus = vec![Gpu::default(); count];
        for (id, device) in (1..).zip(self.definitions.devices.rows()) {
            let fact = |key| self.fact(DefinitionKind::Device, id, key).unwrap_or_default().to_owned();
            let info = self.definitions.properties_of(DefinitionKind::Device as u16, id);
            let name = fact(property::NAME);
            gpus[self.gpu_id(id) as usize] = Gpu {
                name: if name.is_empty() { self.device_name(id) } else { name.clone() },
                vendor: vendor::NAMES.get(device.vendor as usize).unwrap_or(&"unknown").to_string(),
                model: name,
                architecture: self.architecture(id),
                uuid: uuid_bytes(self.definitions.string(device.uuid)),
                extra_info: info.map(|(key, value)| KeyValue { key: key.into(), value: value.into() }).collect(),
            };
        }
        GpuInfo { gpus }
    }

    /// A device's architecture as compilers name it.
    pub(super) fn architecture(&self, device: u32) -> String {
        let capability = self.fact(DefinitionKind::Device, device, property::COMPUTE_CAPABILITY);
        capability.map_or_else(String::new, |text| format!("sm_{}", text.replace('.', "")))
    }

    /// The contexts.
    pub(super) fn graphics_contexts(&self) -> Vec<GraphicsContext> {
        let context = |(iid, context): (u64, Context)| {
            let amd = self.definitions.get::<Device>(context.device).is_some_and(|device| device.vendor == vendor::AMD);
            GraphicsContext { iid, pid: self.pid(context.process), api: if amd { API_HIP } else { API_CUDA } }
        };
        (1..).zip(self.definitions.contexts.rows()).map(context).collect()
    }

    /// The interning id of a stream.
    pub(super) fn queue_iid(stream: u32) -> u64 {
        u64::from(stream) + 1
    }

    /// The streams, and the first interning id behind them.
    pub(super) fn queues(&self) -> (Vec<GpuSpecification>, u64) {
        let count = self.definitions.streams.len() as u32;
        let queue = |stream| GpuSpecification {
            iid: Tracks::queue_iid(stream),
            name: self.stream_name(stream),
            ..GpuSpecification::default()
        };
        ((0..=count).map(queue).collect(), Tracks::queue_iid(count) + 1)
    }
}

/// Numbers that can stand for these: each itself if it is positive, small and still free, else a made-up one.
fn distinct(numbers: impl Iterator<Item = i64>) -> Vec<i32> {
    let mut taken = FxHashSet::default();
    let mut next = FIRST_MADE_UP;
    let mut number = |wanted: i64| {
        let usable = i32::try_from(wanted).ok().filter(|n| *n > 0 && *n < FIRST_MADE_UP);
        usable.filter(|n| taken.insert(*n)).unwrap_or_else(|| {
            next += 1;
            next - 1
        })
    };
    numbers.map(&mut number).collect()
}

/// A number for each device: its own, unless another device has it already. A device that several processes know by
/// the same UUID is one.
fn gpu_ids(definitions: &Definitions) -> Vec<i32> {
    let mut by_uuid: FxHashMap<u32, i32> = FxHashMap::default();
    let mut taken: FxHashSet<u32> = FxHashSet::default();
    let mut free = 0..;
    let mut number = |device: Device| {
        if let Some(&known) = by_uuid.get(&device.uuid) {
            return known;
        }
        let own = Some(device.index).filter(|index| *index < MAX_GPU_ID && taken.insert(*index));
        let id = own.or_else(|| free.find(|index| taken.insert(*index))).unwrap_or(0) as i32;
        if device.uuid != 0 {
            by_uuid.insert(device.uuid, id);
        }
        id
    };
    definitions.devices.rows().map(&mut number).collect()
}

/// The 16 bytes of a UUID as drivers print it (`GPU-` and hexadecimal digits); nothing if it is not one.
fn uuid_bytes(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.trim_start_matches("GPU-").chars().filter_map(|c| c.to_digit(16)).collect();
    if digits.len() == 32 { digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect() } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_clash_are_replaced() {
        let numbers = distinct([17, 17, -1, 0, 1 << 40, 18].into_iter());
        let made_up = |n: i32| FIRST_MADE_UP + n;
        assert_eq!(numbers, [17, made_up(0), made_up(1), made_up(2), made_up(3), 18]);
    }

    #[test]
    fn uuids() {
        assert_eq!(uuid_bytes("GPU-00112233-4455-6677-8899-aabbccddeeff")[..3], [0x00, 0x11, 0x22]);
        assert!(uuid_bytes("no uuid").is_empty());
    }
}
