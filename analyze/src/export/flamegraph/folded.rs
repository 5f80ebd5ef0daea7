//! Folded stacks: one line a stack, frames separated by `;`, then a space and the weight. What `flamegraph.pl`,
//! inferno and speedscope read.

use std::io::{self, Write};

use super::label::NO_BREAK_SPACE;
use super::tree::Tree;

/// Writes a tree as folded stacks.
pub fn write(tree: &Tree, out: &mut impl Write) -> io::Result<()> {
    let texts: Vec<String> = tree.labels().iter().map(|label| foldable(&label.text)).collect();
    tree.walk(0, |path, weight| {
        for (depth, &label) in path.iter().enumerate() {
            out.write_all(if depth == 0 { b"" } else { b";" })?;
            out.write_all(texts[label as usize].as_bytes())?;
        }
        writeln!(out, " {weight}")
    })
}

/// A frame that readers of the format take as it is: to them a number at the end is another weight (`step 12 500`).
fn foldable(text: &str) -> String {
    match text.rsplit_once(' ') {
        Some((head, number)) if number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') => {
            format!("{head}{NO_BREAK_SPACE}{number}")
        }
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::foldable;

    #[test]
    fn a_number_at_the_end_is_no_weight() {
        assert_eq!(foldable("step 12"), "step\u{a0}12");
        assert_eq!(foldable("step 1.5"), "step\u{a0}1.5");
        assert_eq!(foldable("Memcpy HtoD (Pageable -> Device)"), "Memcpy HtoD (Pageable -> Device)");
    }
}
