//! Detects the file system inside an image, and mounts it.
//!
//! Why here: users name an image and a directory; the type of the file system is read from the
//! image itself.
//! Must stay true: nothing is written and no journal is replayed unless the device below takes
//! writes. The mount is created detached (`fsmount(2)`), so that it can be recorded before others
//! can see it.
//!
//! Callable from any thread that does not serve the image's reads: the kernel reads through our
//! server meanwhile.
//! Source: the kernel's documents of each file system (`Documentation/filesystems/`), fsopen(2);
//! magic numbers from `include/uapi/linux/magic.h` and ECMA-119 8.1 (iso9660).

use crate::ExportError;
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_format::source::BlockSource;
use sidecore_format::trust::digits_of;
use std::os::fd::{AsFd, OwnedFd};

/// A file system that an image may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileSystem {
    /// erofs; the one that needs no loop device.
    Erofs,
    /// squashfs.
    Squashfs,
    /// ext2, ext3 or ext4.
    Ext {
        /// True when it has a journal.
        journal: bool,
    },
    /// ISO 9660.
    Iso9660,
    /// XFS.
    Xfs,
    /// Btrfs on one device.
    Btrfs,
    /// FAT 12, 16 or 32.
    Vfat,
}

/// Kind of contents, detected from the first bytes of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Content {
    /// A file system that can be mounted.
    FileSystem(FileSystem),
    /// A disk with partitions.
    PartitionTable,
    /// Neither of those.
    Unknown,
}

impl FileSystem {
    /// Names that users give for the allowed file systems; `ext4` includes ext2 and ext3.
    pub const NAMES: [&str; 7] = [
        "erofs", "squashfs", "ext4", "iso9660", "xfs", "btrfs", "vfat",
    ];

    /// File systems that are mounted by default: read-only by design, each a small part of the
    /// kernel, and those that `sidecore block pack` makes of a directory.
    pub const NAMES_DEFAULT: [&str; 2] = ["erofs", "squashfs"];

    /// The kernel's name for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Erofs => "erofs",
            Self::Squashfs => "squashfs",
            Self::Ext { .. } => "ext4",
            Self::Iso9660 => "iso9660",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
            Self::Vfat => "vfat",
        }
    }

    /// The writable file system with this name in the kernel's mount table.
    pub(super) fn of_name(name: &str) -> Option<Self> {
        Some(match name {
            "ext2" | "ext3" | "ext4" => Self::Ext { journal: true },
            "xfs" => Self::Xfs,
            "btrfs" => Self::Btrfs,
            "vfat" => Self::Vfat,
            _ => return None,
        })
    }

    /// True for those that the kernel writes to.
    #[must_use]
    pub fn is_writable(self) -> bool {
        !matches!(self, Self::Erofs | Self::Squashfs | Self::Iso9660)
    }

    /// Mount options that keep it from writing: key, and value if the key takes one.
    fn options(self) -> &'static [(&'static str, Option<&'static str>)] {
        match self {
            Self::Ext { journal: true } => &[("noload", None)],
            // Two mounts of one image have one UUID.
            Self::Xfs => &[("norecovery", None), ("nouuid", None)],
            Self::Btrfs => &[("rescue", Some("nologreplay"))],
            _ => &[],
        }
    }
}

impl FileSystem {
    /// Mount options of a writable file system.
    fn writing_options(self) -> &'static [(&'static str, Option<&'static str>)] {
        match self {
            // Two mounts of one image have one UUID.
            Self::Xfs => &[("nouuid", None)],
            _ => &[],
        }
    }
}

/// Reads an image's first 68 KiB and detects its contents.
///
/// # Errors
/// [`ExportError::Read`] when the image is damaged there.
pub fn detect(source: &dyn BlockSource) -> Result<Content, ExportError> {
    let len = source.size_bytes().min(HEAD_BYTES.to_u64()).to_usize();
    let mut head = vec![0; len];
    source.read_into(0, &mut head).map_err(ExportError::Read)?;
    Ok(classify(&head))
}

/// Checks that an image holds an erofs with a UUID, of 32 hexadecimal digits: what it says of
/// itself where a signature covers it.
///
/// # Errors
/// [`ExportError::OtherUuid`]; [`ExportError::Read`] when the image is damaged there.
pub fn check_uuid(source: &dyn BlockSource, uuid: &str) -> Result<(), ExportError> {
    let mut found = String::new();
    if detect(source)? == Content::FileSystem(FileSystem::Erofs) {
        let mut bytes = [0; 16];
        let read = source.read_into(EROFS_UUID_AT, &mut bytes);
        read.map_err(ExportError::Read)?;
        found = digits_of(&bytes);
    }
    match found == uuid {
        true => Ok(()),
        false => Err(ExportError::OtherUuid {
            found,
            wanted: uuid.chars().take(32).collect(),
        }),
    }
}

/// Detects the contents from `head`. Hybrid ISO images, which are also disks, count as CDs.
fn classify(head: &[u8]) -> Content {
    let has = |at: usize, magic: &[u8]| head.get(at..at + magic.len()) == Some(magic);
    let file_system = if has(1024, &0xE0F5_E1E2_u32.to_le_bytes()) {
        Some(FileSystem::Erofs)
    } else if has(0, b"hsqs") {
        Some(FileSystem::Squashfs)
    } else if has(0, b"XFSB") {
        Some(FileSystem::Xfs)
    } else if has(1024 + 56, &0xEF53_u16.to_le_bytes()) {
        let journal = head.get(1024 + 92).is_some_and(|compat| compat & 4 != 0);
        Some(FileSystem::Ext { journal })
    } else if has(65536 + 64, b"_BHRfS_M") {
        Some(FileSystem::Btrfs)
    } else if has(32769, b"CD001") {
        Some(FileSystem::Iso9660)
    } else if has(510, &[0x55, 0xAA]) && (has(54, b"FAT1") || has(82, b"FAT32")) {
        Some(FileSystem::Vfat)
    } else {
        None
    };
    match file_system {
        Some(file_system) => Content::FileSystem(file_system),
        None if has(512, b"EFI PART") || has_partitions(head) => Content::PartitionTable,
        None => Content::Unknown,
    }
}

/// True when a master boot record with at least one sound entry begins `head`.
fn has_partitions(head: &[u8]) -> bool {
    head.get(510..512) == Some(&[0x55, 0xAA])
        && head[446..510].chunks(16).any(|entry| {
            let sectors = u32::from_le_bytes([entry[12], entry[13], entry[14], entry[15]]);
            entry[0] & 0x7F == 0 && entry[4] != 0 && sectors != 0
        })
}

/// Mounts `source` detached, read-only unless `writable`. `trusted` allows its device nodes and
/// set-user-id bits. It may read what this process serves: call it apart from the FUSE device then.
///
/// # Errors
/// [`ExportError::NoDriver`] when the kernel does not support the file system,
/// [`ExportError::Inner`] with the kernel's message when it refuses; `Errno::NOTBLK` in it means
/// that it needs a block device.
pub(super) fn mount_nowhere(
    file_system: FileSystem,
    source: &str,
    trusted: bool,
    writable: bool,
) -> Result<OwnedFd, ExportError> {
    let name = file_system.name();
    let context =
        rustix::mount::fsopen(name, FsOpenFlags::FSOPEN_CLOEXEC).map_err(|e| match e {
            Errno::NODEV => ExportError::NoDriver(name),
            Errno::PERM => ExportError::NotRoot,
            errno => inner_error(name, errno, String::new()),
        })?;
    let context = context.as_fd();
    let mut attributes = match writable {
        true => MountAttrFlags::empty(),
        false => MountAttrFlags::MOUNT_ATTR_RDONLY,
    };
    if !trusted {
        attributes |= MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOSUID;
    }
    let mount = || {
        rustix::mount::fsconfig_set_string(context, "source", source)?;
        if !writable {
            rustix::mount::fsconfig_set_flag(context, "ro")?;
        }
        let options = match writable {
            true => file_system.writing_options(),
            false => file_system.options(),
        };
        for (key, value) in options {
            match value {
                Some(value) => rustix::mount::fsconfig_set_string(context, *key, *value)?,
                None => rustix::mount::fsconfig_set_flag(context, *key)?,
            }
        }
        rustix::mount::fsconfig_create(context)?;
        rustix::mount::fsmount(context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
    };
    mount().map_err(|errno| inner_error(name, errno, messages(context)))
}

fn inner_error(file_system: &'static str, errno: Errno, messages: String) -> ExportError {
    ExportError::Inner {
        file_system,
        source: errno.into(),
        messages,
    }
}

/// The kernel's messages about a refused mount: each read of the context returns one.
fn messages(context: impl AsFd) -> String {
    let mut all = String::new();
    let mut line = [0; 512];
    for _ in 0..MESSAGES_MAX {
        let Ok(len @ 1..) = rustix::io::read(&context, &mut line) else {
            break;
        };
        all.push_str("; ");
        // "e text": the letter is the level.
        let text = line[..len].get(2..).unwrap_or_default();
        all.push_str(String::from_utf8_lossy(text).trim_end());
    }
    all
}

/// Covers the farthest magic number, btrfs's.
const HEAD_BYTES: usize = 68 << 10;
/// Messages that the kernel keeps for one context.
const MESSAGES_MAX: usize = 8;
/// Byte of an erofs at which its UUID stands ("struct erofs_super_block").
const EROFS_UUID_AT: u64 = 1024 + 48;

#[cfg(test)]
mod tests {
    use super::*;
    use sidecore_format::source::MemorySource;

    fn image(parts: &[(usize, &[u8])]) -> Content {
        let mut bytes = vec![0; 128 << 10];
        for (at, part) in parts {
            bytes[*at..at + part.len()].copy_from_slice(part);
        }
        detect(&MemorySource::new(bytes)).unwrap()
    }

    #[test]
    fn an_erofs_is_known_by_its_uuid() {
        let mut bytes = vec![0; 128 << 10];
        bytes[1024..1028].copy_from_slice(&[0xE2, 0xE1, 0xF5, 0xE0]);
        bytes[1024 + 48..][..16].copy_from_slice(&[0xAB; 16]);
        let own = "ab".repeat(16);
        check_uuid(&MemorySource::new(bytes.clone()), &own).unwrap();
        for other in [&"ac".repeat(16), "", "ab"] {
            let refused = check_uuid(&MemorySource::new(bytes.clone()), other).unwrap_err();
            assert!(
                matches!(refused, ExportError::OtherUuid { .. }),
                "{refused}"
            );
        }
        // Another file system has none, whatever lies at that place.
        bytes[1024] = 0;
        check_uuid(&MemorySource::new(bytes), &own).unwrap_err();
    }

    #[test]
    fn every_magic_number_is_known() {
        let boot: (usize, &[u8]) = (510, &[0x55, 0xAA]);
        let entry: (usize, &[u8]) = (446, &[0x80, 0, 2, 0, 0x83, 0, 0, 0, 0, 8, 0, 0, 0, 0, 1, 0]);
        for (parts, expected) in [
            (vec![(0, &b"hsqs"[..])], FileSystem::Squashfs),
            (vec![(0, &b"XFSB"[..])], FileSystem::Xfs),
            (
                vec![(1024, &[0xE2, 0xE1, 0xF5, 0xE0][..])],
                FileSystem::Erofs,
            ),
            (
                vec![(1080, &[0x53, 0xEF][..])],
                FileSystem::Ext { journal: false },
            ),
            (
                vec![(1080, &[0x53, 0xEF][..]), (1116, &[4][..])],
                FileSystem::Ext { journal: true },
            ),
            (vec![(65600, &b"_BHRfS_M"[..])], FileSystem::Btrfs),
            (vec![(32768, &b"\x01CD001\x01"[..])], FileSystem::Iso9660),
            (
                vec![(32768, &b"\x01CD001\x01"[..]), boot, entry],
                FileSystem::Iso9660,
            ),
            (vec![(54, &b"FAT16   "[..]), boot], FileSystem::Vfat),
            (vec![(82, &b"FAT32   "[..]), boot], FileSystem::Vfat),
        ] {
            assert_eq!(image(&parts), Content::FileSystem(expected));
        }
        assert_eq!(image(&[boot, entry]), Content::PartitionTable);
        assert_eq!(image(&[(512, b"EFI PART")]), Content::PartitionTable);
        assert_eq!(image(&[boot]), Content::Unknown);
        assert_eq!(image(&[]), Content::Unknown);
    }

    #[test]
    fn an_image_of_any_length_can_be_looked_at() {
        for len in [0, 1, 3, 4, 509, 511, 512, 1027, 1081, 32773, 65607] {
            let source = MemorySource::new(vec![0x55; len]);
            assert_eq!(detect(&source).unwrap(), Content::Unknown, "{len} bytes");
        }
    }
}
