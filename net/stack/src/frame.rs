//! Frames as they pass between the stack and a NIC, and what a NIC does for the stack.
//!
//! Segmentation and checksums are part of it from the start: where a NIC cuts super-segments and
//! completes checksums, the stack hands it up to 64 KiB at a time and touches no payload byte.
//! Source: the kernel's `include/uapi/linux/virtio_net.h` for what a header can ask for.

use std::num::NonZeroU16;

/// The longest frame that any NIC hands in or takes, in bytes: a super-segment with its Ethernet
/// header and room for a tag.
pub const FRAME_BYTES_MAX: usize = 65_535 + ETHERNET_BYTES_MAX;
/// Bytes of an Ethernet header with a tag.
pub const ETHERNET_BYTES_MAX: usize = 18;

/// Addresses, sizes and offloads of a NIC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// The hardware address.
    pub address: [u8; 6],
    /// The largest IP packet that goes out as one frame, in bytes.
    pub mtu_bytes: usize,
    /// The largest IP packet that it cuts into such frames by itself, in bytes; 0 if it does not.
    pub super_segment_bytes: usize,
    /// Transmit checksum offload: the NIC completes TCP and UDP checksums of frames sent.
    pub completes_checksums: bool,
    /// Receive offload (GRO): received frames may be super-segments, or carry partial checksums.
    pub merges_received: bool,
}

impl Capabilities {
    /// A NIC that leaves everything to the stack: no segmentation, no checksums.
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

/// Memory for the payload of the next received frame, so that it need not be copied again.
#[derive(Debug)]
pub struct Room<'r> {
    /// Bytes of the headers that are expected in front of the payload, from Ethernet's on. They
    /// stay with the NIC.
    pub header_bytes: usize,
    /// For what follows, in up to two pieces: together, and with the headers, as long as the
    /// longest frame.
    pub payload: [&'r mut [u8]; 2],
}

/// Transport checksum of an outgoing frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransmitChecksum {
    /// Nothing: it is complete or not used.
    Complete,
    /// The field holds the pseudo-header's sum; the NIC adds what lies from `start` to the end.
    Partial {
        /// First summed byte, counted from the Ethernet header.
        start: u16,
        /// Position of the checksum field, counted from `start`.
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

    /// True if the frame has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
