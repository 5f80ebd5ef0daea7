//! One block, decoded: and where its definitions go among all.

use crate::block::{BlockInfo, Payload, SectionDecoder, SectionInfo};
use crate::definition::{Definition, DefinitionVisitor, Definitions, visit_definitions};
use crate::error::Damage;
use crate::event::{Event, Events, KindVisitor, visit_kinds};
use crate::owners::Owners;
use crate::source::Source;
use crate::table::{DefinitionKind, Table};
use crate::wanted::Wanted;

/// What one block holds.
#[derive(Default)]
pub(crate) struct Decoded {
    pub(crate) definitions: Definitions,
    pub(crate) events: Events,
    pub(crate) damage: Vec<Damage>,
}

/// Decodes what is wanted of a block. Its bytes are read only if there is something.
pub(crate) fn decode(
    decoder: &mut SectionDecoder,
    block: &BlockInfo,
    source: &Source,
    wanted: &Wanted,
    owners: &Owners,
) -> std::io::Result<Decoded> {
    let mut decoded = Decoded::default();
    let is_event = |section: &SectionInfo| section.table < DefinitionKind::String as u16;
    let mut sections = block.sections.iter();
    if !sections.any(|section| !is_event(section) || wanted.may_be_in(section)) {
        return Ok(decoded);
    }
    let payload = source.range(block.payload())?;
    let payload = match block.check(&payload) {
        Ok(payload) => payload,
        Err(reason) => {
            decoded.damage.push(block_damage(block, reason));
            return Ok(decoded);
        }
    };
    for section in block.sections.iter().filter(|section| is_event(section) && wanted.may_be_in(section)) {
        let mut read = ReadEvents { section, decoder, payload, wanted, events: &mut decoded.events, sound: true };
        let Ok(()) = visit_kinds(&mut read);
        if !read.sound {
            decoded.damage.push(section_damage(section));
        }
    }
    let mut definitions =
        ReadDefinitions { block, decoder, payload, new: &mut decoded.definitions, damage: &mut decoded.damage };
    definitions.strings();
    let Ok(()) = visit_definitions(&mut definitions);
    wanted.keep(owners, &mut decoded.events);
    Ok(decoded)
}

/// A block that is lost.
pub(crate) fn block_damage(block: &BlockInfo, reason: &'static str) -> Damage {
    Damage { offset: block.offset, bytes: block.bytes, rows: Some(block.rows), reason }
}

fn section_damage(section: &SectionInfo) -> Damage {
    Damage {
        offset: section.range.start,
        bytes: section.range.end - section.range.start,
        rows: Some(section.rows),
        reason: "a table's columns contradict themselves",
    }
}

struct ReadEvents<'a> {
    section: &'a SectionInfo,
    decoder: &'a mut SectionDecoder,
    payload: Payload<'a>,
    wanted: &'a Wanted,
    events: &'a mut Events,
    sound: bool,
}

impl KindVisitor for ReadEvents<'_> {
    type Error = std::convert::Infallible;
    fn visit<E: Event>(&mut self) -> Result<(), Self::Error> {
        if self.section.table != E::KIND {
            return Ok(());
        }
        let is_wanted = |column: usize| self.wanted.column::<E>(column);
        match self.decoder.table::<E::Table>(self.section, self.payload, &is_wanted) {
            Some(mut table) => E::table_mut(self.events).append(&mut table),
            None => self.sound = false,
        }
        Ok(())
    }
}

struct ReadDefinitions<'a> {
    block: &'a BlockInfo,
    decoder: &'a mut SectionDecoder,
    payload: Payload<'a>,
    new: &'a mut Definitions,
    damage: &'a mut Vec<Damage>,
}

impl ReadDefinitions<'_> {
    fn strings(&mut self) {
        let Some(section) = self.block.section(DefinitionKind::String as u16) else { return };
        match self.decoder.strings(section, self.payload) {
            Some(strings) => self.new.strings = strings,
            None => self.damage.push(section_damage(section)),
        }
    }
}

impl DefinitionVisitor for ReadDefinitions<'_> {
    type Error = std::convert::Infallible;
    fn visit<T: Definition>(&mut self) -> Result<(), Self::Error> {
        let Some(section) = self.block.section(T::KIND) else { return Ok(()) };
        match self.decoder.table::<T::Table>(section, self.payload, &|_| true) {
            Some(table) => *T::table_mut(self.new) = table,
            None => self.damage.push(section_damage(section)),
        }
        Ok(())
    }
}

/// Moves `new`, the definitions of `block`, behind `all`, at the ids that its directory gives. Empty ones stand for
/// those that could not be read: of this block, as the directory says, and of lost ones before it, of which at most
/// `lost_rows` can be missing. Returns whether the ids fit.
pub(crate) fn append_definitions(
    block: &BlockInfo,
    new: &mut Definitions,
    all: &mut Definitions,
    lost_rows: &mut u64,
) -> bool {
    struct Append<'a> {
        block: &'a BlockInfo,
        new: &'a mut Definitions,
        all: &'a mut Definitions,
        lost_rows: u64,
        commit: bool,
    }
    impl Append<'_> {
        /// How many rows to fill in before those that were read; an error if the ids overlap or too many are missing.
        fn missing(&mut self, table: u16, present: usize, read: usize) -> Result<usize, ()> {
            let section = self.block.section(table).filter(|section| section.rows > 0);
            let Some(section) = section else { return Ok(0) };
            let gap = section.first_id.checked_sub(1 + present as u64).ok_or(())?;
            self.lost_rows = self.lost_rows.checked_sub(gap).ok_or(())?;
            Ok((gap + section.rows) as usize - read)
        }

        fn strings(&mut self) -> Result<(), ()> {
            let (present, read) = (self.all.strings.len(), self.new.strings.len());
            let missing = self.missing(DefinitionKind::String as u16, present, read)?;
            if self.commit {
                self.all.strings.extend(std::iter::repeat_n(Box::from(""), missing));
                self.all.strings.append(&mut self.new.strings);
            }
            Ok(())
        }
    }
    impl DefinitionVisitor for Append<'_> {
        type Error = ();
        fn visit<T: Definition>(&mut self) -> Result<(), ()> {
            let (present, read) = (T::table(self.all).len(), T::table(self.new).len());
            let missing = self.missing(T::KIND, present, read)?;
            if self.commit {
                let all = T::table_mut(self.all);
                (0..missing).for_each(|_| all.push(T::default()));
                all.append(T::table_mut(self.new));
            }
            Ok(())
        }
    }
    // Twice over: first to see whether all tables fit, then to move them. A block is taken whole or not at all.
    let before = *lost_rows;
    [false, true].into_iter().all(|commit| {
        let mut append = Append { block, new: &mut *new, all: &mut *all, lost_rows: before, commit };
        let fits = append.strings().and_then(|()| visit_definitions(&mut append)).is_ok();
        if commit {
            *lost_rows = append.lost_rows;
        }
        fits
    })
}
