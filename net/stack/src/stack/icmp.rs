//! ICMP of both families: echo, "unreachable", "too big", and group membership.
//!
//! Source: RFC 792, RFC 1122 section 3.2.2, RFC 1191, RFC 4443, RFC 8201, RFC 5927 (validation),
//! RFC 2236 (IGMPv2), RFC 3810 (MLDv2).

use super::{Host, Stack, fragments};
use crate::checksum::{Sum, changed, pseudo};
use crate::error::{IcmpError, NetError};
use crate::secrets::Ends;
use crate::shared::Common;
use crate::shared::config::filter::RuleProtocol;
use crate::shared::frames::Address;
use crate::shared::interface::solicited_node;
use crate::state::hot::State;
use crate::wire::ethernet::Ethernet;
use crate::wire::fragment;
use crate::wire::ip::{self, Codepoint, Packet, Report};
use crate::wire::sequence::Sequence;
use crate::wire::{Ip, Mac, group_mac, igmp, mld, ndisc};
use sidecore_bare::width::ToUsize;
use std::net::IpAddr;

const HEADER_BYTES: usize = 8;
/// RFC 4443 section 3.4, codes of a parameter problem: an erroneous field, an unrecognised next
/// header, an unrecognised IPv6 option.
pub(super) const WRONG_FIELD: u8 = 0;
const UNKNOWN_PROTOCOL: u8 = 1;
pub(super) const UNKNOWN_OPTION: u8 = 2;
/// RFC 1812 section 4.3.2.3 allows 576 bytes in total; RFC 4443 section 2.4 the minimum MTU.
const QUOTED_V4: usize = 576 - ip::V4_BYTES - HEADER_BYTES;
const QUOTED_V6: usize = ip::V6_MTU_MIN - ip::V6_BYTES - HEADER_BYTES;

impl Stack {
    /// Joins a group, so that datagrams to it are received. Each join needs a [`Self::leave`].
    ///
    /// # Errors
    /// [`NetError::Config`] if the address is not a group.
    pub fn join(&mut self, group: IpAddr) -> Result<(), NetError> {
        let address = Ip::from(group);
        if !address.is_multicast() {
            return Err(NetError::Config {
                what: "a group",
                value: group.to_string(),
                rule: "224.0.0.0/4 or ff00::/8",
            });
        }
        let groups = &mut self.host.common.interface.groups;
        match groups.iter_mut().find(|(group, _)| *group == address) {
            Some((_, count)) => *count += 1,
            None => {
                groups.push((address, 1));
                self.host.common.report_group(&address, mld::Record::Joined);
            }
        }
        Ok(())
    }

    /// Leaves a group.
    pub fn leave(&mut self, group: IpAddr) {
        let address = Ip::from(group);
        let groups = &mut self.host.common.interface.groups;
        if let Some(at) = groups.iter().position(|(group, _)| *group == address) {
            groups[at].1 -= 1;
            if groups[at].1 == 0 {
                groups.swap_remove(at);
                self.host.common.report_group(&address, mld::Record::Left);
            }
        }
    }
}

impl Host {
    pub(crate) fn arrive_icmp_v4(&mut self, packet: &Packet, bytes: &[u8], from: Mac, to_us: bool) {
        if bytes.len() < HEADER_BYTES {
            self.common.counters.malformed += 1;
            return;
        }
        if !Sum::of(bytes).is_right() {
            self.common.counters.bad_checksums += 1;
            return;
        }
        match (bytes[0], bytes[1]) {
            // RFC 1122 section 3.2.2.6; not to groups (it may be ignored, and amplifies).
            (8, 0) if to_us => {
                if !self.common.allows(packet, Some(RuleProtocol::Echo)) {
                    return;
                }
                let address = Address::answer(packet, from, &self.common.config);
                self.common.push_packet(&address, bytes.len(), |answer| {
                    answer.copy_from_slice(bytes);
                    answer[0] = 0;
                    // Only the type differs from that of the request.
                    let field = changed([bytes[2], bytes[3]], [8, 0], [0, 0]);
                    answer[2..4].copy_from_slice(&field);
                });
            }
            // RFC 1812 section 5.2.7.1 has no further ones.
            (3, 16..) => {}
            // Unreachable, time exceeded, parameter problem: RFC 1122 sections 3.2.2.1, 3.2.2.4
            // and 3.2.2.5.
            (kind @ (3 | 11 | 12), code) => {
                let info: u32 = match (kind, code) {
                    // Fragmentation needed, with the next hop's MTU (RFC 1191).
                    (3, 4) => u16::from_be_bytes([bytes[6], bytes[7]]).into(),
                    // The octet that is wrong.
                    (12, _) => bytes[4].into(),
                    _ => 0,
                };
                let error = IcmpError {
                    kind,
                    code,
                    info,
                    from: packet.source.to_std(),
                };
                if let Some((about, start)) = quoted_v4(&bytes[HEADER_BYTES..]) {
                    self.arrive_error(&about, start, &error);
                }
            }
            _ => {}
        }
    }

    pub(crate) fn arrive_icmp_v6(&mut self, packet: &Packet, bytes: &[u8], from: Mac, to_us: bool) {
        if bytes.len() < HEADER_BYTES {
            self.common.counters.malformed += 1;
            return;
        }
        let sum = pseudo(&packet.source, &packet.destination, ip::ICMPV6)
            .plus_len(bytes.len())
            .plus(Sum::of(bytes));
        if !sum.is_right() {
            self.common.counters.bad_checksums += 1;
            return;
        }
        let number = u32::from_be_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        match bytes[0] {
            128 if to_us && !packet.source.is_unspecified() => {
                if !self.common.allows(packet, Some(RuleProtocol::Echo)) {
                    return;
                }
                let address = Address::answer(packet, from, &self.common.config);
                self.common.push_packet(&address, bytes.len(), |answer| {
                    answer.copy_from_slice(bytes);
                    answer[0] = 129;
                    let code = bytes[1];
                    let field = changed([bytes[2], bytes[3]], [128, code], [129, code]);
                    answer[2..4].copy_from_slice(&field);
                });
            }
            // RFC 8201 section 4: no router reports less than the minimum MTU of any link.
            2 if number < ip::V6_MTU_MIN as u32 => {}
            // Unreachable, too big, time exceeded, parameter problem.
            kind @ 1..=4 => {
                let error = IcmpError {
                    kind,
                    code: bytes[1],
                    // The MTU, and the place of the error.
                    info: if matches!(kind, 2 | 4) { number } else { 0 },
                    from: packet.source.to_std(),
                };
                if let Some((about, start)) = quoted_v6(&bytes[HEADER_BYTES..]) {
                    self.arrive_error(&about, start, &error);
                }
            }
            mld::QUERY => self.common.answer_query(packet, bytes),
            ndisc::ROUTER_SOLICITATION..=ndisc::REDIRECT => match ndisc::Message::parse(bytes) {
                Some(message) => {
                    let common = &mut self.common;
                    self.autoconfiguration
                        .arrive_discovery(common, packet, &message, from);
                }
                None => self.common.counters.malformed += 1,
            },
            _ => {}
        }
    }

    /// Processes an error about a packet of ours: `about` is its header, `start` the bytes that
    /// follow.
    fn arrive_error(&mut self, about: &Packet, start: &[u8], error: &IcmpError) {
        let Some(ports) = start.first_chunk::<8>() else {
            return;
        };
        if about.protocol == ip::UDP {
            let (datagrams, common) = (&mut self.datagrams, &mut self.common);
            datagrams.arrive_error(common, about, start, error);
        }
        if about.protocol != ip::TCP {
            if let Some(mtu) = error.mtu() {
                self.path_shrank(about, start, mtu);
            }
            return;
        }
        let ends = Ends {
            local: about.source,
            remote: about.destination,
            local_port: u16::from_be_bytes([ports[0], ports[1]]),
            remote_port: u16::from_be_bytes([ports[2], ports[3]]),
        };
        let hash = self.common.secrets.lookup(&ends);
        let Some(number) = self.sessions.find(&ends, hash) else {
            return;
        };
        let sequence = u32::from_be_bytes([ports[4], ports[5], ports[6], ports[7]]);
        let sequence = Sequence::new(sequence);
        let mut session = self.sessions.access(&mut self.common, number);
        // RFC 5927 section 4.1: it must be about something in flight.
        let in_flight = session.hot.send.una <= sequence && sequence < session.hot.send.nxt;
        if !in_flight {
            return;
        }
        if let Some(mtu) = error.mtu() {
            // A router that does not report an MTU (RFC 1191 section 5): the minimum is used.
            let mtu = u16::try_from(mtu).unwrap_or(session.path.mtu);
            session.path_shrank(mtu);
        } else if error.ends_opening() && session.hot.state() == State::SynSent {
            // RFC 9293 section 3.9.2.2, RFC 5927 section 5.2: hard only while opening.
            session.finish(Some(error.reason()));
        } else {
            session.note_soft_error(error.reason());
        }
        self.sweep();
    }

    /// A packet without a session was too large for a router. RFC 8201 section 4: it must be one
    /// that we may have sent.
    fn path_shrank(&mut self, about: &Packet, start: &[u8], mtu: u32) {
        let sent = match about.protocol {
            ip::UDP => {
                let port = u16::from_be_bytes([start[0], start[1]]);
                self.datagrams.is_taken(&about.source, port)
            }
            // Our echo replies.
            ip::ICMP => start[0] == 0,
            ip::ICMPV6 => start[0] == 129,
            _ => false,
        };
        if !sent || !self.common.interface.is_ours(&about.source) {
            return;
        }
        let (link, now_ns) = (self.common.interface.mtu_bytes, self.common.now_ns);
        let paths = &mut self.common.paths;
        if paths.shrink(&about.destination, mtu.to_usize(), link, now_ns) {
            self.common.counters.paths_shrunk += 1;
        }
    }
}

impl Common {
    /// RFC 1122 section 3.2.2.1: the protocol is not supported here.
    pub(crate) fn refuse_protocol(&mut self, packet: &Packet, bytes: &[u8], from: Mac) {
        if !self.allows(packet, None) {
            return;
        }
        if packet.source.is_v4() {
            self.push_unreachable(packet, bytes, from, 2);
        } else {
            let (place, ..) = ip::last_header(bytes, packet.start);
            let kind = [fragments::PARAMETER_PROBLEM, UNKNOWN_PROTOCOL];
            self.push_error_v6(packet, bytes, from, kind, place);
        }
    }

    /// An unknown IPv6 header that must not be skipped: dropped, and reported as RFC 8200 sections
    /// 4.2 and 4.4 require.
    #[cold]
    pub(crate) fn refuse_header(
        &mut self,
        header: &Ethernet,
        bytes: &[u8],
        code: u8,
        pointer: usize,
        report: Report,
        from_self: bool,
    ) {
        let Some(packet) = fragments::whole_header(bytes, false) else {
            return;
        };
        let interface = &self.interface;
        if interface.is_martian(&packet, from_self) {
            return;
        }
        // A reply to a packet for another host would reveal that we received it.
        let ours = interface.is_ours(&packet.destination);
        let group = !ours && interface.is_for_us_too(&packet.destination);
        // RFC 8200 section 4.2: the kind of the option decides if a packet to a group is reported,
        // too.
        match report {
            Report::Always if ours || group => {}
            Report::Unicast if ours && header.is_unicast() => {}
            _ => return,
        }
        if !self.allows(&packet, None) {
            return;
        }
        // A reply never has a group as its source.
        let from = packet.destination;
        let Some(source) = (if ours {
            Some(from)
        } else {
            self.interface.source_for(&packet.source)
        }) else {
            return;
        };
        let about = Packet {
            destination: source,
            ..packet
        };
        let kind = [fragments::PARAMETER_PROBLEM, code];
        self.push_error_v6(&about, bytes, header.source, kind, pointer);
    }

    /// Sends "unreachable": for IPv4 with this code, for IPv6 a port.
    pub(crate) fn push_unreachable(&mut self, packet: &Packet, bytes: &[u8], from: Mac, code: u8) {
        if !packet.source.is_v4() {
            self.push_error_v6(packet, bytes, from, [1, 4], 0);
            return;
        }
        self.push_error_v4(packet, bytes, from, [3, code]);
    }

    /// Sends an error with this type and code.
    pub(crate) fn push_error_v4(
        &mut self,
        packet: &Packet,
        bytes: &[u8],
        from: Mac,
        kind: [u8; 2],
    ) {
        if !answers(&packet.source) || is_error_v4(bytes) || !self.may_report_to(&packet.source) {
            return;
        }
        let quoted = &bytes[..packet.end.min(QUOTED_V4)];
        let mut address = Address::answer(packet, from, &self.config);
        // RFC 1122 section 3.2.2: errors have the type of service 0.
        (address.protocol, address.class) = (ip::ICMP, 0);
        self.push_packet(&address, HEADER_BYTES + quoted.len(), |message| {
            message[..2].copy_from_slice(&kind);
            message[HEADER_BYTES..].copy_from_slice(quoted);
            let field = Sum::of(message).field();
            message[2..4].copy_from_slice(&field);
        });
    }

    /// The same for IPv6; `pointer` is the word after the checksum.
    pub(crate) fn push_error_v6(
        &mut self,
        packet: &Packet,
        bytes: &[u8],
        from: Mac,
        kind: [u8; 2],
        pointer: usize,
    ) {
        if !answers(&packet.source) || is_error_v6(bytes) || !self.may_report_to(&packet.source) {
            return;
        }
        // An offset into a packet, which has less than 64 KiB.
        let pointer = u32::try_from(pointer).unwrap_or(u32::MAX);
        let quoted = &bytes[..packet.end.min(QUOTED_V6)];
        let mut address = Address::answer(packet, from, &self.config);
        (address.protocol, address.class) = (ip::ICMPV6, 0);
        let len = HEADER_BYTES + quoted.len();
        self.push_packet(&address, len, |message| {
            message[..2].copy_from_slice(&kind);
            message[4..8].copy_from_slice(&pointer.to_be_bytes());
            message[HEADER_BYTES..].copy_from_slice(quoted);
            let sum = pseudo(&address.source, &address.destination, ip::ICMPV6)
                .plus_len(len)
                .plus(Sum::of(message));
            message[2..4].copy_from_slice(&sum.field());
        });
    }

    /// True if an error may be sent now. Those to ourselves are not counted, as Linux does not
    /// count those of its loopback; no packet from outside has our address as its source.
    fn may_report_to(&mut self, source: &Ip) -> bool {
        self.interface.is_ours(source) || self.may_report()
    }

    /// Announces to the link that we have joined or left a group.
    pub(crate) fn report_group(&mut self, group: &Ip, record: mld::Record) {
        if group.is_v4() {
            self.report_group_v4(group, record != mld::Record::Left);
        } else {
            self.report_group_v6(group, record);
        }
    }

    fn report_group_v4(&mut self, group: &Ip, member: bool) {
        let Some(source) = self.interface.source_for(group) else {
            return;
        };
        // RFC 2236 sections 3 and 6.
        let (message, to) = if member {
            (igmp::Message::ReportV2(group.last_four()), *group)
        } else {
            let routers = Ip::v4([224, 0, 0, 2]);
            (igmp::Message::Leave(group.last_four()), routers)
        };
        let address = Address {
            mac: group_mac(&to),
            source,
            destination: to,
            protocol: ip::IGMP,
            hops: 1,
            class: 0,
        };
        self.push_packet(&address, igmp::BYTES, |bytes| {
            bytes.copy_from_slice(&message.to_bytes());
        });
    }

    fn report_group_v6(&mut self, group: &Ip, record: mld::Record) {
        let group = *group;
        self.push_report(|source| mld::report(source, &group, record).to_vec());
    }

    fn push_report(&mut self, report: impl FnOnce(&Ip) -> Vec<u8>) {
        let own = self.interface.networks.iter();
        let source = own
            .map(|own| own.address)
            .find(Ip::is_link_local_v6)
            // RFC 3590 section 4: unspecified if there is no address yet.
            .unwrap_or(super::sharing::ANY_V6);
        let address = Address {
            mac: group_mac(&mld::ROUTERS),
            source,
            destination: mld::ROUTERS,
            // Hop-by-hop options.
            protocol: 0,
            hops: 1,
            class: 0,
        };
        let report = report(&source);
        self.push_packet(&address, report.len(), |bytes| {
            bytes.copy_from_slice(&report)
        });
    }

    /// RFC 2236 section 3: a router queries group memberships.
    pub(crate) fn arrive_igmp(&mut self, packet: &Packet, bytes: &[u8]) {
        let Some(igmp::Message::Query { group, .. }) = igmp::Message::parse(bytes) else {
            return;
        };
        if packet.source.is_unspecified() {
            return;
        }
        let about = Ip::v4(group);
        self.report_groups(|group| group.is_v4() && (about.is_unspecified() || *group == about));
    }

    /// RFC 3810 section 5.1: the same for IPv6.
    fn answer_query(&mut self, packet: &Packet, bytes: &[u8]) {
        let Some(about) = mld::parse_query(bytes) else {
            return;
        };
        if !packet.source.is_link_local_v6() || packet.hops != 1 {
            return;
        }
        self.report_groups(|group| !group.is_v4() && (about.is_unspecified() || *group == about));
    }

    fn report_groups(&mut self, wanted: impl Fn(&Ip) -> bool) {
        let interface = &self.interface;
        let joined = interface.groups.iter().map(|(group, _)| *group);
        let own = interface.networks.iter().map(|own| own.address);
        let nodes = own
            .filter(|own| !own.is_v4())
            .map(|own| solicited_node(&own));
        // Collected first, because each report needs all of the stack.
        let groups: Vec<Ip> = joined.chain(nodes).filter(wanted).collect();
        let (v4, v6): (Vec<Ip>, Vec<Ip>) = groups.into_iter().partition(Ip::is_v4);
        for group in v4 {
            self.report_group(&group, mld::Record::Current);
        }
        // One report for all, as RFC 3810 section 5.2.15 has it.
        for part in v6.chunks(mld::RECORDS_MAX) {
            self.push_report(|source| mld::answer(source, part));
        }
    }
}

/// True if an ICMP error may be sent to `source`: RFC 1122 section 3.2.2, RFC 4443 section 2.4 (e).
fn answers(source: &Ip) -> bool {
    !source.is_martian_source() && !source.is_unspecified()
}

/// True for a packet that no ICMP error may refer to, because it is one itself or a later fragment:
/// RFC 1122 section 3.2.2.
fn is_error_v4(bytes: &[u8]) -> bool {
    let [words, _, _, _, _, _, high, low, _, protocol, ..] = *bytes else {
        return true;
    };
    let kind = bytes.get(usize::from(words & 15) * 4);
    u16::from_be_bytes([high, low]) & 0x1fff != 0
        || protocol == ip::ICMP && matches!(kind, None | Some(3 | 4 | 5 | 11 | 12))
}

/// The same for IPv6, where a redirect counts as an error: RFC 4443 section 2.4 (e).
fn is_error_v6(bytes: &[u8]) -> bool {
    let (_, start, protocol) = ip::last_header(bytes, bytes.len());
    protocol == ip::ICMPV6 && matches!(bytes.get(start), Some(0..128 | &ndisc::REDIRECT))
}

/// The header of a packet that an error quotes, possibly truncated, and the bytes that follow.
fn quoted_v4(bytes: &[u8]) -> Option<(Packet, &[u8])> {
    let start = usize::from(bytes.first()? & 15) * 4;
    if bytes.first()? >> 4 != 4 || start < ip::V4_BYTES || bytes.len() < start {
        return None;
    }
    let four = |at: usize| <[u8; 4]>::try_from(&bytes[at..at + 4]).ok();
    let packet = Packet {
        source: Ip::v4(four(12)?),
        destination: Ip::v4(four(16)?),
        protocol: bytes[9],
        hops: bytes[8],
        ecn: Codepoint::NotEct,
        start,
        end: bytes.len(),
    };
    Some((packet, &bytes[start..]))
}

fn quoted_v6(bytes: &[u8]) -> Option<(Packet, &[u8])> {
    if bytes.len() < ip::V6_BYTES || bytes[0] >> 4 != 6 {
        return None;
    }
    let address = |at: usize| <[u8; 16]>::try_from(&bytes[at..at + 16]).ok().map(Ip);
    let (mut start, mut protocol) = (ip::V6_BYTES, bytes[6]);
    if protocol == ip::FRAGMENT {
        // Only a packet's first fragment has the ports.
        let header = bytes.get(start..start + fragment::HEADER_BYTES)?;
        if u16::from_be_bytes([header[2], header[3]]) >> 3 != 0 {
            return None;
        }
        start += header.len();
        protocol = header[0];
    }
    let packet = Packet {
        source: address(8)?,
        destination: address(24)?,
        protocol,
        hops: bytes[7],
        ecn: Codepoint::NotEct,
        start,
        end: bytes.len(),
    };
    Some((packet, &bytes[start..]))
}
