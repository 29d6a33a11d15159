//! The entries of a directory tree, in an order of their own, and a UUID that follows from them.

use super::InnerError;
use std::fmt::Write;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::Xxh3;

/// Every entry below `directory`, relative to it, sorted. Symbolic links are not followed.
pub(super) fn entries(directory: &Path) -> Result<Vec<PathBuf>, InnerError> {
    let mut found = Vec::new();
    let mut waiting = vec![PathBuf::new()];
    while let Some(inside) = waiting.pop() {
        let path = directory.join(&inside);
        let failed = |source| InnerError::Directory {
            path: path.clone(),
            source,
        };
        for entry in fs::read_dir(&path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = inside.join(entry.file_name());
            if entry.file_type().map_err(failed)?.is_dir() {
                waiting.push(name.clone());
            }
            found.push(name);
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// A UUID (RFC 9562, version 8) from the names, kinds and sizes in the tree: the same for the same
/// tree, wherever it lies, and hardly ever for two.
pub(super) fn uuid(directory: &Path, entries: &[PathBuf]) -> String {
    let mut hash = Xxh3::new();
    for entry in entries {
        hash.update(entry.as_os_str().as_bytes());
        // One that is gone by now fails in the program that reads it.
        if let Ok(metadata) = fs::symlink_metadata(directory.join(entry)) {
            let bytes = if metadata.is_dir() { 0 } else { metadata.len() };
            hash.update(&metadata.mode().to_le_bytes());
            hash.update(&bytes.to_le_bytes());
        }
        hash.update(&[0]);
    }
    let bits = hash.digest128() & !(0xF << 76) & !(0x3 << 62) | 0x8 << 76 | 0x2 << 62;
    let mut text = String::new();
    for (index, byte) in bits.to_be_bytes().into_iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        let _ = write!(text, "{byte:02x}");
    }
    text
}
