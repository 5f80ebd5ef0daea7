//! `analyze dump`.

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use anyhow::Result;

use super::load::load;
use super::{Outcome, note_losses};
use crate::export::json_lines;
use crate::timeline::Selection;

const EXAMPLES: &str = "\
Examples:
  analyze dump run.ktape | head -3
  analyze dump run.ktape --kind kernel --from 1s --to 1.5s | jq .shape.kernel.name
  analyze dump run.ktape --kind launch | jq -c 'select(.result != 0) | .stack'

Times are nanoseconds on the tape's clock, sizes are bytes. null is \"none\" or \"not known\".";

/// The options of `analyze dump`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A tape, or a PyTorch profiler trace
    #[arg(value_name = "TRACE")]
    input: PathBuf,
    #[command(flatten)]
    selection: Selection,
}

/// Runs `analyze dump`.
pub fn run(args: &Args) -> Result<Outcome> {
    let loaded = load(&args.input, &args.selection)?;
    // Not among the events, whose reader is a program. A closed stderr leaves nobody to tell.
    let _ = note_losses(&mut io::stderr(), &loaded);
    let mut out = BufWriter::with_capacity(1 << 18, io::stdout().lock());
    json_lines::write(&loaded.timeline, &mut out)?;
    out.flush()?;
    Ok(loaded.outcome())
}
