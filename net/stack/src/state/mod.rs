//! Memory and look-up of the sessions' state.
//!
//! Why here: a packet of an established session needs two lines ([`hot::Hot`]) and one more for its
//! ends ([`hot::Path`]); everything else is [`crate::tcp::cold::Cold`]. The first
//! [`LOCAL_SESSIONS`] control blocks are in the local store, with the lookup tags of as many
//! recently used sessions; the others are in main memory and are prefetched, a receive batch at a
//! time, before they are used. On an engine with coherent memory, a DMA `get` is such a borrow
//! after a prefetch.
//! Source: the fifth document, section 4.3 (its two configurations).

use crate::timer::before;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

pub(crate) mod ecn;
pub(crate) mod flags;
pub(crate) mod hot;
pub(crate) mod rtt;
pub(crate) mod store;
pub(crate) mod table;
pub(crate) mod window;

/// Control blocks that the local store holds: 128 KiB of it.
pub const LOCAL_SESSIONS: usize = 1024;

// Timestamps of a session: the clock that ours show, and the newest of the peer's.
//
// Source: RFC 7323 sections 4 and 5.

/// Valid if the option was negotiated; all in milliseconds that wrap.
#[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct Timestamps {
    /// RFC 7323's TS.Recent.
    pub(crate) recent: u32,
    /// Offset of our timestamps from the millisecond clock (section 5.4).
    pub(crate) offset: u32,
}

impl Timestamps {
    /// Our timestamp at `now_ms`.
    #[inline]
    pub(crate) fn at(&self, now_ms: u32) -> u32 {
        now_ms.wrapping_add(self.offset)
    }

    /// Our timestamp in a segment sent at `sent_us`, at most 71 minutes before `now_ns`.
    pub(crate) fn of_segment(&self, sent_us: u32, now_us: u32, now_ns: u64) -> u32 {
        let age_us = u64::from(now_us.wrapping_sub(sent_us));
        let sent_ms = (now_ns / 1_000).wrapping_sub(age_us) / 1_000;
        // The millisecond clock is the low half of the time.
        self.at(sent_ms as u32)
    }

    /// True if the peer's timestamp is older than the newest one (section 5.3 R1).
    #[inline]
    pub(crate) fn is_old(&self, value: u32) -> bool {
        before(value, self.recent)
    }

    /// The peer's bytes came without a segment, whose timestamp would have been `value`: keeps the
    /// newest one within [`LAG_MS`] of it. Not nearer, so that segments that are still on the way
    /// are not old.
    #[inline]
    pub(crate) fn keep_up(&mut self, value: u32) {
        // Unsigned: the newest one is never ahead, and may be more than 2^31 behind.
        if value.wrapping_sub(self.recent) > LAG_MS {
            self.recent = value.wrapping_sub(LAG_MS);
        }
    }
}

/// Age of a timestamp that a segment on its way may have, in milliseconds.
const LAG_MS: u32 = 60_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_has_the_timestamp_of_its_sending() {
        let stamps = Timestamps {
            recent: u32::MAX,
            offset: 7,
        };
        let now_ns = 5_000_000_000_u64;
        let now_us = (now_ns / 1_000) as u32;
        assert_eq!(stamps.of_segment(now_us, now_us, now_ns), stamps.at(5_000));
        assert_eq!(stamps.of_segment(now_us - 2_500, now_us, now_ns), 5_004);
        assert!(!stamps.is_old(3) && !stamps.is_old(u32::MAX) && stamps.is_old(u32::MAX - 1));
    }

    #[test]
    fn the_newest_timestamp_keeps_up_with_bytes_without_segments() {
        let mut stamps = Timestamps::default();
        for value in [LAG_MS, 3_000_000_000, 5_000_000, 5_000_000 + LAG_MS] {
            stamps.keep_up(value);
            let lag_ms = value.wrapping_sub(stamps.recent);
            assert_eq!(lag_ms, LAG_MS, "{value}");
            assert!(!stamps.is_old(value));
        }
        let before = stamps.recent;
        stamps.keep_up(before + 1);
        assert_eq!(stamps.recent, before);
    }
}
