//! What of a file is broken: counted all, the first few told with their place.

/// How many broken places are told one by one.
const EXAMPLES: usize = 10;

/// A broken place.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Broken {
    /// Where it begins in the text.
    pub offset: u64,
    /// How long it is.
    pub bytes: u64,
    /// Whether it could be put right, so that its event is kept.
    pub mended: bool,
    /// What is wrong.
    pub problem: String,
}

/// The broken places of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct BrokenParts {
    /// How many were left out.
    pub left_out: u64,
    /// How many bytes they had.
    pub left_out_bytes: u64,
    /// How many were put right.
    pub mended: u64,
    /// The first of them.
    pub first: Vec<Broken>,
    /// Why the file ends before its end, if it does: what came after that is not known.
    pub cut: Option<String>,
}

impl BrokenParts {
    /// Counts a broken place.
    pub(super) fn see(&mut self, broken: Broken) {
        match broken.mended {
            true => self.mended += 1,
            false => {
                self.left_out += 1;
                self.left_out_bytes += broken.bytes;
            }
        }
        if self.first.len() < EXAMPLES {
            self.first.push(broken);
        }
    }

    /// Adds those of a part of the text that begins at `offset`.
    pub(super) fn add(&mut self, part: BrokenParts, offset: u64) {
        self.left_out += part.left_out;
        self.left_out_bytes += part.left_out_bytes;
        self.mended += part.mended;
        let room = EXAMPLES - self.first.len();
        self.first.extend(part.first.into_iter().take(room).map(|broken| {
            let offset = offset + broken.offset;
            Broken { offset, ..broken }
        }));
        self.cut = self.cut.take().or(part.cut);
    }

    /// Whether something is missing that the file had, or should have had.
    pub fn is_loss(&self) -> bool {
        self.left_out > 0 || self.cut.is_some()
    }
}
