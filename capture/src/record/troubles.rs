//! What goes wrong while a recording goes on: told when it comes first, and counted.

use std::collections::BTreeMap;

/// So many are told apart: over weeks there may be any number.
const MOST: usize = 1000;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Troubles(BTreeMap<String, u64>);

impl Troubles {
    /// Counts one; returns what is to be told of it, which is nothing if it is known.
    pub(super) fn note(&mut self, what: String) -> Option<String> {
        let is_known = self.0.len() < MOST || self.0.contains_key(&what);
        let what = if is_known { what } else { "further troubles".to_owned() };
        (self.add(what.clone()) == 1).then_some(what)
    }

    /// Counts one of the few of a recording's end, which are told apart in any case; returns how often it has come.
    pub(super) fn add(&mut self, what: String) -> u64 {
        let times = self.0.entry(what).or_default();
        *times += 1;
        *times
    }

    /// Those so far.
    pub(super) fn known(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Each, with how often it came.
    pub(super) fn into_lines(self) -> Vec<String> {
        let line = |(what, times)| if times == 1 { what } else { format!("{what} ({times} times)") };
        self.0.into_iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_told_once_and_without_end_none_are_kept() {
        let mut troubles = Troubles::default();
        assert_eq!(troubles.note("a".to_owned()), Some("a".to_owned()));
        assert_eq!(troubles.note("a".to_owned()), None);
        let told = (0..2 * MOST).filter_map(|nth| troubles.note(format!("b{nth}"))).count();
        assert_eq!(told, MOST, "those that there was room for, and that there are more");
        troubles.add("z".to_owned());
        let lines = troubles.into_lines();
        assert_eq!((lines.len(), lines[0].as_str()), (MOST + 2, "a (2 times)"));
        assert_eq!(lines[MOST..], [format!("further troubles ({} times)", MOST + 1), "z".to_owned()]);
    }
}
