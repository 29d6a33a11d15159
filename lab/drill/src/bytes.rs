//! Packets to and from bytes.
//!
//! Sequence numbers here are the wire's; [`super::flow`] makes them relative. A TCP payload is a
//! pattern that follows from each byte's place in its stream, so that a wrong byte shows.

use super::packet::{Icmp, Packet, REASONS, Reason, Tcp, TcpOption};
use sidecore_net_stack::Ends;
use sidecore_net_stack::checksum::{Sum, pseudo};
use sidecore_net_stack::wire::ip;

/// A packet that came out of the stack, taken apart.
#[derive(Debug, Clone)]
pub(crate) struct Decoded {
    /// Ours is `local`.
    pub(crate) ends: Ends,
    pub(crate) packet: Packet,
    /// Of TCP.
    pub(crate) payload: Vec<u8>,
}

/// Defect of a packet that the stack sent.
pub(crate) type Broken = &'static str;

/// The byte at this place of a stream.
pub(crate) fn pattern(place: u32) -> u8 {
    (place ^ place >> 8 ^ place >> 16) as u8
}

/// An IP packet from the peer to the stack; `stream_at` is the payload's place in its stream.
pub(crate) fn build(ends: &Ends, packet: &Packet, stream_at: u32, quoted: &[u8]) -> Vec<u8> {
    let ports = [
        ends.remote_port.to_be_bytes(),
        ends.local_port.to_be_bytes(),
    ]
    .concat();
    let (protocol, mut body, sum_at) = match packet {
        Packet::Tcp(tcp) => (ip::TCP, segment(tcp, &ports, stream_at), 16),
        Packet::Udp(len) => {
            let mut body = ports;
            body.extend_from_slice(&((8 + len) as u16).to_be_bytes());
            body.extend_from_slice(&[0; 2]);
            body.extend((0..*len as u32).map(pattern));
            (ip::UDP, body, 6)
        }
        Packet::Icmp(icmp) if ends.remote.is_v4() => (ip::ICMP, message(icmp, true, quoted), 2),
        Packet::Icmp(icmp) => (ip::ICMPV6, message(icmp, false, quoted), 2),
    };
    let sum = if protocol == ip::ICMP {
        Sum::of(&body)
    } else {
        pseudo(&ends.remote, &ends.local, protocol)
            .plus_word(body.len() as u16)
            .plus(Sum::of(&body))
    };
    let field = match sum.field() {
        [0, 0] if protocol == ip::UDP => [0xff, 0xff],
        field => field,
    };
    body[sum_at..sum_at + 2].copy_from_slice(&field);
    let mut header = [0; ip::V6_BYTES];
    let len = ip::write(
        &mut header,
        &ends.remote,
        &ends.local,
        protocol,
        ip::HOPS,
        body.len(),
    );
    if let Packet::Tcp(Tcp { ecn: Some(ecn), .. }) = packet {
        ip::set_codepoint(&mut header[..len], *ecn);
    }
    [&header[..len], &body].concat()
}

fn segment(tcp: &Tcp, ports: &[u8], stream_at: u32) -> Vec<u8> {
    let mut options = Vec::new();
    for option in tcp.options.iter().flatten() {
        option.write(&mut options);
    }
    while options.len() % 4 != 0 {
        options.push(0);
    }
    options.truncate(40);
    let mut bytes = ports.to_vec();
    bytes.extend_from_slice(&tcp.sequence.to_be_bytes());
    bytes.extend_from_slice(&tcp.acknowledgment.unwrap_or(0).to_be_bytes());
    let [ae, flags] = tcp.flags.to_be_bytes();
    let words = ((20 + options.len()) / 4) as u8;
    bytes.push(words << 4 | ae);
    bytes.push(flags);
    bytes.extend_from_slice(&tcp.window.unwrap_or(u16::MAX).to_be_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&options);
    bytes.extend((0..tcp.len).map(|at| pattern(stream_at.wrapping_add(at))));
    bytes
}

impl TcpOption {
    /// Bytes that it takes.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::End | Self::Nop => 1,
            Self::SackPermitted => 2,
            Self::Scale(_) => 3,
            Self::Mss(_) => 4,
            Self::Stamps(..) => 10,
            Self::Sack(blocks) => 2 + 8 * blocks.len(),
            Self::Other(_, len) => 2 + len,
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        let kind = match self {
            Self::End => 0,
            Self::Nop => 1,
            Self::Mss(_) => 2,
            Self::Scale(_) => 3,
            Self::SackPermitted => 4,
            Self::Sack(_) => 5,
            Self::Stamps(..) => 8,
            Self::Other(kind, _) => *kind,
        };
        out.push(kind);
        if kind > 1 {
            out.push(self.bytes() as u8);
        }
        match self {
            Self::Mss(mss) => out.extend_from_slice(&mss.to_be_bytes()),
            Self::Scale(scale) => out.push(*scale),
            Self::Sack(blocks) => {
                for (from, to) in blocks {
                    out.extend_from_slice(&from.to_be_bytes());
                    out.extend_from_slice(&to.to_be_bytes());
                }
            }
            Self::Stamps(value, echo) => {
                out.extend_from_slice(&value.unwrap_or(0).to_be_bytes());
                out.extend_from_slice(&echo.unwrap_or(0).to_be_bytes());
            }
            Self::Other(_, len) => out.resize(out.len() + len, 0),
            Self::End | Self::Nop | Self::SackPermitted => {}
        }
    }
}

fn message(icmp: &Icmp, v4: bool, quoted: &[u8]) -> Vec<u8> {
    let echo = |kind: u8, id: u16, number: u16, len: usize| {
        let mut bytes = vec![kind, 0, 0, 0];
        bytes.extend_from_slice(&id.to_be_bytes());
        bytes.extend_from_slice(&number.to_be_bytes());
        bytes.extend((0..len as u32).map(pattern));
        bytes
    };
    match *icmp {
        Icmp::EchoRequest(id, number, len) => echo(if v4 { 8 } else { 128 }, id, number, len),
        Icmp::EchoReply(id, number, len) => echo(if v4 { 0 } else { 129 }, id, number, len),
        Icmp::Unreachable(reason, mtu, _) => {
            let [kind, code] = code(reason, v4);
            let mut bytes = vec![kind, code, 0, 0];
            bytes.extend_from_slice(&mtu.to_be_bytes());
            bytes.extend_from_slice(quoted);
            bytes
        }
        Icmp::Other(kind, code) => vec![kind, code, 0, 0, 0, 0, 0, 0],
    }
}

/// RFC 792, RFC 1191 section 4; RFC 4443 sections 3.1 to 3.3.
fn code(reason: Reason, v4: bool) -> [u8; 2] {
    match (reason, v4) {
        (Reason::Net, true) => [3, 0],
        (Reason::Host, true) => [3, 1],
        (Reason::Protocol, true) => [3, 2],
        (Reason::Port, true) => [3, 3],
        (Reason::TooBig, true) => [3, 4],
        (Reason::Late, true) => [11, 1],
        (Reason::Net, false) => [1, 0],
        (Reason::Host, false) => [1, 3],
        (Reason::Protocol, false) => [4, 1],
        (Reason::Port, false) => [1, 4],
        (Reason::TooBig, false) => [2, 0],
        (Reason::Late, false) => [3, 1],
    }
}

/// Parses a packet of the stack. Everything that the script's notation does not show must be right:
/// lengths and checksums.
pub(crate) fn decode(bytes: &[u8]) -> Result<Decoded, Broken> {
    let parsed = match bytes.first().map(|first| first >> 4) {
        Some(4) => ip::parse_v4(bytes),
        Some(6) => ip::parse_v6(bytes),
        _ => return Err("neither IPv4 nor IPv6"),
    };
    let Ok(parsed) = parsed else {
        return Err("the IP header is malformed");
    };
    let body = bytes
        .get(parsed.start..parsed.end)
        .ok_or("the packet is cut off")?;
    let sum = match parsed.protocol {
        ip::ICMP => Sum::of(body),
        protocol => pseudo(&parsed.source, &parsed.destination, protocol)
            .plus_word(body.len() as u16)
            .plus(Sum::of(body)),
    };
    if !sum.is_right() {
        return Err("the checksum is wrong");
    }
    let half = |at: usize| {
        let two = body.get(at..at + 2).and_then(|two| two.try_into().ok());
        two.map(u16::from_be_bytes).ok_or("the header is cut off")
    };
    let mut ends = Ends {
        local: parsed.source,
        remote: parsed.destination,
        local_port: 0,
        remote_port: 0,
    };
    let mut payload = Vec::new();
    let packet = match parsed.protocol {
        ip::TCP => {
            (ends.local_port, ends.remote_port) = (half(0)?, half(2)?);
            let (tcp, data) = decode_segment(body)?;
            payload = data.to_vec();
            let ecn = Some(parsed.ecn);
            Packet::Tcp(Tcp { ecn, ..tcp })
        }
        ip::UDP => {
            (ends.local_port, ends.remote_port) = (half(0)?, half(2)?);
            if usize::from(half(4)?) != body.len() || body.len() < 8 {
                return Err("the datagram's length is wrong");
            }
            Packet::Udp(body.len() - 8)
        }
        _ => Packet::Icmp(decode_message(body, parsed.source.is_v4())?),
    };
    Ok(Decoded {
        ends,
        packet,
        payload,
    })
}

fn word(bytes: &[u8], at: usize) -> Result<u32, Broken> {
    let four = bytes.get(at..at + 4).and_then(|four| four.try_into().ok());
    four.map(u32::from_be_bytes).ok_or("the header is cut off")
}

fn decode_segment(body: &[u8]) -> Result<(Tcp, &[u8]), Broken> {
    let lengths = word(body, 12)?;
    let start = (lengths >> 28) as usize * 4;
    let options = body.get(20..start).ok_or("TCP's data offset is wrong")?;
    let payload = &body[start..];
    // The rest of the word's upper half is reserved, and shows as an unknown flag.
    let flags = (lengths >> 16) as u16 & 0x0fff;
    let tcp = Tcp {
        flags,
        sequence: word(body, 4)?,
        len: payload.len() as u32,
        acknowledgment: (flags & 0x10 != 0).then_some(word(body, 8)?),
        window: Some(lengths as u16),
        options: Some(decode_options(options)?),
        ecn: None,
    };
    Ok((tcp, payload))
}

fn decode_options(mut bytes: &[u8]) -> Result<Vec<TcpOption>, Broken> {
    let mut options = Vec::new();
    while let [kind, rest @ ..] = bytes {
        if *kind < 2 {
            options.push(if *kind == 0 {
                TcpOption::End
            } else {
                TcpOption::Nop
            });
            bytes = rest;
            continue;
        }
        let len = rest.first().map_or(0, |&len| usize::from(len));
        if len < 2 || len > bytes.len() {
            return Err("a TCP option's length is wrong");
        }
        let value = &bytes[2..len];
        options.push(match (*kind, value) {
            (2, &[high, low]) => TcpOption::Mss(u16::from_be_bytes([high, low])),
            (3, &[scale]) => TcpOption::Scale(scale),
            (4, []) => TcpOption::SackPermitted,
            (5, blocks) if blocks.len() % 8 == 0 => {
                let blocks = blocks.chunks_exact(8);
                let read = |block| Ok((word(block, 0)?, word(block, 4)?));
                TcpOption::Sack(blocks.map(read).collect::<Result<_, Broken>>()?)
            }
            (8, stamps) if stamps.len() == 8 => {
                TcpOption::Stamps(Some(word(stamps, 0)?), Some(word(stamps, 4)?))
            }
            (kind, value) => TcpOption::Other(kind, value.len()),
        });
        bytes = &bytes[len..];
    }
    Ok(options)
}

fn decode_message(body: &[u8], v4: bool) -> Result<Icmp, Broken> {
    let [kind, code_, ..] = *body else {
        return Err("the ICMP message is cut off");
    };
    let last = word(body, 4)?;
    let (id, number, len) = ((last >> 16) as u16, last as u16, body.len() - 8);
    let reason = REASONS
        .iter()
        .find(|(_, reason)| code(*reason, v4) == [kind, code_]);
    Ok(match (kind, reason) {
        (8, _) if v4 => Icmp::EchoRequest(id, number, len),
        (0, _) if v4 => Icmp::EchoReply(id, number, len),
        (128, _) if !v4 => Icmp::EchoRequest(id, number, len),
        (129, _) if !v4 => Icmp::EchoReply(id, number, len),
        (_, Some((_, reason))) => Icmp::Unreachable(*reason, last, None),
        _ => Icmp::Other(kind, code_),
    })
}
