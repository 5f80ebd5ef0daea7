//! The first bytes of a tape: who wrote it, when, on which clock, and where its parts lie.

use crate::error::TapeError;

/// The first bytes of a tape. As PNG's: a byte that is no ASCII, a name, and a line end that a text transfer breaks.
pub const MAGIC: [u8; 8] = *b"\x89KTAP\r\n\x1a";
/// A reader that knows a lower major version cannot read the tape.
pub const MAJOR: u16 = 2;
/// Grows when something is added that older readers may ignore.
pub const MINOR: u16 = 1;
/// The header's length.
pub const HEADER_BYTES: usize = 512;
/// Set in `required_features` by what a reader must know. None exists yet.
const KNOWN_FEATURES: u64 = 0;

/// The clock that the times of a tape count on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClockKind {
    /// From an instant that is not known (an imported trace).
    #[default]
    Unknown,
    /// Nanoseconds since 1970-01-01 UTC.
    Unix,
    /// `CLOCK_MONOTONIC` of the recording host.
    Monotonic,
    /// `CLOCK_BOOTTIME` of the recording host.
    Boot,
}

impl ClockKind {
    fn code(self) -> u8 {
        match self {
            ClockKind::Unknown => 0,
            ClockKind::Unix => 1,
            ClockKind::Monotonic => 2,
            ClockKind::Boot => 3,
        }
    }
}

/// Where the open tail of a tape is while it is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TailKind {
    /// Nowhere but in the writer, which can start again (an importer).
    #[default]
    None,
    /// In the file's staging area: what was recorded survives the writer.
    Mapped,
    /// In the writer's memory, as the filesystem has no shared mappings: what is not in a block dies with the writer.
    Memory,
}

impl TailKind {
    fn code(self) -> u8 {
        match self {
            TailKind::None => 0,
            TailKind::Mapped => 1,
            TailKind::Memory => 2,
        }
    }
}

/// A tape's header. `docs/format.md` has the offsets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileHeader {
    /// The version that wrote it. Decides how blocks and staged records look.
    pub major: u16,
    /// The version that wrote it, within its major version.
    pub minor: u16,
    /// What the times count on.
    pub clock: ClockKind,
    /// When the tape was begun, in nanoseconds since 1970; 0 for not known (an imported trace, so that the same
    /// input gives the same bytes).
    pub created_unix_ns: i64,
    /// The boot of the recording host, as the operating system names it; zeros for not known. After another boot the
    /// staging area is not trusted: memory that never reached the disk may be missing from it.
    pub boot_id: [u8; 16],
    /// The recording host. Cut to 63 bytes.
    pub host: String,
    /// The program that wrote it. Cut to 63 bytes.
    pub writer: String,
    /// Where the open tail is.
    pub tail: TailKind,
    /// How long each of the two staging halves is; 0 for a tape without staging.
    pub staging_half_bytes: u64,
}

impl FileHeader {
    /// Where the staging area begins.
    pub const STAGING_OFFSET: u64 = HEADER_BYTES as u64;

    /// Where the first block begins.
    pub fn blocks_offset(&self) -> u64 {
        Self::STAGING_OFFSET.saturating_add(self.staging_half_bytes.saturating_mul(2))
    }

    /// The header as it stands in the file.
    pub(crate) fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let mut set = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        set(0, &MAGIC);
        set(8, &MAJOR.to_le_bytes());
        set(10, &MINOR.to_le_bytes());
        set(12, &(HEADER_BYTES as u32).to_le_bytes());
        set(16, &KNOWN_FEATURES.to_le_bytes());
        // 24: optional features, none yet.
        set(32, &self.boot_id);
        set(48, &self.created_unix_ns.to_le_bytes());
        set(56, &[self.clock.code(), self.tail.code()]);
        set(64, &self.staging_half_bytes.to_le_bytes());
        set(128, &text_field(&self.host));
        set(192, &text_field(&self.writer));
        let crc = crc32c::crc32c(&bytes[..HEADER_BYTES - 4]);
        bytes[HEADER_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads the header at the front of a tape. The version is checked first: a newer one may mean anything else.
    pub fn read(tape: &[u8]) -> Result<FileHeader, TapeError> {
        if tape.is_empty() {
            return Err(TapeError::NotATape("is empty"));
        }
        if !tape.starts_with(&MAGIC[..tape.len().min(MAGIC.len())]) {
            return Err(TapeError::NotATape("does not begin as one"));
        }
        let Some(bytes) = tape.first_chunk::<HEADER_BYTES>() else {
            return Err(TapeError::NotATape("ends within its header"));
        };
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let (major, minor) = (u16_at(8), u16_at(10));
        if major > MAJOR {
            return Err(TapeError::NewerVersion { found_major: major, found_minor: minor, known_major: MAJOR });
        }
        let damaged = |offset, reason| Err(TapeError::Header { offset, reason });
        let crc = u32::from_le_bytes(bytes[HEADER_BYTES - 4..].try_into().expect("4 bytes"));
        if crc32c::crc32c(&bytes[..HEADER_BYTES - 4]) != crc {
            return damaged(HEADER_BYTES as u64 - 4, "it does not match its checksum");
        }
        if major == 0 {
            return damaged(8, "there is no version 0");
        }
        let missing = u64_at(16) & !KNOWN_FEATURES;
        if missing != 0 {
            return Err(TapeError::MissingFeature { missing });
        }
        let clock = match bytes[56] {
            1 => ClockKind::Unix,
            2 => ClockKind::Monotonic,
            3 => ClockKind::Boot,
            _ => ClockKind::Unknown,
        };
        let tail = match (major, bytes[57], u64_at(64)) {
            (1, _, 0) => TailKind::None,
            (1, ..) | (_, 1, _) => TailKind::Mapped,
            (_, 2, _) => TailKind::Memory,
            _ => TailKind::None,
        };
        Ok(FileHeader {
            major,
            minor,
            tail,
            clock,
            created_unix_ns: u64_at(48) as i64,
            boot_id: bytes[32..48].try_into().expect("16 bytes"),
            host: text_of(&bytes[128..192]),
            writer: text_of(&bytes[192..256]),
            staging_half_bytes: u64_at(64),
        })
    }
}

/// Text in 64 bytes, ended by a zero, cut between characters.
fn text_field(text: &str) -> [u8; 64] {
    let mut field = [0; 64];
    let text = cut(text);
    field[..text.len()].copy_from_slice(text.as_bytes());
    field
}

/// As much of a text as stands in a header.
pub(crate) fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(63)]
}

fn text_of(field: &[u8]) -> String {
    let length = field.iter().position(|&byte| byte == 0).unwrap_or(field.len());
    String::from_utf8_lossy(&field[..length]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip() {
        let header = FileHeader {
            major: MAJOR,
            minor: MINOR,
            tail: TailKind::Memory,
            clock: ClockKind::Boot,
            created_unix_ns: -5,
            boot_id: [7; 16],
            host: "é".repeat(40),
            writer: "ktape 0.1".into(),
            staging_half_bytes: 4096,
        };
        let back = FileHeader::read(&header.to_bytes()).unwrap();
        assert_eq!(back.host, "é".repeat(31));
        assert_eq!(FileHeader { host: header.host.clone(), ..back }, header);
    }

    #[test]
    fn a_newer_major_version_is_refused_with_what_is_needed() {
        let mut bytes = FileHeader::default().to_bytes();
        bytes[8] = 9;
        let error = FileHeader::read(&bytes).unwrap_err().to_string();
        assert!(error.contains("9.1") && error.contains("2.x"), "{error}");
    }

    #[test]
    fn any_flipped_bit_is_noticed() {
        let bytes = FileHeader::default().to_bytes();
        for bit in 0..8 * HEADER_BYTES {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(FileHeader::read(&damaged).is_err(), "bit {bit}");
        }
    }
}
