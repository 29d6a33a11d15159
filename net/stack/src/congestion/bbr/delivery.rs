//! Samples of the delivery rate: the rate at which the network delivers sent data.
//!
//! Each transmission has to record the bytes delivered before it was sent. Instead of recording
//! this for each segment, all transmissions within a small part of a round trip (a paced burst)
//! share a mark, which is found again by the time of sending in the scoreboard. A segment's sample
//! thus begins at its mark, a little earlier than the segment itself. Must stay true: marks are
//! ordered by time, and bounded. Source: draft-cheng-iccrg-delivery-rate-estimation ("Delivery Rate
//! Estimation").

use crate::timer::{before, before_or_at};
use std::collections::VecDeque;

/// Marks of one session: two round trips of them, or more if few bursts are sent.
const MARKS_MAX: usize = 256;
/// Part of a round trip within which transmissions share a mark.
const GRAIN_DIVISOR: u32 = 128;

/// State of the connection when the first segment of a mark was sent.
#[derive(Debug, Clone, Copy)]
struct Mark {
    sent_us: u32,
    /// P.delivered, P.delivered_time and P.first_send_time.
    delivered: u64,
    delivered_us: u32,
    first_sent_us: u32,
    /// C.lost at that time.
    lost: u64,
    /// Bytes in flight with the last segment of the mark.
    in_flight: u32,
    app_limited: bool,
}

/// Rate sample of one acknowledgment.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sample {
    /// Bytes a second; 0 if the acknowledgment gives no sample.
    pub(super) rate: f64,
    /// Bytes delivered since the newest delivered segment was sent.
    pub(super) delivered: u64,
    /// C.delivered when it was sent; none if unknown.
    pub(super) prior_delivered: Option<u64>,
    /// Bytes in flight when it was sent, and lost since.
    pub(super) in_flight: u32,
    pub(super) lost: u64,
    /// It was sent while the application limited the rate.
    pub(super) app_limited: bool,
}

/// The sampler of one session; times wrap.
#[derive(Debug, Clone)]
pub(super) struct Delivery {
    /// C.delivered and C.lost, in bytes since the session began.
    pub(super) delivered: u64,
    pub(super) lost: u64,
    /// C.delivered_time and C.first_send_time.
    delivered_us: u32,
    first_sent_us: u32,
    /// C.app_limited: samples are limited by the application until this much is delivered; 0 for
    /// none.
    app_limited_until: u64,
    marks: VecDeque<Mark>,
}

impl Delivery {
    pub(super) fn new(now_us: u32) -> Self {
        Self {
            delivered: 0,
            lost: 0,
            delivered_us: now_us,
            first_sent_us: now_us,
            app_limited_until: 0,
            marks: VecDeque::with_capacity(MARKS_MAX),
        }
    }

    /// `bytes` were sent, with `before_bytes` in flight before them.
    pub(super) fn sent(&mut self, now_us: u32, before_bytes: u32, bytes: u32, round_us: u32) {
        if before_bytes == 0 {
            self.first_sent_us = now_us;
            self.delivered_us = now_us;
        }
        let (in_flight, app_limited) = (before_bytes + bytes, self.is_app_limited());
        let grain_us = round_us / GRAIN_DIVISOR;
        if let Some(last) = self.marks.back_mut()
            && (now_us == last.sent_us
                || before_bytes > 0 && now_us.wrapping_sub(last.sent_us) < grain_us)
        {
            last.in_flight = in_flight;
            last.app_limited |= app_limited;
            return;
        }
        if self.marks.len() == MARKS_MAX {
            self.marks.pop_front();
        }
        self.marks.push_back(Mark {
            sent_us: now_us,
            delivered: self.delivered,
            delivered_us: self.delivered_us,
            first_sent_us: self.first_sent_us,
            lost: self.lost,
            in_flight,
            app_limited,
        });
    }

    /// `bytes` were delivered; the newest of them were sent at `sent_us`.
    pub(super) fn delivered(
        &mut self,
        now_us: u32,
        bytes: u32,
        sent_us: Option<u32>,
        least_us: u32,
    ) -> Sample {
        self.delivered += u64::from(bytes);
        self.delivered_us = now_us;
        if self.app_limited_until != 0 && self.delivered > self.app_limited_until {
            self.app_limited_until = 0;
        }
        let Some(sent_us) = sent_us else {
            return Sample::default();
        };
        // No later sample can begin at an older mark.
        while self
            .marks
            .get(1)
            .is_some_and(|mark| before_or_at(mark.sent_us, sent_us))
        {
            self.marks.pop_front();
        }
        let mark = match self.marks.front() {
            Some(mark) if before_or_at(mark.sent_us, sent_us) => *mark,
            _ => return Sample::default(),
        };
        let send_us = sent_us.wrapping_sub(mark.first_sent_us);
        let ack_us = now_us.wrapping_sub(mark.delivered_us);
        if before(self.first_sent_us, sent_us) {
            self.first_sent_us = sent_us;
        }
        // The sample must not exceed the send rate, nor the rate of acknowledgments.
        let interval_us = send_us.max(ack_us);
        let delivered = self.delivered - mark.delivered;
        // Shorter than any round trip: the acknowledgment belongs to the first transmission.
        let known = interval_us > 0 && interval_us >= least_us;
        Sample {
            rate: if known {
                delivered as f64 * 1e6 / f64::from(interval_us)
            } else {
                0.0
            },
            delivered,
            prior_delivered: Some(mark.delivered),
            in_flight: mark.in_flight,
            lost: self.lost - mark.lost,
            app_limited: mark.app_limited,
        }
    }

    /// The application has too little to send, with `in_flight` bytes in flight.
    pub(super) fn limit(&mut self, in_flight: u32) {
        self.app_limited_until = (self.delivered + u64::from(in_flight)).max(1);
    }

    pub(super) fn is_app_limited(&self) -> bool {
        self.app_limited_until != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUND_US: u32 = 40_000;

    /// A segment a millisecond, each acknowledged a round trip later.
    #[test]
    fn a_steady_stream_tells_its_rate_across_the_clocks_wrap() {
        let start_us = u32::MAX - 100_000;
        let mut delivery = Delivery::new(start_us);
        let mut rates = Vec::new();
        for ms in 0..400_u32 {
            let now_us = start_us.wrapping_add(ms * 1_000);
            if ms >= 40 {
                let sent_us = Some(now_us.wrapping_sub(ROUND_US));
                rates.push(delivery.delivered(now_us, 1_000, sent_us, ROUND_US));
            }
            delivery.sent(now_us, ms.min(40) * 1_000, 1_000, ROUND_US);
        }
        for sample in &rates[50..] {
            assert!((0.97e6..1.03e6).contains(&sample.rate), "{sample:?}");
            assert_eq!((sample.app_limited, sample.lost), (false, 0));
        }
        assert!(delivery.marks.len() < 60);
    }

    #[test]
    fn acknowledgments_that_come_at_once_are_no_faster_than_what_was_sent() {
        let mut delivery = Delivery::new(0);
        for at in 0..20 {
            delivery.sent(at * 1_000, at * 1_000, 1_000, ROUND_US);
        }
        let sample = delivery.delivered(60_000, 20_000, Some(19_000), ROUND_US);
        assert!(sample.rate <= 20_000.0 / 0.06 + 1.0, "{sample:?}");
    }

    #[test]
    fn what_left_while_there_was_too_little_is_so_marked() {
        let mut delivery = Delivery::new(0);
        delivery.limit(0);
        delivery.sent(0, 0, 1_000, ROUND_US);
        let sample = delivery.delivered(ROUND_US, 1_000, Some(0), ROUND_US);
        assert!(sample.app_limited);
        assert!(!delivery.is_app_limited());
        delivery.sent(ROUND_US, 0, 1_000, ROUND_US);
        let sample = delivery.delivered(2 * ROUND_US, 1_000, Some(ROUND_US), ROUND_US);
        assert!(!sample.app_limited);
    }

    #[test]
    fn marks_are_bounded() {
        let mut delivery = Delivery::new(0);
        for at in 0..10_000 {
            delivery.sent(at * 1_000, 1_000, 1_000, ROUND_US);
        }
        assert_eq!(delivery.marks.len(), MARKS_MAX);
        // Its mark was dropped.
        assert!(delivery.delivered(1, 1_000, Some(0), 1).rate < 1.0);
    }
}
