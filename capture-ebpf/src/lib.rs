//! What the eBPF programs and user space share. No `std`, no allocation: it is compiled for both.

#![no_std]

pub mod python;
