//! Writing a file for the user: beside its place, then renamed into it, so that nothing half-written ever has its name.

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow};
use tempfile::NamedTempFile;

/// An output that the command line must not name, and what to name instead: the command line is wrong, not the input.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Refused(pub String);

/// A file on its way. Dropped before [`Output::commit`], it leaves nothing.
#[derive(Debug)]
pub struct Output {
    target: PathBuf,
    beside: NamedTempFile,
    force: bool,
}

impl Output {
    /// Begins a file that will be called `target`, which [`ensure_free`] was asked about.
    pub fn create(target: &Path, force: bool) -> Result<Output> {
        let mut builder = tempfile::Builder::new();
        builder.prefix(".").suffix(".part");
        // A temporary file is private by default; the user's file gets the permissions that any new file gets.
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        let beside = builder.tempfile_in(folder(target)).map_err(|error| {
            // Its text names the temporary file, which tells the user nothing; beneath is the system's own error.
            let plain = error.get_ref().and_then(|named| named.source()).map_or(error.to_string(), ToString::to_string);
            anyhow!("cannot write {}: {plain}", target.display())
        })?;
        Ok(Output { target: target.to_owned(), beside, force })
    }

    /// The open file.
    pub fn file(&self) -> &File {
        self.beside.as_file()
    }

    /// Gives the file its name.
    pub fn commit(self) -> Result<()> {
        let persisted = match self.force {
            true => self.beside.persist(&self.target).map_err(|failed| failed.error),
            false => self.beside.persist_noclobber(&self.target).map_err(|failed| failed.error),
        };
        match persisted {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(exists(&self.target).into()),
            Err(error) => Err(error).with_context(|| format!("cannot write {}", self.target.display())),
        }
    }
}

/// Whether the user asked for standard output instead of a file.
pub fn is_stdout(target: &Path) -> bool {
    target == Path::new("-")
}

/// Refuses a target that must not be written: one that exists, unless `force`, and with it what is no file of ours to
/// replace. Called before the work, so that nobody waits for a refusal.
pub fn ensure_free(target: &Path, input: &Path, force: bool) -> Result<(), Refused> {
    let refused = |why: &str| Err(Refused(format!("{}{why}", target.display())));
    if is_stdout(target) {
        return Err(Refused("`-`: this output cannot go to standard output; name a file".to_owned()));
    }
    let Ok(metadata) = target.metadata() else {
        return match folder(target) {
            folder if folder.is_dir() => Ok(()),
            folder => refused(&format!(": there is no folder {}; make it first", folder.display())),
        };
    };
    if metadata.is_dir() {
        return refused(": is a directory; name a file in it");
    }
    // Renamed into place, the output would take the place of the device or pipe instead of going into it.
    if !metadata.is_file() {
        return refused(": is not a regular file; name another");
    }
    if !force {
        return Err(exists(target));
    }
    if target.canonicalize().ok().zip(input.canonicalize().ok()).is_some_and(|(target, input)| target == input) {
        return refused(": is the input; give another name");
    }
    Ok(())
}

fn folder(target: &Path) -> &Path {
    target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Writes all of a file by one function.
pub fn write<T>(target: &Path, force: bool, fill: impl FnOnce(&mut BufWriter<&File>) -> io::Result<T>) -> Result<T> {
    let output = Output::create(target, force)?;
    let mut file = BufWriter::with_capacity(1 << 20, output.file());
    let filled = fill(&mut file).and_then(|filled| file.flush().map(|()| filled));
    let filled = filled.with_context(|| format!("cannot write {}", target.display()))?;
    drop(file);
    output.commit()?;
    Ok(filled)
}

fn exists(target: &Path) -> Refused {
    Refused(format!("{} exists; give another name, or --force to replace it", target.display()))
}
