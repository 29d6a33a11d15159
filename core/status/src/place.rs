//! The folders of sockets, reached by descriptors.
//!
//! Why here: a path may lead to another user's folder, and root looks into folders of all users.
//! Must stay true: a server publishes only in a folder that its user owns. A reader enters no
//! folder through a link, and none of another user through a mount of that user, which could hold
//! the reader up. Source: openat2(2), statx(2).

use rustix::fs::{self, AtFlags, Mode, OFlags, ResolveFlags, StatxFlags};
use sidecore_sys::folder::{Folder, FolderError};
use sidecore_sys::local_socket::effective_uid;
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// A folder of servers, by its path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Servers {
    path: PathBuf,
}

/// A folder of servers, open, and the user whose servers are in it.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) folder: Folder,
    pub(crate) uid: u32,
}

impl Servers {
    /// The folder at this path, which need not exist.
    #[must_use]
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the folder to publish in, and makes it where it is missing.
    pub(crate) fn create(&self) -> Result<Folder, FolderError> {
        let above = self.path.parent().unwrap_or(Path::new("/"));
        let name = self.path.file_name().unwrap_or(OsStr::new("servers"));
        let failed = |source| FolderError::Call {
            call: "opening",
            place: self.path.clone(),
            source,
        };
        // Other things of this user may be in the folder above, for other users, too.
        let above = match Folder::create_trusted(above, 0o755) {
            // Others may add files to a sticky folder, but not replace ours.
            Err(FolderError::Writable { mode, .. }) if mode & 0o1000 != 0 => {
                Folder::open(above).map_err(failed)?
            }
            other => other?,
        };
        let folder = above.create_inside(name, 0o700)?;
        let stat = folder.stat().map_err(failed)?;
        if stat.st_uid != effective_uid() {
            return Err(FolderError::Owner {
                place: self.path.clone(),
                uid: stat.st_uid,
            });
        }
        // It may have been there before, with another mode.
        if stat.st_mode & 0o077 != 0 {
            let closed = fs::fchmod(&folder, Mode::RWXU);
            closed.map_err(|error| failed(error.into()))?;
        }
        Ok(folder)
    }

    /// Opens the folder of this user to read from it; none where it is missing or another user's.
    pub(crate) fn open(&self) -> Option<Opened> {
        let folder = Folder::open_trusted(&self.path).ok()?;
        let uid = effective_uid();
        // A folder of root's is trusted, too, but has no servers of this user.
        (folder.stat().ok()?.st_uid == uid).then_some(Opened { folder, uid })
    }
}

/// The folder in which servers of this user publish themselves.
#[must_use]
pub(crate) fn servers_of_this_user() -> Servers {
    let path = overriding().or_else(|| match effective_uid() {
        0 => Some(PathBuf::from("/run/sidecore/servers")),
        _ => std::env::var_os("XDG_RUNTIME_DIR")
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
            .map(|path| path.join("sidecore/servers")),
    });
    Servers::at(path.unwrap_or_else(|| temporary(effective_uid())))
}

/// The folders in which a server of this user may have published itself: it may have had another
/// environment than this process.
pub(crate) fn of_this_user() -> Vec<Opened> {
    let uid = effective_uid();
    let mut places = vec![servers_of_this_user().path];
    if uid != 0 && overriding().is_none() {
        for more in [runtime(uid), temporary(uid)] {
            if !places.contains(&more) {
                places.push(more);
            }
        }
    }
    let opened = |path| Servers::at(path).open();
    places.into_iter().filter_map(opened).collect()
}

/// The folders of all other users, for root; none for others.
pub(crate) fn of_other_users() -> Vec<Opened> {
    if effective_uid() != 0 || overriding().is_some() {
        return Vec::new();
    }
    let mut all = Vec::new();
    below(
        "/run/user",
        |name| name.parse().ok(),
        "sidecore/servers",
        &mut all,
    );
    let uid_of = |name: &str| name.strip_prefix("sidecore-")?.parse().ok();
    below("/tmp", uid_of, "servers", &mut all);
    all
}

/// Opens `rest` in each folder in `parent` whose name says that it is a user's, and which is.
fn below(parent: &str, uid_of: impl Fn(&str) -> Option<u32>, rest: &str, all: &mut Vec<Opened>) {
    let Ok(folder) = Folder::open(Path::new(parent)) else {
        return;
    };
    let names = folder.names().unwrap_or_default();
    let users = names.iter().filter_map(|name| {
        // Root's servers are in the folder of its own.
        let uid = uid_of(name.to_str()?).filter(|uid| *uid != 0)?;
        Some((name, uid))
    });
    for (name, uid) in users.take(USERS_MAX) {
        if let Some(descriptor) = open_of(folder.as_fd(), name, rest, uid) {
            let place = folder.path().join(name).join(rest);
            let folder = Folder::from_descriptor(place, descriptor);
            all.push(Opened { folder, uid });
        }
    }
}

/// Opens `name/rest`, where each component belongs to the user `uid`. The first may be a mount by
/// the system, in memory or on a disk; what is in it may be none: the file system of a user's
/// program may never answer.
fn open_of(parent: BorrowedFd<'_>, name: &OsStr, rest: &str, uid: u32) -> Option<OwnedFd> {
    let walk = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    // PATH: the file system is not asked before it is known.
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let user = fs::openat2(parent, name, flags, Mode::empty(), walk).ok()?;
    if !is_of_the_system(user.as_fd()) || fs::fstat(&user).ok()?.st_uid != uid {
        return None;
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let walk = walk | ResolveFlags::NO_XDEV;
    let servers = fs::openat2(&user, rest, flags, Mode::empty(), walk).ok()?;
    (fs::fstat(&servers).ok()?.st_uid == uid).then_some(servers)
}

/// True if the mount that `place` is in is of a kind that only the system makes.
fn is_of_the_system(place: BorrowedFd<'_>) -> bool {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let Ok(stat) = fs::statx(place, "", flags, StatxFlags::MNT_ID) else {
        return false;
    };
    let Ok(table) = std::fs::read_to_string("/proc/self/mountinfo") else {
        return false;
    };
    // The number first; the type behind a lone hyphen: proc_pid_mountinfo(5).
    let mount = table.lines().find(|line| {
        let number = line
            .split(' ')
            .next()
            .and_then(|number| number.parse().ok());
        number == Some(stat.stx_mnt_id)
    });
    let kind = mount.and_then(|line| line.split(" - ").nth(1)?.split(' ').next());
    kind.is_some_and(|kind| SYSTEM_FILE_SYSTEMS.contains(&kind))
}

fn overriding() -> Option<PathBuf> {
    std::env::var_os("SIDECORE_SERVERS_DIR")
        .filter(|path| !path.is_empty())
        .and_then(|path| std::path::absolute(path).ok())
}

fn temporary(uid: u32) -> PathBuf {
    PathBuf::from(format!("/tmp/sidecore-{uid}/servers"))
}

fn runtime(uid: u32) -> PathBuf {
    PathBuf::from(format!("/run/user/{uid}/sidecore/servers"))
}

/// File systems that the kernel answers for itself.
const SYSTEM_FILE_SYSTEMS: [&str; 7] = ["tmpfs", "ramfs", "ext4", "xfs", "btrfs", "overlay", "zfs"];
/// The most users whose folders root looks into.
const USERS_MAX: usize = 1024;
