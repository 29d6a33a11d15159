//! The NIC of a configuration.

use super::{SetupError, cidr, value};
use crate::Cidr;
use crate::nic::packet::{Packet, PacketOptions};
use crate::nic::tap::{Tap, TapOptions};
use crate::nic::vlan::{self, Vlan};
use crate::nic::xdp::{Mode, Xdp, XdpOptions};
use crate::nic::{Nic, NicError, ReceivedChecksum};
use serde::Deserialize;

/// A NIC.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NicSetup {
    /// `tap`, `packet` or `xdp`.
    pub kind: String,
    /// The interface's name.
    pub name: String,
    /// Our hardware address, `02:00:00:00:00:01`; for `packet` and `xdp` the interface's own by
    /// default.
    pub address: Option<String>,
    /// `tap`: the largest IP packet, in bytes.
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

    /// Opens the NIC, or its VLAN, with `count` queues.
    pub(super) fn open(&self, count: usize, addresses: &[String]) -> Result<Queues, SetupError> {
        // First: a wrong one must not leave an interface behind.
        let tag = self.tag()?;
        let (nics, name) = self.open_all(count, addresses)?;
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
    /// A TAP without an address gets one by its name and the stack's `addresses`, so that those of
    /// two stacks differ.
    fn open_all(&self, count: usize, addresses: &[String]) -> Result<Queues, SetupError> {
        let address = self.hardware_address()?;
        match self.kind.as_str() {
            "tap" => {
                // Options that are missing keep their defaults, here and below.
                let default = TapOptions::default();
                let host = self.host.iter().map(|text| cidr("nic.host", text));
                let host: Result<Vec<Cidr>, _> = host.collect();
                let options = TapOptions {
                    name: self.name.clone(),
                    address: address.unwrap_or_else(|| derived_address(&self.name, addresses)),
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
            other => Err(value("nic.kind", other, "it may be tap, packet or xdp")),
        }
    }
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
