//! An image that is served in the foreground, to clients of its own socket, until a signal.
//!
//! Why here: the servers differ in their clients alone: each is bound, listed with its status, said
//! to be ready, and stopped by a signal. Must stay true: signals are watched before a socket is
//! bound, so that an early one leaves none behind.

use crate::ExportError;
use crate::guest_memory::{self, GuestMemoryError};
use crate::live::{self, run_until_signal, subtitle};
use crate::nbd::{self, NbdError};
use crate::vhost_user::{self, VhostUserError};
use sidecore_block::opened::Opened;
use sidecore_status::{Address, Status};
use sidecore_sys::ending::Watch;
use std::convert::Infallible;
use std::fmt::Display;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

/// An opened image that is served.
#[derive(Clone, Copy)]
pub struct Serving<'s> {
    /// The image.
    pub opened: &'s Opened,
    /// Its name, for people.
    pub name: &'s str,
    /// Address of the server's metrics.
    pub metrics: Option<&'s Address>,
    /// Says that clients can connect.
    pub ready: fn() -> io::Result<()>,
}

/// Reasons why an image is not served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// Signals cannot be watched.
    #[error("cannot watch for signals")]
    Signals(#[source] io::Error),
    /// Over NBD.
    #[error(transparent)]
    Nbd(#[from] NbdError),
    /// As a disk of a virtual machine.
    #[error(transparent)]
    VhostUser(#[from] VhostUserError),
    /// As memory of virtual machines.
    #[error(transparent)]
    GuestMemory(#[from] GuestMemoryError),
    /// The server's status or metrics.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// It could not be said that clients can connect.
    #[error("{0}")]
    Ready(#[from] io::Error),
}

impl Serving<'_> {
    /// Serves clients of NBD at addresses, and at sockets that listen already: the program that
    /// passed those needs no word that they are ready. `bound` gets each address that has become
    /// another. Blocks.
    ///
    /// # Errors
    /// [`ServeError`].
    pub fn nbd(
        &self,
        addresses: &[nbd::Address],
        passed: Vec<OwnedFd>,
        options: nbd::Options,
        bound: impl Fn(&nbd::Address),
    ) -> Result<(), ServeError> {
        let signals = Watch::begin().map_err(ServeError::Signals)?;
        let source = Arc::clone(&self.opened.source);
        let options = nbd::Options {
            description: subtitle(self.name, source.writes().is_some()),
            ..options
        };
        let is_passed = !passed.is_empty();
        let server = nbd::Server::bind_and_take(source, addresses, passed, options)?;
        let is_new = |(given, bound): &(&nbd::Address, &nbd::Address)| given != bound;
        let all = server.addresses();
        // Only a TCP address changes: its port 0 has become a real one.
        let changed = addresses.iter().zip(all.iter()).filter(is_new);
        changed.for_each(|(_, address)| bound(address));
        let places: Vec<_> = all.iter().map(ToString::to_string).collect();
        let status = self.status("serve", &places, unchanged);
        let (stopper, metrics) = (server.stopper(), self.metrics);
        // Its standard output may be that of the program which waits for it.
        let ready = || if is_passed { Ok(()) } else { (self.ready)() };
        run_until_signal(
            signals,
            move || stopper.stop(),
            metrics,
            &status,
            ready,
            || Ok(server.run()?),
        )
    }

    /// Serves virtual machines as a disk (vhost-user-blk) with `queues` at a socket, one after the
    /// other. Blocks.
    ///
    /// # Errors
    /// [`ServeError`].
    pub fn disk(&self, socket: &Path, queues: u16, sector_bytes: u32) -> Result<(), ServeError> {
        let signals = Watch::begin().map_err(ServeError::Signals)?;
        let source = Arc::clone(&self.opened.source);
        let serial = subtitle(self.name, false);
        let server = vhost_user::Server::bind(source, socket, queues, &serial, sector_bytes)?;
        let (stopper, notifier) = (server.stopper(), server.notifier());
        let grown = move || {
            notifier.size_changed();
            unchanged()
        };
        let place = format!("vhost-user:{}", socket.display());
        let (status, metrics) = (self.status("serve", &[place], grown), self.metrics);
        run_until_signal(
            signals,
            move || stopper.stop(),
            metrics,
            &status,
            self.ready,
            || Ok(server.run()?),
        )
    }

    /// Serves virtual machines as their memory at a socket. Blocks.
    ///
    /// # Errors
    /// [`ServeError`].
    pub fn memory(&self, socket: &Path, options: guest_memory::Options) -> Result<(), ServeError> {
        let signals = Watch::begin().map_err(ServeError::Signals)?;
        let source = Arc::clone(&self.opened.source);
        let server = guest_memory::Server::bind(source, socket, options)?;
        let place = format!("memory:{}", socket.display());
        let status = self.status("memory", &[place], unchanged);
        let (stopper, metrics) = (server.stopper(), self.metrics);
        run_until_signal(
            signals,
            move || stopper.stop(),
            metrics,
            &status,
            self.ready,
            || Ok(server.run()?),
        )
    }

    fn status<G: Display>(
        &self,
        way: &'static str,
        places: &[String],
        grown: impl Fn() -> Result<(), G> + Send + 'static,
    ) -> Arc<Status> {
        status(self.opened, self.name, way, places, grown)
    }
}

/// Clients learn of another size when they connect again.
fn unchanged() -> Result<(), Infallible> {
    Ok(())
}

/// The status of a server of `opened`, the image called `name`, in some way at some places. `grown`
/// has its clients take another size, as far as they can.
pub fn status<G: Display>(
    opened: &Opened,
    name: &str,
    way: &'static str,
    places: &[String],
    grown: impl Fn() -> Result<(), G> + Send + 'static,
) -> Arc<Status> {
    let meter = Arc::clone(opened.meter());
    let figures = move || serde_json::to_value(meter.figures()).unwrap_or_default();
    let status = live::status(name, way, places, figures);
    let Some(overlay) = opened.overlay().cloned() else {
        return status;
    };
    let grows = Arc::clone(&overlay);
    let take = move |new: Option<&Path>| overlay.snapshot(new);
    live::with_actions(status, take, move |bytes| grows.grow(bytes), grown)
}
