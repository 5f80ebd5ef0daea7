//! The recorder's side of the shared directory, as far as tests need it, and the program that is recorded.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::CStr;
use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ktape_ebpf::inside::ring::{HEADER_BYTES, Reader};
use ktape_ebpf::inside::{
    CONTROL_FILE, Clocks, Control, CopyRan, Correlated, DIRECTORY_VARIABLE, FUNCTIONS_FILE, FunctionEntry, KernelRan,
    LAYOUT, MAGIC, Missing, PROCESS_SUFFIX, ProcessPage, RING_SUFFIX, Ran, SetRan, Text, device_time, kind, untimed,
};
use ktape_ebpf::wire::{self, Plain as _, Plan, tally};
use tempfile::TempDir;

/// A recorder that takes all that is told.
pub(crate) struct Recorder {
    pub(crate) directory: TempDir,
    control: *mut Control,
    lock: Option<File>,
    is_dead: bool,
    rings: HashMap<PathBuf, Ring>,
    pub(crate) told: Told,
}

struct Ring {
    reader: Reader,
    names: HashMap<u32, String>,
}

/// What was told.
#[derive(Default)]
pub(crate) struct Told {
    pub(crate) kernels: Vec<(KernelRan, String)>,
    pub(crate) copies: Vec<CopyRan>,
    pub(crate) sets: Vec<SetRan>,
    pub(crate) calls: usize,
    pub(crate) correlated: Vec<Correlated>,
    pub(crate) missing: Vec<Missing>,
    pub(crate) clocks: Vec<Clocks>,
    /// Kernels that CUDA events were around.
    pub(crate) timed: Vec<Ran>,
}

/// A process's page, read.
#[derive(Debug, PartialEq)]
pub(crate) struct Page {
    pub(crate) state: u32,
    pub(crate) code: u32,
    pub(crate) cupti_version: u32,
    pub(crate) detail: String,
    /// Launches that have had events, how long these took, and those that were not to have any.
    pub(crate) timed: (u64, u64),
    pub(crate) untimed: [u64; untimed::NAMES.len()],
    pub(crate) cost: Cost,
}

/// What the library says that it took.
#[derive(Debug, PartialEq)]
pub(crate) struct Cost {
    pub(crate) own_ns: u64,
    pub(crate) own_calls: u64,
    pub(crate) keeper_ns: u64,
    pub(crate) cupti_threads_ns: u64,
    pub(crate) process_ns: u64,
    pub(crate) overhead_ns: Vec<u64>,
}

fn map(path: &Path) -> *mut u8 {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let bytes = file.metadata().unwrap().len() as usize;
    // SAFETY: a new mapping of an open file. It is left for good: tests are short.
    let address = unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        libc::mmap(null_mut(), bytes, protection, libc::MAP_SHARED, file.as_raw_fd(), 0)
    };
    assert_ne!(address, libc::MAP_FAILED);
    address.cast()
}

impl Recorder {
    /// One that wants device times and the calls of launches; `change` is what it wants otherwise.
    pub(crate) fn new(change: impl FnOnce(&mut Control)) -> Recorder {
        // Where a recorder would have it: in memory.
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = directory.path().join(CONTROL_FILE);
        fs::write(&path, [0; 4096]).unwrap();
        let functions: Vec<u8> = ["cuLaunchKernel", "cuMemcpyHtoD_v2", "cuLaunchKernel_ptsz", "cuLaunchKernelEx"]
            .iter()
            .enumerate()
            .flat_map(|(index, name)| {
                let mut symbol = [0; 64];
                symbol[..name.len()].copy_from_slice(name.as_bytes());
                let plan = Plan { record: wire::kind::CALL, tally: 1, ..Plan::default() };
                FunctionEntry { symbol, plan, function: index as u32, returns: 0, padding: 0 }.as_bytes().to_vec()
            })
            .collect();
        fs::write(directory.path().join(FUNCTIONS_FILE), functions).unwrap();
        let control = map(&path).cast::<Control>();
        // SAFETY: zeros, and nobody else's yet.
        let page = unsafe { &mut *control };
        page.layout = LAYOUT;
        page.device_time = device_time::CUPTI;
        page.calls = 1;
        page.ring_bytes = 1 << 22;
        page.flush_ms = 20;
        page.functions = 4;
        change(page);
        page.magic.store(MAGIC, Ordering::Release);
        let lock = File::open(&path).unwrap();
        // SAFETY: no pointers.
        assert_eq!(unsafe { libc::flock(lock.as_raw_fd(), libc::LOCK_EX) }, 0);
        Recorder { directory, control, lock: Some(lock), is_dead: false, rings: HashMap::new(), told: Told::default() }
    }

    pub(crate) fn control(&self) -> &Control {
        // SAFETY: mapped for good; what changes is atomic.
        unsafe { &*self.control }
    }

    /// What a recorder that is killed does.
    pub(crate) fn die(&mut self) {
        self.lock = None;
        self.is_dead = true;
    }

    /// Runs the program to its end, and takes what it tells meanwhile and at last.
    pub(crate) fn run(&mut self, command: &mut Command) -> Output {
        self.run_with(command, |_, _| {})
    }

    /// The same, with something done all the time.
    pub(crate) fn run_with(&mut self, command: &mut Command, mut between: impl FnMut(&mut Recorder, u32)) -> Output {
        command.env("CUDA_INJECTION64_PATH", library()).env(DIRECTORY_VARIABLE, self.directory.path());
        if self.control().device_time == device_time::EVENTS {
            command.env("LD_PRELOAD", library());
        }
        self.run_prepared(command, &mut between)
    }

    /// The same, with the library in this variable alone.
    pub(crate) fn run_by(&mut self, variable: &str, command: &mut Command) -> Output {
        command.env(variable, library()).env(DIRECTORY_VARIABLE, self.directory.path());
        self.run_prepared(command, &mut |_, _| {})
    }

    fn run_prepared(&mut self, command: &mut Command, between: &mut dyn FnMut(&mut Recorder, u32)) -> Output {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let patience = Instant::now() + Duration::from_secs(120);
        while child.try_wait().unwrap().is_none() {
            self.take();
            between(self, child.id());
            if Instant::now() > patience {
                child.kill().unwrap();
                panic!("the program hangs: {:?}", child.wait_with_output().unwrap());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let output = child.wait_with_output().unwrap();
        self.take();
        output
    }

    /// Takes what there is.
    pub(crate) fn take(&mut self) {
        if self.is_dead {
            return;
        }
        for path in self.files(RING_SUFFIX) {
            let Entry::Vacant(place) = self.rings.entry(path) else { continue };
            let length = fs::metadata(place.key()).unwrap().len() as usize;
            if length < HEADER_BYTES {
                continue;
            }
            // SAFETY: mapped for good.
            if let Ok(reader) = unsafe { Reader::new(map(place.key()), length) } {
                place.insert(Ring { reader, names: HashMap::new() });
            }
        }
        for ring in self.rings.values_mut() {
            let mut record = Vec::new();
            while ring.reader.next(&mut record).unwrap() {
                self.told.take(&record, &mut ring.names);
                record.clear();
            }
        }
    }

    pub(crate) fn files(&self, suffix: &str) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.directory.path()).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        paths.filter(|path| path.to_str().unwrap().ends_with(suffix)).collect()
    }

    /// What was counted of a table in all rings: seen and lost.
    pub(crate) fn counted(&self, table: u32) -> (u64, u64) {
        let slots =
            self.rings.values().flat_map(|ring| (0..u64::from(tally::SLOTS)).map(|slot| ring.reader.slot(slot)));
        slots.fold((0, 0), |(seen, lost), slot| (seen + slot.seen[table as usize], lost + slot.lost[table as usize]))
    }

    pub(crate) fn rings(&self) -> impl Iterator<Item = &Reader> {
        self.rings.values().map(|ring| &ring.reader)
    }

    /// The pages of all processes that were recorded.
    pub(crate) fn pages(&self) -> Vec<Page> {
        let pages = self.files(PROCESS_SUFFIX).into_iter().map(|path| {
            // SAFETY: a whole page, mapped for good.
            let page = unsafe { &*map(&path).cast::<ProcessPage>() };
            assert_eq!((page.magic.load(Ordering::Acquire), page.layout), (MAGIC, LAYOUT));
            // SAFETY: the process has ended, or writes it no more.
            let detail = unsafe { CStr::from_ptr((*page.detail.get()).as_ptr().cast()) };
            Page {
                state: page.state.load(Ordering::Acquire),
                code: page.code.load(Ordering::Relaxed),
                cupti_version: page.cupti_version.load(Ordering::Relaxed),
                detail: detail.to_string_lossy().into_owned(),
                timed: (page.timed.load(Ordering::Relaxed), page.timed_ns.load(Ordering::Relaxed)),
                untimed: page.untimed.each_ref().map(|count| count.load(Ordering::Relaxed)),
                cost: Cost {
                    own_ns: page.own_ns.load(Ordering::Relaxed),
                    own_calls: page.own_calls.load(Ordering::Relaxed),
                    keeper_ns: page.keeper_ns.load(Ordering::Relaxed),
                    cupti_threads_ns: page.cupti_threads_ns.load(Ordering::Relaxed),
                    process_ns: page.process_ns.load(Ordering::Relaxed),
                    overhead_ns: page.overhead_ns.iter().map(|sum| sum.load(Ordering::Relaxed)).collect(),
                },
            }
        });
        pages.collect()
    }
}

impl Told {
    fn take(&mut self, record: &[u8], names: &mut HashMap<u32, String>) {
        match u32::from_ne_bytes(record[..4].try_into().unwrap()) {
            kind::TEXT => {
                let text = Text::read(record).unwrap();
                let bytes = record[size_of::<Text>()..][..text.bytes as usize].to_vec();
                names.insert(text.id, String::from_utf8(bytes).unwrap());
            }
            kind::KERNEL_RAN => {
                let kernel = KernelRan::read(record).unwrap();
                self.kernels.push((kernel, names[&kernel.name].clone()));
            }
            kind::COPY_RAN => self.copies.push(CopyRan::read(record).unwrap()),
            kind::SET_RAN => self.sets.push(SetRan::read(record).unwrap()),
            kind::CORRELATED => self.correlated.push(Correlated::read(record).unwrap()),
            kind::MISSING => self.missing.push(Missing::read(record).unwrap()),
            kind::CLOCKS => self.clocks.push(Clocks::read(record).unwrap()),
            kind::KERNEL_TIMED => self.timed.push(Ran::read(record).unwrap()),
            kind::FUNCTION_NAME => {}
            // Calls have a kind of 16 bits.
            other if other & 0xffff == wire::kind::CALL => self.calls += 1,
            other => panic!("a record of kind {other}"),
        }
    }
}

/// The library: cargo has built it beside the test.
pub(crate) fn library() -> PathBuf {
    let library = std::env::current_exe().unwrap().with_file_name("libktape_inside.so");
    assert!(library.exists(), "{}", library.display());
    library
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// A folder of the parts that scripts fetch or build.
pub(crate) fn part(name: &str) -> PathBuf {
    root().join("target").join(name)
}

/// The program, with the stand-in libraries. None, and the test is skipped, where they are not there.
pub(crate) fn client(arguments: &[&str]) -> Option<Command> {
    static PROGRAM: OnceLock<Option<Program>> = OnceLock::new();
    program(&PROGRAM, "client.c", arguments)
}

/// A program, compiled once, and the folder that it lies in.
pub(crate) type Program = (TempDir, PathBuf);

/// As [`client`], another program.
pub(crate) fn program(
    compiled: &'static OnceLock<Option<Program>>,
    source: &str,
    arguments: &[&str],
) -> Option<Command> {
    let simcuda = part("simcuda");
    if !simcuda.join("libcupti.so.12").exists() {
        super::skip("fixtures/simcuda/build.sh has not run");
        return None;
    }
    let compile = || {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("client");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/inside").join(source);
        let mut compiler = Command::new("cc");
        compiler.args(["-std=gnu11", "-O1", "-Wall", "-Werror", "-pthread", "-o"]).arg(&program).arg(source);
        let compiled = compiler.arg("-ldl").status();
        compiled.is_ok_and(|status| status.success()).then_some((folder, program))
    };
    let Some((_, program)) = compiled.get_or_init(compile) else {
        super::skip("there is no C compiler");
        return None;
    };
    let mut command = Command::new(program);
    command.args(arguments).env("LD_LIBRARY_PATH", simcuda);
    Some(command)
}

/// That it ended as it should.
pub(crate) fn assert_ended_well(output: &Output) {
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}
