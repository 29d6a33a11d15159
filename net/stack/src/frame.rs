//! Frames between the stack and a NIC, and offloads of a NIC.
//!
//! Segmentation and checksums are included from the start: if a NIC cuts super-segments and
//! completes checksums, the stack passes it up to 64 KiB at a time and touches no payload byte.
//! Source: the kernel's `include/uapi/linux/virtio_net.h` for the requests in a header.

use std::num::NonZeroU16;

/// The longest frame that any NIC passes in either direction, in bytes: a super-segment with its
/// Ethernet header and room for a tag.
pub const FRAME_BYTES_MAX: usize = 65_535 + ETHERNET_BYTES_MAX;
/// Bytes of an Ethernet header with a tag.
pub const ETHERNET_BYTES_MAX: usize = 18;

/// Addresses, sizes and offloads of a NIC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// The hardware address.
    pub address: [u8; 6],
    /// The largest IP packet that is sent as one frame, in bytes.
    pub mtu_bytes: usize,
    /// The largest IP packet that it cuts into such frames itself, in bytes; 0 if it does not.
    pub super_segment_bytes: usize,
    /// Transmit checksum offload: the NIC completes TCP and UDP checksums of frames sent.
    pub completes_checksums: bool,
    /// It cuts a super-segment of datagrams into datagrams (UDP_SEGMENT's way), too. Needs
    /// `completes_checksums` and `super_segment_bytes`.
    pub cuts_datagrams: bool,
    /// Receive offload (GRO): received frames may be super-segments, or carry partial checksums.
    pub merges_received: bool,
}

impl Capabilities {
    /// A NIC without offloads: no segmentation, no checksums.
    ///
    /// ```
    /// use sidecore_net_stack::frame::{Capabilities, ETHERNET_BYTES_MAX};
    ///
    /// let nic = Capabilities::plain([2, 0, 0, 0, 0, 1], 1500);
    /// assert_eq!(nic.frame_bytes_max(), 1500 + ETHERNET_BYTES_MAX);
    /// ```
    #[must_use]
    pub fn plain(address: [u8; 6], mtu_bytes: usize) -> Self {
        Self {
            address,
            mtu_bytes,
            super_segment_bytes: 0,
            completes_checksums: false,
            cuts_datagrams: false,
            merges_received: false,
        }
    }

    /// The longest frame that it takes, in bytes.
    #[must_use]
    pub fn frame_bytes_max(&self) -> usize {
        let packet_bytes = self.mtu_bytes.max(self.super_segment_bytes);
        (packet_bytes + ETHERNET_BYTES_MAX).min(FRAME_BYTES_MAX)
    }
}

/// State of a received frame's transport checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReceivedChecksum {
    /// Unknown: the stack computes it.
    Unknown,
    /// The NIC verified it.
    Verified,
    /// The sender left it to hardware that the frame never reached; the bytes never left this
    /// machine.
    Partial,
}

/// A received frame. The NIC owns the bytes; the stack copies those it keeps.
#[derive(Debug)]
pub struct Received<'f> {
    /// From the Ethernet header on.
    pub bytes: &'f mut [u8],
    /// State of the transport checksum.
    pub checksum: ReceivedChecksum,
    /// For a super-segment: the payload bytes of each segment that it was merged from.
    pub segment_bytes: Option<NonZeroU16>,
}

/// Memory for the payload of the next received frame, which saves a copy.
#[derive(Debug)]
pub struct Room<'r> {
    /// Bytes of the headers that are expected before the payload, from Ethernet's on. They stay
    /// with the NIC.
    pub header_bytes: usize,
    /// Memory for the rest, in up to two pieces: together with the headers, as long as the longest
    /// frame.
    pub payload: [&'r mut [u8]; 2],
}

/// Transport checksum of an outgoing frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransmitChecksum {
    /// Complete, or not used.
    Complete,
    /// The field holds the pseudo-header's sum; the NIC adds the bytes from `start` to the end.
    Partial {
        /// First summed byte, counted from the Ethernet header.
        start: u16,
        /// Position of the checksum field, counted from `start`.
        offset: u16,
    },
}

/// A frame to send: a header that the stack built, and payload in its original place.
#[derive(Debug, Clone, Copy)]
pub struct Outgoing<'f> {
    /// From the Ethernet header to the end of the transport header.
    pub header: &'f [u8],
    /// The payload, in up to two pieces (a ring's end and its beginning).
    pub payload: [&'f [u8]; 2],
    /// State of the transport checksum.
    pub checksum: TransmitChecksum,
    /// For a super-segment: the payload bytes of each segment to cut.
    pub segment_bytes: Option<NonZeroU16>,
}

impl Outgoing<'_> {
    /// All bytes of the frame.
    #[must_use]
    pub fn len(&self) -> usize {
        self.header.len() + self.payload[0].len() + self.payload[1].len()
    }

    /// True if the frame has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
