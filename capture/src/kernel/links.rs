//! Probes in libraries: set, and taken away.

use std::collections::{BTreeSet, HashMap};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd, RawFd};
use std::path::Path;

use aya::Ebpf;
use aya::maps::Map;
use aya::programs::UProbe;
use aya::programs::uprobe::{UProbeAttachLocation, UProbeAttachPoint, UProbeLinkId, UProbeScope};

use super::multi::Multi;
use super::programs::KernelError;
use crate::probes::closing::{close_all, close_soon};

/// A probe to set.
#[derive(Clone, Copy, Debug)]
pub struct Link<'a> {
    /// Which program.
    pub program: Program,
    /// The function, for messages.
    pub symbol: &'a str,
    /// Where in the file.
    pub file_offset: u64,
    /// What the program is given: the function's index.
    pub cookie: u64,
}

/// The programs that go into libraries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// A call.
    Enter,
    /// Its return.
    Leave,
    /// A launch's return, which is there only on request and can be given up.
    LeaveLaunch,
    /// The dynamic linker's word that libraries came or went.
    Libraries,
    /// The end of a code object of Python's.
    CodeFreed,
    /// The word of a library inside a process which number a call has in CUPTI.
    Correlated,
    /// The word of a library inside a process that it is about to tell of a range.
    Ranged,
    /// Nothing, for [`Kernel::load_with_empty`](super::programs::Kernel::load_with_empty).
    Empty,
}

/// A program, and its name in the object.
pub(super) type Named = (Program, &'static str);

/// What a recording needs. Returns first: a call that is seen to begin is then seen to end.
pub(super) const RECORDING: &[Named] = &[
    (Program::Leave, "leave"),
    (Program::LeaveLaunch, "leave"),
    (Program::Enter, "enter"),
    (Program::Libraries, "libraries"),
    (Program::CodeFreed, "code_freed"),
    (Program::Correlated, "correlated"),
    (Program::Ranged, "ranged"),
];

/// The same, and what their cost is compared with.
pub(super) const WITH_EMPTY: &[Named] =
    &[RECORDING[0], RECORDING[1], RECORDING[2], RECORDING[3], (Program::Empty, "empty")];

/// The probes that are set.
pub(super) struct Links {
    programs: &'static [Named],
    multi: Option<Multi>,
    /// Links of many probes each.
    files: Vec<(Group, Program, OwnedFd)>,
    /// Links of one probe each, where the kernel has no others.
    single: Vec<(Group, Named, UProbeLinkId)>,
    last: u64,
}

/// Probes that were set together, and are taken away together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group(u64);

/// What came of setting probes.
#[derive(Debug)]
pub struct Attached {
    /// Those that are set.
    pub group: Group,
    /// Those that the kernel refused.
    pub refused: Vec<String>,
}

impl Links {
    /// Loads these programs; `maps` are all maps, by name.
    pub(super) fn load(
        ebpf: &mut Ebpf,
        maps: &HashMap<String, RawFd>,
        programs: &'static [Named],
    ) -> Result<Links, KernelError> {
        let multi = Multi::load(maps, programs);
        if multi.is_none() {
            let names: BTreeSet<&'static str> = programs.iter().map(|(_, name)| *name).collect();
            for name in names {
                uprobe(ebpf, name)?.load()?;
            }
        }
        Ok(Links { programs, multi, files: Vec::new(), single: Vec::new(), last: 0 })
    }

    /// Sets probes. One that the kernel refuses does not keep the others from being set.
    pub(super) fn attach(
        &mut self,
        ebpf: &mut Ebpf,
        links: &[Link<'_>],
        library: &Path,
    ) -> Result<Attached, KernelError> {
        let mut refused = Vec::new();
        self.last += 1;
        let group = Group(self.last);
        for &(which, name) in self.programs {
            let links: Vec<Link<'_>> = links.iter().filter(|link| link.program == which).copied().collect();
            if links.is_empty() {
                continue;
            }
            if let Some(multi) = &self.multi {
                if let Ok(file) = multi.attach(which, &links, library) {
                    self.files.push((group, which, file));
                    continue;
                }
                for link in links {
                    match multi.attach(which, &[link], library) {
                        Ok(file) => self.files.push((group, which, file)),
                        Err(error) => refused.push(format!("{}: {error}", link.symbol)),
                    }
                }
                continue;
            }
            let program = uprobe(ebpf, name)?;
            for link in links {
                let location = UProbeAttachLocation::AbsoluteOffset(link.file_offset);
                let point = UProbeAttachPoint { location, cookie: Some(link.cookie) };
                match program.attach(point, library, UProbeScope::AllProcesses) {
                    Ok(id) => self.single.push((group, (which, name), id)),
                    Err(error) => refused.push(format!("{}: {error}", link.symbol)),
                }
            }
        }
        Ok(Attached { group, refused })
    }

    /// Takes away what was set together.
    pub(super) fn detach_group(&mut self, group: Group, ebpf: &mut Ebpf) -> Result<(), KernelError> {
        close_all(self.take_if(ebpf, |of, _| of == group)?);
        Ok(())
    }

    /// Has taken away soon what was set together, at code that nobody calls any more.
    pub(super) fn detach_group_soon(&mut self, group: Group, ebpf: &mut Ebpf) -> Result<(), KernelError> {
        close_soon(self.take_if(ebpf, |of, _| of == group)?);
        Ok(())
    }

    /// Takes away all probes with this program.
    pub(super) fn detach_program(&mut self, program: Program, ebpf: &mut Ebpf) -> Result<(), KernelError> {
        close_all(self.take_if(ebpf, |_, which| which == program)?);
        Ok(())
    }

    /// Takes all away.
    pub(super) fn detach(&mut self, ebpf: &mut Ebpf) -> Result<(), KernelError> {
        close_all(self.take_if(ebpf, |_, _| true)?);
        Ok(())
    }

    fn take_if(
        &mut self,
        ebpf: &mut Ebpf,
        goes: impl Fn(Group, Program) -> bool,
    ) -> Result<Vec<Box<dyn Send>>, KernelError> {
        let files = self.files.extract_if(.., |(group, which, _)| goes(*group, *which));
        let mut taken: Vec<Box<dyn Send>> = files.map(|(_, _, file)| Box::new(file) as _).collect();
        for (_, (_, name), link) in self.single.extract_if(.., |(group, (which, _), _)| goes(*group, *which)) {
            taken.push(Box::new(uprobe(ebpf, name)?.take_link(link)?));
        }
        Ok(taken)
    }
}

/// The file of a map.
pub(super) fn map_fd(map: &Map) -> Option<RawFd> {
    let data = match map {
        Map::Array(data) | Map::HashMap(data) | Map::LruHashMap(data) | Map::PerCpuArray(data) | Map::RingBuf(data) => {
            data
        }
        _ => return None,
    };
    Some(data.fd().as_fd().as_raw_fd())
}

fn uprobe<'a>(ebpf: &'a mut Ebpf, name: &'static str) -> Result<&'a mut UProbe, KernelError> {
    Ok(ebpf.program_mut(name).ok_or(KernelError::Missing("uprobe program"))?.try_into()?)
}
