//! The memory of a live process, for the walker.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use ktape_ebpf::python::Memory;

/// `/proc/PID/mem`. It stays with the program that ran when it was opened: after an `exec` nothing can be read any more.
#[derive(Debug)]
pub struct ProcessMemory(File);

impl ProcessMemory {
    /// Opens it. Needs what `ptrace` needs: the same user, or `CAP_SYS_PTRACE`.
    pub fn open(pid: u32) -> io::Result<Self> {
        File::open(format!("/proc/{pid}/mem")).map(Self)
    }
}

impl Memory for ProcessMemory {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        self.0.read_exact_at(into, address).is_ok()
    }
}
