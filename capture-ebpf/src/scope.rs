//! Which processes of a node are recorded: what the loader tells the programs, and how names are matched, on both sides alike.

use crate::wire::Plain;

/// Bytes of a process's name, as the kernel keeps it, with its end.
pub const COMM_BYTES: usize = 16;
/// The most names that a scope can have.
pub const MOST_COMMS: usize = 8;
/// The most control groups.
pub const MOST_GROUPS: usize = 8;
/// The most processes by number.
pub const MOST_PIDS: usize = 32;

/// Which processes are recorded: those that are in each of the three lists that are not empty.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scope {
    /// How many of `pid` count.
    pub pids: u32,
    /// How many of `comm` count.
    pub comms: u32,
    /// How many of `group` count.
    pub groups: u32,
    /// Whether native frames are wanted of every stack.
    pub native: u32,
    /// Processes by number; the rest is 0.
    pub pid: [u32; MOST_PIDS],
    /// Names.
    pub comm: [Pattern; MOST_COMMS],
    /// Control groups: what is in one, or below.
    pub group: [Group; MOST_GROUPS],
}

/// A control group of the second version's hierarchy.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// The kernel's number of it, which is that of its directory.
    pub id: u64,
    /// How far below the root it is.
    pub level: u64,
}

impl Scope {
    /// Every process.
    pub const ALL: Scope = Scope {
        pids: 0,
        comms: 0,
        groups: 0,
        native: 0,
        pid: [0; MOST_PIDS],
        comm: [Pattern { leads_on: [0; 256], stays: 0, end: 0 }; MOST_COMMS],
        group: [Group { id: 0, level: 0 }; MOST_GROUPS],
    };
}

// SAFETY: integers, in an order that needs no padding.
unsafe impl Plain for Scope {}

/// A name in which `*` may stand for any characters and `?` for one: as a machine whose states are how many of the pattern's other
/// characters have been met, a bit for each. So matching is a look-up for each byte of the name, and no comparison: of these
/// the verifier would follow every outcome.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// The states from which a byte leads to the next.
    leads_on: [u32; 256],
    /// The states in which any byte leads nowhere else: a star is next.
    stays: u32,
    /// The last state.
    end: u32,
}

impl Pattern {
    /// Understands a pattern; `None` for one that is longer than any name.
    pub fn new(text: &[u8]) -> Option<Pattern> {
        let mut pattern = Pattern { leads_on: [0; 256], stays: 0, end: 1 };
        for &byte in text {
            match byte {
                b'*' => {
                    pattern.stays |= pattern.end;
                    continue;
                }
                b'?' => pattern.leads_on.iter_mut().for_each(|states| *states |= pattern.end),
                byte => pattern.leads_on[usize::from(byte)] |= pattern.end,
            }
            pattern.end <<= 1;
        }
        (pattern.end < 1 << COMM_BYTES).then_some(pattern)
    }

    /// Whether a name, which ends at its first zero byte, is as the pattern says.
    #[inline(always)]
    pub fn matches(&self, name: &[u8; COMM_BYTES]) -> bool {
        let mut states = 1;
        let mut at = 0;
        while at < COMM_BYTES {
            let byte = name[at];
            if byte == 0 {
                break;
            }
            states = (states & self.leads_on[byte as usize]) << 1 | states & self.stays;
            at += 1;
        }
        states & self.end != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn padded(text: &str) -> [u8; COMM_BYTES] {
        let mut bytes = [0; COMM_BYTES];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        bytes
    }

    #[test]
    fn names_are_matched_whole() {
        for (pattern, name, expected) in [
            ("python", "python", true),
            ("python", "python3", false),
            ("python*", "python3.11", true),
            ("*", "", true),
            ("*", "0123456789abcde", true),
            ("", "", true),
            ("", "a", false),
            ("?", "", false),
            ("p?thon*", "python", true),
            ("*::*", "ray::Worker", true),
            ("*a*b*c", "xaybzcbc", true),
            ("*a*b*c", "xaybzcb", false),
            ("**x", "aaax", true),
            ("a?", "a", false),
            ("0123456789abcde", "0123456789abcde", true),
            ("*0123456789abcde*", "0123456789abcde", true),
        ] {
            let understood = Pattern::new(pattern.as_bytes()).expect("short enough");
            assert_eq!(understood.matches(&padded(name)), expected, "{pattern} {name}");
        }
        assert_eq!(Pattern::new(b"0123456789abcdef"), None);
    }

    #[test]
    fn bytes_without_an_end_are_a_name_too() {
        let pattern = |text: &str| Pattern::new(text.as_bytes()).expect("short enough");
        let whole = [b'x'; COMM_BYTES];
        assert!(pattern("x*").matches(&whole));
        assert!(!pattern("xxxxxxxxxxxxxxx").matches(&whole));
    }
}
