//! Description of an image, for people and programs.

use crate::format::Index;
use crate::trust::digits_of;
use sidecore_bare::width::ToU64;

/// Facts about an image, by its tables.
#[derive(Debug, serde::Serialize)]
pub struct ImageInfo {
    /// Name of the format.
    pub format: &'static str,
    /// The variant of the format.
    pub variant: &'static str,
    /// The codec of its frames.
    pub codec: String,
    /// Bytes of the contents.
    pub raw_bytes: u64,
    /// Bytes of the image.
    pub stored_bytes: u64,
    /// Bytes of a frame, or the most that one has.
    pub frame_bytes: u32,
    /// Frames.
    pub frames: u64,
    /// Frames that hold zeros alone.
    pub zero_frames: u64,
    /// Runs of zeros are recorded and not stored.
    pub thin: bool,
    /// Contents over image.
    pub ratio: f64,
    /// The checksums of its frames.
    pub checksums: &'static str,
    /// The cipher of an encrypted image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cipher: Option<&'static str>,
    /// Root that the image claims. `--root-hash` is compared with a root that is computed from the
    /// frames' hashes.
    pub root_hash: Option<String>,
    /// Public keys, as hexadecimal digits, that the image's signatures name.
    pub signed_by: Vec<String>,
    /// Memory that its tables take.
    pub index_memory_bytes: u64,
}

impl ImageInfo {
    /// Describes an image whose tables were read.
    #[must_use]
    pub fn of(index: &Index) -> Self {
        Self {
            format: index.format().name(),
            variant: index.variant(),
            codec: index.codec().to_string(),
            raw_bytes: index.raw_bytes(),
            stored_bytes: index.stored_bytes(),
            frame_bytes: index.frame_bytes(),
            frames: index.frames(),
            zero_frames: index.zero_frames(),
            thin: index.is_thin(),
            ratio: index.raw_bytes() as f64 / index.stored_bytes() as f64,
            checksums: index.checksums(),
            cipher: index.lock().map(|lock| lock.cipher().name()),
            root_hash: index.tree().map(|tree| digits_of(&tree.root)),
            signed_by: index.tree().map_or_else(Vec::new, |tree| {
                let keys = tree.signatures.iter().map(|it| digits_of(&it.key));
                keys.collect()
            }),
            index_memory_bytes: index.memory_bytes().to_u64(),
        }
    }
}
