//! A file system made from a directory, to be packed.
//!
//! Why here: a directory is packed as an image that can be mounted. The file system inside is not
//! compressed: our frames are, in larger units and on all engines, and the kernel then finds bytes
//! where it expects them.
//! Must stay true: nothing is left behind, whatever happens: the file system is written to a file
//! without a name. Owners, modes, times, links and extended attributes are those of the directory.
//!
//! erofs is the default: the kernel mounts it straight from a FUSE file, without a loop device, and
//! walks it fastest. It is written here (`erofs`, `chunks`, [`sidecore_erofs::write`]). Files are
//! cut into chunks ([`CHUNK_BYTES`](sidecore_erofs::write::CHUNK_BYTES)); equal chunks are stored
//! once, and zeros not at all. A tree with many copies (licences, translations, two versions of a
//! package) packs to about the size of a squashfs. The other file systems are made by the programs
//! of their packages.
//!
//! Other users may change the tree meanwhile: nothing outside of it is ever read (`tree`, `still`).
//! It should nevertheless not change. A file that grows is cut off at its length when its name was
//! read. A file that shrinks or is replaced is an error. Bytes that are overwritten in place are
//! not detected.
//!
//! With `SOURCE_DATE_EPOCH` set (<https://reproducible-builds.org/specs/source-date-epoch/>) the
//! same tree gives the same bytes: no time is later than that one, and the UUID follows from the
//! tree.

mod archive;
mod chunks;
mod erofs;
mod rules;
mod still;
mod tree;

pub use archive::make_of_tar;
pub use rules::Rules;

use crate::output;
use rustix::fs::Stat;
use sidecore_erofs::write::Fault;
use sidecore_sys::folder::Folder;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::str::FromStr;
use still::Still;

/// The kind of file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kind {
    /// erofs, not compressed.
    #[default]
    Erofs,
    /// squashfs, not compressed (`mksquashfs` of squashfs-tools).
    Squashfs,
    /// ext4, read-only in effect (`mkfs.ext4` of e2fsprogs).
    Ext4,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Erofs, Self::Squashfs, Self::Ext4];

    /// The name for `--inner` and for `mount -t`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Erofs => "erofs",
            Self::Squashfs => "squashfs",
            Self::Ext4 => "ext4",
        }
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        (Self::ALL.into_iter().find(|kind| kind.name() == text))
            .ok_or_else(|| format!("no inner file system `{text}`; take erofs, squashfs or ext4"))
    }
}

/// The way out where a directory takes no scratch file.
fn other_place(source: &io::Error) -> &'static str {
    match source.kind() {
        // It is the output's, unless TMPDIR names one.
        io::ErrorKind::NotFound => "make that directory, or name another one with -o or TMPDIR",
        _ => "name another directory with TMPDIR",
    }
}

/// Reasons why no file system could be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InnerError {
    /// The directory cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// There is no space for the file system.
    #[error(
        "cannot make a scratch file in {}: {source}; {}",
        path.display(),
        other_place(source)
    )]
    Scratch {
        /// The scratch directory.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The program that makes it is not installed.
    #[error("cannot run {program}: {source}; install the package {package}")]
    Missing {
        /// The program.
        program: &'static str,
        /// The Debian package that contains it.
        package: &'static str,
        /// The operating system's error.
        source: io::Error,
    },
    /// The scratch file cannot be written.
    #[error("cannot write the file system to a scratch file in {}: {source}", path.display())]
    Store {
        /// Directory of the scratch file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// Something that erofs cannot hold.
    #[error("cannot put {} into an erofs: {source}; take --inner ext4", path.display())]
    Unfit {
        /// The file.
        path: PathBuf,
        /// Its fault.
        source: Fault,
    },
    /// A file was replaced or shortened.
    #[error(
        "{} became shorter, or another file, while it was packed; pack again when nothing writes \
         to it, or a snapshot",
        path.display()
    )]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// Another user could lead a program out of the directory.
    #[error(
        "{program} walks by names, and {} can be changed by {user} meanwhile, which could lead it \
         to files outside; take --inner erofs, or pack as root",
        path.display()
    )]
    Changeable {
        /// The program.
        program: &'static str,
        /// The directory inside that other users may change.
        path: PathBuf,
        /// Description of these users.
        user: String,
    },
    /// An entry of a tar.
    #[error(
        "the tar cannot be packed as a tree{}{}: {source}",
        if path.as_os_str().is_empty() { "" } else { ", at " },
        path.display()
    )]
    Archive {
        /// The entry; empty for the tar itself.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// A choice that only our own file system follows.
    #[error(
        "--exclude, --first, --owner and --mtime are followed by --inner erofs only, not by {0}"
    )]
    Rules(&'static str),
    /// `SOURCE_DATE_EPOCH` is not a valid time.
    #[error("SOURCE_DATE_EPOCH is `{0}`, not a number of seconds since 1970; correct or unset it")]
    Epoch(String),
    /// A failure, with less free space than may be needed.
    #[error(
        "{failure}; {} has {free_bytes} bytes free, up to {needed_bytes} may be needed: name \
         another directory with TMPDIR",
        scratch.display()
    )]
    NoRoom {
        /// The failure.
        failure: Box<InnerError>,
        /// The scratch file.
        scratch: PathBuf,
        /// Upper bound of the file system's size.
        needed_bytes: u64,
        /// Free space before the file was begun.
        free_bytes: u64,
    },
    /// The program failed.
    #[error("{program} could not make a file system of {}: {said}", path.display())]
    Failed {
        /// The program.
        program: &'static str,
        /// The directory.
        path: PathBuf,
        /// Its last error output.
        said: String,
    },
}

impl InnerError {
    /// Makes the error for an entry of a tar.
    fn archive(path: &Path) -> impl Fn(io::Error) -> Self + '_ {
        |source| Self::Archive {
            path: path.to_owned(),
            source,
        }
    }

    /// Makes the error for a failed read of `path`.
    fn reading(path: &Path) -> impl Fn(io::Error) -> Self + '_ {
        |source| Self::Directory {
            path: path.to_owned(),
            source,
        }
    }
}

/// Makes a file system of `directory` in a file without a name in `scratch`. Blocks until it is
/// complete.
///
/// # Errors
/// [`InnerError`].
pub fn make(directory: &Folder, kind: Kind, scratch: &Path) -> Result<File, InnerError> {
    make_by(directory, kind, &Rules::default(), scratch)
}

/// The same, by rules for names, owners and times, which only [`Kind::Erofs`] follows.
///
/// # Errors
/// [`InnerError`]; [`InnerError::Rules`] for another kind.
pub fn make_by(
    directory: &Folder,
    kind: Kind,
    rules: &Rules,
    scratch: &Path,
) -> Result<File, InnerError> {
    if kind != Kind::Erofs && !rules.is_empty() {
        return Err(InnerError::Rules(kind.name()));
    }
    let file = output::nameless(scratch).map_err(|source| InnerError::Scratch {
        path: scratch.to_owned(),
        source,
    })?;
    let epoch = source_date_epoch()?;
    // Before the file grows and takes from it.
    let free_bytes = free_bytes(scratch);
    let made = match kind {
        Kind::Erofs => erofs::make(directory, &file, scratch, (rules, epoch)),
        Kind::Squashfs => make_squashfs(directory, &file, epoch),
        Kind::Ext4 => make_ext4(directory, &file, scratch, epoch),
    };
    let Err(failure) = made else {
        return Ok(file);
    };
    let is_about_room = match &failure {
        // On a full disk these programs report `Input/output error`.
        InnerError::Failed { .. } => true,
        InnerError::Store { source, .. } => source.kind() == io::ErrorKind::StorageFull,
        _ => false,
    };
    if !is_about_room {
        return Err(failure);
    }
    // Only after a failure: walking a large tree takes minutes.
    let needed_bytes = Size::of(directory)?.stored_bytes;
    Err(match free_bytes {
        Some(free_bytes) if free_bytes < needed_bytes => InnerError::NoRoom {
            failure: failure.into(),
            scratch: scratch.to_owned(),
            needed_bytes,
            free_bytes,
        },
        _ => failure,
    })
}

/// End of the metadata of the erofs that begins with `head`, if its superblock gives it: a hint for
/// read-ahead. `None` for anything else.
#[must_use]
pub fn metadata_end(head: &[u8]) -> Option<u64> {
    sidecore_erofs::metadata_end(&head)
}

/// A path by which another process opens a file without a name.
fn path_of(file: &File) -> PathBuf {
    PathBuf::from(format!(
        "/proc/{}/fd/{}",
        std::process::id(),
        file.as_raw_fd()
    ))
}

fn make_squashfs(directory: &Folder, file: &File, epoch: Option<u64>) -> Result<(), InnerError> {
    let still = Still::of(directory, MKSQUASHFS)?;
    let mut command = Command::new(MKSQUASHFS.name);
    // It has no UUID, and its times follow SOURCE_DATE_EPOCH without an option.
    command.arg(".").arg(path_of(file));
    command.current_dir(still.path());
    command.args(["-noappend", "-no-progress", "-quiet"]);
    // Not compressed: inode table, data, fragments and attributes.
    command.args(["-noI", "-noD", "-noF", "-noX"]);
    run(set_time(&mut command, epoch), MKSQUASHFS, directory)
}

fn make_ext4(
    directory: &Folder,
    file: &File,
    scratch: &Path,
    epoch: Option<u64>,
) -> Result<(), InnerError> {
    let still = Still::of(directory, MKFS_EXT4)?;
    let image = path_of(file);
    let size = Size::of(directory)?;
    file.set_len(size.ext4_bytes())
        .map_err(|source| InnerError::Scratch {
            path: scratch.to_owned(),
            source,
        })?;
    let mut command = Command::new(MKFS_EXT4.name);
    // No journal, nothing reserved, tables written now: it will never be written to again.
    command.args(["-q", "-F", "-b", "4096", "-m", "0"]);
    command.args(["-O", "^has_journal,^resize_inode"]);
    let extended = "lazy_itable_init=0,root_owner=0:0";
    match epoch.map(|_| tree::uuid(directory)).transpose()? {
        Some(uuid) => {
            let extended = format!("{extended},hash_seed={uuid}");
            command.args(["-U", &uuid, "-E", &extended]);
        }
        None => drop(command.args(["-E", extended])),
    }
    command.arg("-N").arg(size.inodes().to_string());
    command.arg("-d").arg(".").arg(&image);
    command.current_dir(still.path());
    run(set_time(&mut command, epoch), MKFS_EXT4, directory)?;
    // The tree has no such directory, and it would always be empty.
    let mut remove = Command::new("debugfs");
    remove.args(["-w", "-R", "rmdir lost+found"]).arg(&image);
    run(set_time(&mut remove, epoch), MKFS_EXT4, directory)
}

/// A program that makes a file system.
#[derive(Clone, Copy)]
struct Program {
    name: &'static str,
    /// The Debian package that contains it.
    package: &'static str,
}

const MKSQUASHFS: Program = Program {
    name: "mksquashfs",
    package: "squashfs-tools",
};
const MKFS_EXT4: Program = Program {
    name: "mkfs.ext4",
    package: "e2fsprogs",
};

/// A UUID of random bits (RFC 9562, version 4).
fn random_uuid(scratch: &Path) -> Result<[u8; 16], InnerError> {
    use ring::rand::SecureRandom;
    let mut uuid = [0; 16];
    let drawn = ring::rand::SystemRandom::new().fill(&mut uuid);
    drawn.map_err(|_| InnerError::Scratch {
        path: scratch.to_owned(),
        source: io::Error::other("the system gives no random numbers for a UUID"),
    })?;
    uuid[6] = uuid[6] & 0x0F | 0x40;
    uuid[8] = uuid[8] & 0x3F | 0x80;
    Ok(uuid)
}

/// The time that `SOURCE_DATE_EPOCH` sets, in seconds since 1970.
fn source_date_epoch() -> Result<Option<u64>, InnerError> {
    let Some(text) = std::env::var_os("SOURCE_DATE_EPOCH").filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let text = text.to_string_lossy();
    text.parse()
        .map(Some)
        .map_err(|_| InnerError::Epoch(text.into_owned()))
}

/// e2fsprogs 1.47.0 reads `SOURCE_DATE_EPOCH` only under a name of its own.
fn set_time(command: &mut Command, epoch: Option<u64>) -> &mut Command {
    match epoch {
        Some(epoch) => command.env("E2FSPROGS_FAKE_TIME", epoch.to_string()),
        None => command,
    }
}

/// Bytes that this user may still write in the directory.
fn free_bytes(directory: &Path) -> Option<u64> {
    let room = rustix::fs::statvfs(directory).ok()?;
    Some(room.f_bavail.saturating_mul(room.f_frsize))
}

fn run(command: &mut Command, program: Program, directory: &Folder) -> Result<(), InnerError> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|source| InnerError::Missing {
            program: program.name,
            package: program.package,
            source,
        })?;
    if !output.status.success() {
        let mut said = String::from_utf8_lossy(&output.stderr).into_owned();
        // mksquashfs reports some failures on its standard output.
        if said.trim().is_empty() {
            said = String::from_utf8_lossy(&output.stdout).into_owned();
        }
        return Err(InnerError::Failed {
            program: program.name,
            path: directory.path().to_owned(),
            said: last_words(&said),
        });
    }
    Ok(())
}

/// Size of a directory's contents: for ext4, whose size must be known beforehand, and for the error
/// when there is no space.
#[derive(Debug, Default, Clone, Copy)]
struct Size {
    /// Bytes of contents, each file rounded up to a block.
    bytes: u64,
    /// The same without holes.
    stored_bytes: u64,
    entries: u64,
}

impl Size {
    fn of(directory: &Folder) -> Result<Self, InnerError> {
        let mut size = Self::default();
        tree::walk(directory, |visit| {
            size.entries += 1;
            let bytes = size_bytes(visit.stat).div_ceil(BLOCK_BYTES) * BLOCK_BYTES;
            size.bytes += bytes;
            size.stored_bytes += bytes.min(stored_bytes(visit.stat));
            Ok(())
        })?;
        Ok(size)
    }

    fn inodes(self) -> u64 {
        self.entries + self.entries / 16 + 64
    }

    /// Generous: unused space is zeros, which pack to almost nothing.
    fn ext4_bytes(self) -> u64 {
        let contents = self.bytes + self.bytes / 32;
        let tables = self.inodes() * (256 + 64) + self.entries * BLOCK_BYTES / 8;
        (contents + tables + (16 << 20)).div_ceil(1 << 20) << 20
    }
}

/// Length of a file in bytes, holes included.
fn size_bytes(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or_default()
}

/// Bytes that a file takes on its file system.
fn stored_bytes(stat: &Stat) -> u64 {
    u64::try_from(stat.st_blocks)
        .unwrap_or_default()
        .saturating_mul(512)
}

fn last_words(text: &str) -> String {
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    lines[lines.len().saturating_sub(3)..].join("; ")
}

const BLOCK_BYTES: u64 = 4096;

#[cfg(test)]
mod tests;
