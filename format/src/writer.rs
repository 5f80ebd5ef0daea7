//! Writes a tape.
//!
//! An event goes into the open columns and, on a tape with staging, into the mapped half beside them. A full half, or
//! [`TapeWriter::seal`], turns the columns into one block, appended by one write; then the other half is opened.
//! [`TapeWriter::finish`] adds the end mark. Dropping a writer without it leaves a tape that says that it was cut off.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::time::SystemTime;

use memmap2::MmapOptions;

use crate::Sink;
use crate::block::{BlockEncoder, Defined};
use crate::definition::{Definition, DefinitionVisitor, Definitions, Index, visit_definitions};
use crate::error::TapeError;
use crate::event::{Event, Events, KindVisitor, visit_kinds};
use crate::header::{ClockKind, FileHeader, MINOR};
use crate::staging::Staging;
use crate::table::{DefinitionKind, Table};

/// A block is sealed when it has this many rows: fewer compress worse, more gain nothing.
const BLOCK_ROWS: usize = 1 << 16;
/// A block is sealed when its new strings take this many bytes.
const BLOCK_TEXT_BYTES: usize = 4 << 20;
/// The longest string that a tape takes.
const MAX_STRING_BYTES: usize = 16 << 20;
/// Space is allocated this far ahead on a tape with staging: a full disk is then an error here, never a fault later.
#[cfg(target_os = "linux")]
const ALLOCATE_AHEAD_BYTES: u64 = 16 << 20;

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
    /// Keep the open tail in the file, so that it survives a kill. Each half takes this many bytes; 0 for none, as
    /// an importer wants, which can start again.
    pub staging_half_bytes: u32,
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
            staging_half_bytes: 0,
        }
    }

    /// For a recorder: staging of 4 MiB a half, the present time and this boot.
    pub fn live(writer: &str, clock: ClockKind, host: &str) -> Options {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Options {
            clock,
            created_unix_ns: now.as_nanos() as i64,
            boot_id: this_boot(),
            host: host.to_owned(),
            staging_half_bytes: 4 << 20,
            ..Options::batch(writer)
        }
    }
}

/// What was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// The tape's length.
    pub file_bytes: u64,
    /// How many blocks it has.
    pub blocks: u64,
    /// How many events.
    pub events: u64,
    /// How many definitions.
    pub definitions: u64,
}

/// A tape being written. Takes definitions and events as a [`Sink`].
pub struct TapeWriter {
    file: File,
    offset: u64,
    #[cfg(target_os = "linux")]
    allocated: u64,
    sequence: u64,
    definitions: Definitions,
    index: Index,
    defined: Defined,
    /// Those that no block has yet.
    new_definitions: Definitions,
    events: Events,
    open_rows: usize,
    open_text_bytes: usize,
    written_events: u64,
    staging: Option<Staging>,
    encoder: BlockEncoder,
    block: Vec<u8>,
}

impl TapeWriter {
    /// Begins a tape at `path`. An existing file is replaced, unless another process is writing it.
    pub fn create(path: &Path, options: &Options) -> Result<TapeWriter, TapeError> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        TapeWriter::new(file, options)
    }

    /// Begins a tape in an open, writable file, which is emptied first.
    pub fn new(mut file: File, options: &Options) -> Result<TapeWriter, TapeError> {
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(TapeError::Locked),
            // A filesystem without locks cannot tell; the writer goes on.
            Err(TryLockError::Error(_)) => {}
        }
        file.set_len(0)?;
        let half_bytes = options.staging_half_bytes as usize / 64 * 64;
        let header = FileHeader {
            minor: MINOR,
            clock: options.clock,
            created_unix_ns: options.created_unix_ns,
            boot_id: options.boot_id,
            host: options.host.clone(),
            writer: options.writer.clone(),
            staging_half_bytes: half_bytes as u64,
        };
        // Zeros are written, not left as a hole: a store into a hole on a full disk kills the process.
        let mut front = header.to_bytes().to_vec();
        front.resize(header.blocks_offset() as usize, 0);
        file.seek(SeekFrom::Start(0))?;
        file.write_all(&front)?;
        let staging = match half_bytes {
            0 => None,
            _ => {
                // SAFETY: the file is locked by this writer, and its first bytes are never cut off while it lives.
                let map = unsafe { MmapOptions::new().len(front.len()).map_mut(&file)? };
                let mut staging = Staging::new(map, half_bytes);
                staging.open_half(0);
                Some(staging)
            }
        };
        Ok(TapeWriter {
            file,
            offset: front.len() as u64,
            #[cfg(target_os = "linux")]
            allocated: front.len() as u64,
            sequence: 0,
            definitions: Definitions::default(),
            index: Index::default(),
            defined: Defined::default(),
            new_definitions: Definitions::default(),
            events: Events::default(),
            open_rows: 0,
            open_text_bytes: 0,
            written_events: 0,
            staging,
            encoder: BlockEncoder::new()?,
            block: Vec::new(),
        })
    }

    /// Writes definitions under the ids that they have (no interning), which follow those on the tape, and the events
    /// as they are.
    pub fn restore(&mut self, definitions: &Definitions, events: &Events) -> Result<(), TapeError> {
        struct Restore<'a>(&'a mut TapeWriter, &'a Definitions, &'a Events);
        impl DefinitionVisitor for Restore<'_> {
            type Error = TapeError;
            fn visit<T: Definition>(&mut self) -> Result<(), TapeError> {
                T::table(self.1).rows().try_for_each(|row| {
                    self.0.make_room(T::STAGED_BYTES)?;
                    T::table_mut(&mut self.0.definitions).push(row);
                    T::table_mut(&mut self.0.new_definitions).push(row);
                    self.0.stage(T::KIND, T::STAGED_BYTES, |out| row.stage(out))
                })
            }
        }
        impl KindVisitor for Restore<'_> {
            type Error = TapeError;
            fn visit<E: Event>(&mut self) -> Result<(), TapeError> {
                E::table(self.2).rows().try_for_each(|row| self.0.event(row))
            }
        }
        for string in &definitions.strings {
            if string.len() > MAX_STRING_BYTES {
                return Err(TapeError::StringTooLong { bytes: string.len(), most: MAX_STRING_BYTES });
            }
            self.make_room(string.len())?;
            self.definitions.strings.push(string.clone());
            self.new_definitions.strings.push(string.clone());
            self.open_text_bytes += string.len();
            self.stage(DefinitionKind::String as u16, string.len(), |out| out.copy_from_slice(string.as_bytes()))?;
        }
        let mut restore = Restore(self, definitions, events);
        visit_definitions(&mut restore)?;
        visit_kinds(&mut restore)
    }

    /// Turns what is open into a block. Does nothing if there is nothing. After an error (a full disk) the rows are still
    /// open, and staged; sealing again writes the block anew.
    pub fn seal(&mut self) -> Result<(), TapeError> {
        if self.open_rows == 0 {
            return Ok(());
        }
        self.encoder.data(self.sequence, &self.defined, &self.new_definitions, &self.events, &mut self.block);
        self.append_block()?;
        self.defined.add(&self.new_definitions);
        self.new_definitions = Definitions::default();
        self.written_events += self.events.len() as u64;
        self.events.clear();
        self.open_rows = 0;
        self.open_text_bytes = 0;
        if let Some(staging) = &mut self.staging {
            staging.open_half(self.sequence);
        }
        Ok(())
    }

    /// Seals what is open and marks the tape as complete. When this returns, the tape is on the disk.
    pub fn finish(mut self) -> Result<Written, TapeError> {
        self.seal()?;
        self.encoder.end(self.sequence, &mut self.block);
        self.append_block()?;
        self.file.set_len(self.offset)?;
        // What a network filesystem could not store, it says only now.
        self.file.sync_all()?;
        // A child that was forked and has not started its program yet still has the file open, and so the lock.
        let _ = self.file.unlock();
        Ok(Written {
            file_bytes: self.offset,
            blocks: self.sequence,
            events: self.written_events,
            definitions: self.definitions.len() as u64,
        })
    }

    fn append_block(&mut self) -> Result<(), TapeError> {
        #[cfg(target_os = "linux")]
        self.allocate_ahead();
        self.file.seek(SeekFrom::Start(self.offset))?;
        self.file.write_all(&self.block)?;
        self.offset += self.block.len() as u64;
        self.sequence += 1;
        Ok(())
    }

    /// Reserves disk space beyond the end of the file without making it longer. That this fails (not every filesystem
    /// can, and too little room for the reserve may still be enough for the block) is no error: the write tells.
    #[cfg(target_os = "linux")]
    fn allocate_ahead(&mut self) {
        let end = self.offset + self.block.len() as u64;
        if self.staging.is_none() || end <= self.allocated {
            return;
        }
        let bytes = (end - self.allocated).max(ALLOCATE_AHEAD_BYTES);
        if rustix::fs::fallocate(&self.file, rustix::fs::FallocateFlags::KEEP_SIZE, self.allocated, bytes).is_ok() {
            self.allocated += bytes;
        }
    }

    /// Seals first if what is open is a block's worth, or if a record of `bytes` would not fit behind it, or if it is a
    /// row that could not be staged and then not be sealed: ids of definitions staged behind it would be off by one.
    fn make_room(&mut self, bytes: usize) -> Result<(), TapeError> {
        let full = self.staging.as_ref().is_some_and(|staging| !staging.fits(bytes) || staging.is_empty());
        if full || self.open_rows >= BLOCK_ROWS || self.open_text_bytes >= BLOCK_TEXT_BYTES {
            self.seal()?;
        }
        Ok(())
    }

    /// Stages the row that was just added to what is open. One too long for a half becomes a block at once.
    fn stage(&mut self, table: u16, bytes: usize, fill: impl FnOnce(&mut [u8])) -> Result<(), TapeError> {
        self.open_rows += 1;
        match &mut self.staging {
            None => Ok(()),
            Some(staging) if staging.fits(bytes) => {
                staging.push(table, bytes, fill);
                Ok(())
            }
            Some(_) => self.seal(),
        }
    }
}

impl Sink for TapeWriter {
    type Error = TapeError;

    fn string(&mut self, string: &str) -> Result<u32, TapeError> {
        if let Some(id) = self.index.find_string(string) {
            return Ok(id);
        }
        if string.len() > MAX_STRING_BYTES {
            return Err(TapeError::StringTooLong { bytes: string.len(), most: MAX_STRING_BYTES });
        }
        self.make_room(string.len())?;
        let id = self.index.add_string(&mut self.definitions, string);
        self.new_definitions.strings.push(string.into());
        self.open_text_bytes += string.len();
        self.stage(DefinitionKind::String as u16, string.len(), |out| out.copy_from_slice(string.as_bytes()))?;
        Ok(id)
    }

    fn define<T: Definition>(&mut self, row: T) -> Result<u32, TapeError> {
        if let Some(id) = self.index.find(&self.definitions, &row) {
            return Ok(id);
        }
        self.make_room(T::STAGED_BYTES)?;
        let id = self.index.add(&mut self.definitions, row);
        T::table_mut(&mut self.new_definitions).push(row);
        self.stage(T::KIND, T::STAGED_BYTES, |out| row.stage(out))?;
        Ok(id)
    }

    fn event<E: Event>(&mut self, row: E) -> Result<(), TapeError> {
        self.make_room(E::STAGED_BYTES)?;
        E::table_mut(&mut self.events).push(row);
        self.stage(E::KIND, E::STAGED_BYTES, |out| row.stage(out))
    }
}

/// The running boot's id, where the operating system has one.
pub(crate) fn this_boot() -> [u8; 16] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&digits, 16).unwrap_or_default().to_be_bytes()
}
