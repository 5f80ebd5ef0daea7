//! The library that is loaded into processes: where it is, whether it is this recorder's, and whether a program can load it.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use ktape_ebpf::inside::LAYOUT;
use object::elf::{ET_EXEC, FileHeader64, PT_INTERP, VER_FLG_WEAK};
use object::read::elf::{FileHeader as _, ProgramHeader as _};
use object::{Endianness, Object as _, ObjectSection as _, ObjectSymbol as _};

/// Its file's name.
const NAME: &str = "libktape_inside.so";
/// Names it where it is elsewhere.
const VARIABLE: &str = "KTAPE_INSIDE_LIBRARY";
/// The C library's file.
const LIBC: &str = "libc.so.6";
/// The variable in it that says its layout.
const LAYOUT_SYMBOL: &str = "KTAPE_INSIDE_LAYOUT";

/// Finds the library, and makes sure that it is of this recorder's version.
///
/// # Errors
///
/// If there is none, or it is of another.
pub fn find() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(VARIABLE) {
        let path = PathBuf::from(path);
        check(&path).with_context(|| format!("{VARIABLE}: {}", path.display()))?;
        // The target may run elsewhere.
        return Ok(path.canonicalize()?);
    }
    let own = std::env::current_exe().context("this program's own file")?;
    let folder = own.parent().unwrap_or(Path::new("/"));
    let places = [folder.join(NAME), folder.join("../lib/ktape").join(NAME)];
    let Some(path) = places.iter().find(|path| path.is_file()) else {
        bail!("{NAME} is neither beside {} nor in ../lib/ktape; {VARIABLE} names another place", own.display());
    };
    check(path).with_context(|| path.display().to_string())?;
    Ok(path.canonicalize()?)
}

/// Reads the version out of the file: nothing of it is run.
fn check(path: &Path) -> Result<()> {
    let bytes = fs::read(path)?;
    let layout = layout(&bytes).context("not a library of ktape's")?;
    ensure!(layout == LAYOUT, "of another version: it has layout {layout}, this recorder {LAYOUT}");
    Ok(())
}

fn layout(bytes: &[u8]) -> Option<u32> {
    let file = object::File::parse(bytes).ok()?;
    let symbol = file.dynamic_symbols().find(|symbol| symbol.name() == Ok(LAYOUT_SYMBOL))?;
    let section = file.section_by_index(symbol.section_index()?).ok()?;
    let word = section.data_range(symbol.address(), 4).ok()??;
    Some(u32::from_le_bytes(*word.first_chunk()?))
}

/// Whether a program can load the library: one that is linked statically, to another C library than glibc or for another machine
/// cannot, nor one whose glibc is older than what the library was linked to. Of a script its interpreter would have to be asked, which is
/// left to be noticed when it runs.
///
/// # Errors
///
/// Why it cannot.
pub fn can_load(program: &Path, library: &Path) -> Result<()> {
    // The headers are at the beginning.
    let bytes = read_beginning(program).with_context(|| program.display().to_string())?;
    if !bytes.starts_with(b"\x7fELF") {
        return Ok(());
    }
    let why = refusal(&bytes).or_else(|| too_old(&interpreter(&bytes)?, library));
    ensure!(why.is_none(), "{}: {}", program.display(), why.unwrap_or_default());
    Ok(())
}

/// Why the glibc that this dynamic loader is part of is too old, if so. What cannot be read is not refused: the loader says it then.
fn too_old(loader: &Path, library: &Path) -> Option<String> {
    // Both are of one build, and installed into one folder; the path in programs is a link to there.
    let libc = loader.canonicalize().ok()?.with_file_name(LIBC);
    let (needed, provided) = (needed(&fs::read(library).ok()?)?, provided(&fs::read(&libc).ok()?)?);
    let lacking = needed.difference(&provided).last()?;
    let newest = provided.last()?;
    let version = |[major, minor, patch]: &Version| match patch {
        0 => format!("{major}.{minor}"),
        _ => format!("{major}.{minor}.{patch}"),
    };
    Some(format!("{} is glibc {}, and the library inside needs {}", libc.display(), version(newest), version(lacking)))
}

/// A version of glibc's, in which symbols came.
type Version = [u32; 3];

/// Of a name like `GLIBC_2.34`.
fn version(name: &[u8]) -> Option<Version> {
    let mut parts = str::from_utf8(name).ok()?.strip_prefix("GLIBC_")?.split('.').map(str::parse);
    let version = [parts.next()?.ok()?, parts.next()?.ok()?, parts.next().unwrap_or(Ok(0)).ok()?];
    parts.next().is_none().then_some(version)
}

/// The versions of glibc that a library cannot be loaded without, as the dynamic loader finds out.
fn needed(bytes: &[u8]) -> Option<BTreeSet<Version>> {
    let header = FileHeader64::<Endianness>::parse(bytes).ok()?;
    let endian = header.endian().ok()?;
    let sections = header.sections(endian, bytes).ok()?;
    let (mut files, strings) = sections.gnu_verneed(endian, bytes).ok()??;
    let strings = sections.strings(endian, bytes, strings).ok()?;
    let mut versions = BTreeSet::new();
    while let Some((file, mut names)) = files.next().ok()? {
        let is_libc = file.file(endian, strings).ok()? == LIBC.as_bytes();
        while let Some(name) = names.next().ok()? {
            if is_libc && name.vna_flags.get(endian) & VER_FLG_WEAK != VER_FLG_WEAK {
                versions.extend(version(name.name(endian, strings).ok()?));
            }
        }
    }
    Some(versions)
}

/// The versions that a glibc has.
fn provided(bytes: &[u8]) -> Option<BTreeSet<Version>> {
    let header = FileHeader64::<Endianness>::parse(bytes).ok()?;
    let endian = header.endian().ok()?;
    let sections = header.sections(endian, bytes).ok()?;
    let (mut definitions, strings) = sections.gnu_verdef(endian, bytes).ok()??;
    let strings = sections.strings(endian, bytes, strings).ok()?;
    let mut versions = BTreeSet::new();
    while let Some((_, mut names)) = definitions.next().ok()? {
        // The first is its own, those behind it are its parents'.
        versions.extend(names.next().ok()?.and_then(|name| version(name.name(endian, strings).ok()?)));
    }
    Some(versions)
}

/// The dynamic loader that a program's headers name.
fn interpreter(bytes: &[u8]) -> Option<PathBuf> {
    let header = FileHeader64::<Endianness>::parse(bytes).ok()?;
    let endian = header.endian().ok()?;
    let headers = header.program_headers(endian, bytes).ok()?;
    let path = headers.iter().find(|header| header.p_type(endian) == PT_INTERP)?.data(endian, bytes).ok()?;
    Some(PathBuf::from(OsStr::from_bytes(path.strip_suffix(b"\0").unwrap_or(path))))
}

fn read_beginning(program: &Path) -> std::io::Result<Vec<u8>> {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    fs::File::open(program)?.take(1 << 16).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn refusal(bytes: &[u8]) -> Option<String> {
    let Ok(header) = FileHeader64::<Endianness>::parse(bytes) else {
        return Some("not a program for a machine of 64 bits".to_owned());
    };
    let Ok(endian) = header.endian() else { return Some("not a program for this machine".to_owned()) };
    let machine = header.e_machine(endian);
    if machine != object::elf::EM_X86_64 {
        return Some(format!("a program for another machine ({machine:?}) cannot load the library"));
    }
    let headers = header.program_headers(endian, bytes).unwrap_or_default();
    if !headers.iter().any(|header| header.p_type(endian) == PT_INTERP) {
        let how =
            if header.e_type(endian) == ET_EXEC { "statically" } else { "statically, as position-independent code" };
        return Some(format!("linked {how}: it loads no library"));
    }
    let path = interpreter(bytes).unwrap_or_default().display().to_string();
    path.contains("musl").then(|| format!("linked to musl ({path}), and the library to glibc"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program's headers: its type, machine, and interpreter.
    fn program(kind: u16, machine: u16, interpreter: Option<&str>) -> Vec<u8> {
        let mut bytes = vec![0; 64 + 56];
        bytes[..8].copy_from_slice(b"\x7fELF\x02\x01\x01\0");
        bytes[16..18].copy_from_slice(&kind.to_le_bytes());
        bytes[18..20].copy_from_slice(&machine.to_le_bytes());
        bytes[20] = 1;
        bytes[32] = 64;
        (bytes[52], bytes[54]) = (64, 56);
        if let Some(interpreter) = interpreter {
            bytes[56] = 1;
            bytes[64] = 3;
            bytes[72] = 120;
            bytes[96] = interpreter.len() as u8 + 1;
            bytes.extend(interpreter.bytes().chain([0]));
        }
        bytes
    }

    #[test]
    fn a_program_that_cannot_load_a_library_is_refused_with_the_reason() {
        const GLIBC: Option<&str> = Some("/lib64/ld-linux-x86-64.so.2");
        assert_eq!(refusal(&program(3, 62, GLIBC)), None);
        let why = |bytes: &[u8]| refusal(bytes).expect("a reason");
        assert!(why(&program(2, 62, None)).contains("statically"));
        assert!(why(&program(3, 62, Some("/lib/ld-musl-x86_64.so.1"))).contains("musl"));
        assert!(why(&program(3, 183, GLIBC)).contains("another machine"));
        let whole = program(3, 62, GLIBC);
        for end in 0..whole.len() {
            // Whatever is cut off, there is an answer.
            let _ = refusal(&whole[..end]);
        }
        let own = std::env::current_exe().expect("ours");
        can_load(&own, &own).expect("this test is linked to glibc, and runs");
    }

    #[test]
    fn a_version_of_glibc_is_a_number_and_not_a_text() {
        assert!(version(b"GLIBC_2.34") > version(b"GLIBC_2.4"));
        assert_eq!(version(b"GLIBC_2.3.4"), Some([2, 3, 4]));
        assert_eq!([&b"GLIBC_PRIVATE"[..], b"GLIBC_2", b"GLIBC_2.3.4.5", b"GCC_3.0"].map(version), [None; 4]);
    }

    #[test]
    fn a_glibc_that_is_older_than_the_library_is_refused_with_both_versions() {
        let own = std::env::current_exe().expect("ours");
        let bytes = fs::read(&own).expect("ours");
        let loader = interpreter(&bytes).expect("it has one");
        let (needed, libc) = (needed(&bytes).expect("it has some"), loader.canonicalize().expect("it is there"));
        let provided = provided(&fs::read(libc.with_file_name(LIBC)).expect("beside it")).expect("it has some");
        assert!(needed.is_subset(&provided) && needed.len() > 3, "{needed:?} {provided:?}");
        assert_eq!(too_old(&loader, &own), None);
        // A C library without versions behind the first: this one, with the others' names written over.
        let folder = tempfile::tempdir().expect("a folder");
        let mut old = fs::read(libc.with_file_name(LIBC)).expect("as above");
        let newest = needed.last().expect("as above");
        let name = format!("GLIBC_{}.{}\0", newest[0], newest[1]);
        let at = old.windows(name.len()).position(|window| window == name.as_bytes()).expect("its name");
        old[at..at + 5].copy_from_slice(b"OTHER");
        fs::write(folder.path().join(LIBC), old).expect("a file");
        let why = {
            fs::write(folder.path().join("ld.so"), "").expect("a file");
            too_old(&folder.path().join("ld.so"), &own).expect("too old")
        };
        assert!(why.contains(&format!("the library inside needs {}.{}", newest[0], newest[1])), "{why}");
        assert!(why.contains("libc.so.6 is glibc 2."), "{why}");
    }

    #[test]
    fn what_is_no_library_of_ours_is_refused() {
        assert_eq!(layout(b"no library"), None);
        let own = std::env::current_exe().expect("ours");
        assert!(check(&own).unwrap_err().to_string().contains("not a library of ktape's"));
    }
}
