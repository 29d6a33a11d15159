//! Keepalive: probes of a peer that is silent.
//!
//! Source: RFC 9293 section 3.8.4.

use crate::shared::config;

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
}
