//! The directory of a recording, held open: all that is done in it goes by the descriptor, so that whoever puts something else
//! in its place, or a link where a file will be, gains nothing by it.

use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use ktape_format::recording::Recording;
use rustix::fs::{
    AtFlags, FlockOperation, Mode, OFlags, RenameFlags, flock, mkdir, open, openat, renameat, renameat_with, unlinkat,
};
use rustix::io::Errno;

/// A directory of which this recorder is the only one.
pub(super) struct Folder {
    directory: File,
    name: String,
}

impl Folder {
    /// Opens the directory, and makes it first if there is none. It is refused if it is a link, if it is neither the
    /// recorder's user's nor root's, if everybody may put files into it and take those of others, and while another recorder
    /// has it.
    pub(super) fn open(path: &Path) -> Result<Folder> {
        match mkdir(path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        // With a slash behind it, a link would be followed.
        let plain: PathBuf = path.components().collect();
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
        let directory = match open(&plain, flags, Mode::empty()) {
            Ok(directory) => File::from(directory),
            Err(Errno::LOOP | Errno::NOTDIR) => {
                return Err(Error::new(ErrorKind::NotADirectory, "it is a link or no directory"));
            }
            Err(error) => return Err(error.into()),
        };
        let data = directory.metadata()?;
        if ![0, rustix::process::geteuid().as_raw()].contains(&data.uid()) {
            return Err(Error::new(ErrorKind::PermissionDenied, "it belongs to somebody else"));
        }
        const OTHERS_MAY_WRITE: u32 = 0o002;
        const STICKY: u32 = 0o1000;
        if data.mode() & (OTHERS_MAY_WRITE | STICKY) == OTHERS_MAY_WRITE {
            return Err(Error::new(ErrorKind::PermissionDenied, "everybody may write into it"));
        }
        match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                return Err(Error::new(ErrorKind::ResourceBusy, "another recorder writes into it"));
            }
            // A filesystem without locks cannot tell; the recorder goes on.
            Err(_) => {}
        }
        let name = std::fs::canonicalize(&plain)?;
        let name = name.file_name().map_or("recording".into(), |name| name.to_string_lossy());
        Ok(Folder { directory, name: name.into_owned() })
    }

    pub(super) fn try_clone(&self) -> Result<Folder> {
        Ok(Folder { directory: self.directory.try_clone()?, name: self.name.clone() })
    }

    /// The directory as it was opened.
    pub(super) fn file(&self) -> &File {
        &self.directory
    }

    /// What the directory is called.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// A new file that only the recorder's user may read.
    pub(super) fn create(&self, name: &str) -> Result<File> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::RDWR | OFlags::CLOEXEC;
        Ok(openat(&self.directory, name, flags, Mode::RUSR | Mode::WUSR)?.into())
    }

    /// A file that is there, and no link.
    pub(super) fn read(&self, name: &str) -> Result<File> {
        let flags = OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
        Ok(openat(&self.directory, name, flags, Mode::empty())?.into())
    }

    /// Gives a file another name, which no file has.
    pub(super) fn rename(&self, from: &str, to: &str) -> Result<()> {
        match renameat_with(&self.directory, from, &self.directory, to, RenameFlags::NOREPLACE) {
            // A filesystem that cannot promise it; nobody else writes here.
            Err(Errno::INVAL | Errno::NOSYS) => Ok(renameat(&self.directory, from, &self.directory, to)?),
            renamed => Ok(renamed?),
        }
    }

    /// Deletes a file. Whoever has it open reads on.
    pub(super) fn remove(&self, name: &str) -> Result<()> {
        Ok(unlinkat(&self.directory, name, AtFlags::empty())?)
    }

    /// Waits until the disk has the names.
    pub(super) fn sync(&self) -> Result<()> {
        self.directory.sync_all()
    }

    /// What is in it.
    pub(super) fn list(&self) -> Result<Recording> {
        Recording::list(&self.path())
    }

    /// What its tapes take of the disk.
    pub(super) fn bytes(&self) -> Result<u64> {
        let recording = self.list()?;
        let segments = recording.segments.iter().flat_map(|segment| segment.tape.iter().chain(&segment.rollup));
        Ok(segments.chain(&recording.superseded).map(|path| bytes(path)).sum())
    }

    /// Names of files that are not finished and never will be.
    pub(super) fn unfinished(&self) -> Result<Vec<String>> {
        let names = self.path().read_dir()?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        Ok(names.filter(|name| name.ends_with(UNFINISHED)).collect())
    }

    /// The directory's path by its descriptor.
    fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.directory.as_raw_fd()))
    }
}

/// How the name of a file that is being written ends, if it counts only when it is whole.
pub(super) const UNFINISHED: &str = ".ktape.part";

/// What a file takes of the disk.
pub(super) fn bytes(path: &Path) -> u64 {
    std::fs::symlink_metadata(path).map_or(0, |data| data.blocks() * 512)
}
