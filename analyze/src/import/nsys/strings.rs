//! The texts that rows name by number: the table `StringIds`.

use rustc_hash::FxHashMap;

use super::database::Database;
use super::error::Fault;
use crate::import::Summary;

/// Longer ones are left out. What a process printed is in this table too; names are far shorter.
const MOST_BYTES: u32 = 1 << 20;

/// The texts, and which of them the sink has already.
#[derive(Default)]
pub(super) struct Strings {
    texts: FxHashMap<i64, Box<str>>,
    pub(super) ids: FxHashMap<i64, u32>,
}

impl Strings {
    /// Reads the table. Where a number is given to two texts, the first counts.
    pub(super) fn read(database: &Database, summary: &mut Summary) -> Result<Strings, Fault> {
        let mut texts = FxHashMap::default();
        let Some(table) = database.tables.get("StringIds").filter(|table| table.has("id") && table.has("value")) else {
            return Ok(Strings::default());
        };
        database.texts(table, MOST_BYTES, |id, text| match text {
            Some(text) => match texts.entry(id) {
                std::collections::hash_map::Entry::Vacant(entry) => drop(entry.insert(text.into())),
                std::collections::hash_map::Entry::Occupied(_) => {
                    summary.repair("string number given twice, the first counts")
                }
            },
            None => summary.repair("string that is no text or longer than 1 MiB, left out"),
        })?;
        Ok(Strings { texts, ids: FxHashMap::default() })
    }

    /// The text with a number.
    pub(super) fn text(&self, id: i64) -> Option<&str> {
        self.texts.get(&id).map(|text| &**text)
    }
}
