//! One block, from rows to bytes and back, without a file: what the writer and the reader do to each block, for
//! benches, fuzzers and whoever ships blocks some other way.
//!
//! A block is decoded as if it were the first of a tape: its definitions are numbered from 1. The ids that its events
//! hold are not checked against them, as they may refer to blocks before.

use crate::block::{BlockEncoder, BlockInfo, Defined, Payload, SectionDecoder, SectionInfo};
use crate::definition::{Definition, DefinitionVisitor, Definitions, visit_definitions};
use crate::event::{Event, Events, KindVisitor, visit_kinds};
use crate::table::DefinitionKind;

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
        self.0.data(0, &Defined::default(), definitions, events, out);
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
        let block = BlockInfo::read(bytes, 0)?;
        let range = block.payload();
        let payload = block.check(&bytes[range.start as usize..range.end as usize])?;
        let mut sections = Sections { decoder: &mut self.0, block: &block, payload, out: Default::default() };
        if let Some(section) = block.section(DefinitionKind::String as u16) {
            let strings = sections.decoder.strings(section, payload).ok_or(CONTRADICTS_ITSELF)?;
            sections.out.0.strings = strings;
        }
        visit_definitions(&mut sections)?;
        visit_kinds(&mut sections)?;
        Ok(sections.out)
    }
}

/// [`Decoder::decode`] with a decoder of its own.
pub fn decode_block(bytes: &[u8]) -> Result<(Definitions, Events), &'static str> {
    Decoder::new().map_err(|_| "no memory for a decompression context")?.decode(bytes)
}

struct Sections<'a> {
    decoder: &'a mut SectionDecoder,
    block: &'a BlockInfo,
    payload: Payload<'a>,
    out: (Definitions, Events),
}

impl Sections<'_> {
    fn section(&self, table: u16) -> Option<SectionInfo> {
        self.block.section(table).cloned()
    }
}

impl DefinitionVisitor for Sections<'_> {
    type Error = &'static str;
    fn visit<T: Definition>(&mut self) -> Result<(), Self::Error> {
        if let Some(section) = self.section(T::KIND) {
            *T::table_mut(&mut self.out.0) = self.decoder.table(&section, self.payload).ok_or(CONTRADICTS_ITSELF)?;
        }
        Ok(())
    }
}

impl KindVisitor for Sections<'_> {
    type Error = &'static str;
    fn visit<E: Event>(&mut self) -> Result<(), Self::Error> {
        if let Some(section) = self.section(E::KIND) {
            *E::table_mut(&mut self.out.1) = self.decoder.table(&section, self.payload).ok_or(CONTRADICTS_ITSELF)?;
        }
        Ok(())
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
        assert_eq!(decode_block(&bytes), Ok((memory.definitions, memory.events)));
    }

    #[test]
    fn a_block_cut_off_or_changed_is_an_error() {
        let (_, bytes) = block();
        let end = BlockInfo::read(&bytes, 0).unwrap().payload().end as usize;
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
