//! A NIC as the stack sees it: frames in, frames out, and what the hardware does for us.
//!
//! [`tap`] leads to the local kernel, [`packet`] and [`xdp`] to a network interface, [`pair`] to
//! another stack, [`spread`] to several; [`middleware`] puts a bad network in between.
//! `tests/suite/nic.rs` is what each must pass.
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

/// Who takes frames in, and may say where the payload of the next one is wanted.
pub trait Intake {
    /// Memory for the payload of the next frame; none where none is expected.
    fn room(&mut self) -> Option<Room<'_>>;

    /// Takes a frame.
    fn take(&mut self, frame: Received<'_>);

    /// Takes a frame of which all that is longer than [`Room::header_bytes`] lies in the room that
    /// was asked for last. `frame.bytes` is as long as the frame; behind the headers, what is in it
    /// means nothing, and is the taker's to overwrite.
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

/// Error of a NIC.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NicError {
    /// The operating system refused.
    #[error("{what}: {error}")]
    Os {
        /// The operation, and the remedy where there is one.
        what: String,
        /// The system's error.
        error: std::io::Error,
    },
    /// A way to the operating system was refused.
    #[error("{what}: {error}")]
    Sys {
        /// The operation, and the remedy where there is one.
        what: String,
        /// The system's error.
        error: SysError,
    },
    /// Options that contradict one another or are out of range.
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
    /// Addresses, sizes and offloads; constant.
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

    /// True if headers and payload can be received into separate memory (header-data split):
    /// [`Nic::receive_split`].
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

    /// Descriptor that becomes readable when a frame waits, for a stack that may sleep; none where
    /// only polling shows it.
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
