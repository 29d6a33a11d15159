//! Round trips through our own off-loads.
//!
//! Must stay true: each is the public interface that programs use, nothing below it; the engine has
//! a core of its own; engines have gone to sleep whenever another way is measured.
//! Source: own.

use super::super::children;
use super::super::roles::{Role, Served};
use super::super::{Bench, BenchError, wrong};
use super::Plan;
use crate::measure::child::Speaker;
use sidecore_daemon::client::{Args, Client, ClientOptions, KernelId};
use sidecore_offload::{Pool, PoolConfig};
use std::time::Duration;

/// A pool of this process whose engine is on the partner's core.
pub(super) struct SameProcess(Pool);

impl SameProcess {
    pub(super) fn start(plan: &Plan) -> Result<Self, BenchError> {
        Ok(Self(Pool::start(PoolConfig {
            engines: 1,
            cpus: vec![plan.partner],
            dedicated: true,
            ..PoolConfig::default()
        })?))
    }

    /// Empty off-loads, which carry a number there and back.
    pub(super) fn sample(&self, plan: &Plan) -> Result<Vec<f64>, BenchError> {
        plan.sample(super::SAME, |number| {
            // An error is no number of a trip.
            self.0.off_load(move |_| number).unwrap_or(u64::MAX)
        })
    }
}

/// A daemon in another process whose engine is on the partner's core.
pub(super) struct CrossProcess {
    client: Client,
    empty: KernelId,
    _daemon: Speaker,
}

impl CrossProcess {
    pub(super) fn start(bench: &Bench<'_>, plan: &Plan) -> Result<Self, BenchError> {
        let socket = bench.config.scratch.join("trips.sock");
        let daemon = Role::Daemon(Served {
            socket: socket.clone(),
            cpus: vec![plan.partner],
            grace_ms: Some(GRACE_MS),
            allow_uids: Vec::new(),
        });
        let daemon = children::start(&bench.config.sidecore, &daemon, &bench.cancel)?;
        // What is measured is the engine.
        let client = Client::attach_with(&socket, ClientOptions::patient())?;
        let empty = client.kernel("empty")?;
        Ok(Self {
            client,
            empty,
            _daemon: daemon,
        })
    }

    /// Empty calls. They carry nothing; the check is that an engine answered each of them.
    pub(super) fn sample(&self, plan: &Plan) -> Result<Vec<f64>, BenchError> {
        let before = self.client.counters();
        let sampled = plan.sample(super::CROSS, |number| {
            match self.client.call(self.empty, Args::new()) {
                Ok(_) => number,
                Err(_) => u64::MAX,
            }
        })?;
        let on_host = self.client.counters().on_host - before.on_host;
        if on_host > 0 {
            return Err(wrong("the count of calls that no engine did", on_host, 0));
        }
        // The next way has the core for itself.
        std::thread::sleep(Duration::from_millis(3 * GRACE_MS));
        Ok(sampled)
    }
}

/// Short: the engine must not poll while another way is measured.
const GRACE_MS: u64 = 1;
