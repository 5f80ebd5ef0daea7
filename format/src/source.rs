//! Where a tape's bytes come from: a file, read piece by piece, or memory.
//!
//! A file is read, not mapped: one that is cut short while it is read then gives fewer bytes, where a mapping would
//! kill the reader. The copy takes one part in a hundred of the time that decoding the same bytes does.

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::ops::Range;

/// A tape's bytes.
pub(crate) enum Source {
    File { file: File, length: u64 },
    Bytes(Vec<u8>),
}

impl Source {
    /// A file of the length that it has now.
    pub(crate) fn file(file: File) -> io::Result<Source> {
        let length = file.metadata()?.len();
        Ok(Source::File { file, length })
    }

    /// How many bytes there are; of a file, when it was opened or last grew.
    pub(crate) fn length(&self) -> u64 {
        match self {
            Source::File { length, .. } => *length,
            Source::Bytes(bytes) => bytes.len() as u64,
        }
    }

    /// Takes in what a file has grown by.
    pub(crate) fn grow(&mut self) -> io::Result<()> {
        if let Source::File { file, length } = self {
            *length = file.metadata()?.len();
        }
        Ok(())
    }

    /// The bytes of a range; fewer where they end within it.
    pub(crate) fn range(&self, range: Range<u64>) -> io::Result<Cow<'_, [u8]>> {
        self.read(range.start, range.end.saturating_sub(range.start))
    }

    /// `bytes` bytes from `offset` on; fewer where they end before.
    pub(crate) fn read(&self, offset: u64, bytes: u64) -> io::Result<Cow<'_, [u8]>> {
        let from = offset.min(self.length());
        let to = offset.saturating_add(bytes).min(self.length());
        match self {
            Source::Bytes(all) => Ok(Cow::Borrowed(&all[from as usize..to as usize])),
            Source::File { file, .. } => {
                let mut piece = vec![0; (to - from) as usize];
                let mut read = 0;
                while read < piece.len() {
                    match read_at(file, &mut piece[read..], from + read as u64) {
                        Ok(0) => break,
                        Ok(more) => read += more,
                        Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                        Err(error) => return Err(error),
                    }
                }
                piece.truncate(read);
                Ok(Cow::Owned(piece))
            }
        }
    }
}

#[cfg(unix)]
fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, buffer, offset)
}

#[cfg(windows)]
fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, buffer, offset)
}
