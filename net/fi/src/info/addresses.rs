//! Addresses of both sides: from the arguments of `fi_getinfo`, from the system or the stack; and
//! their forms in C.

use super::hints::Hints;
use crate::abi::*;
use crate::place::{stack_addresses, stack_socket};
use std::ffi::{CString, c_int, c_void};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};

/// Addresses listed at most.
const ADDRESSES_MAX: usize = 16;

/// Addresses of this side, and the one of the other side.
type Addresses = (Vec<SocketAddr>, Option<SocketAddr>);

/// The ends that the arguments of `fi_getinfo` name.
struct Named {
    address: Option<SocketAddr>,
    /// Port of the service; 0 without one.
    port: u16,
    /// Format of a node that is a formatted address.
    format: u32,
}

/// Addresses of this side, the best first, and of the other side.
pub(super) fn addresses(
    node: Option<&str>,
    service: Option<&str>,
    flags: u64,
    hints: Option<&Hints<'_>>,
) -> Result<Addresses, c_int> {
    let is_source = flags & FI_SOURCE != 0;
    let is_named = node.is_some() || service.is_some();
    // The flag says whose the node and the service are: there has to be one of them.
    if is_source && !is_named {
        return Err(-libc::EINVAL);
    }
    let format = hints.map_or(FI_FORMAT_UNSPEC, Hints::format);
    let named = named(node, service, flags, format)?;
    let fits = |ip: IpAddr| has_format(ip, format) && has_format(ip, named.format);
    // Hints for the side that the arguments name are ignored (fi_getinfo(3)).
    let own = match hints {
        _ if is_source => named.address,
        Some(hints) => hinted(hints.info.src_addr, hints.info.src_addrlen)?,
        None => None,
    };
    let destination = match hints {
        _ if is_named && !is_source => named.address,
        Some(hints) => hinted(hints.info.dest_addr, hints.info.dest_addrlen)?,
        None => None,
    };
    let given = [own, destination];
    let is_v4 = |is_v4: bool| given.iter().flatten().all(|one| one.is_ipv4() == is_v4);
    if !given.iter().flatten().all(|one| fits(one.ip())) || !is_v4(true) && !is_v4(false) {
        return Err(-libc::ENODATA);
    }
    if let Some(own) = own.filter(|own| !own.ip().is_unspecified()) {
        return Ok((vec![own], destination));
    }
    let port = match own {
        Some(own) => own.port(),
        None if is_source => named.port,
        // A port of the other side says nothing about ours.
        None => 0,
    };
    let mut all = own_addresses();
    all.retain(|&ip| fits(ip) && is_v4(ip.is_ipv4()));
    if let Some(destination) = destination {
        // One on the loopback if the destination is.
        all.sort_by_key(|own| own.is_loopback() != destination.ip().is_loopback());
        all.truncate(1);
    }
    let all = all.into_iter().map(|own| SocketAddr::new(own, port));
    Ok((all.take(ADDRESSES_MAX).collect(), destination))
}

/// True if an address has a format.
fn has_format(address: IpAddr, format: u32) -> bool {
    match format {
        FI_SOCKADDR_IN => address.is_ipv4(),
        FI_SOCKADDR_IN6 => address.is_ipv6(),
        _ => true,
    }
}

/// An address of the hints; one that cannot be read is an error, one without bytes is none.
fn hinted(at: *const c_void, bytes: usize) -> Result<Option<SocketAddr>, c_int> {
    if at.is_null() || bytes == 0 {
        return Ok(None);
    }
    // SAFETY: an address of the hints, as long as they say.
    let address = unsafe { address_of(at, bytes) };
    address.map(Some).ok_or(-libc::ENODATA)
}

/// The address and the port that a node and a service name.
fn named(
    node: Option<&str>,
    service: Option<&str>,
    flags: u64,
    format: u32,
) -> Result<Named, c_int> {
    let (said, node, service) = match node.and_then(formatted) {
        // Such a node has a service of its own (fi_getinfo(3)).
        Some(_) if service.is_some() => return Err(-libc::EINVAL),
        Some((said, host, service)) => (said, filled(host), filled(service)),
        None => (FI_FORMAT_UNSPEC, node, service),
    };
    let port = service.map_or(Ok(0), port_of)?;
    let is_v6 = format == FI_SOCKADDR_IN6 || said == FI_SOCKADDR_IN6;
    let address = match node {
        Some(node) => Some(resolved(node, port, flags, is_v6)?),
        // A service of the other side without a node is one of this host, as for getaddrinfo(3).
        None if service.is_some() && flags & FI_SOURCE == 0 => {
            let loopback = match is_v6 {
                true => IpAddr::from(Ipv6Addr::LOCALHOST),
                false => IpAddr::from(Ipv4Addr::LOCALHOST),
            };
            Some(SocketAddr::new(loopback, port))
        }
        None => None,
    };
    Ok(Named {
        address,
        port,
        format: said,
    })
}

/// A text, unless it is empty.
fn filled(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

/// Parts of a node that is a formatted address (`fi_sockaddr_in://192.0.2.7:7471`): its format,
/// its host and its service, which may be empty.
fn formatted(node: &str) -> Option<(u32, &str, &str)> {
    let (format, rest) = node.split_once("://")?;
    let format = match format {
        "fi_sockaddr" => FI_SOCKADDR,
        "fi_sockaddr_in" => FI_SOCKADDR_IN,
        "fi_sockaddr_in6" => FI_SOCKADDR_IN6,
        _ => return None,
    };
    // Fields and keys that may follow say nothing to this provider.
    let rest = rest.split(['/', '?']).next()?;
    let (host, service) = match rest.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => rest.find(':').map_or((rest, ""), |at| rest.split_at(at)),
    };
    match service {
        "" => Some((format, host, "")),
        service => Some((format, host, service.strip_prefix(':')?)),
    }
}

/// The port of a service: its number, or that of its name in the system's table.
fn port_of(service: &str) -> Result<u16, c_int> {
    if let Ok(port) = service.parse() {
        return Ok(port);
    }
    // The system takes numbers that are no ports for ports.
    let is_name = service.starts_with(|first: char| first.is_ascii_alphabetic());
    let name = CString::new(service).ok().filter(|_| is_name);
    let name = name.ok_or(-libc::ENODATA)?;
    // SAFETY: numbers and NULL pointers alone, which zeros are.
    let mut asked: libc::addrinfo = unsafe { std::mem::zeroed() };
    asked.ai_socktype = libc::SOCK_STREAM;
    let mut found = std::ptr::null_mut();
    // SAFETY: a string, a request, and a place for the list, which is freed below.
    let outcome = unsafe {
        libc::getaddrinfo(
            std::ptr::null(),
            name.as_ptr(),
            &raw const asked,
            &raw mut found,
        )
    };
    if outcome != 0 || found.is_null() {
        return Err(-libc::ENODATA);
    }
    // SAFETY: the list that was found, whose first address is as long as its family says.
    let address = unsafe {
        let address = address_of((*found).ai_addr.cast(), usize::MAX);
        libc::freeaddrinfo(found);
        address
    };
    address.map(|address| address.port()).ok_or(-libc::ENODATA)
}

/// The address of a node: an IPv4 one if there are several, unless IPv6 is asked for.
fn resolved(node: &str, port: u16, flags: u64, is_v6: bool) -> Result<SocketAddr, c_int> {
    if flags & FI_NUMERICHOST != 0 {
        let address: IpAddr = node.parse().map_err(|_| -libc::ENODATA)?;
        return Ok(SocketAddr::new(address, port));
    }
    let found = (node, port).to_socket_addrs().map_err(|_| -libc::ENODATA)?;
    let mut first = None;
    for address in found {
        if address.is_ipv6() == is_v6 {
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
