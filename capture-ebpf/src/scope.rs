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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
    /// Patterns of names, as [`matches`] has them.
    pub comm: [[u8; COMM_BYTES]; MOST_COMMS],
    /// Control groups: what is in one, or below.
    pub group: [Group; MOST_GROUPS],
}

/// A control group of the second version's hierarchy.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// The kernel's number of it, which is that of its directory.
    pub id: u64,
    /// How far below the root it is.
    pub level: u64,
}

// SAFETY: integers, in an order that needs no padding.
unsafe impl Plain for Scope {}

/// 1 if a name is as a pattern says, in which `*` stands for any characters and `?` for one. Both end at the first zero byte.
///
/// It keeps the set of places in the name that the pattern so far can lead to, a bit for each: a fixed number of steps without
/// a branch, which is what the verifier wants.
#[inline(always)]
pub fn matches(pattern: &[u8; COMM_BYTES], name: &[u8; COMM_BYTES]) -> u32 {
    /// A bit for each place, and one behind the last.
    const ALL: u32 = (1 << (COMM_BYTES + 1)) - 1;
    // The bit of the first zero byte, and all places before it.
    let end = places_of(name, 0) | 1 << COMM_BYTES;
    let end = end & end.wrapping_neg();
    let inside = end - 1;
    let mut reached = 1u32;
    let mut ended = 0u32;
    let mut at = 0;
    while at < COMM_BYTES {
        let byte = pattern[at];
        ended |= u32::from(byte == 0).wrapping_neg();
        let is_star = u32::from(byte == b'*').wrapping_neg();
        let is_any = u32::from(byte == b'?').wrapping_neg();
        // From the lowest on, everything.
        let spread = (reached & reached.wrapping_neg()).wrapping_neg() & ALL;
        let stepped = (reached & inside & (places_of(name, byte) | is_any)) << 1;
        let next = (is_star & spread) | (!is_star & stepped);
        reached = (ended & reached) | (!ended & next);
        at += 1;
    }
    u32::from(reached & end != 0)
}

/// A bit for each place of a name where this byte is.
#[inline(always)]
fn places_of(name: &[u8; COMM_BYTES], byte: u8) -> u32 {
    let mut places = 0;
    let mut at = 0;
    while at < COMM_BYTES {
        places |= u32::from(name[at] == byte) << at;
        at += 1;
    }
    places
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
            ("python", "python", 1),
            ("python", "python3", 0),
            ("python*", "python3.11", 1),
            ("*", "", 1),
            ("*", "0123456789abcde", 1),
            ("", "", 1),
            ("", "a", 0),
            ("?", "", 0),
            ("p?thon*", "python", 1),
            ("*::*", "ray::Worker", 1),
            ("*a*b*c", "xaybzcbc", 1),
            ("*a*b*c", "xaybzcb", 0),
            ("**x", "aaax", 1),
            ("a?", "a", 0),
            ("0123456789abcde", "0123456789abcde", 1),
        ] {
            assert_eq!(matches(&padded(pattern), &padded(name)), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn bytes_without_an_end_are_a_name_too() {
        let whole = [b'x'; COMM_BYTES];
        assert_eq!(matches(&whole, &whole), 1);
        assert_eq!(matches(&padded("x*"), &whole), 1);
        assert_eq!(matches(&padded("xxxxxxxxxxxxxxx"), &whole), 0);
    }
}
