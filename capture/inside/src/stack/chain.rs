//! The chain of frames that the calling thread stands on, and what of it is the same as at its last call.
//!
//! Between two launches of a thread most of its stack stays as it is. So the chain is kept, from the outermost frame inwards, with a
//! hash up to each link. At the next call every frame's words are read again, and compared: nothing is taken for unchanged that was
//! not looked at, as a frame that comes to the place of another may differ in any of them. What is compared needs no hashing, and
//! the loads do not wait for each other; from the outermost link that differs on the chain is made anew.
//!
//! What a frame's words mean is said by `ktape_ebpf::python`, as for every other walk.

use std::fmt;
use std::ops::Range;

use ktape_ebpf::python::{self, ABSENT, End, Layout, MAX_FRAMES, MAX_STEPS, Memory, RawFrame, Step};

use super::sent::mix;
use crate::memory::Again;

/// Where a frame has the words that matter, in bytes, and how much of them does.
#[derive(Clone, Copy, Debug, Default)]
struct Places {
    code: u64,
    previous: u64,
    instruction: u64,
    instruction_mask: u64,
    owner: u64,
    owner_mask: u64,
}

impl Places {
    fn of(layout: &Layout) -> Places {
        let is_object = layout.instruction_scale != 0;
        let copy_mask = if layout.code_copies == ABSENT { 0 } else { u64::from(u32::MAX) };
        Places {
            code: 8 * u64::from(layout.frame_code_word),
            previous: 8 * u64::from(layout.frame_previous_word),
            instruction: 8 * u64::from(layout.frame_instruction_word),
            // `f_lasti` is an `int`.
            instruction_mask: if is_object { u32::MAX.into() } else { u64::MAX },
            owner: 8 * u64::from(layout.frame_owner_word),
            // A frame that is an object has no owner.
            owner_mask: if is_object { 0 } else { 0xff << (layout.frame_owner_shift & 63) | copy_mask },
        }
    }
}

/// A frame's words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Words {
    code: u64,
    previous: u64,
    instruction: u64,
    owner: u64,
}

impl Words {
    #[inline(always)]
    fn read(places: &Places, address: u64, word: impl Fn(u64) -> Option<u64>) -> Option<Words> {
        Some(Words {
            code: word(address.wrapping_add(places.code))?,
            previous: word(address.wrapping_add(places.previous))?,
            instruction: word(address.wrapping_add(places.instruction))? & places.instruction_mask,
            owner: word(address.wrapping_add(places.owner))? & places.owner_mask,
        })
    }
}

impl Words {
    /// Whether they are the same: asked all at once, as they nearly always are.
    #[inline(always)]
    fn is(&self, other: &Words) -> bool {
        let differs = self.code ^ other.code
            | self.previous ^ other.previous
            | self.instruction ^ other.instruction
            | self.owner ^ other.owner;
        differs == 0
    }
}

/// What a link of the chain is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Kind {
    /// A frame of the stack.
    Frame,
    /// A shim.
    #[default]
    Shim,
    /// The first frame of those that are left out, as there are too many.
    Beyond,
}

/// A frame of the chain.
#[derive(Clone, Copy, Debug, Default)]
struct Link {
    address: u64,
    words: Words,
    frame: RawFrame,
    kind: Kind,
    /// How many frames there are up to this one.
    count: u32,
    /// The hash of them.
    hash: u64,
}

/// Links there may be: a step of the walk each, and the one beyond.
const LINKS: usize = MAX_STEPS as usize + 1;

/// Links below the one expected that are looked at for one that goes on as before.
const LOOK_AHEAD: usize = 16;

/// A thread's chain of frames.
pub(super) struct Chain {
    places: Places,
    layout: Layout,
    /// From the outermost inwards.
    links: [Link; LINKS],
    count: usize,
    /// Those that are new, from the innermost outwards.
    fresh: [Link; LINKS],
    fresh_count: usize,
    end: End,
    /// Whether the links are the whole of what was walked, so that they can be compared with.
    is_kept: bool,
}

impl fmt::Debug for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chain").field("links", &&self.links[..self.count]).field("end", &self.end).finish()
    }
}

/// Whether a chain is the one it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compared {
    Same,
    Other,
}

impl Chain {
    /// An empty one, made where it stays: it is too large for some stacks.
    pub(super) fn new() -> Box<Chain> {
        // SAFETY: zeros are a value of all that is in it: integers, and enums that have one of this number.
        unsafe { Box::<Chain>::new_zeroed().assume_init() }
    }

    /// From now on the frames are of this version.
    pub(super) fn set_layout(&mut self, layout: &Layout) {
        self.layout = *layout;
        self.places = Places::of(layout);
        self.release();
    }

    /// Has the next walk compare with nothing.
    pub(super) fn release(&mut self) {
        self.is_kept = false;
    }

    /// Walks from this frame outwards.
    #[inline(always)]
    pub(super) fn walk<M: Again>(&mut self, memory: &M, first: u64) -> Compared {
        let top = if self.is_kept { self.count } else { 0 };
        let (rest, next) = self.compare(memory, top, first);
        if rest == 0 && top != 0 {
            return Compared::Same;
        }
        self.renew(memory, rest..top, next);
        Compared::Other
    }

    /// Compares the links below this one with the frames from `first` outwards. How many links are left where they differ, and the frame
    /// there.
    #[inline(always)]
    fn compare<M: Again>(&self, memory: &M, top: usize, first: u64) -> (usize, u64) {
        let (mut rest, mut address) = (top, first);
        while let Some(link) = self.links[..rest].last() {
            // Not looked at before the frame within has pointed to it: it may be gone.
            if link.address != address {
                break;
            }
            // SAFETY: it was read when the link was made, and is one of the thread's frames now.
            let words = Words::read(&self.places, address, |address| unsafe { memory.again(address) });
            if !words.is_some_and(|words| words.is(&link.words)) {
                break;
            }
            address = link.words.previous;
            rest -= 1;
        }
        (rest, address)
    }

    /// Walks from `next` on, the links of this range being the same as before.
    #[inline(never)]
    fn renew<M: Again>(&mut self, memory: &M, same: Range<usize>, next: u64) {
        self.fresh_count = 0;
        let may_join = self.is_kept && self.end == End::Outermost;
        let (mut below, mut address, mut frames) = (same.start, next, 0);
        let mut joined = 0;
        self.is_kept = true;
        self.take_links(same, &mut frames);
        self.end = loop {
            if self.fresh_count >= MAX_STEPS as usize {
                self.is_kept = false;
                break End::Cut;
            }
            if address == 0 {
                break End::Outermost;
            }
            if may_join && let Some(at) = self.link_at(address, below) {
                let (rest, next) = self.compare(memory, at + 1, address);
                below = rest.min(at);
                let is_cut = frames + self.count_of(rest..at + 1) > MAX_FRAMES as u32;
                if rest == 0 && !is_cut && self.fresh_count + at + 1 < MAX_STEPS as usize {
                    joined = at + 1;
                    break End::Outermost;
                }
                if rest <= at && rest != 0 && !is_cut {
                    self.take_links(rest..at + 1, &mut frames);
                    address = next;
                    continue;
                }
            }
            match self.step(memory, address, &mut frames) {
                Ok(previous) => address = previous,
                Err(end) => break end,
            }
        };
        self.join(joined);
    }

    /// How many frames there are in these links.
    fn count_of(&self, links: Range<usize>) -> u32 {
        let up_to = |end: usize| self.links[..end].last().map_or(0, |link| link.count);
        up_to(links.end) - up_to(links.start)
    }

    /// The link of this address, if it is one of the next below.
    fn link_at(&self, address: u64, below: usize) -> Option<usize> {
        let lowest = below.saturating_sub(LOOK_AHEAD);
        (lowest..below).rev().find(|&at| self.links[at].address == address)
    }

    /// Takes these links over as they are, from the innermost outwards.
    fn take_links(&mut self, links: Range<usize>, frames: &mut u32) {
        *frames += self.count_of(links.clone());
        for link in self.links[links].iter().rev() {
            if self.fresh_count < MAX_STEPS as usize {
                self.fresh[self.fresh_count] = *link;
                self.fresh_count += 1;
            }
        }
    }

    /// Takes the frame at this address; returns the next one, or why there is none.
    fn step<M: Memory>(&mut self, memory: &M, address: u64, frames: &mut u32) -> Result<u64, End> {
        let Some(words) = Words::read(&self.places, address, |address| memory.word(address)) else {
            self.is_kept = false;
            return Err(End::Unreadable);
        };
        let mut link = Link { address, words, ..Link::default() };
        let mut goes_on = Ok(words.previous);
        match python::decode(memory, &self.layout, words.code, words.instruction, words.owner) {
            Step::Shim => {}
            Step::Frame(_) if *frames >= MAX_FRAMES as u32 => (link.kind, goes_on) = (Kind::Beyond, Err(End::Cut)),
            Step::Frame(frame) => {
                (link.kind, link.frame) = (Kind::Frame, frame);
                *frames += 1;
            }
            Step::End(end) => {
                self.is_kept = false;
                return Err(end);
            }
        }
        self.fresh[self.fresh_count] = link;
        self.fresh_count += 1;
        goes_on
    }

    /// Puts the new links upon so many of the old ones.
    fn join(&mut self, joined: usize) {
        let (mut count, mut hash) = match self.links[..joined].last() {
            Some(link) => (link.count, link.hash),
            None => (0, HASH_SEED),
        };
        self.count = joined;
        for at in (0..self.fresh_count).rev() {
            let mut link = self.fresh[at];
            if link.kind == Kind::Frame {
                // An address has 47 bits, an instruction's place 20 or so: put together they fit into one word.
                let RawFrame { code, instruction, kind } = link.frame;
                hash = mix(hash, code.rotate_left(17) ^ u64::from(instruction as u32) ^ u64::from(kind) << 16);
                count += 1;
            }
            (link.count, link.hash) = (count, hash);
            self.links[self.count] = link;
            self.count += 1;
        }
    }

    /// How many frames the stack has.
    pub(super) fn depth(&self) -> u32 {
        self.links[..self.count].last().map_or(0, |link| link.count)
    }

    /// The hash of all frames.
    pub(super) fn hash(&self) -> u64 {
        self.links[..self.count].last().map_or(HASH_SEED, |link| link.hash)
    }

    /// How the walk ended.
    pub(super) fn end(&self) -> End {
        self.end
    }

    /// The frames and their addresses, innermost first.
    pub(super) fn frames(&self) -> impl Iterator<Item = (u64, RawFrame)> + '_ {
        let frames = self.links[..self.count].iter().rev().filter(|link| link.kind == Kind::Frame);
        frames.map(|link| (link.address, link.frame))
    }
}

const HASH_SEED: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
mod tests {
    use ktape_ebpf::python::{LAYOUTS, Walk};
    use rustc_hash::FxHashMap;

    use super::*;

    /// Made-up memory: words at addresses below a limit.
    #[derive(Default)]
    struct Made(FxHashMap<u64, u64>);

    const LIMIT: u64 = 1 << 30;

    impl Again for Made {
        unsafe fn again(&self, address: u64) -> Option<u64> {
            self.word(address)
        }
    }

    impl Memory for Made {
        fn read(&self, address: u64, into: &mut [u8]) -> bool {
            // All are read by the word.
            assert!(address.is_multiple_of(8) && into.len().is_multiple_of(8));
            let words = into.as_chunks_mut().0.iter_mut().zip((address..).step_by(8));
            words.for_each(|(word, at)| *word = self.0.get(&at).copied().unwrap_or(0).to_ne_bytes());
            address.saturating_add(into.len() as u64) <= LIMIT
        }
    }

    /// A thread's frames, made up: what is called is a number, and stands for code, line and place.
    struct Thread<'layout> {
        layout: &'layout Layout,
        memory: Made,
        frames: Vec<u64>,
    }

    impl Thread<'_> {
        fn first(&self) -> u64 {
            self.frames.last().copied().unwrap_or(0)
        }

        /// Calls code at a place that is `gap` words further. Every so often it lies behind a shim.
        fn call(&mut self, code: u64, gap: u64, owner: u64) {
            let address = self.first().max(0x10000) + 128 + 8 * gap;
            let previous = self.first();
            self.put(address, self.layout.frame_code_word, code);
            self.put(address, self.layout.frame_previous_word, previous);
            if self.layout.instruction_scale == 0 {
                self.put(address, self.layout.frame_owner_word, owner << self.layout.frame_owner_shift);
            }
            self.frames.push(address);
            self.go(0);
        }

        /// Goes to another instruction of the innermost frame.
        fn go(&mut self, unit: u64) {
            let address = self.first();
            let code = self.memory.0[&(address + 8 * u64::from(self.layout.frame_code_word))];
            let at = match self.layout.instruction_scale {
                // And `f_lineno` behind it.
                0 => code + u64::from(self.layout.code_instructions) + 2 * unit,
                _ => 77 << 32 | unit,
            };
            self.put(address, self.layout.frame_instruction_word, at);
        }

        fn put(&mut self, address: u64, word: u8, value: u64) {
            self.memory.0.insert(address + 8 * u64::from(word), value);
        }

        /// What the walk that all others do finds.
        fn walked(&self) -> (Vec<RawFrame>, u32) {
            let mut walk = Box::<Walk>::default();
            walk.begin(self.first());
            for _ in 0..MAX_STEPS {
                if let Step::End(_) = walk.advance(&self.memory, self.layout) {
                    break;
                }
            }
            (walk.frames[..walk.count as usize].to_vec(), walk.end)
        }
    }

    fn found(chain: &Chain) -> (Vec<RawFrame>, u32) {
        (chain.frames().map(|(_, frame)| frame).collect(), chain.end() as u32)
    }

    /// A generator of numbers: the same each time.
    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, limit: u64) -> u64 {
            self.0 = mix(self.0, 0x1234_5678_9abc_def1);
            self.0 % limit
        }
    }

    #[test]
    fn a_chain_that_is_kept_finds_what_a_walk_finds_whatever_changes() {
        let plain = LAYOUTS.iter().filter(|layout| layout.code_copies == ABSENT);
        for (layout, deepest) in plain.flat_map(|layout| [(layout, 40), (layout, 300)]) {
            let mut numbers = Numbers(deepest + u64::from(layout.version));
            let mut thread = Thread { layout, memory: Made::default(), frames: Vec::new() };
            let mut chain = Chain::new();
            chain.set_layout(layout);
            let mut hashes = FxHashMap::default();
            let mut same = 0;
            for _ in 0..500 {
                let depth = thread.frames.len() as u64;
                // Returns some way, goes on somewhere, and calls again.
                let (returns, calls) = match numbers.below(8) {
                    0 => (depth, deepest),
                    1 => (numbers.below(depth + 1), numbers.below(deepest)),
                    2 => (0, 0),
                    _ => (numbers.below(3).min(depth), numbers.below(3)),
                };
                thread.frames.truncate((depth - returns) as usize);
                if !thread.frames.is_empty() && numbers.below(2) == 0 {
                    let unit = numbers.below(3);
                    thread.go(unit);
                }
                for _ in 0..calls {
                    let owner = [0, 0, 0, 1, 3][numbers.below(5) as usize];
                    let (code, gap) = (0x1000 * (1 + numbers.below(3)), numbers.below(2));
                    thread.call(code, gap, owner);
                    let unit = numbers.below(3);
                    thread.go(unit);
                }
                let compared = chain.walk(&thread.memory, thread.first());
                let expected = thread.walked();
                assert_eq!(found(&chain), expected);
                same += u32::from(compared == Compared::Same);
                // Stacks that are the same have the same hash, however it was come to, and others another.
                let hash = (chain.hash(), chain.end() as u32);
                assert_eq!(hashes.entry(hash).or_insert_with(|| expected.clone()), &expected);
                let mut anew = Chain::new();
                anew.set_layout(layout);
                anew.walk(&thread.memory, thread.first());
                assert_eq!((anew.hash(), anew.depth()), (chain.hash(), chain.depth()));
            }
            assert!(same > 20 && hashes.len() > 50, "{same} {}", hashes.len());
        }
    }

    #[test]
    fn memory_that_ends_or_is_no_frame_ends_the_stack() {
        let layout = &Layout::of(0x030c, false).unwrap();
        let mut thread = Thread { layout, memory: Made::default(), frames: Vec::new() };
        (0..3).for_each(|at| thread.call(0x1000 * (at + 1), 0, 0));
        let mut chain = Chain::new();
        chain.set_layout(layout);
        assert_eq!(chain.walk(&thread.memory, thread.first()), Compared::Other);
        let outermost = thread.frames[0];
        for (word, value) in [(layout.frame_previous_word, LIMIT), (layout.frame_code_word, 0)] {
            thread.put(outermost, word, value);
            for _ in 0..2 {
                assert_eq!(chain.walk(&thread.memory, thread.first()), Compared::Other);
                assert_eq!(found(&chain), thread.walked());
                assert_eq!(chain.end(), End::Unreadable);
            }
        }
        // One that bites its tail.
        thread.put(outermost, layout.frame_code_word, 0x1000);
        let first = thread.first();
        thread.put(outermost, layout.frame_previous_word, first);
        chain.walk(&thread.memory, first);
        assert_eq!(found(&chain), thread.walked());
        assert_eq!(chain.walk(&thread.memory, 0), Compared::Other);
        assert_eq!((chain.depth(), chain.end()), (0, End::Outermost));
    }
}
