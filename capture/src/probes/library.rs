//! The functions of an ELF file: which symbols name them, and where in the file their code is.
//!
//! A library is a stranger's file that may change while it is read. So it is read with `pread` and not mapped (a file that is
//! cut while mapped kills the reader), and what is read of it is bounded: the tables of symbols whole, of the code what is
//! asked for. The kernel places a probe by the offset in the *file*, which the program headers tell; section headers may be
//! stripped, and then the dynamic symbols are found as the loader finds them.

use std::cell::Cell;

use memchr::memmem;
use object::elf::{
    self, Dyn64, FileHeader64, ProgramHeader64, Rela64, STT_FUNC, STT_GNU_IFUNC, STT_NOTYPE, SectionHeader64, Sym64,
};
use object::read::elf::{
    Dyn as _, FileHeader as _, GnuHashTable, HashTable, ProgramHeader as _, SectionHeader as _, Sym as _,
};
use object::{LittleEndian, ReadRef};
use rustc_hash::{FxHashMap, FxHashSet};

use super::Error;

/// So much is read of tables at most, all together. A sparse file can claim any length.
const MOST_TABLE_BYTES: u64 = 512 << 20;

/// A hash table has 4 bytes for a symbol and less than 8 besides. Nothing tells its length but itself.
const MOST_HASH_BYTES: u64 = 16 << 20;

/// More functions of the names that were asked for, or names of one function, no honest library has.
const MOST_FUNCTIONS: usize = 4096;
const MOST_ALIASES: usize = 64;

/// Further than this, a function is not looked at.
const MOST_CODE_BYTES: u64 = 64 << 10;

/// So much is looked at of a function whose symbol has no size, as those of hand-written assembler.
const CODE_BYTES_WITHOUT_SIZE: u64 = 4 << 10;

type Header = FileHeader64<LittleEndian>;
const LE: LittleEndian = LittleEndian;

/// A function of a library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its names among those that were asked for, as they were asked for.
    pub names: Vec<String>,
    /// Its other names.
    pub aliases: Vec<String>,
    /// Where the library wants it, relative to its load address.
    pub address: u64,
    /// Where it is in the file.
    pub file_offset: u64,
    /// Its length as the symbol tells it; 0 for not known.
    pub bytes: u64,
}

/// What a library has of the functions that were asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Functions {
    /// One for each address, by address.
    pub found: Vec<Function>,
    /// Symbols that cannot be probed, and why.
    pub refused: Vec<(String, &'static str)>,
    /// What no symbol names, as asked for.
    pub missing: Vec<String>,
}

/// An ELF file for x86-64 Linux.
#[derive(Debug)]
pub struct Library<'data, R: ReadRef<'data>> {
    data: R,
    segments: &'data [ProgramHeader64<LittleEndian>],
    /// Of the section headers only the tables of symbols count; none where they are stripped.
    sections: &'data [SectionHeader64<LittleEndian>],
    /// How much the tables may still take.
    budget: Cell<u64>,
}

/// What may be done with memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    pub(crate) is_writable: bool,
    pub(crate) is_executable: bool,
}

/// A table of symbols with its strings.
struct Symbols<'data> {
    symbols: &'data [Sym64<LittleEndian>],
    strings: &'data [u8],
}

impl<'data, R: ReadRef<'data>> Library<'data, R> {
    /// Reads the headers.
    pub fn parse(data: R) -> Result<Library<'data, R>, Error> {
        let header = Header::parse(data).map_err(|_| Error::NotElf)?;
        if header.e_ident.data != elf::ELFDATA2LSB || header.e_machine.get(LE) != elf::EM_X86_64 {
            return Err(Error::OtherMachine(header.e_machine.get(LE).0));
        }
        // More than fit into the header are told elsewhere, as any number: no library has them.
        if header.e_phnum.get(LE) == elf::PN_XNUM {
            return Err(Error::Broken("its program headers"));
        }
        let segments = header.program_headers(LE, data).map_err(|_| Error::Broken("its program headers"))?;
        // A file that was cut may still have its code and dynamic symbols.
        let has_sections = header.e_shnum.get(LE) > 0;
        let sections = if has_sections { header.section_headers(LE, data).unwrap_or(&[]) } else { &[] };
        Ok(Library { data, segments, sections, budget: Cell::new(MOST_TABLE_BYTES) })
    }

    /// Whether a symbol names a function that is in this file.
    pub fn has(&self, name: &str) -> Result<bool, Error> {
        Ok(!self.functions([name])?.found.is_empty())
    }

    /// Finds functions by name, exported ones and those that only `.symtab` knows, as in a statically linked program. One name
    /// may stand for several functions (versions of a symbol), several for one (aliases): each function is told once.
    pub fn functions<'n>(&self, names: impl IntoIterator<Item = &'n str>) -> Result<Functions, Error> {
        let asked: Vec<&str> = names.into_iter().collect();
        let places: FxHashMap<&[u8], usize> = asked.iter().enumerate().map(|(i, name)| (name.as_bytes(), i)).collect();
        let tables: Vec<Symbols> = [self.dynamic_symbols()?, self.symtab()?].into_iter().flatten().collect();
        let mut named = FxHashSet::default();
        let mut refused = FxHashMap::default();
        let mut found = FxHashMap::<u64, Function>::default();
        for (name, symbol) in tables.iter().flat_map(Symbols::defined) {
            let Some(&place) = places.get(name) else { continue };
            named.insert(place);
            match self.function(symbol) {
                Err(why) => _ = refused.insert(place, why),
                Ok(_) if found.len() == MOST_FUNCTIONS => return Err(Error::TooLarge),
                Ok(function) => {
                    let known = found.entry(function.address).or_insert(function);
                    known.bytes = known.bytes.max(symbol.st_size.get(LE));
                    if !known.names.iter().any(|name| name == asked[place]) {
                        known.names.push(asked[place].to_owned());
                    }
                }
            }
        }
        for (name, symbol) in tables.iter().flat_map(Symbols::defined) {
            let Some(known) = found.get_mut(&symbol.st_value.get(LE)).filter(|_| !places.contains_key(name)) else {
                continue;
            };
            let name = String::from_utf8_lossy(name);
            if known.aliases.len() < MOST_ALIASES
                && is_code(symbol)
                && !known.aliases.iter().any(|alias| *alias == name)
            {
                known.aliases.push(name.into_owned());
            }
        }
        let mut found: Vec<Function> = found.into_values().collect();
        found.sort_unstable_by_key(|function| function.address);
        for function in &mut found {
            function.names.sort_by_key(|name| places[name.as_bytes()]);
            function.aliases.sort_unstable();
        }
        // Another version of a refused one may be found.
        let mut refused: Vec<_> = refused.into_iter().map(|(place, why)| (asked[place].to_owned(), why)).collect();
        refused.retain(|(name, _)| !found.iter().any(|function| function.names.contains(name)));
        refused.sort_unstable();
        let missing = (0..asked.len()).filter(|place| !named.contains(place)).map(|place| asked[place].to_owned());
        Ok(Functions { found, refused, missing: missing.collect() })
    }

    /// A function's code: as long as its symbol says, but within its segment and no more than anybody wants to look at.
    pub fn code(&self, function: &Function) -> Result<&'data [u8], Error> {
        let Some((_, behind)) = self.executable(function.address) else { return Ok(&[]) };
        let bytes = if function.bytes == 0 { CODE_BYTES_WITHOUT_SIZE } else { function.bytes.min(MOST_CODE_BYTES) };
        self.data.read_bytes_at(function.file_offset, bytes.min(behind)).map_err(|()| Error::Broken("its code"))
    }

    /// The function that a symbol names, without names; or why no probe can be there.
    fn function(&self, symbol: &Sym64<LittleEndian>) -> Result<Function, &'static str> {
        if symbol.st_type() == STT_GNU_IFUNC {
            return Err(
                "GNU_IFUNC: its symbol is that of the function which chooses one of several when the library is loaded",
            );
        }
        if !is_code(symbol) {
            return Err("its symbol is no function's");
        }
        let address = symbol.st_value.get(LE);
        let Some((file_offset, _)) = self.executable(address) else {
            return Err("its address is not in the code of the file");
        };
        Ok(Function { names: Vec::new(), aliases: Vec::new(), address, file_offset, bytes: symbol.st_size.get(LE) })
    }

    /// Where in the file the code at an address is, and how many bytes the segment has from there on.
    fn executable(&self, address: u64) -> Option<(u64, u64)> {
        let segments = self.segments.iter().filter(|segment| segment.p_flags(LE).contains(elf::PF_X));
        segments.filter_map(|segment| in_file(segment, address)).next()
    }

    /// The loader's table of contents; `None` in a program without one.
    fn dynamic(&self) -> Result<Option<&'data [Dyn64<LittleEndian>]>, Error> {
        let Some(dynamic) = self.segments.iter().find(|segment| segment.p_type(LE) == elf::PT_DYNAMIC) else {
            return Ok(None);
        };
        let (at, bytes) = dynamic.file_range(LE);
        self.read_array(at, bytes / size_of::<Dyn64<LittleEndian>>() as u64).map(Some)
    }

    /// Where in the file an address is, and how many bytes its segment has from there on.
    pub(crate) fn place(&self, address: u64) -> Option<(u64, u64)> {
        let segments = self.segments.iter().filter(|segment| segment.p_type(LE) == elf::PT_LOAD);
        segments.filter_map(|segment| in_file(segment, address)).next()
    }

    /// The table that the loader uses, found as it finds it; `None` in a program without one.
    fn dynamic_symbols(&self) -> Result<Option<Symbols<'data>>, Error> {
        let Some(entries) = self.dynamic()? else { return Ok(None) };
        let entry = |tag| value_of(entries, tag);
        let (Some(symbols), Some(strings), Some(string_bytes)) =
            (entry(elf::DT_SYMTAB), entry(elf::DT_STRTAB), entry(elf::DT_STRSZ))
        else {
            return Ok(None);
        };
        let broken = || Error::Broken("its dynamic symbols");
        let place = |address| self.place(address).ok_or_else(broken);
        // Nothing but a hash table says how many there are.
        let table = |address| place(address).and_then(|(at, behind)| self.read(at, behind.min(MOST_HASH_BYTES)));
        let count = match (entry(elf::DT_HASH), entry(elf::DT_GNU_HASH)) {
            (Some(hash), _) => {
                HashTable::<Header>::parse(LE, table(hash)?).map_err(|_| broken())?.symbol_table_length()
            }
            (None, Some(hash)) => {
                let table = GnuHashTable::<Header>::parse(LE, table(hash)?).map_err(|_| broken())?;
                // A table without exports has no chain to count.
                table.symbol_table_length(LE).unwrap_or(0)
            }
            (None, None) => return Err(broken()),
        };
        let symbols = self.read_array(place(symbols)?.0, u64::from(count))?;
        Ok(Some(Symbols { symbols, strings: self.read(place(strings)?.0, string_bytes)? }))
    }

    /// The slots that the loader fills with the addresses of what these names stand for, and which name it is. Code calls
    /// what is in another file through them.
    pub(crate) fn slots(&self, names: &[&str]) -> Result<Vec<(u64, usize)>, Error> {
        let Some(entries) = self.dynamic()? else { return Ok(Vec::new()) };
        let entry = |tag| value_of(entries, tag);
        let (Some(symbols), Some(strings), Some(string_bytes)) =
            (entry(elf::DT_SYMTAB), entry(elf::DT_STRTAB), entry(elf::DT_STRSZ))
        else {
            return Ok(Vec::new());
        };
        let broken = || Error::Broken("its relocations");
        let place = |address| self.place(address).ok_or_else(broken);
        let strings = self.read(place(strings)?.0, string_bytes)?;
        // Most files have none of the names, and are done with here.
        if !names.iter().any(|name| memmem::find(strings, name.as_bytes()).is_some()) {
            return Ok(Vec::new());
        }
        let mut fills = Vec::new();
        for (table, bytes) in [(elf::DT_JMPREL, elf::DT_PLTRELSZ), (elf::DT_RELA, elf::DT_RELASZ)] {
            let (Some(table), Some(bytes)) = (entry(table), entry(bytes)) else { continue };
            let count = bytes / size_of::<Rela64<LittleEndian>>() as u64;
            let relocations = self.read_array::<Rela64<LittleEndian>>(place(table)?.0, count)?;
            let kinds = [elf::R_X86_64_JUMP_SLOT, elf::R_X86_64_GLOB_DAT];
            let of_symbols = relocations.iter().filter(|one| kinds.contains(&one.r_type(LE, false)));
            fills.extend(of_symbols.map(|one| (one.r_offset.get(LE), one.r_sym(LE, false))));
        }
        // A program without exports has no table that says how many symbols there are.
        let count = fills.iter().map(|(_, symbol)| u64::from(*symbol) + 1).max().unwrap_or(0);
        let symbols = self.read_array::<Sym64<LittleEndian>>(place(symbols)?.0, count)?;
        let is = |symbol: u32, name: &str| {
            let text = symbols.get(symbol as usize).and_then(|symbol| strings.get(symbol.st_name.get(LE) as usize..));
            text.and_then(|text| text.strip_prefix(name.as_bytes())).is_some_and(|rest| rest.first() == Some(&0))
        };
        let name_of = |symbol| names.iter().position(|name| is(symbol, name));
        Ok(fills.into_iter().filter_map(|(slot, symbol)| Some((slot, name_of(symbol)?))).collect())
    }

    /// Where code is: in the file, its address, how many bytes. The sections that are code where the file tells of any, as
    /// some linkers put constants into the segment too; else the segments.
    pub(crate) fn code_ranges(&self) -> Vec<(u64, u64, u64)> {
        let sections = self.sections.iter().filter(|section| {
            section.sh_flags(LE).contains(elf::SHF_EXECINSTR) && section.sh_type(LE) == elf::SHT_PROGBITS
        });
        let ranges: Vec<_> =
            sections.map(|one| (one.sh_offset(LE), one.sh_addr(LE), one.sh_size(LE))).filter(|one| one.2 > 0).collect();
        if !ranges.is_empty() {
            return ranges;
        }
        let loaded = self.segments.iter().filter(|segment| segment.p_type(LE) == elf::PT_LOAD);
        let code = loaded.filter(|segment| segment.p_flags(LE).contains(elf::PF_X));
        code.map(|segment| (segment.p_offset(LE), segment.p_vaddr(LE), segment.p_filesz(LE))).collect()
    }

    /// Whether the file has a section of this name.
    pub(crate) fn has_section(&self, name: &str) -> bool {
        let Ok(header) = Header::parse(self.data) else { return false };
        let Ok(table) = header.sections(LE, self.data) else { return false };
        table.section_by_name(LE, name.as_bytes()).is_some()
    }

    /// What may be done with the memory at an address; `None` where the file has none.
    pub(crate) fn access(&self, address: u64) -> Option<Access> {
        let is_there = |segment: &&ProgramHeader64<LittleEndian>| {
            segment.p_type(LE) == elf::PT_LOAD
                && address.checked_sub(segment.p_vaddr(LE)).is_some_and(|within| within < segment.p_memsz(LE))
        };
        let flags = self.segments.iter().find(is_there)?.p_flags(LE);
        Some(Access { is_writable: flags.contains(elf::PF_W), is_executable: flags.contains(elf::PF_X) })
    }

    /// The table that `strip` takes away.
    fn symtab(&self) -> Result<Option<Symbols<'data>>, Error> {
        let Some(table) = self.sections.iter().find(|section| section.sh_type(LE) == elf::SHT_SYMTAB) else {
            return Ok(None);
        };
        let strings = self.sections.get(table.sh_link(LE) as usize).ok_or(Error::Broken("its symbols"))?;
        let count = table.sh_size(LE) / size_of::<Sym64<LittleEndian>>() as u64;
        Ok(Some(Symbols {
            symbols: self.read_array(table.sh_offset(LE), count)?,
            strings: self.read(strings.sh_offset(LE), strings.sh_size(LE))?,
        }))
    }

    fn read(&self, at: u64, bytes: u64) -> Result<&'data [u8], Error> {
        let left = self.budget.get().checked_sub(bytes).ok_or(Error::TooLarge)?;
        self.budget.set(left);
        self.data.read_bytes_at(at, bytes).map_err(|()| Error::Broken("its symbols"))
    }

    fn read_array<T: object::Pod>(&self, at: u64, count: u64) -> Result<&'data [T], Error> {
        let bytes = self.read(at, count.saturating_mul(size_of::<T>() as u64))?;
        let (array, _) = object::slice_from_bytes(bytes, count as usize).map_err(|()| Error::Broken("its symbols"))?;
        Ok(array)
    }
}

impl<'data> Symbols<'data> {
    /// The symbols of this file itself with their names. In `.symtab` some linkers write a version into the name.
    fn defined(&self) -> impl Iterator<Item = (&'data [u8], &'data Sym64<LittleEndian>)> {
        let strings = self.strings;
        self.symbols.iter().filter(|symbol| symbol.st_shndx(LE) != elf::SHN_UNDEF).filter_map(move |symbol| {
            let text = strings.get(symbol.st_name.get(LE) as usize..)?;
            let end = text.iter().take(MOST_NAME_BYTES).position(|byte| *byte == 0 || *byte == b'@')?;
            Some((&text[..end], symbol)).filter(|(name, _)| !name.is_empty())
        })
    }
}

/// Longer names are not compared: a table without zeros would make each name as long as itself.
const MOST_NAME_BYTES: usize = 4096;

fn is_code(symbol: &Sym64<LittleEndian>) -> bool {
    [STT_FUNC, STT_NOTYPE].contains(&symbol.st_type()) && symbol.st_shndx(LE) != elf::SHN_ABS
}

/// The entry of the loader's table of contents that has this tag.
fn value_of(entries: &[Dyn64<LittleEndian>], tag: elf::DynamicTag) -> Option<u64> {
    entries.iter().find(|entry| entry.d_tag(LE) == tag).map(|entry| entry.d_val(LE))
}

/// Where in the file an address of a segment is, and how many bytes follow there.
fn in_file(segment: &ProgramHeader64<LittleEndian>, address: u64) -> Option<(u64, u64)> {
    let within = address.checked_sub(segment.p_vaddr(LE))?;
    let behind = segment.p_filesz(LE).checked_sub(within).filter(|bytes| *bytes > 0)?;
    let loaded = segment.p_type(LE) == elf::PT_LOAD;
    Some((segment.p_offset(LE).checked_add(within)?, behind)).filter(|_| loaded)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Where the code of [`library`] is in the file, and what is added to that when it is loaded.
    const CODE: u64 = 0x1000;
    const SHIFT: u64 = 0x40_0000;

    /// A symbol: name, type, section (0 for undefined), offset in the code, size.
    type Made = (&'static str, u8, u16, u64, u64);

    const FUNC: u8 = 2;
    const IFUNC: u8 = 10;

    /// An ELF file of one segment, which has everything and is executable: at `CODE` the code, 256 bytes of `ret`. `symtab` is
    /// reached by section headers.
    fn library(dynamic: &[Made], symtab: &[Made]) -> Vec<u8> {
        let mut file = vec![0; CODE as usize];
        file.resize(CODE as usize + 256, 0xc3);
        let append = |file: &mut Vec<u8>, bytes: &[u8]| {
            let at = file.len() as u64;
            file.extend(bytes);
            at
        };
        let table = |file: &mut Vec<u8>, made: &[Made]| {
            let mut strings = vec![0];
            let mut symbols = vec![0; 24];
            for (name, kind, section, at, size) in made {
                symbols.extend((strings.len() as u32).to_le_bytes());
                symbols.extend([0x10 | kind, 0]);
                symbols.extend(section.to_le_bytes());
                symbols.extend((CODE + SHIFT + at).to_le_bytes());
                symbols.extend(size.to_le_bytes());
                strings.extend(name.bytes().chain([0]));
            }
            let symbols = (append(file, &symbols), symbols.len() as u64);
            (symbols, (append(file, &strings), strings.len() as u64))
        };
        let (symbols, strings) = table(&mut file, dynamic);
        let count = symbols.1 / 24;
        let hash: Vec<u8> =
            [0, count as u32].into_iter().chain((0..count).map(|_| 0)).flat_map(u32::to_le_bytes).collect();
        let hash = append(&mut file, &hash);
        let entries = [(6, SHIFT + symbols.0), (5, SHIFT + strings.0), (10, strings.1), (4, SHIFT + hash), (0, 0)];
        let entries: Vec<u8> =
            entries.iter().flat_map(|(tag, value)| [*tag, *value]).flat_map(u64::to_le_bytes).collect();
        let dynamic = (append(&mut file, &entries), entries.len() as u64);
        let loaded = file.len() as u64;
        let mut sections = 0;
        if !symtab.is_empty() {
            let (symbols, strings) = table(&mut file, symtab);
            let header = |kind: u32, (at, bytes): (u64, u64), link: u32| {
                let words = [0, kind, 0, 0, 0, 0, at as u32, 0, bytes as u32, 0, link, 0, 0, 0, 0, 0];
                words.into_iter().flat_map(u32::to_le_bytes).collect::<Vec<u8>>()
            };
            let headers = [header(0, (0, 0), 0), header(2, symbols, 2), header(3, strings, 0)].concat();
            sections = append(&mut file, &headers);
        }
        let segment = |kind: u32, flags: u32, at: u64, bytes: u64| {
            let words = [at, at + SHIFT, at + SHIFT, bytes, bytes, 8];
            let kind = kind.to_le_bytes().into_iter().chain(flags.to_le_bytes());
            kind.chain(words.into_iter().flat_map(u64::to_le_bytes)).collect::<Vec<u8>>()
        };
        let number = |value: u64| value.to_le_bytes();
        let header = [
            &b"\x7fELF\x02\x01\x01"[..],
            &[0; 9],
            &[3, 0, 62, 0, 1, 0, 0, 0],
            &number(0),
            &number(64),
            &number(sections),
            &[0, 0, 0, 0, 64, 0, 56, 0, 2, 0, 64, 0, if sections == 0 { 0 } else { 3 }, 0, 0, 0],
            &segment(1, 5, 0, loaded),
            &segment(2, 4, dynamic.0, dynamic.1),
        ]
        .concat();
        file[..header.len()].copy_from_slice(&header);
        file
    }

    fn functions(file: &[u8], names: &[&str]) -> Functions {
        Library::parse(file).and_then(|library| library.functions(names.iter().copied())).expect("a library")
    }

    /// Names, aliases, place in the code and size.
    fn found(all: &Functions) -> Vec<(String, String, u64, u64)> {
        let one = |function: &Function| {
            assert_eq!(function.address, function.file_offset + SHIFT);
            (function.names.join(" "), function.aliases.join(" "), function.file_offset - CODE, function.bytes)
        };
        all.found.iter().map(one).collect()
    }

    fn told(names: &str, aliases: &str, at: u64, bytes: u64) -> (String, String, u64, u64) {
        (names.to_owned(), aliases.to_owned(), at, bytes)
    }

    #[test]
    fn an_exported_function_of_a_stripped_library() {
        let file = library(&[("cuInit", FUNC, 1, 16, 30), ("cuLaunchKernel", FUNC, 1, 48, 30)], &[]);
        let all = functions(&file, &["cuLaunchKernel", "cuMemAlloc"]);
        assert_eq!(found(&all), [told("cuLaunchKernel", "", 48, 30)]);
        assert_eq!(all.missing, ["cuMemAlloc"]);
        let library = Library::parse(&file[..]).expect("a library");
        assert_eq!(library.code(&all.found[0]).expect("code"), [0xc3; 30]);
    }

    #[test]
    fn names_for_one_address_are_one_function() {
        let dynamic = [("b", FUNC, 1, 0, 8), ("other", FUNC, 1, 0, 8), ("a", FUNC, 1, 0, 8)];
        let all = functions(&library(&dynamic, &[("internal", FUNC, 1, 0, 8)]), &["a", "b"]);
        assert_eq!(found(&all), [told("a b", "internal other", 0, 8)]);
    }

    #[test]
    fn versions_of_a_symbol_are_functions_of_their_own() {
        // In the dynamic table the version stands apart, in .symtab some linkers append it.
        let all =
            functions(&library(&[("f", FUNC, 1, 0, 8), ("f", FUNC, 1, 8, 8)], &[("f@@V2", FUNC, 1, 8, 8)]), &["f"]);
        assert_eq!(found(&all), [told("f", "", 0, 8), told("f", "", 8, 8)]);
    }

    #[test]
    fn a_runtime_that_was_linked_statically() {
        let file = library(&[], &[("main", FUNC, 1, 0, 8), ("cudaLaunchKernel", FUNC, 1, 8, 0)]);
        let all = functions(&file, &["cudaLaunchKernel"]);
        assert_eq!(found(&all), [told("cudaLaunchKernel", "", 8, 0)]);
        let library = Library::parse(&file[..]).expect("a library");
        assert!(library.has("cudaLaunchKernel").expect("symbols"));
        // Without a size, as far as the segment goes.
        assert!(library.code(&all.found[0]).expect("code").len() >= 248);
        let imports = self::library(&[("cudaLaunchKernel", FUNC, 0, 0, 0)], &[]);
        assert!(!Library::parse(&imports[..]).and_then(|one| one.has("cudaLaunchKernel")).expect("symbols"));
    }

    #[test]
    fn what_is_no_function_is_refused() {
        const OBJECT: u8 = 1;
        let dynamic = [("chosen", IFUNC, 1, 0, 8), ("data", OBJECT, 1, 0, 8), ("outside", FUNC, 1, 1 << 40, 8)];
        let all = functions(&library(&dynamic, &[]), &["chosen", "data", "outside"]);
        assert!(all.found.is_empty() && all.missing.is_empty());
        let why: Vec<&str> = all.refused.iter().map(|(_, why)| &why[..why.len().min(19)]).collect();
        assert_eq!(why, ["GNU_IFUNC: its symb", "its symbol is no fu", "its address is not "]);
    }

    #[test]
    fn more_functions_of_a_name_than_any_library_has() {
        let many: Vec<Made> = (0..=MOST_FUNCTIONS as u64).map(|at| ("f", FUNC, 1, at, 1)).collect();
        let file = library(&many, &[]);
        assert_eq!(Library::parse(&file[..]).and_then(|library| library.functions(["f"])), Err(Error::TooLarge));
    }

    #[test]
    fn other_files() {
        assert_eq!(Library::parse(&b"#!/bin/sh"[..]).map(|_| ()), Err(Error::NotElf));
        let mut other = library(&[], &[]);
        other[18] = 183;
        assert_eq!(Library::parse(&other[..]).map(|_| ()), Err(Error::OtherMachine(183)));
    }

    proptest! {
        #[test]
        fn a_broken_library_is_an_error_or_something_else(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
            cut: prop::sample::Index,
        ) {
            let mut file = library(&[("a", FUNC, 1, 0, 8), ("b", FUNC, 1, 8, 8)], &[("c", FUNC, 1, 16, 0)]);
            // Most of the file is code, which nothing can be wrong with.
            let places: Vec<usize> = (0..176).chain(CODE as usize + 256..file.len()).collect();
            for (place, byte) in changes {
                file[*place.get(&places)] = byte;
            }
            file.truncate(cut.index(file.len() * 2) + 1);
            let Ok(library) = Library::parse(&file[..]) else { return Ok(()) };
            let Ok(all) = library.functions(["a", "b", "c"]) else { return Ok(()) };
            for function in &all.found {
                if let Ok(code) = library.code(function) {
                    prop_assert!(code.len() as u64 <= MOST_CODE_BYTES);
                }
            }
        }
    }
}
