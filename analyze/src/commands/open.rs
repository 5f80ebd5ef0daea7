//! `analyze open`.

use anyhow::Result;

use super::Outcome;

/// The options of `analyze open`.
#[derive(clap::Args, Debug)]
pub struct Args {}

/// Runs `analyze open`.
pub fn run(_args: &Args) -> Result<Outcome> {
    anyhow::bail!("not built yet")
}
