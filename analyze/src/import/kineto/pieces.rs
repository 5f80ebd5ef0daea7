//! The text in pieces of about a mebibyte, cut where an event seems to begin, so that all cores can read at once.
//!
//! Where an event begins cannot be known without reading everything before it: what looks like one may stand in a
//! string. So a cut is a guess, and `assemble` takes what was read of a piece only if the piece before ended exactly
//! there, between two events. By induction from the first byte nothing is ever read in the wrong place; a wrong guess
//! costs the time to read a piece twice. The same guess is where `--lenient` goes on after a broken event.

use std::io::{self, ErrorKind, Read};

use memchr::{memchr_iter, memrchr_iter};

/// How long a piece is: long enough that the names in it repeat, short enough that the text of all that are on their
/// way at once is small.
pub(super) const PIECE_BYTES: usize = 1 << 20;

/// Cuts what a reader delivers.
#[derive(Debug)]
pub(super) struct Cutter<R> {
    reader: R,
    piece_bytes: usize,
    text_bytes: u64,
    /// What was read beyond the last cut.
    rest: Vec<u8>,
    ended: bool,
}

impl<R: Read> Cutter<R> {
    pub(super) fn new(reader: R, piece_bytes: usize) -> Self {
        Cutter { reader, piece_bytes, text_bytes: 0, rest: Vec::new(), ended: false }
    }

    /// How much of the text was delivered.
    pub(super) fn text_bytes(&self) -> u64 {
        self.text_bytes
    }

    /// The next piece; `None` after the last. After an error the text that came before it is the next and last piece.
    /// `spent` is a piece that nobody needs any more: its memory is used again, as it is.
    pub(super) fn next(&mut self, spent: Vec<u8>) -> io::Result<Option<Vec<u8>>> {
        // One that a long event made long is not kept.
        let mut text = if spent.capacity() <= 2 * self.piece_bytes { spent } else { Vec::new() };
        let mut filled = self.rest.len();
        text.resize(self.piece_bytes.max(filled), 0);
        text[..filled].copy_from_slice(&self.rest);
        self.rest.clear();
        while !self.ended && filled < text.len() {
            match self.reader.read(&mut text[filled..]) {
                Ok(0) => self.ended = true,
                Ok(read) => filled += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    self.ended = true;
                    text.truncate(filled);
                    self.rest = text;
                    return Err(error);
                }
            }
        }
        text.truncate(filled);
        if !self.ended
            && let Some(cut) = last_event(&text)
        {
            self.rest.extend_from_slice(&text[cut..]);
            text.truncate(cut);
        }
        self.text_bytes += text.len() as u64;
        Ok((!text.is_empty()).then_some(text))
    }
}

/// The key that Kineto's events begin with.
const PHASE: &str = "ph";

/// The keys that others' events begin with.
const FIRST_KEYS: &[&str] = &["name", "cat", "ts", "pid", "tid", "id", "dur", "args"];

/// Where the next event seems to begin, from a byte on.
pub(super) fn next_event(text: &[u8], from: usize) -> Option<usize> {
    let rest = text.get(from..)?;
    memchr_iter(b'{', rest).map(|at| from + at).find(|at| seems_an_event(text, *at))
}

/// Where the last event seems to begin.
fn last_event(text: &[u8]) -> Option<usize> {
    memrchr_iter(b'{', text).find(|at| *at > 0 && seems_an_event(text, *at))
}

/// Whether the brace at a place begins an element of an array of objects that has an event's key first: `}, {"name":`.
/// What begins with a phase, as Kineto's events do, is nothing else, whatever is broken before it.
fn seems_an_event(text: &[u8], brace: usize) -> bool {
    let Some(key) = text[brace + 1..].trim_ascii_start().strip_prefix(b"\"") else { return false };
    let is_first = |first: &str| {
        let rest = key.strip_prefix(first.as_bytes()).and_then(|rest| rest.strip_prefix(b"\""));
        rest.is_some_and(|rest| rest.trim_ascii_start().starts_with(b":"))
    };
    let before = text[..brace].trim_ascii_end();
    if is_first(PHASE) {
        return !matches!(before.last(), Some(b':' | b'['));
    }
    let is_element = before.strip_suffix(b",").is_some_and(|before| before.trim_ascii_end().ends_with(b"}"));
    is_element && FIRST_KEYS.iter().any(|first| is_first(first))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pieces(text: &[u8], piece_bytes: usize) -> Vec<Vec<u8>> {
        let mut cutter = Cutter::new(text, piece_bytes);
        std::iter::from_fn(|| cutter.next(b"of before".to_vec()).unwrap()).collect()
    }

    #[test]
    fn cut_before_events_only() {
        let text = br#"{"traceEvents": [{"ph": "X", "args": {"a": [{"ph": 1}]}}, {"ph":"i"},{ "name" : "a" } ]}"#;
        let cuts: Vec<usize> = (0..text.len()).filter(|at| next_event(text, *at) == Some(*at)).collect();
        assert_eq!(next_event(br#"{"ph": "X", "dur": 1, {"ph": "X"}"#, 1), Some(22), "a brace is missing");
        let place = |word: &str| text.windows(word.len()).position(|window| window == word.as_bytes()).unwrap();
        assert_eq!(cuts, [place(r#"{"ph":"i"#), place(r#"{ "name""#)]);
        assert_eq!(pieces(text, 75)[0].len(), cuts[0]);
    }

    proptest! {
        /// Whatever the text, the pieces are all of it, in order.
        #[test]
        fn nothing_is_left_out(
            text in prop::collection::vec(prop::sample::select(b"{}[],:\"ph \n".to_vec()), 0..400),
            piece_bytes in 1_usize..40,
        ) {
            prop_assert_eq!(pieces(&text, piece_bytes).concat(), text);
        }
    }
}
