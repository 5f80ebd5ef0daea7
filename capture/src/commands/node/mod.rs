//! `capture node`: records every process of the machine that calls CUDA, for as long as it runs.

use std::fs;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rustix::process::{Resource, Rlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use self::settings::Settings;
use super::{Outcome, WrongOptions, recording};
use crate::collect::events::LaunchScope;
use crate::privileges;
use crate::record::session::{Options, Progress, Session};

mod settings;

/// What `capture node` is asked.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// A file with any of these options, as TOML; what the command line says counts more. SIGHUP has it read again
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
    /// Print the summary for a program instead of a person
    #[arg(long)]
    json: bool,
    /// Print nothing but errors
    #[arg(short, long)]
    quiet: bool,
}

const EXAMPLES: &str = "\
Examples:
  capture node -o /var/lib/ktape                        everything, until SIGTERM
  capture node -o /var/lib/ktape --comm 'python*'       of these processes
  capture node -o /var/lib/ktape --cgroup kubepods.slice --functions launch,sync
  capture node --config /etc/ktape/capture.toml         as a service does (docs/ktape-capture.service)

Exit codes: 0 done, 1 something failed, 2 the command line is wrong, 3 done, but calls were lost.";

/// How often a service says how its recording stands.
const SAY: Duration = Duration::from_secs(600);

pub(super) fn run(args: Args) -> Result<Outcome> {
    let Args { config, settings: asked, json, quiet } = args;
    let mut settings = asked.clone().with_file(config.as_deref())?;
    let nowhere = || WrongOptions("where to? -o DIR, or output in the configuration".to_owned());
    let folder = settings.output.clone().ok_or_else(nowhere)?;
    privileges::demand()?;
    privileges::give_up_the_rest()?;
    // Only what leads to it: whose it is, and whether another recorder has it, is looked at when it is opened.
    if let Some(parent) = folder.parent() {
        fs::create_dir_all(parent).with_context(|| format!("cannot record into {}", folder.display()))?;
    }
    let signals = Signals::listen()?;
    // Each recorded process takes a descriptor.
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let _ = rustix::process::setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    let mut session = super::begin::session(Options {
        output: folder.clone(),
        segments: Some(settings.segments(&folder)),
        follow: false,
        launch_durations: settings.launch_durations,
        native: settings.native,
        buffer_bytes: settings.buffer.unwrap_or(recording::BUFFER_MIB) << 20,
        cpu_hz: settings.cpu_hz,
        gpu_hz: settings.gpu_counters,
        max_overhead: settings.max_overhead,
        off_cpu: settings.off_cpu,
        node: Some(settings.scope()),
        launches: LaunchScope::default(),
        inside: None,
    })?;
    session.add_node()?;
    say(quiet, &format!("recording the node into {}; Ctrl-C ends it", folder.display()));
    // A journal is read before a summary is.
    session.tell_troubles(move |trouble| say(quiet, trouble));
    let mut progress = show_progress(quiet);
    let ran = loop {
        if let Err(error) = session.run(&signals.pause, &mut progress) {
            break Err(error);
        }
        signals.pause.store(false, Ordering::Relaxed);
        if signals.stop.load(Ordering::Relaxed) {
            break Ok(());
        }
        if signals.hangup.swap(false, Ordering::Relaxed) {
            // Whoever moves files away wants what was written so far.
            if let Err(error) = session.rotate() {
                break Err(error);
            }
            match asked.clone().with_file(config.as_deref()).and_then(|new| renew(&mut session, &settings, new)) {
                Ok((new, said)) => {
                    settings = new;
                    say(quiet, &said);
                }
                // A mistake in the file must not end the recording.
                Err(error) => say(false, &format!("SIGHUP: nothing is changed: {error:#}")),
            }
        }
    };
    let summary = recording::end(session, ran)?;
    recording::report_as(&summary, json, quiet)?;
    recording::outcome(&summary)
}

/// Has new settings count, as far as they can without a new beginning. Returns those that count now, and what to say of it.
fn renew(session: &mut Session, old: &Settings, new: Settings) -> Result<(Settings, String)> {
    let (counting, stay) = new.after(old);
    session.set_scope(&counting.scope())?;
    let folder = counting.output.clone().unwrap_or_default();
    session.change_segments(counting.segments(&folder));
    let mut said = "SIGHUP: the configuration was read again".to_owned();
    if !stay.is_empty() {
        said += &format!("; {} stay as they were until the recorder is begun anew", stay.join(", "));
    }
    Ok((counting, said))
}

/// The flags that signals set.
struct Signals {
    /// The recording is to pause for whatever there is.
    pause: Arc<AtomicBool>,
    /// It is to end. The second such signal ends the program at once.
    stop: Arc<AtomicBool>,
    /// The configuration is to be read again.
    hangup: Arc<AtomicBool>,
}

impl Signals {
    fn listen() -> io::Result<Signals> {
        let new = || Arc::new(AtomicBool::new(false));
        let signals = Signals { pause: new(), stop: new(), hangup: new() };
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register_conditional_shutdown(signal, 1, signals.stop.clone())?;
            signal_hook::flag::register(signal, signals.stop.clone())?;
        }
        signal_hook::flag::register(SIGHUP, signals.hangup.clone())?;
        // Last: whoever sees the pause sees what it is for.
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, signals.pause.clone())?;
        }
        Ok(signals)
    }
}

fn say(quiet: bool, what: &str) {
    if !quiet {
        // A closed stderr leaves nobody to tell.
        let _ = writeln!(io::stderr(), "{what}");
    }
}

/// Says how a recording stands: in a line that is drawn anew on a terminal, else in one now and then.
fn show_progress(quiet: bool) -> impl FnMut(Progress) {
    let mut draw = recording::show_progress(quiet);
    let logs = !quiet && !io::stderr().is_terminal();
    let mut said = Instant::now();
    move |progress| {
        draw(progress);
        if logs && said.elapsed() >= SAY {
            said = Instant::now();
            let Progress { elapsed, events, lost, processes } = progress;
            let hours = elapsed.as_secs_f64() / 3600.0;
            say(false, &format!("{hours:.1} h: {processes} processes, {events} events, {lost} lost"));
        }
    }
}
