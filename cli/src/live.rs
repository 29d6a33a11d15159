//! A long-running command in the list of servers, at an endpoint for metrics, and with its service
//! manager.
//!
//! Why here: images, the daemon and the stack offer the same three. Must stay true: only an address
//! that the user gave and that cannot be used ends a command.

use anyhow::Result;
use sidecore_status::{Address, Endpoint, Managed, Publisher, Status};
use std::sync::Arc;

/// The option for metrics.
#[derive(clap::Args, Clone)]
pub(crate) struct MetricsArgs {
    /// Offer metrics for Prometheus here (OpenMetrics over HTTP, at /metrics): unix:PATH, tcp:PORT
    /// on the loopback, or tcp:ADDRESS:PORT
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<Address>,
}

/// A server that readers, scrapers and the service manager know, until it is dropped.
pub(crate) struct Live {
    // Dropped first: the service manager hears of the end before others do.
    _managed: Option<Managed>,
    _endpoint: Option<Endpoint>,
    _published: Publisher,
}

impl MetricsArgs {
    /// Begins; call it when the server is ready. In the background no service manager waits.
    pub(crate) fn begin(&self, status: &Arc<Status>, in_foreground: bool) -> Result<Live> {
        let endpoint = self.metrics.as_ref();
        let endpoint = endpoint.map(|address| Endpoint::start(address, status));
        let endpoint = endpoint.transpose()?;
        if let Some(endpoint) = &endpoint {
            tracing::info!("metrics at {}", endpoint.address());
        }
        Ok(Live {
            _endpoint: endpoint,
            _published: Publisher::of(status),
            _managed: in_foreground.then(|| Managed::ready(status)),
        })
    }
}
