//! The files that have probes, and when they lose them again.
//!
//! Over weeks containers come and go, and each image brings its own copies of the libraries. A probe holds on to its file, and with it to the
//! disk that a deleted image takes. So it is looked every [`SCAN`] which of these files any process of the machine has mapped, and one that
//! nobody has for [`UNUSED`] loses its probes; when it is mapped again it gets new ones, as a new file does. Those that programs
//! of this machine would load keep theirs as long as they are where such a program would find them: it is not to wait for probes.
//!
//! There may be thousands of processes, so a thread of low urgency looks. It asks for inodes only: that of another
//! filesystem's file of the same number keeps a file probed for nothing, and no file without probes.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use rustc_hash::{FxHashMap, FxHashSet};

use super::clocks::monotonic_ns;
use crate::kernel::links::Group;
use crate::target::libraries::FileId;
use crate::target::{self, maps, process};

/// How often it is looked which files are mapped.
const SCAN: Duration = Duration::from_secs(120);
/// A file that is mapped by nobody for so long loses its probes.
pub(super) const UNUSED: Duration = Duration::from_secs(600);
/// The thread leaves the processor to others.
const NICE: i32 = 10;

/// What the probes of a file are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum What {
    /// Calls of CUDA.
    Library,
    /// Libraries that a dynamic linker maps.
    Linker,
    /// Code that a Python frees.
    Python,
}

/// See the module.
#[derive(Default)]
pub(super) struct Files {
    files: FxHashMap<(FileId, What), Entry>,
    users: Option<Users>,
    asked: Option<Instant>,
}

/// A file, whether it could be given probes or not.
struct Entry {
    group: Option<Group>,
    attached_ns: i64,
    /// When it was known last that somebody has it mapped.
    used: Instant,
    /// Where programs find it; else it is not kept for them.
    stays_at: Option<PathBuf>,
}

impl Files {
    /// Whether a file has no probes of this sort yet, and is to get them now. It is in use.
    pub(super) fn begin(&mut self, id: FileId, what: What) -> bool {
        let now = Instant::now();
        let mut is_new = false;
        let entry = self.files.entry((id, what)).or_insert_with(|| {
            is_new = true;
            Entry { group: None, attached_ns: i64::MAX, used: now, stays_at: None }
        });
        entry.used = now;
        is_new
    }

    /// Whether it was begun with, and not let go.
    pub(super) fn has(&self, id: FileId, what: What) -> bool {
        self.files.contains_key(&(id, what))
    }

    /// Notes that a file has its probes, as far as it could be given any.
    pub(super) fn attached(&mut self, id: FileId, what: What, group: Option<Group>) {
        if let Some(entry) = self.files.get_mut(&(id, what)) {
            (entry.group, entry.attached_ns) = (group, monotonic_ns());
        }
    }

    /// Whether a file has any probe of this sort.
    pub(super) fn is_attached(&self, id: FileId, what: What) -> bool {
        self.files.get(&(id, what)).is_some_and(|entry| entry.group.is_some())
    }

    /// Whether a library had its probes before this time.
    pub(super) fn was_attached(&self, id: FileId, before_ns: i64) -> bool {
        self.files.get(&(id, What::Library)).is_some_and(|entry| entry.attached_ns <= before_ns)
    }

    /// Lets a library have its probes as long as this path leads to it.
    pub(super) fn stays(&mut self, id: FileId, path: &Path) {
        if let Some(entry) = self.files.get_mut(&(id, What::Library)) {
            entry.stays_at = Some(path.to_owned());
        }
    }

    /// Has it looked, if it is time to, which of the files are in use. Returns the probes of those that nobody has used for long.
    pub(super) fn unused(&mut self) -> io::Result<Vec<Group>> {
        let inodes = self.inodes();
        let users = match &self.users {
            Some(users) => users,
            None => self.users.insert(Users::begin()?),
        };
        let looked = users.found.try_recv().ok();
        if self.asked.get_or_insert_with(Instant::now).elapsed() >= SCAN {
            self.asked = Some(Instant::now());
            // The thread ends after us.
            let _ = users.inodes.send(inodes);
        }
        Ok(looked.map_or_else(Vec::new, |looked| self.looked(&looked)))
    }

    /// The inodes of all files.
    pub(super) fn inodes(&self) -> FxHashSet<u64> {
        self.files.keys().map(|(id, _)| id.inode()).collect()
    }

    /// Takes note of which files are in use, and forgets those that nobody has used for long. Returns their probes.
    pub(super) fn looked(&mut self, looked: &Looked) -> Vec<Group> {
        let unused = self.files.extract_if(|(id, _), entry| {
            if looked.used.contains(&id.inode()) {
                entry.used = entry.used.max(looked.began);
            }
            let stays = || entry.stays_at.as_deref().is_some_and(|path| leads_to(path, *id));
            looked.began.saturating_duration_since(entry.used) >= UNUSED && !stays()
        });
        unused.filter_map(|(_, entry)| entry.group).collect()
    }
}

fn leads_to(path: &Path, id: FileId) -> bool {
    File::open(path).and_then(|file| FileId::of(&file)).is_ok_and(|found| found == id)
}

/// Which of the files that were asked for are mapped.
#[derive(Debug)]
pub(super) struct Looked {
    /// Their inodes.
    pub(super) used: FxHashSet<u64>,
    /// Since when they are known to be.
    pub(super) began: Instant,
}

impl Looked {
    /// Looks through all processes that may be looked into, as no other is recorded.
    ///
    /// # Errors
    ///
    /// If one cannot be read for another reason, which may have any of the files mapped.
    pub(super) fn of_all(inodes: &FxHashSet<u64>) -> io::Result<Looked> {
        let began = Instant::now();
        let mut used = FxHashSet::default();
        for pid in process::all()? {
            match fs::read(format!("/proc/{pid}/maps")) {
                Ok(text) => used.extend(maps::inodes(&text).filter(|inode| inodes.contains(inode))),
                Err(error) => match target::Error::of(pid, "maps", error) {
                    target::Error::NoSuchProcess(_) | target::Error::NoPermission(_) => {}
                    error => return Err(io::Error::other(error)),
                },
            }
        }
        Ok(Looked { used, began })
    }
}

/// The thread that looks.
struct Users {
    inodes: Sender<FxHashSet<u64>>,
    found: Receiver<Looked>,
}

impl Users {
    fn begin() -> io::Result<Users> {
        let (inodes, asked) = mpsc::channel::<FxHashSet<u64>>();
        let (answers, found) = mpsc::channel();
        let look = move || {
            // The calling thread; that it may not is no reason to do less.
            let _ = rustix::process::setpriority_process(None, NICE);
            for inodes in asked {
                // Without an answer all files keep their probes.
                if let Ok(looked) = Looked::of_all(&inodes)
                    && answers.send(looked).is_err()
                {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("users".to_owned()).spawn(look)?;
        Ok(Users { inodes, found })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    fn file(folder: &Path, name: &str) -> (FileId, PathBuf) {
        let path = folder.join(name);
        fs::write(&path, name).unwrap();
        (FileId::of(&File::open(&path).unwrap()).unwrap(), path)
    }

    fn begun(files: &mut Files, id: FileId, what: What) {
        assert!(files.begin(id, what));
        files.attached(id, what, None);
    }

    #[test]
    fn a_file_that_nobody_has_mapped_for_long_is_let_go_and_begun_anew() {
        let folder = tempfile::tempdir().unwrap();
        let [(used, _), (unused, _), (found, path)] = ["used", "unused", "found"].map(|name| file(folder.path(), name));
        let mut files = Files::default();
        [used, unused, found].into_iter().for_each(|id| begun(&mut files, id, What::Library));
        begun(&mut files, unused, What::Python);
        files.stays(found, &path);
        let mut look = |after, inodes: &[u64]| {
            files.looked(&Looked { used: inodes.iter().copied().collect(), began: Instant::now() + after });
            let has = |id, what| files.has(id, what);
            [has(used, What::Library), has(unused, What::Library), has(unused, What::Python), has(found, What::Library)]
        };
        assert_eq!(look(UNUSED / 2, &[used.inode(), unused.inode()]), [true; 4]);
        assert_eq!(look(UNUSED * 5 / 4, &[used.inode()]), [true; 4], "not for long yet");
        assert_eq!(look(UNUSED * 7 / 4, &[used.inode()]), [true, false, false, true]);
        // Another file in its place is not the one that programs find.
        fs::rename(folder.path().join("unused"), &path).unwrap();
        assert_eq!(look(UNUSED * 2, &[used.inode()]), [true, false, false, false]);
        assert!(files.begin(unused, What::Library), "as a new one");
    }

    #[test]
    fn what_this_process_has_mapped_is_found_in_use() {
        let inode = fs::metadata("/proc/self/exe").unwrap().ino();
        let asked = [inode, u64::MAX].into_iter().collect();
        assert_eq!(Looked::of_all(&asked).unwrap().used, [inode].into_iter().collect());
    }

    #[test]
    fn a_library_counts_as_probed_from_when_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let (id, _) = file(folder.path(), "library");
        let mut files = Files::default();
        let before_ns = monotonic_ns();
        files.begin(id, What::Library);
        assert!(!files.was_attached(id, monotonic_ns()));
        files.attached(id, What::Library, None);
        assert!(!files.was_attached(id, before_ns) && files.was_attached(id, monotonic_ns()));
        assert!(!files.is_attached(id, What::Library), "it got none");
    }
}
