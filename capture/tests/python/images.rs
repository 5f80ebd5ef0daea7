//! The walker over saved memory: what was read from a stopped `workload.py` once, whole and damaged at random.
//!
//! `cargo test -p ktape-capture --test python -- --ignored make_the_images` makes `images/` anew, of the Pythons that are
//! there.

use std::cell::RefCell;
use std::collections::BTreeMap;

use ktape_capture::python::find::{find, prove_in, threads};
use ktape_capture::python::memory::ProcessMemory;
use ktape_ebpf::python::{ABSENT, Interpreter, KEY_BY_LIST, KEY_TLS, KEY_UNREAD, LAYOUTS, Memory};

use super::image::{IMAGES, Image};
use super::interpreters::{Stopped, Workload, builds_of};
use super::live::{assert_stopped, kept, stack};

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
#[ignore = "writes the images that the other tests read: cargo test -p ktape-capture --test python make_the_images -- --ignored"]
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
        memory.image().save(version, &interpreter, std::mem::take(&mut workload.stopped));
    }
}

#[test]
fn every_stack_of_an_image_is_what_python_said() {
    for version in IMAGES {
        let (image, interpreter, stopped) = Image::load::<Stopped>(version);
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
}

#[test]
fn damaged_images_end_within_the_bounds() {
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    for version in IMAGES {
        let (whole, interpreter, stopped) = Image::load::<Stopped>(version);
        let mut different = 0;
        for _ in 0..200 {
            let mut image = whole.clone();
            for _ in 0..1 + numbers.next() % 200 {
                let [range, at, kind, value] = [(); 4].map(|()| numbers.next());
                image.damage(range, at, kind, value);
            }
            image.go_through(&interpreter);
            let one = &stopped[(numbers.next() % stopped.len() as u64) as usize];
            different += usize::from(stack(&image, &interpreter, one.pthread) != kept(&one.stack));
        }
        assert!(different > 10, "the damage did nothing");
    }
}

#[test]
fn a_thread_state_that_is_not_where_glibc_keeps_it_is_to_be_looked_up_in_the_list() {
    for version in IMAGES {
        let (image, interpreter, _) = Image::load::<Stopped>(version);
        // As with musl, whose thread pointer leads elsewhere.
        let mut moved =
            Interpreter { first_slots: 0x10_0000, slot_tables: 0x10_0000, tls_offset: 0x10_0000, ..interpreter };
        prove_in(&image, &mut moved).unwrap();
        assert_eq!(moved.tss_key, KEY_BY_LIST, "{version}");
    }
}

#[test]
fn a_key_that_is_not_where_a_version_has_it_is_found_in_the_slots() {
    for version in IMAGES {
        let (image, interpreter, _) = Image::load::<Stopped>(version);
        if interpreter.tss_key == KEY_TLS {
            continue;
        }
        let mut moved = interpreter;
        moved.layout.tss_key = interpreter.layout.interpreters_head;
        prove_in(&image, &mut moved).unwrap();
        assert_eq!(moved.tss_key, interpreter.tss_key, "{version}");
    }
}

#[test]
fn a_layout_that_is_not_the_interpreter_s_is_refused() {
    for version in IMAGES {
        let (image, interpreter, _) = Image::load::<Stopped>(version);
        for layout in LAYOUTS.into_iter().filter(|layout| *layout != interpreter.layout) {
            let tss_key = if layout.tss_key == ABSENT { KEY_TLS } else { KEY_UNREAD };
            let proof = prove_in(&image, &mut Interpreter { layout, tss_key, ..interpreter });
            assert!(proof.is_err(), "{version} passes for {layout:?}");
        }
    }
}
