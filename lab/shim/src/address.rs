//! Addresses as C has them.

#![allow(unsafe_code)] // the C surface: reads and writes what C's pointers point to

use libc::{sockaddr, sockaddr_in, sockaddr_in6, socklen_t};
use sidecore_net_drill::files::{Answer, Errno};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Reads an address.
///
/// # Safety
/// `address` is null or points to `len` bytes.
pub(crate) unsafe fn read(address: *const sockaddr, len: socklen_t) -> Answer<SocketAddr> {
    let wrong = Errno(libc::EINVAL);
    if address.is_null() || (len as usize) < size_of::<sockaddr>() {
        return Err(wrong);
    }
    // SAFETY: as long as the shortest address, so the family lies in it.
    let family = unsafe { address.read_unaligned() }.sa_family;
    match i32::from(family) {
        libc::AF_INET if len as usize >= size_of::<sockaddr_in>() => {
            // SAFETY: long enough for this family's.
            let v4 = unsafe { address.cast::<sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            Ok(SocketAddr::new(IpAddr::V4(ip), u16::from_be(v4.sin_port)))
        }
        libc::AF_INET6 if len as usize >= size_of::<sockaddr_in6>() => {
            // SAFETY: long enough for this family's.
            let v6 = unsafe { address.cast::<sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            let ip = ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4);
            Ok(SocketAddr::new(ip, u16::from_be(v6.sin6_port)))
        }
        libc::AF_INET | libc::AF_INET6 => Err(wrong),
        _ => Err(Errno(libc::EAFNOSUPPORT)),
    }
}

/// Writes an address, as much of it as there is room for, and its length; IPv4 as a mapped address
/// for an IPv6 socket. Nothing where C passes null.
///
/// # Safety
/// `len` is null or points to the number of bytes that `out` points to, which may be null.
pub(crate) unsafe fn write(address: SocketAddr, v6: bool, out: *mut sockaddr, len: *mut socklen_t) {
    if out.is_null() || len.is_null() {
        return;
    }
    let mut bytes = Vec::with_capacity(size_of::<sockaddr_in6>());
    let port = address.port().to_be_bytes();
    match address.ip() {
        IpAddr::V4(ip) if !v6 => {
            bytes.extend_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
            bytes.extend_from_slice(&port);
            bytes.extend_from_slice(&ip.octets());
            bytes.extend_from_slice(&[0; 8]);
        }
        ip => {
            let ip = match ip {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            bytes.extend_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
            bytes.extend_from_slice(&port);
            bytes.extend_from_slice(&[0; 4]);
            bytes.extend_from_slice(&ip.octets());
            bytes.extend_from_slice(&[0; 4]);
        }
    }
    // SAFETY: `len` is not null and says how many bytes `out` has; no more are written.
    unsafe {
        let room = (*len as usize).min(bytes.len());
        out.cast::<u8>()
            .copy_from_nonoverlapping(bytes.as_ptr(), room);
        *len = bytes.len() as socklen_t;
    }
}
