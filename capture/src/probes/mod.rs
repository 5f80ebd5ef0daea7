//! probes
pub mod functions;
