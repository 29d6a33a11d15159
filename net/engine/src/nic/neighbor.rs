//! ARP packets and neighbour discovery of NICs themselves: announcements, probes, answers.
//!
//! Why here: a bond moves the stack's addresses from one link to another and asks neighbours
//! whether a link still leads to them; a tunnel has no link layer, and answers what the stack asks.
//! Must stay true: nothing here panics, whatever the bytes. Source: RFC 826, RFC 5227, RFC 4861.

use sidecore_net_stack::wire::arp::{Arp, Operation};
use sidecore_net_stack::wire::ethernet::{self, Ethernet};
use sidecore_net_stack::wire::ndisc::{self, Message, NeighborFlags};
use sidecore_net_stack::wire::{BROADCAST, Ip, Mac, group_mac, ip};

/// The type of a frame, and what follows its header; 0 for a short one.
pub(super) fn kind_and_body(frame: &[u8]) -> (u16, &[u8]) {
    match frame.split_at_checked(ethernet::HEADER_BYTES) {
        Some((header, body)) => (u16::from_be_bytes([header[12], header[13]]), body),
        None => (0, &[]),
    }
}

/// Announces that `mac` has `own`: a gratuitous ARP request (RFC 5227 section 3), or an unsolicited
/// neighbour advertisement (RFC 4861 section 7.2.6).
pub(super) fn announcement(mac: Mac, own: &Ip) -> Vec<u8> {
    if own.is_v4() {
        let packet = Arp {
            operation: Operation::Request,
            sender_mac: mac,
            sender: own.last_four(),
            target_mac: [0; 6],
            target: own.last_four(),
        };
        return arp_frame(BROADCAST, &packet);
    }
    let flags = NeighborFlags {
        replaces: true,
        ..NeighborFlags::default()
    };
    let message = ndisc::neighbor_advertisement(own, &ALL_NODES, flags, mac);
    icmpv6_frame(group_mac(&ALL_NODES), mac, (own, &ALL_NODES), &message)
}

/// The question for the neighbour with `target`, from `mac`, which has no address of the stack.
pub(super) fn question(mac: Mac, target: &Ip) -> Vec<u8> {
    if target.is_v4() {
        // An ARP probe (RFC 5227 section 2.1.1): no cache learns from it.
        let packet = Arp {
            operation: Operation::Request,
            sender_mac: mac,
            sender: [0; 4],
            target_mac: [0; 6],
            target: target.last_four(),
        };
        return arp_frame(BROADCAST, &packet);
    }
    // Without a source address the question would be one of duplicate address detection.
    let (source, group) = (link_local(mac), solicited_group(target));
    let message = ndisc::neighbor_solicitation(&source, &group, target, mac);
    icmpv6_frame(group_mac(&group), mac, (&source, &group), &message)
}

/// True if the frame of this type comes from the neighbour: ARP from it, or its advertisement.
pub(super) fn is_answer(neighbor: &Ip, kind: u16, body: &[u8]) -> bool {
    match kind {
        ethernet::ARP if neighbor.is_v4() => {
            Arp::parse(body).is_some_and(|packet| packet.sender == neighbor.last_four())
        }
        ethernet::IPV6 => match message(body) {
            Some((_, Message::NeighborAdvertisement { target, .. })) => target == *neighbor,
            _ => false,
        },
        _ => false,
    }
}

/// The answer that `mac` has whatever the frame asks for: to an ARP request, and to a neighbour
/// solicitation. None for other frames, for a sender that looks for a duplicate of its own address,
/// and for one that announces it.
pub(super) fn answer(mac: Mac, kind: u16, body: &[u8]) -> Option<Vec<u8>> {
    match kind {
        ethernet::ARP => {
            let asked = Arp::parse(body)?;
            let is_question = asked.operation == Operation::Request
                && asked.sender != [0; 4]
                && asked.sender != asked.target;
            let packet = Arp {
                operation: Operation::Reply,
                sender_mac: mac,
                sender: asked.target,
                target_mac: asked.sender_mac,
                target: asked.sender,
            };
            is_question.then(|| arp_frame(asked.sender_mac, &packet))
        }
        ethernet::IPV6 => {
            let (asker, message) = message(body)?;
            let Message::NeighborSolicitation {
                target,
                source: Some(asker_mac),
            } = message
            else {
                return None;
            };
            let flags = NeighborFlags {
                solicited: true,
                replaces: true,
                router: false,
            };
            let message = ndisc::neighbor_advertisement(&target, &asker, flags, mac);
            let ends = (&target, &asker);
            (!asker.is_unspecified()).then(|| icmpv6_frame(asker_mac, mac, ends, &message))
        }
        _ => None,
    }
}

/// The address that the sender of a frame has by its own account: an ARP packet's, or a neighbour
/// solicitation's.
pub(super) fn sender(kind: u16, body: &[u8]) -> Option<Ip> {
    match kind {
        ethernet::ARP => Some(Ip::v4(Arp::parse(body)?.sender)),
        ethernet::IPV6 => match message(body)? {
            (source, Message::NeighborSolicitation { .. }) => Some(source),
            _ => None,
        },
        _ => None,
    }
}

/// A message of neighbour discovery and its source. The checksum is not looked at.
fn message(body: &[u8]) -> Option<(Ip, Message<'_>)> {
    let packet = ip::parse_v6(body).ok()?;
    // RFC 4861 section 7.1: a router has not forwarded it.
    if packet.protocol != ip::ICMPV6 || packet.hops != HOPS {
        return None;
    }
    let message = Message::parse(body.get(packet.start..packet.end)?)?;
    Some((packet.source, message))
}

fn arp_frame(destination: Mac, packet: &Arp) -> Vec<u8> {
    let header = Ethernet::new(destination, packet.sender_mac, ethernet::ARP);
    [&header.to_bytes()[..], &packet.to_bytes()].concat()
}

fn icmpv6_frame(to: Mac, from: Mac, (source, destination): (&Ip, &Ip), message: &[u8]) -> Vec<u8> {
    let link = Ethernet::new(to, from, ethernet::IPV6);
    let mut header = [0; ip::V6_BYTES];
    let len = message.len();
    ip::write(&mut header, source, destination, ip::ICMPV6, HOPS, len);
    [&link.to_bytes()[..], &header, message].concat()
}

/// The link-local address of an interface (RFC 4291 appendix A).
fn link_local([a, b, c, d, e, f]: Mac) -> Ip {
    Ip([
        0xfe,
        0x80,
        0,
        0,
        0,
        0,
        0,
        0,
        a ^ 2,
        b,
        c,
        0xff,
        0xfe,
        d,
        e,
        f,
    ])
}

/// The group of those that may have `target` (RFC 4291 section 2.7.1).
fn solicited_group(target: &Ip) -> Ip {
    let [_, a, b, c] = target.last_four();
    Ip([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c])
}

/// `ff02::1`.
const ALL_NODES: Ip = Ip([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
/// Hop limit of neighbour discovery (RFC 4861 section 4).
const HOPS: u8 = 255;

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: Mac = [2, 0, 0, 0, 0, 1];
    const OTHER: Mac = [2, 0, 0, 0, 0, 2];

    fn addresses() -> [Ip; 2] {
        [Ip::v4([10, 0, 0, 9]), Ip([0xfd; 16])]
    }

    #[test]
    fn a_question_is_answered_and_the_answer_recognized() {
        for target in addresses() {
            let asked = question(MAC, &target);
            let (kind, body) = kind_and_body(&asked);
            assert!(!is_answer(&target, kind, body));
            // An ARP probe is one of duplicate detection: the answers of tunnels leave it out.
            let answered = answer(OTHER, kind, body);
            assert_eq!(answered.is_some(), !target.is_v4());
            if let Some(frame) = answered {
                assert!(frame.starts_with(&MAC));
                let (kind, body) = kind_and_body(&frame);
                assert!(is_answer(&target, kind, body));
            }
            let announced = announcement(OTHER, &target);
            let (kind, body) = kind_and_body(&announced);
            assert!(is_answer(&target, kind, body));
            assert_eq!(answer(MAC, kind, body), None);
        }
    }

    #[test]
    fn an_arp_request_is_answered_with_the_address_that_it_asks_for() {
        let request = Arp {
            operation: Operation::Request,
            sender_mac: MAC,
            sender: [10, 0, 0, 1],
            target_mac: [0; 6],
            target: [10, 0, 0, 9],
        };
        let frame = answer(OTHER, ethernet::ARP, &request.to_bytes()).unwrap();
        let reply = Arp::parse(kind_and_body(&frame).1).unwrap();
        assert_eq!((reply.sender_mac, reply.sender), (OTHER, request.target));
        assert_eq!((reply.target_mac, reply.target), (MAC, request.sender));
        assert_eq!(
            sender(ethernet::ARP, &request.to_bytes()),
            Some(Ip::v4([10, 0, 0, 1]))
        );
        assert_eq!(answer(OTHER, ethernet::ARP, &reply.to_bytes()), None);
    }

    #[test]
    fn any_bytes_do_no_harm() {
        let whole = question(MAC, &addresses()[1]);
        for len in 0..whole.len() {
            let (kind, body) = kind_and_body(&whole[..len]);
            assert_eq!(answer(OTHER, kind, body), None, "{len} bytes");
            assert_eq!(sender(kind, body), None, "{len} bytes");
        }
        assert!(sender(ethernet::IPV6, &whole[14..]).is_some());
    }
}
