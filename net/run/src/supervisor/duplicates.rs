//! Duplicated descriptors: several descriptors, in one or more processes, of a socket before it was
//! bound or connected.
//!
//! The kernel lets a supervisor add a descriptor only to the process whose call waits. The
//! duplicates in that process are therefore replaced together with the descriptor of the call;
//! another process gets the new socket at its next intercepted call about the old one. Must stay
//! true: programs that duplicate nothing pay nothing; the number of remembered sockets is bounded.

use std::collections::{HashMap, HashSet};

/// Sockets that have, or may have, several descriptors.
#[derive(Debug, Default)]
pub(super) struct Duplicates {
    /// Sockets that were duplicated before they were bound or connected.
    duplicated: HashSet<u64>,
    /// The replacement of a socket.
    moved: HashMap<u64, u64>,
    /// The inverse: the sockets that a socket replaces.
    origins: HashMap<u64, Vec<u64>>,
}

impl Duplicates {
    /// A descriptor of the socket was duplicated.
    pub(super) fn note(&mut self, inode: u64) {
        // A close is not intercepted, so entries of closed sockets are left.
        if self.duplicated.len() >= DUPLICATED_MAX {
            self.duplicated.clear();
        }
        self.duplicated.insert(inode);
    }

    /// True if descriptors of the socket were duplicated, which is forgotten by that.
    pub(super) fn take_noted(&mut self, inode: u64) -> bool {
        self.duplicated.remove(&inode)
    }

    /// The socket that replaces `inode`, if any does.
    pub(super) fn replacement(&self, inode: u64) -> Option<u64> {
        self.moved.get(&inode).copied()
    }

    /// True if no socket was replaced: then no caller needs a look at its descriptor.
    pub(super) fn is_empty(&self) -> bool {
        self.moved.is_empty()
    }

    /// Records that `to` replaces `from`.
    pub(super) fn follow(&mut self, from: u64, to: u64) {
        let mut origins = self.origins.remove(&from).unwrap_or_default();
        origins.push(from);
        // A socket that comes back (connect(2) with AF_UNSPEC) is no longer replaced itself.
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

/// Duplicated sockets that are remembered; of a dropped one, only the descriptor of the call is
/// replaced.
const DUPLICATED_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_a_socket_was_before_leads_to_it() {
        let mut duplicates = Duplicates::default();
        assert!(duplicates.is_empty());
        duplicates.follow(1, 2);
        duplicates.follow(2, 3);
        assert_eq!(duplicates.replacement(1), Some(3));
        assert_eq!(duplicates.replacement(2), Some(3));
        assert_eq!(duplicates.replacement(3), None);
        // The kernel's own socket comes back.
        duplicates.follow(3, 1);
        assert_eq!(duplicates.replacement(2), Some(1));
        assert_eq!(duplicates.replacement(3), Some(1));
        assert_eq!(duplicates.replacement(1), None);
        duplicates.forget(1);
        assert!(duplicates.is_empty() && duplicates.origins.is_empty());
        duplicates.forget(1);
    }

    #[test]
    fn a_note_is_taken_once() {
        let mut duplicates = Duplicates::default();
        assert!(!duplicates.take_noted(1));
        duplicates.note(1);
        duplicates.note(1);
        assert!(duplicates.take_noted(1));
        assert!(!duplicates.take_noted(1));
    }

    #[test]
    fn the_notes_are_bounded() {
        let mut duplicates = Duplicates::default();
        let last = u64::try_from(DUPLICATED_MAX).unwrap();
        for inode in 0..=last {
            duplicates.note(inode);
        }
        assert_eq!(duplicates.duplicated.len(), 1);
        assert!(duplicates.take_noted(last));
    }
}
