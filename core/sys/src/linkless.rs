//! Mounts that belong to a descriptor, on which the kernel follows no symbolic link; and attributes
//! of such mounts.
//!
//! Why here: neither rustix nor libc has a function for mount_setattr(2). Must stay true: the mount
//! is in no namespace and has no place in the file system; it ends with its last user. Source:
//! open_tree(2), mount_setattr(2).
#![allow(unsafe_code)] // mount_setattr(2)

use rustix::mount::{OpenTreeFlags, open_tree};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// A copy of the mounts at and below `folder`, read-only and without links that are followed.
pub(crate) fn mount_of(folder: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH
        | OpenTreeFlags::AT_RECURSIVE;
    let tree = open_tree(folder, "", flags)?;
    set_attributes(tree.as_fd(), ATTR_READ_ONLY | ATTR_NO_FOLLOW, None)?;
    Ok(tree)
}

/// Sets attributes (`MOUNT_ATTR_*`) of the mounts of a tree that has no place yet; with
/// `MOUNT_ATTR_IDMAP`, owners are mapped by the namespace `users`.
pub(crate) fn set_attributes(
    tree: BorrowedFd<'_>,
    attributes: u64,
    users: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let set = Attributes {
        set: attributes,
        clear: 0,
        propagation: 0,
        user_namespace: users.map_or(0, |users| users.as_raw_fd().unsigned_abs().into()),
    };
    // SAFETY: the path is a constant that ends with zero, the structure is the kernel's first
    // version of it and as long as the call says, and both live until the call returns.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | libc::AT_RECURSIVE,
            &raw const set,
            size_of::<Attributes>(),
        )
    };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// `struct mount_attr` of `linux/mount.h`.
#[repr(C)]
struct Attributes {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

/// `MOUNT_ATTR_RDONLY`.
pub(crate) const ATTR_READ_ONLY: u64 = 0x0000_0001;
/// `MOUNT_ATTR_NOSYMFOLLOW`.
const ATTR_NO_FOLLOW: u64 = 0x0020_0000;

#[cfg(test)]
mod tests {
    use crate::folder::Folder;
    use std::ffi::OsStr;

    #[test]
    fn links_are_read_and_not_followed() {
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join("file"), "text").unwrap();
        std::os::unix::fs::symlink("file", place.path().join("link")).unwrap();
        let folder = Folder::open(place.path()).unwrap();
        // Needs root and Linux 5.12; callers take another way without.
        let Ok(linkless) = folder.without_links() else {
            return;
        };
        let reach = |name: &str| linkless.reach(OsStr::new(name));
        assert_eq!(std::fs::read_to_string(reach("file")).unwrap(), "text");
        assert_eq!(
            std::fs::read_link(reach("link")).unwrap().to_str(),
            Some("file")
        );
        let error = std::fs::read_to_string(reach("link")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ELOOP));
        let error = std::fs::write(reach("new"), "").unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    }
}
