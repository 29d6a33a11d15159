//! Time that a session had data to send, and its limit: the peer's window, or the send buffer.
//!
//! Linux's `tcpi_busy_time`, `tcpi_rwnd_limited` and `tcpi_sndbuf_limited`. Why opt-in: counting
//! would touch a cold line at each request and each reply, so it begins when the application first
//! reads the session's status, or when a limit is first reached. Must stay true: the time is
//! counted in one state at a time, and a limited session is busy.

use super::Session;
use crate::buffer::NONE;
use crate::state::flags::{Flags, SendTail};
use crate::state::hot::State;

/// State in which the session's time is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Now {
    /// Nothing to send or unacknowledged.
    #[default]
    Idle,
    /// Data to send, limited by the congestion window only.
    Busy,
    /// The peer's window is the limit.
    Window,
    /// The send buffer has no unsent data, and the application waits for room in it.
    Buffer,
}

/// The counters of one session, in nanoseconds.
#[derive(Debug, Clone, Default)]
pub(crate) struct Chronograph {
    now: Now,
    since_ns: u64,
    busy_ns: u64,
    window_ns: u64,
    buffer_ns: u64,
}

impl Chronograph {
    fn switch(&mut self, to: Now, now_ns: u64) {
        let passed_ns = now_ns.saturating_sub(self.since_ns);
        self.since_ns = now_ns;
        match self.now {
            Now::Idle => {}
            Now::Busy => self.busy_ns += passed_ns,
            Now::Window => self.window_ns += passed_ns,
            Now::Buffer => self.buffer_ns += passed_ns,
        }
        self.now = to;
    }

    /// The times until `now_ns`.
    pub(crate) fn times(&mut self, now_ns: u64) -> Times {
        self.switch(self.now, now_ns);
        Times {
            busy_us: (self.busy_ns + self.window_ns + self.buffer_ns) / 1_000,
            window_us: self.window_ns / 1_000,
            buffer_us: self.buffer_ns / 1_000,
        }
    }
}

/// Times of a session in microseconds, for [`crate::SessionInfo`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Times {
    pub(crate) busy_us: u64,
    pub(crate) window_us: u64,
    pub(crate) buffer_us: u64,
}

impl Session<'_> {
    /// Starts counting.
    pub(crate) fn start_chronograph(&mut self) {
        if self.cold.chronograph.is_none() {
            self.path.tail.set(SendTail::TIMED);
            self.cold.chronograph = Some(Box::new(Chronograph {
                since_ns: self.common.now_ns,
                ..Chronograph::default()
            }));
            self.count_time();
        }
    }

    /// Updates the state. Called after a possible change: after output, and after an
    /// acknowledgment.
    #[cold]
    pub(crate) fn count_time(&mut self) {
        let sends = self.hot.state().sends() || self.hot.state() == State::SynSent;
        let unsent = if sends { self.hot.unsent() } else { 0 };
        let flying = self.hot.send.in_flight() > 0 && self.hot.state().is_synchronized();
        let window = self.hot.send.left();
        // A segment that does not fit the window is held back by it, even if some bytes would fit.
        let held = unsent > 0 && window < unsent.min(usize::from(self.hot.mss));
        let pipe = self.pipe();
        // The congestion window has room, or nothing is in flight: then only the peer's window is
        // left.
        let now = if held && (pipe < self.hot.send.cwnd || !flying) {
            Now::Window
        } else if unsent == 0
            && flying
            && self.hot.has(Flags::WANTS_ROOM)
            && (pipe < self.hot.send.cwnd || self.hot.scoreboard == NONE)
        {
            Now::Buffer
        } else if unsent > 0 || flying {
            Now::Busy
        } else {
            Now::Idle
        };
        let now_ns = self.common.now_ns;
        if let Some(chronograph) = &mut self.cold.chronograph
            && chronograph.now != now
        {
            chronograph.switch(now, now_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limited_session_is_busy_and_each_time_counts_once() {
        let mut chronograph = Chronograph::default();
        for (to, at_us) in [
            (Now::Busy, 10),
            (Now::Window, 30),
            (Now::Buffer, 60),
            (Now::Idle, 100),
        ] {
            chronograph.switch(to, at_us * 1_000);
        }
        let expected = Times {
            busy_us: 90,
            window_us: 30,
            buffer_us: 40,
        };
        assert_eq!(chronograph.times(500_000), expected);
    }
}
