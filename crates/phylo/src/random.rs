//! Random numbers: the same from one seed on every machine.
//!
//! Why here: results are made again from a seed years later; no library promises its stream for
//! that long. Not for secrets.
//! Source: Blackman and Vigna, "Scrambled linear pseudorandom number generators" (2021):
//! xoshiro256++, seeded by SplitMix64.

/// A stream of random numbers.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Random {
    state: [u64; 4],
}

impl Random {
    /// The stream of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut at = seed;
        let state = std::array::from_fn(|_| {
            at = at.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mut z = at;
            z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
            z ^ z >> 31
        });
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

    /// From 0 up to but not 1.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A whole number below `limit`, which is above 0; each as likely.
    pub fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(limit)) >> 64) as u64
    }

    /// Exponential with the given mean.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * libm::log1p(-self.unit())
    }

    /// One of the indices of `weights`, which are at least 0 and not all 0.
    pub fn index(&mut self, weights: &[f64]) -> usize {
        let mut left = self.unit() * weights.iter().sum::<f64>();
        for (k, weight) in weights.iter().enumerate() {
            left -= weight;
            if left < 0.0 {
                return k;
            }
        }
        weights
            .iter()
            .rposition(|weight| *weight > 0.0)
            .unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_never_changes() {
        let mut random = Random::new(42);
        // From the authors' programs.
        assert_eq!(random.bits(), 15021278609987233951);
        assert_eq!(random.bits(), 5881210131331364753);
    }

    #[test]
    fn means_are_right() {
        let mut random = Random::new(1);
        let count = 100_000;
        let mean = (0..count).map(|_| random.exponential(0.1)).sum::<f64>() / f64::from(count);
        assert!((mean - 0.1).abs() < 0.002, "{mean}");
        let weights = [0.1, 0.0, 0.6, 0.3];
        let mut counts = [0.0; 4];
        for _ in 0..count {
            counts[random.index(&weights)] += 1.0 / f64::from(count);
        }
        for (count, weight) in counts.iter().zip(weights) {
            assert!((count - weight).abs() < 0.01, "{counts:?}");
        }
    }
}
