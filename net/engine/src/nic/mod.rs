//! A NIC as the stack sees it: frames received and sent, and hardware offloads.
//!
//! [`tap`] leads to the local kernel, [`packet`] and [`xdp`] to a network interface, `wireguard`
//! to the ends of tunnels, [`pair`] to another stack, [`spread`] to several; [`bond`] is several
//! NICs as one, [`vlan`] a part of another; [`middleware`] adds impairments. Each must pass
//! `tests/suite/nic.rs`.
//!
//! Segmentation and checksums are part of the trait from the start: if a NIC cuts super-segments
//! and completes checksums, the stack passes it up to 64 KiB at a time and touches no payload byte.
//!
//! Must stay true: nothing here blocks. A frame has been copied or sent before the call that passes
//! it returns. One thread at a time uses a NIC. Source: the kernel's
//! `include/uapi/linux/virtio_net.h` for the requests in a header.

pub mod bond;
pub(crate) mod checksum;
pub mod middleware;
mod neighbor;
pub mod packet;
pub mod pair;
pub mod spread;
pub mod tap;
pub mod vlan {
    //! One VLAN of a NIC (IEEE 802.1Q).
    //!
    //! Frames get a tag as they leave and lose it as they arrive, so that the stack knows of none.
    //! Must stay true: frames without the VLAN's tag do not reach the stack, and what is counted
    //! from a frame's beginning is moved by the tag. Source: IEEE 802.1Q-2022 section 9.6.

    use super::{
        BorrowedFd, Capabilities, Nic, NicError, NicReport, Outgoing, Received, TransmitChecksum,
    };

    /// A NIC that is one VLAN of another.
    #[derive(Debug)]
    pub struct Vlan<N> {
        nic: N,
        id: u16,
        /// The type and the tag's word.
        tag: [u8; 4],
        /// The header of a frame that is sent, with the tag.
        header: Vec<u8>,
    }

    impl<N: Nic> Vlan<N> {
        /// The VLAN `id` of `nic`; frames are sent with this priority.
        ///
        /// # Errors
        /// [`NicError::Options`] for a number or a priority out of range.
        pub fn new(nic: N, id: u16, priority: u8) -> Result<Self, NicError> {
            check(id, priority)?;
            let [high, low] = (u16::from(priority) << 13 | id).to_be_bytes();
            let [first, second] = TAGGED;
            Ok(Self {
                nic,
                id,
                tag: [first, second, high, low],
                header: Vec::new(),
            })
        }
    }

    /// Rejects a number or a priority that no tag can have.
    pub(crate) fn check(id: u16, priority: u8) -> Result<(), NicError> {
        // 0 is a tag without a VLAN, and 4095 is reserved.
        if !(1..ID_MASK).contains(&id) {
            let reason = format!("VLAN {id} is not allowed; 1 to 4094 are");
            return Err(NicError::Options(reason));
        }
        if priority > PRIORITY_MAX {
            let reason = format!("the priority {priority} is not allowed; 0 to 7 are");
            return Err(NicError::Options(reason));
        }
        Ok(())
    }

    impl<N: Nic> Nic for Vlan<N> {
        fn capabilities(&self) -> Capabilities {
            // Frames have room for a tag behind the MTU.
            self.nic.capabilities()
        }

        fn receive(
            &mut self,
            budget: usize,
            sink: &mut dyn FnMut(Received<'_>),
        ) -> Result<usize, NicError> {
            let (id, mut count) = (self.id, 0);
            self.nic.receive(budget, &mut |frame| {
                if let Some(frame) = untagged(frame, id) {
                    count += 1;
                    sink(frame);
                }
            })?;
            Ok(count)
        }

        fn transmit(&mut self, frame: &Outgoing<'_>) -> Result<bool, NicError> {
            let Some((addresses, rest)) = frame.header.split_at_checked(ADDRESSES_BYTES) else {
                // No Ethernet frame: lost, as on a wire.
                return Ok(true);
            };
            self.header.clear();
            for part in [addresses, &self.tag, rest] {
                self.header.extend_from_slice(part);
            }
            let checksum = match frame.checksum {
                TransmitChecksum::Complete => TransmitChecksum::Complete,
                TransmitChecksum::Partial { start, offset } => TransmitChecksum::Partial {
                    start: start + TAG_BYTES,
                    offset,
                },
            };
            self.nic.transmit(&Outgoing {
                header: &self.header,
                payload: frame.payload,
                checksum,
                segment_bytes: frame.segment_bytes,
            })
        }

        fn flush(&mut self) -> Result<(), NicError> {
            self.nic.flush()
        }

        fn descriptor(&self) -> Option<BorrowedFd<'_>> {
            self.nic.descriptor()
        }

        fn arm(&mut self) -> Result<bool, NicError> {
            self.nic.arm()
        }

        fn has_carrier(&self) -> bool {
            self.nic.has_carrier()
        }

        fn report(&self) -> Option<NicReport> {
            self.nic.report()
        }
    }

    /// A received frame of this VLAN, without its tag.
    fn untagged(frame: Received<'_>, id: u16) -> Option<Received<'_>> {
        let Received {
            bytes,
            checksum,
            segment_bytes,
        } = frame;
        let tag_bytes = usize::from(TAG_BYTES);
        let head = bytes.get(ADDRESSES_BYTES..ADDRESSES_BYTES + tag_bytes)?;
        let word = u16::from_be_bytes([head[2], head[3]]);
        if head[..2] != TAGGED || word & ID_MASK != id {
            return None;
        }
        // The addresses move up to the type behind the tag.
        bytes.copy_within(..ADDRESSES_BYTES, tag_bytes);
        Some(Received {
            bytes: &mut bytes[tag_bytes..],
            checksum,
            segment_bytes,
        })
    }

    /// The type of a frame with a tag.
    pub(super) const TAGGED: [u8; 2] = [0x81, 0x00];
    const TAG_BYTES: u16 = 4;
    const ADDRESSES_BYTES: usize = 12;
    /// The lower 12 bits of the tag's word.
    const ID_MASK: u16 = 0x0fff;
    const PRIORITY_MAX: u8 = 7;

    #[cfg(test)]
    mod tests {
        #![allow(clippy::unwrap_used)] // Helper functions of tests.

        use super::*;
        use crate::nic::pair::{self, Pair, PairOptions};

        fn frames(nic: &mut impl Nic) -> Vec<Vec<u8>> {
            let mut frames = Vec::new();
            nic.receive(64, &mut |frame| frames.push(frame.bytes.to_vec()))
                .unwrap();
            frames
        }

        fn send(nic: &mut impl Nic, header: &[u8]) {
            let frame = Outgoing {
                header,
                payload: [&[], &[]],
                checksum: TransmitChecksum::Complete,
                segment_bytes: None,
            };
            assert!(nic.transmit(&frame).unwrap());
            nic.flush().unwrap();
        }

        fn link() -> (Vlan<Pair>, Pair) {
            let (near, far) = pair::link(&PairOptions::default()).unwrap();
            (Vlan::new(near, 0x123, 5).unwrap(), far)
        }

        #[test]
        fn frames_leave_with_the_tag_and_arrive_without() {
            let (mut near, mut far) = link();
            let plain: Vec<u8> = (0..60).collect();
            send(&mut near, &plain);
            let tagged = [&plain[..12], &[0x81, 0, 0xa1, 0x23], &plain[12..]].concat();
            assert_eq!(frames(&mut far), std::slice::from_ref(&tagged));
            send(&mut far, &tagged);
            assert_eq!(frames(&mut near), [plain]);
        }

        #[test]
        fn other_frames_do_not_arrive() {
            let (mut near, mut far) = link();
            let mut frame = [0; 64];
            for tag in [
                // None, another VLAN's, none of a VLAN, a provider's (802.1ad).
                [8, 0, 0, 0],
                [0x81, 0, 0x01, 0x24],
                [0x81, 0, 0xa0, 0],
                [0x88, 0xa8, 0x01, 0x23],
            ] {
                frame[12..16].copy_from_slice(&tag);
                send(&mut far, &frame);
            }
            send(&mut far, &frame[..14]);
            assert!(frames(&mut near).is_empty());
            // Whatever the priority.
            frame[12..16].copy_from_slice(&[0x81, 0, 0xe1, 0x23]);
            send(&mut far, &frame);
            assert_eq!(frames(&mut near).len(), 1);
        }

        #[test]
        fn what_no_tag_can_have_is_refused() {
            for (id, priority, is_right) in [
                (0, 0, false),
                (1, 7, true),
                (4094, 0, true),
                (4095, 0, false),
                (7, 8, false),
            ] {
                assert_eq!(check(id, priority).is_ok(), is_right, "{id} {priority}");
            }
        }
    }
}
pub(crate) mod vnet;
pub(crate) mod wireguard;

/// Bytes of the header before each frame on a TAP that segments (`virtio_net_hdr_v1`).
pub use vnet::HEADER_BYTES as VNET_HEADER_BYTES;
pub mod xdp;

use serde::Serialize;
pub use sidecore_net_stack::frame::{
    Capabilities, ETHERNET_BYTES_MAX, FRAME_BYTES_MAX, Outgoing, Received, ReceivedChecksum, Room,
    TransmitChecksum,
};
use sidecore_sys::{SysError, interface};
use std::os::fd::BorrowedFd;

/// Receiver of frames, which may choose the memory for the payload of the next one.
pub trait Intake {
    /// Memory for the payload of the next frame; none if no particular frame is expected.
    fn room(&mut self) -> Option<Room<'_>>;

    /// Takes a frame.
    fn take(&mut self, frame: Received<'_>);

    /// Takes a frame whose bytes after [`Room::header_bytes`] are in the room of the last call of
    /// [`Self::room`]. `frame.bytes` has the length of the frame; its bytes after the headers are
    /// undefined, and may be overwritten.
    fn take_split(&mut self, frame: Received<'_>);
}

/// Takes every frame whole: for a NIC with one loop for whole and split frames.
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

/// Error of a NIC.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NicError {
    /// The operating system refused.
    #[error("{what}: {error}")]
    Os {
        /// The operation, and the remedy if there is one.
        what: String,
        /// The system's error.
        error: std::io::Error,
    },
    /// A wrapped system call failed.
    #[error("{what}: {error}")]
    Sys {
        /// The operation, and the remedy if there is one.
        what: String,
        /// The system's error.
        error: SysError,
    },
    /// Options that contradict each other or are out of range.
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
    /// Finds the interface, and sets it up if it is down and that is permitted.
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
        // Without the right to do it the interface may be up all the same.
        interface::set_up(name).ok();
        Ok(found)
    }

    /// True if the interface of that name is up and has a carrier; not if it is gone.
    pub(crate) fn has_carrier(name: &str) -> bool {
        interface::is_running(name).unwrap_or(false)
    }
}

/// A NIC.
pub trait Nic {
    /// Addresses, sizes and offloads; constant.
    fn capabilities(&self) -> Capabilities;

    /// Passes at most `budget` waiting frames to `sink`, and returns their number. Does not block.
    ///
    /// # Errors
    /// [`NicError`] when the NIC is gone.
    fn receive(
        &mut self,
        budget: usize,
        sink: &mut dyn FnMut(Received<'_>),
    ) -> Result<usize, NicError>;

    /// True if headers and payload can be received into separate memory (header-data split):
    /// [`Nic::receive_split`].
    fn splits(&self) -> bool {
        false
    }

    /// As [`Nic::receive`], with a call of [`Intake::room`] before each frame.
    ///
    /// # Errors
    /// As [`Nic::receive`].
    fn receive_split(&mut self, budget: usize, intake: &mut dyn Intake) -> Result<usize, NicError> {
        self.receive(budget, &mut |frame| intake.take(frame))
    }

    /// Takes a frame to send; false if there is no room now (the stack keeps it and tries again).
    /// It may stay queued until [`Nic::flush`]. A frame longer than the capabilities allow is taken
    /// and lost, as on a wire.
    ///
    /// # Errors
    /// [`NicError`] when the NIC is gone.
    fn transmit(&mut self, frame: &Outgoing<'_>) -> Result<bool, NicError>;

    /// Sends queued frames. Called once at the end of a round.
    ///
    /// # Errors
    /// [`NicError`] when the NIC is gone.
    fn flush(&mut self) -> Result<(), NicError>;

    /// Descriptor that becomes readable when a frame waits, for a stack that may sleep; none if the
    /// NIC must be polled.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// Announces that the stack is about to sleep on [`Nic::descriptor`]; false if a frame waits
    /// already, or none will be reported. The next [`Nic::receive`] ends it.
    ///
    /// # Errors
    /// [`NicError`] when the NIC is gone.
    fn arm(&mut self) -> Result<bool, NicError> {
        Ok(self.descriptor().is_some())
    }

    /// True if the link is up as far as its hardware, or its kernel, knows. A system call for some.
    fn has_carrier(&self) -> bool {
        true
    }

    /// The state of a NIC with links or peers, for the status; none for others.
    fn report(&self) -> Option<NicReport> {
        None
    }
}

/// The state of a NIC that has several links, or several peers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct NicReport {
    /// `bond` or `wireguard`.
    pub kind: &'static str,
    /// Links of a bond.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) links: Vec<LinkReport>,
    /// Peers of a tunnel.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) peers: Vec<PeerReport>,
    /// Frames, or datagrams, of no link or peer.
    pub dropped: u64,
    /// Times that a link has replaced another.
    pub fail_overs: u64,
}

/// A link of a bond.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct LinkReport {
    /// Its interface.
    pub name: String,
    /// It could carry frames.
    pub is_up: bool,
    /// It carries frames.
    pub is_used: bool,
    /// Frames of the stack that left by it.
    pub frames_sent: u64,
    /// State of LACP's mux machine, where there is LACP.
    pub lacp_state: Option<&'static str>,
    /// The partner's system, if one was heard.
    pub lacp_partner: Option<String>,
    /// Both ends have not agreed for a minute (churn detection).
    pub is_churned: bool,
    /// It leads back to this system.
    pub is_looped: bool,
}

/// A peer of a tunnel.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct PeerReport {
    /// Its public key, in base64.
    pub public_key: String,
    /// Its address on the outside, if known.
    pub endpoint: Option<String>,
    /// Networks that are behind it.
    pub allowed: Vec<String>,
    /// Seconds since the last handshake; none while there is no session.
    pub handshake_age_s: Option<u64>,
    /// Bytes of packets received.
    pub rx_bytes: u64,
    /// Bytes of packets sent.
    pub tx_bytes: u64,
    /// Packets from a source that is not behind the peer, and packets that found a full queue.
    pub dropped: u64,
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

    fn has_carrier(&self) -> bool {
        (**self).has_carrier()
    }

    fn report(&self) -> Option<NicReport> {
        (**self).report()
    }
}
