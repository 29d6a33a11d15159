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
        let failed = InnerError::reading(&path);
        for entry in fs::read_dir(&path).map_err(&failed)? {
            let entry = entry.map_err(&failed)?;
            let name = inside.join(entry.file_name());
            if entry.file_type().map_err(&failed)?.is_dir() {
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
    let mut identity = Identity::default();
    for entry in entries {
        // One that is gone by now fails in the program that reads it.
        let metadata = fs::symlink_metadata(directory.join(entry)).ok();
        identity.add(entry, metadata.as_ref());
    }
    let mut text = String::new();
    for (index, byte) in identity.uuid().into_iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// The UUID of a tree, whose entries come one after the other.
#[derive(Default)]
pub(super) struct Identity(Xxh3);

impl Identity {
    /// Adds an entry by its name inside the tree.
    pub(super) fn add(&mut self, entry: &Path, metadata: Option<&fs::Metadata>) {
        self.0.update(entry.as_os_str().as_bytes());
        if let Some(metadata) = metadata {
            let bytes = if metadata.is_dir() { 0 } else { metadata.len() };
            self.0.update(&metadata.mode().to_le_bytes());
            self.0.update(&bytes.to_le_bytes());
        }
        self.0.update(&[0]);
    }

    pub(super) fn uuid(&self) -> [u8; 16] {
        let bits = self.0.digest128() & !(0xF << 76) & !(0x3 << 62) | 0x8 << 76 | 0x2 << 62;
        bits.to_be_bytes()
    }
}
