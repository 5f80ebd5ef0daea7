//! A block: the unit that is written, checked, skipped and decoded at once.
//!
//! ```text
//! header     64 bytes, fixed
//! directory  a few bytes a section: table, rows, first id or times, length
//! sections   one for each table that has rows: definitions first, then events
//! padding    to a multiple of 64
//! ```
//!
//! Why one block for all tables: it is sealed by one write, so a crash leaves it whole or torn, never half of a
//! launch; its definitions stand in front of the events that use them; and a reader that wants one kind skips the
//! other sections by the directory, without touching their pages.

use std::ops::Range;

use rustc_hash::FxHashMap;

use crate::codec::ColumnBytes;
use crate::column::{Choice, Decode, Decoder, Encode, Encoded, Encoder, Needs, Prediction, Zeros, all_are, extent};
use crate::definition::{Definition, DefinitionVisitor, Definitions, visit_definitions};
use crate::event::{Event, Events, KindVisitor, visit_kinds};
use crate::owners::Owners;
use crate::predict::CHUNK;
use crate::table::{ColumnReader, DefinitionKind, Predictor, Row, Table, Value};
use crate::varint::{put, take, take_bytes, unzigzag, zigzag};
use crate::wide::wide;

/// The first bytes of a block.
pub const MAGIC: [u8; 8] = *b"KTAPEBLK";
/// The length of a block's fixed header.
pub const HEADER_BYTES: usize = 64;
/// Blocks begin at multiples of this.
pub const ALIGNMENT: u64 = 64;
/// No section has more rows. Bounds what a stranger's bytes can make a reader allocate.
pub const MAX_ROWS: u64 = 1 << 20;
/// No block's strings take more bytes.
pub const MAX_TEXT_BYTES: u64 = 64 << 20;
/// No payload is longer. A writer's blocks are not, as its halves have at most 16 MiB.
pub const MAX_PAYLOAD_BYTES: u64 = 64 << 20;
/// No directory is longer. All tables together need less than half; a walk over a damaged tape, which tries a block at
/// every magic, reads no more than this for each.
pub const MAX_DIRECTORY_BYTES: u32 = 4096;
/// Header and directory take at most this many bytes.
pub(crate) const MAX_FRONT_BYTES: u64 = HEADER_BYTES as u64 + MAX_DIRECTORY_BYTES as u64;
/// A section has at most this many rows for each of its bytes, so that a tape's size bounds what reading it allocates.
pub const MAX_ROWS_PER_BYTE: u64 = 8;
/// The strings' section has at most this much text for each of its bytes; for the same reason.
pub const MAX_TEXT_PER_BYTE: u64 = 256;

/// A data block of format 1, whose directory knows no processes.
const DATA_1: u16 = 1;
/// An end block.
const END: u16 = 2;
/// A data block.
const DATA: u16 = 3;

/// What a block is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockKind {
    /// Definitions and events.
    Data,
    /// The last block of a tape that was closed: no rows. Its absence says that the writer was killed.
    End,
}

/// A block's header and directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockInfo {
    /// Where it begins in the file.
    pub offset: u64,
    /// What it is for.
    pub kind: BlockKind,
    /// Counts the blocks of a tape from 0, without gaps.
    pub sequence: u64,
    /// The earliest start of its events; 0 without events.
    pub first_ns: i64,
    /// The latest end of its events; 0 without events.
    pub last_ns: i64,
    /// How many rows its sections have together.
    pub rows: u64,
    /// The length of everything, padding included.
    pub bytes: u64,
    /// Its sections in order.
    pub sections: Vec<SectionInfo>,
    payload: Range<u64>,
    payload_crc: u32,
}

/// A section as the directory describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SectionInfo {
    /// The number of its table.
    pub table: u16,
    /// How many rows.
    pub rows: u64,
    /// The id of its first row, for definitions; 0 for events.
    pub first_id: u64,
    /// The earliest start of its events.
    pub first_ns: i64,
    /// The latest end of its events.
    pub last_ns: i64,
    /// The processes that have rows in it: for each, bit *(id − 1) mod 64*. 0 for not known.
    pub processes: u64,
    /// Where it lies in the file.
    pub range: Range<u64>,
}

/// How many definitions of each kind stand on the tape already: the same order as `visit_definitions`, strings first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Defined(Vec<u64>);

impl Defined {
    /// Counts these definitions in.
    pub(crate) fn add(&mut self, definitions: &Definitions) {
        struct Add<'a>(&'a Definitions, &'a mut Vec<u64>, usize);
        impl Add<'_> {
            fn add(&mut self, rows: usize) {
                self.1.resize(self.1.len().max(self.2 + 1), 0);
                self.1[self.2] += rows as u64;
                self.2 += 1;
            }
        }
        impl DefinitionVisitor for Add<'_> {
            type Error = std::convert::Infallible;
            fn visit<T: Definition>(&mut self) -> Result<(), Self::Error> {
                self.add(T::table(self.0).len());
                Ok(())
            }
        }
        let mut add = Add(definitions, &mut self.0, 0);
        add.add(definitions.strings.len());
        let Ok(()) = visit_definitions(&mut add);
    }

    fn of(&self, index: usize) -> u64 {
        self.0.get(index).copied().unwrap_or(0)
    }
}

/// Encodes blocks. Buffers and zstd contexts are reused from one to the next.
pub(crate) struct BlockEncoder {
    columns: Encoder,
    /// By table and column.
    choices: FxHashMap<(u16, usize), Choice>,
    starts: Vec<u64>,
    durations: Vec<u64>,
    parameters: Vec<u8>,
    entries: Vec<u8>,
    bodies: Vec<u8>,
    directory: Vec<u8>,
    payload: Vec<u8>,
    rows: u64,
}

impl BlockEncoder {
    pub(crate) fn new() -> std::io::Result<BlockEncoder> {
        Ok(BlockEncoder {
            columns: Encoder::new()?,
            choices: FxHashMap::default(),
            starts: Vec::new(),
            durations: Vec::new(),
            parameters: Vec::new(),
            entries: Vec::new(),
            bodies: Vec::new(),
            directory: Vec::new(),
            payload: Vec::new(),
            rows: 0,
        })
    }

    /// Encodes `definitions`, which follow those `defined` by earlier blocks, and `events`, whose owners these are, as
    /// a data block into `out`.
    pub(crate) fn data(
        &mut self,
        sequence: u64,
        defined: &Defined,
        definitions: &Definitions,
        events: &Events,
        owners: &Owners,
        out: &mut Vec<u8>,
    ) {
        self.clear();
        self.strings(&definitions.strings, defined.of(0) + 1);
        let mut sections = DefinitionSections { encoder: self, definitions, defined, visited: 0 };
        let Ok(()) = visit_definitions(&mut sections);
        let mut sections = EventSections { encoder: self, events, owners, span: None };
        let Ok(()) = visit_kinds(&mut sections);
        let span = sections.span.unwrap_or_default();
        self.seal(BlockKind::Data, sequence, span, out);
    }

    /// Encodes the block that says that the tape is complete into `out`.
    pub(crate) fn end(&mut self, sequence: u64, out: &mut Vec<u8>) {
        self.clear();
        self.seal(BlockKind::End, sequence, (0, 0), out);
    }

    fn clear(&mut self) {
        self.directory.clear();
        self.payload.clear();
        self.rows = 0;
    }

    /// Header, directory, payload and padding. See `docs/format.md` for the offsets.
    fn seal(&mut self, kind: BlockKind, sequence: u64, span: (i64, i64), out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&kind.code().to_le_bytes());
        out.extend_from_slice(&[0; 2]);
        out.extend_from_slice(&(self.directory.len() as u32).to_le_bytes());
        out.extend_from_slice(&sequence.to_le_bytes());
        out.extend_from_slice(&span.0.to_le_bytes());
        out.extend_from_slice(&span.1.to_le_bytes());
        out.extend_from_slice(&self.rows.to_le_bytes());
        out.extend_from_slice(&(self.payload.len() as u64).to_le_bytes());
        out.extend_from_slice(&crc32c::crc32c(&self.payload).to_le_bytes());
        let header_crc = crc32c::crc32c_append(crc32c::crc32c(out), &self.directory);
        out.extend_from_slice(&header_crc.to_le_bytes());
        debug_assert_eq!(out.len(), HEADER_BYTES);
        out.extend_from_slice(&self.directory);
        out.extend_from_slice(&self.payload);
        out.resize(out.len().next_multiple_of(ALIGNMENT as usize), 0);
    }

    fn table<T: Table>(&mut self, table: &T, first_id: u64, span: (i64, i64), processes: u64) {
        if table.is_empty() {
            return;
        }
        let specs = T::Row::COLUMNS;
        let others = |column: usize, rows: Range<usize>, out: &mut Vec<u64>| table.column_bits(column, rows, out);
        let mut columns = 0;
        for (index, spec) in specs.iter().enumerate() {
            let ticks = Prediction::TICKS.into_iter();
            let candidates: Vec<Prediction> = match spec.predictor {
                Predictor::Least => vec![Prediction::Least],
                Predictor::Previous => vec![Prediction::Previous],
                Predictor::StreamEnd { stream, duration } => {
                    ticks.map(|tick_bits| Prediction::StreamEnd { tick_bits, stream, duration }).collect()
                }
                Predictor::Key(key) => {
                    let by_key = ticks.map(|tick_bits| Prediction::KeyMean { tick_bits, key });
                    [Prediction::Least].into_iter().chain(by_key).collect()
                }
            };
            let before = self.bodies.len();
            self.parameters.clear();
            let (parameters, body) = (&mut self.parameters, &mut self.bodies);
            let choice = self.choices.entry((T::Row::KIND, index)).or_default();
            let (encoder, others, candidates) = (&mut self.columns, &others, &candidates[..]);
            let encode = Encode { encoder, others, candidates, choice, parameters, body };
            // A column of zeros is left out, unless another is decoded by it.
            let is_needed = specs.iter().any(|spec| spec.predictor.needs().contains(&Some(index)));
            if is_needed || table.read_column(index, AllZeros) == Some(false) {
                table.read_column(index, encode);
                self.entry(index, before);
                columns += 1;
            }
        }
        self.section(T::Row::KIND, table.len(), first_id, span, processes, columns);
    }

    /// Strings are a table of two columns: their lengths, and all their text as one.
    fn strings(&mut self, strings: &[Box<str>], first_id: u64) {
        if strings.is_empty() {
            return;
        }
        let lengths: Vec<u64> = strings.iter().map(|string| string.len() as u64).collect();
        self.parameters.clear();
        self.columns.column(
            &lengths,
            &|_, _, _| (),
            &[Prediction::Least],
            &mut Choice::default(),
            &mut self.parameters,
            &mut self.bodies,
        );
        self.entry(0, 0);
        let text: Vec<u8> = strings.iter().flat_map(|string| string.bytes()).collect();
        let before = self.bodies.len();
        self.parameters.clear();
        self.columns.text(&text, &mut self.parameters, &mut self.bodies);
        self.entry(1, before);
        let least_bytes = text.len().div_ceil(MAX_TEXT_PER_BYTE as usize);
        self.bodies.resize(self.bodies.len().max(least_bytes), 0);
        self.section(DefinitionKind::String as u16, strings.len(), first_id, (0, 0), 0, 2);
    }

    /// A column's entry: its number, the lengths of its parameters and body, and the parameters.
    fn entry(&mut self, index: usize, body_from: usize) {
        put(&mut self.entries, index as u64);
        put(&mut self.entries, self.parameters.len() as u64);
        put(&mut self.entries, (self.bodies.len() - body_from) as u64);
        self.entries.extend_from_slice(&self.parameters);
    }

    /// Moves the columns gathered into the payload: their number, the entries, the bodies; zeros behind them where
    /// they are fewer bytes than so many rows must have.
    fn section(&mut self, table: u16, rows: usize, first_id: u64, span: (i64, i64), processes: u64, columns: usize) {
        let before = self.payload.len();
        put(&mut self.payload, columns as u64);
        self.payload.append(&mut self.entries);
        self.payload.append(&mut self.bodies);
        let least_bytes = rows.div_ceil(MAX_ROWS_PER_BYTE as usize);
        self.payload.resize(self.payload.len().max(before + least_bytes), 0);
        self.rows += rows as u64;
        let bytes = (self.payload.len() - before) as u64;
        let duration = span.1.abs_diff(span.0);
        for value in [u64::from(table), rows as u64, first_id, zigzag(span.0), duration, processes, bytes] {
            put(&mut self.directory, value);
        }
    }
}

/// The columns that every event has, and those that have a duration: see `event`.
const START: usize = 0;
const DURATION: usize = 1;

impl BlockEncoder {
    /// From the earliest start to the latest end. By columns: building each row for it would take as long as encoding.
    fn span<E: Event>(&mut self, table: &E::Table) -> Option<(i64, i64)> {
        debug_assert_eq!(E::COLUMNS[START].name, "start_ns");
        let lasts = E::COLUMNS[DURATION].name == "duration_ns";
        let (mut first, mut last) = (i64::MAX, i64::MIN);
        for from in (0..table.len()).step_by(CHUNK) {
            let rows = from..table.len().min(from + CHUNK);
            table.column_bits(START, rows.clone(), &mut self.starts);
            let (least, most) = extent(&self.starts, 0);
            first = first.min(least);
            if lasts {
                table.column_bits(DURATION, rows, &mut self.durations);
                last = last.max(latest_end(&self.starts, &self.durations));
            } else {
                last = last.max(most);
            }
        }
        (!table.is_empty()).then_some((first, last))
    }
}

wide! {
    fn latest_end(starts: &[u64], durations: &[u64]) -> i64 {
        let mut last = i64::MIN;
        for (&start, &duration) in starts.iter().zip(durations) {
            let (start, end) = (start as i64, start.wrapping_add(duration) as i64);
            // It wrapped if it is before the start.
            last = last.max(if end < start { i64::MAX } else { end });
        }
        last
    }
}

struct DefinitionSections<'a> {
    encoder: &'a mut BlockEncoder,
    definitions: &'a Definitions,
    defined: &'a Defined,
    visited: usize,
}

impl DefinitionVisitor for DefinitionSections<'_> {
    type Error = std::convert::Infallible;
    fn visit<T: Definition>(&mut self) -> Result<(), Self::Error> {
        self.visited += 1;
        self.encoder.table(T::table(self.definitions), self.defined.of(self.visited) + 1, (0, 0), 0);
        Ok(())
    }
}

struct EventSections<'a> {
    encoder: &'a mut BlockEncoder,
    events: &'a Events,
    owners: &'a Owners,
    span: Option<(i64, i64)>,
}

impl KindVisitor for EventSections<'_> {
    type Error = std::convert::Infallible;
    fn visit<E: Event>(&mut self) -> Result<(), Self::Error> {
        let table = E::table(self.events);
        let Some(span) = self.encoder.span::<E>(table) else { return Ok(()) };
        self.encoder.table(table, 0, span, self.owners.mask(table));
        self.span = Some(self.span.map_or(span, |all| hull(all, span)));
        Ok(())
    }
}

fn hull(a: (i64, i64), b: (i64, i64)) -> (i64, i64) {
    (a.0.min(b.0), a.1.max(b.1))
}

impl BlockKind {
    fn code(self) -> u16 {
        match self {
            BlockKind::Data => DATA,
            BlockKind::End => END,
        }
    }
}

impl BlockInfo {
    /// Reads the header and directory of the block at `offset` of a tape of `length` bytes. `front` are the bytes from
    /// there on, at least [`MAX_FRONT_BYTES`] where the tape has so many. Checks both, but of the payload only that it
    /// is all there; the padding may be missing.
    pub(crate) fn read(front: &[u8], offset: u64, length: u64) -> Result<BlockInfo, &'static str> {
        let Some((header, rest)) = front.split_first_chunk::<HEADER_BYTES>() else {
            return Err("the file ends within a block's header");
        };
        if header[..8] != MAGIC {
            return Err("no block begins here");
        }
        let u32_at = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("4 bytes"));
        let u64_at = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("8 bytes"));
        if u32_at(12) > MAX_DIRECTORY_BYTES {
            return Err("a block's directory is impossibly long");
        }
        let Some(directory) = rest.get(..u32_at(12) as usize) else {
            return Err("the file ends within a block's directory");
        };
        if crc32c::crc32c_append(crc32c::crc32c(&header[..60]), directory) != u32_at(60) {
            return Err("a block's header does not match its checksum");
        }
        let code = u16::from_le_bytes([header[8], header[9]]);
        let kind = match code {
            DATA | DATA_1 => BlockKind::Data,
            END => BlockKind::End,
            _ => return Err("a block of a kind that this version does not know"),
        };
        if u64_at(48) > MAX_PAYLOAD_BYTES {
            return Err("a block's contents are impossibly long");
        }
        let from = offset + HEADER_BYTES as u64 + directory.len() as u64;
        let to = from.checked_add(u64_at(48)).filter(|&to| to <= length);
        let to = to.ok_or("the file ends within a block")?;
        let sections = sections(directory, code != DATA_1, from..to, u64_at(40));
        let sections = sections.ok_or("a block's directory contradicts itself")?;
        Ok(BlockInfo {
            offset,
            kind,
            sequence: u64_at(16),
            first_ns: u64_at(24) as i64,
            last_ns: u64_at(32) as i64,
            rows: u64_at(40),
            bytes: (to - offset).next_multiple_of(ALIGNMENT),
            sections,
            payload: from..to,
            payload_crc: u32_at(56),
        })
    }

    /// The section of a table, if it has one.
    pub(crate) fn section(&self, table: u16) -> Option<&SectionInfo> {
        self.sections.iter().find(|section| section.table == table)
    }

    /// Where its payload lies in the file.
    pub(crate) fn payload(&self) -> Range<u64> {
        self.payload.clone()
    }

    /// Its payload, which are these bytes, if they match their checksum.
    pub(crate) fn check<'a>(&self, payload: &'a [u8]) -> Result<Payload<'a>, &'static str> {
        if payload.len() as u64 != self.payload.end - self.payload.start {
            return Err("the file ends within a block");
        }
        if crc32c::crc32c(payload) != self.payload_crc {
            return Err("a block's contents do not match their checksum");
        }
        Ok(Payload { from: self.payload.start, bytes: payload })
    }
}

/// A block's payload, checked.
#[derive(Clone, Copy)]
pub(crate) struct Payload<'a> {
    from: u64,
    bytes: &'a [u8],
}

impl<'a> Payload<'a> {
    fn section(&self, section: &SectionInfo) -> Option<&'a [u8]> {
        let at = |offset: u64| usize::try_from(offset.checked_sub(self.from)?).ok();
        self.bytes.get(at(section.range.start)?..at(section.range.end)?)
    }
}

/// The sections of a block of `rows` rows, each table once and in order.
fn sections(mut directory: &[u8], has_processes: bool, payload: Range<u64>, rows: u64) -> Option<Vec<SectionInfo>> {
    let mut sections = Vec::<SectionInfo>::new();
    let mut at = payload.start;
    // Definitions come first.
    let place = |table: u16| (table < DefinitionKind::String as u16, table);
    while !directory.is_empty() {
        let table = u16::try_from(take(&mut directory)?).ok()?;
        let rows = take(&mut directory)?;
        let first_id = take(&mut directory)?;
        let first_ns = unzigzag(take(&mut directory)?);
        let last_ns = first_ns.checked_add_unsigned(take(&mut directory)?)?;
        let processes = if has_processes { take(&mut directory)? } else { 0 };
        let bytes = take(&mut directory)?;
        let end = at.checked_add(bytes).filter(|&end| end <= payload.end)?;
        if rows > MAX_ROWS.min(bytes.saturating_mul(MAX_ROWS_PER_BYTE)) {
            return None;
        }
        if sections.last().is_some_and(|before| place(before.table) >= place(table)) {
            return None;
        }
        sections.push(SectionInfo { table, rows, first_id, first_ns, last_ns, processes, range: at..end });
        at = end;
    }
    (sections.iter().map(|section| section.rows).sum::<u64>() == rows).then_some(sections)
}

/// Decodes sections. Buffers and zstd contexts are reused from one to the next.
pub(crate) struct SectionDecoder {
    columns: Decoder,
}

impl SectionDecoder {
    pub(crate) fn new() -> std::io::Result<SectionDecoder> {
        Ok(SectionDecoder { columns: Decoder::new()? })
    }

    /// The rows of a section; `None` if its bytes contradict themselves. Columns that are not wanted are 0.
    pub(crate) fn table<T: Table>(
        &mut self,
        section: &SectionInfo,
        payload: Payload<'_>,
        is_wanted: &dyn Fn(usize) -> bool,
    ) -> Option<T> {
        let mut table = T::default();
        self.table_into(section, payload, is_wanted, &mut table)?;
        Some(table)
    }

    /// The same in the memory of another table.
    pub(crate) fn table_into<T: Table>(
        &mut self,
        section: &SectionInfo,
        payload: Payload<'_>,
        is_wanted: &dyn Fn(usize) -> bool,
        table: &mut T,
    ) -> Option<()> {
        let rows = usize::try_from(section.rows).ok()?;
        let entries = entries(payload.section(section)?)?;
        let whole = self.columns_into(&entries, rows, is_wanted, table);
        if whole.is_none() {
            // Columns of one length, or none.
            table.clear();
        }
        whole
    }

    fn columns_into<T: Table>(
        &mut self,
        entries: &[(usize, Encoded<'_>)],
        rows: usize,
        is_wanted: &dyn Fn(usize) -> bool,
        table: &mut T,
    ) -> Option<()> {
        let known = T::Row::COLUMNS.len();
        let mut decoded = vec![false; known];
        let mut wanted: Vec<bool> = (0..known).map(is_wanted).collect();
        // A column newer than this version is left alone.
        let entries = entries.iter().filter(|(index, _)| *index < known);
        let columns: Vec<_> = entries.map(|&(index, encoded)| (index, encoded, encoded.needs())).collect();
        // The needs of a column may have a need of their own: a stream's end has a duration, which has a key.
        for _ in 0..2 {
            for &(index, _, needs) in &columns {
                if wanted[index] {
                    for needed in needs?.columns().into_iter().flatten() {
                        *wanted.get_mut(usize::try_from(needed).ok()?)? = true;
                    }
                }
            }
        }
        // Those that need no other column first, then those that need a key, then those that need a duration.
        for pass in 0..3 {
            for &(index, encoded, needs) in columns.iter().filter(|(index, ..)| wanted[*index]) {
                let needs = needs?;
                let its_pass = match needs {
                    Needs::Nothing => 0,
                    Needs::Key(_) => 1,
                    Needs::StreamEnd { .. } => 2,
                };
                if pass != its_pass {
                    continue;
                }
                for needed in needs.columns().into_iter().flatten() {
                    decoded.get(usize::try_from(needed).ok()?).filter(|&&decoded| decoded)?;
                }
                // Apart from the others, so that it can look at them.
                let mut apart = T::default();
                table.swap_column(index, &mut apart);
                let others =
                    |column: usize, rows: Range<usize>, out: &mut Vec<u64>| table.column_bits(column, rows, out);
                let (decoder, others) = (&mut self.columns, &others);
                apart.write_column(index, Decode { decoder, encoded, rows, others })??;
                table.swap_column(index, &mut apart);
                decoded[index] = true;
            }
        }
        // An absent column is all zeros.
        for index in (0..known).filter(|&index| !decoded[index]) {
            table.write_column(index, Zeros(rows));
        }
        Some(())
    }

    /// The strings of a section. What is no UTF-8 (only a damaged or foreign tape has it) is shown by U+FFFD.
    pub(crate) fn strings(&mut self, section: &SectionInfo, payload: Payload<'_>) -> Option<Vec<Box<str>>> {
        let rows = usize::try_from(section.rows).ok()?;
        let entries = entries(payload.section(section)?)?;
        let &[(0, lengths), (1, text)] = entries.get(..2)? else { return None };
        let mut bits = Vec::<u64>::new();
        self.columns.column(lengths, rows, &|_, _, _| (), &mut bits)?;
        let total = bits.iter().try_fold(0_u64, |sum, &length| sum.checked_add(length))?;
        let most = (section.range.end - section.range.start).saturating_mul(MAX_TEXT_PER_BYTE);
        if total > MAX_TEXT_BYTES.min(most) {
            return None;
        }
        let text = self.columns.text(text, total as usize)?;
        let mut rest = &text[..];
        bits.iter().map(|&length| Some(String::from_utf8_lossy(take_bytes(&mut rest, length)?).into())).collect()
    }
}

/// Whether a column is all zeros.
struct AllZeros;

impl ColumnReader for AllZeros {
    type Out = bool;
    fn read<T: Value>(self, values: &[T]) -> bool {
        all_are(values, T::from_bits(0))
    }
}

/// The columns of a section, by number, each once and in order.
fn entries(mut section: &[u8]) -> Option<Vec<(usize, Encoded<'_>)>> {
    let count = take(&mut section)?;
    let mut heads = Vec::<(usize, &[u8], u64)>::new();
    for _ in 0..count {
        let index = usize::try_from(take(&mut section)?).ok()?;
        if heads.last().is_some_and(|&(before, ..)| before >= index) {
            return None;
        }
        let parameters_bytes = take(&mut section)?;
        let body_bytes = take(&mut section)?;
        heads.push((index, take_bytes(&mut section, parameters_bytes)?, body_bytes));
    }
    heads
        .into_iter()
        .map(|(index, parameters, body_bytes)| {
            Some((index, Encoded::new(parameters, take_bytes(&mut section, body_bytes)?)))
        })
        .collect()
}

/// What each column of a section takes.
pub(crate) fn column_bytes<'a>(section: &SectionInfo, payload: Payload<'a>) -> Option<Vec<ColumnBytes<'a>>> {
    let rows = usize::try_from(section.rows).ok()?;
    let columns = entries(payload.section(section)?)?.into_iter();
    let column = |(column, encoded): (usize, Encoded<'a>)| {
        let (coding, frames) = encoded.frames()?;
        Some(ColumnBytes { table: section.table, column, rows, bytes: 3 + encoded.bytes(), coding, frames })
    };
    columns.map(column).collect()
}
