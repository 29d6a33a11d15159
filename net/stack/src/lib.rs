//! A protocol stack without I/O: Ethernet, ARP, IPv4, IPv6, ICMP, UDP and TCP.
//!
//! Frames and the time are inputs; frames and the time of the next timer are outputs. It has no
//! clock, no thread, no socket and no system call, so that the same code runs on an engine, under
//! packet scripts, in simulation from a seed and under a fuzzer. The caller provides memory and
//! secrets ([`memory`], [`Config::seed`]).
//!
//! Top-down, the way a packet travels:
//!
//! - [`Stack`]: one round's work on frames ([`frame`]); `stack` has links, neighbours, datagrams
//!   and the calls on sockets.
//! - `tcp`: the state machine of one session; `congestion`: the algorithms of its window; `ranges`:
//!   its tables of sequence numbers.
//! - `shared`: state common to all sessions; `state`: their memory; `buffer`, `timer`.
//! - [`wire`]: headers; [`checksum`]; [`flow`]: the hash by which several stacks share flows.
//!
//! Must stay true: no step walks all sessions; after start-up the data path does not allocate;
//! nothing blocks. Imports point down this list. Source: the fifth document (NetX on one SPE,
//! 2009), RFC 9293 and those it names.

pub(crate) mod buffer;
pub(crate) mod congestion;
mod error;
pub mod frame;
pub mod memory;
/// Ranges of sequence numbers in bounded tables that know no session: transmitted ones
/// (`scoreboard`), and those received out of order.
pub(crate) mod ranges {
    pub(crate) mod order;
    pub(crate) mod out_of_order;
    pub(crate) mod scoreboard;
}
pub(crate) mod shared;
pub(crate) mod stack;
pub(crate) mod state;
pub(crate) mod tcp;
pub(crate) mod timer;

pub use congestion::Algorithm;
pub use error::{IcmpError, NetError, SessionError};
pub use shared::config::filter::{Rule, RuleProtocol, Verdict};
pub use shared::config::{
    Behaviour, Cidr, Config, Ecn, FixedNeighbor, Ipv4Source, Keepalive, Offers, PreferredSource,
    Route,
};
pub use shared::counters::Counters;
pub use stack::{Buffers, Stack};
pub use stack::{ListenerId, SessionId, UdpId};
// For the target `stack` of `lab/fuzz`, which sees that no more is held.
pub use sidecore_net_wire as wire;
pub(crate) use sidecore_net_wire::secrets;
pub use sidecore_net_wire::secrets::Ends;
pub use sidecore_net_wire::{checksum, flow};
pub use stack::info::{
    EcnMode, Holding, Networks, RecoveryPhase, SessionInfo, SessionPage, SessionSummary, holders,
    session_page,
};
pub use stack::options::{SessionOption, set_udp_class, set_udp_peer};
#[doc(hidden)]
pub use stack::reassembly::{
    BYTES_MAX as REASSEMBLY_BYTES_MAX, DATAGRAMS_MAX as REASSEMBLY_DATAGRAMS_MAX,
};
pub use stack::shard::{Handoff, HandoffKind};
pub use stack::sharing::Sharing;
pub use stack::sockets::has_room_or_waits;
pub use stack::sockets::{Ending, Event, Readiness, Write};
pub use stack::udp::DatagramPart;
pub use stack::udp::refusals::{Refusal, has_refusal, next_refusal, want_refusals};
pub use state::LOCAL_SESSIONS;
pub use state::hot::State as SessionState;
pub use state::store::Placement;
pub use tcp::record_marks::{Stamp, StampKind, StampKinds};

/// Bytes of a session's control block, which each of its packets needs.
pub const CONTROL_BLOCK_BYTES: usize = size_of::<state::hot::Hot>();
