//! The collectors: what happened, as events of the tape. A collector knows events, not files.

pub mod events;
pub mod inside;
pub mod nvml;
