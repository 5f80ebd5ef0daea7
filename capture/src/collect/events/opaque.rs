//! Where the driver's own objects have their kernel's name.
//!
//! A handle is the address of an object of the driver whose layout nobody tells and every version may change. So it is learned:
//! of handles whose names are known, every way from the object to a text that is the name is noted — by one pointer, or by one
//! to another object and one of that. A way that all samples have, of [`SAMPLES`] kernels of different names, is taken to be
//! the driver's; one sample without it, then or later, and it is none. Functions and kernels (`CUfunction`, `CUkernel`) are
//! objects of two kinds, which learn each for itself. What is learned is good for one build of the driver, in all processes.
//!
//! The memory is a stranger's: reads are bounded in number and length, and what comes out has to look like a kernel's name.

use std::hash::BuildHasher as _;

use ktape_ebpf::python::Memory;
use rustc_hash::FxHashSet;

use crate::probes::functions::ObjectKind as Kind;
use crate::target::stubs::is_kernel_name;

/// So many kernels of different names have to agree.
const SAMPLES: usize = 5;
/// What is looked at of the object, and of what it points to.
const OBJECT_BYTES: usize = 512;
const SECOND_BYTES: usize = 256;
/// Longer names are read in pieces up to this.
const MOST_NAME_BYTES: usize = 64 << 10;

/// Offsets, in bytes, of the pointers from an object to its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Way {
    first: u16,
    /// In the object that the first leads to, if it is one.
    second: Option<u16>,
}

/// What is known of one kind of objects.
#[derive(Debug, Default)]
struct Learned {
    /// Every way that all samples have had; `None` before the first.
    ways: Option<Vec<Way>>,
    /// The names that were samples.
    names: FxHashSet<u64>,
}

/// What is known of the objects of one build of the driver.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    functions: Learned,
    kernels: Learned,
    /// How often something changed in what can be told: whoever could not be named asks again then.
    version: u64,
}

impl Objects {
    /// How often what is known has changed.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// Learns from a handle whose kernel's name is known.
    pub(crate) fn sample(&mut self, memory: &impl Memory, kind: Kind, handle: u64, name: &str) {
        let learned = self.of_mut(kind);
        let was_known = learned.is_known();
        learned.sample(memory, handle, name);
        self.version += u64::from(self.of(kind).is_known() != was_known);
    }

    /// The name of a handle's kernel; `None` unless all that is known agrees on one.
    pub(crate) fn name(&self, memory: &impl Memory, handle: u64) -> Option<String> {
        let told: Vec<String> =
            [Kind::Function, Kind::Kernel].into_iter().filter_map(|kind| self.of(kind).name(memory, handle)).collect();
        let (first, rest) = told.split_first()?;
        rest.iter().all(|name| name == first).then(|| first.clone())
    }

    fn of(&self, kind: Kind) -> &Learned {
        match kind {
            Kind::Function => &self.functions,
            Kind::Kernel => &self.kernels,
        }
    }

    fn of_mut(&mut self, kind: Kind) -> &mut Learned {
        match kind {
            Kind::Function => &mut self.functions,
            Kind::Kernel => &mut self.kernels,
        }
    }
}

impl Learned {
    fn is_known(&self) -> bool {
        self.names.len() >= SAMPLES && self.ways.as_ref().is_some_and(|ways| !ways.is_empty())
    }

    fn sample(&mut self, memory: &impl Memory, handle: u64, name: &str) {
        // What does not look like a name would not be believed either.
        if !is_kernel_name(name) {
            return;
        }
        match &mut self.ways {
            None => self.ways = Some(ways_to(memory, handle, name)),
            Some(ways) => ways.retain(|way| way.leads_to(memory, handle, name)),
        }
        if self.names.len() < SAMPLES {
            self.names.insert(rustc_hash::FxBuildHasher.hash_one(name));
        }
    }

    fn name(&self, memory: &impl Memory, handle: u64) -> Option<String> {
        let ways = self.ways.as_ref().filter(|_| self.is_known())?;
        let mut told = ways.iter().map(|way| way.text(memory, handle).filter(|name| is_kernel_name(name)));
        let first = told.next()??;
        told.all(|name| name.as_ref() == Some(&first)).then_some(first)
    }
}

impl Way {
    /// Where the text is.
    fn end(self, memory: &impl Memory, handle: u64) -> Option<u64> {
        let first = pointer(memory.word(handle.checked_add(self.first.into())?)?)?;
        match self.second {
            None => Some(first),
            Some(second) => pointer(memory.word(first.checked_add(second.into())?)?),
        }
    }

    fn leads_to(self, memory: &impl Memory, handle: u64, name: &str) -> bool {
        self.end(memory, handle).is_some_and(|text| is_text(memory, text, name))
    }

    fn text(self, memory: &impl Memory, handle: u64) -> Option<String> {
        text_at(memory, self.end(memory, handle)?)
    }
}

/// Every way from an object to this name: some two thousand reads at most.
fn ways_to(memory: &impl Memory, handle: u64, name: &str) -> Vec<Way> {
    let mut ways = Vec::new();
    for (first, at) in pointers(memory, handle, OBJECT_BYTES) {
        if is_text(memory, at, name) {
            ways.push(Way { first, second: None });
        }
        if at % 8 != 0 {
            continue;
        }
        for (second, at) in pointers(memory, at, SECOND_BYTES) {
            if is_text(memory, at, name) {
                ways.push(Way { first, second: Some(second) });
            }
        }
    }
    ways
}

/// What may be pointers in an object: where they are in it, and where they lead. As much of it as is there.
fn pointers(memory: &impl Memory, at: u64, bytes: usize) -> Vec<(u16, u64)> {
    let mut object = vec![0; bytes];
    while !object.is_empty() && !memory.read(at, &mut object) {
        object.truncate(object.len() / 2 / 8 * 8);
    }
    let words = object.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word));
    (0..).step_by(8).zip(words).filter_map(|(offset, word)| Some((offset, pointer(word)?))).collect()
}

/// A word that can be an address in a process.
fn pointer(word: u64) -> Option<u64> {
    (0x1000..1 << 47).contains(&word).then_some(word)
}

fn is_text(memory: &impl Memory, at: u64, text: &str) -> bool {
    let mut found = vec![0; text.len() + 1];
    memory.read(at, &mut found) && found.strip_suffix(&[0]) == Some(text.as_bytes())
}

/// The text that ends with a zero there.
pub(super) fn text_at(memory: &impl Memory, address: u64) -> Option<String> {
    let mut text = Vec::new();
    while text.len() < MOST_NAME_BYTES {
        // To the end of the page: behind it there may be nothing.
        let at = address.checked_add(text.len() as u64)?;
        let mut page = vec![0; 4096 - (at % 4096) as usize];
        if !memory.read(at, &mut page) {
            return None;
        }
        match page.iter().position(|&byte| byte == 0) {
            None => text.extend(page),
            Some(end) => {
                text.extend(&page[..end]);
                return Some(String::from_utf8_lossy(&text).into_owned()).filter(|text| !text.is_empty());
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Memory of some pieces.
    #[derive(Default)]
    struct Pieces(BTreeMap<u64, Vec<u8>>);

    impl Memory for Pieces {
        fn read(&self, address: u64, into: &mut [u8]) -> bool {
            let Some((start, piece)) = self.0.range(..=address).next_back() else { return false };
            let from = (address - start) as usize;
            let found = piece.get(from..from.saturating_add(into.len()));
            found.is_some_and(|found| {
                into.copy_from_slice(found);
                true
            })
        }
    }

    const NAMES: [&str; 8] = ["gemm_0", "gemm_1", "softmax", "_Z4normPf", "rope", "copy_x", "late", "later"];
    const HANDLE: u64 = 0x10_0000;
    const HANDLE_STEP: u64 = 0x1000;

    fn handle(index: usize) -> u64 {
        HANDLE + index as u64 * HANDLE_STEP
    }

    impl Pieces {
        /// An object of 128 bytes, as long as its piece is; its name is behind `first` and `second`. The word at 0 leads to
        /// itself, and that at 64 to the name of the module, which all share.
        fn object(&mut self, index: usize, first: usize, second: Option<usize>) {
            let (object, other, text) = (handle(index), 0x20_0000 + handle(index), 0x40_0000 + handle(index));
            let mut words = [0_u64; 16];
            words[0] = object;
            words[8] = 0x90_0000;
            words[first / 8] = if second.is_some() { other } else { text };
            let bytes = |words: &[u64]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
            self.0.insert(object, bytes(&words));
            if let Some(second) = second {
                let mut words = [7_u64; 8];
                words[second / 8] = text;
                self.0.insert(other, bytes(&words));
            }
            let page = |text: &str| {
                let mut page = text.as_bytes().to_vec();
                page.resize(4096, 0);
                page
            };
            self.0.insert(text, page(NAMES[index]));
            self.0.insert(0x90_0000, page("a_module"));
        }
    }

    fn learn(memory: &Pieces, indices: std::ops::Range<usize>) -> Objects {
        let mut objects = Objects::default();
        indices.for_each(|index| objects.sample(memory, Kind::Function, handle(index), NAMES[index]));
        objects
    }

    #[test]
    fn a_way_that_five_kernels_agree_on_tells_the_name_of_a_sixth() {
        for second in [None, Some(40)] {
            let mut memory = Pieces::default();
            (0..NAMES.len()).for_each(|index| memory.object(index, 24, second));
            let objects = learn(&memory, 0..SAMPLES - 1);
            assert_eq!((objects.name(&memory, handle(6)), objects.version()), (None, 0), "four are too few");
            let objects = learn(&memory, 0..SAMPLES);
            assert_eq!(objects.version(), 1);
            for (index, name) in NAMES.iter().enumerate() {
                assert_eq!(objects.name(&memory, handle(index)).as_deref(), Some(*name));
            }
            assert_eq!(objects.name(&memory, 0x7777_0000), None, "nothing is there");
        }
    }

    #[test]
    fn one_kernel_many_times_is_one_sample() {
        let mut memory = Pieces::default();
        (0..2).for_each(|index| memory.object(index, 24, None));
        let mut objects = Objects::default();
        (0..100).for_each(|_| objects.sample(&memory, Kind::Function, handle(0), NAMES[0]));
        assert_eq!(objects.name(&memory, handle(1)), None);
    }

    #[test]
    fn where_the_offsets_disagree_nothing_is_accepted() {
        let mut memory = Pieces::default();
        (0..NAMES.len()).for_each(|index| memory.object(index, 8 * (1 + index % 2), Some(16)));
        let objects = learn(&memory, 0..NAMES.len());
        assert_eq!((objects.name(&memory, handle(7)), objects.version()), (None, 0));
        // One that disagrees later takes back what was accepted.
        let mut memory = Pieces::default();
        (0..NAMES.len()).for_each(|index| memory.object(index, if index == 6 { 32 } else { 24 }, None));
        let mut objects = learn(&memory, 0..SAMPLES);
        assert_eq!(objects.name(&memory, handle(7)).as_deref(), Some("later"));
        objects.sample(&memory, Kind::Function, handle(6), NAMES[6]);
        assert_eq!((objects.name(&memory, handle(7)), objects.version()), (None, 2));
    }

    #[test]
    fn kinds_are_learned_apart_and_must_not_contradict_each_other() {
        let mut memory = Pieces::default();
        (0..NAMES.len()).for_each(|index| memory.object(index, 24, None));
        let mut objects = learn(&memory, 0..SAMPLES);
        // The same objects have the module's name where those of the other kind have theirs.
        for index in 0..SAMPLES {
            objects.kernels.names.insert(index as u64);
        }
        objects.kernels.ways = Some(vec![Way { first: 64, second: None }]);
        assert_eq!(objects.name(&memory, handle(7)), None);
    }

    #[test]
    fn what_does_not_look_like_a_name_is_none() {
        let mut memory = Pieces::default();
        (0..NAMES.len()).for_each(|index| memory.object(index, 24, None));
        let objects = learn(&memory, 0..SAMPLES);
        for text in [&b"\0"[..], b"two words\0", b"1st\0", b"\xff\xfe\0", b"endless"] {
            let mut page = vec![b'x'; 4096];
            page[..text.len()].copy_from_slice(text);
            memory.0.insert(0x40_0000 + handle(7), page);
            assert_eq!(objects.name(&memory, handle(7)), None, "{text:?}");
        }
    }
}
