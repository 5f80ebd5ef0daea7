//! One subcommand, one file. This one holds what they share: the list and the exit code.

use std::io::{self, Write as _};
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

mod attach;
mod begin;
mod collector;
mod doctor;
mod node;
mod print;
mod probes;
mod quantities;
mod recording;
mod run;
mod segments;

/// Records every CUDA call of running processes, with the Python stack that made it, without changing or restarting them.
#[derive(Parser)]
#[command(name = "capture", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Records a command from its first instruction on
    Run(run::Args),
    /// Records processes that run already
    Attach(attach::Args),
    /// Records every process of this machine that calls CUDA, in every container, as they come and go
    Node(Box<node::Args>),
    /// Says what of the recorder works on this machine, and what to do about the rest
    Doctor(doctor::Args),
    /// Shows where in a library the probes would be, and what each costs
    Probes(probes::Args),
}

/// How a command ended well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All of it.
    Done,
    /// Done, but events were lost; the report says how many.
    Losses,
    /// Nothing was seen, although a process kept the driver busy.
    Blind,
    /// The recorded command failed with this code.
    Command(u8),
    /// It is known now that it cannot be done, which was the question.
    Unable,
}

/// The command line, or the configuration that it names, is wrong in a way that its parser cannot see: options that exclude each other,
/// say.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct WrongOptions(String);

/// Parses the command line, runs the command, prints its error if it fails, and decides the exit code: the only
/// place that does.
pub fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::Losses) => ExitCode::from(3),
        Ok(Outcome::Blind) => ExitCode::from(4),
        Ok(Outcome::Command(code)) => ExitCode::from(code),
        Ok(Outcome::Unable) => ExitCode::FAILURE,
        // The reader of our output went away (`capture probes … | head`), which is no fault.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            // A closed stderr leaves nobody to tell.
            let _ = writeln!(io::stderr(), "error: {error:#}");
            if error.is::<WrongOptions>() { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

fn run(command: Command) -> Result<Outcome> {
    match command {
        Command::Run(args) => run::run(&args),
        Command::Attach(args) => attach::run(&args),
        Command::Node(args) => node::run(*args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Probes(args) => probes::run(&args),
    }
}
