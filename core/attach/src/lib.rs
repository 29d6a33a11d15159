//! Attaching of other processes to a server of ours: rendezvous, identity, quotas.
//!
//! Top-down, the server's side first:
//! - [`Acceptor`]: the acceptor: connections, handshakes, disconnects;
//! - [`Admission`]: bounds for any listener: pending connections, their age, their number per peer;
//! - [`Reception`]: the same with the sockets, where each connection has a thread;
//! - `segment`: memory shared with a client, made and freed by dedicated threads;
//! - `quota`: a user's limits in connections and bytes, and their release;
//! - `server_socket`: a socket's path, its folder, and the lock that names the serving process;
//! - `introduction`: the client's side: connect, verify the server, send the request;
//! - `identity`: users that a server admits, and users whose servers a client trusts;
//! - [`protocol`]: the frame of every message.
//!
//! ```
//! use sidecore_attach::protocol::KIND_STATUS;
//! use sidecore_attach::{
//!     Acceptor, AcceptorOptions, Allow, Event, Introduction, Protocol, Quota, Trust,
//! };
//! use std::time::Duration;
//!
//! let protocol = Protocol {
//!     magic: u64::from_le_bytes(*b"EXAMPLE1"),
//!     version: 1,
//!     server: "example",
//! };
//! let options = AcceptorOptions {
//!     allow: Allow::default(), // this user and root
//!     quota: Quota {
//!         places_max: 16,
//!         user_places_max: 4,
//!         bytes_max: 1 << 30,
//!         user_bytes_max: 64 << 20,
//!     },
//!     cpus: Vec::new(),
//!     acceptors: 1,
//!     remedy: |_| "ask its owner".to_owned(),
//! };
//! # let folder = tempfile::tempdir()?;
//! let path = folder.path().join("example.sock");
//! let mut acceptor = Acceptor::<()>::open(protocol, &path, options)?;
//!
//! // The client, in another process as a rule.
//! let question = protocol.question(KIND_STATUS, &[]);
//! let asked = Introduction::begin(protocol, &path, &Trust::default(), &question, 4096)?;
//!
//! acceptor.wait(&[], Duration::from_secs(10))?;
//! while let Some(event) = acceptor.next_event() {
//!     if let Event::Question { from, .. } = event {
//!         acceptor.answer(from, KIND_STATUS, b"all is well");
//!     }
//! }
//! assert_eq!(asked.wait(Duration::from_secs(10))?.body, b"all is well");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Why here: the daemon of engines and the protocol stack both serve other processes over shared
//! memory. Both decide in the same way how a process attaches, before any memory is shared. Must
//! stay true: nothing here waits for a client. Both sides decide by credentials that the kernel
//! vouches for, never by a path or by a message's contents. Everything a user takes is charged to
//! that user until the kernel says that it was given back. README.md describes the protocol.

mod acceptor;
mod admission;
mod error;
mod identity;
mod introduction;
pub mod protocol;
mod quota;
mod reception;
mod segment;
mod server_socket;

pub use acceptor::{Acceptor, AcceptorOptions, Event};
pub use admission::{
    Admission, AdmissionLimits, Arrival, INTRODUCTION_TIME_MAX, PENDING_MAX, network_of,
};
pub use error::{AttachError, ListenError};
pub use identity::{Allow, Trust};
pub use introduction::{Answer, Introduction, find_socket};
pub use protocol::{ConnectionId, Protocol};
pub use quota::{Quota, Usage};
pub use reception::Reception;
pub use segment::Segment;
pub use server_socket::{ServerSocket, default_socket};
