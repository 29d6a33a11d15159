//! TAP: a network interface of the kernel whose wire is a file of ours.
//!
//! Why here: making one needs untyped requests. Every frame has a header in front, in the machine's
//! own byte order, with the rest of its checksum work and whether it is a super-segment
//! (`include/uapi/linux/virtio_net.h`). Must stay true: reads and writes never wait; the interface
//! goes with the last descriptor unless it was made persistent.
//! One thread at a time reads, one writes. Source: Documentation/networking/tuntap.rst,
//! `drivers/net/tun.c`.
//!
//! ```
//! use sidecore_sys::namespace;
//! use sidecore_sys::tun::{Queues, Tap};
//!
//! // In a network of its own, so that nobody else sees the interface.
//! let thread = std::thread::spawn(|| {
//!     namespace::leave_network()?;
//!     Tap::open("example0", 0, false, Queues::One)
//! });
//! match thread.join().expect("no panic") {
//!     Ok(tap) => assert_eq!(tap.name(), "example0"),
//!     Err(error) => println!("needs root and /dev/net/tun: {error}"),
//! }
//! ```
#![allow(unsafe_code)] // the kernel's C surface: ioctl(2) takes an untyped argument

use crate::SysError;
use crate::interface::Request;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{IntegerSetter, Opcode, Setter, Updater, ioctl};
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A TAP interface.
#[derive(Debug)]
pub struct Tap {
    file: OwnedFd,
    cuts_datagrams: bool,
    name: String,
}

impl Tap {
    /// Makes the interface `name`, or opens a persistent one. With `%d` in it the kernel chooses a
    /// number. Each frame gets a header of `header_bytes`, 10 or 12. With `offload`, super-segments
    /// of TCP and incomplete checksums come through. With [`Queues::Several`] each further one that
    /// is opened under the same name is another queue of the interface. A flow comes to the queue
    /// by which its other direction went out last, and without one, to that of its hash.
    ///
    /// # Errors
    /// [`SysError::Call`]: `ENOENT` without /dev/net/tun, `EPERM` without CAP_NET_ADMIN, `EBUSY`
    /// while another has it (also for a moment after that one closed it), `EINVAL` where an
    /// interface of another kind has the name.
    pub fn open(
        name: &str,
        header_bytes: u8,
        offload: bool,
        queues: Queues,
    ) -> Result<Self, SysError> {
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::open("/dev/net/tun", flags, Mode::empty())
            .map_err(refused("opening /dev/net/tun"))?;
        let mut request = Request::new(name)?;
        // No packet information: the header of virtio_net says more.
        let mut kind = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;
        if queues == Queues::Several {
            kind |= IFF_MULTI_QUEUE;
        }
        request.value[..2].copy_from_slice(&kind.to_ne_bytes());
        // SAFETY: TUNSETIFF reads and writes one `struct ifreq`, which `Request` is.
        unsafe { ioctl(&file, Updater::<TUNSETIFF, Request>::new(&mut request)) }
            .map_err(refused("TUNSETIFF"))?;
        // SAFETY: TUNSETVNETHDRSZ reads one int.
        unsafe {
            ioctl(
                &file,
                Setter::<TUNSETVNETHDRSZ, i32>::new(header_bytes.into()),
            )
        }
        .map_err(refused("TUNSETVNETHDRSZ"))?;
        // Offered only if the caller can cut and checksum such frames itself.
        let take = if offload {
            TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6
        } else {
            0
        };
        let set = |take| {
            // SAFETY: TUNSETOFFLOAD takes an integer in the place of a pointer.
            unsafe { ioctl(&file, IntegerSetter::<TUNSETOFFLOAD>::new_usize(take)) }
        };
        // A kernel that does not know a flag refuses all of them.
        let cuts_datagrams = offload && set(take | TUN_F_USO4 | TUN_F_USO6).is_ok();
        set(take).map_err(refused("TUNSETOFFLOAD"))?;
        Ok(Self {
            file,
            cuts_datagrams,
            // As the kernel chose it, where the given one was a pattern (`tap%d`).
            name: request.name(),
        })
    }

    /// Name of the interface.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// True if the kernel cuts datagrams that are written as one super-segment (Linux 6.2). It
    /// knows the flags by which it would pass such frames on, too. These are not asked for.
    #[must_use]
    pub fn cuts_datagrams(&self) -> bool {
        self.cuts_datagrams
    }

    /// Reads one frame with its header; `None` where none waits. A frame longer than `buffer` is
    /// cut.
    ///
    /// # Errors
    /// [`SysError::Call`]: `EBADFD` where the interface was deleted.
    #[inline]
    pub fn read(&self, buffer: &mut [u8]) -> Result<Option<usize>, SysError> {
        match rustix::io::read(&self.file, buffer) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(error) => Err(refused("reading from a TAP")(error)),
        }
    }

    /// As [`Tap::read`], into several pieces one after the other.
    ///
    /// # Errors
    /// As [`Tap::read`].
    #[inline]
    pub fn read_pieces(&self, pieces: &mut [IoSliceMut<'_>]) -> Result<Option<usize>, SysError> {
        match rustix::io::readv(&self.file, pieces) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(error) => Err(refused("reading from a TAP")(error)),
        }
    }

    /// Writes one frame: header first.
    ///
    /// # Errors
    /// [`SysError::Call`].
    #[inline]
    pub fn write(&self, pieces: &[IoSlice<'_>]) -> Result<Written, SysError> {
        match rustix::io::writev(&self.file, pieces) {
            Ok(_) => Ok(Written::Sent),
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM | Errno::INTR) => Ok(Written::NoRoom),
            // The interface is down, or the frame is not to its taste.
            Err(Errno::IO | Errno::INVAL | Errno::MSGSIZE) => Ok(Written::Refused),
            Err(error) => Err(refused("writing to a TAP")(error)),
        }
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Queues of a TAP, each with a descriptor of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Queues {
    /// One.
    #[default]
    One,
    /// As many as are opened, 256 at most (`IFF_MULTI_QUEUE`).
    Several,
}

/// Result of writing a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// The kernel has taken the frame.
    Sent,
    /// The kernel has no memory for the frame now.
    NoRoom,
    /// It does not take it: the interface is down, or the frame is malformed. As if lost on the
    /// wire.
    Refused,
}

fn refused(call: &'static str) -> impl Fn(Errno) -> SysError {
    move |source| SysError::Call {
        call,
        source: source.into(),
    }
}

const IFF_TAP: u16 = 0x0002;
const IFF_MULTI_QUEUE: u16 = 0x0100;
const IFF_NO_PI: u16 = 0x1000;
const IFF_VNET_HDR: u16 = 0x4000;
const TUNSETIFF: Opcode = 0x4004_54CA;
const TUNSETOFFLOAD: Opcode = 0x4004_54D0;
const TUNSETVNETHDRSZ: Opcode = 0x4004_54D8;
const TUN_F_CSUM: usize = 0x01;
const TUN_F_TSO4: usize = 0x02;
const TUN_F_TSO6: usize = 0x04;
const TUN_F_USO4: usize = 0x20;
const TUN_F_USO6: usize = 0x40;
