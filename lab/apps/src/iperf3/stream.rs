//! One stream of a test: its counts, and the time at which more is due.
//!
//! Datagrams begin with the sender's clock (seconds, microseconds) and their number, from 1 on, 32
//! or 64 bits, all big-endian. Source: the protocol as iperf 3.12 speaks it, observed; RFC 1889
//! section 6.3.1 for jitter.

use sidecore_net::sock::client::Socket;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

/// Transport endpoint of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Endpoint {
    Session(Socket),
    /// Of datagrams; all of a family share a socket.
    Peer(Socket, SocketAddr),
    /// Already released.
    None,
}

#[derive(Debug)]
pub(super) struct Stream {
    pub(super) place: Endpoint,
    /// Clients open them in the order in which they count them.
    pub(super) serial: u64,
    /// True if the server sends on this stream.
    pub(super) sends: bool,
    pub(super) bytes: u64,
    /// Datagrams: the highest number.
    pub(super) packets: u64,
    pub(super) lost: u64,
    /// In seconds.
    pub(super) jitter: f64,
    transit: Option<f64>,
}

impl Stream {
    pub(super) fn new(place: Endpoint, serial: u64) -> Self {
        Self {
            place,
            serial,
            sends: false,
            bytes: 0,
            packets: 0,
            lost: 0,
            jitter: 0.0,
            transit: None,
        }
    }

    /// True if another `bytes` are due `elapsed` after the start, at `bandwidth` bits per second.
    pub(super) fn is_due(&self, bytes: usize, elapsed: Duration, bandwidth: f64) -> bool {
        let sent_bits = (self.bytes + bytes as u64) as f64 * 8.0;
        bandwidth <= 0.0 || sent_bits <= elapsed.as_secs_f64() * bandwidth
    }

    /// Writes the head of the next datagram.
    pub(super) fn head(&mut self, datagram: &mut [u8], wide: bool) {
        self.packets += 1;
        let now = now();
        datagram[..4].copy_from_slice(&(now.as_secs() as u32).to_be_bytes());
        datagram[4..8].copy_from_slice(&now.subsec_micros().to_be_bytes());
        if wide {
            datagram[8..16].copy_from_slice(&self.packets.to_be_bytes());
        } else {
            datagram[8..12].copy_from_slice(&(self.packets as u32).to_be_bytes());
        }
    }

    /// Takes a datagram; one without a whole head is ignored.
    pub(super) fn take(&mut self, datagram: &[u8], wide: bool) {
        let half = |at: usize| -> Option<u64> {
            let bytes: &[u8; 4] = datagram.get(at..)?.first_chunk()?;
            Some(u32::from_be_bytes(*bytes).into())
        };
        let number = if wide {
            half(8).zip(half(12)).map(|(high, low)| high << 32 | low)
        } else {
            half(8)
        };
        let (Some(seconds), Some(micros), Some(number)) = (half(0), half(4), number) else {
            return;
        };
        self.bytes += datagram.len() as u64;
        if number > self.packets {
            self.lost += number - self.packets - 1;
            self.packets = number;
        } else {
            // Late, not lost.
            self.lost = self.lost.saturating_sub(1);
        }
        // Clocks of two machines differ; a constant difference does not matter.
        let transit = now().as_secs_f64() - (seconds as f64 + micros as f64 / 1e6);
        if let Some(last) = self.transit.replace(transit) {
            self.jitter += ((transit - last).abs() - self.jitter) / 16.0;
        }
    }
}

fn now() -> Duration {
    // A clock before 1970 is as good as that.
    SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default()
}

/// Reply to the datagram by which a client opens a UDP stream, in the client's byte order; none for
/// any other datagram. Older clients send another word.
pub(super) fn greeting(datagram: &[u8]) -> Option<[u8; 4]> {
    let said: [u8; 4] = datagram.try_into().ok()?;
    let little = u32::from_le_bytes(said);
    let (number, big) = if [HELLO, OLD_HELLO].contains(&little) {
        (little, false)
    } else {
        (u32::from_be_bytes(said), true)
    };
    let answer = match number {
        HELLO => WELCOME,
        OLD_HELLO => OLD_WELCOME,
        _ => return None,
    };
    Some(if big {
        answer.to_be_bytes()
    } else {
        answer.to_le_bytes()
    })
}

const HELLO: u32 = 0x3637_3839;
const WELCOME: u32 = 0x3938_3736;
const OLD_HELLO: u32 = 123_456_789;
const OLD_WELCOME: u32 = 987_654_321;

#[cfg(test)]
mod tests {
    use super::*;

    fn stream() -> Stream {
        Stream::new(Endpoint::None, 0)
    }

    #[test]
    fn what_is_missing_and_what_is_late_is_counted() {
        for wide in [false, true] {
            let (mut from, mut to) = (stream(), stream());
            let mut datagrams = [[0; 100]; 6];
            for datagram in &mut datagrams {
                from.head(datagram, wide);
            }
            for at in [0, 1, 4, 3] {
                to.take(&datagrams[at], wide);
            }
            assert_eq!((to.packets, to.lost, to.bytes), (5, 1, 400));
            to.take(&[0; 7], wide);
            assert_eq!(to.bytes, 400, "no head");
            assert!(to.jitter < 1.0);
        }
    }

    #[test]
    fn bytes_are_due_at_their_rate() {
        let mut stream = stream();
        let second = Duration::from_secs(1);
        assert!(stream.is_due(1000, second, 8_000.0));
        assert!(!stream.is_due(1001, second, 8_000.0));
        stream.bytes = 1_000_000;
        assert!(!stream.is_due(1, second, 8_000.0));
        assert!(stream.is_due(1, Duration::ZERO, 0.0));
    }

    #[test]
    fn greetings_are_answered_in_the_clients_order_of_bytes() {
        assert_eq!(greeting(b"9876"), Some(*b"6789"));
        assert_eq!(greeting(b"6789"), Some(*b"9876"));
        assert_eq!(
            greeting(&OLD_HELLO.to_be_bytes()),
            Some(OLD_WELCOME.to_be_bytes())
        );
        assert_eq!(greeting(b"98765"), None);
        assert_eq!(greeting(b"hell"), None);
    }
}
