//! A recording: a directory of segments and rollups, each a tape.
//!
//! What is left of a part of the time is its events or only their totals. The totals of all parts are those of all that was
//! ever recorded, so reports over all of a recording are made of totals only, one tape after the other ([`load_totals`]): memory
//! does not grow with the recording. Single events are read of the segments that have them, as one trace ([`load_trace`]):
//! memory is that of what is wanted. [`check`] is for `analyze verify`.

pub mod check;
mod totals;
mod trace;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use ktape_format::recording::Recording;
use ktape_format::{Tape, TapeError};
use serde::Serialize;

pub use totals::{KindTotals, load_totals, print_totals, totals};
pub use trace::load_trace;

use crate::human::HumanBytes;

/// What is left of a stretch of a recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Part {
    /// The numbers of the first and the last of its segments.
    pub segments: (u64, u64),
    /// Whether their events are there, or only rollups.
    pub has_events: bool,
    /// What is on the disk of it.
    pub bytes: u64,
    /// When the first segment began, in seconds since 1970-01-01 UTC.
    pub begin_unix_s: i64,
}

/// Whether a path is a directory with segments or rollups in it.
pub fn is_recording(path: &Path) -> bool {
    path.is_dir() && Recording::list(path).is_ok_and(|recording| !recording.segments.is_empty())
}

/// What of a recording could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unread {
    /// The file.
    pub path: PathBuf,
    /// Why.
    pub why: String,
    /// Whether nothing of the file could be read, and not only a part.
    pub is_whole_file: bool,
}

impl Unread {
    fn file(path: &Path, why: &TapeError) -> Unread {
        Unread { path: path.to_owned(), why: why.to_string(), is_whole_file: true }
    }
}

impl std::fmt::Display for Unread {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}: {}", self.path.display(), self.why)
    }
}

/// A file was there when the directory was looked at, and is gone.
pub(super) fn is_gone(error: &TapeError) -> bool {
    matches!(error, TapeError::Io(error) if error.kind() == io::ErrorKind::NotFound)
}

/// What was read of a recording.
struct Read<T> {
    all: T,
    unread: Vec<Unread>,
    /// The segments that were read as totals only: numbers of the first and the last of each stretch of them.
    only_totals: Vec<(u64, u64)>,
}

impl<T> Read<T> {
    fn add_only_totals(&mut self, (first, last): (u64, u64)) {
        match self.only_totals.last_mut() {
            Some(stretch) if stretch.1.checked_add(1) == Some(first) => stretch.1 = last,
            _ => self.only_totals.push((first, last)),
        }
    }
}

/// Reads what counts of each segment, in order: its tape, or its rollup where there is none, or none that can be read. `take` gets
/// each, and whether it has events; what it fails at is left out and told.
///
/// The recorder may delete segments and put one rollup in the place of many meanwhile. A segment that is gone has left its rollup;
/// where that is gone too, everything is read anew, as one of several may have what had been read.
fn read<T>(
    path: &Path,
    begin: impl Fn() -> T,
    mut take: impl FnMut(&mut T, &Path, &Tape, bool) -> Result<Option<Unread>, TapeError>,
) -> Result<Read<T>> {
    /// A recorder deletes a few files a minute, and its rollups become one once a day.
    const TRIES: usize = 10;
    'anew: for _ in 0..TRIES {
        let recording = Recording::list(path).with_context(|| path.display().to_string())?;
        let mut read = Read { all: begin(), unread: Vec::new(), only_totals: Vec::new() };
        let mut files_read = 0;
        for segment in &recording.segments {
            let files =
                segment.tape.iter().map(|tape| (tape, true)).chain(segment.rollup.iter().map(|file| (file, false)));
            let mut is_there = false;
            for (file, has_events) in files {
                match Tape::open(file).and_then(|tape| take(&mut read.all, file, &tape, has_events)) {
                    Ok(part) => {
                        (files_read, is_there) = (files_read + 1, true);
                        read.unread.extend(part);
                        if !has_events {
                            read.add_only_totals(segment.name.segments);
                        }
                        break;
                    }
                    Err(error) if is_gone(&error) => {}
                    Err(error) => {
                        is_there = true;
                        read.unread.push(Unread::file(file, &error));
                    }
                }
            }
            if !is_there {
                continue 'anew;
            }
        }
        if files_read > 0 {
            return Ok(read);
        }
        if let Some(first) = read.unread.first() {
            bail!("{first}");
        }
        bail!("{}: has no segments", path.display());
    }
    bail!("{}: its files change faster than they can be read: try again", path.display())
}

/// What is left of which stretch.
pub fn parts(path: &Path) -> Result<Vec<Part>> {
    let recording = Recording::list(path).with_context(|| path.display().to_string())?;
    let mut parts: Vec<Part> = Vec::new();
    for segment in &recording.segments {
        let files = segment.tape.iter().chain(&segment.rollup);
        let bytes = files.map(|file| std::fs::metadata(file).map_or(0, |data| data.len())).sum();
        let has_events = segment.tape.is_some();
        match parts.last_mut() {
            Some(part) if part.has_events == has_events => {
                part.segments.1 = segment.name.segments.1;
                part.bytes += bytes;
            }
            _ => {
                let segments = segment.name.segments;
                parts.push(Part { segments, has_events, bytes, begin_unix_s: segment.name.begin_s });
            }
        }
    }
    Ok(parts)
}

/// Writes what is left of which stretch.
pub fn print_parts(out: &mut impl Write, parts: &[Part]) -> io::Result<()> {
    for part in parts {
        let numbers = numbered(part.segments);
        let what = if part.has_events { "all events" } else { "totals only, the events were deleted" };
        writeln!(out, "{numbers}: {what}, {}", HumanBytes(part.bytes))?;
    }
    Ok(())
}

/// Segments by their numbers.
pub(super) fn numbered((first, last): (u64, u64)) -> String {
    if first == last { format!("segment {first}") } else { format!("segments {first} to {last}") }
}

#[cfg(test)]
mod tests {
    use ktape_format::event::Launch;
    use ktape_format::recording::Name;
    use ktape_format::{Options, Sink as _, TapeWriter};

    use super::*;

    /// A tape with so many launches.
    fn write(path: &Path, launches: u64) {
        let mut tape = TapeWriter::create(path, &Options::batch("test")).unwrap();
        (0..launches).for_each(|_| tape.event(Launch::default()).unwrap());
        tape.finish().unwrap();
    }

    fn name(segments: (u64, u64)) -> Name {
        Name { recording: "r".to_owned(), begin_s: 0, segments }
    }

    /// Three segments of 1, 10 and 100 rows, whose rollups have as many here. `at` is done when the first of them has been read.
    fn read_while(at: impl Fn(&Path)) -> (u64, u32, Vec<Unread>) {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: String| folder.path().join(name);
        for (number, rows) in [(1, 1), (2, 10), (3, 100)] {
            write(&file(name((number, number)).tape()), rows);
            write(&file(name((number, number)).rollup()), rows);
        }
        let mut readings = 0;
        let mut done = false;
        let read = read(folder.path(), u64::default, |rows, _, tape, _| {
            *rows += tape.blocks().iter().map(|block| block.rows).sum::<u64>();
            readings += 1;
            if !std::mem::replace(&mut done, true) {
                at(folder.path());
            }
            Ok(None)
        });
        let read = read.unwrap();
        (read.all, readings, read.unread)
    }

    #[test]
    fn what_retention_deletes_meanwhile_is_read_once_and_not_told() {
        let delete = |folder: &Path, name: String| std::fs::remove_file(folder.join(name)).unwrap();
        assert_eq!(read_while(|_| ()), (111, 3, vec![]));
        assert_eq!(read_while(|folder| delete(folder, name((2, 2)).tape())), (111, 3, vec![]));
        // The rollups of the first two become one: what has been read of them is forgotten.
        let roll_up = |folder: &Path| {
            write(&folder.join(name((1, 2)).rollup()), 11);
            for number in 1..=2 {
                delete(folder, name((number, number)).tape());
                delete(folder, name((number, number)).rollup());
            }
        };
        assert_eq!(read_while(roll_up), (111, 3, vec![]));
    }

    #[test]
    fn what_cannot_be_read_is_told_and_its_rollup_read() {
        let (rows, _, unread) =
            read_while(|folder| std::fs::write(folder.join(name((3, 3)).tape()), "no tape").unwrap());
        assert_eq!((rows, unread.len(), unread[0].is_whole_file), (111, 1, true));
    }
}
