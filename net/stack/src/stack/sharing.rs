//! Sockets by local address and port, and those that share one (`SO_REUSEPORT`).
//!
//! As in Linux, sockets share an address and port only if all of them asked for it and have one
//! owner; the hash of a packet's ends chooses among them, so that a flow stays with its socket
//! while their number does not change. Must stay true: a socket alone costs one comparison more
//! than a plain map.

use crate::wire::Ip;
use sidecore_bare::width::{ToU64, ToUsize};
use std::collections::BTreeMap;

/// Permission of a socket to share its address and port with others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sharing {
    /// Shares with none.
    #[default]
    Alone,
    /// Shares with sockets of the same owner that allow it, too. The owner is a number that the
    /// caller chooses, such as a user's.
    WithOwner(u32),
}

/// The sockets at one address and port.
#[derive(Debug)]
struct Group {
    sharing: Sharing,
    /// The order is that of their arrival, as far as none has left.
    members: Vec<u32>,
}

/// Sockets by local address and port.
#[derive(Debug, Default)]
pub(crate) struct Ports(BTreeMap<(Ip, u16), Group>);

/// `0.0.0.0` and `::`.
pub(crate) const ANY_V4: Ip = Ip([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0]);
pub(crate) const ANY_V6: Ip = Ip([0; 16]);

impl Ports {
    /// The socket that gets a packet to this address and port whose ends have this hash.
    #[inline]
    pub(crate) fn find(&self, local: &Ip, port: u16, hash: u32) -> Option<u32> {
        match *self.all(local, port) {
            [] => None,
            [only] => Some(only),
            ref members => {
                // As Linux's `reciprocal_scale`: the upper bits choose.
                let at = (u64::from(hash) * members.len().to_u64()) >> 32;
                members.get(at.to_usize()).copied()
            }
        }
    }

    /// As [`Self::find`], of those that take packets of that peer. None: it is refused.
    #[inline]
    pub(crate) fn find_for(
        &self,
        local: &Ip,
        port: u16,
        hash: u32,
        takes: impl Fn(u32) -> bool,
    ) -> Option<u32> {
        let chosen = self.find(local, port, hash)?;
        if takes(chosen) {
            return Some(chosen);
        }
        let mut all = self.all(local, port).iter().copied();
        all.find(|it| takes(*it))
    }

    /// True if packets to this address and port have a socket.
    pub(crate) fn is_taken(&self, local: &Ip, port: u16) -> bool {
        !self.all(local, port).is_empty()
    }

    /// Those that get packets to this address and port: at exactly this address, else at any.
    #[inline]
    fn all(&self, local: &Ip, port: u16) -> &[u32] {
        let of = |address: &Ip| self.0.get(&(*address, port));
        let any_v4 = || if local.is_v4() { of(&ANY_V4) } else { None };
        let group = of(local).or_else(any_v4).or_else(|| of(&ANY_V6));
        group.map_or(&[], |group| &group.members)
    }

    /// True if a socket with this permission may have exactly this address and port.
    pub(crate) fn takes(&self, address: Ip, port: u16, sharing: Sharing) -> bool {
        match self.0.get(&(address, port)) {
            None => true,
            Some(group) => {
                sharing != Sharing::Alone
                    && group.sharing == sharing
                    && group.members.len() < MEMBERS_MAX
            }
        }
    }

    /// Adds a socket, for which [`Self::takes`] was true.
    pub(crate) fn add(&mut self, address: Ip, port: u16, number: u32, sharing: Sharing) {
        let group = self.0.entry((address, port)).or_insert_with(|| Group {
            sharing,
            members: Vec::with_capacity(1),
        });
        group.members.push(number);
    }

    /// Removes a socket.
    pub(crate) fn remove(&mut self, address: Ip, port: u16, number: u32) {
        let Some(group) = self.0.get_mut(&(address, port)) else {
            return;
        };
        if let Some(at) = group.members.iter().position(|&it| it == number) {
            // As in Linux, the last one takes its place: of the others' flows, the fewest move.
            group.members.swap_remove(at);
        }
        if group.members.is_empty() {
            self.0.remove(&(address, port));
        }
    }
}

/// Sockets that share one address and port.
const MEMBERS_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_chooses_fairly_and_exact_addresses_come_first() {
        let mut ports = Ports::default();
        let (own, other) = (Ip::v4([10, 0, 0, 1]), Ip::v4([10, 0, 0, 2]));
        let shared = Sharing::WithOwner(7);
        for number in 0..3 {
            assert!(ports.takes(ANY_V4, 80, shared));
            ports.add(ANY_V4, 80, number, shared);
        }
        let mut counts = [0_u32; 3];
        for step in 0..3000_u32 {
            let hash = step.wrapping_mul(0x9E37_79B9);
            counts[ports.find(&own, 80, hash).unwrap() as usize] += 1;
        }
        assert!(counts.iter().all(|&count| (800..1200).contains(&count)));
        ports.add(own, 80, 9, Sharing::Alone);
        assert_eq!(ports.find(&own, 80, 5), Some(9));
        ports.remove(ANY_V4, 80, 0);
        assert!((0..100).all(|step| ports.find(&other, 80, step << 25) != Some(0)));
        for number in 1..3 {
            ports.remove(ANY_V4, 80, number);
        }
        assert!(!ports.is_taken(&other, 80) && ports.is_taken(&own, 80));
    }

    #[test]
    fn all_must_allow_it_and_have_one_owner() {
        let mut ports = Ports::default();
        ports.add(ANY_V6, 1, 0, Sharing::WithOwner(7));
        assert!(ports.takes(ANY_V6, 1, Sharing::WithOwner(7)));
        assert!(!ports.takes(ANY_V6, 1, Sharing::WithOwner(8)));
        assert!(!ports.takes(ANY_V6, 1, Sharing::Alone));
        ports.add(ANY_V6, 2, 0, Sharing::Alone);
        assert!(!ports.takes(ANY_V6, 2, Sharing::Alone));
        assert!(!ports.takes(ANY_V6, 2, Sharing::WithOwner(7)));
        assert!(ports.takes(ANY_V4, 2, Sharing::Alone));
    }
}
