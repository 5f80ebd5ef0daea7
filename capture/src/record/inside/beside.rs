//! The inside collector beside the eBPF programs: these see the calls, the libraries tell what the device did, or what the program
//! names.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use ktape_format::Sink as _;

use super::super::clocks::monotonic_ns;
use super::super::session::{RECORDS_A_ROUND, Session};
use super::Inside;
use crate::collect::events::Notice;
use crate::kernel::links::{Link, Program};
use crate::target::libraries;

/// How long after the end of a recording what the device did may still come.
pub(in super::super) const LAST_WORDS: Duration = Duration::from_millis(500);

impl Session {
    /// Makes the directory, and sets the probes at which libraries announce what they do.
    pub(in super::super) fn begin_inside(&mut self) -> Result<()> {
        let Some((options, library)) = self.options.inside.clone() else { return Ok(()) };
        self.inside = Some(Inside::begin(&options, &library, &self.functions)?);
        if options.announce {
            self.listen(&library, Program::Correlated, "ktape_correlated")?;
            self.collector.expect_device_times(options.device_time.told());
        }
        if options.ranges {
            self.listen(&library, Program::Ranged, "ktape_ranged")?;
            self.collector.expect_range_stacks();
        }
        Ok(())
    }

    /// Sets a probe at what the library calls to announce something.
    fn listen(&mut self, library: &Path, program: Program, symbol: &str) -> Result<()> {
        let file = File::open(library).with_context(|| library.display().to_string())?;
        let path = libraries::open_path(&file);
        let sites = self.sites(&path, &[symbol])?;
        let site = sites.sites.first().with_context(|| format!("{}: no {symbol}", library.display()))?;
        let link = Link { program, symbol, file_offset: site.file_offset, cookie: 0 };
        let refused = self.kernel.attach(&[link], &path)?.refused;
        anyhow::ensure!(refused.is_empty(), "{}: no probe at {}", library.display(), refused.join(", "));
        Ok(())
    }

    /// What a command's environment needs so that it loads the library.
    pub fn variables(&self) -> Vec<(&'static str, std::ffi::OsString)> {
        self.inside.as_ref().map_or_else(Vec::new, Inside::variables)
    }

    /// Takes what libraries have told by now.
    pub(in super::super) fn drain_inside(&mut self) -> Result<()> {
        let Some(mut inside) = self.inside.take() else { return Ok(()) };
        let mut troubles = Vec::new();
        // Before it is looked for new rings: up to then nothing is missing.
        let now_ns = monotonic_ns() as u64;
        inside.look(&mut troubles);
        loop {
            let mut unknown = false;
            let hear = |notice: Notice, _: &mut _, _: &mut _| {
                unknown |= matches!(notice, Notice::Unknown(_));
                Ok(())
            };
            let taken = inside.take(now_ns, RECORDS_A_ROUND, &mut self.collector, &mut self.tape, hear)?;
            if unknown {
                // The programs do not know it yet, or no more. Loss rows say how many.
                troubles.push("what the device did for a process that is not known was left out".to_owned());
            }
            if taken < RECORDS_A_ROUND {
                break;
            }
        }
        inside.end_threads(&mut self.collector, &mut self.tape)?;
        inside.tell_scope(&mut self.collector);
        for said in inside.words() {
            troubles.extend(said.trouble.map(|_| format!("process {}: {}", said.pid, said.what)));
            let process = self.collector.process_id(said.pid);
            if process != 0 {
                let subject = ktape_format::table::DefinitionKind::Process as u16;
                self.tape.property(subject, process, ktape_format::definition::property::DEVICE_TIME, &said.what)?;
            }
        }
        self.inside = Some(inside);
        troubles.into_iter().for_each(|trouble| self.trouble(trouble));
        Ok(())
    }

    /// Writes what the device did for calls that do not come.
    pub(in super::super) fn sweep_device(&mut self) -> Result<()> {
        if self.inside.is_some() {
            self.collector.sweep_device(monotonic_ns() as u64, &mut self.tape)?;
        }
        Ok(())
    }

    /// Waits for what the device did up to now, where processes go on that could tell.
    pub(in super::super) fn await_device(&mut self) -> Result<()> {
        let began = Instant::now();
        let are_quiet = |inside: &Option<Inside>| inside.as_ref().is_none_or(Inside::are_quiet);
        if let Some(inside) = &self.inside {
            inside.ask_to_end();
        }
        while !are_quiet(&self.inside) && !self.processes.is_empty() && began.elapsed() < LAST_WORDS {
            self.drain(RECORDS_A_ROUND)?;
            self.drain_inside()?;
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}
