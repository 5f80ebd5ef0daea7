//! Saved memory: a row of ranges, each its address and length, eight bytes, and what was there; beside it is JSON, where the
//! interpreter was and what its threads told. Shared with the fuzz target in `fuzz/`.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::PathBuf;

use ktape_capture::python::code::{Code, LongTexts};
use ktape_capture::python::find::{prove_in, threads};
use ktape_capture::python::frames::walk;
use ktape_ebpf::python::{
    CodeBody, Interpreter, KEY_TLS, KEY_UNREAD, Layout, MAX_FRAMES, MAX_STEPS, Memory, copy_code,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Which Pythons have images: of the layout of each kind one.
pub(super) const IMAGES: [&str; 5] = ["3.11", "3.12", "3.13t", "3.14", "3.15"];

/// The table's version of this one, and whether it is free-threaded.
pub(super) fn row_of(version: &str) -> (u16, bool) {
    let minor = version.trim_start_matches("3.").trim_end_matches(['t', 'd']);
    (0x0300 | minor.parse::<u16>().unwrap(), version.contains('t'))
}

/// What lies beside an image.
#[derive(Deserialize, Serialize)]
struct Told<Stopped> {
    runtime: u64,
    tss_key: u32,
    first_slots: u32,
    slot_tables: u32,
    tls_module: u32,
    tls_offset: i32,
    stopped: Vec<Stopped>,
}

/// Memory in which only some ranges exist.
#[derive(Clone, Default)]
pub(super) struct Image {
    pub(super) ranges: BTreeMap<u64, Vec<u8>>,
    pub(super) reads: Cell<usize>,
}

impl Image {
    fn path(version: &str, extension: &str) -> PathBuf {
        // From this crate, and from that of the fuzz targets inside it.
        let images = "tests/python/images";
        let folder =
            [images, "../tests/python/images"].map(|folder| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(folder));
        let folder = folder.into_iter().find(|folder| folder.is_dir()).unwrap_or(images.into());
        folder.join(format!("cpython-{version}.{extension}"))
    }

    /// With the interpreter in it, and what its threads told.
    pub(super) fn load<Stopped: DeserializeOwned>(version: &str) -> (Self, Interpreter, Vec<Stopped>) {
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
        let told: Told<Stopped> = serde_json::from_slice(&std::fs::read(Self::path(version, "json")).unwrap()).unwrap();
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

    pub(super) fn save<Stopped: Serialize>(&self, version: &str, interpreter: &Interpreter, stopped: Vec<Stopped>) {
        let mut bytes = Vec::new();
        for (address, range) in &self.ranges {
            bytes.extend(address.to_le_bytes());
            bytes.extend((range.len() as u64).to_le_bytes());
            bytes.extend(range);
        }
        std::fs::write(Self::path(version, "image"), bytes).unwrap();
        let &Interpreter { runtime, tss_key, first_slots, slot_tables, tls_module, tls_offset, .. } = interpreter;
        let told = Told { runtime, tss_key, first_slots, slot_tables, tls_module, tls_offset, stopped };
        std::fs::write(Self::path(version, "json"), serde_json::to_vec(&told).unwrap()).unwrap();
    }

    /// Replaces the word at this place of the range, both taken round and round, by one of these kinds: with bits flipped, any
    /// number, an address elsewhere in the image, its own address, a huge number, one that is nowhere.
    pub(super) fn damage(&mut self, range: u64, at: u64, kind: u64, value: u64) {
        let count = self.ranges.len() as u64;
        let other = *self.ranges.keys().nth((value % count) as usize).unwrap();
        let (&address, range) = self.ranges.iter_mut().nth((range % count) as usize).unwrap();
        let Some(words) = (range.len() as u64 / 8).checked_sub(1).map(|last| last + 1) else { return };
        let at = (at % words * 8) as usize;
        let word = &mut range[at..at + 8];
        let known = u64::from_ne_bytes(word.try_into().unwrap());
        let new = match kind % 6 {
            0 => known ^ 1 << (value % 64),
            1 => value,
            2 => other.wrapping_add(value >> 32 & 0xff8),
            3 => address + at as u64,
            4 => (1 << (value % 64)) - 1,
            _ => known.wrapping_add(1 << 44),
        };
        word.copy_from_slice(&new.to_ne_bytes());
    }

    /// Does everything that is done with a process's memory: it has to end within so many reads, whatever is in it.
    pub(super) fn go_through(&self, interpreter: &Interpreter) {
        let reads = || self.reads.replace(0);
        let tss_key = if interpreter.tss_key == KEY_TLS { KEY_TLS } else { KEY_UNREAD };
        let _ = prove_in(self, &mut Interpreter { tss_key, ..*interpreter });
        // Of the threads, of every key in eight of them, and of sixteen stacks with sixty-four names each.
        let (per_step, per_code) = (5, 32);
        let most = 4 * 256 + 3 * 1024 * 8 + 16 * (MAX_STEPS as usize * per_step + 64 * per_code);
        assert!(reads() <= most);
        let listed = threads(self, interpreter);
        // A list is as long as there is memory for.
        let bytes: usize = self.ranges.values().map(Vec::len).sum();
        assert!(listed.len() <= bytes && reads() <= 5 * bytes);
        let mut body = CodeBody::default();
        for thread in listed.iter().take(64) {
            let walk = walk(self, &interpreter.layout, thread.state);
            assert!(walk.count as usize <= MAX_FRAMES && reads() <= MAX_STEPS as usize * per_step + 2);
            for frame in &walk.frames[..walk.count.min(8) as usize] {
                copy_code(self, &interpreter.layout, frame.code, &mut body);
                assert!(reads() <= 20);
                let code = Code::new(&body, &LongTexts::default(), &interpreter.layout, Some(self));
                let _ = (code.line(frame.instruction), code.hides(frame));
                assert!(reads() <= per_code);
            }
        }
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
