//! Random numbers: the same from one seed on every machine.
//!
//! Why here: services never import one another, and all of them repeat runs from a seed, some of
//! them years later. No library promises its stream for that long.
//!
//! - [`Random`]: xoshiro256++, for whatever draws much.
//! - [`SplitMix`]: one word of state, for schedules and impairments; [`split_mix`], its step.
//!
//! Must stay true: no stream ever changes; a stored state ([`Random`] in a checkpoint) continues
//! its stream. Not for secrets by itself: keys need a secret seed. Pure. Source: Blackman and
//! Vigna, "Scrambled linear pseudorandom number generators" (2021); Steele, Lea and Flood, "Fast
//! splittable pseudorandom number generators" (2014).

#[doc(hidden)]
pub mod choices;

/// A stream of random numbers: xoshiro256++, seeded by SplitMix64.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Random {
    state: [u64; 4],
}

impl Random {
    /// The stream of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut at = seed;
        // Never all zeros, from which xoshiro would not get away.
        let state = std::array::from_fn(|_| split_mix(&mut at));
        Self { state }
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// A number from 0 (included) to 1 (excluded), uniformly distributed.
    pub fn unit(&mut self) -> f64 {
        unit(self.bits())
    }

    /// A whole number below `limit`, uniformly distributed; 0 if `limit` is 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        below(self.bits(), limit)
    }

    /// A place in a list of `len` items, uniformly distributed; 0 if there are none. The same
    /// number as [`Random::below`] draws.
    pub fn index(&mut self, len: usize) -> usize {
        ((u128::from(self.bits()) * len as u128) >> 64) as usize
    }
}

/// A stream of one word: SplitMix64.
#[derive(Debug, Clone)]
pub struct SplitMix(u64);

impl SplitMix {
    /// The stream of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        split_mix(&mut self.0)
    }

    /// A number from 0 (included) to 1 (excluded), uniformly distributed.
    pub fn unit(&mut self) -> f64 {
        unit(self.bits())
    }

    /// A whole number below `limit`, uniformly distributed; 0 if `limit` is 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        below(self.bits(), limit)
    }

    /// True with the probability `probability`.
    pub fn happens(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }
}

/// The next number of SplitMix64; advances `state`, which begins as the seed.
pub fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(GAMMA);
    mix(*state)
}

/// Mixes bits well: of two numbers that differ in one, half of the bits differ.
#[must_use]
pub fn mix(value: u64) -> u64 {
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

/// The upper 53 bits as a number from 0 to 1 (excluded).
fn unit(bits: u64) -> f64 {
    // A double holds 53 bits exactly.
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

fn below(bits: u64, limit: u64) -> u64 {
    // The upper half of a product: no division, and a bias of less than `limit` in 2^64.
    ((u128::from(bits) * u128::from(limit)) >> 64) as u64
}

/// Increment of SplitMix64: odd, and near 2^64 divided by the golden ratio.
pub const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_streams_never_change() {
        // From the authors' programs.
        let mut random = Random::new(42);
        assert_eq!(random.bits(), 15_021_278_609_987_233_951);
        assert_eq!(random.bits(), 5_881_210_131_331_364_753);
        let mut random = SplitMix::new(1_234_567);
        assert_eq!(random.bits(), 6_457_827_717_110_365_317);
        assert_eq!(random.bits(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn shares_are_right() {
        let (mut random, mut small) = (Random::new(1), SplitMix::new(1));
        // Miri takes some hundred times as long, and says nothing of shares.
        if cfg!(miri) {
            assert!((0..500).all(|_| random.below(7) < 7 && small.below(3) < 3));
            return;
        }
        let count = 100_000;
        let mean = (0..count).map(|_| random.unit()).sum::<f64>() / f64::from(count);
        assert!((mean - 0.5).abs() < 0.005, "{mean}");
        let seen = (0..count).filter(|_| small.happens(0.1)).count();
        assert!((9_500..10_500).contains(&seen), "{seen}");
        assert!((0..count).all(|_| random.below(7) < 7 && small.below(3) < 3));
    }

    #[test]
    fn a_stream_that_was_kept_goes_on() {
        let mut random = Random::new(3);
        random.bits();
        assert_eq!(random.clone().bits(), random.bits());
    }
}

/// The README's example, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
