//! `analyze flamegraph`.

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use ktape_format::Table as _;
use regex::Regex;

use super::load::{Loaded, load};
use super::{Outcome, note_losses, output, recording};
use crate::export::flamegraph::svg::{self, Caption};
use crate::export::flamegraph::{By, Shape, Tree, folded};
use crate::export::speedscope;
use crate::human::{HumanCount, duration};
use crate::symbols::Symbols;
use crate::timeline::Selection;
use crate::timeline::weights::{GraphStacks, Value, Weights, weigh};

const EXAMPLES: &str = "\
Examples:
  analyze flamegraph run.ktape -o run.svg                  open it in a browser
  analyze flamegraph run.ktape -o run.svg --reverse        kernels, and who launched them
  analyze flamegraph run.ktape -o sync.svg --value sync    where the host waits
  analyze flamegraph run.ktape -o cpu.svg --value cpu      what ran on the host, by CPU samples (capture run --cpu-hz 99)
  analyze flamegraph run.ktape --folded --filter attention
  analyze flamegraph run.ktape --speedscope run.json       for https://www.speedscope.app

Widths are exact sums: the root is the trace's total, and work whose launch is not on the tape \
stands under [launch not recorded]. Work that overlaps on several streams counts for each.";

/// The options of `analyze flamegraph`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A tape, a recording (a directory of segments), a PyTorch profiler trace, or a report that Nsight Systems exported to SQLite
    #[arg(value_name = "TRACE")]
    input: PathBuf,
    /// Where to write the SVG, or with --folded the text; `-` is standard output, the default of --folded
    #[arg(short, long, value_name = "FILE", required_unless_present_any = ["folded", "speedscope"])]
    output: Option<PathBuf>,
    /// What the width is [default: gpu; launches of a recording without device times; cpu of one of nothing but CPU samples]
    #[arg(long, value_enum)]
    value: Option<Value>,
    /// What stands at the root, below the stack
    #[arg(long, value_enum, default_value_t = By::Stack)]
    by: By,
    /// Where the kernels of a graph stand, where its nodes are known [default: launched]
    #[arg(long, value_enum)]
    graph_stacks: Option<GraphStacks>,
    /// Only stacks with a frame, kernel or call whose text matches, as --folded prints it
    #[arg(long, value_name = "REGEX")]
    filter: Option<Regex>,
    /// Turn the stacks over: kernels at the root, their callers hanging from them
    #[arg(long)]
    reverse: bool,
    /// Write folded stacks ("main;forward;gemm 1234") instead of an SVG
    #[arg(long)]
    folded: bool,
    /// Write a profile for speedscope
    #[arg(long, value_name = "FILE")]
    speedscope: Option<PathBuf>,
    /// The heading of the SVG and name of the profile [default: what it shows and of which file]
    #[arg(long)]
    title: Option<String>,
    /// Replace files that exist
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    symbols: Symbols,
}

impl Args {
    /// The file that --output names, if it names one.
    fn output_file(&self) -> Option<&Path> {
        self.output.as_deref().filter(|path| !output::is_stdout(path))
    }
}

/// Runs `analyze flamegraph`.
pub fn run(args: &Args) -> Result<Outcome> {
    for path in args.output_file().iter().copied().chain(args.speedscope.as_deref()) {
        output::ensure_free(path, &args.input, args.force)?;
    }
    if args.output.is_some() && args.output == args.speedscope {
        return Err(output::Refused("--output and --speedscope name the same file; give them two".to_owned()).into());
    }
    let as_totals = args.selection.is_everything() && recording::is_recording(&args.input);
    let loaded = match as_totals {
        true => recording::load_totals(&args.input, &args.symbols)?,
        false => load(&args.input, &args.selection, &args.symbols)?,
    };
    // Standard output may be the product. A closed stderr leaves nobody to tell.
    let _ = note_losses(&mut io::stderr(), &loaded);
    let value = value(args, &loaded)?;
    let has_graphs = matches!(value, Value::Launches | Value::Gpu | Value::Copies | Value::Bytes);
    if args.graph_stacks.is_some() && !has_graphs {
        let why =
            "--graph-stacks says where what graphs run stands: it goes with --value launches, gpu, copies and bytes";
        return Err(output::Refused(why.to_owned()).into());
    }
    let graph_stacks = args.graph_stacks.unwrap_or_default();
    let weights = weigh(&loaded.timeline, value, graph_stacks).context(args.input.display().to_string())?;
    ensure_something(args, &loaded, value, &weights)?;
    for note in quality_notes(&weights) {
        say(&note);
    }
    let shape = Shape { by: args.by, filter: args.filter.clone(), reverse: args.reverse };
    let tree = Tree::new(&loaded.timeline, &weights, &shape);
    if tree.total() == 0 {
        let filter = args.filter.as_ref().map_or("", Regex::as_str);
        bail!("{}: no frame matches `{filter}`; `analyze flamegraph --folded` lists the frames", args.input.display());
    }
    write_outputs(args, &loaded, value, &weights, &tree)?;
    Ok(loaded.outcome())
}

/// What is drawn. Where no device time was recorded, launches stand for it unless something else was asked for, and that is
/// said; the bound of a copy that somebody waited for must not pass for all GPU time there is.
fn value(args: &Args, loaded: &Loaded) -> Result<Value> {
    match args.value {
        Some(Value::Gpu) if loaded.timeline.host_only => bail!(
            "{}: launches without device times, so there is no GPU time to draw: leave out `--value gpu` to draw launches, \
             or draw where the host waited with `--value sync`",
            loaded.path.display()
        ),
        Some(value) => Ok(value),
        None if loaded.timeline.host_only => {
            say(&format!(
                "{}: launches without device times: widths are numbers of launches, each weighs 1 however long its kernel \
                 ran; `--value sync` draws where the host waited",
                loaded.path.display()
            ));
            Ok(Value::Launches)
        }
        None if !loaded.timeline.events.cpu_sample.is_empty() && loaded.timeline.device_ops().is_empty() => {
            say(&format!("{}: no GPU work: widths are CPU time, by samples", loaded.path.display()));
            Ok(Value::Cpu)
        }
        None => Ok(Value::Gpu),
    }
}

fn write_outputs(args: &Args, loaded: &Loaded, value: Value, weights: &Weights, tree: &Tree) -> Result<()> {
    let caption = caption(args, loaded, value, weights, tree);
    match (args.output_file(), args.folded) {
        (Some(path), true) => {
            output::write(path, args.force, |out| folded::write(tree, out))?;
            say(&format!("{}: folded stacks, {}", path.display(), caption.subtitle));
        }
        (None, true) => {
            let mut out = BufWriter::new(io::stdout().lock());
            folded::write(tree, &mut out)?;
            out.flush()?;
        }
        (Some(path), false) => {
            let hidden = output::write(path, args.force, |out| svg::write(tree, &caption, out))?;
            let thin = if hidden > 0 { format!(", {hidden} of them too thin to be drawn") } else { String::new() };
            let (name, frames) = (path.display(), tree.frames());
            say(&format!("{name}: {}; {frames} frames{thin}; open it in a browser", caption.subtitle));
        }
        (None, false) if args.output.is_some() => {
            svg::write(tree, &caption, &mut io::stdout().lock())?;
        }
        (None, false) => {}
    }
    if let Some(path) = &args.speedscope {
        output::write(path, args.force, |out| speedscope::write(tree, value, args.by, &caption.title, out))?;
        say(&format!("{}: {}; open it in https://www.speedscope.app", path.display(), caption.subtitle));
    }
    Ok(())
}

fn caption(args: &Args, loaded: &Loaded, value: Value, weights: &Weights, tree: &Tree) -> Caption {
    let (what, unit, of) = match value {
        Value::Gpu => ("GPU time", "ns", "of kernels, copies and memsets"),
        Value::Launches => ("Launches", "launches", "of kernels and graphs"),
        Value::Api => ("Host time in API calls", "ns", "in API calls"),
        Value::Sync => ("Host time in synchronisations", "ns", "of waiting for device work"),
        Value::Copies => ("Copy time", "ns", "of copies and memsets"),
        Value::Bytes => ("Bytes copied", "bytes", "copied"),
        Value::Cpu => ("CPU time", "ns", "of running threads"),
        Value::Samples => ("CPU samples", "samples", "of running threads"),
    };
    let by = match args.by {
        By::Stack => "",
        By::Kernel => " by kernel",
        By::Stream => " by stream",
        By::Rank => " by rank",
    };
    let file = loaded.path.file_name().unwrap_or(loaded.path.as_os_str()).to_string_lossy();
    // For the eye, and all digits: that they are exact is the point.
    let total = match (unit, tree.total()) {
        ("ns", ns @ 1_000..) => format!("{} ({} ns)", duration(ns as f64), HumanCount(ns)),
        (_, total) => format!("{} {unit}", HumanCount(total)),
    };
    let exact = match value {
        Value::Cpu => format!(", estimated by {} samples", HumanCount(weights.events)),
        Value::Samples => String::new(),
        _ if weights.absent + weights.bounded == 0 => ", exact".to_owned(),
        _ => String::new(),
    };
    let mut parts = vec![format!("{total} {of}{exact}")];
    if let Some(filter) = &args.filter {
        parts.push(format!("only what matches `{filter}`, of {} {unit}", HumanCount(weights.total)));
    }
    parts.extend(quality_notes(weights));
    if loaded.lost > 0 {
        parts.push(format!("{} events were lost", HumanCount(loaded.lost)));
    }
    let source = if loaded.timeline.host_only { " (no device times were recorded)" } else { "" };
    Caption {
        title: args.title.clone().unwrap_or_else(|| format!("{what}{by}: {file}{source}")),
        subtitle: parts.join("; "),
        unit: unit.to_owned(),
        hanging: args.reverse,
    }
}

/// What has to be said about the device times that were added up.
fn quality_notes(weights: &Weights) -> Vec<String> {
    let mut notes = Vec::new();
    if weights.absent > 0 {
        notes.push(format!(
            "{} of {} operations have no device time",
            HumanCount(weights.absent),
            HumanCount(weights.events)
        ));
    }
    if weights.bounded > 0 {
        notes.push(format!("{} of {} are upper bounds", HumanCount(weights.bounded), HumanCount(weights.events)));
    }
    notes
}

/// Says why there is nothing to draw, and what can be drawn instead.
fn ensure_something(args: &Args, loaded: &Loaded, value: Value, weights: &Weights) -> Result<()> {
    if weights.total > 0 {
        return Ok(());
    }
    let file = loaded.path.display();
    let calls = weigh(&loaded.timeline, Value::Api, GraphStacks::default()).map_or(0, |calls| calls.events);
    match value {
        _ if weights.events == 0 && !args.selection.is_everything() => {
            bail!("{file}: nothing to draw in the selection; `analyze info` with the same selection says what there is")
        }
        Value::Cpu if weights.events > 0 => {
            bail!(
                "{file}: it is not known how much time a CPU sample stands for: draw their number with `--value samples`"
            )
        }
        Value::Cpu | Value::Samples => {
            bail!("{file}: no CPU samples to draw: `capture run --cpu-hz 99` records them beside the calls")
        }
        _ if weights.events == 0 && calls == 0 => bail!(
            "{file}: no device work and no API calls to draw; `analyze compare --sampler cpu` shows the host's functions"
        ),
        Value::Gpu | Value::Copies if calls > 0 => bail!(
            "{file}: no device times ({} device operations, {} host calls): draw the host's side with `--value api` or `--value launches`",
            weights.events,
            calls
        ),
        _ => bail!("{file}: nothing to draw: no event in the selection counts; `analyze info` says what there is"),
    }
}

/// Tells the user, on standard error as standard output may be the product. Where that is closed nobody listens.
fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}
