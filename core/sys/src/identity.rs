//! Users and groups as this process sees them, and the numbers that do not name a single user.
//!
//! In a user namespace the kernel shows every user that the namespace does not map as one number,
//! the overflow id (65534 as a rule). That number is then no identity: two processes with it may
//! belong to two users, and the own process may have it, too. Outside of user namespaces, where all
//! ids are mapped, it is an ordinary user, as a rule called `nobody`.
//!
//! Why here: a server and its clients decide by numbers that the kernel vouches for. Must stay
//! true: a number that may stand for several users equals nothing, itself included. Any thread.
//! Source: user_namespaces(7), "Unmapped user and group IDs".
//!
//! ```
//! use sidecore_sys::identity::Identities;
//!
//! let known = Identities::of_this_process();
//! assert!(known.is_user(0) || !known.is_user(65_534));
//! ```

use std::fs;

/// Which ids name one user or group each, in this process's user namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identities {
    /// The id that stands for all users that are not mapped; none where all are mapped.
    unmapped_uid: Option<u32>,
    /// The same of groups.
    unmapped_gid: Option<u32>,
}

impl Identities {
    /// Every id names one user or group, as outside of user namespaces.
    pub const ALL: Self = Self {
        unmapped_uid: None,
        unmapped_gid: None,
    };

    /// Reads the namespace's maps. Where `/proc` is not mounted, all ids are taken for mapped.
    #[must_use]
    pub fn of_this_process() -> Self {
        let read = |map: &str, overflow: &str| {
            let map = fs::read_to_string(map).ok()?;
            let overflow = fs::read_to_string(overflow).ok();
            unmapped(&map, overflow.as_deref().unwrap_or_default())
        };
        Self {
            unmapped_uid: read("/proc/self/uid_map", "/proc/sys/kernel/overflowuid"),
            unmapped_gid: read("/proc/self/gid_map", "/proc/sys/kernel/overflowgid"),
        }
    }

    /// A namespace that shows all that it does not map as these numbers.
    #[must_use]
    pub fn without(uid: u32, gid: u32) -> Self {
        Self {
            unmapped_uid: Some(uid),
            unmapped_gid: Some(gid),
        }
    }

    /// True if the number names one user.
    #[must_use]
    pub fn is_user(&self, uid: u32) -> bool {
        uid != NONE && self.unmapped_uid != Some(uid)
    }

    /// True if the number names one group.
    #[must_use]
    pub fn is_group(&self, gid: u32) -> bool {
        gid != NONE && self.unmapped_gid != Some(gid)
    }
}

/// The overflow id, unless the map has all ids.
fn unmapped(map: &str, overflow: &str) -> Option<u32> {
    let mapped: u64 = map
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok())
        .sum();
    // All but the last, which is no id.
    if mapped >= u64::from(u32::MAX) {
        return None;
    }
    Some(overflow.trim().parse().unwrap_or(OVERFLOW))
}

/// No id: `(uid_t) -1`.
const NONE: u32 = u32::MAX;
/// The overflow id unless the administrator chose another.
const OVERFLOW: u32 = 65_534;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_that_may_stand_for_several_users_names_none() {
        let whole = "         0          0 4294967295\n";
        assert_eq!(unmapped(whole, "65534\n"), None);
        for part in ["", "0 1000 1\n", "0 100000 65536\n"] {
            assert_eq!(unmapped(part, "65534\n"), Some(65_534), "{part}");
        }
        assert_eq!(unmapped("0 1000 1\n", ""), Some(65_534));
        assert_eq!(unmapped("0 1000 1\n", "99\n"), Some(99));
        let inside = Identities::without(65_534, 65_534);
        assert!(inside.is_user(0) && inside.is_group(1000));
        assert!(!inside.is_user(65_534) && !inside.is_group(65_534));
        assert!(Identities::ALL.is_user(65_534) && !Identities::ALL.is_user(NONE));
    }
}
