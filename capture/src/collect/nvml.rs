//! What the GPUs say of themselves while a recording goes on: utilisation, memory, power, clocks, temperature, traffic.
//!
//! NVML is asked by a thread of its own, as some of its questions take milliseconds, and its answers are handed over by a bounded
//! channel: a session that does not take them in time loses them, counted. Traffic over PCIe is measured by the driver while it
//! is asked for, 20 ms each way, so it is asked for once a second; traffic over NVLink comes as a sum, of which the rate is made
//! here. What a GPU does not offer is left out, and found out at the first question.

use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ktape_format::Sink;
use ktape_format::definition::{self, CounterName, property, vendor};
use ktape_format::event::Counter;
use ktape_format::table::DefinitionKind;
use nvml_wrapper::enum_wrappers::device::{Clock, PcieUtilCounter, TemperatureSensor};
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::{Device, Nvml};
use rustix::time::{ClockId, clock_gettime};

/// The library, as its package installs it. The name without a number is only there with the headers.
const LIBRARY: &str = "libnvidia-ml.so.1";
/// So many answers may wait: a few seconds of eight GPUs.
const WAITING: usize = 4096;
/// How often traffic is asked for.
const TRAFFIC: Duration = Duration::from_secs(1);
/// `NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX` and `…_RX`: sums in KiB, over all links where no link is named.
const NVLINK: [(u32, &str); 2] = [(138, "NVLink sent"), (139, "NVLink received")];

/// The most questions a second: NVML's own values change about ten times as often.
pub const MOST_HZ: u32 = 100;

/// What a GPU is asked.
type Question = fn(&Device<'_>) -> Result<Vec<Said>, NvmlError>;
/// What it answers: what that is called on the tape, its unit, the value.
type Said = (&'static str, &'static str, f64);

/// What is asked each time.
const QUESTIONS: [Question; 6] = [
    |device| {
        let rates = device.utilization_rates()?;
        Ok(vec![("GPU utilisation", "%", rates.gpu.into()), ("GPU memory utilisation", "%", rates.memory.into())])
    },
    |device| Ok(vec![("GPU memory used", "bytes", device.memory_info()?.used as f64)]),
    |device| Ok(vec![("GPU power", "W", f64::from(device.power_usage()?) / 1e3)]),
    |device| Ok(vec![("GPU SM clock", "MHz", device.clock_info(Clock::SM)?.into())]),
    |device| Ok(vec![("GPU memory clock", "MHz", device.clock_info(Clock::Memory)?.into())]),
    |device| Ok(vec![("GPU temperature", "°C", device.temperature(TemperatureSensor::Gpu)?.into())]),
];

/// And each second.
const TRAFFIC_QUESTIONS: [Question; 2] = [
    |device| Ok(vec![("PCIe sent", "bytes/s", from_kib(device.pcie_throughput(PcieUtilCounter::Send)?))]),
    |device| Ok(vec![("PCIe received", "bytes/s", from_kib(device.pcie_throughput(PcieUtilCounter::Receive)?))]),
];

fn from_kib(kib: u32) -> f64 {
    f64::from(kib) * 1024.0
}

/// One answer.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Answer {
    time_ns: i64,
    device: u32,
    said: Said,
}

/// A GPU, as NVML counts and names it.
struct Gpu {
    uuid: String,
    name: String,
}

/// The counters of all GPUs of the machine, while this lives.
pub struct GpuCounters {
    gpus: Vec<Gpu>,
    answers: Receiver<Answer>,
    lost: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    written: u64,
}

impl GpuCounters {
    /// Asks all GPUs so many times a second.
    ///
    /// # Errors
    ///
    /// If there is no NVML, or it sees no driver.
    pub fn begin(hz: u32) -> anyhow::Result<GpuCounters> {
        let nvml = Nvml::builder().lib_path(OsStr::new(LIBRARY)).init()?;
        let gpus = (0..nvml.device_count()?)
            .map(|index| {
                let device = nvml.device_by_index(index)?;
                Ok(Gpu { uuid: device.uuid()?, name: device.name().unwrap_or_default() })
            })
            .collect::<Result<Vec<Gpu>, NvmlError>>()?;
        let (sender, answers) = sync_channel(WAITING);
        let (lost, stop) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let asking = Asking { sender, lost: lost.clone(), stop: stop.clone(), period: Duration::from_secs(1) / hz };
        let thread = std::thread::Builder::new().name("gpu-counters".into()).spawn(move || asking.run(&nvml))?;
        Ok(GpuCounters { gpus, answers, lost, stop, thread: Some(thread), written: 0 })
    }

    /// How many GPUs there are.
    pub fn gpus(&self) -> usize {
        self.gpus.len()
    }

    /// How many values were written, and how many were not, as nobody took them in time.
    pub fn counts(&self) -> (u64, u64) {
        (self.written, self.lost.load(Ordering::Relaxed))
    }

    /// Writes what was answered since the last time.
    pub fn write<S: Sink>(&mut self, sink: &mut S) -> Result<(), S::Error> {
        while let Ok(Answer { time_ns, device, said: (name, unit, value) }) = self.answers.try_recv() {
            let Gpu { uuid, name: model } = &self.gpus[device as usize];
            // Defined each time, as ids of another segment are not ids of this one. Of no process: a process may see fewer
            // GPUs, and number them anew.
            let uuid = sink.string(uuid)?;
            let row = definition::Device { process: 0, index: device, vendor: vendor::NVIDIA, uuid };
            let device = sink.define(row)?;
            sink.property(DefinitionKind::Device as u16, device, property::NAME, model)?;
            let (name, unit) = (sink.string(name)?, sink.string(unit)?);
            let counter = sink.define(CounterName { name, unit, process: 0, device })?;
            sink.event(Counter { start_ns: time_ns, counter, value })?;
            self.written += 1;
        }
        Ok(())
    }
}

impl Drop for GpuCounters {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A thread that panicked has nothing more to say.
            let _ = thread.join();
        }
    }
}

/// The thread's side.
struct Asking {
    sender: SyncSender<Answer>,
    lost: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    period: Duration,
}

impl Asking {
    fn run(self, nvml: &Nvml) {
        let devices: Vec<Device<'_>> = (0..).map_while(|index| nvml.device_by_index(index).ok()).collect();
        // What a GPU says it cannot tell is not asked for again.
        let mut offers: Vec<(usize, Question)> = Vec::new();
        let mut offers_traffic = Vec::new();
        for at in 0..devices.len() {
            offers.extend(QUESTIONS.map(|question| (at, question)));
            offers_traffic.extend(TRAFFIC_QUESTIONS.map(|question| (at, question)));
        }
        let mut sums: Vec<[Option<(i64, u64)>; 2]> = vec![[None; 2]; devices.len()];
        let mut next = Instant::now();
        let mut next_traffic = next;
        while !self.stop.load(Ordering::Relaxed) {
            self.ask(&devices, &mut offers);
            if Instant::now() >= next_traffic {
                next_traffic += TRAFFIC;
                self.ask(&devices, &mut offers_traffic);
                devices.iter().zip(&mut sums).enumerate().for_each(|(at, (device, sums))| {
                    self.ask_nvlink(at as u32, device, sums);
                });
            }
            // Behind time, what was missed is missed: asking faster would tell nothing.
            next = (next + self.period).max(Instant::now());
            while !self.stop.load(Ordering::Relaxed) {
                let Some(left) = next.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) else {
                    break;
                };
                std::thread::park_timeout(left);
            }
        }
    }

    fn ask(&self, devices: &[Device<'_>], offers: &mut Vec<(usize, Question)>) {
        offers.retain(|&(at, question)| match question(&devices[at]) {
            Ok(all) => {
                let time_ns = monotonic_ns();
                all.into_iter().for_each(|said| self.hand_over(Answer { time_ns, device: at as u32, said }));
                true
            }
            Err(error) => !is_final(&error),
        });
    }

    /// The rate between two sums.
    fn ask_nvlink(&self, at: u32, device: &Device<'_>, sums: &mut [Option<(i64, u64)>; 2]) {
        let Ok(values) = device.field_values_for(&NVLINK.map(|(field, _)| FieldId(field))) else { return };
        for ((value, sum), (_, name)) in values.into_iter().zip(sums).zip(NVLINK) {
            let Some(SampleValue::U64(kib)) = value.ok().and_then(|sample| sample.value.ok()) else { continue };
            let time_ns = monotonic_ns();
            if let Some((before_ns, before_kib)) = sum.replace((time_ns, kib))
                && let Some(kib) = kib.checked_sub(before_kib)
            {
                let seconds = (time_ns - before_ns) as f64 / 1e9;
                let said = (name, "bytes/s", kib as f64 * 1024.0 / seconds);
                self.hand_over(Answer { time_ns, device: at, said });
            }
        }
    }

    fn hand_over(&self, answer: Answer) {
        if self.sender.try_send(answer).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Whether there is no use in asking again.
fn is_final(error: &NvmlError) -> bool {
    matches!(
        error,
        NvmlError::NotSupported | NvmlError::NoPermission | NvmlError::FailedToLoadSymbol(_) | NvmlError::InvalidArg
    )
}

fn monotonic_ns() -> i64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}
