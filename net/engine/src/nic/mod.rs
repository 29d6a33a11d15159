//! A NIC as the stack sees it: frames received and sent, and hardware offloads.
//!
//! [`tap`] leads to the local kernel, [`packet`] and [`xdp`] to a network interface, [`pair`] to
//! another stack, [`spread`] to several; [`middleware`] adds impairments. Each must pass
//! `tests/suite/nic.rs`.
//!
//! Segmentation and checksums are part of the trait from the start: if a NIC cuts super-segments
//! and completes checksums, the stack passes it up to 64 KiB at a time and touches no payload byte.
//!
//! Must stay true: nothing here blocks. A frame has been copied or sent before the call that passes
//! it returns. One thread at a time uses a NIC. Source: the kernel's
//! `include/uapi/linux/virtio_net.h` for the requests in a header.

pub(crate) mod checksum;
pub mod middleware;
pub mod packet;
pub mod pair;
pub mod spread;
pub mod tap;
pub(crate) mod vnet;

/// Bytes of the header before each frame on a TAP that segments (`virtio_net_hdr_v1`).
pub use vnet::HEADER_BYTES as VNET_HEADER_BYTES;
pub mod xdp;

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
