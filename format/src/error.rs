//! What can be wrong with a tape, or with writing one.

use std::io;

/// Why a tape could not be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TapeError {
    /// The operating system refused.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The file does not begin as a tape does.
    #[error("not a ktape tape: it {0}")]
    NotATape(&'static str),
    /// The file's header does not hold what it must.
    #[error("byte {offset}: the tape's header is damaged: {reason}")]
    Header {
        /// Where.
        offset: u64,
        /// What is wrong.
        reason: &'static str,
    },
    /// A newer version of ktape wrote the tape.
    #[error("the tape has format {found_major}.{found_minor}; this program reads up to {known_major}.x: update ktape")]
    NewerVersion {
        /// The file's major version.
        found_major: u16,
        /// The file's minor version.
        found_minor: u16,
        /// The newest major version known here.
        known_major: u16,
    },
    /// The tape needs a feature that this version lacks.
    #[error("the tape needs features {missing:#x} that this program does not have: update ktape")]
    MissingFeature {
        /// The unknown bits of `required_features`.
        missing: u64,
    },
    /// Another process is writing the tape.
    #[error("another process is writing this tape")]
    Locked,
    /// A single definition is larger than a tape may hold.
    #[error("a string of {bytes} bytes is too long for a tape (at most {most})")]
    StringTooLong {
        /// Its length.
        bytes: usize,
        /// The limit.
        most: usize,
    },
}

/// A part of a tape that cannot be read. The rest can.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Where it begins in the file.
    pub offset: u64,
    /// How many bytes are unreadable.
    pub bytes: u64,
    /// How many rows they held, if that can still be told.
    pub rows: Option<u64>,
    /// What is wrong.
    pub reason: &'static str,
}

impl std::fmt::Display for Damage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "byte {}: {} ({} bytes", self.offset, self.reason, self.bytes)?;
        match self.rows {
            Some(rows) => write!(f, ", {rows} rows)"),
            None => write!(f, ")"),
        }
    }
}
