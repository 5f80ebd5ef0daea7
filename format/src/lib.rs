//! The tape: ktape's trace file, and the events that are on it.
//!
//! A tape (`.ktape`) is append-only, compressed by column, readable while it grows and after its writer was killed.
//! `docs/format.md` specifies every byte. This crate knows no CUDA library, no collector and no analysis; it does
//! not print, and it builds wherever Rust does.
//!
//! Start reading at [`event`] and [`definition`] (what is recorded), then [`writer`] and [`reader`] (how it gets
//! there and back), then [`block`] and [`column`] (what the bytes are);
//! [`codec`] is one block without a file.

pub mod blind_spots;
pub mod block;
pub mod carry;
pub mod catalog;
pub mod codec;
mod codes;
mod column;
pub mod definition;
pub mod error;
pub mod event;
pub mod follow;
pub mod header;
pub mod layout;
pub mod memory;
pub mod owners;
mod part;
mod predict;
pub mod reader;
pub mod recording;
mod replay;
pub mod rollup;
mod sealer;
mod source;
mod staging;
pub mod table;
mod tail;
mod transpose;
mod varint;
mod walk;
pub mod wanted;
mod wide;
pub mod writer;

pub use catalog::Catalog;
pub use definition::{Definition, Definitions};
pub use error::{Damage, TapeError};
pub use event::{Event, Events};
pub use follow::Follower;
pub use memory::Memory;
pub use owners::Owners;
pub use reader::{Contents, Part, Tape};
pub use table::{Row, Table};
pub use wanted::Wanted;
pub use writer::{Options, TapeWriter, WhenFull, Written};

/// Takes definitions and events: a tape being written, or a trace in memory.
///
/// Importers and collectors write into a sink and so never know where their events go. A definition must be made
/// before an event uses its id. Defining the same thing again gives the same id.
pub trait Sink {
    /// Why something could not be taken (a full disk).
    type Error: std::error::Error + Send + std::marker::Sync + 'static;

    /// The id of a string. The empty string is 0.
    fn string(&mut self, string: &str) -> Result<u32, Self::Error>;
    /// The id of a definition.
    fn define<T: Definition>(&mut self, row: T) -> Result<u32, Self::Error>;
    /// Records an event.
    fn event<E: Event>(&mut self, row: E) -> Result<(), Self::Error>;

    /// How many events this sink has lost so far: taken and counted, but not kept. A sink that makes its caller wait loses none.
    fn lost_events(&self) -> u64 {
        0
    }

    /// Says something of a definition or of the tape ([`definition::subject`]). Of several values the last counts;
    /// saying the last once more adds nothing.
    fn property(&mut self, subject_kind: u16, subject: u32, key: &str, value: &str) -> Result<(), Self::Error> {
        let (key, value) = (self.string(key)?, self.string(value)?);
        self.define(definition::Property { subject_kind, subject, key, value })?;
        Ok(())
    }
}
