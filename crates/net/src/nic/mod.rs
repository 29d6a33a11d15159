//! A NIC as the stack sees it: frames in, frames out, and what the hardware does for us.
//!
//! [`tap`] leads to the local kernel, [`packet`] and [`xdp`] to a network interface, [`pair`] to
//! another stack; [`middleware`] puts a bad network in between. `tests/nic.rs` is what each must pass.
//!
//! Segmentation and checksums are part of the trait from the start: where a NIC cuts super-segments
//! and completes checksums, the stack hands it up to 64 KiB at a time and touches no payload byte.
//!
//! Must stay true: nothing here waits. A frame that is handed in has been copied or sent before the
//! call returns. One thread at a time uses a NIC.
//! Source: the kernel's `include/uapi/linux/virtio_net.h` for what a header can ask for.

pub(crate) mod checksum;
pub mod middleware;
pub mod packet;
pub mod pair;
pub mod tap;
pub(crate) mod vnet;
pub mod xdp;

use sidecore_sys::{SysError, interface};
use std::num::NonZeroU16;
use std::os::fd::BorrowedFd;

/// The longest frame that any NIC hands in or takes, in bytes: a super-segment with its Ethernet
/// header and room for a tag.
pub const FRAME_BYTES_MAX: usize = 65_535 + ETHERNET_BYTES_MAX;
/// Of an Ethernet header with a tag.
const ETHERNET_BYTES_MAX: usize = 18;

/// What a NIC is and can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// The hardware address.
    pub address: [u8; 6],
    /// The largest IP packet that goes out as one frame, in bytes.
    pub mtu_bytes: usize,
    /// The largest IP packet that it cuts into such frames by itself, in bytes; 0 if it does not.
    pub super_segment_bytes: usize,
    /// Whether it completes TCP's and UDP's checksums of what is sent.
    pub completes_checksums: bool,
    /// Whether frames may come in that are super-segments or whose checksum was left incomplete.
    pub merges_received: bool,
}

impl Capabilities {
    /// The longest frame that it takes, in bytes.
    pub(crate) fn frame_bytes_max(&self) -> usize {
        let packet_bytes = self.mtu_bytes.max(self.super_segment_bytes);
        (packet_bytes + ETHERNET_BYTES_MAX).min(FRAME_BYTES_MAX)
    }
}

/// What is known of a received frame's transport checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReceivedChecksum {
    /// Nothing: the stack computes it.
    Unknown,
    /// The NIC found it right.
    Verified,
    /// The sender left it to hardware that the frame never met; the bytes never left this machine.
    Partial,
}

/// A received frame. The bytes are the NIC's; what is to be kept is copied.
#[derive(Debug)]
pub struct Received<'f> {
    /// From the Ethernet header on.
    pub bytes: &'f mut [u8],
    /// Of the transport header.
    pub checksum: ReceivedChecksum,
    /// For a super-segment: the payload bytes of each segment that it was put together from.
    pub segment_bytes: Option<NonZeroU16>,
}

/// Where a frame that is on its way in may be put, so that its payload need not be copied again.
#[derive(Debug)]
pub struct Room<'r> {
    /// Bytes of the headers that are expected in front of the payload, from Ethernet's on. They stay
    /// with the NIC.
    pub header_bytes: usize,
    /// For what follows, in up to two pieces: together, and with the headers, as long as the longest
    /// frame.
    pub payload: [&'r mut [u8]; 2],
}

/// Who takes frames in, and may say where the payload of the next one is wanted.
pub trait Intake {
    /// Where the next frame's payload is wanted; none where nothing is expected.
    fn room(&mut self) -> Option<Room<'_>>;

    /// Takes a frame.
    fn take(&mut self, frame: Received<'_>);

    /// Takes a frame of which all that is longer than [`Room::header_bytes`] lies in the room that was
    /// asked for last. `frame.bytes` is as long as the frame; behind the headers, what is in it means
    /// nothing, and is the taker's to overwrite.
    fn take_split(&mut self, frame: Received<'_>);
}

/// Takes every frame whole: for a NIC whose one loop splits where it is told to.
pub(crate) struct Whole<'s>(pub(crate) &'s mut dyn FnMut(Received<'_>));

impl Intake for Whole<'_> {
    fn room(&mut self) -> Option<Room<'_>> {
        None
    }

    fn take(&mut self, frame: Received<'_>) {
        (self.0)(frame);
    }

    fn take_split(&mut self, frame: Received<'_>) {
        (self.0)(frame);
    }
}

/// What is to happen to the transport checksum of a frame on its way out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransmitChecksum {
    /// Nothing: it is complete or not used.
    Complete,
    /// The field holds the pseudo-header's sum; the NIC adds what lies from `start` to the end.
    Partial {
        /// Where summing starts, counted from the Ethernet header.
        start: u16,
        /// Where the field lies, counted from `start`.
        offset: u16,
    },
}

/// A frame on its way out: a header that the stack built, and payload where it lies.
#[derive(Debug, Clone, Copy)]
pub struct Outgoing<'f> {
    /// From the Ethernet header to the end of the transport header.
    pub header: &'f [u8],
    /// The payload, in up to two pieces (a ring's end and its beginning).
    pub payload: [&'f [u8]; 2],
    /// Of the transport header.
    pub checksum: TransmitChecksum,
    /// For a super-segment: the payload bytes of each segment to be cut.
    pub segment_bytes: Option<NonZeroU16>,
}

impl Outgoing<'_> {
    /// All bytes of the frame.
    #[must_use]
    pub fn len(&self) -> usize {
        self.header.len() + self.payload[0].len() + self.payload[1].len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What a NIC cannot do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NicError {
    /// The operating system refused.
    #[error("{what}: {error}")]
    Os {
        /// What was tried, and the remedy where there is one.
        what: String,
        /// What it said.
        error: std::io::Error,
    },
    /// A way to the operating system was refused.
    #[error("{what}: {error}")]
    Sys {
        /// What was tried, and the remedy where there is one.
        what: String,
        /// What it said.
        error: SysError,
    },
    /// What was asked for makes no sense.
    #[error("{0}")]
    Options(String),
}

impl NicError {
    pub(crate) fn sys(what: String, error: SysError) -> Self {
        Self::Sys { what, error }
    }

    pub(crate) fn gone(name: &str, error: SysError) -> Self {
        Self::sys(
            format!("the NIC `{name}` fails; it may have been removed or set down"),
            error,
        )
    }
}

/// One of this machine's interfaces.
pub(crate) struct Interface {
    pub(crate) index: u32,
    pub(crate) address: [u8; 6],
    pub(crate) mtu_bytes: usize,
}

impl Interface {
    /// Finds it, and sets it up where it is down and that is allowed.
    pub(crate) fn find(name: &str) -> Result<Self, NicError> {
        let unknown = |error| {
            NicError::sys(
                format!("no interface `{name}`; `ip link` lists them"),
                error,
            )
        };
        let found = Self {
            index: interface::index(name).map_err(unknown)?,
            address: interface::hardware_address(name).map_err(unknown)?,
            mtu_bytes: interface::mtu_bytes(name).map_err(unknown)?,
        };
        interface::set_up(name).ok();
        Ok(found)
    }
}

/// A NIC.
pub trait Nic {
    /// What it is and can do; does not change.
    fn capabilities(&self) -> Capabilities;

    /// Hands at most `budget` waiting frames to `sink`, and returns how many. Does not wait.
    ///
    /// # Errors
    /// [`NicError`] when the NIC is gone.
    fn receive(
        &mut self,
        budget: usize,
        sink: &mut dyn FnMut(Received<'_>),
    ) -> Result<usize, NicError>;

    /// Whether it can put headers and payload into different places: [`Nic::receive_split`].
    fn splits(&self) -> bool {
        false
    }

    /// As [`Nic::receive`], asking before each frame where its payload is wanted.
    ///
    /// # Errors
    /// As [`Nic::receive`].
    fn receive_split(&mut self, budget: usize, intake: &mut dyn Intake) -> Result<usize, NicError> {
        self.receive(budget, &mut |frame| intake.take(frame))
    }

    /// Takes a frame to send; false when there is no room now (the stack keeps it and asks again).
    /// It may stay queued until [`Nic::flush`]. One that is longer than the capabilities allow is
    /// taken and lost, as on a wire.
    ///
    /// # Errors
    /// [`NicError`] when the NIC is gone.
    fn transmit(&mut self, frame: &Outgoing<'_>) -> Result<bool, NicError>;

    /// Sends what is queued. Called once at the end of a round.
    ///
    /// # Errors
    /// [`NicError`] when the NIC is gone.
    fn flush(&mut self) -> Result<(), NicError>;

    /// What becomes readable when a frame waits, for a stack that may sleep; none where only polling
    /// tells.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// Says that the stack is about to sleep on [`Nic::descriptor`]; false where a frame waits
    /// already, or none will be announced. The next [`Nic::receive`] ends it.
    ///
    /// # Errors
    /// [`NicError`] when the NIC is gone.
    fn arm(&mut self) -> Result<bool, NicError> {
        Ok(self.descriptor().is_some())
    }
}

impl<N: Nic + ?Sized> Nic for Box<N> {
    fn capabilities(&self) -> Capabilities {
        (**self).capabilities()
    }

    fn receive(
        &mut self,
        budget: usize,
        sink: &mut dyn FnMut(Received<'_>),
    ) -> Result<usize, NicError> {
        (**self).receive(budget, sink)
    }

    fn splits(&self) -> bool {
        (**self).splits()
    }

    fn receive_split(&mut self, budget: usize, intake: &mut dyn Intake) -> Result<usize, NicError> {
        (**self).receive_split(budget, intake)
    }

    fn transmit(&mut self, frame: &Outgoing<'_>) -> Result<bool, NicError> {
        (**self).transmit(frame)
    }

    fn flush(&mut self) -> Result<(), NicError> {
        (**self).flush()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        (**self).descriptor()
    }

    fn arm(&mut self) -> Result<bool, NicError> {
        (**self).arm()
    }
}
