//! Replacing the file behind a descriptor of a program, and behind its duplicates.

use super::Table;
use crate::caller::{self, Caller, Descriptor};
use crate::socket::State;
use crate::socket::files::inode_of;
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};

impl Table {
    /// A descriptor was duplicated (dup(2) and its like): the duplicates of a socket that may be
    /// replaced later are remembered.
    pub(in super::super) fn note_duplicate(&mut self, caller: &Caller<'_>) {
        if let Some(inode) = caller.inode(caller.int(0)) {
            let state = self.sockets.get(&inode).map(|socket| &socket.state);
            if matches!(state, None | Some(State::Bound | State::Failed(_))) {
                self.duplicates.note(inode);
            }
        }
    }

    /// Replaces a caller's descriptor, and its duplicates in the same process, by `near`; in epoll
    /// instances, too.
    ///
    /// # Errors
    /// The kernel's; nothing was replaced.
    pub(in super::super) fn replace(
        &mut self,
        caller: &Caller<'_>,
        at: Descriptor,
        near: &OwnedFd,
    ) -> Result<(), Errno> {
        let from = caller.inode(at.number);
        self.put(caller, at, near)?;
        caller.forget_inode();
        let (Some(from), to) = (from, inode_of(near)?) else {
            return Ok(());
        };
        if self.sockets.contains_key(&to) {
            self.duplicates.follow(from, to);
        }
        if !self.duplicates.take_noted(from) {
            return Ok(());
        }
        self.duplicates.note(to);
        for duplicate in caller::descriptors_of(caller.call.thread, from) {
            // If it fails, the duplicate was closed, or keeps the old socket, like one in another
            // process.
            self.put(caller, caller.descriptor(duplicate), near).ok();
        }
        Ok(())
    }

    fn put(&mut self, caller: &Caller<'_>, at: Descriptor, near: &OwnedFd) -> Result<(), Errno> {
        // Before the descriptor is replaced: afterwards the old file has no number to look for.
        let moved = self.migration.begin(caller, at.number);
        caller.replace(at, near.as_fd())?;
        self.calls.kept.placed = inode_of(near).ok();
        if let Some(moved) = moved {
            self.migration.end(moved, near);
        }
        Ok(())
    }

    /// Gives a caller the socket that replaces the one of its call.
    pub(in super::super) fn catch_up(&mut self, caller: &Caller<'_>) {
        if self.duplicates.is_empty() {
            return;
        }
        let descriptor = caller.int(0);
        let Some(inode) = caller.inode(descriptor) else {
            return;
        };
        let Some(to) = self.duplicates.replacement(inode) else {
            return;
        };
        let Some(socket) = self.sockets.get(&to) else {
            return;
        };
        // If the last user is gone, the caller keeps the old socket.
        if let Some(near) = socket.holder.fetch(to) {
            self.put(caller, caller.descriptor(descriptor), &near).ok();
            caller.forget_inode();
        }
    }
}
