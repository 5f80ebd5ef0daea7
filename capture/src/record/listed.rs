//! A list for the summary that does not grow for weeks: its beginning, and how many more there were.

/// So many are kept.
const MOST: usize = 100;

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Listed<T> {
    /// The first ones.
    pub(super) shown: Vec<T>,
    /// How many more there were.
    pub(super) further: u64,
}

impl<T> Default for Listed<T> {
    fn default() -> Listed<T> {
        Listed { shown: Vec::new(), further: 0 }
    }
}

impl<T: PartialEq> Listed<T> {
    /// Adds one behind the others.
    pub(super) fn push(&mut self, one: T) {
        if self.shown.len() < MOST {
            self.shown.push(one);
        } else {
            self.further += 1;
        }
    }

    /// Adds one that is not shown yet.
    pub(super) fn push_new(&mut self, one: T) {
        if !self.shown.contains(&one) {
            self.push(one);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_shown_is_counted() {
        let mut listed = Listed::default();
        (0..MOST + 37).for_each(|number| listed.push(number));
        listed.push_new(3);
        assert_eq!((listed.shown.len(), listed.further), (MOST, 37));
    }
}
