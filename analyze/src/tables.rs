//! The tables that this version knows, by the number that stands on the tape.

use std::collections::BTreeMap;
use std::convert::Infallible;

use ktape_format::definition::{Definition, DefinitionVisitor, visit_definitions};
use ktape_format::event::{Event, KindVisitor, visit_kinds};
use ktape_format::table::DefinitionKind;

/// What this version knows of tables.
#[derive(Debug)]
pub struct KnownTables(BTreeMap<u16, Known>);

#[derive(Debug)]
struct Known {
    name: &'static str,
    columns: Vec<&'static str>,
}

impl KnownTables {
    /// All of them.
    pub fn new() -> KnownTables {
        let strings = Known { name: "string", columns: vec!["length", "text"] };
        let mut tables = KnownTables(BTreeMap::from([(DefinitionKind::String as u16, strings)]));
        let Ok(()) = visit_kinds(&mut tables);
        let Ok(()) = visit_definitions(&mut tables);
        tables
    }

    /// Whether a table is among them.
    pub fn has(&self, table: u16) -> bool {
        self.0.contains_key(&table)
    }

    /// Whether a column of a table is.
    pub fn has_column(&self, table: u16, column: u64) -> bool {
        self.0.get(&table).is_some_and(|known| column < known.columns.len() as u64)
    }

    /// A table's name; its number where it has none.
    pub fn name(&self, table: u16) -> String {
        self.0.get(&table).map_or_else(|| format!("table {table}"), |known| known.name.to_owned())
    }

    /// A column's name; its number where it has none.
    pub fn column_name(&self, table: u16, column: u64) -> String {
        let name = || self.0.get(&table)?.columns.get(usize::try_from(column).ok()?);
        name().map_or_else(|| format!("column {column}"), |name| (*name).to_owned())
    }
}

impl Default for KnownTables {
    fn default() -> KnownTables {
        KnownTables::new()
    }
}

impl KindVisitor for KnownTables {
    type Error = Infallible;
    fn visit<E: Event>(&mut self) -> Result<(), Infallible> {
        let columns = E::COLUMNS.iter().map(|spec| spec.name).collect();
        self.0.insert(E::KIND, Known { name: E::NAME, columns });
        Ok(())
    }
}

impl DefinitionVisitor for KnownTables {
    type Error = Infallible;
    fn visit<T: Definition>(&mut self) -> Result<(), Infallible> {
        let columns = T::COLUMNS.iter().map(|spec| spec.name).collect();
        self.0.insert(T::KIND, Known { name: T::NAME, columns });
        Ok(())
    }
}
