//! The list a profile would show, kept up to date while its counts change by one.
//!
//! A key's rank is 1 + the number of keys with more samples. All keys with equally many samples share a *level*, and
//! when one key moves to the next level only the two levels change, so ranks over all phases cost O(1) a change:
//! a level carries the integrals over time of its rank and of its chance to be among the first, and a key takes the
//! difference between when it came and when it left. Ties are broken by chance: of 7 tied keys for 3 places each
//! has 3/7. A key without samples is not on the list.

use rustc_hash::FxHashMap;

/// The list at the present time, and what it was before.
pub(crate) struct Ranking {
    levels: FxHashMap<u64, Level>,
    places: Vec<Place>,
    top: u64,
}

#[derive(Clone, Copy, Default)]
struct Level {
    /// How many keys have this many samples.
    keys: u64,
    /// How many have more.
    above: u64,
    /// Until when the sums are valid.
    until: u64,
    sums: Sums,
}

/// Integrals over time.
#[derive(Clone, Copy, Default)]
pub(crate) struct Sums {
    pub rank: u128,
    pub top10: f64,
    pub top: f64,
}

#[derive(Clone, Copy, Default)]
struct Place {
    samples: u64,
    /// The level's sums when the key came there.
    came: Sums,
    /// What it took from earlier levels.
    taken: Sums,
}

impl Level {
    fn settle(&mut self, now: u64, top: u64) {
        let time = now - self.until;
        self.until = now;
        if time > 0 && self.keys > 0 {
            self.sums.rank += u128::from(self.above + 1) * u128::from(time);
            self.sums.top10 += self.chance(10) * time as f64;
            self.sums.top += self.chance(top) * time as f64;
        }
    }

    /// The chance of one of its keys to be among the first `places`.
    fn chance(&self, places: u64) -> f64 {
        places.saturating_sub(self.above).min(self.keys) as f64 / self.keys as f64
    }
}

impl Ranking {
    /// The list at time 0: key `i` has `samples[i]`.
    pub(crate) fn new(samples: &[u64], top: usize) -> Ranking {
        let mut levels: FxHashMap<u64, Level> = FxHashMap::default();
        for &count in samples {
            levels.entry(count).or_default().keys += 1;
        }
        let mut counts: Vec<u64> = levels.keys().copied().collect();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let mut above = 0;
        for count in counts {
            let level = levels.get_mut(&count).expect("collected above");
            level.above = above;
            above += level.keys;
        }
        let places = samples.iter().map(|&samples| Place { samples, ..Place::default() }).collect();
        Ranking { levels, places, top: top as u64 }
    }

    /// How many samples a key has now.
    pub(crate) fn samples(&self, key: usize) -> u64 {
        self.places[key].samples
    }

    /// A key's rank now; `None` if it is not on the list.
    pub(crate) fn rank(&self, key: usize) -> Option<u32> {
        let samples = self.places[key].samples;
        (samples > 0).then(|| self.levels[&samples].above as u32 + 1)
    }

    /// A key gets a sample more, or one less, at time `now`.
    pub(crate) fn step(&mut self, now: u64, key: usize, more: bool) {
        let top = self.top;
        let samples = self.places[key].samples;
        let next = if more { samples + 1 } else { samples - 1 };
        let left = self.levels.get_mut(&samples).expect("a key stands on its level");
        left.settle(now, top);
        let (keys_before, above_before, sums) = (left.keys, left.above, left.sums);
        left.keys -= 1;
        left.above += u64::from(more);
        let came = self.levels.entry(next).or_insert_with(|| {
            // Nobody was ever on this level, so it begins right above, or right below, the one that the key leaves.
            let above = if more { above_before } else { above_before + keys_before };
            Level { above, until: now, ..Level::default() }
        });
        came.settle(now, top);
        came.keys += 1;
        came.above -= u64::from(!more);
        let place = &mut self.places[key];
        if samples > 0 {
            place.taken.add(sums, place.came);
        }
        place.samples = next;
        place.came = came.sums;
    }

    /// Ends at time `now`; what each key has taken.
    pub(crate) fn finish(mut self, now: u64) -> Vec<Sums> {
        for level in self.levels.values_mut() {
            level.settle(now, self.top);
        }
        let levels = &self.levels;
        self.places
            .iter()
            .map(|place| {
                let mut taken = place.taken;
                if place.samples > 0 {
                    taken.add(levels[&place.samples].sums, place.came);
                }
                taken
            })
            .collect()
    }
}

impl Sums {
    fn add(&mut self, sums: Sums, came: Sums) {
        self.rank += sums.rank - came.rank;
        self.top10 += sums.top10 - came.top10;
        self.top += sums.top - came.top;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same by sorting at each instant.
    fn slow(samples: &[u64], places: u64) -> Vec<(u128, f64)> {
        let above = |count| samples.iter().filter(|&&other| other > count).count() as u64;
        let tied = |count| samples.iter().filter(|&&other| other == count).count() as u64;
        samples
            .iter()
            .map(|&count| match count {
                0 => (0, 0.0),
                _ => {
                    let open = places.saturating_sub(above(count)).min(tied(count));
                    (u128::from(above(count) + 1), open as f64 / tied(count) as f64)
                }
            })
            .collect()
    }

    #[test]
    fn agrees_with_sorting_at_every_instant() {
        let mut samples = vec![0, 2, 2, 1, 0, 5];
        let steps =
            [(0, 0, true), (3, 3, true), (3, 1, false), (4, 1, false), (9, 5, false), (9, 4, true), (12, 2, true)];
        let mut ranking = Ranking::new(&samples, 2);
        let mut expected = vec![(0, 0.0); samples.len()];
        let mut now = 0;
        for (time, key, more) in steps.into_iter().chain([(20, usize::MAX, true)]) {
            for (sum, (rank, chance)) in expected.iter_mut().zip(slow(&samples, 2)) {
                sum.0 += rank * u128::from(time - now);
                sum.1 += chance * (time - now) as f64;
            }
            now = time;
            if key == usize::MAX {
                break;
            }
            ranking.step(time, key, more);
            samples[key] = if more { samples[key] + 1 } else { samples[key] - 1 };
            for (key, &count) in samples.iter().enumerate() {
                let rank = samples.iter().filter(|&&other| other > count).count() as u32 + 1;
                assert_eq!(ranking.rank(key), (count > 0).then_some(rank));
            }
        }
        for (got, expected) in ranking.finish(20).iter().zip(expected) {
            assert_eq!(got.rank, expected.0);
            assert!((got.top - expected.1).abs() < 1e-9);
        }
    }
}
