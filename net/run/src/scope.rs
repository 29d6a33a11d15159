//! The server of a socket by its address: the stack, the loopback, or the kernel.
//!
//! Must stay true: the answer follows from the address alone, so that users can predict it. Pure.

use crate::address::plain_ip;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The server of a socket that was taken from the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Server {
    /// The stack.
    Stack,
    /// The supervisor, which joins both ends of the session.
    Loopback,
}

/// Addresses that are taken from the kernel.
#[derive(Debug, Clone, Default)]
pub(crate) struct Scope {
    /// The stack's addresses.
    pub(crate) addresses: Vec<IpAddr>,
    /// Networks that the stack reaches: an address in each, and the prefix length in bits.
    pub(crate) networks: Vec<(IpAddr, u8)>,
    /// `127.0.0.0/8` and `::1` are served among supervised programs.
    pub(crate) has_loopback: bool,
    /// There is a stack, and it serves all addresses but the loopback's.
    pub(crate) is_all: bool,
}

impl Scope {
    /// True if there is a stack.
    pub(crate) fn has_stack(&self) -> bool {
        !self.addresses.is_empty()
    }

    /// The server of a socket that is bound to `ip`; none: the kernel. The stack serves an
    /// unspecified address if there is one; the loopback accepts there, too.
    pub(crate) fn of_local(&self, ip: IpAddr) -> Option<Server> {
        let ip = plain_ip(ip);
        if ip.is_unspecified() {
            return match (self.has_stack(), self.has_loopback) {
                (true, _) => Some(Server::Stack),
                (false, true) => Some(Server::Loopback),
                (false, false) => None,
            };
        }
        if ip.is_loopback() {
            return self.has_loopback.then_some(Server::Loopback);
        }
        // The kernel rejects addresses that neither has, unless the stack serves all.
        let is_stacks = self.addresses.contains(&ip) || self.is_all && self.has_stack();
        is_stacks.then_some(Server::Stack)
    }

    /// The server of traffic to `ip`; none: the kernel.
    pub(crate) fn of_peer(&self, ip: IpAddr) -> Option<Server> {
        let ip = plain_ip(ip);
        // As in the kernel, the unspecified address as a destination is this host.
        if ip.is_loopback() || ip.is_unspecified() {
            return self.has_loopback.then_some(Server::Loopback);
        }
        let reaches = |&(network, bits): &(IpAddr, u8)| shares_prefix(network, ip, bits);
        let is_stacks = self.has_stack()
            && (self.is_all || self.addresses.contains(&ip) || self.networks.iter().any(reaches));
        is_stacks.then_some(Server::Stack)
    }

    /// The address from which traffic to `peer` is sent, if the socket has none of its own.
    pub(crate) fn source_for(&self, peer: IpAddr) -> Option<IpAddr> {
        if peer.is_loopback() {
            return Some(match peer {
                IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
                IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
            });
        }
        let mut own = self.addresses.iter().copied();
        own.find(|own| own.is_ipv4() == peer.is_ipv4())
    }
}

fn shares_prefix(one: IpAddr, other: IpAddr, bits: u8) -> bool {
    let (one, other, width) = match (one, other) {
        (IpAddr::V4(one), IpAddr::V4(other)) => (one.to_bits().into(), other.to_bits().into(), 32),
        (IpAddr::V6(one), IpAddr::V6(other)) => (one.to_bits(), other.to_bits(), 128),
        _ => return false,
    };
    let differ: u128 = one ^ other;
    bits == 0 || bits <= width && differ >> (width - bits) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn scope() -> Scope {
        Scope {
            addresses: vec![ip("10.77.0.2"), ip("fd77::2")],
            networks: vec![(ip("10.77.0.2"), 24), (ip("fd77::2"), 64)],
            has_loopback: false,
            is_all: false,
        }
    }

    #[test]
    fn addresses_say_whose_a_socket_is() {
        let mut scope = scope();
        for (local, whose) in [
            ("0.0.0.0", Some(Server::Stack)),
            ("::", Some(Server::Stack)),
            ("10.77.0.2", Some(Server::Stack)),
            ("::ffff:10.77.0.2", Some(Server::Stack)),
            ("10.77.0.1", None),
            ("127.0.0.1", None),
        ] {
            assert_eq!(scope.of_local(ip(local)), whose, "{local}");
        }
        for (peer, whose) in [
            ("10.77.0.1", Some(Server::Stack)),
            ("fd77::9", Some(Server::Stack)),
            ("10.78.0.1", None),
            ("192.0.2.1", None),
            ("127.0.0.1", None),
            ("0.0.0.0", None),
        ] {
            assert_eq!(scope.of_peer(ip(peer)), whose, "{peer}");
        }
        scope.is_all = true;
        assert_eq!(scope.of_peer(ip("192.0.2.1")), Some(Server::Stack));
        assert_eq!(scope.of_peer(ip("127.0.0.1")), None);
        scope.has_loopback = true;
        for peer in [
            "127.0.0.1",
            "127.1.2.3",
            "::1",
            "0.0.0.0",
            "::ffff:127.0.0.1",
        ] {
            assert_eq!(scope.of_peer(ip(peer)), Some(Server::Loopback), "{peer}");
        }
        assert_eq!(scope.of_local(ip("127.0.0.1")), Some(Server::Loopback));
        assert_eq!(scope.of_local(ip("0.0.0.0")), Some(Server::Stack));
        let alone = Scope {
            has_loopback: true,
            ..Scope::default()
        };
        assert_eq!(alone.of_local(ip("0.0.0.0")), Some(Server::Loopback));
        assert_eq!(alone.of_peer(ip("192.0.2.1")), None);
    }

    #[test]
    fn traffic_is_sent_from_an_address_of_its_family() {
        let scope = scope();
        for (peer, source) in [
            ("127.0.0.9", Some("127.0.0.1")),
            ("::1", Some("::1")),
            ("10.77.0.9", Some("10.77.0.2")),
            ("fd77::9", Some("fd77::2")),
        ] {
            assert_eq!(scope.source_for(ip(peer)), source.map(ip), "{peer}");
        }
        assert_eq!(Scope::default().source_for(ip("10.77.0.9")), None);
    }

    #[test]
    fn prefixes() {
        assert!(shares_prefix(ip("10.0.0.0"), ip("10.255.0.1"), 8));
        assert!(!shares_prefix(ip("10.0.0.0"), ip("11.0.0.1"), 8));
        assert!(shares_prefix(ip("0.0.0.0"), ip("11.0.0.1"), 0));
        assert!(!shares_prefix(ip("0.0.0.0"), ip("::1"), 0));
        assert!(!shares_prefix(ip("10.0.0.1"), ip("10.0.0.2"), 32));
        assert!(shares_prefix(ip("fd77::"), ip("fd77::1:2"), 64));
    }
}
