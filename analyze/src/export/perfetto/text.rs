//! Texts and arguments, each written once and referred to by number.
//!
//! A string of the definitions keeps its id as its interning id; texts that are made up here (short kernel names,
//! argument names) get the numbers behind. Perfetto interns event names, annotation names and so on apart, so for
//! each text it is remembered in which of these lists it is needed, and only what is needed is written.

use std::borrow::Cow;
use std::collections::BTreeMap;

use ktape_format::Definitions;
use rustc_hash::{FxHashMap, FxHashSet};
use serde_json::value::RawValue;

use super::proto::{
    AnnotationValue, ComputeArgValue, DebugAnnotation, ExtraComputeArg, InternedData, InternedString, Named,
};

/// The lists of interned data that hold texts. A text may be in several.
pub(super) mod list {
    pub(in super::super) const EVENT_NAME: u8 = 1;
    pub(in super::super) const CATEGORY: u8 = 2;
    /// Names of arguments, of track events and of device work.
    pub(in super::super) const ARGUMENT: u8 = 4;
    /// Values of arguments.
    pub(in super::super) const VALUE: u8 = 8;
    pub(in super::super) const SOURCE_PATH: u8 = 16;
}

/// The interning id of a text; 0 is none.
pub(super) type TextId = u64;

/// The texts of one trace.
pub(super) struct Texts<'a> {
    definitions: &'a Definitions,
    made_up: Vec<Box<str>>,
    ids: FxHashMap<Box<str>, TextId>,
    lists: Vec<u8>,
}

impl<'a> Texts<'a> {
    pub(super) fn new(definitions: &'a Definitions) -> Texts<'a> {
        let lists = vec![0; definitions.strings.len() + 1];
        Texts { definitions, made_up: Vec::new(), ids: FxHashMap::default(), lists }
    }

    /// Says that a string of the definitions is needed in a list; gives its interning id.
    pub(super) fn string(&mut self, string: u32, list: u8) -> TextId {
        let id = if self.definitions.string(string).is_empty() { 0 } else { TextId::from(string) };
        self.lists[id as usize] |= list;
        id
    }

    /// Says that a text is needed in a list; gives its interning id.
    pub(super) fn text(&mut self, text: &str, list: u8) -> TextId {
        let id = match self.ids.get(text) {
            Some(&id) => id,
            None => {
                let id = self.lists.len() as TextId;
                self.made_up.push(text.into());
                self.ids.insert(text.into(), id);
                self.lists.push(0);
                id
            }
        };
        self.lists[id as usize] |= list;
        id
    }

    /// A text by its interning id; empty for none.
    pub(super) fn get(&self, id: TextId) -> &str {
        let strings = &self.definitions.strings;
        let Some(row) = (id as usize).checked_sub(1) else { return "" };
        strings.get(row).or_else(|| self.made_up.get(row - strings.len())).map_or("", |text| text)
    }

    /// Everything that is needed, in portions of a few thousand.
    pub(super) fn interned(&self) -> impl Iterator<Item = InternedData> + '_ {
        let defined = self.definitions.strings.iter().chain(&self.made_up);
        let texts: Vec<(TextId, &str, u8)> = (1..)
            .zip(defined)
            .map(|(id, text)| (id, &**text, self.lists[id as usize]))
            .filter(|(.., lists)| *lists != 0)
            .collect();
        let portions = texts.chunks(2000).map(|portion| {
            let named = |list: u8| {
                let wanted = portion.iter().filter(move |(.., lists)| lists & list != 0);
                wanted.map(|&(iid, text, _)| Named { iid, name: text.to_owned() }).collect()
            };
            let strings = |list: u8| {
                let wanted = portion.iter().filter(move |(.., lists)| lists & list != 0);
                wanted.map(|&(iid, text, _)| InternedString { iid, str: text.into() }).collect()
            };
            InternedData {
                event_names: named(list::EVENT_NAME),
                event_categories: named(list::CATEGORY),
                debug_annotation_names: named(list::ARGUMENT),
                compute_arg_names: named(list::ARGUMENT),
                debug_annotation_string_values: strings(list::VALUE),
                source_paths: strings(list::SOURCE_PATH),
                ..InternedData::default()
            }
        });
        portions.collect::<Vec<_>>().into_iter()
    }
}

/// The value of an argument.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value {
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    /// A text in [`list::VALUE`].
    Text(TextId),
}

/// An argument of a host call or of device work: a text in [`list::ARGUMENT`], and its value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Arg {
    pub(super) name: TextId,
    pub(super) value: Value,
}

impl From<Arg> for DebugAnnotation {
    fn from(arg: Arg) -> DebugAnnotation {
        let value = match arg.value {
            Value::Bool(value) => AnnotationValue::Bool(value),
            Value::Int(value) => AnnotationValue::Int(value),
            Value::Uint(value) => AnnotationValue::Uint(value),
            Value::Double(value) => AnnotationValue::Double(value),
            Value::Text(id) => AnnotationValue::Text(id),
        };
        DebugAnnotation { name_iid: arg.name, value: Some(value) }
    }
}

impl From<Arg> for ExtraComputeArg {
    fn from(arg: Arg) -> ExtraComputeArg {
        let value = match arg.value {
            Value::Bool(value) => ComputeArgValue::Uint(value.into()),
            Value::Int(value) => ComputeArgValue::Int(value),
            Value::Uint(value) => ComputeArgValue::Uint(value),
            Value::Double(value) => ComputeArgValue::Double(value),
            Value::Text(id) => ComputeArgValue::Text(id),
        };
        ExtraComputeArg { name_iid: arg.name, value: Some(value) }
    }
}

/// The further arguments of events (JSON objects among the strings), taken apart once for each different object.
#[derive(Default)]
pub(super) struct ArgTable {
    args: Vec<Arg>,
    ranges: FxHashMap<u32, (u32, u32)>,
}

impl ArgTable {
    /// Takes apart the objects with these string ids.
    pub(super) fn new(objects: &FxHashSet<u32>, texts: &mut Texts<'_>) -> ArgTable {
        let mut table = ArgTable::default();
        let mut ids: Vec<u32> = objects.iter().copied().filter(|id| *id != 0).collect();
        ids.sort_unstable();
        for id in ids {
            let begin = table.args.len() as u32;
            table.take_apart(texts.definitions.string(id), texts);
            table.ranges.insert(id, (begin, table.args.len() as u32));
        }
        table
    }

    /// The arguments of the object with this string id.
    pub(super) fn of(&self, object: u32) -> &[Arg] {
        let &(begin, end) = self.ranges.get(&object).unwrap_or(&(0, 0));
        &self.args[begin as usize..end as usize]
    }

    fn take_apart(&mut self, object: &str, texts: &mut Texts<'_>) {
        let Ok(members) = serde_json::from_str::<BTreeMap<Cow<'_, str>, &RawValue>>(object) else {
            // Not an object after all: shown as it is.
            let name = texts.text("args", list::ARGUMENT);
            self.args.push(Arg { name, value: Value::Text(texts.text(object, list::VALUE)) });
            return;
        };
        for (name, value) in members {
            let name = texts.text(&name, list::ARGUMENT);
            self.args.push(Arg { name, value: scalar(value.get(), texts) });
        }
    }
}

/// A JSON value; arrays and objects stay JSON text, which takes one line of Perfetto's table and not a hundred.
fn scalar(json: &str, texts: &mut Texts<'_>) -> Value {
    if let Ok(value) = json.parse::<i64>() {
        return Value::Int(value);
    }
    if let Ok(value) = json.parse::<u64>() {
        return Value::Uint(value);
    }
    match serde_json::from_str::<serde_json::Value>(json) {
        Ok(serde_json::Value::Bool(value)) => Value::Bool(value),
        Ok(serde_json::Value::Number(number)) if number.as_f64().is_some_and(f64::is_finite) => {
            Value::Double(number.as_f64().unwrap_or_default())
        }
        Ok(serde_json::Value::String(text)) => Value::Text(texts.text(&text, list::VALUE)),
        _ => Value::Text(texts.text(json, list::VALUE)),
    }
}

#[cfg(test)]
mod tests {
    use ktape_format::{Memory, Sink as _};

    use super::*;

    #[test]
    fn arguments_keep_their_types() {
        let mut memory = Memory::default();
        let object = r#"{"Ev Idx": 7, "big": 18446744073709551615, "x": 0.5, "on": true, "name": "a\nb",
            "Input Dims": [[1, 2], [3]]}"#;
        let Ok(id) = memory.string(object);
        let mut texts = Texts::new(&memory.definitions);
        let table = ArgTable::new(&FxHashSet::from_iter([id, 0]), &mut texts);
        let text_of = |id: TextId| &*texts.made_up[id as usize - memory.definitions.strings.len() - 1];
        let shown: Vec<(&str, String)> = table
            .of(id)
            .iter()
            .map(|arg| match arg.value {
                Value::Text(id) => (text_of(arg.name), text_of(id).to_owned()),
                value => (text_of(arg.name), format!("{value:?}")),
            })
            .collect();
        assert_eq!(
            shown,
            [
                ("Ev Idx", "Int(7)".to_owned()),
                ("Input Dims", "[[1, 2], [3]]".to_owned()),
                ("big", "Uint(18446744073709551615)".to_owned()),
                ("name", "a\nb".to_owned()),
                ("on", "Bool(true)".to_owned()),
                ("x", "Double(0.5)".to_owned()),
            ]
        );
        assert!(table.of(0).is_empty());
    }

    #[test]
    fn only_needed_texts_are_written_and_each_in_its_lists() {
        let mut memory = Memory::default();
        let (Ok(used), Ok(_unused)) = (memory.string("used"), memory.string("unused"));
        let mut texts = Texts::new(&memory.definitions);
        texts.string(used, list::EVENT_NAME);
        let made_up = texts.text("made up", list::VALUE | list::ARGUMENT);
        assert_eq!(texts.text("made up", list::VALUE), made_up);
        assert_eq!(texts.string(0, list::EVENT_NAME), 0);
        let data: Vec<InternedData> = texts.interned().collect();
        assert_eq!(data.len(), 1);
        assert_eq!(data[0].event_names, [Named { iid: 1, name: "used".into() }]);
        assert_eq!(data[0].compute_arg_names, [Named { iid: 3, name: "made up".into() }]);
        assert_eq!(data[0].debug_annotation_string_values[0].str, b"made up");
        assert!(data[0].source_paths.is_empty());
    }
}
