//! `capture attach`: records processes that run already.

use anyhow::Result;

use super::Outcome;
use super::recording::{self, Recording};
use crate::privileges;
use crate::target::libraries;
use crate::target::process::{self, Process};

/// What `capture attach` is asked.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    recording: Recording,
    /// The process; may be given several times
    #[arg(long = "pid", required = true)]
    pids: Vec<u32>,
}

const EXAMPLES: &str = "\
Examples:
  capture attach --pid 4711                       until it ends, or Ctrl-C
  capture attach --pid 4711 --pid 4712 -o a.ktape

The processes are not stopped and not changed; when the recording ends they go on.
Exit codes: 0 done, 1 something failed, 2 the command line is wrong, 3 done, but calls were lost,
4 nothing was seen, although a process had the driver mapped and ran.";

pub(super) fn run(args: &Args) -> Result<Outcome> {
    privileges::demand()?;
    let name = Process::of(args.pids[0])?.name;
    // Nothing is begun if one of them can't be recorded.
    for &pid in &args.pids {
        process::must_run(pid)?;
        libraries::mapped(pid)?;
    }
    let output = args.recording.output(&name, args.pids[0]);
    let stop = recording::stop_on_signals()?;
    let options = args.recording.options(output.clone(), false)?;
    let is_segmented = options.segments.is_some();
    let mut session = super::begin::session(options)?;
    recording::on_hangup(session.rotation(), is_segmented, &stop)?;
    for &pid in &args.pids {
        session.add_process(pid)?;
    }
    recording::announce(&args.recording, &name, &output);
    let ran = session.run(&stop, recording::show_progress(args.recording.quiet));
    let summary = recording::end(session, ran)?;
    recording::report(&summary, &args.recording)?;
    recording::outcome(&summary)
}
