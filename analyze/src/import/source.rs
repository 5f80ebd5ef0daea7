//! An opened file: what it is, and its text as a stream.
//!
//! Content decides, not the file's ending: traces are renamed, and PyTorch writes both plain and gzipped. The text is
//! read, never mapped: a file that is cut while it is read is then a text that ends early, not a fault that kills the
//! reader, and memory does not grow with the file.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::bufread::GzDecoder;

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
        let padding_bytes = Arc::new(AtomicU64::new(0));
        let reader: Box<dyn Read + Send> = match unpacked {
            true => Box::new(Members::new(BufReader::with_capacity(1 << 16, file), padding_bytes.clone())),
            false => Box::new(file),
        };
        Text { path: self.path, reader, unpacked, padding_bytes, done_bytes, file_bytes: self.file_bytes }
    }
}

/// A text that is being read.
pub(super) struct Text<'a> {
    /// What it is called in errors.
    pub(super) path: PathBuf,
    pub(super) reader: Box<dyn Read + Send + 'a>,
    /// Whether it is not the file's own bytes.
    pub(super) unpacked: bool,
    /// How many zeros stood behind the packed bytes.
    pub(super) padding_bytes: Arc<AtomicU64>,
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
        let (padding_bytes, file_bytes) = (Arc::default(), Some(bytes.len() as u64));
        Text { path: name.into(), reader, unpacked: false, padding_bytes, done_bytes, file_bytes }
    }
}

/// Unpacks a gzipped file: its members one after the other, and as `gzip` does nothing of the zeros behind the last, with
/// which tapes and some copies are filled up.
struct Members<R> {
    /// `None` after the last.
    member: Option<GzDecoder<R>>,
    padding_bytes: Arc<AtomicU64>,
}

impl<R: BufRead> Members<R> {
    fn new(packed: R, padding_bytes: Arc<AtomicU64>) -> Members<R> {
        Members { member: Some(GzDecoder::new(packed)), padding_bytes }
    }
}

impl<R: BufRead> Read for Members<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            let Some(member) = &mut self.member else { return Ok(0) };
            let read = member.read(into)?;
            if read > 0 || into.is_empty() {
                return Ok(read);
            }
            let mut packed = self.member.take().map(GzDecoder::into_inner);
            let padding_bytes = packed.as_mut().map_or(Ok(0), skip_zeros)?;
            let is_over = packed.as_mut().map_or(Ok(true), |packed| packed.fill_buf().map(<[u8]>::is_empty))?;
            match is_over {
                true => _ = self.padding_bytes.fetch_add(padding_bytes, Ordering::Relaxed),
                false if padding_bytes > 0 => {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "more behind its zeros"));
                }
                false => self.member = packed.map(GzDecoder::new),
            }
        }
    }
}

/// Skips zeros, and says how many.
fn skip_zeros(from: &mut impl BufRead) -> io::Result<u64> {
    let mut skipped = 0;
    loop {
        let buffer = from.fill_buf()?;
        let zeros = buffer.iter().take_while(|byte| **byte == 0).count();
        let is_end = zeros == 0 || zeros < buffer.len();
        from.consume(zeros);
        skipped += zeros as u64;
        if is_end {
            return Ok(skipped);
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn packed(text: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    /// What is unpacked of a file, and how many zeros are behind it.
    fn unpacked(file: &[u8]) -> (io::Result<Vec<u8>>, u64) {
        let padding_bytes = Arc::new(AtomicU64::new(0));
        // Parts of three bytes, so that nothing ends where a part does.
        let mut members = Members::new(BufReader::with_capacity(3, file), padding_bytes.clone());
        let mut text = Vec::new();
        let outcome = members.read_to_end(&mut text).map(|_| text);
        (outcome, padding_bytes.load(Ordering::Relaxed))
    }

    #[test]
    fn members_follow_each_other_and_zeros_the_last() {
        let two = [packed(b"ab"), packed(b""), packed(b"cd")].concat();
        for zeros in [0, 1, 3, 1000] {
            let (text, padding_bytes) = unpacked(&[&two[..], &vec![0; zeros]].concat());
            assert_eq!((text.unwrap(), padding_bytes), (b"abcd".to_vec(), zeros as u64));
        }
    }

    #[test]
    fn what_is_cut_or_has_something_else_behind_it_is_damaged() {
        let one = packed(b"ab");
        for damaged in [&one[..one.len() - 1], &[&one[..], b"x"].concat(), &[&one[..], &[0, 0], &one].concat()] {
            let error = unpacked(damaged).0.unwrap_err();
            assert!(is_of_the_packing(&error), "{error:?}");
        }
    }
}
