//! The options of `capture node`: of the command line, and of a file that has them by the same names.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::Deserialize;

use crate::collect::nvml;
use crate::commands::quantities::{Bytes, Span};
use crate::commands::segments::{SEGMENT_BYTES, SEGMENT_TIME};
use crate::commands::{WrongOptions, recording};
use crate::kernel::sampler::MOST_HZ;
use crate::probes::groups::Group;
use crate::record::scope::Scope;
use crate::record::segments;

/// No configuration is so long; what a device gives has no end.
const MOST_BYTES: u64 = 1 << 20;

/// See the module. What was not said is `None`, empty or false.
#[derive(clap::Args, Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Settings {
    /// The folder that the recording goes into; it is made if it is not there
    #[arg(short, long, value_name = "DIR")]
    pub(super) output: Option<PathBuf>,
    /// Only this process; may be given several times, as may --comm and --cgroup
    #[arg(long)]
    pid: Vec<u32>,
    /// Only processes of this name, as `comm` has it; * stands for any characters, ? for one
    #[arg(long, value_name = "GLOB")]
    comm: Vec<String>,
    /// Only processes in this control group (of the second version), or below
    #[arg(long, value_name = "PATH")]
    cgroup: Vec<PathBuf>,
    /// Only these functions; the others get no probes
    #[arg(long, value_enum, value_delimiter = ',')]
    functions: Vec<Group>,
    /// Only launches with a Python file in their stack that this says; * stands for any characters, ? for one
    #[arg(long, value_name = "GLOB")]
    python_path: Vec<String>,
    /// Only launches of kernels whose mangled name has this in it
    #[arg(long, value_name = "REGEX")]
    kernel: Option<String>,
    /// Also measure how long launches take, and their results: one more probe for each
    #[arg(long)]
    pub(super) launch_durations: bool,
    /// Also record the native frames of every stack
    #[arg(long)]
    pub(super) native: bool,
    /// Also look so many times a second at every thread of recorded processes that runs on a processor
    #[arg(long, value_name = "HZ", value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_HZ)))]
    #[serde(deserialize_with = "hz")]
    pub(super) cpu_hz: Option<u32>,
    /// Also ask the GPUs so many times a second for their utilisation, memory, power, clocks, temperature and traffic: 10 if no
    /// number is given
    #[arg(long, value_name = "HZ", num_args = 0..=1, require_equals = true, default_missing_value = "10")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(nvml::MOST_HZ)))]
    #[serde(deserialize_with = "gpu_hz")]
    pub(super) gpu_counters: Option<u32>,
    /// Also record when threads of recorded processes do not run, and why
    #[arg(long)]
    pub(super) off_cpu: bool,
    /// Keep less of each event where the probes take more of a thread's time than this: see `capture run --help`
    #[arg(long, value_name = "PERCENT", value_parser = recording::percent)]
    #[serde(deserialize_with = "percent")]
    pub(super) max_overhead: Option<f64>,
    /// How much may wait between the probes and the recorder, in MiB: a power of two [default: 32]
    #[arg(long, value_name = "MIB", value_parser = recording::buffer)]
    #[serde(deserialize_with = "mib")]
    pub(super) buffer: Option<u32>,
    /// A new file after so many bytes: a number with K, M, G or T behind it [default: 256M]
    #[arg(long, value_name = "BYTES")]
    segment_size: Option<Bytes>,
    /// A new file after so long: a number with s, m, h or d behind it [default: 10m]
    #[arg(long, value_name = "TIME")]
    segment_time: Option<Span>,
    /// The files may take so much altogether: the oldest go [default: 10G]
    #[arg(long, value_name = "BYTES")]
    keep_size: Option<Bytes>,
    /// And become so old [default: 7d]
    #[arg(long, value_name = "TIME")]
    keep_age: Option<Span>,
}

impl Settings {
    /// What is not said here, as a file says it.
    ///
    /// # Errors
    ///
    /// If the file can't be read, or says what is not known.
    pub(super) fn with_file(self, file: Option<&Path>) -> Result<Settings> {
        let Some(path) = file else { return self.checked() };
        let at = || format!("the configuration {}", path.display());
        let mut text = String::new();
        let read = File::open(path).and_then(|file| file.take(MOST_BYTES).read_to_string(&mut text));
        if read.with_context(at)? as u64 == MOST_BYTES {
            return Err(WrongOptions(format!("{}: longer than a configuration is", at())).into());
        }
        // In one line, as a log has them.
        let told = |error: toml::de::Error| {
            let before = text.get(..error.span().map_or(0, |span| span.start)).unwrap_or_default();
            WrongOptions(format!("{}: line {}: {}", at(), 1 + before.matches('\n').count(), error.message()))
        };
        let file: Settings = toml::from_str(&text).map_err(told)?;
        self.over(file).checked()
    }

    fn over(self, file: Settings) -> Settings {
        Settings {
            output: self.output.or(file.output),
            pid: or(self.pid, file.pid),
            comm: or(self.comm, file.comm),
            cgroup: or(self.cgroup, file.cgroup),
            functions: or(self.functions, file.functions),
            python_path: or(self.python_path, file.python_path),
            kernel: self.kernel.or(file.kernel),
            launch_durations: self.launch_durations || file.launch_durations,
            native: self.native || file.native,
            cpu_hz: self.cpu_hz.or(file.cpu_hz),
            gpu_counters: self.gpu_counters.or(file.gpu_counters),
            off_cpu: self.off_cpu || file.off_cpu,
            max_overhead: self.max_overhead.or(file.max_overhead),
            buffer: self.buffer.or(file.buffer),
            segment_size: self.segment_size.or(file.segment_size),
            segment_time: self.segment_time.or(file.segment_time),
            keep_size: self.keep_size.or(file.keep_size),
            keep_age: self.keep_age.or(file.keep_age),
        }
    }

    /// What can be known to be wrong before anything is begun.
    fn checked(self) -> Result<Settings> {
        if let Some(kernel) = &self.kernel {
            regex::Regex::new(kernel).map_err(|error| WrongOptions(format!("kernel: {error}")))?;
        }
        // Of a launch that is not sent nobody knows that it is what returns.
        if !self.python_path.is_empty() && self.launch_durations {
            return Err(WrongOptions("python-path and launch-durations cannot be had together".to_owned()).into());
        }
        Ok(self)
    }

    /// These settings as they can count after a recording has begun with others, and what of them can't.
    pub(super) fn after(self, old: &Settings) -> (Settings, Vec<&'static str>) {
        let Settings { pid, comm, cgroup, segment_size, segment_time, keep_size, keep_age, .. } = self.clone();
        let counting = Settings { pid, comm, cgroup, segment_size, segment_time, keep_size, keep_age, ..old.clone() };
        let stay = [
            ("output", self.output != old.output),
            ("functions", self.functions != old.functions),
            ("python-path", self.python_path != old.python_path),
            ("kernel", self.kernel != old.kernel),
            ("launch-durations", self.launch_durations != old.launch_durations),
            ("native", self.native != old.native),
            ("cpu-hz", self.cpu_hz != old.cpu_hz),
            ("gpu-counters", self.gpu_counters != old.gpu_counters),
            ("off-cpu", self.off_cpu != old.off_cpu),
            ("max-overhead", self.max_overhead != old.max_overhead),
            ("buffer", self.buffer != old.buffer),
        ];
        (counting, stay.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect())
    }

    /// Where the segments go, when each ends, and what is kept.
    pub(super) fn segments(&self, directory: &Path) -> segments::Options {
        let bytes = |said: Option<Bytes>, else_said| said.map_or(else_said, |Bytes(bytes)| bytes);
        let span = |said: Option<Span>, else_said| said.map_or(else_said, |Span(span)| span);
        segments::Options {
            directory: directory.to_owned(),
            size_bytes: bytes(self.segment_size, SEGMENT_BYTES),
            time: span(self.segment_time, SEGMENT_TIME),
            keep_bytes: Some(bytes(self.keep_size, 10 << 30)),
            keep_age: Some(span(self.keep_age, Duration::from_secs(7 * 86_400))),
        }
    }

    /// What of the node is recorded.
    pub(super) fn scope(&self) -> Scope {
        Scope {
            pids: self.pid.clone(),
            comms: self.comm.clone(),
            cgroups: self.cgroup.clone(),
            functions: self.functions.clone(),
            python_paths: self.python_path.clone(),
            kernel: self.kernel.clone(),
        }
    }
}

fn or<T>(said: Vec<T>, else_said: Vec<T>) -> Vec<T> {
    if said.is_empty() { else_said } else { said }
}

fn hz<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    up_to(MOST_HZ, from)
}

fn gpu_hz<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    up_to(nvml::MOST_HZ, from)
}

fn up_to<'de, D: serde::Deserializer<'de>>(most: u32, from: D) -> Result<Option<u32>, D::Error> {
    let hz = u32::deserialize(from)?;
    let fits = (1..=most).contains(&hz);
    if fits { Ok(Some(hz)) } else { Err(serde::de::Error::custom(format!("must be 1 to {most}"))) }
}

fn percent<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
    recording::percent(&String::deserialize(from)?).map(Some).map_err(serde::de::Error::custom)
}

fn mib<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    recording::buffer(&u32::deserialize(from)?.to_string()).map(Some).map_err(serde::de::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> Result<Settings> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("capture.toml");
        std::fs::write(&path, text).expect("a file");
        let said = Settings { comm: vec!["python*".to_owned()], ..Settings::default() };
        said.with_file(Some(&path))
    }

    #[test]
    fn the_command_line_counts_more_than_the_file() {
        let read = file(
            "output = \"/var/lib/ktape\"\ncomm = [\"ray*\"]\npid = [7]\nfunctions = [\"launch\", \"mem\"]\nnative = true\n\
             cpu-hz = 99\nbuffer = 64\nsegment-size = \"1G\"\nkeep-age = \"30d\"\n",
        );
        let read = read.expect("it is right");
        assert_eq!(read.comm, ["python*"]);
        assert_eq!((read.pid.as_slice(), read.native, read.cpu_hz, read.buffer), (&[7][..], true, Some(99), Some(64)));
        assert_eq!(read.functions, [Group::Launch, Group::Mem]);
        assert_eq!(
            (read.segment_size, read.keep_age),
            (Some(Bytes(1 << 30)), Some(Span(Duration::from_secs(2_592_000))))
        );
    }

    #[test]
    fn mistakes_in_the_file_are_told_with_their_line() {
        for (text, expected) in [
            ("native = true\nnativ = true\n", ["line 2", "unknown field `nativ`"]),
            ("\n\nbuffer = 3\n", ["line 3", "power of two"]),
            ("cpu-hz = 0\n", ["line 1", "must be 1 to"]),
            ("gpu-counters = 101\n", ["line 1", "must be 1 to 100"]),
            ("comm = \"python\"\n", ["line 1", "invalid type"]),
            ("functions = [\"launches\"]\n", ["line 1", "unknown variant"]),
            ("segment-time = \"10\"\n", ["line 1", "no length of time"]),
            ("native = \n", ["line 1", ""]),
        ] {
            let error = format!("{:#}", file(text).expect_err(text));
            assert!(expected.iter().all(|part| error.contains(part)), "{text}: {error}");
        }
        assert!(format!("{:#}", file("kernel = \"(\"").expect_err("no expression")).contains("kernel"));
        let both = "python-path = [\"*\"]\nlaunch-durations = true\n";
        for text in ["nativ = true\n", "kernel = \"(\"\n", both] {
            assert!(file(text).expect_err(text).is::<WrongOptions>(), "exit code 2: {text}");
        }
        let error = Settings::default().with_file(Some(Path::new("/no/such.toml"))).expect_err("no file");
        assert!(format!("{error:#}").contains("/no/such.toml"));
    }

    /// It was read until the memory was full.
    #[test]
    fn a_file_without_an_end_is_no_configuration() {
        let error = Settings::default().with_file(Some(Path::new("/dev/zero"))).expect_err("no configuration");
        assert_eq!(format!("{error:#}"), "the configuration /dev/zero: longer than a configuration is");
    }

    #[test]
    fn numbers_with_units() {
        for (text, bytes) in [("256M", Some(256 << 20)), ("7", Some(7)), ("0", None), ("M", None), ("1X", None)] {
            assert_eq!(text.parse::<Bytes>().ok().map(|Bytes(bytes)| bytes), bytes, "{text}");
        }
        assert!("99999999999T".parse::<Bytes>().is_err());
        assert_eq!("90s".parse(), Ok(Span(Duration::from_secs(90))));
        assert!("1w".parse::<Span>().is_err() && "".parse::<Span>().is_err());
    }

    #[test]
    fn what_cannot_change_stays_and_is_told() {
        let old = Settings { native: true, comm: vec!["a".to_owned()], ..Settings::default() };
        let new =
            Settings { comm: vec!["b".to_owned()], buffer: Some(32), keep_size: Some(Bytes(5)), ..Settings::default() };
        let (counting, stay) = new.after(&old);
        assert_eq!(stay, ["native", "buffer"]);
        assert_eq!((counting.native, counting.buffer, counting.keep_size), (true, None, Some(Bytes(5))));
        assert_eq!(counting.comm, ["b"]);
    }
}
