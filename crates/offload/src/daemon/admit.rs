//! Who may attach: decided by the credentials that the kernel vouches for. Pure.

use sidecore_sys::local_socket::Peer;

/// Who may attach besides the daemon's own user and root.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Allow {
    /// Users, by number.
    pub uids: Vec<u32>,
    /// Groups, by number: whoever was in it at the time of the connection, by primary group or not.
    pub gids: Vec<u32>,
}

impl Allow {
    /// Whether nobody but the owner and root may attach.
    #[must_use]
    pub fn is_only_owner(&self) -> bool {
        self.uids.is_empty() && self.gids.is_empty()
    }

    /// # Errors
    /// Why this peer may not, in words for it.
    pub(crate) fn check(&self, peer: &Peer, groups: &[u32], own_uid: u32) -> Result<(), String> {
        let allowed = peer.uid == own_uid
            || peer.uid == 0
            || self.uids.contains(&peer.uid)
            || self.gids.contains(&peer.gid)
            || self.gids.iter().any(|gid| groups.contains(gid));
        allowed.then_some(()).ok_or_else(|| {
            format!(
                "user {} (group {}) may not attach to the daemon of user {own_uid}; \
                 start the daemon with --allow-uid {} or --allow-group {}",
                peer.uid, peer.gid, peer.uid, peer.gid
            )
        })
    }

    /// The most clients that one user other than the daemon's own and root may have at once, of
    /// `clients_max`: nobody can take all the room.
    pub(crate) fn clients_max_of(uid: u32, own_uid: u32, clients_max: usize) -> usize {
        if uid == own_uid || uid == 0 {
            clients_max
        } else {
            (clients_max / 4).max(1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_decide() {
        let peer = |uid, gid| Peer { pid: 1, uid, gid };
        let none = Allow::default();
        assert!(none.check(&peer(1000, 5), &[], 1000).is_ok());
        assert!(none.check(&peer(0, 0), &[], 1000).is_ok());
        let refused = none.check(&peer(1001, 5), &[], 1000).unwrap_err();
        assert!(refused.contains("--allow-uid 1001"), "{refused}");
        assert!(none.check(&peer(1001, 0), &[], 0).is_err());
        let some = Allow {
            uids: vec![1001],
            gids: vec![7],
        };
        assert!(some.check(&peer(1001, 5), &[], 1000).is_ok());
        assert!(some.check(&peer(1002, 7), &[], 1000).is_ok());
        assert!(some.check(&peer(1002, 5), &[], 1000).is_err());
        assert!(some.check(&peer(1002, 5), &[3, 7], 1000).is_ok());
        assert!(some.check(&peer(1002, 5), &[3, 4], 1000).is_err());
        assert_eq!(Allow::clients_max_of(1001, 1000, 64), 16);
        assert_eq!(Allow::clients_max_of(0, 1000, 64), 64);
    }
}
