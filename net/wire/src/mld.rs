//! Multicast listener discovery: membership of IPv6 groups.
//!
//! Hosts here report in version 2, a group at a time; queries of both versions are parsed. Must
//! stay true: [`report`] is the complete packet after the IPv6 header, including hop-by-hop
//! options. Source: RFC 2710 section 3, RFC 3810 sections 5 and 8.1, RFC 2711 (router alert).
//!
//! ```
//! use sidecore_net_wire::{Ip, mld};
//! use std::net::{IpAddr, Ipv6Addr};
//!
//! let group = Ip::from(IpAddr::from("ff02::99".parse::<Ipv6Addr>()?));
//! let source = Ip::from(IpAddr::from("fe80::1".parse::<Ipv6Addr>()?));
//! let report = mld::report(&source, &group, mld::Record::Joined);
//! // Behind the hop-by-hop header that makes routers look; the group is the last of it.
//! assert_eq!(report[8], 143, "a report of version 2");
//! assert!(report.ends_with(&group.0));
//! # Ok::<(), std::net::AddrParseError>(())
//! ```

use super::address::Ip;
use super::ip::ICMPV6;
use crate::checksum::{Sum, pseudo};
use zerocopy::{Immutable, IntoBytes, Unaligned};

/// ICMPv6 type of a query, of both versions.
pub const QUERY: u8 = 130;
/// ICMPv6 type of a report of version 2.
const REPORT: u8 = 143;
/// Bytes of a [`report`]: options, header, one record.
pub(crate) const REPORT_BYTES: usize = OPTION_BYTES + HEADER_BYTES + RECORD_BYTES;
/// `ff02::16`: all MLDv2 routers, the destination of reports.
pub const ROUTERS: Ip = Ip([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x16]);

/// Parses a query with a correct checksum: the queried group, unspecified for all. `None` for a
/// length of no version, and for an address that is not a group.
#[must_use]
pub fn parse_query(bytes: &[u8]) -> Option<Ip> {
    // RFC 3810 section 8.1: version 1 has 24 bytes, version 2 at least 28.
    if bytes.len() != QUERY_V1_BYTES && bytes.len() < QUERY_V2_BYTES {
        return None;
    }
    let (group, _) = bytes.get(HEADER_BYTES..)?.split_first_chunk()?;
    let group = Ip(*group);
    let known = bytes.first() == Some(&QUERY) && (group.is_unspecified() || group.is_multicast());
    known.then_some(group)
}

/// Kind of a report's record (RFC 3810 section 5.2.12); no record here lists sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Record {
    /// MODE_IS_EXCLUDE: a member, in reply to a query.
    Current = 2,
    /// CHANGE_TO_INCLUDE_MODE: the group was left.
    Left = 3,
    /// CHANGE_TO_EXCLUDE_MODE: the group was joined.
    Joined = 4,
}

/// A report that a host at `source` is a member of `group`, or no longer: a hop-by-hop header with
/// the router alert that RFC 3810 section 5 requires, and an ICMPv6 message to [`ROUTERS`] with one
/// record.
#[must_use]
pub fn report(source: &Ip, group: &Ip, record: Record) -> [u8; REPORT_BYTES] {
    // RFC 2711 section 2.1: router alert of value 0; padded to eight bytes.
    const ALERT: [u8; OPTION_BYTES] = [ICMPV6, 0, 5, 2, 0, 0, 1, 0];
    // One record.
    const HEADER: [u8; HEADER_BYTES] = [REPORT, 0, 0, 0, 0, 0, 0, 1];
    // Without sources.
    let record = [record as u8, 0, 0, 0];
    let sum = pseudo(source, &ROUTERS, ICMPV6)
        .plus_len(HEADER_BYTES + RECORD_BYTES)
        .plus(Sum::of(&HEADER))
        .plus(Sum::of(&record))
        .plus(Sum::of(&group.0));
    let mut header = HEADER;
    [header[2], header[3]] = sum.field();
    zerocopy::transmute!(Report {
        alert: ALERT,
        header,
        record,
        group: *group,
    })
}

/// A reply to a query: the same with a record for each of `groups`, of which the host at `source`
/// is a member; [`RECORDS_MAX`] at most.
#[must_use]
pub fn answer(source: &Ip, groups: &[Ip]) -> Vec<u8> {
    let groups = &groups[..groups.len().min(RECORDS_MAX)];
    let Some(first) = groups.first() else {
        return Vec::new();
    };
    let mut bytes = report(source, first, Record::Current).to_vec();
    for group in &groups[1..] {
        bytes.extend([Record::Current as u8, 0, 0, 0]);
        bytes.extend(group.0);
    }
    let message = &mut bytes[OPTION_BYTES..];
    // Less than a packet of the least MTU.
    message[6..8].copy_from_slice(&(groups.len() as u16).to_be_bytes());
    message[2..4].fill(0);
    let sum = pseudo(source, &ROUTERS, ICMPV6)
        .plus_len(message.len())
        .plus(Sum::of(message));
    message[2..4].copy_from_slice(&sum.field());
    bytes
}

/// Records of one report: it fits the least MTU of IPv6, 1,280 bytes.
pub const RECORDS_MAX: usize = 60;

#[derive(IntoBytes, Immutable, Unaligned)]
#[repr(C)]
struct Report {
    alert: [u8; OPTION_BYTES],
    header: [u8; HEADER_BYTES],
    record: [u8; 4],
    group: Ip,
}

const OPTION_BYTES: usize = 8;
const HEADER_BYTES: usize = 8;
const RECORD_BYTES: usize = 20;
const QUERY_V1_BYTES: usize = 24;
const QUERY_V2_BYTES: usize = 28;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_has_a_length_of_some_version() {
        let mut bytes = [0; 60];
        bytes[0] = QUERY;
        for len in 0..bytes.len() {
            let taken = parse_query(&bytes[..len]);
            assert_eq!(taken.is_some(), len == 24 || len >= 28, "{len} bytes");
        }
        bytes[8] = 0xff;
        assert!(parse_query(&bytes[..28]).is_some_and(|group| group.is_multicast()));
        bytes[8] = 0x20;
        assert_eq!(parse_query(&bytes[..28]), None, "no group");
        (bytes[0], bytes[8]) = (131, 0xff);
        assert_eq!(parse_query(&bytes[..28]), None, "no query");
    }

    #[test]
    fn an_answer_has_a_record_for_each_group() {
        let source = Ip([1; 16]);
        let groups: Vec<Ip> = (0..70).map(|last| Ip([last; 16])).collect();
        assert!(answer(&source, &[]).is_empty());
        let one = answer(&source, &groups[..1]);
        assert_eq!(one, report(&source, &groups[0], Record::Current));
        let bytes = answer(&source, &groups);
        assert_eq!(bytes.len(), 16 + RECORDS_MAX * 20);
        assert_eq!(bytes[14..16], [0, 60]);
        assert_eq!(bytes[16 + 20..16 + 24], [2, 0, 0, 0]);
        assert_eq!(bytes[16 + 24..16 + 40], [1; 16]);
        let sum = pseudo(&source, &ROUTERS, ICMPV6)
            .plus_len(bytes.len() - 8)
            .plus(Sum::of(&bytes[8..]));
        assert!(sum.is_right());
    }

    #[test]
    fn a_report_is_as_the_standard_has_it() {
        let mut source = Ip([0; 16]);
        (source.0[0], source.0[1], source.0[15]) = (0xfe, 0x80, 1);
        let mut group = ROUTERS;
        group.0[15] = 0x42;
        let bytes = report(&source, &group, Record::Joined);
        assert_eq!(bytes[..8], [58, 0, 5, 2, 0, 0, 1, 0]);
        assert_eq!(bytes[8..10], [143, 0]);
        assert_eq!(bytes[12..20], [0, 0, 0, 1, 4, 0, 0, 0]);
        assert_eq!(bytes[20..], group.0);
        let sum = pseudo(&source, &ROUTERS, ICMPV6)
            .plus_word(28)
            .plus(Sum::of(&bytes[8..]));
        assert!(sum.is_right());
        assert_eq!(report(&source, &group, Record::Left)[16], 3);
        assert_eq!(report(&source, &group, Record::Current)[16], 2);
    }
}
