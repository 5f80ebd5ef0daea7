//! Speedscope profiles.
