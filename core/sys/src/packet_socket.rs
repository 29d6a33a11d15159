//! Packet sockets: frames of a network interface, past the kernel's stack.
//!
//! Why here: their options and their address are untyped, and many frames a call need arrays of C
//! structs. Every frame has the header of [`crate::tun`] in front (10 bytes), so that
//! super-segments and incomplete checksums come through. Must stay true: nothing here waits; arrays
//! that the kernel reads point into buffers that are borrowed for the call. Source: packet(7),
//! recvmmsg(2).
//!
//! ```
//! use sidecore_sys::{interface, packet_socket::PacketSocket};
//!
//! match PacketSocket::open(interface::index("lo")?, false) {
//!     Ok(socket) => println!("bypasses the queue: {}", socket.bypasses_queue()),
//!     Err(error) => println!("needs root: {error}"),
//! }
//! # Ok::<(), sidecore_sys::SysError>(())
//! ```
#![allow(unsafe_code)] // the kernel's C surface: untyped options, arrays of pointers

use crate::SysError;
use rustix::io::Errno;
use sidecore_bare::width::ToUsize;
use std::io::IoSlice;
use std::mem::zeroed;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

/// The most frames of one call.
pub const BATCH_MAX: usize = 32;
/// Bytes of the header in front of each frame.
pub const HEADER_BYTES: usize = 10;

/// A packet socket, bound to one interface.
#[derive(Debug)]
pub struct PacketSocket {
    socket: OwnedFd,
    bypasses_queue: bool,
}

impl PacketSocket {
    /// Opens one on the interface of that number. `promiscuous`: frames to other addresses too.
    /// Frames with a VLAN's tag are not received: they are of another network, which has an
    /// interface of its own.
    ///
    /// # Errors
    /// [`SysError::Call`]: `EPERM` without CAP_NET_RAW; `ENODEV`, `ENETDOWN`.
    pub fn open(interface: u32, promiscuous: bool) -> Result<Self, SysError> {
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // Protocol 0: nothing comes in before it is bound.
        // SAFETY: takes integers, returns a new descriptor or -1.
        let socket = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
        check(socket, "socket(AF_PACKET)")?;
        // SAFETY: just opened, without another owner.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        let mut this = Self {
            socket,
            bypasses_queue: false,
        };
        this.set(libc::PACKET_VNET_HDR, 1, "PACKET_VNET_HDR")?;
        // Our own outgoing frames are not input.
        this.set(PACKET_IGNORE_OUTGOING, 1, "PACKET_IGNORE_OUTGOING")?;
        // Without a queueing discipline a full device is reported at once; its absence is no
        // failure.
        this.bypasses_queue = this.set(PACKET_QDISC_BYPASS, 1, "").is_ok();
        for (option, bytes) in [
            (libc::SO_RCVBUFFORCE, BUFFER_BYTES),
            (libc::SO_SNDBUFFORCE, BUFFER_BYTES),
        ] {
            // Without CAP_NET_ADMIN the default has to do.
            this.set_of(libc::SOL_SOCKET, option, &bytes, "").ok();
        }
        this.refuse_tagged()?;
        // SAFETY: plain numbers, for which zeros are valid.
        let mut address: libc::sockaddr_ll = unsafe { zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        address.sll_ifindex = interface.cast_signed();
        // SAFETY: points to an address of the stated size.
        let bound = unsafe {
            libc::bind(
                this.socket.as_raw_fd(),
                (&raw const address).cast(),
                size_of::<libc::sockaddr_ll>() as u32,
            )
        };
        check(bound, "bind of a packet socket")?;
        if promiscuous {
            let membership = libc::packet_mreq {
                mr_ifindex: interface.cast_signed(),
                mr_type: libc::PACKET_MR_PROMISC as u16,
                mr_alen: 0,
                mr_address: [0; 8],
            };
            this.set_of(
                libc::SOL_PACKET,
                libc::PACKET_ADD_MEMBERSHIP,
                &membership,
                "PACKET_ADD_MEMBERSHIP",
            )?;
        }
        Ok(this)
    }

    /// Begins a group of sockets over which the kernel spreads incoming frames, by a hash of the
    /// flow that is the same in both directions. The group's number, for [`Self::join_fanout`].
    ///
    /// # Errors
    /// [`SysError::Call`]: `ENOSPC` where no number is left.
    pub fn begin_fanout(&self) -> Result<u16, SysError> {
        // The kernel chooses a number that no other group has.
        let kind = libc::PACKET_FANOUT_HASH | FANOUT_UNIQUE_ID;
        self.set(libc::PACKET_FANOUT, (kind as i32) << 16, "PACKET_FANOUT")?;
        let (mut value, mut bytes) = (0_i32, size_of::<i32>() as u32);
        // SAFETY: both point to values of the stated sizes.
        let got = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_FANOUT,
                (&raw mut value).cast(),
                &raw mut bytes,
            )
        };
        check(got, "asking for PACKET_FANOUT")?;
        // The number is the low half.
        Ok(value as u16)
    }

    /// Joins a group that another socket of the same interface began.
    ///
    /// # Errors
    /// [`SysError::Call`]: `EINVAL` where there is none of that number.
    pub fn join_fanout(&self, group: u16) -> Result<(), SysError> {
        let kind = (libc::PACKET_FANOUT_HASH as i32) << 16;
        self.set(
            libc::PACKET_FANOUT,
            kind | i32::from(group),
            "PACKET_FANOUT",
        )
    }

    /// True if frames are sent straight to the device, past the queueing discipline
    /// (PACKET_QDISC_BYPASS).
    #[must_use]
    pub fn bypasses_queue(&self) -> bool {
        self.bypasses_queue
    }

    /// Takes waiting frames, with their headers: one into each `frame_bytes` bytes of `slots`, its
    /// length into `lengths`. Returns how many. A longer frame is cut.
    ///
    /// # Errors
    /// [`SysError::Call`]: `ENETDOWN` once when the interface goes down.
    #[inline]
    pub fn receive(
        &self,
        slots: &mut [u8],
        frame_bytes: usize,
        lengths: &mut [usize],
    ) -> Result<usize, SysError> {
        // SAFETY: C structs of numbers and null pointers; only those that are filled in are used.
        let mut pieces: [libc::iovec; BATCH_MAX] = unsafe { zeroed() };
        // SAFETY: as above.
        let mut messages: [libc::mmsghdr; BATCH_MAX] = unsafe { zeroed() };
        let mut count = 0;
        for slot in slots
            .chunks_exact_mut(frame_bytes.max(1))
            .take(BATCH_MAX.min(lengths.len()))
        {
            pieces[count].iov_base = slot.as_mut_ptr().cast();
            pieces[count].iov_len = slot.len();
            messages[count].msg_hdr.msg_iov = &raw mut pieces[count];
            messages[count].msg_hdr.msg_iovlen = 1;
            count += 1;
        }
        // SAFETY: the first `count` messages point to pieces that point into `slots`, disjoint and
        // borrowed for the call.
        let received = unsafe {
            libc::recvmmsg(
                self.socket.as_raw_fd(),
                messages.as_mut_ptr(),
                count as u32,
                libc::MSG_DONTWAIT as _,
                ptr::null_mut(),
            )
        };
        if received < 0 {
            return match last() {
                Errno::AGAIN | Errno::INTR => Ok(0),
                error => Err(call("recvmmsg")(error)),
            };
        }
        let received = received as usize;
        for (length, message) in lengths.iter_mut().zip(&messages[..received]) {
            *length = message.msg_len.to_usize();
        }
        Ok(received)
    }

    /// Sends frames, each in one piece with its header. Returns how many the kernel took; it has no
    /// room for the others now.
    ///
    /// # Errors
    /// [`SysError::Call`].
    #[inline]
    pub fn send(&self, frames: &[&[u8]]) -> Result<usize, SysError> {
        // SAFETY: C structs of numbers and null pointers; only those that are filled in are used.
        let mut pieces: [libc::iovec; BATCH_MAX] = unsafe { zeroed() };
        // SAFETY: as above.
        let mut messages: [libc::mmsghdr; BATCH_MAX] = unsafe { zeroed() };
        let mut count = 0;
        for frame in frames.iter().take(BATCH_MAX) {
            pieces[count].iov_base = frame.as_ptr().cast_mut().cast();
            pieces[count].iov_len = frame.len();
            messages[count].msg_hdr.msg_iov = &raw mut pieces[count];
            messages[count].msg_hdr.msg_iovlen = 1;
            count += 1;
        }
        // SAFETY: the first `count` messages point to pieces that point to the frames, which are
        // only read.
        let sent = unsafe {
            libc::sendmmsg(
                self.socket.as_raw_fd(),
                messages.as_mut_ptr(),
                count as u32,
                libc::MSG_DONTWAIT as _,
            )
        };
        if sent >= 0 {
            return Ok(sent as usize);
        }
        match last() {
            // The caller keeps the frames and tries again: a full queue is not a loss.
            Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM | Errno::INTR => Ok(0),
            // The device does not take this one, or is down: as if lost on the wire.
            Errno::INVAL | Errno::MSGSIZE | Errno::NETDOWN => Ok(1.min(count)),
            error => Err(call("sendmmsg")(error)),
        }
    }

    /// Sends one frame in pieces, its header first; false where there is no room now.
    ///
    /// # Errors
    /// [`SysError::Call`].
    #[inline]
    pub fn send_pieces(&self, pieces: &[IoSlice<'_>]) -> Result<bool, SysError> {
        match rustix::io::writev(&self.socket, pieces) {
            Ok(_) => Ok(true),
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM | Errno::INTR) => Ok(false),
            Err(Errno::INVAL | Errno::MSGSIZE | Errno::NETDOWN) => Ok(true),
            Err(error) => Err(call("writev to a packet socket")(error)),
        }
    }

    /// Makes the kernel drop frames with a VLAN's tag. It removes the tag before a packet socket
    /// sees the frame, which would then pass for an untagged one.
    fn refuse_tagged(&self) -> Result<(), SysError> {
        let program = libc::sock_fprog {
            len: UNTAGGED_ONLY.len() as u16,
            filter: UNTAGGED_ONLY.as_ptr().cast_mut(),
        };
        // SAFETY: points to a program of the stated size, whose instructions the kernel copies.
        let set = unsafe {
            libc::setsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_ATTACH_FILTER,
                (&raw const program).cast(),
                size_of::<libc::sock_fprog>() as u32,
            )
        };
        check(set, "SO_ATTACH_FILTER")
    }

    fn set(&self, option: i32, value: i32, what: &'static str) -> Result<(), SysError> {
        self.set_of(libc::SOL_PACKET, option, &value, what)
    }

    fn set_of<T: Copy>(
        &self,
        level: i32,
        option: i32,
        value: &T,
        what: &'static str,
    ) -> Result<(), SysError> {
        // SAFETY: points to a value of the stated size; the options used here read no pointer in
        // it.
        let set = unsafe {
            libc::setsockopt(
                self.socket.as_raw_fd(),
                level,
                option,
                ptr::from_ref(value).cast(),
                size_of::<T>() as u32,
            )
        };
        check(set, what)
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn check(result: i32, what: &'static str) -> Result<(), SysError> {
    if result < 0 {
        return Err(call(what)(last()));
    }
    Ok(())
}

fn last() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

fn call(call: &'static str) -> impl Fn(Errno) -> SysError {
    move |source| SysError::Call {
        call,
        source: source.into(),
    }
}

/// `PACKET_FANOUT_FLAG_UNIQUEID`: the kernel chooses the number.
const FANOUT_UNIQUE_ID: u32 = 0x2000;
const PACKET_QDISC_BYPASS: i32 = 20;
const PACKET_IGNORE_OUTGOING: i32 = 23;
/// Size of the socket's send and receive buffers, in bytes.
const BUFFER_BYTES: i32 = 8 << 20;
/// Instructions of `linux/filter.h`: a word of a frame's metadata is loaded, masked, compared.
const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
/// Bits of a tag that are the VLAN's number (IEEE 802.1Q).
const VLAN_BITS: u32 = 0xfff;
/// A program that takes frames without a tag, and those whose tag only has a priority.
static UNTAGGED_ONLY: [libc::sock_filter; 7] = [
    step(LOAD, 0, 0, metadata(libc::SKF_AD_VLAN_TAG_PRESENT)),
    step(JUMP_IF_EQUAL, 3, 0, 0),
    step(LOAD, 0, 0, metadata(libc::SKF_AD_VLAN_TAG)),
    step(AND, 0, 0, VLAN_BITS),
    step(JUMP_IF_EQUAL, 0, 1, 0),
    step(RETURN, 0, 0, u32::MAX),
    step(RETURN, 0, 0, 0),
];

/// An instruction; the jumps skip that many.
const fn step(code: u16, if_true: u8, if_false: u8, value: u32) -> libc::sock_filter {
    libc::sock_filter {
        code,
        jt: if_true,
        jf: if_false,
        k: value,
    }
}

/// The place of a frame's metadata for [`LOAD`].
const fn metadata(of: i32) -> u32 {
    (libc::SKF_AD_OFF + of).cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tun::{Queues, Tap, Written};
    use crate::{interface, namespace};
    use std::thread;
    use std::time::{Duration, Instant};

    /// A broadcast frame of an experimental type, with its header and perhaps a tag.
    fn frame(tag: Option<u16>, payload: u8) -> Vec<u8> {
        let mut frame = vec![0; HEADER_BYTES];
        frame.extend([0xff; 6]);
        frame.extend([2, 0, 0, 0, 0, 9]);
        if let Some(tag) = tag {
            frame.extend([0x81, 0]);
            frame.extend(tag.to_be_bytes());
        }
        frame.extend([0x88, 0xb5]);
        frame.extend([payload; 46]);
        frame
    }

    /// The payloads that a socket receives of frames on a TAP's wire, up to `last`; none without
    /// the rights, or where the kernel has no TAP.
    fn received(frames: &[Vec<u8>], last: u8) -> Option<Vec<u8>> {
        namespace::leave_network().ok()?;
        let tap = Tap::open("tagged0", HEADER_BYTES as u8, false, Queues::One).ok()?;
        interface::set_up(tap.name()).unwrap();
        let socket = PacketSocket::open(interface::index(tap.name()).unwrap(), true).unwrap();
        for frame in frames {
            assert_eq!(tap.write(&[IoSlice::new(frame)]).unwrap(), Written::Sent);
        }
        let (mut came, begun) = (Vec::new(), Instant::now());
        while came.last() != Some(&last) {
            assert!(begun.elapsed() < Duration::from_secs(60), "{came:?}");
            let (mut slot, mut lengths) = ([0; 256], [0]);
            if socket.receive(&mut slot, 256, &mut lengths).unwrap() == 0 {
                thread::sleep(Duration::from_millis(1));
                continue;
            }
            let kind = HEADER_BYTES + 12;
            // The kernel sends messages of its own.
            if slot[kind..kind + 2] == [0x88, 0xb5] {
                came.push(slot[kind + 2]);
            }
        }
        Some(came)
    }

    #[test]
    fn frames_of_other_vlans_are_not_received() {
        let frames = [
            frame(Some(100), 1),
            // A priority, and no VLAN.
            frame(Some(5 << 13), 2),
            frame(Some(5 << 13 | 0xfff), 3),
            frame(None, 4),
        ];
        let came = thread::spawn(move || received(&frames, 4)).join().unwrap();
        assert!(came.is_none_or(|came| came == [2, 4]));
    }
}
