//! What simulated profiles said, gathered: for each key the distribution of its samples and of its place in the list.
//!
//! A profile has a *weight*: the nanoseconds of phase for which a fixed-period sampler gives it, or 1 for a random run.
//! Counts and weights are integers, so the mean of a fixed-period sampler is exact, and independent of how the work was
//! divided among threads.

use std::collections::BTreeMap;

/// What all profiles said.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// The weight of all profiles together.
    pub weight: u128,
    /// By key.
    pub keys: Vec<KeyTally>,
    /// At evenly spread profiles ([`Tally::checks`] of them): the total-variation distance between the shares of time
    /// that the profile gives and the exact ones; 1 where it found nothing.
    pub share_errors: Vec<f64>,
    /// How many profiles the share errors and the quantiles of ranks are from.
    pub checks: u64,
}

/// What all profiles said of one key.
#[derive(Clone, Debug, Default)]
pub struct KeyTally {
    /// The weight of the profiles with so many samples of it; `Tally::seal` adds those with none.
    pub samples: BTreeMap<u64, u128>,
    /// Rank times weight, summed over the profiles that have it.
    pub rank_weight: u128,
    /// The weight of the profiles that have it among the first ten.
    pub top10_weight: f64,
    /// The weight of the profiles that have it among the first `Options::top`.
    pub top_weight: f64,
    /// Its rank in each check that has it.
    pub ranks: Vec<u32>,
}

impl Tally {
    /// Nothing said yet of so many keys.
    pub fn new(keys: usize) -> Tally {
        Tally { keys: vec![KeyTally::default(); keys], ..Tally::default() }
    }

    /// Gives the weight that no profile with samples took to "no sample", and sorts what is asked by quantile.
    pub fn seal(&mut self) {
        for key in &mut self.keys {
            let said: u128 = key.samples.values().sum();
            if self.weight > said {
                *key.samples.entry(0).or_default() += self.weight - said;
            }
            key.ranks.sort_unstable();
        }
        self.share_errors.sort_unstable_by(f64::total_cmp);
    }

    /// The mean number of samples a profile has, of all keys.
    pub fn samples_mean(&self) -> f64 {
        self.keys.iter().map(|key| key.sample_weight()).sum::<u128>() as f64 / self.weight as f64
    }

    /// 95 % of the checks do not exceed it.
    pub fn share_error_p95(&self) -> f64 {
        let place = (self.share_errors.len() * 95).div_ceil(100).max(1) - 1;
        self.share_errors.get(place).copied().unwrap_or(1.0)
    }

    /// The mean of the share errors.
    pub fn share_error_mean(&self) -> f64 {
        self.share_errors.iter().sum::<f64>() / self.share_errors.len().max(1) as f64
    }
}

impl KeyTally {
    /// Samples times weight. Of a fixed-period sampler this is the exact time: each nanosecond of work is hit by
    /// exactly one nanosecond of phase.
    pub fn sample_weight(&self) -> u128 {
        self.samples.iter().map(|(&samples, &weight)| u128::from(samples) * weight).sum()
    }

    /// The least number of samples that at least `per_cent` % of profiles do not exceed.
    pub fn quantile(&self, per_cent: u32) -> u64 {
        let total: u128 = self.samples.values().sum();
        let mut below = 0;
        for (&samples, &weight) in &self.samples {
            below += weight;
            if below * 100 >= total * u128::from(per_cent) {
                return samples;
            }
        }
        0
    }

    /// The part of the profiles that have no sample of it.
    pub fn missed(&self, weight: u128) -> f64 {
        self.samples.get(&0).copied().unwrap_or(0) as f64 / weight as f64
    }

    /// The rank that `per_cent` % of the checks do not exceed; `None` if that many do not have it at all.
    pub fn rank_quantile(&self, per_cent: u64, checks: u64) -> Option<u32> {
        let place = (checks * per_cent).div_ceil(100).max(1) as usize - 1;
        self.ranks.get(place).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_count_missed_profiles_as_none() {
        let mut tally = Tally::new(1);
        tally.weight = 100;
        tally.keys[0].samples = BTreeMap::from([(1, 50), (2, 4)]);
        tally.keys[0].ranks = vec![3, 1];
        tally.checks = 4;
        tally.seal();
        let key = &tally.keys[0];
        assert_eq!((key.quantile(5), key.quantile(46), key.quantile(47), key.quantile(97)), (0, 0, 1, 2));
        assert_eq!(key.missed(100), 0.46);
        assert_eq!(key.sample_weight(), 58);
        assert_eq!(
            (key.rank_quantile(5, 4), key.rank_quantile(50, 4), key.rank_quantile(95, 4)),
            (Some(1), Some(3), None)
        );
    }
}
