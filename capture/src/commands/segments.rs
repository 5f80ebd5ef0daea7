//! The options of a continuous recording, which is what an output that is a directory asks for.

use std::path::Path;
use std::time::Duration;

use super::quantities::{Bytes, Span};
use crate::record::segments::Options;

/// When a segment ends, and what is kept.
#[derive(clap::Args)]
pub(super) struct Segments {
    /// Where the output is a directory: a segment ends when it has so many bytes (K, M, G, T: of 1024) [default: 256M]
    #[arg(long, value_name = "BYTES")]
    segment_size: Option<Bytes>,
    /// And when it is so old (s, m, h, d) [default: 10m]
    #[arg(long, value_name = "TIME")]
    segment_time: Option<Span>,
    /// All segments and rollups together take so much of the disk at most: the oldest segments are deleted, their rollups stay
    #[arg(long, value_name = "BYTES")]
    keep_size: Option<Bytes>,
    /// Segments that ended longer ago are deleted, their rollups stay
    #[arg(long, value_name = "TIME")]
    keep_age: Option<Span>,
}

/// How long a segment's file is, unless something else is said.
pub(super) const SEGMENT_BYTES: u64 = 256 << 20;
/// And how old.
pub(super) const SEGMENT_TIME: Duration = Duration::from_secs(600);

impl Segments {
    /// The option that is set and means nothing for a single tape.
    pub(super) fn asked_for(&self) -> Option<&'static str> {
        let options = [
            (self.segment_size.is_some(), "--segment-size"),
            (self.segment_time.is_some(), "--segment-time"),
            (self.keep_size.is_some(), "--keep-size"),
            (self.keep_age.is_some(), "--keep-age"),
        ];
        options.into_iter().find_map(|(is_set, option)| is_set.then_some(option))
    }

    /// A continuous recording in this directory.
    pub(super) fn options(&self, directory: &Path) -> Options {
        Options {
            directory: directory.to_owned(),
            size_bytes: self.segment_size.map_or(SEGMENT_BYTES, |Bytes(bytes)| bytes),
            time: self.segment_time.map_or(SEGMENT_TIME, |Span(span)| span),
            keep_bytes: self.keep_size.map(|Bytes(bytes)| bytes),
            keep_age: self.keep_age.map(|Span(span)| span),
        }
    }
}

/// Whether a path names a directory: one that is there, or by a slash at its end.
pub(super) fn is_directory(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().ends_with(b"/") || path.is_dir()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        segments: Segments,
    }

    #[test]
    fn what_is_asked_of_segments_is_told_from_what_is_so_anyhow() {
        let line = |arguments: &[&str]| Line::parse_from(["capture"].iter().chain(arguments)).segments;
        assert_eq!(line(&[]).asked_for(), None);
        assert_eq!(line(&["--keep-size", "1G"]).asked_for(), Some("--keep-size"));
        assert_eq!(line(&["--segment-time", "1s", "--keep-age", "3s"]).asked_for(), Some("--segment-time"));
        let options = line(&["--segment-size", "1M"]).options(Path::new("/x"));
        assert_eq!((options.size_bytes, options.time, options.keep_bytes), (1 << 20, SEGMENT_TIME, None));
    }
}
