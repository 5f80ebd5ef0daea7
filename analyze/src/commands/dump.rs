//! `analyze dump`.

use anyhow::Result;

use super::Outcome;

/// The options of `analyze dump`.
#[derive(clap::Args, Debug)]
pub struct Args {}

/// Runs `analyze dump`.
pub fn run(_args: &Args) -> Result<Outcome> {
    anyhow::bail!("not built yet")
}
