//! The host stubs of a running process: where the files that have them are mapped, and what their variables hold.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ktape_ebpf::python::Memory;
use rustc_hash::{FxHashMap, FxHashSet};

use super::{Place, Stubs, find};
use crate::python::memory::ProcessMemory;
use crate::target::libraries::{FileId, load_address, open_mapping};
use crate::target::{Error, maps};

/// The host stubs of files that were looked at, which many processes may have mapped.
pub type Known = FxHashMap<FileId, Arc<Stubs>>;

/// A process of a few hundred libraries takes a second; one that is made to take long is not looked at further.
const MOST_TIME: Duration = Duration::from_secs(10);

/// What a process's files tell of its kernels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Host stubs and the names of their kernels.
    pub named: Vec<(u64, Arc<str>)>,
    /// Variables for handles of kernels, and the stub of each.
    pub handles: Vec<(u64, u64)>,
    /// Mapped files for which there was no time.
    pub left_out: u64,
}

/// Looks through all files that a process has mapped to execute. One that cannot be understood has none.
///
/// # Errors
///
/// If the process cannot be looked at.
pub fn of(pid: u32, known: &mut Known) -> Result<Found, Error> {
    let mappings = maps::of(pid)?;
    let memory = ProcessMemory::open(pid).map_err(|error| Error::of(pid, "mem", error))?;
    let mut found = Found::default();
    let began = Instant::now();
    let mut loaded = FxHashSet::default();
    for mapping in mappings.iter().filter(|mapping| mapping.is_file() && mapping.executable) {
        let bias = load_address(&mappings, mapping);
        if !loaded.insert(((mapping.device, mapping.inode), bias)) {
            continue;
        }
        if began.elapsed() > MOST_TIME {
            found.left_out += 1;
            continue;
        }
        let Ok(file) = open_mapping(pid, mapping) else { continue };
        // A device is mapped, but not to be read.
        if !file.metadata().is_ok_and(|facts| facts.is_file()) {
            continue;
        }
        let Ok(id) = FileId::of(&file) else { continue };
        let stubs = known.entry(id).or_insert_with(|| find(&file).map(Arc::new).unwrap_or_default()).clone();
        found.add(&stubs, bias, &memory);
    }
    Ok(found)
}

impl Found {
    fn add(&mut self, stubs: &Stubs, bias: u64, memory: &impl Memory) {
        let resolve = |place| match place {
            Place::At(address) => Some(bias.wrapping_add(address)),
            // Until the loader has been there, or in a process that writes over it, it may hold anything.
            Place::Slot(address) => memory.word(bias.wrapping_add(address)).filter(|&stub| stub != 0),
        };
        let named = stubs.named.iter().filter_map(|(stub, name)| Some((resolve(*stub)?, name.clone())));
        self.named.extend(named);
        let handles = stubs.handles.iter().filter_map(|&(at, stub)| Some((bias.wrapping_add(at), resolve(stub)?)));
        self.handles.extend(handles);
    }
}
