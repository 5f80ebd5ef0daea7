//! `capture run`: records a command from its first instruction on.

use std::ffi::OsString;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Command, ExitStatus};

use anyhow::{Context as _, Result};
use rustix::process::{Resource, Rlimit};

use super::Outcome;
use super::recording::{self, Recording};
use crate::privileges;
use crate::record::session::{Options, Session};
use crate::target::loader;

/// What `capture run` is asked.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    recording: Recording,
    /// The command, with its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

const EXAMPLES: &str = "\
Examples:
  capture run -- python serve.py                  onto capture-python-<pid>.ktape
  capture run -o serve.ktape -- python serve.py   onto this tape
  capture run --native -- python serve.py         stacks go on below Python, through C and C++
  capture run --cpu-hz 99 -- python serve.py      and where the host's time goes between calls
  analyze info serve.ktape                        what is on it

The exit code is the command's; where that is 0 and calls were lost, 3; and 4 where nothing was seen,
although a process had the driver mapped and ran.";

pub(super) fn run(args: &Args) -> Result<Outcome> {
    let program = &args.command[0];
    // Before anything is begun: a tape of that name must not go for a command that there is not.
    let file = loader::find_program(Path::new(program), std::env::var_os("PATH"))
        .with_context(|| format!("cannot run {}: no such program", program.to_string_lossy()))?;
    privileges::demand()?;
    let output = args.recording.output(&program.to_string_lossy(), std::process::id());
    let stop = recording::stop_on_signals()?;
    let segments = args.recording.segments(&output);
    let is_segmented = segments.is_some();
    let mut session = Session::begin(Options {
        output,
        segments,
        follow: true,
        launch_durations: args.recording.launch_durations,
        native: args.recording.native,
        buffer_bytes: args.recording.buffer << 20,
        cpu_hz: args.recording.cpu_hz,
        max_overhead: args.recording.max_overhead,
        off_cpu: args.recording.off_cpu,
        node: None,
    })?;
    if is_segmented {
        recording::rotate_on_hangup(&session)?;
    }
    // What is not among these is found when it is mapped; its first calls may then be missing.
    for library in loader::candidates(&file, |name| std::env::var_os(name)) {
        session.add_candidate(&library);
    }
    // Each recorded process takes a descriptor; the command keeps the limit that it would have had.
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let _ = rustix::process::setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    session.before_spawn()?;
    let mut command = Command::new(program);
    command.args(&args.command[1..]);
    // SAFETY: a system call, which is all that is allowed between fork and exec.
    unsafe { command.pre_exec(move || Ok(rustix::process::setrlimit(Resource::Nofile, limit)?)) };
    let child = command.spawn();
    session.spawned();
    let mut child = child.with_context(|| format!("cannot run {}", program.to_string_lossy()))?;
    session.expect(child.id())?;
    let ran = session.run(&stop, recording::show_progress(args.recording.quiet));
    let summary = recording::end(session, ran)?;
    recording::report(&summary, &args.recording)?;
    // Where the recording was stopped, the command goes on as if it had not been there.
    let status = child.try_wait()?;
    Ok(match status.map(exit_code) {
        Some(code) if code != 0 => Outcome::Command(code),
        _ => recording::outcome(&summary)?,
    })
}

/// A command's exit code as a shell has it.
fn exit_code(status: ExitStatus) -> u8 {
    status.code().or_else(|| Some(128 + status.signal()?)).unwrap_or(1) as u8
}
