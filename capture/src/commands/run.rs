//! `capture run`: records a command from its first instruction on.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context as _, Result};
use rustix::process::{Resource, Rlimit};

use super::collector::{Chosen, Collection};
use super::recording::{self, Recording};
use super::{Outcome, WrongOptions};
use crate::collect::events::LaunchScope;
use crate::record::alone::Alone;
use crate::record::inside;
use crate::record::session::{Options, Progress};
use crate::record::summary::Summary;
use crate::target::loader;

/// What `capture run` is asked.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    recording: Recording,
    #[command(flatten)]
    collection: Collection,
    /// Record the command's own process alone: what it starts is left out, and has the environment that it would have had
    #[arg(long)]
    no_children: bool,
    /// Only launches of kernels whose mangled name has this in it
    #[arg(long, value_name = "REGEX")]
    kernel: Option<String>,
    /// Only launches with a Python file in their stack that this says; * stands for any characters, ? for one
    #[arg(long, value_name = "GLOB")]
    python_path: Vec<String>,
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
  capture run --device-time cupti -- python serve.py
                                                  and when the GPU did what
  capture run --device-time events --kernel gemm -- python serve.py
                                                  and when it ran these kernels, without CUPTI
  analyze info serve.ktape                        what is on it

The exit code is the command's; where that is 0 and calls were lost, 3; and 4 where nothing was seen,
although a process had the driver mapped and ran.";

pub(super) fn run(args: &Args) -> Result<Outcome> {
    let program = &args.command[0];
    // Before anything is begun: a tape of that name must not go for a command that there is not.
    let file = loader::find_program(Path::new(program), std::env::var_os("PATH")).with_context(|| {
        format!("cannot run {}: no such program, or none that may be run", program.to_string_lossy())
    })?;
    let output = args.recording.output(&program.to_string_lossy(), std::process::id());
    let launches = LaunchScope::new(&args.python_path, args.kernel.as_deref());
    let launches = launches.map_err(|error| WrongOptions(format!("--kernel: {error}")))?;
    let mut options = args.recording.options(output, !args.no_children)?;
    let stop = recording::stop_on_signals()?;
    let (chosen, why) = args.collection.choose(&args.recording, &file, !args.no_children, args.kernel.is_some())?;
    if !args.recording.quiet {
        // A closed stderr leaves nobody to tell.
        let _ = writeln!(io::stderr(), "collector: {why}");
    }
    let mut command = Command::new(program);
    command.args(&args.command[1..]);
    options.launches = launches;
    let progress = recording::show_progress(args.recording.quiet);
    let (summary, mut child) = match chosen {
        Chosen::Outside(inside) => {
            options.inside = inside;
            from_outside(options, &file, command, &stop, progress)?
        }
        Chosen::Inside(inside, library) => from_inside(options, &file, (&inside, &library), command, &stop, progress)?,
    };
    recording::report(&summary, &args.recording)?;
    // Where the recording was stopped, the command goes on as if it had not been there.
    let status = child.try_wait()?;
    Ok(match status.map(exit_code) {
        Some(code) if code != 0 => Outcome::Command(code),
        _ => recording::outcome(&summary)?,
    })
}

/// Records a command by probes.
fn from_outside(
    options: Options,
    file: &Path,
    mut command: Command,
    stop: &Arc<AtomicBool>,
    progress: impl FnMut(Progress),
) -> Result<(Summary, Child)> {
    let is_segmented = options.segments.is_some();
    let mut session = super::begin::session(options)?;
    recording::on_hangup(session.rotation(), is_segmented, stop)?;
    // What is not among these is found when it is mapped; its first calls may then be missing.
    for library in loader::candidates(file, |name| std::env::var_os(name)) {
        session.add_candidate(&library);
    }
    // Likewise, and its first calls would have no stack.
    for python in loader::pythons(file, |name| std::env::var_os(name)) {
        session.add_python(&python);
    }
    command.envs(session.variables());
    keep_limits(&mut command);
    session.before_spawn()?;
    let child = spawn(command);
    session.spawned();
    let child = child?;
    session.expect(child.id())?;
    let ran = session.run(stop, progress);
    Ok((recording::end(session, ran)?, child))
}

/// Records a command by what a library in it tells.
fn from_inside(
    options: Options,
    file: &Path,
    (inside, library): (&inside::Options, &Path),
    mut command: Command,
    stop: &Arc<AtomicBool>,
    progress: impl FnMut(Progress),
) -> Result<(Summary, Child)> {
    let is_segmented = options.segments.is_some();
    let mut session = Alone::begin(options, inside, library)?;
    recording::on_hangup(session.rotation(), is_segmented, stop)?;
    session.prepare(&mut command, &loader::pythons(file, |name| std::env::var_os(name)));
    keep_limits(&mut command);
    let mut child = spawn(command)?;
    // Whatever ended it, what there is is closed.
    let ran = session.run(&mut child, stop, progress);
    let summary = session.end(&child);
    Ok((ran.and(summary)?, child))
}

fn spawn(mut command: Command) -> Result<Child> {
    let program = command.get_program().to_owned();
    command.spawn().with_context(|| format!("cannot run {}", program.to_string_lossy()))
}

/// Each recorded process takes a descriptor; the command keeps the limit that it would have had.
fn keep_limits(command: &mut Command) {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let _ = rustix::process::setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    // SAFETY: a system call, which is all that is allowed between fork and exec.
    unsafe { command.pre_exec(move || Ok(rustix::process::setrlimit(Resource::Nofile, limit)?)) };
}

/// A command's exit code as a shell has it.
fn exit_code(status: ExitStatus) -> u8 {
    status.code().or_else(|| Some(128 + status.signal()?)).unwrap_or(1) as u8
}
