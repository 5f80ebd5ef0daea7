//! Keeps a recording on its part of the disk: closes segments that ended, rolls them up, deletes what is too much, and makes
//! one rollup of many.
//!
//! All of that is done by one thread, which the recorder never waits for until its end. The order makes every step safe
//! against a kill or a power loss: a rollup is on the disk under its name before its segment is deleted, and a rollup of
//! several before those are. At every instant the names say what counts ([`ktape_format::recording`]). What a recorder that
//! was killed has left undone, the next does when it begins.
//!
//! What goes wrong is told at once ([`Keeper::troubles`]). A thread that has ended, which only a fault of ours makes it do, is not
//! begun anew: what it stumbled over is still there, and nobody would close segments and delete old ones. The recorder ends then, and says so;
//! whoever begins it anew has a keeper that does what was left undone.

use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SendError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result};
use ktape_format::header::HEADER_BYTES;
use ktape_format::recording::{Name, Recording, Segment};
use ktape_format::rollup::Digest;
use ktape_format::{Options as TapeOptions, Tape, TapeError, TapeWriter};
use rustix::fs::{FallocateFlags, fallocate};

use super::folder::{Folder, UNFINISHED, bytes};
use super::segments::Options;

/// A day has so many rollups before they become one; a day that is over has one.
const MOST_ROLLUPS: usize = 32;
/// Room that is kept for the rollup without which nothing may be deleted from a full disk.
const RESERVE_BYTES: u64 = 4 << 20;
/// What keeps it.
const RESERVE: &str = "reserve.ktape.part";
/// The thread leaves the processor to others.
const NICE: i32 = 10;

/// How often it is looked whether a segment has become too old, at least and at most.
const LOOK_AT_AGE: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(60)];

/// A segment that is not written any more, and not closed.
pub(super) struct Ended {
    pub(super) tape: TapeWriter,
    pub(super) name: Name,
}

enum Job {
    /// A segment has its name, which is to be on the disk.
    Begun(File),
    Ended(Box<Ended>),
    MakeRoom,
    Change(Options),
    #[cfg(test)]
    Fail,
}

/// What went wrong.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pub(super) failure: Option<String>,
    pub(super) troubles: Vec<String>,
}

/// What is said when the thread is no more.
pub(super) const ENDED: &str = "the thread that keeps the recording has ended";

/// The thread, from outside.
pub(super) struct Keeper {
    jobs: Sender<Job>,
    waiting: Arc<AtomicUsize>,
    /// Whether room was asked for and not made yet.
    is_room_asked: Arc<AtomicBool>,
    told: Receiver<String>,
    thread: JoinHandle<Option<String>>,
}

impl Keeper {
    /// Begins the thread, with what was left in the folder.
    pub(super) fn begin(options: &Options, folder: Folder, left: Recording) -> std::io::Result<Keeper> {
        let (jobs, receiver) = channel();
        let (troubles, told) = channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let is_room_asked = Arc::new(AtomicBool::new(false));
        let mut worker = Worker {
            options: options.clone(),
            folder,
            ended: left.last(),
            failure: None,
            troubles,
            waiting: waiting.clone(),
            is_room_asked: is_room_asked.clone(),
        };
        // Before anything new is begun.
        worker.clear();
        let thread = std::thread::Builder::new().name("ktape-keeper".into()).spawn(move || worker.run(&receiver))?;
        Ok(Keeper { jobs, waiting, is_room_asked, told, thread })
    }

    /// How many segments wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Whether the thread is no more.
    pub(super) fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// What went wrong since this was asked last.
    pub(super) fn troubles(&self) -> Vec<String> {
        self.told.try_iter().collect()
    }

    /// Sees to it that a segment that was begun is on the disk, header, name and all.
    pub(super) fn begun(&self, file: File) {
        // A thread that is no more is noticed by whoever looks.
        let _ = self.jobs.send(Job::Begun(file));
    }

    /// Takes a segment over. Where there is no thread any more, it is closed as it is.
    pub(super) fn take(&self, ended: Ended) -> Result<(), TapeError> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        match self.jobs.send(Job::Ended(Box::new(ended))) {
            Err(SendError(Job::Ended(ended))) => ended.tape.finish().map(|_| ()),
            _ => Ok(()),
        }
    }

    /// Has the oldest segment deleted, as the disk is full.
    pub(super) fn make_room(&self) {
        // Who asks every second while the thread is at something else means one segment and not one a second.
        if !self.is_room_asked.swap(true, Ordering::Relaxed) {
            // Likewise.
            let _ = self.jobs.send(Job::MakeRoom);
        }
    }

    /// Has other limits count from now on.
    pub(super) fn change(&self, options: &Options) {
        // Likewise.
        let _ = self.jobs.send(Job::Change(options.clone()));
    }

    /// Waits until all is done.
    pub(super) fn finish(self) -> Kept {
        let Keeper { jobs, thread, told, .. } = self;
        drop(jobs);
        let failure = thread.join().unwrap_or_else(|panic| {
            let why = panic.downcast_ref::<String>().cloned();
            let why = why.or_else(|| panic.downcast_ref().map(|why: &&str| (*why).to_owned())).unwrap_or_default();
            Some(format!("{ENDED}: {why}"))
        });
        Kept { failure, troubles: told.try_iter().collect() }
    }
}

/// Whether something failed for want of room on the disk.
fn is_full(error: &anyhow::Error) -> bool {
    let is_full = |error: &std::io::Error| matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded);
    error.chain().any(|cause| match (cause.downcast_ref::<std::io::Error>(), cause.downcast_ref::<TapeError>()) {
        (Some(error), _) | (_, Some(TapeError::Io(error))) => is_full(error),
        _ => false,
    })
}

struct Worker {
    options: Options,
    folder: Folder,
    /// The last segment that is not written any more.
    ended: u64,
    /// Why a segment could not be closed, if so.
    failure: Option<String>,
    troubles: Sender<String>,
    waiting: Arc<AtomicUsize>,
    is_room_asked: Arc<AtomicBool>,
}

impl Worker {
    fn run(mut self, jobs: &Receiver<Job>) -> Option<String> {
        // The calling thread; that it may not is no reason to do less.
        let _ = rustix::process::setpriority_process(None, NICE);
        // Tapes are read by this thread alone, not by all processors of a node that has other work.
        let alone = rayon::ThreadPoolBuilder::new().num_threads(1).use_current_thread().build();
        if let Err(error) = &alone {
            self.trouble(format!("tapes are read on all processors: {error}"));
        }
        self.reserve();
        self.tidy();
        loop {
            let job = match jobs.recv_timeout(self.look_at_age_every()) {
                Ok(job) => job,
                Err(RecvTimeoutError::Timeout) => {
                    self.delete_the_old();
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => break,
            };
            match job {
                Job::Begun(file) => {
                    if let Err(error) = file.sync_all().and_then(|()| self.folder.sync()) {
                        self.trouble(format!("a segment may not outlast a power loss: {error}"));
                    }
                }
                Job::Ended(ended) => {
                    self.ended = ended.name.segments.1;
                    if let Err(error) = self.close(*ended) {
                        let failure = format!("{error:#}");
                        self.trouble(failure.clone());
                        self.failure = Some(failure);
                    }
                    self.tidy();
                    self.waiting.fetch_sub(1, Ordering::Relaxed);
                }
                Job::MakeRoom => {
                    self.is_room_asked.store(false, Ordering::Relaxed);
                    self.make_room();
                    self.tidy();
                }
                Job::Change(options) => {
                    self.options = options;
                    self.tidy();
                }
                #[cfg(test)]
                Job::Fail => panic!("as a test asked for"),
            }
        }
        // That it is not there is all that is wanted.
        let _ = self.folder.remove(RESERVE);
        self.failure
    }

    fn look_at_age_every(&self) -> Duration {
        let [least, most] = LOOK_AT_AGE;
        self.options.keep_age.map_or(most, |age| (age / 8).clamp(least, most))
    }

    /// Deletes what has become too old while no segment ended.
    fn delete_the_old(&mut self) {
        if self.options.keep_age.is_some()
            && let Err(error) = self.retain().and_then(|()| self.merge())
        {
            self.trouble(format!("{error:#}"));
        }
    }

    /// Whether a segment has nothing, not even a beginning, as a power loss leaves it that comes before it is on the disk.
    fn is_void(&self, name: &str) -> bool {
        let mut header = Vec::new();
        let read = self.folder.read(name).and_then(|file| file.take(HEADER_BYTES as u64).read_to_end(&mut header));
        read.is_ok() && header.iter().all(|byte| *byte == 0)
    }

    /// Deletes what a recorder that was killed has left half done.
    fn clear(&mut self) {
        let unfinished = self.folder.unfinished().unwrap_or_default();
        for name in unfinished {
            self.remove(&name);
        }
        if let Ok(recording) = self.folder.list() {
            recording.superseded.iter().for_each(|path| self.remove_path(path));
            for segment in recording.segments.iter().filter(|segment| segment.tape.is_some()) {
                let name = segment.name.tape();
                if self.is_void(&name) {
                    self.trouble(format!("{name} was empty, as after a power loss, and is deleted"));
                    self.remove(&name);
                }
            }
        }
    }

    /// Sees to it that the reserve is there. On a full disk it can't be, and is tried again later.
    fn reserve(&self) {
        if let Ok(file) = self.folder.create(RESERVE)
            && fallocate(&file, FallocateFlags::empty(), 0, RESERVE_BYTES).is_err()
        {
            let _ = self.folder.remove(RESERVE);
        }
    }

    /// Closes a segment. On a full disk the oldest ones make room for it.
    fn close(&mut self, Ended { mut tape, name }: Ended) -> Result<()> {
        while let Err(error) = tape.seal().map_err(anyhow::Error::from) {
            if !is_full(&error) || !self.make_room() {
                return Err(error).with_context(|| name.tape());
            }
        }
        tape.finish().with_context(|| name.tape())?;
        Ok(())
    }

    /// All that can be done now.
    fn tidy(&mut self) {
        if let Err(error) = self.try_tidy() {
            self.trouble(format!("{error:#}"));
        }
    }

    fn try_tidy(&mut self) -> Result<()> {
        for segment in self.folder.list()?.segments {
            let is_written = segment.name.segments.1 > self.ended;
            if !is_written && segment.tape.is_some() && segment.rollup.is_none() {
                while let Err(error) = self.roll_up(std::slice::from_ref(&segment)) {
                    // Room helps only against a full disk: a segment that can't be read must not cost the others. What is kept
                    // for this is used first.
                    let makes_room = is_full(&error) && (self.folder.remove(RESERVE).is_ok() || self.make_room());
                    if !makes_room {
                        self.trouble(format!("{}: no rollup, so it is kept: {error:#}", segment.name.tape()));
                        break;
                    }
                }
            }
        }
        self.retain()?;
        self.merge()?;
        self.reserve();
        Ok(())
    }

    /// Writes one rollup of these segments, under the name that says which they are.
    fn roll_up(&mut self, segments: &[Segment]) -> Result<()> {
        let (Some(first), Some(last)) = (segments.first(), segments.last()) else { return Ok(()) };
        let name = Name { segments: (first.name.segments.0, last.name.segments.1), ..first.name.clone() };
        let mut digest = Digest::default();
        let mut options = TapeOptions::batch(concat!("capture ", env!("CARGO_PKG_VERSION")));
        for segment in segments {
            let file = match &segment.tape {
                Some(_) => segment.name.tape(),
                None => segment.name.rollup(),
            };
            let tape = self.folder.read(&file).map_err(Into::into).and_then(Tape::of_file);
            let tape = tape.with_context(|| file.clone())?;
            if segment.name == first.name {
                let header = tape.header();
                options.clock = header.clock;
                options.created_unix_ns = header.created_unix_ns;
                options.boot_id = header.boot_id;
                options.host.clone_from(&header.host);
            }
            digest.add_tape(&tape).with_context(|| file)?;
        }
        let part = format!("{}{UNFINISHED}", name.rollup());
        let written = self.folder.create(&part).map_err(Into::into).and_then(|file| {
            let mut tape = TapeWriter::new(file, &options)?;
            digest.write(&mut tape)?;
            tape.finish()
        });
        let named = written.map_err(anyhow::Error::from).and_then(|_| Ok(self.folder.rename(&part, &name.rollup())?));
        if named.is_err() {
            // What is not there need not be removed.
            let _ = self.folder.remove(&part);
        }
        named.with_context(|| name.rollup())?;
        Ok(self.folder.sync()?)
    }

    /// Deletes the oldest segments, so that the recording has its size and age when the open one is at its longest.
    fn retain(&mut self) -> Result<()> {
        let Options { size_bytes, keep_bytes, keep_age, .. } = self.options;
        let recording = self.folder.list()?;
        let ended = self.ended;
        let closed = |segment: &&Segment| segment.name.segments.1 <= ended;
        let files = |segment: &Segment| segment.tape.iter().chain(&segment.rollup).map(|path| bytes(path)).sum::<u64>();
        let mut total = size_bytes + recording.segments.iter().filter(closed).map(files).sum::<u64>();
        let mut removed = false;
        for segment in recording.segments.iter().filter(closed) {
            let (Some(tape), Some(_)) = (&segment.tape, &segment.rollup) else { continue };
            let is_too_much = keep_bytes.is_some_and(|most| total > most);
            let age =
                std::fs::metadata(tape).ok().and_then(|data| data.modified().ok()).and_then(|at| at.elapsed().ok());
            let is_too_old = keep_age.zip(age).is_some_and(|(most, age)| age > most);
            if is_too_much || is_too_old {
                total -= bytes(tape).min(total);
                self.remove_path(tape);
                removed = true;
            }
        }
        if removed {
            self.folder.sync()?;
        }
        Ok(())
    }

    /// Deletes the oldest segment that has a rollup, where segments are deleted at all. False if there is none.
    fn make_room(&mut self) -> bool {
        if self.options.keep_bytes.is_none() && self.options.keep_age.is_none() {
            return false;
        }
        let Ok(recording) = self.folder.list() else { return false };
        let oldest = recording.segments.iter().find_map(|segment| {
            let is_closed = segment.name.segments.1 <= self.ended && segment.rollup.is_some();
            segment.tape.as_ref().filter(|_| is_closed)
        });
        let Some(oldest) = oldest else { return false };
        self.trouble("the disk was full: older segments were deleted before their time".to_owned());
        self.remove_path(oldest);
        !oldest.exists()
    }

    /// Makes one rollup of those of a day, and of those of a month that is over. Only what lies together, of segments that are
    /// deleted, and of one boot, as times of another are of another clock.
    fn merge(&mut self) -> Result<()> {
        let recording = self.folder.list()?;
        let Some(newest) = recording.segments.last().map(|segment| segment.name.clone()) else { return Ok(()) };
        let mut groups: Vec<(Group, Vec<Segment>)> = Vec::new();
        for segment in recording.segments {
            let group = match (&segment.tape, &segment.rollup) {
                // One that can't be read stays as it is, and is not put together with others.
                (None, Some(_)) => self.group(&segment, &newest).unwrap_or(Group::None),
                _ => Group::None,
            };
            match groups.last_mut() {
                Some((last, segments))
                    if *last == group
                        && group != Group::None
                        && segments.iter().all(|other| other.name.recording == segment.name.recording) =>
                {
                    segments.push(segment);
                }
                _ => groups.push((group, vec![segment])),
            }
        }
        for (group, segments) in groups {
            let is_over = !matches!(group, Group::Day(_, day) if day == newest.day());
            if group != Group::None && segments.len() > 1 && (is_over || segments.len() > MOST_ROLLUPS) {
                self.roll_up(&segments)?;
                segments.iter().filter_map(|segment| segment.rollup.as_ref()).for_each(|path| self.remove_path(path));
            }
        }
        Ok(())
    }

    fn group(&self, segment: &Segment, newest: &Name) -> Result<Group> {
        let file = segment.name.rollup();
        let tape = self.folder.read(&file).map_err(Into::into).and_then(Tape::of_file).with_context(|| file)?;
        let boot = tape.header().boot_id;
        Ok(match segment.name.month() {
            month if month < newest.month() => Group::Month(boot, month),
            _ => Group::Day(boot, segment.name.day()),
        })
    }

    fn remove_path(&mut self, path: &std::path::Path) {
        if let Some(name) = path.file_name().and_then(|name| name.to_str()) {
            self.remove(name);
        }
    }

    fn remove(&mut self, name: &str) {
        if let Err(error) = self.folder.remove(name) {
            self.trouble(format!("{name} could not be deleted: {error}"));
        }
    }

    fn trouble(&mut self, what: String) {
        // Nobody listens any more where the recorder has ended.
        let _ = self.troubles.send(what);
    }
}

/// Which rollups become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Group {
    None,
    Day([u8; 16], i64),
    Month([u8; 16], (i64, u32)),
}

#[cfg(test)]
mod tests;
