//! A folder of traces, one of each rank of a job: each file a process with devices of its own.
//!
//! The order is that of the names, so that the same folder always makes the same tape. A folder holds other things
//! too (logs, tapes, a README, folders); what is no trace is told, not fatal. A file that is a trace and broken is.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use ktape_format::Sink;
use ktape_format::event::Loss;

use super::{Broken, ImportError, Options, Progress, Summary, import_file, name_of};

/// What became of one file of a folder.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct FileSummary {
    /// Its name in the folder.
    pub name: String,
    /// How many entries it had.
    pub entries: u64,
    /// The rank that it says it is of.
    pub rank: Option<String>,
    /// Why it was left out, if it was.
    pub left_out: Option<String>,
    /// Another file that says it is of the same rank: two steps of one rank, or twice the same.
    pub same_rank_as: Option<String>,
}

/// Imports all traces in a folder.
pub(super) fn import<S: Sink>(
    folder: &Path,
    sink: &mut S,
    options: Options,
    progress: &mut impl FnMut(Progress),
) -> Result<Summary, ImportError> {
    let failed = |source| ImportError::Read { path: folder.to_owned(), source };
    let files = files_of(folder).map_err(failed)?;
    let total_bytes = files.iter().filter_map(|(_, bytes)| bytes.ok()).sum();
    let mut all = Summary::default();
    let mut before_bytes = 0;
    let mut lost = Vec::new();
    for (number, (path, file_bytes)) in files.iter().enumerate() {
        let name = name_of(path);
        let mut file = FileSummary { name, entries: 0, rank: None, left_out: None, same_rank_as: None };
        let file_bytes = match file_bytes {
            Ok(file_bytes) => file_bytes,
            Err(what) => {
                file.left_out = Some((*what).to_owned());
                all.files.push(file);
                continue;
            }
        };
        let mut as_long = files[..number].iter().filter(|(_, bytes)| *bytes == Ok(*file_bytes));
        let twin = as_long.find(|(twin, _)| same(twin, path));
        let outcome = match twin {
            Some((twin, _)) => {
                file.left_out = Some(format!("byte for byte the same as {}", name_of(twin)));
                None
            }
            None => {
                let mut progress = |Progress { done_bytes, .. }| {
                    progress(Progress { done_bytes: before_bytes + done_bytes, total_bytes: Some(total_bytes) });
                };
                match import_file(path, true, sink, options, &mut progress) {
                    Ok(summary) => Some(summary),
                    Err(ImportError::NotATrace { found, .. }) => {
                        file.left_out = Some(found);
                        None
                    }
                    // Broken before its first event, so that nothing of it could be kept.
                    Err(ImportError::Malformed { offset, problem, .. }) if options.lenient => {
                        all.broken.see(Broken { offset, bytes: *file_bytes, mended: false, problem: problem.clone() });
                        lost.push(format!("{} was not imported: {problem}", file.name));
                        file.left_out = Some(problem);
                        None
                    }
                    Err(error) => return Err(error),
                }
            }
        };
        if let Some(mut summary) = outcome {
            file.entries = summary.entries();
            file.rank = summary.rank.take();
            let same_rank = all.files.iter().find(|other| file.rank.is_some() && other.rank == file.rank);
            file.same_rank_as = same_rank.map(|other| other.name.clone());
            all.add(summary, 0);
        }
        all.files.push(file);
        before_bytes += file_bytes;
    }
    if all.files.iter().all(|file| file.left_out.is_some()) {
        let first = all.files.iter().find_map(|file| Some((&file.name, file.left_out.as_ref()?)));
        let found = match first {
            Some((name, why)) => format!("is a folder without a trace in it; its first file, {name}: {why}"),
            None => "is a folder without a file in it".to_owned(),
        };
        return Err(ImportError::NotATrace { path: folder.to_owned(), found });
    }
    // All of the time that the others tell of.
    let (start_ns, last_ns) = all.span_ns.unwrap_or_default();
    for cause in lost {
        let failed = |source| ImportError::Sink { path: folder.to_owned(), source: Box::new(source) };
        let cause = sink.string(&cause).map_err(failed)?;
        let duration_ns = last_ns.abs_diff(start_ns);
        sink.event(Loss { start_ns, duration_ns, cause, ..Loss::default() }).map_err(failed)?;
    }
    Ok(all)
}

/// What is in a folder, by name; files with their lengths, and of what is none what it is. Hidden ones are nobody's
/// traces.
fn files_of(folder: &Path) -> io::Result<Vec<(PathBuf, Result<u64, &'static str>)>> {
    let mut files = Vec::new();
    for entry in folder.read_dir()? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with('.') {
            continue;
        }
        // A link that leads nowhere is told, by its own name, where it is opened.
        let metadata = std::fs::metadata(entry.path()).or_else(|_| entry.metadata())?;
        let what = match metadata.file_type() {
            what if what.is_file() || what.is_symlink() => Ok(metadata.len()),
            what if what.is_dir() => Err("a folder; name it to import what is in it"),
            // It may never end, or never begin.
            _ => Err("a pipe, socket or device; name it to import what comes out of it"),
        };
        files.push((entry.path(), what));
    }
    files.sort();
    Ok(files)
}

/// Whether two files have the same bytes. What cannot be read is the import's to tell.
fn same(one: &Path, other: &Path) -> bool {
    let mut blocks = [vec![0; 1 << 16], vec![0; 1 << 16]];
    let (Ok(mut one), Ok(mut other)) = (File::open(one), File::open(other)) else { return false };
    loop {
        let [left, right] = &mut blocks;
        match (read_full(&mut one, left), read_full(&mut other, right)) {
            (Ok(0), Ok(0)) => return true,
            (Ok(read), Ok(also)) if read == also && left[..read] == right[..read] => {}
            _ => return false,
        }
    }
}

fn read_full(file: &mut File, into: &mut [u8]) -> io::Result<usize> {
    let mut read = 0;
    while read < into.len() {
        match file.read(&mut into[read..])? {
            0 => break,
            more => read += more,
        }
    }
    Ok(read)
}
