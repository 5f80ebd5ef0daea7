//! Checks a tape part by part, and keeps of each part what is sound.
//!
//! A row is sound if its ids refer to something and its end can be written. One that is not is taken out of the part:
//! an event goes, a definition becomes empty, for those behind it keep their ids. So what is left of a part is what a
//! repaired tape has of it.

use std::collections::BTreeMap;
use std::convert::Infallible;

use ktape_format::block::{BlockInfo, BlockKind, SectionInfo};
use ktape_format::definition::{Definition, DefinitionVisitor, visit_definitions};
use ktape_format::event::{Event, KindVisitor, visit_kinds};
use ktape_format::table::{DefinitionKind, Refers};
use ktape_format::{Damage, Definitions, Events, Owners, Part, Row, Table, Tape};

use super::completeness::{Completeness, Counting};
use super::finding::{Finding, Kind, Place, Tally};
use super::ids::{AllIds, Found, NewIds};
use super::is_newer;
use super::losses::{LEFT_OUT, LeftOut, Lost, PartSpan, When, left_out};
use crate::tables::KnownTables;

const STRING: u16 = DefinitionKind::String as u16;
/// Where staged rows are, in the order of parts: behind all blocks.
const STAGED: u64 = u64::MAX;

/// What has been found so far.
pub(super) struct Check<'a> {
    tape: &'a Tape,
    known: KnownTables,
    pub(super) ids: AllIds,
    pub(super) findings: Vec<Finding>,
    lost: Vec<Lost>,
    counting: Counting,
    spans: Vec<PartSpan>,
    /// Where the last part ended.
    end: u64,
    place: Place,
    bits: Vec<u64>,
    owners: Owners,
    pub(super) definitions: u64,
    pub(super) events: u64,
    pub(super) staged_rows: u64,
    /// Of the loss rows on the tape: id of the cause to the cause and the number lost.
    pub(super) losses: BTreeMap<u32, (String, u64)>,
}

impl<'a> Check<'a> {
    pub(super) fn new(tape: &'a Tape) -> Check<'a> {
        Check {
            tape,
            known: KnownTables::new(),
            ids: AllIds::default(),
            findings: Vec::new(),
            lost: Vec::new(),
            counting: Counting::of_tape(tape),
            spans: Vec::new(),
            end: tape.header().blocks_offset(),
            place: Place::default(),
            bits: Vec::new(),
            owners: Owners::default(),
            definitions: 0,
            events: 0,
            staged_rows: 0,
            losses: BTreeMap::new(),
        }
    }

    /// Checks one part. `all` are the definitions up to its end. Leaves in `part.events` those that are sound, and
    /// returns the definitions that a repaired tape has up to here and not yet.
    pub(super) fn part(&mut self, all: &Definitions, part: &mut Part<'_>) -> Definitions {
        self.place = match part.block {
            Some(block) => Place { offset: Some(block.offset), block: Some(block.sequence), ..Place::default() },
            None => Place::default(),
        };
        let rows = (part.definitions.len() as u64, part.events.len() as u64);
        self.definitions += rows.0;
        self.events += rows.1;
        if let Some(block) = part.block {
            self.ids.lose(block.offset.saturating_sub(self.end));
            self.end = block.offset + block.bytes;
            self.block(block);
        } else {
            self.staged_rows += rows.0 + rows.1;
        }
        self.owners.update(all);
        let Ok(()) = visit_definitions(&mut Define { ids: &mut self.ids, all, new: &part.definitions });
        self.ids.define(STRING, all.strings.len(), part.definitions.strings.len());
        for damage in &part.damage {
            self.part_damage(part.block, damage);
        }
        self.text(&part.definitions);
        let mut rows = Rows {
            block: part.block,
            definitions: &mut part.definitions,
            events: &mut part.events,
            check: self,
            span: None,
        };
        let Ok(()) = visit_definitions(&mut rows);
        let Ok(()) = visit_kinds(&mut rows);
        if let Some((first_ns, last_ns)) = rows.span {
            let offset = part.block.map_or(STAGED, |block| block.offset);
            self.spans.push(PartSpan { offset, first_ns, last_ns });
        }
        self.counting.count(&part.events);
        for row in part.events.loss.rows() {
            if all.string(row.cause).starts_with(LEFT_OUT) {
                self.counting.left_out_by_repair(row.kind, row.count);
            }
            let cause = || (all.string(row.cause).to_owned(), 0);
            let (_, lost) = self.losses.entry(row.cause).or_insert_with(cause);
            *lost = lost.saturating_add(row.count);
        }
        self.new_definitions(part)
    }

    /// What no part has: `damage` as [`Tape::scan`] returns it, and the end mark.
    pub(super) fn rest(&mut self, damage: &[Damage]) {
        for damage in damage {
            self.unreadable(Place { offset: Some(damage.offset), ..Place::default() }, damage);
            let count = damage.rows.unwrap_or(0);
            self.lose(0, count, When::At(damage.offset), describe(damage));
        }
        let blocks = self.tape.blocks();
        for (index, block) in blocks.iter().enumerate().filter(|(_, block)| block.kind == BlockKind::End) {
            self.place = Place { offset: Some(block.offset), block: Some(block.sequence), ..Place::default() };
            if index + 1 < blocks.len() {
                self.found(Kind::EndMark, format!("blocks follow: {}", blocks.len() - index - 1));
            }
            if !block.sections.is_empty() {
                self.found(Kind::EndMark, format!("it has {} rows, which no reader takes", block.rows));
                self.lose(0, block.rows, When::At(block.offset), "rows in an end mark".to_owned());
            }
        }
        self.findings.sort_by(|a, b| {
            (a.kind, a.place.offset.unwrap_or(STAGED)).cmp(&(b.kind, b.place.offset.unwrap_or(STAGED)))
        });
    }

    /// Whether what is sound is all that was recorded, which is a finding where it is not.
    pub(super) fn completeness(&mut self) -> Option<Completeness> {
        let completeness = std::mem::take(&mut self.counting).finish(!self.tape.is_closed())?;
        self.place = Place::default();
        for fault in &completeness.faults {
            let place = Place { table: Some(self.known.name(fault.kind)), ..Place::default() };
            self.findings.push(Finding { kind: Kind::Missing, place, what: fault.what.clone() });
        }
        self.findings.sort_by_key(|finding| finding.kind);
        Some(completeness)
    }

    /// What a repair leaves out.
    pub(super) fn left_out(&mut self) -> Vec<LeftOut> {
        left_out(std::mem::take(&mut self.lost), &self.spans)
    }

    fn found(&mut self, kind: Kind, what: String) {
        self.findings.push(Finding { kind, place: self.place.clone(), what });
    }

    fn found_rows(&mut self, kind: Kind, table: &str, column: Option<&str>, tally: Tally, what: String) {
        let place = Place {
            table: Some(table.to_owned()),
            column: column.map(str::to_owned),
            row: Some(tally.first_row),
            rows: Some(tally.rows),
            ..self.place.clone()
        };
        self.findings.push(Finding { kind, place, what });
    }

    fn lose(&mut self, table: u16, count: u64, when: When, why: String) {
        self.lost.push(Lost { table, count, when, why });
    }

    fn unreadable(&mut self, place: Place, damage: &Damage) {
        let what = format!("{} ({} bytes)", damage.reason, damage.bytes);
        let place = Place { rows: damage.rows, offset: Some(damage.offset), ..place };
        self.findings.push(Finding { kind: Kind::Unreadable, place, what });
    }

    /// The header and directory of a block, against each other and against what this version knows.
    fn block(&mut self, block: &BlockInfo) {
        let events = block.sections.iter().filter(|section| section.table < STRING && section.rows > 0);
        let span = events.map(|section| (section.first_ns, section.last_ns)).reduce(hull).unwrap_or((0, 0));
        if span != (block.first_ns, block.last_ns) {
            let (from, to) = (block.first_ns, block.last_ns);
            self.found(
                Kind::Directory,
                format!("its header says {from} to {to} ns, its tables {} to {} ns", span.0, span.1),
            );
        }
        let kind = if is_newer(self.tape.header()) { Kind::Newer } else { Kind::NoSuchTable };
        for section in block.sections.iter().filter(|section| !self.known.has(section.table)) {
            let what = format!("table {} with {} rows", section.table, section.rows);
            self.findings.push(Finding { kind, place: self.place.clone(), what: what.clone() });
            let when = When::Span(section.first_ns, section.last_ns);
            self.lost.push(Lost { table: section.table, count: section.rows, when, why: what });
        }
        let Ok(layout) = self.tape.layout(block) else { return };
        for section in layout.sections.iter().filter(|section| self.known.has(section.table)) {
            for column in section.columns.iter().filter(|column| !self.known.has_column(section.table, column.column)) {
                let table = self.known.name(section.table);
                let what = format!("column {} of {table}", column.column);
                let place = Place { table: Some(table), ..self.place.clone() };
                self.findings.push(Finding { kind, place, what: what.clone() });
                self.lost.push(Lost { table: section.table, count: 0, when: When::At(block.offset), why: what });
            }
        }
    }

    /// What of a part cannot be read: all of it, a table, or the end of staged rows.
    fn part_damage(&mut self, block: Option<&BlockInfo>, damage: &Damage) {
        let Some(block) = block else {
            self.unreadable(Place::default(), damage);
            return self.lose(0, damage.rows.unwrap_or(0), When::At(STAGED), describe(damage));
        };
        self.ids.lose(damage.bytes);
        let section = block.sections.iter().find(|section| section.range.start == damage.offset);
        let place = Place { table: section.map(|section| self.known.name(section.table)), ..self.place.clone() };
        self.unreadable(place, damage);
        let is_lost = |section: &&SectionInfo| [block.offset, section.range.start].contains(&damage.offset);
        let mut definitions = 0_u64;
        for section in block.sections.iter().filter(is_lost) {
            match section.table {
                // Counted already.
                table if !self.known.has(table) => {}
                STRING.. => definitions += section.rows.saturating_sub(self.ids.new_of(section.table).lost_before),
                table => {
                    let when = When::Span(section.first_ns, section.last_ns);
                    self.lose(table, section.rows, when, describe(damage));
                }
            }
        }
        // Those that have ids are counted by these.
        if definitions > 0 {
            self.lose(0, definitions, When::At(block.offset), describe(damage));
        }
    }

    /// The reader puts a sign in the place of bytes that are no UTF-8. It may also be a text's own.
    fn text(&mut self, new: &Definitions) {
        let mut replaced = Tally::default();
        for (row, _) in new.strings.iter().enumerate().filter(|(_, string)| string.contains('\u{fffd}')) {
            replaced.add(row, 0);
        }
        if replaced.rows > 0 {
            let what = "holds U+FFFD: it was recorded so, or its bytes are no UTF-8".to_owned();
            self.found_rows(Kind::ReplacedText, "string", None, replaced, what);
        }
    }

    /// Checks the columns of a table's rows that refer to something; returns the rows that are not sound. `first_id` is
    /// that of the first row, of a definition.
    fn columns<R: Row>(&mut self, table: &R::Table, first_id: Option<u64>) -> Vec<u32> {
        let mut unsound = Vec::new();
        let mut bits = std::mem::take(&mut self.bits);
        for (column, spec) in R::COLUMNS.iter().enumerate() {
            match spec.refers {
                Refers::Nothing => {}
                Refers::Code(names) => {
                    table.column_bits(column, 0..table.len(), &mut bits);
                    let mut unknown = Tally::default();
                    for (row, &code) in bits.iter().enumerate().filter(|(_, code)| **code >= names.len() as u64) {
                        unknown.add(row, code);
                    }
                    if unknown.rows > 0 {
                        let what = format!("{} is no code that this version knows", unknown.value);
                        self.found_rows(Kind::UnknownCode, R::NAME, Some(spec.name), unknown, what);
                    }
                }
                Refers::To(kind) => {
                    table.column_bits(column, 0..table.len(), &mut bits);
                    let own = first_id.filter(|_| kind as u16 == R::KIND);
                    self.ids_of::<R>(spec.name, kind, own, &bits, &mut unsound);
                }
            }
        }
        self.bits = bits;
        unsound
    }

    fn ids_of<R: Row>(
        &mut self,
        column: &str,
        kind: DefinitionKind,
        own: Option<u64>,
        ids: &[u64],
        unsound: &mut Vec<u32>,
    ) {
        let [mut nothing, mut order, mut lost] = [Tally::default(); 3];
        for (row, &id) in ids.iter().enumerate().filter(|(_, id)| **id != 0) {
            if own.is_some_and(|first| id >= first + row as u64) {
                order.add(row, id);
                unsound.push(row as u32);
                continue;
            }
            match self.ids.find(kind as u16, id) {
                Found::Defined => {}
                Found::Lost => lost.add(row, id),
                Found::Nothing => {
                    nothing.add(row, id);
                    unsound.push(row as u32);
                }
            }
        }
        let to = self.known.name(kind as u16);
        for (found, tally, what) in [
            (Kind::UndefinedId, nothing, format!("there is no {to} {}", nothing.value)),
            (Kind::Order, order, format!("{to} {} does not come before it", order.value)),
            (Kind::LostDefinition, lost, format!("{to} {} was lost", lost.value)),
        ] {
            if tally.rows > 0 {
                self.found_rows(found, R::NAME, Some(column), tally, what);
            }
        }
    }

    /// What a repaired tape defines with this part: its own definitions, empty ones in the place of those that were lost.
    fn new_definitions(&mut self, part: &mut Part<'_>) -> Definitions {
        let mut new = std::mem::take(&mut part.definitions);
        let offset = part.block.map_or(STAGED, |block| block.offset);
        let at = self.ids.new_of(STRING);
        let rows = std::mem::take(&mut new.strings).into_iter().skip(at.too_late as usize);
        let empty = |count: u64| std::iter::repeat_n(Box::<str>::from(""), count as usize);
        new.strings = empty(at.lost_before).chain(rows).chain(empty(at.lost_behind)).collect();
        self.lost_definitions(STRING, at, offset);
        let Ok(()) = visit_definitions(&mut Fill { definitions: &mut new, check: self, offset });
        new
    }

    fn lost_definitions(&mut self, table: u16, new: NewIds, offset: u64) {
        let count = new.lost_before + new.too_late + new.lost_behind;
        if count > 0 {
            let why = format!("definitions in a damaged part: {} (table {table})", self.known.name(table));
            self.lose(table, count, When::At(offset), why);
        }
    }
}

fn describe(damage: &Damage) -> String {
    format!("byte {}: {}", damage.offset, damage.reason)
}

fn hull(a: (i64, i64), b: (i64, i64)) -> (i64, i64) {
    (a.0.min(b.0), a.1.max(b.1))
}

/// Tells the ids what a part defines.
struct Define<'a> {
    ids: &'a mut AllIds,
    all: &'a Definitions,
    new: &'a Definitions,
}

impl DefinitionVisitor for Define<'_> {
    type Error = Infallible;
    fn visit<T: Definition>(&mut self) -> Result<(), Infallible> {
        self.ids.define(T::KIND, T::table(self.all).len(), T::table(self.new).len());
        Ok(())
    }
}

/// Puts empty definitions in the place of lost ones.
struct Fill<'a, 'b> {
    definitions: &'a mut Definitions,
    check: &'a mut Check<'b>,
    offset: u64,
}

impl DefinitionVisitor for Fill<'_, '_> {
    type Error = Infallible;
    fn visit<T: Definition>(&mut self) -> Result<(), Infallible> {
        let at = self.check.ids.new_of(T::KIND);
        if at.lost_before + at.too_late + at.lost_behind > 0 {
            let rows = std::mem::take(T::table_mut(self.definitions));
            let table = T::table_mut(self.definitions);
            (0..at.lost_before).for_each(|_| table.push(T::default()));
            rows.rows().skip(at.too_late as usize).for_each(|row| table.push(row));
            (0..at.lost_behind).for_each(|_| table.push(T::default()));
            self.check.lost_definitions(T::KIND, at, self.offset);
        }
        Ok(())
    }
}

/// Checks the rows of a part and takes out those that are not sound.
struct Rows<'a, 'b, 'c> {
    block: Option<&'a BlockInfo>,
    definitions: &'a mut Definitions,
    events: &'a mut Events,
    check: &'b mut Check<'c>,
    /// Of the events that are sound.
    span: Option<(i64, i64)>,
}

impl Rows<'_, '_, '_> {
    /// Counts rows that are not sound as lost, for what was found since there were `found` findings.
    fn lose<R: Row>(&mut self, count: usize, when: When, found: usize) {
        let why = self.check.findings[found..].iter().filter(|finding| finding.kind.is_damage());
        let why: Vec<String> = why.map(ToString::to_string).collect();
        self.check.lose(R::KIND, count as u64, when, why.join("; "));
    }
}

impl DefinitionVisitor for Rows<'_, '_, '_> {
    type Error = Infallible;
    fn visit<T: Definition>(&mut self) -> Result<(), Infallible> {
        let found = self.check.findings.len();
        let first = self.check.ids.new_of(T::KIND).first;
        let table = T::table_mut(self.definitions);
        let mut unsound = self.check.columns::<T>(table, Some(first));
        if !unsound.is_empty() {
            unsound.sort_unstable();
            unsound.dedup();
            let mut left = unsound.iter().map(|&row| row as usize).peekable();
            let mut kept = T::Table::default();
            for (row, definition) in table.rows().enumerate() {
                kept.push(if left.next_if_eq(&row).is_some() { T::default() } else { definition });
            }
            *table = kept;
            let offset = self.block.map_or(STAGED, |block| block.offset);
            self.lose::<T>(unsound.len(), When::At(offset), found);
        }
        Ok(())
    }
}

impl KindVisitor for Rows<'_, '_, '_> {
    type Error = Infallible;
    fn visit<E: Event>(&mut self) -> Result<(), Infallible> {
        let found = self.check.findings.len();
        let table = E::table_mut(self.events);
        if table.is_empty() {
            return Ok(());
        }
        let mut unsound = self.check.columns::<E>(table, None);
        let mut endless = Tally::default();
        let mut span: Option<(i64, i64)> = None;
        for (row, event) in table.rows().enumerate() {
            let here = (event.start_ns(), event.end_ns());
            if here.0.checked_add_unsigned(event.duration_ns()).is_none() {
                endless.add(row, event.duration_ns());
                unsound.push(row as u32);
            }
            span = Some(span.map_or(here, |span| hull(span, here)));
        }
        if endless.rows > 0 {
            let what = format!("{} ns from its start on are beyond the last time there is", endless.value);
            self.check.found_rows(Kind::Time, E::NAME, None, endless, what);
        }
        let section = self.block.and_then(|block| block.sections.iter().find(|section| section.table == E::KIND));
        if let (Some(section), Some(span)) = (section, span) {
            let told = (section.rows, section.first_ns, section.last_ns);
            let are = (table.len() as u64, span.0, span.1);
            if told != are {
                let what = format!(
                    "its directory says {} rows from {} to {} ns, there are {} from {} to {} ns",
                    told.0, told.1, told.2, are.0, are.1, are.2
                );
                let place = Place { table: Some(E::NAME.to_owned()), ..self.check.place.clone() };
                self.check.findings.push(Finding { kind: Kind::Directory, place, what });
            }
        }
        if let Some(section) = section.filter(|section| section.processes != 0) {
            let missing = self.check.owners.seen_in(table) & !section.processes;
            if missing != 0 {
                let what = format!("its directory leaves out processes that have rows here (mask {missing:#x})");
                let place = Place { table: Some(E::NAME.to_owned()), ..self.check.place.clone() };
                self.check.findings.push(Finding { kind: Kind::Directory, place, what });
            }
        }
        if !unsound.is_empty() {
            unsound.sort_unstable();
            unsound.dedup();
            let spans = unsound.iter().map(|&row| table.row(row as usize)).map(|row| (row.start_ns(), row.end_ns()));
            let when = spans.reduce(hull).map_or(When::Span(0, 0), |span| When::Span(span.0, span.1));
            let mut left = unsound.iter().copied().peekable();
            let kept: Vec<u32> = (0..table.len() as u32).filter(|row| left.next_if_eq(row).is_none()).collect();
            table.gather(&kept);
            self.lose::<E>(unsound.len(), when, found);
        }
        let sound = E::table(self.events).rows().map(|row| (row.start_ns(), row.end_ns()));
        // Only what is left tells when its neighbours were.
        let sound = if unsound.is_empty() { span } else { sound.reduce(hull) };
        self.span = self.span.into_iter().chain(sound).reduce(hull);
        Ok(())
    }
}
