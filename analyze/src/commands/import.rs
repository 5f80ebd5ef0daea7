//! `analyze import`.

use anyhow::Result;

use super::Outcome;

/// The options of `analyze import`.
#[derive(clap::Args, Debug)]
pub struct Args {}

/// Runs `analyze import`.
pub fn run(_args: &Args) -> Result<Outcome> {
    anyhow::bail!("not built yet")
}
