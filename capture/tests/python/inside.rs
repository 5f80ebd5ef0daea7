//! Stacks told by the library inside, against what the program says on the line that launches.
//!
//! The program runs on the stand-in driver (`fixtures/simcuda`), which loads the library as the real one does; the recorder's side
//! of the files is in here. Each ring is taken by itself: whatever a record refers to has to come before it in the same ring.

use std::cell::UnsafeCell;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use ktape_capture::probes::functions;
use ktape_capture::python::code::{Code, LongTexts};
use ktape_capture::python::find::find;
use ktape_capture::python::frames::{Codes, Named};
use ktape_capture::python::memory::ProcessMemory;
use ktape_ebpf::inside::ring::Reader;
use ktape_ebpf::inside::{
    self, Control, Correlated, FunctionEntry, FunctionName, LAYOUT, MAGIC, ProcessPage, device_time,
};
use ktape_ebpf::python::{CodeBody, Interpreter, Layout, Memory as _, RawFrame};
use ktape_ebpf::wire::{Call, CodeRecord, Plain as _, Return, StackBody, StackCall, TaskBody, TextPiece, kind, tally};
use memmap2::MmapRaw;
use serde::Deserialize;
use tempfile::TempDir;

use super::interpreters::{DIRECTORY, Told, builds_of};
use super::live::kept;

/// What the program says of a launch.
#[derive(Deserialize)]
struct Launch {
    stack: Vec<Told>,
    task: Option<String>,
}

/// A program that is recorded.
struct Recorded {
    directory: TempDir,
    /// Locked for as long as the recorder lives.
    _control: File,
    child: Child,
    output: BufReader<ChildStdout>,
    rings: BTreeMap<PathBuf, Ring>,
}

impl Recorded {
    /// Starts it, and waits until it has its driver. `None` where there is no stand-in.
    fn start(python: &Path, arguments: &[&str]) -> Option<Recorded> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let simcuda = root.join("target/simcuda");
        if !simcuda.join("libcupti.so.12").exists() {
            super::skip("fixtures/simcuda/build.sh has not run");
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let library = std::env::current_exe().unwrap().with_file_name("libktape_inside.so");
        let control = control(directory.path());
        let mut child = Command::new(python)
            .arg("inside.py")
            .args(arguments)
            .current_dir(DIRECTORY)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("LD_LIBRARY_PATH", simcuda)
            .env("CUDA_INJECTION64_PATH", library)
            .env(inside::DIRECTORY_VARIABLE, directory.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut recorded = Recorded { directory, _control: control, child, output, rings: BTreeMap::new() };
        assert_eq!(recorded.line(), "ready");
        Some(recorded)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn go_on(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }

    /// Writes where the interpreter is, as the recorder does it.
    fn set_interpreter(&self, interpreter: &Interpreter) {
        let map = self.files(inside::PROCESS_SUFFIX).first().map(|path| mapped(path)).unwrap();
        // SAFETY: a whole page, mapped for as long as it is used.
        let page = unsafe { &*map.as_ptr().cast::<ProcessPage>() };
        let version: &AtomicU32 = &page.interpreter_version;
        version.fetch_add(1, Ordering::AcqRel);
        let place: &UnsafeCell<Interpreter> = &page.interpreter;
        // SAFETY: the version says that it is being written.
        unsafe { place.get().write_volatile(*interpreter) };
        version.fetch_add(1, Ordering::AcqRel);
    }

    fn files(&self, suffix: &str) -> Vec<PathBuf> {
        let paths = fs::read_dir(self.directory.path()).unwrap().map(|entry| entry.unwrap().path());
        paths.filter(|path| path.to_str().unwrap().ends_with(suffix)).collect()
    }

    /// Takes what there is.
    fn take(&mut self, layout: &Layout) {
        for path in self.files(inside::RING_SUFFIX) {
            let ring = self.rings.entry(path).or_insert_with_key(|path| Ring::of(path));
            ring.take(layout);
        }
    }

    fn rings(&self) -> impl Iterator<Item = &Ring> {
        self.rings.values()
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn mapped(path: &Path) -> MmapRaw {
    MmapRaw::map_raw(&OpenOptions::new().read(true).write(true).open(path).unwrap()).unwrap()
}

/// Makes the recorder's files.
fn control(directory: &Path) -> File {
    let functions: Vec<FunctionEntry> = (0..)
        .zip(functions::all())
        .filter(|(_, probed)| probed.symbol.len() < 64)
        .map(|(function, probed)| {
            let mut symbol = [0; 64];
            symbol[..probed.symbol.len()].copy_from_slice(probed.symbol.as_bytes());
            let returns = probed.meaning.wants_return(true).into();
            FunctionEntry { symbol, plan: probed.meaning.plan(), function, returns, padding: 0 }
        })
        .collect();
    let bytes: Vec<u8> = functions.iter().flat_map(|entry| entry.as_bytes().to_vec()).collect();
    fs::write(directory.join(inside::FUNCTIONS_FILE), bytes).unwrap();
    let path = directory.join(inside::CONTROL_FILE);
    fs::write(&path, [0; 4096]).unwrap();
    let file = File::open(&path).unwrap();
    // SAFETY: no pointers.
    assert_eq!(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) }, 0);
    let map = mapped(&path);
    // SAFETY: zeros are a page, and nobody else has it yet.
    let page = unsafe { &mut *map.as_mut_ptr().cast::<Control>() };
    (page.layout, page.device_time, page.calls) = (LAYOUT, device_time::CUPTI, 1);
    (page.ring_bytes, page.flush_ms, page.functions) = (64 << 20, 20, functions.len() as u32);
    page.magic.store(MAGIC, Ordering::Release);
    file
}

/// A thread's ring, and what is known from it.
struct Ring {
    reader: Reader,
    _map: MmapRaw,
    codes: Codes,
    /// Addresses of code that was told.
    told_codes: Vec<u64>,
    pieces: LongTexts,
    tasks: BTreeMap<u64, String>,
    /// By hash: the frames as they are shown, how the walk ended, the task.
    stacks: BTreeMap<u64, (Vec<Told>, u32, Option<String>)>,
    /// By grid.
    launches: BTreeMap<u64, (Vec<Told>, u32, Option<String>)>,
    kernels: BTreeMap<u64, String>,
    /// Calls that have not returned: function and stack pointer.
    open: Vec<(u32, u64)>,
    calls: u64,
    correlations: Vec<u32>,
    /// What was handed out by the function of this number, and its result.
    returns: Vec<Return>,
    /// The code object that runs tasks.
    runner: Option<u64>,
}

impl Ring {
    fn of(path: &Path) -> Ring {
        let map = mapped(path);
        Ring {
            // SAFETY: mapped for as long as the ring, and a file is never cut short.
            reader: unsafe { Reader::new(map.as_ptr(), map.len()) }.unwrap(),
            _map: map,
            codes: Codes::default(),
            told_codes: Vec::new(),
            pieces: LongTexts::default(),
            tasks: BTreeMap::new(),
            stacks: BTreeMap::new(),
            launches: BTreeMap::new(),
            kernels: BTreeMap::new(),
            open: Vec::new(),
            calls: 0,
            correlations: Vec::new(),
            returns: Vec::new(),
            runner: None,
        }
    }

    fn take(&mut self, layout: &Layout) {
        let mut record = Vec::new();
        while self.reader.next(&mut record).unwrap() {
            let kind = u16::from_ne_bytes([record[0], record[1]]).into();
            self.take_record(kind, &record, layout);
            record.clear();
        }
    }

    fn take_record(&mut self, kind: u32, record: &[u8], layout: &Layout) {
        match kind {
            kind::CODE => {
                // SAFETY: the record has this kind, and its length is asserted; any bytes are one.
                let code = unsafe { record.as_ptr().cast::<CodeRecord>().read_unaligned() };
                assert_eq!(record.len(), size_of::<CodeRecord>());
                let CodeBody { code: address, .. } = code.body;
                let made = Code::new(&code.body, &std::mem::take(&mut self.pieces), layout, None::<&ProcessMemory>);
                if matches!(&*made.name, "Handle._run" | "_run") && made.file.ends_with("asyncio/events.py") {
                    self.runner = Some(address);
                }
                self.told_codes.push(address);
                self.codes.insert(address, made);
            }
            kind::TEXT_PIECE => {
                assert_eq!(record.len(), size_of::<TextPiece>());
                // SAFETY: as above.
                let piece = unsafe { record.as_ptr().cast::<TextPiece>().read_unaligned() };
                let text = self.pieces[piece.text as usize].get_or_insert_default();
                assert_eq!(text.len() as u64, piece.offset);
                text.extend(&piece.bytes[..piece.length as usize]);
            }
            kind::TASK_BODY => {
                let body = TaskBody::read(record).unwrap();
                self.tasks.insert(body.hash, ktape_capture::python::code::task_name(&body.name));
            }
            kind::STACK_BODY => {
                let body = StackBody::read(record).unwrap();
                let frames = record[size_of::<StackBody>()..].chunks_exact(size_of::<RawFrame>());
                assert_eq!(frames.len(), body.depth as usize);
                let shown = frames.filter_map(|frame| match self.codes.name(&RawFrame::read(frame).unwrap()) {
                    Named::Shown(frame) => Some((frame.code.name.to_string(), frame.code.file.to_string(), frame.line)),
                    Named::Hidden => None,
                    Named::Unknown => panic!("code that was not told"),
                });
                let task = (body.task != 0).then(|| self.tasks[&body.task].clone());
                self.stacks.insert(body.stack, (shown.collect(), body.end, task));
            }
            kind::CALL | kind::STACK_CALL | kind::MEMORY_CALL | kind::NAMED_CALL | kind::LISTS_CALL => {
                let call = Call::read(record).unwrap();
                assert_eq!(call.cpu, tally::NO_CPU);
                self.open.retain(|(_, stack_pointer)| *stack_pointer > call.stack_pointer);
                self.open.push((call.function, call.stack_pointer));
                self.calls += 1;
                if kind == kind::STACK_CALL && functions::all()[call.function as usize].symbol == "cuLaunchKernel" {
                    let words = StackCall::read(record).unwrap().words;
                    assert_eq!((&call.registers[2..], &words[..3]), (&[1, 1, 1, 1][..], &[1, 0, 0][..]));
                    assert_eq!(self.kernels[&call.registers[0]], "_Z5scalePf");
                    let stack = match call.stack {
                        0 => (Vec::new(), 0, None),
                        hash => self.stacks.get(&hash).expect("a stack that was told").clone(),
                    };
                    self.launches.insert(call.registers[1], stack);
                }
            }
            kind::RETURN => {
                let returned = Return::read(record).unwrap();
                assert_eq!(self.open.pop(), Some((returned.function, returned.stack_pointer - 8)));
                self.returns.push(returned);
            }
            inside::kind::FUNCTION_NAME => {
                let name = FunctionName::read(record).unwrap();
                let text = String::from_utf8(record[size_of::<FunctionName>()..].to_vec()).unwrap();
                assert_eq!(text.len(), name.bytes as usize);
                assert_eq!(self.kernels.insert(name.handle, text), None, "told twice");
            }
            inside::kind::CORRELATED => {
                self.correlations.push(Correlated::read(record).unwrap().correlation);
                assert_eq!(self.correlations.len() as u64, self.calls);
            }
            _ => {}
        }
    }
}

fn every_launch_has_the_stack_that_the_program_tells(version: &str) {
    for python in builds_of(version) {
        let Some(mut recorded) = Recorded::start(&python, &[]) else { return };
        let pid = recorded.child.id();
        let mut interpreter = find(pid).unwrap().interpreter;
        let layout = interpreter.layout;
        recorded.set_interpreter(&interpreter);
        recorded.go_on();
        assert_eq!(recorded.line(), "ready");
        // Now the recorder knows what runs tasks.
        recorded.take(&layout);
        if let Some(runner) = recorded.rings().find_map(|ring| ring.runner) {
            let memory = ProcessMemory::open(pid).unwrap();
            let name = memory.word(runner + u64::from(layout.code_name)).unwrap();
            interpreter.task_runner = runner;
            interpreter.string_type = memory.word(name + layout.type_offset()).unwrap();
        }
        assert_ne!(interpreter.task_runner, 0);
        recorded.set_interpreter(&interpreter);
        recorded.go_on();
        let told: Vec<Launch> = serde_json::from_str(&recorded.line()).unwrap();
        assert!(recorded.child.wait().unwrap().success());
        recorded.take(&layout);

        let mut launches = BTreeMap::new();
        let mut names_of_tasks = 0;
        for ring in recorded.rings() {
            launches.extend(&ring.launches);
            assert!(ring.open.is_empty(), "{:?}", ring.open);
            let counted = |table: usize| {
                (0..u64::from(tally::SLOTS))
                    .map(|slot| ring.reader.slot(slot))
                    .fold((0, 0), |(seen, lost), slot| (seen + slot.seen[table], lost + slot.lost[table]))
            };
            let table = functions::Meaning::Launch.table();
            assert_eq!(counted(table.into()), (ring.launches.len() as u64, 0));
        }
        assert_eq!(launches.len(), told.len());
        for ((grid, (stack, end, task)), launch) in launches.into_iter().zip(&told) {
            assert_eq!((stack.clone(), *end), kept(&launch.stack), "launch {grid} in {version}");
            // Before the recorder knew what runs tasks there were no names.
            if task.is_some() {
                assert_eq!(task, &launch.task);
                names_of_tasks += 1;
            }
        }
        assert_eq!(names_of_tasks, 6, "in {version}");
        assert_eq!(told[told.len() - 2..].iter().filter(|launch| launch.task.is_none()).count(), 1);

        // What was handed out, and what was refused.
        let all = functions::all();
        let of = |name: &str| -> Vec<Return> {
            let rings = recorded.rings().flat_map(|ring| &ring.returns);
            rings.filter(|returned| all[returned.function as usize].symbol == name).copied().collect()
        };
        let (handed_out, refused): (Vec<_>, Vec<_>) = of("cuMemAlloc_v2").into_iter().partition(|ret| ret.result == 0);
        assert_eq!((handed_out.len(), refused.len()), (5, 5));
        assert!(handed_out.iter().all(|returned| returned.outs[0] != 0));
        assert_eq!(of("cuMemFree_v2").len(), 5);
        // Code was freed, so what was known by its address was told again: else the above would have been wrong.
        let busiest = recorded.rings().max_by_key(|ring| ring.told_codes.len()).unwrap();
        let mut codes = busiest.told_codes.clone();
        codes.sort_unstable();
        codes.dedup();
        assert!(codes.len() < busiest.told_codes.len(), "no code came to the place of another");
    }
}

macro_rules! for_each_version {
    ($($name:ident: $version:literal),*) => { $(
        #[test]
        fn $name() {
            every_launch_has_the_stack_that_the_program_tells($version);
        }
    )* };
}
for_each_version!(
    launches_of_3_8: "3.8", launches_of_3_9: "3.9", launches_of_3_10: "3.10", launches_of_3_11: "3.11",
    launches_of_3_12: "3.12", launches_of_3_13: "3.13", launches_of_3_14: "3.14", launches_of_3_15: "3.15",
    launches_of_3_13t: "3.13t"
);

/// Launches without the interpreter's lock until the process ends.
const LAUNCH_MANY: &str = "
#include <dlfcn.h>
typedef int launch_t(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
void launch_many(void *function, void *context)
{
    void *driver = dlopen(\"libcuda.so.1\", RTLD_NOW);
    launch_t *launch = (launch_t *)dlsym(driver, \"cuLaunchKernel\");
    ((int (*)(void *))dlsym(driver, \"cuCtxSetCurrent\"))(context);
    for (;;)
        launch(function, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0);
}
";

#[test]
fn an_interpreter_that_ends_under_a_thread_that_launches_does_not_take_the_process_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let (source, library) = (folder.path().join("many.c"), folder.path().join("many.so"));
    fs::write(&source, LAUNCH_MANY).unwrap();
    let compiled =
        Command::new("cc").args(["-O1", "-shared", "-fPIC", "-o"]).args([&library, &source]).arg("-ldl").status();
    if !compiled.is_ok_and(|status| status.success()) {
        return super::skip("there is no C compiler");
    }
    for version in ["3.8", "3.9", "3.10", "3.11", "3.12", "3.13"] {
        for python in builds_of(version) {
            for _ in 0..5 {
                let Some(mut recorded) = Recorded::start(&python, &[library.to_str().unwrap()]) else { return };
                let interpreter = find(recorded.child.id()).unwrap().interpreter;
                recorded.set_interpreter(&interpreter);
                recorded.go_on();
                let status = recorded.child.wait().unwrap();
                assert!(status.success(), "{status} in {version}");
            }
        }
    }
}
