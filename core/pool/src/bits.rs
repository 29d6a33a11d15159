//! Set of small numbers that any thread may change, one bit each.
//!
//! Why here: idle engines, hosts' bells and sleeping hosts are such sets. Up to 64 numbers are one
//! word inside the set itself, so small pools and small groups look at one cache line. The words of
//! higher numbers are allocated elsewhere, on lines of their own. Must stay true: words are
//! independent of one another. A caller that needs a sure answer about all of them reads each after
//! the fence that makes it sure. The orderings are the callers', stated at their lines.

use crate::sync::AtomicU64;
use crossbeam_utils::CachePadded;
use sidecore_bare::width::ToUsize;

/// Numbers of one word.
pub(crate) const WORD_BITS: usize = 64;

/// A set of numbers below a bound that is known when it is made.
#[derive(Debug)]
pub(crate) struct AtomicBits {
    /// 0 to 63.
    first: AtomicU64,
    /// The others, 64 a word.
    more: Box<[CachePadded<AtomicU64>]>,
}

impl AtomicBits {
    /// An empty set of numbers below `bound`.
    pub(crate) fn empty(bound: usize) -> Self {
        Self::new(bound, |_| 0)
    }

    /// All numbers below `bound`.
    pub(crate) fn full(bound: usize) -> Self {
        Self::new(bound, |index| {
            match bound.saturating_sub(index * WORD_BITS) {
                0 => 0,
                WORD_BITS.. => u64::MAX,
                some => (1 << some) - 1,
            }
        })
    }

    fn new(bound: usize, word: impl Fn(usize) -> u64) -> Self {
        let words = bound.div_ceil(WORD_BITS).max(1);
        Self {
            first: AtomicU64::new(word(0)),
            more: (1..words)
                .map(|at| CachePadded::new(AtomicU64::new(word(at))))
                .collect(),
        }
    }

    /// The word of the numbers 0 to 63, where there are no others.
    #[inline]
    pub(crate) fn only_word(&self) -> Option<&AtomicU64> {
        self.more.is_empty().then_some(&self.first)
    }

    /// All words in their order; bit `b` of the `w`th is the number `64 w + b`.
    #[inline]
    pub(crate) fn words(&self) -> impl Iterator<Item = &AtomicU64> {
        let more = self.more.iter().map(|word| &**word);
        std::iter::once(&self.first).chain(more)
    }

    /// The word of a number below the bound, and its bit in there.
    #[inline]
    pub(crate) fn place(&self, number: usize) -> (&AtomicU64, u64) {
        let word = match number / WORD_BITS {
            0 => &self.first,
            index => &*self.more[index - 1],
        };
        (word, 1 << (number % WORD_BITS))
    }
}

/// The numbers of the bits of a word.
pub(crate) fn bits_of(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = (word != 0).then(|| word.trailing_zeros().to_usize());
        word &= word.wrapping_sub(1);
        bit
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sync::Ordering;

    #[test]
    fn a_full_set_has_all_numbers_and_no_other() {
        for bound in [1, 2, 63, 64, 65, 127, 128, 129, 1_000, 1_024] {
            let full = AtomicBits::full(bound);
            let numbers: Vec<usize> = (full.words().enumerate())
                .flat_map(|(index, word)| {
                    bits_of(word.load(Ordering::Relaxed)).map(move |bit| index * WORD_BITS + bit)
                })
                .collect();
            assert!(numbers.iter().copied().eq(0..bound), "{bound}");
            assert_eq!(full.only_word().is_some(), bound <= 64);
        }
    }

    #[test]
    fn every_number_has_a_bit_of_its_own() {
        let bits = AtomicBits::empty(1_024);
        for number in 0..1_024 {
            let (word, bit) = bits.place(number);
            assert_eq!(word.fetch_or(bit, Ordering::Relaxed) & bit, 0, "{number}");
        }
        let all = |word: &AtomicU64| word.load(Ordering::Relaxed) == u64::MAX;
        assert!(bits.words().all(all));
    }
}
