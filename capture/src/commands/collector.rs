//! Who collects: eBPF programs outside of the processes, a library inside of them, or both.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use clap::ValueEnum;

use super::WrongOptions;
use super::recording::Recording;
use crate::privileges;
use crate::record::inside::{self, DeviceTime};
use crate::target::{loader, process};

/// The options of who collects.
#[derive(clap::Args)]
pub(super) struct Collection {
    /// Also record when the GPU did what, from where: nowhere, CUPTI, which is loaded into the command's processes and exact to the
    /// nanosecond, or CUDA events around launches of kernels, which bound when these ran. Each costs the process time at each launch: see
    /// docs/device-time.md
    #[arg(long, value_enum, value_name = "SOURCE", default_value_t)]
    device_time: DeviceTime,
    /// Who sees the calls: eBPF probes outside of the processes, which takes privileges, a library inside of them, which takes none, or
    /// probes for calls and the library for what the GPU did
    #[arg(long, value_enum, value_name = "WHO", default_value_t)]
    collector: Collector,
    /// Also record the ranges and marks that the program names by NVTX: a library is loaded into it, by NVTX itself: see docs/nvtx.md
    #[arg(long)]
    nvtx: bool,
    /// The CUPTI to load, in place of the one beside the process's CUDA libraries
    #[arg(long, value_name = "PATH")]
    cupti: Option<PathBuf>,
}

/// Who collects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Collector {
    /// What works here: it says which, and why.
    #[default]
    Auto,
    /// eBPF probes.
    Outside,
    /// A library in the processes.
    Inside,
    /// Both.
    Both,
}

/// What was chosen.
#[derive(Debug)]
pub(super) enum Chosen {
    /// eBPF probes; with them, where device times or ranges are wanted, the library.
    Outside(Option<(inside::Options, PathBuf)>),
    /// The library alone.
    Inside(inside::Options, PathBuf),
}

/// What this machine and user have.
struct Surroundings {
    /// Why there can be no eBPF probes, if so.
    no_probes: Option<String>,
    /// Whether a CUPTI was found that the program would find too.
    has_cupti: bool,
}

impl Collection {
    /// Chooses for a program, of whose launches some may be out of scope `by_kernel`; `follow` says whether its children are recorded too.
    /// Returns the choice, and why, in a line.
    ///
    /// # Errors
    ///
    /// If what is asked for cannot be, with the reason.
    pub(super) fn choose(
        &self,
        recording: &Recording,
        program: &Path,
        follow: bool,
        by_kernel: bool,
    ) -> Result<(Chosen, String)> {
        let no_probes = privileges::demand().err().map(|error| error.to_string());
        let no_probes = no_probes.or_else(|| process::is_in_first_namespace().err().map(|error| error.to_string()));
        let variable = |name: &str| std::env::var_os(name);
        let has_cupti = self.cupti.is_some() || !loader::cupti(program, variable).is_empty();
        let (collector, why) = self.decide(&Surroundings { no_probes, has_cupti })?;
        if let Some(path) = &self.cupti {
            if collector == Collector::Outside {
                return Err(wrong("--cupti is for --device-time cupti or --collector inside"));
            }
            ensure!(path.is_file(), "--cupti {}: no such file", path.display());
        }
        let options = inside::Options {
            device_time: self.device_time,
            calls: collector == Collector::Inside,
            announce: collector == Collector::Both,
            ranges: self.nvtx,
            by_kernel,
            cupti: self.cupti.as_ref().map(|path| path.canonicalize().unwrap_or_else(|_| path.clone())),
            ring_bytes: recording.ring_bytes(),
            follow,
        };
        let library = || -> Result<PathBuf> {
            let library = inside::find_library()?;
            inside::check(program, &library, &options).context("the library inside cannot be loaded")?;
            Ok(library)
        };
        let library = || library().with_context(|| format!("collector {why}"));
        let chosen = match collector {
            Collector::Inside => {
                if let Some(option) = recording.needs_probes() {
                    return Err(wrong(&format!("{option} takes eBPF probes, which --collector inside is without")));
                }
                let library = library()?;
                Chosen::Inside(options, library)
            }
            Collector::Outside | Collector::Auto if !self.nvtx => Chosen::Outside(None),
            Collector::Both | Collector::Outside | Collector::Auto => {
                let library = library()?;
                Chosen::Outside(Some((options, library)))
            }
        };
        let ranges = if self.nvtx { "; a library in the processes for NVTX's ranges" } else { "" };
        Ok((chosen, why + ranges))
    }

    /// Decides who collects: not [`Collector::Auto`].
    fn decide(&self, here: &Surroundings) -> Result<(Collector, String)> {
        let (wants_times, by) = match self.device_time {
            DeviceTime::Off => (false, ""),
            DeviceTime::Cupti => (true, "CUPTI for what the GPU did"),
            DeviceTime::Events => (true, "CUDA events for when kernels ran"),
        };
        Ok(match (self.collector, &here.no_probes) {
            (Collector::Auto, None) if wants_times => (Collector::Both, format!("both: probes for calls, {by}")),
            (Collector::Auto, Some(why)) if self.device_time == DeviceTime::Events => {
                (Collector::Inside, format!("inside, with CUDA events, as there can be no probes ({why})"))
            }
            (Collector::Auto, None) => (Collector::Outside, "outside: probes for calls".to_owned()),
            (Collector::Auto, Some(why)) if here.has_cupti => {
                (Collector::Inside, format!("inside, by CUPTI, as there can be no probes ({why})"))
            }
            (Collector::Auto, Some(why)) => {
                bail!(
                    "nobody can collect: no probes ({why}), and no CUPTI was found (--cupti names one) for --collector inside"
                )
            }
            (Collector::Outside, _) if wants_times => {
                return Err(wrong(
                    "--device-time takes --collector inside or both: probes do not see when the GPU did what",
                ));
            }
            (Collector::Outside, Some(why)) => bail!("--collector outside: {why}"),
            (Collector::Both, _) if !wants_times => {
                return Err(wrong("--collector both takes --device-time: calls are seen by the probes"));
            }
            (Collector::Both, Some(why)) => bail!("--collector both: {why}"),
            (Collector::Outside, _) => (Collector::Outside, "outside, as asked for".to_owned()),
            (Collector::Inside, _) => (Collector::Inside, "inside, as asked for".to_owned()),
            (Collector::Both, None) => (Collector::Both, "both, as asked for".to_owned()),
        })
    }
}

fn wrong(why: &str) -> anyhow::Error {
    WrongOptions(why.to_owned()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decide(collector: Collector, device_time: DeviceTime, is_root: bool, has_cupti: bool) -> Result<Collector> {
        let no_probes = (!is_root).then(|| "not permitted".to_owned());
        let collection = Collection { device_time, collector, nvtx: false, cupti: None };
        collection.decide(&Surroundings { no_probes, has_cupti }).map(|(collector, _)| collector)
    }

    /// What a shell script asks: whether it called `capture` wrongly, or this machine can't.
    #[test]
    fn options_that_exclude_each_other_are_told_from_what_this_machine_has_not() {
        let refused = |collector, time| decide(collector, time, false, false).expect_err("it cannot be");
        assert!(refused(Collector::Outside, DeviceTime::Cupti).is::<WrongOptions>());
        assert!(refused(Collector::Both, DeviceTime::Off).is::<WrongOptions>());
        assert!(!refused(Collector::Both, DeviceTime::Cupti).is::<WrongOptions>());
        assert!(!refused(Collector::Auto, DeviceTime::Off).is::<WrongOptions>());
    }

    #[test]
    fn who_collects_is_what_works_here() {
        use Collector::{Auto, Both, Inside, Outside};
        use DeviceTime::{Cupti, Events, Off};
        for (asked, time, is_root, has_cupti, expected) in [
            (Auto, Off, true, true, Some(Outside)),
            (Auto, Cupti, true, false, Some(Both)),
            (Auto, Off, false, true, Some(Inside)),
            (Auto, Cupti, false, true, Some(Inside)),
            (Auto, Off, false, false, None),
            (Outside, Off, false, false, None),
            (Outside, Cupti, true, true, None),
            (Inside, Off, true, false, Some(Inside)),
            (Both, Off, true, true, None),
            (Both, Cupti, false, true, None),
            (Both, Cupti, true, true, Some(Both)),
            (Auto, Events, true, false, Some(Both)),
            (Auto, Events, false, false, Some(Inside)),
            (Inside, Events, true, false, Some(Inside)),
            (Outside, Events, true, true, None),
            (Both, Events, true, false, Some(Both)),
        ] {
            let decided = decide(asked, time, is_root, has_cupti).ok();
            assert_eq!(decided, expected, "{asked:?} {time:?} root: {is_root}, CUPTI: {has_cupti}");
        }
    }
}
