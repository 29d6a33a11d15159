//! A bottleneck with a finite queue: rate, bytes of queue, first in first out, tail drop; and
//! optionally marks instead of drops if the queue is too long.
//!
//! Deterministic: its only time is an argument. A super-segment is cut into its segments first,
//! each of which may be dropped, as in Linux's `tbf`.

use super::Frame;
use super::segment::{CE, NOT_ECT, ecn, internet_checksum, set_ecn};
use std::collections::VecDeque;

/// One direction of a link.
#[derive(Debug)]
pub struct Bottleneck {
    pub rate_bits_per_s: u64,
    /// Queued frames, including those on the wire, in bytes.
    pub queue_bytes: usize,
    /// Departure times of the queued frames, and their sizes.
    waiting: VecDeque<(u64, usize)>,
    backlog_bytes: usize,
    pub backlog_bytes_max: usize,
    pub passed: u64,
    pub dropped: u64,
    /// A frame that would wait longer is marked if it is ECN-capable, and dropped if not (RFC 7567
    /// section 2, RFC 3168 section 5, with the simplest rule).
    pub wait_ns_max: Option<u64>,
    pub marked: u64,
}

impl Bottleneck {
    pub fn new(rate_bits_per_s: u64, queue_bytes: usize) -> Self {
        Self {
            rate_bits_per_s,
            queue_bytes,
            waiting: VecDeque::new(),
            backlog_bytes: 0,
            backlog_bytes_max: 0,
            passed: 0,
            dropped: 0,
            wait_ns_max: None,
            marked: 0,
        }
    }

    /// The same, with a rule for long queues.
    pub fn marking(rate_bits_per_s: u64, queue_bytes: usize, wait_ns_max: u64) -> Self {
        Self {
            wait_ns_max: Some(wait_ns_max),
            ..Self::new(rate_bits_per_s, queue_bytes)
        }
    }

    /// As [`Bottleneck::pass`]; marks the frame if necessary.
    pub fn pass_frame(&mut self, now_ns: u64, frame: &mut Frame) -> Option<u64> {
        let wait_ns = self
            .waiting
            .back()
            .map_or(0, |&(left_ns, _)| left_ns.saturating_sub(now_ns));
        let long = self.wait_ns_max.is_some_and(|most| wait_ns > most);
        if long && ecn(&frame.bytes) == NOT_ECT {
            self.dropped += 1;
            return None;
        }
        let left_ns = self.pass(now_ns, frame.bytes.len())?;
        if long {
            set_ecn(&mut frame.bytes, CE);
            self.marked += 1;
        }
        Some(left_ns)
    }

    /// Bytes of the queued frames.
    pub fn backlog(&mut self, now_ns: u64) -> usize {
        while let Some(&(left_ns, len)) = self.waiting.front() {
            if left_ns > now_ns {
                break;
            }
            self.waiting.pop_front();
            self.backlog_bytes -= len;
        }
        self.backlog_bytes
    }

    /// Departure time of a frame that arrives now; none if there is no room for it.
    pub fn pass(&mut self, now_ns: u64, bytes: usize) -> Option<u64> {
        self.backlog(now_ns);
        if self.backlog_bytes + bytes > self.queue_bytes {
            self.dropped += 1;
            return None;
        }
        let free_ns = self.waiting.back().map_or(now_ns, |&(left_ns, _)| left_ns);
        let left_ns = free_ns + bytes as u64 * 8 * 1_000_000_000 / self.rate_bits_per_s;
        self.waiting.push_back((left_ns, bytes));
        self.backlog_bytes += bytes;
        self.backlog_bytes_max = self.backlog_bytes_max.max(self.backlog_bytes);
        self.passed += 1;
        Some(left_ns)
    }
}

/// The segments of a super-segment (IPv4 and TCP); other frames are returned unchanged.
pub fn segments(frame: Frame) -> Vec<Frame> {
    const IP: usize = 14;
    const TCP: usize = IP + 20;
    let Some(size) = frame.segment_bytes.map(|size| usize::from(size.get())) else {
        return vec![frame];
    };
    assert_eq!(frame.bytes[IP], 0x45, "a super-segment over IPv4");
    let payload_at = TCP + usize::from(frame.bytes[TCP + 12] >> 4) * 4;
    let sequence = u32::from_be_bytes(frame.bytes[TCP + 4..TCP + 8].try_into().expect("four"));
    let (header, payload) = frame.bytes.split_at(payload_at);
    let count = payload.chunks(size).len();
    let segment = |(at, piece): (usize, &[u8])| {
        let mut bytes = [header, piece].concat();
        let total = (bytes.len() - IP) as u16;
        bytes[IP + 2..IP + 4].copy_from_slice(&total.to_be_bytes());
        bytes[IP + 10..IP + 12].fill(0);
        let sum = internet_checksum(&bytes[IP..TCP]);
        bytes[IP + 10..IP + 12].copy_from_slice(&sum.to_be_bytes());
        let sequence = sequence.wrapping_add((at * size) as u32);
        bytes[TCP + 4..TCP + 8].copy_from_slice(&sequence.to_be_bytes());
        if at + 1 < count {
            // PSH and FIN belong to the last; CWR must not be here at all.
            assert_eq!(bytes[TCP + 13] & 0x80, 0, "CWR would be repeated");
            bytes[TCP + 13] &= !0x09;
        }
        Frame {
            bytes,
            checksum: frame.checksum,
            segment_bytes: None,
        }
    };
    payload.chunks(size).enumerate().map(segment).collect()
}
