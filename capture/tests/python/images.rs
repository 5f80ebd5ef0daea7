//! The walker over saved memory: what was read from a stopped `workload.py` once, whole and damaged at random.
//!
//! `cargo test -p ktape-capture --test python -- --ignored make_the_images` makes `images/` anew, of the Pythons that are
//! there. An image is a row of ranges, each its address and length, eight bytes, and what was there; beside it is JSON, where
//! the interpreter was and what its threads told.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::PathBuf;

use ktape_capture::python::code::{Code, LongTexts};
use ktape_capture::python::find::{find, prove_in, threads};
use ktape_capture::python::frames::walk;
use ktape_capture::python::memory::ProcessMemory;
use ktape_ebpf::python::{
    CodeBody, Interpreter, KEY_TLS, KEY_UNREAD, Layout, MAX_FRAMES, MAX_STEPS, Memory, copy_code,
};
use serde::{Deserialize, Serialize};

use super::interpreters::{DIRECTORY, Stopped, Workload, builds_of, row_of};
use super::live::{assert_stopped, kept, stack};

/// Which versions have images.
const IMAGES: [&str; 5] = ["3.11", "3.12", "3.13t", "3.14", "3.15"];

/// What lies beside an image.
#[derive(Deserialize, Serialize)]
struct Told {
    runtime: u64,
    tss_key: u32,
    first_slots: u32,
    slot_tables: u32,
    #[serde(default)]
    tls_module: u32,
    #[serde(default)]
    tls_offset: i32,
    stopped: Vec<Stopped>,
}

/// Memory in which only some ranges exist.
#[derive(Clone, Default)]
struct Image {
    ranges: BTreeMap<u64, Vec<u8>>,
    reads: Cell<usize>,
}

impl Image {
    fn path(version: &str, extension: &str) -> PathBuf {
        PathBuf::from(format!("{DIRECTORY}/images/cpython-{version}.{extension}"))
    }

    fn load(version: &str) -> (Self, Interpreter, Vec<Stopped>) {
        let bytes = std::fs::read(Self::path(version, "image")).unwrap();
        let mut rest = bytes.as_slice();
        let mut image = Self::default();
        while !rest.is_empty() {
            let (head, tail) = rest.split_at(16);
            let [address, length] = [0, 8].map(|at| u64::from_le_bytes(head[at..at + 8].try_into().unwrap()));
            let (range, tail) = tail.split_at(length as usize);
            image.ranges.insert(address, range.to_vec());
            rest = tail;
        }
        let told: Told = serde_json::from_slice(&std::fs::read(Self::path(version, "json")).unwrap()).unwrap();
        let (number, is_free_threaded) = row_of(version);
        let layout = Layout::of(number, is_free_threaded).unwrap();
        let Told { runtime, tss_key, first_slots, slot_tables, tls_module, tls_offset, stopped } = told;
        (
            image,
            Interpreter {
                runtime,
                tss_key,
                first_slots,
                slot_tables,
                tls_module,
                tls_offset,
                layout,
                ..Interpreter::default()
            },
            stopped,
        )
    }

    fn save(&self, version: &str) {
        let mut bytes = Vec::new();
        for (address, range) in &self.ranges {
            bytes.extend(address.to_le_bytes());
            bytes.extend((range.len() as u64).to_le_bytes());
            bytes.extend(range);
        }
        std::fs::write(Self::path(version, "image"), bytes).unwrap();
    }
}

impl Memory for Image {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        self.reads.set(self.reads.get() + 1);
        let mut filled = 0;
        while filled < into.len() {
            let Some(at) = address.checked_add(filled as u64) else { return false };
            let Some((begin, range)) = self.ranges.range(..=at).next_back() else { return false };
            let Some(known) = range.get((at - begin) as usize..).filter(|known| !known.is_empty()) else {
                return false;
            };
            let length = known.len().min(into.len() - filled);
            into[filled..filled + length].copy_from_slice(&known[..length]);
            filled += length;
        }
        true
    }
}

/// Passes reads on to a process, and keeps what came.
struct Recorder {
    process: ProcessMemory,
    bytes: RefCell<BTreeMap<u64, u8>>,
}

impl Recorder {
    fn image(&self) -> Image {
        let mut image = Image::default();
        let mut last: Option<(u64, Vec<u8>)> = None;
        for (&address, &byte) in self.bytes.borrow().iter() {
            match &mut last {
                Some((begin, range)) if *begin + range.len() as u64 == address => range.push(byte),
                _ => image.ranges.extend(last.replace((address, vec![byte]))),
            }
        }
        image.ranges.extend(last);
        image
    }
}

impl Memory for Recorder {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        let known = self.process.read(address, into);
        if known {
            self.bytes.borrow_mut().extend((address..).zip(into.iter().copied()));
        }
        known
    }
}

#[test]
#[ignore = "writes the images that the other tests read"]
fn make_the_images() {
    for version in IMAGES {
        let Some(python) = builds_of(version).into_iter().next() else { continue };
        let mut workload = Workload::start(&python, &[]);
        let interpreter = find(workload.pid()).unwrap().interpreter;
        let process = ProcessMemory::open(workload.pid()).unwrap();
        for stopped in &workload.stopped {
            assert_stopped(&process, &interpreter, stopped);
        }
        workload.hold_the_lock();
        assert_stopped(&process, &interpreter, workload.stopped.last().unwrap());
        let memory = Recorder { process, bytes: RefCell::default() };
        prove_in(&memory, &mut interpreter.clone()).unwrap();
        assert_eq!(threads(&memory, &interpreter).len(), workload.stopped.len());
        for stopped in &workload.stopped {
            assert_eq!(stack(&memory, &interpreter, stopped.pthread), kept(&stopped.stack), "{}", stopped.case);
        }
        memory.image().save(version);
        let Interpreter { runtime, tss_key, first_slots, slot_tables, tls_module, tls_offset, .. } = interpreter;
        let stopped = std::mem::take(&mut workload.stopped);
        let told = Told { runtime, tss_key, first_slots, slot_tables, tls_module, tls_offset, stopped };
        std::fs::write(Image::path(version, "json"), serde_json::to_vec(&told).unwrap()).unwrap();
    }
}

#[test]
fn every_stack_of_an_image_is_what_python_said() {
    for version in IMAGES {
        let (image, interpreter, stopped) = Image::load(version);
        assert!(stopped.len() >= 20);
        let mut proven =
            Interpreter { tss_key: if interpreter.tss_key == KEY_TLS { KEY_TLS } else { KEY_UNREAD }, ..interpreter };
        prove_in(&image, &mut proven).unwrap();
        // Which interpreter is the main one matters to several; it is not kept.
        assert_eq!(Interpreter { main: 0, ..proven }, interpreter, "{version}");
        let threads = threads(&image, &interpreter);
        for Stopped { case, pthread, stack: told } in &stopped {
            assert!(threads.iter().any(|thread| thread.pthread == *pthread), "{case} of {version}");
            assert_eq!(stack(&image, &interpreter, *pthread), kept(told), "{case} of {version}");
        }
    }
}

/// Numbers that look random, the same every time.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

/// Replaces words by others: bits flipped, any number, and (which leads deepest) words that are addresses elsewhere in it.
fn damage(image: &mut Image, numbers: &mut Numbers) {
    let addresses: Vec<u64> = image.ranges.keys().copied().collect();
    for _ in 0..1 + numbers.below(200) {
        let source = image.ranges[&addresses[numbers.below(addresses.len())]].clone();
        let address = addresses[numbers.below(addresses.len())];
        let range = image.ranges.get_mut(&address).unwrap();
        if range.len() < 8 || source.len() < 8 {
            continue;
        }
        let at = numbers.below(range.len() / 8) * 8;
        let from = numbers.below(source.len() / 8) * 8;
        let word = match numbers.below(4) {
            0 => u64::from_ne_bytes(range[at..at + 8].try_into().unwrap()) ^ 1 << numbers.below(64),
            1 => numbers.next(),
            2 => addresses[numbers.below(addresses.len())],
            _ => u64::from_ne_bytes(source[from..from + 8].try_into().unwrap()),
        };
        range[at..at + 8].copy_from_slice(&word.to_ne_bytes());
    }
}

#[test]
fn damaged_images_end_within_the_bounds() {
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    for version in IMAGES {
        let (whole, interpreter, stopped) = Image::load(version);
        let mut different = 0;
        for _ in 0..150 {
            let mut image = whole.clone();
            damage(&mut image, &mut numbers);
            let listed = threads(&image, &interpreter);
            assert!(listed.len() < 100_000);
            let one = &stopped[numbers.below(stopped.len())];
            let states = listed.iter().map(|thread| thread.state);
            for state in states {
                image.reads.set(0);
                let walk = walk(&image, &interpreter.layout, state);
                assert!(walk.count as usize <= MAX_FRAMES && image.reads.get() <= MAX_STEPS as usize + 2);
                let mut body = CodeBody::default();
                for frame in &walk.frames[..walk.count.min(8) as usize] {
                    image.reads.set(0);
                    copy_code(&image, &interpreter.layout, frame.code, &mut body);
                    assert!(image.reads.get() <= 20);
                    let code = Code::new(&body, &LongTexts::default(), &interpreter.layout, Some(&image));
                    let _ = code.line(frame.instruction);
                }
            }
            different += usize::from(stack(&image, &interpreter, one.pthread) != kept(&one.stack));
        }
        assert!(different > 10, "the damage did nothing");
    }
}
