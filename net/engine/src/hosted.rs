//! A stack inside the application: its loop runs on the thread that calls [`Client::poll`].
//!
//! Why here: a stack in a process of its own is a third party next to the application and the
//! network; on fewer than three cores, each request then wakes one more thread. Here no thread
//! wakes another: when [`Client::poll`] returns, requests were sent, and received data is
//! available. The price: while the application does something else, nothing is acknowledged,
//! retransmitted or answered, neither for it nor for other processes attached to the same engine.
//!
//! Must stay true: the same rings, checked in the same way, as between two processes; other
//! processes may attach as to any engine.
//!
//! ```no_run
//! use sidecore_net::setup::Setup;
//! use sidecore_net::sock::client::ClientOptions;
//! use std::time::Duration;
//!
//! let setup = Setup::parse(&std::fs::read_to_string("net.toml")?)?;
//! let mut client = sidecore_net::hosted::host(&setup, &ClientOptions::default())?;
//! let listener = client.listen(([0, 0, 0, 0], 7).into(), 64)?;
//! loop {
//!     client.poll(Duration::from_secs(1))?;
//!     while let Some((session, peer)) = client.accept(listener) {
//!         eprintln!("{peer}");
//!         client.close(session)?;
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use crate::engine::Engine;
use crate::nic::Nic;
use crate::setup::{Setup, SetupError};
use crate::sock::client::{Client, ClientOptions, Driver, DriverFailed, EventSource, OwnEngine};
use crate::sock::control::{Control, SockError};
use std::time::Duration;

/// Starts a stack in this process, and attaches to it. It may be created on one thread and used on
/// another.
///
/// # Errors
/// [`SetupError`] with the remedy, as of `Setup::bring_up`.
pub fn host(setup: &Setup, options: &ClientOptions) -> Result<Client, SetupError> {
    let mut setup = setup.clone();
    // A value in the file is the user's choice; ours is shorter than that of an engine with a core.
    if setup.engine.grace_ms.is_none() && !setup.engine.always_poll {
        setup.engine.grace = Some(GRACE);
    }
    let (mut engine, door) = setup.bring_up()?.split();
    let Some(server) = engine.server() else {
        return Err(SockError::Closed.into());
    };
    // Directly: there is no other process that could introduce itself over the socket.
    let own = OwnEngine::of(server, options.chunks)?;
    let driver = Hosted {
        engine,
        _door: door,
    };
    Ok(Client::drive(own, Box::new(driver), options))
}

/// An engine whose application runs its rounds.
struct Hosted {
    engine: Engine<Box<dyn Nic + Send>>,
    /// Admits other processes; closed when this is dropped.
    _door: Control,
}

impl Driver for Hosted {
    fn turn(
        &mut self,
        other: Option<&dyn EventSource>,
        rest: Duration,
    ) -> Result<bool, DriverFailed> {
        let turned = self.engine.turn_beside(other, rest);
        turned.map_err(|error| DriverFailed(error.to_string()))
    }
}

/// Polling time without work: about the time that a peer on another core of the same machine needs
/// for its next request, or a wake-up in a virtual machine.
const GRACE: Duration = Duration::from_micros(50);
