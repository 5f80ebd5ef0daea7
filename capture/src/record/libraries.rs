//! The libraries of a recording: each file gets its probes once, whoever maps it.

use std::fs::File;
use std::path::Path;

use anyhow::Result;
use object::ReadCache;

use super::blind_spots::Kind;
use super::files::What;
use super::session::{LOOK_AGAIN, Session};
use crate::kernel::links::{Attached, Group, Link, Program};
use crate::probes;
use crate::probes::functions::Meaning;
use crate::probes::library::Library;
use crate::python::dealloc::{self, CodeDealloc};
use crate::python::find::Python;
use crate::target::libraries::{self, FileId, LibraryFile};

impl Session {
    /// Sets probes in a library, if it has none yet.
    pub fn add_library(&mut self, library: &LibraryFile) {
        if self.files.begin(library.id, What::Library) {
            let group = self.attach(library);
            self.files.attached(library.id, What::Library, group);
        }
    }

    /// Sets probes in a library that programs of this machine would load: they stay while nobody has it mapped.
    pub fn add_candidate(&mut self, library: &LibraryFile) {
        self.add_library(library);
        self.files.stays(library.id, &library.path);
    }

    /// Takes the probes out of files that nobody has had mapped for long.
    pub(super) fn let_go_of_unused(&mut self) {
        let groups = match self.files.unused() {
            Ok(groups) => groups,
            Err(error) => return self.trouble(format!("files that nobody uses any more keep their probes: {error}")),
        };
        self.let_go(groups);
    }

    fn let_go(&mut self, groups: Vec<Group>) {
        for group in groups {
            if let Err(error) = self.kernel.detach_group(group) {
                self.trouble(format!("probes of a file that nobody uses any more: {error}"));
            }
        }
    }

    /// Has the dynamic linker tell when it maps libraries.
    pub(super) fn watch_libraries(&mut self, id: FileId, linker: &File) {
        if !self.files.begin(id, What::Linker) {
            return;
        }
        let symbol = "_dl_debug_state";
        let path = &libraries::open_path(linker);
        let watched = self.sites(path, &[symbol]).and_then(|sites| {
            let links: Vec<Link<'_>> = sites
                .sites
                .iter()
                .map(|site| Link { program: Program::Libraries, symbol, file_offset: site.file_offset, cookie: 0 })
                .collect();
            let Attached { group, refused } = self.kernel.attach(&links, path)?;
            anyhow::ensure!(!links.is_empty() && refused.is_empty(), "no probe at {}", refused.join(", "));
            Ok(group)
        });
        match watched {
            Ok(group) => self.files.attached(id, What::Linker, Some(group)),
            Err(error) => {
                self.trouble(format!("the dynamic linker: {error:#}; libraries are looked for every {LOOK_AGAIN:?}"));
            }
        }
    }

    /// Has the programs notice when this Python frees code objects. False if that can't be yet.
    pub(super) fn watch_code(&mut self, pid: u32, python: &Python) -> Result<bool> {
        let Some(dealloc) = dealloc::find(pid, python, self.site_kernel)? else { return Ok(false) };
        self.probe_code(python, &dealloc)?;
        Ok(true)
    }

    /// Sets the probe at which a Python frees its code objects, in its file, and has the programs know it by that.
    pub(super) fn probe_code(&mut self, python: &Python, dealloc: &CodeDealloc) -> Result<()> {
        if !self.files.begin(dealloc.id, What::Python) && self.files.is_attached(dealloc.id, What::Python) {
            return Ok(());
        }
        let cookie = dealloc.interpreter(python).map(|interpreter| self.kernel.add_python(interpreter)).transpose()?;
        let link = Link {
            program: Program::CodeFreed,
            symbol: "code_dealloc",
            file_offset: dealloc.file_offset,
            cookie: cookie.unwrap_or(0).into(),
        };
        let Attached { group, refused } = self.kernel.attach(&[link], &libraries::open_path(&dealloc.file))?;
        anyhow::ensure!(refused.is_empty(), "no probe at {}", refused.join(", "));
        self.files.attached(dealloc.id, What::Python, Some(group));
        Ok(())
    }

    /// Whether a function of this meaning gets a probe: what the scope leaves out has none.
    fn is_probed(&self, meaning: Meaning) -> bool {
        let wanted = self.node.as_ref().map_or(&[][..], |node| &node.scope.functions);
        wanted.is_empty() || meaning.group().is_none_or(|group| wanted.contains(&group))
    }

    pub(super) fn sites(&self, path: &Path, symbols: &[&str]) -> Result<probes::Sites> {
        let file = File::open(path)?;
        // Read, not mapped: whoever cuts the file short must not end the recorder.
        let bytes = ReadCache::new(file);
        Ok(probes::sites(&Library::parse(&bytes)?, symbols.iter().copied(), self.site_kernel)?)
    }

    /// Sets probes in a library.
    fn attach(&mut self, library: &LibraryFile) -> Option<Group> {
        match self.try_attach(library) {
            Ok((group, probes)) => {
                if probes > 0 {
                    self.probes += probes;
                    self.library_paths.push_new(library.path.clone());
                }
                Some(group)
            }
            Err(error) => {
                let what = format!("{}: {error:#}", library.path.display());
                self.noted.add(Kind::UnprobedLibrary, format!("library without probes: {what}"), 1);
                self.trouble(what);
                None
            }
        }
    }

    fn try_attach(&mut self, library: &LibraryFile) -> Result<(Group, usize)> {
        let path = &library.open_path();
        let symbols: Vec<&str> = self.functions.iter().map(|function| function.symbol.as_str()).collect();
        let sites = self.sites(path, &symbols)?;
        let mut links = Vec::new();
        for site in &sites.sites {
            let names = std::iter::once(&site.symbol).chain(&site.aliases);
            let index =
                names.filter_map(|name| self.functions.iter().position(|function| function.symbol == *name)).next();
            let Some(index) = index.filter(|&index| self.is_probed(self.functions[index].meaning)) else { continue };
            let link =
                |program| Link { program, symbol: &site.symbol, file_offset: site.file_offset, cookie: index as u64 };
            links.push(link(Program::Enter));
            self.hooked[index] = true;
            let meaning = self.functions[index].meaning;
            if meaning.wants_return(false) {
                links.push(link(Program::Leave));
            } else if meaning.wants_return(self.options.launch_durations) {
                links.push(link(Program::LeaveLaunch));
            }
            self.cost.has_probe(index, site.cost);
        }
        let Attached { group, refused } = self.kernel.attach(&links, path)?;
        let set = links.len() - refused.len();
        for refused in refused {
            let what = format!("{}: no probe at {refused}", library.path.display());
            self.noted.add(Kind::RefusedProbe, format!("probe that was refused: {what}"), 1);
            self.trouble(what);
        }
        Ok((group, set))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::path::PathBuf;
    use std::process::{Child, Command, Stdio};
    use std::time::Instant;

    use super::*;
    use crate::collect::events::LaunchScope;
    use crate::record::files::{Looked, UNUSED};
    use crate::record::session::Options;

    /// Maps a driver, says so, and calls it when it is told to.
    const CALLS: &str = "import ctypes, sys
driver = ctypes.CDLL(sys.argv[1])
print('mapped', flush=True)
sys.stdin.readline()
driver.cuInit(0)
print('called', flush=True)
sys.stdin.readline()";

    struct Caller(Child, BufReader<std::process::ChildStdout>);

    impl Caller {
        fn start(driver: &Path) -> Caller {
            let mut command = Command::new("python3");
            command.args(["-I", "-S", "-c", CALLS]).arg(driver).stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = command.spawn().unwrap();
            let said = BufReader::new(child.stdout.take().unwrap());
            let mut caller = Caller(child, said);
            caller.hear("mapped");
            caller
        }

        fn hear(&mut self, what: &str) {
            let mut line = String::new();
            self.1.read_line(&mut line).unwrap();
            assert_eq!(line.trim_end(), what);
        }

        fn call(&mut self) {
            writeln!(self.0.stdin.as_mut().unwrap()).unwrap();
            self.hear("called");
        }

        fn end(mut self) {
            writeln!(self.0.stdin.as_mut().unwrap()).unwrap();
            self.0.wait().unwrap();
        }
    }

    /// In a process of its own: probes leave traces in one that other tests look for.
    #[test]
    fn on_trial_probes_of_a_file_that_nobody_maps_go_and_come_again() {
        const ALONE: &str = "KTAPE_TEST_ALONE";
        if std::env::var_os(ALONE).is_none() {
            let name = "record::libraries::tests::on_trial_probes_of_a_file_that_nobody_maps_go_and_come_again";
            let mut alone = Command::new(std::env::current_exe().unwrap());
            let status = alone.args(["--exact", name, "--nocapture"]).env(ALONE, "1").status().unwrap();
            assert!(status.success());
            return;
        }
        let built = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../target/simcuda/libcuda.so.1"));
        let folder = tempfile::tempdir().unwrap();
        let driver = folder.path().join("libcuda.so.1");
        if std::fs::copy(built, &driver).is_err() || crate::privileges::demand().is_err() {
            eprintln!("SKIPPED: no stand-in driver, or not root");
            return;
        }
        let mut session = Session::begin(Options {
            output: folder.path().join("a.ktape"),
            segments: None,
            follow: false,
            launch_durations: false,
            native: false,
            buffer_bytes: 1 << 20,
            cpu_hz: None,
            gpu_hz: None,
            max_overhead: None,
            off_cpu: false,
            node: None,
            launches: LaunchScope::default(),
            inside: None,
        })
        .unwrap();
        let calls =
            |session: &Session| session.kernel.counters().unwrap().iter().map(|counters| counters.calls).sum::<u64>();
        let mut first = Caller::start(&driver);
        session.add_process(first.0.id()).unwrap();
        first.call();
        let seen = calls(&session);
        assert!(seen > 0);
        // In use it stays, for whatever time.
        let looked = |session: &Session, after| {
            let looked = Looked::of_all(&session.files.inodes()).unwrap();
            Looked { began: Instant::now() + after, ..looked }
        };
        let of_now = looked(&session, 2 * UNUSED);
        session.files.looked(&of_now).into_iter().for_each(|group| session.let_go(vec![group]));
        assert!(session.files.has(libraries::mapped(first.0.id()).unwrap()[0].id, What::Library));
        first.end();
        let of_now = looked(&session, 4 * UNUSED);
        let groups = session.files.looked(&of_now);
        assert!(!groups.is_empty());
        session.let_go(groups);
        let mut second = Caller::start(&driver);
        let target = session.new_target();
        session.kernel.set_target(second.0.id(), target).unwrap();
        second.call();
        assert_eq!(calls(&session), seen, "it has no probes any more");
        second.end();
        let mut third = Caller::start(&driver);
        session.add_process(third.0.id()).unwrap();
        third.call();
        assert_eq!(calls(&session), 2 * seen);
        third.end();
    }
}
