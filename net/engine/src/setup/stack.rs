//! The stack of a configuration.

use super::{EngineSetup, SetupError, cidr, value};
use crate::engine::ENGINES_MAX;
use crate::{Algorithm, Cidr, Config, Ecn, Placement, Route};
use serde::Deserialize;
use sidecore_sys::SysError;
use std::net::IpAddr;

/// A stack.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StackSetup {
    /// Own addresses, `10.77.0.2/24`.
    pub addresses: Vec<String>,
    /// Routes to other networks.
    #[serde(default)]
    pub routes: Vec<RouteSetup>,
    /// Stateless address autoconfiguration (RFC 4862).
    #[serde(default)]
    pub autoconfigure: bool,
    /// Sessions at the same time.
    pub sessions_max: Option<usize>,
    /// Bytes of all sessions' buffers together.
    pub memory: Option<usize>,
    /// A session's send ring, in bytes.
    pub send_bytes: Option<u32>,
    /// A session's receive ring, in bytes.
    pub receive_bytes: Option<u32>,
    /// Hop limit of sent packets.
    pub hops: Option<u8>,
    /// `cubic`, `reno` or `bbr`.
    pub congestion: Option<String>,
    /// Paces windows over long round trips.
    pub pacing: Option<bool>,
    /// Explicit congestion notification: `off`, `passive`, `active` (RFC 3168) or `accurate` (RFC
    /// 9768).
    pub ecn: Option<String>,
    /// Memory of the sessions: `main-memory` backing the local store, or `local-store` alone.
    pub placement: Option<String>,
}

/// A network behind a gateway.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RouteSetup {
    /// `0.0.0.0/0`.
    pub network: String,
    /// `10.77.0.1`.
    pub gateway: IpAddr,
}

impl StackSetup {
    pub(super) fn config(&self) -> Result<Config, SetupError> {
        let default = Config::default();
        let addresses = self.addresses.iter();
        let addresses: Result<Vec<Cidr>, _> = addresses
            .map(|text| cidr("stack.addresses", text))
            .collect();
        let routes = self.routes.iter().map(|route| {
            Ok(Route {
                network: cidr("stack.routes.network", &route.network)?,
                gateway: route.gateway,
            })
        });
        let routes: Result<Vec<Route>, SetupError> = routes.collect();
        Ok(Config {
            addresses: addresses?,
            routes: routes?,
            autoconfigure: self.autoconfigure,
            seed: seed()?,
            sessions_max: self.sessions_max.unwrap_or(default.sessions_max),
            buffers_bytes: match self.memory {
                None => default.buffers_bytes,
                Some(bytes) if bytes >= MEMORY_MIN => bytes,
                Some(bytes) => {
                    let rule = "at least 16777216 bytes";
                    return Err(value("stack.memory", &bytes.to_string(), rule));
                }
            },
            send_bytes: self.send_bytes.unwrap_or(default.send_bytes),
            receive_bytes: self.receive_bytes.unwrap_or(default.receive_bytes),
            hops: self.hops.unwrap_or(default.hops),
            congestion: match self.congestion.as_deref() {
                None => default.congestion,
                Some("cubic") => Algorithm::Cubic,
                Some("reno") => Algorithm::Reno,
                Some("bbr") => Algorithm::Bbr,
                Some(other) => {
                    let rule = "it may be cubic, reno or bbr";
                    return Err(value("stack.congestion", other, rule));
                }
            },
            pacing: self.pacing.unwrap_or(default.pacing),
            ecn: match self.ecn.as_deref() {
                None => default.ecn,
                Some("off") => Ecn::Off,
                Some("passive") => Ecn::Passive,
                Some("active") => Ecn::Active,
                Some("accurate") => Ecn::Accurate,
                Some(other) => {
                    let rule = "it may be off, passive, active or accurate";
                    return Err(value("stack.ecn", other, rule));
                }
            },
            placement: match self.placement.as_deref() {
                None => default.placement,
                Some("main-memory") => Placement::MainMemory,
                Some("local-store") => Placement::LocalStore,
                Some(other) => {
                    let rule = "it may be main-memory or local-store";
                    return Err(value("stack.placement", other, rule));
                }
            },
            ..default
        })
    }
}

/// The least `stack.memory`, in bytes: some slabs.
const MEMORY_MIN: usize = 16 << 20;

/// A secret of this run, from which sequence numbers and ports are derived.
fn seed() -> Result<u64, SysError> {
    let mut bytes = [0; 8];
    // From the system: a peer that could compute it could forge SYN cookies and guess ports.
    let flags = rustix::rand::GetRandomFlags::empty();
    rustix::rand::getrandom(&mut bytes, flags).map_err(|error| SysError::Call {
        call: "getrandom",
        source: error.into(),
    })?;
    Ok(u64::from_ne_bytes(bytes))
}

impl EngineSetup {
    /// The core of each engine; none if the scheduler chooses.
    pub(super) fn cores(&self) -> Result<Vec<Option<usize>>, SetupError> {
        let count = self.count.unwrap_or(self.cpus.len().max(1));
        let rule = "it may be 1 to 64";
        if !(1..=ENGINES_MAX).contains(&count) {
            return Err(value("engine.count", &count.to_string(), rule));
        }
        match (self.cpu, &self.cpus[..]) {
            // Several engines on one core would only wait for each other.
            (core, []) if core.is_none() || count == 1 => Ok(vec![core; count]),
            (None, cpus) if cpus.len() == count => {
                Ok(cpus.iter().map(|&core| Some(core)).collect())
            }
            (None, cpus) => {
                let rule = "it names one core for each engine of `engine.count`";
                Err(value("engine.cpus", &format!("{cpus:?}"), rule))
            }
            (Some(core), _) => {
                let rule = "it is for one engine; name the cores of several in `engine.cpus`";
                Err(value("engine.cpu", &core.to_string(), rule))
            }
        }
    }
}
