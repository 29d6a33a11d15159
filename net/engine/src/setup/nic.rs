//! The NIC of a configuration, or the bond of several.
//!
//! Must stay true: what a kind of NIC has no use for is an error; a key is read once, from a file
//! that no other user may read, and never shown.

use super::{Setup, SetupError, cidr, value};
use crate::Cidr;
use crate::nic::bond::{Bond, BondMode, BondOptions, LINKS_MAX, LacpOptions};
use crate::nic::packet::{Packet, PacketOptions};
use crate::nic::tap::{Tap, TapOptions};
use crate::nic::vlan::{self, Vlan};
use crate::nic::wireguard::{PeerOptions, Wireguard, WireguardOptions};
use crate::nic::xdp::{Mode, Xdp, XdpOptions};
use crate::nic::{Nic, NicError, ReceivedChecksum};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustix::fs::OFlags;
use serde::Deserialize;
use sidecore_sys::folder::open_named;
use sidecore_sys::interface;
use sidecore_sys::local_socket::effective_uid;
use std::io::Read as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use zeroize::{Zeroize as _, Zeroizing};

/// A NIC.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NicSetup {
    /// `tap`, `packet`, `xdp` or `wireguard`.
    pub kind: String,
    /// The interface's name; a tunnel's is for messages.
    pub name: String,
    /// Our hardware address, `02:00:00:00:00:01`; for `packet` and `xdp` the interface's own by
    /// default.
    pub address: Option<String>,
    /// `tap`, `wireguard`: the largest IP packet, in bytes.
    pub mtu_bytes: Option<usize>,
    /// `tap`, `packet`: true to pass super-segments.
    #[serde(default = "yes")]
    pub offload: bool,
    /// `tap`: addresses of the kernel's end, `10.77.0.1/24`.
    #[serde(default)]
    pub host: Vec<String>,
    /// `packet`: true to hide received frames from the kernel.
    #[serde(default)]
    pub shield: bool,
    /// `xdp`: the queue; the first one of several engines.
    #[serde(default)]
    pub queue: u32,
    /// `xdp`: `generic`, `native` or `zero-copy`.
    pub mode: Option<String>,
    /// `tap`, `xdp`: the VLAN, 1 to 4094; none for frames without a tag.
    pub vlan: Option<u16>,
    /// Priority of the VLAN's frames, 0 to 7.
    pub priority: Option<u8>,
    /// `wireguard`: file with the private key, in base64.
    pub private_key_file: Option<PathBuf>,
    /// `wireguard`: where datagrams are received; all addresses by default.
    pub listen_address: Option<IpAddr>,
    /// `wireguard`: the UDP port; any by default.
    pub listen_port: Option<u16>,
    /// `wireguard`: the other ends.
    #[serde(default)]
    pub peers: Vec<PeerSetup>,
}

/// A peer of a tunnel.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PeerSetup {
    /// Its public key, in base64.
    pub public_key: String,
    /// File with a key that both ends share, in base64.
    pub preshared_key_file: Option<PathBuf>,
    /// Its address and UDP port; none until it sends something.
    pub endpoint: Option<SocketAddr>,
    /// Networks behind it.
    #[serde(default)]
    pub allowed: Vec<String>,
    /// Seconds between datagrams without data; none are sent by default.
    pub persistent_keepalive_s: Option<u16>,
}

impl PeerSetup {
    fn public_key(&self) -> Result<[u8; 32], SetupError> {
        let key = key(self.public_key.as_bytes());
        let rule = "a public key is needed as `wg pubkey` prints it: 32 bytes in base64";
        let key = key.ok_or_else(|| value("nic.peers.public_key", &self.public_key, rule))?;
        Ok(*key)
    }

    fn allowed(&self) -> Result<Vec<Cidr>, SetupError> {
        let networks = self.allowed.iter();
        networks
            .map(|text| cidr("nic.peers.allowed", text))
            .collect()
    }

    fn options(&self) -> Result<PeerOptions, SetupError> {
        let file = self.preshared_key_file.as_deref();
        let preshared = file.map(|path| read_key("nic.peers.preshared_key_file", path));
        Ok(PeerOptions {
            public_key: self.public_key()?,
            preshared_key: preshared.transpose()?,
            endpoint: self.endpoint,
            allowed: self.allowed()?,
            keepalive_s: self.persistent_keepalive_s,
        })
    }
}

impl NicSetup {
    /// Our hardware address, if the file has one.
    pub(super) fn hardware_address(&self) -> Result<Option<[u8; 6]>, SetupError> {
        let address = self.address.as_deref();
        address
            .map(|text| hardware_address("nic.address", text))
            .transpose()
    }

    /// The VLAN and the priority of its frames, if the file has them.
    pub(super) fn tag(&self) -> Result<Option<(u16, u8)>, SetupError> {
        let Some(id) = self.vlan else {
            let Some(priority) = self.priority else {
                return Ok(None);
            };
            let rule = "it is that of a VLAN's frames: add `nic.vlan`";
            return Err(value("nic.priority", &priority.to_string(), rule));
        };
        if self.kind == "packet" {
            // The kernel takes tags off before a packet socket has the frame.
            let rule = "a packet socket has no tags; make the kernel's interface of it \
                (`ip link add link NAME name NAME.7 type vlan id 7`) and name that";
            return Err(value("nic.vlan", &id.to_string(), rule));
        }
        let priority = self.priority.unwrap_or_default();
        vlan::check(id, priority)?;
        Ok(Some((id, priority)))
    }

    /// Checks all that can be checked before it is opened.
    fn check(&self) -> Result<(), SetupError> {
        self.hardware_address()?;
        self.tag()?;
        for text in &self.host {
            cidr("nic.host", text)?;
        }
        let is_tunnel = self.kind == "wireguard";
        if !["tap", "packet", "xdp"].contains(&self.kind.as_str()) && !is_tunnel {
            return Err(value("nic.kind", &self.kind, KINDS));
        }
        let key = self.private_key_file.as_deref();
        match (is_tunnel, key) {
            (true, None) => {
                let rule = "a file with the private key is needed, as `wg genkey` prints it";
                return Err(value("nic.private_key_file", "", rule));
            }
            (false, Some(path)) => {
                let text = path.to_string_lossy();
                return Err(value("nic.private_key_file", &text, ONLY_TUNNELS));
            }
            _ => {}
        }
        if let (false, Some(peer)) = (is_tunnel, self.peers.first()) {
            return Err(value("nic.peers", &peer.public_key, ONLY_TUNNELS));
        }
        if let (false, Some(port)) = (is_tunnel, self.listen_port) {
            return Err(value("nic.listen_port", &port.to_string(), ONLY_TUNNELS));
        }
        if let (false, Some(ip)) = (is_tunnel, self.listen_address) {
            return Err(value("nic.listen_address", &ip.to_string(), ONLY_TUNNELS));
        }
        if let (true, Some(id)) = (is_tunnel, self.vlan) {
            let rule = "a tunnel carries packets, which have no tags";
            return Err(value("nic.vlan", &id.to_string(), rule));
        }
        for peer in &self.peers {
            peer.public_key()?;
            peer.allowed()?;
        }
        Ok(())
    }

    /// Opens the NIC, or its VLAN, with `count` queues.
    fn open(&self, count: usize, addresses: &[String]) -> Result<Queues, SetupError> {
        // First: a wrong one must not leave an interface behind.
        self.check()?;
        let (tag, address) = (self.tag()?, self.hardware_address()?);
        let (nics, name) = self.open_all(count, address, addresses)?;
        let Some((id, priority)) = tag else {
            return Ok((nics, name));
        };
        let tagged: Result<Vec<_>, NicError> = nics
            .into_iter()
            .map(|nic| Vlan::new(nic, id, priority))
            .collect();
        Ok((boxed(tagged?), name))
    }

    /// Opens the NIC with `count` queues.
    ///
    /// A TAP or a tunnel without an address gets one by its name and the stack's `addresses`, so
    /// that those of two stacks differ.
    fn open_all(
        &self,
        count: usize,
        address: Option<[u8; 6]>,
        addresses: &[String],
    ) -> Result<Queues, SetupError> {
        let derived = || derived_address(&self.name, addresses);
        match self.kind.as_str() {
            "tap" => self.open_taps(count, address.unwrap_or_else(derived)),
            "wireguard" => {
                for_one_engine(count)?;
                let tunnel = self.open_tunnel(address.unwrap_or_else(derived))?;
                Ok((boxed(vec![tunnel]), self.name.clone()))
            }
            "packet" => {
                let options = PacketOptions {
                    name: self.name.clone(),
                    address,
                    offload: self.offload,
                    shield: self.shield,
                };
                Ok((
                    boxed(Packet::open_queues(&options, count)?),
                    self.name.clone(),
                ))
            }
            "xdp" => {
                // Options that are missing keep their defaults.
                let mode = match self.mode.as_deref() {
                    None | Some("generic") => Mode::Generic,
                    Some("native") => Mode::Native,
                    Some("zero-copy") => Mode::ZeroCopy,
                    Some(other) => {
                        let rule = "it may be generic, native or zero-copy";
                        return Err(value("nic.mode", other, rule));
                    }
                };
                let options = XdpOptions {
                    name: self.name.clone(),
                    queue: self.queue,
                    mode,
                    address,
                    // The file has no option for it: a wrong one would pass damaged data.
                    checksum: ReceivedChecksum::Unknown,
                };
                Ok((boxed(Xdp::open_queues(&options, count)?), self.name.clone()))
            }
            other => Err(value("nic.kind", other, KINDS)),
        }
    }

    fn open_taps(&self, count: usize, address: [u8; 6]) -> Result<Queues, SetupError> {
        let default = TapOptions::default();
        let host = self.host.iter().map(|text| cidr("nic.host", text));
        let host: Result<Vec<Cidr>, _> = host.collect();
        let options = TapOptions {
            name: self.name.clone(),
            address,
            mtu_bytes: self.mtu_bytes.unwrap_or(default.mtu_bytes),
            offload: self.offload,
            host: host?
                .iter()
                .map(|cidr| (cidr.address, cidr.prefix_bits))
                .collect(),
        };
        let taps = Tap::open_queues(&options, count)?;
        // The kernel has chosen the number of a name like `tap%d`.
        let name = taps
            .first()
            .map_or(String::new(), |tap| tap.name().to_owned());
        Ok((boxed(taps), name))
    }

    fn open_tunnel(&self, address: [u8; 6]) -> Result<Wireguard, SetupError> {
        let file = self.private_key_file.as_deref().unwrap_or(Path::new(""));
        let peers: Result<Vec<_>, _> = self.peers.iter().map(PeerSetup::options).collect();
        let all = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
        let port = self.listen_port.unwrap_or_default();
        let mut options = WireguardOptions {
            name: self.name.clone(),
            private_key: read_key("nic.private_key_file", file)?,
            listen: SocketAddr::new(self.listen_address.unwrap_or(all), port),
            address,
            mtu_bytes: self.mtu_bytes.unwrap_or(TUNNEL_MTU_BYTES),
            peers: peers?,
        };
        let opened = Wireguard::open(&options);
        if opened.is_ok() || self.listen_address.is_some() {
            return Ok(opened?);
        }
        // A machine may be without IPv6.
        options.listen.set_ip(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        Ok(Wireguard::open(&options)?)
    }
}

/// Several NICs as one.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BondSetup {
    /// `active-backup`, `balance` or `lacp`.
    pub mode: String,
    /// Our hardware address; one that no interface has by default.
    pub address: Option<String>,
    /// The NICs.
    pub nics: Vec<NicSetup>,
    /// Neighbours that a link has to reach, in addition to its carrier.
    #[serde(default)]
    pub probes: Vec<IpAddr>,
    /// `lacp`: `fast` (a LACPDU each second) or `slow`.
    pub lacp_rate: Option<String>,
    /// `lacp`: false to be silent until the partner speaks.
    pub lacp_active: Option<bool>,
    /// `lacp`: the system's priority; the lower number wins.
    pub lacp_priority: Option<u16>,
}

impl BondSetup {
    /// The use of the links, for a bond with this address.
    fn mode(&self, address: [u8; 6]) -> Result<BondMode, SetupError> {
        let rule = "it is for `bond.mode = \"lacp\"`";
        if self.mode != "lacp" {
            if let Some(rate) = &self.lacp_rate {
                return Err(value("bond.lacp_rate", rate, rule));
            }
            if let Some(is_active) = self.lacp_active {
                return Err(value("bond.lacp_active", &is_active.to_string(), rule));
            }
            if let Some(priority) = self.lacp_priority {
                return Err(value("bond.lacp_priority", &priority.to_string(), rule));
            }
        }
        let is_fast = match self.lacp_rate.as_deref() {
            None | Some("fast") => true,
            Some("slow") => false,
            Some(other) => return Err(value("bond.lacp_rate", other, "it may be fast or slow")),
        };
        match self.mode.as_str() {
            "active-backup" => Ok(BondMode::Backup),
            "balance" => Ok(BondMode::Balance),
            "lacp" => Ok(BondMode::Lacp(LacpOptions {
                system_priority: self.lacp_priority.unwrap_or(LACP_PRIORITY),
                system: address,
                is_active: self.lacp_active.unwrap_or(true),
                is_fast,
            })),
            other => {
                let rule = "it may be active-backup, balance or lacp";
                Err(value("bond.mode", other, rule))
            }
        }
    }

    /// Our hardware address. Machines without addresses of their own in the file differ by those of
    /// their interfaces.
    fn hardware_address(&self, addresses: &[String]) -> Result<[u8; 6], SetupError> {
        if let Some(text) = &self.address {
            return hardware_address("bond.address", text);
        }
        let own = self.nics.iter();
        let own = own.filter_map(|nic| interface::hardware_address(&nic.name).ok());
        let own = own.map(|address| format!("{address:02x?}"));
        let all: Vec<String> = addresses.iter().cloned().chain(own).collect();
        Ok(derived_address("bond", &all))
    }

    fn check(&self) -> Result<(), SetupError> {
        if let Some(text) = &self.address {
            hardware_address("bond.address", text)?;
        }
        self.mode([0; 6])?;
        if !(2..=LINKS_MAX).contains(&self.nics.len()) {
            let count = self.nics.len().to_string();
            return Err(value("bond.nics", &count, "a bond has 2 to 16 NICs"));
        }
        for (index, nic) in self.nics.iter().enumerate() {
            nic.check()?;
            if nic.kind == "wireguard" {
                return Err(value(
                    "bond.nics.kind",
                    &nic.kind,
                    "it may be tap, packet or xdp",
                ));
            }
            if let Some(id) = nic.vlan {
                let rule = "the links of a bond carry frames without a tag";
                return Err(value("bond.nics.vlan", &id.to_string(), rule));
            }
            if let Some(address) = &nic.address {
                let rule = "the links of a bond have its address; write `bond.address`";
                return Err(value("bond.nics.address", address, rule));
            }
            if self.nics[..index]
                .iter()
                .any(|other| other.name == nic.name)
            {
                return Err(value("bond.nics.name", &nic.name, "each NIC is one link"));
            }
        }
        match self.probes.get(PROBES_MAX).or(self.probes.first()) {
            Some(probe) if self.mode == "lacp" => {
                let rule = "LACP finds out by itself whether a link leads to its partner";
                Err(value("bond.probes", &probe.to_string(), rule))
            }
            Some(probe) if self.probes.len() > PROBES_MAX => {
                let rule = "a bond has 8 probes at most";
                Err(value("bond.probes", &probe.to_string(), rule))
            }
            _ => Ok(()),
        }
    }

    fn open(&self, count: usize, addresses: &[String]) -> Result<Queues, SetupError> {
        self.check()?;
        for_one_engine(count)?;
        let address = self.hardware_address(addresses)?;
        let own = addresses.iter().map(|text| cidr("stack.addresses", text));
        let own: Result<Vec<Cidr>, _> = own.collect();
        let options = BondOptions {
            mode: self.mode(address)?,
            address,
            own: own?.iter().map(|cidr| cidr.address).collect(),
            probes: self.probes.clone(),
            clock: None,
        };
        let (mut links, mut names) = (Vec::new(), Vec::new());
        for nic in &self.nics {
            let (queues, name) = nic.open_all(1, Some(address), addresses)?;
            names.push(name.clone());
            links.extend(queues.into_iter().map(|queue| (queue, name.clone())));
        }
        let bond = Bond::new(links, &options)?;
        Ok((boxed(vec![bond]), names.join("+")))
    }
}

impl Setup {
    /// Checks the NIC, or the bond, without opening anything; the largest IP packet.
    pub(super) fn check_nics(&self) -> Result<usize, SetupError> {
        let nics = match (&self.nic, &self.bond) {
            (Some(nic), None) => {
                nic.check()?;
                std::slice::from_ref(nic)
            }
            (None, Some(bond)) => {
                bond.check()?;
                &bond.nics[..]
            }
            (nic, _) => {
                let reason = match nic {
                    Some(_) => "`nic` and `bond` are both there; one of them is needed",
                    None => "missing field `nic`, or `bond`",
                };
                return Err(SetupError::Parse {
                    line: 1,
                    reason: reason.to_owned(),
                });
            }
        };
        let mtus = nics.iter().filter_map(|nic| nic.mtu_bytes);
        Ok(mtus.min().unwrap_or(1500))
    }

    /// Opens the NIC, or the bond, with `count` queues.
    pub(super) fn open_nics(&self, count: usize) -> Result<Queues, SetupError> {
        self.check_nics()?;
        let addresses = &self.stack.addresses;
        match (&self.nic, &self.bond) {
            (_, Some(bond)) => bond.open(count, addresses),
            (Some(nic), None) => nic.open(count, addresses),
            (None, None) => Ok((Vec::new(), String::new())),
        }
    }
}

/// Refuses several engines for a NIC that has one queue.
fn for_one_engine(count: usize) -> Result<(), SetupError> {
    match count {
        1 => Ok(()),
        _ => {
            let rule = "a tunnel, and a bond, are for one engine";
            Err(value("engine.count", &count.to_string(), rule))
        }
    }
}

/// 32 bytes in base64, with or without spaces around them.
fn key(text: &[u8]) -> Option<Zeroizing<[u8; 32]>> {
    let mut decoded = STANDARD.decode(text.trim_ascii()).ok()?;
    let key = decoded.as_slice().try_into().ok().map(Zeroizing::new);
    decoded.as_mut_slice().zeroize();
    key
}

/// Reads a secret key: a file of this user or root that no other user may read.
fn read_key(what: &'static str, path: &Path) -> Result<Zeroizing<[u8; 32]>, SetupError> {
    let refused = |reason: String| SetupError::Key {
        what,
        path: path.to_owned(),
        reason,
    };
    let failed = |error: std::io::Error| refused(error.to_string());
    // A pipe without a writer would hold the start up.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK;
    let file = open_named(path, flags, 0).map_err(failed)?;
    let found = file.metadata().map_err(failed)?;
    if !found.is_file() || ![0, effective_uid()].contains(&found.uid()) {
        let reason = "it is not a file of this user or root";
        return Err(refused(reason.to_owned()));
    }
    if found.mode() & 0o077 != 0 {
        let mode = found.mode() & 0o777;
        return Err(refused(format!(
            "other users may read or change it (mode {mode:03o}); `chmod 600` it"
        )));
    }
    let mut text = Vec::with_capacity(KEY_FILE_BYTES_MAX);
    let mut first = file.take(KEY_FILE_BYTES_MAX as u64);
    let read = first.read_to_end(&mut text).map_err(failed);
    let key = key(&text);
    text.as_mut_slice().zeroize();
    read?;
    key.ok_or_else(|| refused("it holds no key: 32 bytes in base64, as `wg genkey` prints".into()))
}

/// NICs of one kind, one for each engine, and the interface's name.
pub(super) type Queues = (Vec<Box<dyn Nic + Send>>, String);

fn boxed<N: Nic + Send + 'static>(nics: Vec<N>) -> Vec<Box<dyn Nic + Send>> {
    let boxed = |nic| -> Box<dyn Nic + Send> { Box::new(nic) };
    nics.into_iter().map(boxed).collect()
}

/// A locally administered hardware address: `02:51`, and a hash (FNV-1a) of the interface's name
/// and the stack's addresses.
pub(super) fn derived_address(name: &str, addresses: &[String]) -> [u8; 6] {
    let texts = std::iter::once(name).chain(addresses.iter().map(String::as_str));
    let hash = texts.flat_map(|text| text.bytes().chain([0]));
    let hash = hash.fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    let [one, two, three, four] = hash.to_be_bytes();
    [0x02, 0x51, one, two, three, four]
}

/// `02:00:00:00:00:01`.
pub(super) fn hardware_address(item: &'static str, text: &str) -> Result<[u8; 6], SetupError> {
    let bytes = text.split(':').map(|byte| u8::from_str_radix(byte, 16));
    let bytes: Option<Vec<u8>> = bytes.map(Result::ok).collect();
    bytes
        .and_then(|bytes| bytes.try_into().ok())
        // The lowest bit of the first byte marks a group's address (IEEE 802).
        .filter(|address: &[u8; 6]| address[0] & 1 == 0)
        .ok_or_else(|| {
            value(
                item,
                text,
                "six bytes are needed that are no group's, like 02:00:00:00:00:01",
            )
        })
}

fn yes() -> bool {
    true
}

const KINDS: &str = "it may be tap, packet, xdp or wireguard";
const ONLY_TUNNELS: &str = "it is for `nic.kind = \"wireguard\"`";
/// The rest of 1,500 bytes behind the headers of IPv6, UDP and a tunnel.
const TUNNEL_MTU_BYTES: usize = 1420;
const LACP_PRIORITY: u16 = 0x8000;
const PROBES_MAX: usize = 8;
/// A key in base64 has 44 bytes.
const KEY_FILE_BYTES_MAX: usize = 256;
