//! The bytes that are sent where what arrives is compared.
//!
//! Must stay true: the pattern repeats with a prime period far longer than any window, so that
//! bytes which arrive in a wrong place, twice or not at all differ from what is expected there.

use sidecore_random::SplitMix;
use std::sync::OnceLock;

/// An endless stream of known bytes.
pub(super) struct Pattern(Vec<u8>);

impl Pattern {
    /// The shared instance; made on first use.
    pub(super) fn get() -> &'static Self {
        static PATTERN: OnceLock<Pattern> = OnceLock::new();
        PATTERN.get_or_init(|| {
            let mut random = SplitMix::new(PERIOD as u64);
            Self((0..PERIOD).map(|_| random.bits() as u8).collect())
        })
    }

    /// Some bytes of the stream from `offset` on: at least one, at most `most` where that is not 0.
    pub(super) fn from(&self, offset: u64, most: usize) -> &[u8] {
        let at = (offset % PERIOD as u64) as usize;
        &self.0[at..at.saturating_add(most).min(PERIOD)]
    }

    /// True if the stream has these bytes from `offset` on.
    pub(super) fn has(&self, mut offset: u64, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            let expected = self.from(offset, bytes.len());
            let (now, rest) = bytes.split_at(expected.len());
            if now != expected {
                return false;
            }
            offset += now.len() as u64;
            bytes = rest;
        }
        true
    }
}

/// Period of the pattern in bytes: a prime.
const PERIOD: usize = 16_777_213;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_in_a_wrong_place_are_seen() {
        let pattern = Pattern::get();
        let end = PERIOD as u64 - 3;
        let mut bytes = pattern.from(end, 100).to_vec();
        assert_eq!(bytes.len(), 3);
        bytes.extend(pattern.from(0, 50));
        assert!(pattern.has(end, &bytes));
        assert!(!pattern.has(end + 1, &bytes));
        bytes[20] ^= 1;
        assert!(!pattern.has(end, &bytes));
    }
}
