//! What the eBPF programs and user space share: the records of the ring buffer and the contents of the maps ([`wire`]), the walk over
//! Python stacks ([`python`]), and which processes of a node are recorded ([`scope`]).
//! No `std`, no allocation: it is compiled for both sides.

#![no_std]

pub mod python;
pub mod scope;
pub mod wire;
