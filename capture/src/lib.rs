//! The recorder: every CUDA call of running processes, with the Python stack that made it, onto a tape.
//!
//! The way of one launch: the trampoline in libcuda hits a probe ([`probes`] chose where), the eBPF program of
//! `capture-ebpf` writes a record into the ring buffer, [`collect`] makes an event of it, and [`record`] puts that onto the
//! tape. [`target`] knows processes and their libraries, [`python`] their interpreters;
//! [`doctor`] says what of all that works on a machine.

pub mod collect;
pub mod commands;
pub mod doctor;
pub mod kernel;
pub mod privileges;
pub mod probes;
pub mod python;
pub mod record;
pub mod target;
