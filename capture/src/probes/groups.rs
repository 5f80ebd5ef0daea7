//! Functions by what is asked of them, so that a recording can do without some.

use super::functions::Meaning;

/// What a function's calls are about.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, clap::ValueEnum, serde::Deserialize, serde::Serialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Group {
    /// Launches of kernels and graphs, stream capture and the making of graphs
    Launch,
    /// Copies and memsets
    Copy,
    /// Waits, and events that are recorded and waited for
    Sync,
    /// Memory: allocated, freed, mapped, registered
    Mem,
    /// NCCL
    Nccl,
    /// Everything else: modules, initialisation, host functions
    Other,
}

impl Meaning {
    /// The group of a function whose calls are events; `None` for one that only explains others, and is always needed.
    pub fn group(self) -> Option<Group> {
        if !self.is_event() {
            return None;
        }
        Some(match self {
            Meaning::Launch
            | Meaning::LaunchConfig
            | Meaning::LaunchMulti
            | Meaning::LaunchGrid { .. }
            | Meaning::Graph(_)
            | Meaning::GraphInstantiate
            | Meaning::GraphLaunch => Group::Launch,
            Meaning::Copy { .. }
            | Meaning::CopyPeer { .. }
            | Meaning::CopyShape { .. }
            | Meaning::CopyBatch { .. }
            | Meaning::CopyShapes { .. }
            | Meaning::Set { .. } => Group::Copy,
            Meaning::Wait { .. } | Meaning::EventRecord { .. } | Meaning::EventWait { .. } => Group::Sync,
            Meaning::Alloc { .. }
            | Meaning::AllocPitch
            | Meaning::Register
            | Meaning::Reserve
            | Meaning::Map
            | Meaning::Unmap
            | Meaning::Range
            | Meaning::Free { .. } => Group::Mem,
            Meaning::Collective(_) | Meaning::Communicator { .. } | Meaning::CommunicatorEnd => Group::Nccl,
            _ => Group::Other,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probes::functions;

    #[test]
    fn every_event_has_a_group_and_names_are_never_left_out() {
        let group = |symbol: &str| {
            let all = functions::all();
            all.iter().find(|function| function.symbol == symbol).expect("it is probed").meaning.group()
        };
        for (symbol, expected) in [
            ("cuLaunchKernel", Some(Group::Launch)),
            ("cuLaunchKernelEx_ptsz", Some(Group::Launch)),
            ("cuGraphLaunch", Some(Group::Launch)),
            // Without it the calls in a capture would count as launches.
            ("cuStreamBeginCapture_v2", Some(Group::Launch)),
            ("cuGraphAddKernelNode_v2", Some(Group::Launch)),
            ("cuMemcpyHtoDAsync_v2", Some(Group::Copy)),
            ("cuMemsetD8_v2", Some(Group::Copy)),
            ("cuStreamSynchronize", Some(Group::Sync)),
            ("cuEventRecord", Some(Group::Sync)),
            ("cuMemAlloc_v2", Some(Group::Mem)),
            ("cuMemUnmap", Some(Group::Mem)),
            ("ncclAllReduce", Some(Group::Nccl)),
            ("cuInit", Some(Group::Other)),
            ("cuModuleGetFunction", None),
            ("__cudaRegisterFunction", None),
        ] {
            assert_eq!(group(symbol), expected, "{symbol}");
        }
    }
}
