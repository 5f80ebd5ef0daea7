//! The same function's calls counted by other programs: bpftrace and perf, as Debian has them.
//!
//! Each is started and ended like a probe of ours. That it is in place is seen in the target's memory, and that it was is what
//! it counted. perf wants its probe made through tracefs, which not every machine has mounted: it gets one that only it sees.

use std::io::Read as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

/// A program that counts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Counter {
    Bpftrace,
    Perf,
}

impl Counter {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Counter::Bpftrace => "bpftrace",
            Counter::Perf => "perf",
        }
    }

    /// Why it can't be tried at all.
    pub(crate) fn missing(self) -> Option<String> {
        let there = Command::new(self.name()).arg("--version").output().is_ok_and(|output| output.status.success());
        (!there).then(|| format!("{}: not installed", self.name()))
    }

    /// Starts to count calls of a function: its name with the offset in it, and the place in the file.
    pub(crate) fn start(self, library: &Path, symbol: &str, offset: u64, file_offset: u64) -> Result<Counting> {
        let library = library.display();
        let mut command = match self {
            Counter::Bpftrace => {
                let mut command = Command::new("bpftrace");
                let program = format!("uprobe:{library}:{symbol}+{offset} {{ @calls = count(); }}");
                command.args(["-e", &program]).stdout(Stdio::piped()).stderr(Stdio::piped());
                command
            }
            Counter::Perf => {
                let script = format!(
                    "mount -t tracefs tracefs /sys/kernel/tracing || exit\n\
                     events=/sys/kernel/tracing/uprobe_events\n\
                     echo 'p:ktape_cost/launch {library}:{file_offset:#x}' >> $events || exit\n\
                     perf stat -a -x, -e ktape_cost:launch -- cat\n\
                     echo '-:ktape_cost/launch' >> $events"
                );
                let mut command = Command::new("unshare");
                command.args(["--mount", "sh", "-c", &script]).stdout(Stdio::null()).stderr(Stdio::piped());
                command
            }
        };
        let child = command.stdin(Stdio::piped()).spawn().with_context(|| format!("cannot start {}", self.name()))?;
        Ok(Counting { counter: self, child })
    }
}

/// A program that is counting.
pub(crate) struct Counting {
    counter: Counter,
    child: Child,
}

impl Counting {
    /// Whether it has given up.
    pub(crate) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Ends it, and returns what it counted.
    pub(crate) fn end(mut self) -> Result<u64> {
        match self.counter {
            Counter::Bpftrace => {
                if let Some(pid) = Pid::from_raw(self.child.id() as i32) {
                    // One that has ended by itself says below why.
                    let _ = kill_process(pid, Signal::INT);
                }
            }
            // Its command ends with its input.
            Counter::Perf => drop(self.child.stdin.take()),
        }
        let mut said = String::new();
        if let Some(mut output) = self.child.stdout.take() {
            output.read_to_string(&mut said)?;
        }
        if let Some(mut errors) = self.child.stderr.take() {
            errors.read_to_string(&mut said)?;
        }
        self.child.wait()?;
        let count = said.lines().find_map(|line| match self.counter {
            Counter::Bpftrace => line.strip_prefix("@calls: ")?.trim().parse().ok(),
            Counter::Perf if line.contains("ktape_cost:launch") => line.split(',').next()?.parse().ok(),
            Counter::Perf => None,
        });
        match count {
            Some(count) => Ok(count),
            None => bail!("{}: {}", self.counter.name(), said.trim().replace('\n', "; ")),
        }
    }
}
