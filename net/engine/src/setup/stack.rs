//! The stack of a configuration.

use super::choices;
use super::nic::hardware_address;
use super::{EngineSetup, Setup, SetupError, cidr, value};
use crate::engine::ENGINES_MAX;
use crate::{Cidr, Config, Route};
use serde::Deserialize;
use sidecore_net_stack::{FixedNeighbor, Ipv4Source, PreferredSource, Rule, RuleProtocol, Verdict};
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
    /// An IPv4 address from a DHCP server.
    #[serde(default)]
    pub dhcp: bool,
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
    /// Code point of sent packets (RFC 2474).
    pub dscp: Option<u8>,
    /// Own addresses as the sources of packets to networks.
    #[serde(default)]
    pub sources: Vec<SourceSetup>,
    /// Neighbours with fixed hardware addresses.
    #[serde(default)]
    pub neighbors: Vec<NeighborSetup>,
    /// The packet filter: the first rule that fits decides.
    #[serde(default)]
    pub filter: Vec<RuleSetup>,
    /// `cubic`, `reno` or `bbr`.
    pub congestion: Option<String>,
    /// `standard` or `linux`: what TCP follows where the two differ.
    pub behaviour: Option<String>,
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

/// A source address for packets to a network.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SourceSetup {
    /// `198.51.100.0/24`.
    pub network: String,
    /// One of the stack's addresses.
    pub source: IpAddr,
}

/// A neighbour that is not asked for.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NeighborSetup {
    /// `10.77.0.1`.
    pub address: IpAddr,
    /// `02:00:00:00:00:01`.
    pub mac: String,
}

/// A rule of the packet filter. Of lists one entry has to fit; an empty list fits all.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RuleSetup {
    /// `allow`, `drop` or `reject`.
    pub action: String,
    /// Sources.
    #[serde(default)]
    pub from: Vec<String>,
    /// Destinations.
    #[serde(default)]
    pub to: Vec<String>,
    /// `tcp`, `udp` or `echo`.
    pub protocol: Option<String>,
    /// Ports of the stack.
    #[serde(default)]
    pub ports: Vec<PortsSetup>,
    /// Ports of the peer.
    #[serde(default)]
    pub peer_ports: Vec<PortsSetup>,
}

/// A port, or several.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(crate) enum PortsSetup {
    /// `22`.
    One(u16),
    /// `"8000-8100"`.
    Range(String),
}

impl PortsSetup {
    fn range(&self) -> Result<(u16, u16), SetupError> {
        match self {
            Self::One(port) => Ok((*port, *port)),
            Self::Range(text) => {
                let ends = text.split_once('-').and_then(|(first, last)| {
                    let ends: (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
                    Some(ends).filter(|(first, last)| first <= last)
                });
                let rule = "a port, or two of them like \"8000-8100\"";
                ends.ok_or_else(|| value("stack.filter.ports", text, rule))
            }
        }
    }
}

impl RuleSetup {
    /// One rule for each combination of what its lists have.
    fn rules(&self) -> Result<Vec<Rule>, SetupError> {
        let verdict = match self.action.as_str() {
            "allow" => Verdict::Allow,
            "drop" => Verdict::Drop,
            "reject" => Verdict::Reject,
            other => {
                let rule = "it may be allow, drop or reject";
                return Err(value("stack.filter.action", other, rule));
            }
        };
        let protocol = match self.protocol.as_deref() {
            None => None,
            Some("tcp") => Some(RuleProtocol::Tcp),
            Some("udp") => Some(RuleProtocol::Udp),
            Some("echo") => Some(RuleProtocol::Echo),
            Some(other) => {
                let rule = "it may be tcp, udp or echo";
                return Err(value("stack.filter.protocol", other, rule));
            }
        };
        let from = choices(&self.from, |text| cidr("stack.filter.from", text))?;
        let to = choices(&self.to, |text| cidr("stack.filter.to", text))?;
        let ports = choices(&self.ports, PortsSetup::range)?;
        let peer_ports = choices(&self.peer_ports, PortsSetup::range)?;
        let count = [from.len(), to.len(), ports.len(), peer_ports.len()];
        let count = count
            .iter()
            .try_fold(1_usize, |all, len| all.checked_mul(*len));
        if count.is_none_or(|count| count > COMBINATIONS_MAX) {
            let rule = "its lists may make 1024 combinations at most";
            return Err(value("stack.filter.action", &self.action, rule));
        }
        let mut rules = Vec::new();
        for &from in &from {
            for &to in &to {
                for &ports in &ports {
                    rules.extend(peer_ports.iter().map(|&peer_ports| Rule {
                        verdict,
                        from,
                        to,
                        protocol,
                        ports,
                        peer_ports,
                    }));
                }
            }
        }
        Ok(rules)
    }
}

/// The choices of a list, by its entries; for an empty list one choice that fits all.
fn choices<T, U>(
    list: &[T],
    of: impl Fn(&T) -> Result<U, SetupError>,
) -> Result<Vec<Option<U>>, SetupError> {
    if list.is_empty() {
        return Ok(vec![None]);
    }
    list.iter().map(|one| of(one).map(Some)).collect()
}

impl StackSetup {
    fn neighbors(&self) -> Result<Vec<FixedNeighbor>, SetupError> {
        let all = self.neighbors.iter().map(|one| {
            Ok(FixedNeighbor {
                address: one.address,
                mac: hardware_address("stack.neighbors.mac", &one.mac)?,
            })
        });
        all.collect()
    }

    fn sources(&self) -> Result<Vec<PreferredSource>, SetupError> {
        let all = self.sources.iter().map(|one| {
            Ok(PreferredSource {
                network: cidr("stack.sources.network", &one.network)?,
                source: one.source,
            })
        });
        all.collect()
    }

    fn filter(&self) -> Result<Vec<Rule>, SetupError> {
        let mut rules = Vec::new();
        for rule in &self.filter {
            rules.extend(rule.rules()?);
        }
        Ok(rules)
    }

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
            sources: self.sources()?,
            neighbors: self.neighbors()?,
            filter: self.filter()?,
            traffic_class: match self.dscp {
                None => default.traffic_class,
                Some(code @ ..64) => code << 2,
                Some(other) => {
                    let rule = "0 to 63 (RFC 2474)";
                    return Err(value("stack.dscp", &other.to_string(), rule));
                }
            },
            autoconfigure: self.autoconfigure,
            ipv4: match self.dhcp {
                true => Ipv4Source::Dhcp,
                false => Ipv4Source::Configuration,
            },
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
            congestion: choices::congestion(self.congestion.as_deref())?,
            behaviour: choices::behaviour(self.behaviour.as_deref())?,
            pacing: self.pacing.unwrap_or(default.pacing),
            ecn: choices::ecn(self.ecn.as_deref())?,
            placement: choices::placement(self.placement.as_deref())?,
            ..default
        })
    }
}

/// Rules that one entry of the file stands for, at most: as many as a stack takes in all.
const COMBINATIONS_MAX: usize = 1024;

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

impl Setup {
    /// The core of each engine, if its stack can be one of several.
    pub(super) fn cores(&self) -> Result<Vec<Option<usize>>, SetupError> {
        let cores = self.engine.cores()?;
        if self.stack.dhcp && cores.len() > 1 {
            let rule = "several engines need configured addresses";
            return Err(value("stack.dhcp", "true", rule));
        }
        Ok(cores)
    }
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // Helper functions of tests.

    use super::Setup;
    use crate::{Config, Stack};
    use sidecore_net_stack::frame::Capabilities;
    use sidecore_net_stack::{Ipv4Source, RuleProtocol, Verdict};
    use std::net::IpAddr;

    const NIC: &str = "[nic]\nkind = \"tap\"\nname = \"t\"\n";
    const STACK: &str = "[stack]\naddresses = [\"10.77.0.2/24\", \"10.78.0.2/24\"]\n";

    fn config(text: &str) -> Result<Config, String> {
        let setup = Setup::parse(&format!("{NIC}{STACK}{text}"));
        let config = setup.and_then(|setup| setup.stack.config());
        let config = config.map_err(|error| error.to_string())?;
        let nic = Capabilities::plain([2, 0, 0, 0, 0, 1], 1500);
        let mut few = config.clone();
        few.sessions_max = 16;
        Stack::new(few, &nic).map_err(|error| error.to_string())?;
        Ok(config)
    }

    #[test]
    fn rules_stand_for_all_combinations_of_their_lists() {
        let text = "
            [[stack.filter]]
            action = \"allow\"
            protocol = \"tcp\"
            from = [\"10.0.0.0/8\", \"fd00::/8\"]
            ports = [22, \"8000-8100\"]
            [[stack.filter]]
            action = \"drop\"
        ";
        let filter = config(text).unwrap().filter;
        assert_eq!(filter.len(), 5);
        let first = filter[0];
        assert_eq!(
            (first.verdict, first.protocol, first.ports, first.to),
            (
                Verdict::Allow,
                Some(RuleProtocol::Tcp),
                Some((22, 22)),
                None
            )
        );
        assert_eq!(filter[1].ports, Some((8000, 8100)));
        assert_eq!(filter[2].from.unwrap().prefix_bits, 8);
        assert!(filter[2].from.unwrap().address.is_ipv6());
        assert_eq!((filter[4].verdict, filter[4].from), (Verdict::Drop, None));
    }

    #[test]
    fn neighbours_sources_and_the_code_point_are_read() {
        let text = "
            dscp = 46
            neighbors = [{ address = \"10.77.0.1\", mac = \"02:00:00:00:00:09\" }]
            sources = [{ network = \"192.0.2.0/24\", source = \"10.78.0.2\" }]
        ";
        let config = config(text).unwrap();
        assert_eq!(config.traffic_class, 0xb8);
        assert_eq!(config.neighbors[0].mac, [2, 0, 0, 0, 0, 9]);
        assert_eq!(config.sources[0].source, IpAddr::from([10, 78, 0, 2]));
    }

    #[test]
    fn dhcp_is_for_one_engine() {
        let setup = |engines: &str| {
            let stack = "[stack]\naddresses = []\ndhcp = true";
            Setup::parse(&format!("{NIC}{stack}\n[engine]\n{engines}")).unwrap()
        };
        let one = setup("count = 1");
        assert_eq!(one.stack.config().unwrap().ipv4, Ipv4Source::Dhcp);
        assert_eq!(one.cores().unwrap(), [None]);
        let said = setup("count = 2").cores().unwrap_err().to_string();
        assert!(said.contains("stack.dhcp"), "{said}");
    }

    #[test]
    fn a_vlan_is_one_of_a_tap_or_of_a_queue() {
        let tag = |kind: &str, text: &str| {
            let nic = NIC.replace("tap", kind);
            let setup = Setup::parse(&format!("{nic}{text}\n{STACK}")).unwrap();
            let nic = setup.nic.unwrap();
            nic.tag().map_err(|error| error.to_string())
        };
        assert_eq!(tag("tap", ""), Ok(None));
        assert_eq!(tag("tap", "vlan = 7"), Ok(Some((7, 0))));
        assert_eq!(tag("xdp", "vlan = 4094\npriority = 5"), Ok(Some((4094, 5))));
        for (kind, text, expected) in [
            ("packet", "vlan = 7", "type vlan id 7"),
            ("tap", "vlan = 4095", "1 to 4094"),
            ("tap", "vlan = 7\npriority = 8", "0 to 7"),
            ("tap", "priority = 5", "nic.vlan"),
        ] {
            let said = tag(kind, text).unwrap_err();
            assert!(said.contains(expected), "{text}: {said}");
        }
    }

    #[test]
    fn wrong_rules_neighbours_and_sources_are_named() {
        for (text, expected) in [
            ("dscp = 64", "0 to 63"),
            ("filter = [{ action = \"deny\" }]", "drop or reject"),
            (
                "filter = [{ action = \"drop\", protocol = \"sctp\" }]",
                "tcp, udp or echo",
            ),
            (
                "filter = [{ action = \"drop\", ports = [\"9-8\"] }]",
                "8000-8100",
            ),
            (
                "filter = [{ action = \"drop\", from = [\"10.0.0.0/33\"] }]",
                "at most 32",
            ),
            (
                "filter = [{ action = \"drop\", port = 22 }]",
                "unknown field",
            ),
            (
                "neighbors = [{ address = \"10.77.0.2\", mac = \"02:00:00:00:00:09\" }]",
                "another host",
            ),
            (
                "neighbors = [{ address = \"10.77.0.1\", mac = \"01:00:00:00:00:09\" }]",
                "six bytes",
            ),
            (
                "sources = [{ network = \"192.0.2.0/24\", source = \"10.77.0.9\" }]",
                "one of `addresses`",
            ),
        ] {
            let said = config(text).unwrap_err();
            assert!(said.contains(expected), "{text}: {said}");
        }
    }

    const TUNNEL: &str = r#"
    [nic]
    kind = "wireguard"
    name = "wg0"
    private_key_file = "KEY"
    [[nic.peers]]
    public_key = "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo="
    endpoint = "192.0.2.1:51820"
    allowed = ["10.9.0.0/24", "fd09::/64"]
    persistent_keepalive_s = 25
"#;

    const BOND: &str = r#"
    [bond]
    mode = "active-backup"
    probes = ["10.77.0.1"]
    [[bond.nics]]
    kind = "packet"
    name = "eth0"
    [[bond.nics]]
    kind = "xdp"
    name = "eth1"
"#;

    #[test]
    fn tunnels_and_bonds_are_checked_without_being_opened() {
        let said = |text: &str| match super::super::try_out(&format!("{text}{STACK}")) {
            Ok(()) => String::new(),
            Err(error) => error.to_string(),
        };
        assert_eq!(said(TUNNEL), "");
        assert_eq!(said(BOND), "");
        assert!(said("").contains("missing field `nic`, or `bond`"));
        assert!(said(&format!("{NIC}{BOND}")).contains("one of them"));
        let lacp = BOND.replace("active-backup", "lacp");
        let lacp = lacp.replace("probes = [\"10.77.0.1\"]", "lacp_rate = \"slow\"");
        assert_eq!(said(&lacp), "");
        for (whole, from, to, expected) in [
            (TUNNEL, "hSDw", "", "nic.peers.public_key"),
            (TUNNEL, "10.9.0.0/24", "10.9.0.0", "nic.peers.allowed"),
            (TUNNEL, "192.0.2.1:51820", "192.0.2.1", "line 8"),
            (
                TUNNEL,
                "private_key_file = \"KEY\"",
                "",
                "nic.private_key_file",
            ),
            (TUNNEL, "wireguard", "tap", "nic.private_key_file"),
            (TUNNEL, "\"KEY\"", "\"KEY\"\nvlan = 7", "nic.vlan"),
            (NIC, "\"t\"", "\"t\"\nlisten_port = 9", "nic.listen_port"),
            (BOND, "active-backup", "active", "bond.mode"),
            (BOND, "active-backup", "lacp", "bond.probes"),
            (
                BOND,
                "probes",
                "lacp_rate = \"fast\"\nprobes",
                "bond.lacp_rate",
            ),
            (BOND, "eth1", "eth0", "bond.nics.name"),
            (BOND, "packet", "pair", "nic.kind"),
            (BOND, "\"eth0\"", "\"eth0\"\nvlan = 7", "nic.vlan"),
            (BOND, "\"eth1\"", "\"eth1\"\nvlan = 7", "bond.nics.vlan"),
            (BOND, "mode", "address = \"1:2\"\nmode", "bond.address"),
        ] {
            let text = whole.replace(from, to);
            assert!(said(&text).contains(expected), "{text}: {}", said(&text));
        }
        let one = BOND.rsplit_once("[[").map(|(one, _)| one).unwrap();
        assert!(said(one).contains("2 to 16"), "{}", said(one));
    }

    #[test]
    fn a_key_is_read_from_a_file_that_only_this_user_can_read() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let open = |text: &str, mode: u32| {
            std::fs::write(&path, text).unwrap();
            let permissions = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(&path, permissions).unwrap();
            let text = format!("{TUNNEL}{STACK}").replace("KEY", path.to_str().unwrap());
            let opened = Setup::parse(&text).unwrap().open_nics(1);
            opened.map_or_else(|error| error.to_string(), |(_, name)| name)
        };
        let key = "aAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAEA=\n";
        assert_eq!(open(key, 0o600), "wg0");
        for (text, mode, expected) in [(key, 0o640, "chmod 600"), (&key[1..], 0o600, "no key")] {
            let said = open(text, mode);
            let is_named = said.contains("nic.private_key_file") && said.contains(expected);
            assert!(is_named && !said.contains(key.trim()), "{said}");
        }
    }
}
