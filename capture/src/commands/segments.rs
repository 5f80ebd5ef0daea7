//! The options of a continuous recording, which is what an output that is a directory asks for.

use std::path::Path;

use super::quantities::{Bytes, Span};
use crate::record::segments::Options;

/// When a segment ends, and what is kept.
#[derive(clap::Args)]
pub(super) struct Segments {
    /// Where the output is a directory: a segment ends when it has so many bytes (K, M, G: of 1024)
    #[arg(long, value_name = "BYTES", default_value = "256M")]
    segment_size: Bytes,
    /// And when it is so old (s, m, h, d)
    #[arg(long, value_name = "TIME", default_value = "10m")]
    segment_time: Span,
    /// All segments and rollups together take so much of the disk at most: the oldest segments are deleted, their rollups stay
    #[arg(long, value_name = "BYTES")]
    keep_size: Option<Bytes>,
    /// Segments that ended longer ago are deleted, their rollups stay
    #[arg(long, value_name = "TIME")]
    keep_age: Option<Span>,
}

impl Segments {
    /// A continuous recording in this directory.
    pub(super) fn options(&self, directory: &Path) -> Options {
        Options {
            directory: directory.to_owned(),
            size_bytes: self.segment_size.0,
            time: self.segment_time.0,
            keep_bytes: self.keep_size.map(|Bytes(bytes)| bytes),
            keep_age: self.keep_age.map(|Span(span)| span),
        }
    }
}

/// Whether a path names a directory: one that is there, or by a slash at its end.
pub(super) fn is_directory(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().ends_with(b"/") || path.is_dir()
}
