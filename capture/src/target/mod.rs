//! Processes and what is in them: what they are ([`process`]), what is mapped where ([`maps`]), and the copies of the CUDA
//! libraries ([`libraries`]) that probes go into, whatever container they are in.
//!
//! All of it is read from `/proc`, by hand: the ready-made crates read the same files, but give paths up that are no UTF-8,
//! and of the rest of `/proc` nothing is wanted.

use std::io;

pub mod libraries;
pub mod loader;
pub mod maps;
pub mod modules;
pub mod process;
pub mod stubs;
pub mod symbols;

/// Why a process cannot be looked at.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It is not there, or ended meanwhile.
    #[error("there is no process {0}")]
    NoSuchProcess(u32),
    /// It belongs to somebody else.
    #[error("no permission to look into process {0}; run as root, or give capture CAP_SYS_PTRACE")]
    NoPermission(u32),
    /// What `/proc` says of it is not what Linux writes.
    #[error("process {pid}: cannot make sense of /proc/{pid}/{file}")]
    Strange {
        /// The process.
        pid: u32,
        /// The file that is strange.
        file: &'static str,
    },
    /// The number is that of a thread.
    #[error("{tid} is a thread of process {process}; give that")]
    Thread {
        /// The number.
        tid: u32,
        /// Whose thread it is.
        process: u32,
    },
    /// It has no memory of its own that could have a library in it.
    #[error("process {0} is one of the kernel's own, which calls no CUDA")]
    Kernel(u32),
    /// Processes have other numbers here than the kernel has for them.
    #[error(
        "capture runs in a pid namespace of its own; run it on the host, or in a container with the host's (--pid=host)"
    )]
    Namespace,
    /// Reading failed otherwise.
    #[error("process {pid}: /proc/{pid}/{file}: {error}")]
    Io {
        /// The process.
        pid: u32,
        /// The file that was read.
        file: String,
        /// What the system said.
        error: io::Error,
    },
}

impl Error {
    /// What a failure to read a file of `/proc/PID` means.
    pub(crate) fn of(pid: u32, file: &str, error: io::Error) -> Error {
        match error.raw_os_error() {
            Some(libc::ENOENT | libc::ESRCH) => Error::NoSuchProcess(pid),
            Some(libc::EACCES | libc::EPERM) => Error::NoPermission(pid),
            _ => Error::Io { pid, file: file.to_owned(), error },
        }
    }
}

/// Reads a file of `/proc/PID`.
fn read(pid: u32, file: &str) -> Result<Vec<u8>, Error> {
    std::fs::read(format!("/proc/{pid}/{file}")).map_err(|error| Error::of(pid, file, error))
}
