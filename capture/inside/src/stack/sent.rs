//! What has been sent, so that it is sent once: and when it must be sent again.
//!
//! As in the eBPF programs (`capture-ebpf/src/sent.rs`), but that each thread has a ring of its own, and rings are read one after the
//! other: what a record refers to has to come before it in the same ring. So it counts as sent by thread, and only the table that
//! remembers is the process's.
//!
//! The table never forgets one by one. Where it has no room it forgets all at once, which is the *rotation*: everything is then
//! sent again before it is referred to. A code object that is freed is told apart from the
//! next one at its address by two numbers: how often code of such an address was freed is in what its record counts as sent by, and
//! the *epoch*, which is in every stack's hash, is raised with each.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Entries that lie together: those of a cache line.
const BUCKET: usize = 8;
/// A power of two. Half a megabyte, of which only what is used is ever touched.
const BUCKETS: usize = 1 << 13;
/// How many counters of freed code there are. A power of two.
const FREED: usize = 1 << 12;

/// Puts one word more into a hash.
#[inline(always)]
pub(crate) fn mix(hash: u64, word: u64) -> u64 {
    let mixed = (hash ^ word).wrapping_mul(0xd6e8_feb8_6659_fd93);
    mixed ^ mixed >> 32
}

/// What a process has sent.
#[derive(Debug)]
pub struct Sent {
    table: [[AtomicU64; BUCKET]; BUCKETS],
    freed: [AtomicU32; FREED],
    epoch: AtomicU64,
    rotation: AtomicU32,
}

/// When something is sent: what stays the same while nothing has to be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct When {
    /// How often all has counted as not sent.
    pub rotation: u32,
    /// See [`StackBody::epoch`](ktape_ebpf::wire::StackBody::epoch).
    pub epoch: u64,
}

/// Something that can have been sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A stack, by its hash.
    Stack(u64),
    /// A task's name, by its hash.
    Task(u64),
    /// A code object, by its address.
    Code(u64),
    /// A kernel's name, by its handle, and where CUPTI keeps the name.
    Kernel(u64, u64),
}

impl Sent {
    /// Nothing yet.
    #[expect(clippy::new_without_default, reason = "it is half a megabyte: only for statics")]
    pub const fn new() -> Sent {
        Sent {
            table: [const { [const { AtomicU64::new(0) }; BUCKET] }; BUCKETS],
            freed: [const { AtomicU32::new(0) }; FREED],
            epoch: AtomicU64::new(0),
            rotation: AtomicU32::new(0),
        }
    }

    /// Now.
    #[inline(always)]
    pub fn now(&self) -> When {
        let rotation = self.rotation.load(Ordering::Relaxed);
        When { rotation, epoch: self.epoch.load(Ordering::Acquire).wrapping_add(rotation.into()) }
    }

    /// Whether this thread has sent this.
    #[inline(always)]
    pub fn was_sent(&self, what: What, when: When, tid: u32) -> bool {
        self.has(self.fingerprint(what, when, tid))
    }

    /// Remembers that this thread has sent this.
    pub fn remember(&self, what: What, when: When, tid: u32) {
        self.add(self.fingerprint(what, when, tid));
        if let What::Code(_) = what {
            // By anybody.
            self.add(self.fingerprint(what, when, 0));
        }
    }

    /// A code object is about to be freed.
    pub fn free(&self, code: u64) {
        let when = self.now();
        if self.has(self.fingerprint(What::Code(code), when, 0)) {
            self.freed_at(code).fetch_add(1, Ordering::Relaxed);
            self.epoch.fetch_add(1, Ordering::AcqRel);
        }
    }

    fn freed_at(&self, code: u64) -> &AtomicU32 {
        &self.freed[mix(0, code) as usize % FREED]
    }

    #[inline(always)]
    fn fingerprint(&self, what: What, when: When, tid: u32) -> u64 {
        let whose = u64::from(when.rotation) << 32 | u64::from(tid);
        let hash = match what {
            What::Stack(hash) => mix(1, hash),
            What::Task(hash) => mix(2, hash),
            What::Code(code) => mix(mix(3, code), self.freed_at(code).load(Ordering::Relaxed).into()),
            What::Kernel(handle, name) => mix(mix(4, handle), name),
        };
        // 0 is an entry that is free.
        mix(hash, whose) | 1
    }

    /// The entries that something can be in: of two buckets, the second for when the first is full.
    #[inline(always)]
    fn entries(&self, fingerprint: u64) -> impl Iterator<Item = &AtomicU64> {
        let bucket = |bits: u64| &self.table[bits as usize % BUCKETS];
        bucket(fingerprint >> 32).iter().chain(bucket(fingerprint >> 8))
    }

    #[inline(always)]
    fn has(&self, fingerprint: u64) -> bool {
        self.entries(fingerprint).any(|entry| entry.load(Ordering::Relaxed) == fingerprint)
    }

    fn add(&self, fingerprint: u64) {
        for entry in self.entries(fingerprint) {
            match entry.compare_exchange(0, fingerprint, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return,
                Err(other) if other == fingerprint => return,
                Err(_) => {}
            }
        }
        self.rotate();
    }

    /// Has everything sent again. What others add meanwhile may stay: it is of the rotation before, and only takes room.
    fn rotate(&self) {
        self.rotation.fetch_add(1, Ordering::AcqRel);
        for entry in self.table.as_flattened() {
            if entry.load(Ordering::Relaxed) != 0 {
                entry.store(0, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: u32 = 7;

    #[test]
    fn what_one_thread_has_sent_another_has_not() {
        static SENT: Sent = Sent::new();
        let when = SENT.now();
        for what in [What::Stack(1), What::Task(1), What::Code(1), What::Kernel(1, 0)] {
            assert!(!SENT.was_sent(what, when, ME), "{what:?}");
            SENT.remember(what, when, ME);
            assert!(SENT.was_sent(what, when, ME) && !SENT.was_sent(what, when, ME + 1), "{what:?}");
        }
        assert!(!SENT.was_sent(What::Kernel(1, 2), when, ME));
        SENT.rotate();
        let when = SENT.now();
        assert_eq!(when, When { rotation: 1, epoch: 1 });
        assert!(!SENT.was_sent(What::Code(1), when, ME));
    }

    #[test]
    fn code_that_is_freed_is_sent_again_and_stacks_get_new_hashes() {
        static SENT: Sent = Sent::new();
        let when = SENT.now();
        SENT.remember(What::Code(0x1000), when, ME);
        SENT.remember(What::Code(0x2000), when, ME);
        SENT.remember(What::Code(0x1000), when, ME + 1);
        // One that nobody was told of.
        SENT.free(0x3000);
        assert_eq!(SENT.now(), when);
        SENT.free(0x1000);
        let after = SENT.now();
        assert_eq!((after.rotation, after.epoch), (0, when.epoch + 1));
        assert!(!SENT.was_sent(What::Code(0x1000), after, ME) && !SENT.was_sent(What::Code(0x1000), after, ME + 1));
        assert!(SENT.was_sent(What::Code(0x2000), after, ME));
        // What came to its address is freed before anybody was told of it.
        SENT.free(0x1000);
        assert_eq!(SENT.now(), after);
    }

    #[test]
    fn a_table_without_room_forgets_all_and_says_so() {
        static SENT: Sent = Sent::new();
        let mut sent = 0u64;
        let mut rotations = Vec::new();
        while rotations.len() < 3 {
            let when = SENT.now();
            let what = What::Stack(mix(0, sent));
            SENT.remember(what, when, ME);
            sent += 1;
            if SENT.now() == when {
                assert!(SENT.was_sent(what, when, ME));
            } else {
                rotations.push(sent);
                assert!(!SENT.was_sent(what, SENT.now(), ME));
            }
        }
        assert_eq!(SENT.now(), When { rotation: 3, epoch: 3 });
        // So long as it is not half full there is nearly always room.
        assert!(rotations[0] > (BUCKETS * BUCKET * 2 / 5) as u64, "{rotations:?}");
    }
}
