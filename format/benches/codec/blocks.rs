//! Cuts events into blocks as the writer does, and picks from a tape what counts as an event.

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;

use ktape_format::definition::{Definition, DefinitionVisitor, Definitions, Index, visit_definitions};
use ktape_format::event::{Event, Events, KindVisitor, visit_kinds};
use ktape_format::table::{DefinitionKind, Refers};
use ktape_format::{Contents, Row, Sink, Table};

/// A sink that keeps blocks as they come to the encoder.
#[derive(Default)]
pub(crate) struct Blocks {
    pub(crate) blocks: Vec<(Definitions, Events)>,
    open: (Definitions, Events),
    open_rows: usize,
    block_rows: usize,
    index: Index,
}

impl Blocks {
    pub(crate) fn new(block_rows: usize) -> Blocks {
        Blocks { block_rows, ..Blocks::default() }
    }

    pub(crate) fn finish(mut self) -> Vec<(Definitions, Events)> {
        self.cut();
        self.blocks
    }

    fn cut(&mut self) {
        if self.open_rows > 0 {
            self.blocks.push(std::mem::take(&mut self.open));
            self.open_rows = 0;
        }
    }

    fn row(&mut self) {
        if self.open_rows >= self.block_rows {
            self.cut();
        }
        self.open_rows += 1;
    }
}

impl Sink for Blocks {
    type Error = Infallible;

    fn string(&mut self, string: &str) -> Result<u32, Infallible> {
        if let Some(id) = self.index.find_string(string) {
            return Ok(id);
        }
        self.row();
        self.open.0.strings.push(string.into());
        Ok(self.index.add_string(string))
    }

    fn define<T: Definition>(&mut self, row: T) -> Result<u32, Infallible> {
        if let Some(id) = self.index.find(&row) {
            return Ok(id);
        }
        self.row();
        T::table_mut(&mut self.open.0).push(row);
        Ok(self.index.add(row))
    }

    fn event<E: Event>(&mut self, row: E) -> Result<(), Infallible> {
        self.row();
        E::table_mut(&mut self.open.1).push(row);
        Ok(())
    }
}

/// The tables of the events that are counted: launches, their kernels, copies and their calls, synchronisations,
/// allocations.
const COUNTED: [&str; 9] = ["launch", "graph_launch", "kernel", "memcpy", "memset", "sync", "alloc", "free", "api"];

/// Hands the counted events of a tape, in the order of their starts, and what they refer to, to `sink`.
pub(crate) fn feed<S: Sink>(contents: &Contents, sink: &mut S) -> Result<(), S::Error> {
    let device = [&contents.events.memcpy.correlation, &contents.events.memset.correlation];
    let copied: HashSet<u64> = device.into_iter().flatten().copied().collect();
    let mut order = Order { contents, copied: &copied, rows: Vec::new() };
    let Ok(()) = visit_kinds(&mut order);
    let mut rows = order.rows;
    rows.sort_unstable();
    let mut copy = Copy { definitions: &contents.definitions, ids: HashMap::new(), sink };
    for (_, kind, row) in rows {
        visit_kinds(&mut OneEvent { copy: &mut copy, contents, kind, row })?;
    }
    for row in contents.definitions.properties.rows() {
        let new = (row.subject_kind, row.subject);
        let Some(&subject) = copy.ids.get(&new) else { continue };
        let (key, value) = (contents.definitions.string(row.key), contents.definitions.string(row.value));
        copy.sink.property(row.subject_kind, subject, key, value)?;
    }
    Ok(())
}

struct Order<'a> {
    contents: &'a Contents,
    copied: &'a HashSet<u64>,
    rows: Vec<(i64, u16, u32)>,
}

impl KindVisitor for Order<'_> {
    type Error = Infallible;
    fn visit<E: Event>(&mut self) -> Result<(), Infallible> {
        if COUNTED.contains(&E::NAME) {
            for (index, row) in E::table(&self.contents.events).rows().enumerate() {
                // Of other calls only those that copy.
                if E::NAME != "api" || self.copied.contains(&row.get(2)) {
                    self.rows.push((row.start_ns(), E::KIND, index as u32));
                }
            }
        }
        Ok(())
    }
}

struct Copy<'a, S> {
    definitions: &'a Definitions,
    /// New ids by table and old id.
    ids: HashMap<(u16, u32), u32>,
    sink: &'a mut S,
}

impl<S: Sink> Copy<'_, S> {
    fn row<R: Row>(&mut self, mut row: R) -> Result<R, S::Error> {
        for (index, spec) in R::COLUMNS.iter().enumerate() {
            if let Refers::To(kind) = spec.refers {
                // Arguments are text of the source, which the measurement of formats leaves out.
                let id = if spec.name == "args" { 0 } else { self.definition(kind, row.get(index) as u32)? };
                row.set(index, u64::from(id));
            }
        }
        Ok(row)
    }

    fn definition(&mut self, kind: DefinitionKind, id: u32) -> Result<u32, S::Error> {
        if id == 0 {
            return Ok(0);
        }
        if let Some(&id) = self.ids.get(&(kind as u16, id)) {
            return Ok(id);
        }
        let new = if kind == DefinitionKind::String {
            self.sink.string(self.definitions.string(id))?
        } else {
            let mut one = OneDefinition { copy: self, kind: kind as u16, id, new: 0 };
            visit_definitions(&mut one)?;
            one.new
        };
        self.ids.insert((kind as u16, id), new);
        Ok(new)
    }
}

struct OneDefinition<'a, 'b, S> {
    copy: &'a mut Copy<'b, S>,
    kind: u16,
    id: u32,
    new: u32,
}

impl<S: Sink> DefinitionVisitor for OneDefinition<'_, '_, S> {
    type Error = S::Error;
    fn visit<T: Definition>(&mut self) -> Result<(), S::Error> {
        if T::KIND == self.kind
            && let Some(row) = self.copy.definitions.get::<T>(self.id)
        {
            let row = self.copy.row(row)?;
            self.new = self.copy.sink.define(row)?;
        }
        Ok(())
    }
}

struct OneEvent<'a, 'b, S> {
    copy: &'a mut Copy<'b, S>,
    contents: &'a Contents,
    kind: u16,
    row: u32,
}

impl<S: Sink> KindVisitor for OneEvent<'_, '_, S> {
    type Error = S::Error;
    fn visit<E: Event>(&mut self) -> Result<(), S::Error> {
        if E::KIND == self.kind {
            let row = self.copy.row(E::table(&self.contents.events).row(self.row as usize))?;
            self.copy.sink.event(row)?;
        }
        Ok(())
    }
}

/// How many events these rows are: device work counts once with its call, a launch without a kernel once.
pub(crate) fn count(events: &Events) -> usize {
    let device = events.kernel.len() + events.memcpy.len() + events.memset.len();
    let launched = events.launch.len().saturating_sub(events.kernel.len());
    device + launched + events.sync.len() + events.alloc.len() + events.free.len()
}
