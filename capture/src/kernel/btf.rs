//! Where the running kernel keeps the fields of a structure, out of its BTF.
//!
//! The format is `Documentation/bpf/btf.rst`: a header, type records of a kind and a length that follows from it, strings.
//! Only structures, and the arguments of tracepoints, are looked into. The crates that read BTF are either under the LGPL, which a static binary can't be, or
//! keep members to themselves (`aya-obj`).

use std::path::Path;

/// Where Linux shows its own.
pub const VMLINUX: &str = "/sys/kernel/btf/vmlinux";

/// Why a field could not be found.
#[derive(Debug, thiserror::Error)]
pub enum BtfError {
    /// The file is not there, or may not be read.
    #[error("{VMLINUX}: {0} (the kernel needs CONFIG_DEBUG_INFO_BTF)")]
    Read(#[from] std::io::Error),
    /// The bytes are not BTF.
    #[error("{VMLINUX}: no BTF that this program understands")]
    Malformed,
    /// The structure has no such field.
    #[error("{VMLINUX}: no field {0}")]
    NoField(String),
    /// A tracepoint is not there, or has other arguments than are known.
    #[error("{VMLINUX}: no tracepoint {0}, or one with arguments that this program does not know")]
    Tracepoint(&'static str),
}

/// The kernel's types.
pub struct Btf {
    bytes: Vec<u8>,
    types: std::ops::Range<usize>,
    strings: std::ops::Range<usize>,
    /// Where each type's record begins; type 1 is the first.
    records: Vec<u32>,
}

const MAGIC: u16 = 0xeb9f;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const POINTER: u32 = 2;
const TYPEDEF: u32 = 8;
const FUNCTION_TYPE: u32 = 13;
/// Typedef, volatile, const, restrict, type tag: types that only lead to another.
const LEADING: [u32; 5] = [8, 9, 10, 11, 18];
/// Structures within structures, and types that lead to others, are followed so deep.
const MOST_DEPTH: usize = 16;

impl Btf {
    /// The running kernel's.
    pub fn of_this_kernel() -> Result<Btf, BtfError> {
        Btf::parse(std::fs::read(Path::new(VMLINUX))?).ok_or(BtfError::Malformed)
    }

    fn parse(bytes: Vec<u8>) -> Option<Btf> {
        let half = |at: usize| Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
        if half(0)? != MAGIC {
            return None;
        }
        let header = word(&bytes, 4)? as usize;
        let part = |offset: usize| -> Option<std::ops::Range<usize>> {
            let start = header.checked_add(word(&bytes, offset)? as usize)?;
            let end = start.checked_add(word(&bytes, offset + 4)? as usize)?;
            (end <= bytes.len()).then_some(start..end)
        };
        let (types, strings) = (part(8)?, part(16)?);
        let mut records = Vec::new();
        let mut at = types.start;
        while at < types.end {
            records.push(at as u32);
            at = at.checked_add(12 + rest_bytes(word(&bytes, at + 4)?)?)?;
        }
        Some(Btf { bytes, types, strings, records })
    }

    /// Where a field is in a structure, in bytes; `path` goes into fields of fields, as `thread.fsbase`.
    pub fn offset(&self, structure: &str, path: &str) -> Result<u64, BtfError> {
        let found = (0..self.records.len()).find_map(|index| {
            let record = self.records[index] as usize;
            let is_structure = self.kind(record)? == STRUCT && self.name(record)? == structure.as_bytes();
            is_structure.then(|| self.field(record, path, MOST_DEPTH)).flatten()
        });
        let bits = found.ok_or_else(|| BtfError::NoField(format!("{structure}.{path}")))?;
        Ok(bits / 8)
    }

    /// Where a field begins, in bits from the structure's beginning.
    fn field(&self, record: usize, path: &str, depth: usize) -> Option<u64> {
        let depth = depth.checked_sub(1)?;
        let (first, rest) = path.split_once('.').map_or((path, None), |(first, rest)| (first, Some(rest)));
        let info = word(&self.bytes, record + 4)?;
        let members = (info & 0xffff) as usize;
        for member in (0..members).map(|index| record + 12 + index * 12) {
            let place = u64::from(word(&self.bytes, member + 8)?);
            // With the flag the upper byte is the length of a bit field.
            let place = if info >> 31 == 1 { place & 0xff_ffff } else { place };
            let name = self.string(word(&self.bytes, member)?)?;
            let kind = || self.structure(word(&self.bytes, member + 4)?);
            if name == first.as_bytes() {
                return match rest {
                    None => Some(place),
                    Some(rest) => Some(place + self.field(kind()?, rest, depth)?),
                };
            }
            // The fields of a structure without a name are those of the one around it.
            if name.is_empty()
                && let Some(inner) = kind().and_then(|inner| self.field(inner, path, depth))
            {
                return Some(place + inner);
            }
        }
        None
    }

    /// The structure or union that a type is or leads to.
    fn structure(&self, mut id: u32) -> Option<usize> {
        for _ in 0..MOST_DEPTH {
            let record = self.record(id)?;
            match self.kind(record)? {
                STRUCT | UNION => return Some(record),
                kind if LEADING.contains(&kind) => id = word(&self.bytes, record + 8)?,
                _ => return None,
            }
        }
        None
    }

    /// The arguments of a tracepoint: for a pointer to a structure that one's name, for all others an empty one.
    pub fn tracepoint_arguments(&self, tracepoint: &'static str) -> Result<Vec<String>, BtfError> {
        self.function_arguments(&format!("btf_trace_{tracepoint}")).ok_or(BtfError::Tracepoint(tracepoint))
    }

    /// Those of the function that a type of this name is a pointer to, without its first, which is the tracepoint's own.
    fn function_arguments(&self, name: &str) -> Option<Vec<String>> {
        let is_it = |record: &usize| self.kind(*record) == Some(TYPEDEF) && self.name(*record) == Some(name.as_bytes());
        let typedef = self.records.iter().map(|&record| record as usize).find(is_it)?;
        let pointer = self.record(word(&self.bytes, typedef + 8)?)?;
        let function = self.record(word(&self.bytes, pointer + 8)?)?;
        if self.kind(pointer)? != POINTER || self.kind(function)? != FUNCTION_TYPE {
            return None;
        }
        let arguments = (word(&self.bytes, function + 4)? & 0xffff) as usize;
        let arguments = (1..arguments).map(|index| {
            let argument = word(&self.bytes, function + 12 + 8 * index + 4)?;
            let pointed = self.record(argument).filter(|&record| self.kind(record) == Some(POINTER));
            let structure = pointed.and_then(|record| self.structure(word(&self.bytes, record + 8)?));
            let name = structure.and_then(|structure| self.name(structure)).unwrap_or_default();
            Some(String::from_utf8_lossy(name).into_owned())
        });
        arguments.collect()
    }

    /// The record of a type; `void` has none.
    fn record(&self, id: u32) -> Option<usize> {
        Some(*self.records.get((id as usize).checked_sub(1)?)? as usize)
    }

    fn kind(&self, record: usize) -> Option<u32> {
        debug_assert!(self.types.contains(&record));
        Some(word(&self.bytes, record + 4)? >> 24 & 0x1f)
    }

    fn name(&self, record: usize) -> Option<&[u8]> {
        self.string(word(&self.bytes, record)?)
    }

    fn string(&self, offset: u32) -> Option<&[u8]> {
        let text = self.bytes.get(self.strings.clone())?.get(offset as usize..)?;
        text.split(|&byte| byte == 0).next()
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

/// How long a type's record is beyond its first twelve bytes, by its kind.
fn rest_bytes(info: u32) -> Option<usize> {
    let count = (info & 0xffff) as usize;
    Some(match info >> 24 & 0x1f {
        // Integers, variables, declaration tags.
        1 | 14 | 17 => 4,
        // Pointers, forwards, typedefs, qualifiers, functions, floats, type tags.
        2 | 7..=12 | 16 | 18 => 0,
        // Arrays.
        3 => 12,
        // Structures, unions, data sections, enumerations of 64 bits.
        4 | 5 | 15 | 19 => 12 * count,
        // Enumerations, parameters.
        6 | 13 => 8 * count,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `struct outer { int first; struct { int x; typedef struct inner in; }; }` with `struct inner { int a; int b; }`.
    fn small() -> Vec<u8> {
        let strings = b"\0outer\0first\0x\0in\0inner\0a\0b\0int\0alias\0btf_trace_it\0";
        let at = |name: &str| {
            let name = format!("\0{name}\0");
            1 + strings.windows(name.len()).position(|window| window == name.as_bytes()).unwrap() as u32
        };
        let record = |name: u32, kind: u32, count: u32, size: u32| [name, kind << 24 | count, size];
        let mut words = Vec::new();
        words.extend(record(at("int"), 1, 0, 4));
        words.push(32);
        words.extend(record(at("inner"), STRUCT, 2, 8));
        words.extend([at("a"), 1, 0, at("b"), 1, 32]);
        words.extend(record(at("alias"), 8, 0, 2));
        words.extend(record(0, STRUCT, 2, 12));
        words.extend([at("x"), 1, 0, at("in"), 3, 32]);
        words.extend(record(at("outer"), STRUCT, 2, 16));
        words.extend([at("first"), 1, 0, 0, 4, 32]);
        // `typedef void (*btf_trace_it)(void *, int, const struct outer *);`
        words.extend(record(0, 10, 0, 5));
        words.extend(record(0, POINTER, 0, 6));
        words.extend(record(0, POINTER, 0, 0));
        words.extend(record(0, FUNCTION_TYPE, 3, 0));
        words.extend([0, 8, 0, 1, 0, 7]);
        words.extend(record(0, POINTER, 0, 9));
        words.extend(record(at("btf_trace_it"), TYPEDEF, 0, 10));
        let types: Vec<u8> = words.iter().flat_map(|word: &u32| word.to_le_bytes()).collect();
        let mut bytes = vec![0x9f, 0xeb, 1, 0];
        for word in [24, 0, types.len() as u32, types.len() as u32, strings.len() as u32] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(types);
        bytes.extend(strings);
        bytes
    }

    #[test]
    fn fields_are_found_through_names_typedefs_and_structures_without_a_name() {
        let btf = Btf::parse(small()).unwrap();
        let offset = |path| btf.offset("outer", path).ok();
        assert_eq!(offset("first"), Some(0));
        assert_eq!(offset("x"), Some(4));
        assert_eq!(offset("in.b"), Some(4 + 4 + 4));
        assert_eq!(offset("missing"), None);
        assert!(btf.offset("nothing", "x").is_err());
    }

    #[test]
    fn arguments_of_a_tracepoint_are_told_by_what_they_point_to() {
        let btf = Btf::parse(small()).unwrap();
        assert_eq!(btf.tracepoint_arguments("it").unwrap(), ["", "outer"]);
        assert!(btf.tracepoint_arguments("other").is_err());
    }

    #[test]
    fn damaged_types_are_refused_or_read_without_a_panic() {
        let whole = small();
        for length in 0..whole.len() {
            if let Some(btf) = Btf::parse(whole[..length].to_vec()) {
                let _ = btf.offset("outer", "in.b");
                let _ = btf.tracepoint_arguments("it");
            }
        }
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0xff;
            if let Some(btf) = Btf::parse(damaged) {
                let _ = btf.offset("outer", "in.b");
                let _ = btf.tracepoint_arguments("it");
            }
        }
    }

    #[test]
    fn this_kernel_has_the_fields_that_are_asked_for() {
        let Ok(btf) = Btf::of_this_kernel() else {
            eprintln!("SKIPPED: no {VMLINUX}");
            return;
        };
        for path in ["pid", "tgid", "exit_code", "thread.fsbase"] {
            assert!(btf.offset("task_struct", path).unwrap() > 0, "{path}");
        }
    }
}
