//! Polling before a sleep, where it has paid lately.
//!
//! Why here: an engine or an application that polls answers sooner than one that must be woken, but
//! takes a core for it that a neighbour may want. EDTLP's rule gives a core away at once where the
//! next event is far off; this is the same rule for waits instead of loops. A waiter that polls no
//! longer than a wake-up costs loses at most as much as it could have won. So the caller's limit is
//! about that long, and this type says whether the waits that ended within it are frequent enough
//! to poll at all.
//! Must stay true: a sleeper's own wait says little, since its wake-up is in it; so some waits poll
//! all the same, as probes. Source: Karlin, Li, Manasse and Owicki, "Empirical studies of
//! competitive spinning for a shared-memory multiprocessor" (1991), section 4, for the rule; own
//! for the probes.

/// Judgement of one waiter's waits.
///
/// ```
/// use sidecore_sched::Patience;
///
/// let mut patience = Patience::default();
/// assert!(patience.polls());
/// for _ in 0..10 {
///     // Nothing came within the limit.
///     patience.ended(true, false);
/// }
/// assert!(!patience.polls());
/// ```
#[derive(Debug, Clone)]
pub struct Patience {
    /// Share of the waits that ended within the limit, of [`WHOLE`].
    soon: u32,
    /// Waits since one polled.
    slept: u32,
}

impl Default for Patience {
    /// One that polls until the measured waits show that polling does not pay.
    fn default() -> Self {
        Self {
            soon: WHOLE,
            slept: 0,
        }
    }
}

impl Patience {
    /// Says for the wait that begins now whether to poll, for at most the caller's limit.
    pub fn polls(&mut self) -> bool {
        self.slept += 1;
        self.soon >= WHOLE / 2 || self.slept >= PROBE_EVERY
    }

    /// A wait ended: `polled` as [`Self::polls`] had said, `soon` if it took less than the limit.
    pub fn ended(&mut self, polled: bool, soon: bool) {
        // A sleeper's long wait has its wake-up in it: it does not say that polling would have
        // failed.
        if !polled && !soon {
            return;
        }
        let paid = self.soon >= WHOLE / 2;
        let weight = if paid { WEIGHT } else { PROBE_WEIGHT };
        let now = if soon { WHOLE } else { 0 };
        // Signed, so that it can go down.
        let step = (i64::from(now) - i64::from(self.soon)) / weight;
        self.soon = (i64::from(self.soon) + step).clamp(0, i64::from(WHOLE)) as u32;
        if polled {
            self.slept = 0;
        }
    }
}

const WHOLE: u32 = 1 << 16;
/// Six waits in a row that were too long end the polling.
const WEIGHT: i64 = 8;
/// Three probes in a row that paid begin it.
const PROBE_WEIGHT: i64 = 4;
/// A sleeper's wait that polls all the same: the limit's part of them is not worth mentioning.
const PROBE_EVERY: u32 = 32;

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of waits that poll, one wait per given gap.
    fn polled(patience: &mut Patience, gaps_us: impl Iterator<Item = u64>) -> usize {
        let mut count = 0;
        for gap_us in gaps_us {
            let polls = patience.polls();
            count += usize::from(polls);
            // A sleeper is woken late.
            let taken_us = if polls { gap_us } else { gap_us + 30 };
            patience.ended(polls, taken_us < 20);
        }
        count
    }

    #[test]
    fn short_waits_are_polled_and_long_ones_slept() {
        let mut patience = Patience::default();
        assert_eq!(polled(&mut patience, (0..1000).map(|_| 5)), 1000);
        let long = polled(&mut patience, (0..1000).map(|_| 100));
        assert!((6..6 + 1000 / 32 + 2).contains(&long), "{long}");
        // The probes find out that they are short again.
        let short = polled(&mut patience, (0..1000).map(|_| 5));
        assert!(short > 1000 - 4 * 32, "{short}");
    }

    #[test]
    fn a_few_long_waits_among_short_ones_change_nothing() {
        let mut patience = Patience::default();
        let gaps = (0..1000).map(|number| if number % 4 == 0 { 500 } else { 5 });
        assert_eq!(polled(&mut patience, gaps), 1000);
        let gaps = (0..1000).map(|number| if number % 4 == 0 { 5 } else { 500 });
        let mostly_long = polled(&mut patience, gaps);
        assert!(mostly_long < 200, "{mostly_long}");
    }
}
