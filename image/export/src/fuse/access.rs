//! Users that a mount lets in, by the files that it shows.
//!
//! Must stay true: a mount of root's lets no user in that may not read all of the files behind it.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Mode of a file for its owner alone.
pub(super) const OWNER_MODE: u32 = 0o600;

/// Users that a file's mode lets in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Access {
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) mode: u32,
}

impl Access {
    /// The users that may read the file at `path`: those that its mode and the folders on the way
    /// to it let in.
    ///
    /// # Errors
    /// Those of stat(2).
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        // A file without a name any more: no folder says who may come to it.
        let Ok(path) = std::fs::canonicalize(path) else {
            let file = Self::itself(path)?;
            let mode = file.mode & !0o077;
            return Ok(Self { mode, ..file });
        };
        let folders = path.ancestors().skip(1);
        folders
            .map(Self::itself)
            .try_fold(Self::itself(&path)?, |file, folder| Ok(file.below(folder?)))
    }

    /// The users that the mode of a file or folder lets in, wherever it lies.
    fn itself(path: &Path) -> io::Result<Self> {
        let file = std::fs::metadata(path)?;
        // With an access list, the group's bits are the mask: the most that any entry of the list
        // may do. An entry may also keep out a user whom the bits of the others let in.
        let mut room = [0_u8; 0];
        let listed = rustix::fs::getxattr(path, "system.posix_acl_access", &mut room[..]);
        let mode = match listed {
            Ok(1..) => file.mode() & !0o077,
            _ => file.mode(),
        };
        Ok(Self {
            uid: file.uid(),
            gid: file.gid(),
            mode,
        })
    }

    /// The users that the file lets in and that may search the folder, as far as one owner and one
    /// group can express it.
    fn below(self, folder: Self) -> Self {
        let may = |bits: u32| folder.mode & bits == bits;
        // Of a user whose groups are not known, either bit may decide.
        let may_all = may(0o011);
        let is_group = self.gid == folder.gid;
        let owner = match self.uid == folder.uid {
            true => may(0o100),
            false => may_all,
        };
        let (group, others) = match is_group {
            true => (may(0o010), may(0o001)),
            false => (may_all, may_all),
        };
        let mut mode = self.mode;
        // Root may search all folders.
        if !owner && self.uid != 0 {
            mode &= !0o700;
        }
        if !group {
            mode &= !0o070;
        }
        if !others {
            mode &= !0o007;
        }
        Self { mode, ..self }
    }

    /// The users that both let in, as far as one owner and one group can express it.
    pub(super) fn and(self, upper: Self) -> Self {
        let mut mode = self.mode & upper.mode;
        if self.uid != upper.uid {
            mode &= !0o700 | (upper.mode & 0o700 & (self.mode << 6));
        }
        if self.gid != upper.gid {
            mode &= !0o070 | (upper.mode & 0o070 & (self.mode << 3));
        }
        Self { mode, ..upper }
    }
}

#[cfg(test)]
mod tests {
    use super::Access;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    #[test]
    fn a_user_that_may_read_a_part_only_may_not_read_the_whole() {
        let file = |uid, gid, mode| Access { uid, gid, mode };
        let image = file(1, 1, 0o644);
        assert_eq!(image.and(file(1, 1, 0o600)), file(1, 1, 0o600));
        assert_eq!(image.and(file(1, 1, 0o664)), file(1, 1, 0o644));
        // The overlay's owner and group are others to the image, and may read it.
        assert_eq!(image.and(file(2, 2, 0o640)), file(2, 2, 0o440));
        assert_eq!(file(1, 1, 0o640).and(file(2, 2, 0o644)), file(2, 2, 0));
        assert_eq!(file(1, 1, 0o640).and(file(2, 1, 0o644)), file(2, 1, 0o040));
    }

    #[test]
    fn a_user_that_may_not_search_a_folder_may_not_read_what_is_in_it() {
        let file = |uid, gid, mode| Access { uid, gid, mode };
        let image = file(1, 1, 0o644);
        for (folder, mode) in [
            (file(0, 0, 0o755), 0o644),
            (file(0, 0, 0o1777), 0o644),
            (file(1, 1, 0o700), 0o600),
            (file(1, 1, 0o750), 0o640),
            (file(1, 1, 0o701), 0o604),
            // Its own group or another user's: the owner need not be in it.
            (file(0, 1, 0o750), 0o040),
            (file(0, 2, 0o750), 0),
            (file(0, 2, 0o705), 0),
            (file(1, 2, 0o750), 0o600),
            (file(1, 1, 0o600), 0),
        ] {
            assert_eq!(image.below(folder), file(1, 1, mode), "{folder:?}");
        }
        let image = file(0, 1, 0o644);
        assert_eq!(image.below(file(2, 2, 0o700)), file(0, 1, 0o600));
    }

    #[test]
    fn an_image_in_a_closed_folder_is_open_to_its_owner_alone() {
        let folder = tempfile::tempdir().unwrap();
        let deep = folder.path().join("open");
        fs::create_dir(&deep).unwrap();
        let image = deep.join("image");
        fs::write(&image, b"").unwrap();
        for (path, mode) in [(&image, 0o644), (&deep, 0o755)] {
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        }
        fs::set_permissions(folder.path(), Permissions::from_mode(0o700)).unwrap();
        // Not what the links on the way say, but the folders that they lead to.
        let elsewhere = tempfile::tempdir().unwrap();
        let link = elsewhere.path().join("link");
        std::os::unix::fs::symlink(&image, &link).unwrap();
        let found = [&*image, &*link].map(|path: &Path| Access::of(path).unwrap().mode & 0o777);
        assert_eq!(found, [0o600, 0o600]);
    }
}
