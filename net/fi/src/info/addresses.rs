//! Addresses of both sides: from the arguments of `fi_getinfo`, from the system or the stack; and
//! their forms in C.

use super::hints::Hints;
use crate::abi::*;
use crate::place::{stack_addresses, stack_socket};
use std::ffi::{c_int, c_void};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};

/// Addresses listed at most.
const ADDRESSES_MAX: usize = 16;

/// Addresses of this side, and the one of the other side.
type Addresses = (Vec<SocketAddr>, Option<SocketAddr>);

/// Addresses of this side, the best first, and of the other side.
pub(super) fn addresses(
    node: Option<&str>,
    service: Option<&str>,
    flags: u64,
    hints: Option<&Hints<'_>>,
) -> Result<Addresses, c_int> {
    let port = service.map_or(Ok(0), str::parse);
    let port = port.map_err(|_| -libc::ENODATA)?;
    let named = node.map(|node| resolved(node, port, flags)).transpose()?;
    // SAFETY: addresses of the hints, as long as they say.
    let (source, destination) = unsafe {
        hints.map_or((None, None), |hints| {
            (
                address_of(hints.info.src_addr, hints.info.src_addrlen),
                address_of(hints.info.dest_addr, hints.info.dest_addrlen),
            )
        })
    };
    // The node is one of this side or of the other, as the flag says (fi_getinfo(3)).
    let is_source = flags & FI_SOURCE != 0;
    let (own, destination) = if is_source {
        (named.or(source), destination)
    } else {
        (source, named.or(destination))
    };
    if let Some(own) = own.filter(|own| !own.ip().is_unspecified()) {
        return Ok((vec![own], destination));
    }
    let port = match own {
        Some(own) => own.port(),
        None if is_source => port,
        // A port of the other side says nothing about ours.
        None => 0,
    };
    let mut all = own_addresses();
    if let Some(destination) = destination {
        // Keep addresses of the same family, and on the loopback if the destination is.
        all.retain(|own| own.is_ipv4() == destination.is_ipv4());
        all.sort_by_key(|own| own.is_loopback() != destination.ip().is_loopback());
        all.truncate(1);
    }
    let all = all.into_iter().map(|own| SocketAddr::new(own, port));
    Ok((all.take(ADDRESSES_MAX).collect(), destination))
}

/// The address of a node, an IPv4 one if there are several.
fn resolved(node: &str, port: u16, flags: u64) -> Result<SocketAddr, c_int> {
    if flags & FI_NUMERICHOST != 0 {
        let address: IpAddr = node.parse().map_err(|_| -libc::ENODATA)?;
        return Ok(SocketAddr::new(address, port));
    }
    let found = (node, port).to_socket_addrs().map_err(|_| -libc::ENODATA)?;
    let mut first = None;
    for address in found {
        if address.is_ipv4() {
            return Ok(address);
        }
        first.get_or_insert(address);
    }
    first.ok_or(-libc::ENODATA)
}

/// Addresses of the stack, or of the kernel's interfaces, with loopback addresses last.
fn own_addresses() -> Vec<IpAddr> {
    let mut found: Vec<IpAddr> = networks().into_iter().map(|(address, _)| address).collect();
    // Link-local addresses are ambiguous without a scope.
    found.retain(|address| match address {
        IpAddr::V4(_) => true,
        IpAddr::V6(address) => !address.is_unicast_link_local(),
    });
    found.sort_by_key(|address| (address.is_loopback(), address.is_ipv6()));
    found
}

/// Name of the network of an address, used as the fabric's name: programs take endpoints of one
/// fabric as equivalent.
pub(super) fn network(own: IpAddr) -> String {
    let networks = networks();
    let found = networks.iter().find(|(address, _)| *address == own);
    let bits = found.map(|(_, bits)| *bits);
    // An address that is not of this side is a network of its own. Prefixes come from the system
    // or from an engine's status: none is taken for longer than its address.
    match own {
        IpAddr::V4(own) => {
            let bits = bits.map_or(u32::BITS, |bits| bits.min(u32::BITS));
            let mask = u32::MAX.checked_shl(u32::BITS - bits).unwrap_or(0);
            format!("{}/{bits}", Ipv4Addr::from(u32::from(own) & mask))
        }
        IpAddr::V6(own) => {
            let bits = bits.map_or(u128::BITS, |bits| bits.min(u128::BITS));
            let mask = u128::MAX.checked_shl(u128::BITS - bits).unwrap_or(0);
            format!("{}/{bits}", Ipv6Addr::from(u128::from(own) & mask))
        }
    }
}

/// Addresses of this side, each with its prefix length.
fn networks() -> Vec<(IpAddr, u32)> {
    if let Some(path) = stack_socket() {
        return stack_addresses(&path);
    }
    let mut found = Vec::new();
    let mut list = std::ptr::null_mut();
    // SAFETY: a place for the list, which is freed below.
    if unsafe { libc::getifaddrs(&mut list) } == 0 {
        let mut at = list;
        // SAFETY: the list's links are valid until it is freed, or NULL at its end.
        while let Some(interface) = unsafe { at.as_ref() } {
            let is_up = interface.ifa_flags & libc::IFF_UP.cast_unsigned() != 0;
            // SAFETY: NULL, or an address whose family says how long it is.
            let (address, mask) = unsafe {
                (
                    address_of(interface.ifa_addr.cast(), usize::MAX),
                    address_of(interface.ifa_netmask.cast(), usize::MAX),
                )
            };
            if let (true, Some(address)) = (is_up, address) {
                let bits = match mask.map(|mask| mask.ip()) {
                    Some(IpAddr::V4(mask)) => u32::from(mask).leading_ones(),
                    Some(IpAddr::V6(mask)) => u128::from(mask).leading_ones(),
                    None => 0,
                };
                found.push((address.ip(), bits));
            }
            at = interface.ifa_next;
        }
        // SAFETY: it came from getifaddrs.
        unsafe { libc::freeifaddrs(list) };
    }
    found
}

/// A socket address of C.
///
/// # Safety
/// NULL, or an address of at most `bytes` bytes.
pub(crate) unsafe fn address_of(at: *const c_void, bytes: usize) -> Option<SocketAddr> {
    if at.is_null() || bytes < size_of::<libc::sa_family_t>() {
        return None;
    }
    // SAFETY: it begins with its family, of which there are bytes enough.
    let family = unsafe { at.cast::<libc::sa_family_t>().read_unaligned() };
    match i32::from(family) {
        libc::AF_INET if bytes >= size_of::<libc::sockaddr_in>() => {
            // SAFETY: as long as its family says.
            let raw = unsafe { at.cast::<libc::sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(u32::from_be(raw.sin_addr.s_addr));
            Some(SocketAddr::new(ip.into(), u16::from_be(raw.sin_port)))
        }
        libc::AF_INET6 if bytes >= size_of::<libc::sockaddr_in6>() => {
            // SAFETY: as long as its family says.
            let raw = unsafe { at.cast::<libc::sockaddr_in6>().read_unaligned() };
            let ip = IpAddr::from(raw.sin6_addr.s6_addr);
            Some(SocketAddr::new(ip, u16::from_be(raw.sin6_port)))
        }
        _ => None,
    }
}

/// An address in C's form.
pub(crate) fn raw_address(address: SocketAddr) -> Vec<u8> {
    let (family, bytes, at) = match address.ip() {
        IpAddr::V4(_) => (libc::AF_INET, size_of::<libc::sockaddr_in>(), 4),
        // Behind the flow information, which is 0.
        IpAddr::V6(_) => (libc::AF_INET6, size_of::<libc::sockaddr_in6>(), 8),
    };
    let mut raw = vec![0; bytes];
    // Families are small numbers.
    let family = libc::sa_family_t::try_from(family).unwrap_or_default();
    raw[..2].copy_from_slice(&family.to_ne_bytes());
    raw[2..4].copy_from_slice(&address.port().to_be_bytes());
    match address.ip() {
        IpAddr::V4(ip) => raw[at..at + 4].copy_from_slice(&ip.octets()),
        IpAddr::V6(ip) => raw[at..at + 16].copy_from_slice(&ip.octets()),
    }
    raw
}
