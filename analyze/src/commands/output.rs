//! Writing a file for the user: beside its place, then renamed into it, so that nothing half-written ever has its name.

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use tempfile::NamedTempFile;

/// A file on its way. Dropped before [`Output::commit`], it leaves nothing.
#[derive(Debug)]
pub struct Output {
    target: PathBuf,
    beside: NamedTempFile,
    force: bool,
}

impl Output {
    /// Begins a file that will be called `target`.
    pub fn create(target: &Path, force: bool) -> Result<Output> {
        ensure_free(target, force)?;
        let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut builder = tempfile::Builder::new();
        builder.prefix(".").suffix(".part");
        // A temporary file is private by default; the user's file gets the permissions that any new file gets.
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        let beside = builder.tempfile_in(folder).with_context(|| format!("cannot write {}", target.display()))?;
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
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(exists(&self.target)),
            Err(error) => Err(error).with_context(|| format!("cannot write {}", self.target.display())),
        }
    }
}

/// Refuses a target that exists, unless `force`. Called before the work, so that nobody waits for a refusal.
pub fn ensure_free(target: &Path, force: bool) -> Result<()> {
    if target.is_dir() {
        bail!("{}: is a directory; name a file in it", target.display());
    }
    // A rename would put a file into the place of a device or pipe (`-o /dev/null`, as root).
    if target.exists() && !target.is_file() {
        bail!("{}: is no ordinary file; name one that is, or a new one", target.display());
    }
    if target.exists() && !force { Err(exists(target)) } else { Ok(()) }
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

fn exists(target: &Path) -> anyhow::Error {
    anyhow::anyhow!("{} exists; give another name, or --force to replace it", target.display())
}
