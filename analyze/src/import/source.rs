//! An opened file: what it is, and its text as a stream.
//!
//! Content decides, not the file's ending: traces are renamed, and PyTorch writes both plain and gzipped. The text is
//! read, never mapped: a file that is cut while it is read is then a text that ends early, not a fault that kills the
//! reader, and memory does not grow with the file.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::bufread::MultiGzDecoder;

use super::ImportError;

/// How much of a file is looked at to learn what it is.
const HEAD_BYTES: u64 = 512;

/// An opened file.
#[derive(Debug)]
pub(super) struct Source {
    path: PathBuf,
    /// Its first bytes, which were read from `file`.
    head: Vec<u8>,
    file: File,
    /// How long it is; a pipe does not say.
    file_bytes: Option<u64>,
}

impl Source {
    /// Opens a file and looks at its first bytes.
    pub(super) fn open(path: &Path) -> Result<Source, ImportError> {
        let failed = |source| ImportError::Read { path: path.to_owned(), source };
        let file = File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if metadata.is_dir() {
            let found = "is a directory; name the trace file in it".to_owned();
            return Err(ImportError::NotATrace { path: path.to_owned(), found });
        }
        let mut head = Vec::new();
        (&file).take(HEAD_BYTES).read_to_end(&mut head).map_err(failed)?;
        let file_bytes = metadata.is_file().then_some(metadata.len());
        Ok(Source { path: path.to_owned(), head, file, file_bytes })
    }

    /// The file's first bytes.
    pub(super) fn head(&self) -> &[u8] {
        &self.head
    }

    /// Whether it can be opened again, which a pipe cannot.
    pub(super) fn is_file(&self) -> bool {
        self.file_bytes.is_some()
    }

    /// The file's text, unpacked where it is gzipped.
    pub(super) fn into_text(self) -> Text<'static> {
        let unpacked = self.head.starts_with(&[0x1f, 0x8b]);
        let done_bytes = Arc::new(AtomicU64::new(0));
        let file = Counted { reader: io::Cursor::new(self.head).chain(self.file), done_bytes: done_bytes.clone() };
        let reader: Box<dyn Read + Send> = match unpacked {
            true => Box::new(MultiGzDecoder::new(BufReader::with_capacity(1 << 16, file))),
            false => Box::new(file),
        };
        Text { path: self.path, reader, unpacked, done_bytes, file_bytes: self.file_bytes }
    }
}

/// A text that is being read.
pub(super) struct Text<'a> {
    /// What it is called in errors.
    pub(super) path: PathBuf,
    pub(super) reader: Box<dyn Read + Send + 'a>,
    /// Whether it is not the file's own bytes.
    pub(super) unpacked: bool,
    /// How much of the file was read.
    pub(super) done_bytes: Arc<AtomicU64>,
    /// How long the file is, if it says.
    pub(super) file_bytes: Option<u64>,
}

impl<'a> Text<'a> {
    /// A text in memory.
    pub(super) fn of_bytes(bytes: &'a [u8], name: &str) -> Text<'a> {
        let done_bytes = Arc::new(AtomicU64::new(0));
        let reader = Box::new(Counted { reader: bytes, done_bytes: done_bytes.clone() });
        Text { path: name.into(), reader, unpacked: false, done_bytes, file_bytes: Some(bytes.len() as u64) }
    }
}

struct Counted<R> {
    reader: R,
    done_bytes: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.reader.read(into)?;
        self.done_bytes.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

/// Whether an error of a gzipped text is the packing's, not the disk's.
pub(super) fn is_of_the_packing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof)
}
