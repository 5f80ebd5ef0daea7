//! Native frames: from an address in a process to the file that is mapped there, and the place in it.
//!
//! A place is told as the file itself numbers its code (what `nm` and `addr2line` show), with the file's build id: so that it can
//! be named later, elsewhere, by whoever has that build or its symbols.
//!
//! The kernel follows frame pointers, and where code was compiled without them it takes for a frame whatever it finds. What is
//! not an address of code ends a stack: the frames before it are right, and nothing is known of those behind it.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use ktape_ebpf::python::End;
use ktape_ebpf::wire::MAX_NATIVE_FRAMES;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::target::maps::{self, Mapping};
use crate::target::modules::Module;

/// How often at most mappings are read for an address that is in none of them: most such are no addresses of code at all.
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

/// So many paths mean a build by themselves.
const MOST_PATHS: usize = 1 << 16;

/// A file that is mapped, as the kernel tells files apart, and the path that it has in the process.
type FileKey = ((u32, u32), u64);

/// The code of a process, and the files that it is in.
pub(super) struct Natives {
    pid: u32,
    /// What can be executed, by address.
    code: Vec<Mapping>,
    looked: Instant,
    modules: FxHashMap<FileKey, Module>,
    /// The address of `_PyRuntime`, and the file that it is in.
    runtime: u64,
    interpreter: Option<FileKey>,
}

/// Where an address is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// `libtorch.so+0x1f20`: the file, and the address in its own numbering; of code in no file the address.
    pub(super) name: String,
    /// `None` for code that is in no file.
    pub(super) module: Option<Module>,
}

/// The native frames of a stack.
#[derive(Debug, PartialEq)]
pub(super) struct Frames {
    /// Innermost first.
    pub(super) places: Vec<Place>,
    /// How they end.
    pub(super) end: End,
}

impl Natives {
    /// Reads what a process has mapped. One that is gone has nothing.
    pub(super) fn new(pid: u32) -> Natives {
        let mut natives = Natives {
            pid,
            code: Vec::new(),
            looked: Instant::now(),
            modules: FxHashMap::default(),
            runtime: 0,
            interpreter: None,
        };
        natives.read_mappings();
        natives
    }

    /// Learns where the interpreter is.
    pub(super) fn set_interpreter(&mut self, runtime: u64) {
        self.runtime = runtime;
        self.read_mappings();
    }

    /// Where the interpreter is.
    pub(super) fn runtime(&self) -> u64 {
        self.runtime
    }

    /// Reads again what is mapped. A process that is gone keeps what it had.
    pub(super) fn read_mappings(&mut self) {
        self.looked = Instant::now();
        if let Ok(mappings) = maps::of(self.pid) {
            self.set_mappings(mappings);
        }
    }

    fn set_mappings(&mut self, mut mappings: Vec<Mapping>) {
        // Data that a file does not fill lies in memory without a file, behind the file's own.
        let of_runtime = mappings.iter().rfind(|mapping| mapping.is_file() && mapping.start <= self.runtime);
        self.interpreter = of_runtime.map(key).or(self.interpreter);
        mappings.retain(|mapping| mapping.executable);
        // A process that compiles for itself maps new files as long as it runs.
        let mapped: FxHashSet<FileKey> = mappings.iter().map(key).collect();
        self.modules.retain(|file, _| mapped.contains(file));
        self.code = mappings;
    }

    /// The frames of these addresses, innermost first: that of an instruction, and those that calls return to. Those
    /// `below_python` are what the innermost Python function called: they end where the interpreter is.
    pub(super) fn frames(&mut self, addresses: &[u64], below_python: bool) -> Frames {
        if addresses.is_empty() {
            // They were sent, and got lost.
            return Frames { places: Vec::new(), end: End::Unreadable };
        }
        let mut places = Vec::with_capacity(addresses.len());
        for (index, &address) in addresses.iter().enumerate() {
            // A call may be the last instruction of its function, so that it returns to the next one.
            let address = if index == 0 { address } else { address.wrapping_sub(1) };
            let Some(code) = self.code_at(address, index == 0) else {
                return Frames { places, end: End::Unreadable };
            };
            if below_python && self.interpreter == Some(key(&code)) {
                return Frames { places, end: End::Outermost };
            }
            places.push(self.place(address, &code));
        }
        let end = if addresses.len() < MAX_NATIVE_FRAMES { End::Outermost } else { End::Cut };
        Frames { places, end }
    }

    /// The mapping of an address of code. One that is in none may have been mapped meanwhile, if it is an address at all, as
    /// that of an instruction that was executed `surely` is.
    fn code_at(&mut self, address: u64, surely: bool) -> Option<Mapping> {
        if self.find(address).is_none() && (surely || self.looked.elapsed() >= BETWEEN_LOOKS) {
            self.read_mappings();
        }
        self.find(address).cloned()
    }

    fn find(&self, address: u64) -> Option<&Mapping> {
        let index = self.code.partition_point(|mapping| mapping.end <= address);
        self.code.get(index).filter(|mapping| mapping.start <= address)
    }

    fn place(&mut self, address: u64, code: &Mapping) -> Place {
        if !code.is_file() {
            // `[vdso]`, or what a process wrote itself.
            let name = match code.path.to_string_lossy() {
                name if name.starts_with('[') => format!("{name}+{:#x}", address - code.start),
                _ => format!("{address:#x}"),
            };
            return Place { name, module: None };
        }
        let pid = self.pid;
        let module = self.modules.entry(key(code)).or_insert_with(|| Module::read(pid, code));
        let name = module.path.rsplit('/').next().unwrap_or_default();
        let name = format!("{name}+{:#x}", module.address(address - code.start + code.file_offset));
        Place { name, module: Some(module.clone()) }
    }
}

fn key(mapping: &Mapping) -> FileKey {
    (mapping.device, mapping.inode)
}

/// Which build each path of a recording means: containers have different files at one path, and a file may be replaced.
#[derive(Default)]
pub(super) struct Builds(FxHashMap<String, Option<String>>);

impl Builds {
    /// What a module is called on the tape: by its path, if that means no other build already.
    pub(super) fn file<'module>(&mut self, module: &'module Module) -> Cow<'module, str> {
        match self.0.get(&module.path) {
            // What comes beyond has its build at its name, in case.
            None if self.0.len() < MOST_PATHS => {
                self.0.insert(module.path.clone(), module.build_id.clone());
                Cow::Borrowed(&module.path)
            }
            Some(build_id) if *build_id == module.build_id => Cow::Borrowed(&module.path),
            _ => {
                let build_id = module.build_id.as_deref().unwrap_or("none");
                Cow::Owned(format!("{} (build id {build_id})", module.path))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(start: u64, path: &str, inode: u64, executable: bool) -> Mapping {
        Mapping {
            start,
            end: start + 0x1000,
            executable,
            file_offset: 0x1000,
            device: (8, 1),
            inode,
            path: path.into(),
            deleted: false,
        }
    }

    /// Of a process that there is not, so that nothing is read but what is given.
    fn natives() -> Natives {
        let mut natives = Natives::new(0);
        natives.runtime = 0x2_0800;
        natives.set_mappings(vec![
            mapping(0x1_0000, "/opt/python", 1, true),
            mapping(0x2_0000, "/opt/python", 1, false),
            mapping(0x3_0000, "/lib/libfoo.so", 2, true),
            mapping(0x4_0000, "/lib/libfoo.so", 2, false),
            mapping(0x5_0000, "", 0, true),
            mapping(0x6_0000, "[vdso]", 0, true),
        ]);
        natives
    }

    fn names(frames: &Frames) -> Vec<&str> {
        frames.places.iter().map(|place| place.name.as_str()).collect()
    }

    #[test]
    fn below_python_frames_end_at_the_interpreter() {
        let addresses = [0x3_0010, 0x3_0021, 0x1_0031, 0x3_0041];
        let frames = natives().frames(&addresses, true);
        assert_eq!((names(&frames), frames.end), (vec!["libfoo.so+0x1010", "libfoo.so+0x1020"], End::Outermost));
        let frames = natives().frames(&addresses, false);
        let all = vec!["libfoo.so+0x1010", "libfoo.so+0x1020", "python+0x1030", "libfoo.so+0x1040"];
        assert_eq!((names(&frames), frames.end), (all, End::Outermost));
    }

    #[test]
    fn what_is_no_address_of_code_ends_a_stack_that_says_so() {
        for garbage in [0, 7, 0x4_0010, 0x7_0000, u64::MAX] {
            let frames = natives().frames(&[0x3_0010, garbage, 0x3_0041], false);
            assert_eq!((names(&frames), frames.end), (vec!["libfoo.so+0x1010"], End::Unreadable), "{garbage:#x}");
        }
        assert_eq!(natives().frames(&[0x9_0000], true), Frames { places: Vec::new(), end: End::Unreadable });
    }

    #[test]
    fn garbage_in_masses_reads_no_mappings() {
        let mut natives = natives();
        let looked = natives.looked;
        for garbage in 0..1000 {
            natives.frames(&[0x3_0010, garbage], false);
        }
        assert!(natives.looked == looked || looked.elapsed() >= BETWEEN_LOOKS);
    }

    #[test]
    fn code_without_a_file_has_its_address_or_name() {
        let frames = natives().frames(&[0x5_0010, 0x6_0021], false);
        assert_eq!(names(&frames), ["0x50010", "[vdso]+0x20"]);
        assert!(frames.places.iter().all(|place| place.module.is_none()));
    }

    #[test]
    fn a_call_is_looked_for_before_where_it_returns_to() {
        // The call is the last instruction of the mapping.
        let frames = natives().frames(&[0x3_0000, 0x3_1000], false);
        assert_eq!(names(&frames), ["libfoo.so+0x1000", "libfoo.so+0x1fff"]);
    }

    #[test]
    fn files_that_are_mapped_no_more_are_forgotten() {
        let mut natives = natives();
        natives.frames(&[0x3_0010, 0x1_0021], false);
        assert_eq!(natives.modules.len(), 2);
        natives.set_mappings(vec![mapping(0x1_0000, "/opt/python", 1, true)]);
        assert_eq!(natives.modules.len(), 1);
    }

    #[test]
    fn paths_beyond_the_bound_have_their_build_in_their_name() {
        let mut builds = Builds::default();
        let module = |path: usize| {
            let mut module = Module::default();
            (module.path, module.build_id) = (path.to_string(), Some("b1".to_owned()));
            module
        };
        for path in 0..MOST_PATHS {
            assert_eq!(builds.file(&module(path)), path.to_string());
        }
        assert_eq!(builds.file(&module(MOST_PATHS)), format!("{MOST_PATHS} (build id b1)"));
        assert_eq!(builds.file(&module(7)), "7");
        assert_eq!(builds.0.len(), MOST_PATHS);
    }

    #[test]
    fn as_many_frames_as_are_kept_are_a_cut_stack() {
        assert_eq!(natives().frames(&[0x3_0010; MAX_NATIVE_FRAMES], false).end, End::Cut);
        assert_eq!(natives().frames(&[0x3_0010; MAX_NATIVE_FRAMES - 1], false).end, End::Outermost);
    }

    #[test]
    fn a_path_means_one_build() {
        let module = |build_id: Option<&str>| {
            let mut module = Module::default();
            (module.path, module.build_id) = ("/lib/libfoo.so".to_owned(), build_id.map(str::to_owned));
            module
        };
        let mut builds = Builds::default();
        let (one, two, none) = (module(Some("ab")), module(Some("cd")), module(None));
        for (module, file) in [
            (&one, "/lib/libfoo.so"),
            (&two, "/lib/libfoo.so (build id cd)"),
            (&none, "/lib/libfoo.so (build id none)"),
            (&one, "/lib/libfoo.so"),
        ] {
            assert_eq!(builds.file(module), file);
        }
    }
}
