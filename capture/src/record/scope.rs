//! What of a node is recorded: as it is asked for, as the eBPF programs are told it, and as it is decided for processes that run
//! already.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use ktape_ebpf::scope::{self, COMM_BYTES, Group as WireGroup, MOST_COMMS, MOST_GROUPS, MOST_PIDS, Pattern};
use ktape_ebpf::wire::OutOfScope;

use crate::collect::events::{Collector, LaunchScope};
use crate::probes::functions::Probed;
use crate::probes::groups::Group;
use crate::target::process::Process;

/// What of a node is recorded: what is in each of the lists that are not empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// Processes by number.
    pub pids: Vec<u32>,
    /// Patterns of processes' names, at most 15 bytes long, as the kernel keeps no more.
    pub comms: Vec<String>,
    /// Control groups: paths in the second version's hierarchy, or of its directories. What is below is in them.
    pub cgroups: Vec<PathBuf>,
    /// Functions; the others get no probes.
    pub functions: Vec<Group>,
    /// Patterns of Python files: a launch is recorded if one is in its stack.
    pub python_paths: Vec<String>,
    /// A regular expression that the whole mangled names of launched kernels are searched with.
    pub kernel: Option<String>,
}

impl Scope {
    /// As the eBPF programs are told it.
    ///
    /// # Errors
    ///
    /// If it is too much for them, or a control group is not there.
    pub fn of_processes(&self, native: bool) -> Result<scope::Scope> {
        let mut told = scope::Scope { native: native.into(), ..scope::Scope::ALL };
        ensure!(self.pids.len() <= MOST_PIDS, "pid: at most {MOST_PIDS} processes");
        ensure!(self.comms.len() <= MOST_COMMS, "comm: at most {MOST_COMMS} patterns");
        ensure!(self.cgroups.len() <= MOST_GROUPS, "cgroup: at most {MOST_GROUPS} control groups");
        told.pids = self.pids.len() as u32;
        told.pid[..self.pids.len()].copy_from_slice(&self.pids);
        for (into, pattern) in told.comm.iter_mut().zip(&self.comms) {
            *into = Pattern::new(pattern.as_bytes())
                .with_context(|| format!("comm {pattern:?}: longer than the kernel keeps names"))?;
            told.comms += 1;
        }
        for (into, path) in told.group.iter_mut().zip(&self.cgroups) {
            *into = group(path).with_context(|| format!("cgroup {}", path.display()))?;
            told.groups += 1;
        }
        Ok(told)
    }

    /// Which launches of recorded processes are recorded.
    ///
    /// # Errors
    ///
    /// If the expression for kernels is none.
    pub(super) fn of_launches(&self) -> Result<LaunchScope> {
        LaunchScope::new(&self.python_paths, self.kernel.as_deref()).context("kernel")
    }

    /// Whether a process is in it.
    pub(super) fn has(&self, process: &Process) -> bool {
        let name = padded(&process.name);
        let is_named =
            |pattern: &String| Pattern::new(pattern.as_bytes()).is_some_and(|pattern| pattern.matches(&name));
        let is_below = |path: &PathBuf| Path::new(&process.unified_cgroup).starts_with(in_hierarchy(path));
        (self.pids.is_empty() || self.pids.contains(&process.pid))
            && (self.comms.is_empty() || self.comms.iter().any(is_named))
            && (self.cgroups.is_empty() || self.cgroups.iter().any(is_below))
    }
}

/// Calls that were left out, by group, and how many of them have been counted as seen: those that the collector left out, and what the
/// programs say of each function.
pub(super) fn out_of_scope(
    functions: &[Probed],
    collector: &Collector,
    mut of_programs: impl FnMut(usize) -> Result<OutOfScope>,
) -> Result<(BTreeMap<Group, u64>, u64)> {
    let (mut groups, mut seen) = (BTreeMap::new(), 0);
    for ((index, function), came) in functions.iter().enumerate().zip(collector.out_of_scope()) {
        // What has no group is no event, and not counted as one.
        let Some(group) = function.meaning.group() else { continue };
        let OutOfScope { of_processes, of_calls } = of_programs(index)?;
        seen += of_calls + came;
        let calls = of_processes + of_calls + came;
        if calls > 0 {
            *groups.entry(group).or_default() += calls;
        }
    }
    Ok((groups, seen))
}

/// A name as the kernel has it.
fn padded(name: &str) -> [u8; COMM_BYTES] {
    let mut bytes = [0; COMM_BYTES];
    bytes.iter_mut().zip(name.bytes()).for_each(|(into, byte)| *into = byte);
    bytes
}

/// Where the second version's hierarchy is mounted.
fn mount() -> Option<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    // Behind the dash: file system, source. The fifth word before it is where.
    let of = |line: &str| {
        let (before, behind) = line.split_once(" - ")?;
        (behind.split(' ').next()? == "cgroup2").then(|| before.split(' ').nth(4).map(PathBuf::from))?
    };
    mounts.lines().find_map(of)
}

/// A control group's path in the hierarchy, whether it was given as that or as a directory.
fn in_hierarchy(path: &Path) -> PathBuf {
    let inside = mount().and_then(|mount| path.strip_prefix(mount).map(Path::to_owned).ok());
    let inside = inside.unwrap_or_else(|| path.to_owned());
    let names = inside.components().filter(|part| matches!(part, Component::Normal(_)));
    Path::new("/").join(names.collect::<PathBuf>())
}

fn group(path: &Path) -> Result<WireGroup> {
    let mount = mount().context("this machine has no control groups of the second version")?;
    let inside = in_hierarchy(path);
    let directory = mount.join(inside.strip_prefix("/").unwrap_or(&inside));
    let facts = std::fs::metadata(&directory).with_context(|| directory.display().to_string())?;
    ensure!(facts.is_dir(), "{} is no control group", directory.display());
    Ok(WireGroup { id: facts.ino(), level: inside.components().count() as u64 - 1 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(name: &str, group: &str) -> Process {
        let own = Process::of(std::process::id()).expect("ourselves");
        Process { pid: 7, name: name.to_owned(), unified_cgroup: group.to_owned(), ..own }
    }

    fn scope(pids: &[u32], comms: &[&str], groups: &[&str]) -> Scope {
        Scope {
            pids: pids.to_vec(),
            comms: comms.iter().map(|&comm| comm.to_owned()).collect(),
            cgroups: groups.iter().map(PathBuf::from).collect(),
            ..Scope::default()
        }
    }

    #[test]
    fn a_process_is_in_each_of_the_lists() {
        let python = process("python3", "/kube/pod7");
        for (pids, comms, groups, expected) in [
            (&[][..], &[][..], &[][..], true),
            (&[7, 8], &[], &[], true),
            (&[8], &[], &[], false),
            (&[], &["sh", "py*"], &[], true),
            (&[7], &["sh"], &[], false),
            (&[], &[], &["/kube"], true),
            (&[], &[], &["kube/pod7/"], true),
            (&[], &[], &["/kube/pod"], false),
            (&[7], &["*"], &["/other", "/"], true),
        ] {
            assert_eq!(scope(pids, comms, groups).has(&python), expected, "{pids:?} {comms:?} {groups:?}");
        }
    }

    #[test]
    fn what_the_programs_cannot_be_told_is_refused() {
        let refused = |scope: &Scope| format!("{:#}", scope.of_processes(false).expect_err("too much"));
        assert!(refused(&scope(&[1; MOST_PIDS + 1], &[], &[])).contains("at most 32"));
        assert!(refused(&scope(&[], &["0123456789abcdef"], &[])).contains("longer"));
        assert!(refused(&scope(&[], &[], &["/no/such/group"])).contains("no/such/group"));
        let told = scope(&[3, 4], &["a*"], &[]).of_processes(true).expect("it fits");
        assert_eq!((told.pids, told.comms, told.groups, told.native), (2, 1, 0, 1));
        assert_eq!((&told.pid[..3], Some(told.comm[0])), (&[3, 4, 0][..], Pattern::new(b"a*")));
    }
}
