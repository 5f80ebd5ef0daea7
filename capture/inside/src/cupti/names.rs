//! Texts that records of a ring refer to by number: told once, before the first record that has them.

use ktape_ebpf::inside::ring::Writer;
use ktape_ebpf::inside::{Text, kind};
use ktape_ebpf::wire::Plain as _;
use rustc_hash::FxHashMap;

/// How many texts are remembered. A program that generates kernels can have more: then all are forgotten, and told again.
const MOST: usize = 1 << 14;

/// The texts of a ring that were told.
#[derive(Debug, Default)]
pub(crate) struct Names {
    ids: FxHashMap<Box<[u8]>, u32>,
    last: u32,
}

impl Names {
    /// A text's number. Tells the text if it is new; `None` if there is no room for it.
    pub(crate) fn id(&mut self, writer: &mut Writer, text: &[u8]) -> Option<u32> {
        if self.ids.len() >= MOST {
            self.ids.clear();
        }
        if let Some(&id) = self.ids.get(text) {
            return Some(id);
        }
        let id = self.last.wrapping_add(1).max(1);
        let record = Text { kind: kind::TEXT, id, bytes: text.len() as u64, pid_tid: writer.pid_tid() };
        if !writer.put(record.as_bytes(), text) {
            return None;
        }
        self.last = id;
        self.ids.insert(text.into(), id);
        Some(id)
    }
}
