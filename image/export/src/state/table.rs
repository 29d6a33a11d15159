//! The mount table of this process's mount namespace, `/proc/self/mountinfo`.
//!
//! Why here: only it shows the present mounts on a directory, and so distinguishes our mounts from
//! others.
//! Callable from any thread; reads one file. Source: `Documentation/filesystems/proc.rst`, 3.5.

use crate::fuse::Device;
use std::collections::HashSet;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// One mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mount {
    /// The mount's number; may be reused after the mount is gone.
    pub id: u64,
    /// The file system's device.
    pub device: Device,
    /// Directory of the mount.
    pub dir: PathBuf,
    /// The kind of file system, with a subtype after a dot.
    pub file_system: String,
    /// The mount's source, as the mounter named it.
    pub source: OsString,
}

/// All mounts, in the order in which they were made.
///
/// # Errors
/// When `/proc` cannot be read.
pub(crate) fn read() -> io::Result<Vec<Mount>> {
    let text = std::fs::read("/proc/self/mountinfo")?;
    Ok(text
        .split(|&byte| byte == b'\n')
        .filter_map(parse)
        .collect())
}

/// The visible mount at `dir` (an absolute path), if that is a mount point.
///
/// # Errors
/// When `/proc` cannot be read.
pub(crate) fn at(dir: &Path) -> io::Result<Option<Mount>> {
    Ok(read()?.into_iter().rfind(|mount| mount.dir == dir))
}

/// The mounts of some devices in all mount namespaces of all processes, as far as this process may
/// read them: each with one of the processes.
pub(crate) fn everywhere(is_it: impl Fn(&Mount) -> bool) -> Vec<(u32, Mount)> {
    let mut seen = HashSet::new();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok());
        // /proc also lists files that are no processes.
        let Some(pid) = pid else { continue };
        let namespace = std::fs::read_link(entry.path().join("ns/mnt"));
        // One process of each namespace is enough: the table is the namespace's.
        if !namespace.is_ok_and(|namespace| seen.insert(namespace)) {
            continue;
        }
        let text = std::fs::read(entry.path().join("mountinfo")).unwrap_or_default();
        let lines = text.split(|&byte| byte == b'\n').filter_map(parse);
        found.extend(lines.filter(&is_it).map(|mount| (pid, mount)));
    }
    found
}

fn parse(line: &[u8]) -> Option<Mount> {
    // 36 35 98:0 /root /mount/point options [optional fields] - type source options
    let mut fields = line.split(|&byte| byte == b' ');
    let id = text(fields.next()?).parse().ok()?;
    let device = text(fields.nth(1)?);
    let (major, minor) = device.split_once(':')?;
    let dir = PathBuf::from(unescape(fields.nth(1)?));
    // proc(5): any number of optional fields, ended by a single hyphen.
    let mut fields = fields.skip_while(|&field| field != b"-").skip(1);
    Some(Mount {
        id,
        device: Device {
            major: major.parse().ok()?,
            minor: minor.parse().ok()?,
        },
        dir,
        file_system: text(fields.next()?),
        source: unescape(fields.next()?),
    })
}

fn text(field: &[u8]) -> String {
    String::from_utf8_lossy(field).into_owned()
}

/// The kernel writes blanks, tabs, newlines and backslashes as a backslash and three octal digits.
fn unescape(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, after)) = rest.split_first() {
        let octal = after.get(..3).filter(|digits| {
            first == b'\\' && digits.iter().all(|digit| (b'0'..=b'7').contains(digit))
        });
        if let Some(digits) = octal {
            bytes.push(digits.iter().fold(0u8, |sum, digit| {
                sum.wrapping_mul(8).wrapping_add(digit - b'0')
            }));
            rest = &after[3..];
        } else {
            bytes.push(first);
            rest = after;
        }
    }
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel_are_understood() {
        let line =
            br"36 35 98:7 /mnt1 /mnt\0402\134 rw,noatime master:1 shared:2 - ext3.x /dev/a\011b rw";
        let mount = parse(line).unwrap();
        assert_eq!(mount.id, 36);
        assert_eq!((mount.device.major, mount.device.minor), (98, 7));
        assert_eq!(mount.dir, Path::new("/mnt 2\\"));
        assert_eq!(mount.file_system, "ext3.x");
        assert_eq!(mount.source, OsString::from("/dev/a\tb"));
        assert_eq!(parse(b""), None);
        assert_eq!(parse(b"36 35 98:7 /mnt1 /mnt2 rw,noatime"), None);
    }

    #[test]
    fn the_own_table_has_proc_in_it() {
        let mount = at(Path::new("/proc")).unwrap().unwrap();
        assert_eq!(mount.file_system, "proc");
        assert_eq!(at(Path::new("/proc/self")).unwrap(), None);
    }
}
