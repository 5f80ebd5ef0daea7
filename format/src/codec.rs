//! One block, from rows to bytes and back, without a file: what the writer and the reader do to each block, for
//! benches, fuzzers and whoever ships blocks some other way.
//!
//! A block is decoded as if it were the first of a tape: its definitions are numbered from 1. The ids that its events
//! hold are not checked against them, as they may refer to blocks before.

use crate::block::{BlockEncoder, BlockInfo, Defined, Payload, SectionDecoder};
use crate::definition::{Definition, DefinitionVisitor, Definitions, visit_definitions};
use crate::event::{Event, Events, KindVisitor, visit_kinds};
use crate::owners::Owners;
use crate::table::{DefinitionKind, Row as _, Table};

const CONTRADICTS_ITSELF: &str = "a table's columns contradict themselves";

/// Encodes blocks; buffers and compression contexts are reused from one to the next.
pub struct Encoder(BlockEncoder);

impl Encoder {
    /// Fails only where memory does.
    pub fn new() -> std::io::Result<Encoder> {
        BlockEncoder::new().map(Encoder)
    }

    /// Encodes the rows as the first data block of a tape into `out`, which is cleared first.
    pub fn encode(&mut self, definitions: &Definitions, events: &Events, out: &mut Vec<u8>) {
        self.0.data(0, &Defined::default(), definitions, events, &Owners::of(definitions), out);
    }
}

/// Decodes blocks; buffers and decompression contexts are reused from one to the next.
pub struct Decoder(SectionDecoder);

impl Decoder {
    /// Fails only where memory does.
    pub fn new() -> std::io::Result<Decoder> {
        SectionDecoder::new().map(Decoder)
    }

    /// Decodes the one block that `bytes` begin with: header, directory, checksums and all known sections. The first
    /// contradiction is the error.
    pub fn decode(&mut self, bytes: &[u8]) -> Result<(Definitions, Events), &'static str> {
        let mut out = <(Definitions, Events)>::default();
        self.decode_into(bytes, &mut out)?;
        Ok(out)
    }

    /// The same in the place and memory of the block decoded before.
    pub fn decode_into(&mut self, bytes: &[u8], out: &mut (Definitions, Events)) -> Result<(), &'static str> {
        let block = BlockInfo::read(bytes, 0, bytes.len() as u64)?;
        let range = block.payload();
        let payload = block.check(&bytes[range.start as usize..range.end as usize])?;
        out.0.strings = match block.section(DefinitionKind::String as u16) {
            Some(section) => self.0.strings(section, payload).ok_or(CONTRADICTS_ITSELF)?,
            None => Vec::new(),
        };
        let mut sections = Sections { decoder: &mut self.0, block: &block, payload, out };
        visit_definitions(&mut sections)?;
        visit_kinds(&mut sections)
    }
}

/// [`Decoder::decode`] with a decoder of its own.
pub fn decode_block(bytes: &[u8]) -> Result<(Definitions, Events), &'static str> {
    Decoder::new().map_err(|_| "no memory for a decompression context")?.decode(bytes)
}

/// A column of an encoded block: what it takes, for reports on where the bytes are.
#[derive(Clone, Debug)]
pub struct ColumnBytes<'a> {
    /// The number of its table.
    pub table: u16,
    /// Its number in the table.
    pub column: usize,
    /// How many rows its table has.
    pub rows: usize,
    /// What it takes in the block, with about three bytes for its entry; [`crate::layout`] has it to the byte.
    pub bytes: usize,
    /// Its coding, the first byte of its parameters.
    pub coding: u8,
    /// Those of its planes that are zstd frames of `rows` bytes each.
    pub frames: Vec<&'a [u8]>,
}

/// The columns of the one block that `bytes` begin with, strings left out.
pub fn columns(bytes: &[u8]) -> Result<Vec<ColumnBytes<'_>>, &'static str> {
    let block = BlockInfo::read(bytes, 0, bytes.len() as u64)?;
    let range = block.payload();
    let payload = block.check(&bytes[range.start as usize..range.end as usize])?;
    let mut columns = Vec::new();
    for section in block.sections.iter().filter(|section| section.table != DefinitionKind::String as u16) {
        columns.extend(crate::block::column_bytes(section, payload).ok_or(CONTRADICTS_ITSELF)?);
    }
    Ok(columns)
}

struct Sections<'a> {
    decoder: &'a mut SectionDecoder,
    block: &'a BlockInfo,
    payload: Payload<'a>,
    out: &'a mut (Definitions, Events),
}

impl Sections<'_> {
    fn table<T: Table>(
        decoder: &mut SectionDecoder,
        block: &BlockInfo,
        payload: Payload<'_>,
        table: &mut T,
    ) -> Result<(), &'static str> {
        match block.section(T::Row::KIND) {
            Some(section) => decoder.table_into(section, payload, &|_| true, table).ok_or(CONTRADICTS_ITSELF),
            None => {
                table.clear();
                Ok(())
            }
        }
    }
}

impl DefinitionVisitor for Sections<'_> {
    type Error = &'static str;
    fn visit<T: Definition>(&mut self) -> Result<(), Self::Error> {
        Self::table(self.decoder, self.block, self.payload, T::table_mut(&mut self.out.0))
    }
}

impl KindVisitor for Sections<'_> {
    type Error = &'static str;
    fn visit<E: Event>(&mut self) -> Result<(), Self::Error> {
        Self::table(self.decoder, self.block, self.payload, E::table_mut(&mut self.out.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::definition::Process;
    use crate::event::{Kernel, Mark};
    use crate::{Memory, Sink as _};

    fn block() -> (Memory, Vec<u8>) {
        let mut memory = Memory::default();
        let Ok(name) = memory.string("axpy");
        let Ok(_) = memory.define(Process { pid: 7, ..Process::default() });
        for row in 0..300 {
            let Ok(()) = memory.event(Kernel { start_ns: row * 5000, duration_ns: 4000, ..Kernel::default() });
            let Ok(()) = memory.event(Mark { start_ns: row * 7, name, ..Mark::default() });
        }
        let mut out = Vec::new();
        Encoder::new().unwrap().encode(&memory.definitions, &memory.events, &mut out);
        (memory, out)
    }

    #[test]
    fn a_block_comes_back() {
        let (memory, bytes) = block();
        assert!(decode_block(&bytes) == Ok((memory.definitions, memory.events)));
    }

    #[test]
    fn memory_that_is_reused_keeps_nothing_of_the_block_before() {
        let (full, full_bytes) = block();
        let mut few = Memory::default();
        let Ok(_) = few.define(Process { pid: 8, ..Process::default() });
        for stream in 1..4 {
            let Ok(()) = few.event(Kernel { start_ns: 9, stream, shape: 5, ..Kernel::default() });
        }
        let mut few_bytes = Vec::new();
        Encoder::new().unwrap().encode(&few.definitions, &few.events, &mut few_bytes);
        let (full, few) = ((full.definitions, full.events), (few.definitions, few.events));
        let mut decoder = Decoder::new().unwrap();
        let mut into = Default::default();
        for (bytes, rows) in [(&full_bytes, &full), (&few_bytes, &few), (&full_bytes, &full), (&full_bytes, &full)] {
            decoder.decode_into(bytes, &mut into).unwrap();
            assert!(into == *rows);
        }
    }

    #[test]
    fn a_block_cut_off_or_changed_is_an_error() {
        let (_, bytes) = block();
        let end = BlockInfo::read(&bytes, 0, bytes.len() as u64).unwrap().payload().end as usize;
        for length in 0..end {
            assert!(decode_block(&bytes[..length]).is_err(), "cut off at {length}");
        }
        for at in 0..end {
            let mut changed = bytes.clone();
            changed[at] ^= 0x10;
            assert!(decode_block(&changed).is_err(), "changed at {at}");
        }
    }
}
