//! The way along a path, component by component, each opened through the one before.
//!
//! Must stay true: a link is followed only where root or this user made it, and to the target that
//! was read through the descriptor whose owner was checked. Another user's link could lead
//! anywhere, even to a file that only this user may read or write. Source: path_resolution(7),
//! openat(2).

use super::{FOLDER, FolderError, check, failed};
use rustix::fs::{self, CWD, FileType, Mode, OFlags, RawMode};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

/// See the module.
pub(super) struct Way {
    /// The folder that was reached, by `O_PATH`, and its path.
    here: OwnedFd,
    place: PathBuf,
    /// Components that are left, the next one last.
    left: Vec<OsString>,
    links: usize,
    checks: Checks,
}

/// Folders whose owner and mode are checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Checks {
    None,
    /// The last one alone.
    Last,
    /// It and all above it.
    All,
}

impl Way {
    /// At the beginning of `path`.
    pub(super) fn begin(path: &Path, checks: Checks) -> Result<Self, FolderError> {
        // Relative to a folder that is checked as well, with all above it.
        let path = match checks {
            Checks::All => &std::path::absolute(path).map_err(failed("resolving", path))?,
            Checks::None | Checks::Last => path,
        };
        let place = PathBuf::from(if path.is_absolute() { "/" } else { "." });
        let here = fs::openat(CWD, &place, HERE, Mode::empty());
        let mut way = Self {
            here: here.map_err(failed("opening", &place))?,
            place,
            left: Vec::new(),
            links: 0,
            checks,
        };
        way.put(path);
        Ok(way)
    }

    fn put(&mut self, path: &Path) {
        let names = path
            .components()
            .rev()
            .filter_map(|component| match component {
                Component::Normal(name) => Some(name.to_owned()),
                Component::ParentDir => Some("..".into()),
                Component::CurDir | Component::RootDir | Component::Prefix(_) => None,
            });
        self.left.extend(names);
    }

    /// Goes to the end, which is a folder. Missing ones are made with `make`, if it is given.
    pub(super) fn folder(mut self, make: Option<RawMode>) -> Result<OwnedFd, FolderError> {
        while let Some(name) = self.left.pop() {
            self.step(&name, make)?;
        }
        let folder = fs::openat(&self.here, ".", FOLDER, Mode::empty());
        let folder = folder.map_err(failed("opening", &self.place))?;
        if self.checks != Checks::None {
            check(folder.as_fd(), &self.place, false)?;
        }
        Ok(folder)
    }

    /// Goes to the end and opens it, by openat(2) with `flags` and `mode`.
    pub(super) fn file(mut self, flags: OFlags, mode: Mode) -> Result<OwnedFd, FolderError> {
        let flags = flags | OFlags::CLOEXEC;
        while let Some(name) = self.left.pop() {
            if self.left.is_empty() {
                match fs::openat(&self.here, &name, flags | OFlags::NOFOLLOW, mode) {
                    // Perhaps a link.
                    Err(Errno::LOOP | Errno::NOTDIR) => {}
                    Ok(link) if flags.contains(OFlags::PATH) && is_link(&link) => {}
                    opened => return opened.map_err(failed("opening", &self.place.join(&name))),
                }
                if self.is_kernels_own() {
                    let opened = fs::openat(&self.here, &name, flags, mode);
                    return opened.map_err(failed("opening", &self.place.join(&name)));
                }
            }
            self.step(&name, None)?;
        }
        let opened = fs::openat(&self.here, ".", flags, mode);
        opened.map_err(failed("opening", &self.place))
    }

    /// Goes to the folder of the path's final target, which need not exist; returns the target's
    /// name, too.
    pub(super) fn target(mut self) -> Result<(OwnedFd, OsString), FolderError> {
        while let Some(name) = self.left.pop() {
            if self.left.is_empty() && name != ".." {
                match fs::openat(&self.here, &name, HERE | OFlags::NOFOLLOW, Mode::empty()) {
                    Ok(link) if is_link(&link) => {}
                    Ok(_) | Err(Errno::NOENT) => {
                        let folder = fs::openat(&self.here, ".", FOLDER, Mode::empty());
                        return Ok((folder.map_err(failed("opening", &self.place))?, name));
                    }
                    Err(error) => return Err(failed("opening", &self.place.join(&name))(error)),
                }
            }
            self.step(&name, None)?;
        }
        Err(failed("opening", &self.place)(Errno::ISDIR))
    }

    /// Goes to `name` in the folder, or puts the target of a link in its place.
    fn step(&mut self, name: &OsStr, make: Option<RawMode>) -> Result<(), FolderError> {
        if self.checks == Checks::All {
            check(self.here.as_fd(), &self.place, true)?;
        }
        let place = self.place.join(name);
        let open = |here: &OwnedFd| fs::openat(here, name, HERE | OFlags::NOFOLLOW, Mode::empty());
        let next = match (open(&self.here), make) {
            (Err(Errno::NOENT), Some(mode)) => {
                match fs::mkdirat(&self.here, name, Mode::from_raw_mode(mode)) {
                    // Another process may have made it meanwhile: it is checked as any.
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(error) => return Err(failed("making", &place)(error)),
                }
                open(&self.here)
            }
            (opened, _) => opened,
        };
        let next = next.map_err(failed("opening", &place))?;
        let stat = fs::fstat(&next).map_err(failed("looking at", &place))?;
        if !is_link(&next) {
            // Not a folder: the next step fails.
            self.here = next;
            match name == ".." {
                true if self.place.pop() => {}
                _ => self.place = place,
            }
            return Ok(());
        }
        self.links += 1;
        if self.links > LINKS_MAX {
            return Err(failed("opening", &place)(Errno::LOOP));
        }
        let uid = stat.st_uid;
        if uid != 0 && uid != rustix::process::geteuid().as_raw() {
            return Err(FolderError::Link { place, uid });
        }
        if self.is_kernels_own() {
            let next = fs::openat(&self.here, name, HERE, Mode::empty());
            self.here = next.map_err(failed("opening", &place))?;
            self.place = place;
            return Ok(());
        }
        let target = fs::readlinkat(&next, "", Vec::new());
        let target = target.map_err(failed("reading", &place))?;
        let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
        if target.as_os_str().as_bytes().starts_with(b"/") {
            self.place = PathBuf::from("/");
            let root = fs::openat(CWD, &self.place, HERE, Mode::empty());
            self.here = root.map_err(failed("opening", &self.place))?;
        }
        self.put(&target);
        Ok(())
    }

    /// True in /proc, whose links (`/dev/stdin`, `/dev/fd/3`) lead to files without a path.
    fn is_kernels_own(&self) -> bool {
        fs::fstatfs(&self.here).is_ok_and(|found| found.f_type == fs::PROC_SUPER_MAGIC)
    }
}

/// Opens `relative` below `folder` as openat2(2) does that follows no link and does not leave the
/// folder: one component after the other, for kernels without that call.
pub(super) fn open_by_components(
    folder: BorrowedFd<'_>,
    relative: &Path,
    flags: OFlags,
    mode: Mode,
) -> io::Result<OwnedFd> {
    let mut names = Vec::new();
    for component in relative.components() {
        match component {
            Component::Normal(name) => names.push(name),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => {
                return Err(Errno::XDEV.into());
            }
        }
    }
    // One component at a time, none of them a link: what RESOLVE_BENEATH does in one call.
    let Some((last, above)) = names.split_last() else {
        return Ok(fs::openat(folder, ".", flags, mode)?);
    };
    let mut here: Option<OwnedFd> = None;
    for name in above {
        let at = here.as_ref().map_or(folder, AsFd::as_fd);
        here = Some(open_folder(at, name)?);
    }
    let at = here.as_ref().map_or(folder, AsFd::as_fd);
    Ok(fs::openat(at, *last, flags | OFlags::NOFOLLOW, mode)?)
}

fn open_folder(at: BorrowedFd<'_>, name: &OsStr) -> Result<OwnedFd, Errno> {
    fs::openat(at, name, FOLDER | OFlags::NOFOLLOW, Mode::empty())
}

fn is_link(file: &OwnedFd) -> bool {
    fs::fstat(file).is_ok_and(|it| FileType::from_raw_mode(it.st_mode) == FileType::Symlink)
}

/// Converts to an error without a richer type: a call's own one, or the refusal's words.
pub(super) fn plain(error: FolderError) -> io::Error {
    match error {
        FolderError::Call { source, .. } => source,
        refused => refused.into_io(),
    }
}

/// Flags for a component that is a folder, or a link.
const HERE: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);
/// As in Linux.
const LINKS_MAX: usize = 40;
