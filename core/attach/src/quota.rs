//! Limits of a user's share of a server: places and bytes, charged until they were given back.
//!
//! Why here: permission to attach does not include permission to keep other users out. A segment is
//! charged to its client's user from the moment it is made. A hang-up does not end the charge: a
//! client can keep the memory by a descriptor or a mapping after its connection is closed. The
//! charge ends when the kernel says that no other process has the memory any more, which also frees
//! its pages ([`LentMemory::reclaim`]). Must stay true: users other than the server's own and root
//! leave, all together, a quarter of all places and bytes to these two. [`Accounts`] are pure, and
//! take part in the acceptor's simulation; the books are under the makers' lock; any thread may
//! drop a [`Charge`].

use parking_lot::Mutex;
use sidecore_sys::LentMemory;
use std::sync::Arc;

/// The limits of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// The most segments at once: one a connection that is attached, and those that clients keep
    /// after hanging up. A quarter is kept for root and the server's own user.
    pub places_max: usize,
    /// Of these, the most of one user other than root and the server's own.
    pub user_places_max: usize,
    /// The most bytes of all segments. A quarter is kept for root and the server's own user.
    pub bytes_max: u64,
    /// Of these, the most of one user other than root and the server's own.
    pub user_bytes_max: u64,
}

impl Quota {
    /// The same for a process that has room for `descriptors` more descriptors: half of the room
    /// goes to clients that are attached.
    #[must_use]
    pub(crate) fn within(mut self, descriptors: usize) -> Self {
        // The other half is for connections that wait, and for the server itself.
        let places_max = (descriptors / 2 / CLIENT_DESCRIPTORS).max(PLACES_MIN);
        if places_max < self.places_max {
            self.places_max = places_max;
            // Else one user could take all of the fewer places.
            self.user_places_max = self.user_places_max.min((places_max / 4).max(1));
        }
        self
    }
}

/// The most descriptors that a server has for a client: its connection, its process, its segment,
/// its wake-up descriptor, and one for the moment in which the segment is lent or looked at.
const CLIENT_DESCRIPTORS: usize = 5;
/// The fewest places, however few descriptors there are.
const PLACES_MIN: usize = 2;

/// A user's share of a server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Segments.
    pub places: usize,
    /// Their bytes.
    pub bytes: u64,
}

impl Usage {
    fn and(self, bytes: u64) -> Self {
        Self {
            places: self.places + 1,
            bytes: self.bytes.saturating_add(bytes),
        }
    }
}

/// A segment that is charged to a user. To be dropped after the segment's mapping.
#[derive(Debug)]
pub(crate) struct Charge {
    item: Option<Item>,
    returned: Arc<Mutex<Vec<Item>>>,
}

impl Charge {
    /// The charge of memory that was made after room for it was reserved.
    pub(crate) fn of(mut self, memory: LentMemory) -> Self {
        if let Some(item) = &mut self.item {
            item.memory = Some(memory);
        }
        self
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if let Some(item) = self.item.take() {
            self.returned.lock().push(item);
        }
    }
}

/// A segment in the books.
#[derive(Debug)]
pub(crate) struct Item {
    uid: u32,
    bytes: u64,
    /// None while it is only reserved.
    memory: Option<LentMemory>,
}

impl Item {
    /// True if no process has the memory any more; its pages are free then. Some system calls, and
    /// time for large memory.
    pub(crate) fn reclaim(&self) -> bool {
        self.memory.as_ref().is_none_or(LentMemory::reclaim)
    }
}

/// The users' shares, and their limits. Pure.
#[derive(Debug)]
pub(crate) struct Accounts {
    quota: Quota,
    own_uid: u32,
    /// Each user's share, by the user's number; users without one have no entry.
    users: Vec<(u32, Usage)>,
}

impl Accounts {
    pub(crate) fn new(quota: Quota, own_uid: u32) -> Self {
        Self {
            quota,
            own_uid,
            users: Vec::new(),
        }
    }

    /// A user's share now.
    pub(crate) fn usage(&self, uid: u32) -> Usage {
        let found = self.users.iter().find(|(user, _)| *user == uid);
        found.map_or_else(Usage::default, |(_, usage)| *usage)
    }

    /// True if the user is one for whom room is kept.
    pub(crate) fn is_preferred(&self, uid: u32) -> bool {
        uid == 0 || uid == self.own_uid
    }

    /// Books a segment of `bytes` bytes for a user.
    ///
    /// # Errors
    /// The limit that is reached, in words for the client.
    pub(crate) fn charge(&mut self, uid: u32, bytes: u64) -> Result<(), String> {
        self.fits(uid, bytes)?;
        match self.users.iter_mut().find(|(user, _)| *user == uid) {
            Some((_, usage)) => *usage = usage.and(bytes),
            None => self.users.push((uid, Usage::default().and(bytes))),
        }
        Ok(())
    }

    /// Ends the charge of a segment.
    pub(crate) fn give_back(&mut self, uid: u32, bytes: u64) {
        if let Some((_, usage)) = self.users.iter_mut().find(|(user, _)| *user == uid) {
            usage.places = usage.places.saturating_sub(1);
            usage.bytes = usage.bytes.saturating_sub(bytes);
        }
        // Users without segments are forgotten: their number has no other bound.
        self.users.retain(|(_, usage)| usage.places > 0);
    }

    fn fits(&self, uid: u32, bytes: u64) -> Result<(), String> {
        let Quota {
            places_max,
            user_places_max,
            bytes_max,
            user_bytes_max,
        } = self.quota;
        // Summed at each attach, of a few users: a running total could drift from the entries.
        let sum = |of: &dyn Fn(u32) -> bool| {
            let users = self.users.iter().filter(|(user, _)| of(*user));
            users.fold(Usage::default(), |sum, (_, usage)| Usage {
                places: sum.places + usage.places,
                bytes: sum.bytes.saturating_add(usage.bytes),
            })
        };
        let within = |who: &str, usage: Usage, places_max: usize, bytes_max: u64| {
            let after = usage.and(bytes);
            if after.places > places_max {
                Err(format!(
                    "{who} has {} segments, the most allowed is {places_max}; detach one, or try \
                     later",
                    usage.places
                ))
            } else if after.bytes > bytes_max {
                Err(format!(
                    "{who} has {} bytes of shared memory and {bytes} more were asked for, the most \
                     allowed is {bytes_max}; ask for less, or detach first (memory counts until \
                     every descriptor and mapping of it is closed)",
                    usage.bytes
                ))
            } else {
                Ok(())
            }
        };
        // The user first, so that its own excess is reported as such.
        if !self.is_preferred(uid) {
            let user = format!("user {uid}");
            within(&user, self.usage(uid), user_places_max, user_bytes_max)?;
            let others = sum(&|user| !self.is_preferred(user));
            // A quarter stays for root and the own user.
            let bytes_of_others_max = bytes_max - bytes_max / 4;
            within(
                "all other users",
                others,
                places_max - places_max / 4,
                bytes_of_others_max,
            )?;
        }
        within("everybody", sum(&|_| true), places_max, bytes_max)
    }
}

/// The books of a server: the accounts, and the segments that were given back.
#[derive(Debug)]
pub(crate) struct Ledger {
    accounts: Accounts,
    /// Segments that the server is done with.
    returned: Arc<Mutex<Vec<Item>>>,
    /// Returned segments that a process outside still holds.
    kept: Vec<Item>,
}

impl Ledger {
    pub(crate) fn new(quota: Quota, own_uid: u32) -> Self {
        Self {
            accounts: Accounts::new(quota, own_uid),
            returned: Arc::default(),
            kept: Vec::new(),
        }
    }

    /// A user's share now.
    pub(crate) fn usage(&self, uid: u32) -> Usage {
        self.accounts.usage(uid)
    }

    /// All users with a share, and their shares.
    pub(crate) fn users(&self) -> Vec<(u32, Usage)> {
        self.accounts.users.clone()
    }

    /// True if the user is one for whom room is kept.
    pub(crate) fn is_preferred(&self, uid: u32) -> bool {
        self.accounts.is_preferred(uid)
    }

    /// Books a segment of `bytes` bytes for a user.
    ///
    /// # Errors
    /// The limit that is reached, in words for the client.
    pub(crate) fn reserve(&mut self, uid: u32, bytes: u64) -> Result<Charge, String> {
        self.accounts.charge(uid, bytes)?;
        Ok(Charge {
            item: Some(Item {
                uid,
                bytes,
                memory: None,
            }),
            returned: Arc::clone(&self.returned),
        })
    }

    /// The segments that the server is done with, for [`Item::reclaim`]; all of them come back
    /// by [`Self::settle`].
    pub(crate) fn take_returned(&mut self) -> Vec<Item> {
        // The lock is held for a moment only: a session's thread may be dropping a charge.
        self.kept.append(&mut self.returned.lock());
        std::mem::take(&mut self.kept)
    }

    /// Ends the charges of segments that no process has any more.
    pub(crate) fn settle(&mut self, kept: Vec<Item>, freed: Vec<Item>) {
        self.kept.extend(kept);
        for item in freed {
            self.accounts.give_back(item.uid, item.bytes);
        }
    }

    /// True while a client keeps a segment after hanging up.
    pub(crate) fn has_kept(&self) -> bool {
        !self.kept.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sidecore_sys::{SharedMap, Sharing};

    const OWN: u32 = 1000;

    fn ledger() -> Ledger {
        let quota = Quota {
            places_max: 8,
            user_places_max: 4,
            bytes_max: 80 << 12,
            user_bytes_max: 32 << 12,
        };
        Ledger::new(quota, OWN)
    }

    /// A segment, and the client's descriptor of it.
    fn segment(ledger: &mut Ledger, uid: u32, pages: u64) -> (Charge, std::os::fd::OwnedFd) {
        check(ledger, uid, pages << 12).unwrap();
        let reserved = ledger.reserve(uid, pages << 12).unwrap();
        let map = SharedMap::create("test", (pages << 12) as usize, Sharing::ReadWrite).unwrap();
        (reserved.of(map.lent()), map.lend().unwrap())
    }

    /// Frees returned segments, then checks for room.
    fn check(ledger: &mut Ledger, uid: u32, bytes: u64) -> Result<(), String> {
        let items = ledger.take_returned();
        let (kept, freed) = items.into_iter().partition(|item| !item.reclaim());
        ledger.settle(kept, freed);
        ledger.accounts.fits(uid, bytes)
    }

    #[test]
    fn what_is_reserved_counts_and_comes_back_if_nothing_is_made() {
        let mut ledger = ledger();
        let reserved = ledger.reserve(7, 32 << 12).unwrap();
        assert!(ledger.reserve(7, 1 << 12).is_err());
        drop(reserved);
        assert!(check(&mut ledger, 7, 32 << 12).is_ok());
        assert_eq!(ledger.usage(7), Usage::default());
    }

    #[test]
    fn memory_is_charged_until_the_last_descriptor_is_closed() {
        let mut ledger = ledger();
        let (charge, file) = segment(&mut ledger, 7, 20);
        assert!(check(&mut ledger, 7, 12 << 12).is_ok());
        let reason = check(&mut ledger, 7, 13 << 12).unwrap_err();
        assert!(reason.contains("user 7 has 81920 bytes"), "{reason}");
        drop(charge);
        assert!(
            check(&mut ledger, 7, 13 << 12).is_err(),
            "the descriptor is kept"
        );
        assert!(
            check(&mut ledger, 8, 13 << 12).is_ok(),
            "another user is not affected"
        );
        drop(file);
        assert!(check(&mut ledger, 7, 32 << 12).is_ok());
        assert_eq!(ledger.usage(7), Usage::default());
    }

    #[test]
    fn others_together_leave_room_for_root_and_the_own_user() {
        let mut ledger = ledger();
        let held: Vec<_> = [7, 7, 7, 7, 8, 8]
            .map(|uid| segment(&mut ledger, uid, 1))
            .into();
        for uid in [7, 8, 9] {
            assert!(check(&mut ledger, uid, 1 << 12).is_err(), "user {uid}");
        }
        let _root = segment(&mut ledger, 0, 1);
        let _own = segment(&mut ledger, OWN, 1);
        let reason = check(&mut ledger, 0, 1 << 12).unwrap_err();
        assert!(reason.contains("everybody has 8 segments"), "{reason}");
        drop(held);
        let _large = segment(&mut ledger, 7, 32);
        let _more = segment(&mut ledger, 8, 28);
        assert!(
            check(&mut ledger, 9, 1 << 12).is_err(),
            "others have three quarters of the bytes"
        );
        assert!(check(&mut ledger, 0, 18 << 12).is_ok());
        assert!(check(&mut ledger, 0, 19 << 12).is_err());
    }
}
