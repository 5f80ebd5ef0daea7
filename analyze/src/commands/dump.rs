//! `analyze dump`.

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use ktape_format::{Follower, Table as _, Wanted};

use super::load::{load, open_tape};
use super::{Outcome, note_losses};
use crate::export::json_lines;
use crate::symbols::Symbols;
use crate::timeline::{Selection, Timeline};

const EXAMPLES: &str = "\
Examples:
  analyze dump run.ktape | head -3
  analyze dump run.ktape --kind kernel --from 1s --to 1.5s | jq .shape.kernel.name
  analyze dump run.ktape --kind launch | jq -c 'select(.result != 0) | .stack'
  analyze dump --follow live.ktape --kind kernel      # as they are recorded

Times are nanoseconds on the tape's clock, sizes are bytes. null is \"none\" or \"not known\".";

/// The options of `analyze dump`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A tape, a recording (a directory of segments), a PyTorch profiler trace, or a report that Nsight Systems exported to SQLite
    #[arg(value_name = "TRACE")]
    input: PathBuf,
    /// Go on with what a growing tape gets, until it is closed; each time what came, in order
    #[arg(long, short, conflicts_with_all = ["from", "to", "folders"])]
    follow: bool,
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    symbols: Symbols,
}

/// Runs `analyze dump`.
pub fn run(args: &Args) -> Result<Outcome> {
    if args.follow {
        return follow(&args.input, &args.selection);
    }
    let loaded = load(&args.input, &args.selection, &args.symbols)?;
    // Not among the events, whose reader is a program. A closed stderr leaves nobody to tell.
    let _ = note_losses(&mut io::stderr(), &loaded);
    let mut out = BufWriter::with_capacity(1 << 18, io::stdout().lock());
    json_lines::write(&loaded.timeline, &mut out)?;
    out.flush()?;
    Ok(loaded.outcome())
}

/// Prints what a tape has and gets, until its writer closes it.
fn follow(path: &Path, selection: &Selection) -> Result<Outcome> {
    /// Short for who watches, long for who works.
    const BETWEEN_LOOKS: Duration = Duration::from_millis(200);
    let name = || path.display().to_string();
    let processes = match selection.pid.is_empty() {
        true => Vec::new(),
        false => selection.processes(&open_tape(path)?.definitions().with_context(name)?)?,
    };
    open_tape(path)?;
    let wanted = Wanted { processes, ..selection.wanted(0)? };
    let mut follower = Follower::open(path, wanted).with_context(name)?;
    let mut out = BufWriter::with_capacity(1 << 18, io::stdout().lock());
    let mut outcome = Outcome::Done;
    loop {
        let contents = follower.look().with_context(name)?;
        for damage in &contents.damage {
            let _ = writeln!(io::stderr(), "{}: {damage}", path.display());
        }
        if !contents.damage.is_empty() || !contents.events.loss.is_empty() {
            outcome = Outcome::Losses;
        }
        if !contents.events.is_empty() {
            json_lines::write(&Timeline::new(contents.definitions, contents.events), &mut out)?;
            out.flush()?;
        }
        if follower.tape().is_closed() {
            return Ok(outcome);
        }
        std::thread::sleep(BETWEEN_LOOKS);
    }
}
