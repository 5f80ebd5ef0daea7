//! What leaves: Perfetto traces, flamegraphs, speedscope profiles, JSON lines. Each reads a timeline and writes one
//! format.

pub mod flamegraph;
pub mod json_lines;
mod json_names;
pub mod perfetto;
pub mod speedscope;
