//! Another user, which exchanges the components of a path in its own folder.
//!
//! Must stay true: everything is done with that user's rights: the file-system user ID of this
//! thread alone is changed (setfsuid(2)), which drops root's rights over files with it.

use nix::unistd::{Gid, Uid, setfsgid, setfsuid};
use sidecore_random::Random;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

pub(crate) const UID: u32 = 23_457;

/// The attacker; see the module.
pub(crate) struct Attacker {
    /// The attacker's own folder.
    home: PathBuf,
    /// The folder that only root reads, with all names of `home`.
    root_only: PathBuf,
    random: Random,
    /// The last exchange, to be undone: the place, and where the old file is.
    made: Option<(PathBuf, Option<PathBuf>)>,
    pub(crate) swaps: u64,
    /// True if pipes are among the replacements.
    pub(crate) with_pipes: bool,
    number: u64,
}

impl Attacker {
    pub(crate) fn new(home: &Path, root_only: &Path, seed: u64) -> Self {
        Self {
            home: home.to_owned(),
            root_only: root_only.to_owned(),
            random: Random::new(seed),
            made: None,
            swaps: 0,
            with_pipes: true,
            number: 0,
        }
    }

    /// One of `bound` numbers.
    pub(crate) fn draw(&mut self, bound: u64) -> u64 {
        self.random.below(bound)
    }

    /// Exchanges a component of the path, one that this user can.
    pub(crate) fn swap(&mut self, path: &Path) {
        let Ok(inside) = path.strip_prefix(&self.home) else {
            return;
        };
        let places: Vec<PathBuf> = inside
            .ancestors()
            .filter(|place| !place.as_os_str().is_empty())
            .map(Path::to_owned)
            .collect();
        if places.is_empty() {
            return;
        }
        let first = self.draw(places.len() as u64) as usize;
        let kind = self.draw(6);
        as_attacker(|| {
            // The one that was drawn, else one above, whose folder may be this user's.
            for place in places.iter().skip(first).chain(&places) {
                if self.exchange(place, kind) {
                    return;
                }
            }
        });
    }

    /// Undoes the last exchange.
    pub(crate) fn swap_back(&mut self) {
        let Some((place, old)) = self.made.take() else {
            return;
        };
        as_attacker(|| {
            let away = self.stash();
            // By a rename: files that root has put there meanwhile are moved along.
            let moved = fs::rename(&place, away).is_ok();
            let back = old.is_some_and(|old| fs::rename(old, &place).is_ok());
            self.swaps += u64::from(moved || back);
        });
    }

    /// Leaves the last exchange as it is: its folder is made anew.
    pub(crate) fn forget(&mut self) {
        self.made = None;
    }

    fn stash(&mut self) -> PathBuf {
        self.number += 1;
        self.home.join(format!(".away-{}", self.number))
    }

    fn exchange(&mut self, inside: &Path, kind: u64) -> bool {
        let place = self.home.join(inside);
        let mut old = None;
        if fs::symlink_metadata(&place).is_ok() {
            let away = self.stash();
            if fs::rename(&place, &away).is_err() {
                return false;
            }
            old = Some(away);
        }
        let counterpart = self.root_only.join(inside);
        let made = match kind {
            0 => fs::create_dir(&place),
            1 => fs::write(&place, "another file"),
            2 if self.with_pipes => {
                nix::unistd::mkfifo(&place, nix::sys::stat::Mode::S_IRWXU).map_err(Into::into)
            }
            // Gone.
            3 => Ok(()),
            // A link to root's file of that name: most exchanges are these.
            _ => symlink(counterpart, &place),
        };
        if made.is_err() {
            if let Some(old) = old {
                let _ = fs::rename(old, &place);
            }
            return false;
        }
        self.made = Some((place, old));
        self.swaps += 1;
        true
    }
}

fn as_attacker<T>(act: impl FnOnce() -> T) -> T {
    setfsgid(Gid::from_raw(UID));
    setfsuid(Uid::from_raw(UID));
    let done = act();
    setfsuid(Uid::from_raw(0));
    setfsgid(Gid::from_raw(0));
    done
}
