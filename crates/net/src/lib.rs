//! The protocol stack on one engine.
//!
//! Two halves. The core is deterministic and does no I/O: frames and the time go in, frames and the
//! time of the next timer come out, so that it can be fuzzed, simulated and replayed from a seed.
//! The ways in are thin: the network's side ([`nic`]) and the applications' side ([`sock`]).
//!
//! Top-down, the way a packet travels:
//!
//! - [`engine`]: the polling loop on its core, put together by [`setup`] from a configuration.
//! - [`nic`]: where frames come from and go to; a bad network in front of one, for tests.
//! - `stack`: one round's work ([`Stack`]); under it `wire` (headers), `tcp` (one session's
//!   machine), `state` (where sessions lie), `buffer`, `timer`, `checksum`, `secrets`.
//! - [`sock`]: sockets for other processes; [`servers`]: small applications on them.
//! - [`drill`]: scripts in virtual time; [`metrics`]: an engine's status; [`mod@bench`]: the figures.
//!
//! Must stay true: no step walks all sessions; after start-up the data path does not allocate; the
//! polling loop never waits.
//! Source: the fifth document (NetX on one SPE, 2009), RFC 9293 and those it names.

pub mod bench;
pub(crate) mod buffer;
pub(crate) mod checksum;
pub mod drill;
pub mod engine;
mod error;
pub mod metrics;
pub mod nic;
pub(crate) mod secrets;
pub mod servers;
pub mod setup;
pub mod sock;
pub(crate) mod stack;
pub(crate) mod state;
pub(crate) mod tcp;
pub(crate) mod timer;
pub(crate) mod wire;

#[doc(hidden)]
pub mod fuzzing;

pub use error::{NetError, SessionError};
pub use stack::Stack;
pub use stack::config::{Cidr, Config, Route};
pub use stack::counters::Counters;
pub use stack::options::{SessionInfo, SessionOption, SessionState};
pub use stack::sockets::{Event, ListenerId, Readiness, SessionId, UdpId};
pub use state::store::Placement;
pub use tcp::cold::Keepalive;
pub use tcp::congestion::Algorithm;
