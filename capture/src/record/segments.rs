//! A continuous recording: a directory of segments, each a complete tape, on a bounded part of the disk.

use std::path::PathBuf;
use std::time::Duration;

/// Where the segments of a recording go, when each ends, and what is kept of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The recording: a directory, which is made if there is none. Its last component names the segments.
    pub directory: PathBuf,
    /// A segment ends when its file has this many bytes.
    pub size_bytes: u64,
    /// A segment ends when it is this old.
    pub time: Duration,
    /// All files of the recording together have about this many bytes at most: the oldest segments are deleted, their rollups
    /// are kept. `None` for no limit.
    pub keep_bytes: Option<u64>,
    /// Segments that ended longer ago are deleted, their rollups are kept. `None` for no limit.
    pub keep_age: Option<Duration>,
}
