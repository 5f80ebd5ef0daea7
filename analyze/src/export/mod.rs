//! What leaves: Perfetto traces, flamegraphs, speedscope profiles. Each reads a timeline and writes one format.

pub mod flamegraph;
pub mod perfetto;
pub mod speedscope;
