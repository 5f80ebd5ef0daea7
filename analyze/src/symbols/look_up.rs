//! What ELF files say of addresses in them: the function, by symbols; lines and inlined functions, by DWARF.
//!
//! A file may be a stranger's, so whatever it claims is held against limits before memory is asked for; what does not fit or can't
//! be read is as if it were not there.

use std::fs::File;
use std::io::Read as _;

use addr2line::gimli::{DwarfSections, EndianSlice, LittleEndian, SectionId};
use object::elf::{
    ELF_NOTE_GNU, ELFCOMPRESS_ZLIB, ELFCOMPRESS_ZSTD, FileHeader64, NT_GNU_BUILD_ID, SHN_LORESERVE, SHN_UNDEF,
    SHT_DYNSYM, SHT_NOBITS, SHT_NOTE, SHT_SYMTAB, STB_GLOBAL, STB_WEAK, STT_FUNC, STT_GNU_IFUNC, SectionHeader64,
    SectionType,
};
use object::read::elf::{CompressionHeader as _, FileHeader as _, SectionHeader as _, SectionTable, Sym as _};
use object::{LittleEndian as Little, ReadCache, ReadRef as _};
use rustc_hash::FxHashMap;

use super::Function;
use crate::timeline::names::function_name;

/// More sections than a library has.
const MOST_SECTIONS: u32 = 1 << 17;
/// The longest symbol table that is read: eleven million symbols. libtorch has half a million.
const MOST_SYMBOL_BYTES: u64 = 1 << 28;
/// The most debug information that is read of a file, unpacked. A debug build of PyTorch can have more: it has names then, but
/// no lines.
const MOST_DEBUG_BYTES: u64 = 1 << 29;
const MOST_NOTE_BYTES: u64 = 1 << 16;
/// The most functions that an address is in, one within the other.
const MOST_INLINED: usize = 64;
/// How many symbols before an address are looked at for one that it lies in.
const MOST_LOOKED_AT: usize = 16;

type Data<'data> = &'data ReadCache<File>;

/// An ELF file for x86-64.
pub struct Elf<'data> {
    data: Data<'data>,
    sections: SectionTable<'data, FileHeader64<Little>, Data<'data>>,
    build_id: Option<String>,
}

impl<'data> Elf<'data> {
    /// `None` for what is none.
    pub fn parse(data: Data<'data>) -> Option<Elf<'data>> {
        let header = FileHeader64::<Little>::parse(data).ok()?;
        let endian = header.endian().ok()?;
        if header.shnum(endian, data).ok()? > MOST_SECTIONS {
            return None;
        }
        let sections = header.sections(endian, data).ok()?;
        let mut elf = Elf { data, sections, build_id: None };
        elf.build_id = elf.sections.iter().find_map(|section| elf.build_id_in(section));
        Some(elf)
    }

    /// Its build id as hexadecimal, if it has one.
    pub fn build_id(&self) -> Option<&str> {
        self.build_id.as_deref()
    }

    fn build_id_in(&self, section: &SectionHeader64<Little>) -> Option<String> {
        if section.sh_type(Little) != SHT_NOTE || section.sh_size(Little) > MOST_NOTE_BYTES {
            return None;
        }
        let mut notes = section.notes(Little, self.data).ok()??;
        while let Ok(Some(note)) = notes.next() {
            if note.name() == ELF_NOTE_GNU && note.n_type(Little) == NT_GNU_BUILD_ID {
                return Some(note.desc().iter().map(|byte| format!("{byte:02x}")).collect());
            }
        }
        None
    }

    /// Adds its functions to `symbols`.
    fn functions(&self, kind: SectionType, last: u64, symbols: &mut Vec<Symbol<'data>>) {
        let is_too_long = |section: &SectionHeader64<Little>| {
            section.sh_type(Little) == kind && section.sh_size(Little) > MOST_SYMBOL_BYTES
        };
        if self.sections.iter().any(is_too_long) {
            return;
        }
        let Ok(table) = self.sections.symbols(Little, self.data, kind) else { return };
        for symbol in table.iter() {
            let (start, size, section) = (symbol.st_value(Little), symbol.st_size(Little), symbol.st_shndx(Little));
            let is_function = matches!(symbol.st_type(), STT_FUNC | STT_GNU_IFUNC);
            if !is_function || start > last || section == SHN_UNDEF || section.0 >= SHN_LORESERVE {
                continue;
            }
            // What was written in assembly may have no size: until the next symbol then, in its section.
            let of_section = || {
                let section = self.sections.section(object::SectionIndex(section.0.into())).ok()?;
                section.sh_addr(Little).checked_add(section.sh_size(Little))
            };
            let end = if size == 0 { of_section() } else { start.checked_add(size) };
            let rank = match symbol.st_bind() {
                STB_GLOBAL => 2,
                STB_WEAK => 1,
                _ => 0,
            };
            let Some(end) = end.filter(|&end| end > start) else { continue };
            symbols.push(Symbol { start, rank, end, name: symbol.st_name(Little), strings: table.strings() });
        }
    }

    /// A section of debug information, unpacked; empty if there is none, `None` if it is too large for what is left.
    fn debug_section(&self, name: &str, left: &mut u64) -> Option<Vec<u8>> {
        let Some((_, section)) = self.sections.section_by_name(Little, name.as_bytes()) else {
            return Some(Vec::new());
        };
        if section.sh_type(Little) == SHT_NOBITS {
            return Some(Vec::new());
        }
        let packed = section.compression(Little, self.data).ok()?;
        let bytes = packed.map_or(section.sh_size(Little), |(header, _, _)| header.ch_size(Little));
        *left = left.checked_sub(bytes)?;
        let Some((header, offset, packed_bytes)) = packed else {
            return section.data(Little, self.data).ok().map(<[u8]>::to_vec);
        };
        if packed_bytes > MOST_DEBUG_BYTES {
            return None;
        }
        let packed = self.data.read_bytes_at(offset, packed_bytes).ok()?;
        let mut plain = Vec::new();
        let read = match header.ch_type(Little) {
            ELFCOMPRESS_ZLIB => flate2::read::ZlibDecoder::new(packed).take(bytes).read_to_end(&mut plain),
            ELFCOMPRESS_ZSTD => zstd::Decoder::new(packed).ok()?.take(bytes).read_to_end(&mut plain),
            _ => return None,
        };
        read.ok().map(|_| plain)
    }

    /// Its debug information; `None` if it has none, or too much.
    fn debug(&self) -> Option<DwarfSections<Vec<u8>>> {
        self.sections
            .section_by_name(Little, b".debug_info")
            .filter(|(_, section)| section.sh_type(Little) != SHT_NOBITS)?;
        let mut left = MOST_DEBUG_BYTES;
        DwarfSections::load(|section: SectionId| self.debug_section(section.name(), &mut left).ok_or(())).ok()
    }
}

/// A function by its symbol.
struct Symbol<'data> {
    start: u64,
    /// Of several at one address the one that others can call has the better name.
    rank: u8,
    end: u64,
    name: u32,
    strings: object::StringTable<'data, Data<'data>>,
}

impl Symbol<'_> {
    fn name(&self) -> Option<String> {
        let name = self.strings.get(self.name).ok()?;
        Some(function_name(&String::from_utf8_lossy(name))).filter(|name| !name.is_empty())
    }
}

/// The functions that these addresses are in, by what files of one build say: the outermost first.
pub fn functions(files: &[ReadCache<File>], mut addresses: Vec<u64>) -> FxHashMap<u64, Vec<Function>> {
    let elves: Vec<Elf<'_>> = files.iter().filter_map(Elf::parse).collect();
    addresses.sort_unstable();
    addresses.dedup();
    let mut found = by_symbols(&elves, &addresses);
    if let Some(debug) = elves.iter().find_map(Elf::debug) {
        let dwarf = debug.borrow(|section| EndianSlice::new(section, LittleEndian));
        if let Ok(context) = addr2line::Context::from_dwarf(dwarf) {
            for &address in &addresses {
                let symbol =
                    found.get(&address).and_then(|functions| functions.first()).map(|first| first.name.clone());
                if let Some(functions) = by_debug(&context, address, symbol) {
                    found.insert(address, functions);
                }
            }
        }
    }
    found
}

fn by_symbols(elves: &[Elf<'_>], addresses: &[u64]) -> FxHashMap<u64, Vec<Function>> {
    let last = addresses.last().copied().unwrap_or(0);
    let mut symbols = Vec::new();
    for elf in elves {
        elf.functions(SHT_SYMTAB, last, &mut symbols);
        elf.functions(SHT_DYNSYM, last, &mut symbols);
    }
    symbols.sort_by_key(|symbol| (symbol.start, symbol.rank));
    let mut found = FxHashMap::default();
    for &address in addresses {
        let before = symbols.partition_point(|symbol| symbol.start <= address);
        let near = symbols[..before].iter().rev().take(MOST_LOOKED_AT);
        if let Some(name) = near.filter(|symbol| address < symbol.end).find_map(Symbol::name) {
            found.insert(address, vec![Function { name, ..Function::default() }]);
        }
    }
    found
}

type Context<'data> = addr2line::Context<EndianSlice<'data, LittleEndian>>;

/// What debug information says of an address; the function that has a symbol is called by that.
fn by_debug(context: &Context<'_>, address: u64, symbol: Option<String>) -> Option<Vec<Function>> {
    let mut frames = context.find_frames(address).skip_all_loads().ok()?;
    let mut functions = Vec::new();
    while let Ok(Some(frame)) = frames.next() {
        if functions.len() == MOST_INLINED {
            break;
        }
        let name = frame.function.and_then(|function| Some(function_name(&function.raw_name().ok()?)));
        let (file, line) = frame.location.map_or((None, None), |location| (location.file, location.line));
        functions.push(Function {
            name: name.unwrap_or_default(),
            file: file.unwrap_or_default().to_owned(),
            line: line.unwrap_or(0),
        });
    }
    functions.reverse();
    let outermost = functions.first_mut()?;
    if let Some(symbol) = symbol {
        outermost.name = symbol;
    }
    functions.iter().all(|function| !function.name.is_empty()).then_some(functions)
}
