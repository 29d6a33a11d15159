//! Description of an image, for people and programs.

use crate::format::Index;
use crate::format::lock::Slot;
use crate::trust::digits_of;
use sidecore_bare::text::bytes;
use sidecore_bare::width::ToU64;
use sidecore_terminal::Text;

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

    /// The same for people; `checked` are the public keys, as hexadecimal digits, by which the
    /// image was checked.
    #[must_use]
    pub fn text(&self, index: &Index, checked: &[String]) -> Text {
        let mut text = Text::new();
        let sized = |count| format!("{} ({count} bytes)", bytes(count));
        text.fact("format", format!("{} ({})", self.format, self.variant));
        text.fact("codec", &self.codec);
        text.fact("contents", sized(self.raw_bytes));
        text.fact("image", sized(self.stored_bytes));
        text.fact("ratio", format!("{:.2}:1", self.ratio));
        let most = if index.is_even() { "" } else { "up to " };
        let (frames, frame) = (self.frames, bytes(self.frame_bytes.into()));
        let zeros = self.zero_frames;
        text.fact(
            "frames",
            format!("{frames} of {most}{frame}, {zeros} all zeros"),
        );
        if self.thin {
            let holes = frames - index.stored_frames();
            text.fact("holes", format!("{holes} frames, which are not stored"));
        }
        text.fact("checksums", self.checksums);
        if let (Some(cipher), Some(lock)) = (self.cipher, index.lock()) {
            let kinds = lock.slots().iter().map(|slot| match slot {
                Slot::X25519 { .. } => "a recipient",
                Slot::Passphrase { .. } => "a passphrase",
                Slot::Unknown(_) => "another kind",
            });
            let kinds = kinds.collect::<Vec<_>>().join(", ");
            text.fact("encrypted", format!("{cipher}, for {kinds}"));
        }
        if let Some(root) = &self.root_hash {
            let word = if index.is_trusted() {
                "trusted"
            } else {
                "claimed"
            };
            text.fact("root hash", format!("{root} ({word})"));
        }
        for key in &self.signed_by {
            let word = match checked.contains(key) {
                true => "checked: it is valid",
                false => "not checked: --verify-key checks it",
            };
            text.fact("signature", format!("by {key}, {word}"));
        }
        text.fact("index memory", bytes(self.index_memory_bytes));
        text
    }
}
