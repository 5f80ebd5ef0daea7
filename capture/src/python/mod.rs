//! The Python in a process: where its interpreter is, and what the frames that the walker of `ktape_ebpf::python` finds are
//! called. Reading is all that is ever done to the process.

pub mod code;
pub mod dealloc;
mod elf;
mod files;
pub mod find;
pub mod frames;
pub mod in_file;
pub mod memory;
mod offsets;
mod slot;
