//! A directory for a program that walks it by names, as `mksquashfs` and `mkfs.ext4` do.
//!
//! Why here: another user with write access to the tree could replace a directory by a link while
//! such a program walks, and lead it to files that only this process may read. So the program walks
//! through a private mount on which the kernel follows no links. If such a mount is not possible, a
//! tree that other users may change is refused.

use super::{InnerError, Program, tree};
use rustix::fs::{FileType, Stat};
use sidecore_sys::folder::Folder;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};

/// See the module.
pub(super) enum Still<'d> {
    /// No other user may change it.
    Closed(&'d Folder),
    /// A mount on which no link is followed.
    Linkless(Folder),
}

impl<'d> Still<'d> {
    /// Prepares the access for `program`, which makes a file system of `directory`.
    pub(super) fn of(directory: &'d Folder, program: Program) -> Result<Self, InnerError> {
        // Needs a kernel with `mount_setattr` and the right to mount; everything else is checked
        // instead.
        if let Ok(folder) = directory.without_links() {
            return Ok(Self::Linkless(folder));
        }
        Self::closed(directory, program)
    }

    fn closed(directory: &'d Folder, program: Program) -> Result<Self, InnerError> {
        let root = directory.path();
        let check = |path: &Path, stat: &Stat| match changed_by(stat) {
            None => Ok(()),
            Some(user) => Err(InnerError::Changeable {
                program: program.name,
                path: root.join(path),
                user,
            }),
        };
        let stat = directory.stat().map_err(InnerError::reading(root))?;
        check(Path::new(""), &stat)?;
        // Only directories count: to replace a file takes the right to write to its directory.
        tree::walk(directory, |visit| {
            match FileType::from_raw_mode(visit.stat.st_mode) {
                FileType::Directory => check(visit.path, visit.stat),
                _ => Ok(()),
            }
        })?;
        Ok(Self::Closed(directory))
    }

    /// A path by which a child process enters the directory before it runs another program.
    pub(super) fn path(&self) -> PathBuf {
        let folder = match self {
            Self::Closed(folder) => folder,
            Self::Linkless(folder) => folder,
        };
        PathBuf::from(format!("/proc/self/fd/{}", folder.as_fd().as_raw_fd()))
    }
}

/// Describes the other users that may replace entries of a directory.
fn changed_by(stat: &Stat) -> Option<String> {
    let own = rustix::process::geteuid().as_raw();
    if stat.st_uid != 0 && stat.st_uid != own {
        return Some(format!("user {}", stat.st_uid));
    }
    let mode = stat.st_mode & 0o7777;
    // In a sticky directory other users may replace only their own entries.
    (mode & 0o022 != 0).then(|| format!("others (mode {mode:04o})"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, chown};

    #[test]
    fn a_tree_that_others_may_change_is_refused_where_links_cannot_be_ruled_out() {
        let place = tempfile::tempdir().unwrap();
        let inside = place.path().join("inside");
        std::fs::create_dir(&inside).unwrap();
        let folder = Folder::open(place.path()).unwrap();
        let program = super::super::MKSQUASHFS;
        assert!(Still::closed(&folder, program).is_ok());
        std::fs::set_permissions(&inside, PermissionsExt::from_mode(0o1777)).unwrap();
        let text = |still: Result<Still<'_>, InnerError>| still.err().unwrap().to_string();
        let error = text(Still::closed(&folder, program));
        assert!(
            error.contains("inside") && error.contains("1777"),
            "{error}"
        );
        assert!(error.contains("--inner erofs"), "{error}");
        std::fs::set_permissions(&inside, PermissionsExt::from_mode(0o755)).unwrap();
        if chown(&inside, Some(23457), None).is_ok() {
            let error = text(Still::closed(&folder, program));
            assert!(error.contains("user 23457"), "{error}");
        }
    }
}
