//! What a process has mapped: `/proc/PID/maps`.
//!
//! ```text
//! 7f3c1a000000-7f3c1a021000 r-xp 0002f000 fd:01 1835036    /usr/lib/x86_64-linux-gnu/libcuda.so.1 (deleted)
//! ```
//!
//! The kernel writes a line feed in a path as `\012` and everything else as it is. So a path may be no UTF-8, and one that has
//! `\012` or ` (deleted)` in its true name cannot be told from the other: whoever opens a file does so by its mapping and compares
//! the inode, and the path is for people.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;

use super::Error;

/// A mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Its first address.
    pub start: u64,
    /// The address behind its last.
    pub end: u64,
    /// Whether it can be executed.
    pub executable: bool,
    /// Where in the file it begins.
    pub file_offset: u64,
    /// The file's device, as major and minor; 0:0 without a file.
    pub device: (u32, u32),
    /// The file's inode; 0 without a file.
    pub inode: u64,
    /// The file as the process named it, or a name in brackets; empty for memory without a name.
    pub path: PathBuf,
    /// Whether that path does not lead to the file any more.
    pub deleted: bool,
}

impl Mapping {
    /// Whether a file is mapped, which is not so of `[heap]`, `[uprobes]` and memory without a name.
    pub fn is_file(&self) -> bool {
        self.inode != 0
    }

    /// Its name in `/proc/PID/map_files`.
    pub fn name(&self) -> String {
        format!("{:x}-{:x}", self.start, self.end)
    }
}

/// All mappings of a process, by address.
pub fn of(pid: u32) -> Result<Vec<Mapping>, Error> {
    parse(&super::read(pid, "maps")?).ok_or(Error::Strange { pid, file: "maps" })
}

/// Parses the whole file; `None` if a line is not as Linux writes it.
pub fn parse(text: &[u8]) -> Option<Vec<Mapping>> {
    text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(line).collect()
}

/// The inodes of all mapped files, as often as they are mapped. What is not as Linux writes it has none.
pub fn inodes(text: &[u8]) -> impl Iterator<Item = u64> {
    let lines = text.split(|byte| *byte == b'\n');
    let inodes = lines.filter_map(|line| line.split(|byte| *byte == b' ').nth(4));
    let numbers = inodes.filter_map(|inode| std::str::from_utf8(inode).ok()?.parse().ok());
    numbers.filter(|inode| *inode != 0)
}

fn line(line: &[u8]) -> Option<Mapping> {
    let mut rest = line;
    let mut field = || {
        let end = rest.iter().position(|byte| *byte == b' ').unwrap_or(rest.len());
        let (field, behind) = rest.split_at(end);
        rest = behind.get(1..).unwrap_or_default();
        std::str::from_utf8(field).ok()
    };
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let (start, end) = field()?.split_once('-')?;
    let executable = field()?.as_bytes().get(2)? == &b'x';
    let file_offset = hex(field()?)?;
    let (major, minor) = field()?.split_once(':')?;
    let device = (u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?);
    let inode = field()?.parse().ok()?;
    let path = rest.trim_ascii_start();
    let alive = path.strip_suffix(b" (deleted)");
    Some(Mapping {
        start: hex(start)?,
        end: hex(end)?,
        executable,
        file_offset,
        device,
        inode,
        path: unescaped(alive.unwrap_or(path)),
        deleted: alive.is_some(),
    })
}

fn unescaped(path: &[u8]) -> PathBuf {
    let mut plain = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some(first) = rest.first() {
        let (byte, taken) = if rest.starts_with(br"\012") { (b'\n', 4) } else { (*first, 1) };
        plain.push(byte);
        rest = &rest[taken..];
    }
    PathBuf::from(OsString::from_vec(plain))
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt as _;

    use super::*;

    fn one(text: &[u8]) -> Mapping {
        let mut all = parse(text).expect("parses");
        assert_eq!(all.len(), 1);
        all.remove(0)
    }

    #[test]
    fn a_library_line() {
        let mapping = one(b"7f00-8f00 r-xp 0002f000 fd:01 1835036                    /usr/lib/libcuda.so.1\n");
        assert_eq!((mapping.start, mapping.end, mapping.executable), (0x7f00, 0x8f00, true));
        assert_eq!((mapping.file_offset, mapping.device, mapping.inode), (0x2f000, (0xfd, 1), 1_835_036));
        assert_eq!((mapping.path.to_str(), mapping.deleted), (Some("/usr/lib/libcuda.so.1"), false));
        assert_eq!(mapping.name(), "7f00-8f00");
    }

    #[test]
    fn odd_paths() {
        let path = |text: &[u8]| one(&[b"0-1 r--p 0 00:01 7 ", text, b"\n"].concat());
        assert_eq!(path(b"/a b (deleted)").path.to_str(), Some("/a b"));
        assert!(path(b"/a b (deleted)").deleted);
        assert_eq!(path(br"/a\012b\").path.to_str(), Some("/a\nb\\"));
        assert_eq!(path(b"/\xff\xfe").path.as_os_str().as_bytes(), b"/\xff\xfe");
        assert_eq!(path(b"/memfd:x (deleted)").path.to_str(), Some("/memfd:x"));
    }

    #[test]
    fn memory_without_a_file() {
        let anonymous = one(b"0-1000 rw-p 00000000 00:00 0 \n");
        assert!(!anonymous.is_file() && anonymous.path.as_os_str().is_empty());
        assert_eq!(one(b"0-1000 rw-p 00000000 00:00 0 [heap]").path.to_str(), Some("[heap]"));
    }

    #[test]
    fn what_linux_does_not_write_is_refused() {
        for text in [
            &b"x"[..],
            b"0-1",
            b"0-1 r-xp",
            b"0-1 r 0 0:0 0",
            b"g-1 r-xp 0 0:0 0",
            b"0-1 r-xp 0 00 0",
            b"\xff-1 r-xp 0 0:0 0",
        ] {
            assert_eq!(parse(text), None, "{text:?}");
        }
        assert_eq!(parse(b""), Some(Vec::new()));
    }

    #[test]
    fn this_process() {
        let mappings = of(std::process::id()).expect("our own");
        let here = this_process as fn() as usize as u64;
        let code = mappings.iter().find(|mapping| (mapping.start..mapping.end).contains(&here)).expect("our code");
        assert!(code.executable && code.is_file());
        assert_eq!(code.path, std::env::current_exe().expect("our file"));
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_mappings_or_nothing(text: Vec<u8>) {
            let _ = parse(&text);
        }
    }
}
