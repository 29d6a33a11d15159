//! Socket addresses in the kernel ABI: `struct sockaddr_in` and `struct sockaddr_in6`.
//!
//! Must stay true: any bytes can be read. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// An address that a program passed to a system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Given {
    /// IPv4 or IPv6; an IPv4-mapped IPv6 address is reported as IPv4.
    Inet(SocketAddr),
    /// `AF_UNSPEC`: a datagram socket dissolves its association with a peer.
    Unspecified,
    /// Another family, or too short: the call is left to the kernel.
    Other,
}

/// Reads `struct sockaddr`.
pub fn read(bytes: &[u8]) -> Given {
    let Some((family, rest)) = bytes.split_first_chunk() else {
        return Given::Other;
    };
    let port = |rest: &[u8]| Some(u16::from_be_bytes(*rest.first_chunk()?));
    match i32::from(u16::from_ne_bytes(*family)) {
        libc::AF_UNSPEC => Given::Unspecified,
        libc::AF_INET if bytes.len() >= V4_BYTES => {
            let (Some(port), Some(ip)) = (port(rest), rest[2..].first_chunk::<4>()) else {
                return Given::Other;
            };
            Given::Inet(SocketAddr::new(Ipv4Addr::from(*ip).into(), port))
        }
        // `sin6_scope_id` may be missing, as before RFC 2553.
        libc::AF_INET6 if bytes.len() >= least_bytes(true) => {
            let (Some(port), Some(ip)) = (port(rest), rest[6..].first_chunk::<16>()) else {
                return Given::Other;
            };
            Given::Inet(plain(SocketAddr::new(Ipv6Addr::from(*ip).into(), port)))
        }
        _ => Given::Other,
    }
}

/// True if an address is given as `AF_INET6`.
pub(crate) fn is_v6(bytes: &[u8]) -> bool {
    bytes.first_chunk() == Some(&FAMILY_V6)
}

/// Bytes below which the kernel refuses an address of the family with EINVAL.
pub(crate) fn least_bytes(is_v6: bool) -> usize {
    if is_v6 { V6_BYTES - 4 } else { V4_BYTES }
}

/// `struct sockaddr_in6` where `is_v6` (IPv4 as an IPv4-mapped address), else `struct sockaddr_in`.
pub fn write(address: SocketAddr, is_v6: bool) -> Vec<u8> {
    let port = address.port().to_be_bytes();
    if is_v6 {
        let ip = match address.ip() {
            // An unbound socket: the unspecified address of the requested family.
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv6Addr::UNSPECIFIED,
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        let parts: [&[u8]; 5] = [&FAMILY_V6, &port, &[0; 4], &ip.octets(), &[0; 4]];
        return parts.concat();
    }
    // An IPv4 socket has no IPv6 peers, except IPv4-mapped ones.
    let ip = match address.ip() {
        IpAddr::V4(ip) => ip,
        IpAddr::V6(ip) => ip.to_ipv4_mapped().unwrap_or(Ipv4Addr::UNSPECIFIED),
    };
    let parts: [&[u8]; 4] = [&FAMILY_V4, &port, &ip.octets(), &[0; 8]];
    parts.concat()
}

/// The host that a destination names: as in the kernel, the unspecified address is this host.
pub(crate) fn plain_peer(peer: SocketAddr, is_v6: bool) -> SocketAddr {
    if !peer.ip().is_unspecified() {
        return peer;
    }
    let ip = match (peer.ip(), is_v6) {
        (IpAddr::V6(_), true) => IpAddr::from(Ipv6Addr::LOCALHOST),
        _ => Ipv4Addr::LOCALHOST.into(),
    };
    SocketAddr::new(ip, peer.port())
}

/// The same address; an IPv4-mapped IPv6 address becomes IPv4.
pub(crate) fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(plain_ip(address.ip()), address.port())
}

/// See [`plain`].
pub(crate) fn plain_ip(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(ip, IpAddr::V4),
        IpAddr::V4(_) => ip,
    }
}

/// `sa_family_t`, as `struct sockaddr` begins with it.
const FAMILY_V4: [u8; 2] = (libc::AF_INET as u16).to_ne_bytes();
const FAMILY_V6: [u8; 2] = (libc::AF_INET6 as u16).to_ne_bytes();
/// Bytes of `struct sockaddr_in`.
const V4_BYTES: usize = 16;
/// Bytes of `struct sockaddr_in6`.
const V6_BYTES: usize = 28;
/// Bytes of an address that are read at most: `struct sockaddr_storage`.
pub(crate) const BYTES_MAX: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back() {
        for (text, is_v6) in [
            ("10.77.0.2:80", false),
            ("10.77.0.2:80", true),
            ("[fd77::2]:65535", true),
            ("[::1]:1", true),
        ] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(read(&write(address, is_v6)), Given::Inet(address), "{text}");
        }
        let any = write("0.0.0.0:5".parse().unwrap(), true);
        assert_eq!(read(&any), Given::Inet("[::]:5".parse().unwrap()));
    }

    #[test]
    fn the_unspecified_address_as_a_destination_is_this_host() {
        for (peer, is_v6, host) in [
            ("0.0.0.0:1", false, "127.0.0.1:1"),
            ("0.0.0.0:1", true, "127.0.0.1:1"),
            ("[::]:1", true, "[::1]:1"),
            ("[::]:1", false, "127.0.0.1:1"),
            ("10.0.0.1:1", false, "10.0.0.1:1"),
            ("[fd77::1]:1", true, "[fd77::1]:1"),
        ] {
            let (peer, host) = (peer.parse().unwrap(), host.parse().unwrap());
            assert_eq!(plain_peer(peer, is_v6), host, "{peer} {is_v6}");
        }
    }

    #[test]
    fn the_family_is_that_of_the_bytes() {
        let at = "127.0.0.1:1".parse().unwrap();
        assert!(!is_v6(&write(at, false)));
        // IPv4-mapped addresses are IPv6 addresses here.
        assert!(is_v6(&write(at, true)));
        assert!(!is_v6(&[]) && !is_v6(&[10]));
    }

    #[test]
    fn whatever_is_given_is_read() {
        assert_eq!(read(&[]), Given::Other);
        assert_eq!(read(&[0, 0]), Given::Unspecified);
        assert_eq!(read(&[1, 0, b'/', b'x']), Given::Other);
        let whole = write("10.77.0.2:80".parse().unwrap(), false);
        for length in 2..whole.len() {
            assert_eq!(read(&whole[..length]), Given::Other);
        }
        // Shorter than with a scope, as old programs give it.
        let whole = write("[::1]:80".parse().unwrap(), true);
        assert_eq!(read(&whole[..24]), read(&whole));
        assert_eq!(read(&whole[..23]), Given::Other);
    }
}
