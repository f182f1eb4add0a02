//! Seeded pseudorandom numbers, identical on every host and in every run.

/// Pseudorandom generator (SplitMix64).
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// Creates the generator of a seed.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Creates the generator of a seed for one purpose, independent of those for other purposes.
    pub(crate) fn of(seed: u64, purpose: impl IntoIterator<Item = u64>) -> Self {
        let mix = |state: u64, word: u64| Self(state.rotate_left(23) ^ word).next();
        Self(purpose.into_iter().fold(mix(0, seed), mix))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Returns a number below `end`, or 0 if `end` is 0.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }

    pub(crate) fn shuffle<T>(&mut self, values: &mut [T]) {
        for end in (1..values.len()).rev() {
            values.swap(end, self.below(end as u64 + 1) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_match_the_published_sequence() {
        // The first outputs of SplitMix64 for the seed 1234567, as published by its author.
        let mut random = Random::new(1_234_567);
        let first: Vec<u64> = (0..3).map(|_| random.next()).collect();
        assert_eq!(first, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn every_number_below_the_end_occurs() {
        let mut random = Random::new(5);
        let mut seen = [0u32; 7];
        (0..700).for_each(|_| seen[random.below(7) as usize] += 1);
        assert!(seen.iter().all(|count| (50..150).contains(count)), "{seen:?}");
        assert_eq!(random.below(0), 0);
    }

    #[test]
    fn a_shuffle_is_a_permutation() {
        let mut values: Vec<u32> = (0..100).collect();
        Random::new(3).shuffle(&mut values);
        assert_ne!(values, (0..100).collect::<Vec<_>>());
        values.sort_unstable();
        assert_eq!(values, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn purposes_have_different_sequences() {
        let first = |purpose: &[u64]| Random::of(1, purpose.iter().copied()).next();
        assert_eq!(first(&[1, 2]), first(&[1, 2]));
        assert_ne!(first(&[1, 2]), first(&[2, 1]));
        assert_ne!(first(&[1]), first(&[1, 0]));
    }
}
