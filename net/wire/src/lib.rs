//! Wire formats: headers with fixed layouts for the fast path, and types of the small protocols.
//!
//! Why here: these are the only places where bytes from outside become fields. Each format is
//! parsed once into a type with valid values ([`arp::Arp`], [`ndisc::Message`], [`igmp::Message`])
//! and written as an array of its own length, so that neither side counts bytes. ICMP's errors and
//! echoes quote other packets and are parsed by their handlers, in `sidecore-net-stack`. Next to
//! them are the hashes of ends: [`flow`], and [`secrets`] for fields that must not be predictable.
//! Must stay true: nothing here panics or allocates, whatever the bytes. `tests/suite/wire.rs` of
//! that crate compares each of the small formats with another implementation, in both directions;
//! LACP's are compared with the standard's tables.
//!
//! ```
//! use sidecore_net_wire::{Ip, group_mac};
//! use std::net::Ipv4Addr;
//!
//! // Both families are one type: IPv4 is mapped (RFC 4291, section 2.5.5.2).
//! let group = Ip::v4(Ipv4Addr::new(224, 0, 0, 251).octets());
//! assert!(group.is_v4() && group.is_multicast());
//! assert_eq!(group_mac(&group), [1, 0, 0x5e, 0, 0, 251]);
//! ```

mod address;
pub mod arp;
pub mod checksum;
pub mod ethernet;
pub mod flow;
pub mod fragment;
pub mod igmp;
pub mod ip;
pub mod lacp;
pub mod mld;
pub mod ndisc;
pub mod secrets;
pub mod sequence;
pub mod tcp;
pub mod udp;

pub use address::{BROADCAST, Ip, Mac, group_mac};
