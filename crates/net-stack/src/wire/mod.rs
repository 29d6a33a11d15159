//! Wire formats: headers with fixed layouts for the fast path, and types of the small protocols.
//!
//! Why here: these are the only places where bytes from outside become fields. Each format is read
//! once into a type whose values are right ([`arp::Arp`], [`ndisc::Message`], [`igmp::Message`])
//! and written as an array of its own length, so that neither side counts bytes. ICMP's errors and
//! echoes quote other packets and are read where they are answered (`stack/icmp.rs`). Must stay
//! true: nothing here panics or allocates, whatever the bytes. `tests/wire.rs` compares each of the
//! small formats with another implementation, in both directions.

pub mod address;
pub mod arp;
pub mod ethernet;
pub mod fragment;
pub mod igmp;
pub mod ip;
pub mod mld;
pub mod ndisc;
pub mod sequence;
pub mod tcp;
pub mod udp;

pub use address::{BROADCAST, Ip, Mac, group_mac};
