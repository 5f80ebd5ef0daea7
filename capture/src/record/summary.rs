//! What a recording tells at its end.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Serialize;

use super::blind_spots::{BlindSpot, Kind};
use super::cost::Spending;
use crate::collect::events::{Gaps, Samples, Source};
use crate::probes::groups::Group;

/// What a recording tells at its end.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// The tape.
    pub tape: PathBuf,
    /// Its length.
    pub tape_bytes: u64,
    /// From the first probe to the last.
    pub duration_ns: u64,
    /// Processes that were recorded.
    pub processes: u64,
    /// Libraries that have had probes.
    pub libraries: Vec<PathBuf>,
    /// How many more there were.
    pub further_libraries: u64,
    /// Probes that were set.
    pub probes: usize,
    /// Calls that the probes saw and that are events.
    pub seen: u64,
    /// Calls that are on the tape.
    pub written: u64,
    /// Calls that the ring buffer or the tape had no room for.
    pub lost: u64,
    /// Calls whose Python stack could not be read.
    pub without_stack: u64,
    /// What recording cost.
    pub spending: Spending,
    /// What was kept less of to keep the cost under its limit, and of what more again, in order.
    pub fidelity_changes: Vec<String>,
    /// How many more there were: all are on the tape.
    pub further_fidelity_changes: u64,
    /// Kernels, by where their names are from.
    pub kernels: BTreeMap<Source, u64>,
    /// What is on the tape but could not be told in full.
    pub gaps: Gaps,
    /// Calls that the scope of a recording of the node left out, by group. They are not among those seen.
    pub out_of_scope: BTreeMap<Group, u64>,
    /// The CPU samples, if any were asked for.
    pub cpu_samples: Option<CpuSamples>,
    /// What the GPUs said of themselves, if they were asked.
    pub gpu_counters: Option<GpuValues>,
    /// What libraries inside of processes told, if any were asked.
    pub inside: Option<super::inside::Summary>,
    /// The stretches off the processor, if any were asked for.
    pub off_cpu: Option<OffCpu>,
    /// Rows that the tape was not written fast enough for, or not at all: it has loss rows for them.
    pub tape_lost_events: u64,
    /// Returns that the ring buffer had no room for.
    pub returns_lost: u64,
    /// Why the tape could not be closed, if so. What had reached it before is readable.
    pub failure: Option<String>,
    /// What it cannot have seen. Also on the tape.
    pub blind_spots: Vec<BlindSpot>,
    /// What went wrong on the way.
    pub troubles: Vec<String>,
}

/// What a recording tells of its CPU samples.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct CpuSamples {
    /// How many a second and running thread were asked for.
    pub hz: u32,
    /// How much time each stands for.
    pub period_ns: u64,
    /// Samples of recorded processes that were taken.
    pub seen: u64,
    /// Samples that the ring buffer or the tape had no room for.
    pub lost: u64,
    /// Samples whose Python stack could not be read, as its memory was not there just then.
    pub without_stack: u64,
    /// What became of the others.
    #[serde(flatten)]
    pub taken: Samples,
}

/// What a recording tells of the GPUs' own counters.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct GpuValues {
    /// How many GPUs were asked.
    pub gpus: usize,
    /// Values on the tape.
    pub written: u64,
    /// Values that the recorder did not take in time.
    pub lost: u64,
}

/// What a recording tells of threads that did not run.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct OffCpu {
    /// Stretches off a processor that ended while they were recorded.
    pub seen: u64,
    /// Of these, those on the tape.
    pub written: u64,
    /// Those that there was no room for, or whose end was not seen.
    pub lost: u64,
    /// Threads that were off their processors already when their recording began: these first stretches are not on the tape. So are
    /// those that the kernel did not tell the beginning of.
    pub unbegun: u64,
    /// Threads that still were when it ended: these last ones are, up to then.
    pub off_at_end: u64,
}

impl Summary {
    /// Whether nothing was seen although a process kept the driver busy.
    pub fn is_blind(&self) -> bool {
        self.seen == 0 && self.blind_spots.iter().any(|spot| spot.kind == Kind::SilentProcess)
    }

    /// Whether every call, sample and stretch off a processor that was seen is on the tape.
    pub fn is_complete(&self) -> bool {
        let has_samples = self.cpu_samples.is_none_or(|samples| samples.lost == 0);
        let has_off_cpu = self.off_cpu.is_none_or(|off_cpu| off_cpu.lost == 0);
        let has_device = self.inside.as_ref().is_none_or(|inside| inside.lost == 0 && inside.counts.missing == 0);
        self.lost == 0
            && has_device
            && has_samples
            && has_off_cpu
            && self.tape_lost_events == 0
            && self.seen == self.written
    }
}
