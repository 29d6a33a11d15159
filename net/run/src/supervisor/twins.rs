//! Descriptors that were one socket before it was bound or connected: duplicates, and those that
//! other processes have inherited or were given.
//!
//! The kernel lets a supervisor put a descriptor only into the process whose call waits. So the
//! duplicates in that process are replaced with the one that its call names; another process is
//! given its socket when it makes a call about it that comes here. Must stay true: who duplicates
//! nothing pays nothing; a bounded number of sockets is remembered.

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
    /// The socket that came in the place of one.
    moved: HashMap<u64, u64>,
    /// The same, the other way round.
    origins: HashMap<u64, Vec<u64>>,
}

impl Twins {
    fn note(&mut self, inode: u64) {
        if self.twinned.len() >= TWINNED_MAX {
            self.twinned.clear();
        }
        self.twinned.insert(inode);
    }

    /// `to` has come in the place of `from`.
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

    /// Nobody has `inode` any more.
    pub(super) fn forget(&mut self, inode: u64) {
        for origin in self.origins.remove(&inode).into_iter().flatten() {
            self.moved.remove(&origin);
        }
    }
}

impl Supervisor {
    /// Answers dup(2) and its like: only so that it is known that there are two.
    pub(super) fn note_twin(&mut self, caller: &Caller<'_>) -> Reply {
        if let Some(inode) = caller.inode(caller.int(0)) {
            let state = self.sockets.get(&inode).map(|socket| &socket.state);
            if matches!(state, None | Some(State::Bound | State::Failed(_))) {
                self.twins.note(inode);
            }
        }
        PROCEED
    }

    /// Puts `near` in the place of a caller's descriptor, and of the others of its process that are
    /// the same socket; in the epolls that had those, too.
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
            // It was closed meanwhile, or has an old socket, as one in another process.
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

    /// Gives a caller the socket that has come in the place of the one it makes a call about.
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
        // Where who had it last is gone, the caller's stays as it is.
        if let Some(near) = caller::fetch_socket(thread, theirs, to) {
            self.put(caller, descriptor, &near, caller.flags(descriptor))
                .ok();
            caller.forget_inode();
        }
    }
}

/// Duplicated sockets that are remembered; of an earlier one only the descriptor that a call names
/// is replaced.
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
        // The kernel's own comes back.
        twins.follow(3, 1);
        assert_eq!(twins.moved, HashMap::from([(2, 1), (3, 1)]));
        twins.forget(1);
        assert!(twins.moved.is_empty() && twins.origins.is_empty());
    }
}
