//! `capture probes`: where in a library the probes would be.

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use object::ReadCache;
use serde::Serialize;

use super::Outcome;
use super::print::{printable, text_table, verdict, write_json};
use crate::probes::library::Library;
use crate::probes::{Cost, Kernel, Sites, functions, sites};

/// What `capture probes` is asked.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// The library: a copy of libcuda or libcudart, or a program that has the latter inside
    #[arg(long, value_name = "FILE")]
    library: PathBuf,
    /// For a program instead of a person
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  capture probes --library /usr/lib/x86_64-linux-gnu/libcuda.so.1
  capture probes --library libcudart.so.12 --json | jq '.sites[] | select(.cost == \"stepped\")'";

/// What `--json` prints.
#[derive(Serialize)]
struct Answer<'a> {
    library: String,
    /// What probes on `nop`s cost here; null where they could not be tried and are taken to be single-stepped.
    kernel: Option<Kernel>,
    #[serde(flatten)]
    sites: &'a Sites,
}

pub(super) fn run(args: &Args) -> Result<Outcome> {
    let name = || args.library.display().to_string();
    let open = || -> io::Result<File> {
        // To open a pipe would wait for somebody who writes into it.
        match std::fs::metadata(&args.library)?.is_file() {
            true => File::open(&args.library),
            false => Err(io::Error::other("it is no regular file")),
        }
    };
    let file = open().with_context(|| format!("cannot open {}", name()))?;
    let file = ReadCache::new(file);
    let kernel = Kernel::ask().ok();
    let functions = functions::all();
    let symbols = functions.iter().map(|function| function.symbol.as_str());
    let found = Library::parse(&file)
        .and_then(|library| sites(&library, symbols, kernel.unwrap_or(Kernel::OLD)))
        .with_context(name)?;
    let mut out = io::BufWriter::new(io::stdout().lock());
    if args.json {
        write_json(&mut out, &Answer { library: name(), kernel, sites: &found })?;
    } else {
        print(&mut out, &found)?;
    }
    out.flush()?;
    Ok(Outcome::Done)
}

fn print(out: &mut impl Write, found: &Sites) -> io::Result<()> {
    if !found.sites.is_empty() {
        let mut table = text_table(["FUNCTION", "AT", "INSTRUCTION", "PROBE", "WHY THERE"]);
        for site in &found.sites {
            let names = [&site.symbol].into_iter().chain(&site.aliases).map(|name| printable(name));
            table.add_row([
                names.collect::<Vec<_>>().join(" = ").into(),
                format!("+{}", site.offset_in_function).into(),
                site.instruction.as_str().into(),
                verdict(site.cost.name(), site.cost != Cost::Stepped),
                site.why.as_str().into(),
            ]);
        }
        writeln!(out, "{}", table.trim_fmt())?;
    }
    for refused in &found.refused {
        writeln!(out, "no probe: {}: {}", refused.symbol, refused.why)?;
    }
    if !found.missing.is_empty() {
        writeln!(out, "not in this library: {}", found.missing.join(", "))?;
    }
    Ok(())
}
