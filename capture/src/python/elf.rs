//! Symbols of what a process has loaded: of its dynamic symbols by a few reads of its memory, so that a look into hundreds of
//! libraries takes no time and no file has to be found; of others by its file.
//!
//! All of it is a stranger's: every count is bounded, and whatever is senseless is a symbol that isn't there.

use std::fs::File;
use std::io;

use ktape_ebpf::python::Memory;
use object::{Object as _, ObjectSection as _, ObjectSegment as _, ObjectSymbol as _, ReadCache};

use super::files::MappedFile;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const DT_HASH: u64 = 4;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_GNU_HASH: u64 = 0x6fff_fef5;

/// Program headers and dynamic entries that are looked at: far more than there are.
const MAX_HEADERS: u16 = 64;
const MAX_DYNAMIC: u64 = 256;
/// Symbols of one hash that are looked at.
const MAX_CHAIN: u32 = 4096;
const PAGE_BYTES: u64 = 4096;

/// A shared object or an executable, 64-bit little-endian, where a process has it.
pub(super) struct Module<'m, M> {
    memory: &'m M,
    /// From the addresses in it to those in the process.
    bias: u64,
    hash: Hash,
    symbols: u64,
    strings: u64,
}

enum Hash {
    Gnu(u64),
    /// The one before it, which musl's tools still make.
    Old(u64),
}

impl<'m, M: Memory> Module<'m, M> {
    /// The one whose mapping of its beginning is at this address. `None` if it is none, or has no dynamic symbols.
    pub(super) fn at(memory: &'m M, begin: u64) -> Option<Self> {
        let mut head = [0; 64];
        memory.read(begin, &mut head).then_some(())?;
        if head[..6] != *b"\x7fELF\x02\x01" {
            return None;
        }
        let [headers, _] = words(&head[32..48]);
        let [size, count] = [54, 56].map(|at| u16::from_le_bytes([head[at], head[at + 1]]));
        if size != 56 || count > MAX_HEADERS || headers > PAGE_BYTES {
            return None;
        }
        let mut bytes = vec![0; usize::from(count) * 56];
        memory.read(begin.wrapping_add(headers), &mut bytes).then_some(())?;
        // Type and flags, offset, address, physical address, bytes in the file, bytes in memory, alignment.
        let headers = || bytes.as_chunks::<56>().0.iter().map(|header| words::<7>(header));
        let of = |kind: u32| move |header: &[u64; 7]| header[0] as u32 == kind;
        let page = |address: u64| address & !(PAGE_BYTES - 1);
        let first = headers().filter(of(PT_LOAD)).find(|header| page(header[1]) == 0)?;
        let bias = begin.wrapping_sub(page(first[2]));
        let dynamic = headers().find(of(PT_DYNAMIC))?;
        let mut bytes = vec![0; (dynamic[5] / 16).min(MAX_DYNAMIC) as usize * 16];
        memory.read(bias.wrapping_add(dynamic[2]), &mut bytes).then_some(())?;
        let entry = |tag: u64| {
            let found =
                bytes.as_chunks::<16>().0.iter().map(|entry| words::<2>(entry)).find(|entry| entry[0] == tag)?;
            // glibc writes where it is in the process, other loaders leave what the file says.
            Some(if found[1] < begin { bias.wrapping_add(found[1]) } else { found[1] })
        };
        let hash = entry(DT_GNU_HASH).map(Hash::Gnu).or_else(|| entry(DT_HASH).map(Hash::Old))?;
        Some(Self { memory, bias, hash, symbols: entry(DT_SYMTAB)?, strings: entry(DT_STRTAB)? })
    }

    /// The address of what it defines under this name.
    pub(super) fn symbol(&self, name: &str) -> Option<u64> {
        match self.hash {
            Hash::Gnu(table) => self.by_gnu_hash(table, name),
            Hash::Old(table) => self.by_old_hash(table, name),
        }
    }

    fn by_gnu_hash(&self, table: u64, name: &str) -> Option<u64> {
        let hash = name.bytes().fold(5381_u32, |hash, byte| hash.wrapping_mul(33).wrapping_add(byte.into()));
        let mut head = [0; 16];
        self.memory.read(table, &mut head).then_some(())?;
        let [buckets, first, filter_words, shift] =
            [0, 4, 8, 12].map(|at| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]));
        if buckets == 0 || filter_words == 0 {
            return None;
        }
        let filter = table.wrapping_add(16);
        let word = self.memory.word(filter.wrapping_add(u64::from(hash / 64 % filter_words) * 8))?;
        let bits = 1 << (hash % 64) | 1 << (hash.checked_shr(shift).unwrap_or(0) % 64);
        if word & bits != bits {
            return None;
        }
        let bucket = filter.wrapping_add(u64::from(filter_words) * 8);
        let chains = bucket.wrapping_add(u64::from(buckets) * 4);
        let begin = self.memory.half(bucket.wrapping_add(u64::from(hash % buckets) * 4))?;
        for index in (begin.max(first)..=u32::MAX).take(MAX_CHAIN as usize) {
            let found = self.memory.half(chains.wrapping_add(u64::from(index - first) * 4))?;
            if (found ^ hash) >> 1 == 0
                && let Some(address) = self.named(index, name)
            {
                return Some(address);
            }
            // The lowest bit marks the last.
            if found & 1 != 0 {
                break;
            }
        }
        None
    }

    fn by_old_hash(&self, table: u64, name: &str) -> Option<u64> {
        let hash = name.bytes().fold(0_u32, |hash, byte| {
            let hash = (hash << 4).wrapping_add(byte.into());
            (hash ^ (hash >> 24 & 0xf0)) & 0x0fff_ffff
        });
        let buckets = self.memory.half(table)?;
        let chains = table.wrapping_add(8).wrapping_add(u64::from(buckets) * 4);
        let bucket = hash.checked_rem(buckets)?;
        let mut index = self.memory.half(table.wrapping_add(8).wrapping_add(u64::from(bucket) * 4))?;
        for _ in 0..MAX_CHAIN {
            if index == 0 {
                break;
            }
            if let Some(address) = self.named(index, name) {
                return Some(address);
            }
            index = self.memory.half(chains.wrapping_add(u64::from(index) * 4))?;
        }
        None
    }

    /// The address of this symbol, if it has this name and is defined.
    fn named(&self, index: u32, name: &str) -> Option<u64> {
        let mut symbol = [0; 24];
        self.memory.read(self.symbols.wrapping_add(u64::from(index) * 24), &mut symbol).then_some(())?;
        let [head, value, _] = words(&symbol);
        let section = head >> 48;
        let mut found = vec![0; name.len() + 1];
        let text = self.strings.wrapping_add(head & 0xffff_ffff);
        self.memory.read(text, &mut found).then_some(())?;
        let is_it = section != 0 && found.strip_suffix(&[0]) == Some(name.as_bytes());
        is_it.then(|| self.bias.wrapping_add(value))
    }
}

fn words<const COUNT: usize>(bytes: &[u8]) -> [u64; COUNT] {
    let mut words = [0; COUNT];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    words
}

/// What the file of a module tells that its memory doesn't.
pub(super) struct OnDisk {
    /// Where a symbol of `.symtab` is in the process, or the beginning of the section `.PyRuntime`.
    pub(super) runtime: Option<u64>,
    /// `Py_Version`, by `.symtab`.
    pub(super) version: Option<u64>,
}

impl OnDisk {
    /// Looks into the file; into its symbols, of which a large library has millions, only where that is likely to be of use.
    pub(super) fn read(pid: u32, file: &MappedFile, in_symbols: bool) -> io::Result<Self> {
        const NOTHING: OnDisk = OnDisk { runtime: None, version: None };
        let cache = ReadCache::new(file.open(pid)?);
        let Ok(elf) = object::File::parse(&cache) else { return Ok(NOTHING) };
        let page = |address: u64| address & !(PAGE_BYTES - 1);
        let segment = elf.segments().find(|segment| page(segment.file_range().0) == file.offset);
        let Some(segment) = segment else { return Ok(NOTHING) };
        let bias = file.begin.wrapping_sub(page(segment.address()));
        let mut found = NOTHING;
        if in_symbols {
            for symbol in elf.symbols().filter(|symbol| symbol.is_definition()) {
                let address = Some(symbol.address().wrapping_add(bias));
                match symbol.name() {
                    Ok("_PyRuntime") => found.runtime = address,
                    Ok("Py_Version") => found.version = address,
                    _ => {}
                }
            }
        }
        if found.runtime.is_none() {
            // From 3.11 on; nothing else is in it.
            let section = elf.sections().find(|section| section.name() == Ok(".PyRuntime"));
            found.runtime = section.map(|section| section.address().wrapping_add(bias));
        }
        Ok(found)
    }
}

/// The versions that constants of the file name: in paths that were compiled in, as `python3.9`, or if there are none (the
/// paths of 3.11 and later are Python code) in `PY_VERSION`, a text of its own.
pub(super) fn versions_named_in(file: &File) -> Vec<u16> {
    let cache = ReadCache::new(file);
    let Ok(elf) = object::File::parse(&cache) else { return Vec::new() };
    let sections = elf.sections().filter(|section| section.name() == Ok(".rodata") && section.size() < MAX_RODATA);
    let constants: Vec<&[u8]> = sections.filter_map(|section| section.data().ok()).collect();
    let named = |before: &[u8], is_whole: bool| {
        let mut versions = constants.iter().flat_map(|data| versions_after(data, before, is_whole)).collect::<Vec<_>>();
        versions.sort_unstable();
        versions.dedup();
        versions
    };
    let in_paths = named(b"python3.", false);
    if in_paths.is_empty() { named(b"\x003.", true) } else { in_paths }
}

/// The version 3.N of every N that follows this text; those before a point and a number only, if it is to be whole.
fn versions_after(data: &[u8], before: &[u8], is_whole: bool) -> Vec<u16> {
    let at = data.windows(before.len()).enumerate().filter(|(_, window)| *window == before).map(|(at, _)| at);
    let version = |at: usize| {
        let text = &data[at + before.len()..];
        let digits = text.iter().take(3).take_while(|byte| byte.is_ascii_digit()).count();
        // Of two digits at most, so that it is a number in a byte.
        let minor: u8 = std::str::from_utf8(&text[..digits]).ok()?.parse().ok().filter(|_| digits < 3)?;
        let is_release = matches!(text[digits..], [b'.', digit, ..] if digit.is_ascii_digit());
        let is_python = !is_whole || is_release && PLAUSIBLE.contains(&minor);
        is_python.then_some(0x0300 | u16::from(minor))
    };
    at.filter_map(version).collect()
}

/// What `3.N.M` alone may be a CPython's: other libraries are at a third version too, libmpdec at 3.2, SQLite at 3.40.
const PLAUSIBLE: std::ops::Range<u8> = 7..30;
/// Bytes of constants that are looked through.
const MAX_RODATA: u64 = 256 << 20;

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::python::files::Candidates;
    use crate::python::memory::ProcessMemory;

    #[test]
    fn versions_are_read_from_paths_or_stand_alone() {
        assert_eq!(
            versions_after(b"lib/python3.9\0python3.10 python3.x python3.", b"python3.", false),
            [0x0309, 0x030a]
        );
        assert_eq!(
            versions_after(b"\x003.11.2\0a 3.12.1\x003.13\x003.1415\x003.40.1\x003.2.0", b"\x003.", true),
            [0x030b]
        );
    }

    /// This process's memory, of which some words are something else.
    struct Damaged {
        memory: ProcessMemory,
        seed: u64,
        reads: Cell<usize>,
    }

    impl Memory for Damaged {
        fn read(&self, address: u64, into: &mut [u8]) -> bool {
            self.reads.set(self.reads.get() + 1);
            let is_there = self.memory.read(address, into);
            for (at, byte) in into.iter_mut().enumerate().filter(|_| self.seed != 0) {
                let place = (address.wrapping_add(at as u64) / 4)
                    .wrapping_mul(self.seed | 1)
                    .wrapping_mul(0x9e37_79b9_7f4a_7c15);
                if place >> 56 < self.seed % 16 {
                    *byte = (place >> 40) as u8;
                }
            }
            is_there
        }
    }

    #[test]
    fn a_symbol_is_found_in_a_few_reads_and_in_damaged_memory_none_takes_many() {
        let pid = std::process::id();
        let files = Candidates::of(pid).unwrap().files;
        let begin = files.iter().find(|file| file.name().starts_with("libc.so")).unwrap().begin;
        let look = |seed| {
            let memory = Damaged { memory: ProcessMemory::open(pid).unwrap(), seed, reads: Cell::new(0) };
            let module = Module::at(&memory, begin);
            let found =
                module.and_then(|module| Some((module.symbol("gnu_get_libc_version")?, module.symbol("_PyRuntime"))));
            (found, memory.reads.get())
        };
        let (found, reads) = look(0);
        assert_eq!(found, Some((libc::gnu_get_libc_version as *const () as u64, None)));
        assert!(reads < 20, "{reads}");
        for seed in 1..3000 {
            let (_, reads) = look(seed);
            assert!(reads <= 3 + 2 * (4 + 3 * MAX_CHAIN as usize));
        }
    }
}
