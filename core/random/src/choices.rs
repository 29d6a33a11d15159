//! Decisions of a test: drawn from a seed, or read from bytes that a fuzzer gives.
//!
//! Why here: a coverage-guided fuzzer can only steer decisions that follow from its bytes; the same
//! code also runs from a seed, for the bounded runs without a fuzzer.
//!
//! ```
//! use sidecore_random::choices::Choices;
//!
//! let mut choices = Choices::of(&[3, 250]);
//! assert_eq!(choices.below(4), 3); // a small decision takes one byte
//! assert_eq!(choices.below(100), 50);
//! assert!(choices.is_over());
//! assert_eq!(choices.below(100), 0);
//! ```

use crate::Random;

/// A source of decisions.
#[derive(Debug, Clone)]
pub enum Choices {
    /// Endless; the stream of [`Random`].
    Seeded(Random),
    /// As written; zeros after the end.
    Bytes {
        /// All of them.
        bytes: Vec<u8>,
        /// The next to read.
        at: usize,
    },
}

impl Choices {
    /// Drawn from `seed`.
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        Self::Seeded(Random::new(seed))
    }

    /// Read from `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self::Bytes {
            bytes: bytes.to_vec(),
            at: 0,
        }
    }

    /// True once all bytes are read; never for a seed.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self, Self::Bytes { bytes, at } if *at >= bytes.len())
    }

    /// 64 bits: eight bytes, little-endian.
    pub fn bits(&mut self) -> u64 {
        match self {
            Self::Seeded(random) => random.bits(),
            Self::Bytes { .. } => self.word(8),
        }
    }

    /// A whole number below `limit`; 0 where that is 0. Takes one byte where 256 values do, two
    /// where 65,536 do, else eight: a change of one byte changes one decision.
    pub fn below(&mut self, limit: u64) -> u64 {
        match self {
            Self::Seeded(random) => random.below(limit),
            Self::Bytes { .. } => {
                let width = match limit {
                    0..=0x100 => 1,
                    0x101..=0x1_0000 => 2,
                    _ => 8,
                };
                self.word(width) % limit.max(1)
            }
        }
    }

    /// `count` bytes as they are.
    pub fn take(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.below(0x100) as u8).collect()
    }

    fn word(&mut self, width: usize) -> u64 {
        let Self::Bytes { bytes, at } = self else {
            return 0;
        };
        let mut word = [0; 8];
        let rest = bytes.get(*at..).unwrap_or_default();
        let count = width.min(rest.len());
        word[..count].copy_from_slice(&rest[..count]);
        *at += count;
        u64::from_le_bytes(word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_decisions_and_end_in_zeros() {
        let mut choices = Choices::of(&[7, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(choices.below(5), 2);
        assert_eq!(choices.below(1000), 257);
        assert_eq!(choices.bits(), 0x0908_0706_0504_0302);
        assert!(choices.is_over());
        assert_eq!(
            (choices.bits(), choices.below(9), choices.below(0)),
            (0, 0, 0)
        );
        assert_eq!(Choices::of(&[5, 6]).take(3), [5, 6, 0]);
    }

    #[test]
    fn a_seed_is_its_stream() {
        let (mut choices, mut random) = (Choices::seeded(3), Random::new(3));
        assert_eq!(choices.bits(), random.bits());
        assert_eq!(choices.below(100), random.below(100));
        assert!(!choices.is_over());
    }
}
