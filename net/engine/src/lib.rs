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
mod event_source;
pub mod hosted;
pub mod live;
pub mod memory;
pub mod metrics;
pub mod nic;
pub mod setup;
pub mod sock;
pub mod summary;

pub use sidecore_net_stack::{
    Algorithm, Cidr, Config, Counters, Ecn, EcnMode, Ending, Event, Keepalive, ListenerId,
    NetError, Offers, Placement, Readiness, Route, SessionError, SessionId, SessionInfo,
    SessionOption, SessionState, Sharing, Stack, UdpId, Write,
};
