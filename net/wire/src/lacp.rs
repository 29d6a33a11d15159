//! Slow protocols of IEEE 802.3: LACPDUs of link aggregation, and its markers.
//!
//! Why here: everything in these frames comes from the device at the other end of a link. Must stay
//! true: [`Pdu::parse`] takes no fewer bytes than its fields have. As the standard demands of a
//! receiver, version, TLV types and reserved fields are not validated: later versions are parsed as
//! version 1. Source: IEEE 802.1AX-2008 sections 5.4.2 (LACPDU), 5.5.2 (marker), and annex 57A of
//! IEEE 802.3 (address and type).
//!
//! ```
//! use sidecore_net_wire::lacp::{Party, Pdu, State};
//!
//! let actor = Party {
//!     system: [2, 0, 0, 0, 0, 1],
//!     key: 1,
//!     port: 7,
//!     state: State::ACTIVITY.with(State::AGGREGATION),
//!     ..Party::default()
//! };
//! let sent = Pdu { actor, partner: Party::default(), collector_delay: 0 };
//! assert_eq!(Pdu::parse(&sent.to_bytes()), Some(sent));
//! ```

use super::address::Mac;
use zerocopy::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The group address of slow protocols. Bridges do not forward frames to it.
pub const DESTINATION: Mac = [0x01, 0x80, 0xc2, 0x00, 0x00, 0x02];
/// EtherType of slow protocols.
pub const SLOW: u16 = 0x8809;
/// Bytes of a LACPDU, and of a marker, after the Ethernet header.
pub const BYTES: usize = size_of::<Layout>();

/// State of a port: eight flags in one byte (section 5.4.2.2 m).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct State(pub u8);

impl State {
    /// LACPDUs are sent without being asked for.
    pub const ACTIVITY: Self = Self(0x01);
    /// The short timeout: LACPDUs are wanted each second.
    pub const TIMEOUT: Self = Self(0x02);
    /// The link may be aggregated; otherwise it is individual.
    pub const AGGREGATION: Self = Self(0x04);
    /// The link is in the right group.
    pub const SYNCHRONIZATION: Self = Self(0x08);
    /// Frames are received.
    pub const COLLECTING: Self = Self(0x10);
    /// Frames are sent.
    pub const DISTRIBUTING: Self = Self(0x20);
    /// The partner's parameters are defaults: no LACPDU has come.
    pub const DEFAULTED: Self = Self(0x40);
    /// The receive machine is in the state EXPIRED.
    pub const EXPIRED: Self = Self(0x80);

    /// True if all flags of `other` are set.
    #[must_use]
    pub fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// This state with the flags of `other` set.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// This state with the flags of `other` cleared.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// This state with the flags of `other` set if `is_set`, else cleared.
    #[must_use]
    pub const fn setting(self, other: Self, is_set: bool) -> Self {
        if is_set {
            self.with(other)
        } else {
            self.without(other)
        }
    }
}

/// One end of a link, as a LACPDU describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Party {
    /// Priority of the system; the lower number wins.
    pub system_priority: u16,
    /// The system's hardware address.
    pub system: Mac,
    /// Operational key: ports of a system with one key may be aggregated.
    pub key: u16,
    /// Priority of the port; the lower number wins.
    pub port_priority: u16,
    /// Number of the port.
    pub port: u16,
    /// State of the port.
    pub state: State,
}

impl Party {
    /// True if both are the same port of the same system with the same key and priorities; states
    /// may differ.
    #[must_use]
    pub fn is_same_port(&self, other: &Self) -> bool {
        let stateless = |party: &Self| Self {
            state: State::default(),
            ..*party
        };
        stateless(self) == stateless(other)
    }

    fn of(info: &Information) -> Self {
        Self {
            system_priority: info.system_priority.get(),
            system: info.system,
            key: info.key.get(),
            port_priority: info.port_priority.get(),
            port: info.port.get(),
            state: State(info.state),
        }
    }

    fn information(&self, kind: u8) -> Information {
        Information {
            kind,
            bytes: INFORMATION_BYTES,
            system_priority: U16::new(self.system_priority),
            system: self.system,
            key: U16::new(self.key),
            port_priority: U16::new(self.port_priority),
            port: U16::new(self.port),
            state: self.state.0,
            reserved: [0; 3],
        }
    }
}

/// A LACPDU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pdu {
    /// The sender.
    pub actor: Party,
    /// The receiver, as far as the sender knows it.
    pub partner: Party,
    /// Longest delay of the sender's collector, in tens of microseconds.
    pub collector_delay: u16,
}

impl Pdu {
    /// Parses what follows the Ethernet header; bytes after its fields are reserved. `None` for
    /// another subtype, a short frame, and lengths of TLVs that version 1 does not have.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (layout, _) = Layout::ref_from_prefix(bytes).ok()?;
        // Lengths may be validated (section 5.4.12): fields behind others would lie elsewhere.
        let lengths = (layout.actor.bytes, layout.partner.bytes);
        let is_right = layout.subtype == SUBTYPE_LACP
            && lengths == (INFORMATION_BYTES, INFORMATION_BYTES)
            && layout.collector_bytes == COLLECTOR_BYTES;
        is_right.then(|| Self {
            actor: Party::of(&layout.actor),
            partner: Party::of(&layout.partner),
            collector_delay: layout.collector_delay.get(),
        })
    }

    /// The bytes after the Ethernet header.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; BYTES] {
        zerocopy::transmute!(Layout {
            subtype: SUBTYPE_LACP,
            version: 1,
            actor: self.actor.information(1),
            partner: self.partner.information(2),
            collector: 3,
            collector_bytes: COLLECTOR_BYTES,
            collector_delay: U16::new(self.collector_delay),
            collector_reserved: [0; 12],
            terminator: [0; 2],
            reserved: [0; 50],
        })
    }
}

/// A marker: the peer asks whether all that it sent before has been received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Marker {
    /// The requester's port.
    port: u16,
    /// The requester's system.
    system: Mac,
    /// Number of the transaction.
    transaction: u32,
}

impl Marker {
    /// Parses a request, after the Ethernet header. `None` for another subtype, a response, a short
    /// frame, and another length.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (layout, _) = MarkerLayout::ref_from_prefix(bytes).ok()?;
        let head = (layout.subtype, layout.kind, layout.bytes);
        (head == (SUBTYPE_MARKER, MARKER, MARKER_BYTES)).then(|| Self {
            port: layout.port.get(),
            system: layout.system,
            transaction: layout.transaction.get(),
        })
    }

    /// The response to this request: the bytes after the Ethernet header.
    #[must_use]
    pub fn response(&self) -> [u8; BYTES] {
        self.bytes(MARKER_RESPONSE)
    }

    fn bytes(&self, kind: u8) -> [u8; BYTES] {
        zerocopy::transmute!(MarkerLayout {
            subtype: SUBTYPE_MARKER,
            version: 1,
            kind,
            bytes: MARKER_BYTES,
            port: U16::new(self.port),
            system: self.system,
            transaction: U32::new(self.transaction),
            pad: [0; 2],
            terminator: [0; 2],
            reserved: [0; 90],
        })
    }
}

const SUBTYPE_LACP: u8 = 1;
const SUBTYPE_MARKER: u8 = 2;
/// Lengths of TLVs, type and length included.
const INFORMATION_BYTES: u8 = 20;
const COLLECTOR_BYTES: u8 = 16;
const MARKER_BYTES: u8 = 16;
/// Types of a marker's TLV.
const MARKER: u8 = 1;
const MARKER_RESPONSE: u8 = 2;
const _: () = assert!(size_of::<Layout>() == 110 && size_of::<MarkerLayout>() == BYTES);

/// An actor's or a partner's TLV.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Information {
    kind: u8,
    bytes: u8,
    system_priority: U16,
    system: Mac,
    key: U16,
    port_priority: U16,
    port: U16,
    state: u8,
    reserved: [u8; 3],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Layout {
    subtype: u8,
    version: u8,
    actor: Information,
    partner: Information,
    collector: u8,
    collector_bytes: u8,
    collector_delay: U16,
    collector_reserved: [u8; 12],
    terminator: [u8; 2],
    reserved: [u8; 50],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct MarkerLayout {
    subtype: u8,
    version: u8,
    kind: u8,
    bytes: u8,
    port: U16,
    system: Mac,
    transaction: U32,
    pad: [u8; 2],
    terminator: [u8; 2],
    reserved: [u8; 90],
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A LACPDU after the standard's table, octet by octet.
    fn by_hand() -> Vec<u8> {
        let mut bytes = vec![0x01, 0x01];
        bytes.extend([0x01, 0x14, 0x80, 0x00, 0x02, 0x11, 0x22, 0x33, 0x44, 0x55]);
        bytes.extend([0x00, 0x21, 0x00, 0xff, 0x00, 0x01, 0x3d, 0, 0, 0]);
        bytes.extend([0x02, 0x14, 0xff, 0xff, 0x02, 0xaa, 0xbb, 0xcc, 0xdd, 0xee]);
        bytes.extend([0x00, 0x11, 0x00, 0x80, 0x12, 0x34, 0x3f, 0, 0, 0]);
        bytes.extend([0x03, 0x10, 0x00, 0x32]);
        bytes.extend([0; 12]);
        bytes.extend([0; 52]);
        bytes
    }

    #[test]
    fn a_lacpdu_of_the_standards_layout_is_read_and_written() {
        let bytes = by_hand();
        let pdu = Pdu::parse(&bytes).unwrap();
        assert_eq!(pdu.actor.system, [0x02, 0x11, 0x22, 0x33, 0x44, 0x55]);
        assert_eq!((pdu.actor.system_priority, pdu.actor.key), (0x8000, 0x21));
        assert_eq!((pdu.actor.port_priority, pdu.actor.port), (0xff, 1));
        assert!(pdu.actor.state.has(State::SYNCHRONIZATION));
        assert!(!pdu.actor.state.has(State::TIMEOUT));
        assert_eq!((pdu.partner.port, pdu.partner.state.0), (0x1234, 0x3f));
        assert_eq!(pdu.collector_delay, 50);
        assert_eq!(pdu.to_bytes()[..], bytes);
    }

    #[test]
    fn other_versions_types_and_reserved_bytes_are_taken_and_other_lengths_are_not() {
        let right = by_hand();
        let taken = |at: usize, value| {
            let mut bytes = right.clone();
            bytes[at] = value;
            Pdu::parse(&bytes).is_some()
        };
        // The version, the types of both TLVs, reserved bytes, the terminator.
        for at in [1, 2, 19, 22, 41, 42, 58, 60, 109] {
            assert!(taken(at, 0x77), "byte {at}");
        }
        for at in [0, 3, 23, 43] {
            assert!(!taken(at, 0x77), "byte {at}");
        }
        for len in 0..BYTES {
            assert_eq!(Pdu::parse(&right[..len]), None, "{len} bytes");
        }
        assert!(Pdu::parse(&[right.clone(), vec![9; 64]].concat()).is_some());
    }

    #[test]
    fn a_marker_is_answered_and_a_response_is_not() {
        let marker = Marker {
            port: 7,
            system: [2, 0, 0, 0, 0, 9],
            transaction: 0x0102_0304,
        };
        let request = marker.bytes(MARKER);
        assert_eq!(request[..4], [2, 1, 1, 16]);
        assert_eq!(request[4..16], [0, 7, 2, 0, 0, 0, 0, 9, 1, 2, 3, 4]);
        assert_eq!(Marker::parse(&request), Some(marker));
        let response = marker.response();
        assert_eq!((response[2], &response[3..]), (2, &request[3..]));
        assert_eq!(Marker::parse(&response), None);
        assert_eq!(Marker::parse(&request[..BYTES - 1]), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..160)) {
            if let Some(pdu) = Pdu::parse(&bytes) {
                prop_assert_eq!(Pdu::parse(&pdu.to_bytes()), Some(pdu));
            }
            if let Some(marker) = Marker::parse(&bytes) {
                prop_assert_eq!(&marker.bytes(MARKER)[4..16], &bytes[4..16]);
            }
        }

        #[test]
        fn what_is_written_is_read(party: [u16; 4], system: Mac, state: u8) {
            let [system_priority, key, port_priority, port] = party;
            let actor = Party {
                system_priority,
                system,
                key,
                port_priority,
                port,
                state: State(state),
            };
            let partner = Party { port: !port, ..actor };
            let pdu = Pdu { actor, partner, collector_delay: key };
            prop_assert_eq!(Pdu::parse(&pdu.to_bytes()), Some(pdu));
        }
    }
}
