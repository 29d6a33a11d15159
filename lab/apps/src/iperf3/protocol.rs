//! Messages of iperf3's control session.
//!
//! Source: the protocol as iperf 3.12 speaks it, observed.

use serde::{Deserialize, Serialize};

/// Test parameters that a client sends; iperf3 leaves out fields that are 0 or false.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Parameters {
    pub(super) tcp: bool,
    pub(super) udp: bool,
    pub(super) parallel: Option<usize>,
    pub(super) reverse: bool,
    pub(super) bidirectional: bool,
    /// Of a datagram, in bytes.
    pub(super) len: Option<usize>,
    /// Of each stream, in bits a second; 0 for as many as there can be.
    pub(super) bandwidth: f64,
    udp_counters_64bit: u8,
}

impl Parameters {
    /// True if this server supports the parameters.
    pub(super) fn is_possible(&self) -> bool {
        let streams = self.parallel() <= STREAMS_MAX;
        let datagrams = !self.sends() || LENGTHS.contains(&self.datagram_bytes());
        let one = !(self.reverse && self.bidirectional);
        self.tcp != self.udp && streams && one && (self.tcp || datagrams)
    }

    fn parallel(&self) -> usize {
        self.parallel.unwrap_or(1).max(1)
    }

    /// Streams in all.
    pub(super) fn streams(&self) -> usize {
        self.parallel() * if self.bidirectional { 2 } else { 1 }
    }

    /// True if the server sends on at least one stream.
    pub(super) fn sends(&self) -> bool {
        self.reverse || self.bidirectional
    }

    /// True if the server sends on stream number `stream`: in a bidirectional test the client's
    /// sending streams come first.
    pub(super) fn sends_on(&self, stream: usize) -> bool {
        self.reverse || self.bidirectional && stream >= self.parallel()
    }

    pub(super) fn datagram_bytes(&self) -> usize {
        self.len.unwrap_or(0)
    }

    /// True if UDP sequence numbers are 64 bits wide (`--udp-counters-64bit`).
    pub(super) fn counts_wide(&self) -> bool {
        self.udp_counters_64bit != 0
    }
}

/// Results that each side sends at the end of a test.
#[derive(Serialize)]
pub(super) struct Results {
    pub(super) cpu_util_total: f64,
    pub(super) cpu_util_user: f64,
    pub(super) cpu_util_system: f64,
    /// 0: retransmissions are not reported; -1: this side does not send.
    pub(super) sender_has_retransmits: i32,
    pub(super) congestion_used: &'static str,
    pub(super) streams: Vec<StreamResults>,
}

#[derive(Serialize)]
pub(super) struct StreamResults {
    pub(super) id: usize,
    pub(super) bytes: u64,
    pub(super) retransmits: i32,
    /// In seconds.
    pub(super) jitter: f64,
    pub(super) errors: u64,
    pub(super) packets: u64,
    pub(super) start_time: f64,
    pub(super) end_time: f64,
}

impl Results {
    /// Behind their length.
    pub(super) fn message(&self) -> Vec<u8> {
        // Numbers and short texts: nothing in it can fail to be written.
        let text = serde_json::to_vec(self).unwrap_or_default();
        let mut bytes = (text.len() as u32).to_be_bytes().to_vec();
        bytes.extend(text);
        bytes
    }
}

/// Takes a message from the front of the input, if all of it is there.
pub(super) fn message(said: &mut Vec<u8>) -> Option<Vec<u8>> {
    let length = u32::from_be_bytes(*said.first_chunk()?) as usize;
    let end = length.checked_add(4).filter(|&end| end <= said.len())?;
    let rest = said.split_off(end);
    let mut message = std::mem::replace(said, rest);
    message.drain(..4);
    Some(message)
}

pub(super) const TEST_START: u8 = 1;
pub(super) const TEST_RUNNING: u8 = 2;
pub(super) const TEST_END: u8 = 4;
pub(super) const PARAM_EXCHANGE: u8 = 9;
pub(super) const CREATE_STREAMS: u8 = 10;
pub(super) const EXCHANGE_RESULTS: u8 = 13;
pub(super) const DISPLAY_RESULTS: u8 = 14;
pub(super) const ACCESS_DENIED: u8 = 0xff;
pub(super) const SERVER_ERROR: u8 = 0xfe;
/// The client says "an option you are trying to set is not implemented yet".
pub(super) const UNIMPLEMENTED: u8 = 13;
/// 36 letters and a zero.
pub(super) const COOKIE_BYTES: usize = 37;
/// The longest message that a client may send, in bytes.
pub(super) const MESSAGE_BYTES_MAX: usize = 64 << 10;
/// As many as iperf3 itself allows.
const STREAMS_MAX: usize = 128;
/// Of datagrams that we send: a head at least, and no more than IPv4 carries.
const LENGTHS: std::ops::RangeInclusive<usize> = 16..=65_507;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_taken_whole_or_not_at_all() {
        let mut said = vec![0, 0, 0, 3, b'a', b'b'];
        assert_eq!(message(&mut said), None);
        said.extend(b"cd");
        assert_eq!(message(&mut said).unwrap(), b"abc");
        assert_eq!(said, b"d");
        let mut said = vec![0xff; 8];
        assert_eq!(message(&mut said), None, "a length that nobody keeps");
    }

    fn parameters(text: &str) -> Parameters {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn what_a_client_leaves_out_is_its_default() {
        let text = r#"{"tcp":true,"omit":0,"time":1,"len":131072,"pacing_timer":1000}"#;
        let parameters = parameters(text);
        assert!(parameters.tcp && !parameters.reverse && parameters.parallel.is_none());
        assert!(parameters.is_possible() && !parameters.sends());
    }

    #[test]
    fn of_both_ways_the_first_streams_are_the_clients() {
        let text =
            r#"{"udp":true,"parallel":2,"bidirectional":true,"len":1448,"bandwidth":1048576}"#;
        let parameters = parameters(text);
        assert_eq!(parameters.streams(), 4);
        let sends: Vec<bool> = (0..4).map(|it| parameters.sends_on(it)).collect();
        assert_eq!(sends, [false, false, true, true]);
    }

    #[test]
    fn what_cannot_be_done_is_said() {
        for text in [
            r#"{"sctp":true}"#,
            r#"{"tcp":true,"udp":true}"#,
            r#"{"tcp":true,"parallel":129}"#,
            r#"{"udp":true,"reverse":true,"len":8}"#,
            r#"{"udp":true,"reverse":true,"len":65508}"#,
        ] {
            assert!(!parameters(text).is_possible(), "{text}");
        }
    }
}
