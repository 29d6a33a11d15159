//! An engine that serves applications, on a thread and a core of its own.
//!
//! Why here: several groups measure applications - engine - applications. Must stay true: the
//! engine has ended, and its socket is gone, when this is dropped. The engine never sleeps: both
//! sides of its peers spin, too.

use super::BenchError;
use sidecore_net::engine::{Engine, EngineError, EngineOptions, EngineStatus};
use sidecore_net::nic::Nic;
use sidecore_net::sock::control::{Admission, Control};
use sidecore_net::{Cidr, Config};
use sidecore_sys::cpu;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// A running engine.
pub(crate) struct Served {
    socket: PathBuf,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<EngineStatus, EngineError>>>,
    /// Accepts applications; closed on drop.
    _door: Control,
}

impl Served {
    /// Starts an engine on `cpu` whose stack has 10.0.0.`number`, with a socket in `folder`.
    pub(crate) fn start(
        nic: impl Nic + Send + 'static,
        number: u8,
        cpu: usize,
        folder: &Path,
    ) -> Result<Self, BenchError> {
        let socket = folder.join(format!("engine-{number}.sock"));
        let (door, server) = Control::start(&socket, Admission::default())?;
        let stack = sidecore_net::memory::mapped_stack(config(number), &nic.capabilities())?;
        let options = EngineOptions {
            grace: None,
            ..EngineOptions::default()
        };
        let mut engine = Engine::new(nic, stack, Some(server), options);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("bench-engine".into());
        let thread = thread.spawn(move || {
            cpu::pin(cpu)?;
            engine.run(&stopped, |_| 0)?;
            Ok(engine.status())
        });
        Ok(Self {
            socket,
            stop,
            thread: Some(thread.map_err(BenchError::io("start a thread"))?),
            _door: door,
        })
    }

    /// Socket at which applications attach.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Ends it; returns the counters.
    pub(crate) fn end(mut self) -> Result<EngineStatus, BenchError> {
        self.stop.store(true, Ordering::Release);
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(ended)) => Ok(ended?),
            _ => Err(BenchError::Wrong("an engine's thread failed".into())),
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // The measurement has already shown that it does not answer.
            thread.join().ok();
        }
    }
}

/// A stack with the address 10.0.0.`number`.
pub(crate) fn config(number: u8) -> Config {
    Config {
        addresses: vec![Cidr {
            address: IpAddr::from([10, 0, 0, number]),
            prefix_bits: 8,
        }],
        seed: u64::from(number),
        no_delay: true,
        ..Config::default()
    }
}
