//! `capture` from its user's side, one module a command. One binary, so that it is linked once.

mod common;
mod doctor;
mod entry_points;
mod libraries;
mod probes;
