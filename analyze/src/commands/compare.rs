//! `analyze compare`.

use anyhow::Result;

use super::Outcome;

/// The options of `analyze compare`.
#[derive(clap::Args, Debug)]
pub struct Args {}

/// Runs `analyze compare`.
pub fn run(_args: &Args) -> Result<Outcome> {
    anyhow::bail!("not built yet")
}
