//! `analyze`: what is on a tape, as answers and pictures.
//!
//! An [`import`]er turns another tool's file into the events of `ktape-format`; the [`timeline`] holds them in
//! columns, where [`symbols`] names native frames; [`export`]ers and [`sampling`] read the timeline and never a source file. [`verify`] and [`layout`] look at a
//! tape as a file. Each of the [`commands`] parses its arguments, calls one of these and prints what it returns.

pub mod commands;
pub mod export;
pub mod human;
pub mod import;
pub mod layout;
pub mod sampling;
pub mod symbols;
pub mod tables;
pub mod timeline;
pub mod verify;
