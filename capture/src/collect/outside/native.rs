//! Native frames: from an address in a process to the file that is mapped there, and the place in it.

use std::path::Path;

use crate::target::maps::{self, Mapping};

/// What a process has mapped, as it was when last an address was not known.
pub(super) struct Natives {
    pid: u32,
    mappings: Vec<Mapping>,
}

/// Where an address is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// `libtorch.so+0x1f20`: the file and the place in it, as it is laid out in memory; the address where no file is mapped.
    pub(super) name: String,
    /// The file's path; empty where there is none.
    pub(super) file: String,
}

impl Natives {
    pub(super) fn new(pid: u32) -> Natives {
        Natives { pid, mappings: Vec::new() }
    }

    /// Where an address is.
    pub(super) fn place(&mut self, address: u64) -> Place {
        match self.mapping(address).filter(|mapping| mapping.is_file()) {
            Some(mapping) => Place {
                name: format!(
                    "{}+{:#x}",
                    mapping.path.file_name().unwrap_or_default().to_string_lossy(),
                    address - mapping.start + mapping.file_offset
                ),
                file: mapping.path.to_string_lossy().into_owned(),
            },
            None => Place { name: format!("{address:#x}"), file: String::new() },
        }
    }

    /// Whether an address is in this file.
    pub(super) fn is_in(&mut self, address: u64, file: &Path) -> bool {
        self.mapping(address).is_some_and(|mapping| mapping.path == file)
    }

    fn mapping(&mut self, address: u64) -> Option<&Mapping> {
        if self.find(address).is_none() {
            // A library that was mapped since, or a process that is gone.
            self.mappings = maps::of(self.pid).unwrap_or_default();
        }
        self.find(address).map(|index| &self.mappings[index])
    }

    fn find(&self, address: u64) -> Option<usize> {
        let index = self.mappings.partition_point(|mapping| mapping.end <= address);
        self.mappings.get(index).is_some_and(|mapping| mapping.start <= address).then_some(index)
    }
}
