//! What recording costs: the process that is recorded, and the recorder.
//!
//! `cargo bench -p ktape-capture --bench cost -- [--json] [--seconds N] [--only NAME]`
//!
//! The first part sets one probe after the other into the same function of the same process and has it launch (`probes.rs`).
//! A machine is never the same twice, so all probes have their turn in each of several rounds, and a probe's cost, which is
//! its time less that without a probe, is told as a multiple of what an empty program costs in the same round. The second part
//! records whole processes and looks at the recorder itself (`recorder.rs`), the third gives the recorder records and looks at
//! nothing else of it (`drain.rs`), the fourth serves the same requests alone, recorded and traced by others (`throughput.rs`).
//!
//! Needs root, the stand-in driver and the workloads: `make capture-bench` builds them.

mod counters;
mod drain;
mod figures;
mod probes;
mod recorder;
mod target;
mod throughput;

use std::time::Duration;

use anyhow::Result;
use clap::Parser as _;

use figures::Report;

/// How long the probes of one target are measured.
const PROBES: Duration = Duration::from_secs(10);
/// For how long rounds of serving the same requests are begun.
const THROUGHPUT: Duration = Duration::from_secs(120);
/// How long the way of a record is measured.
const DRAIN: Duration = Duration::from_secs(5);
/// How long one process is recorded.
const RECORDING: Duration = Duration::from_secs(60);

#[derive(clap::Parser)]
#[command(about = "Measures what recording costs")]
struct Args {
    /// Print the figures for a program instead of a person
    #[arg(long)]
    json: bool,
    /// How long each part takes [default: 10 for probes, 60 for a recording, 120 for throughput]
    #[arg(long, value_name = "N")]
    seconds: Option<u64>,
    /// Only the parts with this in their name: "C loop", "Python 3.11", "new stack", "recorder", "drain", "throughput" …
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// Cargo says this to every bench
    #[arg(long, hide = true)]
    bench: bool,
}

#[expect(clippy::print_stdout, reason = "this is what it is for")]
fn main() -> Result<()> {
    let args = Args::parse();
    let wanted = |name: &str| args.only.as_deref().is_none_or(|only| name.contains(only));
    let or = |default: Duration| args.seconds.map_or(default, Duration::from_secs);
    let mut report = Report::default();
    for part in probes::parts().into_iter().filter(|part| wanted(&part.name)) {
        let part = part.measure(or(PROBES))?;
        if !args.json {
            print!("{part}");
        }
        report.probes.push(part);
    }
    for part in recorder::parts().into_iter().filter(|part| wanted(&part.name)) {
        let part = part.measure(or(RECORDING))?;
        if !args.json {
            print!("{part}");
        }
        report.recordings.push(part);
    }
    if wanted("drain") {
        let drain = drain::measure(or(DRAIN))?;
        if !args.json {
            print!("{drain}");
        }
        report.drain = Some(drain);
    }
    for part in throughput::parts().into_iter().filter(|part| wanted(&part.name)) {
        let part = part.measure(or(THROUGHPUT))?;
        if !args.json {
            print!("{part}");
        }
        report.throughputs.push(part);
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    }
    Ok(())
}
