//! Bytes and datagrams in and out.

use super::{Answer, Errno, Files, Kind, errno, fail};
use sidecore_net_stack::{SessionId, UdpId};
use sidecore_net_stack::{SessionState, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

impl Files {
    /// recvfrom(2): the number of bytes, and the source of a datagram. `MSG_PEEK` and `MSG_TRUNC`
    /// (of a datagram) count among `flags`; waiting is the caller's part.
    ///
    /// # Errors
    /// `EAGAIN`, `ENOTCONN`, and what a session ended with, once.
    pub fn receive(
        &mut self,
        fd: i32,
        bytes: &mut [u8],
        flags: i32,
    ) -> Answer<(usize, Option<SocketAddr>)> {
        let peek = flags & libc::MSG_PEEK != 0;
        let id = match self.socket_at(fd)?.kind {
            Kind::Session(id) => id,
            Kind::Udp(_) => return self.receive_datagram(fd, bytes, flags, peek),
            _ => return fail(libc::ENOTCONN),
        };
        let count = self.receive_stream(id, bytes, peek);
        if count > 0 {
            self.host.flush();
            return Ok((count, None));
        }
        if let Some(error) = self.take_error(fd)? {
            return Err(error);
        }
        let readiness = self.host.stack().readiness(id).map_err(errno)?;
        if readiness.end_of_input() || bytes.is_empty() {
            return Ok((0, None));
        }
        fail(libc::EAGAIN)
    }

    /// An error is reported by the caller, after what was received.
    fn receive_stream(&mut self, id: SessionId, bytes: &mut [u8], peek: bool) -> usize {
        let stack = self.host.stack();
        if !peek {
            return stack.read(id, bytes).unwrap_or(0);
        }
        let Ok([first, second]) = stack.peek(id) else {
            return 0;
        };
        let a = first.len().min(bytes.len());
        let b = second.len().min(bytes.len() - a);
        bytes[..a].copy_from_slice(&first[..a]);
        bytes[a..a + b].copy_from_slice(&second[..b]);
        a + b
    }

    /// send(2): the number of bytes taken. `MSG_MORE` and `MSG_EOR` of a stream count among
    /// `flags`, and `MSG_ZEROCOPY` for the report that the bytes were copied. The caller waits.
    ///
    /// # Errors
    /// `EAGAIN` when none is taken, `EPIPE`, `ENOTCONN`, `EDESTADDRREQ`, and the error that ended a
    /// session, once.
    pub fn send(&mut self, fd: i32, bytes: &[u8], flags: i32) -> Answer<usize> {
        let socket = self.socket_at(fd)?;
        let (peer, shut) = (socket.peer, socket.shut_write);
        let id = match socket.kind {
            Kind::Session(id) => id,
            Kind::Udp(_) => {
                let peer = peer.ok_or(Errno(libc::EDESTADDRREQ))?;
                return self.send_to(fd, peer, bytes, flags);
            }
            Kind::Fresh => return fail(libc::EPIPE),
            Kind::Listener(_) => return fail(libc::ENOTCONN),
            Kind::Epoll => return fail(libc::ENOTSOCK),
        };
        if let Some(error) = self.take_error(fd)? {
            return Err(error);
        }
        if shut {
            return fail(libc::EPIPE);
        }
        match self.info(fd)?.state {
            SessionState::SynSent | SessionState::SynReceived => return fail(libc::EAGAIN),
            SessionState::Established | SessionState::CloseWait => {}
            _ => return fail(libc::EPIPE),
        }
        let write = Write {
            more: flags & libc::MSG_MORE != 0,
            ends_record: flags & libc::MSG_EOR != 0,
        };
        let stack = self.host.stack();
        let taken = stack.write_with(id, bytes, write).map_err(errno)?;
        if flags & libc::MSG_ZEROCOPY != 0 && taken > 0 {
            self.socket_mut(fd)?.zero_copy.copied();
        }
        self.host.flush();
        if taken == 0 && !bytes.is_empty() {
            return fail(libc::EAGAIN);
        }
        Ok(taken)
    }

    /// sendto(2). A session's address is ignored, as on Linux.
    ///
    /// # Errors
    /// As [`Files::send`]; `EMSGSIZE`, `ENETUNREACH`, `ENOBUFS`.
    pub fn send_to(&mut self, fd: i32, to: SocketAddr, bytes: &[u8], flags: i32) -> Answer<usize> {
        if !matches!(self.socket_at(fd)?.kind, Kind::Udp(_)) {
            return self.send(fd, bytes, flags);
        }
        let udp = self.udp(fd)?;
        self.host.stack().send_to(udp, to, bytes).map_err(errno)?;
        self.host.flush();
        Ok(bytes.len())
    }

    /// A UDP socket's own, bound to any port if it was not bound.
    pub(super) fn udp(&mut self, fd: i32) -> Answer<UdpId> {
        let socket = self.socket_at(fd)?;
        if let Kind::Udp(None) = socket.kind {
            let any = if socket.v6 {
                IpAddr::V6(Ipv6Addr::UNSPECIFIED)
            } else {
                IpAddr::V4(Ipv4Addr::UNSPECIFIED)
            };
            self.bind(fd, SocketAddr::new(any, 0))?;
        }
        match self.socket_at(fd)?.kind {
            Kind::Udp(Some(id)) => Ok(id),
            _ => fail(libc::EOPNOTSUPP),
        }
    }

    /// The next datagram for this socket, taken from the stack.
    pub(super) fn take_datagram(&mut self, fd: i32) -> Answer<(SocketAddr, Vec<u8>)> {
        let id = self.udp(fd)?;
        let socket = self.socket_mut(fd)?;
        let peer = socket.peer;
        if let Some(datagram) = socket.datagram.take() {
            return Ok(datagram);
        }
        let mut bytes = vec![0; DATAGRAM_BYTES_MAX];
        loop {
            let next = self
                .host
                .stack()
                .receive_from(id, &mut bytes)
                .map_err(errno)?;
            let (from, _, len) = next.ok_or(Errno(libc::EAGAIN))?;
            // A connected socket receives from its peer alone.
            if peer.is_none_or(|peer| peer == from) {
                bytes.truncate(len);
                return Ok((from, bytes));
            }
        }
    }

    fn receive_datagram(
        &mut self,
        fd: i32,
        bytes: &mut [u8],
        flags: i32,
        peek: bool,
    ) -> Answer<(usize, Option<SocketAddr>)> {
        let (from, datagram) = self.take_datagram(fd)?;
        let fits = datagram.len().min(bytes.len());
        bytes[..fits].copy_from_slice(&datagram[..fits]);
        let whole = flags & libc::MSG_TRUNC != 0;
        let count = if whole { datagram.len() } else { fits };
        if peek {
            self.socket_mut(fd)?.datagram = Some((from, datagram));
        }
        Ok((count, Some(from)))
    }

    /// ioctl(2)'s `SIOCINQ`: bytes that can be read.
    ///
    /// # Errors
    /// `EINVAL` for a listener.
    pub fn unread(&mut self, fd: i32) -> Answer<u32> {
        match self.socket_at(fd)?.kind {
            Kind::Listener(_) => fail(libc::EINVAL),
            Kind::Session(_) => Ok(self.info(fd)?.unread),
            _ => Ok(0),
        }
    }

    /// `SIOCOUTQ`: bytes that were written and are not acknowledged.
    ///
    /// # Errors
    /// `EINVAL` for a listener.
    pub fn outstanding(&mut self, fd: i32) -> Answer<u32> {
        match self.socket_at(fd)?.kind {
            Kind::Listener(_) => fail(libc::EINVAL),
            Kind::Session(_) => {
                let info = self.info(fd)?;
                Ok(info.in_flight + info.unsent)
            }
            _ => Ok(0),
        }
    }

    /// `SIOCOUTQNSD`: bytes that were written and not sent.
    ///
    /// # Errors
    /// `EINVAL` for a listener.
    pub fn unsent(&mut self, fd: i32) -> Answer<u32> {
        match self.socket_at(fd)?.kind {
            Kind::Listener(_) => fail(libc::EINVAL),
            Kind::Session(_) => Ok(self.info(fd)?.unsent),
            _ => Ok(0),
        }
    }
}

/// The longest datagram.
const DATAGRAM_BYTES_MAX: usize = 65_535;
