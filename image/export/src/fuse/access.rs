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
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        let file = std::fs::metadata(path)?;
        // With an access list, the group's bits are the mask: the most that any entry of the list
        // may do.
        let mut room = [0_u8; 0];
        let listed = rustix::fs::getxattr(path, "system.posix_acl_access", &mut room[..]);
        let mode = match listed {
            Ok(1..) => file.mode() & !0o070,
            _ => file.mode(),
        };
        Ok(Self {
            uid: file.uid(),
            gid: file.gid(),
            mode,
        })
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
}
