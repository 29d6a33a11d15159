//! Status of long-running processes, published on local sockets.
//!
//! - [`Status`]: the answer of one server, computed when it is asked for;
//! - [`Publisher`]: the server's side: a socket in the folder of the user's servers, and one
//!   thread;
//! - [`Servers`]: the reader's side: the folder, and the list of the servers in it;
//! - [`Endpoint`]: the same counters for Prometheus, over HTTP (`http`) as OpenMetrics
//!   ([`metrics`]);
//! - `otlp`: the same counters for an OpenTelemetry collector that the environment names;
//! - `manager`: a server that a service manager starts: ready, alive, stopping;
//! - [`Live`]: all of these for one server;
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
pub use place::Servers;
pub use publisher::Publisher;
pub use reader::{Server, Whose, act, list};
pub use status::{Kind, Status};

use manager::Managed;
use otlp::Push;
use std::sync::Arc;

/// A server that readers, scrapers, a collector and its service manager know, until it is dropped.
#[derive(Debug)]
pub struct Live {
    // Dropped first: the service manager hears of the end before others do.
    _managed: Option<Managed>,
    _endpoint: Option<Endpoint>,
    _push: Option<Push>,
    _published: Publisher,
}

impl Live {
    /// Begins; call it when the server is ready. Metrics are at `metrics` where that is given. A
    /// server in the background is not `managed`: no service manager waits for it.
    ///
    /// # Errors
    /// [`EndpointError`]: the address for metrics cannot be used.
    pub fn begin(
        status: &Arc<Status>,
        metrics: Option<&Address>,
        managed: bool,
    ) -> Result<Self, EndpointError> {
        let endpoint = metrics.map(|address| Endpoint::start(address, status));
        let endpoint = endpoint.transpose()?;
        if let Some(endpoint) = &endpoint {
            tracing::info!("metrics at {}", endpoint.address());
        }
        Ok(Self {
            _endpoint: endpoint,
            _push: Push::by_environment(status),
            _published: Publisher::of(status),
            _managed: managed.then(|| Managed::ready(status)),
        })
    }
}

/// The README's example, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
