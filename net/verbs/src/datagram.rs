//! Datagram pairs: messages over UDP, at the port of the process, each with a short header.
//!
//! A message is lost if the peer has no receive for it, or another key; nothing is sent again. As
//! on every adapter, a receive begins with the forty bytes of a global route header.
//!
//! Must stay true: a datagram is placed only in a receive of the pair that it names, with that
//! pair's key; bytes beyond the receive are not placed.

use crate::abi::*;
use crate::address::{self, identifier};
use crate::exchange::port_of;
use crate::fast::Request;
use crate::state::{Core, flushed};
use sidecore_bare::width::ToUsize;
use sidecore_rdma::{Access, Adapter, Device, PairId, Piece, Receive};
use std::ffi::c_int;
use std::net::{Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;

/// Longest message in bytes: the port's unit.
pub(crate) const DATAGRAM_MAX: usize = 4096;
/// Length of the route header in front of each message in a receive.
const ROUTE_BYTES: usize = 40;
/// Datagrams that one round takes of a socket.
const ROUND_MAX: usize = 64;

/// The target of a datagram, as a request names it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Target {
    /// The address handle, and the address of its structure.
    pub(crate) ah: (u32, usize),
    pub(crate) number: u32,
    pub(crate) key: u32,
}

impl Target {
    /// The target that a program's structure names; none without one.
    ///
    /// # Safety
    /// NULL, or an address handle that exists, as ibv_post_send(3) demands.
    pub(crate) unsafe fn of(ah: *const ibv_ah, number: u32, key: u32) -> Option<Self> {
        // SAFETY: the caller's promise.
        let handle = unsafe { ah.as_ref() }?.handle;
        Some(Self {
            ah: (handle, ah.addr()),
            number,
            key,
        })
    }
}

/// The header in front of a datagram's message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Header {
    to: u32,
    from: u32,
    key: u32,
    /// In network byte order, as in programs' structures.
    immediate: Option<u32>,
    is_solicited: bool,
}

impl Header {
    const MAGIC: [u8; 4] = *b"SCd1";
    const BYTES: usize = 24;
    const HAS_IMMEDIATE: u32 = 1;
    const SOLICITED: u32 = 2;

    fn to_bytes(self) -> [u8; Self::BYTES] {
        let has_immediate = self.immediate.map_or(0, |_| Self::HAS_IMMEDIATE);
        let solicited = if self.is_solicited {
            Self::SOLICITED
        } else {
            0
        };
        let immediate = u32::from_be(self.immediate.unwrap_or(0));
        let flags = has_immediate | solicited;
        let words = [self.to, self.from, self.key, immediate, flags];
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&Self::MAGIC);
        for (place, word) in bytes[4..].chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_be_bytes());
        }
        bytes
    }

    /// The header and the message behind it.
    fn read(datagram: &[u8]) -> Option<(Self, &[u8])> {
        let (bytes, message) = datagram.split_first_chunk::<{ Self::BYTES }>()?;
        let word = |at: usize| u32::from_be_bytes(std::array::from_fn(|byte| bytes[at + byte]));
        let flags = word(20);
        let is_known = bytes.starts_with(&Self::MAGIC);
        if !is_known || flags & !(Self::HAS_IMMEDIATE | Self::SOLICITED) != 0 {
            return None;
        }
        let header = Self {
            to: word(4),
            from: word(8),
            key: word(12),
            immediate: (flags & Self::HAS_IMMEDIATE != 0).then(|| u32::to_be(word(16))),
            is_solicited: flags & Self::SOLICITED != 0,
        };
        (message.len() <= DATAGRAM_MAX).then_some((header, message))
    }
}

/// The route header of a message (InfiniBand, volume 1, section 8.3).
fn route_header(from: Ipv6Addr, to: Ipv6Addr, bytes: usize) -> [u8; ROUTE_BYTES] {
    let mut header = [0; ROUTE_BYTES];
    header[0] = 0x60;
    let payload = u16::try_from(bytes).unwrap_or(u16::MAX);
    header[4..6].copy_from_slice(&payload.to_be_bytes());
    // The number of InfiniBand's transport header as what follows.
    header[6] = 0x1b;
    header[7] = 64;
    header[8..24].copy_from_slice(&from.octets());
    header[24..].copy_from_slice(&to.octets());
    header
}

/// The sockets of datagram pairs, by the identifiers of their addresses.
#[derive(Default)]
pub(crate) struct Datagrams(Vec<(Ipv6Addr, UdpSocket)>);

impl Datagrams {
    /// Opens the sockets, one for each address of the port.
    ///
    /// # Errors
    /// The process has no port; a stack has no datagrams here.
    pub(crate) fn open(&mut self, device: &mut Device, port: Option<u16>) -> Result<(), c_int> {
        if !self.0.is_empty() {
            return Ok(());
        }
        if address::is_on_stack() {
            return Err(libc::EOPNOTSUPP);
        }
        let port = port.ok_or(libc::EADDRNOTAVAIL)?;
        for place in address::places() {
            let Ok(socket) = UdpSocket::bind((place.ip, port)) else {
                continue;
            };
            let is_ready = socket.set_nonblocking(true).is_ok();
            if is_ready && device.watch(socket.as_fd()).is_ok() {
                self.0.push((identifier(place.ip), socket));
            }
        }
        match self.0.is_empty() {
            true => Err(libc::EADDRNOTAVAIL),
            false => Ok(()),
        }
    }
}

/// Appends the bytes of pieces to a datagram.
///
/// # Errors
/// A piece is not registered; together they are too long.
fn gather(
    adapter: &Adapter,
    owner: PairId,
    pieces: &[Piece],
    to: &mut Vec<u8>,
) -> Result<(), c_int> {
    for piece in pieces {
        let count = piece.bytes.to_usize();
        if count > DATAGRAM_MAX {
            return Err(libc::EINVAL);
        }
        let place = adapter.check(owner, *piece, Access::NONE);
        match place {
            Ok(Some(place)) => {
                // SAFETY: registered memory of the program, as was just checked, which it
                // leaves alone until the completion.
                let bytes = unsafe { std::slice::from_raw_parts(place, count) };
                to.extend_from_slice(bytes);
            }
            _ if count == 0 => {}
            _ => return Err(libc::EINVAL),
        }
    }
    Ok(())
}

/// Writes parts one after the other into a receive.
///
/// # Errors
/// The status of its completion: it is too short, or its memory is not registered.
fn scatter(
    adapter: &Adapter,
    owner: PairId,
    receive: &Receive,
    parts: [&[u8]; 2],
) -> Result<(), c_int> {
    let room: usize = receive.pieces.iter().map(|one| one.bytes.to_usize()).sum();
    if room < parts[0].len() + parts[1].len() {
        return Err(IBV_WC_LOC_LEN_ERR);
    }
    let [mut first, mut rest] = parts;
    for piece in receive.pieces.iter().filter(|piece| piece.bytes > 0) {
        let place = adapter.check(owner, *piece, Access::LOCAL_WRITE);
        let Ok(Some(mut place)) = place else {
            return Err(IBV_WC_LOC_PROT_ERR);
        };
        let mut left = piece.bytes.to_usize();
        for part in [&mut first, &mut rest] {
            let (now, later) = part.split_at(left.min(part.len()));
            // SAFETY: `left` bytes of registered memory at `place`, as was just checked, which
            // the program leaves alone until the completion.
            unsafe {
                place.copy_from_nonoverlapping(now.as_ptr(), now.len());
                place = place.add(now.len());
            }
            left -= now.len();
            *part = later;
        }
    }
    Ok(())
}

impl Core {
    /// Posts a request of a datagram pair.
    ///
    /// # Errors
    /// An error number; nothing was posted then.
    pub(crate) fn post_datagram(
        &mut self,
        handle: u32,
        request: &Request,
        bytes: &[u8],
    ) -> Result<(), c_int> {
        let qp = self.qps.get(handle).ok_or(libc::EINVAL)?;
        if qp.slots() >= qp.cap.max_send_wr.to_usize() {
            return Err(libc::ENOMEM);
        }
        let immediate = match request.opcode {
            IBV_WR_SEND => None,
            IBV_WR_SEND_WITH_IMM => Some(request.imm),
            _ => return Err(libc::EOPNOTSUPP),
        };
        let (number, owner, cq, own_key) = (qp.number, qp.owner, qp.send_cq, qp.attr.qkey);
        let is_signaled = qp.signals_all || request.flags & IBV_SEND_SIGNALED != 0;
        match qp.state {
            IBV_QPS_ERR => {
                qp.unread += 1;
                let wc = flushed(request.wr_id, IBV_WC_SEND, number);
                self.emit(cq, wc, false, Some(handle));
                return Ok(());
            }
            IBV_QPS_RTS => {}
            _ => return Err(libc::EINVAL),
        }
        let target = request.target.ok_or(libc::EINVAL)?;
        let ah = self.ahs.find(target.ah.0, target.ah.1);
        let (from, to) = ah.ok_or(libc::EINVAL)?.ends;
        // Its highest bit stands for the pair's own key (InfiniBand, volume 1, section 10.2.5).
        let key = match target.key >> 31 {
            0 => target.key,
            _ => own_key,
        };
        let header = Header {
            to: target.number,
            from: number,
            key,
            immediate,
            is_solicited: request.flags & IBV_SEND_SOLICITED != 0,
        };
        let mut datagram = header.to_bytes().to_vec();
        match request.copied {
            Some((begin, count)) => datagram.extend_from_slice(&bytes[begin..begin + count]),
            None => gather(self.device.adapter(), owner, &request.pieces, &mut datagram)?,
        }
        if datagram.len() > Header::BYTES + DATAGRAM_MAX {
            return Err(libc::EINVAL);
        }
        let port = port_of(target.number);
        let socket = self.datagrams.0.iter().find(|(gid, _)| *gid == from);
        if let (Some(port), Some((_, socket))) = (port, socket) {
            let to = SocketAddr::new(to.to_canonical(), port);
            // What finds no room is lost, as on every way.
            socket.send_to(&datagram, to).ok();
        }
        if is_signaled {
            let wc = ibv_wc {
                status: IBV_WC_SUCCESS,
                ..flushed(request.wr_id, IBV_WC_SEND, number)
            };
            if let Some(qp) = self.qps.get(handle) {
                qp.unread += 1;
            }
            self.emit(cq, wc, false, Some(handle));
        }
        Ok(())
    }

    /// Takes datagrams that have arrived; true if there were any.
    pub(crate) fn take_datagrams(&mut self) -> bool {
        let mut datagram = [0; Header::BYTES + DATAGRAM_MAX + 1];
        let mut has_any = false;
        let sockets = std::mem::take(&mut self.datagrams.0);
        for (gid, socket) in &sockets {
            for _ in 0..ROUND_MAX {
                let Ok((count, from)) = socket.recv_from(&mut datagram) else {
                    break;
                };
                has_any = true;
                // One byte more than the longest: what is cut off is seen as too long.
                if let Some((header, message)) = Header::read(&datagram[..count]) {
                    let from = identifier(from.ip().to_canonical());
                    self.deliver((from, *gid), header, message);
                }
            }
        }
        self.datagrams.0 = sockets;
        has_any
    }

    /// Places a message in the next receive of its pair.
    fn deliver(&mut self, ends: (Ipv6Addr, Ipv6Addr), header: Header, message: &[u8]) {
        let Some(handle) = self.exchange.pair_with(header.to) else {
            return;
        };
        let Some(qp) = self.qps.get(handle) else {
            return;
        };
        let is_ready = matches!(qp.state, IBV_QPS_RTR | IBV_QPS_RTS | IBV_QPS_SQD);
        if !qp.is_datagram || !is_ready || qp.attr.qkey != header.key {
            return;
        }
        let (owner, cq, number) = (qp.owner, qp.recv_cq, qp.number);
        let Some(receive) = qp.early.pop_front() else {
            return;
        };
        let route = route_header(ends.0, ends.1, message.len());
        let status = match scatter(self.device.adapter(), owner, &receive, [&route, message]) {
            Ok(()) => IBV_WC_SUCCESS,
            Err(status) => status,
        };
        let mut wc = ibv_wc {
            status,
            byte_len: u32::try_from(ROUTE_BYTES + message.len()).unwrap_or(u32::MAX),
            src_qp: header.from,
            wc_flags: IBV_WC_GRH,
            ..flushed(receive.id, IBV_WC_RECV, number)
        };
        if let Some(immediate) = header.immediate {
            wc.imm_data = immediate;
            wc.wc_flags |= IBV_WC_WITH_IMM;
        }
        self.emit(cq, wc, header.is_solicited, Some(handle));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_of_other_bytes_is_none() {
        for (immediate, is_solicited) in [(None, false), (Some(5_u32.to_be()), true), (None, true)]
        {
            let header = Header {
                to: 0x12_3456,
                from: 0x65_4321,
                key: 0x8000_0001,
                immediate,
                is_solicited,
            };
            let datagram = [&header.to_bytes()[..], b"message"].concat();
            assert_eq!(Header::read(&datagram), Some((header, &b"message"[..])));
            for count in 0..Header::BYTES {
                assert_eq!(Header::read(&datagram[..count]), None);
            }
            for at in [0, 1, 2, 3, 20, 21, 22, 23] {
                let mut other = datagram.clone();
                other[at] ^= 0x40;
                assert_eq!(Header::read(&other), None, "{at}");
            }
            let longest = [&header.to_bytes()[..], &[7; DATAGRAM_MAX]].concat();
            assert!(Header::read(&longest).is_some());
            assert!(Header::read(&[&longest[..], &[7]].concat()).is_none());
        }
    }

    #[test]
    fn a_route_header_names_both_ends() {
        let (from, to) = ("::ffff:192.0.2.7", "::ffff:192.0.2.8");
        let (from, to): (Ipv6Addr, Ipv6Addr) = (from.parse().unwrap(), to.parse().unwrap());
        let header = route_header(from, to, 0x102);
        assert_eq!(header[..8], [0x60, 0, 0, 0, 1, 2, 0x1b, 64]);
        assert_eq!(header[8..24], from.octets());
        assert_eq!(header[24..], to.octets());
    }
}
