//! Files with code: which build each is, and how it numbers its own addresses.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;

use object::elf::{ELF_NOTE_GNU, FileHeader64, NT_GNU_BUILD_ID, PF_X, PT_LOAD, PT_NOTE};
use object::read::elf::{FileHeader as _, ProgramHeader as _};
use object::{Endianness, ReadCache};

use super::libraries::open_mapping;
use super::maps::Mapping;

/// Notes that are longer are no build id.
const MOST_NOTE_BYTES: u64 = 1 << 16;

/// A file with code.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Module {
    /// Its path, as the process has it.
    pub path: String,
    /// `None` for a file that has none, or can't be read.
    pub build_id: Option<String>,
    segments: Vec<Segment>,
}

/// A piece of code of a file: where it is in the file, and where in the file's own numbering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Segment {
    offset: u64,
    bytes: u64,
    address: u64,
}

impl Module {
    /// Reads what a mapped file says of itself. What is no ELF file says nothing.
    pub fn read(pid: u32, mapping: &Mapping) -> Module {
        let path = mapping.path.to_string_lossy().into_owned();
        // Meanwhile another library may be mapped in the same place.
        let same = |file: &File| file.metadata().is_ok_and(|facts| facts.ino() == mapping.inode);
        let file = open_mapping(pid, mapping).ok().filter(same).or_else(|| open_path(mapping));
        let (build_id, segments) = file.and_then(|file| elf(&ReadCache::new(file)).ok()).unwrap_or_default();
        Module { path, build_id, segments }
    }

    /// A place in the file in the file's own numbering.
    pub fn address(&self, offset: u64) -> u64 {
        let holds = |segment: &&Segment| offset.wrapping_sub(segment.offset) < segment.bytes;
        let segment = self.segments.iter().find(holds);
        segment.map_or(offset, |segment| segment.address.wrapping_add(offset - segment.offset))
    }
}

/// Opens the file of a process that is gone by its path, if that leads to the same file here.
fn open_path(mapping: &Mapping) -> Option<File> {
    let facts = fs::metadata(&mapping.path).ok()?;
    let device = (libc::major(facts.dev()), libc::minor(facts.dev()));
    let is_it = facts.is_file() && (facts.ino(), device) == (mapping.inode, mapping.device);
    is_it.then(|| File::open(&mapping.path).ok())?
}

/// An ELF file's build id and segments of code, by its program headers alone: a whole parse would take in the symbols of files of
/// gigabytes.
fn elf<'data, R: object::ReadRef<'data>>(file: R) -> object::Result<(Option<String>, Vec<Segment>)> {
    let header = FileHeader64::<Endianness>::parse(file)?;
    let endian = header.endian()?;
    let (mut build_id, mut segments) = (None, Vec::new());
    for segment in header.program_headers(endian, file)? {
        let (offset, bytes) = segment.file_range(endian);
        match segment.p_type(endian) {
            PT_LOAD if segment.p_flags(endian).contains(PF_X) => {
                segments.push(Segment { offset, bytes, address: segment.p_vaddr(endian) });
            }
            PT_NOTE if bytes <= MOST_NOTE_BYTES => {
                let Some(mut notes) = segment.notes(endian, file)? else { continue };
                while let Ok(Some(note)) = notes.next() {
                    if note.name() == ELF_NOTE_GNU && note.n_type(endian) == NT_GNU_BUILD_ID && !note.desc().is_empty()
                    {
                        build_id = Some(note.desc().iter().map(|byte| format!("{byte:02x}")).collect());
                    }
                }
            }
            _ => {}
        }
    }
    Ok((build_id, segments))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_of_the_file() {
        let segment = Segment { offset: 0x1000, bytes: 0x800, address: 0x20_1000 };
        let module = Module { segments: vec![segment], ..Module::default() };
        assert_eq!(
            [0x1000, 0x17ff, 0x1800, 0xfff].map(|offset| module.address(offset)),
            [0x20_1000, 0x20_17ff, 0x1800, 0xfff]
        );
    }

    #[test]
    fn this_programs_own_file_says_what_it_is() {
        let own = std::fs::read(std::env::current_exe().expect("our file")).expect("it can be read");
        let (build_id, segments) = elf(&*own).expect("it is ELF");
        let expected = object::Object::build_id(&object::File::parse(&*own).expect("it is ELF")).expect("notes");
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(build_id, expected.map(hex));
        assert!(!segments.is_empty());
        for cut in (0..own.len().min(8192)).step_by(61) {
            // Whatever it says, it says something.
            let _ = elf(&own[..cut]);
        }
    }
}
