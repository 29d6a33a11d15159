//! The script's numbers and the wire's: one flow for each pair of ends.
//!
//! In a script our sequence numbers begin at 0 with our SYN, whatever the stack chose, and so do
//! our timestamps begin where the script's first one says; the peer's numbers are its own.

use super::bytes::{self, Decoded, pattern};
use super::packet::{Icmp, Packet, Tcp, TcpOption};
use super::script::Flow;
use super::settings::Settings;
use sidecore_net_stack::Ends;
use sidecore_net_stack::wire::Ip;
use std::collections::BTreeMap;

/// The peer's port of flow 1, less 1, where the peer opens.
const REMOTE_PORTS: u16 = 40_000;
/// Port that scripts' servers listen on and clients connect to, unless a script names another.
pub(crate) const PORT: u16 = 8080;

const SYN: u16 = 0x02;
const FIN: u16 = 0x01;

#[derive(Debug, Clone)]
struct Known {
    ends: Ends,
    /// Our initial sequence number on the wire, and the peer's.
    ours: u32,
    theirs: u32,
    /// Added to the script's timestamps of ours; learnt at the first that is compared.
    stamps: Option<u32>,
    /// The last packet of ours, as it was, for ICMP errors about it.
    last: Vec<u8>,
}

/// All flows of a run.
#[derive(Debug, Default)]
pub(crate) struct Flows {
    known: BTreeMap<Flow, Known>,
    /// Port that the application listens on.
    pub(crate) listens_at: Option<u16>,
}

impl Flows {
    /// The IP packet that the script's one is on the wire.
    pub(crate) fn build(&mut self, settings: &Settings, flow: Flow, packet: &Packet) -> Vec<u8> {
        let port = self.listens_at.unwrap_or(PORT);
        let known = self.known.entry(flow).or_insert_with(|| Known {
            ends: Ends {
                local: Ip::from(settings.local()),
                remote: Ip::from(settings.remote()),
                local_port: port,
                remote_port: REMOTE_PORTS.wrapping_add(flow as u16),
            },
            ours: 0,
            theirs: 0,
            stamps: None,
            last: Vec::new(),
        });
        match packet {
            Packet::Tcp(tcp) => {
                if tcp.flags & SYN != 0 {
                    known.theirs = tcp.sequence;
                }
                let place = tcp.sequence.wrapping_sub(known.theirs).wrapping_sub(1);
                let tcp = Packet::Tcp(known.to_wire(tcp));
                bytes::build(&known.ends, &tcp, place, &[])
            }
            Packet::Icmp(icmp) => {
                let quoted = known.quote(icmp);
                bytes::build(&known.ends, packet, 0, &quoted)
            }
            Packet::Udp(_) => bytes::build(&known.ends, packet, 0, &[]),
        }
    }

    /// Finds the flow of a packet of ours, and makes one for a pair of ends that is new. The packet
    /// comes back in the script's numbers; the error tells of a wrong payload.
    pub(crate) fn learn(
        &mut self,
        decoded: &Decoded,
        whole: &[u8],
    ) -> (Option<Flow>, Packet, Result<(), &'static str>) {
        if matches!(decoded.packet, Packet::Icmp(_)) {
            return (None, decoded.packet.clone(), Ok(()));
        }
        let found = self
            .known
            .iter()
            .find(|(_, known)| known.ends == decoded.ends);
        let flow = match found {
            Some((flow, _)) => *flow,
            None => (1..)
                .find(|flow| !self.known.contains_key(flow))
                .unwrap_or(1),
        };
        let known = self.known.entry(flow).or_insert_with(|| Known {
            ends: decoded.ends,
            ours: 0,
            theirs: 0,
            stamps: None,
            last: Vec::new(),
        });
        known.last = whole.to_vec();
        let Packet::Tcp(tcp) = &decoded.packet else {
            return (Some(flow), decoded.packet.clone(), Ok(()));
        };
        if tcp.flags & SYN != 0 {
            known.ours = tcp.sequence;
        }
        let relative = tcp.sequence.wrapping_sub(known.ours);
        let first = relative.wrapping_sub(1);
        let right = decoded
            .payload
            .iter()
            .zip(0..)
            .all(|(&byte, at)| byte == pattern(first.wrapping_add(at)));
        let payload = if right {
            Ok(())
        } else {
            Err("payload (a byte is not what was written)")
        };
        (Some(flow), Packet::Tcp(known.to_script(tcp)), payload)
    }

    /// The difference between an actual packet and the expected one; both in the script's numbers.
    pub(crate) fn differs(
        &mut self,
        flow: Flow,
        expected: &Packet,
        actual: &mut Packet,
        tolerance_ms: u32,
    ) -> Option<&'static str> {
        match (expected, actual) {
            (Packet::Tcp(expected), Packet::Tcp(actual)) => {
                if let Some(known) = self.known.get_mut(&flow) {
                    known.resolve_stamps(expected, actual);
                }
                differs(expected, actual, tolerance_ms)
            }
            (Packet::Icmp(expected), Packet::Icmp(actual)) => match (expected, &actual) {
                // The quoted packet is not parsed.
                (Icmp::Unreachable(a, mtu, _), Icmp::Unreachable(b, other, _)) => {
                    (a != b || mtu != other).then_some("reason or MTU")
                }
                (expected, actual) => (expected != *actual).then_some("its kind or numbers"),
            },
            (Packet::Udp(expected), Packet::Udp(actual)) => {
                (expected != actual).then_some("its length")
            }
            _ => Some("its protocol"),
        }
    }
}

impl Known {
    /// A segment of the peer's.
    fn to_wire(&self, tcp: &Tcp) -> Tcp {
        let mut out = tcp.clone();
        out.acknowledgment = tcp.acknowledgment.map(|ack| ack.wrapping_add(self.ours));
        for option in out.options.iter_mut().flatten() {
            match option {
                TcpOption::Sack(blocks) => {
                    for (from, to) in blocks {
                        *from = from.wrapping_add(self.ours);
                        *to = to.wrapping_add(self.ours);
                    }
                }
                TcpOption::Stamps(_, Some(echo)) => {
                    *echo = echo.wrapping_add(self.stamps.unwrap_or(0));
                }
                _ => {}
            }
        }
        out
    }

    /// A segment of ours. The peer's numbers are the script's already.
    fn to_script(&self, tcp: &Tcp) -> Tcp {
        let mut out = tcp.clone();
        out.sequence = tcp.sequence.wrapping_sub(self.ours);
        if let Some(stamps) = self.stamps {
            for option in out.options.iter_mut().flatten() {
                if let TcpOption::Stamps(Some(value), _) = option {
                    *value = value.wrapping_sub(stamps);
                }
            }
        }
        out
    }

    /// The first timestamp that the script gives a value is where its clock begins.
    fn resolve_stamps(&mut self, expected: &Tcp, actual: &mut Tcp) {
        if self.stamps.is_some() {
            return;
        }
        let wanted = expected
            .options
            .iter()
            .flatten()
            .find_map(|option| match option {
                TcpOption::Stamps(Some(value), _) => Some(*value),
                _ => None,
            });
        let Some(wanted) = wanted else { return };
        for option in actual.options.iter_mut().flatten() {
            if let TcpOption::Stamps(Some(value), _) = option {
                self.stamps = Some(value.wrapping_sub(wanted));
                *value = wanted;
            }
        }
    }

    /// Header quoted in an ICMP error: that of our last packet, with the sequence number that the
    /// script names.
    fn quote(&self, icmp: &Icmp) -> Vec<u8> {
        let Icmp::Unreachable(_, _, about) = icmp else {
            return Vec::new();
        };
        let mut quoted = self.last.clone();
        let start = if self.ends.local.is_v4() { 20 } else { 40 };
        quoted.truncate(start + 8);
        if let (Some((from, _)), Some(field)) = (about, quoted.get_mut(start + 4..start + 8)) {
            field.copy_from_slice(&from.wrapping_add(self.ours).to_be_bytes());
        }
        quoted
    }
}

fn differs(expected: &Tcp, actual: &Tcp, tolerance_ms: u32) -> Option<&'static str> {
    if expected.flags != actual.flags {
        return Some("its flags");
    }
    if expected.ecn.is_some() && expected.ecn != actual.ecn {
        return Some("its ECN field");
    }
    let phantom = expected.flags & (SYN | FIN) != 0;
    if expected.sequence != actual.sequence || expected.len != actual.len {
        return Some(if phantom {
            "its sequence number"
        } else {
            "its sequence numbers or length"
        });
    }
    if expected
        .acknowledgment
        .is_some_and(|ack| Some(ack) != actual.acknowledgment)
    {
        return Some("what it acknowledges");
    }
    if expected
        .window
        .is_some_and(|window| Some(window) != actual.window)
    {
        return Some("its window");
    }
    let (Some(wanted), Some(found)) = (&expected.options, &actual.options) else {
        return None;
    };
    let same = wanted.len() == found.len()
        && wanted.iter().zip(found).all(|pair| match pair {
            (TcpOption::Stamps(value, echo), TcpOption::Stamps(other, other_echo)) => {
                let near = |wanted: u32| {
                    other.is_some_and(|found| {
                        found.wrapping_sub(wanted).wrapping_add(tolerance_ms) <= 2 * tolerance_ms
                    })
                };
                value.is_none_or(near) && (echo.is_none() || echo == other_echo)
            }
            (wanted, found) => wanted == found,
        });
    (!same).then_some("its options")
}
