//! The library that is loaded into processes: where it is, whether it is this recorder's, and whether a program can load it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use ktape_ebpf::inside::LAYOUT;
use object::elf::{ET_EXEC, FileHeader64, PT_INTERP};
use object::read::elf::{FileHeader as _, ProgramHeader as _};
use object::{Endianness, Object as _, ObjectSection as _, ObjectSymbol as _};

/// Its file's name.
const NAME: &str = "libktape_inside.so";
/// Names it where it is elsewhere.
const VARIABLE: &str = "KTAPE_INSIDE_LIBRARY";
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
/// cannot. Of a script its interpreter would have to be asked, which is left to be noticed when it runs.
///
/// # Errors
///
/// Why it cannot.
pub fn can_load(program: &Path) -> Result<()> {
    // The headers are at the beginning.
    let bytes = read_beginning(program).with_context(|| program.display().to_string())?;
    if !bytes.starts_with(b"\x7fELF") {
        return Ok(());
    }
    let why = refusal(&bytes);
    ensure!(why.is_none(), "{}: {}", program.display(), why.unwrap_or_default());
    Ok(())
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
    let interpreter = headers.iter().find(|header| header.p_type(endian) == PT_INTERP);
    let Some(interpreter) = interpreter else {
        let how =
            if header.e_type(endian) == ET_EXEC { "statically" } else { "statically, as position-independent code" };
        return Some(format!("linked {how}: it loads no library"));
    };
    let path = interpreter.data(endian, bytes).unwrap_or_default();
    let path = String::from_utf8_lossy(path.strip_suffix(b"\0").unwrap_or(path)).into_owned();
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
        can_load(&std::env::current_exe().expect("ours")).expect("this test is linked to glibc");
    }

    #[test]
    fn what_is_no_library_of_ours_is_refused() {
        assert_eq!(layout(b"no library"), None);
        let own = std::env::current_exe().expect("ours");
        assert!(check(&own).unwrap_err().to_string().contains("not a library of ktape's"));
    }
}
