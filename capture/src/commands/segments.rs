//! The options of a continuous recording, which is what an output that is a directory asks for.

use std::path::Path;
use std::time::Duration;

use crate::record::segments::Options;

/// When a segment ends, and what is kept.
#[derive(clap::Args)]
pub(super) struct Segments {
    /// Where the output is a directory: a segment ends when it has so many bytes (K, M, G: of 1024)
    #[arg(long, value_name = "BYTES", default_value = "256M", value_parser = bytes)]
    segment_size: u64,
    /// And when it is so old (s, m, h, d)
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = time)]
    segment_time: Duration,
    /// All segments and rollups together take so much of the disk at most: the oldest segments are deleted, their rollups stay
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    keep_size: Option<u64>,
    /// Segments that ended longer ago are deleted, their rollups stay
    #[arg(long, value_name = "TIME", value_parser = time)]
    keep_age: Option<Duration>,
}

impl Segments {
    /// A continuous recording in this directory.
    pub(super) fn options(&self, directory: &Path) -> Options {
        Options {
            directory: directory.to_owned(),
            size_bytes: self.segment_size,
            time: self.segment_time,
            keep_bytes: self.keep_size,
            keep_age: self.keep_age,
        }
    }
}

/// Whether a path names a directory: one that is there, or by a slash at its end.
pub(super) fn is_directory(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().ends_with(b"/") || path.is_dir()
}

fn bytes(text: &str) -> Result<u64, String> {
    scaled(text, &[("K", 1 << 10), ("M", 1 << 20), ("G", 1 << 30), ("T", 1 << 40), ("", 1)])
        .ok_or_else(|| "must be a number of bytes, as 256M".to_owned())
}

fn time(text: &str) -> Result<Duration, String> {
    scaled(text, &[("s", 1), ("m", 60), ("h", 3600), ("d", 86_400)])
        .map(Duration::from_secs)
        .ok_or_else(|| "must be a time, as 10m".to_owned())
}

/// A number above 0 with one of these units.
fn scaled(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let (number, scale) = units.iter().find_map(|(unit, scale)| Some((text.strip_suffix(unit)?, scale)))?;
    number.parse::<u64>().ok()?.checked_mul(*scale).filter(|&value| value > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_have_units() {
        assert_eq!((bytes("256M"), bytes("17")), (Ok(256 << 20), Ok(17)));
        assert_eq!((time("90s"), time("2d")), (Ok(Duration::from_secs(90)), Ok(Duration::from_secs(172_800))));
        for bad in ["", "M", "0", "-1", "99999999999T", "1.5G", "1x"] {
            assert!(bytes(bad).is_err(), "{bad}");
        }
        assert!(time("10").is_err());
    }
}
