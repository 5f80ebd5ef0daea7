//! `analyze info`.

use anyhow::Result;

use super::Outcome;

/// The options of `analyze info`.
#[derive(clap::Args, Debug)]
pub struct Args {}

/// Runs `analyze info`.
pub fn run(_args: &Args) -> Result<Outcome> {
    anyhow::bail!("not built yet")
}
