//! Detects sequential readers, and decides how far to read ahead of them.
//!
//! Why here: pure, so that a seeded test can drive it. Several clients, and several connections of
//! one client, may read at once, each in a stream of its own. A stream begins with exactly
//! consecutive reads; once it is established, its reads may overtake one another by
//! [`SLACK_BYTES`].
//! Must stay true: a random reader never causes read-ahead; the bytes requested ahead of a stream
//! never exceed the window limit (so that read-ahead can neither load a whole image nor flush the
//! cache); nothing is requested twice in one stream.
//!
//! The window doubles with each read that continues a stream, as the kernel's own read-ahead does.

use sidecore_bare::width::ToU64;
use std::ops::Range;

/// Streams that are tracked at once; the least recently used one makes room.
pub(crate) const STREAMS_MAX: usize = 16;

/// Reads of an established stream may be out of order by this many bytes.
pub(crate) const SLACK_BYTES: u64 = 1 << 20;

/// Exact continuations that establish a stream.
const RUN_MIN: u32 = 2;

/// A stream without a read among this many reads of all streams is taken to have ended.
const BUSY_READS: u64 = 256;

/// The first window.
const WINDOW_MIN_BYTES: u64 = 128 << 10;

#[derive(Debug, Clone, Copy, Default)]
struct Stream {
    /// Its first byte.
    start: u64,
    /// The byte after the furthest one read.
    next: u64,
    /// Bytes up to here were requested ahead of time.
    ahead: u64,
    /// Reads that continued this stream exactly.
    run: u32,
    /// Bytes that were read in it.
    read: u64,
    /// Bytes that it may read ahead from its start, earned by earlier streams.
    credit: u64,
    /// When it was last used; 0 for never.
    used: u64,
}

impl Stream {
    /// True for an established stream that was read from a short while ago.
    fn is_busy(&self, clock: u64) -> bool {
        self.used != 0 && self.run >= RUN_MIN && clock - self.used <= BUSY_READS
    }

    fn continues(&self, offset: u64) -> bool {
        let near = offset.abs_diff(self.next) <= SLACK_BYTES;
        self.used != 0 && (offset == self.next || self.run >= RUN_MIN && near)
    }
}

/// Limit of the bytes requested ahead of one stream; 0 turns read-ahead off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Window {
    /// Doubles with each read up to this: for files of this machine, where a wrong guess is cheap.
    Doubling(u64),
    /// As much as the stream has read, up to this: for remote images. There, frames fetched in vain
    /// take the link from other readers, and a long stream needs the link's whole bandwidth-delay
    /// product in flight. After a long stream the next one starts with half of the bytes that it
    /// had read, and so on: a copy goes through a disk in long pieces, several at once, while the
    /// files of a tree soon use up the rest of that credit.
    Earned(u64),
}

impl Window {
    /// Divisor: this fraction of a window is requested at a time. Half of a window that fills a
    /// link would leave the link idle until the reader has come half-way.
    fn part(self) -> u64 {
        match self {
            Self::Doubling(_) => 2,
            Self::Earned(_) => 8,
        }
    }

    fn of(self, stream: &Stream) -> u64 {
        match self {
            Self::Doubling(max) => {
                let doublings = (stream.run - RUN_MIN).min(20);
                (WINDOW_MIN_BYTES << doublings).min(max)
            }
            Self::Earned(max) => stream.read.max(stream.credit).min(max),
        }
    }
}

/// Detector of sequential readers.
#[derive(Debug, Default)]
pub(crate) struct ReadAhead {
    streams: [Stream; STREAMS_MAX],
    clock: u64,
    /// Bytes read by the longest recent stream, halved with each new one.
    credit: u64,
}

/// Classification of a read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Advice {
    /// True when the read belongs to an established stream.
    pub sequential: bool,
    /// Bytes to decompress ahead of time; empty for random readers.
    pub ahead: Range<u64>,
}

impl Advice {
    /// Nothing to read ahead.
    const fn none(sequential: bool) -> Self {
        Self {
            sequential,
            ahead: 0..0,
        }
    }
}

impl ReadAhead {
    /// Takes in a read of `len` bytes at `offset`, of a device of `size_bytes`, and returns how
    /// much of `window` to request now.
    pub(crate) fn observe(
        &mut self,
        offset: u64,
        len: u64,
        size_bytes: u64,
        window: Window,
    ) -> Advice {
        self.clock += 1;
        let clock = self.clock;
        let end = offset.saturating_add(len).min(size_bytes);
        let mut streams = self.streams.iter();
        let Some(at) = streams.position(|stream| stream.continues(offset)) else {
            self.begin_stream(offset, end, len);
            return Advice::none(false);
        };
        let stream = &mut self.streams[at];
        stream.used = clock;
        stream.read = stream.read.saturating_add(len);
        // Reads within the slack keep the stream alive, but only exact continuations establish it.
        if offset == stream.next {
            stream.run = stream.run.saturating_add(1);
        }
        stream.next = stream.next.max(end);
        if stream.run < RUN_MIN {
            return Advice::none(false);
        }
        self.credit = self.credit.max(stream.read);
        let (part, own) = (window.part(), window.of(stream));
        let window = match window {
            // Remote streams share one link, so their windows are divided among the busy ones.
            Window::Doubling(_) => own,
            Window::Earned(_) => self.shared(at, own),
        };
        let stream = &mut self.streams[at];
        let until = stream.next.saturating_add(window).min(size_bytes);
        let from = stream.ahead.max(stream.next).min(until);
        // Request a part of a window at a time rather than read by read: fewer wake-ups.
        if until - from < (window / part).max(1) && until != size_bytes {
            return Advice::none(true);
        }
        stream.ahead = stream.ahead.max(until);
        Advice {
            sequential: true,
            ahead: from..until,
        }
    }

    /// A stream that begins with the bytes from `offset` to `end`, in the place of the oldest.
    fn begin_stream(&mut self, offset: u64, end: u64, len: u64) {
        // Halved for each new stream: random reads use the credit up.
        self.credit /= 2;
        if let Some(oldest) = self.streams.iter_mut().min_by_key(|stream| stream.used) {
            *oldest = Stream {
                start: offset,
                next: end,
                ahead: end,
                run: 0,
                read: len,
                credit: self.credit,
                used: self.clock,
            };
        }
    }

    /// The share of `own` for the stream at `at`, among the streams that read at the same time.
    fn shared(&self, at: usize, own: u64) -> u64 {
        let stream = &self.streams[at];
        let others = (self.streams.iter())
            .filter(|it| it.start != stream.start && it.is_busy(self.clock))
            .map(|it| it.start);
        // All of them share one bandwidth-delay product.
        let part = own / (others.clone().count().to_u64() + 1);
        // Frames that another stream has read lately need not be fetched again.
        let begun = others.filter(|&start| start >= stream.next).min();
        begun.map_or(part, |start| part.min(start - stream.next))
    }
}
