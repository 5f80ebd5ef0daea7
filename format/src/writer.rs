//! Writes a tape.
//!
//! A definition or an event becomes a record in the open half (`staging.rs`): a few stores. A full half is handed to
//! the sealer (`sealer.rs`), a thread that turns it into a block of the file while the other half fills. Where both
//! are full, an importer waits; a recorder must not, so what comes then is counted, and told as a loss row as soon as
//! there is room. Definitions are never lost: those that come then wait, and are staged before anything else.
//! [`TapeWriter::finish`] adds the end mark. Dropping a writer without it leaves a tape that says that it was cut off.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use memmap2::{MmapMut, MmapOptions};

use crate::Sink;
use crate::block::BlockEncoder;
use crate::definition::{Definition, DefinitionVisitor, Definitions, Index, visit_definitions};
use crate::error::TapeError;
use crate::event::{Event, Events, KindVisitor, Loss, visit_kinds};
use crate::header::{ClockKind, FileHeader, MAJOR, MINOR, TailKind};
use crate::sealer::{Done, Job, Sealer};
use crate::staging::{Halves, Lost, OpenHalf, frame, frame_row, record_bytes};
use crate::table::{DefinitionKind, Table as _};

pub use crate::sealer::Written;

/// The shortest half: any row fits into it.
const MIN_HALF_BYTES: u32 = 1 << 10;
/// The longest half: its rows are fewer than a block may have (`block::MAX_ROWS`).
const MAX_HALF_BYTES: u32 = 16 << 20;
/// A half of this length makes a block of 65,536 launches: fewer compress worse, more gain nothing.
const DEFAULT_HALF_BYTES: u32 = 4 << 20;
/// The longest string that a tape takes.
const MAX_STRING_BYTES: usize = 16 << 20;
/// How much of an error's text stands in a loss row.
const MAX_CAUSE_BYTES: usize = 200;

/// How a tape is written.
#[derive(Clone, Debug)]
pub struct Options {
    /// What the times count on.
    pub clock: ClockKind,
    /// When the tape is begun; 0 for not known.
    pub created_unix_ns: i64,
    /// The boot of this host; zeros for not known.
    pub boot_id: [u8; 16],
    /// The recording host.
    pub host: String,
    /// The program that writes.
    pub writer: String,
    /// How much is staged before it becomes a block, twice over; from 1 KiB to 16 MiB.
    pub half_bytes: u32,
    /// Keep the open tail in the file, so that it survives a kill; where the file's filesystem cannot (it has no shared
    /// mappings, or is a network's), the header says so.
    pub staged: bool,
    /// What happens to an event that comes while both halves are full.
    pub when_full: WhenFull,
    /// Seal what has been open for a second, and wait until the disk has it every so often; `None` for only at the end.
    pub sync_every: Option<Duration>,
}

/// What happens to an event that comes while the tape cannot be written fast enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// The caller waits; where the tape cannot be written, it gets the error. For programs that read from a file.
    Wait,
    /// The event is lost and counted; the caller goes on. For recorders.
    Lose,
}

impl Options {
    /// For a program that turns one file into another: no staging, nothing that differs from run to run.
    pub fn batch(writer: &str) -> Options {
        Options {
            clock: ClockKind::Unknown,
            created_unix_ns: 0,
            boot_id: [0; 16],
            host: String::new(),
            writer: writer.to_owned(),
            half_bytes: DEFAULT_HALF_BYTES,
            staged: false,
            when_full: WhenFull::Wait,
            sync_every: None,
        }
    }

    /// For a recorder: staged, never waiting, on the disk every 5 seconds; the present time and this boot.
    pub fn live(writer: &str, clock: ClockKind, host: &str) -> Options {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Options {
            clock,
            created_unix_ns: now.as_nanos() as i64,
            boot_id: this_boot(),
            host: host.to_owned(),
            staged: true,
            when_full: WhenFull::Lose,
            sync_every: Some(Duration::from_secs(5)),
            ..Options::batch(writer)
        }
    }
}

/// A tape being written. Takes definitions and events as a [`Sink`].
pub struct TapeWriter {
    index: Index,
    halves: Arc<Halves>,
    open: Option<OpenHalf>,
    /// Whether each half can be opened.
    free: [bool; 2],
    /// The half that was opened last.
    last: usize,
    /// The number of the next block to be begun.
    sequence: u64,
    /// Records of definitions that wait for a half, each whole.
    waiting: VecDeque<Vec<u8>>,
    /// Whether a record too long for a half is being sealed. Nothing may be staged behind it before that is done: if
    /// the writer is killed, the half could not be read without its block.
    long_under_way: bool,
    /// The half behind that record's block: empty until the block is written, and there to count what is lost meanwhile.
    behind_long: Option<OpenHalf>,
    lost: Lost,
    /// How many events the loss row tells of that waits for a half.
    telling: u64,
    /// How many events the loss rows before that tell of.
    told: u64,
    when_full: WhenFull,
    due: Arc<AtomicBool>,
    /// Whether the sealer could not write the block that is next.
    stuck: bool,
    /// Why not; kept for the loss row.
    trouble: Option<String>,
    /// `None` once the writer is to be no more.
    jobs: Option<SyncSender<Job>>,
    done: Receiver<io::Result<Done>>,
    under_way: usize,
    sealer: Option<JoinHandle<()>>,
}

impl TapeWriter {
    /// Begins a tape at `path`. An existing file is replaced, unless another process is writing it.
    pub fn create(path: &Path, options: &Options) -> Result<TapeWriter, TapeError> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        TapeWriter::new(file, options)
    }

    /// Begins a tape in an open, writable file, which is emptied first, and left empty where that fails.
    pub fn new(file: File, options: &Options) -> Result<TapeWriter, TapeError> {
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(TapeError::Locked),
            // A filesystem without locks cannot tell; the writer goes on.
            Err(TryLockError::Error(_)) => {}
        }
        file.set_len(0)?;
        let emptied = file.try_clone()?;
        let begun = TapeWriter::begin(file, options);
        if begun.is_err() {
            // What a full disk had room for is no tape. A file that can't be emptied again is told of by the error all the same.
            let _ = emptied.set_len(0);
        }
        begun
    }

    fn begin(mut file: File, options: &Options) -> Result<TapeWriter, TapeError> {
        let half_bytes = options.half_bytes.clamp(MIN_HALF_BYTES, MAX_HALF_BYTES) as usize / 64 * 64;
        let mut header = FileHeader {
            major: MAJOR,
            minor: MINOR,
            clock: options.clock,
            created_unix_ns: options.created_unix_ns,
            boot_id: options.boot_id,
            host: options.host.clone(),
            writer: options.writer.clone(),
            tail: TailKind::None,
            staging_half_bytes: 0,
        };
        let mut halves = None;
        if options.staged {
            header = FileHeader { tail: TailKind::Mapped, staging_half_bytes: half_bytes as u64, ..header };
            write_front(&mut file, &header)?;
            halves = map_halves(&file, &header);
            if halves.is_none() {
                header = FileHeader { tail: TailKind::Memory, staging_half_bytes: 0, ..header };
                file.set_len(0)?;
            }
        }
        let halves = match halves {
            Some(halves) => halves,
            None => {
                write_front(&mut file, &header)?;
                Halves::new(MmapMut::map_anon(2 * half_bytes)?, 0, half_bytes)
            }
        };
        let halves = Arc::new(halves);
        let due = Arc::new(AtomicBool::new(false));
        let sealer = Sealer {
            file,
            halves: halves.clone(),
            due: due.clone(),
            offset: header.blocks_offset(),
            allocate_ahead: options.staged,
            staging_bytes: 2 * header.staging_half_bytes,
            sync_every: options.sync_every,
            encoder: BlockEncoder::new()?,
        };
        // The writer never sends when more than both halves and a long record are under way: sending does not wait.
        let (jobs, jobs_receiver) = sync_channel(8);
        let (done_sender, done) = channel();
        let sealer = std::thread::Builder::new()
            .name("ktape-sealer".into())
            .spawn(move || sealer.run(jobs_receiver, done_sender))?;
        Ok(TapeWriter {
            index: Index::default(),
            open: Some(halves.open(0, 0, 0)),
            halves,
            free: [false, true],
            last: 0,
            sequence: 1,
            waiting: VecDeque::new(),
            long_under_way: false,
            behind_long: None,
            lost: Lost::default(),
            telling: 0,
            told: 0,
            when_full: options.when_full,
            due,
            stuck: false,
            trouble: None,
            jobs: Some(jobs),
            done,
            under_way: 0,
            sealer: Some(sealer),
        })
    }

    /// Turns what is open into a block, and waits until it is in the file. After an error (a full disk) the rows are
    /// still staged; sealing again tries again.
    pub fn seal(&mut self) -> Result<(), TapeError> {
        loop {
            // What waits or was lost needs a half of its own first.
            if !self.waiting.is_empty() || self.lost.events > 0 {
                self.open_or_wait()?;
            }
            self.hand_over();
            while self.under_way > 0 {
                self.wait()?;
            }
            if self.waiting.is_empty() && self.lost.events == 0 {
                return Ok(());
            }
        }
    }

    /// Seals what has been open for a second, without waiting for it. A recorder calls this when nothing comes, so that
    /// what came last reaches the disk.
    pub fn seal_if_due(&mut self) {
        self.take_done();
        if self.due.swap(false, Ordering::Relaxed) && self.free[1 - self.last] {
            self.hand_over();
        }
    }

    /// Seals what is open and marks the tape as complete. When this returns, the tape is on the disk.
    pub fn finish(mut self) -> Result<Written, TapeError> {
        self.seal()?;
        self.send(Job::Finish);
        loop {
            if let Some(written) = self.wait()? {
                return Ok(written);
            }
        }
    }

    /// Writes definitions without asking whether they are defined already, so that each gets the next id of its kind, and
    /// events as they are. So the parts of another tape keep their ids, if nothing is defined otherwise in between.
    pub fn restore(&mut self, definitions: &Definitions, events: &Events) -> Result<(), TapeError> {
        struct Restore<'a>(&'a mut TapeWriter, &'a Definitions, &'a Events);
        impl DefinitionVisitor for Restore<'_> {
            type Error = TapeError;
            fn visit<T: Definition>(&mut self) -> Result<(), TapeError> {
                T::table(self.1).rows().try_for_each(|row| self.0.add_definition(row).map(|_| ()))
            }
        }
        impl KindVisitor for Restore<'_> {
            type Error = TapeError;
            fn visit<E: Event>(&mut self) -> Result<(), TapeError> {
                E::table(self.2).rows().try_for_each(|row| self.0.event(row))
            }
        }
        definitions.strings.iter().try_for_each(|string| self.add_string(string).map(|_| ()))?;
        let mut restore = Restore(self, definitions, events);
        visit_definitions(&mut restore)?;
        visit_kinds(&mut restore)
    }

    fn add_string(&mut self, string: &str) -> Result<u32, TapeError> {
        if string.len() > MAX_STRING_BYTES {
            return Err(TapeError::StringTooLong { bytes: string.len(), most: MAX_STRING_BYTES });
        }
        let record = string_record(string);
        self.make_room_for_definition(record.len())?;
        let id = self.index.add_string(string);
        self.stage_definition(record)?;
        Ok(id)
    }

    fn add_definition<T: Definition>(&mut self, row: T) -> Result<u32, TapeError> {
        self.make_room_for_definition(record_bytes(T::STAGED_BYTES))?;
        let id = self.index.add(row);
        let mut record = Vec::new();
        frame_row(&row, &mut record);
        self.stage_definition(record)?;
        Ok(id)
    }

    /// Fails where the definition could only wait and its writer is one that can be told to try again: then it has no
    /// id yet.
    fn make_room_for_definition(&mut self, bytes: usize) -> Result<(), TapeError> {
        let has_room = self.open.as_ref().is_some_and(|open| open.fits(bytes)) && !self.due.load(Ordering::Relaxed);
        if has_room { Ok(()) } else { self.make_room(bytes) }
    }

    fn stage_definition(&mut self, record: Vec<u8>) -> Result<(), TapeError> {
        if let Some(open) = &mut self.open
            && open.fits(record.len())
        {
            open.record(&record);
            return Ok(());
        }
        self.waiting.push_back(record);
        match self.when_full {
            WhenFull::Wait => self.open_or_wait()?,
            WhenFull::Lose => {
                self.try_open();
            }
        }
        Ok(())
    }

    /// Hands the open half over and opens the other, if a record of `bytes` does not fit or the half is due.
    fn make_room(&mut self, bytes: usize) -> Result<(), TapeError> {
        self.take_done();
        // Never so that there is no half to go on with.
        let due = self.due.swap(false, Ordering::Relaxed) && self.free[1 - self.last];
        if self.open.as_ref().is_some_and(|open| !open.fits(bytes) || due) {
            self.hand_over();
        }
        match self.when_full {
            WhenFull::Wait => self.open_or_wait()?,
            WhenFull::Lose => {
                self.try_open();
            }
        }
        Ok(())
    }

    /// Gives the open half to the sealer, if it has a record.
    fn hand_over(&mut self) {
        if let Some(open) = self.open.take_if(|open| open.used() > 0) {
            self.send(Job::Half { half: open.half(), bytes: open.used() });
        }
    }

    fn send(&mut self, job: Job) {
        self.under_way += 1;
        if let Some(jobs) = &self.jobs {
            // That nobody takes it shows when its end is waited for.
            let _ = jobs.send(job);
        }
    }

    /// Opens a half, waiting for one if need be.
    fn open_or_wait(&mut self) -> Result<(), TapeError> {
        while !self.try_open() {
            self.wait()?;
        }
        Ok(())
    }

    /// Opens a half if one is free, and stages what has waited for it. Returns whether a half is open and nothing waits.
    fn try_open(&mut self) -> bool {
        loop {
            if self.long_under_way {
                return false;
            }
            if self.open.is_none() {
                self.open = self.behind_long.take();
            }
            if let Some(open) = &mut self.open {
                while self.waiting.front().is_some_and(|record| open.fits(record.len())) {
                    open.record(&self.waiting.pop_front().unwrap_or_default());
                }
                if self.waiting.is_empty() {
                    let telling = std::mem::take(&mut self.telling);
                    self.told += telling;
                    if telling > 0 {
                        // Killed in between, the writer has told twice; the other way round it would not at all.
                        self.halves.set_lost(self.last, self.lost.events);
                    }
                    return self.tell_loss();
                }
                self.hand_over();
            }
            let untold = self.telling + self.lost.events;
            if let Some(empty) = self.open.take() {
                // What does not fit into an empty half makes a block of its own, which takes the half's number.
                let record = self.waiting.pop_front().unwrap_or_default();
                self.long_under_way = true;
                self.send(Job::Long(record));
                self.behind_long = Some(self.halves.open(empty.half(), self.sequence, untold));
                self.sequence += 1;
                return false;
            }
            // Blocks are sealed from the halves in turn, but for a long record, which has none.
            let next = 1 - self.last;
            if !self.free[next] {
                return false;
            }
            self.free[next] = false;
            self.last = next;
            self.open = Some(self.halves.open(next, self.sequence, untold));
            self.sequence += 1;
        }
    }

    /// Stages a loss row for what was lost, if anything was. Returns whether that is done.
    fn tell_loss(&mut self) -> bool {
        if self.lost.events == 0 {
            return true;
        }
        let cause = match self.trouble.take() {
            Some(trouble) => format!("the tape could not be written: {trouble}"),
            None => "the tape was not written fast enough".to_owned(),
        };
        let cause = &cause[..cause.floor_char_boundary(MAX_CAUSE_BYTES)];
        let cause = self.index.find_string(cause).unwrap_or_else(|| {
            self.waiting.push_back(string_record(cause));
            self.index.add_string(cause)
        });
        let Lost { events, kind, first_ns, last_ns } = std::mem::take(&mut self.lost);
        let duration_ns = last_ns.wrapping_sub(first_ns) as u64;
        let loss = Loss { start_ns: first_ns, duration_ns, count: events, kind, cause, ..Loss::default() };
        let mut record = Vec::new();
        frame_row(&loss, &mut record);
        // Like a definition: in front of all that comes later, and into the next half if need be.
        self.waiting.push_back(record);
        self.telling = events;
        self.try_open()
    }

    /// Takes in what the sealer has done meanwhile.
    fn take_done(&mut self) {
        while let Ok(done) = self.done.try_recv() {
            // An error is told again when somebody waits.
            let _ = self.take(done);
        }
    }

    /// Waits for the sealer to do one thing more. What it could not do before it tries again first.
    fn wait(&mut self) -> Result<Option<Written>, TapeError> {
        while let Ok(done) = self.done.try_recv() {
            if let Ok(done) = self.take(done) {
                return Ok(done);
            }
        }
        if self.stuck
            && let Some(jobs) = &self.jobs
        {
            // That nobody takes it shows in the next line.
            let _ = jobs.send(Job::Retry);
        }
        match self.done.recv() {
            Ok(done) => Ok(self.take(done)?),
            Err(_) => Err(io::Error::other("the thread that writes the tape has ended").into()),
        }
    }

    fn take(&mut self, done: io::Result<Done>) -> io::Result<Option<Written>> {
        let done = match done {
            Ok(done) => done,
            Err(error) => {
                self.stuck = true;
                self.trouble = Some(error.to_string());
                return Err(error);
            }
        };
        self.stuck = false;
        if self.lost.events == 0 {
            self.trouble = None;
        }
        self.under_way -= 1;
        match done {
            Done::Half(half) => self.free[half] = true,
            Done::Long => self.long_under_way = false,
            Done::Finished(written) => return Ok(Some(written)),
        }
        Ok(None)
    }
}

impl Sink for TapeWriter {
    type Error = TapeError;

    fn string(&mut self, string: &str) -> Result<u32, TapeError> {
        match self.index.find_string(string) {
            Some(id) => Ok(id),
            None => self.add_string(string),
        }
    }

    fn define<T: Definition>(&mut self, row: T) -> Result<u32, TapeError> {
        match self.index.find(&row) {
            Some(id) => Ok(id),
            None => self.add_definition(row),
        }
    }

    #[inline]
    fn event<E: Event>(&mut self, row: E) -> Result<(), TapeError> {
        if !self.due.load(Ordering::Relaxed)
            && let Some(open) = &mut self.open
            && open.row(&row)
        {
            return Ok(());
        }
        self.event_without_room(row)
    }

    /// As the tape could not be written fast enough or not at all.
    #[inline]
    fn lost_events(&self) -> u64 {
        self.told + self.telling + self.lost.events
    }
}

impl TapeWriter {
    /// Records an event if there is room for it; false, and not counted, if there is none. For what its caller can say later.
    pub fn offer<E: Event>(&mut self, row: E) -> Result<bool, TapeError> {
        if self.open.as_mut().is_some_and(|open| open.row(&row)) {
            return Ok(true);
        }
        self.make_room(record_bytes(E::STAGED_BYTES))?;
        Ok(self.open.as_mut().is_some_and(|open| open.row(&row)))
    }

    /// Why what is next could not be written, if it could not.
    pub fn trouble(&mut self) -> Option<&str> {
        self.take_done();
        self.trouble.as_deref().filter(|_| self.stuck)
    }

    /// An event for which another half must be opened first, or that is lost.
    #[cold]
    fn event_without_room<E: Event>(&mut self, row: E) -> Result<(), TapeError> {
        self.make_room(record_bytes(E::STAGED_BYTES))?;
        if !self.open.as_mut().is_some_and(|open| open.row(&row)) {
            self.lost.count(&row);
            self.halves.set_lost(self.last, self.telling + self.lost.events);
        }
        Ok(())
    }
}

impl Drop for TapeWriter {
    /// What was handed over is still sealed; what is open stays staged.
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(sealer) = self.sealer.take() {
            let _ = sealer.join();
        }
    }
}

/// A string's record.
fn string_record(string: &str) -> Vec<u8> {
    let mut record = Vec::new();
    frame(DefinitionKind::String as u16, string.as_bytes(), &mut record);
    record
}

/// Writes all that stands before the first block.
fn write_front(file: &mut File, header: &FileHeader) -> io::Result<()> {
    // Zeros are written, not left as a hole: a store into a hole on a full disk kills the process.
    let mut front = header.to_bytes().to_vec();
    front.resize(header.blocks_offset() as usize, 0);
    file.seek(SeekFrom::Start(0))?;
    file.write_all(&front)
}

/// Maps the staging area of a file whose front is written; `None` where its filesystem cannot, or should not.
fn map_halves(file: &File, header: &FileHeader) -> Option<Halves> {
    if is_on_a_network(file) {
        return None;
    }
    // SAFETY: the file is locked by this writer, and its first bytes are never cut off while it lives.
    let map = unsafe { MmapOptions::new().len(header.blocks_offset() as usize).map_mut(file).ok()? };
    Some(Halves::new(map, FileHeader::STAGING_OFFSET as usize, header.staging_half_bytes as usize))
}

/// Whether a store into a mapping of the file may have to wait for another machine, or not be seen there.
#[cfg(target_os = "linux")]
fn is_on_a_network(file: &File) -> bool {
    // Of linux/magic.h, and Lustre's own: NFS, SMB, SMB2, CIFS, Ceph, AFS, 9P, Lustre.
    const NETWORKS: [u32; 8] =
        [0x6969, 0x517b, 0xfe53_4d42, 0xff53_4d42, 0x00c3_6400, 0x5346_414f, 0x0102_1997, 0x0bd0_0bd0];
    rustix::fs::fstatfs(file).is_ok_and(|fs| NETWORKS.contains(&(fs.f_type as u32)))
}

#[cfg(not(target_os = "linux"))]
fn is_on_a_network(_: &File) -> bool {
    false
}

/// The running boot's id, where the operating system has one.
pub(crate) fn this_boot() -> [u8; 16] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&digits, 16).unwrap_or_default().to_be_bytes()
}
