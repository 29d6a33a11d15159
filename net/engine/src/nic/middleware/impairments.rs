//! Impairments of a link: loss, delay, reordering, duplication, corruption.

use super::{Frame, Impairment, Queue};
use crate::nic::ReceivedChecksum;
use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_random::SplitMix;

/// Drops frames.
#[derive(Debug, Clone)]
pub struct Loss {
    random: SplitMix,
    probability: f64,
    lost: u64,
}

impl Loss {
    /// Drops frames with `probability`, 0 to 1.
    #[must_use]
    pub fn new(seed: u64, probability: f64) -> Self {
        Self {
            random: SplitMix::new(seed),
            probability,
            lost: 0,
        }
    }

    /// Frames dropped so far.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost
    }
}

impl Impairment for Loss {
    fn pass(&mut self, frame: Frame, now_ns: u64, queue: &mut Queue) {
        if self.random.happens(self.probability) {
            self.lost += 1;
        } else {
            queue.put(now_ns, frame);
        }
    }
}

/// Lets later frames overtake some.
#[derive(Debug, Clone)]
pub struct Reorder {
    random: SplitMix,
    probability: f64,
    late_ns: u64,
}

impl Reorder {
    /// Delays frames by `late_ns` nanoseconds with `probability`, 0 to 1.
    #[must_use]
    pub fn new(seed: u64, probability: f64, late_ns: u64) -> Self {
        Self {
            random: SplitMix::new(seed),
            probability,
            late_ns,
        }
    }
}

impl Impairment for Reorder {
    fn pass(&mut self, frame: Frame, now_ns: u64, queue: &mut Queue) {
        let late = self.random.happens(self.probability);
        queue.put(now_ns + if late { self.late_ns } else { 0 }, frame);
    }
}

/// Duplicates frames.
#[derive(Debug, Clone)]
pub struct Duplicate {
    random: SplitMix,
    probability: f64,
}

impl Duplicate {
    /// Duplicates frames with `probability`, 0 to 1.
    #[must_use]
    pub fn new(seed: u64, probability: f64) -> Self {
        Self {
            random: SplitMix::new(seed),
            probability,
        }
    }
}

impl Impairment for Duplicate {
    fn pass(&mut self, frame: Frame, now_ns: u64, queue: &mut Queue) {
        if self.random.happens(self.probability) {
            queue.put(now_ns, frame.clone());
        }
        queue.put(now_ns, frame);
    }
}

/// Delays all frames.
#[derive(Debug, Clone)]
pub struct Delay {
    random: SplitMix,
    delay_ns: u64,
    jitter_ns: u64,
    last_due_ns: u64,
}

impl Delay {
    /// Each takes `delay_ns` nanoseconds and up to `jitter_ns` more, without reordering.
    #[must_use]
    pub fn new(seed: u64, delay_ns: u64, jitter_ns: u64) -> Self {
        Self {
            random: SplitMix::new(seed),
            delay_ns,
            jitter_ns,
            last_due_ns: 0,
        }
    }
}

impl Impairment for Delay {
    fn pass(&mut self, frame: Frame, now_ns: u64, queue: &mut Queue) {
        let due_ns = now_ns + self.delay_ns + self.random.below(self.jitter_ns.saturating_add(1));
        // Jitter alone does not reorder: that is another impairment's part.
        self.last_due_ns = self.last_due_ns.max(due_ns);
        queue.put(self.last_due_ns, frame);
    }
}

/// Flips bits.
#[derive(Debug, Clone)]
pub struct Corrupt {
    random: SplitMix,
    probability: f64,
    corrupted: u64,
}

impl Corrupt {
    /// Flips one bit behind the Ethernet header with `probability`, 0 to 1. Frames with an
    /// incomplete checksum are spared: no stack could detect the error.
    #[must_use]
    pub fn new(seed: u64, probability: f64) -> Self {
        Self {
            random: SplitMix::new(seed),
            probability,
            corrupted: 0,
        }
    }

    /// Frames corrupted so far.
    #[must_use]
    #[cfg(test)]
    pub(crate) fn corrupted(&self) -> u64 {
        self.corrupted
    }
}

impl Impairment for Corrupt {
    fn pass(&mut self, mut frame: Frame, now_ns: u64, queue: &mut Queue) {
        let body_bytes = frame.bytes.len().saturating_sub(ETHERNET_BYTES).to_u64();
        let checked = frame.checksum != ReceivedChecksum::Partial;
        if self.random.happens(self.probability) && checked && body_bytes > 0 {
            let at = ETHERNET_BYTES + self.random.below(body_bytes).to_usize();
            frame.bytes[at] ^= 1 << self.random.below(8);
            // A NIC that verified it would have found the error: the stack must look itself.
            frame.checksum = ReceivedChecksum::Unknown;
            self.corrupted += 1;
        }
        queue.put(now_ns, frame);
    }
}

/// Limits the rate to that of a wire; frames that find its queue full are lost.
#[derive(Debug, Clone)]
pub struct RateLimit {
    bits_per_second: u64,
    queue_bytes_max: u64,
    free_at_ns: u64,
    lost: u64,
}

impl RateLimit {
    /// A wire of `bits_per_second` (at least 1) with a queue of `queue_bytes_max` bytes in front.
    #[must_use]
    pub fn new(bits_per_second: u64, queue_bytes_max: u64) -> Self {
        Self {
            bits_per_second: bits_per_second.max(1),
            queue_bytes_max,
            free_at_ns: 0,
            lost: 0,
        }
    }

    /// Frames lost so far.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Nanoseconds that a frame arriving at `now_ns` waits for those before it.
    #[must_use]
    pub fn wait_ns(&self, now_ns: u64) -> u64 {
        self.free_at_ns.saturating_sub(now_ns)
    }

    /// Time at which a frame of `bytes` bytes that arrives at `now_ns` has passed; none if the
    /// queue is full and it is lost. For callers that combine this limit with other impairments.
    pub fn admit(&mut self, bytes: usize, now_ns: u64) -> Option<u64> {
        let begins_ns = self.free_at_ns.max(now_ns);
        // The queue is measured in time: what waits before this frame takes so long to pass.
        if begins_ns - now_ns > self.time_ns(self.queue_bytes_max) {
            self.lost += 1;
            return None;
        }
        self.free_at_ns = begins_ns.saturating_add(self.time_ns(bytes.to_u64()));
        Some(self.free_at_ns)
    }

    fn time_ns(&self, bytes: u64) -> u64 {
        // In 128 bits: the product of a queue of gigabytes exceeds 64.
        let ns = u128::from(bytes) * 8_000_000_000 / u128::from(self.bits_per_second);
        u64::try_from(ns).unwrap_or(u64::MAX)
    }
}

impl Impairment for RateLimit {
    fn pass(&mut self, frame: Frame, now_ns: u64, queue: &mut Queue) {
        if let Some(due_ns) = self.admit(frame.bytes.len(), now_ns) {
            queue.put(due_ns, frame);
        }
    }
}

const ETHERNET_BYTES: usize = 14;
