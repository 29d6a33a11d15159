//! Round trips through our own off-loads.
//!
//! Must stay true: each is the public interface that programs use, nothing below it; the engine has
//! a core of its own; engines have gone to sleep whenever another way is measured.
//! Source: own.

use super::super::BenchError;
use super::Plan;
use crate::{Pool, PoolConfig};

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
