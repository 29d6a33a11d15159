//! The folder that a tour works on: the user's choice, or one of the system's that fits.
//!
//! Must stay true: the tour's copies of it fit on the disk; every file in a chosen one is readable.

use crate::TourError;
use crate::needs::Lacking;
use rustix::fs::{Access, access, statvfs};
use sidecore_sys::text;
use std::path::{Path, PathBuf};

/// Large folders of a system, candidates for [`Options::candidates`](crate::Options::candidates).
pub const LARGE_FOLDERS: [&str; 8] = [
    "/usr/bin",
    "/usr/sbin",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/include",
    "/usr/share/doc",
    "/usr/share",
    "/usr/lib",
    "/lib",
];

/// A folder to work on, or the reason why there is none.
#[derive(Debug)]
pub(crate) enum Sample {
    /// Its absolute path.
    Folder(PathBuf),
    /// None fits.
    None(Lacking),
}

/// The folder `named`, or the largest of `candidates` with `most_bytes` at most; `scratch` is where
/// copies of it will be.
///
/// # Errors
/// [`TourError::Folder`] where `named` cannot be read or is too large for the disk.
pub(crate) fn sample(
    named: Option<&Path>,
    candidates: &[&str],
    most_bytes: u64,
    scratch: &Path,
) -> Result<Sample, TourError> {
    // A disk that does not say is taken to be large enough.
    let free_bytes =
        statvfs(scratch).map_or(u64::MAX, |disk| disk.f_bavail.saturating_mul(disk.f_frsize));
    let fits_bytes = free_bytes / COPIES;
    if let Some(named) = named {
        let wrong = |why: String| TourError::Folder {
            path: named.to_owned(),
            why,
        };
        let folder = named.canonicalize();
        let folder = folder.map_err(|error| wrong(error.to_string()))?;
        std::fs::read_dir(&folder).map_err(|error| wrong(error.to_string()))?;
        // Shell lines are text, so its name must be, too.
        if folder.to_str().is_none() {
            return Err(wrong("its name is not UTF-8".to_owned()));
        }
        if !matches!(bytes_under(&folder, fits_bytes, false), Some(bytes) if bytes <= fits_bytes) {
            let room = text::bytes(fits_bytes);
            let place = scratch.parent().unwrap_or(scratch).display();
            return Err(wrong(format!(
                "it has more than {room}, and {place} has room for no more; name a smaller \
                 folder, or another temporary one in TMPDIR"
            )));
        }
        return Ok(Sample::Folder(folder));
    }
    let most_bytes = most_bytes.min(fits_bytes);
    let sizes = candidates.iter().filter_map(|path| {
        let bytes = bytes_under(Path::new(path), most_bytes, true)?;
        (bytes > 0 && bytes <= most_bytes).then_some((bytes, *path))
    });
    Ok(match sizes.max() {
        Some((_, path)) => Sample::Folder(PathBuf::from(path)),
        // The disk was the limit here, not the option.
        None if most_bytes == fits_bytes => Sample::None(Lacking {
            need: format!("more free space in {}", std::env::temp_dir().display()),
            remedy: "free some, or name another folder in TMPDIR".to_owned(),
        }),
        None => Sample::None(Lacking {
            need: "a folder to pack".to_owned(),
            remedy: "name one with --dir".to_owned(),
        }),
    })
}

/// Bytes in the files under a folder; counting stops above `enough`. None where the folder is
/// absent or, if `readable` is asked for, a file in it may not be read.
fn bytes_under(folder: &Path, enough: u64, readable: bool) -> Option<u64> {
    let mut bytes = 0_u64;
    let mut rest = vec![folder.to_owned()];
    while let Some(folder) = rest.pop() {
        let entries = match std::fs::read_dir(folder) {
            Ok(entries) => entries,
            // A chosen folder is packed whole, so all of it must be readable.
            Err(_) if readable => return None,
            Err(_) => continue,
        };
        for entry in entries.flatten() {
            // Links are not followed: this is the entry's own.
            let Ok(metadata) = entry.metadata() else {
                continue;
            };
            if metadata.is_dir() {
                rest.push(entry.path());
            } else if metadata.is_file() {
                if readable && access(entry.path(), Access::READ_OK).is_err() {
                    return None;
                }
                bytes = bytes.saturating_add(metadata.len());
            }
            // The exact size of a large tree does not matter, and would take minutes on a slow
            // disk.
            if bytes > enough {
                return Some(bytes);
            }
        }
    }
    Some(bytes)
}

/// Room that images and copies of a sample take at once, in its sizes.
const COPIES: u64 = 6;
