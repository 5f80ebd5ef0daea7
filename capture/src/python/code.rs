//! Code objects: names, files, and the line of an instruction.
//!
//! A table of lines comes in three forms. Before 3.10 `co_lnotab`, pairs of how many bytes of code and lines further on; in
//! 3.10 `co_linetable`, ranges with a line or none; from 3.11 on the location table, whose entries name columns too
//! (`Objects/locations.md`, `Objects/codeobject.c`). Each is decoded once, into the ranges of code with one line.

use std::borrow::Cow;
use std::sync::Arc;

use ktape_ebpf::python::{CodeBody, Copied, Layout, Memory, Part, RawFrame, TASK_NAME_BYTES, TaskName, raw_kind};
use ktape_ebpf::wire::text;

/// Bytes of a name that user space reads, at most: a qualified name of hundreds of nested classes.
const NAME_BYTES: u64 = 64 << 10;
/// Of a path: `PATH_MAX`, in four bytes a character, and as much again for what is made up.
const FILE_BYTES: u64 = 64 << 10;
/// Of a table of lines, which has a few bytes for an instruction: of half a million of them or so.
const TABLE_BYTES: u64 = 1 << 20;

/// A code object as it is told to people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Code {
    /// `co_qualname`, `co_name` before 3.11.
    pub name: Arc<str>,
    /// `co_filename`.
    pub file: Arc<str>,
    /// `co_firstlineno`.
    pub first_line: i32,
    /// Whether a part could not be read, or not whole. Its text then says so.
    pub incomplete: bool,
    first_traceable: i32,
    lines: Lines,
}

/// What of a code object came in pieces, by [`text`](ktape_ebpf::wire::text).
pub type LongTexts = [Option<Vec<u8>>; text::KINDS];

impl Code {
    /// Makes it of what was copied, and of what came in pieces. What is in neither is read from the process, where there still
    /// is one.
    pub fn new<M: Memory>(body: &CodeBody, long: &LongTexts, layout: &Layout, process: Option<&M>) -> Self {
        let parts = |of: fn(&M, &Layout, u64) -> Option<Part>, most: u64| {
            move || {
                let memory = process?;
                read(memory, of(memory, layout, body.code)?, most)
            }
        };
        let name = string(&body.name, &long[text::NAME as usize], parts(Part::name, NAME_BYTES));
        let file = string(&body.file, &long[text::FILE as usize], parts(Part::file, FILE_BYTES));
        let table = whole(&body.line_table, &long[text::LINE_TABLE as usize], parts(Part::line_table, TABLE_BYTES));
        let incomplete = name.is_err() || file.is_err() || table.is_none();
        let lines =
            table.map_or_else(Lines::default, |(table, _)| Lines::decode(layout.version, body.first_line, &table));
        Self {
            name: name.unwrap_or_else(|cut| cut).into(),
            file: file.unwrap_or_else(|cut| cut).into(),
            first_line: body.first_line,
            incomplete,
            first_traceable: body.first_traceable,
            lines,
        }
    }

    /// `f_lineno` of a frame at this instruction: `None` where Python says none, and if the table could not be read.
    pub fn line(&self, instruction: i32) -> Option<u32> {
        let line = if instruction < 0 { Some(self.first_line) } else { self.lines.at(instruction) };
        line.and_then(|line| u32::try_from(line).ok())
    }

    /// Whether Python itself hides this frame of it, because it is still being made.
    pub fn hides(&self, frame: &RawFrame) -> bool {
        frame.kind == raw_kind::FUNCTION && frame.instruction < self.first_traceable
    }
}

/// A task's name as it is told to people.
pub fn task_name(name: &TaskName) -> String {
    let bytes: Vec<u8> = name.words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let length = name.length as usize;
    let text = decode(&bytes[..length.min(TASK_NAME_BYTES)], name.width);
    if length > TASK_NAME_BYTES { text + "…" } else { text }
}

/// A part, or `None` if it is longer than any: its length is from damaged memory then.
fn read<M: Memory>(memory: &M, part: Part, most: u64) -> Option<(Vec<u8>, u32)> {
    if part.length > most {
        return None;
    }
    let mut bytes = vec![0; part.length as usize];
    memory.read(part.address, &mut bytes).then_some((bytes, part.width))
}

/// The bytes of a text, and how many a character has.
fn whole<'a, const CAPACITY: usize>(
    copied: &'a Copied<CAPACITY>,
    long: &'a Option<Vec<u8>>,
    again: impl FnOnce() -> Option<(Vec<u8>, u32)>,
) -> Option<(Cow<'a, [u8]>, u32)> {
    if let Some(whole) = copied.whole() {
        return Some((whole.into(), copied.width));
    }
    if let Some(long) = long.as_deref().filter(|long| copied.width != 0 && long.len() == copied.length as usize) {
        return Some((long.into(), copied.width));
    }
    // The code object may be another by now. Then what was copied of it isn't how that begins.
    let known = &copied.bytes[..CAPACITY.min(copied.length as usize)];
    let is_it = |(bytes, width): &(Vec<u8>, u32)| {
        copied.width == 0 || *width == copied.width && bytes.len() == copied.length as usize && bytes.starts_with(known)
    };
    again().filter(is_it).map(|(bytes, width)| (bytes.into(), width))
}

/// The whole string, or what is known of it, as an error.
fn string<const CAPACITY: usize>(
    copied: &Copied<CAPACITY>,
    long: &Option<Vec<u8>>,
    again: impl FnOnce() -> Option<(Vec<u8>, u32)>,
) -> Result<String, String> {
    if let Some((bytes, width)) = whole(copied, long, again) {
        return Ok(decode(&bytes, width));
    }
    if copied.width == 0 {
        return Err("[unreadable]".to_owned());
    }
    let known = &copied.bytes[..CAPACITY.min(copied.length as usize)];
    Err(decode(known, copied.width) + "…")
}

/// Characters that are none, such as the lone surrogates Python escapes undecodable file names with, become U+FFFD.
fn decode(bytes: &[u8], width: u32) -> String {
    let character = |code| char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
    match width {
        1 => bytes.iter().map(|&byte| char::from(byte)).collect(),
        2 => bytes.as_chunks().0.iter().map(|&unit| character(u16::from_ne_bytes(unit).into())).collect(),
        _ => bytes.as_chunks().0.iter().map(|&unit| character(u32::from_ne_bytes(unit))).collect(),
    }
}

/// The ranges of code that have one line, in order and without a gap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lines(Vec<Range>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    /// The instruction after the range, in bytes.
    end: i64,
    line: Option<i32>,
}

impl Lines {
    /// Decodes the table of a code object of this version. A damaged table gives what can be read of it.
    pub fn decode(version: u16, first_line: i32, table: &[u8]) -> Self {
        let mut lines = Self::default();
        if version >= 0x030b {
            lines.decode_locations(first_line, table);
        } else if version == 0x030a {
            lines.decode_ranges(first_line, table);
        } else {
            lines.decode_steps(first_line, table);
        }
        lines
    }

    /// The line of the instruction at this offset.
    pub fn at(&self, instruction: i32) -> Option<i32> {
        let index = self.0.partition_point(|range| range.end <= i64::from(instruction));
        self.0.get(index)?.line
    }

    fn push(&mut self, length: i64, line: Option<i32>) {
        let end = self.0.last().map_or(0, |last| last.end) + length;
        match self.0.last_mut() {
            Some(last) if last.line == line => last.end = end,
            _ if length == 0 => {}
            _ => self.0.push(Range { end, line }),
        }
    }

    /// An entry begins with a byte of 128 or more: four bits of form, three of how many units of code, less one.
    fn decode_locations(&mut self, first_line: i32, table: &[u8]) {
        let mut line = first_line;
        let mut rest = table;
        while let [head, tail @ ..] = rest {
            let payload = tail.iter().position(|byte| byte & 0x80 != 0).unwrap_or(tail.len());
            let form = head >> 3 & 15;
            line = line.wrapping_add(match form {
                // One line, a short or a long range of columns in it.
                10..=12 => i32::from(form - 10),
                // The line alone, and everything in full.
                13 | 14 => signed_number(&tail[..payload]),
                _ => 0,
            });
            let has_line = form != 15;
            self.push((i64::from(head & 7) + 1) * 2, has_line.then_some(line));
            rest = &tail[payload..];
        }
    }

    /// Pairs: bytes of code, lines further on; -128 marks code without a line.
    fn decode_ranges(&mut self, first_line: i32, table: &[u8]) {
        let mut line = first_line;
        for &[length, step] in table.as_chunks().0 {
            let step = step as i8;
            if step != i8::MIN {
                line = line.wrapping_add(step.into());
            }
            self.push(length.into(), (step != i8::MIN).then_some(line));
        }
    }

    /// Pairs: bytes of code until the line changes, and by how much. The last line goes on to the end.
    fn decode_steps(&mut self, first_line: i32, table: &[u8]) {
        let mut line = first_line;
        for &[length, step] in table.as_chunks().0 {
            self.push(length.into(), Some(line));
            line = line.wrapping_add((step as i8).into());
        }
        self.push(i64::from(i32::MAX), Some(line));
    }
}

/// A number in pieces of six bits, lowest first, 64 marking that another follows; the lowest bit is the sign.
fn signed_number(bytes: &[u8]) -> i32 {
    let mut number: u32 = 0;
    for (index, byte) in bytes.iter().enumerate() {
        number |= u32::from(byte & 63).checked_shl(6 * index as u32).unwrap_or(0);
        if byte & 64 == 0 {
            break;
        }
    }
    let magnitude = (number >> 1) as i32;
    if number & 1 == 0 { magnitude } else { -magnitude }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines_of(version: u16, first_line: i32, table: &[u8], instructions: &[i32]) -> Vec<Option<i32>> {
        let lines = Lines::decode(version, first_line, table);
        instructions.iter().map(|&instruction| lines.at(instruction)).collect()
    }

    #[test]
    fn location_tables_go_forward_and_back_and_know_code_without_a_line() {
        let table = [
            0x80 | 13 << 3 | 1,
            2 << 1, // two units, two lines on
            0x80 | 3 << 3,
            0x11,           // a unit of the same line, its columns in one byte
            0x80 | 15 << 3, // a unit without a line
            0x80 | 12 << 3,
            1,
            2, // two lines on
            0x80 | 14 << 3,
            64 | 33,
            1,
            0,
            1,
            1, // 48 lines back, in two pieces
        ];
        assert_eq!(
            lines_of(0x030b, 100, &table, &[0, 2, 4, 6, 8, 10, 12]),
            [Some(102), Some(102), Some(102), None, Some(104), Some(56), None]
        );
    }

    #[test]
    fn the_line_table_of_3_10_has_ranges_without_a_line() {
        let table = [4, 1, 0, 5, 2, 0x80, 2, 0xff];
        assert_eq!(lines_of(0x030a, 10, &table, &[0, 2, 4, 6, 8]), [Some(11), Some(11), None, Some(15), None]);
    }

    #[test]
    fn the_line_table_before_3_10_ends_in_the_last_line() {
        let table = [0, 1, 4, 2, 6, 0xff];
        assert_eq!(
            lines_of(0x0308, 10, &table, &[0, 2, 4, 8, 10, 1000]),
            [Some(11), Some(11), Some(13), Some(13), Some(12), Some(12)]
        );
    }

    #[test]
    fn any_bytes_are_a_table() {
        let mut state = 1_u32;
        for length in 0..300 {
            let table: Vec<u8> = std::iter::repeat_with(|| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8
            })
            .take(length)
            .collect();
            for version in [0x0308, 0x030a, 0x030b] {
                let lines = Lines::decode(version, i32::MAX, &table);
                assert!(lines.0.windows(2).all(|pair| pair[0].end < pair[1].end));
            }
        }
    }

    #[test]
    fn text_of_every_width_is_decoded() {
        assert_eq!(decode(b"caf\xe9", 1), "café");
        let wide: Vec<u8> = "слой_层".encode_utf16().flat_map(u16::to_ne_bytes).collect();
        assert_eq!(decode(&wide, 2), "слой_层");
        let wider: Vec<u8> = "🐍x".chars().flat_map(|character| u32::from(character).to_ne_bytes()).collect();
        assert_eq!(decode(&wider, 4), "🐍x");
        assert_eq!(decode(&0xdc80_u16.to_ne_bytes(), 2), "\u{fffd}");
    }

    /// Memory from 0 on.
    struct Flat(Vec<u8>);

    impl Flat {
        fn put(&mut self, address: usize, bytes: &[u8]) {
            self.0[address..][..bytes.len()].copy_from_slice(bytes);
        }
    }

    impl Memory for Flat {
        fn read(&self, address: u64, into: &mut [u8]) -> bool {
            let found = self.0.get(address as usize..).and_then(|bytes| bytes.get(..into.len()));
            found.inspect(|found| into.copy_from_slice(found)).is_some()
        }
    }

    #[test]
    fn a_name_that_did_not_fit_is_read_again_unless_it_is_another_by_now() {
        let layout = Layout::of(0x030c, false).unwrap();
        let (code, string) = (0x1000, 0x2000);
        let memory = |text: &[u8]| {
            let mut memory = Flat(vec![0; 0x3000]);
            memory.put(code + usize::from(layout.code_name), &(string as u64).to_ne_bytes());
            memory.put(string + 16, &(text.len() as u64).to_ne_bytes());
            // One byte a character, compact, ASCII.
            memory.put(string + 32, &(1_u32 << 2 | 1 << 5 | 1 << 6).to_ne_bytes());
            memory.put(string + usize::from(layout.ascii_text), text);
            memory
        };
        let mut body = CodeBody { code: code as u64, ..CodeBody::default() };
        (body.name.length, body.name.width) = (300, 1);
        body.name.bytes.fill(b'a');
        let name = |long: &LongTexts, memory: Option<&Flat>| Code::new(&body, long, &layout, memory).name.to_string();
        let whole = [[b'a'; 256].as_slice(), &[b'b'; 44]].concat();
        let cut = "a".repeat(256) + "…";
        let none = LongTexts::default();
        assert_eq!(name(&none, Some(&memory(&whole))).as_bytes(), whole);
        // Another length, another beginning, and a process that is gone.
        assert_eq!(name(&none, Some(&memory(&whole[1..]))), cut);
        assert_eq!(name(&none, Some(&memory(&[b'c'; 300]))), cut);
        assert_eq!(name(&none, None), cut);
        // What came in pieces needs no process; if a piece got lost it is not the whole.
        let pieces = |text: &[u8]| [None, Some(text.to_vec()), None];
        assert_eq!(name(&pieces(&whole), None).as_bytes(), whole);
        assert_eq!(name(&pieces(&whole[..299]), None), cut);
    }

    #[test]
    fn before_3_11_every_frame_is_shown() {
        let frame = RawFrame { code: 0, instruction: -1, kind: raw_kind::FUNCTION };
        let body = |first_traceable| CodeBody { first_traceable, ..CodeBody::default() };
        let hides = |body: &CodeBody| {
            let layout = Layout::of(0x0308, false).unwrap();
            Code::new(body, &LongTexts::default(), &layout, None::<&Flat>).hides(&frame)
        };
        assert!(!hides(&CodeBody::default()));
        assert!(hides(&body(2)));
    }
}
