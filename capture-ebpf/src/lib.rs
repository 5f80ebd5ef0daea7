//! What the eBPF programs and user space share: the records of the ring buffer and the contents of the maps ([`wire`]).
//! No `std`, no allocation: it is compiled for both sides.

#![no_std]

pub mod python;
pub mod wire;
