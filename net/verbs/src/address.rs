//! Addresses of programs' structures, of the port, of routes, and by names.

use crate::abi::*;
use crate::{abi::zeroed, errno};
use rustix::net::addr::SocketAddrArg;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use sidecore_rdma::Transport;
use std::ffi::{c_char, c_int};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::LazyLock;

/// Reads an address of IPv4 or IPv6.
pub(crate) fn read(address: *const Address) -> Option<SocketAddr> {
    // SAFETY: NULL, or an address whose family says how long it is, as the interface demands.
    unsafe {
        let family = c_int::from(address.cast::<libc::sockaddr>().as_ref()?.sa_family);
        match family {
            libc::AF_INET => {
                // Programs may have it anywhere in a buffer of bytes.
                let four = address.cast::<libc::sockaddr_in>().read_unaligned();
                let ip = u32::from_be(four.sin_addr.s_addr).into();
                Some(SocketAddrV4::new(ip, u16::from_be(four.sin_port)).into())
            }
            libc::AF_INET6 => {
                let six = address.cast::<libc::sockaddr_in6>().read_unaligned();
                let (ip, port) = (six.sin6_addr.s6_addr.into(), u16::from_be(six.sin6_port));
                let flow = u32::from_be(six.sin6_flowinfo);
                Some(SocketAddrV6::new(ip, port, flow, six.sin6_scope_id).into())
            }
            _ => None,
        }
    }
}

/// Writes an address; its length.
pub(crate) fn write(place: &mut Address, address: SocketAddr) -> libc::socklen_t {
    *place = zeroed();
    // SAFETY: room for an address of any family.
    unsafe { address.write_sockaddr((&raw mut *place).cast()) }
}

/// An address of IPv4 that came by a socket of IPv6, as one of IPv4.
pub(crate) fn plain(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(four) => (four, address.port()).into(),
        // Not made anew: an address of one link has the link's number, too.
        IpAddr::V6(_) => address,
    }
}

/// Writes the addresses of a route that are known.
pub(crate) fn write_route(
    route: &mut rdma_route,
    local: Option<SocketAddr>,
    peer: Option<SocketAddr>,
) {
    if let Some(local) = local {
        write(&mut route.addr.src_storage, plain(local));
        route.addr.addr[..2].copy_from_slice(&gid(local.ip()));
    }
    if let Some(peer) = peer {
        write(&mut route.addr.dst_storage, plain(peer));
        route.addr.addr[2..4].copy_from_slice(&gid(peer.ip()));
    }
    route.addr.addr[4] = 0xffff;
}

/// The identifier of an address, in network byte order.
pub(crate) fn gid(ip: IpAddr) -> [u64; 2] {
    halves(identifier(ip))
}

/// An address as an identifier of a port: one of IPv4 is mapped into IPv6.
pub(crate) fn identifier(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(four) => four.to_ipv6_mapped(),
        IpAddr::V6(six) => six,
    }
}

fn halves(identifier: Ipv6Addr) -> [u64; 2] {
    let octets = identifier.octets();
    // Native halves of network bytes: in memory they are the sixteen bytes as they came.
    let half = |begin: usize| u64::from_ne_bytes(std::array::from_fn(|at| octets[begin + at]));
    [half(0), half(8)]
}

/// The identifier in a program's structure.
pub(crate) fn from_halves(halves: [u64; 2]) -> Ipv6Addr {
    let [high, low] = halves.map(u64::from_be);
    Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low))
}

/// A place of the port's table of identifiers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) ip: IpAddr,
    /// Number of its interface; 0 on a stack.
    pub(crate) interface: u32,
}

/// Most places of the table: programs name one by eight bits.
const PLACES_MAX: usize = 255;

/// The port's addresses. They are found once, as their order must stay.
pub(crate) fn places() -> &'static [Place] {
    static PLACES: LazyLock<Vec<Place>> = LazyLock::new(|| {
        let alone = |ip| Place { ip, interface: 0 };
        if let Some(chosen) = std::env::var_os("SIDECORE_VERBS_ADDRESS") {
            let ip = chosen.to_str().and_then(|text| text.parse().ok());
            if ip.is_none() {
                let chosen = chosen.display();
                eprintln!("sidecore-verbs: SIDECORE_VERBS_ADDRESS={chosen}: give one IP address");
            }
            return ip.map(alone).into_iter().collect();
        }
        let transport = Transport::from_environment();
        if is_on_stack() {
            let found = transport.addresses().unwrap_or_default();
            return sorted(found.into_iter().map(alone).collect(), None);
        }
        // An address of documentation, which no host has: its route is the default one.
        let far = SocketAddr::from(([192, 0, 2, 1], 9));
        let main = route(None, far).ok().map(|local| local.ip());
        sorted(interfaces(), main)
    });
    &PLACES
}

/// Places in the order of their use: the host's main address, others of IPv4, those of IPv6. Those
/// of the loopback are left out, except where there is no other.
fn sorted(mut places: Vec<Place>, main: Option<IpAddr>) -> Vec<Place> {
    places.retain(|place| match place.ip {
        IpAddr::V4(four) => !four.is_unspecified(),
        // A peer would need the number of the link, for which an identifier has no room.
        IpAddr::V6(six) => !six.is_unspecified() && !six.is_unicast_link_local(),
    });
    if places.iter().any(|place| !place.ip.is_loopback()) {
        places.retain(|place| !place.ip.is_loopback());
    }
    places.sort_by_key(|place| (Some(place.ip) != main, place.ip.is_ipv6()));
    places.truncate(PLACES_MAX);
    places
}

/// Addresses of the host's interfaces that are up.
fn interfaces() -> Vec<Place> {
    let mut list = std::ptr::null_mut();
    let mut places = Vec::new();
    // SAFETY: a place for the list, which is the system's until it is freed below, once.
    unsafe {
        if libc::getifaddrs(&raw mut list) != 0 {
            return places;
        }
        let mut at: *const libc::ifaddrs = list;
        while let Some(one) = at.as_ref() {
            at = one.ifa_next;
            let is_up = one.ifa_flags & libc::IFF_UP.cast_unsigned() != 0;
            if let Some(address) = read(one.ifa_addr.cast()).filter(|_| is_up) {
                places.push(Place {
                    ip: address.ip(),
                    interface: libc::if_nametoindex(one.ifa_name),
                });
            }
        }
        libc::freeifaddrs(list);
    }
    places
}

/// True if connections go over a stack, whose addresses and routes are not the kernel's.
pub(crate) fn is_on_stack() -> bool {
    matches!(Transport::from_environment(), Transport::Stack(_))
}

/// Tries to bind to a local address; the address with its port, which the socket keeps for its
/// owner if the system has chosen it.
pub(crate) fn probe(address: SocketAddr) -> Result<(SocketAddr, Option<OwnedFd>), c_int> {
    if is_on_stack() {
        // The addresses are the stack's, which checks them when it listens.
        return Ok((address, None));
    }
    let number = |error: std::io::Error| error.raw_os_error().unwrap_or(libc::EINVAL);
    if address.port() != 0 {
        // It sets SO_REUSEADDR: a server that starts again finds its port free.
        TcpListener::bind(address).map_err(number)?;
        return Ok((address, None));
    }
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None);
    let socket = socket.map_err(|error| error.raw_os_error())?;
    rustix::net::bind(&socket, &address).map_err(|error| error.raw_os_error())?;
    // The socket never listens: it only keeps the port from other programs.
    let bound = rustix::net::getsockname(&socket).map_err(|error| error.raw_os_error())?;
    let bound = SocketAddr::try_from(bound).map_err(|_| libc::EINVAL)?;
    Ok((bound, Some(socket)))
}

/// The local address on the way to a peer.
pub(crate) fn route(bound: Option<SocketAddr>, peer: SocketAddr) -> Result<SocketAddr, c_int> {
    let number = |error: std::io::Error| error.raw_os_error().unwrap_or(libc::ENETUNREACH);
    if let Some(bound) = bound.filter(|bound| !bound.ip().is_unspecified()) {
        return Ok(bound);
    }
    let any: SocketAddr = match peer {
        SocketAddr::V4(_) => (std::net::Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (std::net::Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    if is_on_stack() {
        // It becomes known with the connection.
        return Ok(any);
    }
    // A datagram socket that is connected sends nothing: the kernel only looks up the route.
    let socket = UdpSocket::bind(any).map_err(number)?;
    socket.connect(peer).map_err(number)?;
    let mut local = socket.local_addr().map_err(number)?;
    // The look-up's own port is of the datagram socket, which ends here.
    local.set_port(bound.map_or(0, |bound| bound.port()));
    Ok(local)
}

/// A result of rdma_getaddrinfo(3): the program's structure, and the addresses in it.
#[repr(C)]
struct Info {
    raw: rdma_addrinfo,
    source: Address,
    target: Address,
}

/// Addresses of both sides, as far as they are known.
struct Ends {
    source: Option<SocketAddr>,
    target: Option<SocketAddr>,
}

impl Ends {
    /// Those of a name that was resolved, and of the hints; or the interface's error.
    fn of(named: Option<SocketAddr>, hints: &rdma_addrinfo) -> Result<Self, c_int> {
        let asked = |address: *mut libc::sockaddr, bytes| match bytes {
            0 => Ok(None),
            _ => hinted(address, bytes).map(Some).ok_or(libc::EAI_FAMILY),
        };
        if hints.ai_flags & RAI_PASSIVE != 0 {
            let source = match named {
                None => asked(hints.ai_src_addr, hints.ai_src_len)?,
                named => named,
            };
            // Of the other side nothing is known yet.
            let source = Some(source.ok_or(libc::EAI_NONAME)?);
            let target = None;
            return Ok(Self { source, target });
        }
        let target = match named {
            None => asked(hints.ai_dst_addr, hints.ai_dst_len)?,
            named => named,
        };
        // As the interface has it: the local address on the way, too.
        let source = asked(hints.ai_src_addr, hints.ai_src_len)?.or_else(|| {
            let target = target.filter(|_| hints.ai_flags & RAI_NOROUTE == 0)?;
            route(None, target).ok()
        });
        Ok(Self { source, target })
    }
}

/// An address of the hints, if it is there with all bytes of its family.
fn hinted(address: *const libc::sockaddr, bytes: libc::socklen_t) -> Option<SocketAddr> {
    let least = size_of::<libc::sockaddr_in>();
    let bytes = usize::try_from(bytes)
        .ok()
        .filter(|&bytes| bytes >= least)?;
    // SAFETY: NULL, or an address of at least that many bytes, as rdma_getaddrinfo(3) demands.
    let family = unsafe { address.as_ref() }?.sa_family;
    if c_int::from(family) == libc::AF_INET6 && bytes < size_of::<libc::sockaddr_in6>() {
        return None;
    }
    read(address.cast())
}

pub(crate) unsafe extern "C" fn get_info(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    out: *mut *mut rdma_addrinfo,
) -> c_int {
    // SAFETY: strings or NULL, hints or NULL, a place for a pointer, as rdma_getaddrinfo(3)
    // demands.
    unsafe {
        let hints = hints.as_ref().copied().unwrap_or_else(zeroed);
        let is_named = !node.is_null() || !service.is_null();
        let is_hinted = hints.ai_src_len != 0 || hints.ai_dst_len != 0;
        if out.is_null() || !is_named && !is_hinted {
            errno(libc::EINVAL);
            return libc::EAI_NONAME;
        }
        // Without a name, the addresses are those of the hints.
        let ends = if is_named {
            resolved(node, service, &hints).and_then(|named| Ends::of(Some(named), &hints))
        } else {
            Ends::of(None, &hints)
        };
        match ends {
            Ok(ends) => {
                out.write(describe(&ends, &hints));
                0
            }
            Err(outcome) => outcome,
        }
    }
}

/// The first address of a name, or the system's error.
///
/// # Safety
/// Strings or NULL, and not both NULL.
unsafe fn resolved(
    node: *const c_char,
    service: *const c_char,
    hints: &rdma_addrinfo,
) -> Result<SocketAddr, c_int> {
    // SAFETY: the caller's promise; the list is the system's, and is freed once.
    unsafe {
        let mut asked: libc::addrinfo = std::mem::zeroed();
        asked.ai_socktype = libc::SOCK_STREAM;
        for (flag, other) in [
            (RAI_PASSIVE, libc::AI_PASSIVE),
            (RAI_NUMERICHOST, libc::AI_NUMERICHOST),
        ] {
            if hints.ai_flags & flag != 0 {
                asked.ai_flags |= other;
            }
        }
        if hints.ai_flags & RAI_FAMILY != 0 || hints.ai_family != 0 {
            asked.ai_family = hints.ai_family;
        }
        let mut found: *mut libc::addrinfo = std::ptr::null_mut();
        let outcome = libc::getaddrinfo(node, service, &raw const asked, &raw mut found);
        if outcome != 0 {
            return Err(outcome);
        }
        let address = read((*found).ai_addr.cast());
        libc::freeaddrinfo(found);
        address.ok_or(libc::EAI_FAMILY)
    }
}

/// The structure for addresses that are known; at least one is.
fn describe(ends: &Ends, hints: &rdma_addrinfo) -> *mut rdma_addrinfo {
    let info = Box::into_raw(Box::new(Info {
        raw: rdma_addrinfo {
            ai_flags: hints.ai_flags & (RAI_PASSIVE | RAI_NUMERICHOST | RAI_NOROUTE | RAI_FAMILY),
            ai_family: match ends.target.or(ends.source) {
                Some(SocketAddr::V6(_)) => libc::AF_INET6,
                _ => libc::AF_INET,
            },
            ai_qp_type: match hints.ai_qp_type {
                0 => crate::abi::IBV_QPT_RC,
                kind => kind,
            },
            ai_port_space: match hints.ai_port_space {
                0 => RDMA_PS_TCP,
                space => space,
            },
            ..zeroed()
        },
        source: zeroed(),
        target: zeroed(),
    }));
    // SAFETY: the box that was just made, which does not move any more.
    let all = unsafe { &mut *info };
    if let Some(source) = ends.source {
        all.raw.ai_src_len = write(&mut all.source, source);
        all.raw.ai_src_addr = (&raw mut all.source).cast();
    }
    if let Some(target) = ends.target {
        all.raw.ai_dst_len = write(&mut all.target, target);
        all.raw.ai_dst_addr = (&raw mut all.target).cast();
    }
    info.cast()
}

pub(crate) unsafe extern "C" fn free_info(info: *mut rdma_addrinfo) {
    if !info.is_null() {
        // SAFETY: one of ours, once, as rdma_getaddrinfo(3) demands.
        drop(unsafe { Box::from_raw(info.cast::<Info>()) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back_as_they_were_written() {
        for text in [
            "192.0.2.7:7174",
            "[2001:db8::7]:1",
            "[fe80::1%3]:65535",
            "0.0.0.0:0",
        ] {
            let address: SocketAddr = text.parse().unwrap();
            let mut place: Address = zeroed();
            let bytes = write(&mut place, address);
            assert_eq!(bytes, if address.is_ipv4() { 16 } else { 28 });
            assert_eq!(read(&raw const place), Some(address));
            assert_eq!(plain(address), address);
        }
        let labelled = SocketAddrV6::new(std::net::Ipv6Addr::LOCALHOST, 1, 0xf_1234, 2).into();
        let mut place: Address = zeroed();
        write(&mut place, labelled);
        assert_eq!(read(&raw const place), Some(labelled));
        let none: Address = zeroed();
        assert_eq!(read(&raw const none), None);
        assert_eq!(read(std::ptr::null()), None);
    }

    #[test]
    fn addresses_of_hints_serve_where_no_name_is_given() {
        let own: SocketAddr = "127.0.0.1:5".parse().unwrap();
        let peer: SocketAddr = "[::1]:7174".parse().unwrap();
        let (mut source, mut target): (Address, Address) = (zeroed(), zeroed());
        let (four, six) = (write(&mut source, own), write(&mut target, peer));
        let ask = |flags, source_bytes, target_bytes| {
            let hints = rdma_addrinfo {
                ai_flags: flags,
                ai_src_len: source_bytes,
                ai_dst_len: target_bytes,
                ai_src_addr: (&raw const source).cast_mut().cast(),
                ai_dst_addr: (&raw const target).cast_mut().cast(),
                ..zeroed()
            };
            let none = std::ptr::null();
            let mut info = std::ptr::null_mut();
            // SAFETY: no name, hints with their addresses, a place for a pointer.
            match unsafe { get_info(none, none, &raw const hints, &raw mut info) } {
                0 => {
                    // SAFETY: the answer, whose addresses are NULL or its own; freed once.
                    let found = unsafe {
                        let all: rdma_addrinfo = *info;
                        let ends = (read(all.ai_src_addr.cast()), read(all.ai_dst_addr.cast()));
                        free_info(info);
                        ends
                    };
                    Ok(found)
                }
                error => Err(error),
            }
        };
        assert_eq!(ask(0, four, 0), Ok((Some(own), None)));
        assert_eq!(ask(RAI_NOROUTE, four, 0), Ok((Some(own), None)));
        assert_eq!(ask(RAI_PASSIVE, four, six), Ok((Some(own), None)));
        assert_eq!(ask(RAI_NOROUTE, four, six), Ok((Some(own), Some(peer))));
        assert_eq!(ask(RAI_NOROUTE, 0, six), Ok((None, Some(peer))));
        // None at all, one of the wrong side, and one that is cut off.
        assert_eq!(ask(0, 0, 0), Err(libc::EAI_NONAME));
        assert_eq!(ask(RAI_PASSIVE, 0, six), Err(libc::EAI_NONAME));
        for short in 1..four {
            assert_eq!(ask(0, short, 0), Err(libc::EAI_FAMILY));
        }
        assert_eq!(ask(RAI_NOROUTE, 0, four), Err(libc::EAI_FAMILY));
    }

    #[test]
    fn a_route_has_the_identifiers_of_its_addresses() {
        let mut route: rdma_route = zeroed();
        let mapped: SocketAddr = "[::ffff:192.0.2.7]:5".parse().unwrap();
        write_route(
            &mut route,
            Some(mapped),
            Some("192.0.2.8:6".parse().unwrap()),
        );
        // IPv4 through a socket of IPv6 is IPv4 for the program.
        let source = read(&raw const route.addr.src_storage);
        assert_eq!(source, Some("192.0.2.7:5".parse().unwrap()));
        let [high, low, peer_high, peer_low, _] = route.addr.addr.map(u64::from_be);
        assert_eq!((high, low), (0, 0xffff_c000_0207));
        assert_eq!((peer_high, peer_low), (0, 0xffff_c000_0208));
    }

    #[test]
    fn the_main_address_comes_first_and_loopback_only_where_it_is_alone() {
        let all = |texts: &[&str]| -> Vec<Place> {
            let parsed = texts.iter().map(|text| text.parse().unwrap());
            parsed.map(|ip| Place { ip, interface: 1 }).collect()
        };
        let given = all(&[
            "127.0.0.1",
            "::1",
            "fe80::1",
            "2001:db8::7",
            "172.17.0.1",
            "192.0.2.7",
            "0.0.0.0",
        ]);
        let main = "192.0.2.7".parse().ok();
        let expected = all(&["192.0.2.7", "172.17.0.1", "2001:db8::7"]);
        assert_eq!(sorted(given, main), expected);
        let alone = all(&["::1", "127.0.0.1"]);
        assert_eq!(sorted(alone, None), all(&["127.0.0.1", "::1"]));
        let many = vec![all(&["192.0.2.7"])[0]; 300];
        assert_eq!(sorted(many, main).len(), PLACES_MAX);
    }

    #[test]
    fn an_identifier_is_its_bytes() {
        for text in ["::ffff:192.0.2.7", "2001:db8::7", "::"] {
            let six: Ipv6Addr = text.parse().unwrap();
            assert_eq!(from_halves(halves(six)), six);
        }
    }
}
