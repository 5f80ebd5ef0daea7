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
    /// Refuses a target that exists, unless `force`. Do this before the work, so that nobody waits for a refusal.
    pub fn create(target: &Path, force: bool) -> Result<Output> {
        if target.exists() && !force {
            return Err(exists(target));
        }
        if target.is_dir() {
            bail!("{}: is a directory; name a file in it", target.display());
        }
        let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut builder = tempfile::Builder::new();
        builder.prefix(".").suffix(".part");
        // A temporary file is private by default; the user's file gets the permissions that any new file gets.
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        let beside = builder.tempfile_in(folder).with_context(|| format!("{}: cannot write here", target.display()))?;
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
            Err(error) => Err(error).with_context(|| self.target.display().to_string()),
        }
    }
}

/// Writes all of a file by one function.
pub fn write(target: &Path, force: bool, fill: impl FnOnce(&mut BufWriter<&File>) -> Result<()>) -> Result<()> {
    let output = Output::create(target, force)?;
    let mut file = BufWriter::with_capacity(1 << 20, output.file());
    let failed = || target.display().to_string();
    fill(&mut file).with_context(failed)?;
    file.flush().with_context(failed)?;
    drop(file);
    output.commit()
}

fn exists(target: &Path) -> anyhow::Error {
    anyhow::anyhow!("{} exists; give another name, or --force to replace it", target.display())
}
