//! Options of a pool, and background work as it is posted to one.

use crate::claims::ENGINES_MAX;
use sidecore_engine::{Core, CoreOptions};
use sidecore_sched::Policy;
use sidecore_sys::cpu;
use std::time::Duration;

/// Background work: one object, many tokens, so that posting allocates nothing.
pub trait Background: Send + Sync {
    /// Does the piece of work that `token` names, on an engine. A panic is caught and counted.
    fn run(&self, core: &mut Core, token: u64);
}

/// Options of a pool.
pub struct PoolConfig {
    /// Engines, 1 to [`ENGINES_MAX`]. Default: one for each core this process may use. More than
    /// cores take turns on them.
    pub engines: usize,
    /// Each engine's core: local store, pre-touching, DMA mode.
    pub core: CoreOptions,
    /// Time that an engine with nothing to do spins before it sleeps.
    pub grace: Duration,
    /// True if engine threads are pinned, one to a core, in turn.
    pub pin: bool,
    /// The cores that engines are put on in turn; empty for all that this thread may use.
    pub cpus: Vec<usize>,
    /// Engines have cores of their own on which no host runs. [`Pool::run`](crate::Pool::run) and
    /// loops then always go to the engines' threads, and work that the policy leaves to the host
    /// runs with a core outside the engines. Otherwise cores are equal: callers drive idle engines
    /// themselves.
    pub dedicated: bool,
    /// Largest number of waiting pieces of background work; more are dropped.
    pub backlog_max: usize,
    /// Name of the engines' threads, each with its number behind it; the system shows 15 bytes.
    pub name: String,
    /// Bytes of the stack of an engine's thread; 0 for the standard library's 2 MiB. Work that is
    /// driven by its caller has the caller's stack.
    pub stack_bytes: usize,
    /// Policy that decides how wide a loop runs.
    pub policy: Box<dyn Policy>,
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self {
            engines: cpu::affordable().clamp(1, ENGINES_MAX),
            core: CoreOptions::of_this_machine(),
            grace: Duration::from_micros(8),
            pin: true,
            cpus: Vec::new(),
            dedicated: false,
            backlog_max: 256,
            name: "engine".to_owned(),
            stack_bytes: 0,
            policy: Box::new(sidecore_sched::Equi::default()),
        }
    }
}
