//! The collector inside of the process: what a library in it tells through rings in mapped files.
//!
//! `rings.rs` finds the rings and hands out their records in the order in which things happened. Calls are the same records as those
//! of the eBPF programs, and [`Collector`](super::events::Collector) takes them; what the device did meets its call in `device.rs`.

pub mod cost;
pub mod device;
pub mod mapping;
mod order;
pub mod pages;
pub mod ranges;
pub mod rings;
