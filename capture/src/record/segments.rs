//! A continuous recording: a directory of segments, each a complete tape, on a bounded part of the disk.
//!
//! [`Segments`] takes what is recorded, as a tape does, and begins a new tape when the one that is written is long or old
//! enough, or when it is asked to. The ended one goes to the [`Keeper`](super::keeper::Keeper), a thread that closes it, rolls
//! it up and deletes what is too much: the recorder waits for none of that. Ids stay valid across segments by a
//! [`Catalog`](ktape_format::Catalog).

use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result};
use ktape_format::definition::Definition;
use ktape_format::event::Event;
use ktape_format::recording::Name;
use ktape_format::table::DefinitionKind;
use ktape_format::{Catalog, Options as TapeOptions, Sink, TapeError, TapeWriter};

use super::folder::{Folder, UNFINISHED};
use super::keeper::{ENDED, Ended, Keeper};
use super::output::Finished;

/// How often it is looked whether the segment is long enough, and whether it can be written.
const LOOK: Duration = Duration::from_secs(1);
/// So many ended segments may wait for the keeper. While they do, the one that is written grows.
const MOST_ENDED: usize = 4;

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

/// A recording that goes on from segment to segment.
pub struct Segments {
    options: Options,
    folder: Folder,
    tape_options: TapeOptions,
    catalog: Catalog,
    tape: TapeWriter,
    /// The open segment: its name, its file, and since when.
    name: Name,
    file: File,
    began: Instant,
    looked: Instant,
    /// When it may be tried again to begin another, as the last try failed.
    not_before: Instant,
    is_long: bool,
    /// Events lost in segments that were handed over.
    lost: u64,
    keeper: Keeper,
    troubles: Vec<String>,
}

impl Segments {
    /// Begins the segment that follows those in the directory.
    pub fn begin(options: Options, tape_options: TapeOptions) -> Result<Segments> {
        let folder = Folder::open(&options.directory)
            .with_context(|| format!("cannot record into {}", options.directory.display()))?;
        let recording = folder.list()?;
        let number = recording.last().saturating_add(1);
        let keeper = Keeper::begin(&options, folder.try_clone()?, recording)?;
        let (tape, name, file) = create(&folder, &tape_options, number)
            .with_context(|| format!("cannot begin a segment in {}", options.directory.display()))?;
        keeper.begun(file.try_clone()?);
        let now = Instant::now();
        Ok(Segments {
            options,
            folder,
            tape_options,
            catalog: Catalog::default(),
            tape,
            name,
            file,
            began: now,
            looked: now,
            not_before: now,
            is_long: false,
            lost: 0,
            keeper,
            troubles: Vec::new(),
        })
    }

    /// Has other limits count from now on; the directory stays what it is.
    pub fn change(&mut self, options: Options) {
        self.options = Options { directory: self.options.directory.clone(), ..options };
        self.keeper.change(&self.options);
    }

    /// Whether the open segment is long or old enough, and the next can be begun.
    pub fn is_due(&self) -> bool {
        (self.is_long || self.began.elapsed() >= self.options.time)
            && self.keeper.waiting() < MOST_ENDED
            && Instant::now() >= self.not_before
    }

    /// Ends the open segment and begins another, into which the clocks have to be read. `kept` names the definitions whose ids
    /// somebody keeps. Where no other can be begun, as on a full disk, the open one goes on, and that is told.
    pub fn rotate(&mut self, kept: impl FnOnce(&mut dyn FnMut(DefinitionKind, u32))) -> Result<bool, TapeError> {
        let (tape, name, file) = match create(&self.folder, &self.tape_options, self.name.segments.1 + 1) {
            Ok(created) => created,
            Err(error) => {
                self.not_before = Instant::now() + LOOK;
                self.keeper.make_room();
                self.trouble(format!("no new segment could be begun: {error}"));
                return Ok(false);
            }
        };
        let tape = std::mem::replace(&mut self.tape, tape);
        let name = std::mem::replace(&mut self.name, name);
        // Before the other is closed and rolled up, which may take seconds.
        self.keeper.begun(file.try_clone()?);
        self.file = file;
        (self.began, self.is_long) = (Instant::now(), false);
        self.lost += tape.lost_events();
        self.keeper.take(Ended { tape, name })?;
        self.catalog.end_tape(kept);
        self.catalog.begin_tape(&mut self.tape)?;
        Ok(true)
    }

    /// Looks every so often whether the segment is long enough, and whether it can be written.
    ///
    /// # Errors
    ///
    /// If the recording can't be kept within its bounds any more.
    pub fn tend(&mut self) -> Result<()> {
        self.tape.seal_if_due();
        if self.looked.elapsed() < LOOK {
            return Ok(());
        }
        self.looked = Instant::now();
        self.troubles.extend(self.keeper.troubles());
        anyhow::ensure!(!self.keeper.has_ended(), "{ENDED}");
        let directory = self.options.directory.display();
        anyhow::ensure!(!is_deleted(self.folder.file()), "{directory} was deleted under the recorder");
        self.is_long = self.file.metadata().is_ok_and(|data| data.len() >= self.options.size_bytes);
        if is_deleted(&self.file) {
            self.trouble(format!("{} was deleted while it was written", self.name.tape()));
            self.is_long = true;
        }
        if let Some(trouble) = self.tape.trouble() {
            let trouble = format!("a segment could not be written: {trouble}");
            self.keeper.make_room();
            self.trouble(trouble);
        }
        Ok(())
    }

    /// What went wrong since this was asked last.
    pub fn take_troubles(&mut self) -> Vec<String> {
        std::mem::take(&mut self.troubles)
    }

    /// See [`TapeWriter::offer`].
    pub fn offer<E: Event>(&mut self, row: E) -> Result<bool, TapeError> {
        let row = self.catalog.carried(row, &mut self.tape)?;
        self.tape.offer(row)
    }

    /// See [`TapeWriter::seal`].
    pub fn seal(&mut self) -> Result<(), TapeError> {
        self.tape.seal()
    }

    /// Events that no segment had room for.
    pub fn lost_events(&self) -> u64 {
        self.lost + self.tape.lost_events()
    }

    /// Definitions that are in memory.
    pub fn definitions(&self) -> usize {
        self.catalog.len()
    }

    /// Ends the last segment, and waits until all are rolled up.
    pub fn finish(self) -> Finished {
        let Segments { folder, file, tape, name, keeper, mut troubles, catalog, .. } = self;
        let deleted = is_deleted(&file).then(|| format!("{} was deleted while it was written", name.tape()));
        let closed = keeper.take(Ended { tape, name });
        let kept = keeper.finish();
        troubles.extend(kept.troubles);
        troubles.extend(closed.err().map(|error| format!("a segment could not be closed: {error}")));
        if catalog.missing() > 0 {
            troubles.push(format!("{} references to definitions that had been forgotten", catalog.missing()));
        }
        Finished { bytes: folder.bytes().unwrap_or(0), failure: kept.failure.or(deleted), troubles }
    }

    fn trouble(&mut self, what: String) {
        if !self.troubles.contains(&what) {
            self.troubles.push(what);
        }
    }
}

/// Whether a file or directory that we have open has no name any more: what is in it is lost with us.
fn is_deleted(file: &File) -> bool {
    file.metadata().is_ok_and(|data| data.nlink() == 0)
}

/// Begins the segment of this number.
fn create(folder: &Folder, options: &TapeOptions, number: u64) -> Result<(TapeWriter, Name, File), TapeError> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let name = Name { recording: folder.name().to_owned(), begin_s: now.as_secs() as i64, segments: (number, number) };
    // It has its name when it begins as a tape does: whoever is killed before leaves no file that is none.
    let part = format!("{}{UNFINISHED}", name.tape());
    let file = folder.create(&part)?;
    let options = TapeOptions { created_unix_ns: now.as_nanos() as i64, ..options.clone() };
    let tape = file.try_clone().map_err(TapeError::from).and_then(|copy| TapeWriter::new(copy, &options));
    match tape.and_then(|tape| Ok((tape, folder.rename(&part, &name.tape())?))) {
        Ok((tape, ())) => Ok((tape, name, file)),
        Err(error) => {
            // Nothing is in it yet.
            let _ = folder.remove(&part);
            Err(error)
        }
    }
}

impl Sink for Segments {
    type Error = TapeError;

    fn string(&mut self, string: &str) -> Result<u32, TapeError> {
        Ok(self.catalog.string(string))
    }

    fn define<T: Definition>(&mut self, row: T) -> Result<u32, TapeError> {
        self.catalog.define(row, &mut self.tape)
    }

    #[inline]
    fn event<E: Event>(&mut self, row: E) -> Result<(), TapeError> {
        self.catalog.event(row, &mut self.tape)
    }
}

#[cfg(test)]
mod tests;
