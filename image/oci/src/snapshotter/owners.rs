//! Owners of files in a container that has a user namespace: containerd's labels for that, and
//! lower folders whose owners are mapped.
//!
//! Why here: containerd's clients would else copy all layers to change their owners. The mounts are
//! made here and not by containerd (`uidmap=`), because some of its versions map the folder above
//! all layers: mounts below that folder, which layers are, would not be there.
//! Must stay true: labels are checked before anything is made by them; a mapped mount is read-only,
//! so that a removal that meets one removes nothing of a layer.
//! Source: containerd, packages `snapshots` (labels) and `userns`; mount_setattr(2).

use super::grpc::{Code, Refusal};
use super::mounts::{Mounts, Table};
use sidecore_sys::namespace::{self, IdRun};
use std::collections::BTreeMap;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The ids of a container's users and groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Owners {
    uids: Vec<IdRun>,
    gids: Vec<IdRun>,
}

impl Owners {
    /// Those that labels ask for; `None` without such labels.
    ///
    /// # Errors
    /// Labels that make no sense.
    pub(super) fn of(labels: &BTreeMap<String, String>) -> Result<Option<Self>, Refusal> {
        let refused = |reason: &str| Refusal::new(Code::InvalidArgument, reason);
        match (labels.get(UIDS), labels.get(GIDS)) {
            (None, None) => Ok(None),
            (Some(uids), Some(gids)) => Ok(Some(Self {
                uids: runs(uids).map_err(|reason| refused(&format!("{UIDS}: {reason}")))?,
                gids: runs(gids).map_err(|reason| refused(&format!("{GIDS}: {reason}")))?,
            })),
            _ => Err(refused("ids of users and of groups are mapped together")),
        }
    }

    /// The owner and the group here of a file that has these in a layer; those of the container's
    /// root where they are not mapped.
    pub(super) fn outside(&self, uid: u32, gid: u32) -> (u32, u32) {
        let of = |runs: &[IdRun], id| outside(runs, id).or_else(|| outside(runs, 0));
        // `runs` has seen to it that the root is mapped.
        let (uid, gid) = (of(&self.uids, uid), of(&self.gids, gid));
        (uid.unwrap_or_default(), gid.unwrap_or_default())
    }

    /// True if the files of the layers above which a snapshot is, `below` being the topmost one's
    /// folder, have their owners outside already. A client that was not set up to leave that to the
    /// snapshotter (`remap-ids`) has changed them in a copy, and gives the same labels.
    pub(super) fn are_applied(&self, below: Option<&Path>) -> bool {
        let found = below.and_then(|below| fs::metadata(below).ok());
        found.is_some_and(|root| self.is_outside(root.uid(), root.gid()))
    }

    /// True if a folder with these owners has them outside of the namespace.
    fn is_outside(&self, uid: u32, gid: u32) -> bool {
        let is_outside = |runs: &[IdRun], id: u32| {
            let mut runs_there = runs.iter();
            let is_there = runs_there.any(|run| id >= run.outside && id - run.outside < run.count);
            is_there && outside(runs, id).is_none()
        };
        // The root's, where the ids inside and outside have some in common.
        let is_root = (uid, gid) != (0, 0) && (uid, gid) == self.outside(0, 0);
        is_root || is_outside(&self.uids, uid) || is_outside(&self.gids, gid)
    }

    /// The lower folders of the snapshot in `folder` as mounts whose owners are mapped. Those that
    /// are there stay.
    ///
    /// # Errors
    /// The system's, also where the kernel or a file system maps no owners.
    pub(super) fn map(
        &self,
        folder: &Path,
        lower: &[PathBuf],
        mounts: &Mounts,
    ) -> io::Result<Vec<PathBuf>> {
        let table = Table::read();
        let mut users: Option<OwnedFd> = None;
        let mut mapped = Vec::with_capacity(lower.len());
        for (number, from) in lower.iter().enumerate() {
            let to = folder.join(LOWER).join(number.to_string());
            // A layer that was mounted again is another file system.
            if table.source_of(&to).is_none() || !is_same(from, &to) {
                mounts.undo(&to);
                let mut builder = DirBuilder::new();
                builder.recursive(true).mode(0o711).create(&to)?;
                if users.is_none() {
                    users = Some(namespace::users(&self.uids, &self.gids)?);
                }
                if let Some(users) = &users {
                    namespace::mount_mapped(from, &to, users.as_fd())?;
                }
            }
            mapped.push(to);
        }
        Ok(mapped)
    }
}

/// Undoes the mapped mounts of the snapshot in `folder`.
pub(super) fn unmap(folder: &Path, mounts: &Mounts) {
    let lower = folder.join(LOWER);
    for entry in fs::read_dir(&lower).into_iter().flatten().flatten() {
        mounts.undo(&entry.path());
        // Empty now; where it is not unmounted, it stays.
        let _ = fs::remove_dir(entry.path());
    }
    let _ = fs::remove_dir(lower);
}

/// The id here of one in the namespace.
fn outside(runs: &[IdRun], id: u32) -> Option<u32> {
    let run = runs
        .iter()
        .find(|run| id >= run.inside && id - run.inside < run.count)?;
    Some(run.outside + (id - run.inside))
}

/// Reads a map as containerd writes it: `INSIDE:OUTSIDE:COUNT`, with commas between.
fn runs(text: &str) -> Result<Vec<IdRun>, String> {
    let mut runs = Vec::new();
    for part in text.split(',') {
        if runs.len() == RUNS_MAX {
            return Err(format!("more than {RUNS_MAX} runs of ids"));
        }
        let mut numbers = part.split(':').map(|it| it.parse::<u32>().ok());
        let (inside, outside, count) = (numbers.next(), numbers.next(), numbers.next());
        let (Some(Some(inside)), Some(Some(outside)), Some(Some(count)), None) =
            (inside, outside, count, numbers.next())
        else {
            return Err("it is not written as INSIDE:OUTSIDE:COUNT,...".into());
        };
        // The largest number is no id.
        let fits = |first: u32| first.checked_add(count).is_some();
        if count == 0 || !fits(inside) || !fits(outside) {
            return Err("a run of ids is empty, or ends past the largest id".into());
        }
        runs.push(IdRun {
            inside,
            outside,
            count,
        });
    }
    if overlap(&runs, |run| run.inside) || overlap(&runs, |run| run.outside) {
        return Err("runs of ids overlap".into());
    }
    if outside(&runs, 0).is_none() {
        return Err("it maps no root".into());
    }
    Ok(runs)
}

/// True if two of the runs that begin at `first` overlap.
fn overlap(runs: &[IdRun], first: impl Fn(&IdRun) -> u32) -> bool {
    let mut sorted: Vec<(u32, u32)> = runs.iter().map(|run| (first(run), run.count)).collect();
    sorted.sort_unstable();
    sorted
        .windows(2)
        .any(|pair| pair[1].0 - pair[0].0 < pair[0].1)
}

/// True if two paths lead to one folder.
fn is_same(one: &Path, other: &Path) -> bool {
    let place = |path| fs::metadata(path).map(|found| (found.dev(), found.ino()));
    matches!((place(one), place(other)), (Ok(one), Ok(other)) if one == other)
}

const UIDS: &str = "containerd.io/snapshot/uidmapping";
const GIDS: &str = "containerd.io/snapshot/gidmapping";
/// Folder of a snapshot's mapped mounts.
const LOWER: &str = "lower";
/// The most runs of ids that the kernel takes.
const RUNS_MAX: usize = 340;

#[cfg(test)]
mod tests {
    use super::*;

    fn of(uids: &str, gids: &str) -> Result<Option<Owners>, Refusal> {
        let label = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        Owners::of(&BTreeMap::from([label(UIDS, uids), label(GIDS, gids)]))
    }

    #[test]
    fn owners_are_those_of_the_map() {
        let owners = of("0:100000:1000,5000:200000:10", "0:300000:65536");
        let owners = owners.unwrap().unwrap();
        for (inside, outside) in [
            ((0, 0), (100_000, 300_000)),
            ((999, 65_535), (100_999, 365_535)),
            ((5009, 7), (200_009, 300_007)),
            // Not mapped: the root's.
            ((1000, 65_536), (100_000, 300_000)),
            ((u32::MAX, u32::MAX), (100_000, 300_000)),
        ] {
            assert_eq!(owners.outside(inside.0, inside.1), outside, "{inside:?}");
        }
        assert_eq!(Owners::of(&BTreeMap::new()), Ok(None));
        let is = |ids: (u32, u32)| owners.is_outside(ids.0, ids.1);
        assert!(!is((0, 0)) && !is((5, 5)) && !is((5000, 0)) && !is((70_000, 0)));
        assert!(is((100_000, 300_000)) && is((200_003, 300_000)) && is((0, 300_007)));
        let near = of("0:1000:65536", "0:1000:65536").unwrap().unwrap();
        assert!(near.is_outside(1000, 1000) && !near.is_outside(0, 0));
        let same = of("0:0:65536", "0:0:65536").unwrap().unwrap();
        assert!(!same.is_outside(0, 0));
    }

    #[test]
    fn senseless_maps_are_refused() {
        let good = "0:100000:65536";
        let many: Vec<String> = (0..341_u32)
            .map(|at| format!("{at}:{}:1", at + 1000))
            .collect();
        let all = many.join(",");
        for (bad, word) in [
            ("", "INSIDE"),
            ("0:1", "INSIDE"),
            ("0:1:2:3", "INSIDE"),
            ("0:1:x", "INSIDE"),
            ("-1:0:1", "INSIDE"),
            ("0:1:4294967296", "INSIDE"),
            ("0:1:1,", "INSIDE"),
            ("0:1:0", "empty"),
            ("0:4294967295:1", "largest"),
            ("4294967000:0:1000", "largest"),
            ("0:1000:10,5:2000:10", "overlap"),
            ("0:1000:10,10:1009:10", "overlap"),
            ("0:1000:10,0:2000:1", "overlap"),
            ("1:1000:10", "root"),
            (&*all, "340"),
        ] {
            for refused in [of(bad, good), of(good, bad)] {
                let refused = refused.unwrap_err();
                assert_eq!(refused.code, Code::InvalidArgument);
                assert!(refused.text.contains(word), "{bad}: {refused}");
            }
        }
        assert!(of(&many[..340].join(","), good).is_ok());
        let one = BTreeMap::from([(UIDS.to_owned(), good.to_owned())]);
        assert!(Owners::of(&one).is_err());
    }
}
