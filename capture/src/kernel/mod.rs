//! The kernel's side: the eBPF programs loaded, their maps, their probes.

pub mod btf;
pub mod links;
pub mod mappings;
mod multi;
pub mod node;
mod off_cpu;
pub mod programs;
pub mod sampler;
pub mod traps;
