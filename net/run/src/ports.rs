//! Local addresses of the sockets taken from the kernel, by bind(2)'s rules.
//!
//! As in Linux, overlapping addresses conflict, unless both sockets allow it (SO_REUSEPORT with one
//! owner, or SO_REUSEADDR while neither listens). Must stay true: a released port is free at once.
//! Pure.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

/// TCP or UDP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Transport {
    /// Sessions.
    Tcp,
    /// Datagrams.
    Udp,
}

/// A local address and its rules of sharing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) ip: IpAddr,
    /// IPV6_V6ONLY.
    pub(crate) is_v6_only: bool,
    /// SO_REUSEADDR.
    pub(crate) reuses_address: bool,
    /// SO_REUSEPORT.
    pub(crate) reuses_port: bool,
    /// The effective user of the process that opened the socket.
    pub(crate) owner: u32,
    /// It listens.
    pub(crate) listens: bool,
}

/// All claims.
#[derive(Debug, Default)]
pub(crate) struct Ports {
    claims: HashMap<(Transport, u16), Vec<(u64, Claim)>>,
    /// The last port that was given to a socket without one, from [`FIRST_PORT`].
    last: u16,
}

impl Ports {
    /// No claims. Supervisors begin at different ports.
    pub(crate) fn of_this_process() -> Self {
        let last = u16::try_from(std::process::id() % 8192).unwrap_or_default();
        Self {
            last,
            ..Self::default()
        }
    }

    /// A port for a program's end of a loopback session; free unless all are taken.
    pub(crate) fn ephemeral(&mut self, transport: Transport) -> u16 {
        // In turn, so that a port rests for long before it is used again.
        for _ in 0..PORTS {
            self.last = (self.last + 1) % PORTS;
            if self.is_free(transport, FIRST_PORT + self.last) {
                break;
            }
        }
        FIRST_PORT + self.last
    }

    /// Claims `port` for the socket `of`, or changes its claim; false if another claim conflicts.
    #[must_use]
    pub(crate) fn take(&mut self, transport: Transport, port: u16, of: u64, claim: Claim) -> bool {
        let claims = self.claims.entry((transport, port)).or_default();
        let clashes = claims
            .iter()
            .any(|(other, theirs)| *other != of && clash(transport, theirs, &claim));
        if clashes {
            return false;
        }
        // A socket has one claim per port: bind(2) makes it, listen(2) makes it stricter.
        claims.retain(|(other, _)| *other != of);
        claims.push((of, claim));
        true
    }

    /// Releases `port` for the socket `of`.
    pub(crate) fn release(&mut self, transport: Transport, port: u16, of: u64) {
        if let Some(claims) = self.claims.get_mut(&(transport, port)) {
            claims.retain(|(other, _)| *other != of);
            if claims.is_empty() {
                self.claims.remove(&(transport, port));
            }
        }
    }

    /// True if no socket has `port`.
    pub(crate) fn is_free(&self, transport: Transport, port: u16) -> bool {
        !self.claims.contains_key(&(transport, port))
    }

    /// The sockets that have a port.
    pub(crate) fn owners(&self, transport: Transport, port: u16) -> Vec<u64> {
        let claims = self.claims.get(&(transport, port)).into_iter().flatten();
        claims.map(|(of, _)| *of).collect()
    }

    /// The sockets that receive traffic to `to`: those bound to exactly this address, else those
    /// bound to the unspecified one.
    pub(crate) fn at(&self, transport: Transport, to: SocketAddr) -> Vec<u64> {
        let Some(claims) = self.claims.get(&(transport, to.port())) else {
            return Vec::new();
        };
        let of = |fits: &dyn Fn(&Claim) -> bool| -> Vec<u64> {
            let fitting = claims.iter().filter(|(_, claim)| fits(claim));
            let wanted = fitting.filter(|(_, claim)| claim.listens || transport == Transport::Udp);
            wanted.map(|(of, _)| *of).collect()
        };
        let exact = of(&|claim| claim.ip == to.ip());
        // As in Linux, a socket at exactly this address hides those at the unspecified one.
        if exact.is_empty() {
            return of(&|claim| takes_any(claim, to.ip()));
        }
        exact
    }
}

/// True if the claim `other` conflicts with the existing claim `one`.
fn clash(transport: Transport, one: &Claim, other: &Claim) -> bool {
    let apart = |v6: &Claim, v4: &Claim| v6.is_v6_only && v6.ip.is_ipv6() && v4.ip.is_ipv4();
    let overlap = !apart(one, other)
        && !apart(other, one)
        && (one.ip == other.ip || takes_any(one, other.ip) || takes_any(other, one.ip));
    // SO_REUSEADDR shares a TCP port only until one of the sockets listens.
    let shared = one.reuses_port && other.reuses_port && one.owner == other.owner
        || one.reuses_address
            && other.reuses_address
            && (transport == Transport::Udp || !one.listens);
    overlap && !shared
}

/// True if the claim is of an unspecified address that includes `ip`.
fn takes_any(claim: &Claim, ip: IpAddr) -> bool {
    match claim.ip {
        IpAddr::V4(any) if any.is_unspecified() => ip.is_ipv4() || ip.is_unspecified(),
        IpAddr::V6(any) if any.is_unspecified() => ip.is_ipv6() || !claim.is_v6_only,
        _ => false,
    }
}

/// Ports for the near ends of loopback sessions, as Linux's `ip_local_port_range`.
const FIRST_PORT: u16 = 32768;
const PORTS: u16 = 28232;

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(ip: &str) -> Claim {
        Claim {
            ip: ip.parse().unwrap(),
            is_v6_only: false,
            reuses_address: false,
            reuses_port: false,
            owner: 0,
            listens: false,
        }
    }

    #[test]
    fn a_chosen_port_is_free_while_one_is() {
        let mut ports = Ports::default();
        let first = ports.ephemeral(Transport::Tcp);
        assert!((FIRST_PORT..FIRST_PORT + PORTS).contains(&first));
        let next = ports.ephemeral(Transport::Tcp);
        assert_ne!(first, next);
        let any = claim("127.0.0.1");
        let after = FIRST_PORT + (next - FIRST_PORT + 1) % PORTS;
        assert!(ports.take(Transport::Tcp, after, 1, any));
        assert_ne!(ports.ephemeral(Transport::Tcp), after);
        // All are taken but one, behind the last of the range.
        for port in FIRST_PORT..FIRST_PORT + PORTS {
            assert!(ports.take(Transport::Udp, port, 1, any));
        }
        ports.release(Transport::Udp, FIRST_PORT, 1);
        assert_eq!(ports.ephemeral(Transport::Udp), FIRST_PORT);
        // The search ends where all are taken.
        assert!(ports.take(Transport::Udp, FIRST_PORT, 1, any));
        let taken = ports.ephemeral(Transport::Udp);
        assert!(!ports.is_free(Transport::Udp, taken));
    }

    #[test]
    fn a_port_has_all_its_owners() {
        let mut ports = Ports::of_this_process();
        assert!(ports.owners(Transport::Tcp, 80).is_empty());
        for (inode, ip) in [(1, "127.0.0.1"), (2, "127.0.0.2")] {
            assert!(ports.take(Transport::Tcp, 80, inode, claim(ip)));
        }
        assert_eq!(ports.owners(Transport::Tcp, 80), [1, 2]);
        assert!(ports.owners(Transport::Udp, 80).is_empty());
        ports.release(Transport::Tcp, 80, 1);
        ports.release(Transport::Tcp, 80, 3);
        ports.release(Transport::Udp, 81, 1);
        assert_eq!(ports.owners(Transport::Tcp, 80), [2]);
    }

    #[test]
    fn one_address_has_one_socket() {
        let mut ports = Ports::default();
        assert!(ports.is_free(Transport::Tcp, 80));
        assert!(ports.take(Transport::Tcp, 80, 1, claim("127.0.0.1")));
        assert!(!ports.take(Transport::Tcp, 80, 2, claim("127.0.0.1")));
        assert!(!ports.take(Transport::Tcp, 80, 2, claim("0.0.0.0")));
        assert!(!ports.take(Transport::Tcp, 80, 2, claim("::")));
        assert!(ports.take(Transport::Tcp, 80, 2, claim("127.0.0.2")));
        assert!(ports.take(Transport::Udp, 80, 3, claim("0.0.0.0")));
        let only = Claim {
            is_v6_only: true,
            ..claim("::")
        };
        assert!(ports.take(Transport::Tcp, 80, 4, only));
        assert!(ports.take(Transport::Tcp, 81, 4, only));
        assert!(ports.take(Transport::Tcp, 81, 5, claim("0.0.0.0")));
        ports.release(Transport::Tcp, 80, 1);
        assert!(ports.take(Transport::Tcp, 80, 5, claim("127.0.0.1")));
        assert!(!ports.is_free(Transport::Tcp, 80));
    }

    #[test]
    fn sharing_is_for_those_who_both_allow_it() {
        let mut ports = Ports::default();
        let shares = Claim {
            reuses_address: true,
            ..claim("0.0.0.0")
        };
        let listens = Claim {
            listens: true,
            ..shares
        };
        assert!(ports.take(Transport::Tcp, 1, 1, shares));
        assert!(ports.take(Transport::Tcp, 1, 2, shares));
        // The first of the bound sockets may listen; then no other may.
        assert!(ports.take(Transport::Tcp, 1, 1, listens));
        assert!(!ports.take(Transport::Tcp, 1, 2, listens));
        assert!(!ports.take(Transport::Tcp, 1, 3, claim("0.0.0.0")));
        assert!(ports.take(Transport::Tcp, 2, 1, listens));
        assert!(!ports.take(Transport::Tcp, 2, 2, shares));
        let many = Claim {
            reuses_port: true,
            ..listens
        };
        assert!(ports.take(Transport::Tcp, 3, 1, many));
        assert!(ports.take(Transport::Tcp, 3, 2, many));
        assert_eq!(
            ports.at(Transport::Tcp, "127.0.0.1:3".parse().unwrap()),
            [1, 2]
        );
        let foreign = Claim { owner: 7, ..many };
        assert!(!ports.take(Transport::Tcp, 3, 3, foreign));
    }

    #[test]
    fn what_is_sent_goes_to_the_exact_address_first() {
        let mut ports = Ports::default();
        let any = Claim {
            listens: true,
            ..claim("0.0.0.0")
        };
        let exact = Claim {
            listens: true,
            reuses_port: true,
            ..claim("127.0.0.1")
        };
        assert!(ports.take(
            Transport::Tcp,
            5,
            1,
            Claim {
                reuses_port: true,
                ..any
            }
        ));
        assert!(ports.take(Transport::Tcp, 5, 2, exact));
        assert_eq!(
            ports.at(Transport::Tcp, "127.0.0.1:5".parse().unwrap()),
            [2]
        );
        assert_eq!(
            ports.at(Transport::Tcp, "127.0.0.2:5".parse().unwrap()),
            [1]
        );
        assert!(
            ports
                .at(Transport::Tcp, "[::1]:5".parse().unwrap())
                .is_empty()
        );
        assert!(
            ports
                .at(Transport::Tcp, "127.0.0.1:6".parse().unwrap())
                .is_empty()
        );
    }
}
