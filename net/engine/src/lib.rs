//! The protocol stack on one engine: its polling loop, its NICs, and sockets for other processes.
//!
//! The stack itself, deterministic and without I/O, is `sidecore-net-stack`; its types are
//! re-exported here. This crate has the thin layers around it. Top-down, the way a packet travels:
//!
//! - [`engine`]: the polling loop on its core, created by [`setup`] from a configuration.
//! - [`nic`]: sources and sinks of frames; simulated impairments in front of one, for tests.
//! - [`memory`]: the stack's memory, in huge pages.
//! - [`sock`]: sockets for other processes; [`hosted`]: for one whose own thread runs the loop.
//! - [`capture`]: frames of its NIC for another process, as pcapng.
//! - [`live`]: its status for the list of servers.
//! - [`metrics`], [`summary`]: an engine's status, for programs and for people.
//!
//! Must stay true: the polling loop never blocks; after start-up the data path does not allocate.

pub mod capture;
pub mod engine;
mod event_source {
    //! External event source that is polled together with a stack's rings.
    //!
    //! Must stay true: any event that makes `is_ready` true after `announce_sleep`
    //! also makes the descriptor readable, so that no wake-up is lost.

    use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

    /// An external event source, for [`crate::sock::client::Client::poll_with`].
    pub trait EventSource {
        /// Readable when there is an event: an epoll instance, for example.
        fn descriptor(&self) -> BorrowedFd<'_>;

        /// True if there is an event that the descriptor does not report. Called in each round of
        /// polling: it must not make a system call.
        fn is_ready(&self) -> bool {
            false
        }

        /// Announces a sleep. [`Self::is_ready`] is called once more afterwards; any later event
        /// must make the descriptor readable.
        fn announce_sleep(&self) {}

        /// The sleep has ended, or did not take place.
        fn cancel_sleep(&self) {}
    }

    impl EventSource for BorrowedFd<'_> {
        fn descriptor(&self) -> BorrowedFd<'_> {
            *self
        }
    }

    impl EventSource for OwnedFd {
        fn descriptor(&self) -> BorrowedFd<'_> {
            self.as_fd()
        }
    }
}
pub mod hosted;
pub mod live;
pub mod memory {
    //! The stack's memory from the operating system: huge pages if available, the local store
    //! locked and populated before the first frame.

    use crate::{Config, NetError, Stack};
    use sidecore_net_stack::frame::Capabilities;
    use sidecore_net_stack::memory::{MemoryError, MemorySource, Use};
    use sidecore_sys::{HugePages, Region, RegionOptions};

    /// Memory mapped for the stack.
    #[derive(Debug, Clone, Copy, Default)]
    pub(crate) struct Mapped {
        /// Huge pages to try for. The caller knows the best choice for the machine (`sidecore tlb
        /// --learn`).
        pub huge_pages: HugePages,
    }

    impl MemorySource for Mapped {
        fn provide(
            &mut self,
            bytes: usize,
            purpose: Use,
        ) -> Result<sidecore_sys::Memory, MemoryError> {
            let options = RegionOptions {
                huge: self.huge_pages,
                // A page fault in a round would hold up all sessions; other memory is touched on
                // demand.
                lock: purpose == Use::LocalStore,
                touch: purpose == Use::LocalStore,
            };
            let region = Region::new(bytes, options).map_err(|error| MemoryError {
                bytes,
                reason: error.to_string(),
            })?;
            Ok(region.into())
        }
    }

    /// A stack in mapped memory, on a NIC with these capabilities.
    ///
    /// # Errors
    /// As [`Stack::new`].
    pub fn mapped_stack(config: Config, nic: &Capabilities) -> Result<Stack, NetError> {
        Stack::with_memory(config, nic, Box::new(Mapped::default()))
    }
}
pub mod metrics;
pub mod nic;
pub mod setup;
pub mod sock {
    //! Sockets for other processes, over shared memory.
    //!
    //! Top-down: [`server`] is the engine's side, which serves all attached processes in one round
    //! of its loop; [`control`] admits them and detects their end; [`client`] is the application's
    //! side. They share one segment per process: two rings of descriptors, and chunks of payload
    //! ([`layout`]). [`Sockets`] is the interface to the stack.
    //!
    //! Why here: an application sends and receives without system calls, and has no descriptor per
    //! socket. Must stay true: the engine copies every word out of shared memory once and checks
    //! the copy; if a process violates the protocol or dies, its own sessions are reset, with no
    //! effect on other processes; a slow process does not prolong a round. README.md in the
    //! module's folder has the protocol.

    mod adapter;
    pub mod client;
    pub mod control;
    pub mod layout;
    #[doc(hidden)]
    pub mod mailbox; // with `ring` for the target `sockets` of `lab/fuzz`, which plays applications
    #[doc(hidden)]
    pub mod ring;
    pub mod server;
    mod stack;
    pub(crate) mod taps;

    pub(crate) use adapter::id_of;
    pub use stack::{Id, SocketError, SocketOption, Sockets, Status};
}
pub mod summary;

pub use sidecore_net_stack::{
    Algorithm, Cidr, Config, Counters, DatagramPart, Ecn, EcnMode, Ending, Event, IcmpError,
    Keepalive, ListenerId, NetError, Offers, Placement, Readiness, Refusal, Route, SessionError,
    SessionId, SessionInfo, SessionOption, SessionState, Sharing, Stack, UdpId, Write,
};
