//! The thread behind a writer: turns full halves into blocks, in order, and appends them to the file.
//!
//! Compression and the disk take milliseconds where the writer's caller has nanoseconds. So the writer only stores
//! records and hands full halves over; this thread gives each back when its block is in the file. The memory between
//! them is the two halves and no more. A block that cannot be written (a full disk) stays with its half, and is tried
//! again with the next job, and every [`TICK`].

use std::collections::VecDeque;
use std::fs::File;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use crate::block::{BlockEncoder, Defined};
use crate::definition::Definitions;
use crate::event::Events;
#[cfg(target_os = "linux")]
use crate::header::FileHeader;
use crate::owners::Owners;
use crate::staging::Halves;
use crate::transpose::Transpose;

/// How often the thread looks up when nothing comes: what is open longer than this is due to be sealed.
pub(crate) const TICK: Duration = Duration::from_secs(1);
/// Space is allocated this far ahead of a live tape: a full disk is then an error here, never a fault later.
#[cfg(target_os = "linux")]
const ALLOCATE_AHEAD_BYTES: u64 = 16 << 20;

/// What the writer asks for.
pub(crate) enum Job {
    /// A half with this many bytes of records, as one block.
    Half { half: usize, bytes: usize },
    /// Records too long for a half, as one block.
    Long(Vec<u8>),
    /// Try again what failed.
    Retry,
    /// The end mark, and the end of the thread.
    Finish,
}

/// What became of a job.
pub(crate) enum Done {
    /// The half's block is in the file.
    Half(usize),
    /// The long record's block is.
    Long,
    /// The tape is complete.
    Finished(Written),
}

/// What was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// The tape's length.
    pub file_bytes: u64,
    /// How many blocks it has, the end mark included.
    pub blocks: u64,
    /// How many events.
    pub events: u64,
    /// How many definitions.
    pub definitions: u64,
}

pub(crate) struct Sealer {
    pub(crate) file: File,
    pub(crate) halves: Arc<Halves>,
    /// Tells the writer that what is open has been so for a tick.
    pub(crate) due: Arc<AtomicBool>,
    /// Where the next block goes.
    pub(crate) offset: u64,
    pub(crate) allocate_ahead: bool,
    /// How long the staging area is that is part of the file; 0 for none.
    pub(crate) staging_bytes: u64,
    /// How often to wait until the disk has what is written; `None` for a tape that is not live.
    pub(crate) sync_every: Option<Duration>,
    pub(crate) encoder: BlockEncoder,
}

struct State {
    sealer: Sealer,
    sequence: u64,
    #[cfg(target_os = "linux")]
    allocated: u64,
    synced: Instant,
    unsynced: bool,
    defined: Defined,
    owners: Owners,
    transpose: Transpose,
    definitions: Definitions,
    events: Events,
    block: Vec<u8>,
    written: Written,
    ended: bool,
}

impl Sealer {
    /// Works until the writer is gone. What was asked for before that is done.
    pub(crate) fn run(self, jobs: Receiver<Job>, done: Sender<std::io::Result<Done>>) {
        let mut state = State {
            sequence: 0,
            #[cfg(target_os = "linux")]
            allocated: self.offset,
            synced: Instant::now(),
            unsynced: false,
            defined: Defined::default(),
            owners: Owners::default(),
            transpose: Transpose::default(),
            definitions: Definitions::default(),
            events: Events::default(),
            block: Vec::new(),
            written: Written::default(),
            ended: false,
            sealer: self,
        };
        let mut queue = VecDeque::new();
        loop {
            match jobs.recv_timeout(TICK) {
                Ok(Job::Retry) => {}
                Ok(job) => queue.push_back(job),
                Err(RecvTimeoutError::Timeout) => {
                    state.sealer.due.store(state.sealer.sync_every.is_some(), Ordering::Relaxed);
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
            while let Some(job) = queue.front() {
                let outcome = state.work(job);
                let failed = outcome.is_err();
                let finished = matches!(outcome, Ok(Done::Finished(_)));
                // The writer may be gone; what it asked for is done all the same.
                let _ = done.send(outcome);
                if finished {
                    return;
                }
                if failed {
                    break;
                }
                queue.pop_front();
            }
            state.sync_from_time_to_time();
        }
    }
}

impl State {
    fn work(&mut self, job: &Job) -> std::io::Result<Done> {
        match job {
            Job::Half { half, bytes } => {
                let halves = self.sealer.halves.clone();
                // SAFETY: the writer does not open this half before it is told that it is done.
                let records = unsafe { halves.records(*half, *bytes) };
                self.seal(records).map(|()| Done::Half(*half))
            }
            Job::Long(records) => self.seal(records).map(|()| Done::Long),
            Job::Retry => unreachable!("is never queued"),
            Job::Finish => self.finish().map(Done::Finished),
        }
    }

    /// Appends `records` as one block. After an error nothing has changed but what lies behind the last block.
    fn seal(&mut self, records: &[u8]) -> std::io::Result<()> {
        self.definitions.clear();
        self.events.clear();
        self.transpose.records(records, &mut self.definitions, &mut self.events);
        let mut owners = self.owners.clone();
        owners.add(&self.definitions);
        self.sealer.encoder.data(
            self.sequence,
            &self.defined,
            &self.definitions,
            &self.events,
            &owners,
            &mut self.block,
        );
        self.append_block()?;
        self.owners = owners;
        self.defined.add(&self.definitions);
        self.written.events += self.events.len() as u64;
        self.written.definitions += self.definitions.len() as u64;
        Ok(())
    }

    fn finish(&mut self) -> std::io::Result<Written> {
        if !self.ended {
            self.sealer.encoder.end(self.sequence, &mut self.block);
            self.append_block()?;
            self.ended = true;
        }
        self.sealer.file.set_len(self.sealer.offset)?;
        // What a network filesystem could not store, it says only now.
        self.sealer.file.sync_all()?;
        #[cfg(target_os = "linux")]
        self.give_staging_back();
        // A child that was forked and has not started its program yet still has the file open, and so the lock.
        let _ = self.sealer.file.unlock();
        Ok(Written { file_bytes: self.sealer.offset, blocks: self.sequence, ..self.written })
    }

    fn append_block(&mut self) -> std::io::Result<()> {
        #[cfg(target_os = "linux")]
        self.allocate_ahead();
        self.sealer.file.seek(SeekFrom::Start(self.sealer.offset))?;
        self.sealer.file.write_all(&self.block)?;
        self.sealer.offset += self.block.len() as u64;
        self.sequence += 1;
        self.unsynced = true;
        Ok(())
    }

    /// Reserves disk space beyond the end of the file without making it longer. That this fails (not every filesystem
    /// can, and too little room for the reserve may still be enough for the block) is no error: the write tells.
    #[cfg(target_os = "linux")]
    fn allocate_ahead(&mut self) {
        let end = self.sealer.offset + self.block.len() as u64;
        if !self.sealer.allocate_ahead || end <= self.allocated {
            return;
        }
        let bytes = (end - self.allocated).max(ALLOCATE_AHEAD_BYTES);
        let flags = rustix::fs::FallocateFlags::KEEP_SIZE;
        if rustix::fs::fallocate(&self.sealer.file, flags, self.allocated, bytes).is_ok() {
            self.allocated += bytes;
        }
    }

    /// Makes a hole of the staging area, which is of no more use: a tape of a second would take eight megabytes for it. Only when the
    /// blocks are on the disk. Not every filesystem can.
    #[cfg(target_os = "linux")]
    fn give_staging_back(&self) {
        use rustix::fs::FallocateFlags;
        if self.sealer.staging_bytes > 0 {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let _ =
                rustix::fs::fallocate(&self.sealer.file, flags, FileHeader::STAGING_OFFSET, self.sealer.staging_bytes);
        }
    }

    /// What is on the disk survives a power loss; the staging area may not. That it fails will show at the end.
    fn sync_from_time_to_time(&mut self) {
        if self.unsynced && self.sealer.sync_every.is_some_and(|every| self.synced.elapsed() >= every) {
            let _ = self.sealer.file.sync_data();
            self.synced = Instant::now();
            self.unsynced = false;
        }
    }
}
