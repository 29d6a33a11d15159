//! A kernel socket as a program opened it, before the supervisor takes it over.

use crate::address::plain;
use crate::ports::Transport;
use rustix::io::Errno;
use sidecore_sys::socket_option;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

/// A kernel socket as the program opened it, before it is taken over.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) file: Rc<OwnedFd>,
    pub(crate) transport: Transport,
    pub(crate) is_v6: bool,
    pub(crate) is_v6_only: bool,
    /// The address to which the kernel has bound it; port 0 if it is not bound.
    pub(crate) local: SocketAddr,
    pub(crate) is_connected: bool,
    /// A port that the kernel chose for a call that a signal interrupted: for the program the
    /// socket is still unbound.
    pub(crate) chosen: Option<u16>,
}

impl Opened {
    /// Inspects a socket; none if it is neither TCP nor UDP.
    pub(crate) fn of(file: Rc<OwnedFd>) -> Option<Self> {
        let number = |level, name| {
            let value = socket_option::get(file.as_fd(), level, name, 4).ok()?;
            value.first_chunk().map(|bytes| i32::from_ne_bytes(*bytes))
        };
        let is_v6 = match number(libc::SOL_SOCKET, libc::SO_DOMAIN)? {
            libc::AF_INET => false,
            libc::AF_INET6 => true,
            _ => return None,
        };
        let kind = number(libc::SOL_SOCKET, libc::SO_TYPE)?;
        let protocol = number(libc::SOL_SOCKET, libc::SO_PROTOCOL)?;
        let transport = match (kind, protocol) {
            (libc::SOCK_STREAM, libc::IPPROTO_TCP | libc::IPPROTO_MPTCP) => Transport::Tcp,
            (libc::SOCK_DGRAM, libc::IPPROTO_UDP) => Transport::Udp,
            _ => return None,
        };
        let is_v6_only = is_v6 && number(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) == Some(1);
        let local = rustix::net::getsockname(&file).ok()?;
        let local = SocketAddr::try_from(local).ok()?;
        // A connected socket has a port; getpeername(2) is skipped for the others.
        let is_connected = local.port() != 0 && rustix::net::getpeername(&file).is_ok();
        Some(Self {
            file,
            transport,
            is_v6,
            is_v6_only,
            local: plain(local),
            is_connected,
            chosen: None,
        })
    }

    /// The unspecified address of its family.
    pub(crate) fn any(&self) -> IpAddr {
        if self.is_v6 {
            Ipv6Addr::UNSPECIFIED.into()
        } else {
            Ipv4Addr::UNSPECIFIED.into()
        }
    }

    /// Lets the kernel choose a port, and keeps it bound, so that no other socket gets the port.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn choose_port(&self, ip: IpAddr) -> Result<u16, Errno> {
        if let Some(port) = self.chosen {
            return Ok(port);
        }
        // The kernel cannot bind to an address of the stack.
        let ip = if ip.is_loopback() { ip } else { self.any() };
        let ip = match ip {
            IpAddr::V4(ip) if self.is_v6 => IpAddr::V6(ip.to_ipv6_mapped()),
            ip => ip,
        };
        rustix::net::bind(&self.file, &SocketAddr::new(ip, 0))?;
        let bound = rustix::net::getsockname(&self.file)?;
        let bound = SocketAddr::try_from(bound).map_err(|_| Errno::INVAL)?;
        Ok(bound.port())
    }
}
