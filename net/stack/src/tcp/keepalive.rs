//! Keepalive: probes of a peer that is silent.
//!
//! Source: RFC 9293 section 3.8.4.

use crate::shared::config;
use crate::wire::sequence::Sequence;

/// Least time until an idle session is checked again.
const CHECK_MS_MIN: u32 = 1_000;

/// A session's parameters, and the probes without an answer.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Keepalive {
    config: config::Keepalive,
    unanswered: u8,
}

/// Next step of an expired keepalive timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// It runs for this time again.
    Wait { ms: u32 },
    /// A probe is sent; it runs for this time again.
    Probe { ms: u32 },
    /// The peer is gone.
    Abort,
}

impl Keepalive {
    /// Sets the parameters.
    pub(crate) fn configure(&mut self, config: config::Keepalive) {
        self.config = config;
    }

    /// Silence before the first probe.
    pub(crate) fn idle_ms(&self) -> u32 {
        self.config.idle_s.saturating_mul(1_000)
    }

    /// The peer has sent something.
    #[inline]
    pub(crate) fn answered(&mut self) {
        self.unanswered = 0;
    }

    /// The timer has expired after `silent_ms` without a segment; `outstanding`: data is in flight,
    /// whose retransmissions are probes enough.
    pub(crate) fn expired(&mut self, silent_ms: u32, outstanding: bool) -> Step {
        let idle_ms = self.idle_ms();
        let early = silent_ms < idle_ms && self.unanswered == 0;
        if outstanding || early {
            let ms = idle_ms.saturating_sub(silent_ms).max(CHECK_MS_MIN);
            return Step::Wait { ms };
        }
        if self.unanswered >= self.config.probes {
            return Step::Abort;
        }
        self.unanswered += 1;
        Step::Probe {
            ms: self.config.interval_s.saturating_mul(1_000),
        }
    }
}

// The user timeout: the longest time that data may stay unacknowledged.
//
// Source: RFC 9293 section 3.8.3, RFC 5482.

/// The application's limit, and the data that is measured against it; milliseconds that wrap.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct UserTimeout {
    /// 0 for the default: a number of retransmissions.
    ms: u32,
    /// First number that timers found unacknowledged, and since when.
    stalled: Option<(Sequence, u32)>,
}

impl UserTimeout {
    /// Sets the limit; 0 for the default.
    pub(crate) fn set(&mut self, ms: u32) {
        self.ms = ms;
    }

    /// The limit, if the application has set one.
    pub(crate) fn limit_ms(&self) -> Option<u32> {
        (self.ms > 0).then_some(self.ms)
    }

    /// True if a timer has found this number unacknowledged before.
    pub(crate) fn knows(&self, una: Sequence) -> bool {
        self.stalled.is_some_and(|(of, _)| of == una)
    }

    /// Records that this number is unacknowledged since `since_ms`.
    pub(crate) fn note(&mut self, una: Sequence, since_ms: u32) {
        self.stalled = Some((una, since_ms));
    }

    /// Time since when `una` is unacknowledged; 0 before a timer has checked.
    pub(crate) fn stalled_ms(&self, una: Sequence, now_ms: u32) -> u32 {
        match self.stalled {
            Some((of, since_ms)) if of == una => now_ms.wrapping_sub(since_ms),
            _ => 0,
        }
    }

    /// A timeout in microseconds, or the end of the user timeout if that is earlier.
    pub(crate) fn bounded_us(&self, timeout_us: u32, una: Sequence, now_ms: u32) -> u32 {
        match self.limit_ms() {
            None => timeout_us,
            Some(limit_ms) => {
                // Never 0: the timer would be due before anything is sent.
                let left_ms = limit_ms.saturating_sub(self.stalled_ms(una, now_ms)).max(1);
                timeout_us.min(left_ms.saturating_mul(1_000))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_peer_is_probed_and_then_given_up() {
        let mut keepalive = Keepalive::default();
        keepalive.configure(config::Keepalive {
            idle_s: 10,
            interval_s: 2,
            probes: 2,
        });
        assert_eq!(keepalive.expired(4_000, false), Step::Wait { ms: 6_000 });
        assert_eq!(keepalive.expired(10_000, true), Step::Wait { ms: 1_000 });
        assert_eq!(keepalive.expired(10_000, false), Step::Probe { ms: 2_000 });
        assert_eq!(keepalive.expired(12_000, false), Step::Probe { ms: 2_000 });
        assert_eq!(keepalive.expired(14_000, false), Step::Abort);
        keepalive.answered();
        assert_eq!(keepalive.expired(10_000, false), Step::Probe { ms: 2_000 });
    }

    #[test]
    fn a_timer_is_no_later_than_the_end_of_the_limit() {
        let (mut timeout, una) = (UserTimeout::default(), Sequence::new(7));
        timeout.note(una, u32::MAX - 99);
        assert!(timeout.knows(una) && !timeout.knows(una + 1));
        assert_eq!(timeout.stalled_ms(una, 100), 200);
        assert_eq!(timeout.bounded_us(900_000, una, 100), 900_000);
        timeout.set(500);
        assert_eq!(timeout.bounded_us(900_000, una, 100), 300_000);
        assert_eq!(timeout.bounded_us(900_000, una, 900), 1_000);
        assert_eq!(
            timeout.bounded_us(900_000, una + 1, 100),
            500_000,
            "other data"
        );
    }
}
