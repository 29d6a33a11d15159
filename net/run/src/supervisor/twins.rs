//! Duplicated descriptors: several descriptors, in one or more processes, of a socket before it was
//! bound or connected.
//!
//! The kernel lets a supervisor add a descriptor only to the process whose call waits. The
//! duplicates in that process are therefore replaced together with the descriptor of the call;
//! another process gets the new socket at its next intercepted call about the old one. Must stay
//! true: programs that duplicate nothing pay nothing; the number of remembered sockets is bounded.

use super::{PROCEED, Reply, Supervisor};
use crate::caller::{self, Caller};
use crate::socket::{State, inode_of};
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, OwnedFd};

/// Sockets that have, or may have, several descriptors.
#[derive(Debug, Default)]
pub(super) struct Twins {
    /// Sockets that were duplicated before they were bound or connected.
    twinned: HashSet<u64>,
    /// The replacement of a socket.
    moved: HashMap<u64, u64>,
    /// The inverse: the sockets that a socket replaces.
    origins: HashMap<u64, Vec<u64>>,
}

impl Twins {
    fn note(&mut self, inode: u64) {
        if self.twinned.len() >= TWINNED_MAX {
            self.twinned.clear();
        }
        self.twinned.insert(inode);
    }

    /// Records that `to` replaces `from`.
    fn follow(&mut self, from: u64, to: u64) {
        let mut origins = self.origins.remove(&from).unwrap_or_default();
        origins.push(from);
        self.moved.remove(&to);
        origins.retain(|origin| *origin != to);
        for origin in &origins {
            self.moved.insert(*origin, to);
        }
        self.origins.insert(to, origins);
    }

    /// No program has `inode` any more.
    pub(super) fn forget(&mut self, inode: u64) {
        for origin in self.origins.remove(&inode).into_iter().flatten() {
            self.moved.remove(&origin);
        }
    }
}

impl Supervisor {
    /// Answers dup(2) and similar calls: intercepted only to learn of the duplicate.
    pub(super) fn note_twin(&mut self, caller: &Caller<'_>) -> Reply {
        if let Some(inode) = caller.inode(caller.int(0)) {
            let state = self.sockets.get(&inode).map(|socket| &socket.state);
            if matches!(state, None | Some(State::Bound | State::Failed(_))) {
                self.twins.note(inode);
            }
        }
        PROCEED
    }

    /// Replaces a caller's descriptor, and its duplicates in the same process, by `near`; in epoll
    /// instances, too.
    pub(super) fn replace(
        &mut self,
        caller: &Caller<'_>,
        descriptor: i32,
        near: &OwnedFd,
        flags: caller::Flags,
    ) -> Result<(), Errno> {
        let from = caller.inode(descriptor);
        self.put(caller, descriptor, near, flags)?;
        caller.forget_inode();
        let (Some(from), to) = (from, inode_of(near)?) else {
            return Ok(());
        };
        if self.sockets.contains_key(&to) {
            self.twins.follow(from, to);
        }
        if !self.twins.twinned.remove(&from) {
            return Ok(());
        }
        self.twins.note(to);
        for twin in caller::descriptors_of(caller.call.thread, from) {
            // If it fails, the duplicate was closed, or keeps the old socket, like one in another
            // process.
            self.put(caller, twin, near, caller.flags(twin)).ok();
        }
        Ok(())
    }

    fn put(
        &mut self,
        caller: &Caller<'_>,
        descriptor: i32,
        near: &OwnedFd,
        flags: caller::Flags,
    ) -> Result<(), Errno> {
        let moved = self.migration.begin(caller, descriptor);
        self.listener.replace(
            caller.call.id,
            near.as_fd(),
            descriptor,
            flags.closes_on_exec,
        )?;
        self.unheard.placed = inode_of(near).ok();
        if let Some(moved) = moved {
            self.migration.end(moved, near);
        }
        Ok(())
    }

    /// Gives a caller the socket that replaces the one of its call.
    pub(super) fn catch_up(&mut self, caller: &Caller<'_>) {
        if self.twins.moved.is_empty() {
            return;
        }
        let descriptor = caller.int(0);
        let Some(inode) = caller.inode(descriptor) else {
            return;
        };
        let Some(&to) = self.twins.moved.get(&inode) else {
            return;
        };
        let Some(socket) = self.sockets.get(&to) else {
            return;
        };
        let (thread, theirs) = socket.holder;
        // If the last user is gone, the caller keeps the old socket.
        if let Some(near) = caller::fetch_socket(thread, theirs, to) {
            self.put(caller, descriptor, &near, caller.flags(descriptor))
                .ok();
            caller.forget_inode();
        }
    }
}

/// Duplicated sockets that are remembered; of a dropped one, only the descriptor of the call is
/// replaced.
const TWINNED_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_a_socket_was_before_leads_to_it() {
        let mut twins = Twins::default();
        twins.follow(1, 2);
        twins.follow(2, 3);
        assert_eq!(twins.moved, HashMap::from([(1, 3), (2, 3)]));
        // The kernel's own socket comes back.
        twins.follow(3, 1);
        assert_eq!(twins.moved, HashMap::from([(2, 1), (3, 1)]));
        twins.forget(1);
        assert!(twins.moved.is_empty() && twins.origins.is_empty());
    }
}
