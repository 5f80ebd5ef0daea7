//! The text of a trace: mapped where it lies plain on the disk, unpacked into memory where it is gzipped.
//!
//! Content decides, not the file's ending: traces are renamed, and PyTorch writes both.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;
use memmap2::Mmap;

use crate::import::ImportError;

/// The text of a trace.
#[derive(Debug)]
pub(super) enum Source {
    /// The file itself.
    Mapped(Mmap),
    /// What a pipe delivered.
    Piped(Vec<u8>),
    /// What was in the gzip file.
    Unpacked(Vec<u8>),
}

impl Source {
    /// Opens a file, gzipped or not.
    pub(super) fn open(path: &Path) -> Result<Source, ImportError> {
        let failed = |source| ImportError::Read { path: path.to_owned(), source };
        let mut file = File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if metadata.is_dir() {
            let found = "is a directory; name the trace file in it".to_owned();
            return Err(ImportError::NotATrace { path: path.to_owned(), found });
        }
        let plain = if metadata.is_file() {
            // SAFETY: the map is only read. A program that shortens the file meanwhile ends this one (SIGBUS), as it
            // would any reader of a map; a trace that was written is not written to again.
            Source::Mapped(unsafe { Mmap::map(&file) }.map_err(failed)?)
        } else {
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes).map_err(failed)?;
            Source::Piped(bytes)
        };
        match plain.text() {
            [0x1f, 0x8b, ..] => unpack(plain.text(), path),
            _ => Ok(plain),
        }
    }

    /// The text.
    pub(super) fn text(&self) -> &[u8] {
        match self {
            Source::Mapped(map) => map,
            Source::Piped(bytes) | Source::Unpacked(bytes) => bytes,
        }
    }

    /// Whether the text is not the file's own bytes.
    pub(super) fn is_unpacked(&self) -> bool {
        matches!(self, Source::Unpacked(_))
    }
}

fn unpack(packed: &[u8], path: &Path) -> Result<Source, ImportError> {
    // A gzip file ends with the size of its content (modulo 4 GiB). It is a stranger's claim: no more is set aside
    // than deflate can make of the file.
    let claimed = packed.last_chunk().map_or(0, |size| u32::from_le_bytes(*size) as usize);
    let mut text = Vec::with_capacity(claimed.min(packed.len().saturating_mul(1032)));
    match MultiGzDecoder::new(io::Cursor::new(packed)).read_to_end(&mut text) {
        Ok(_) => Ok(Source::Unpacked(text)),
        Err(source) => Err(ImportError::Gzip { path: path.to_owned(), unpacked_bytes: text.len() as u64, source }),
    }
}
