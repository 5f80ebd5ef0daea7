//! The library in a process: loaded by the driver as a program would have it, with the recorder's side of the files in the test.
//!
//! The program is `client.c`, the driver and CUPTI are the stand-ins (`fixtures/simcuda`). Without them, or without a C compiler, tests
//! say SKIPPED.

mod cost;
mod events;
mod exact;
mod headers;
mod parameters;
mod real;
mod recorder;
mod trust;

/// Says that a test is skipped, and why.
#[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
fn skip(why: &str) {
    eprintln!("SKIPPED: {why}");
}
