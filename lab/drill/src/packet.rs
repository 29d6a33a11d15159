//! A packet as scripts write it: numbers relative to each flow's beginning, names for the rest.

use sidecore_net_stack::wire::ip::Codepoint;
use std::fmt;

/// A packet of one of the kinds that scripts know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Packet {
    Tcp(Tcp),
    /// A datagram with this many bytes of payload.
    Udp(usize),
    Icmp(Icmp),
}

/// A TCP segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tcp {
    /// As on the wire, AE above the others.
    pub(crate) flags: u16,
    pub(crate) sequence: u32,
    /// Bytes of payload.
    pub(crate) len: u32,
    pub(crate) acknowledgment: Option<u32>,
    /// Not scaled; none where it does not matter.
    pub(crate) window: Option<u16>,
    /// None where they do not matter.
    pub(crate) options: Option<Vec<TcpOption>>,
    /// The packet's ECN field: where an expectation has none it does not matter, and a packet of
    /// the peer's is not ECN-capable.
    pub(crate) ecn: Option<Codepoint>,
}

/// A TCP option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TcpOption {
    End,
    Nop,
    Mss(u16),
    Scale(u8),
    SackPermitted,
    Sack(Vec<(u32, u32)>),
    /// Value and echo; in an expectation, none where it does not matter.
    Stamps(Option<u32>, Option<u32>),
    /// Its kind, and how many bytes follow the length.
    Other(u8, usize),
}

/// An ICMP message, of either family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Icmp {
    /// Identifier, sequence number, bytes of payload.
    EchoRequest(u16, u16, usize),
    EchoReply(u16, u16, usize),
    /// The reason, the MTU where that matters, and the quoted packet: its start, and its bytes.
    Unreachable(Reason, u32, Option<(u32, u32)>),
    /// Of another kind and code.
    Other(u8, u8),
}

/// The reason of an unreachable destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    Net,
    Host,
    Protocol,
    Port,
    TooBig,
    /// Fragments that did not come in time.
    Late,
}

/// Names of reasons, as scripts write them.
pub(crate) const REASONS: [(&str, Reason); 6] = [
    ("net_unreachable", Reason::Net),
    ("host_unreachable", Reason::Host),
    ("protocol_unreachable", Reason::Protocol),
    ("port_unreachable", Reason::Port),
    ("frag_needed", Reason::TooBig),
    ("frag_time_exceeded", Reason::Late),
];

/// Names of ECN fields, as scripts write them.
pub(crate) const CODEPOINTS: [(&str, Codepoint); 4] = [
    ("noecn", Codepoint::NotEct),
    ("ect1", Codepoint::Ect1),
    ("ect0", Codepoint::Ect0),
    ("ce", Codepoint::Ce),
];

/// Letters of flags, in the order in which they are printed.
pub(crate) const FLAGS: [(char, u16); 9] = [
    ('S', 0x02),
    ('F', 0x01),
    ('R', 0x04),
    ('P', 0x08),
    ('U', 0x20),
    ('E', 0x40),
    ('W', 0x80),
    ('A', 0x100),
    ('.', 0x10),
];

impl fmt::Display for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(tcp) => tcp.fmt(f),
            Self::Udp(len) => write!(f, "udp ({len})"),
            Self::Icmp(icmp) => icmp.fmt(f),
        }
    }
}

impl fmt::Display for Tcp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = FLAGS.iter().filter(|(_, bit)| self.flags & bit != 0);
        let flags: String = flags.map(|(letter, _)| letter).collect();
        let flags = if flags.is_empty() { "-" } else { &flags };
        if let Some(ecn) = self.ecn {
            let name = CODEPOINTS.iter().find(|(_, other)| *other == ecn);
            write!(f, "[{}] ", name.map_or("", |(name, _)| name))?;
        }
        let end = self.sequence.wrapping_add(self.len);
        write!(f, "{flags} {}:{end}({})", self.sequence, self.len)?;
        if let Some(acknowledgment) = self.acknowledgment {
            write!(f, " ack {acknowledgment}")?;
        }
        if let Some(window) = self.window {
            write!(f, " win {window}")?;
        }
        match &self.options {
            None => write!(f, " <...>"),
            Some(options) if options.is_empty() => Ok(()),
            Some(options) => {
                let options: Vec<String> = options.iter().map(TcpOption::to_string).collect();
                write!(f, " <{}>", options.join(","))
            }
        }
    }
}

impl fmt::Display for TcpOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |number: &Option<u32>| number.map_or("*".to_owned(), |n| n.to_string());
        match self {
            Self::End => write!(f, "eol"),
            Self::Nop => write!(f, "nop"),
            Self::Mss(bytes) => write!(f, "mss {bytes}"),
            Self::Scale(bits) => write!(f, "wscale {bits}"),
            Self::SackPermitted => write!(f, "sackOK"),
            Self::Sack(blocks) => {
                write!(f, "sack")?;
                blocks
                    .iter()
                    .try_for_each(|(from, to)| write!(f, " {from}:{to}"))
            }
            Self::Stamps(value, echo) => {
                write!(f, "TS val {} ecr {}", number(value), number(echo))
            }
            Self::Other(kind, len) => write!(f, "kind {kind} len {len}"),
        }
    }
}

impl fmt::Display for Icmp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EchoRequest(id, number, len) => {
                write!(f, "icmp echo_request id {id} seq {number} ({len})")
            }
            Self::EchoReply(id, number, len) => {
                write!(f, "icmp echo_reply id {id} seq {number} ({len})")
            }
            Self::Unreachable(reason, mtu, about) => {
                let name = REASONS.iter().find(|(_, other)| other == reason);
                write!(f, "icmp {}", name.map_or("unreachable", |(name, _)| name))?;
                if *reason == Reason::TooBig {
                    write!(f, " mtu {mtu}")?;
                }
                if let Some((from, len)) = about {
                    write!(f, " [{from}:{}({len})]", from.wrapping_add(*len))?;
                }
                Ok(())
            }
            Self::Other(kind, code) => write!(f, "icmp type {kind} code {code}"),
        }
    }
}
