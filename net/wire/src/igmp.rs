//! IGMP messages: membership of IPv4 groups.
//!
//! Hosts here use version 2; queries of all three versions are parsed, since routers of version 3
//! accept reports of version 2 (RFC 3376 section 7.3.2). Must stay true: a [`Message`] had the
//! right checksum, and its group is a multicast or the unspecified address. Source: RFC 2236
//! section 2, RFC 1112 appendix I, RFC 3376 sections 4.1 and 7.1.
//!
//! ```
//! use sidecore_net_wire::igmp::Message;
//!
//! let report = Message::ReportV2([224, 0, 0, 99]);
//! let mut bytes = report.to_bytes();
//! assert_eq!(Message::parse(&bytes), Some(report));
//! bytes[7] ^= 1; // the checksum no longer holds
//! assert_eq!(Message::parse(&bytes), None);
//! ```

use crate::checksum::Sum;
use std::net::Ipv4Addr;

/// Bytes of every message of versions 1 and 2.
pub const BYTES: usize = 8;
/// The shortest query of version 3, without sources.
const QUERY_V3_BYTES: usize = 12;

/// A message between hosts and routers. The group is as in the packet: `0.0.0.0` or one of
/// `224.0.0.0/4`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message {
    /// A router queries members of the group, or of all groups if it is unspecified.
    Query {
        /// Queried group.
        group: [u8; 4],
        /// Maximum response code: tenths of a second below 128. 0 comes from version 1.
        response_code: u8,
    },
    /// A host is a member of the group; version 1.
    ReportV1([u8; 4]),
    /// A host is a member of the group; version 2.
    ReportV2([u8; 4]),
    /// A host has left the group.
    Leave([u8; 4]),
}

impl Message {
    /// Parses the whole payload of an IPv4 packet. `None` for a short message, a wrong checksum, an
    /// address that is not a group, an unknown type, and a query with a length of no version.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let &[kind, response_code, _, _, a, b, c, d, ref rest @ ..] = bytes else {
            return None;
        };
        if !Sum::of(bytes).is_right() {
            return None;
        }
        let group = [a, b, c, d];
        let address = Ipv4Addr::from(group);
        if !address.is_unspecified() && !address.is_multicast() {
            return None;
        }
        match kind {
            // RFC 3376 section 7.1: lengths between those of versions 2 and 3 are invalid.
            QUERY if rest.is_empty() || bytes.len() >= QUERY_V3_BYTES => Some(Self::Query {
                group,
                response_code,
            }),
            REPORT_V1 => Some(Self::ReportV1(group)),
            REPORT_V2 => Some(Self::ReportV2(group)),
            LEAVE => Some(Self::Leave(group)),
            _ => None,
        }
    }

    /// The message as bytes on the wire, with its checksum.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; BYTES] {
        let (kind, response_code, group) = match *self {
            Self::Query {
                group,
                response_code,
            } => (QUERY, response_code, group),
            Self::ReportV1(group) => (REPORT_V1, 0, group),
            Self::ReportV2(group) => (REPORT_V2, 0, group),
            Self::Leave(group) => (LEAVE, 0, group),
        };
        let [a, b, c, d] = group;
        let sum = Sum::of(&[kind, response_code, 0, 0, a, b, c, d]);
        let [high, low] = sum.field();
        [kind, response_code, high, low, a, b, c, d]
    }
}

const QUERY: u8 = 0x11;
const REPORT_V1: u8 = 0x12;
const REPORT_V2: u8 = 0x16;
const LEAVE: u8 = 0x17;

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: [u8; 4] = [224, 0, 0, 99];

    /// A query of `len` bytes with a correct checksum.
    fn query(len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        (bytes[0], bytes[1]) = (QUERY, 100);
        let field = Sum::of(&bytes).field();
        bytes[2..4].copy_from_slice(&field);
        bytes
    }

    #[test]
    fn what_is_written_is_read() {
        let query = Message::Query {
            group: [0; 4],
            response_code: 100,
        };
        let all = [
            query,
            Message::ReportV1(GROUP),
            Message::ReportV2(GROUP),
            Message::Leave(GROUP),
        ];
        for message in all {
            assert_eq!(Message::parse(&message.to_bytes()), Some(message));
        }
    }

    #[test]
    fn a_query_has_a_length_of_some_version() {
        for len in BYTES..40 {
            let taken = Message::parse(&query(len)).is_some();
            assert_eq!(taken, len == 8 || len >= 12, "{len} bytes");
        }
    }

    #[test]
    fn short_false_and_unknown_messages_are_not_taken() {
        let report = Message::ReportV2(GROUP).to_bytes();
        for len in 0..BYTES {
            assert_eq!(Message::parse(&report[..len]), None, "{len} bytes");
        }
        let mut damaged = report;
        damaged[2] ^= 1;
        assert_eq!(Message::parse(&damaged), None);
        assert_eq!(
            Message::parse(&Message::ReportV2([10, 0, 0, 1]).to_bytes()),
            None,
            "no group"
        );
        for kind in [0, 0x13, 0x22, 0xff] {
            let mut unknown = report;
            (unknown[0], unknown[2], unknown[3]) = (kind, 0, 0);
            let field = Sum::of(&unknown).field();
            unknown[2..4].copy_from_slice(&field);
            assert_eq!(Message::parse(&unknown), None, "type {kind}");
        }
    }
}
