//! Probes in libraries.

use std::path::Path;

use aya::Ebpf;
use aya::programs::UProbe;
use aya::programs::uprobe::{UProbeAttachLocation, UProbeAttachPoint, UProbeScope};

use super::programs::KernelError;

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
    /// The dynamic linker's word that libraries came or went.
    Libraries,
}

const PROGRAMS: [(Program, &str); 3] =
    [(Program::Enter, "enter"), (Program::Leave, "leave"), (Program::Libraries, "libraries")];

/// The probes that are set.
pub struct Links {}

impl Links {
    pub(super) fn load(ebpf: &mut Ebpf) -> Result<Links, KernelError> {
        for (_, name) in PROGRAMS {
            uprobe(ebpf, name)?.load()?;
        }
        Ok(Links {})
    }

    pub(super) fn attach(&mut self, ebpf: &mut Ebpf, links: &[Link<'_>], library: &Path) -> Result<(), KernelError> {
        for (which, name) in PROGRAMS {
            let program = uprobe(ebpf, name)?;
            for link in links.iter().filter(|link| link.program == which) {
                let point = UProbeAttachPoint {
                    location: UProbeAttachLocation::AbsoluteOffset(link.file_offset),
                    cookie: Some(link.cookie),
                };
                program.attach(point, library, UProbeScope::AllProcesses)?;
            }
        }
        Ok(())
    }

    pub(super) fn detach(&mut self) {}
}

fn uprobe<'a>(ebpf: &'a mut Ebpf, name: &'static str) -> Result<&'a mut UProbe, KernelError> {
    Ok(ebpf.program_mut(name).ok_or(KernelError::Missing("uprobe program"))?.try_into()?)
}
