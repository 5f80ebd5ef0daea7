//! The kernel's side: the eBPF programs loaded, their maps, their probes.

pub mod btf;
pub mod links;
pub mod programs;
