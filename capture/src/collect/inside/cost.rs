//! What the library inside of a process takes of it, as the process's page says.

use std::collections::BTreeMap;
use std::ops::AddAssign;

use ktape_ebpf::inside::overhead;
use serde::Serialize;

/// What recording from inside took of one process or more. On the tape it is the property `inside_cost` of a process, as JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Cost {
    /// How long the program's threads were in the library: an estimate, by one call of 64.
    pub own_ns: u64,
    /// In how many calls.
    pub own_calls: u64,
    /// CPU time of the library's own thread.
    pub keeper_ns: u64,
    /// CPU time of the threads by which CUPTI hands over its buffers.
    pub cupti_threads_ns: u64,
    /// CPU time of all threads of the process, since the library came.
    pub process_ns: u64,
    /// What CUPTI says that it took, by what for.
    pub cupti_says_ns: BTreeMap<&'static str, u64>,
    /// What it says that the driver took, which it does without CUPTI too, by what for.
    pub driver_says_ns: BTreeMap<&'static str, u64>,
}

impl Cost {
    /// With what CUPTI says, by [`overhead`].
    pub(super) fn with_overheads(mut self, overhead_ns: [u64; overhead::NAMES.len()]) -> Cost {
        for (index, (name, ns)) in
            overhead::NAMES.into_iter().zip(overhead_ns).enumerate().filter(|(_, said)| said.1 > 0)
        {
            let said = if overhead::is_of_driver(index) { &mut self.driver_says_ns } else { &mut self.cupti_says_ns };
            said.insert(name, ns);
        }
        self
    }
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Cost) {
        self.own_ns += other.own_ns;
        self.own_calls += other.own_calls;
        self.keeper_ns += other.keeper_ns;
        self.cupti_threads_ns += other.cupti_threads_ns;
        self.process_ns += other.process_ns;
        for (own, others) in
            [(&mut self.cupti_says_ns, other.cupti_says_ns), (&mut self.driver_says_ns, other.driver_says_ns)]
        {
            others.into_iter().for_each(|(name, ns)| *own.entry(name).or_default() += ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_driver_does_anyway_is_not_cupti_s_and_all_is_added_up() {
        let mut overhead_ns = [0; overhead::NAMES.len()];
        for (kind, ns) in [(1, 5), (1 << 16, 7), (5 << 16, 11), (99 << 16, 13)] {
            overhead_ns[overhead::index(kind)] += ns;
        }
        let one = Cost { own_ns: 100, own_calls: 2, ..Cost::default() }.with_overheads(overhead_ns);
        let mut both = one.clone();
        both += one;
        assert_eq!((both.own_ns, both.own_calls), (200, 4));
        assert_eq!(both.cupti_says_ns, BTreeMap::from([("buffer flush", 14), ("other", 26)]));
        assert_eq!(both.driver_says_ns, BTreeMap::from([("driver compiler", 10), ("lazy function loading", 22)]));
    }
}
