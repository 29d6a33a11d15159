//! Status of long-running processes, published on local sockets.
//!
//! - [`Status`]: the answer of one server, computed when it is asked for;
//! - [`Publisher`]: the server's side: a socket in the folder of the user's servers, and one
//!   thread;
//! - [`Servers`]: the reader's side: the folder, and the list of the servers in it;
//! - [`Endpoint`]: the same counters for Prometheus, over HTTP (`http`) as OpenMetrics
//!   ([`metrics`]);
//! - [`Push`]: the same counters for an OpenTelemetry collector that the environment names;
//! - [`Managed`]: a server that a service manager starts: ready, alive, stopping;
//! - `service`: bounded clients of a listener on one thread;
//! - `place`: the folders, reached by descriptors.
//!
//! Why here: images, the daemon, the stack and searches are products that do not know one another,
//! and one reader shows all of them. Must stay true: the data path knows nothing of it: counters
//! are read when a client asks. Both sides decide by credentials that the kernel vouches for.

mod endpoint;
mod http;
mod manager;
pub mod metrics;
mod otlp;
mod place;
mod publisher;
mod reader;
mod service;
mod status;

pub use endpoint::{Address, Endpoint, EndpointError};
pub use manager::Managed;
pub use otlp::Push;
pub use place::Servers;
pub use publisher::Publisher;
pub use reader::{Server, Whose, act, list};
pub use status::{Kind, Status};

/// The README's example, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
