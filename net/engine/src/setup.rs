//! Configuration of `sidecore net up`: a NIC, addresses, routes, and the loop, from TOML.
//!
//! Must stay true: an unknown item is an error that names it, and is never ignored; every error
//! states the next step.
//!
//! ```
//! use sidecore_net::setup::Setup;
//!
//! let text = r#"
//!     [nic]
//!     kind = "tap"
//!     name = "sidecore0"
//!     host = ["10.77.0.1/24"]
//!
//!     [stack]
//!     addresses = ["10.77.0.2/24"]
//! "#;
//! let setup = Setup::parse(text)?;
//! let config = setup.stack_config()?;
//! assert_eq!(config.addresses.len(), 1);
//! let flaw = Setup::parse("[nic]\nkind = 7").expect_err("a kind is a word");
//! assert!(flaw.to_string().starts_with("line 2:"), "{flaw}");
//! # Ok::<(), sidecore_net::setup::SetupError>(())
//! ```

mod choices;
mod nic;
mod stack;

use crate::engine::{Engine, EngineError, EngineOptions, NAP_MAX, siblings};
use crate::memory::Mapped;
use crate::nic::{Capabilities, Nic, NicError};
use crate::sock::control::{Admission, Control, SockError, default_socket, sibling_socket};
use crate::sock::server::Server;
use crate::{Cidr, Config, NetError, Stack};
pub(crate) use nic::{BondSetup, NicSetup};
use serde::Deserialize;
use sidecore_engine::page_advice::PageAdvice;
use sidecore_net_stack::memory::{MemoryError, MemorySource, Use};
use sidecore_sys::input::read_text;
use sidecore_sys::{HugePages, SysError, cpu, local_socket};
pub(crate) use stack::StackSetup;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Error before the loop runs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// Invalid TOML, or an unexpected item.
    #[error("line {line}: {reason}; docs/net.md lists what may be written")]
    Parse {
        /// From 1; 0 for the whole document.
        line: usize,
        /// The defect.
        reason: String,
    },
    /// A file that cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// Its path.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A file that is no configuration.
    #[error("{}", path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// The defect.
        source: Box<SetupError>,
    },
    /// An invalid value.
    #[error("{what} is \"{value}\"; {rule}")]
    Value {
        /// The name of the item.
        what: &'static str,
        /// The value given.
        value: String,
        /// The allowed values.
        rule: &'static str,
    },
    /// A file with a secret key.
    #[error("{what}: {}: {reason}", path.display())]
    Key {
        /// The name of the item.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The defect, and the remedy.
        reason: String,
    },
    /// The NIC.
    #[error(transparent)]
    Nic(#[from] NicError),
    /// The stack.
    #[error(transparent)]
    Stack(#[from] NetError),
    /// The socket for applications.
    #[error(transparent)]
    Sock(#[from] SockError),
    /// The core, or randomness, is not available.
    #[error(transparent)]
    Sys(#[from] SysError),
}

/// A configuration is written by hand.
const SETUP_BYTES_MAX: u64 = 1 << 20;

/// A configuration.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setup {
    /// Path of the socket at which applications attach; `default_socket` unless given.
    pub socket: Option<PathBuf>,
    /// Users, by number, that may attach in addition to this one and root.
    #[serde(default)]
    pub allow_uids: Vec<u32>,
    /// Limits of each application.
    #[serde(default)]
    pub(crate) limits: LimitsSetup,
    /// The NIC; none where there is a bond.
    pub(crate) nic: Option<NicSetup>,
    /// Several NICs as one.
    pub(crate) bond: Option<BondSetup>,
    /// The stack.
    pub(crate) stack: StackSetup,
    /// The loop.
    #[serde(default)]
    pub(crate) engine: EngineSetup,
}

/// Limits for processes; [`Admission`] has the defaults.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LimitsSetup {
    /// The most processes at once.
    pub connections: Option<usize>,
    /// Of these, the most of one user other than root and the engine's own.
    pub user_connections: Option<usize>,
    /// The most bytes of shared memory.
    pub bytes: Option<u64>,
    /// Of these, the most of one user other than root and the engine's own.
    pub user_bytes: Option<u64>,
}

impl LimitsSetup {
    fn admission(&self) -> Admission {
        let default = Admission::default();
        Admission {
            uids: Vec::new(),
            connections_max: self.connections.unwrap_or(default.connections_max),
            user_connections_max: self
                .user_connections
                .unwrap_or(default.user_connections_max),
            bytes_max: self.bytes.unwrap_or(default.bytes_max),
            user_bytes_max: self.user_bytes.unwrap_or(default.user_bytes_max),
            engines: 1,
        }
    }
}

/// Options of the loop.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EngineSetup {
    /// The core; the scheduler's choice by default.
    pub cpu: Option<usize>,
    /// Engines that share the addresses, 1 to 64: as many as `cpus` names, else one.
    pub count: Option<usize>,
    /// A core for each engine.
    #[serde(default)]
    pub cpus: Vec<usize>,
    /// Polling time without work before the loop sleeps, in milliseconds, even if it does not pay
    /// off.
    pub grace_ms: Option<u64>,
    /// The same, if the file has none.
    #[serde(skip)]
    pub(crate) grace: Option<Duration>,
    /// Disables sleeping.
    #[serde(default)]
    pub always_poll: bool,
}

/// A running setup: the loop, and the socket for applications, which closes when this is dropped.
pub struct Up {
    /// The engine, to be run.
    pub engine: Engine<Box<dyn Nic + Send>>,
    /// Path of the socket at which applications attach.
    pub socket: PathBuf,
    /// Name of the NIC.
    pub nic_name: String,
    control: Control,
}

impl Up {
    /// The loop and the control thread separately, for callers that own them in different places.
    #[must_use]
    pub fn split(self) -> (Engine<Box<dyn Nic + Send>>, Control) {
        (self.engine, self.control)
    }
}

impl Setup {
    /// Parses a configuration.
    ///
    /// # Errors
    /// [`SetupError::Parse`].
    pub fn parse(text: &str) -> Result<Self, SetupError> {
        toml::from_str(text).map_err(|error| SetupError::Parse {
            line: error
                .span()
                .map_or(0, |span| 1 + text[..span.start].matches('\n').count()),
            reason: error.message().replace('\n', " "),
        })
    }

    /// The configuration of a file; `-` is standard input.
    ///
    /// # Errors
    /// [`SetupError::Read`], [`SetupError::File`].
    pub fn read(path: &Path) -> Result<Self, SetupError> {
        let text = read_text(path, SETUP_BYTES_MAX).map_err(|source| SetupError::Read {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(&text).map_err(|source| SetupError::File {
            path: path.to_owned(),
            source: Box::new(source),
        })
    }

    /// Sets the bytes of all sessions' buffers together, in place of the configuration's
    /// `stack.memory`. Too few are refused when the stack is brought up.
    pub fn set_memory(&mut self, bytes: usize) {
        self.stack.memory = Some(bytes);
    }

    /// Opens the NIC, creates the stack and opens the socket. Pins this thread if a core is given;
    /// it has to run the loop. For one engine only; [`Self::bring_up_engines`] is for any number.
    ///
    /// # Errors
    /// [`SetupError`] with the remedy; [`SetupError::Value`] if several engines are configured.
    pub(crate) fn bring_up(&self) -> Result<Up, SetupError> {
        self.check_nics()?;
        let cpus = self.cores()?;
        // Its thread is the application's, so there can be only one loop.
        let [core] = cpus[..] else {
            let rule = "a stack inside an application has one engine; use `sidecore net up`";
            return Err(value("engine.count", &cpus.len().to_string(), rule));
        };
        if let Some(core) = core {
            cpu::pin(core)?;
        }
        let config = self.stack.config()?;
        let socket = self.socket.clone().unwrap_or_else(default_socket);
        // Before the NIC: if another engine serves there, its interface stays as it is.
        let (control, server) = self.open_door(&socket, 1)?;
        let (mut nics, nic_name) = self.open_nics(1)?;
        let nic = nics.remove(0);
        Ok(Up {
            engine: self.engine_on(nic, server, config)?,
            socket,
            nic_name,
            control,
        })
    }

    /// Opens the NIC with a queue for each engine, creates their stacks, and opens their sockets:
    /// the first engine's is configured, the others' are `sibling_socket`'s. Pins this thread to
    /// each given core in turn, so that an engine's memory is near it; [`Engines::run`] pins again.
    ///
    /// # Errors
    /// [`SetupError`] with the remedy; then nothing is left open.
    pub fn bring_up_engines(&self) -> Result<Engines, SetupError> {
        self.check_nics()?;
        let cpus = self.cores()?;
        // One seed: a SYN cookie, or port, of one engine is valid in the others.
        let config = self.stack.config()?;
        let socket = self.socket.clone().unwrap_or_else(default_socket);
        let paths = (0..cpus.len()).map(|index| sibling_socket(&socket, index));
        let doors: Result<Vec<_>, _> = paths
            .map(|path| self.open_door(&path, cpus.len()))
            .collect();
        let doors = doors?;
        let (nics, nic_name) = self.open_nics(cpus.len())?;
        let places = siblings(cpus.len())?;
        let parts = cpus.into_iter().zip(nics).zip(places).zip(doors);
        let engines = parts.map(|(((core, nic), place), (control, server))| {
            if let Some(core) = core {
                cpu::pin(core)?;
            }
            let engine = self.engine_on(nic, server, config.clone())?;
            Ok(Placed {
                engine: engine.with_siblings(place),
                core,
                door: Some(control),
            })
        });
        let engines: Result<Vec<Placed>, SetupError> = engines.collect();
        Ok(Engines {
            engines: engines?,
            socket,
            nic_name,
        })
    }

    fn open_door(&self, socket: &Path, engines: usize) -> Result<(Control, Server), SetupError> {
        let admission = Admission {
            uids: self.allow_uids.clone(),
            engines,
            ..self.limits.admission()
        };
        Ok(Control::start(socket, admission)?)
    }

    fn engine_on(
        &self,
        nic: Box<dyn Nic + Send>,
        server: Server,
        config: Config,
    ) -> Result<Engine<Box<dyn Nic + Send>>, SetupError> {
        let huge_pages = huge_pages(config.sessions_max);
        let stack =
            Stack::with_memory(config, &nic.capabilities(), Box::new(Mapped { huge_pages }))?;
        let default = EngineOptions::default();
        let wanted = self.engine.grace_ms.map(Duration::from_millis);
        let grace = wanted.or(self.engine.grace).or(default.grace);
        let options = EngineOptions {
            grace: grace.filter(|_| !self.engine.always_poll),
            // An explicit polling time is always used in full.
            yields: wanted.is_none(),
            ..default
        };
        Ok(Engine::new(nic, stack, Some(server), options))
    }
}

/// The engines of a configuration, and their sockets, which close when this is dropped.
pub struct Engines {
    engines: Vec<Placed>,
    /// Path of the socket at which applications attach to the first engine; `sock::siblings` finds
    /// the sockets of the others.
    pub socket: PathBuf,
    /// Name of the NIC.
    pub nic_name: String,
}

/// An engine and its core.
struct Placed {
    engine: Engine<Box<dyn Nic + Send>>,
    core: Option<usize>,
    /// None once its engine has ended.
    door: Option<Control>,
}

impl Engines {
    /// Ends the engines' sleeps. To be called after the flag of [`Self::run`] was raised, which an
    /// engine would else see after [`NAP_MAX`] only.
    pub fn waker(&self) -> impl Fn() + Send + 'static {
        let doors = self.engines.iter().filter_map(|it| it.door.as_ref());
        let bells: Vec<_> = doors.map(Control::bell).collect();
        move || {
            for bell in &bells {
                local_socket::poke(bell.as_fd());
            }
        }
    }

    /// Runs them until `stop`, the first on this thread, each other one on its own thread, pinned
    /// if a core is given. If one fails, all end. Their sockets are closed then; the NICs when this
    /// is dropped, which may take long: the kernel removes an interface when no packet of it is
    /// left.
    ///
    /// # Errors
    /// [`EngineError`] of the first that failed.
    pub fn run(&mut self, stop: &AtomicBool) -> Result<(), EngineError> {
        let mut engines = self.engines.iter_mut().enumerate();
        let (first, over) = (engines.next(), &AtomicBool::new(false));
        std::thread::scope(|scope| {
            let others = engines.map(|(index, placed)| {
                let begun = std::thread::Builder::new()
                    .name(format!("sidecore-net-{index}"))
                    .spawn_scoped(scope, move || placed.run(stop, over));
                begun.map_err(|source| {
                    over.store(true, Ordering::Release);
                    let call = "starting an engine's thread";
                    EngineError::Sys(SysError::Call { call, source })
                })
            });
            // All threads are started before the first engine runs.
            let others: Vec<_> = others.collect();
            let mut result = first.map_or(Ok(()), |(_, placed)| placed.run(stop, over));
            for other in others {
                let ended = other.and_then(|thread| match thread.join() {
                    Ok(ended) => ended,
                    // A defect of ours: the process ends with its message, as from the main thread.
                    Err(panic) => std::panic::resume_unwind(panic),
                });
                // The first failure is reported; later ones follow from it.
                result = result.and(ended);
            }
            result
        })
    }
}

impl Placed {
    /// Runs until `stop`, or until another engine has set `over`; sets `over` at its end.
    fn run(&mut self, stop: &AtomicBool, over: &AtomicBool) -> Result<(), EngineError> {
        /// Sets the flag even if the thread panics.
        struct Ends<'o>(&'o AtomicBool);
        impl Drop for Ends<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Release);
            }
        }
        // However this engine ends, the others must: flows of its part have no stack any more.
        let _ends = Ends(over);
        if let Some(core) = self.core {
            cpu::pin(core)?;
        }
        while !stop.load(Ordering::Acquire) && !over.load(Ordering::Acquire) {
            self.engine.turn(NAP_MAX)?;
            let door = self.door.as_ref();
            if let Some(failure) = door.and_then(Control::failure) {
                return Err(failure.into());
            }
        }
        // Applications see the end now.
        self.door = None;
        Ok(())
    }
}

/// Parses a configuration and checks everything that needs neither a NIC nor memory.
///
/// # Errors
/// [`SetupError`].
pub fn try_out(text: &str) -> Result<(), SetupError> {
    /// Provides no memory, so that the attempt ends after the checks.
    #[derive(Debug)]
    struct NoMemory;
    impl MemorySource for NoMemory {
        fn provide(&mut self, bytes: usize, _: Use) -> Result<sidecore_sys::Memory, MemoryError> {
            let reason = "there is none here".to_owned();
            Err(MemoryError { bytes, reason })
        }
    }

    let setup = Setup::parse(text)?;
    setup.cores()?;
    let nic = Capabilities::plain([2, 0, 0, 0, 0, 1], setup.check_nics()?);
    // The checks of the configuration come before the first allocation.
    match Stack::with_memory(setup.stack.config()?, &nic, Box::new(NoMemory)) {
        Err(error @ NetError::Config { .. }) => Err(error.into()),
        _ => Ok(()),
    }
}

impl Setup {
    /// The stack's configuration: addresses, routes and bounds.
    ///
    /// # Errors
    /// An item is invalid.
    pub fn stack_config(&self) -> Result<Config, SetupError> {
        self.stack.config()
    }
}

/// The page size that `sidecore tlb --learn` found best for this number of sessions, or the
/// default.
fn huge_pages(sessions_max: usize) -> HugePages {
    PageAdvice::of_this_machine().map_or(HugePages::default(), |learned| {
        // The advice depends on what is touched at random, not on all that is mapped.
        let working_set_bytes = sessions_max * SESSION_BYTES;
        learned.advise(working_set_bytes).region_options().huge
    })
}

/// `10.77.0.1/24`.
fn cidr(what: &'static str, text: &str) -> Result<Cidr, SetupError> {
    let parsed = text.split_once('/').and_then(|(address, bits)| {
        Some(Cidr {
            address: address.parse().ok()?,
            prefix_bits: bits.parse().ok()?,
        })
    });
    parsed.ok_or_else(|| {
        value(
            what,
            text,
            "an address and its prefix are needed, like 10.77.0.2/24 or fd77::2/64",
        )
    })
}

fn value(what: &'static str, value: &str, rule: &'static str) -> SetupError {
    SetupError::Value {
        what,
        value: value.to_owned(),
        rule,
    }
}

/// Memory that an active session touches, in bytes: its control block, its ends, the table's
/// entries and a buffer.
const SESSION_BYTES: usize = 1024;

#[cfg(test)]
mod tests;
