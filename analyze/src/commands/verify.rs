//! `analyze verify`.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use ktape_format::{Tape, TapeWriter};
use serde::Serialize;

use super::counts::write_counts;
use super::load::open_tape;
use super::output::{self, Output};
use super::recording::{self, check};
use super::{Outcome, progress, write_json};
use crate::human::{HumanBytes, HumanCount, counted, text_table};
use crate::tables::KnownTables;
use crate::timeline::names::printable;
use crate::verify::completeness::{Account, Completeness};
use crate::verify::{self, Error, LeftOut, Repaired, Report, Verdict};

/// The options of `analyze verify`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The tape, or a recording: a directory of segments
    #[arg(value_name = "TAPE")]
    tape: PathBuf,
    /// Write what is sound as a new tape, which says what was left out
    #[arg(long, requires = "output")]
    repair: bool,
    /// Where to write the repaired tape
    #[arg(short, long, value_name = "OUT.ktape", requires = "repair")]
    output: Option<PathBuf>,
    /// Overwrite the output if it exists
    #[arg(long, requires = "output")]
    force: bool,
    /// Show what became of calls by processor, or by interval, too
    #[arg(long, value_name = "WHAT", conflicts_with = "json")]
    by: Option<By>,
    /// Print all findings as JSON
    #[arg(long)]
    json: bool,
}

/// What the calls of a kind are parted by.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum By {
    /// Where they ran.
    Cpu,
    /// When they began.
    Interval,
}

const EXAMPLES: &str = "\
Examples:
  analyze verify run.ktape                                is every byte as it was written?
  analyze verify run.ktape --json | jq '.findings[].what'
  analyze verify run.ktape --by interval                  seen, written and lost, every 8.6 s
  analyze verify run.ktape --repair -o whole.ktape        keep all that is sound
  analyze verify run.ktape && rm trace.json.gz            in a script

Exit codes: 0 sound, 1 damaged, or not all that was seen is there or told as lost, 2 the command line is wrong, 3 sound, but events were lost before they reached the tape.
With --repair they speak of the new tape: 0 or 3. A tape without an end mark (its writer was killed, or is at work) is
sound if all that was written is there.";

/// So many of each sort are printed.
const MOST_LINES: usize = 20;

/// What `--json` prints.
#[derive(Serialize)]
struct Answer<'a> {
    path: String,
    #[serde(flatten)]
    report: &'a Report,
    #[serde(skip_serializing_if = "Option::is_none")]
    repaired: Option<NewTape<'a>>,
}

/// The repaired tape.
#[derive(Serialize)]
struct NewTape<'a> {
    path: String,
    file_bytes: u64,
    blocks: u64,
    definitions: u64,
    events: u64,
    left_out: &'a [LeftOut],
}

/// Runs `analyze verify`.
pub fn run(args: &Args) -> Result<Outcome> {
    let name = || args.tape.display().to_string();
    if !args.repair && recording::is_recording(&args.tape) {
        return run_over_recording(args);
    }
    if let Some(output) = &args.output {
        output::ensure_free(output, &args.tape, args.force)?;
    }
    let tape = open_tape(&args.tape)?;
    let bar = progress::bar("checking");
    bar.set_length(tape.file_bytes());
    let on_the_way = |bytes| bar.set_position(bytes);
    let checked = match &args.output {
        None => verify::verify(&tape, on_the_way).map(|report| (report, None)).with_context(name),
        Some(output) => repair(&tape, args, output, on_the_way).map(|(report, repaired)| (report, Some(repaired))),
    };
    bar.finish_and_clear();
    let (report, repaired) = checked?;
    let made = repaired.as_ref().zip(args.output.as_deref());
    let mut out = io::BufWriter::new(io::stdout().lock());
    if args.json {
        let repaired = made.map(|(Repaired { written, left_out }, output)| NewTape {
            path: output.display().to_string(),
            file_bytes: written.file_bytes,
            blocks: written.blocks,
            definitions: written.definitions,
            events: written.events,
            left_out,
        });
        write_json(&mut out, &Answer { path: name(), report: &report, repaired })?;
    } else {
        print(&mut out, &name(), &report, args.by)?;
        if let Some((repaired, output)) = made {
            print_repaired(&mut out, repaired, output)?;
        }
    }
    out.flush()?;
    Ok(match &repaired {
        None => outcome(report.verdict),
        Some(repaired) if repaired.left_out.is_empty() && report.losses.is_empty() => Outcome::Done,
        Some(_) => Outcome::Losses,
    })
}

/// Checks all files of a recording.
fn run_over_recording(args: &Args) -> Result<Outcome> {
    let checked = check::verify(&args.tape)?;
    let mut out = io::BufWriter::new(io::stdout().lock());
    if args.json {
        write_json(&mut out, &checked)?;
    } else {
        for file in &checked.files {
            match &file.report {
                Some(report) => print(&mut out, &file.path, report, None)?,
                None => writeln!(
                    out,
                    "{}: damaged: {}",
                    file.path,
                    printable(file.unreadable.as_deref().unwrap_or_default())
                )?,
            }
        }
        check::print_agreement(&mut out, &checked.files)?;
        if let Some(completeness) = &checked.completeness {
            writeln!(out, "all files together:")?;
            print_completeness(&mut out, completeness, args.by)?;
        }
    }
    out.flush()?;
    Ok(outcome(check::verdict(&checked)))
}

fn outcome(verdict: Verdict) -> Outcome {
    match verdict {
        Verdict::Sound => Outcome::Done,
        Verdict::Losses => Outcome::Losses,
        Verdict::Damaged => Outcome::Damaged,
    }
}

fn repair(tape: &Tape, args: &Args, output: &Path, progress: impl FnMut(u64)) -> Result<(Report, Repaired)> {
    let file = Output::create(output, args.force)?;
    let name = || format!("cannot write {}", output.display());
    let options = verify::options(tape.header());
    let writer = TapeWriter::new(file.file().try_clone().with_context(name)?, &options).with_context(name)?;
    let done = verify::repair(tape, writer, progress).map_err(|error| match error {
        Error::Write(error) => anyhow::Error::new(error).context(name()),
        error => anyhow::Error::new(error).context(args.tape.display().to_string()),
    })?;
    file.commit()?;
    Ok(done)
}

fn print(out: &mut impl Write, name: &str, report: &Report, by: Option<By>) -> io::Result<()> {
    let verdict = match report.verdict {
        Verdict::Sound => "sound",
        Verdict::Losses => "sound, but events were lost before they reached it",
        Verdict::Damaged => "damaged",
    };
    writeln!(
        out,
        "{name}: {verdict}: {} in {}, {} and {} can be read",
        HumanBytes(report.file_bytes),
        counted(report.blocks as usize, "block"),
        counted(report.definitions as usize, "definition"),
        counted(report.events as usize, "event"),
    )?;
    if !report.closed {
        let rows = counted(report.staged_rows as usize, "row");
        writeln!(out, "not closed: its writer was killed or is at work; {rows} in its open tail")?;
    }
    let losses = report.losses.iter().map(|(cause, count)| (cause.as_str(), *count));
    write_counts(out, "", "lost before", losses)?;
    if let Some(completeness) = &report.completeness {
        print_completeness(out, completeness, by)?;
    }
    for same in report.findings.chunk_by(|a, b| a.kind == b.kind) {
        writeln!(out, "{} ({}):", same[0].kind.heading(), HumanCount(same.len() as u64))?;
        for finding in same.iter().take(MOST_LINES) {
            writeln!(out, "  {}", printable(&finding.to_string()))?;
        }
        if same.len() > MOST_LINES {
            writeln!(out, "  and {} more: --json lists them", HumanCount((same.len() - MOST_LINES) as u64))?;
        }
    }
    Ok(())
}

/// What became of all that the recorder saw.
fn print_completeness(out: &mut impl Write, completeness: &Completeness, by: Option<By>) -> io::Result<()> {
    let (part, accounts) = match by {
        None => (None, &completeness.by_kind),
        Some(By::Cpu) => (Some("processor"), &completeness.by_cpu),
        Some(By::Interval) => (Some("from, to"), &completeness.by_interval),
    };
    let has_left_out = completeness.by_kind.iter().any(|account| account.sums.left_out > 0);
    let columns = part.into_iter().chain(["", "seen", "written", "lost"]);
    let columns = columns
        .chain(has_left_out.then_some("left out"))
        .chain(part.is_none_or(|part| part != "processor").then_some("on the tape"));
    let mut table = text_table(columns, if part.is_some() { &[0, 1] } else { &[0] });
    // People count from the first interval on.
    let first_ns =
        completeness.by_interval.iter().filter_map(|account| Some(account.interval_ns?.0)).min().unwrap_or(0);
    for Account { kind, cpu, interval_ns, sums, on_tape } in accounts {
        let cpu = cpu.map(|cpu| cpu.to_string());
        let interval = interval_ns.map(|(start_ns, duration_ns)| {
            let from_ns = start_ns.saturating_sub(first_ns) as f64;
            format!("{:.1} s, {:.1} s", from_ns / 1e9, (from_ns + duration_ns as f64) / 1e9)
        });
        let left_out = has_left_out.then_some(sums.left_out);
        let counts = [sums.seen, sums.written, sums.lost].into_iter().chain(left_out).chain(*on_tape);
        let counts = counts.map(|count| HumanCount(count).to_string());
        table.add_row(cpu.into_iter().chain(interval).chain([kind.clone()]).chain(counts));
    }
    writeln!(out, "{}", table.trim_fmt())?;
    let Completeness { holds, missing, surplus, closed, unproven, .. } = completeness;
    match (holds, completeness.proven_until_ns) {
        (false, _) => {
            let (missing, surplus) = (HumanCount(*missing), HumanCount(*surplus));
            writeln!(out, "not complete: {missing} are missing, {surplus} were not counted")
        }
        (true, _) if *closed => writeln!(out, "complete: all that was seen is on the tape or told as lost"),
        (true, proven_ns) => {
            let proven_s = proven_ns.map_or(0.0, |proven_ns| proven_ns.saturating_sub(first_ns) as f64 / 1e9);
            writeln!(
                out,
                "complete up to {proven_s:.1} s after the first interval began; {} are behind that, where the account is open",
                HumanCount(*unproven)
            )
        }
    }
}

fn print_repaired(out: &mut impl Write, repaired: &Repaired, output: &Path) -> io::Result<()> {
    let Repaired { written, left_out } = repaired;
    writeln!(
        out,
        "{}: {} in {}, {} and {}",
        output.display(),
        HumanBytes(written.file_bytes),
        counted(written.blocks as usize, "block"),
        counted(written.definitions as usize, "definition"),
        counted(written.events as usize, "event"),
    )?;
    let known = KnownTables::new();
    for row in left_out.iter().take(MOST_LINES) {
        let count = match (row.count, row.table) {
            (0, _) => "an unknown number of rows".to_owned(),
            (count, 0) => counted(count as usize, "row"),
            (count, table) => format!("{} of {}", counted(count as usize, "row"), known.name(table)),
        };
        writeln!(out, "  left out: {count}: {}", printable(&row.cause))?;
    }
    if left_out.len() > MOST_LINES {
        let more = HumanCount((left_out.len() - MOST_LINES) as u64);
        writeln!(out, "  and {more} more: `analyze dump --kind loss` lists them")?;
    }
    Ok(())
}
