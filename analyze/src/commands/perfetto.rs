//! `analyze perfetto`.

use anyhow::Result;

use super::Outcome;

/// The options of `analyze perfetto`.
#[derive(clap::Args, Debug)]
pub struct Args {}

/// Runs `analyze perfetto`.
pub fn run(_args: &Args) -> Result<Outcome> {
    anyhow::bail!("not built yet")
}
