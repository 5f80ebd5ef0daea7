//! `capture probes`: where in a library the probes would be.

use std::path::PathBuf;

use anyhow::Result;

use super::Outcome;

/// What `capture probes` is asked.
#[derive(clap::Args)]
pub(super) struct Args {
    /// The library: a copy of libcuda or libcudart
    #[arg(long)]
    library: PathBuf,
    /// For a program instead of a person
    #[arg(long)]
    json: bool,
}

pub(super) fn run(_args: &Args) -> Result<Outcome> {
    Ok(Outcome::Done)
}
