//! `analyze flamegraph`.

use anyhow::Result;

use super::Outcome;

/// The options of `analyze flamegraph`.
#[derive(clap::Args, Debug)]
pub struct Args {}

/// Runs `analyze flamegraph`.
pub fn run(_args: &Args) -> Result<Outcome> {
    anyhow::bail!("not built yet")
}
