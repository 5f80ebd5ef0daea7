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

/// Every N of the texts `python3.N` in what is only to be read of the file: paths that were compiled in.
pub(super) fn versions_named_in(file: &File) -> Vec<u16> {
    let cache = ReadCache::new(file);
    let Ok(elf) = object::File::parse(&cache) else { return Vec::new() };
    let mut versions = Vec::new();
    let sections = elf.sections().filter(|section| section.name() == Ok(".rodata") && section.size() < MAX_RODATA);
    for section in sections {
        let Ok(data) = section.data() else { continue };
        for at in data.windows(TEXT.len()).enumerate().filter(|(_, window)| *window == TEXT).map(|(at, _)| at) {
            let digits = data[at + TEXT.len()..].iter().take(3).take_while(|byte| byte.is_ascii_digit());
            let minor = digits.fold(0, |minor, digit| minor * 10 + u16::from(digit - b'0'));
            // Of one digit at least: "python3." alone is no version.
            if minor > 0 && minor < 100 && !versions.contains(&(0x0300 | minor)) {
                versions.push(0x0300 | minor);
            }
        }
    }
    versions
}

const TEXT: &[u8] = b"python3.";
/// Bytes of constants that are looked through.
const MAX_RODATA: u64 = 256 << 20;
