//! `analyze` from its user's side, one module a command. One binary, so that it is linked once.

mod audit;
#[expect(dead_code, reason = "the tests of `format` forge staged records as well")]
#[path = "../../../format/tests/hostile/checksums.rs"]
mod checksums;
mod common;
mod compare;
mod cpu_samples;
mod dump;
mod everything;
mod flamegraph;
#[path = "../../../format/tests/hostile/forge.rs"]
mod forge;
mod graphs;
mod host_only;
mod hostile;
mod import;
mod info;
mod off_cpu;
mod on_tape;
mod open;
mod perfetto_writer;
mod promises;
mod recording;
mod second_reader;
mod verify;
