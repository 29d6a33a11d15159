//! A stack inside the application: its loop runs on the thread that calls [`Client::poll`].
//!
//! Why here: with a process of its own the stack is a third party beside the application and the
//! network, and where there are not three cores, each request wakes one more of them. Here nobody
//! wakes anybody: what the application asked for goes out, and what came in is there, by the time
//! [`Client::poll`] returns. The price: while the application does something else, nothing is
//! acknowledged, sent again or answered, for it or for other processes attached to the same engine.
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
use crate::sock::client::{Beside, Client, ClientOptions, Driver, DriverFailed, OwnEngine};
use crate::sock::control::{Control, SockError};
use std::time::Duration;

/// Brings a stack up in this process, and attaches to it. The thread that makes it may be another
/// one than the one that uses it.
///
/// # Errors
/// [`SetupError`] with the remedy, as of [`Setup::bring_up`].
pub fn host(setup: &Setup, options: &ClientOptions) -> Result<Client, SetupError> {
    let mut setup = setup.clone();
    if setup.engine.grace_ms.is_none() && !setup.engine.always_poll {
        setup.engine.grace = Some(GRACE);
    }
    let (mut engine, door) = setup.bring_up()?.split();
    let Some(server) = engine.server() else {
        return Err(SockError::Closed.into());
    };
    let own = OwnEngine::of(server, options.chunks)?;
    let driver = Hosted {
        engine,
        _door: door,
    };
    Ok(Client::drive(own, Box::new(driver), options))
}

/// An engine whose rounds are run by its application.
struct Hosted {
    engine: Engine<Box<dyn Nic + Send>>,
    /// Lets other processes in; shut when this goes.
    _door: Control,
}

impl Driver for Hosted {
    fn turn(&mut self, other: Option<&dyn Beside>, rest: Duration) -> Result<(), DriverFailed> {
        let turned = self.engine.turn_beside(other, rest);
        turned.map_err(|error| DriverFailed(error.to_string()))
    }
}

/// Polling time without work: about as long as a peer on another core of the same machine takes for
/// its next request, and a wake-up in a virtual machine.
const GRACE: Duration = Duration::from_micros(50);
