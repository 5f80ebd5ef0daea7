//! What the eBPF programs and user space share: the records of the ring buffer and the contents of the maps ([`wire`]), the walk over
//! Python stacks ([`python`]), and which processes of a node are recorded ([`scope`]). And what the library inside a process shares with the
//! recorder (`inside`).
//! No `std`, no allocation: it is compiled for both sides.

#![no_std]

// The eBPF target has no such atomics, and no use for it.
#[cfg(not(target_arch = "bpf"))]
pub mod inside;
pub mod python;
pub mod scope;
pub mod wire;
