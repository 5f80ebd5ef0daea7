//! Flamegraphs.
