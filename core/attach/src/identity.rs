//! Identity both ways: which users a server admits, and which users' servers a client talks to.
//!
//! Why here: neither a path nor a message proves its peer's identity; the kernel's record of a
//! connection does (`SO_PEERCRED`, `SO_PEERGROUPS`). Must stay true: root and the own user are
//! always trusted, other users only if named. A number that stands for several users (the overflow
//! id of a user namespace) is not trusted, not even as the own user's. No process id decides
//! anything. Source: unix(7), user_namespaces(7).

use crate::AttachError;
use sidecore_sys::identity::Identities;
use sidecore_sys::local_socket;
use std::path::Path;

/// The users and groups that may attach besides the server's own user and root.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Allow {
    /// Users, by number.
    pub uids: Vec<u32>,
    /// Groups, by number: their members at the time of the connection, by primary group or not.
    pub gids: Vec<u32>,
}

impl Allow {
    /// True if only the owner and root may attach.
    #[must_use]
    pub(crate) fn is_only_owner(&self) -> bool {
        self.uids.is_empty() && self.gids.is_empty()
    }

    /// True if this user, in these groups, may attach to a server of `own_uid`. The numbers name
    /// one user or group each ([`sidecore_sys::identity`]).
    #[must_use]
    pub(crate) fn admits(&self, uid: u32, groups: &[u32], own_uid: u32) -> bool {
        uid == own_uid
            || uid == 0
            || self.uids.contains(&uid)
            || self.gids.iter().any(|gid| groups.contains(gid))
    }
}

/// The users whose servers a client trusts: its own user, root, and users that were named.
///
/// A server sees its clients' data and writes their results. The path of a socket alone is no
/// reason to trust it, because others may be able to write to that folder.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trust {
    /// Users, by number.
    pub uids: Vec<u32>,
}

impl Trust {
    /// Also a server of this user.
    #[must_use]
    pub fn and(mut self, uid: u32) -> Self {
        self.uids.push(uid);
        self
    }

    /// True if a process of `own_uid` talks to a server of `uid`.
    #[must_use]
    pub(crate) fn includes(&self, uid: u32, own_uid: u32) -> bool {
        uid == own_uid || uid == 0 || self.uids.contains(&uid)
    }

    /// Checks the user of the process that listens behind a connected socket.
    ///
    /// # Errors
    /// [`AttachError::Untrusted`] and [`AttachError::System`].
    pub(crate) fn check(
        &self,
        socket: std::os::fd::BorrowedFd<'_>,
        path: &Path,
    ) -> Result<(), AttachError> {
        let peer = local_socket::peer(socket)?;
        let own_uid = local_socket::effective_uid();
        if !Identities::of_this_process().is_user(peer.uid) {
            return Err(AttachError::Unmapped {
                socket: path.to_owned(),
                uid: peer.uid,
            });
        }
        if self.includes(peer.uid, own_uid) {
            return Ok(());
        }
        Err(AttachError::Untrusted {
            socket: path.to_owned(),
            uid: peer.uid,
            own_uid,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_decide_who_may_attach() {
        let none = Allow::default();
        assert!(none.admits(1000, &[5], 1000));
        assert!(none.admits(0, &[0], 1000));
        assert!(!none.admits(1001, &[5], 1000));
        assert!(!none.admits(1001, &[0], 0));
        let some = Allow {
            uids: vec![1001],
            gids: vec![7],
        };
        assert!(some.admits(1001, &[5], 1000));
        assert!(some.admits(1002, &[7], 1000));
        assert!(!some.admits(1002, &[5], 1000));
        assert!(some.admits(1002, &[5, 3, 7], 1000));
        assert!(!some.admits(1002, &[5, 3, 4], 1000));
    }

    #[test]
    fn only_the_own_user_and_root_are_trusted_unless_named() {
        let trust = Trust::default();
        assert!(trust.includes(1000, 1000) && trust.includes(0, 1000));
        assert!(!trust.includes(1001, 1000) && !trust.includes(1000, 0));
        let trust = trust.and(1001);
        assert!(trust.includes(1001, 1000) && !trust.includes(1002, 1000));
    }
}
